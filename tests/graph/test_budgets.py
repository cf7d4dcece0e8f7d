"""Budgets of nodes and runs in a graph that runs without a store, and what happens over budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rota.errors import ComponentInvalid, LedgerInvalidAmount
from rota.graph.accounts import MemoryAccount
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions, SchedulerStopReason
from tests.graph.worlds import EVENT_LOOP, compile_world, node, wire

seen: list[Any] = []
charged: list[int] = []  # what each charge left
QUEUE: dict[str, Any] = {"mode": "queue", "capacity": 9}
OVER = (
    "component spend is over budget: tokens of node spend: 60 of 50 used; "
    "raise it: rota graph budget r1 tokens=120 --node spend"
)


@component("budget.source", outputs=("out",))
def source(context: GraphContext) -> None:
    """1, 2, 3, when the run begins."""
    for number in (1, 2, 3):
        context.publish("out", number)


@component("budget.spend")
def spend(context: GraphContext, value: int, *, tokens: int = 30) -> int:
    """Charge, and pass on what is left."""
    charged.append(context.charge(tokens=tokens)["tokens"])
    return charged[-1]


@component("budget.keep")
def keep(value: Any) -> None:
    seen.append(value)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()
    charged.clear()


def runner(
    own: Mapping[str, Any] | None = None,
    *,
    of_run: Mapping[str, Any] | None = None,
    work: Any = spend,
    lane: Mapping[str, Any] | None = None,
    **execution: Any,
) -> RuntimeRunner:
    """source → spend → keep; with an edge `beyond` from spend to keep for what is over budget."""
    fields = {**execution, **({"budget": own} if own else {})}
    nodes = [
        node(source, "source", sources=[{"type": "start"}], on="on_event"),
        node(work, "spend", on="any_input", lane="work", **fields),
        node(keep, "keep", on="any_input"),
    ]
    wires = [wire("source.out > spend.value", **QUEUE), wire("spend.out > keep.value", **QUEUE)]
    if execution.get("on_over_budget") == "beyond":
        nodes.append(node(keep, "reason", on="any_input"))
        wires.append(wire("spend.over_budget > reason.value", id="beyond", **QUEUE))
    lanes = {**EVENT_LOOP, "work": lane or {"type": "event_loop"}}
    plan, registry = compile_world(nodes, wires, lanes=lanes, budget=of_run)
    return RuntimeRunner(plan, registry, RuntimeRunnerOptions(run_until_idle=True, run_id="r1"))


def reasons(result: RuntimeRunnerResult) -> list[str]:
    return [event.message for event in result.health_events if event.kind == "over_budget"]


def test_a_component_counts_down_what_is_left_of_both_budgets() -> None:
    assert runner({"tokens": 95}, of_run={"tokens": 100}).run().ok
    assert seen == [65, 35, 5]


@pytest.mark.parametrize("lane", [{"type": "event_loop"}, {"type": "thread_pool"}, {"type": "fixed_rate", "hz": 10}])
def test_over_its_budget_a_component_fails_with_the_numbers(lane: dict[str, Any]) -> None:
    result = runner({"tokens": 50}, lane=lane).run()
    assert charged == [20, -10]  # what crosses the budget is finished, the next invocation does not start
    assert result.scheduler_stop_reason is SchedulerStopReason.ERROR
    assert [(error.code, error.message) for error in result.runtime_errors] == [("over_budget", OVER)]
    assert reasons(result) == [OVER]


def test_the_budget_of_the_run_holds_for_all_components_together() -> None:
    result = runner({"tokens": 80}, of_run={"tokens": 80}, on_error="continue").run()
    assert seen == [50, 20, -10]
    assert result.scheduler_stop_reason is SchedulerStopReason.IDLE


def test_with_continue_the_run_goes_on_without_it() -> None:
    result = runner({"tokens": 50}, on_error="continue").run()
    assert (seen, result.scheduler_stop_reason) == ([20, -10], SchedulerStopReason.IDLE)
    assert result.error_count == 1


def test_retrying_does_not_help_over_budget() -> None:
    result = runner({"tokens": 50}, on_error="retry", max_attempts=5).run()
    assert (charged, result.error_count) == ([20, -10], 1)


def test_the_reason_is_routed_to_the_edge_that_is_named() -> None:
    result = runner({"tokens": 50}, on_over_budget="beyond").run()
    assert result.ok
    message = {"over_budget": "spend", "reason": OVER, "of": "spend", "dim": "tokens", "used": 60, "limit": 50}
    assert seen == [20, -10, message]
    assert reasons(result) == [OVER]


def test_a_run_that_waits_says_for_what_and_goes_on_when_the_budget_is_raised() -> None:
    waiting = runner({"tokens": 50}, on_over_budget="wait")
    waiting.start()
    for _ in range(5):
        waiting.step()
    assert seen == [20, -10]
    account = waiting.account
    assert isinstance(account, MemoryAccount)
    account.set_budget("tokens", 90, node="spend")
    waiting.step()
    assert seen == [20, -10, 0]
    assert reasons(waiting.finish()) == [f"{OVER}; it waits"]


def test_a_waiting_run_until_idle_ends_as_waiting() -> None:
    result = runner({"tokens": 50}, on_over_budget="wait").run()
    assert result.scheduler_stop_reason is SchedulerStopReason.WAITING
    assert reasons(result) == [f"{OVER}; it waits"]


def test_a_component_that_charges_nothing_is_not_held_up() -> None:
    @component("budget.pass_on")
    def pass_on(value: int) -> int:
        return value

    runner_of = runner({"tokens": 0}, work=pass_on)
    assert runner_of.run().ok
    assert seen == [1, 2, 3]


def test_over_budget_the_component_is_asked_to_stop() -> None:
    @component("budget.careful")
    def careful(context: GraphContext, value: int) -> list[bool]:
        before = context.cancel_requested()
        context.charge(tokens=51)
        return [before, context.cancel_requested()]

    runner({"tokens": 50}, work=careful, on_error="continue").run()
    assert seen == [[False, True]]


def test_the_context_has_what_ctx_has() -> None:
    logged: list[Any] = []

    @component("budget.everything")
    def everything(context: GraphContext, value: int) -> Any:
        context.progress(0.5, "half")
        context.log("reading", level="warning")
        with context.acquire("model", tokens=7, requests=1) as grant:
            logged.append(grant.settle(tokens=5))
        asked = context.acquire("model", tokens=3)
        logged.append(context.settle(asked))
        logged.append(context.charge(usd=0.25, model="small"))
        return context.remaining() if value == 1 else None

    result = runner({"tokens": 50, "usd": 1}, work=everything).run()
    assert logged[:3] == [
        {"tokens": 45, "cost_micro": 1_000_000},
        {"tokens": 42, "cost_micro": 1_000_000},
        {"tokens": 42, "cost_micro": 750_000},
    ]
    assert seen == [{"tokens": 42, "cost_micro": 750_000}]
    kinds = [(event.kind, event.message) for event in result.health_events]
    assert kinds == [("limit_not_enforced", "limit model is not enforced: this run has no store")]


@pytest.mark.parametrize("amounts", [{"tokens": -1}, {"tokens": 1.5}, {"tokens": True}, {"": 1}, {"usd": -1}])
def test_a_charge_that_is_none_fails_the_component(amounts: dict[str, Any]) -> None:
    @component("budget.wrong")
    def wrong(context: GraphContext, value: int) -> int:
        context.charge(**amounts)
        return value

    result = runner({"tokens": 50}, work=wrong).run()
    assert result.error_count == 1
    assert seen == []


def test_what_a_failed_attempt_used_has_been_used() -> None:
    @component("budget.flaky")
    def flaky(context: GraphContext, value: int) -> int:
        left = context.charge(tokens=10)["tokens"]
        if left > 30:
            raise ValueError("again")
        return left + value

    runner({"tokens": 50}, work=flaky, on_error="retry", max_attempts=3).run()
    assert seen[0] == 31


def test_a_worker_process_cannot_charge_and_says_so() -> None:
    result = runner({"tokens": 50}, lane={"type": "process_pool", "max_threads": 1}).run()
    assert "charges, limits and progress are not available in a worker process" in result.errors[0]


def test_an_account_counts_charges_of_components_without_a_budget() -> None:
    account = MemoryAccount("r1", {"": {"tokens": 10}})
    assert account.charge("a", {"tokens": 4, "tool_calls": 1}) == {"tokens": 6}
    assert account.charge("b", {"tokens": 4}) == {"tokens": 2}
    assert account.used == {"a": {"tokens": 4, "tool_calls": 1}, "b": {"tokens": 4}}
    with pytest.raises(LedgerInvalidAmount):
        account.set_budget("tokens", -1)


def test_a_context_that_outlives_its_invocation_is_refused() -> None:
    kept: list[GraphContext] = []

    @component("budget.leaks")
    def leaks(context: GraphContext, value: int) -> None:
        kept.append(context)

    runner({"tokens": 50}, work=leaks).run()
    with pytest.raises(ComponentInvalid, match="after its invocation had ended"):
        kept[0].charge(tokens=1)

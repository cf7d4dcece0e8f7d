"""Composite loops: iterations, convergence, and what happens to held publications."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import ComponentInvalid
from rota.graph import ComponentRegistry, Graph, RuntimeRunner, RuntimeRunnerOptions, compile_graph, load_mapping
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run_options import SchedulerStopReason
from rota.graph.stop import StopToken
from rota.graph.tasks import TaskResult
from tests.graph import report_parts as parts
from tests.graph.parts import Count, burst, log, note
from tests.graph.worlds import make_runner, names, node, run, wire


@component("loop.grow")
def grow(value: int = 0, back: int = 0) -> int:
    """One more than its input."""
    return max(value, back) + 1


@component("loop.judge", outputs=("back", "done"))
class Judge:
    """Sends everything back into the loop and out of it, and reports what it is configured to report."""

    def __init__(self, *, converged_at: int = 0, reason: str = "", goal: int | None = None, fail_at: int = 0) -> None:
        self.converged_at, self.reason, self.goal, self.fail_at = converged_at, reason, goal, fail_at

    def execute(self, value: int, context: GraphContext) -> None:
        if value == self.fail_at:
            raise ValueError(f"no {value}")
        context.publish("back", value)
        context.publish("done", value)
        if self.goal is not None:
            context.report_residual(abs(self.goal - value))
        if value == self.converged_at:
            context.report_converged(self.reason) if self.reason else context.report_converged()


def go(
    policy: dict[str, Any] | None = None,
    judge: dict[str, Any] | None = None,
    *,
    lane: str = "main",
    lanes: dict[str, Any] | None = None,
    steps: int = 1,
    kind: str = "immediate",
    on_error: str = "fail_fast",
    **options: Any,
) -> RuntimeRunnerResult:
    """count → grow ⇄ judge → note."""
    nodes = [
        node(Count, config={"start": -1}),
        node(grow, "grow", on={"type": "any_input", "inputs": ["value", "back"]}, lane=lane),
        node(Judge, "judge", on="any_input", config=judge, lane=lane, on_error=on_error),
        node(note, on="any_input"),
    ]
    wires = [
        wire("parts.count.out > grow.value"),
        wire("grow.out > judge.value", mode="queue", capacity=9),
        wire("judge.back > grow.back", id="back"),
        wire("judge.done > parts.note.value", kind, mode="queue", capacity=99),
    ]
    loops = [{"id": "loop", "components": ["grow", "judge"], "loop_policy": {"type": "fixed_point", **(policy or {})}}]
    return run(nodes, wires, lanes=lanes, loops=loops, steps=steps, **options)


class TestEndReasons:
    def test_without_max_iterations_it_runs_one_iteration(self) -> None:
        result = go()
        assert (log, result.loops[0].iterations, result.loops[0].reason) == ([1], 1, "max_iterations")

    def test_it_runs_up_to_max_iterations(self) -> None:
        result = go({"max_iterations": 4})
        assert log == [1, 2, 3, 4]
        assert (result.loops[0].reason, result.loops[0].converged) == ("max_iterations", False)

    @pytest.mark.parametrize("word", ["single_pass", "after_first_iteration", "always"])
    def test_some_convergence_values_end_it_after_the_first_iteration(self, word: str) -> None:
        result = go({"max_iterations": 9, "convergence": word})
        assert (log, result.loops[0].reason, result.loops[0].converged) == ([1], word, True)

    def test_stable_state_ends_it_when_its_edges_carry_the_same_values_twice(self) -> None:
        @component("loop.clamp")
        def clamp(value: int = 0, back: int = 0) -> int:
            return min(3, max(value, back) + 1)

        nodes = [
            node(Count, config={"start": -1}),
            node(clamp, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
            node(Judge, "judge", on="any_input"),
        ]
        wires = [
            wire("parts.count.out > grow.value"),
            wire("grow.out > judge.value", mode="queue", capacity=9),
            wire("judge.back > grow.back", id="back"),
        ]
        policy = {"type": "fixed_point", "max_iterations": 20, "convergence": "stable_state"}
        loops = [{"id": "loop", "components": ["grow", "judge"], "loop_policy": policy}]
        result = run(nodes, wires, loops=loops)
        assert (result.loops[0].reason, result.loops[0].iterations) == ("stable_state", 4)  # 1, 2, 3, 3

    def test_a_member_reports_that_it_has_converged(self) -> None:
        result = go({"max_iterations": 9}, {"converged_at": 3})
        assert (log, result.loops[0].reason) == ([1, 2, 3], "component_report")

    def test_a_member_may_report_its_own_reason(self) -> None:
        assert (
            go({"max_iterations": 9}, {"converged_at": 2, "reason": "close enough"}).loops[0].reason == "close enough"
        )

    def test_the_residual_is_at_the_threshold(self) -> None:
        result = go({"max_iterations": 9, "residual_threshold": 1}, {"goal": 4})
        assert (log, result.loops[0].reason) == ([1, 2, 3], "residual_threshold")

    def test_convergence_is_checked_before_reports_and_reports_before_residuals(self) -> None:
        policy = {"max_iterations": 9, "residual_threshold": 5}
        assert go(policy, {"goal": 1, "converged_at": 1}).loops[0].reason == "component_report"
        assert go({**policy, "convergence": "always"}, {"goal": 1, "converged_at": 1}).loops[0].reason == "always"

    def test_its_budget_is_observed_after_each_iteration(self) -> None:
        clock = ManualClock()

        @component("loop.slow", outputs=("back",))
        def slow(value: int) -> int:
            clock.advance(0.03)
            return value

        nodes = [
            node(Count),
            node(grow, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
            node(slow, "slow", on="any_input"),
        ]
        wires = [
            wire("parts.count.out > grow.value"),
            wire("grow.out > slow.value", mode="queue", capacity=9),
            wire("slow.back > grow.back", id="back"),
        ]
        policy = {"type": "fixed_point", "max_iterations": 99, "budget_ms": 100}
        loops = [{"id": "loop", "components": ["grow", "slow"], "loop_policy": policy}]
        result = run(nodes, wires, loops=loops, clock=clock)
        assert (result.loops[0].reason, result.loops[0].iterations) == ("budget_overrun", 4)
        assert result.totals["loop_budget_overrun_count"] == 1

    def test_it_ends_when_no_member_is_ready(self) -> None:
        @component("loop.stop_at_two")
        def stop_at_two(value: int = 0, back: int = 0) -> int | None:
            return max(value, back) + 1 if max(value, back) < 2 else None

        nodes = [
            node(Count, config={"start": -1}),
            node(stop_at_two, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
            node(Judge, "judge", on="any_input"),
        ]
        wires = [
            wire("parts.count.out > grow.value"),
            wire("grow.out > judge.value", mode="queue", capacity=9),
            wire("judge.back > grow.back", id="back"),
        ]
        loops = [
            {"id": "l", "components": ["grow", "judge"], "loop_policy": {"type": "fixed_point", "max_iterations": 9}}
        ]
        result = run(nodes, wires, loops=loops)
        assert (result.loops[0].reason, result.loops[0].iterations) == ("quiescent", 3)

    def test_a_loop_without_a_ready_member_does_not_run(self) -> None:
        nodes = [
            node(grow, "grow", on={"type": "any_input", "inputs": ["back"]}),
            node(Judge, "judge", on="any_input"),
        ]
        wires = [wire("grow.out > judge.value"), wire("judge.back > grow.back", id="back")]
        loops = [{"id": "l", "components": ["grow", "judge"], "loop_policy": {"type": "fixed_point"}}]
        result = run(nodes, wires, loops=loops)
        assert (result.loops, result.totals["loop_run_count"]) == ((), 0)

    def test_a_self_loop_runs_once_per_iteration(self) -> None:
        @component("loop.again")
        def again(value: int = 0, back: int = 0) -> int:
            log.append(max(value, back))
            return max(value, back) + 1

        nodes = [node(Count), node(again, "again", on={"type": "any_input", "inputs": ["value", "back"]})]
        wires = [
            wire("parts.count.out > again.value"),
            wire("again.out > again.back", id="back", mode="queue", capacity=9),
        ]
        loops = [{"id": "l", "components": ["again"], "loop_policy": {"type": "fixed_point", "max_iterations": 3}}]
        assert run(nodes, wires, loops=loops).ok
        assert log == [1, 2, 3]


class TestHeldPublications:
    def test_nothing_leaves_before_the_loop_is_over(self) -> None:
        seen_inside: list[int] = []

        @component("loop.spy")
        def spy(value: int = 0, back: int = 0) -> int:
            seen_inside.append(len(log))
            return max(value, back) + 1

        nodes = [
            node(Count, config={"start": -1}),
            node(spy, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
            node(Judge, "judge", on="any_input"),
            node(note, on="any_input"),
        ]
        wires = [
            wire("parts.count.out > grow.value"),
            wire("grow.out > judge.value"),
            wire("judge.back > grow.back", id="back"),
            wire("judge.done > parts.note.value", mode="queue", capacity=9),
        ]
        loops = [
            {"id": "l", "components": ["grow", "judge"], "loop_policy": {"type": "fixed_point", "max_iterations": 3}}
        ]
        run(nodes, wires, loops=loops)
        assert (seen_inside, log) == ([0, 0, 0], [1, 2, 3])

    def test_a_delayed_edge_out_of_the_loop_is_seen_in_the_next_epoch(self) -> None:
        go({"max_iterations": 2}, kind="delay", steps=1)
        assert log == []
        go({"max_iterations": 2}, kind="delay", steps=2)
        assert log == [1, 2]

    def test_after_an_error_everything_is_discarded(self) -> None:
        result = go({"max_iterations": 9}, {"fail_at": 3})
        assert log == []
        assert result.scheduler_stop_reason == SchedulerStopReason.ERROR
        assert result.totals["loop_discarded_count"] == 2
        assert (result.loops[0].reason, result.loops[0].iterations) == ("component_error", 3)

    def test_an_error_that_does_not_end_the_run_ends_the_loop(self) -> None:
        result = go({"max_iterations": 9}, {"fail_at": 3}, on_error="continue")
        assert log == []
        assert (result.loops[0].reason, result.loops[0].committed) == ("component_error", False)
        assert result.scheduler_stop_reason == SchedulerStopReason.TICK_BOUND

    @pytest.mark.parametrize(
        ("partial_success", "expected"), [("", []), ("discard_outputs", []), ("commit_outputs", [1, 2])]
    )
    def test_a_solver_that_did_not_converge(self, partial_success: str, expected: list[int]) -> None:
        result = go({"type": "solver_iteration", "max_iterations": 2, "partial_success": partial_success})
        assert (log, result.ok) == (expected, True)

    def test_a_solver_that_must_converge_fails_the_run(self) -> None:
        result = go({"type": "solver_iteration", "max_iterations": 2, "partial_success": "fail_run"})
        assert (log, result.scheduler_stop_reason) == ([], SchedulerStopReason.ERROR)
        assert result.runtime_errors[0].code == "loop_not_converged"

    def test_a_solver_that_converged_commits(self) -> None:
        go({"type": "solver_iteration", "max_iterations": 9}, {"converged_at": 2})
        assert log == [1, 2]

    @pytest.mark.parametrize("kind", ["fixed_point", "transaction", "coalesced_event", "async_task"])
    def test_the_other_types_commit_without_convergence(self, kind: str) -> None:
        go({"type": kind, "max_iterations": 2})
        assert log == [1, 2]


class TestCancellation:
    def cancelled(self, kind: str) -> RuntimeRunnerResult:
        token = StopToken()

        @component("loop.stopper")
        def stopper(value: int = 0, back: int = 0) -> int:
            token.request()
            return max(value, back) + 1

        nodes = [
            node(Count, config={"start": -1}),
            node(stopper, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
            node(Judge, "judge", on="any_input"),
            node(note, on="any_input"),
        ]
        wires = [
            wire("parts.count.out > grow.value"),
            wire("grow.out > judge.value"),
            wire("judge.back > grow.back", id="back"),
            wire("judge.done > parts.note.value"),
        ]
        loops = [{"id": "l", "components": ["grow", "judge"], "loop_policy": {"type": kind, "max_iterations": 9}}]
        return run(nodes, wires, loops=loops, stop_token=token, trace=True, steps=9)

    def test_it_is_checked_from_the_second_iteration_on(self) -> None:
        result = self.cancelled("fixed_point")
        assert (result.loops[0].iterations, result.loops[0].reason, log) == (1, "cancelled", [1])
        assert names(result, "loop_canc") == ["loop_cancellation_requested", "loop_cancellation_observed"]
        assert result.scheduler_stop_reason == SchedulerStopReason.STOP_REQUESTED

    def test_a_cancelled_transaction_commits_nothing(self) -> None:
        self.cancelled("transaction")
        assert log == []


class TestOtherPolicies:
    def test_a_minimum_interval_skips_epochs_and_keeps_the_messages(self) -> None:
        clock = ManualClock()
        nodes = [
            node(Count, config={"start": -1}),
            node(grow, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
            node(Judge, "judge", on="any_input"),
            node(note, on="any_input"),
        ]
        wires = [
            wire("parts.count.out > grow.value"),
            wire("grow.out > judge.value"),
            wire("judge.back > grow.back", id="back"),
            wire("judge.done > parts.note.value"),
        ]
        policy = {"type": "fixed_point", "min_interval_ms": 100, "convergence": "always"}
        loops = [{"id": "l", "components": ["grow", "judge"], "loop_policy": policy}]
        with make_runner(nodes, wires, loops=loops, clock=clock) as runner:
            for _ in range(3):
                runner.step()
            assert len(log) == 1
            clock.advance(0.1)
            runner.step()
            assert len(log) == 2

    def test_coalesced_event_keeps_only_the_newest_message(self) -> None:
        nodes = [
            node(burst, config={"size": 5}),
            node(grow, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
            node(Judge, "judge", on="any_input"),
            node(note, on="any_input"),
        ]
        wires = [
            wire("parts.burst.out > grow.value", mode="queue", capacity=9),
            wire("grow.out > judge.value", mode="queue", capacity=9),
            wire("judge.back > grow.back", id="back"),
            wire("judge.done > parts.note.value", mode="queue", capacity=9),
        ]
        policy = {"type": "coalesced_event", "convergence": "always"}
        loops = [{"id": "l", "components": ["grow", "judge"], "loop_policy": policy}]
        run(nodes, wires, loops=loops)
        assert log == [5]

    @pytest.mark.parametrize("lane", ["pool"])
    def test_members_may_be_executed_by_a_pool(self, lane: str) -> None:
        lanes = {"main": {"type": "event_loop"}, "pool": {"type": "thread_pool", "max_threads": 2}}
        result = go({"max_iterations": 3}, {"converged_at": 3}, lane=lane, lanes=lanes, trace=True)
        assert log == [1, 2, 3]
        assert (result.loops[0].reason, result.ok) == ("component_report", True)

    @pytest.mark.parametrize(("drop_policy", "fails"), [("", False), ("drop_newest", False), ("fail_fast", True)])
    def test_an_async_task_loop_bounds_the_tasks_of_its_members(self, drop_policy: str, fails: bool) -> None:
        gate = threading.Event()

        @component("loop.submitter", outputs=("out",))
        def submitter(
            context: GraphContext, value: int = 0, back: int = 0, task_ready: TaskResult | None = None
        ) -> int | None:
            try:
                log.append([context.submit(gate.wait, 10) is not None for _ in range(3)])
            finally:
                gate.set()
            return None

        nodes = [
            node(Count),
            node(
                submitter,
                "grow",
                on="on_event",
                sources=[{"type": "task_ready"}, {"type": "message", "inputs": ["value", "back"]}],
            ),
            node(Judge, "judge", on="any_input"),
        ]
        wires = [
            wire("parts.count.out > grow.value"),
            wire("grow.out > judge.value"),
            wire("judge.back > grow.back", id="back"),
        ]
        policy = {"type": "async_task", "max_inflight": 2, "drop_policy": drop_policy}
        loops = [{"id": "l", "components": ["grow", "judge"], "loop_policy": policy}]
        result = run(nodes, wires, loops=loops)
        assert result.metric("runtime.task.rejected_count") >= 1
        if fails:
            assert "its loop already has 2 tasks in flight" in result.errors[0]
        else:
            assert log == [[True, True, False]]
            assert "task_reject" in [event.kind for event in result.health_events]


def test_values_that_cannot_be_compared_are_never_a_stable_state() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise TypeError("no truth value")

        __hash__ = None  # type: ignore[assignment]

    @component("loop.odd")
    def odd(value: Any = None, back: Any = None) -> Any:
        return Odd()

    nodes = [
        node(Count),
        node(odd, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
        node(odd, "judge", on="any_input"),
    ]
    wires = [
        wire("parts.count.out > grow.value"),
        wire("grow.out > judge.value", copy_policy="shared_view"),
        wire("judge.out > grow.back", id="back", copy_policy="shared_view"),
    ]
    policy = {"type": "fixed_point", "max_iterations": 3, "convergence": "stable_state"}
    loops = [{"id": "l", "components": ["grow", "judge"], "loop_policy": policy}]
    assert run(nodes, wires, loops=loops).loops[0].reason == "max_iterations"


def test_a_full_channel_after_a_loop_ends_the_run() -> None:
    nodes = [
        node(Count),
        node(grow, "grow", on={"type": "any_input", "inputs": ["value", "back"]}),
        node(Judge, "judge", on="any_input"),
        node(note, on="any_input"),
    ]
    wires = [
        wire("parts.count.out > grow.value"),
        wire("grow.out > judge.value"),
        wire("judge.back > grow.back", id="back"),
        wire("judge.done > parts.note.value", mode="queue", capacity=2, overflow="fail_fast"),
    ]
    policy = {"type": "fixed_point", "max_iterations": 5}
    loops = [{"id": "l", "components": ["grow", "judge"], "loop_policy": policy}]
    result = run(nodes, wires, loops=loops)
    assert (result.scheduler_stop_reason, result.runtime_errors[0].code) == (
        SchedulerStopReason.ERROR,
        "channel_overflow",
    )


def test_the_condition_of_a_loop_causes_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a registry that may import does: a graph file alone runs no code of another module."""
    (tmp_path / "unloaded_condition.py").write_text("def accepted(value): return True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ring = {"id": "ring", "type": "rota.loop", "execution": {"lane": "main"}}
    config = {"until": "unloaded_condition:accepted", "max_iterations": 1}
    lanes = {"main": {"type": "event_loop"}}
    graph = {"schema_version": 2, "graph": {"name": "g"}, "lanes": lanes, "edges": []}
    spec = load_mapping({**graph, "components": [{**ring, "config": config}]})

    def try_it(registry: ComponentRegistry) -> bool:
        options = RuntimeRunnerOptions(steps=1)
        return RuntimeRunner(compile_graph(spec, registry), registry, options).run().ok

    with pytest.raises(ComponentInvalid, match="'unloaded_condition:accepted' is in a module that is not loaded"):
        try_it(ComponentRegistry())
    assert "unloaded_condition" not in sys.modules
    assert try_it(ComponentRegistry(imports=True))


def test_the_trace_shows_the_iterations_of_a_loop_that_spans_epochs() -> None:
    graph = Graph("loop")
    graph.output(graph.loop(parts.double, until=lambda number: number > 5, max_iterations=9)(graph.node(one)()))
    plan = graph.plan()
    result = RuntimeRunner(plan, graph.registry(), RuntimeRunnerOptions(run_until_idle=True, trace=True)).run()
    assert result.trace is not None
    shown = [(event.name, event.attributes) for event in result.trace.events() if event.name.startswith("loop_")]
    assert shown == [
        *(("loop_iteration", {"iteration": str(number)}) for number in (1, 2, 3)),
        ("loop_converged", {"reason": "accepted", "iterations": "3"}),
    ]


def one() -> int:
    return 1

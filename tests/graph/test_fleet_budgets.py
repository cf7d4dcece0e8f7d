"""Budgets of nodes that are entries, and of their runs: enforced by the ledger, explained, raised while a run waits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from rota.cli import app
from rota.errors import ComponentInvalid
from rota.fleet.supervisor import Supervisor, SupervisorSettings
from rota.graph.accounts import StoreAccount
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.kernel.replay import KernelState
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.graph_runs import BUDGETS_KEY, DOCUMENT_KEY, TEMPLATE, coordinator_settings
from rota.model.reasons import OverBudget
from rota.service.explanation import explain
from tests.graph import report_parts
from tests.graph.durable_worlds import ASYNC, DurableWorld
from tests.graph.parts import add, burst, log, note
from tests.graph.test_fleet_lane import INPUT, OUTPUT, FleetWorld, agent_node, document
from tests.graph.worlds import node, wire

TOKENS = 40


def work(ctx: Any, topic: Any, charges: int = 1) -> str:
    """Charge again and again, unless asked to stop."""
    done = int((ctx.saved or {}).get("done", 0))
    for number in range(done, charges):
        ctx.charge(tokens=TOKENS)
        ctx.checkpoint(done=number + 1)
        ctx.raise_if_stopped()
    return f"{topic} done"


def graph(*, budget: Any = None, charges: int = 5, **execution: Any) -> dict[str, Any]:
    """topic → search → result; with an edge `over` to `result` for what is over budget."""
    components = [INPUT, agent_node("search", "worker", config={"charges": charges}, **execution), OUTPUT]
    wires = ["topic.out > search.topic", "search.out > result.value"]
    if execution.get("on_over_budget") == "over":
        components.append({**OUTPUT, "id": "reason"})
    found = document(components, wires)
    if execution.get("on_over_budget") == "over":
        over = {"id": "over", "kind": "async", "from": "search.over_budget", "to": "reason.value"}
        found["edges"].append(over)
    if budget is not None:
        found["graph"]["budget"] = budget
    return found


def world() -> FleetWorld:
    return FleetWorld({"worker": work})


def charged(world: FleetWorld) -> int:
    """The sum of all charges, as the journal has them."""
    events = world.kernel.journal.tail(0, 10_000)
    return sum(event.payload["amounts"].get("tokens", 0) for event in events if event.kind == "kernel.ledger.charged")


def used(world: FleetWorld) -> dict[str, int]:
    """What the lines of the run say was used; the journal must rebuild them."""
    both = world.kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert both[0].graph_budgets == both[1].graph_budgets
    return {line.node: line.used for line in world.api.ledger.graph_budgets("r1")}


def test_a_node_within_its_budget_is_charged_to_node_and_run() -> None:
    fleet = world()
    run = fleet.run(graph(budget={"tokens": 1000}, charges=3), topic="owls")
    assert (run.status, run.result, used(fleet)) == ("succeeded", {"result": "owls done"}, {"": 120})
    assert charged(fleet) == 120


def test_a_node_over_its_budget_is_stopped_and_fails_the_run_with_the_numbers() -> None:
    fleet = world()
    found = graph()
    found["components"][1]["execution"]["budget"] = {"tokens": 100}
    run = fleet.run(found, topic="owls")
    assert run.status == "failed"
    assert "component search is over budget: tokens of node search: 120 of 100 used" in run.error
    assert run.error.count("component search") == 1
    (entry,) = fleet.entries("worker")
    assert (entry.exit_kind, entry.outcome, entry.attempt) == ("failed", "over_budget", 1)
    assert used(fleet) == {"search": 120}
    assert charged(fleet) == 120


def test_the_reason_goes_to_the_edge_that_is_named() -> None:
    fleet = world()
    run = fleet.run(graph(budget={"tokens": 100}, on_over_budget="over"), topic="owls")
    assert run.status == "succeeded"
    message = run.result["reason"]
    assert (message["over_budget"], message["of"], message["used"], message["limit"]) == ("search", "run", 120, 100)


def test_a_run_that_waits_says_for_what_and_goes_on_when_the_budget_is_raised() -> None:
    fleet = world()
    run = fleet.run(graph(budget={"tokens": 100}, on_over_budget="wait"), topic="owls")
    assert run.status == "waiting"
    assert run.waits == "the end of search; budget (tokens of run r1: 120 of 100 used)"
    (entry,) = fleet.entries("worker")
    assert (entry.state, entry.attempt) == ("queued", 0)  # waiting counts no attempt
    (reason,) = explain(fleet.api, entry.sched_id).blocking
    assert isinstance(reason, OverBudget)
    assert (reason.level, reason.owner, reason.used, reason.limit) == ("graph", "r1", 120, 100)
    fleet.api.ledger.set_graph_budget("r1", "tokens", 200)
    fleet.supervise()
    ended = fleet.api.graphs.show("r1").run
    assert (ended.status, ended.result) == ("succeeded", {"result": "owls done"})
    assert used(fleet) == {"": 200}  # it went on from its checkpoint: nothing was charged twice
    assert charged(fleet) == 200


def test_entries_that_can_never_start_are_cancelled_and_the_run_fails() -> None:
    fleet = world()
    nodes = [agent_node(f"r{number}", "worker", config={"charges": 2}) for number in range(3)]
    wires = [f"topic.out > r{number}.topic" for number in range(3)]
    found = document([INPUT, *nodes], wires)
    found["graph"]["budget"] = {"tokens": 60}
    run = fleet.run(found, slots=1, topic="owls")
    assert run.status == "failed"
    assert "80 of 60 used" in run.error
    states = [entry.exit_kind or entry.state for entry in fleet.entries("worker")]
    assert "queued" not in states
    assert charged(fleet) == used(fleet)[""] == 80


def asking(ask: int) -> FleetWorld:
    """A worker of which each run uses 40 tokens and asks for so many."""
    return FleetWorld({"worker": work}, {"worker": {"expected": {"tokens": ask}}})


@pytest.mark.parametrize(("budget", "ran"), [(30, 0), (90, 1)])
def test_entries_that_ask_for_more_than_is_left_are_cancelled_and_the_run_fails(budget: int, ran: int) -> None:
    """Usage only grows, so they would wait without end."""
    fleet = asking(60)
    run = fleet.run(graph(budget={"tokens": budget}, charges=1, map_over="topic"), topic=["a", "b", "c"])
    assert run.status == "failed"
    text = f"component search is over budget: tokens of run r1: {40 * ran} of {budget} used, and 60 more are asked for"
    assert text in run.error
    assert run.error.count("component search") == 1
    assert [entry.state for entry in fleet.entries("worker")].count("cancelled") == 3 - ran
    assert used(fleet) == {"": 40 * ran}


def test_a_run_whose_entries_ask_for_more_than_is_left_waits_and_says_for_what() -> None:
    fleet = asking(60)
    waiting = graph(budget={"tokens": 90}, charges=1, map_over="topic", on_over_budget="wait")
    run = fleet.run(waiting, topic=["a", "b", "c"])
    assert run.status == "waiting"
    assert "the end of search (3); budget (tokens of run r1: 40 of 90 used)" in str(run.waits)
    fleet.api.ledger.set_graph_budget("r1", "tokens", 300)
    fleet.supervise()
    assert fleet.api.graphs.get("r1").result == {"result": ["a done", "b done", "c done"]}


def test_a_run_started_with_a_budget_has_that_instead_of_the_graphs() -> None:
    fleet = world()
    fleet.api.graphs.start(graph(budget={"tokens": 10_000}), {"topic": "owls"}, run_id="r1", budget={"tokens": 100})
    fleet.supervise()
    assert fleet.api.graphs.show("r1").run.status == "failed"
    assert [line.limit for line in fleet.api.ledger.graph_budgets("r1")] == [100]


@component("budgets.inside")
def inside(context: GraphContext, value: Any) -> Any:
    """A component of the coordinator's process."""
    context.log("counting")
    context.progress(0.5, "half")
    with context.acquire("model", tokens=9) as grant:
        grant.settle(tokens=4)
    return {"left": context.charge(tokens=30, model="small"), "value": value, "then": context.remaining()}


@component("budgets.inside_many")
def inside_many(context: GraphContext, *value: Any) -> int:
    """The same for an input with several edges."""
    return context.charge(tokens=34)["tokens"]


def test_a_component_in_the_coordinator_charges_the_coordinators_claim() -> None:
    fleet = FleetWorld({"worker": work})
    registry = ComponentRegistry([inside])
    found = document(
        [
            INPUT,
            agent_node("search", "worker", config={"charges": 1}),
            {
                "id": "count",
                "type": "budgets.inside",
                "execution": {"lane": "main", "budget": {"tokens": 50}},
                "trigger_policy": {"type": "any_input", "inputs": ["value"]},
            },
            OUTPUT,
        ],
        ["topic.out > search.topic", "search.out > count.value", "count.out > result.value"],
    )
    found["graph"]["budget"] = {"tokens": 100}
    fleet.kernel.contexts.create(bound_to="name", bound_id="model", budget=1_000, period_s=60)
    fleet.api.graphs.start(found, {"topic": "owls"}, run_id="r1")
    Supervisor(fleet.api, SupervisorSettings(slots=1), functions=fleet.functions, components=registry).run(
        until_idle=True
    )
    run = fleet.api.graphs.show("r1").run
    assert (run.status, run.error) == ("succeeded", None)
    assert run.result["result"]["left"] == {"tokens": 16}  # of its own 50; the run has 26 left
    assert used(fleet) == {"": 74, "count": 34}
    (coordinator,) = fleet.entries("world")
    charges = [
        (event.payload["sched_id"], event.payload["account"], event.payload["amounts"])
        for event in fleet.kernel.journal.tail(0, 10_000)
        if event.kind == "kernel.ledger.charged"
    ]
    assert (coordinator.sched_id, ["r1", "count"], {"tokens": 30}) in charges


@component("budgets.far")
def far(context: GraphContext, value: int) -> int:
    """A component that runs as an entry."""
    context.progress(0.5, "half")
    left = context.charge(tokens=30)["tokens"]
    return left + value


def far_world(**budgets: Any) -> DurableWorld:
    """burst → far (in the queue) → note; three messages."""
    own = budgets.pop("own", None)
    nodes = [
        node(burst, "source", sources=[{"type": "start"}], on="on_event"),
        node(far, "far", on="any_input", lane="far", **({"budget": own} if own else {}), **budgets),
        node(note, "note", on="any_input"),
    ]
    wires = [wire("source.out > far.value", **ASYNC), wire("far.out > note.value", "async", **ASYNC)]
    return DurableWorld(nodes, wires, budget={"tokens": 100})


def run_to_its_end(world: DurableWorld) -> Any:
    """Let the run and its entries go on in turns, until nothing happens any more."""
    for _ in range(10):
        result = world.runner(steps=3).run()
        if not result.ok or not world.work():
            break
    return result


def test_a_component_on_a_queue_lane_charges_its_own_entry() -> None:
    log.clear()
    world = far_world(own={"tokens": 95})
    assert run_to_its_end(world).ok
    assert log == [65, 36, 7]  # of its own 95, and 0, 1, 2
    lines = {line.node: (line.used, line.limit) for line in world.kernel.ledger.graph_budgets("r1")}
    assert lines == {"": (90, 100), "far": (90, 95)}
    charges = [event for event in world.kernel.journal.tail(0, 1_000) if event.kind == "kernel.ledger.charged"]
    assert [event.payload["account"] for event in charges] == [["r1", "far"]] * 3
    assert len({event.payload["sched_id"] for event in charges}) == 3


def test_a_queue_lane_over_budget_fails_with_the_numbers() -> None:
    log.clear()
    world = far_world(own={"tokens": 40})
    result = run_to_its_end(world)
    assert {error.code for error in result.runtime_errors} == {"over_budget"}
    assert "tokens of node far: 60 of 40 used" in result.runtime_errors[0].message
    assert {entry.state for entry in world.entries()} <= {"completed", "cancelled"}


def test_a_run_of_this_process_charges_the_ledger_of_its_agent() -> None:
    """It has a store and no coordinator: what its own components use counts for the graph's agent."""
    log.clear()
    nodes = [
        node(burst, "source", sources=[{"type": "start"}], on="on_event"),
        node(far, "near", on="any_input", budget={"tokens": 70}, on_error="continue"),
        node(add, "far", on="any_input", lane="far"),
    ]
    wires = [wire("source.out > near.value", **ASYNC), wire("near.out > far.value", **ASYNC)]
    world = DurableWorld(nodes, wires, budget={"tokens": 100})
    result = run_to_its_end(world)
    lines = {line.node: line.used for line in world.kernel.ledger.graph_budgets("r1")}
    assert lines == {"": 90, "near": 90}
    assert result.error_count == 0  # the third invocation crossed the budget, and there is no fourth
    with pytest.raises(ComponentInvalid, match="cannot be acquired"):
        StoreAccount(world.api, "r1", {}).acquire("model", {"requests": 1})


def test_the_command_line_shows_and_raises_budgets(tmp_path: Path) -> None:
    store_path = str(tmp_path / "rota.db")
    fleet = FleetWorld({"worker": work}, path=store_path)
    fleet.run(graph(budget={"tokens": 100}, on_over_budget="wait"), topic="owls")
    (entry,) = fleet.entries("worker")

    def rota(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--store", store_path])
        assert done.exit_code == 0, done.output
        return done.output

    assert rota("graph", "budget", "r1") == "tokens of run r1: 120 of 100 used\n"
    why = rota("why", str(entry.sched_id))
    assert "tokens of graph run r1: 120 used + 0 reserved + 1 asked is over 100" in " ".join(why.split())
    (command,) = [line.strip() for line in why.splitlines() if "rota graph budget" in line]
    assert command == f"rota graph budget r1 tokens=121 --store {store_path}"
    shown = rota("graph", "show", "r1")
    assert "waits for the end of search; budget (tokens of run r1: 120 of 100 used)" in " ".join(shown.split())
    assert "  tokens of run r1: 120 of 100 used\n    raise it: rota graph budget r1 tokens=240\n" in shown
    assert rota("graph", "budget", "r1", "tokens=200", "usd=1.5").splitlines() == [
        "cost of run r1: $0.00 of $1.50 used",
        "tokens of run r1: 120 of 200 used",
    ]
    assert rota("graph", "budget", "r1", "--node", "search") == "node search of run r1 has no budget of its own\n"
    refused = CliRunner().invoke(app, ["graph", "budget", "r9", "tokens=1", "--store", store_path])
    assert refused.exit_code != 0
    refused = CliRunner().invoke(app, ["graph", "budget", "r1", "tokens=-1", "--store", store_path])
    assert refused.exit_code != 0


def test_a_component_in_the_coordinator_waits_without_a_slot() -> None:
    """Three values come from an agent; the component may use 60 tokens, 34 for each, and is held up at the third."""
    fleet = FleetWorld({"worker": work})
    fleet.kernel.contexts.create(bound_to="name", bound_id="model", budget=1_000, period_s=60)
    nodes = [agent_node(f"r{number}", "worker") for number in range(3)]
    count = {
        "id": "count",
        "type": "budgets.inside_many",
        "execution": {"lane": "main", "budget": {"tokens": 60}, "on_over_budget": "wait"},
        "trigger_policy": {"type": "any_input", "inputs": ["value"]},
    }
    wires = [f"topic.out > r{number}.topic" for number in range(3)]
    wires += [f"r{number}.out > count.value" for number in range(3)]
    found = document([INPUT, *nodes, count, OUTPUT], [*wires, "count.out > result.value"])
    registry = ComponentRegistry([inside_many])
    supervisor = partial(Supervisor, fleet.api, SupervisorSettings(slots=1), components=registry)
    fleet.api.graphs.start(found, {"topic": "owls"}, run_id="r1")
    supervisor(functions=fleet.functions).run(until_idle=True)
    run = fleet.api.graphs.show("r1").run
    assert (run.status, used(fleet)) == ("waiting", {"count": 68})
    assert run.waits == "budget (tokens of node count: 68 of 60 used)"
    (coordinator,) = fleet.entries("world")
    assert (coordinator.state, coordinator.hold, coordinator.attempt) == ("queued", "time", 0)
    fleet.api.ledger.set_graph_budget("r1", "tokens", 200, node="count")
    supervisor(functions=fleet.functions).run(until_idle=True)
    ended = fleet.api.graphs.show("r1").run
    assert (ended.status, ended.error, used(fleet)) == ("succeeded", None, {"count": 102})


# --- a node that is another graph ------------------------------------------------------------------


def nested(inner: dict[str, Any], *, levels: int = 1, budgets: Any = None, **functions: Any) -> FleetWorld:
    """A world with graphs inner-1, inner-2, …: the first is `inner`, and the node of each other is the one before."""
    fleet = FleetWorld({"worker": work, **functions})
    documents = [inner] + [around(f"inner-{number}") for number in range(1, levels)]
    for number, found in enumerate(documents, 1):
        metadata = {SETTINGS_KEY: msgspec.to_builtins(coordinator_settings()), DOCUMENT_KEY: found}
        fleet.api.agents.create(f"inner-{number}", TEMPLATE, metadata={**metadata, BUDGETS_KEY: budgets or {}})
    return fleet


def around(agent: str, **fields: Any) -> dict[str, Any]:
    """topic → part, a run of another graph → result."""
    found = graph(**fields)
    found["components"][1]["execution"]["agent"] = agent
    found["components"][1] |= {"id": "part", "config": {}}
    found["edges"] = [
        {**edge, "from": edge["from"].replace("search", "part"), "to": edge["to"].replace("search", "part")}
        for edge in found["edges"]
    ]
    return found


@pytest.mark.parametrize("budgets", [{}, {"": {"tokens": 500}}, {"search": {"tokens": 400}}])
@pytest.mark.parametrize("levels", [1, 3])
def test_what_a_nested_run_uses_counts_in_every_budget_around_it(budgets: Any, levels: int) -> None:
    fleet = nested(graph(charges=3), levels=levels, budgets=budgets)
    outer = around(f"inner-{levels}", budget={"tokens": 1000})
    outer["components"][1]["execution"]["budget"] = {"tokens": 900}
    assert fleet.run(outer, topic="owls").status == "succeeded"
    assert used(fleet) == {"": 120, "part": 120}
    assert charged(fleet) == 120
    (innermost,), _ = fleet.api.graphs.list(graph="inner-1")
    assert [line.used for line in fleet.api.ledger.graph_budgets(innermost.run_id)] == [120] * len(budgets)


def test_a_function_in_the_coordinator_of_a_nested_run_counts_in_the_outer_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spend = {"id": "search", "type": "tests.graph.report_parts:spend", "execution": {"lane": "main"}}
    monkeypatch.setattr(report_parts, "spend", spend_ten, raising=False)
    trigger = {"type": "any_input", "inputs": ["topic"]}
    inner = document([INPUT, {**spend, "trigger_policy": trigger}, OUTPUT], INNER_WIRES)
    fleet = nested(inner)
    assert fleet.run(around("inner-1", budget={"tokens": 100}), topic="owls").result == {"result": {"result": 90}}
    assert used(fleet) == {"": 10}


def spend_ten(context: GraphContext, topic: str) -> int:
    return context.charge(tokens=10)["tokens"]


INNER_WIRES = ["topic.out > search.topic", "search.out > result.value"]


@pytest.mark.parametrize("budgets", [{}, {"": {"tokens": 500}}])
def test_a_nested_run_over_the_outer_budget_fails_with_its_numbers(budgets: Any) -> None:
    fleet = nested(graph(charges=5), budgets=budgets)
    run = fleet.run(around("inner-1", budget={"tokens": 100}), topic="owls")
    assert run.status == "failed"
    assert "component part is over budget: tokens of run r1: 120 of 100 used" in run.error
    (inner,), _ = fleet.api.graphs.list(graph="inner-1")
    assert inner.status == "failed"
    assert "raise it: rota graph budget r1 tokens=240" in (fleet.api.graphs.show(inner.run_id).run.error or "")
    assert used(fleet) == {"": 120}
    assert not [entry for entry in fleet.entries() if entry.state != "completed"]


def test_nested_runs_that_use_exactly_the_outer_budget_succeed() -> None:
    """Nothing is left when the first of them ends; the second needs nothing more."""
    fleet = nested(graph(charges=1))
    fleet.api.agents.update(fleet.api.agents.find("worker")[0].pid, priority=5)  # before the coordinators
    outer = around("inner-1", budget={"tokens": 80}, map_over="topic")
    started = fleet.api.graphs.start(outer, {"topic": ["owls", "bats"]}, run_id="r1")
    fleet.api.queue.change(started.sched_id or 0, priority=9)
    fleet.supervise()
    run = fleet.api.graphs.show("r1").run
    assert (run.error, run.result) == (None, {"result": [{"result": "owls done"}, {"result": "bats done"}]})


def test_a_nested_run_that_needs_more_than_is_left_of_the_outer_budget_fails() -> None:
    """Its entry was enqueued while something was left; the other run used the rest."""
    fleet = nested(graph(charges=1))
    fleet.api.agents.update(fleet.api.agents.find("worker")[0].pid, priority=5)
    outer = around("inner-1", budget={"tokens": 40}, map_over="topic")
    run = fleet.run(outer, topic=["owls", "bats"])
    assert run.status == "failed"
    assert "component part is over budget: tokens of run r1: 40 of 40 used" in run.error


def test_a_nested_run_over_the_outer_budget_leaves_on_the_edge_of_its_node() -> None:
    fleet = nested(graph(charges=5))
    run = fleet.run(around("inner-1", budget={"tokens": 100}, on_over_budget="over"), topic="owls")
    assert run.status == "succeeded"
    message = run.result["reason"]
    assert (message["over_budget"], message["of"], message["used"], message["limit"]) == ("part", "run", 120, 100)


@pytest.mark.parametrize("levels", [1, 2])
def test_a_nested_run_waits_if_its_node_waits_for_the_outer_budget(levels: int) -> None:
    """Its own nodes fail over their own budgets; the whole run waits for those around it, and goes on."""
    fleet = nested(graph(charges=5), levels=levels, budgets={"": {"tokens": 1000}})
    run = fleet.run(around(f"inner-{levels}", budget={"tokens": 100}, on_over_budget="wait"), topic="owls")
    assert run.status == "waiting"
    assert used(fleet) == {"": 120}
    (entry,) = fleet.entries("worker")
    assert (entry.status, entry.attempt) == ("ready", 0)
    (reason,) = explain(fleet.api, entry.sched_id).blocking
    assert isinstance(reason, OverBudget)
    assert (reason.owner, reason.used, reason.limit) == ("r1", 120, 100)
    fleet.api.ledger.set_graph_budget("r1", "tokens", 1000)
    fleet.supervise()
    assert fleet.api.graphs.get("r1").status == "succeeded"
    assert used(fleet) == {"": 200}


def test_a_nested_run_of_which_a_function_crosses_the_outer_budget_waits_with_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spend = {"id": "search", "type": "tests.graph.report_parts:spend", "execution": {"lane": "main"}}
    monkeypatch.setattr(report_parts, "spend", spend_ten, raising=False)
    trigger = {"type": "any_input", "inputs": ["topic"]}
    inner = document(
        [INPUT, {**spend, "trigger_policy": trigger}, agent_node("then", "worker"), OUTPUT],
        ["topic.out > search.topic", "search.out > then.topic", "then.out > result.value"],
    )
    fleet = nested(inner)
    assert fleet.run(around("inner-1", budget={"tokens": 5}, on_over_budget="wait"), topic="owls").status == "waiting"
    fleet.api.ledger.set_graph_budget("r1", "tokens", 1000)
    fleet.supervise()
    assert fleet.api.graphs.get("r1").status == "succeeded"


def test_a_graph_that_an_agent_of_a_run_spawns_counts_in_the_budget_of_the_run() -> None:
    def spawner(ctx: Any, topic: str) -> Any:
        return ctx.wait([ctx.spawn("inner-1", topic=topic)])[0].result

    fleet = nested(graph(charges=2), spawner=spawner)
    outer = around("spawner", budget={"tokens": 1000})
    fleet.api.graphs.start(outer, {"topic": "owls"}, run_id="r1")
    fleet.supervise(slots=2)
    assert fleet.api.graphs.get("r1").status == "succeeded"
    assert used(fleet) == {"": 80}


def test_a_nested_run_that_is_resumed_counts_in_the_outer_budget() -> None:
    fails = [1]

    def fail_once(ctx: Any, topic: str) -> str:
        ctx.charge(tokens=10)
        if fails:
            raise ValueError(fails.pop())
        return topic

    inner = graph()
    inner["components"][1] = agent_node("search", "fragile")
    fleet = nested(inner, fragile=fail_once)
    fleet.api.agents.update(fleet.api.agents.find("fragile")[0].pid, metadata={"run": {"max_attempts": 1}})
    assert fleet.run(around("inner-1", budget={"tokens": 100}), topic="owls").status == "failed"
    (run,), _ = fleet.api.graphs.list(graph="inner-1")
    fleet.api.graphs.resume(run.run_id)
    fleet.supervise()
    assert fleet.api.graphs.get(run.run_id).status == "succeeded"
    assert used(fleet) == {"": 20}

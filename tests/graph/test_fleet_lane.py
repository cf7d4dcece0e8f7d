"""Components that are agents: their invocations are entries of the agents, and the run waits for them in the queue."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from rota import store
from rota.errors import GraphInvalid
from rota.fleet.graph_workers import graph_supervisor
from rota.fleet.supervisor import Supervisor, SupervisorSettings
from rota.graph.compiler import check, compile_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.invocation import GraphContext, Invocation
from rota.graph.loader import load_mapping
from rota.graph.messages import Message, Origin
from rota.graph.plan_reports import plan_to_dict
from rota.graph.standard_components import LoopComponent
from rota.kernel import Kernel
from rota.model.events import EntriesReturned
from rota.model.reasons import NoFunction
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.model.workers import SlotPool
from rota.service.dispatcher import Dispatcher
from rota.service.entry_reports import entry_report
from rota.service.explanation import explain

NOT_HERE = "the component type 'not_here:plan' cannot be imported: ModuleNotFoundError: No module named 'not_here'"
MAIN = {"main": {"type": "event_loop"}}
INPUT = {"id": "topic", "type": "rota.input", "execution": {"lane": "main"}}
OUTPUT = {"id": "result", "type": "rota.output", "execution": {"lane": "main"}}


def agent_node(name: str, agent: str, **fields: Any) -> dict[str, Any]:
    """A component that is an agent; `fields` of its execution, and its `config`."""
    config = fields.pop("config", {})
    return {"id": name, "execution": {"agent": agent, **fields}, "config": config}


def document(components: list[Any], wires: list[str], **edge: Any) -> dict[str, Any]:
    """A graph; a wire is `from.port > to.port`."""
    edges = [
        {"id": f"e{number}", "kind": "async", "from": wire.split(" > ")[0], "to": wire.split(" > ")[1], **edge}
        for number, wire in enumerate(wires)
    ]
    return {"schema_version": 2, "graph": {"name": "world"}, "lanes": MAIN, "components": components, "edges": edges}


class FleetWorld:
    """A store with agents that are functions, and a supervisor."""

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]],
        settings: Mapping[str, Any] | None = None,
        path: str = ":memory:",
    ) -> None:
        self.kernel = Kernel(store.open(path))
        self.api = Dispatcher(self.kernel)
        self.functions = functions
        for name in functions:
            self.api.agents.create(name, metadata={"run": dict((settings or {}).get(name, {}))})

    def run(self, graph: dict[str, Any], slots: int = 1, **inputs: Any) -> Any:
        """Run a graph to its end and return its row."""
        run = self.api.graphs.start(graph, inputs, run_id="r1")
        self.supervise(slots)
        return self.api.graphs.show(run.run_id).run

    def supervise(self, slots: int = 1) -> Any:
        """Run what there is to run."""
        return Supervisor(self.api, SupervisorSettings(slots=slots), functions=self.functions).run(until_idle=True)

    def entries(self, agent: str | None = None) -> list[ReadyEntry]:
        """The entries of an agent, or all, oldest first."""
        pid = None if agent is None else self.api.agents.find(agent)[0].pid
        return self.api.queue.list(pid=pid)[0]


def research(ctx: Any, topic: str, depth: int = 1) -> str:
    """One finding."""
    return f"{topic}:{depth}"


def chain(**execution: Any) -> dict[str, Any]:
    """topic → search → result."""
    config = execution.pop("config", {"depth": 2})
    return document(
        [INPUT, agent_node("search", "researcher", config=config, **execution), OUTPUT],
        ["topic.out > search.topic", "search.out > result.value"],
    )


def test_agent_entries() -> None:
    """An invocation is an entry of the agent, with the agent's settings, and its result goes on in the graph."""
    settings = {"researcher": {"expected": {"tokens": 5}, "max_attempts": 7, "payload": {"depth": 9}}}
    world = FleetWorld({"researcher": research}, settings)
    run = world.run(chain(priority="high"), topic="owls")
    assert (run.status, run.result) == ("succeeded", {"result": "owls:2"})
    (entry,) = world.entries("researcher")
    assert entry.payload == {"topic": "owls", "depth": 2}
    assert (entry.expected, entry.max_attempts, entry.priority) == ({"tokens": 5}, 7, 1)
    assert (entry.trigger, entry.correlation_id) == ("graph", "r1")
    assert str(entry.key).startswith("graph/r1/")


def test_a_function_that_the_coordinators_host_does_not_have_is_named_with_what_is_missing() -> None:
    plan = {"id": "plan", "type": "not_here:plan", "execution": {"lane": "main"}}
    run = FleetWorld({}).run(
        document([INPUT, plan, OUTPUT], ["topic.out > plan.topic", "plan.out > result.value"]), topic="owls"
    )
    assert run.status == "failed"
    assert run.error == (
        f"{NOT_HERE} (on host {socket.gethostname()}, and no other running worker may have it); install the module "
        "there, or start a supervisor where it is, then: rota graph resume r1"
    )


@component("not_here:plan")
def plan_elsewhere(topic: str) -> str:
    """A function of a module that one host has."""
    return f"plan of {topic}"


ELSEWHERE = ComponentRegistry([plan_elsewhere])


def another_worker(kernel: Kernel, *, lacks: Mapping[int, str] | None = None) -> None:
    """Register a supervisor of another host, which does not claim now."""
    pool = SlotPool("beta", 1, except_agents=tuple(lacks or ()), lacks=dict(lacks or {}))
    kernel.workers.register("beta", "i", kind="supervisor", host="beta", os_pid=1, pools=[pool])


def plan_here() -> dict[str, Any]:
    """topic → plan, a function of the coordinator → result."""
    trigger = {"type": "any_input", "inputs": ["topic"]}
    plan = {"id": "plan", "type": "not_here:plan", "trigger_policy": trigger, "execution": {"lane": "main"}}
    return document([INPUT, plan, OUTPUT], ["topic.out > plan.topic", "plan.out > result.value"])


def test_a_run_is_left_to_a_worker_that_may_have_the_functions_that_are_missing_here() -> None:
    world = FleetWorld({})
    world.api.graphs.start(plan_here(), {"topic": "owls"}, run_id="r1")
    another_worker(world.kernel)
    (waiting,) = world.supervise().waiting
    assert waiting.why == f"its agent has no function here: {NOT_HERE}"
    (entry,) = world.entries()
    assert (entry.status, entry.attempt) == ("ready", 0)
    assert world.api.graphs.get("r1").status == "running"
    world.kernel.workers.leave("beta", "i")
    Supervisor(world.api, SupervisorSettings(), components=ELSEWHERE).run(until_idle=True)
    run = world.api.graphs.show("r1").run
    assert (run.error, run.result) == (None, {"result": "plan of owls"})


def test_a_run_that_has_begun_elsewhere_waits_for_a_worker_with_its_functions() -> None:
    """It has succeeded so far, and its worker may only be restarting."""
    world = FleetWorld({"researcher": research})
    graph = plan_here()
    graph["components"].insert(2, agent_node("search", "researcher"))
    graph["edges"][1]["to"] = "search.topic"
    graph["edges"].append({"id": "e2", "kind": "async", "from": "search.out", "to": "result.value"})
    world.api.graphs.start(graph, {"topic": "owls"}, run_id="r1")
    Supervisor(world.api, SupervisorSettings(), components=ELSEWHERE).run(until_idle=True)
    world.supervise()
    assert [entry.status for entry in world.entries()] == ["ready", "succeeded"]
    Supervisor(world.api, SupervisorSettings(), components=ELSEWHERE).run(until_idle=True)
    assert world.api.graphs.get("r1").result == {"result": "plan of owls:1"}


def test_why_names_the_hosts_that_lack_the_functions_of_a_graph() -> None:
    world = FleetWorld({})
    world.api.graphs.start(plan_here(), {"topic": "owls"}, run_id="r1")
    (entry,) = world.entries()
    another_worker(world.kernel, lacks={entry.pid: NOT_HERE})
    found = explain(world.api, entry.sched_id)
    assert found.workers == NoFunction(start="rota run fleet.toml", lacks=(f"beta: {NOT_HERE}",))
    assert found.start.basis == (
        f"no running worker has its agent's functions (beta: {NOT_HERE}): install the module and restart the worker"
    )


def test_an_agent_whose_function_cannot_be_imported_here_is_left_to_another_worker() -> None:
    world = FleetWorld({})
    pid = world.api.agents.create("planner", metadata={"run": {"function": "not_here:plan"}})
    sched_id = world.api.queue.enqueue(ScheduleSpec(pid))
    another_worker(world.kernel)
    (waiting,) = world.supervise().waiting
    assert waiting.why.endswith("cannot load not_here:plan: ModuleNotFoundError: No module named 'not_here'")
    assert world.api.queue.get(sched_id).attempt == 0
    another_worker(world.kernel, lacks={pid: "no module"})  # it cannot run it either: the next worker says so
    world.supervise()
    ended = world.api.queue.get(sched_id)
    assert (ended.exit_kind, ended.outcome) == ("failed", "not_found")


def test_a_graph_that_was_left_to_others_is_claimed_again_for_its_next_run() -> None:
    """Which may call other functions."""

    def correct() -> None:
        world.api.graphs.cancel("r1")
        world.api.graphs.start(chain(), {"topic": "owls"}, run_id="r2")

    world = FleetWorld({"researcher": research, "operator": correct})
    world.api.graphs.start(plan_here(), {"topic": "owls"}, run_id="r1")
    world.api.queue.enqueue(ScheduleSpec(world.api.agents.find("operator")[0].pid, -1))
    another_worker(world.kernel)
    world.supervise()
    assert world.api.graphs.get("r2").status == "succeeded"


def test_with_one_slot_nothing_waits_for_itself_and_waiting_counts_no_attempt() -> None:
    world = FleetWorld({"researcher": research})
    assert world.run(chain(), slots=1, topic="owls").status == "succeeded"
    (coordinator,) = world.entries("world")
    assert (coordinator.exit_kind, coordinator.attempt) == ("completed", 1)
    returned = [event for event in world.kernel.journal.tail(0, 1_000) if event.kind == EntriesReturned.kind]
    assert {event.payload["verb"] for event in returned} == {"yield"}


def test_a_timer_does_not_tick_whenever_the_coordinator_runs() -> None:
    calls: list[int] = []

    def work(value: int) -> int:
        calls.append(value)
        if len(calls) > 1:  # a run that does not come to an end
            world.api.graphs.cancel("r1")
        return value

    world = FleetWorld({"worker": work})
    tick = {
        "id": "tick",
        "type": "tests.graph.parts:Count",
        "execution": {"lane": "main"},
        "trigger_policy": {"type": "on_event"},
        "event_sources": [{"type": "timer", "period_ms": 3_600_000}],
    }
    wires = ["tick.out > each.value", "each.out > result.value"]
    run = world.run(document([tick, agent_node("each", "worker"), OUTPUT], wires))
    assert (run.status, run.result, calls) == ("succeeded", {"result": 1}, [1])


def function_node(name: str, function: str, port: str = "value") -> dict[str, Any]:
    """A component that runs in the coordinator: a function of this module."""
    return {
        "id": name,
        "type": f"{__name__}:{function}",
        "execution": {"lane": "main"},
        "trigger_policy": {"type": "any_input", "inputs": [port]},
    }


def nothing(value: Any) -> None:
    """Publish nothing: what comes after it never runs."""


def fails(value: Any) -> None:
    """Fail."""
    raise LookupError(value)


@pytest.mark.parametrize(("last", "state"), [("nothing", "succeeded"), ("fails", "failed")])
def test_the_states_of_nodes_in_the_coordinator_are_those_that_were_recorded(last: str, state: str) -> None:
    world = FleetWorld({"worker": lambda value: value})
    nodes = [INPUT, agent_node("each", "worker"), function_node("last", last), function_node("never", "nothing")]
    wires = ["topic.out > each.value", "each.out > last.value", "last.out > never.value"]
    run = world.run(document([*nodes, OUTPUT], [*wires, "never.out > result.value"]), topic=7)
    assert run.status == state
    states = {node.node: node.state for node in world.api.graphs.show("r1").nodes}
    assert states == {
        "topic": "succeeded", "each": "succeeded", "last": state, "never": "pending", "result": "pending",
    }  # fmt: skip


SET_CALLS: list[int] = []


def a_set(value: int) -> set[int]:
    """A value that cannot be stored as JSON."""
    SET_CALLS.append(value)
    return {value}


def test_a_value_that_cannot_be_stored_fails_the_run_at_once() -> None:
    """Trying it again would fail again, and call the functions of the graph again."""
    SET_CALLS.clear()
    world = FleetWorld({"worker": lambda value: value})
    wires = ["topic.out > f.value", "f.out > each.value", "each.out > result.value"]
    run = world.run(
        document([INPUT, function_node("f", "a_set"), agent_node("each", "worker"), OUTPUT], wires), topic=7
    )
    assert (run.status, SET_CALLS) == ("failed", [7])
    assert "cannot be stored as JSON" in run.error


def test_an_agent_that_is_gone_fails_the_run_at_once() -> None:
    def first(topic: str) -> str:
        world.kernel.terminate(world.kernel.agents.find("second")[0].pid, "failed")
        return topic

    world = FleetWorld({"first": first, "second": lambda value: value}, {"first": {"max_attempts": 1}})
    nodes = [INPUT, agent_node("a", "first"), agent_node("b", "second"), OUTPUT]
    run = world.run(document(nodes, ["topic.out > a.topic", "a.out > b.value", "b.out > result.value"]), topic="owls")
    assert run.status == "failed"
    assert "there is no agent named 'second'" in run.error
    (coordinator,) = world.entries("world")
    assert coordinator.attempt == 1


def test_an_agent_without_inputs_runs_once() -> None:
    world = FleetWorld({"planner": lambda: "plan"})
    graph = document([agent_node("plan", "planner"), OUTPUT], ["plan.out > result.value"])
    assert world.run(graph).result == {"result": "plan"}
    assert len(world.entries("planner")) == 1


def test_a_result_of_none_is_published_too() -> None:
    world = FleetWorld({"silent": lambda: None, "writer": lambda text: [text]})
    graph = document(
        [agent_node("first", "silent"), agent_node("then", "writer"), OUTPUT],
        ["first.out > then.text", "then.out > result.value"],
    )
    assert world.run(graph).result == {"result": [None]}


def test_an_agent_that_fails_fails_the_run_and_nothing_is_left() -> None:
    def broken(topic: str) -> None:
        raise ValueError(f"no {topic}")

    world = FleetWorld({"researcher": broken}, {"researcher": {"max_attempts": 1}})
    run = world.run(chain(config={}), topic="owls")
    assert run.status == "failed"
    assert "ValueError: no owls" in run.error
    assert {entry.state for entry in world.entries()} == {"completed"}


def test_on_error_retry_is_an_entry_of_its_own() -> None:
    calls: list[str] = []

    def shaky(topic: str) -> str:
        calls.append(topic)
        if len(calls) < 3:
            raise ValueError("not yet")
        return topic

    world = FleetWorld({"researcher": shaky}, {"researcher": {"max_attempts": 1}})
    assert world.run(chain(config={}, on_error="retry"), topic="owls").result == {"result": "owls"}
    assert [str(entry.key).rpartition("/")[2] for entry in world.entries("researcher")] == ["0", "0~2", "0~3"]


def test_an_agent_that_does_not_exist_is_refused_with_its_name() -> None:
    with pytest.raises(GraphInvalid, match="there is no agent named 'researcher'"):
        FleetWorld({}).run(chain(), topic="owls")


# --- edges ---------------------------------------------------------------------------------------


def test_a_durable_edge_is_a_queue_that_never_overwrites() -> None:
    plan = compile_graph(load_mapping(chain()))
    assert {edge.spec.policy.mode for edge in plan.edges.values()} == {"queue"}
    assert {edge.spec.policy.overflow for edge in plan.edges.values()} == {"fail_fast"}


def test_latest_is_used_where_it_is_asked_for() -> None:
    graph = document(
        [INPUT, agent_node("search", "researcher"), OUTPUT],
        ["topic.out > search.topic", "search.out > result.value"],
        policy={"mode": "latest"},
    )
    plan = compile_graph(load_mapping(graph))
    assert {edge.spec.policy.mode for edge in plan.edges.values()} == {"latest"}


# --- the file ------------------------------------------------------------------------------------


def problems(graph: dict[str, Any]) -> list[str]:
    """What refuses a graph."""
    try:
        return [each.message for each in check(load_mapping(graph)).errors]
    except GraphInvalid as problem:
        return [each.message for each in problem.diagnostics]


def test_a_plan_names_the_agents() -> None:
    plan = plan_to_dict(compile_graph(load_mapping(chain())))
    assert [each.get("agent") for each in plan["components"]] == [None, "researcher", None]


@pytest.mark.parametrize(
    ("execution", "message"),
    [
        ({"agent": "a", "lane": "main"}, "must be on a lane of type fleet, not event_loop"),
        ({"lane": "f"}, "of type fleet, but names no agent"),
    ],
)
def test_agents_and_only_agents_are_on_fleet_lanes(execution: dict[str, str], message: str) -> None:
    graph = document([{"id": "a", "type": "agent", "execution": execution}], [])
    graph["lanes"] = {**MAIN, "f": {"type": "fleet"}}
    assert any(message in each for each in problems(graph))


def test_an_agent_has_no_other_type_and_needs_version_2() -> None:
    graph = document([{"id": "a", "type": "demo.A", "execution": {"agent": "a"}}], [])
    assert any("cannot also be of type demo.A" in each for each in problems(graph))
    assert any("execution.agent in schema_version 1" in each for each in problems({**chain(), "schema_version": 1}))


def test_the_output_of_an_agent_is_out() -> None:
    graph = document([agent_node("a", "a"), OUTPUT], ["a.found > result.value"])
    with pytest.raises(GraphInvalid, match=r"missing output port a\.found"):
        compile_graph(load_mapping(graph), ComponentRegistry())


# --- loops ---------------------------------------------------------------------------------------


def critic_loop(**policy: Any) -> dict[str, Any]:
    """topic → draft → (critic → revise →)* result."""
    graph = document(
        [INPUT, agent_node("draft", "draft"), agent_node("critic", "critic"), agent_node("revise", "revise"), OUTPUT],
        [
            "topic.out > draft.topic",
            "draft.out > critic.draft",
            "critic.out > revise.draft",
            "revise.out > critic.draft",
            "revise.out > result.value",
        ],
    )
    members = ["critic", "revise"]
    loop_policy = {"type": "fixed_point", "max_iterations": 5, **policy}
    graph["composite_loops"] = [{"id": "fix", "components": members, "loop_policy": loop_policy}]
    return graph


CRITICS: dict[str, Callable[..., Any]] = {
    "draft": lambda topic: {"text": topic, "accepted": False},
    "critic": lambda draft: {**draft, "accepted": len(draft["text"]) >= 7},
    "revise": lambda draft: draft if draft["accepted"] else {**draft, "text": draft["text"] + "!"},
}


@pytest.mark.parametrize(
    ("policy", "text", "iterations"),
    [
        ({"convergence": "accepted"}, "owls!!!", 4),
        ({"convergence": "stable_state"}, "owls!!!", 5),
        ({"max_iterations": 2}, "owls!!", 2),
        ({"convergence": "single_pass"}, "owls!", 1),
    ],
)
def test_a_loop_with_agents_spans_epochs(policy: dict[str, Any], text: str, iterations: int) -> None:
    world = FleetWorld(CRITICS)
    run = world.run(critic_loop(**policy), topic="owls")
    assert (run.status, run.result["result"]["text"]) == ("succeeded", text), run.error
    assert len(world.entries("critic")) == len(world.entries("revise")) == iterations
    epochs = [int(str(entry.key).split("/")[2]) for entry in world.entries("critic")]
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize(
    ("policy", "status", "text"),
    [
        ({"partial_success": "commit_outputs"}, "succeeded", "owls!!"),
        ({"partial_success": "discard_outputs"}, "succeeded", None),
        ({"type": "solver_iteration"}, "succeeded", None),
        ({"partial_success": "fail_run"}, "failed", None),
    ],
)
def test_a_spanning_loop_that_does_not_converge(policy: dict[str, Any], status: str, text: str | None) -> None:
    world = FleetWorld(CRITICS)
    run = world.run(critic_loop(convergence="accepted", max_iterations=2, **policy), topic="owls")
    found = (run.result or {}).get("result")
    assert (run.status, found and found["text"]) == (status, text), run.error
    assert status == "succeeded" or "loop fix did not converge in 2 iterations" in str(run.error)


@pytest.mark.parametrize(
    "policy",
    [
        {"budget_ms": 5},
        {"min_interval_ms": 5},
        {"residual_threshold": 0.1},
        {"residual_threshold": 0},
        {"type": "coalesced_event"},
    ],
)
def test_a_spanning_loop_refuses_what_only_others_have(policy: dict[str, Any]) -> None:
    (name,) = policy
    (found,) = [each for each in problems(critic_loop(**policy)) if "spans epochs" in each]
    assert f"so it has no {name}" in found


def test_values_that_arrive_while_a_loop_is_busy_wait_for_it() -> None:
    """Each goes around as often as it would alone, and they leave in their order."""
    loop = LoopComponent(max_iterations=2)
    moved = [
        loop.execute(*values, invocation=Arrived(values))
        for values in (("a", None), ("b", None), (None, "a1"), ("c", "a2"), (None, "b1"), (None, "b2"), (None, "c1"))
    ]
    first, second = [{"body": "a"}, {}, {"body": "a1"}], [{"out": "a2", "body": "b"}, {"body": "b1"}]
    assert moved == [*first, *second, {"out": "b2", "body": "c"}, {"body": "c1"}]
    resumed = LoopComponent(max_iterations=2)
    resumed.restore(loop.snapshot())
    assert resumed.execute(None, "c2", invocation=Arrived((None, "c2"))) == {"out": "c2"}


class Arrived(Invocation):
    """An invocation that has received these values on `initial` and `result`."""

    def __init__(self, values: tuple[Any, Any]) -> None:
        inputs = tuple(value and Message(value, "edge", 1, Origin(1, 0.0)) for value in values)
        component: Any = SimpleNamespace(id="loop", channel_ports=("initial", "result"))
        super().__init__(component, SimpleNamespace(), inputs, 1)


def test_a_plan_says_which_loops_span_epochs() -> None:
    plan = plan_to_dict(compile_graph(load_mapping(critic_loop(convergence="accepted"))))
    (loop,) = [each for each in plan["components"] if "loop" in each]
    assert (loop["id"], loop["loop"]) == ("fix", {"max_iterations": 5, "field": "accepted", "spans_epochs": True})


def test_a_loop_of_another_shape_is_refused_with_what_it_needs() -> None:
    graph = critic_loop()
    graph["edges"] = [edge for edge in graph["edges"] if edge["to"] != "critic.draft"]
    (found,) = [each for each in check(load_mapping(graph)).errors if each.code == "decorative_composite_loop"]
    assert "one edge that enters it and one that leads back" in str(found.suggested_fix)


# --- people --------------------------------------------------------------------------------------


def test_why_and_show_name_run_node_and_epoch() -> None:
    world = FleetWorld({"researcher": research})
    world.run(chain(), topic="owls")
    (entry,), (coordinator,) = world.entries("researcher"), world.entries("world")
    expected = "search in run r1 of world, epoch 2"
    node = explain(world.api, entry.sched_id).graph
    assert node is not None
    assert node.sentence() == expected
    node = entry_report(world.kernel.store, world.kernel.clock, entry.sched_id).graph
    assert node is not None
    assert node.sentence() == expected
    place = explain(world.api, coordinator.sched_id).graph
    assert place is not None
    assert place.sentence() == "coordinator of run r1 of world"


def test_a_supervisor_with_components_of_its_own_also_imports_those_of_others() -> None:
    world = FleetWorld({})
    shout = {"id": "shout", "type": "string:capwords", "execution": {"lane": "main"}}
    shout["trigger_policy"] = {"type": "all_inputs", "inputs": ["s"]}
    run = world.api.graphs.start(
        document([INPUT, shout, OUTPUT], ["topic.out > shout.s", "shout.out > result.value"]), {"topic": "owls"}
    )
    graph_supervisor(world.api, ComponentRegistry(), ["elsewhere"]).run(until_idle=True)
    assert world.api.graphs.show(run.run_id).run.result == {"result": "Owls"}


@pytest.mark.parametrize("on_error", ["fail_fast", "continue", "retry"])
def test_a_run_whose_coordinator_loses_its_claim_goes_on(on_error: str) -> None:
    """After a failover of PostgreSQL, or an outage or a stop of its host that lasts longer than the claim.

    A component that counts what it uses is refused then; that is no failure of the component, and nothing of the epoch
    is kept.
    """
    world, calls = FleetWorld({"researcher": research}), list[str]()

    @component("lost.plan")
    def plan(context: GraphContext, topic: str) -> str:
        calls.append(topic)
        if len(calls) == 1:
            world.kernel.queue.gc_dispatched(0, world.kernel.clock.now() + 1)  # as when its claim has expired
        context.charge(tokens=1)
        return f"{topic}, planned"

    execution = {"lane": "main", "on_error": on_error, **({"max_attempts": 2} if on_error == "retry" else {})}
    trigger = {"type": "all_inputs", "inputs": ["topic"]}
    planned = {"id": "plan", "type": "lost.plan", "execution": execution, "trigger_policy": trigger}
    wires = ["topic.out > plan.topic", "plan.out > search.topic", "search.out > result.value"]
    found = document([INPUT, planned, agent_node("search", "researcher"), OUTPUT], wires)
    found["graph"]["budget"] = {"tokens": 10}
    world.api.graphs.start(found, {"topic": "owls"}, "r1")
    Supervisor(
        world.api, SupervisorSettings(slots=1), functions=world.functions, components=ComponentRegistry([plan])
    ).run(until_idle=True)
    run = world.api.graphs.get("r1")
    assert (run.status, run.result) == ("succeeded", {"result": "owls, planned:1"}), run.error
    assert [line.used for line in world.api.ledger.graph_budgets("r1")] == [1]

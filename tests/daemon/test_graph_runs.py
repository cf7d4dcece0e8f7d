"""Graph runs through every door: embedded, over the unix socket and over HTTP, the verbs do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.errors import (
    Forbidden,
    GraphInvalid,
    GraphRunExists,
    GraphRunRefused,
    GraphRunUnknown,
    InvalidInput,
    InvalidPayload,
    ProjectUnknown,
    StaleClaim,
)
from rota.fleet import Supervisor, SupervisorSettings
from rota.graph import DurableRuns
from rota.graph.lanes.fleet_lane import EntryRequest
from rota.kernel import Kernel, ScheduleSpec
from rota.model.graph_runs import TEMPLATE, GraphNodeReport, GraphRun, GraphRunReport, coordinator_settings
from rota.model.work import ReadyEntry
from rota.rpc import connect
from rota.rpc.jsonrpc import BODY_BYTES_MAX
from rota.service import Dispatcher
from tests.daemon.harness import Served, make_token


@pytest.fixture(params=["embedded", "unix", "http"])
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The scheduler API of one store, by each door."""
    if request.param == "embedded":
        opened = store.open(str(tmp_path / "rota.db"))
        yield Dispatcher(Kernel(opened))
        opened.close()
        return
    served: Served = request.getfixturevalue("served")
    made = served.client() if request.param == "unix" else connect(served.url, token=make_token(served.path, "admin"))
    with made:
        yield made


def document(*agents: str, name: str = "report") -> dict[str, Any]:
    components: list[dict[str, Any]] = [
        {"id": f"n{number}", "execution": {"agent": agent}} for number, agent in enumerate(agents)
    ]
    components.append({"id": "topic", "type": "rota.input", "config": {"default": ""}, "execution": {"lane": "main"}})
    lanes = {"main": {"type": "event_loop"}}
    return {"schema_version": 2, "graph": {"name": name}, "lanes": lanes, "components": components, "edges": []}


def nodes(report: GraphRunReport) -> list[GraphNodeReport]:
    """The nodes that are agents."""
    return [node for node in report.nodes if node.agent is not None]


class Taken:
    """A run whose coordinator this test plays."""

    def __init__(self, api: Any, agents: tuple[str, ...] = ("researcher", "writer"), **options: Any) -> None:
        self.api = api
        self.pids = {name: api.agents.create(name, project_id=options.get("project"), unique=True) for name in agents}
        self.info = api.graphs.start(document(*agents), **options)
        self.entry: ReadyEntry = api.claim("coordinator", 1)[0]
        self.run: GraphRun = self.take()

    def take(self) -> GraphRun:
        run: GraphRun = self.api.graphs.take_entry(self.entry.sched_id, self.entry.token)
        return run

    def spec(self, node: str, agent: str, number: int = 0, epoch: int = 1) -> ScheduleSpec:
        key = f"graph/{self.run.run_id}/{epoch}/{node}/{number}"
        return ScheduleSpec(self.pids[agent], key=key, correlation_id=self.run.run_id)

    def enqueue(self, *specs: ScheduleSpec) -> list[int]:
        ids: list[int] = self.api.graphs.enqueue(self.run.run_id, self.run.fence, specs)
        return ids

    def commit(self, epoch: int = 2, waits: str | None = None) -> None:
        graphs = self.api.graphs
        graphs.commit(self.run.run_id, fence=self.run.fence, next_epoch_id=epoch, checkpoint=b"{}", waits=waits)

    def statuses(self, ids: list[int]) -> list[str]:
        return [self.api.queue.get(sched_id).status for sched_id in ids]


# --- starting ------------------------------------------------------------------------------------


def test_a_started_run_is_a_row_and_an_entry(api: Any) -> None:
    api.agents.create("researcher")
    info = api.graphs.start(document("researcher"), {"topic": "tides"}, run_id="r1", budget={"tokens": 500})
    entry = api.queue.get(info.sched_id)
    assert (info.run_id, info.graph, info.status, info.inputs) == ("r1", "report", "running", {"topic": "tides"})
    assert (entry.status, entry.payload, entry.correlation_id) == ("ready", {"topic": "tides"}, "r1")
    agent = api.agents.get(entry.pid)
    assert (agent.name, agent.template, agent.metadata["run"]["runner"]) == ("report", "graph", "graph")
    report = api.graphs.show("r1")
    assert report.document == document("researcher")
    assert report.run.budget == {"tokens": 500}
    assert [(node.node, node.agent, node.state) for node in nodes(report)] == [("n0", "researcher", "pending")]


def test_the_same_run_is_started_once(api: Any) -> None:
    api.agents.create("researcher")
    first = api.graphs.start(document("researcher"), {"topic": "tides"}, run_id="r1")
    again = api.graphs.start(document("researcher"), {"topic": "tides"}, run_id="r1")
    assert again == first
    assert api.graphs.list()[1] == 1
    with pytest.raises(GraphRunExists, match="r1 exists with another inputs"):
        api.graphs.start(document("researcher"), {"topic": "wind"}, run_id="r1")
    with pytest.raises(GraphRunExists, match="r1 exists with another document"):
        api.graphs.start(document("researcher", "researcher"), {"topic": "tides"}, run_id="r1")
    unnamed = [api.graphs.start(document("researcher")).run_id for _ in range(2)]
    assert len({*unnamed, "r1"}) == 3
    assert all(name.startswith("report-") for name in unnamed)


def test_all_problems_of_a_document_are_reported_together(api: Any) -> None:
    api.agents.create("writer")
    bad = document("researcher", "writer", "critic")
    bad["edges"] = [{"id": "e", "kind": "async", "from": "n0.out", "to": "nowhere.in"}]
    with pytest.raises(GraphInvalid, match="graph report") as refused:
        api.graphs.start(bad)
    text = str(refused.value.data["diagnostics"])
    assert all(word in text for word in ("nowhere", "researcher", "critic"))
    assert "'writer'" not in text
    assert api.graphs.list() == ([], 0)
    assert api.queue.list()[1] == 0


BAD_STARTS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"document": {}}, GraphInvalid),
    ({"run_id": ""}, InvalidPayload),
    ({"run_id": "x" * 65}, InvalidPayload),
    ({"run_id": "a\x1bb"}, InvalidPayload),
    ({"project": "nowhere"}, ProjectUnknown),
    ({"budget": {"tokens": -1}}, InvalidPayload),
    ({"inputs": {"topic": "x" * 300_000}}, InvalidPayload),
    ({"inputs": {"tropic": "tides"}}, InvalidInput),
]


def test_a_bad_start_is_refused_and_leaves_nothing(api: Any) -> None:
    api.agents.create("researcher")
    for given, error in BAD_STARTS:
        with pytest.raises(error):
            api.graphs.start(**({"document": document("researcher")} | given))
    assert api.graphs.list() == ([], 0)
    assert api.queue.list()[1] == 0


def test_a_graph_does_not_take_the_name_of_an_agent(api: Any) -> None:
    api.agents.create("report")
    with pytest.raises(InvalidPayload, match=r"the name of agent 1 \(report\), which is not a graph"):
        api.graphs.start(document("report"))


def test_agents_behind_the_wall_of_another_project_do_not_exist(api: Any) -> None:
    for project in ("lab", "shop"):
        api.projects.create(project)
    api.agents.create("researcher", project_id="shop")
    with pytest.raises(GraphInvalid, match="component n0: there is no agent"):
        api.graphs.start(document("researcher"), project="lab")
    api.projects.grant("lab", "shop")
    assert api.graphs.start(document("researcher"), project="lab").project_id == "lab"


# --- executing -----------------------------------------------------------------------------------


def test_a_coordinator_executes_a_run(api: Any) -> None:
    taken = Taken(api, inputs={"topic": "tides"}, run_id="r1")
    assert (taken.run.document, taken.run.inputs) == (document("researcher", "writer"), {"topic": "tides"})
    (first,) = taken.enqueue(taken.spec("n0", "researcher"))
    assert taken.enqueue(taken.spec("n0", "researcher")) == [first]  # its key is known
    taken.commit(waits="the end of 1 entry")
    report = api.graphs.show("r1")
    assert (report.run.status, report.run.waits, report.waits_for) == ("waiting", "the end of 1 entry", (first,))
    assert report.run.waits_since == report.run.updated_at
    assert [(node.node, node.state, node.epoch_id) for node in nodes(report)] == [
        ("n0", "ready", 1),
        ("n1", "pending", None),
    ]
    assert api.graphs.ended([first]) == {}
    (claimed,) = api.claim("worker", 1)
    api.queue.charge(first, {"tokens": 30}, token=claimed.token)
    api.queue.complete(first, "completed", token=claimed.token, result={"found": 3})
    assert api.graphs.ended([first, 999])[first].result == {"found": 3}
    assert api.graphs.ended([first, 999])[999] is None
    ended = api.graphs.finish("r1", taken.run.fence, "succeeded", result=["done"])
    assert (ended.status, ended.result, ended.waits) == ("succeeded", ["done"], None)
    report = api.graphs.show("r1")
    assert report.usage == {"tokens": 30}
    assert {node.node: node.state for node in nodes(report)} == {"n0": "succeeded", "n1": "pending"}


def test_only_the_last_taker_may_write(api: Any) -> None:
    taken = Taken(api, run_id="r1")
    old = taken.run.fence
    taken.run = taken.take()
    assert taken.run.fence > old
    calls: list[Callable[[], Any]] = [
        lambda: api.graphs.commit("r1", fence=old, next_epoch_id=2, checkpoint=b"{}"),
        lambda: api.graphs.enqueue("r1", old, [taken.spec("n0", "researcher")]),
        lambda: api.graphs.finish("r1", old, "failed"),
    ]
    for call in calls:
        with pytest.raises(StaleClaim, match="r1 was taken by another process"):
            call()
    with pytest.raises(StaleClaim):
        api.graphs.take_entry(taken.entry.sched_id, (taken.entry.token or 0) + 1)
    assert api.graphs.show("r1").run.status == "running"


def test_entries_of_a_run_are_of_agents_that_its_project_may_reach(api: Any) -> None:
    api.projects.create("lab")
    taken = Taken(api, project="lab", run_id="r1")
    stranger = ScheduleSpec(api.agents.create("stranger"), key="graph/r1/1/n0/9", correlation_id="r1")
    with pytest.raises(KeyError):
        taken.enqueue(stranger)
    assert api.queue.list()[1] == 1


def test_an_entry_of_a_graph_in_the_fleet_becomes_a_run(api: Any) -> None:
    """What a trigger or `rota enqueue` does: the document is the agent's, the payload holds the inputs."""
    api.agents.create("researcher")
    settings = {"runner": "graph", "max_attempts": coordinator_settings().max_attempts}
    metadata = {"run": settings, "graph": document("researcher")}
    pid = api.agents.create("report", TEMPLATE, metadata=metadata)
    sched_id = api.queue.enqueue(ScheduleSpec(pid, payload={"topic": "wind"}, trigger="cron"))
    (entry,) = api.claim("coordinator", 1)
    run = api.graphs.take_entry(sched_id, entry.token)
    assert (run.run_id, run.sched_id, run.inputs) == (f"report-{sched_id}", sched_id, {"topic": "wind"})
    assert run.document == document("researcher")
    assert api.graphs.take_entry(sched_id, entry.token).run_id == run.run_id  # again: the same run


def test_an_entry_of_a_graph_without_a_document_is_refused(api: Any) -> None:
    taken = Taken(api, run_id="r1")
    api.queue.enqueue(ScheduleSpec(taken.entry.pid))
    (entry,) = api.claim("coordinator", 1)
    with pytest.raises(GraphInvalid, match="has no graph of its own"):
        api.graphs.take_entry(entry.sched_id, entry.token)


# --- ending --------------------------------------------------------------------------------------


def spending(taken: Taken) -> tuple[list[int], int]:
    """A queued and a live entry of a run, a child that the live one spawned, and an entry of nobody's run."""
    live, queued = taken.enqueue(taken.spec("n0", "researcher"), taken.spec("n1", "writer"))
    (claimed,) = taken.api.claim("worker", 1)
    assert claimed.sched_id == live
    child = taken.api.supervision.spawn(ScheduleSpec(taken.pids["writer"], parent_id=live), claimed.token)
    other = taken.api.queue.enqueue(ScheduleSpec(taken.pids["writer"], key="graph/r10/1/n1/0", correlation_id="r10"))
    return [live, queued, child], other


def test_a_cancelled_run_spends_nothing_more(api: Any) -> None:
    taken = Taken(api, run_id="r1")
    ids, other = spending(taken)
    done = api.graphs.cancel("r1", by="ada")
    assert (done.run.status, done.cancelled, done.stopped, done.left) == ("cancelled", 2, 2, 0)
    assert taken.statuses(ids) == ["running", "cancelled", "cancelled"]
    assert api.queue.get(ids[0]).cancel_requested
    assert api.queue.get(taken.entry.sched_id).cancel_requested  # the coordinator
    assert taken.statuses([other]) == ["ready"]
    for call in (taken.commit, lambda: taken.enqueue(taken.spec("n1", "writer", 1))):
        with pytest.raises(StaleClaim, match="r1 has ended: cancelled"):
            call()
    again = api.graphs.cancel("r1")
    assert (again.run.status, again.cancelled, again.stopped) == ("cancelled", 0, 0)


def test_without_stop_live_entries_end_by_themselves(api: Any) -> None:
    taken = Taken(api, run_id="r1")
    ids, _ = spending(taken)
    done = api.graphs.cancel("r1", stop=False)
    assert (done.cancelled, done.stopped, done.left) == (2, 0, 2)
    assert taken.statuses(ids) == ["running", "cancelled", "cancelled"]
    assert not api.queue.get(ids[0]).cancel_requested


def test_a_failed_run_spends_nothing_more(api: Any) -> None:
    taken = Taken(api, run_id="r1")
    ids, other = spending(taken)
    ended = api.graphs.finish("r1", taken.run.fence, "failed", error="n0: no such page")
    assert (ended.status, ended.error) == ("failed", "n0: no such page")
    assert taken.statuses([*ids, other]) == ["running", "cancelled", "cancelled", "ready"]
    assert api.queue.get(ids[0]).cancel_requested
    assert not api.queue.get(taken.entry.sched_id).cancel_requested  # it reports its own end


def test_a_run_that_ended_before_its_coordinator_is_ended_completely(api: Any) -> None:
    """The process died between the end of the run and that of its entries; another one takes the coordinator."""
    taken = Taken(api, run_id="r1")
    ids, _ = spending(taken)
    api.graphs.finish("r1", taken.run.fence, "failed", error="broken")
    taken.run = taken.take()
    assert (taken.run.status, taken.run.error) == ("failed", "broken")
    assert api.graphs.finish("r1", taken.run.fence, taken.run.status).error == "broken"
    assert taken.statuses(ids[1:]) == ["cancelled", "cancelled"]


def test_a_run_whose_coordinator_was_cancelled_is_ended(api: Any) -> None:
    taken = Taken(api, run_id="r1")
    ids, _ = spending(taken)
    assert api.graphs.tidy() == 0
    api.queue.complete(taken.entry.sched_id, "crashed")
    assert api.graphs.tidy() == 1
    run = api.graphs.show("r1").run
    assert run.status == "failed"
    assert run.error == f"its coordinator, entry {taken.entry.sched_id}, ended before the run: completed crashed"
    assert taken.statuses(ids[1:]) == ["cancelled", "cancelled"]


# --- resuming and forgetting ---------------------------------------------------------------------


def test_a_cancelled_run_is_resumed_from_its_checkpoint(api: Any) -> None:
    taken = Taken(api, run_id="r1", inputs={"topic": "tides"})
    taken.commit(epoch=4)
    with pytest.raises(GraphRunRefused, match="r1 is running; only a failed or cancelled run is resumed"):
        api.graphs.resume("r1")
    api.graphs.cancel("r1")
    with pytest.raises(GraphRunRefused, match=f"still stopping: entry {taken.entry.sched_id} has not ended"):
        api.graphs.resume("r1")
    api.queue.complete(taken.entry.sched_id, "cancelled", token=taken.entry.token)
    resumed = api.graphs.resume("r1")
    assert (resumed.status, resumed.resumes, resumed.ended_at) == ("running", 1, None)
    assert resumed.sched_id != taken.entry.sched_id
    (taken.entry,) = api.claim("coordinator", 1)
    assert (taken.entry.sched_id, taken.entry.payload) == (resumed.sched_id, {"topic": "tides"})
    taken.run = taken.take()
    assert (taken.run.run_id, taken.run.next_epoch_id, taken.run.checkpoint) == ("r1", 4, b"{}")
    api.graphs.finish("r1", taken.run.fence, "succeeded")
    with pytest.raises(GraphRunRefused, match="r1 has succeeded"):
        api.graphs.resume("r1")


def test_a_copy_of_the_coordinator_resumes_the_run(api: Any) -> None:
    """`rota retry` of a failed coordinator."""
    taken = Taken(api, run_id="r1")
    taken.commit(epoch=3)
    api.graphs.finish("r1", taken.run.fence, "failed", error="broken")
    api.queue.complete(taken.entry.sched_id, "failed")
    api.queue.retry(taken.entry.sched_id)
    (taken.entry,) = api.claim("coordinator", 1)
    run = taken.take()
    assert (run.run_id, run.status, run.error, run.next_epoch_id) == ("r1", "running", None, 3)
    assert run.sched_id == taken.entry.sched_id


def test_a_live_run_is_not_forgotten_unless_it_is_cancelled(api: Any) -> None:
    taken = Taken(api, run_id="r1")
    ids, _ = spending(taken)
    with pytest.raises(GraphRunRefused, match="r1 is running, so it is not deleted") as refused:
        api.graphs.forget("r1")
    assert "rota graph forget r1 --cancel" in str(refused.value.hint)
    assert api.graphs.forget("r1", cancel=True)
    assert taken.statuses(ids[1:]) == ["cancelled", "cancelled"]
    assert not api.graphs.forget("r1")
    with pytest.raises(GraphRunUnknown, match="there is no graph run 'r1'"):
        api.graphs.show("r1")


def test_runs_are_listed_newest_first(api: Any) -> None:
    api.agents.create("researcher")
    for number in range(3):
        api.graphs.start(document("researcher"), run_id=f"r{number}")
    api.graphs.start(document("researcher", name="other"), run_id="o")
    api.graphs.cancel("r1")
    runs, total = api.graphs.list(graph="report", limit=2)
    assert ([run.run_id for run in runs], total) == (["r2", "r1"], 3)
    assert [run.run_id for run in api.graphs.list(status="cancelled")[0]] == ["r1"]
    assert api.graphs.list(graph="report", offset=2)[0][0].run_id == "r0"
    with pytest.raises(InvalidPayload, match="must be one of running"):
        api.graphs.list(status="asleep")


# --- rights --------------------------------------------------------------------------------------


def test_a_tenant_sees_and_cancels_its_own_runs_only(served: Served) -> None:
    with served.client() as operator:
        for project in ("lab", "shop"):
            operator.projects.create(project)
            operator.agents.create("researcher", project_id=project)
            operator.graphs.start(document("researcher"), project=project, run_id=f"r-{project}")
    with connect(served.url, token=make_token(served.path, "enqueue", projects=("lab",))) as tenant:
        runs, total = tenant.graphs.list()
        assert ([run.run_id for run in runs], total) == (["r-lab"], 1)
        for name in ("r-shop", "never"):
            with pytest.raises(GraphRunUnknown, match=f"there is no graph run '{name}'"):
                tenant.graphs.show(name)
            with pytest.raises(GraphRunUnknown, match=f"there is no graph run '{name}'"):
                tenant.graphs.cancel(name)
        assert tenant.graphs.cancel("r-lab").run.status == "cancelled"
        assert tenant.graphs.resume("r-lab").status == "running"
        with pytest.raises(Forbidden):
            tenant.graphs.start(document("researcher"), project="lab")
        with pytest.raises(Forbidden):
            tenant.graphs.forget("r-lab")
    with served.client() as operator:
        assert operator.graphs.show("r-shop").run.status == "running"


def test_a_run_is_in_the_project_of_its_agents(api: Any) -> None:
    for project, names in (("lab", ("researcher", "writer")), ("desk", ("writer",))):
        api.projects.create(project)
        for name in names:
            api.agents.create(name, project_id=project, unique=True)
    assert api.graphs.start(document("researcher", "writer")).project_id == "lab"
    assert api.graphs.start(document("researcher")).project_id == "lab"
    with pytest.raises(GraphInvalid, match="writer"):
        api.graphs.start(document("writer"))  # two projects have one
    api.agents.create("writer", unique=True)
    assert api.graphs.start(document("writer")).project_id is None


def test_a_supervisor_runs_a_graph_of_agents_by_each_door(api: Any) -> None:
    """A fleet lane over the wire: the coordinator, the entries of its nodes, their charges and results."""

    def search(ctx: Any, topic: str) -> str:
        ctx.charge(tokens=2)
        return f"all about {topic}"

    def write(parts: list[str]) -> str:
        return " and ".join(parts)

    functions: dict[str, Callable[..., Any]] = {
        "planner": lambda: ["owls", "eels"],
        "searcher": search,
        "writer": write,
    }
    for name in functions:
        api.agents.create(name)
    components: list[dict[str, Any]] = [
        {"id": "plan", "execution": {"agent": "planner"}},
        {"id": "search", "execution": {"agent": "searcher", "map_over": "topic"}},
        {"id": "write", "execution": {"agent": "writer"}},
        {"id": "report", "type": "rota.output", "execution": {"lane": "main"}},
    ]
    wires = [("plan.out", "search.topic"), ("search.out", "write.parts"), ("write.out", "report.value")]
    edges = [{"id": target, "kind": "async", "from": source, "to": target} for source, target in wires]
    api.graphs.start({**document(), "components": components, "edges": edges}, run_id="r1", budget={"tokens": 9})
    Supervisor(api, SupervisorSettings(slots=2), functions=functions).run(until_idle=True)
    report = api.graphs.show("r1")
    assert (report.run.status, report.run.error) == ("succeeded", None)
    assert report.run.result == {"report": "all about owls and all about eels"}
    assert {node.node: node.entries.get("succeeded") for node in nodes(report)} == {"plan": 1, "search": 2, "write": 1}
    assert [(line.limit, line.used) for line in report.budgets] == [(9, 4)]


def large(topic: str) -> str:
    """More than a request to a daemon may have."""
    return topic * BODY_BYTES_MAX


def test_a_checkpoint_that_is_too_large_for_a_daemon_fails_the_run_with_advice(served: Served) -> None:
    function = {
        "id": "large",
        "type": f"{__name__}:large",
        "execution": {"lane": "main"},
        "trigger_policy": {"type": "any_input", "inputs": ["topic"]},
    }
    with served.client() as api:
        api.agents.create("writer")
        given = document("writer")
        edges = [
            {"id": "ask", "kind": "async", "from": "topic.out", "to": "large.topic"},
            {"id": "use", "kind": "async", "from": "large.out", "to": "n0.text"},
        ]
        components = [*given["components"], function]
        api.graphs.start({**given, "components": components, "edges": edges}, {"topic": "x"}, run_id="r1")
        Supervisor(api, SupervisorSettings(slots=1)).run(until_idle=True)
        run = api.graphs.show("r1").run
    assert run.status == "failed"
    assert "the checkpoint of the run is too large: body_bytes_max is 4,194,304" in str(run.error)
    assert "publish references to large values" in str(run.error)


def test_a_fan_out_of_large_items_fits_into_the_requests_to_a_daemon(served: Served) -> None:
    """Thirty items of 200 KB: neither the entries nor their results fit into one request."""
    made = 30
    items = ["x" * 200_000] * made
    with served.client() as api:
        taken = Taken(api)
        run = DurableRuns(api, taken=taken.run).acquire("r1", "report")
        requests = [EntryRequest(f"graph/r1/1/n0/{at}", {"text": each}, 2, "writer") for at, each in enumerate(items)]
        ids = run.enqueue(run.specs(requests))
        assert len(set(ids)) == made
        assert run.enqueue(run.specs(requests)) == ids
        for entry in api.claim("worker", made):
            api.complete(entry.sched_id, "completed", token=entry.token, result=entry.payload)
        ended = run.ended(ids)
        assert [ended[each].result for each in ids] == [{"text": each} for each in items]

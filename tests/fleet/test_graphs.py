"""Graphs in a fleet file: checked with the file, applied as agents, and started by every kind of trigger."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from rota import store
from rota.cli import fleet_plan
from rota.clock import ManualClock
from rota.errors import FleetInvalid
from rota.fleet.agent_settings import settings_of, spec_for
from rota.fleet.config.apply import apply_fleet
from rota.fleet.config.graph_checks import graph_warnings
from rota.fleet.config.loader import load_fleet
from rota.fleet.config.plan import plan_fleet
from rota.fleet.fleet_run import FleetRun
from rota.fleet.graph_tidy import TIDY_S, GraphTidy
from rota.fleet.triggers import Triggers
from rota.graph import read_mapping
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.replay import KernelState
from rota.model.graph_runs import GraphRun
from rota.service import Dispatcher
from tests.fleet.support import START, FleetHarness
from tests.host.support import PATIENCE_S, until

FLEET = """
slots = 2
[projects.lab]
[agents.researcher]
project = "lab"
function = "nodes:research"
[graphs.report]
file = "report.yaml"
project = "lab"
inputs = {topic = "tides"}
budget = {tokens = 900}
"""
REPORT = """
schema_version: 2
graph: {name: report}
lanes: {main: {type: event_loop}}
components:
  - {id: topic, type: rota.input, execution: {lane: main}}
  - {id: found, execution: {agent: researcher, budget: {tokens: 300}}}
  - {id: text, type: rota.output, execution: {lane: main}}
edges:
  - {id: ask, kind: async, from: topic.out, to: found.topic}
  - {id: answer, kind: async, from: found.out, to: text.value}
"""
NODES = """
import pathlib


def research(ctx, topic):
    if topic == "nothing" and not pathlib.Path("repaired").exists():
        raise LookupError("no such page: \\0")  # no store holds it as text
    ctx.charge(tokens=10)
    return f"all about {topic}"
"""


@pytest.fixture
def graphs(tmp_path: Path) -> FleetHarness:
    """A folder with a graph file and the module of its functions."""
    (tmp_path / "report.yaml").write_text(REPORT)
    (tmp_path / "nodes.py").write_text(NODES)
    return FleetHarness(tmp_path)


def problems(harness: FleetHarness, text: str) -> list[str]:
    with pytest.raises(FleetInvalid) as refused:
        harness.fleet(text)
    found: list[str] = refused.value.data["problems"]
    return found


# --- the file ------------------------------------------------------------------------------------


def test_a_graph_is_an_agent_with_its_document(graphs: FleetHarness) -> None:
    assert graphs.apply_messages(FLEET)[-1] == "agent report created"
    agent = graphs.agent("report")
    assert (agent.template, agent.project_id) == ("graph", "lab")
    assert agent.metadata["run"]["runner"] == "graph"
    assert [each["id"] for each in agent.metadata["graph"]["components"]] == ["topic", "found", "text"]
    assert agent.metadata["graph_budgets"] == {"": {"tokens": 900}, "found": {"tokens": 300}}
    assert graphs.apply_messages(FLEET) == []


def test_a_changed_graph_file_is_a_change(graphs: FleetHarness) -> None:
    graphs.apply(FLEET)
    (graphs.folder / "report.yaml").write_text(REPORT.replace("tokens: 300", "tokens: 400"))
    (message,) = graphs.apply_messages(FLEET)
    assert message.startswith("agent report changed: graph 3 components, ")
    assert graphs.agent("report").metadata["graph_budgets"]["found"] == {"tokens": 400}
    paused = graphs.apply_messages(FLEET.partition("[graphs")[0])
    assert paused == ["agent report paused: no longer in the fleet file"]
    assert graphs.apply_messages(FLEET) == ["agent report resumed"]


def test_all_problems_of_a_file_and_its_graphs_are_reported_together(graphs: FleetHarness) -> None:
    bad = REPORT.replace("agent: researcher", "agent: resercher").replace("to: text.value", "to: nowhere.value")
    (graphs.folder / "report.yaml").write_text(bad)
    text = FLEET.replace('project = "lab"\ninputs = {topic', 'project = "lib"\ninputs = {tropic')
    text = text.replace("{tokens = 900}", "{tokns = 900}").replace("slots = 2", "slots = 0")
    text += "triggers = [{crn = '* * * * *'}, {every = '1m', payload = {topc = 1}}]\n[graphs.other]\nfile = 'no.yaml'\n"
    found = "\n".join(problems(graphs, text))
    for part in (
        "slots: expected a whole number",
        "graphs.report.triggers[0].crn: unknown key",
    ):
        assert part in found
    text = text.replace("{crn = '* * * * *'}", "{cron = 'never', event_as = 'x'}").replace("slots = 0", "slots = 2")
    found = "\n".join(problems(graphs, text))
    for part in (
        "graphs.report.budget.tokns: unknown dimension 'tokns'; did you mean 'tokens'?",
        "graphs.report.project: unknown project 'lib'; did you mean 'lab'?",
        "graphs.report.inputs.tropic: the graph has no input 'tropic'. Its inputs: topic",
        "graphs.report.triggers[0].cron: expected a cron expression",
        "graphs.report.triggers[0].event_as: is only valid with event or after",
        "graphs.report.triggers[1].payload.topc: the graph has no input 'topc'",
        "graphs.report.file: report.yaml, components.found: there is no agent 'resercher'; did you mean 'researcher'?",
        "nowhere",
        "graphs.other.file: no.yaml: cannot be read: No such file or directory",
    ):
        assert part in found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[graphs.report]\nfile = 'report.yaml'", "graphs.report: agents.report has the same name"),
        ("[graphs.'hook:x']\nfile = 'report.yaml'", "the names of hooks begin with 'hook:'"),
        ("[graphs.r]\n", "graphs.r.file: required key is missing"),
        ("[graphs.r]\nfile = 'report.yaml'\ncommand = 'ls'", "graphs.r.command: unknown key"),
    ],
)
def test_a_wrong_table_is_refused(graphs: FleetHarness, text: str, problem: str) -> None:
    agents = "[agents.researcher]\ncommand = 'ls'\n[agents.report]\ncommand = 'ls'\n"
    assert any(problem in each for each in problems(graphs, agents + text)), problems(graphs, agents + text)


# --- the plan ------------------------------------------------------------------------------------


def test_the_plan_shows_graphs_and_what_is_wrong_with_their_functions(graphs: FleetHarness) -> None:
    (graphs.folder / "report.yaml").write_text(
        REPORT.replace("edges:", "  - {id: plan, type: 'nodes:planning', execution: {lane: main}}\nedges:")
    )
    text = FLEET.replace('[agents.researcher]\nproject = "lab"', "[agents.researcher]")
    text += "triggers = [{every = '30m'}, {after = 'researcher'}]\n"
    plan = plan_fleet(graphs.fleet(text), START)
    (row,) = plan.graphs
    assert (row.name, row.agents, row.functions, row.budget) == ("report", ["researcher"], 3, {"tokens": 900})
    assert (row.runs_per_hour, row.and_more) == (2.0, True)
    assert [each.what for each in plan.triggers if each.agent == "report"] == ["every 1800 s", "after researcher"]
    warnings = "\n".join(plan.warnings)
    assert "graphs.report.file: component plan: module nodes does not define planning, so its runs fail" in warnings
    assert "component found: agent researcher is of another project" in warnings
    assert "rota projects grant lab -" in warnings
    printed = io.StringIO()
    fleet_plan.print_plan(
        graphs.folder / "fleet.toml", as_json=False, clock=ManualClock(START), console=Console(file=printed, width=200)
    )
    assert "report.yaml" in printed.getvalue()
    assert "researcher, 3 in the coordinator" in printed.getvalue()


# --- triggers ------------------------------------------------------------------------------------


def take(harness: FleetHarness, sched_id: int) -> GraphRun:
    """Begin the run of an entry, as its coordinator does."""
    entry = harness.api.queue.force_claim(sched_id, worker_id="w", admission_check=False)
    return harness.api.graphs.take_entry(sched_id, entry.token or 0)


@pytest.mark.parametrize(
    ("trigger", "inputs"),
    [
        ("{every = '1m'}", {"topic": "tides"}),
        ("{cron = '* * * * *', payload = {topic = 'wind'}}", {"topic": "wind"}),
        ("{on = 'start', priority = 7}", {"topic": "tides"}),
        ("{event = 'news.*', event_as = 'topic'}", {"kind": "news.flood"}),
        ("{after = 'researcher', event_as = 'topic'}", {"agent": "researcher"}),
    ],
)
def test_every_kind_of_trigger_starts_a_run(graphs: FleetHarness, trigger: str, inputs: dict[str, str]) -> None:
    triggers: Triggers = graphs.triggers(f"{FLEET}triggers = [{trigger}]\n")
    triggers.fire_on_start("here")
    graphs.api.journal.append(None, "news.flood", {"where": "coast"})
    graphs.run(graphs.api.queue.enqueue(ScheduleSpec(graphs.agent("researcher").pid)))
    while events := graphs.api.journal.tail(triggers.cursor):
        triggers.fire_for(events)
    graphs.fire_due(triggers, START - START % 60 + 60)
    (entry,) = graphs.entries("report")
    (listed,), _ = graphs.api.graphs.list()  # before its coordinator has run
    assert (listed.run_id, listed.status, listed.sched_id) == (entry.correlation_id, "running", entry.sched_id)
    run = take(graphs, entry.sched_id)
    assert graphs.api.graphs.list()[1] == 1
    assert (run.graph, run.project_id, run.run_id) == ("report", "lab", entry.correlation_id)
    given = run.inputs["topic"]
    assert given == inputs["topic"] if "topic" in inputs else inputs.items() <= given.items()
    assert run.budget == {"tokens": 900}


def test_a_run_that_is_enqueued_for_later_is_listed_and_can_be_cancelled(graphs: FleetHarness) -> None:
    graphs.apply(FLEET)
    agent = graphs.agent("report")
    sched_id = graphs.api.queue.enqueue(spec_for(agent, settings_of(agent), {"topic": "wind"}, delay_s=60.0))
    (run,), _ = graphs.api.graphs.list(status="waiting")
    assert (run.inputs, run.waits) == ({"topic": "wind"}, f"the start of its coordinator, entry {sched_id}")
    assert {line.limit for line in graphs.api.ledger.graph_budgets(run.run_id)} == {900, 300}
    done = graphs.api.graphs.cancel(run.run_id)
    assert (done.run.status, done.cancelled) == ("cancelled", 1)
    copy = graphs.api.queue.retry(sched_id)
    assert graphs.api.graphs.list()[1] == 1
    assert take(graphs, copy).run_id == run.run_id
    tables, journal = graphs.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables.at(START) == journal.at(START)


# --- a running fleet -----------------------------------------------------------------------------


def test_a_fleet_runs_its_graphs(tmp_path: Path, graphs: FleetHarness) -> None:
    graphs.store.close()
    path = tmp_path / "fleet.toml"
    path.write_text(f"{FLEET}triggers = [{{on = 'start', payload = {{topic = 'wind'}}}}]\n")
    opened = store.open(str(tmp_path / "rota.db"))
    api = Dispatcher(Kernel(opened), "eevdf")
    FleetRun(api, load_fleet(path)).run(until_idle=True)
    (run,), _ = api.graphs.list()
    report = api.graphs.show(run.run_id)
    assert (report.run.status, report.run.error) == ("succeeded", None)
    assert report.run.result == {"text": "all about wind"}
    assert {node.node: node.state for node in report.nodes} == dict.fromkeys(("topic", "found", "text"), "succeeded")
    assert report.usage == {"tokens": 10}
    opened.close()


def test_a_failed_run_that_is_resumed_repeats_what_failed(
    tmp_path: Path, graphs: FleetHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs.store.close()
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.replace('"nodes:research"', '"nodes:research"\nrestart = {when = "never"}'))
    opened = store.open(str(tmp_path / "rota.db"))
    api = Dispatcher(Kernel(opened), "eevdf")
    apply_fleet(api, load_fleet(path))
    api.graphs.start(read_mapping(tmp_path / "report.yaml"), {"topic": "nothing"}, "r1", "lab")
    FleetRun(api, load_fleet(path)).run(until_idle=True)
    failed = api.graphs.show("r1").run
    assert failed.status == "failed"
    assert "no such page: \ufffd" in (failed.error or "")
    (tmp_path / "repaired").touch()
    api.graphs.resume("r1")
    FleetRun(api, load_fleet(path)).run(until_idle=True)
    report = api.graphs.show("r1")
    assert (report.run.status, report.run.result) == ("succeeded", {"text": "all about nothing"})
    assert [node.entries for node in report.nodes if node.agent] == [{"failed": 1, "succeeded": 1}]
    opened.close()


def test_a_cancelled_run_stops_its_live_entries(tmp_path: Path, graphs: FleetHarness) -> None:
    graphs.store.close()
    path = tmp_path / "fleet.toml"
    slow = FLEET.replace('function = "nodes:research"', 'command = ["sleep", "600"]\nstop_grace_s = 0.1')
    path.write_text(f"{slow}triggers = [{{on = 'start'}}]\n")
    opened = store.open(str(tmp_path / "rota.db"))
    api = Dispatcher(Kernel(opened), "eevdf")
    fleet = FleetRun(api, load_fleet(path))
    thread = threading.Thread(target=fleet.run, kwargs={"until_idle": True})
    thread.start()
    until(lambda: api.graphs.list(status="waiting")[1] == 1 and api.queue.list(status="running")[1] == 1)
    (run,), _ = api.graphs.list()
    assert run.waits
    done = api.graphs.cancel(run.run_id)
    assert (done.cancelled, done.stopped) == (1, 1)  # the coordinator waits in the queue, the node runs
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert api.queue.counts("status") == {"cancelled": 2}
    assert api.graphs.show(run.run_id).run.status == "cancelled"
    opened.close()


REVIEW = """
schema_version: 2
graph: {name: review, budget: {tokens: 50}}
lanes: {main: {type: event_loop}}
components:
  - {id: topics, type: rota.input, execution: {lane: main}}
  - {id: one, execution: {agent: report, map_over: topic}}
  - {id: all, type: rota.output, execution: {lane: main}}
edges:
  - {id: ask, kind: async, from: topics.out, to: one.topic}
  - {id: answer, kind: async, from: one.out, to: all.value}
"""
NESTED = f"""{FLEET}
[graphs.review]
file = "review.yaml"
project = "lab"
inputs = {{topics = ["wind", "rain"]}}
triggers = [{{on = "start"}}]
"""


def test_a_node_may_be_another_graph(tmp_path: Path, graphs: FleetHarness) -> None:
    """Its entry coordinates a run of that graph, whose result is the node's."""
    graphs.store.close()
    (tmp_path / "review.yaml").write_text(REVIEW)
    path = tmp_path / "fleet.toml"
    path.write_text(NESTED)
    assert list(graph_warnings(load_fleet(path))) == []
    opened = store.open(str(tmp_path / "rota.db"))
    api = Dispatcher(Kernel(opened), "eevdf")
    FleetRun(api, load_fleet(path)).run(until_idle=True)
    (run,), _ = api.graphs.list(graph="review")
    report = api.graphs.show(run.run_id).run
    assert (report.status, report.error) == ("succeeded", None)
    assert report.result == {"all": [{"text": "all about wind"}, {"text": "all about rain"}]}
    parts, _ = api.graphs.list(graph="report")
    assert [api.graphs.show(part.run_id).usage for part in parts] == [{"tokens": 10}] * 2
    assert [line.used for line in api.ledger.graph_budgets(run.run_id)] == [20]
    opened.close()


def test_a_cancelled_run_ends_the_runs_of_graphs_that_are_its_nodes(tmp_path: Path, graphs: FleetHarness) -> None:
    graphs.store.close()
    (tmp_path / "review.yaml").write_text(REVIEW)
    path = tmp_path / "fleet.toml"
    path.write_text(NESTED.replace('function = "nodes:research"', 'command = ["sleep", "600"]\nstop_grace_s = 0.1'))
    opened = store.open(str(tmp_path / "rota.db"))
    api = Dispatcher(Kernel(opened), "eevdf")
    fleet = FleetRun(api, load_fleet(path))
    thread = threading.Thread(target=fleet.run, kwargs={"until_idle": True})
    thread.start()
    until(lambda: api.graphs.list(status="waiting")[1] == 3 and api.queue.list(status="running")[1] == 2)
    (run,), _ = api.graphs.list(graph="review")
    api.graphs.cancel(run.run_id)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert api.queue.counts("status") == {"cancelled": 5}
    assert {each.status for each in api.graphs.list()[0]} == {"cancelled"}
    opened.close()


def test_a_supervisor_ends_runs_that_have_lost_their_coordinator(graphs: FleetHarness) -> None:
    """Cancelled by its id, the coordinator cannot end its run itself."""
    graphs.apply(FLEET)
    api = Dispatcher(graphs.api)
    tidy = GraphTidy(api)
    run = api.graphs.start(read_mapping(graphs.folder / "report.yaml"), {"topic": "wind"}, "r1", "lab")
    tidy.on_due()
    assert tidy.due_in_s() == TIDY_S
    assert run.sched_id is not None
    cursor = graphs.cursor
    api.queue.cancel(run.sched_id)
    tidy.on_events(api.journal.tail(cursor))
    assert tidy.due_in_s() == 0
    tidy.on_due()
    ended = api.graphs.show("r1").run
    assert (ended.status, ended.error) == ("cancelled", "its coordinator, entry 1, ended before the run: cancelled")

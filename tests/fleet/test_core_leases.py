"""Leases of cores under `rota run`: runs that ask for the same cores take turns, and all cores are free afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from typer.testing import CliRunner

from rota import Rota
from rota.cli import app as cli
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.live_run import LiveRun
from rota.fleet.run_cpu import RunCpu, where_of
from rota.fleet.runners.contract import Assignment, RunOutcome
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.supervised_cores import SupervisedCores
from rota.host.cpu_groups import CpuOwner
from rota.host.thread_settings import allowed_cores
from rota.kernel import ScheduleSpec
from rota.model.cpu import CpuSettings
from rota.model.work import ReadyEntry
from rota.service import this_host

CORES = len(allowed_cores())
FLEET = """
slots = 2
[agents.first]
command = ["sh", "-c", "echo start >> order; sleep 0.2; echo end >> order"]
cwd = "."
cpu = {{ {first} }}
triggers = [{{ on = "start" }}]
[agents.second]
command = ["sh", "-c", "echo start >> order; sleep 0.2; echo end >> order"]
cwd = "."
cpu = {{ {second} }}
triggers = [{{ on = "start" }}]
"""
ALL_BUT_ONE = f"lease = {CORES - 1}"
CORE = max(allowed_cores())


@pytest.mark.skipif(CORES < 2, reason="a lease needs two cores")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ALL_BUT_ONE, ALL_BUT_ONE),
        (f"cores = '{CORE}'", f"cores = '{CORE}', lease = 1"),  # no lease over a run that may run there only
    ],
)
def test_runs_that_ask_for_the_same_cores_take_turns_and_give_them_back(
    tmp_path: Path, first: str, second: str
) -> None:
    before = allowed_cores()
    (tmp_path / "fleet.toml").write_text(FLEET.format(first=first, second=second))
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "fleet.toml"), "--until-idle"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "order").read_text().split() == ["start", "end", "start", "end"]
    assert allowed_cores() == before


@pytest.mark.parametrize("where", ["agent", "project"])
def test_no_core_is_leased_to_a_function_on_a_thread_which_would_not_run_there(where: str) -> None:
    cpu = CpuSettings(lease=1)
    with Rota() as app:
        app.project("night", cpu=cpu if where == "project" else None)

        @app.agent(project="night", cpu=cpu if where == "agent" else None)
        def control() -> None: ...

        job = control.enqueue()
        app.run(until_idle=True)
        assert job.entry().exit_kind == "completed"
        events = app.api.journal.tail()
    assert [event.kind for event in events if event.kind.startswith("kernel.cores.")] == []
    (told,) = (text for event in events for text in event.payload.get("advisories", ()))
    assert told.startswith("cpu lease = 1 is refused: the function shares the supervisor's process")


@pytest.mark.parametrize(
    ("settings", "holds_processes", "asked"),
    [
        (AgentSettings(runner="command", argv=("x",)), False, {"cores": "0", "lease": 1, "class": "batch"}),
        (AgentSettings(isolation="process"), True, {"cores": "0", "lease": 1, "class": "batch"}),
        (AgentSettings(isolation="process"), False, {"class": "batch"}),
        (AgentSettings(), True, None),
        (AgentSettings(runner="graph"), True, None),
    ],
)
def test_a_run_asks_only_for_what_it_is_held_to(
    settings: AgentSettings, holds_processes: bool, asked: dict[str, object] | None
) -> None:
    own = CpuSettings(cores="0", lease=1, class_="batch")
    cpu = RunCpu(owners=(), usable=frozenset({0, 1}), own=own)
    found = cpu.asked(where_of(settings.executes, settings.isolation), holds_processes=holds_processes)
    assert (None if found is None else msgspec.to_builtins(found)) == asked


class _Run(msgspec.Struct):
    """What is asked of a run in progress here."""

    assignment: Assignment
    entry: ReadyEntry
    token: int


@pytest.mark.skipif(CORES < 2, reason="a lease needs two cores")
def test_settings_that_are_changed_while_a_run_goes_on_change_its_grant(caplog: pytest.LogCaptureFixture) -> None:
    """A lease could be granted of the only core that a running program had after `rota reload`."""
    with Rota() as app, RunnerResources() as resources:
        kernel, grants = app.api, SupervisedCores(app.api, resources)
        for name in ("hog", "control"):
            kernel.queue.enqueue(ScheduleSpec(kernel.agents.create(name)))
        hog, control = kernel.queue.claim(worker_id="box", max_n=2)

        def execute(entry: ReadyEntry, cpu: CpuSettings, during: Callable[[CpuOwner], RunOutcome]) -> RunOutcome:
            agent = kernel.agents.get(entry.pid)
            owner = CpuOwner(f"agent:{agent.pid}", agent.name, cpu)
            settings = AgentSettings(runner="command", argv=("x",), cpu=cpu)
            own = RunCpu(owners=(owner,), usable=frozenset(allowed_cores()), own=cpu)
            assignment = Assignment(entry=entry, agent=agent, settings=settings, slot="1", cpu=own)
            return grants.execute(cast("LiveRun", _Run(assignment, entry, entry.token or 0)), lambda: during(owner))

        def change(owner: CpuOwner, **settings: Any) -> None:
            resources.cpu_changed(owner.key, lambda: owner._replace(cpu=CpuSettings(**settings)))

        def granted() -> list[tuple[str, list[str], tuple[int, ...]]]:
            (host,) = kernel.cores.status().hosts
            return [(each.owner, list(each.sentences()), each.allowed) for each in host.grants]

        def beside(owner: CpuOwner) -> RunOutcome:
            assert granted() == [("hog", ["at most 40 ms in 100 ms"], (CORE,)), *granted()[1:]]
            change(owner, lease=0, quota="30ms/100ms")  # of a run that has leased a core
            (_, mine) = granted()
            assert mine[1] == [f"core {mine[2][0]} for itself", "at most 30 ms in 100 ms"]
            return RunOutcome()

        def joined(_: CpuOwner) -> RunOutcome:
            change(hog_owner[0], weight=2.0, quota="40ms/100ms", cores=str(CORE))
            assert f"hog #{hog.sched_id} is kept off cores {CORE} until a run that has leased them" in caplog.text
            return RunOutcome()

        def without_grant(owner: CpuOwner) -> RunOutcome:
            """A run with a weight only had no grant, and another lease could begin on its new cores."""
            assert [each[0] for each in granted()] == ["control"]
            caplog.clear()
            change(hog_owner[0], weight=2.0, cores=str(CORE))
            assert f"hog #{hog.sched_id} is kept off cores {CORE} until a run that has leased them" in caplog.text
            assert [(each[0], each[2]) for each in granted()] == [("hog", (CORE,)), ("control", (CORE,))]
            return joined(owner)

        hog_owner: list[CpuOwner] = []

        def hogs(owner: CpuOwner) -> RunOutcome:
            hog_owner.append(owner)
            change(owner, weight=2.0, quota="40ms/100ms", cores=str(CORE))
            assert granted() == [("hog", ["at most 40 ms in 100 ms"], (CORE,))]
            refused = execute(control, CpuSettings(lease=1, cores=str(CORE)), lambda _: RunOutcome())
            assert refused.yield_after_s is not None
            assert f"core {CORE} is the last open one of entry {hog.sched_id} (hog)" in caplog.text
            assert execute(control, CpuSettings(lease=1), beside).yield_after_s is None
            change(owner, weight=2.0, quota="40ms/100ms")
            assert execute(control, CpuSettings(lease=1, cores=str(CORE)), joined).yield_after_s is None
            # they are its cores now: the end of that lease begins no other one
            refused = execute(control, CpuSettings(lease=1, cores=str(CORE)), lambda _: RunOutcome())
            assert refused.yield_after_s is not None
            change(owner, weight=3.0)
            assert kernel.cores.status().hosts == []  # nothing is left that needs a grant
            assert execute(control, CpuSettings(lease=1, cores=str(CORE)), without_grant).yield_after_s is None
            change(owner, weight=3.0)
            return RunOutcome()

        execute(hog, CpuSettings(weight=1.0), hogs)
        assert kernel.cores.status().hosts == []


def test_a_run_that_no_host_could_grant_its_reservation_fails_at_once(tmp_path: Path) -> None:
    """It is not tried again either: another attempt would end in the same way."""
    (tmp_path / "fleet.toml").write_text(
        "store = 'db'\n[agents.a]\ncommand = ['true']\n"
        "cpu = {realtime = 'deadline:10/10'}\ntriggers = [{on = 'start'}]\n"
    )
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "fleet.toml"), "--until-idle"])
    assert done.exit_code == 1, done.output
    with Rota(str(tmp_path / "db")) as app:
        entry = app.api.queue.get(1)
    assert (entry.exit_kind, entry.outcome, entry.attempt) == ("failed", "cores_never_granted", 1)
    assert "1,000,000 needed, 950,000 available" in entry.result["error"]


def test_a_run_that_this_host_can_never_grant_its_cores_is_not_waited_for(tmp_path: Path) -> None:
    """`--until-idle` tried it again for ever; another host of the store may take it."""
    (tmp_path / "fleet.toml").write_text(
        "store = 'db'\n[agents.a]\ncommand = ['true']\ncpu = {lease = 200}\ntriggers = [{on = 'start'}]\n"
    )
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "fleet.toml"), "--until-idle"])
    assert done.exit_code == 1, done.output
    assert f"{this_host().name} can never grant it: 200 cores asked" in " ".join(done.output.split())
    with Rota(str(tmp_path / "db")) as app:
        assert app.api.queue.get(1).state == "queued"


ISLAND = """
schema_version: 2
graph: {name: voice, island: {period_ms: 1000, memory_bytes: 1000, slots: 1}}
lanes: {loop: {type: event_loop}}
edges: []
components:
  - {id: tick, type: rota.input, execution: {EXECUTION}}
"""


@pytest.mark.parametrize(
    ("execution", "ends", "error"),
    [
        ("lane: loop, budget_ms: 500", "completed", None),
        ("lane: loop, budget_ms: 999", "failed", "999,000 needed, 950,000 available"),
        ("lane: loop", "failed", "component tick has no budget_ms"),
    ],
)
def test_a_graph_as_an_island_is_admitted_or_fails(
    tmp_path: Path, execution: str, ends: str, error: str | None
) -> None:
    (tmp_path / "voice.yaml").write_text(ISLAND.replace("EXECUTION", execution))
    (tmp_path / "fleet.toml").write_text(
        "store = 'db'\n[graphs.voice]\nfile = 'voice.yaml'\ninputs = {tick = 1}\ntriggers = [{on = 'start'}]\n"
    )
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "fleet.toml"), "--until-idle"])
    with Rota(str(tmp_path / "db")) as app:
        (entry,), _total = app.api.queue.list()
        assert entry.exit_kind == ends, done.output
        assert app.api.cores.status().hosts == []
        if error is not None:
            assert error in entry.result["error"]


OF_AGENTS = """
schema_version: 2
graph: {name: voice, ISLAND}
lanes: {loop: {type: fixed_rate, period_ms: 1000}}
components:
  - {id: tick, type: rota.input, execution: {lane: loop, budget_ms: BUDGET}}
  - {id: hear, execution: {agent: ear, budget_ms: 1}}
  - {id: heard, type: rota.output, execution: {lane: loop, budget_ms: 400}}
edges:
  - {id: asked, kind: async, from: tick.out, to: hear.tick}
  - {id: done, kind: async, from: hear.out, to: heard.value}
"""


@pytest.mark.parametrize(("budget", "status"), [(400, "succeeded"), (999, "failed")])
@pytest.mark.parametrize("option", [True, False], ids=["--island", "in the file"])
def test_the_agents_of_an_island_are_on_the_cores_of_their_agents(
    tmp_path: Path, budget: int, status: str, *, option: bool
) -> None:
    """They reserve nothing on its host, and take as long as agents take; all else is admitted, or refused."""
    file, database = tmp_path / "voice.yaml", str(tmp_path / "db")
    text = OF_AGENTS.replace("BUDGET", str(budget)).replace("ISLAND", "" if option else "island: {}")
    file.write_text(text.replace("voice, }", "voice}"))
    with Rota(database) as app:

        @app.agent()
        def ear(ctx: Any, tick: int) -> int:
            ctx.wait_for_stop(0.01)  # longer than budget_ms of its component
            return tick

        words = ["graph", "run", str(file), "--input", "tick=1", "--run-id", "r1", "--detach", "--store", database]
        shown = CliRunner().invoke(cli, words + ["--island"] * option)
        assert shown.exit_code == 0, shown.output
        app.run(until_idle=True)
        run = app.api.graphs.get("r1")
        assert run.status == status, run.error
        assert ("999,000 needed, 950,000 available" in (run.error or "")) == (status == "failed")
        kinds = [event.kind for event in app.api.journal.tail(0, 1_000)]
        assert ("kernel.cores.granted" in kinds) == (status == "succeeded")


ON_A_CORE = """
schema_version: 2
graph: {name: voice, island: {period_ms: 10000, ISLAND}}
lanes:
  loop: {type: event_loop}
  threads: {type: thread_pool, max_threads: 1}
  processes: {type: process_pool, max_threads: 1}
components:
  - {id: tick, type: rota.input, execution: {lane: loop, budget_ms: 2000}}
  - id: a
    type: "tests.fleet.support:cores_here"
    execution: {lane: loop, budget_ms: 2000}
    trigger_policy: {type: all_inputs, inputs: [tick]}
  - id: b
    type: "tests.fleet.support:cores_here"
    execution: {lane: threads, budget_ms: 2000}
    trigger_policy: {type: all_inputs, inputs: [tick]}
  - id: c
    type: "tests.fleet.support:cores_here"
    execution: {lane: processes, budget_ms: 2000}
    trigger_policy: {type: all_inputs, inputs: [tick]}
  - {id: here, type: rota.output, execution: {lane: loop, budget_ms: 10}}
  - {id: thread, type: rota.output, execution: {lane: loop, budget_ms: 10}}
  - {id: process, type: rota.output, execution: {lane: loop, budget_ms: 10}}
edges:
  - {id: to_a, kind: immediate, from: tick.out, to: a.tick}
  - {id: to_b, kind: immediate, from: tick.out, to: b.tick}
  - {id: to_c, kind: immediate, from: tick.out, to: c.tick}
  - {id: from_a, kind: immediate, from: a.out, to: here.value}
  - {id: from_b, kind: immediate, from: b.out, to: thread.value}
  - {id: from_c, kind: immediate, from: c.out, to: process.value}
"""


@pytest.mark.skipif(CORES < 2, reason="a lease needs two cores")
@pytest.mark.parametrize("island", ["lease: 1", f"cores: '{CORE}'"])
def test_an_island_runs_on_the_cores_that_it_was_granted(tmp_path: Path, island: str) -> None:
    """A leased core was empty: the supervisor kept off it, and the island runs in the supervisor."""
    before = allowed_cores()
    (tmp_path / "voice.yaml").write_text(ON_A_CORE.replace("ISLAND", island))
    (tmp_path / "fleet.toml").write_text(
        "store = 'db'\n[graphs.voice]\nfile = 'voice.yaml'\ninputs = {tick = 1}\ntriggers = [{on = 'start'}]\n"
    )
    done = CliRunner().invoke(cli, ["run", str(tmp_path / "fleet.toml"), "--until-idle"])
    assert done.exit_code == 0, done.output
    with Rota(str(tmp_path / "db")) as app:
        (entry,), _total = app.api.queue.list()
        assert entry.exit_kind == "completed", done.output + str(entry.result)
    assert entry.result == {"here": [CORE], "thread": [CORE], "process": [CORE]}
    assert allowed_cores() == before

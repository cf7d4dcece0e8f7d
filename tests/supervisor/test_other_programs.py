"""Programs that share a store, each with functions of its own: none runs, retries or fails the entries of another."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import Graph, Rota
from rota.errors import StoreUnavailable
from rota.fleet.agent_settings import SETTINGS_KEY
from rota.fleet.runners import registry
from rota.fleet.runners.contract import RunOutcome
from rota.kernel import ScheduleSpec
from rota.kernel.turn import EXCEPT_AGENTS_MAX
from rota.model import reasons
from rota.model.events import EntriesClaimed
from rota.model.workers import WorkerInfo
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
from tests.supervisor.world import PATIENCE_S, World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def claims(rota: Rota) -> int:
    """How many claims of entries the journal has."""
    return sum(len(event.payload["entries"]) for event in rota.api.journal.tail(kinds=(EntriesClaimed.kind,)))


@pytest.mark.parametrize("isolated", [False, True])
def test_each_of_two_programs_runs_its_own(tmp_path: Path, isolated: bool) -> None:
    programs = [Rota(str(tmp_path / "rota.db")) for _ in range(2)]
    ran: list[tuple[str, int]] = []
    jobs = []
    for name, rota in zip("fg", programs, strict=True):
        own = rota.agent(name, max_attempts=1)(lambda n, name=name: ran.append((name, n)))
        jobs += own.map(list(range(10)))
        if isolated:  # it cannot be imported by a worker process here, but only its program may say so
            own = rota.agent(f"{name} apart", isolation="process", max_attempts=1)(_in_a_process)
            jobs += own.map(list(range(2)))
    threads = [threading.Thread(target=rota.run, kwargs={"slots": 2, "until_idle": True}) for rota in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(ran) == [(name, n) for name in "fg" for n in range(10)]
    assert {(job.status, job.entry().attempt) for job in jobs} == {("succeeded", 1)}
    assert claims(programs[0]) <= len(jobs) + 2 * 2 * 2  # a program's first claims find out what it cannot run
    for rota in programs:
        rota.close()


def _noting(ran: list[int]) -> Callable[[int], None]:
    def work(n: int) -> None:
        ran.append(n)

    return work


@pytest.mark.parametrize("ends", ["lives", "ends"])
def test_who_waits_for_a_graph_runs_its_agents_if_only_another_program_works(tmp_path: Path, ends: str) -> None:
    path = str(tmp_path / "rota.db")
    with Rota(path) as there, Rota(path) as here:
        there.agent("other", project="there")(_saying("there"))
        working = threading.Thread(target=there.run, daemon=True)
        working.start()
        while not there.api.workers.list():
            threading.Event().wait(0.001)
        graph = Graph("report")
        graph.output(graph.node(here.agent("writer", project="here")(_saying("here")))())
        run = here.run_graph(graph)
        ending = threading.Timer(0.3 if ends == "ends" else PATIENCE_S, there.stop)  # while the call waits
        ending.start()
        assert run.result(wait_s=PATIENCE_S) == "here"
        ending.cancel()
        ending.join()
        there.stop()
        working.join(PATIENCE_S)
        assert not working.is_alive()


def test_an_outage_does_not_end_the_look_for_other_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Rota(str(tmp_path / "rota.db")) as rota:
        graph = Graph("report")
        graph.output(graph.node(rota.agent("writer")(_saying("written")))())
        looks: list[int] = []

        def lost() -> list[WorkerInfo]:
            looks.append(1)
            monkeypatch.undo()  # the next look finds the store again, and no worker
            raise StoreUnavailable("away")

        monkeypatch.setattr(rota.api.workers, "list", lost)
        assert rota.run_graph(graph).result(wait_s=PATIENCE_S) == "written"
        assert looks == [1]


def _in_a_process(n: int) -> int:
    return n


def test_agents_of_one_name_in_two_projects_have_functions_of_their_own(world: World) -> None:
    jobs = {}
    for project in (None, "lab", "shop"):
        settings: dict[str, Any] = {} if project is None else {"project": project}
        jobs[project] = world.rota.agent("work", **settings)(_saying(str(project))).enqueue()
    world.rota.run(until_idle=True)
    assert {project: job.result() for project, job in jobs.items()} == {None: "None", "lab": "lab", "shop": "shop"}
    assert world.rota.find("work", project="shop")() == "shop"


def test_a_program_runs_no_agent_of_the_same_name_in_another_project(tmp_path: Path) -> None:
    programs = {project: Rota(str(tmp_path / "rota.db")) for project in ("lab", "shop")}
    jobs = [
        (project, job)
        for project, rota in programs.items()
        for job in rota.agent("work", project=project)(_saying(project)).map([{}] * 10)
    ]
    threads = [threading.Thread(target=rota.run, kwargs={"until_idle": True}) for rota in programs.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [job.result() for _, job in jobs] == [project for project, _ in jobs]
    for rota in programs.values():
        rota.close()


def _saying(words: str) -> Callable[[], str]:
    def work() -> str:
        return words

    return work


def test_entries_that_it_cannot_run_are_claimed_once_and_hide_no_others(world: World) -> None:
    ran: list[int] = []
    own = world.rota.agent("own")(_noting(ran))
    pid = world.rota.api.agents.create("elsewhere")
    world.rota.api.queue.enqueue_many([ScheduleSpec(pid, 9) for _ in range(50)])
    own.map([1, 2, 3])
    world.rota.run(slots=2, until_idle=True)
    assert sorted(ran) == [1, 2, 3]
    assert claims(world.rota) <= 3 + 2  # its two slots found out


def test_a_function_that_is_registered_later_runs(world: World, caplog: pytest.LogCaptureFixture) -> None:
    pid = world.rota.api.agents.create("late")
    (sched_id,) = world.rota.api.queue.enqueue_many([ScheduleSpec(pid)])
    with caplog.at_level(logging.WARNING, "rota.fleet"):
        running = world.run_in_background()
        world.until(lambda: "agent 1 (late) has no function in this program" in caplog.text)
    late = world.rota.agent("late")(lambda: "here")
    assert late.pid == pid
    assert world.ended(world.rota.job(sched_id)).result == "here"
    world.stop(running)
    assert caplog.text.count("has no function in this program") == 1


def test_an_agent_that_gets_other_settings_runs(world: World) -> None:
    pid = world.rota.api.agents.create("plain")
    sched_id = world.rota.api.queue.enqueue(ScheduleSpec(pid))
    running = world.run_in_background()
    world.until(lambda: claims(world.rota) == 1)
    settings = {"runner": "callable", "function": "os:getpid"}
    world.rota.api.agents.update(pid, metadata={SETTINGS_KEY: settings})
    world.ended(world.rota.job(sched_id))
    world.stop(running)


def test_an_agent_that_has_ended_has_its_entries_cancelled_all_the_same(world: World) -> None:
    pid = world.rota.api.agents.create("gone")
    sched_id = world.rota.api.queue.enqueue(ScheduleSpec(pid))
    world.rota.kernel.terminate(pid, "completed", queued="keep")
    world.rota.run(until_idle=True)
    assert world.rota.api.queue.get(sched_id).outcome == "owner_dead"


def test_of_more_agents_than_a_claim_leaves_out_the_others_come_back_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.fleet.claimed_runs.EXCEPT_AGENTS_MAX", 3)
    ran: list[int] = []
    world.rota.agent("own")(_noting(ran)).map([1, 2])
    for number in range(6):
        world.rota.api.queue.enqueue(ScheduleSpec(world.rota.api.agents.create(f"elsewhere {number}"), 9))
    summary = world.rota.run(slots=1, until_idle=True)
    assert (sorted(ran), len(summary.waiting)) == ([1, 2], 6)
    assert EXCEPT_AGENTS_MAX > 3


def test_why_says_that_no_running_program_has_the_function(world: World) -> None:
    pid = world.rota.api.agents.create("elsewhere")
    sched_id = world.rota.api.queue.enqueue(ScheduleSpec(pid))
    running = world.run_in_background()
    world.until(lambda: isinstance(explain(Dispatcher(world.rota.kernel), sched_id).workers, reasons.NoFunction))
    found = explain(Dispatcher(world.rota.kernel), sched_id)
    assert found.start.starts_at is None
    assert "no running worker has its agent's function" in found.start.basis
    world.rota.agent("elsewhere")(lambda: None)
    world.ended(world.rota.job(sched_id))
    world.stop(running)


# --- runners that are not installed everywhere ------------------------------------------------------


class Pigeon:
    """A runner of another package."""

    def __init__(self, *_given: Any) -> None: ...

    def run(self, *_given: Any) -> RunOutcome:
        return RunOutcome(result="flown")

    def close(self) -> None: ...


@pytest.fixture
def runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package with runners, as the text of its entry points."""

    def install(points: str) -> None:
        package = tmp_path / "pigeons-1.0.dist-info"
        package.mkdir(exist_ok=True)
        (package / "METADATA").write_text("Name: pigeons\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(f"[rota.runners]\n{points}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        registry._added.cache_clear()

    yield install
    registry._added.cache_clear()


@pytest.mark.parametrize("before", ["", "pigeon = no.such:thing"])
def test_an_agent_whose_runner_is_not_installed_here_is_left_to_other_workers(
    tmp_path: Path, runners: Callable[[str], None], caplog: pytest.LogCaptureFixture, before: str
) -> None:
    """Not there, or not as a whole: neither its entries nor the agent may suffer for that."""
    runners(before)
    path, ran = str(tmp_path / "rota.db"), list[int]()
    with Rota(path) as rota:
        pid = rota.api.agents.create("post", metadata={SETTINGS_KEY: {"runner": "pigeon"}})
        sched_ids = rota.api.queue.enqueue_many([ScheduleSpec(pid, 9, max_attempts=1) for _ in range(20)])
        rota.agent("own")(_noting(ran)).map([1, 2, 3])
        summary = rota.run(slots=2, until_idle=True)
        assert (sorted(ran), [each.agent for each in summary.waiting]) == ([1, 2, 3], ["post"])
        assert summary.waiting[0].why.startswith("its agent has no runner here: ")
        assert claims(rota) <= 3 + 2 * 2  # each slot loop may find out once
        assert {(entry.status, entry.attempt) for entry in map(rota.api.queue.get, sched_ids)} == {("ready", 0)}
        assert rota.api.agents.get(pid).paused_by is None
    assert caplog.text.count("has no runner here") == 1
    runners("pigeon = tests.supervisor.test_other_programs:Pigeon")
    with Rota(path) as elsewhere:
        elsewhere.run(until_idle=True)
        found = [elsewhere.api.queue.get(sched_id) for sched_id in sched_ids]
        assert {(entry.status, entry.result, entry.attempt) for entry in found} == {("succeeded", "flown", 1)}


def test_why_says_that_no_running_worker_has_the_runner(world: World) -> None:
    pid = world.rota.api.agents.create("post", metadata={SETTINGS_KEY: {"runner": "pigeon"}})
    sched_id = world.rota.api.queue.enqueue(ScheduleSpec(pid))
    running = world.run_in_background()
    wanted = reasons.NoRunner(runner="pigeon")
    world.until(lambda: explain(Dispatcher(world.rota.kernel), sched_id).workers == wanted)
    world.rota.api.agents.update(pid, metadata={SETTINGS_KEY: {"function": "os:getpid"}})
    world.ended(world.rota.job(sched_id))
    world.stop(running)

"""Names of agents and their budgets: however often programs register an agent, it has one budget.

A budget belongs to a name in a project. Programs that restart in turn, programs that start at the same moment, the end
of an agent, fleet files and triggers find the agent of their own project, with what it has used.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rota import Rota, store
from rota.cli.arguments import agent_of
from rota.errors import AmbiguousAgent, LedgerUnknownDim, UnknownAgent
from rota.fleet.triggers import Triggers
from rota.kernel import Kernel
from rota.kernel.replay import KernelState
from tests.fleet.support import START, FleetHarness
from tests.kernel.world import World

# --- programs ------------------------------------------------------------------------------------


def register(path: Path, project: str | None = None, **settings: Any) -> int:
    """Start a program that registers the agent `worker`, and end it; returns the agent's pid."""
    with Rota(path) as rota:
        return rota.command("worker", ["true"], project=project, **settings).pid


def spend(path: Path, pid: int, amount: int) -> int:
    """Charge an agent as far as its grant allows; returns how much it was."""
    with Rota(path) as rota:
        (line,) = rota.api.ledger.get(pid)
        part = min(amount, line.hard_limit - line.used)
        rota.api.ledger.charge(pid, "tokens", part)
        return part


def test_programs_that_restart_in_turn_find_their_own_agent_and_its_budget(tmp_path: Path) -> None:
    path, spent, pids = tmp_path / "rota.db", {"a": 0, "b": 0}, set()
    for _ in range(3):
        for project in ("a", "b"):
            pid = register(path, project, budget={"tokens": 100})
            spent[project] += spend(path, pid, 100)
            pids.add(pid)
    assert (spent, len(pids)) == ({"a": 100, "b": 100}, 2)


def test_a_changed_grant_changes_the_limit_and_not_what_was_used(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    spend(path, register(path, "a", budget={"tokens": 100}), 100)
    pid = register(path, "a", budget={"tokens": 130})
    assert spend(path, pid, 100) == 30
    with Rota(path) as rota:
        (line,) = rota.api.ledger.get(pid)
        assert (line.used, line.granted) == (130, 130)


def test_programs_that_start_at_the_same_moment_register_one_agent(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    Rota(path).close()
    found, barrier = [], threading.Barrier(4)

    def start() -> None:
        with Rota(path) as rota:
            barrier.wait()
            found.append(rota.command("worker", ["true"], project="a", budget={"tokens": 100}).pid)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_program_without_a_project_finds_the_only_agent_of_the_name(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    pid = register(path, "a")
    assert register(path) == pid
    other = register(path, "b")
    assert other != pid
    with pytest.raises(
        AmbiguousAgent, match=f"2 agents are named 'worker': {pid} in project 'a', {other} in"
    ) as caught:
        register(path)
    assert caught.value.candidates == {pid: "a", other: "b"}
    with Rota(path) as rota:
        assert rota.find("worker", project="b").pid == other
        with pytest.raises(AmbiguousAgent):
            rota.find("worker")
        with pytest.raises(UnknownAgent, match="no agent named 'worker' in project 'c'"):
            rota.find("worker", project="c")
        with pytest.raises(AmbiguousAgent, match="Give the pid instead of the name"):
            agent_of(rota.api, "worker")  # of the command line


def test_a_child_is_an_agent_of_the_parents_own_project(tmp_path: Path) -> None:
    ran: list[str] = []
    with Rota(tmp_path / "rota.db") as rota:

        def child(ctx: Any) -> None:
            ran.append(rota.api.queue.get(ctx.sched_id).project_id or "")

        def parent(ctx: Any) -> None:
            ctx.wait([ctx.spawn("child")])

        for project in ("b", "a", "c"):  # neither the first nor the last is meant
            rota.agent("child", project=project)(child)
        rota.agent("parent", project="a")(parent).enqueue()
        lost = rota.agent("lost", project="d")(parent).enqueue()
        rota.run(slots=2, until_idle=True)
        assert ran == ["a"]
        # the agents of other projects do not exist for it
        assert "there is no agent named 'child'" in str(rota.api.queue.get(lost.sched_id).result)


# --- the end of an agent -------------------------------------------------------------------------


def test_an_agent_that_is_registered_after_its_end_keeps_what_was_used(tmp_path: Path) -> None:
    path, spent = tmp_path / "rota.db", 0
    for _ in range(3):
        pid = register(path, "a", budget={"tokens": 100})
        spent += spend(path, pid, 60)
        with Rota(path) as rota:
            rota.kernel.terminate(pid, "completed")
    assert spent == 100
    opened = store.open(str(path))
    kernel = Kernel(opened)
    now = kernel.env.now()
    assert opened.read(KernelState.from_journal).at(now) == opened.read(KernelState.from_tables).at(now)
    opened.close()


def test_what_runs_of_an_ended_agent_may_still_use_counts_as_used() -> None:
    world = World()
    pid = world.agents.create("worker", unique=True)
    world.ledger.create(pid, {"tokens": 100})
    world.put(pid, ceiling={"tokens": 40})
    run = world.take_one()
    world.queue.charge(run.sched_id, {"tokens": 10}, token=run.token)
    world.kernel.terminate(pid, "cancelled")
    heir = world.agents.create("worker", unique=True)
    (line,) = world.ledger.get(heir)
    assert (line.used, line.granted) == (40, 100)
    stranger = world.agents.create("worker", project_id=world.projects.create("a").project_id, unique=True)
    assert world.ledger.get(stranger) == []  # the name of another project
    with pytest.raises(LedgerUnknownDim):
        world.ledger.charge(stranger, "tokens", 1)


def test_of_several_agents_with_one_name_the_first_is_meant(tmp_path: Path) -> None:
    """A store may have several already, and the kernel lets a program create more."""
    path = tmp_path / "rota.db"
    first = register(path, "a", budget={"tokens": 100})
    spend(path, first, 100)
    with Rota(path) as rota:
        rota.api.agents.create("worker", project_id="a")
    assert register(path, "a", budget={"tokens": 100}) == first
    with Rota(path) as rota:
        assert rota.find("worker").pid == first
        with pytest.raises(AmbiguousAgent):
            agent_of(rota.api, "worker")  # a person has to choose


# --- fleet files ---------------------------------------------------------------------------------

FLEET = """
name = "{project}"
[projects.{project}]
[agents.reader]
command = ["true"]
project = "{project}"
budget = {{ tokens = 100 }}
triggers = [{{ every = "1m" }}]
[agents.writer]
command = ["true"]
project = "{project}"
triggers = [{{ after = "reader" }}]
"""


def fleet_file(harness: FleetHarness, project: str) -> Triggers:
    return harness.triggers(FLEET.format(project=project))


def test_fleet_files_with_the_same_names_in_two_projects_do_not_meet(tmp_path: Path) -> None:
    harness = FleetHarness(tmp_path)
    for _ in range(3):
        for project in ("a", "b"):
            fleet_file(harness, project)
    found = [(agent.name, agent.project_id) for agent in harness.api.agents.list()[0]]
    assert sorted(found) == [("reader", "a"), ("reader", "b"), ("writer", "a"), ("writer", "b")]


def test_a_trigger_enqueues_for_the_agent_of_its_own_project(tmp_path: Path) -> None:
    harness = FleetHarness(tmp_path)
    fleets = {project: fleet_file(harness, project) for project in ("a", "b")}
    harness.clock.advance(60)
    for triggers in fleets.values():
        (fired,) = triggers.fire_due()
        assert fired.created  # the other fleet's firing at the same instant has another key
    entries = harness.api.queue.list(limit=10)[0]
    assert sorted(str(entry.project_id) for entry in entries) == ["a", "b"]
    (of_b,) = [entry for entry in entries if entry.project_id == "b"]
    harness.run(of_b.sched_id)
    for triggers in fleets.values():
        while events := harness.api.journal.tail(triggers.cursor):
            triggers.fire_for(events)
    followers = [entry for entry in harness.api.queue.list(limit=10)[0] if entry.trigger == "after"]
    assert [entry.project_id for entry in followers] == ["b"]


def test_a_trigger_without_its_agent_does_not_take_another_of_the_name(tmp_path: Path) -> None:
    harness = FleetHarness(tmp_path)
    triggers = fleet_file(harness, "a")
    fleet_file(harness, "b")
    harness.api.terminate(_pid_of(harness, "a"), "completed")
    (fired,) = harness.fire_due(triggers, START + 60)
    assert fired.sched_id is None
    assert "no agent is named 'reader' in project 'a'" in str(fired.error)


def _pid_of(harness: FleetHarness, project: str) -> int:
    (agent,) = [each for each in harness.api.agents.find("reader") if each.project_id == project]
    return agent.pid


def test_an_agent_of_a_file_that_ended_comes_back_with_its_budget(tmp_path: Path) -> None:
    harness = FleetHarness(tmp_path)
    fleet_file(harness, "a")
    harness.api.ledger.charge(_pid_of(harness, "a"), "tokens", 70)
    harness.api.terminate(_pid_of(harness, "a"), "completed")
    fleet_file(harness, "a")
    (line,) = harness.api.ledger.get(_pid_of(harness, "a"))
    assert (line.used, line.granted) == (70, 100)

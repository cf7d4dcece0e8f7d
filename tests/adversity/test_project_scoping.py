"""Walls between projects, through the doors by which runs reach the kernel: functions, programs, triggers, a daemon.

A run of project `red` tries to start an agent of project `blue`, to read what its entries returned, and to pause its
limits. It gets what it would get if none of that existed, until an operator grants it. Every event says who did it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.errors import Forbidden, RotaError, SchedUnknownId, UnknownPid
from rota.kernel import ScheduleSpec
from rota.model.work import RestartPolicy
from rota.rpc import connect
from tests.daemon.harness import make_token, serving
from tests.fleet.support import FleetHarness

ONCE = RestartPolicy(when="never")
SECRET = "the secret of blue"  # planted, to be searched for


class Town:
    """A store with a limit and an agent of project blue, one of whose entries has returned a secret."""

    def __init__(self, path: Path) -> None:
        self.rota = Rota(path)
        self.started: list[dict[str, Any]] = []
        for project in ("red", "blue"):
            self.rota.api.projects.create(project)
        self.rota.api.contexts.create(bound_to="name", bound_id="blue-model", budget=10, period_s=60)

        @self.rota.agent("writer", project="blue", restart=ONCE, isolation="thread")
        def writer(**payload: Any) -> dict[str, Any]:
            self.started.append(payload)
            return {"text": SECRET}

        self.secret_id = writer.enqueue(of="blue").sched_id
        self.rota.run(until_idle=True, worker_id="box")
        assert self.rota.api.queue.get(self.secret_id).result == {"text": SECRET}

    def check_untouched(self, learnt: dict[str, str]) -> None:
        """No attempt of red reached blue or told red anything of it."""
        assert self.started == [{"of": "blue"}]
        assert learnt["spawn"].replace("writer", "?") == learnt["spawn a stranger"].replace("nobody", "?")
        assert SECRET not in str(learnt)
        assert "blue'" not in str(learnt)
        self.rota.find("writer", project="blue").enqueue(options={"draws_on": ("blue-model",)}, of="again")
        self.rota.run(until_idle=True)
        assert self.started[1:] == [{"of": "again"}]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "rota.db")
    yield made
    made.rota.close()


def try_all(ctx: Any, secret_id: int) -> dict[str, str]:
    """The attempts of a function, through its context."""

    def error_of(act: Any) -> str:
        try:
            return f"no error: {act()!r}"
        except RotaError as refusal:
            return f"{type(refusal).__name__} {refusal}"

    return {
        "spawn": error_of(lambda: ctx.spawn("writer", of="red")),
        "spawn a stranger": error_of(lambda: ctx.spawn("nobody", of="red")),
        "wait": error_of(lambda: ctx._channel.wait_for([secret_id])),
        "throttle": error_of(lambda: ctx.throttled(10**11, "blue-model")),
    }


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_function_reaches_nothing_of_another_project(town: Town, isolation: Any) -> None:
    spy = town.rota.agent("spy", project="red", isolation=isolation, restart=ONCE)(try_all)
    job = spy.enqueue(secret_id=town.secret_id)
    town.rota.run(until_idle=True)
    learnt = job.result()
    assert {attempt: text.partition(" ")[0] for attempt, text in learnt.items()} == {
        "spawn": "UnknownAgent",
        "spawn a stranger": "UnknownAgent",
        "wait": "SchedUnknownId",
        "throttle": "SchedInvalidPayload",
    }
    town.check_untouched(learnt)


SPY = """
import json, sys
from rota.agent import RefusedError, connect

def error_of(act):
    try:
        return f"no error: {act()!r}"
    except RefusedError as refusal:
        return f"{refusal.name} {refusal}"

with connect() as run:
    tried = {
        "spawn": error_of(lambda: run.spawn("writer", of="red")),
        "spawn a stranger": error_of(lambda: run.spawn("nobody", of="red")),
        "wait": error_of(lambda: run.wait([run.payload["secret_id"]], 5)),
    }
    run.throttled(1e11, "blue-model")
    run.remaining()  # the answer comes after the line before it was handled
    run.result(tried)
"""


def test_a_program_reaches_nothing_of_another_project(town: Town, tmp_path: Path) -> None:
    program = tmp_path / "spy.py"
    program.write_text(SPY)
    spy = town.rota.command("spy", [sys.executable, str(program)], ndjson=True, project="red", restart=ONCE)
    job = spy.enqueue(secret_id=town.secret_id)
    town.rota.run(until_idle=True)
    learnt = job.result()
    assert {attempt: text.partition(" ")[0] for attempt, text in learnt.items()} == {
        "spawn": "kernel_unknown_agent",
        "spawn a stranger": "kernel_unknown_agent",
        "wait": "kernel_sched_unknown_id",
    }
    town.check_untouched(learnt)


def test_a_grant_lets_a_function_start_an_agent_and_read_what_it_returned(town: Town) -> None:
    @town.rota.agent(project="red", restart=ONCE, isolation="thread")
    def friend(ctx: Any) -> Any:
        return ctx.spawn("writer", of="red").result()

    town.rota.api.projects.grant("red", "blue")
    job = friend.enqueue()
    town.rota.run(slots=2, until_idle=True)
    assert job.result() == {"text": SECRET}
    assert town.started == [{"of": "blue"}, {"of": "red"}]


# --- triggers ------------------------------------------------------------------------------------

FLEET = """
[projects.red]
[projects.blue]
[agents.spy]
command = "true"
project = "red"
[agents.writer]
command = "true"
project = "blue"
triggers = [{every = "1m"}, {event = "page.*"}]
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[FleetHarness]:
    made = FleetHarness(tmp_path)
    yield made
    made.close()


def test_squatted_keys_silence_no_trigger_of_another_project(harness: FleetHarness) -> None:
    triggers = harness.triggers(FLEET)
    spy, start = harness.agent("spy").pid, harness.clock.now()
    for instant in range(round(start) + 1, round(start) + 600):
        harness.api.queue.enqueue(ScheduleSpec(spy, key=f"trigger:blue/writer:0:{instant}"))
    fired = [firing for step in range(1, 10) for firing in harness.fire_due(triggers, start + 60 * step)]
    assert len(fired) == 9
    assert all(firing.created for firing in fired)
    assert len(harness.entries("writer")) == 9


def test_an_event_of_one_projects_run_fires_the_triggers_of_another_only_with_a_grant(harness: FleetHarness) -> None:
    triggers = harness.triggers(FLEET)
    api = harness.api

    def fired() -> int:
        return len(triggers.fire_for(api.journal.tail(triggers.cursor)))

    api.journal.append(harness.agent("spy").pid, "page.read", {"of": "red"})
    assert fired() == 0
    api.journal.append(harness.agent("writer").pid, "page.read", {"of": "blue"})
    assert fired() == 1
    api.journal.append(None, "page.read", {"of": "an operator"})
    assert fired() == 1
    api.projects.grant("red", "blue")
    api.journal.append(harness.agent("spy").pid, "page.read", {"of": "red"})
    assert fired() == 1


# --- a daemon, authors ---------------------------------------------------------------------------


def test_at_a_daemon_a_run_pauses_its_own_limits_and_an_operator_resumes_them(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served, served.client() as operator:
        operator.contexts.create(bound_to="name", bound_id="model", budget=10, period_s=60)
        pid = operator.agents.create("worker")
        sched_id = operator.queue.enqueue(ScheduleSpec(pid, draws_on=("model",)))
        with connect(served.url, token=make_token(served.path, "work")) as worker:
            (run,) = worker.claim("w")
            assert run.token is not None
            with pytest.raises(Forbidden):
                worker.contexts.throttle("model", 60)
            with pytest.raises(RotaError, match="draws on"):
                worker.supervision.throttle(sched_id, run.token, 60, "other")
            assert list(worker.supervision.throttle(sched_id, run.token, 60)) == ["model"]
            waits = operator.queue.enqueue(ScheduleSpec(pid, draws_on=("model",)))
            assert worker.claim("w") == []
            with pytest.raises(Forbidden):
                worker.contexts.resume("model")
            operator.contexts.resume("model")
            assert [entry.sched_id for entry in worker.claim("w")] == [waits]
            with pytest.raises(Forbidden):
                worker.projects.grant(None, "x")


def test_at_a_daemon_a_run_spawns_and_waits_inside_its_project(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served, served.client() as client:
        for project in ("red", "blue"):
            client.projects.create(project)
        red, blue = (client.agents.create(project, project_id=project) for project in ("red", "blue"))
        theirs = client.queue.enqueue(ScheduleSpec(blue, runnable_at=1e11))
        client.queue.enqueue(ScheduleSpec(red))
        (run,) = client.claim("w")
        assert run.token is not None
        with pytest.raises(UnknownPid):
            client.supervision.spawn(ScheduleSpec(blue, parent_id=run.sched_id), run.token)
        with pytest.raises(SchedUnknownId):
            client.supervision.rest(run.sched_id, run.token, waiting=True, awaits=[theirs])
        client.projects.grant("red", "blue")
        child = client.supervision.spawn(ScheduleSpec(blue, parent_id=run.sched_id), run.token)
        client.supervision.rest(run.sched_id, run.token, waiting=True, awaits=[theirs, child])
        assert [(each.from_project, each.to_project) for each in client.projects.grants()] == [("red", "blue")]


def test_every_event_at_a_daemon_has_its_callers_name(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served:
        token = make_token(served.path, "operate")
        with served.client() as local, connect(served.url, token=token) as remote:
            since = local.journal.cursor()
            pid = local.agents.create("worker")
            remote.queue.enqueue(ScheduleSpec(pid))
            local.queue.enqueue(ScheduleSpec(pid))
            remote.claim("w", 2)
            remote.agents.pause(pid, "me")
            found = {(event.kind, event.author) for event in local.journal.tail(since)}
        (remote_name,) = {author for _, author in found} - {f"uid:{os.getuid()}"}
        assert remote_name.startswith("token:")
        assert ("kernel.sched.claimed", remote_name) in found
        assert ("kernel.auth.operated", remote_name) in found
        assert ("kernel.process.created", f"uid:{os.getuid()}") in found


def test_a_supervisor_and_its_runs_are_the_authors_of_what_they_do(town: Town) -> None:
    @town.rota.agent(project="blue", isolation="thread", restart=ONCE)
    def parent(ctx: Any) -> Any:
        ctx.charge(tokens=1)
        ctx.checkpoint(page=1)
        return ctx.spawn("writer", of="parent").result()

    since = town.rota.api.journal.cursor()
    job = parent.enqueue()
    town.rota.run(slots=2, until_idle=True, worker_id="box")
    job.result()
    by_author: dict[str, set[str]] = {}
    for event in town.rota.api.journal.tail(since):
        by_author.setdefault(event.author, set()).add(event.kind)
    run, user = f"run:{job.sched_id}", town.rota.api.journal.tail(0, 1)[0].author
    assert set(by_author) == {"worker:box", run, user}
    assert {"kernel.sched.claimed", "kernel.sched.completed", "kernel.supervisor.moved"} <= by_author["worker:box"]
    assert {"kernel.ledger.charged", "kernel.run.checkpointed", "kernel.sched.enqueued"} <= by_author[run]
    assert by_author[user] == {"kernel.sched.enqueued"}


def test_the_command_line_shows_authors_and_grants(town: Town, tmp_path: Path) -> None:
    def rota(*args: str) -> str:
        command = [sys.executable, "-m", "rota", *args, "--store", str(tmp_path / "rota.db")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    user = town.rota.api.journal.tail(0, 1)[0].author
    assert user in rota("projects", "grant", "red", "blue")
    assert rota("projects", "grants").split("\n")[1].split()[:2] == ["red", "blue"]
    assert f"kernel.project.granted by {user}" in rota("events")
    assert "by worker:box" in rota("why", str(town.secret_id))
    assert rota("projects", "revoke", "red", "blue") == "red → blue: revoked\n"
    rota("limits", "throttle", "blue-model", "1h")
    assert rota("limits", "resume", "blue-model") == "blue-model: resumed\n"

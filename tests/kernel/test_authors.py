"""Every event has an author: that of the caller that made the request, whichever thread commits it."""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path

import apsw
import pytest

from rota import store
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.failover import fence_claims
from rota.model.events import (
    BudgetLent,
    ClockJumped,
    EntriesClaimed,
    EntriesCompleted,
    EntriesEnqueued,
    EntriesExpired,
    EntriesReleased,
    EntriesReturned,
    LedgerCharged,
    RunCheckpointed,
    StoreFailedOver,
    WorkerLost,
)
from rota.model.workers import WORKER_ALIVE_S
from rota.store.author import MAINTENANCE, acting_as, current_author, keeping_author
from rota.store.migrations import STEPS
from tests.kernel.world import START, World
from tests.store.files import script
from tests.store.world import Caller


def authors(world: World, kind: str, since: int = 0) -> list[str]:
    return [event.author for event in world.events(since) if event.kind == kind]


def test_a_program_writes_as_the_user_that_it_runs_as(world: World) -> None:
    world.put(world.agent())
    assert {event.author for event in world.events()} == {f"user:{pwd.getpwuid(os.getuid()).pw_name}"}


def test_an_author_holds_inside_its_block_and_on_the_threads_that_keep_it(world: World) -> None:
    pid, since = world.agent(), world.journal.cursor()
    with acting_as("outer"):
        world.put(pid)
        with acting_as("inner"):
            world.journal.append(pid, "mine")
            kept = keeping_author(lambda: world.put(pid))
        world.put(pid)
        for target in (kept, lambda: world.put(pid)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert [event.author for event in world.events(since)] == ["outer", "inner", "outer", "inner", current_author()]


def test_requests_of_one_commit_keep_their_own_authors(world: World) -> None:
    """While one write holds the writer, ten callers queue up; one transaction then has the entries of all."""
    pid, since = world.agent(), world.journal.cursor()
    begun, go_on = threading.Event(), threading.Event()

    def hold(_tx: object) -> None:
        begun.set()
        go_on.wait(20)

    holder = Caller(lambda: world.store.write(hold))
    begun.wait(20)
    callers = []
    for number in range(10):
        with acting_as(f"token:{number}"):
            callers.append(Caller(keeping_author(lambda n=number: world.put(pid, payload={"of": n}))))
    queue = world.store._queue  # type: ignore[attr-defined]  # to see that all of them wait
    while len(queue) < 10:
        threading.Event().wait(0.001)
    go_on.set()
    holder.outcome()
    made = {caller.outcome(): number for number, caller in enumerate(callers)}
    found = {event.payload["first_id"]: event.author for event in world.events(since)}
    assert found == {sched_id: f"token:{number}" for sched_id, number in made.items()}


def test_a_parked_claim_has_the_author_of_the_worker_and_not_of_the_caller_that_serves_it(world: World) -> None:
    pid = world.agent()
    with acting_as("worker:box"):
        waiter = world.waiter_of(keeping_author(lambda: world.dispatcher.claim("box", wait_s=1_000)))
    with acting_as("token:producer"):
        world.put(pid)
    assert len(waiter.outcome()) == 1
    assert authors(world, EntriesEnqueued.kind) == ["token:producer"]
    assert authors(world, EntriesClaimed.kind) == ["worker:box"]


def test_what_a_run_does_under_its_claim_token_has_the_run_as_its_author(world: World) -> None:
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 100})
    since = world.journal.cursor()
    with acting_as("worker:box"):
        parent = world.put(pid, ceiling={"tokens": 50})
        run = world.take_one()
        assert run.token is not None
        world.kernel.supervision.checkpoint(parent, run.token, {"page": 1})
        world.kernel.supervision.spawn(ScheduleSpec(pid, parent_id=parent), run.token, {"tokens": 5})
        world.queue.charge(parent, {"tokens": 3}, token=run.token)
        world.queue.charge(parent, {"tokens": 3})
    assert authors(world, RunCheckpointed.kind, since) == [f"run:{parent}"]
    assert authors(world, EntriesEnqueued.kind, since) == ["worker:box", f"run:{parent}"]
    assert authors(world, BudgetLent.kind, since) == [f"run:{parent}"]
    assert authors(world, LedgerCharged.kind, since) == [f"run:{parent}", "worker:box"]


@pytest.mark.parametrize("door", ["heartbeat", "claim", "upkeep", "fair claim"])
def test_what_happens_because_time_passes_has_maintenance_as_its_author(world: World, door: str) -> None:
    pid = world.agent()
    own, lost, failed, late, delayed = (
        world.put(pid, **spec)
        for spec in ({}, {}, {"max_attempts": 1}, {"deadline": START + 30, "priority": -1}, {"delay_s": 30})
    )
    token = world.take(1, claim_timeout_s=300)[0].token or 0
    assert len(world.take(2, worker_id="dead", claim_timeout_s=30)) == 2
    world.clock.advance(31)
    since = world.journal.cursor()
    with acting_as(f"run:{own}"):
        if door == "heartbeat":
            world.queue.heartbeat(own, token)
        elif door == "upkeep":
            world.queue.upkeep()
        else:
            world.dispatcher.claim("box", policy="strict" if door == "claim" else "eevdf")
    found = {(event.kind, event.author) for event in world.events(since)}
    claimed = {(EntriesClaimed.kind, f"run:{own}")} if "claim" in door else set()
    kinds = (EntriesReturned.kind, EntriesCompleted.kind, EntriesExpired.kind, EntriesReleased.kind)
    assert found == {(kind, MAINTENANCE) for kind in kinds} | claimed
    assert [world.state(each) for each in (lost, failed, late)] == ["queued:backoff", "completed", "expired"]
    assert world.state(delayed) == ("dispatched" if claimed else "queued")


def test_a_jump_of_the_clock_and_a_lost_worker_have_maintenance_as_their_author(world: World) -> None:
    world.kernel.workers.register("box", "i", kind="supervisor", host="h", os_pid=1, pools=[])
    world.clock.advance(WORKER_ALIVE_S + 1)
    since = world.journal.cursor()
    world.clock.jump(3_600)
    with acting_as("token:x"):
        world.kernel.workers.register("other", "i", kind="supervisor", host="h", os_pid=1, pools=[])
    assert [(event.kind, event.author) for event in world.events(since)] == [
        (ClockJumped.kind, MAINTENANCE),
        (WorkerLost.kind, MAINTENANCE),
    ]


def test_a_failover_has_maintenance_as_its_author(world: World) -> None:
    world.put(world.agent())
    world.take_one()
    since = world.journal.cursor()
    with acting_as("worker:box"):
        world.store.write(lambda tx: fence_claims(world.kernel.env, tx, "1", "2"))
    assert [(event.kind, event.author) for event in world.events(since)] == [
        (StoreFailedOver.kind, MAINTENANCE),
        (EntriesReturned.kind, MAINTENANCE),
    ]


def test_a_refused_call_leaves_no_author_behind(world: World) -> None:
    def fail(_tx: object) -> None:
        raise ValueError("no")

    pid, since = world.agent(), world.journal.cursor()
    with acting_as("token:x"):
        Caller(keeping_author(lambda: world.store.write(fail))).error()
    world.put(pid)
    assert [event.author for event in world.events(since)] == [current_author()]


@pytest.mark.only_on("file", reason="PostgreSQL has no earlier version")
def test_the_events_and_keys_of_an_earlier_version_are_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    connection = apsw.Connection(path)
    connection.execute(script(104)).fetchall()
    connection.execute(
        "INSERT INTO projects (project_id, name, weight, status, created_at, updated_at) "
        "VALUES ('red', 'red', 1000, 'ACTIVE', 0, 0), ('blue', 'blue', 1000, 'ACTIVE', 0, 0);"
        "INSERT INTO agent_processes (pid, name, template, state, created_at, updated_at, project_id) "
        "VALUES (1, 'a', 'x', 'READY', 1, 1, 'red'), (2, 'b', 'x', 'READY', 1, 1, 'blue'), "
        "(3, 'c', 'x', 'READY', 1, 1, NULL);"
        "INSERT INTO agent_schedule_queue (sched_id, pid, project_id, created_at, key) "
        "VALUES (1, 1, 'red', 1, 'k'), (2, 3, NULL, 1, 'l');"
        "INSERT INTO agent_events (event_id, ts, kind, payload) VALUES (1, 5, 'mine', '{}');"
    ).fetchall()
    connection.close()
    assert max(STEPS) > 104
    kernel = Kernel(store.open(path))
    assert [event.author for event in kernel.journal.tail()][:1] == [""]
    assert [kernel.queue.enqueue(ScheduleSpec(pid, key="k")) for pid in (1, 2, 3)] == [1, 3, 4]
    assert [kernel.queue.enqueue(ScheduleSpec(pid, key="l")) for pid in (1, 2, 3)] == [5, 6, 2]
    assert kernel.check() == []
    kernel.store.close()

"""The acceptance list of the ready queue (seed 001), point by point, in memory and on a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from rota import errors, store
from rota.clock import ManualClock
from rota.errors import IllegalQueueTransition, SchedInvalidPayload, SchedInvalidStateFilter, SchedUnknownId, UnknownPid
from rota.kernel import Kernel, ReadyEntry, ScheduleSpec
from rota.store.migrations import LATEST, STEPS
from tests.kernel.world import START, World
from tests.store.world import Caller


@pytest.fixture
def world(tmp_path: Path, store_kind: str) -> Iterator[World]:
    made = World(":memory:" if store_kind == "memory" else str(tmp_path / "rota.db"))
    yield made
    made.close()


# --- the schema ----------------------------------------------------------------------------------


def _file_of_version_2(path: Path) -> None:
    """A file as the kernel before the queue left it: processes, events, ledgers."""
    connection = apsw.Connection(str(path))
    connection.execute(STEPS[1] + STEPS[2])
    connection.execute(
        "INSERT INTO kernel_meta (key, value) VALUES ('schema_version', '2');"
        "INSERT INTO agent_processes (name, template, state, created_at, updated_at, metadata)"
        " VALUES ('old', 'research', 'SUSPENDED', 5.0, 6.0, '{\"team\":\"a\"}'), ('gone', 't', 'DEAD', 1.0, 2.0, '{}');"
        "INSERT INTO agent_events (pid, ts, kind, payload) VALUES (1, 5.0, 'kernel.process.created',"
        ' \'{"name":"old","template":"research"}\'), (1, 5.5, \'mine.note\', \'{"n":1}\');'
        "INSERT INTO agent_ledgers (pid, dim, used, granted, hard_limit, warn_at) VALUES (1, 'tokens', 3, 10, 10, 0.5)"
    )
    connection.close()


@pytest.mark.only_on("file", reason="a file of the first kernel is an SQLite file")
def test_an_existing_v2_file_opens_gains_the_queue_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "kernel.db"
    _file_of_version_2(path)
    for _ in range(2):  # the second time nothing is left to do
        world = World(str(path))
        assert world.kernel.info()["schema_version"] == LATEST
        agent = world.agents.get(1)
        assert (agent.name, agent.template, agent.state, agent.metadata) == (
            "old",
            "research",
            "SUSPENDED",
            {"team": "a"},
        )
        assert world.agents.get(2).state == "DEAD"
        assert [(event.event_id, event.kind) for event in world.journal.tail(0, 2)] == [
            (1, "kernel.process.created"),
            (2, "mine.note"),
        ]
        (line,) = world.ledger.get(1)
        assert (line.dim, line.used, line.granted, line.warn_at) == ("tokens", 3, 10, 0.5)
        world.close()


@pytest.mark.only_on("file", reason="a file of the first kernel is an SQLite file")
def test_the_queue_of_a_migrated_file_works_and_numbers_go_on(tmp_path: Path) -> None:
    path = tmp_path / "kernel.db"
    _file_of_version_2(path)
    world = World(str(path))
    assert world.put(1) == 1
    assert world.events(2)[0].event_id == 3
    assert world.agent() == 3
    assert world.take_ids() == [1]
    assert world.store.check() == []
    world.close()


@pytest.mark.only_on("file", reason="a file of the first kernel is an SQLite file")
def test_a_v3_file_keeps_its_entries_and_their_claims(tmp_path: Path) -> None:
    path = tmp_path / "kernel.db"
    _file_of_version_2(path)
    connection = apsw.Connection(str(path))
    connection.execute(STEPS[3])
    connection.execute(
        "UPDATE kernel_meta SET value = '3';"
        "INSERT INTO agent_schedule_queue (pid, priority, runnable_at, payload, state, worker_id, created_at,"
        " dispatched_at) VALUES (1, 2, 0, '{\"n\":1}', 'queued', NULL, 1, NULL), (1, 9, 5000, '{}', 'queued', NULL, 1,"
        " NULL), (1, 0, 0, '{}', 'dispatched', 'sup-7', 1, 990)"
    )
    connection.close()
    world = World(str(path))
    assert [world.state(sched_id) for sched_id in (1, 2, 3)] == ["queued", "queued:time", "dispatched"]
    assert world.queue.get(3).worker_id == "sup-7"
    assert world.take_ids() == [1]
    assert world.queue.complete(3, "completed") == ("dispatched", "completed")
    world.clock.advance(4_000)
    assert world.take_ids() == [2]
    world.close()


@pytest.mark.only_on("memory", "file", reason="it reads SQLite's catalog; tests/store has PostgreSQL's")
def test_the_tables_columns_and_indexes_keep_their_names(world: World) -> None:
    names = {row[0] for row in world.rows("SELECT name FROM sqlite_schema")}
    assert names >= {
        "kernel_meta",
        "agent_processes",
        "agent_events",
        "agent_ledgers",
        "agent_schedule_queue",
        "idx_sched_queue_pickable",
        "idx_sched_queue_pid",
        "idx_sched_queue_deadline",
    }
    columns = [row[1] for row in world.rows("PRAGMA table_info(agent_schedule_queue)")]
    assert columns[:13] == list(ReadyEntry.__struct_fields__[:13])
    stamp = world.rows("SELECT value FROM kernel_meta WHERE key = 'schema_version'")
    assert stamp == [(str(LATEST),)]


# --- the types -----------------------------------------------------------------------------------


def test_a_spec_has_the_six_fields_in_their_order_with_their_defaults() -> None:
    spec = ScheduleSpec(7)
    assert ScheduleSpec.__struct_fields__[:6] == ("pid", "priority", "runnable_at", "deadline", "trigger", "payload")
    assert (spec.pid, spec.priority, spec.runnable_at, spec.deadline, spec.trigger, spec.payload) == (
        7,
        0,
        0.0,
        None,
        "manual",
        {},
    )
    by_position = ScheduleSpec(7, 3, 10.0, 20.0, "cron", {"n": 1})
    assert (by_position.deadline, by_position.trigger) == (20.0, "cron")
    with pytest.raises(AttributeError):
        spec.priority = 3  # type: ignore[misc]


def test_an_entry_has_the_thirteen_fields_in_their_order() -> None:
    assert ReadyEntry.__struct_fields__[:13] == (
        "sched_id",
        "pid",
        "priority",
        "runnable_at",
        "deadline",
        "trigger",
        "payload",
        "state",
        "worker_id",
        "created_at",
        "dispatched_at",
        "completed_at",
        "exit_kind",
    )


# --- the round trip ------------------------------------------------------------------------------


def test_enqueue_claim_complete_cancel_get_and_list_round_trip(world: World) -> None:
    pid = world.agent()
    payload = {"tool": "grep", "args": ["-r", None, 1.5, True], "nested": {"é": "ü"}}
    run = world.put(pid, priority=4, runnable_at=1_000.0, deadline=2_000.0, trigger="cron", payload=payload)
    dropped = world.put(pid)
    queued = world.queue.get(run)
    assert msgspec.structs.astuple(queued)[:13] == (
        run,
        pid,
        4,
        1_000.0,
        2_000.0,
        "cron",
        payload,
        "queued",
        None,
        START,
        None,
        None,
        None,
    )
    world.clock.advance(1)
    (claimed,) = world.take(1, worker_id="sup-7")
    assert (claimed.sched_id, claimed.state, claimed.worker_id, claimed.dispatched_at) == (
        run,
        "dispatched",
        "sup-7",
        START + 1,
    )
    assert claimed == world.queue.get(run)  # the worker gets the entry as stored
    world.clock.advance(1)
    assert world.queue.complete(run, "completed") == ("dispatched", "completed")
    assert world.queue.cancel(dropped) == ("queued", "cancelled")
    done, gone = world.queue.get(run), world.queue.get(dropped)
    assert (done.state, done.exit_kind, done.completed_at, done.worker_id) == (
        "completed",
        "completed",
        START + 2,
        "sup-7",
    )
    assert (gone.state, gone.exit_kind, gone.completed_at) == ("cancelled", None, START + 2)
    assert world.queue.list() == ([done, gone], 2)
    assert world.queue.list(state="completed") == ([done], 1)
    assert world.queue.list(pid=pid, limit=1, offset=1) == ([gone], 2)
    assert world.queue.list(state="queued") == ([], 0)


@pytest.mark.parametrize("exit_kind", ["completed", "cancelled", "failed", "crashed"])
def test_each_exit_kind_is_recorded(world: World, exit_kind: str) -> None:
    sched_id = world.put(world.agent())
    world.take_one()
    assert world.queue.complete(sched_id, exit_kind) == ("dispatched", "completed")
    assert world.queue.get(sched_id).exit_kind == exit_kind


def test_what_was_acknowledged_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    world = World(str(tmp_path / "rota.db"))
    pid = world.agent()
    waiting, running, done = world.put(pid), world.put(pid, priority=5), world.put(pid, priority=9)
    world.take(2)
    world.queue.complete(done, "completed", result={"n": 1})
    before = world.everything()
    world.close()
    again = World(str(tmp_path / "rota.db"), world.clock)
    assert again.everything() == before
    assert [again.state(each) for each in (waiting, running, done)] == ["queued", "dispatched", "completed"]
    assert again.queue.get(done).result == {"n": 1}
    again.close()


# --- the claim -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 8])
def test_threads_that_claim_one_by_one_get_every_entry_once(world: World, workers: int) -> None:
    pid = world.agent()
    ids = world.queue.enqueue_many([ScheduleSpec(pid)] * 200)
    together = threading.Barrier(workers)

    def drain(name: str) -> list[int]:
        together.wait(60)
        mine: list[int] = []
        while entries := world.take(1, worker_id=name):
            mine += [entry.sched_id for entry in entries]
        return mine

    callers = [Caller(partial(drain, f"sup-{n}")) for n in range(workers)]
    taken = [caller.outcome() for caller in callers]
    assert sorted(sched_id for mine in taken for sched_id in mine) == ids  # no duplicates, no losses
    for n, mine in enumerate(taken):
        assert {world.queue.get(sched_id).worker_id for sched_id in mine} <= {f"sup-{n}"}


def test_what_is_runnable_in_the_future_is_invisible_until_then(world: World) -> None:
    pid = world.agent()
    later = world.put(pid, priority=9, runnable_at=START + 10)
    at_once = world.put(pid)
    assert world.take_ids() == [at_once]
    assert world.take(now=START + 9.999) == []
    assert world.queue.get(later).state == "queued"
    assert world.take_ids(now=START + 10) == [later]  # at its time it is runnable


def test_runnable_at_zero_means_now_and_is_stored_as_zero(world: World) -> None:
    sched_id = world.put(world.agent())
    assert world.queue.get(sched_id).runnable_at == 0
    assert world.take_ids(now=0.0) == [sched_id]


def test_what_is_past_its_deadline_is_invisible_and_swept(world: World) -> None:
    pid = world.agent()
    late = world.put(pid, deadline=START - 1)
    due = world.put(pid, deadline=START)
    free = world.put(pid, deadline=START + 1)
    endless = world.put(pid)
    assert world.take_ids(1, now=START) == [free]
    assert world.state(late) == "queued"  # a claim with a time of the caller's only looks
    assert world.take_ids() == [endless]
    assert world.queue.gc_expired() == 0  # this claim has swept it
    assert world.state(late) == "expired"
    swept = world.queue.get(late)
    assert (swept.completed_at, swept.exit_kind) == (START, None)
    assert world.state(due) == "queued"  # at its deadline an entry is neither claimable nor swept
    assert world.queue.gc_expired(now=START + 0.001) == 1
    assert world.state(due) == "expired"


def test_gc_expired_alone_sweeps_and_says_how_many(world: World) -> None:
    pid = world.agent()
    ids = [world.put(pid, deadline=START - 5 + n) for n in range(5)]
    assert world.queue.gc_expired(now=START - 2) == 3
    assert [world.state(sched_id) for sched_id in ids] == ["expired"] * 3 + ["queued"] * 2
    assert world.queue.gc_expired() == 2
    assert world.queue.gc_expired() == 0


def test_higher_priority_first_then_the_earlier_time_then_the_lower_id(world: World) -> None:
    pid = world.agent()
    low = world.put(pid, priority=-1)
    late = world.put(pid, priority=5, runnable_at=50.0)
    early = world.put(pid, priority=5, runnable_at=10.0)
    twin = world.put(pid, priority=5, runnable_at=10.0)
    high = world.put(pid, priority=6, runnable_at=900.0)
    assert world.take_ids() == [high, early, twin, late, low]


def test_a_claim_of_many_is_cut_at_a_thousand(world: World) -> None:
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 1_001)
    assert len(world.take(1_000_000)) == 1_000
    assert len(world.take(1_000_000)) == 1


def test_entries_of_an_agent_that_is_over_a_limit_are_skipped_and_stay_as_they_are(world: World) -> None:
    rich, poor = world.agent("rich"), world.agent("poor")
    world.ledger.create(rich, {"tokens": 10, "cost_micro": 10})
    world.ledger.create(poor, {"tokens": 10, "cost_micro": 10})
    world.ledger.charge(rich, "tokens", 10)  # at the limit is still within it
    world.ledger.charge(poor, "cost_micro", 11)
    first, second = world.put(poor, priority=9), world.put(rich)
    before = world.queue.get(first)
    assert world.take_ids() == [second]
    assert world.queue.get(first) == before
    assert world.take() == []
    world.ledger.update_grant(poor, "cost_micro", 11)
    assert world.take_ids() == [first]


def test_the_admission_check_can_be_switched_off_and_that_is_on_record(world: World) -> None:
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 1})
    world.ledger.charge(pid, "tokens", 2)
    sched_id = world.put(pid)
    before = world.ledger.get(pid)
    assert world.take() == []
    assert world.take_ids(admission_check=False) == [sched_id]
    assert world.events()[-1].payload["admission_skipped"] is True
    assert world.ledger.get(pid) == before  # a claim only reads the ledger


def test_an_entry_that_is_never_admitted_is_cancelled_or_swept_like_any_other(world: World) -> None:
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 1})
    world.ledger.charge(pid, "tokens", 2)
    cancelled, swept = world.put(pid), world.put(pid, deadline=START + 1)
    assert world.queue.cancel(cancelled) == ("queued", "cancelled")
    world.clock.advance(2)
    assert world.queue.gc_expired() == 1
    assert world.state(swept) == "expired"


# --- the state machine ---------------------------------------------------------------------------

VERBS: dict[str, Callable[[World, int], object]] = {
    "complete": lambda world, sched_id: world.queue.complete(sched_id, "completed"),
    "cancel": lambda world, sched_id: world.queue.cancel(sched_id),
    "change": lambda world, sched_id: world.queue.change(sched_id, priority=9),
}
LEGAL = {("queued", "cancel"), ("queued", "change"), ("dispatched", "complete")}


def _in_state(world: World, state: str) -> int:
    pid = world.agent()
    sched_id = world.put(pid, deadline=START + 5 if state == "expired" else None)
    if state in ("dispatched", "completed"):
        world.take_one()
    if state == "completed":
        world.queue.complete(sched_id, "failed")
    if state == "cancelled":
        world.queue.cancel(sched_id)
    if state == "expired":
        world.queue.gc_expired(now=START + 6)
    assert world.state(sched_id) == state
    return sched_id


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", ["queued", "dispatched", "completed", "expired", "cancelled"])
def test_every_verb_from_every_state_is_allowed_or_refused_without_a_trace(world: World, state: str, verb: str) -> None:
    sched_id = _in_state(world, state)
    if (state, verb) in LEGAL:
        VERBS[verb](world, sched_id)
        return
    before = world.everything()
    with pytest.raises(IllegalQueueTransition) as caught:
        VERBS[verb](world, sched_id)
    assert caught.value.code == -32131
    assert (caught.value.prev_state, caught.value.op) == (state, verb)
    assert world.everything() == before


def test_a_finished_entry_is_never_handed_out_again(world: World) -> None:
    for state in ("completed", "expired", "cancelled"):
        _in_state(world, state)
    world.clock.advance(100_000)
    assert world.take(10) == []


def test_the_errors_have_the_codes_of_the_table(world: World) -> None:
    pid = world.agent()
    sched_id = world.put(pid)
    world.take_one()
    dead = world.agent()
    world.kernel.terminate(dead, "completed")
    calls: list[tuple[int, type[errors.RotaError], Callable[[], object]]] = [
        (-32131, IllegalQueueTransition, lambda: world.queue.cancel(sched_id)),
        (-32132, SchedUnknownId, lambda: world.queue.get(99)),
        (-32132, SchedUnknownId, lambda: world.queue.complete(99, "completed")),
        (-32132, SchedUnknownId, lambda: world.queue.cancel(99)),
        (-32133, SchedInvalidPayload, lambda: world.queue.complete(sched_id, "exploded")),
        (-32133, SchedInvalidPayload, lambda: world.take(0)),
        (-32133, SchedInvalidPayload, lambda: world.put(dead)),
        (-32134, errors.SchedAdmissionDenied, lambda: world.queue.force_claim(sched_id, worker_id="w")),
        (-32135, SchedInvalidStateFilter, lambda: world.queue.list(state="bogus")),
        (-32102, UnknownPid, lambda: world.put(99)),
    ]
    before = world.everything()
    for code, kind, call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert (caught.value.code, errors.CODES[code].raised_by) == (code, type(caught.value))
    assert world.everything() == before


# --- decoupled from the agent --------------------------------------------------------------------


def test_making_an_agent_enqueues_nothing_and_no_queue_verb_moves_an_agent(world: World) -> None:
    pid = world.agent()
    assert world.queue.list() == ([], 0)
    agent = world.agents.get(pid)
    done, cancelled, late = world.put(pid), world.put(pid), world.put(pid, deadline=START + 1)
    world.take(1)
    world.queue.complete(done, "crashed")
    world.queue.cancel(cancelled)
    world.queue.gc_expired(now=START + 2)
    assert world.state(late) == "expired"
    after = world.agents.get(pid)
    assert (after.state, after.started_at, after.exit_kind) == (agent.state, None, None)


@pytest.mark.parametrize("path", [[], ["RUNNING"], ["RUNNING", "WAITING"], ["RUNNING", "SUSPENDED"]])
def test_any_living_owner_is_accepted_and_its_entries_are_handed_out(world: World, path: list[str]) -> None:
    pid = world.agent()
    for state in path:
        world.agents.transition(pid, state)
    sched_id = world.put(pid)
    assert world.take_ids() == [sched_id]


def test_a_dead_owner_is_refused_and_one_that_died_later_still_has_its_entries_handed_out(world: World) -> None:
    pid = world.agent()
    sched_id = world.put(pid)
    world.kernel.terminate(pid, "completed", queued="keep")
    with pytest.raises(SchedInvalidPayload) as caught:
        world.put(pid)
    assert caught.value.field == "pid"
    assert world.take_ids() == [sched_id]


# --- reading -------------------------------------------------------------------------------------


def test_get_list_and_tail_do_not_wait_for_one_who_writes(tmp_path: Path) -> None:
    """Uses a file: in memory there is one connection, so a read waits for the writer."""
    world = World(str(tmp_path / "rota.db"))
    sched_id = world.put(world.agent())
    begun, end = threading.Event(), threading.Event()

    def slow(_tx: Any) -> None:
        begun.set()
        assert end.wait(60)

    writer = Caller(lambda: world.store.write(slow))
    assert begun.wait(60)
    reads = Caller(lambda: (world.queue.get(sched_id).state, world.queue.list()[1], len(world.journal.tail())))
    assert reads.outcome() == ("queued", 1, 2)
    end.set()
    writer.outcome()
    world.close()


def test_a_kernel_takes_the_clock_of_its_store_unless_it_is_given_one() -> None:
    clock = ManualClock(5.0)
    opened = store.open(":memory:", clock=clock)
    assert Kernel(opened).clock is clock
    other = ManualClock(6.0)
    assert Kernel(opened, other).clock is other
    opened.close()

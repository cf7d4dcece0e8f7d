"""Explaining writes nothing, tells nobody, and stands in nobody's way for longer than it takes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedInvalidPayload, SchedUnknownId, StoreError, StoreUnavailable, UnknownPolicy
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.kernel.dry_run import Stage
from rota.policy import registry
from rota.service.dispatcher import Dispatcher
from rota.service.explain import explain
from rota.store import Transaction
from rota.store.engine import GroupFailed

START_AT = 1_000.0


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    clock = ManualClock(START_AT)
    made = Kernel(store.open(str(tmp_path / "rota.db"), clock=clock), chance=random.Random(7))
    yield made
    made.store.close()


def much_is_due(kernel: Kernel) -> list[int]:
    """Entries whose time has come, whose claim has expired and whose deadline has passed; nobody has seen to them."""
    pid = kernel.agents.create("a")
    late = kernel.queue.enqueue(ScheduleSpec(pid, deadline=START_AT + 5))
    held = kernel.queue.enqueue(ScheduleSpec(pid, runnable_at=START_AT + 5))
    lost = kernel.queue.enqueue(ScheduleSpec(pid, 9))
    kernel.queue.claim(worker_id="gone", claim_timeout_s=5.0)
    plain = kernel.queue.enqueue(ScheduleSpec(pid))
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(10.0)
    return [late, held, lost, plain]


@pytest.mark.parametrize("policy", registry.names())
def test_the_file_the_journal_and_the_generator_stay_as_they_were(kernel: Kernel, tmp_path: Path, policy: str) -> None:
    ids = much_is_due(kernel)
    beside = apsw.Connection(str(tmp_path / "rota.db"))

    def seen() -> list[object]:
        version = beside.execute("PRAGMA data_version").fetchall()
        rows = [beside.execute(f"SELECT * FROM {table}").fetchall() for table in tables]
        return [version, rows, kernel.journal.cursor(), kernel._core.chance.getstate()]

    tables = [row[0] for row in beside.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    before = seen()
    told = [explain(Dispatcher(kernel, policy), sched_id) for sched_id in ids]
    assert [each.state for each in told] == ["expired", "queued", "queued", "queued"]
    assert seen() == before
    beside.close()


def test_nobody_who_listens_or_waits_is_woken(kernel: Kernel) -> None:
    ids = much_is_due(kernel)
    kernel.projects.pause_fleet("operator")
    heard: list[int] = []
    end = kernel.store.on_change(lambda: heard.append(1))
    parked = threading.Thread(target=lambda: kernel.queue.claim(worker_id="w", wait_s=600))
    parked.start()
    try:
        while not kernel.store._writer.parked:  # type: ignore[attr-defined]  # how many wait is the writer's affair
            parked.join(0.001)
        heard.clear()
        assert not explain(Dispatcher(kernel), ids[1]).starts
        assert heard == []
    finally:
        kernel.projects.resume_fleet("operator")
        parked.join()
        end()


def test_where_two_dispatchers_share_a_file_each_is_asked_about_itself(kernel: Kernel) -> None:
    pids = [kernel.agents.create(name) for name in ("a", "b")]
    first, second = (kernel.queue.enqueue(ScheduleSpec(pid)) for pid in pids)
    mine, theirs = Dispatcher(kernel, "strict"), Dispatcher(kernel, "eevdf")
    assert explain(mine, first).starts
    assert explain(theirs, second).ordering[0].sentence() == f"1 goes first by eevdf: {first}"


# --- bad input -----------------------------------------------------------------------------------


def test_an_entry_that_is_not_there_is_said_to_be_unknown(kernel: Kernel) -> None:
    with pytest.raises(SchedUnknownId):
        explain(Dispatcher(kernel), 7)


@pytest.mark.parametrize(
    "asked", [{"max_n": 0}, {"worker_id": ""}, {"kinds": [1]}, {"now": float("nan")}, {"now": "soon"}], ids=str
)
def test_terms_that_no_claim_would_take_are_refused(kernel: Kernel, asked: dict[str, object]) -> None:
    pid = kernel.agents.create("a")
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    with pytest.raises(SchedInvalidPayload):
        explain(Dispatcher(kernel), sched_id, **asked)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(SchedInvalidPayload):
        explain(Dispatcher(kernel), "one")  # type: ignore[arg-type]


def test_a_policy_that_is_not_there_is_said_to_be_unknown(kernel: Kernel) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a")))
    with pytest.raises(UnknownPolicy):
        explain(Dispatcher(kernel), sched_id, policy="best")
    assert kernel.queue.claim(worker_id="w")  # nothing is left locked


def test_a_rehearsal_inside_a_write_is_refused(kernel: Kernel) -> None:
    def work(_: Transaction) -> None:
        kernel.rehearse(lambda stage: stage.now)

    with pytest.raises(StoreError, match="inside a write"):
        kernel.store.write(work)


def test_a_file_that_is_only_read_cannot_be_rehearsed_in(kernel: Kernel, tmp_path: Path) -> None:
    read_only = Kernel(store.open(str(tmp_path / "rota.db"), read_only=True, clock=kernel.clock))
    with pytest.raises(StoreUnavailable, match="reading only"):
        explain(Dispatcher(read_only), 1)
    read_only.store.close()


def test_when_the_disk_fails_it_is_said_and_nothing_stays_locked(kernel: Kernel) -> None:
    def fails(_: Stage) -> None:
        raise GroupFailed("disk I/O error")

    with pytest.raises(StoreUnavailable, match="disk I/O error"):
        kernel.rehearse(fails)
    assert kernel.agents.create("a") == 1


# --- beside others -------------------------------------------------------------------------------


def test_while_others_work_every_answer_is_whole_and_no_work_is_lost(kernel: Kernel) -> None:
    """Two who claim and complete, two who ask why; in the end every entry has run once."""
    pids = [kernel.agents.create(f"a{at}") for at in range(5)]
    ids = kernel.queue.enqueue_many([ScheduleSpec(pids[at % 5]) for at in range(100)])
    desk = Dispatcher(kernel, "eevdf")
    ran: list[int] = []
    problems: list[BaseException] = []

    def works(name: str) -> None:
        while runs := desk.claim(name, 2):
            ran.extend(run.sched_id for run in runs)
            kernel.queue.complete_many([Completion(run.sched_id, token=run.token) for run in runs])

    def asks(order: list[int]) -> None:
        for sched_id in order:
            told = explain(desk, sched_id)
            assert told.starts or told.blocking or told.ordering
            assert told.state != "completed" or told.story[-1].words == "ended: completed"

    def guarded(deed: Callable[[], None]) -> None:
        try:
            deed()
        except BaseException as problem:
            problems.append(problem)

    deeds = [lambda: works("w1"), lambda: works("w2"), lambda: asks(ids), lambda: asks(ids[::-1])]
    threads = [threading.Thread(target=guarded, args=(deed,)) for deed in deeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(ran) == ids
    assert kernel.queue.counts() == {"completed": 100}

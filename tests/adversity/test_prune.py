"""Prunes that stop after any commit, several at once, beside all other work: checkpoint + later events = tables.

A transaction is atomic (test_kills, test_power_cut), so a prune that is killed at any moment has stopped between two of
its commits. Here a prune runs in a thread that waits before every commit; the test decides which prune commits next,
which one stops for good, and what else happens in between, and compares the journal with the tables after each commit.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import apsw
import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import StoreCorrupt
from rota.kernel import Kernel, ScheduleSpec, replay, retention
from rota.kernel.replay import KernelState, current_checkpoint
from tests.adversity.conftest import Rounds
from tests.kernel_proof.test_replay import Life
from tests.store.files import script
from tests.store.world import PATIENCE_S, sql

COMMITS = 60  # of all prunes in one round


class Stopped(BaseException):
    """Ends a prune as a kill would: nothing of it runs any more."""


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a prune of a few rows need many commits."""
    monkeypatch.setattr(replay, "PART_MAX", 2)
    monkeypatch.setattr(retention, "PRUNE_MAX", 5)
    monkeypatch.setattr(retention, "DROP_MAX", 1)


class SteppedPrune:
    """A prune in a thread; each of its commits waits for `step`."""

    def __init__(self, kernel: Kernel, ages: Mapping[str, float]) -> None:
        self._go, self._ready = threading.Semaphore(0), threading.Semaphore(0)
        self._stop = False
        self.ended = False
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(kernel, ages), daemon=True)
        self._thread.start()
        self._await()

    def _run(self, kernel: Kernel, ages: Mapping[str, float]) -> None:
        try:
            _WAITING.before_commit = self._before_commit
            kernel.retention.prune(**ages)
        except Stopped:
            pass
        except BaseException as problem:
            self.problem = problem
        self.ended = True
        self._ready.release()

    def _before_commit(self) -> None:
        self._ready.release()
        self._go.acquire()
        if self._stop:
            raise Stopped

    def _await(self) -> None:
        assert self._ready.acquire(timeout=PATIENCE_S)
        if self.problem is not None:
            raise self.problem

    def step(self) -> None:
        """Let it commit once, up to before its next commit."""
        self._go.release()
        self._await()

    def stop(self) -> None:
        """End it where it is."""
        self._stop = True
        self.step()


class _Waiting(threading.local):
    before_commit: Callable[[], None] | None = None  # of the prune that runs in this thread


_WAITING = _Waiting()


def stepped(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every write of a prune wait; other threads write as always."""
    write = kernel.store.write

    def waiting(work: Callable[..., Any]) -> Any:
        if _WAITING.before_commit is not None:
            _WAITING.before_commit()
        return write(work)

    monkeypatch.setattr(kernel.store, "write", waiting)


def make_old_rows(life: Life) -> None:
    """Finish some entries in an order that leaves many ranges, long ago."""
    ids = life.api.queue.enqueue_many([ScheduleSpec(life.pids[2], priority=n % 7) for n in range(20)])
    for entry in life.api.claim("w", 14):
        life.api.queue.complete(entry.sched_id, "completed", token=entry.token)
    assert ids
    life.clock.advance(100)


def assert_law(life: Life) -> None:
    tables, journal = life.both()
    assert journal == tables


def test_the_law_holds_after_every_commit_of_prunes_that_race_stop_and_start_again(
    tmp_path: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in rounds(6):
        rng = random.Random(seed)
        life = Life(seed, ":memory:" if seed % 3 == 0 else str(tmp_path / f"{seed}.db"))
        other = life.kernel  # two threads of one kernel, or two stores on one file as two processes would
        if seed % 3 == 2:
            other = Kernel(store.open(str(tmp_path / f"{seed}.db"), clock=life.clock))
        kernels = {life.kernel, other}
        for kernel in kernels:
            stepped(kernel, monkeypatch)
        make_old_rows(life)
        prunes: list[SteppedPrune] = []
        commits = 0
        while commits < COMMITS:
            deed = rng.random()
            if not prunes or (deed < 0.1 and len(prunes) < 3):
                ages = {"events_older_than_s": rng.choice([0, 0, 50]), "entries_older_than_s": rng.choice([0, 0, 50])}
                prunes.append(SteppedPrune(rng.choice([life.kernel, other]), ages))
            elif deed < 0.15:
                prunes.pop(rng.randrange(len(prunes))).stop()
            elif deed < 0.3:
                rng.choice([life.enqueue, life.enqueue_many, life.claim, life.end, life.charge, life.wait])()
            else:
                rng.choice(prunes).step()
                commits += 1
            prunes = [prune for prune in prunes if not prune.ended]
            assert_law(life)
        for prune in prunes:
            while not prune.ended:
                prune.step()
        assert_law(life)
        assert life.kernel.store.check() == []
        assert life.kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0).checkpoint_id > 0
        assert_law(life)
        current = life.kernel.store.read(current_checkpoint)
        assert life.kernel.store.read(lambda tx: tx.run(_STORED)) == [(current.through_id, current.parts)]
        for kernel in kernels:
            kernel.store.close()


_STORED = sql("SELECT through_id, count(*) FROM journal_checkpoints GROUP BY through_id")


@pytest.mark.parametrize("again_at_once", [True, False], ids=["no event since", "events since"])
def test_a_prune_stopped_after_any_number_of_commits_is_repeated(
    again_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(1)
    stepped(life.kernel, monkeypatch)
    make_old_rows(life)
    commits = 0
    while True:
        prune = SteppedPrune(life.kernel, {"events_older_than_s": 50, "entries_older_than_s": 50})
        for _ in range(commits):
            if not prune.ended:
                prune.step()
            assert_law(life)
        if prune.ended:
            break
        prune.stop()
        assert_law(life)
        commits += 1
        if not again_at_once:
            life.enqueue()
    assert commits > 10
    life.kernel.store.close()


def test_an_overtaken_checkpoint_stores_nothing_more_and_reports_the_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life = Life(2)
    stepped(life.kernel, monkeypatch)
    make_old_rows(life)
    slow = SteppedPrune(life.kernel, {"events_older_than_s": 0, "entries_older_than_s": 0})
    slow.step()  # its first part is stored
    life.enqueue()
    newer = life.kernel.retention.checkpoint()
    slow.step()
    rows = life.kernel.store.read(lambda tx: tx.run(_STORED))
    assert [row[0] for row in rows] == [newer]
    while not slow.ended:
        slow.step()
        assert_law(life)
    life.kernel.store.close()


def test_a_checkpoint_with_a_missing_part_is_reported_and_not_replayed() -> None:
    life = Life(3)
    make_old_rows(life)
    life.kernel.retention.checkpoint()
    life.kernel.store.write(lambda tx: tx.run(sql("DELETE FROM journal_checkpoints WHERE part = 1")))
    with pytest.raises(StoreCorrupt, match="parts"):
        life.kernel.store.read(KernelState.from_journal)
    life.kernel.store.close()


# --- files of an earlier version -------------------------------------------------------------------

OLD_ROWS = """
    INSERT INTO agent_processes (pid, name, template, state, created_at, updated_at)
        VALUES (1, 'a', 'callable', 'READY', 1, 1);
    INSERT INTO agent_events (event_id, pid, ts, kind, payload) VALUES
        (10, 1, 1, 'kernel.sched.enqueued', '{"first_id":1,"count":4}'),
        (11, 1, 2, 'kernel.sched.cancelled', '{"sched_ids":[2]}');
    INSERT INTO agent_schedule_queue (sched_id, pid, state, created_at) VALUES
        (1, 1, 'queued', 1), (2, 1, 'cancelled', 1), (3, 1, 'queued', 1), (4, 1, 'queued', 1);
"""
COMPLETE = """
    DELETE FROM agent_events WHERE event_id = 10;
    INSERT INTO journal_checkpoints (through_id, part, made_at, body) VALUES
        (10, 0, 1, '{}'), (10, 1, 1, '{"entries":[[1,4,"queued"]]}');
    INSERT INTO agent_events (event_id, ts, kind, payload)
        VALUES (12, 3, 'kernel.journal.checkpointed', '{"through_id":10}');
"""
INTERRUPTED = "INSERT INTO journal_checkpoints (through_id, part, made_at, body) VALUES ((%s), 0, 4, '{}');"
LAST = "SELECT max(event_id) FROM agent_events"


@pytest.mark.parametrize("interrupted", [False, True], ids=["", "a prune was killed"])
@pytest.mark.parametrize("complete", [False, True], ids=["first", "with a checkpoint"])
def test_a_file_of_an_earlier_version_replays_also_if_its_last_prune_was_killed(
    tmp_path: Path, complete: bool, interrupted: bool
) -> None:
    path = str(tmp_path / "rota.db")
    connection = apsw.Connection(path)
    connection.execute(script(103) + OLD_ROWS + complete * COMPLETE + interrupted * (INTERRUPTED % LAST))
    connection.close()
    kernel = Kernel(store.open(path, clock=ManualClock(1_000.0)))
    for _ in range(2):
        tables, journal = kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
        assert journal == tables
        assert set(tables.entries) == {1, 2, 3, 4}
        kernel.retention.prune(events_older_than_s=0, entries_older_than_s=10_000)
    kernel.store.close()

"""Automatic retention: what is kept by number and by age, what stays, and which process does it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import InvalidPayload
from rota.kernel import Completion, Kernel, KernelState, ScheduleSpec
from rota.kernel import automatic_retention as automatic
from rota.kernel.finished_entries import collect
from rota.kernel.retention import PruneResult
from rota.kernel.settings import write_setting
from rota.model.events import RetentionSet, RowsPruned
from rota.model.retention import RetentionSetting

START = 1_800_000_000.0
DAY_S = 86_400.0


class World:
    """A kernel on a file, with a clock that is moved by hand."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.clock = ManualClock(START)
        self.kernel = self.open()
        self.pid = self.kernel.agents.create("coder", "command")

    def open(self) -> Kernel:
        return Kernel(store.open(self.path, clock=self.clock))

    def run(self, count: int, **options: Any) -> list[int]:
        """Enqueue, claim and complete entries."""
        ids = self.kernel.queue.enqueue_many([ScheduleSpec(pid=self.pid, **options) for _ in range(count)])
        runs = self.kernel.queue.claim(worker_id="w", max_n=count)
        self.kernel.queue.complete_many([Completion(run.sched_id, "completed", token=run.token) for run in runs])
        return ids

    def ids(self) -> list[int]:
        return [entry.sched_id for entry in self.kernel.queue.list(limit=10_000)[0]]

    def keep(self, holder: str = "me") -> PruneResult | None:
        """Let a look be due, and look."""
        self.clock.advance(automatic.LOOK_S)
        return self.kernel.retention.keep(holder)

    def assert_law(self) -> None:
        tables, journal = self.kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
        now = self.clock.now()
        assert tables.at(now) == journal.at(now)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "rota.db")
    yield made
    made.kernel.store.close()


# --- what is kept ----------------------------------------------------------------------------------------


def test_the_newest_finished_entries_are_kept_by_number(world: World) -> None:
    world.kernel.retention.set(entries_max=10)
    ids = world.run(25)
    removed = world.keep()
    assert removed is not None
    assert (removed.entries, world.ids()) == (15, ids[15:])
    world.assert_law()


def test_what_ended_last_is_kept_not_what_was_enqueued_last(world: World) -> None:
    world.kernel.retention.set(entries_max=2)
    late = world.kernel.queue.enqueue(ScheduleSpec(pid=world.pid, runnable_at=START + 50))
    world.run(5)
    world.clock.advance(60)
    (run,) = world.kernel.queue.claim(worker_id="w")
    world.kernel.queue.complete(run.sched_id, "failed", token=run.token)
    world.keep()
    assert (run.sched_id, world.ids()) == (late, [late, 6])


def test_old_finished_entries_go_by_age_and_live_ones_stay(world: World) -> None:
    world.run(3)
    waiting = world.kernel.queue.enqueue(ScheduleSpec(pid=world.pid))
    world.clock.advance(8 * DAY_S)
    newer = world.kernel.queue.enqueue(ScheduleSpec(pid=world.pid))
    world.kernel.queue.cancel(newer)
    removed = world.keep()
    assert removed is not None
    assert (removed.entries, world.ids()) == (3, [waiting, newer])
    world.assert_law()


def test_expired_and_cancelled_entries_count_too(world: World) -> None:
    world.kernel.retention.set(entries_max=0)
    cancelled = world.kernel.queue.enqueue(ScheduleSpec(pid=world.pid))
    world.kernel.queue.cancel(cancelled)
    world.kernel.queue.enqueue(ScheduleSpec(pid=world.pid, deadline=START + 1))
    world.clock.advance(10)
    world.kernel.queue.gc_expired()
    last = world.kernel.queue.enqueue(ScheduleSpec(pid=world.pid))
    world.keep()
    assert world.ids() == [last]


def test_an_entry_that_has_just_ended_stays_for_a_program_that_reads_its_result(world: World) -> None:
    world.kernel.retention.set(entries_max=0)
    world.clock.advance(automatic.LOOK_S)
    ids = world.run(3)
    assert world.kernel.retention.keep("me") is not None
    assert world.ids() == ids


def test_entries_that_live_ones_or_graph_runs_need_stay_until_they_do_not(world: World) -> None:
    kernel = world.kernel
    kernel.retention.set(entries_max=0)
    kernel.graphs.take("run-1", "graph", world.pid)
    (awaited,) = world.run(1)
    dependent = kernel.queue.enqueue(ScheduleSpec(pid=world.pid, after=(awaited,), runnable_at=START + 1e6))
    parent = kernel.queue.enqueue(ScheduleSpec(pid=world.pid, priority=-1))
    (child,) = world.run(1, parent_id=parent)
    (of_graph,) = world.run(1, correlation_id="run-1")
    world.run(1)
    newest = kernel.queue.enqueue(ScheduleSpec(pid=world.pid, runnable_at=START + 1e6))
    world.keep()
    assert world.ids() == [awaited, dependent, parent, child, of_graph, newest]
    kernel.queue.cancel(dependent)
    kernel.queue.cancel(parent)
    kernel.graphs.forget("run-1")
    world.clock.advance(automatic.RECENT_S + 1)
    world.keep()
    assert world.ids() == [newest]
    world.assert_law()


def test_a_graph_run_that_has_ended_goes_with_its_coordinator(world: World) -> None:
    kernel = world.kernel
    kernel.retention.set(entries_max=0)
    runs = [kernel.graphs.create("graph", {"schema_version": 2}, run_id=name) for name in ("ended", "live")]
    for run in runs:
        assert run.sched_id is not None
        entry = kernel.queue.force_claim(run.sched_id, worker_id="w")
        taken = kernel.graphs.take_entry(run.sched_id, entry.token or 0)
        if run.run_id == "ended":
            kernel.graphs.finish("ended", taken.fence, "succeeded")
        kernel.queue.complete(run.sched_id, "completed")
    newest = kernel.queue.enqueue(ScheduleSpec(pid=world.pid, runnable_at=START + 1e6))
    world.keep()
    assert world.ids() == [runs[1].sched_id, newest]
    assert [run.run_id for run in kernel.graphs.list()[0]] == ["live"]
    world.assert_law()


def test_old_events_go_behind_a_checkpoint_and_not_at_every_look(world: World) -> None:
    kernel = world.kernel
    world.run(20)
    first_at = kernel.journal.tail(0, 1)[0].ts
    world.clock.advance(7.5 * DAY_S)
    world.run(1)
    world.keep()
    assert kernel.journal.tail(0, 1)[0].ts == first_at  # a little late is not worth a checkpoint
    world.clock.advance(0.6 * DAY_S)
    removed = world.keep()
    assert removed is not None
    assert removed.events > 0
    assert kernel.journal.tail(0, 1)[0].ts >= START + 7.5 * DAY_S
    world.assert_law()


def test_events_are_kept_by_number(world: World) -> None:
    world.kernel.retention.set(events_max=50)
    for _ in range(40):
        world.run(1)
    world.keep()
    assert world.kernel.retention.status().events <= 60
    world.assert_law()


# --- the setting -------------------------------------------------------------------------------------------


def test_the_setting_is_a_fact_of_the_store_with_an_event(world: World) -> None:
    retention = world.kernel.retention
    assert retention.setting() == RetentionSetting()
    kept = retention.set(entries_s=DAY_S, by="anna")
    other = world.open()
    assert other.retention.setting() == kept == RetentionSetting(entries_s=DAY_S, by="anna")
    other.store.close()
    cursor = world.kernel.journal.cursor()
    assert retention.set(entries_s=DAY_S, by="ben") == kept  # nothing changes
    assert world.kernel.journal.cursor() == cursor
    (event,) = world.kernel.journal.tail(kinds=(RetentionSet.kind,))
    assert event.payload["setting"]["entries_s"] == DAY_S
    for wrong in ({"entries_s": -1.0}, {"events_max": -1}, {"enabled": 1}, {"entries_max": 1.5}):
        with pytest.raises(InvalidPayload):
            retention.set(**wrong)
    assert retention.setting() == kept


def test_nothing_is_removed_if_it_is_off(world: World) -> None:
    world.kernel.retention.set(enabled=False, entries_max=0)
    ids = world.run(3)
    world.clock.advance(30 * DAY_S)
    assert world.keep() is None
    assert world.ids() == ids


def test_a_damaged_setting_counts_as_the_default(world: World) -> None:
    for key in ("retention", "retention_turn"):
        world.kernel.store.write(lambda tx, key=key: write_setting(tx, key, "{no"))  # type: ignore[misc]  # mypy knows no such lambda
    assert world.kernel.retention.setting() == RetentionSetting()
    assert world.kernel.retention.keep("me") is not None


def test_the_status_says_what_is_kept_and_what_was_removed(world: World) -> None:
    world.kernel.retention.set(entries_max=2)
    world.run(5)
    world.keep()
    status = world.kernel.retention.status()
    assert (status.entries, status.removed_entries, status.oldest_entry_at) == (2, 3, START)
    assert (status.last_at, status.removed_at) == (world.clock.now(), world.clock.now())
    assert status.file_bytes > 0
    assert not status.running


# --- which process ----------------------------------------------------------------------------------------------


def test_one_process_looks_and_the_others_find_nothing_due(world: World) -> None:
    other = world.open()
    world.run(3)
    assert world.keep("one") is not None
    assert other.retention.keep("two") is None
    assert 0 < other.retention.due_in_s() <= automatic.LOOK_S
    other.store.close()


def test_two_processes_do_not_remove_at_the_same_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "STEP_MAX", 5)
    world.kernel.retention.set(entries_max=0)
    world.run(30)
    world.clock.advance(automatic.LOOK_S)
    other, answers = world.open(), []

    def pause(_: float) -> bool:
        answers.append(other.retention.keep("two"))
        return True

    removed = world.kernel.retention.keep("one", pause)
    assert removed is not None
    assert removed.entries == 29  # the newest id stays
    assert answers
    assert set(answers) == {None}
    other.store.close()


def test_a_process_that_is_killed_in_between_is_continued(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "STEP_MAX", 5)
    world.kernel.retention.set(entries_max=0)
    world.run(30)
    world.clock.advance(automatic.LOOK_S)

    class Killed(BaseException):
        """As if the process had ended here."""

    def die(_: float) -> bool:
        raise Killed

    monkeypatch.setattr(world.kernel.retention, "_end_turn", lambda *_: None)
    with pytest.raises(Killed):
        world.kernel.retention.keep("one", die)
    world.assert_law()
    other = world.open()
    assert other.retention.keep("two") is None  # the turn of the first has not ended yet
    world.clock.advance(automatic.TURN_S + 1)
    removed = other.retention.keep("two")
    assert removed is not None
    assert removed.entries > 0
    assert len(world.ids()) == 1
    other.store.close()
    world.assert_law()


def test_an_interrupted_look_is_due_at_once_for_the_next_process(world: World) -> None:
    world.kernel.retention.set(entries_max=0)
    world.run(3)
    world.clock.advance(automatic.LOOK_S)
    assert world.kernel.retention.keep("one", lambda _: False) is None
    assert world.kernel.retention.due_in_s() == 0.0
    assert world.kernel.retention.keep("two") is not None


def test_each_entry_is_listed_once_if_two_collect(world: World) -> None:
    other = world.open()
    world.run(10)
    threads = [threading.Thread(target=lambda kernel=each: collect(kernel.env)) for each in (world.kernel, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.kernel.retention.status().entries == 10
    other.store.close()


def test_writers_go_on_while_rows_are_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "STEP_MAX", 10)
    world.kernel.retention.set(entries_max=20)
    world.run(200)
    world.clock.advance(automatic.LOOK_S)
    other = world.open()
    made: list[int] = []

    def pause(_: float) -> bool:
        made.append(other.queue.enqueue(ScheduleSpec(pid=world.pid)))
        run = other.queue.claim(worker_id="w")[0]
        other.queue.complete(run.sched_id, "completed", token=run.token)
        return True

    removed = world.kernel.retention.keep("one", pause)
    assert removed is not None
    assert removed.entries == 180
    batches = [event for event in world.kernel.journal.tail(limit=10_000) if event.kind == RowsPruned.kind]
    assert max(event.payload["count"] for event in batches) <= 10
    assert set(made) <= set(world.ids())
    other.store.close()
    world.assert_law()

"""Runs of an interval are read from the journal, also hours later, and as many as the limit allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.observe import last_event_before, read_runs, run_history
from rota.service.dispatcher import Dispatcher

START = 1_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def api(clock: ManualClock) -> Iterator[Dispatcher]:
    opened = store.open(":memory:", clock=clock)
    yield Dispatcher(Kernel(opened))
    opened.close()


def run_for(api: Dispatcher, clock: ManualClock, pid: int, seconds: float, exit_kind: str = "completed") -> int:
    """Let an agent run for a time, and return its entry."""
    api.queue.enqueue(ScheduleSpec(pid, max_attempts=1))
    (entry,) = api.claim("box")
    clock.advance(seconds)
    api.queue.complete(entry.sched_id, exit_kind, token=entry.token)
    return entry.sched_id


def test_runs_of_an_hour_ago_are_found(api: Dispatcher, clock: ManualClock) -> None:
    pid = api.agents.create("coder")
    clock.advance(5_000)
    first = run_for(api, clock, pid, 30, "failed")
    clock.advance(4_000)
    run_for(api, clock, pid, 10)
    found = read_runs(api, START + 4_900, START + 5_100)
    (row,) = found.rows
    assert [(run.sched_id, run.start_at, run.end_at, run.ending) for run in row.spans] == [
        (first, START + 5_000, START + 5_030, "failed")
    ]
    assert found.names == {pid: "coder"}
    assert found.is_whole


def test_a_run_that_began_long_before_and_still_runs_is_found(api: Dispatcher, clock: ManualClock) -> None:
    pid = api.agents.create("coder")
    api.queue.enqueue(ScheduleSpec(pid))
    (entry,) = api.claim("box", claim_timeout_s=1e6)
    clock.advance(9_000)
    run_for(api, clock, pid, 10)
    found = read_runs(api, START + 8_950, START + 9_050)
    assert sorted(run.sched_id for row in found.rows for run in row.spans) == [entry.sched_id, entry.sched_id + 1]
    assert len(found.rows) == 2


def test_of_too_many_events_the_last_ones_are_read(
    api: Dispatcher, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history, "EVENTS_READ_MAX", 6)
    pid = api.agents.create("coder")
    ids = [run_for(api, clock, pid, 10) for _ in range(5)]
    found = read_runs(api, START, START + 60)
    shown = [run.sched_id for row in found.rows for run in row.spans]
    assert not found.is_whole
    assert found.since_at > START
    assert shown == ids[-len(shown) :]
    assert 0 < len(shown) < 5


def test_an_instant_is_found_in_the_journal(api: Dispatcher, clock: ManualClock) -> None:
    pid = api.agents.create("coder")
    for _ in range(10):
        run_for(api, clock, pid, 10)
    cursor = api.journal.cursor()
    for at in (START - 1, START + 35, START + 1_000):
        before = [event.event_id for event in api.journal.tail(0) if event.ts < at]
        assert last_event_before(api.journal, at, cursor) == max(before, default=0)

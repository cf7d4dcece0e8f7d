"""A run that returns to the queue and waits there for the first of several entries to end."""

from __future__ import annotations

from typing import Any

import pytest

from rota.kernel import RunReport
from rota.kernel.replay import KernelState
from rota.model.events import EntriesReleased
from rota.model.reasons import AfterPredecessor
from tests.kernel.world import START, World


def wait(world: World, sched_id: int, awaits: tuple[int, ...], **back: Any) -> None:
    """Claim an entry, and return it to the queue to wait for others."""
    entry = world.queue.force_claim(sched_id, worker_id="worker")
    report = RunReport(sched_id=sched_id, token=entry.token or 0, back="yield", awaits=awaits, **back)
    (answer,), _ = world.dispatcher.turn([report], worker_id="worker", max_n=0)
    assert answer == ("dispatched", "queued")


def end(world: World, sched_id: int, exit_kind: str = "completed") -> None:
    """Run an entry to this exit kind."""
    world.queue.force_claim(sched_id, worker_id="worker")
    world.queue.complete(sched_id, exit_kind)


@pytest.mark.parametrize("exit_kind", ["completed", "failed"])
def test_the_first_end_makes_it_ready_however_it_ends(world: World, pid: int, exit_kind: str) -> None:
    waiting, first, second = world.put(pid), world.put(pid, priority=-1), world.put(pid, priority=-2)
    wait(world, waiting, (first, second))
    assert world.state(waiting) == "queued:after"
    assert world.reasons_against(waiting) == [AfterPredecessor(waiting_for=(first, second))]
    end(world, second, exit_kind)
    assert world.facts()[-1] == EntriesReleased(hold="after", sched_ids=[waiting])
    assert world.take_ids(1) == [waiting]
    assert world.queue.get(waiting).attempt == 1  # waiting counted no attempt


def test_an_entry_that_has_ended_before_makes_it_ready_at_once(world: World, pid: int) -> None:
    waiting, first, second = world.put(pid), world.put(pid), world.put(pid)
    end(world, first)
    wait(world, waiting, (first, second))
    assert world.state(waiting) == "queued"


def test_a_cancelled_entry_makes_it_ready(world: World, pid: int) -> None:
    waiting, other = world.put(pid), world.put(pid)
    wait(world, waiting, (other,))
    world.queue.cancel(other)
    assert world.state(waiting) == "queued"


def test_it_is_ready_at_its_time_if_nothing_has_ended(world: World, pid: int) -> None:
    waiting, other = world.put(pid), world.put(pid, runnable_at=START + 100)
    wait(world, waiting, (other,), back_after_s=10.0)
    assert world.state(waiting) == "queued:time"
    assert world.take_ids() == []
    world.clock.advance(10)
    assert world.take_ids() == [waiting]


def test_an_end_before_its_time_makes_it_ready(world: World, pid: int) -> None:
    waiting, other = world.put(pid), world.put(pid)
    wait(world, waiting, (other,), back_after_s=1_000.0)
    end(world, other)
    assert world.take_ids() == [waiting]


def test_it_may_wait_again_for_others(world: World, pid: int) -> None:
    waiting, first, second = world.put(pid), world.put(pid), world.put(pid)
    wait(world, waiting, (first,))
    end(world, first)
    wait(world, waiting, (second,))
    assert world.rows("SELECT sched_id, waits_for FROM entry_after") == [(waiting, second)]
    assert world.state(waiting) == "queued:after"
    end(world, second)
    assert world.state(waiting) == "queued"
    state = world.store.read(lambda tx: (KernelState.from_journal(tx), KernelState.from_tables(tx)))
    assert state[0].at(world.now) == state[1].at(world.now)


def test_awaits_without_a_return_to_the_queue_fail_the_run(world: World, pid: int) -> None:
    entry = world.queue.force_claim(world.put(pid, max_attempts=1), worker_id="worker")
    report = RunReport(sched_id=entry.sched_id, token=entry.token or 0, awaits=(1,))
    world.dispatcher.turn([report], worker_id="worker", max_n=0)
    assert world.queue.get(entry.sched_id).outcome == "invalid_report"


@pytest.mark.parametrize("is_first", [True, False])
def test_an_entry_that_ends_in_the_same_call_makes_it_ready(world: World, pid: int, is_first: bool) -> None:
    waiting, other = (world.queue.force_claim(world.put(pid), worker_id="worker") for _ in range(2))
    reports = [
        RunReport(sched_id=waiting.sched_id, token=waiting.token or 0, back="yield", awaits=(other.sched_id,)),
        RunReport(sched_id=other.sched_id, token=other.token or 0),
    ]
    world.dispatcher.turn(reports if is_first else reports[::-1], worker_id="worker", max_n=0)
    assert world.state(waiting.sched_id) == "queued"

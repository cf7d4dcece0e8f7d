"""Claims that wait: parked with the writer, and woken by whatever may give them work.

Each test moves the world by one thing and expects the parked claim to have its entry, without another call. A test
that hangs has found a claim that sleeps through what it waits for.
"""

from __future__ import annotations

import pytest

from rota.kernel import ScheduleSpec
from rota.kernel.dependencies import DEPENDENTS_MAX
from rota.service.dispatcher import Dispatcher
from tests.kernel.blocked_entries import CHANGES, TIMES
from tests.kernel.world import START, World
from tests.store.world import Caller

# --- woken by a change ---------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_a_waiter_is_woken_by_what_may_give_it_work(world: World, api: Dispatcher, change: str) -> None:
    wake = CHANGES[change](world)
    assert api.claim("impatient") == []
    waiter = world.waiter(api, kinds=("gpu",) if change == "kind cap" else ())
    assert not waiter.is_done
    wake()
    assert len(waiter.outcome()) == 1


# --- woken by time -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", TIMES)
def test_a_waiter_is_woken_when_its_time_has_come_and_not_before(world: World, api: Dispatcher, what: str) -> None:
    after_s = TIMES[what](world)
    waiter = world.waiter(api)
    world.clock.until_parked(2)  # the waiter, and the writer's timer
    world.clock.advance(after_s - 0.5)
    assert not waiter.is_done
    world.clock.advance(0.5)
    world.pass_time_until_done(waiter)
    (sched_id,) = waiter.outcome()
    assert world.queue.get(sched_id).dispatched_at == pytest.approx(START + after_s, abs=1.0)


def test_what_is_enqueued_for_later_wakes_a_waiter_later(world: World, api: Dispatcher) -> None:
    waiter = world.waiter(api)
    sched_id = world.put(world.agent(), runnable_at=START + 20)
    world.clock.advance(20)
    world.pass_time_until_done(waiter)
    assert waiter.outcome() == [sched_id]


def test_a_dependent_that_is_released_before_its_time_wakes_a_waiter_at_its_time(world: World, api: Dispatcher) -> None:
    first = world.put(world.agent())
    second = world.put(world.agent(), after=(first,), runnable_at=START + 20)
    world.take(1, claim_timeout_s=10**6)
    waiter = world.waiter(api)
    world.queue.complete(first, "completed")
    world.clock.advance(20)
    world.pass_time_until_done(waiter)
    assert waiter.outcome() == [second]


@pytest.mark.long_on_postgres
def test_a_waiter_sees_an_end_through_that_concerns_more_than_one_batch(world: World) -> None:
    """2,001 dependents are cancelled in three batches, and only the last batch frees an entry."""
    pid = world.agent()
    first = world.put(pid)
    world.queue.enqueue_many([ScheduleSpec(pid, after=(first,))] * (2 * DEPENDENTS_MAX))
    last = world.put(pid, after=(first,), on_failed="run")
    world.take(1)
    waiter = world.waiter()
    world.queue.complete(first, "failed")
    world.pass_time_until_done(waiter)
    assert waiter.outcome() == [last]


def test_more_entries_fall_due_at_once_than_are_released_at_once_and_the_waiter_gets_one(world: World) -> None:
    """1,000 that only others can run are released first; the one for this worker comes in the next batch."""
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid, runnable_at=START + 10, kind="gpu")] * 1_000)
    mine = world.put(pid, runnable_at=START + 11)
    waiter = world.waiter()
    world.clock.advance(11)
    world.pass_time_until_done(waiter)
    assert waiter.outcome() == [mine]


def test_while_a_claim_is_parked_passed_deadlines_are_swept_and_waiters_woken(world: World) -> None:
    """No janitor process is needed: the writer does maintenance for parked claims."""
    pid = world.agent()
    world.agents.pause(pid, "anna")
    sched_id = world.put(pid, deadline=START + 30)
    worker = world.waiter()
    ending = Caller(lambda: world.queue.wait(sched_id, 1_000.0))
    world.clock.until_parked(2)
    world.clock.advance(31)
    world.pass_time_until_done(ending)
    assert ending.outcome().state == "expired"
    assert not worker.is_done

"""Parked claims: their order, and their timeouts."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import StoreUnavailable
from rota.kernel import Completion, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import World
from tests.store.world import Caller

# --- order ---------------------------------------------------------------------------------------


def test_the_oldest_waiter_is_served_first_and_one_entry_wakes_one(world: World, api: Dispatcher) -> None:
    waiters = [world.waiter(api) for _ in range(3)]
    pid = world.agent()
    for n, waiter in enumerate(waiters):
        sched_id = world.put(pid)
        assert waiter.outcome() == [sched_id]
        assert [later.is_done for later in waiters[n + 1 :]] == [False] * (2 - n)


def test_one_call_wakes_as_many_waiters_as_it_has_entries_for(world: World, api: Dispatcher) -> None:
    waiters = [world.waiter(api, max_n=2) for _ in range(3)]
    pid = world.agent()
    ids = world.queue.enqueue_many([ScheduleSpec(pid)] * 3)
    assert [waiter.outcome() for waiter in waiters[:2]] == [ids[:2], ids[2:]]
    assert not waiters[2].is_done
    last = world.put(pid)
    assert waiters[2].outcome() == [last]


def test_a_newcomer_takes_nothing_from_those_who_wait(world: World, api: Dispatcher) -> None:
    waiter = world.waiter(api)
    pid = world.agent()
    first = world.put(pid)
    assert waiter.outcome() == [first]
    assert api.claim("newcomer") == []


def test_a_waiter_that_cannot_use_an_entry_does_not_block_others(world: World, api: Dispatcher) -> None:
    plain, gpu = world.waiter(api), world.waiter(api, kinds=("gpu",))
    pid = world.agent()
    for_gpu = world.put(pid, kind="gpu")
    assert gpu.outcome() == [for_gpu]
    assert not plain.is_done
    for_any = world.put(pid)
    assert plain.outcome() == [for_any]


def test_a_waiter_without_the_admission_check_is_served_where_others_are_not(world: World) -> None:
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 1})
    world.ledger.charge(pid, "tokens", 2)
    checked, unchecked = world.waiter(), world.waiter(admission_check=False)
    sched_id = world.put(pid)
    assert unchecked.outcome() == [sched_id]
    assert not checked.is_done
    world.ledger.update_grant(pid, "tokens", 5)
    other = world.put(pid)
    assert checked.outcome() == [other]


# --- timeouts ------------------------------------------------------------------------------------


def test_a_waiter_gives_up_at_its_time_and_takes_nothing_later(world: World, api: Dispatcher) -> None:
    waiter = world.waiter(api, wait_s=30.0)
    world.clock.until_parked()
    world.clock.advance(29)
    assert not waiter.is_done
    world.clock.advance(1)
    assert waiter.outcome() == []
    sched_id = world.put(world.agent())
    assert world.state(sched_id) == "queued"


def test_a_claim_without_wait_returns_immediately(world: World, api: Dispatcher) -> None:
    assert api.claim("impatient", wait_s=0.0) == []
    sched_id = world.put(world.agent())
    assert [entry.sched_id for entry in api.claim("impatient", wait_s=10.0)] == [sched_id]


def test_a_waiter_that_times_out_leaves_no_trace(world: World, api: Dispatcher) -> None:
    pid = world.agent()
    world.agents.pause(pid, "anna")
    world.put(pid)
    before = world.everything()
    waiter = world.waiter(api, wait_s=5.0)
    world.clock.until_parked()
    world.clock.advance(5)
    assert waiter.outcome() == []
    assert world.everything() == before


def test_closing_the_store_wakes_parked_claims() -> None:
    world = World()
    waiter = world.waiter()
    world.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        waiter.outcome()


def test_a_run_can_be_ended_and_the_next_one_waited_for_in_one_call(world: World) -> None:
    pid = world.agent()
    first = world.put(pid)
    token = world.take_one().token
    writer: Any = world.store
    caller = Caller(
        lambda: world.dispatcher.complete_and_claim([Completion(first, "completed", token)], worker_id="w", wait_s=50.0)
    )
    world.clock.until_parked()
    assert world.state(first) == "completed"  # durable before the waiting began
    assert writer.parked == 1
    second = world.put(pid)
    result = caller.outcome()
    assert result.answers == [("dispatched", "completed")]
    assert [entry.sched_id for entry in result.entries] == [second]

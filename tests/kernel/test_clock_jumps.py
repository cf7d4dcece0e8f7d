"""When the wall clock jumps: claims last for elapsed time, dates are dates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.clock import ManualClock
from rota.errors import SchedUnknownId
from rota.kernel.maintenance import JUMP_MIN_S
from rota.model.events import ClaimsExtended, ClockJumped
from tests.kernel.world import START, World


@pytest.mark.parametrize("by_s", [7_200.0, -900.0])
def test_a_jump_of_the_clock_moves_live_claims_with_it_and_expires_none(world: World, pid: int, by_s: float) -> None:
    ids = [world.put(pid) for _ in range(3)]
    world.take(3, claim_timeout_s=60)
    world.clock.advance(20)
    cursor = world.journal.cursor()
    world.clock.jump(by_s)
    assert world.take() == []
    assert [world.queue.get(each).claim_expires_at for each in ids] == [START + 60 + by_s] * 3
    assert world.facts(cursor) == [ClockJumped(by_s=by_s), ClaimsExtended(by_s=by_s, count=3)]
    world.clock.advance(39)  # what is left of the minute is still left
    assert world.take() == []
    assert {world.state(each) for each in ids} == {"dispatched"}
    world.clock.advance(1)
    world.queue.upkeep()
    assert {world.state(each) for each in ids} == {"queued:backoff"}


@pytest.mark.parametrize("by_s", [JUMP_MIN_S, -JUMP_MIN_S])
def test_a_little_drift_is_no_jump(world: World, pid: int, by_s: float) -> None:
    sched_id = world.put(pid)
    world.take_one(claim_timeout_s=60)
    cursor = world.journal.cursor()
    world.clock.jump(by_s)
    world.queue.upkeep()
    assert world.facts(cursor) == []
    assert world.queue.get(sched_id).claim_expires_at == START + 60


@pytest.mark.parametrize("by_s", [7_200.0, -900.0])
def test_a_heartbeat_that_is_the_first_to_see_a_jump_loses_nothing_and_gains_nothing(
    world: World, pid: int, by_s: float
) -> None:
    beating, silent = world.put(pid), world.put(pid)
    tokens = {entry.sched_id: entry.token or 0 for entry in world.take(2, claim_timeout_s=60)}
    world.clock.advance(20)
    world.clock.jump(by_s)
    assert world.queue.heartbeat(beating, tokens[beating]).claim_expires_at == START + 80 + by_s
    world.queue.upkeep()
    assert world.queue.get(beating).claim_expires_at == START + 80 + by_s
    assert world.queue.get(silent).claim_expires_at == START + 60 + by_s


def test_gc_dispatched_that_is_the_first_to_see_a_jump_takes_nothing_back(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.take_one()
    world.clock.advance(10)
    world.clock.jump(7_200)
    assert world.queue.gc_dispatched(60) == 0
    assert world.state(sched_id) == "dispatched"
    world.clock.advance(51)
    assert world.queue.gc_dispatched(60) == 1


def test_jumps_there_and_back_leave_a_claim_as_it_was(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.take_one(claim_timeout_s=60)
    for by_s in (3_600.0, -3_600.0, -500.0, 500.0):
        world.clock.jump(by_s)
        world.queue.upkeep()
    assert world.queue.get(sched_id).claim_expires_at == START + 60
    assert sum(isinstance(fact, ClockJumped) for fact in world.facts()) == 4


def test_delays_and_deadlines_are_dates_and_follow_the_wall_clock(world: World, pid: int) -> None:
    later, late = world.put(pid, runnable_at=START + 1_000), world.put(pid, deadline=START + 500)
    world.clock.jump(1_000)
    assert world.take_ids() == [later]
    assert world.state(late) == "expired"


def test_two_kernels_on_one_file_notice_one_jump_once(tmp_path: Path) -> None:
    clock = ManualClock(START)
    one = World(str(tmp_path / "rota.db"), clock)
    two = World(str(tmp_path / "rota.db"), clock)
    sched_id = one.put(one.agent())
    one.take_one(claim_timeout_s=60)
    clock.jump(3_600)
    for world in (two, one, two):
        assert world.take() == []
    assert one.queue.get(sched_id).claim_expires_at == START + 3_660
    assert sum(isinstance(fact, ClockJumped) for fact in one.facts()) == 1
    one.close()
    two.close()


@pytest.mark.parametrize("by_s", [3_600.0, -900.0])
def test_a_kernel_that_started_after_a_jump_keeps_its_claims_when_an_older_one_wakes(
    tmp_path: Path, by_s: float
) -> None:
    clock = ManualClock(START)
    old = World(str(tmp_path / "rota.db"), clock)
    pid = old.agent()
    before, after = old.put(pid), old.put(pid)
    old.take(1, claim_timeout_s=60)
    clock.jump(by_s)
    new = World(str(tmp_path / "rota.db"), clock)
    new.take(1, claim_timeout_s=60)
    old.queue.upkeep()
    expiries = [old.queue.get(each).claim_expires_at for each in (before, after)]
    assert expiries == [START + by_s + 60, START + by_s + 60]
    old.close()
    new.close()


def test_a_jump_that_was_seen_in_a_write_that_failed_is_seen_again(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.take_one(claim_timeout_s=60)
    world.clock.jump(3_600)
    with pytest.raises(SchedUnknownId):
        world.queue.force_claim(99, worker_id="w")
    assert world.take() == []
    assert world.queue.get(sched_id).claim_expires_at == START + 3_660

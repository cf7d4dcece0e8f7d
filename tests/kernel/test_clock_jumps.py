"""When the wall clock jumps: claims last for elapsed time, dates are dates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.clock import JUMP_MIN_S, ManualClock
from rota.errors import SchedInvalidPayload, SchedUnknownId
from rota.kernel import KernelState, ScheduleSpec
from rota.kernel.environment import SEEN_EVERY_S
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
    assert world.facts(cursor) == [
        ClockJumped(by_s=by_s, moved={"claims": 3}),
        ClaimsExtended(by_s=by_s, count=3),
    ]
    world.clock.advance(39)  # what is left of the minute is still left
    assert world.take() == []
    assert {world.state(each) for each in ids} == {"dispatched"}
    world.clock.advance(1)
    world.queue.upkeep()
    assert {world.state(each) for each in ids} == {"queued:backoff"}


@pytest.mark.parametrize("by_s", [0.99 * JUMP_MIN_S, -0.99 * JUMP_MIN_S])
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


def test_times_and_deadlines_are_dates_and_follow_the_wall_clock(world: World, pid: int) -> None:
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


# --- everything else that lasts -------------------------------------------------------------------


JUMPS = [-86_400.0, -3_600.0, 3_600.0, 86_400.0]
LATER = 1_700_000_000.0


@pytest.fixture
def later() -> Iterator[World]:
    """A world whose clock can be put back by a day."""
    world = World(clock=ManualClock(LATER))
    yield world
    world.close()


@pytest.mark.parametrize("by_s", JUMPS)
def test_a_delay_and_a_back_off_keep_their_length(later: World, by_s: float) -> None:
    pid = later.agent()
    delayed = later.put(pid, delay_s=30)
    waiting = later.put(pid, delay_s=60, after=(delayed,))
    failed = later.put(pid)
    later.queue.complete(failed, "crashed", token=later.take_one().token)
    back_off_s = later.queue.get(failed).runnable_at - later.now
    later.clock.jump(by_s)
    later.queue.upkeep()
    assert [later.queue.get(each).runnable_at - later.now for each in (delayed, waiting, failed)] == pytest.approx(
        [30, 60, back_off_s]
    )


@pytest.mark.parametrize("by_s", [-86_400.0, -0.5])
def test_a_ready_entry_stays_ready_when_the_clock_is_put_back(later: World, by_s: float) -> None:
    pid = later.agent()
    yielded, delayed = later.put(pid), later.put(pid, delay_s=5)
    later.queue.put_back(yielded, token=later.take_one().token or 0)
    later.clock.advance(5)
    later.queue.upkeep()
    later.clock.jump(by_s)
    assert sorted(later.take_ids()) == [yielded, delayed]


def test_an_entry_with_a_date_waits_again_when_the_clock_is_put_back(later: World) -> None:
    pid = later.agent()
    sched_id = later.put(pid, runnable_at=LATER + 10)
    later.clock.advance(10)
    later.queue.upkeep()
    assert later.state(sched_id) == "queued"
    later.clock.jump(-60)
    assert later.take() == []
    assert later.state(sched_id) == "queued:time"
    later.clock.advance(60)
    assert later.take_ids() == [sched_id]


def test_a_delay_excludes_a_date_and_a_deadline_before_its_end(later: World) -> None:
    pid = later.agent()
    for spec in ({"delay_s": 1, "runnable_at": 5.0}, {"delay_s": -1}, {"delay_s": float("nan")}, {"delay_s": "1"}):
        with pytest.raises(SchedInvalidPayload, match="delay_s"):
            ScheduleSpec(pid, **spec)
    with pytest.raises(SchedInvalidPayload, match="deadline"):
        later.put(pid, delay_s=10, deadline=LATER + 5)


@pytest.mark.parametrize("by_s", JUMPS)
def test_a_limit_comes_back_one_period_after_its_use(later: World, by_s: float) -> None:
    pid = later.agent()
    later.contexts.create(bound_to="name", bound_id="api", unit="requests", budget=1, period_s=60)
    later.put(pid, draws_on=("api",))
    second = later.put(pid, draws_on=("api",))
    later.take_one()
    later.clock.jump(by_s)
    later.clock.advance(59.9)
    assert later.take() == []
    later.clock.advance(0.2)
    assert later.take_ids() == [second]
    tables, journal = later.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables.at(later.now) == journal.at(later.now)


@pytest.mark.parametrize("by_s", JUMPS)
def test_a_quarantine_ends_after_its_own_time(later: World, by_s: float) -> None:
    pid = later.agent()
    later.kernel.supervision.quarantine(pid, 5, for_s=600)
    later.clock.jump(by_s)
    later.queue.upkeep()
    assert later.agents.get(pid).metadata["quarantined_until"] == pytest.approx(later.now + 600)


def test_many_small_steps_add_up_to_a_jump(later: World) -> None:
    pid = later.agent()
    sched_id = later.put(pid)
    later.take_one(claim_timeout_s=60)
    for _ in range(40):
        later.clock.jump(0.09)
        later.queue.upkeep()
    assert later.queue.get(sched_id).claim_expires_at == pytest.approx(later.now + 60, abs=JUMP_MIN_S)


# --- after a reboot -------------------------------------------------------------------------------


@pytest.mark.parametrize(("by_s", "left_s"), [(-86_400.0, 30.0), (0.0, 30.0), (10.0, 20.0), (86_400.0, 0.0)])
def test_after_a_reboot_a_clock_that_is_behind_keeps_lengths_and_one_that_is_ahead_has_passed(
    tmp_path: Path, by_s: float, left_s: float
) -> None:
    clock = ManualClock(LATER)
    world = World(str(tmp_path / "rota.db"), clock)
    sched_id = world.put(world.agent(), delay_s=30)
    world.close()
    clock.reboot(LATER + by_s)
    world = World(str(tmp_path / "rota.db"), clock)
    assert max(0.0, world.queue.get(sched_id).runnable_at - world.now) == pytest.approx(left_s)
    world.close()


def test_a_time_that_a_caller_gave_is_not_taken_for_the_last_one(tmp_path: Path) -> None:
    clock = ManualClock(LATER)
    world = World(str(tmp_path / "rota.db"), clock)
    pid = world.agent()
    delayed, _ = world.put(pid, delay_s=30), world.put(pid)
    world.queue.claim(worker_id="w", now=LATER + 20)  # its event has this time
    world.close()
    clock.reboot(LATER + 1)
    world = World(str(tmp_path / "rota.db"), clock)
    assert SEEN_EVERY_S < 20
    assert world.queue.get(delayed).runnable_at == LATER + 30
    world.close()

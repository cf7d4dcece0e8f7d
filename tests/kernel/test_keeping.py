"""Entries that would rather have a certain worker: kept for it, for a while, and never lost to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rota.errors import SchedIllegalTransition, SchedInvalidPayload
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.affinity import AFFINITY_WAIT_S, RELEASE_MAX
from rota.kernel.workers_seen import ABOUT_S, SEEN_MAX, Attendance
from rota.model.events import AffinityWaitSet, EntriesKept, EntriesReleased
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import START, World


@pytest.fixture
def busy(world: World, pid: int) -> int:
    """A run that "box" holds; the answer is its entry."""
    sched_id = world.put(pid)
    world.take(worker_id="box", claim_timeout_s=10**6)
    return sched_id


# --- for whom ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
def test_what_a_busy_worker_is_wanted_for_is_left_alone_by_others_and_taken_by_it(
    world: World, pid: int, desk: Dispatcher
) -> None:
    wanted = world.put(pid, affinity="box")
    assert world.state(wanted) == "queued:worker"
    assert desk.claim("other", 5) == []
    assert [entry.sched_id for entry in desk.claim("box", 5)] == [wanted]


def test_a_worker_that_is_not_about_is_not_waited_for(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    assert world.take_ids(worker_id="other") == [wanted]


def test_a_worker_that_asked_in_vain_a_moment_ago_is_about_and_one_long_silent_is_not(world: World, pid: int) -> None:
    assert world.take(worker_id="box") == []
    world.clock.advance(ABOUT_S - 1)
    assert world.state(world.put(pid, affinity="box")) == "queued:worker"
    world.clock.advance(1)
    assert world.state(world.put(pid, affinity="box")) == "queued"


def test_a_worker_of_another_process_is_known_by_what_it_holds(world: World, pid: int, busy: int) -> None:
    world.begin(Kernel(world.store))
    world.kernel._core.seen._seen_at.clear()  # as in a process that never saw it
    assert world.state(world.put(pid, affinity="box")) == "queued:worker"
    world.queue.complete(busy, "completed")  # by an operator, without the claim's token
    assert world.state(world.put(pid, affinity="box")) == "queued"


def test_who_names_a_worker_means_any_of_its_slots_and_who_names_slots_means_these(world: World, pid: int) -> None:
    for worker_id in ("box", "box/gpu"):
        world.take(worker_id=worker_id)
    any_slot, gpu, kind = (
        world.put(pid, affinity="box"),
        world.put(pid, affinity="box/gpu"),
        world.put(pid, affinity="box", kind="gpu"),
    )
    assert world.take_ids(worker_id="box") == [any_slot]
    assert world.take_ids(worker_id="box/gpu") == [gpu]
    assert world.take_ids(worker_id="box/gpu", kinds=("gpu",)) == [kind]


@pytest.mark.usefixtures("busy")
def test_of_many_that_are_kept_as_many_as_there_is_room_for_are_taken_first_things_first(
    world: World, pid: int
) -> None:
    low, high, middle = (world.put(pid, affinity="box", priority=priority) for priority in (1, 9, 5))
    world.queue.change(low, priority=7)
    assert world.take_ids(1, worker_id="box") == [high]
    assert world.take_ids(worker_id="other") == []  # the rest is kept on
    assert world.take_ids(worker_id="box") == [low, middle]


@pytest.mark.usefixtures("busy")
def test_what_a_worker_was_offered_and_left_for_something_better_is_for_everybody(world: World, pid: int) -> None:
    wanted, better = world.put(pid, affinity="box"), world.put(pid, priority=9)
    assert world.take_ids(1, worker_id="box") == [better]
    assert world.take_ids(worker_id="other") == [wanted]


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
def test_the_wait_is_over_at_its_very_end(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    world.clock.advance(AFFINITY_WAIT_S - 0.5)
    assert world.take_ids(worker_id="other") == []
    assert world.queue.upkeep() == START + AFFINITY_WAIT_S
    world.clock.advance(0.5)
    assert world.take_ids(worker_id="other") == [wanted]
    assert world.facts()[-2] == EntriesReleased(hold="worker", sched_ids=[wanted])


def test_one_that_becomes_ready_later_is_kept_from_then_on(world: World, pid: int, busy: int) -> None:
    later = world.put(pid, affinity="box", runnable_at=START + 50)
    follows = world.put(pid, affinity="box", after=(busy,))
    world.clock.advance(50)
    world.queue.upkeep()
    assert world.facts()[-1] == EntriesKept(hold="time", sched_ids=[later])
    world.clock.advance(10)
    world.queue.complete(busy, "completed", token=world.queue.get(busy).token)
    assert world.facts()[-1] == EntriesKept(hold="after", sched_ids=[follows])
    assert world.take_ids(worker_id="other") == []
    world.clock.advance(AFFINITY_WAIT_S - 10)
    assert world.take_ids(worker_id="other") == [later]
    world.clock.advance(10)
    assert world.take_ids(worker_id="other") == [follows]


@pytest.mark.usefixtures("busy")
def test_one_that_was_tried_before_goes_anywhere(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    (run,) = world.take(worker_id="box")
    world.queue.complete(wanted, "crashed", token=run.token)
    world.clock.advance(100)
    assert world.take_ids(worker_id="other") == [wanted]


@pytest.mark.usefixtures("busy")
def test_a_kept_entry_whose_deadline_passes_expires(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box", deadline=START + 5)
    world.clock.advance(6)
    assert world.take_ids(worker_id="box") == []
    assert world.state(wanted) == "expired"
    assert world.rows("SELECT * FROM kept_entries") == []


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("verb", ["draining", "stopped"])
def test_when_a_worker_leaves_nothing_is_kept_for_it_any_longer(world: World, pid: int, verb: str) -> None:
    wanted = [world.put(pid, affinity=name) for name in ("box", "box/gpu")]
    unlike = world.put(pid, affinity="box2")
    world.kernel.supervision.moved("box", "1", verb)
    later = world.put(pid, affinity="box")  # although it still holds a run
    assert world.take_ids(worker_id="other") == [*wanted, unlike, later]
    world.take(worker_id="box")  # it is back
    assert world.state(world.put(pid, affinity="box")) == "queued:worker"


def test_a_worker_whose_claim_expired_is_gone(world: World, pid: int) -> None:
    world.put(pid, max_attempts=1)
    world.take(worker_id="box", claim_timeout_s=10)
    world.clock.advance(10)
    world.queue.upkeep()
    assert world.state(world.put(pid, affinity="box")) == "queued"


# --- whatever an operator wants --------------------------------------------------------------------

LET_GO: dict[str, Callable[[World, int], object]] = {
    "release": lambda world, wanted: world.queue.release(wanted),
    "no wait": lambda world, _wanted: world.queue.set_affinity_wait(0),
}


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("how", LET_GO)
def test_a_kept_entry_can_be_let_go(world: World, pid: int, how: str) -> None:
    wanted = world.put(pid, affinity="box")
    waiter = world.waiter()
    LET_GO[how](world, wanted)
    assert waiter.outcome() == [wanted]
    assert world.rows("SELECT * FROM kept_entries") == []


@pytest.mark.usefixtures("busy")
def test_a_wish_is_no_reason_to_refuse_an_operator(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    assert world.queue.force_claim(wanted, worker_id="operator").worker_id == "operator"
    assert world.rows("SELECT * FROM kept_entries") == []


@pytest.mark.usefixtures("busy")
def test_a_kept_entry_that_is_put_off_waits_for_its_time_and_then_for_its_worker(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    world.queue.change(wanted, runnable_at=START + 20)
    assert world.state(wanted) == "queued:time"
    assert world.rows("SELECT * FROM kept_entries") == []
    world.clock.advance(20)
    world.queue.upkeep()
    assert world.state(wanted) == "queued:worker"


@pytest.mark.usefixtures("busy")
def test_a_kept_entry_that_is_cancelled_is_gone(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    world.queue.cancel(wanted)
    assert world.rows("SELECT * FROM kept_entries") == []
    with pytest.raises(SchedIllegalTransition):
        world.queue.release(wanted)


# --- the setting ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
def test_the_wait_is_a_setting_of_the_file_and_a_shorter_one_counts_at_once(world: World, pid: int) -> None:
    assert world.queue.affinity_wait() == AFFINITY_WAIT_S
    wanted = world.put(pid, affinity="box")
    world.queue.set_affinity_wait(5)
    assert world.facts()[-1] == AffinityWaitSet(wait_s=5, previous_s=AFFINITY_WAIT_S)
    cursor = world.journal.cursor()
    world.queue.set_affinity_wait(5)
    assert (world.queue.affinity_wait(), world.journal.cursor()) == (5.0, cursor)  # nothing new
    world.clock.advance(5)
    assert world.take_ids(worker_id="other") == [wanted]


@pytest.mark.usefixtures("busy")
def test_without_a_wait_nothing_is_kept(world: World, pid: int) -> None:
    world.queue.set_affinity_wait(0)
    assert world.state(world.put(pid, affinity="box")) == "queued"


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "soon", None, True])
def test_a_wait_that_is_no_time_is_refused(world: World, bad: object) -> None:
    with pytest.raises(SchedInvalidPayload, match="wait_s"):
        world.queue.set_affinity_wait(bad)  # type: ignore[arg-type]  # on purpose


# --- looking -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
def test_to_peek_as_the_worker_is_to_see_what_is_kept_for_it_and_to_change_nothing(world: World, pid: int) -> None:
    wanted, low = world.put(pid, affinity="box"), world.put(pid, priority=-1)
    before = world.everything()
    assert [entry.sched_id for entry in world.queue.peek(5)] == [low]
    assert [entry.sched_id for entry in world.queue.peek(5, worker_id="box")] == [wanted, low]
    assert world.everything() == before


# --- those who wait for work -----------------------------------------------------------------------


def test_of_two_that_wait_for_work_the_one_that_is_wanted_gets_it(world: World, pid: int) -> None:
    """The other asked first, asks the same, and gets nothing: its answer does not speak for the one that is wanted."""
    desk = Dispatcher(world.kernel)
    other = world.waiter_of(lambda: desk.claim("other", wait_s=10**5))
    box = world.waiter_of(lambda: desk.claim("box", wait_s=10**5))
    wanted = world.put(pid, affinity="box")
    assert [entry.sched_id for entry in box.outcome()] == [wanted]
    assert not other.is_done
    anybodys = world.put(pid)
    assert [entry.sched_id for entry in other.outcome()] == [anybodys]


@pytest.mark.usefixtures("busy")
def test_who_waits_for_work_is_handed_it_when_the_wait_for_another_is_over(world: World, pid: int) -> None:
    waiter = world.waiter()
    wanted = world.put(pid, affinity="box")
    world.clock.advance(AFFINITY_WAIT_S)
    world.pass_time_until_done(waiter)
    assert waiter.outcome() == [wanted]


# --- many ----------------------------------------------------------------------------------------


def test_many_that_are_kept_are_released_in_bounded_batches_and_cost_nobody_else_a_look(world: World, pid: int) -> None:
    world.take(worker_id="box")
    count = 2 * RELEASE_MAX + 1
    ids = world.queue.enqueue_many([ScheduleSpec(pid, affinity="box")] * count)
    plain = world.put(pid)
    assert world.take_ids(worker_id="other") == [plain]
    world.clock.advance(AFFINITY_WAIT_S)
    cursor = world.journal.cursor()
    taken: list[int] = []
    while some := world.take_ids(worker_id="other"):
        taken += some
    assert taken == ids
    released = [len(fact.sched_ids) for fact in world.facts(cursor) if isinstance(fact, EntriesReleased)]
    assert released == [RELEASE_MAX, RELEASE_MAX, 1]


def test_no_more_workers_are_remembered_than_the_limit_says() -> None:
    seen = Attendance()
    for number in range(SEEN_MAX + 5):
        seen.saw(f"w{number}", START + number)
    assert len(seen._seen_at) == SEEN_MAX
    assert "w4" not in seen._seen_at
    assert "w5" in seen._seen_at

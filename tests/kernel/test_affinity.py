"""Affinity: entries held for the worker they name, for a limited time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rota.errors import SchedIllegalTransition, SchedInvalidPayload
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.affinity import AFFINITY_WAIT_S, RELEASE_MAX
from rota.kernel.environment import ALIVE_S, WORKERS_MAX, WorkersSeen
from rota.model.events import AffinityWaitSet, EntriesHeldForWorker, EntriesReleased
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import START, World


@pytest.fixture
def busy(world: World, pid: int) -> int:
    """Start a run on "box"; returns its entry."""
    sched_id = world.put(pid)
    world.take(worker_id="box", claim_timeout_s=10**6)
    return sched_id


# --- which worker --------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
def test_an_entry_held_for_a_busy_worker_is_skipped_by_others_and_claimed_by_it(
    world: World, pid: int, api: Dispatcher
) -> None:
    wanted = world.put(pid, affinity="box")
    assert world.state(wanted) == "queued:worker"
    assert api.claim("other", 5) == []
    assert [entry.sched_id for entry in api.claim("box", 5)] == [wanted]


def test_an_entry_is_not_held_for_a_worker_that_is_not_alive(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    assert world.take_ids(worker_id="other") == [wanted]


def test_a_worker_with_an_empty_claim_is_alive_until_it_was_silent_too_long(world: World, pid: int) -> None:
    assert world.take(worker_id="box") == []
    world.clock.advance(ALIVE_S - 1)
    assert world.state(world.put(pid, affinity="box")) == "queued:worker"
    world.clock.advance(1)
    assert world.state(world.put(pid, affinity="box")) == "queued"


def test_a_worker_of_another_process_is_alive_while_it_holds_a_claim(world: World, pid: int, busy: int) -> None:
    world.begin(Kernel(world.store))
    world.kernel.env.workers_seen._seen_at.clear()  # like a process that has not seen it
    assert world.state(world.put(pid, affinity="box")) == "queued:worker"
    world.queue.complete(busy, "completed")  # by an operator, without the claim's token
    assert world.state(world.put(pid, affinity="box")) == "queued"


def test_a_worker_name_matches_all_its_slots_and_a_slot_name_only_those(world: World, pid: int) -> None:
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
def test_a_claim_releases_as_many_held_entries_as_it_requests_in_strict_order(world: World, pid: int) -> None:
    low, high, middle = (world.put(pid, affinity="box", priority=priority) for priority in (1, 9, 5))
    world.queue.change(low, priority=7)
    assert world.take_ids(1, worker_id="box") == [high]
    assert world.take_ids(worker_id="other") == []  # the rest is still held
    assert world.take_ids(worker_id="box") == [low, middle]


@pytest.mark.usefixtures("busy")
def test_a_released_entry_that_its_worker_did_not_claim_is_ready_for_all_workers(world: World, pid: int) -> None:
    wanted, better = world.put(pid, affinity="box"), world.put(pid, priority=9)
    assert world.take_ids(1, worker_id="box") == [better]
    assert world.take_ids(worker_id="other") == [wanted]


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
def test_a_hold_ends_exactly_when_its_wait_is_over(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    world.clock.advance(AFFINITY_WAIT_S - 0.5)
    assert world.take_ids(worker_id="other") == []
    assert world.queue.upkeep() == START + AFFINITY_WAIT_S
    world.clock.advance(0.5)
    assert world.take_ids(worker_id="other") == [wanted]
    assert world.facts()[-2] == EntriesReleased(hold="worker", sched_ids=[wanted])


def test_an_entry_that_becomes_ready_later_is_held_from_then_on(world: World, pid: int, busy: int) -> None:
    later = world.put(pid, affinity="box", runnable_at=START + 50)
    follows = world.put(pid, affinity="box", after=(busy,))
    world.clock.advance(50)
    world.queue.upkeep()
    assert world.facts()[-1] == EntriesHeldForWorker(hold="time", sched_ids=[later])
    world.clock.advance(10)
    world.queue.complete(busy, "completed", token=world.queue.get(busy).token)
    assert world.facts()[-1] == EntriesHeldForWorker(hold="after", sched_ids=[follows])
    assert world.take_ids(worker_id="other") == []
    world.clock.advance(AFFINITY_WAIT_S - 10)
    assert world.take_ids(worker_id="other") == [later]
    world.clock.advance(10)
    assert world.take_ids(worker_id="other") == [follows]


@pytest.mark.usefixtures("busy")
def test_a_second_attempt_is_not_held(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    (run,) = world.take(worker_id="box")
    world.queue.complete(wanted, "crashed", token=run.token)
    world.clock.advance(100)
    assert world.take_ids(worker_id="other") == [wanted]


@pytest.mark.usefixtures("busy")
def test_a_held_entry_whose_deadline_passes_expires(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box", deadline=START + 5)
    world.clock.advance(6)
    assert world.take_ids(worker_id="box") == []
    assert world.state(wanted) == "expired"
    assert world.rows("SELECT * FROM kept_entries") == []


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("verb", ["draining", "stopped"])
def test_when_a_worker_leaves_its_holds_end(world: World, pid: int, verb: str) -> None:
    wanted = [world.put(pid, affinity=name) for name in ("box", "box/gpu")]
    unlike = world.put(pid, affinity="box2")
    world.kernel.supervision.moved("box", "1", verb)
    later = world.put(pid, affinity="box")  # it still holds a run
    assert world.take_ids(worker_id="other") == [*wanted, unlike, later]
    world.take(worker_id="box")  # it claims again
    assert world.state(world.put(pid, affinity="box")) == "queued:worker"


def test_a_worker_whose_claim_expired_is_gone(world: World, pid: int) -> None:
    world.put(pid, max_attempts=1)
    world.take(worker_id="box", claim_timeout_s=10)
    world.clock.advance(10)
    world.queue.upkeep()
    assert world.state(world.put(pid, affinity="box")) == "queued"


# --- operators -------------------------------------------------------------------------------------

LET_GO: dict[str, Callable[[World, int], object]] = {
    "release": lambda world, wanted: world.queue.release(wanted),
    "no wait": lambda world, _wanted: world.queue.set_affinity_wait(0),
}


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("how", LET_GO)
def test_an_affinity_hold_can_be_released(world: World, pid: int, how: str) -> None:
    wanted = world.put(pid, affinity="box")
    waiter = world.waiter()
    LET_GO[how](world, wanted)
    assert waiter.outcome() == [wanted]
    assert world.rows("SELECT * FROM kept_entries") == []


@pytest.mark.usefixtures("busy")
def test_force_claim_ignores_an_affinity_hold(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    assert world.queue.force_claim(wanted, worker_id="operator").worker_id == "operator"
    assert world.rows("SELECT * FROM kept_entries") == []


@pytest.mark.usefixtures("busy")
def test_a_held_entry_that_is_postponed_waits_for_its_time_and_then_for_its_worker(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    world.queue.change(wanted, runnable_at=START + 20)
    assert world.state(wanted) == "queued:time"
    assert world.rows("SELECT * FROM kept_entries") == []
    world.clock.advance(20)
    world.queue.upkeep()
    assert world.state(wanted) == "queued:worker"


@pytest.mark.usefixtures("busy")
def test_a_held_entry_can_be_cancelled_like_any_other(world: World, pid: int) -> None:
    wanted = world.put(pid, affinity="box")
    world.queue.cancel(wanted)
    assert world.rows("SELECT * FROM kept_entries") == []
    with pytest.raises(SchedIllegalTransition):
        world.queue.release(wanted)


# --- the setting ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
def test_the_wait_is_a_setting_and_a_shorter_one_takes_effect_immediately(world: World, pid: int) -> None:
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
def test_with_a_wait_of_zero_nothing_is_held(world: World, pid: int) -> None:
    world.queue.set_affinity_wait(0)
    assert world.state(world.put(pid, affinity="box")) == "queued"


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "soon", None, True])
def test_an_invalid_wait_is_refused(world: World, bad: object) -> None:
    with pytest.raises(SchedInvalidPayload, match="wait_s"):
        world.queue.set_affinity_wait(bad)  # type: ignore[arg-type]  # on purpose


# --- looking -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("busy")
def test_peek_as_the_worker_shows_its_held_entries_and_changes_nothing(world: World, pid: int) -> None:
    wanted, low = world.put(pid, affinity="box"), world.put(pid, priority=-1)
    before = world.everything()
    assert [entry.sched_id for entry in world.queue.peek(5)] == [low]
    assert [entry.sched_id for entry in world.queue.peek(5, worker_id="box")] == [wanted, low]
    assert world.everything() == before


# --- parked claims ---------------------------------------------------------------------------------


def test_of_two_parked_claims_the_named_worker_gets_the_entry(world: World, pid: int) -> None:
    """The other worker parked first with an equal key and gets nothing; the named worker is tried anyway."""
    api = Dispatcher(world.kernel)
    other = world.waiter_of(lambda: api.claim("other", wait_s=10**5))
    box = world.waiter_of(lambda: api.claim("box", wait_s=10**5))
    wanted = world.put(pid, affinity="box")
    assert [entry.sched_id for entry in box.outcome()] == [wanted]
    assert not other.is_done
    anybodys = world.put(pid)
    assert [entry.sched_id for entry in other.outcome()] == [anybodys]


@pytest.mark.usefixtures("busy")
def test_a_parked_claim_gets_the_entry_when_the_hold_for_another_worker_ends(world: World, pid: int) -> None:
    waiter = world.waiter()
    wanted = world.put(pid, affinity="box")
    world.clock.advance(AFFINITY_WAIT_S)
    world.pass_time_until_done(waiter)
    assert waiter.outcome() == [wanted]


# --- many ----------------------------------------------------------------------------------------


def test_many_holds_are_released_in_bounded_batches_and_cost_other_claims_nothing(world: World, pid: int) -> None:
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


def test_the_number_of_remembered_workers_is_limited() -> None:
    seen = WorkersSeen(lambda: START)
    for number in range(WORKERS_MAX + 5):
        seen.mark_seen(f"w{number}", 0.0)
    assert len(seen._seen_at) == WORKERS_MAX
    assert "w4" not in seen._seen_at
    assert "w5" in seen._seen_at

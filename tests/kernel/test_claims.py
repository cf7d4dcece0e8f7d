"""Claims: how long they last, what their tokens fence off, and how they are taken back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedIllegalTransition, SchedInvalidPayload, SchedUnknownId, StaleClaim
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.claim_pass import CLAIM_BYTES_MAX
from rota.kernel.completion import backoff_s
from rota.kernel.maintenance import PROMOTE_MAX, RECLAIM_MAX, SWEEP_MAX
from rota.kernel.turn import CLAIM_MAX
from rota.model.checks import PAYLOAD_BYTES_MAX
from rota.model.events import EntriesReleased, EntriesReturned
from rota.model.work import Backoff
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import START, World

# --- how long a claim lasts ----------------------------------------------------------------------


def test_a_claim_lasts_an_hour_unless_its_worker_says_otherwise(world: World, pid: int) -> None:
    long, short = world.put(pid), world.put(pid)
    assert world.take(1)[0].claim_expires_at == START + 3_600
    assert world.take(1, claim_timeout_s=60)[0].claim_expires_at == START + 60
    assert (world.state(long), world.state(short)) == ("dispatched", "dispatched")


def test_a_claim_without_heartbeats_is_taken_back_when_it_expires_and_not_before(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.take_one(claim_timeout_s=60)
    world.clock.advance(59.9)
    assert world.take() == []
    assert world.state(sched_id) == "dispatched"
    world.clock.advance(0.1)
    assert world.take() == []  # it backs off first
    entry = world.queue.get(sched_id)
    assert (entry.state, entry.hold, entry.attempt, entry.outcome) == ("queued", "backoff", 1, "claim_expired")
    assert (entry.worker_id, entry.dispatched_at, entry.token, entry.claim_expires_at) == (None, None, None, None)
    world.clock.advance(1)
    again = world.take_one(worker_id="another")
    assert (again.sched_id, again.attempt, again.worker_id) == (sched_id, 2, "another")


def test_heartbeats_extend_a_claim(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    token = world.take_one(claim_timeout_s=60).token
    assert token is not None
    for n in range(1, 5):
        world.clock.advance(50)
        assert world.queue.heartbeat(sched_id, token) == (START + 50 * n + 60, False)
        assert world.take() == []
    world.clock.advance(60)
    world.queue.upkeep()
    assert world.state(sched_id) == "queued:backoff"


def test_many_heartbeats_each_have_their_own_answer(world: World, pid: int) -> None:
    ids = [world.put(pid) for _ in range(2)]
    tokens = [entry.token or 0 for entry in world.take(2)]
    world.clock.advance(1)
    good, stale, unknown = world.queue.heartbeat_many([(ids[0], tokens[0]), (ids[1], 1), (99, 1)])
    assert good == (START + 3_601, False)
    assert isinstance(stale, StaleClaim)
    assert isinstance(unknown, SchedUnknownId)
    assert world.queue.get(ids[1]).claim_expires_at == START + 3_600


def test_a_heartbeat_extends_its_claims_and_then_does_what_is_due(world: World, pid: int) -> None:
    own, lost, late = world.put(pid), world.put(pid), world.put(pid, deadline=START + 30)
    token = world.take(1, claim_timeout_s=60)[0].token or 0
    world.take(1, worker_id="dead", claim_timeout_s=60)
    world.clock.advance(59)
    world.queue.heartbeat(own, token, now=world.now)  # by a time that the caller gives, nothing is due
    assert (world.state(lost), world.state(late)) == ("dispatched", "queued")
    world.clock.advance(2)
    assert world.queue.heartbeat(own, token).claim_expires_at == world.now + 60
    assert [world.state(each) for each in (own, lost, late)] == ["dispatched", "queued:backoff", "expired"]


def test_a_heartbeat_that_is_late_itself_leaves_the_others_time_for_theirs(world: World, pid: int) -> None:
    """The store was away for longer than all claims last, or the machine was asleep."""
    own, other, dead = world.put(pid), world.put(pid), world.put(pid)
    claims = {each: world.take(1, worker_id=str(each), claim_timeout_s=60)[0].token or 0 for each in (own, other, dead)}
    world.clock.advance(90)
    late = world.put(pid, deadline=world.now + 5)
    world.queue.heartbeat(own, claims[own])
    world.clock.advance(10)
    world.queue.heartbeat(other, claims[other])
    assert [world.state(each) for each in (own, other, dead, late)] == ["dispatched"] * 3 + ["expired"]
    world.clock.advance(5)
    world.queue.heartbeat(own, claims[own])
    assert [world.state(each) for each in (own, other, dead)] == ["dispatched", "dispatched", "queued:backoff"]


def test_a_heartbeat_writes_no_event(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    token = world.take_one().token
    cursor = world.journal.cursor()
    world.queue.heartbeat(sched_id, token or 0)
    assert world.journal.cursor() == cursor


def test_expired_claims_are_taken_back_in_batches_and_none_is_forgotten(world: World, pid: int) -> None:
    world.queue.enqueue_many([ScheduleSpec(pid, max_attempts=1)] * (RECLAIM_MAX + 1))
    world.take(1_000, claim_timeout_s=10)
    world.take(1_000, claim_timeout_s=10)
    world.clock.advance(10)
    world.queue.upkeep()
    assert world.queue.counts() == {"completed": RECLAIM_MAX, "dispatched": 1}
    world.queue.upkeep()
    assert world.queue.counts() == {"completed": RECLAIM_MAX + 1}


def test_upkeep_says_when_the_next_thing_falls_due(world: World, pid: int) -> None:
    assert world.queue.upkeep() is None
    world.put(pid, deadline=START + 500)
    assert world.queue.upkeep() == START + 500
    world.put(pid, runnable_at=START + 90)
    assert world.queue.upkeep() == START + 90
    world.take(1, claim_timeout_s=30)
    assert world.queue.upkeep() == START + 30


# --- what a token fences off ---------------------------------------------------------------------


def test_tokens_only_ever_grow_and_a_claim_of_many_shares_one(world: World, pid: int) -> None:
    tokens = []
    for _ in range(3):
        world.queue.enqueue_many([ScheduleSpec(pid)] * 2)
        (token,) = {entry.token or 0 for entry in world.take(2)}
        tokens.append(token)
    assert tokens == sorted(set(tokens))


def test_a_worker_that_lost_its_claim_can_do_nothing_to_the_next_ones_run(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    old = world.take_one(claim_timeout_s=10).token or 0
    world.clock.advance(10)
    world.queue.upkeep()
    calls: list[Any] = [
        lambda: world.queue.heartbeat(sched_id, old),
        lambda: world.queue.complete(sched_id, "completed", token=old, result={"from": "a ghost"}),
        lambda: world.queue.charge(sched_id, {"tokens": 5}, token=old),
        lambda: world.queue.put_back(sched_id, token=old),
    ]

    def all_refused() -> None:
        before = world.everything()
        for call in calls:
            with pytest.raises(StaleClaim) as caught:
                call()
            assert (caught.value.code, caught.value.data["sched_id"]) == (-32136, sched_id)
        assert world.everything() == before

    all_refused()  # while it is queued
    world.clock.advance(5)
    new = world.take_one().token
    all_refused()  # while another runs it
    assert world.queue.complete(sched_id, "completed", token=new) == ("dispatched", "completed")
    all_refused()  # and when it has ended


def test_without_a_token_the_state_alone_guards(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    with pytest.raises(SchedIllegalTransition):
        world.queue.complete(sched_id, "completed")
    world.take_one()
    assert world.queue.complete(sched_id, "crashed") == ("dispatched", "completed")  # without a token it ends


def test_a_claim_that_is_over_but_not_yet_taken_back_can_still_be_ended_or_held(world: World, pid: int) -> None:
    ended, held = world.put(pid), world.put(pid)
    tokens = {entry.sched_id: entry.token or 0 for entry in world.take(2, claim_timeout_s=10)}
    world.clock.advance(11)
    assert world.queue.complete(ended, "completed", token=tokens[ended]) == ("dispatched", "completed")
    assert world.queue.heartbeat(held, tokens[held]).claim_expires_at == START + 21


# --- trying again --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry_on", "exit_kind", "retried"),
    [
        (("crashed",), "crashed", True),
        (("crashed",), "failed", False),
        (("crashed",), "cancelled", False),
        (("crashed", "failed"), "failed", True),
        ((), "crashed", False),
        (("completed",), "completed", True),
    ],
)
def test_a_run_is_tried_again_if_it_ended_in_a_way_its_spec_names(
    world: World, pid: int, retry_on: Any, exit_kind: str, retried: bool
) -> None:
    sched_id = world.put(pid, retry_on=retry_on)
    answer = world.queue.complete(sched_id, exit_kind, token=world.take_one().token, result={"n": 1})
    assert answer == ("dispatched", "queued" if retried else "completed")
    if retried:
        entry = world.queue.get(sched_id)
        assert (entry.result, entry.exit_kind, entry.completed_at) == (None, None, None)
        fact = world.facts()[-1]
        assert isinstance(fact, EntriesReturned)
        assert (fact.verb, fact.sched_ids) == ("retry", [sched_id])


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_run_is_tried_as_often_as_it_may_be_and_then_ends(world: World, pid: int, most: int) -> None:
    sched_id = world.put(pid, max_attempts=most)
    for attempt in range(1, most + 1):
        entry = world.take_one()
        assert entry.attempt == attempt
        state = "completed" if attempt == most else "queued"
        assert world.queue.complete(sched_id, "crashed", token=entry.token) == ("dispatched", state)
        world.clock.advance(1_000)
    assert world.take() == []
    entry = world.queue.get(sched_id)
    assert (entry.state, entry.exit_kind, entry.attempt) == ("completed", "crashed", most)


def test_lost_claims_count_as_attempts_and_the_last_one_ends_as_crashed(world: World, pid: int) -> None:
    sched_id = world.put(pid, max_attempts=2)
    for _ in range(2):
        world.take_one(claim_timeout_s=10)
        world.clock.advance(10)
        world.queue.upkeep()
        world.clock.advance(10)
    entry = world.queue.get(sched_id)
    assert (entry.state, entry.exit_kind, entry.outcome) == ("completed", "crashed", "claim_expired")
    returned = [fact for fact in world.facts() if isinstance(fact, EntriesReturned)]
    assert [fact.verb for fact in returned] == ["reclaim"]


def test_a_lost_claim_is_not_tried_again_where_crashes_are_not(world: World, pid: int) -> None:
    sched_id = world.put(pid, retry_on=("failed",))
    world.take_one(claim_timeout_s=10)
    world.clock.advance(10)
    world.queue.upkeep()
    assert world.state(sched_id) == "completed"


def test_the_backoff_doubles_up_to_its_cap(world: World, pid: int) -> None:
    sched_id = world.put(pid, max_attempts=20)
    pauses = []
    for _ in range(11):
        world.queue.complete(sched_id, "crashed", token=world.take_one().token)
        pauses.append(world.queue.get(sched_id).runnable_at - world.now)
        world.clock.advance(pauses[-1])
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]  # this world's jitter is always the longest delay


def test_a_spec_may_set_its_own_backoff(world: World, pid: int) -> None:
    sched_id = world.put(pid, backoff=Backoff(base_s=10.0, factor=3.0, cap_s=50.0))
    for pause in (10, 30):
        world.queue.complete(sched_id, "crashed", token=world.take_one().token)
        assert world.queue.get(sched_id).runnable_at == world.now + pause
        world.clock.advance(pause)


def test_a_backoff_of_zero_is_ready_immediately(world: World, pid: int) -> None:
    world.rng.share = 0.0
    sched_id = world.put(pid)
    world.queue.complete(sched_id, "crashed", token=world.take_one().token)
    assert world.state(sched_id) == "queued"
    assert world.take_one().attempt == 2


def test_jitter_comes_from_the_generator_that_was_given() -> None:
    def pauses(seed: int) -> list[float]:
        clock = ManualClock(START)
        kernel = Kernel(store.open(":memory:", clock=clock), rng=random.Random(seed))
        sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a"), max_attempts=9))
        found = []
        for _ in range(5):
            (entry,) = kernel.queue.claim(worker_id="w")
            kernel.queue.complete(sched_id, "crashed", token=entry.token)
            found.append(kernel.queue.get(sched_id).runnable_at - clock.now())
            clock.advance(1_000)
        kernel.store.close()
        return found

    assert pauses(1) == pauses(1) != pauses(2)
    assert all(0 <= pause <= 2**n for n, pause in enumerate(pauses(1)))


@given(st.floats(0, 1e6), st.floats(1, 1e6), st.floats(0, 1e6), st.integers(1, 1_000), st.integers(0, 2**32))
def test_a_backoff_is_between_zero_and_the_cap(
    base_s: float, factor: float, cap_s: float, attempt: int, seed: int
) -> None:
    pause = backoff_s(Backoff(base_s, factor, cap_s), attempt, random.Random(seed))
    assert 0 <= pause <= cap_s
    if attempt == 1:
        assert pause <= base_s


# --- returning to the queue ----------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["yield", "preempt"])
def test_a_run_that_is_put_back_is_ready_at_once_and_has_lost_no_attempt(world: World, pid: int, verb: Any) -> None:
    sched_id = world.put(pid, max_attempts=1)
    for _ in range(3):
        entry = world.take_one()
        assert entry.attempt == 1
        world.queue.put_back(sched_id, token=entry.token or 0, verb=verb)
        fact = world.facts()[-1]
        assert isinstance(fact, EntriesReturned)
        assert (fact.verb, fact.sched_ids) == (verb, [sched_id])
        back = world.queue.get(sched_id)
        assert (back.state, back.hold, back.worker_id, back.attempt) == ("queued", None, None, 0)


def test_a_run_can_be_put_back_for_later(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.queue.put_back(sched_id, token=world.take_one().token or 0, runnable_at=START + 30)
    assert (world.state(sched_id), world.take()) == ("queued:time", [])
    world.clock.advance(30)
    assert world.take_ids() == [sched_id]


def test_a_run_is_put_back_only_in_ways_there_are_and_by_its_holder(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    token = world.take_one().token or 0
    before = world.everything()
    with pytest.raises(SchedInvalidPayload):
        world.queue.put_back(sched_id, token=token, verb="retry")  # type: ignore[arg-type]
    with pytest.raises(SchedInvalidPayload):
        world.queue.put_back(sched_id, token=token, runnable_at=-1.0)
    with pytest.raises(SchedInvalidPayload):
        world.queue.put_back(sched_id, token=None)  # type: ignore[arg-type]
    with pytest.raises(SchedUnknownId):
        world.queue.put_back(99, token=token)
    assert world.everything() == before


# --- taking over and sweeping --------------------------------------------------------------------


def test_take_over_reclaims_the_entries_of_earlier_incarnations(world: World, pid: int) -> None:
    lost = [world.put(pid) for _ in range(2)]
    world.take(2, worker_id="sup", incarnation="first")
    mine, foreign = world.put(pid), world.put(pid)
    world.take(1, worker_id="sup", incarnation="second")
    world.take(1, worker_id="other", incarnation="first")
    assert world.queue.take_over("sup", "second") == 2
    assert [world.state(each) for each in lost] == ["queued:backoff"] * 2
    assert (world.state(mine), world.state(foreign)) == ("dispatched", "dispatched")
    before = world.everything()
    assert world.queue.take_over("sup", "second") == 0
    assert world.everything() == before


def test_a_worker_without_incarnation_is_taken_over_by_one_with_an_incarnation(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.take_one(worker_id="sup")
    assert world.queue.take_over("sup", "second") == 1
    assert world.state(sched_id) == "queued:backoff"


def test_take_over_in_batches_reclaims_all_entries(world: World, pid: int) -> None:
    world.queue.enqueue_many([ScheduleSpec(pid)] * (RECLAIM_MAX + 1))
    world.take(1_000, worker_id="sup", incarnation="first")
    world.take(1_000, worker_id="sup", incarnation="first")
    assert world.queue.take_over("sup", "second") == RECLAIM_MAX + 1


def test_gc_dispatched_goes_by_the_last_heartbeat(world: World, pid: int) -> None:
    silent, alive = world.put(pid), world.put(pid)
    tokens = {entry.sched_id: entry.token or 0 for entry in world.take(2)}
    world.clock.advance(50)
    world.queue.heartbeat(alive, tokens[alive])
    world.clock.advance(10)
    assert world.queue.gc_dispatched(60) == 0  # not longer ago than this
    assert world.queue.gc_dispatched(59.9) == 1
    assert (world.state(silent), world.state(alive)) == ("queued:backoff", "dispatched")
    assert world.queue.get(silent).attempt == 1
    assert world.queue.gc_dispatched(5, now=START + 1_000) == 1


@pytest.mark.parametrize("stale_seconds", [-1, float("nan"), float("inf"), True, "60", None])
def test_gc_dispatched_requires_a_duration(world: World, pid: int, stale_seconds: Any) -> None:
    world.put(pid)
    world.take_one()
    before = world.everything()
    with pytest.raises(SchedInvalidPayload):
        world.queue.gc_dispatched(stale_seconds)
    assert world.everything() == before


def test_gc_expired_loops_until_none_is_left(world: World, pid: int) -> None:
    world.queue.enqueue_many([ScheduleSpec(pid, deadline=START + 1)] * (SWEEP_MAX + 1))
    world.clock.advance(2)
    assert world.queue.gc_expired() == SWEEP_MAX + 1
    assert world.queue.counts() == {"expired": SWEEP_MAX + 1}


def test_a_claim_releases_what_is_due_a_thousand_at_a_time_in_strict_order(world: World, pid: int) -> None:
    specs = [ScheduleSpec(pid, runnable_at=START + 1 + n / 1_000) for n in range(PROMOTE_MAX)]
    early = world.queue.enqueue_many(specs)
    last = world.put(pid, runnable_at=START + 10, priority=9)
    world.clock.advance(10)
    assert world.take_ids(5) == [last, *early[:4]]
    released = [fact for fact in world.facts() if isinstance(fact, EntriesReleased)]
    assert [len(fact.sched_ids) for fact in released] == [PROMOTE_MAX]
    assert world.take_ids() == early[4:]


# --- large payloads ------------------------------------------------------------------------------


@pytest.mark.parametrize("lab", [False, True])
def test_a_claim_is_limited_by_size_and_the_rest_stays_for_the_next(world: World, api: Dispatcher, lab: bool) -> None:
    """A daemon cannot send a response that is too long, and its entries would be lost until the claim expires."""
    if lab:
        world.projects.create("lab", max_concurrent=500)
    pid = world.agent(project_id="lab" if lab else None)
    body = {"text": "x" * (PAYLOAD_BYTES_MAX - 100)}
    count = 2 * CLAIM_BYTES_MAX // PAYLOAD_BYTES_MAX + 1
    ids = world.queue.enqueue_many([ScheduleSpec(pid, payload=body, deadline=START + 10**6)] * count)
    taken: list[int] = []
    sizes: list[int] = []
    while entries := api.claim("worker", 1_000):
        taken += [entry.sched_id for entry in entries]
        sizes.append(len(entries))
    assert taken == ids
    most = CLAIM_BYTES_MAX // PAYLOAD_BYTES_MAX + 1
    assert sizes == [most, count - most]
    assert world.queue.counts() == {"dispatched": count}


def test_many_small_entries_are_all_taken_at_once_however_they_are_read(world: World, api: Dispatcher) -> None:
    pid = world.agent()
    ids = world.queue.enqueue_many([ScheduleSpec(pid, deadline=START + 10**6)] * CLAIM_MAX)
    assert [entry.sched_id for entry in api.claim("worker", CLAIM_MAX)] == ids

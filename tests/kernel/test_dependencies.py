"""Dependencies: waiting for predecessors, what happens when one fails, and batches of dependents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import SchedIllegalTransition, SchedInvalidPayload, SchedUnknownId
from rota.kernel import EntryFilter, ScheduleSpec
from rota.kernel.dependencies import DEPENDENTS_MAX
from rota.model.events import EntriesCancelled, EntriesChanged, EntriesReleased
from rota.model.reasons import AfterPredecessor
from rota.model.work import AFTER_MAX
from tests.kernel.world import START, World


def run(world: World, sched_id: int, exit_kind: str = "completed") -> None:
    """Run an entry to this exit kind."""
    world.queue.force_claim(sched_id, worker_id="worker")
    world.queue.complete(sched_id, exit_kind)


# --- waiting and release -------------------------------------------------------------------------


def test_an_entry_waits_until_every_predecessor_has_completed(world: World, pid: int) -> None:
    first, second = world.put(pid), world.put(pid)
    third = world.put(pid, after=(first, second), priority=9)
    assert world.state(third) == "queued:after"
    assert world.reasons_against(third) == [AfterPredecessor(waiting_for=(first, second))]
    run(world, first)
    assert world.reasons_against(third) == [AfterPredecessor(waiting_for=(second,))]
    assert world.take_ids() == [second]
    world.queue.complete(second, "completed")
    assert world.facts()[-1] == EntriesReleased(hold="after", sched_ids=[third])
    assert world.take_ids() == [third]


def test_an_entry_does_not_wait_for_a_predecessor_that_has_completed(world: World, pid: int) -> None:
    first = world.put(pid)
    run(world, first)
    second = world.put(pid, after=(first,))
    assert world.state(second) == "queued"


def test_an_entry_released_before_its_runnable_at_waits_for_it(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,), runnable_at=START + 10)
    run(world, first)
    assert world.state(second) == "queued:time"
    world.clock.advance(10)
    assert world.take_ids() == [second]


def test_an_entry_whose_runnable_at_passed_while_it_waited_is_ready_immediately(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,), runnable_at=START + 10)
    world.clock.advance(20)
    assert world.take_ids() == [first]
    assert world.state(second) == "queued:after"
    world.queue.complete(first, "completed")
    assert world.take_ids() == [second]


def test_an_entry_whose_deadline_passes_while_it_waits_expires(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,), deadline=START + 10)
    third = world.put(pid, after=(second,))
    world.clock.advance(11)
    assert world.queue.gc_expired() == 1  # its dependent is cancelled, not swept
    assert [world.state(each) for each in (first, second, third)] == ["queued", "expired", "cancelled"]


def test_a_predecessor_named_twice_counts_once(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first, first))
    run(world, first)
    assert world.take_ids() == [second]


def test_dependents_wait_through_all_attempts_of_a_predecessor(world: World, pid: int) -> None:
    first = world.put(pid, max_attempts=3)
    second = world.put(pid, after=(first,))
    for _ in range(2):
        world.queue.complete(first, "crashed", token=world.take_one().token)
        assert world.state(second) == "queued:after"
        world.clock.advance(10)
    world.queue.complete(first, "completed", token=world.take_one().token)
    assert world.take_ids() == [second]


def test_dependents_still_wait_for_a_predecessor_that_yields_or_loses_its_claim(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,))
    token = world.take_one(claim_timeout_s=10).token
    assert token is not None
    world.queue.put_back(first, token=token)
    assert world.state(second) == "queued:after"
    world.take_one(claim_timeout_s=10)
    world.clock.advance(11)
    world.queue.upkeep()
    assert [world.state(each) for each in (first, second)] == ["queued:backoff", "queued:after"]


# --- in one call ---------------------------------------------------------------------------------


def test_a_chain_can_be_enqueued_in_one_call_with_negative_after(world: World, pid: int) -> None:
    specs = [ScheduleSpec(pid), ScheduleSpec(pid, after=(-1,)), ScheduleSpec(pid, after=(-1, -2))]
    first, second, third = world.queue.enqueue_many(specs)
    assert world.take_ids() == [first]
    world.queue.complete(first, "completed")
    assert world.take_ids() == [second]
    world.queue.complete(second, "completed")
    assert world.take_ids() == [third]


def test_an_entry_can_wait_for_old_and_new_entries(world: World, pid: int) -> None:
    old = world.put(pid)
    first, last = world.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid, after=(old, -1))])
    assert world.reasons_against(last) == [AfterPredecessor(waiting_for=(old, first))]


@pytest.mark.parametrize("specs", [[(-1,)], [(), (-2,)], [(), (), (-1, -3)]])
def test_counting_back_beyond_the_call_is_refused(world: World, pid: int, specs: list[tuple[int, ...]]) -> None:
    world.put(pid)
    before = world.everything()
    with pytest.raises(SchedInvalidPayload) as caught:
        world.queue.enqueue_many([ScheduleSpec(pid, after=after) for after in specs])
    assert caught.value.field == "after"
    assert world.everything() == before


def test_a_predecessor_must_exist_so_there_is_no_cycle(world: World, pid: int) -> None:
    first = world.put(pid)
    before = world.everything()
    with pytest.raises(SchedUnknownId) as caught:
        world.put(pid, after=(first, first + 1))  # itself
    assert caught.value.sched_id == first + 1
    with pytest.raises(SchedUnknownId):
        world.queue.enqueue_many([ScheduleSpec(pid, after=(first + 2,)), ScheduleSpec(pid)])  # the one behind it
    assert world.everything() == before


def test_an_entry_may_have_as_many_predecessors_as_the_limit_says(world: World, pid: int) -> None:
    ids = world.queue.enqueue_many([ScheduleSpec(pid)] * (AFTER_MAX + 1))
    last = world.put(pid, after=tuple(ids[:AFTER_MAX]))
    with pytest.raises(SchedInvalidPayload, match="at most 256"):
        ScheduleSpec(pid, after=tuple(ids))
    for sched_id in ids[:AFTER_MAX]:
        assert world.state(last) == "queued:after"
        run(world, sched_id)
    assert world.state(last) == "queued"


# --- when one fails ------------------------------------------------------------------------------

BAD_ENDS: dict[str, Callable[[World, int], object]] = {
    "failed": lambda world, sched_id: run(world, sched_id, "failed"),
    "crashed": lambda world, sched_id: run(world, sched_id, "crashed"),
    "ended as cancelled": lambda world, sched_id: run(world, sched_id, "cancelled"),
    "cancelled": lambda world, sched_id: world.queue.cancel(sched_id),
    "cancelled by filter": lambda world, _: world.queue.cancel_where(EntryFilter(tag="first")),
    "expired": lambda world, _: world.queue.gc_expired(now=START + 51),
}


@pytest.mark.parametrize("end", BAD_ENDS)
@pytest.mark.parametrize(("on_failed", "state"), [("cancel", "cancelled"), ("run", "queued"), ("hold", "queued:after")])
def test_when_a_predecessor_does_not_complete_on_failed_decides(
    world: World, pid: int, end: str, on_failed: Any, state: str
) -> None:
    first = world.put(pid, deadline=START + 50, tags=("first",))
    second = world.put(pid, after=(first,), on_failed=on_failed)
    BAD_ENDS[end](world, first)
    assert world.state(second) == state
    late = world.put(pid, after=(first,), on_failed=on_failed)  # also if it is enqueued after the failure
    assert world.state(late) == state
    if state == "cancelled":
        for sched_id in (second, late):
            entry = world.queue.get(sched_id)
            assert (entry.outcome, entry.completed_at is not None, entry.hold) == ("predecessor_failed", True, None)


def test_cancelling_cancels_all_transitive_dependents(world: World, pid: int) -> None:
    ids = world.queue.enqueue_many([ScheduleSpec(pid)] + [ScheduleSpec(pid, after=(-1,))] * 5)
    free = world.put(pid)
    run(world, ids[0], "failed")
    assert [world.state(each) for each in ids] == ["completed"] + ["cancelled"] * 5
    assert world.facts()[-1] == EntriesCancelled(sched_ids=ids[1:], reason="predecessor_failed")
    assert world.take_ids() == [free]


def test_cancelling_stops_at_a_dependent_with_on_failed_run(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,))
    third = world.put(pid, after=(second,), on_failed="run")
    fourth = world.put(pid, after=(third,))
    run(world, first, "failed")
    assert [world.state(each) for each in (second, third, fourth)] == ["cancelled", "queued", "queued:after"]
    assert world.take_ids() == [third]
    world.queue.complete(third, "completed")
    assert world.take_ids() == [fourth]


def test_one_failure_cancels_immediately_and_on_failed_run_waits_for_all(world: World, pid: int) -> None:
    first, second = world.put(pid), world.put(pid)
    strict = world.put(pid, after=(first, second))
    easy = world.put(pid, after=(first, second), on_failed="run")
    run(world, first, "failed")
    assert [world.state(each) for each in (strict, easy)] == ["cancelled", "queued:after"]
    run(world, second)
    assert world.state(easy) == "queued"


def test_a_held_entry_can_be_cancelled(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,), on_failed="hold")
    run(world, first, "failed")
    assert world.reasons_against(second) == [AfterPredecessor(waiting_for=(first,))]
    assert world.queue.cancel(second) == ("queued", "cancelled")


def test_a_held_entry_can_be_released_and_the_journal_records_it(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,), on_failed="hold")
    run(world, first, "failed")
    assert world.take() == []
    assert world.queue.release(second).hold is None
    assert world.facts()[-2:] == [
        EntriesChanged(sched_ids=[second], changes={"on_failed": "run"}),
        EntriesReleased(hold="after", sched_ids=[second]),
    ]
    assert world.take_ids() == [second]


def test_a_released_entry_still_waits_for_running_predecessors(world: World, pid: int) -> None:
    first, other = world.put(pid), world.put(pid)
    second = world.put(pid, after=(first, other), on_failed="hold")
    run(world, first, "failed")
    assert world.queue.release(second).hold == "after"
    run(world, other, "failed")
    assert world.take_ids() == [second]


def test_only_an_entry_that_waits_for_others_can_be_released(world: World, pid: int) -> None:
    ready, later = world.put(pid), world.put(pid, runnable_at=world.now + 9)
    before = world.facts()
    for sched_id in (ready, later):
        with pytest.raises(SchedIllegalTransition, match="release"):
            world.queue.release(sched_id)
    with pytest.raises(SchedUnknownId):
        world.queue.release(99)
    assert world.facts() == before


def test_a_failure_that_is_retried_does_not_count_as_failed(world: World, pid: int) -> None:
    first = world.put(pid, retry_on=("failed",))
    second = world.put(pid, after=(first,))
    world.queue.complete(first, "failed", token=world.take_one().token)
    assert [world.state(each) for each in (first, second)] == ["queued:backoff", "queued:after"]


# --- batches -------------------------------------------------------------------------------------


def counts(world: World) -> dict[str, int]:
    return world.queue.counts()


@pytest.mark.parametrize("more", [0, 1])
def test_dependents_are_resolved_in_batches_at_the_limit_and_one_past_it(world: World, pid: int, more: int) -> None:
    first = world.put(pid)
    world.queue.enqueue_many([ScheduleSpec(pid, after=(first,))] * (DEPENDENTS_MAX + more))
    run(world, first)
    found = counts(world)
    assert (found["queued"], found.get("queued:after", 0)) == (DEPENDENTS_MAX, more)
    world.queue.upkeep()  # maintenance resolves the rest
    found = counts(world)
    assert (found["queued"], found.get("queued:after", 0)) == (DEPENDENTS_MAX + more, 0)
    assert world.rows("SELECT count(*) FROM entry_fallout") == [(0,)]


@pytest.mark.parametrize("more", [0, 1])
def test_a_failure_cancels_a_chain_in_batches(world: World, pid: int, more: int) -> None:
    chain = world.queue.enqueue_many([ScheduleSpec(pid)] + [ScheduleSpec(pid, after=(-1,))] * (DEPENDENTS_MAX + more))
    run(world, chain[0], "failed")
    assert counts(world).get("queued:after", 0) == more
    world.queue.upkeep()
    assert counts(world) == {"completed": 1, "cancelled": DEPENDENTS_MAX + more}
    fact = [fact for fact in world.facts() if isinstance(fact, EntriesCancelled)]
    assert [len(each.sched_ids) for each in fact] == [DEPENDENTS_MAX] + [1] * more


def test_cancelling_many_by_filter_resolves_all_dependents(world: World, pid: int) -> None:
    heads = world.queue.enqueue_many([ScheduleSpec(pid, tags=("head",))] * 600)
    world.queue.enqueue_many([ScheduleSpec(pid, after=(head,)) for head in heads] * 3)
    assert world.queue.cancel_where(EntryFilter(tag="head")) == 600
    while world.rows("SELECT count(*) FROM entry_fallout") != [(0,)]:
        world.queue.upkeep()
    assert counts(world) == {"cancelled": 2_400}


def test_a_claim_resolves_pending_dependents_first(world: World, pid: int) -> None:
    first = world.put(pid)
    ids = world.queue.enqueue_many([ScheduleSpec(pid, after=(first,), priority=n) for n in range(DEPENDENTS_MAX + 1)])
    run(world, first)
    assert world.take_ids(1) == ids[-1:]  # the highest, which the end itself did not reach


# --- a law ---------------------------------------------------------------------------------------

GRAPHS = st.lists(
    st.tuples(st.lists(st.integers(0, 30), max_size=3), st.sampled_from(["cancel", "run", "hold"])), max_size=9
)


@given(GRAPHS, st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["completed", "failed"])), max_size=12))
def test_in_any_graph_an_entry_is_ready_cancelled_or_held_as_its_predecessors_say(
    graph: list[tuple[list[int], Any]], ends: list[tuple[int, str]]
) -> None:
    world = World()
    pid = world.agent()
    edges: dict[int, tuple[set[int], str]] = {}
    for targets, on_failed in graph:
        known = list(edges)
        after = tuple(known[wish % len(known)] for wish in targets) if known else ()
        edges[world.put(pid, after=after, on_failed=on_failed)] = set(after), on_failed
    for wish, exit_kind in ends:
        ready = [each for each in edges if world.state(each) == "queued"]
        if ready:
            run(world, ready[wish % len(ready)], exit_kind)
        for sched_id, (predecessors, on_failed) in edges.items():
            if world.queue.get(sched_id).state != "completed":
                assert world.state(sched_id) == _should_be(world, predecessors, on_failed)
    world.close()


def _should_be(world: World, predecessors: set[int], on_failed: str) -> str:
    entries = [world.queue.get(each) for each in predecessors]
    is_good = [each.state == "completed" and each.exit_kind == "completed" for each in entries]
    has_ended = [each.state != "queued" for each in entries]
    if all(is_good) or (on_failed == "run" and all(has_ended)):
        return "queued"
    if on_failed == "cancel" and any(end and not good for end, good in zip(has_ended, is_good, strict=True)):
        return "cancelled"
    return "queued:after"

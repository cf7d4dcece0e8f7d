"""Entries that are not running: changing, cancelling and retrying them."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import SchedIllegalTransition, SchedInvalidPayload, SchedInvalidStateFilter
from rota.kernel import EntryFilter, ScheduleSpec
from rota.kernel.entries import BATCH_MAX
from rota.model.events import CancelRequested, EntriesCancelled, EntriesChanged
from tests.kernel.world import START, World

# --- changing queued entries ---------------------------------------------------------------------


def test_a_changed_priority_changes_the_order_and_is_recorded(world: World, pid: int) -> None:
    first, second = world.put(pid), world.put(pid)
    entry = world.queue.change(second, priority=5)
    assert entry == world.queue.get(second)
    assert world.facts()[-1] == EntriesChanged(sched_ids=[second], changes={"priority": 5})
    assert world.take_ids() == [second, first]


def test_a_changed_runnable_at_holds_or_releases_an_entry(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.queue.change(sched_id, runnable_at=START + 50)
    assert (world.state(sched_id), world.take()) == ("queued:time", [])
    world.queue.change(sched_id, runnable_at=START + 20)
    world.clock.advance(19)
    assert world.take() == []
    world.queue.change(sched_id, runnable_at=0.0)
    assert world.state(sched_id) == "queued"
    assert world.take_ids() == [sched_id]


def test_a_changed_deadline_saves_an_entry_or_expires_it(world: World, pid: int) -> None:
    saved, doomed = world.put(pid, deadline=START + 1), world.put(pid)
    world.queue.change(saved, deadline=START + 100)
    world.queue.change(doomed, deadline=START + 1)
    world.clock.advance(2)
    assert world.take_ids() == [saved]
    assert world.state(doomed) == "expired"


def test_a_deadline_can_be_removed(world: World, pid: int) -> None:
    sched_id = world.put(pid, deadline=START + 1)
    assert world.queue.change(sched_id, priority=2).deadline == START + 1  # what is not given stays
    assert world.queue.change(sched_id, deadline=None).deadline is None
    assert world.facts()[-1] == EntriesChanged(sched_ids=[sched_id], changes={"deadline": None})
    world.clock.advance(2)
    assert world.take_ids() == [sched_id]


def test_changed_tags_replace_all_of_them_and_are_found_by_filters(world: World, pid: int) -> None:
    sched_id = world.put(pid, tags=("old", "both"), affinity="w1", retry_on=("failed",))
    entry = world.queue.change(sched_id, tags=("both", "new", "both"))
    assert entry.tags == ("both", "new")
    found = {tag: [each.sched_id for each in world.queue.list(tag=tag)[0]] for tag in ("old", "both", "new")}
    assert found == {"old": [], "both": [sched_id], "new": [sched_id]}
    assert world.queue.change(sched_id, tags=[]).tags == ()
    assert world.queue.list(tag="new")[0] == []
    plain = world.put(pid)
    assert world.queue.change(plain, tags=("x",)).tags == ("x",)  # also of one that had no options at all
    world.queue.complete(sched_id, "failed", token=world.take(9, worker_id="w1")[0].token)
    assert world.state(sched_id) == "queued:backoff"  # its other options are as they were


def test_a_change_may_not_put_the_deadline_before_the_time(world: World, pid: int) -> None:
    sched_id = world.put(pid, runnable_at=START + 10, deadline=START + 20)
    before = world.everything()
    wrong: list[dict[str, Any]] = [{"deadline": START + 5}, {"runnable_at": START + 21}]
    for changes in wrong:
        with pytest.raises(SchedInvalidPayload) as caught:
            world.queue.change(sched_id, **changes)
        assert caught.value.field == "deadline"
    assert world.everything() == before
    world.queue.change(sched_id, runnable_at=START + 30, deadline=START + 30)  # both at once, and equal


def test_a_backoff_can_be_ended_by_a_change(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.queue.complete(sched_id, "crashed", token=world.take_one().token)
    assert world.state(sched_id) == "queued:backoff"
    world.queue.change(sched_id, runnable_at=START)
    assert world.take_ids() == [sched_id]


def test_an_entry_that_waits_for_another_waits_on_whatever_is_changed(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,), runnable_at=START + 50)
    world.queue.change(second, runnable_at=0.0, priority=9)
    assert world.state(second) == "queued:after"
    assert world.take_ids() == [first]
    world.queue.change(second, runnable_at=START + 70)
    world.queue.complete(first, "completed")
    assert world.state(second) == "queued:time"  # released, and then its time counts


# --- cancelling ----------------------------------------------------------------------------------


def test_every_queued_entry_can_be_cancelled(world: World, pid: int) -> None:
    blocker = world.put(pid, priority=9)
    world.take(1)
    crashed = world.put(pid, priority=8)
    world.queue.complete(crashed, "crashed", token=world.take(1)[0].token)
    waiting = [world.put(pid), world.put(pid, runnable_at=START + 9), world.put(pid, after=(blocker,)), crashed]
    assert [world.state(each) for each in waiting] == ["queued", "queued:time", "queued:after", "queued:backoff"]
    for sched_id in waiting:
        assert world.queue.cancel(sched_id) == ("queued", "cancelled")
        entry = world.queue.get(sched_id)
        assert (entry.state, entry.hold, entry.completed_at) == ("cancelled", None, START)
    world.clock.advance(1_000)
    assert world.take(9) == []
    assert world.state(blocker) == "dispatched"


def test_cancelling_by_filter_takes_what_waits_and_nothing_else(world: World, pid: int) -> None:
    other = world.agent()
    running = world.put(pid, priority=9, tags=("x",))
    world.take(1)
    mine = [world.put(pid, tags=("x",)) for _ in range(3)]
    untagged, foreign = world.put(pid), world.put(other, tags=("x",))
    assert world.queue.cancel_where(EntryFilter(tag="x", pid=pid), reason="spring cleaning") == 3
    assert world.facts()[-1] == EntriesCancelled(sched_ids=mine, reason="spring cleaning")
    assert world.queue.get(mine[0]).outcome == "spring cleaning"
    assert [world.state(each) for each in (running, untagged, foreign)] == ["dispatched", "queued", "queued"]


@pytest.mark.parametrize("state", ["dispatched", "completed", "cancelled", "expired"])
def test_cancelling_by_filter_in_a_state_other_than_queued_cancels_nothing(world: World, pid: int, state: str) -> None:
    waiting = world.put(pid)
    assert world.queue.cancel_where(EntryFilter(state=state)) == 0
    assert world.state(waiting) == "queued"


@pytest.mark.parametrize(("count", "batches"), [(BATCH_MAX, [1_000]), (BATCH_MAX + 1, [1_000, 1])])
def test_cancelling_by_filter_goes_in_batches(world: World, pid: int, count: int, batches: list[int]) -> None:
    world.queue.enqueue_many([ScheduleSpec(pid)] * count)
    assert world.queue.cancel_where(EntryFilter(pid=pid)) == count
    facts = [fact for fact in world.facts() if isinstance(fact, EntriesCancelled)]
    assert [len(fact.sched_ids) for fact in facts] == batches


def test_an_invalid_filter_is_refused() -> None:
    with pytest.raises(SchedInvalidStateFilter):
        EntryFilter(state="bogus")
    with pytest.raises(SchedInvalidPayload):
        EntryFilter(exit_kind="exploded")
    with pytest.raises(SchedInvalidPayload):
        EntryFilter(pid=True)


def test_a_cancel_request_is_reported_at_the_next_heartbeat(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    token = world.take_one().token
    assert token is not None
    assert world.queue.heartbeat(sched_id, token).cancel_requested is False
    assert world.queue.request_cancel(sched_id, by="anna") == "dispatched"
    assert world.facts()[-1] == CancelRequested(sched_ids=[sched_id], by="anna")
    assert world.queue.get(sched_id).cancel_requested is True
    assert world.queue.heartbeat(sched_id, token).cancel_requested is True
    assert world.queue.complete(sched_id, "cancelled", token=token) == ("dispatched", "completed")
    entry = world.queue.get(sched_id)
    assert (entry.state, entry.exit_kind) == ("completed", "cancelled")


def test_a_run_that_was_asked_to_stop_is_not_tried_again(world: World, pid: int) -> None:
    by_itself, by_expiry, by_yield = (world.put(pid) for _ in range(3))
    tokens = {entry.sched_id: entry.token or 0 for entry in world.take(3, claim_timeout_s=10)}
    for sched_id in tokens:
        world.queue.request_cancel(sched_id)
    assert world.queue.complete(by_itself, "crashed", token=tokens[by_itself]) == ("dispatched", "completed")
    world.queue.put_back(by_yield, token=tokens[by_yield])
    world.clock.advance(11)
    assert world.take() == []
    assert [(world.state(each), world.queue.get(each).exit_kind) for each in (by_itself, by_expiry, by_yield)] == [
        ("completed", "crashed"),
        ("completed", "cancelled"),
        ("completed", "cancelled"),
    ]


def test_what_waits_is_cancelled_at_once_when_it_is_asked_to_stop(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    assert world.queue.request_cancel(sched_id, by="anna") == "cancelled"
    assert world.state(sched_id) == "cancelled"
    before = world.everything()
    with pytest.raises(SchedIllegalTransition):
        world.queue.request_cancel(sched_id)
    assert world.everything() == before


# --- retrying ------------------------------------------------------------------------------------


def test_retry_of_a_failed_entry_enqueues_a_copy(world: World, pid: int) -> None:
    failed = world.ended(pid, "failed", priority=4, payload={"n": 1}, tags=("x",), kind="gpu", max_attempts=5)
    good = world.ended(pid, "completed", tags=("x",))
    world.queue.cancel(cancelled := world.put(pid, tags=("x",), deadline=START + 5))
    waiting = world.put(pid, tags=("x",))
    again = world.queue.retry_where(EntryFilter(tag="x"))
    assert again.keys() == {failed, cancelled}
    copy = world.queue.get(again[failed])
    assert (copy.state, copy.priority, copy.payload, copy.tags, copy.kind) == ("queued", 4, {"n": 1}, ("x",), "gpu")
    assert (copy.attempt, copy.max_attempts, copy.exit_kind, copy.created_at) == (0, 5, None, START)
    assert (world.state(failed), world.state(good), world.state(waiting)) == ("completed", "completed", "queued")
    event = next(event for event in world.events() if event.payload.get("first_id") == copy.sched_id)
    assert event.causation_id == f"entry:{failed}"
    assert set(world.take_ids(kinds=("gpu",))) == {*again.values(), waiting}


def test_retry_of_a_backed_off_entry_makes_it_ready_under_its_own_id(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.queue.complete(sched_id, "crashed", token=world.take_one().token)
    assert world.take() == []
    assert world.queue.retry_where(EntryFilter(pid=pid)) == {sched_id: sched_id}
    (entry,) = world.take()
    assert (entry.sched_id, entry.attempt) == (sched_id, 2)


def test_retry_by_filter_skips_dead_agents(world: World, pid: int) -> None:
    dead = world.agent()
    ids = [world.ended(pid), world.ended(dead), world.ended(pid)]
    world.kernel.terminate(dead, "failed")
    again = world.queue.retry_where(EntryFilter(exit_kind="failed"))
    assert again.keys() == {ids[0], ids[2]}


def test_retry_by_filter_does_not_retry_its_own_copies(world: World, pid: int) -> None:
    for _ in range(BATCH_MAX + 5):
        world.queue.cancel(world.put(pid))
    assert len(world.queue.retry_where(EntryFilter(pid=pid))) == BATCH_MAX + 5
    assert world.queue.list(state="queued")[1] == BATCH_MAX + 5

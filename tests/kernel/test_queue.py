"""The queue: enqueueing entries, one or many at a time, and finding them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rota.errors import LimitExceeded, RotaError, SchedInvalidPayload, SchedUnknownId, UnknownPid
from rota.kernel import EntryFilter, ScheduleSpec
from rota.kernel.enqueue import ENQUEUE_MAX
from rota.kernel.entry_reads import LIST_BYTES_MAX
from rota.model.checks import PAYLOAD_BYTES_MAX, TAGS_MAX
from rota.model.events import EntriesEnqueued
from rota.model.reasons import AfterPredecessor
from tests.kernel.world import START, World

# --- many at once --------------------------------------------------------------------------------


def test_many_entries_get_numbers_that_follow_one_another(world: World, pid: int) -> None:
    ids = world.queue.enqueue_many([ScheduleSpec(pid, priority=n) for n in range(5)])
    assert ids == list(range(ids[0], ids[0] + 5))
    assert [world.queue.get(sched_id).priority for sched_id in ids] == list(range(5))
    assert world.facts()[-1] == EntriesEnqueued(first_id=ids[0], count=5)


def test_an_entry_is_stored_alike_however_it_came(world: World, pid: int) -> None:
    """An entry of which little is given is written by another statement, unless one beside it needs more."""
    simple = ScheduleSpec(pid, 4, payload={"n": 1})
    ids = [world.queue.enqueue(simple), *world.queue.enqueue_many([simple, simple])]
    ids += world.queue.enqueue_many([simple, ScheduleSpec(pid, runnable_at=START + 5)])[:1]
    ids += world.queue.enqueue_many([simple, ScheduleSpec(pid, after=(ids[0],))])[:1]
    rows = world.rows("SELECT * FROM agent_schedule_queue ORDER BY sched_id")
    kept = [row for row in rows if row[0] in ids]
    assert [row[0] for row in kept] == ids
    assert {row[1:] for row in kept} == {kept[0][1:]}


def test_the_fact_of_many_names_those_that_are_held_and_why(world: World, pid: int) -> None:
    first = world.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid, runnable_at=START + 5)])[0]
    assert world.facts()[-1] == EntriesEnqueued(first_id=first, count=2, held={"time": [first + 1]})
    world.queue.enqueue_many([ScheduleSpec(pid, runnable_at=START + 5, tags=("x",)), ScheduleSpec(pid, after=(-1,))])
    fact = EntriesEnqueued(first_id=first + 2, count=2, held={"time": [first + 2], "after": [first + 3]})
    assert world.facts()[-1] == fact
    assert world.take_ids() == [first]


def test_none_at_all_is_fine_and_leaves_no_trace(world: World) -> None:
    before = world.everything()
    assert world.queue.enqueue_many([]) == []
    assert world.queue.complete_many([]) == []
    assert world.queue.heartbeat_many([]) == []
    assert world.everything() == before


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda _pid: ScheduleSpec(99), UnknownPid),
        (lambda pid: ScheduleSpec(pid, payload={"f": object()}), SchedInvalidPayload),
        (lambda pid: ScheduleSpec(pid, after=(99,)), SchedUnknownId),
        (lambda pid: ScheduleSpec(pid, after=(-4,)), SchedInvalidPayload),
        (lambda pid: ScheduleSpec(pid, parent_id=99), SchedUnknownId),
        (lambda pid: {"pid": pid}, SchedInvalidPayload),
    ],
)
def test_one_wrong_spec_among_many_is_named_by_its_index_and_none_is_written(
    world: World, pid: int, wrong: Callable[[int], Any], error: type[RotaError]
) -> None:
    before = world.everything()
    good = ScheduleSpec(pid, tags=("t",), key="unique")
    with pytest.raises(error) as caught:
        world.queue.enqueue_many([ScheduleSpec(pid), good, ScheduleSpec(pid), wrong(pid), ScheduleSpec(pid)])
    assert caught.value.data["index"] == 3
    assert "specs[3]" in str(caught.value)
    assert world.everything() == before


def test_a_dead_owner_among_many_is_named_too(world: World, pid: int) -> None:
    dead = world.agent()
    world.kernel.terminate(dead, "completed")
    before = world.everything()
    with pytest.raises(SchedInvalidPayload) as caught:
        world.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(dead)])
    assert (caught.value.data["index"], caught.value.field) == (1, "pid")
    assert world.everything() == before


def test_ten_thousand_in_one_call_are_taken_and_one_more_is_refused(world: World, pid: int) -> None:
    before = world.everything()
    with pytest.raises(SchedInvalidPayload, match="at most 10,000"):
        world.queue.enqueue_many([ScheduleSpec(pid)] * (ENQUEUE_MAX + 1))
    assert world.everything() == before
    assert len(world.queue.enqueue_many([ScheduleSpec(pid)] * ENQUEUE_MAX)) == 10_000


# --- once only -----------------------------------------------------------------------------------


def test_a_key_makes_one_entry_for_ever(world: World, pid: int) -> None:
    first = world.put(pid, key="order-7", payload={"n": 1})
    before = world.everything()
    assert world.put(pid, key="order-7", payload={"n": 2}) == first
    assert world.everything() == before
    world.take_one()
    world.queue.complete(first, "completed")
    assert world.put(pid, key="order-7") == first  # also when it ended
    assert world.queue.get(first).payload == {"n": 1}
    assert world.put(pid, key="order-8") != first


def test_keys_in_a_batch_may_meet_each_other_and_earlier_ones(world: World, pid: int) -> None:
    first = world.put(pid, key="a")
    specs = [ScheduleSpec(pid, key=key) for key in ("b", "a", "b", "c")]
    ids = world.queue.enqueue_many(specs)
    assert ids == [first + 1, first, first + 1, first + 2]
    assert world.facts()[-1] == EntriesEnqueued(first_id=first + 1, count=2, deduped=2)


def test_a_successor_of_one_that_is_known_by_its_key_waits_for_that_one(world: World, pid: int) -> None:
    first = world.put(pid, key="a")
    ids = world.queue.enqueue_many([ScheduleSpec(pid, key="a"), ScheduleSpec(pid, after=(-1,))])
    assert ids[0] == first
    assert world.reasons_against(ids[1]) == [AfterPredecessor(waiting_for=(first,))]


def test_enqueue_unique_finds_what_waits_or_runs_for_the_same_agent_and_trigger(world: World, pid: int) -> None:
    spec = ScheduleSpec(pid, trigger="cron", payload={"n": 1})
    first, created = world.queue.enqueue_unique(spec)
    assert created is True
    before = world.everything()
    again = ScheduleSpec(pid, trigger="cron", payload={"n": 2})
    assert world.queue.enqueue_unique(again) == (first, False)
    assert world.everything() == before
    world.take_one()
    assert world.queue.enqueue_unique(again) == (first, False)  # dispatched
    world.queue.complete(first, "completed")
    second, created = world.queue.enqueue_unique(again)
    assert (second != first, created) == (True, True)


def test_enqueue_unique_may_compare_agents_alone_or_payloads_too(world: World, pid: int) -> None:
    first = world.put(pid, trigger="event", payload={"n": 1})
    for dedupe_by in (("pid",), ("pid", "payload"), ("pid", "trigger", "payload")):
        same = ScheduleSpec(pid, trigger="event", payload={"n": 1})
        assert world.queue.enqueue_unique(same, dedupe_by=dedupe_by) == (first, False)
    later, created = world.queue.enqueue_unique(ScheduleSpec(pid, payload={"n": 2}), dedupe_by=("pid", "payload"))
    assert created
    assert world.queue.enqueue_unique(ScheduleSpec(pid, payload={"n": 1}), dedupe_by=("pid", "payload")) == (
        first,
        False,
    )
    assert world.queue.enqueue_unique(ScheduleSpec(pid, payload={"n": 2}), dedupe_by=("pid", "trigger")) == (
        later,
        False,
    )


def test_enqueue_unique_works_after_a_first_call_that_was_refused(world: World, pid: int) -> None:
    with pytest.raises(UnknownPid):
        world.queue.enqueue_unique(ScheduleSpec(pid + 1))  # what it made is undone with it
    first, created = world.queue.enqueue_unique(ScheduleSpec(pid))
    assert created
    assert world.queue.enqueue_unique(ScheduleSpec(pid)) == (first, False)


def test_by_key_enqueue_unique_finds_only_the_same_key_and_also_what_has_ended(world: World, pid: int) -> None:
    world.put(pid, trigger="cron")
    first, created = world.queue.enqueue_unique(ScheduleSpec(pid, trigger="cron", key="at 60"), dedupe_by=("key",))
    assert created
    world.queue.force_claim(first, worker_id="worker")
    world.queue.complete(first, "completed")
    assert world.queue.enqueue_unique(ScheduleSpec(pid, trigger="cron", key="at 60"), dedupe_by=("key",)) == (
        first,
        False,
    )
    assert world.queue.enqueue_unique(ScheduleSpec(pid, trigger="cron", key="at 120"), dedupe_by=("key",))[1]


def test_to_compare_by_key_there_must_be_one_and_nothing_else(world: World, pid: int) -> None:
    with pytest.raises(SchedInvalidPayload, match="key must be given"):
        world.queue.enqueue_unique(ScheduleSpec(pid), dedupe_by=("key",))
    with pytest.raises(SchedInvalidPayload, match="must not name key together with others"):
        world.queue.enqueue_unique(ScheduleSpec(pid, key="k"), dedupe_by=("pid", "key"))


def test_enqueue_unique_does_not_mix_agents_or_triggers(world: World, pid: int) -> None:
    made = [
        world.queue.enqueue_unique(spec)
        for spec in (
            ScheduleSpec(pid, trigger="cron"),
            ScheduleSpec(pid, trigger="event"),
            ScheduleSpec(world.agent(), trigger="cron"),
        )
    ]
    assert [created for _, created in made] == [True, True, True]


def test_enqueue_unique_can_compare_the_payload_too_or_the_agent_alone(world: World, pid: int) -> None:
    by_all = ("pid", "trigger", "payload")
    first, _ = world.queue.enqueue_unique(ScheduleSpec(pid, payload={"a": 1, "b": 2}), by_all)
    assert world.queue.enqueue_unique(ScheduleSpec(pid, payload={"b": 2, "a": 1}), by_all) == (first, False)
    second, created = world.queue.enqueue_unique(ScheduleSpec(pid, payload={"a": 2}), by_all)
    assert created is True
    assert world.queue.enqueue_unique(ScheduleSpec(pid, trigger="other"), ("pid",)) == (first, False)
    assert second > first


@pytest.mark.parametrize("dedupe_by", [("trigger",), (), ("pid", "priority"), "pid", None, 5])
def test_enqueue_unique_compares_within_one_agent_and_by_what_it_knows(world: World, pid: int, dedupe_by: Any) -> None:
    before = world.everything()
    with pytest.raises(SchedInvalidPayload) as caught:
        world.queue.enqueue_unique(ScheduleSpec(pid), dedupe_by)
    assert caught.value.field == "dedupe_by"
    assert world.everything() == before


def test_enqueue_unique_says_when_a_key_already_had_its_entry(world: World, pid: int) -> None:
    first = world.put(pid, key="k")
    world.queue.cancel(first)
    assert world.queue.enqueue_unique(ScheduleSpec(pid, key="k")) == (first, False)


# --- looking -------------------------------------------------------------------------------------


def test_an_entry_shows_all_it_was_given(world: World) -> None:
    world.projects.create("lab")
    world.projects.add_workspace("desk", "lab", "/desk")
    world.kernel.contexts.create(bound_to="name", bound_id="api", budget=9, period_s=60)
    pid = world.agent(project_id="lab")
    parent = world.put(pid)
    sched_id = world.put(
        pid,
        tags=("nightly", "big"),
        key="k",
        max_attempts=7,
        expected={"tokens": 5},
        ceiling={"tokens": 9},
        draws_on=("api",),
        kind="gpu",
        workspace="desk",
        workspace_mode="shared",
        parent_id=parent,
        correlation_id="story",
    )
    entry = world.queue.get(sched_id)
    assert (entry.project_id, entry.tags, entry.key, entry.max_attempts) == ("lab", ("nightly", "big"), "k", 7)
    assert (entry.expected, entry.ceiling, entry.draws_on) == ({"tokens": 5}, {"tokens": 9}, ("api",))
    assert (entry.kind, entry.workspace, entry.parent_id, entry.correlation_id) == ("gpu", "desk", parent, "story")
    assert (entry.attempt, entry.token, entry.claim_expires_at, entry.cancel_requested) == (0, None, None, False)


def test_entries_are_found_by_everything_a_filter_knows(world: World) -> None:
    world.projects.create("lab")
    one, two = world.agent(project_id="lab"), world.agent()
    a = world.ended(one, "failed", tags=("x", "y"), trigger="cron")
    b = world.ended(two, "completed", tags=("x",))
    c = world.put(one, trigger="cron")
    d = world.put(two, tags=("y",))

    def found(**how: Any) -> list[int]:
        entries, total = world.queue.list(**how)
        assert total == len(entries)
        return [entry.sched_id for entry in entries]

    assert found() == [a, b, c, d]
    assert found(state="completed") == [a, b]
    assert found(pid=one) == [a, c]
    assert found(project_id="lab") == [a, c]
    assert found(trigger="cron") == [a, c]
    assert found(exit_kind="failed") == [a]
    assert found(tag="x") == [a, b]
    assert found(tag="y") == [a, d]
    assert found(tag="y", pid=two, state="queued") == [d]
    assert found(tag="unknown") == found(pid=99) == found(project_id="nowhere") == []


def test_a_page_of_a_tag_knows_how_many_there_are(world: World, pid: int) -> None:
    ids = [world.put(pid, tags=("x",)) for _ in range(5)]
    world.put(pid)
    entries, total = world.queue.list(tag="x", limit=2, offset=3)
    assert ([entry.sched_id for entry in entries], total) == (ids[3:], 5)


@pytest.mark.parametrize(("page", "shown"), [((0, 0), (0, 100)), ((True, 5), (5, 103)), ((2, -1), (0, 2))])
def test_a_bad_page_is_the_default_page(world: World, pid: int, page: tuple[int, int], shown: tuple[int, int]) -> None:
    ids = world.queue.enqueue_many([ScheduleSpec(pid)] * 103)
    entries, total = world.queue.list(limit=page[0], offset=page[1])
    assert [entry.sched_id for entry in entries] == ids[slice(*shown)]
    assert total == 103


def test_counts_say_how_many_are_in_each_state_and_why_some_wait(world: World, pid: int) -> None:
    world.ended(pid, "completed")
    running = world.put(pid)
    world.take_one()
    world.put(pid)
    world.put(pid, runnable_at=START + 5)
    world.put(pid, after=(running,))
    world.queue.cancel(world.put(pid))
    assert world.queue.counts() == {
        "completed": 1,
        "dispatched": 1,
        "queued": 1,
        "queued:time": 1,
        "queued:after": 1,
        "cancelled": 1,
    }


def test_thirty_two_tags_are_taken_and_one_more_is_not(world: World, pid: int) -> None:
    tags = tuple(f"tag-{n}" for n in range(TAGS_MAX + 1))
    sched_id = world.put(pid, tags=tags[:TAGS_MAX])
    assert world.queue.get(sched_id).tags == tags[:TAGS_MAX]
    with pytest.raises(SchedInvalidPayload, match="at most 32"):
        ScheduleSpec(pid, tags=tags)


def test_a_tag_given_twice_is_one_tag(world: World, pid: int) -> None:
    sched_id = world.put(pid, tags=("x", "x"))
    assert world.queue.list(tag="x")[1] == 1
    assert world.queue.cancel_where(EntryFilter(tag="x")) == 1
    assert world.state(sched_id) == "cancelled"


# --- kinds of slot -------------------------------------------------------------------------------


def test_an_entry_of_a_kind_goes_only_to_a_worker_that_has_it_and_one_of_none_to_any(world: World, pid: int) -> None:
    gpu, big, plain = world.put(pid, kind="gpu", priority=9), world.put(pid, kind="big", priority=8), world.put(pid)
    assert world.take_ids() == [plain]
    assert world.take_ids(kinds=("big", "small")) == [big]
    assert world.take_ids(kinds=["gpu"]) == [gpu]


def test_a_page_that_is_too_large_is_refused_with_what_to_do_and_a_smaller_one_is_not(world: World, pid: int) -> None:
    body = {"text": "x" * (PAYLOAD_BYTES_MAX - 100)}
    fits = LIST_BYTES_MAX // PAYLOAD_BYTES_MAX
    world.queue.enqueue_many([ScheduleSpec(pid, payload=body)] * (fits + 2))
    with pytest.raises(LimitExceeded, match="list_bytes_max") as refused:
        world.queue.list(limit=10_000)
    assert refused.value.data["field"] == "limit"
    assert len(world.queue.list(limit=fits)[0]) == fits


def test_a_long_page_is_the_same_however_it_is_read(world: World, pid: int) -> None:
    ids = world.queue.enqueue_many([ScheduleSpec(pid, tags=("odd",) if n % 2 else ()) for n in range(2_001)])
    assert [entry.sched_id for entry in world.queue.list(limit=10_000)[0]] == ids
    assert [entry.sched_id for entry in world.queue.list(limit=777, offset=3)[0]] == ids[3:780]
    assert [entry.sched_id for entry in world.queue.list(limit=900, offset=1, tag="odd")[0]] == ids[1::2][1:901]

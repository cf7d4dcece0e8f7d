"""Bulk changes: what they apply to, what they refuse and why, and that a dry run only counts."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import LimitExceeded, SchedInvalidPayload
from rota.kernel import EntryFilter, ScheduleSpec
from rota.kernel.bulk import IDS_MAX, IDS_SHOWN_MAX
from rota.kernel.entries import BATCH_MAX
from rota.model.events import CancelRequested, EntriesCancelled, EntriesChanged
from tests.kernel.world import START, World

ALL = EntryFilter()


@pytest.fixture
def ids(world: World, pid: int) -> dict[str, int]:
    """One entry of each kind, by what became of it."""
    found = {"succeeded": world.ended(pid, "completed"), "failed": world.ended(pid, "failed")}
    world.queue.cancel(cancelled := world.put(pid))
    found |= {"cancelled": cancelled, "running": world.put(pid, priority=9)}
    world.take(1)
    crashed = world.put(pid, priority=9)
    world.queue.complete(crashed, "crashed", token=world.take(1)[0].token)
    found |= {
        "backoff": crashed,
        "ready": world.put(pid),
        "later": world.put(pid, runnable_at=START + 50),
        "after": world.put(pid, after=(found["running"],), on_failed="hold"),
    }
    return found


def names(ids: dict[str, int], wanted: list[int]) -> list[str]:
    by_id = {sched_id: name for name, sched_id in ids.items()}
    return [by_id[each] for each in wanted]


@pytest.mark.parametrize(
    ("verb", "options", "applies_to", "refused"),
    [
        ("cancel", {}, ["backoff", "ready", "later", "after"], {"it is running": 1}),
        ("cancel", {"stop": True}, ["running", "backoff", "ready", "later", "after"], {}),
        ("retry", {}, ["failed", "cancelled", "backoff"], {}),
        ("release", {}, ["after"], {}),
        ("change", {"priority": 3}, ["backoff", "ready", "later", "after"], {"it is running": 1}),
        (
            "change",
            {"deadline": START + 20},
            ["backoff", "ready", "after"],
            {"it is running": 1, "its deadline would be before its time": 1},
        ),
    ],
)
def test_a_verb_applies_to_what_it_is_for(
    world: World,
    ids: dict[str, int],
    *,
    verb: Any,
    options: dict[str, Any],
    applies_to: list[str],
    refused: dict[str, int],
) -> None:
    before = world.everything()
    tried = world.queue.bulk(ALL, verb, dry_run=True, **options)
    assert world.everything() == before
    assert names(ids, tried.first) == applies_to
    done = world.queue.bulk(ALL, verb, **options)
    assert (done.count, done.first, done.statuses) == (tried.count, tried.first, tried.statuses)
    assert done.refused == tried.refused == refused
    assert sum(done.statuses.values()) == done.count == len(applies_to)


def test_a_filter_that_names_a_status_says_what_was_refused(world: World, ids: dict[str, int]) -> None:
    result = world.queue.bulk(EntryFilter(status=("succeeded", "failed", "running", "ready")), "cancel")
    assert (result.count, result.refused) == (1, {"it has ended": 2, "it is running": 1})
    assert names(ids, result.first_refused) == ["succeeded", "failed", "running"]
    assert world.queue.bulk(EntryFilter(exit_kind="completed"), "retry").refused == {"it succeeded": 1}
    assert world.queue.bulk(EntryFilter(state="queued"), "release").refused == {
        "it waits for no predecessor and no worker": 2
    }


def test_running_entries_are_asked_to_stop_once(world: World, ids: dict[str, int]) -> None:
    assert world.queue.bulk(EntryFilter(status="running"), stop=True, by="anna").count == 1
    assert world.facts()[-1] == CancelRequested(sched_ids=[ids["running"]], by="anna")
    again = world.queue.bulk(EntryFilter(status="running"), stop=True)
    assert (again.count, again.refused) == (0, {"it was asked to stop already": 1})


def test_a_retry_names_the_copies_and_skips_dead_agents(world: World, ids: dict[str, int]) -> None:
    dead = world.agent()
    world.ended(dead)
    world.kernel.terminate(dead, "failed")
    result = world.queue.bulk(EntryFilter(), "retry")
    assert result.refused == {"its agent has ended": 1}
    assert result.copies.keys() == {ids["failed"], ids["cancelled"]}
    assert all(world.state(copy) == "queued" for copy in result.copies.values())


def test_a_change_of_many_is_one_event_for_each_batch(world: World, pid: int) -> None:
    world.queue.enqueue_many([ScheduleSpec(pid)] * (BATCH_MAX + 2))
    result = world.queue.bulk(EntryFilter(pid=pid), "change", priority=4, tags=("night",))
    assert (result.count, len(result.first)) == (BATCH_MAX + 2, IDS_SHOWN_MAX)
    facts = [fact for fact in world.facts() if isinstance(fact, EntriesChanged)]
    assert [len(fact.sched_ids) for fact in facts] == [BATCH_MAX, 2]
    assert world.queue.list(tag="night")[1] == BATCH_MAX + 2
    assert world.take()[0].priority == 4


def test_only_entries_that_are_old_enough(world: World, pid: int) -> None:
    old = world.put(pid)
    world.clock.advance(10)
    world.put(pid)
    assert world.queue.bulk(EntryFilter(pid=pid), created_before=START + 10).first == [old]


def test_by_id_only_entries_of_the_filters_project_are_meant(world: World, pid: int) -> None:
    world.projects.create("acme")
    own, strange = world.put(world.agents.create("amy", project_id="acme")), world.put(pid)
    result = world.queue.bulk(EntryFilter(project_id="acme"), sched_ids=[strange, own, own, 999])
    assert (result.first, world.state(strange)) == ([own], "queued")
    assert (result.refused, result.first_refused) == ({"it does not exist": 2}, [strange, 999])
    assert world.facts()[-1] == EntriesCancelled(sched_ids=[own])
    with pytest.raises(LimitExceeded):
        world.queue.bulk(ALL, sched_ids=[1] * (IDS_MAX + 1))
    assert world.queue.bulk(ALL, sched_ids=[1] * IDS_MAX).count == 0


def test_changes_belong_to_the_verb_change(world: World) -> None:
    with pytest.raises(SchedInvalidPayload):
        world.queue.bulk(ALL, "change")
    with pytest.raises(SchedInvalidPayload):
        world.queue.bulk(ALL, "cancel", priority=3)

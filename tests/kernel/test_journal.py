"""The journal: one event per change, user events, and followers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rota.errors import InvalidPayload, SchedInvalidPayload, UnknownPid
from rota.kernel import Completion, EntryFilter, ScheduleSpec
from rota.kernel.journal import TAIL_BYTES_MAX, TAIL_MAX
from rota.kernel.paging import READ_MAX
from rota.model.checks import PAYLOAD_BYTES_MAX
from rota.model.events import (
    EntriesCancelled,
    EntriesClaimed,
    EntriesCompleted,
    EntriesEnqueued,
    Event,
    EventData,
    FleetReloaded,
    LedgerCharged,
    TriggerFired,
)
from rota.store.author import current_author
from rota.store.statements.journal import EVENT_APPEND
from tests.kernel.world import START, World
from tests.store.world import Caller

# --- user events ---------------------------------------------------------------------------------


def test_a_user_event_keeps_all_its_fields(world: World) -> None:
    pid = world.agent()
    payload = {"n": 1, "text": "é", "list": [None, True, {"deep": 1.5}]}
    event_id = world.journal.append(pid, "mine.note", payload, causation_id="event:1", correlation_id="story-9")
    (event,) = world.journal.tail(event_id - 1)
    assert event == Event(event_id, pid, START, "mine.note", payload, "event:1", "story-9", current_author())


def test_an_event_may_have_no_agent(world: World) -> None:
    event_id = world.journal.append(None, "weather")
    assert world.journal.tail(event_id - 1) == [Event(event_id, None, START, "weather", {}, author=current_author())]


def test_an_event_moves_its_agents_row(world: World) -> None:
    pid = world.agent()
    world.clock.advance(7)
    event_id = world.journal.append(pid, "mine.note")
    agent = world.agents.get(pid)
    assert (agent.last_event_id, agent.updated_at, agent.created_at) == (event_id, START + 7, START)


@pytest.mark.parametrize("kind", ["kernel.", "kernel.process.created", "kernel.mine", ""])
def test_reserved_and_empty_kinds_are_refused(world: World, kind: str) -> None:
    before = world.everything()
    with pytest.raises(InvalidPayload) as caught:
        world.journal.append(None, kind)
    assert caught.value.field == "kind"
    assert world.everything() == before


def test_kinds_that_only_resemble_reserved_ones_are_allowed(world: World) -> None:
    for kind in ("kernel", "kernels.x", "Kernel.x", "my.kernel.x"):
        world.journal.append(None, kind)
    assert len(world.events()) == 4


def test_an_unknown_pid_is_refused(world: World) -> None:
    before = world.everything()
    with pytest.raises(UnknownPid):
        world.journal.append(7, "mine")
    assert world.everything() == before


@pytest.mark.parametrize(
    "payload", [{"f": object()}, [1], "text", 5, {"text": "x" * PAYLOAD_BYTES_MAX}], ids=lambda value: str(value)[:9]
)
def test_a_payload_that_is_not_a_dictionary_of_json_or_is_too_large_is_refused(world: World, payload: Any) -> None:
    before = world.everything()
    with pytest.raises(InvalidPayload) as caught:
        world.journal.append(None, "mine", payload)
    assert caught.value.field == "payload"
    assert world.everything() == before


def test_a_payload_may_be_exactly_as_large_as_the_limit(world: World) -> None:
    frame = len(b'{"text":""}')
    event_id = world.journal.append(None, "mine", {"text": "x" * (PAYLOAD_BYTES_MAX - frame)})
    assert len(world.journal.tail(event_id - 1)[0].payload["text"]) == PAYLOAD_BYTES_MAX - frame


# --- the tail ------------------------------------------------------------------------------------


def test_the_tail_is_what_came_after_a_cursor_oldest_first(world: World) -> None:
    ids = [world.journal.append(None, "mine", {"n": n}) for n in range(5)]
    assert [event.event_id for event in world.journal.tail()] == ids == sorted(ids)
    assert [event.payload["n"] for event in world.journal.tail(ids[1])] == [2, 3, 4]
    assert world.journal.tail(ids[-1]) == []
    assert world.journal.tail(ids[-1] + 1_000) == []


def test_paging_by_the_last_id_meets_every_event_once(world: World) -> None:
    ids = [world.journal.append(None, "mine") for _ in range(10)]
    cursor, seen = 0, []
    while page := world.journal.tail(cursor, 3):
        seen += [event.event_id for event in page]
        cursor = page[-1].event_id
    assert seen == ids


@pytest.mark.parametrize(("limit", "count"), [(0, 1), (-3, 1), (1, 1), (10_000, 10_000), (1_000_000, 10_000)])
def test_a_page_of_the_tail_has_from_one_to_ten_thousand_events(world: World, limit: int, count: int) -> None:
    pid = world.agent()
    rows = [(pid, START, "mine", "{}", None, None, "")] * 10_002
    world.store.write(lambda tx: tx.run_many(EVENT_APPEND, rows))
    assert len(world.journal.tail(0, limit)) == count


def test_the_tail_of_an_agent_has_its_own_events_only(world: World) -> None:
    one, two = world.agent("one"), world.agent("two")
    world.journal.append(one, "mine", {"n": 1})
    world.journal.append(two, "mine", {"n": 2})
    world.journal.append(None, "mine", {"n": 3})
    world.agents.transition(one, "RUNNING")
    assert [event.kind for event in world.journal.tail(pid=one)] == [
        "kernel.process.created",
        "mine",
        "kernel.process.transitioned",
    ]
    assert {event.pid for event in world.journal.tail(pid=one)} == {one}
    assert world.journal.tail(pid=99) == []


def test_the_tail_of_an_agent_may_be_of_some_kinds(world: World) -> None:
    pid, other = world.agent(), world.agent("other")
    world.put(pid)
    for kind in ("mine.a", "mine.b", "mine.a"):
        world.journal.append(pid, kind)
        world.journal.append(other, kind)
    mine = [event for event in world.journal.tail(0, pid=pid) if event.kind == "mine.a"]
    assert len(mine) == 2
    assert world.journal.tail(0, pid=pid, kinds=("mine.a",)) == mine
    assert world.journal.tail(mine[0].event_id, pid=pid, kinds=("mine.a",)) == mine[1:]
    assert world.journal.tail(0, 1, pid=pid, kinds=("mine.b", "mine.a")) == mine[:1]
    of_entries = world.journal.tail(0, pid=pid, kinds=("kernel.sched.enqueued", "mine.b"))
    assert [event.kind for event in of_entries] == ["kernel.sched.enqueued", "mine.b"]
    assert {event.pid for event in of_entries} == {pid}
    assert world.journal.tail(0, pid=pid, kinds=("no.such",)) == []


def test_the_cursor_is_the_last_id_and_zero_before_the_first(world: World) -> None:
    assert world.journal.cursor() == 0
    assert world.journal.cursor() == 0 == len(world.events())
    event_id = world.journal.append(None, "mine")
    assert world.journal.cursor() == event_id


def test_ids_go_on_where_they_were_after_the_file_was_opened_again(tmp_path: Path) -> None:
    world = World(str(tmp_path / "rota.db"))
    first = world.journal.append(None, "mine")
    world.close()
    again = World(str(tmp_path / "rota.db"))
    assert again.journal.append(None, "mine") == first + 1
    again.close()


# --- one change, one event -----------------------------------------------------------------------


def test_a_batch_verb_appends_one_event(world: World) -> None:
    pid = world.agent()
    marks = [world.journal.cursor()]

    def the_new_fact() -> EventData:
        (fact,) = world.facts(marks[-1])
        marks.append(world.journal.cursor())
        return fact

    ids = world.queue.enqueue_many([ScheduleSpec(pid)] * 5)
    assert the_new_fact() == EntriesEnqueued(first_id=ids[0], count=5)
    entries = world.take(3)
    claimed = the_new_fact()
    assert isinstance(claimed, EntriesClaimed)
    assert [each.sched_id for each in claimed.entries] == ids[:3]
    world.queue.complete_many([Completion(entry.sched_id, "completed", entry.token) for entry in entries])
    completed = the_new_fact()
    assert isinstance(completed, EntriesCompleted)
    assert [each.sched_id for each in completed.entries] == ids[:3]
    world.queue.cancel_where(EntryFilter(pid=pid))
    assert the_new_fact() == EntriesCancelled(sched_ids=ids[3:])


def test_the_token_of_a_claim_is_the_id_of_its_event(world: World) -> None:
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 2)
    tokens = {entry.token for entry in world.take(2)}
    assert tokens == {world.journal.cursor()}


def test_a_claim_that_finds_nothing_leaves_no_trace(world: World) -> None:
    world.agent()
    before = world.everything()
    for _ in range(3):
        assert world.take() == []
    assert world.everything() == before


def test_what_fails_leaves_neither_row_nor_event(world: World) -> None:
    pid = world.agent()
    before = world.everything()
    with pytest.raises(UnknownPid):
        world.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid), ScheduleSpec(99)])
    with pytest.raises(SchedInvalidPayload):
        world.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid, payload={"f": object()})])
    assert world.everything() == before


def test_causation_and_correlation_travel_from_the_spec_to_its_event_and_its_entry(world: World) -> None:
    pid = world.agent()
    cause = world.journal.append(pid, "mine.webhook", correlation_id="order-7")
    sched_id = world.put(pid, causation_id=f"event:{cause}", correlation_id="order-7")
    event = world.events()[-1]
    assert (event.kind, event.causation_id, event.correlation_id) == (
        "kernel.sched.enqueued",
        f"event:{cause}",
        "order-7",
    )
    assert world.queue.get(sched_id).correlation_id == "order-7"


def test_every_kind_of_event_can_be_decoded(world: World) -> None:
    """Call each method once; an event that cannot be decoded would raise."""
    world.projects.create("lab", max_concurrent=5)
    pid = world.agent(project_id="lab")
    world.ledger.create(pid, {"tokens": 10})
    world.ledger.set_budget("project", "lab", "tokens", 1_000)
    world.ledger.set_budget("global", "*", "tokens", None)
    world.contexts.create(bound_to="name", bound_id="api", budget=5, period_s=60)
    world.projects.add_workspace("desk", "lab", "/desk")
    held = world.put(pid, draws_on=("api",), workspace_mode="exclusive", expected={"tokens": 2}, tags=("x",))
    world.put(pid, after=(held,))
    token = world.take(1)[0].token
    world.queue.charge(held, {"tokens": 12}, token=token)
    world.queue.request_cancel(held, by="anna")
    world.queue.complete(held, "failed", token=token, outcome="timed_out")
    world.queue.retry_where(EntryFilter(exit_kind="failed"))
    world.agents.pause(pid, "anna")
    world.projects.pause_fleet("anna")
    world.projects.move("lab", "pause")
    world.clock.jump(500)
    world.queue.upkeep()
    assert len(world.facts()) == len(world.events()) > 20


# --- following -----------------------------------------------------------------------------------


def test_following_gives_what_is_there_and_ends_when_nothing_came_in_time(world: World) -> None:
    ids = [world.journal.append(None, "mine") for _ in range(3)]
    assert [event.event_id for event in world.journal.follow(0, wait_s=0.0)] == ids
    assert [event.event_id for event in world.journal.follow(ids[0], wait_s=0.0)] == ids[1:]
    assert list(world.journal.follow(wait_s=0.0)) == []  # from now on


def test_a_follower_is_given_each_event_after_its_commit(world: World) -> None:
    got: list[Event] = []
    arrived = threading.Semaphore(0)

    def follow() -> None:
        for event in world.journal.follow(0, wait_s=500.0):
            got.append(event)
            arrived.release()

    follower = Caller(follow)
    world.clock.until_parked()
    for n in range(3):
        world.journal.append(None, "mine", {"n": n})
        assert arrived.acquire(timeout=60)
    assert [event.payload["n"] for event in got] == [0, 1, 2]
    world.pass_time_until_done(follower, step_s=501)
    follower.outcome()


def test_a_follower_sees_nothing_of_a_rolled_back_transaction(world: World) -> None:
    seen: list[str] = []
    end = world.store.on_change(lambda: seen.extend(event.kind for event in world.journal.tail(0)))
    with pytest.raises(UnknownPid):
        world.queue.enqueue(ScheduleSpec(99))
    assert seen == []
    world.journal.append(None, "mine")
    assert seen == ["mine"]  # the follower was woken after the commit and could read it
    end()


def test_a_follower_sees_events_of_another_kernel_on_the_same_file(tmp_path: Path) -> None:
    here, there = (World(str(tmp_path / "rota.db")) for _ in range(2))
    got: list[str] = []
    arrived = threading.Semaphore(0)

    def follow() -> None:
        for event in here.journal.follow(0, wait_s=500.0):
            got.append(event.kind)
            arrived.release()

    follower = Caller(follow)
    here.clock.until_parked()
    there.journal.append(None, "from.there")
    assert arrived.acquire(timeout=60)
    assert got == ["from.there"]
    here.pass_time_until_done(follower, step_s=501)
    follower.outcome()
    here.close()
    there.close()


def test_following_more_than_a_page_gives_all(world: World) -> None:
    rows = [(None, START, "mine", "{}", None, None, "")] * 2_500
    world.store.write(lambda tx: tx.run_many(EVENT_APPEND, rows))
    events = list(world.journal.follow(0, wait_s=0.0))
    assert [event.event_id for event in events] == list(range(1, 2_501))


# --- runtime events and notes ----------------------------------------------------------------------


def test_a_runtime_event_is_recorded_and_updates_its_agent(world: World, pid: int) -> None:
    fact = TriggerFired(trigger="trigger:reader:0:60", sched_id=7, created=False)
    event_id = world.journal.record(fact, pid=pid)
    assert world.facts(event_id - 1) == [fact]
    assert world.agents.get(pid).last_event_id == event_id


@pytest.mark.parametrize(
    "fact",
    [
        LedgerCharged(amounts={"tokens": 5}),
        EntriesCancelled(sched_ids=[1]),
        TriggerFired(trigger="t", sched_id="seven"),  # type: ignore[arg-type]  # on purpose
        FleetReloaded(changes={"much": "x" * PAYLOAD_BYTES_MAX}),
        FleetReloaded(changes={"odd": object()}),
        "kernel.fleet.reloaded",
    ],
    ids=["usage", "a verb of the queue", "unreadable", "too large", "not JSON", "no fact"],
)
def test_kernel_events_and_undecodable_events_are_refused(world: World, fact: Any) -> None:
    before = world.everything()
    with pytest.raises(InvalidPayload) as caught:
        world.journal.record(fact)
    assert caught.value.field == "fact"
    assert world.everything() == before


def test_a_note_is_kept_under_its_name_until_the_next_one_and_is_no_event(world: World) -> None:
    cursor = world.journal.cursor()
    assert world.journal.recall("reader") is None
    world.journal.remember("reader", {"cursor": 5})
    world.journal.remember("other", {"cursor": 9})
    world.journal.remember("reader", {"cursor": 6, "more": [None, 1.5]})
    assert world.journal.recall("reader") == {"cursor": 6, "more": [None, 1.5]}
    assert world.journal.cursor() == cursor


def test_a_note_cannot_overwrite_the_files_own_settings(world: World) -> None:
    version = world.kernel.info()["schema_version"]
    world.journal.remember("schema_version", {"v": 1})
    assert world.kernel.info()["schema_version"] == version


def test_an_answer_with_large_events_ends_early_and_the_next_goes_on(world: World) -> None:
    body = {"text": "x" * (PAYLOAD_BYTES_MAX - 100)}
    count = READ_MAX + 3
    for _ in range(count):
        world.journal.append(None, "big.note", body)
    for _ in range(5):
        world.journal.append(None, "small.note", {})
    cursor, answers = 0, []
    while events := world.journal.tail(cursor, TAIL_MAX, kinds=("big.note", "small.note")):
        answers.append(len(events))
        cursor = events[-1].event_id
    assert READ_MAX * PAYLOAD_BYTES_MAX > TAIL_BYTES_MAX
    assert answers == [READ_MAX, count - READ_MAX + 5]


def test_a_long_answer_is_the_same_however_it_is_read(world: World, pid: int) -> None:
    ids = [world.journal.append(pid if n % 2 else None, "note", {"n": n}) for n in range(3 * READ_MAX + 1)]
    assert [event.event_id for event in world.journal.tail(ids[0] - 1, TAIL_MAX)] == ids
    assert [event.event_id for event in world.journal.tail(ids[2], READ_MAX + 7)] == ids[3 : READ_MAX + 10]
    assert [event.event_id for event in world.journal.tail(ids[0] - 1, TAIL_MAX, pid=pid)] == ids[1::2]

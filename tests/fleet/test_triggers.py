"""Triggers: each firing is one entry, also with several supervisors, and no firing is lost or repeated."""

from __future__ import annotations

import threading
from datetime import datetime
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import StoreUnavailable
from rota.fleet.fleet_run import TRIGGERING_MAX, FileComparison, FleetTask
from rota.fleet.triggers import EVENTS_MAX, LATE_MAX_S, Triggers
from rota.kernel import Completion
from rota.model.events import TriggerFired
from rota.model.work import ReadyEntry
from rota.service.dispatcher import Dispatcher
from tests.fleet.support import START, FleetHarness
from tests.store.world import Caller

MINUTELY = "[agents.reader]\ncommand = 'ls'\ntriggers = [{every = '1m'}]"
ON_EVENT = "[agents.reader]\ncommand = 'ls'\ntriggers = [{event = 'news.*', event_as = 'news'}]"
NEXT_MINUTE = START - START % 60 + 60


def read_events(harness: FleetHarness, triggers: Triggers) -> list[str]:
    """Pass all new events to the triggers; return the keys of the firings."""
    fired = []
    while events := harness.api.journal.tail(triggers.cursor):
        fired += triggers.fire_for(events)
    return [each.key for each in fired]


# --- timed ----------------------------------------------------------------------------------


def test_an_interval_fires_when_it_is_due_and_not_before(harness: FleetHarness) -> None:
    triggers = harness.triggers(MINUTELY)
    assert harness.next_at(triggers) == NEXT_MINUTE
    assert harness.fire_due(triggers, NEXT_MINUTE - 0.1) == []
    (fired,) = harness.fire_due(triggers, NEXT_MINUTE)
    assert (fired.key, fired.created) == (f"trigger:reader:0:{NEXT_MINUTE:.0f}", True)
    assert harness.fire_due(triggers, NEXT_MINUTE + 1) == []
    assert harness.next_at(triggers) == NEXT_MINUTE + 60
    (entry,) = harness.entries("reader")
    assert (entry.sched_id, entry.trigger, entry.key) == (fired.sched_id, "interval", fired.key)


def test_firings_of_a_fractional_interval_have_distinct_keys(harness: FleetHarness) -> None:
    triggers = harness.triggers(MINUTELY.replace("every = '1m'", "every_s = 1.25"))
    fired = [each for quarter in range(1, 41) for each in harness.fire_due(triggers, START + quarter / 4)]
    assert len({each.key for each in fired if each.created}) == len(fired) == 8


def test_a_firing_is_recorded_in_the_journal(harness: FleetHarness) -> None:
    triggers = harness.triggers(MINUTELY)
    cursor = harness.cursor
    (fired,) = harness.fire_due(triggers, NEXT_MINUTE)
    (event,) = [event for event in harness.kernel_events(cursor) if isinstance(event, TriggerFired)]
    assert (event.trigger, event.sched_id, event.created) == (fired.key, fired.sched_id, True)


def test_an_entry_has_the_agents_settings_overridden_by_the_trigger(harness: FleetHarness) -> None:
    triggers = harness.triggers("""
        [agents.reader]
        command = 'ls'
        priority = 3
        payload = {depth = 1, page = 'a'}
        expected = {tokens = 7}
        triggers = [{every = '1m', payload = {page = 'b'}, priority = 9}]
    """)
    harness.fire_due(triggers, NEXT_MINUTE)
    (entry,) = harness.entries("reader")
    assert (entry.priority, entry.payload, entry.expected) == (9, {"depth": 1, "page": "b"}, {"tokens": 7})


def test_a_cron_follows_its_zone_across_a_change_of_the_clock(tmp_path: Path) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    harness = FleetHarness(tmp_path, datetime(2026, 3, 28, 12, tzinfo=berlin).timestamp())
    triggers = harness.triggers(
        "[agents.a]\ncommand = 'ls'\ntriggers = [{cron = '30 2 * * *', zone = 'Europe/Berlin'}]"
    )
    fired = []
    for _ in range(3):
        at = harness.next_at(triggers) or 0.0
        fired += [datetime.fromtimestamp(at, berlin).strftime("%m-%d %H:%M") for _ in harness.fire_due(triggers, at)]
    assert fired == ["03-29 03:00", "03-30 02:30", "03-31 02:30"]
    harness.close()


def test_a_fixed_time_in_a_repeated_hour_fires_once(tmp_path: Path) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    harness = FleetHarness(tmp_path, datetime(2026, 10, 25, 0, tzinfo=berlin).timestamp())
    triggers = harness.triggers(
        "[agents.a]\ncommand = 'ls'\ntriggers = [{cron = '30 2 * * *', zone = 'Europe/Berlin'}]"
    )
    fired = [each.key for _ in range(300) for each in harness.fire_due(triggers, harness.clock.now() + 60)]
    assert len(fired) == len(set(fired)) == 1
    harness.close()


def test_without_timed_triggers_nothing_is_ever_due(harness: FleetHarness) -> None:
    triggers = harness.triggers(ON_EVENT)
    assert harness.next_at(triggers) is None
    assert harness.fire_due(triggers, START + 1e6) == []


# --- missed instants ----------------------------------------------------------------------------------------


def test_instants_missed_while_no_supervisor_ran_fire_once(harness: FleetHarness) -> None:
    harness.fire_due(harness.triggers(MINUTELY), NEXT_MINUTE)
    harness.clock.advance(3600)
    again = Triggers(harness.api, harness.clock, harness.fleet(MINUTELY))
    (fired,) = again.fire_due()
    assert fired.key == f"trigger:reader:0:{NEXT_MINUTE + 3600:.0f}"
    assert again.fire_due() == []
    assert len(harness.entries("reader")) == 2


def test_instants_missed_before_the_first_firing_fire_once_too(harness: FleetHarness) -> None:
    harness.triggers(MINUTELY)
    harness.clock.advance(600)
    assert len(Triggers(harness.api, harness.clock, harness.fleet(MINUTELY)).fire_due()) == 1


def test_without_catch_up_a_missed_instant_is_skipped_and_a_late_one_is_not(harness: FleetHarness) -> None:
    hourly = MINUTELY.replace("every = '1m'", "every = '1h', catch_up = false")
    triggers = harness.triggers(hourly)
    due_at = harness.next_at(triggers) or 0.0
    assert harness.fire_due(triggers, due_at + LATE_MAX_S + 1) == []
    assert harness.next_at(triggers) == due_at + 3600
    assert len(harness.fire_due(triggers, due_at + 3600 + LATE_MAX_S)) == 1


def test_a_restart_does_not_fire_again(harness: FleetHarness) -> None:
    harness.fire_due(harness.triggers(MINUTELY), NEXT_MINUTE)
    again = Triggers(harness.api, harness.clock, harness.fleet(MINUTELY))
    assert harness.next_at(again) == NEXT_MINUTE + 60
    assert harness.fire_due(again, NEXT_MINUTE + 1) == []


def test_a_supervisor_that_is_behind_does_not_overwrite_the_progress_of_another(harness: FleetHarness) -> None:
    text = MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{event = 'news'}]"
    ahead, behind = harness.triggers(text), Triggers(harness.api, harness.clock, harness.fleet(text))
    harness.fire_due(ahead, NEXT_MINUTE)
    harness.api.journal.append(None, "news")
    assert len(read_events(harness, behind)) == 1  # and saves its progress
    assert harness.fire_due(Triggers(harness.api, harness.clock, harness.fleet(text)), NEXT_MINUTE + 1) == []


def test_a_new_or_changed_trigger_has_missed_nothing(harness: FleetHarness) -> None:
    harness.triggers(MINUTELY)
    harness.clock.advance(600)
    changed = MINUTELY.replace("1m", "2m")
    assert Triggers(harness.api, harness.clock, harness.fleet(changed)).fire_due() == []


CRON_MINUTELY = MINUTELY.replace("every = '1m'", "cron = '* * * * *'")


def test_a_cron_fires_each_instant_once_when_the_wall_clock_is_put_back(harness: FleetHarness) -> None:
    triggers = harness.triggers(CRON_MINUTELY)
    assert len(harness.fire_due(triggers, NEXT_MINUTE)) == 1
    assert harness.fire_due(triggers, NEXT_MINUTE - 30) == []
    assert harness.next_at(triggers) == NEXT_MINUTE + 60
    assert harness.fire_due(triggers, NEXT_MINUTE) == []
    assert [each.created for each in harness.fire_due(triggers, NEXT_MINUTE + 60)] == [True]


def test_a_cron_whose_clock_was_a_year_ahead_goes_on(harness: FleetHarness) -> None:
    triggers = harness.triggers(CRON_MINUTELY)
    harness.clock.jump(365 * 86_400)
    assert len(triggers.fire_due()) == 1
    harness.clock.jump(-365 * 86_400)
    for again in (triggers, Triggers(harness.api, harness.clock, harness.fleet(CRON_MINUTELY))):
        assert harness.next_at(again) == NEXT_MINUTE
    assert [each.created for each in harness.fire_due(triggers, NEXT_MINUTE)] == [True]


@pytest.mark.parametrize("by_s", [-120.0, -86_400.0, 30.0, 86_400.0, 1e9])
def test_an_interval_is_unmoved_when_the_wall_clock_jumps(harness: FleetHarness, by_s: float) -> None:
    triggers = harness.triggers(MINUTELY)
    assert len(harness.fire_due(triggers, NEXT_MINUTE + 30)) == 1
    harness.clock.jump(by_s)
    for each in (triggers, Triggers(harness.api, harness.clock, harness.fleet(MINUTELY))):
        assert each.due_in_s() == pytest.approx(30)
    harness.clock.advance(29)
    assert triggers.fire_due() == []
    harness.clock.advance(1)
    assert [each.created for each in triggers.fire_due()] == [True]


@pytest.mark.parametrize("text", [MINUTELY, CRON_MINUTELY], ids=["interval", "cron"])
@pytest.mark.parametrize("mark", [START + 1e6, 4e9, 1e12, 1e300, -1e300])
def test_a_mark_that_cannot_be_right_silences_no_trigger(harness: FleetHarness, text: str, mark: float) -> None:
    harness.triggers(text)
    note = harness.api.journal.recall("triggers:fleet") or {}
    note["marks"]["reader:0"][1] = mark
    note["offsets"] = dict.fromkeys(note["offsets"], mark)
    harness.api.journal.remember("triggers:fleet", note)
    triggers = Triggers(harness.api, harness.clock, harness.fleet(text))
    fired = 0
    for _ in range(3):
        due_s = triggers.due_in_s()
        assert due_s is not None
        assert due_s <= 60
        harness.clock.advance(max(due_s, 0.0))
        fired += sum(each.created for each in triggers.fire_due())
    assert fired == 3


def test_after_a_reboot_an_interval_fires_within_its_length(harness: FleetHarness) -> None:
    harness.fire_due(harness.triggers(MINUTELY), NEXT_MINUTE)
    for now, due_s in ((NEXT_MINUTE - 86_400, 60), (NEXT_MINUTE + 20, 40), (NEXT_MINUTE + 86_400, -86_340)):
        harness.clock.reboot(now)
        triggers = Triggers(harness.api, harness.clock, harness.fleet(MINUTELY))
        assert triggers.due_in_s() == pytest.approx(due_s)


def test_calls_without_a_firing_write_nothing(harness: FleetHarness) -> None:
    triggers = harness.triggers(MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{event = 'x'}]")
    before = harness.cursor
    stored = harness.api.journal.recall("triggers:fleet")
    for second in range(10):
        harness.fire_due(triggers, START + second)
        triggers.fire_for([])
    assert (harness.cursor, harness.api.journal.recall("triggers:fleet")) == (before, stored)


# --- on events --------------------------------------------------------------------------------


def test_an_event_fires_the_triggers_on_its_kind_and_is_passed_in_the_payload(harness: FleetHarness) -> None:
    triggers = harness.triggers(ON_EVENT)
    event_id = harness.api.journal.append(None, "news.weather", {"rain": True})
    harness.api.journal.append(None, "old.weather")
    assert read_events(harness, triggers) == [f"trigger:reader:0:{event_id}"]
    (entry,) = harness.entries("reader")
    assert entry.payload == {
        "news": {"event_id": event_id, "kind": "news.weather", "pid": None, "payload": {"rain": True}}
    }
    (enqueued,) = [e for e in harness.api.journal.tail(event_id) if e.kind == "kernel.sched.enqueued"]
    assert enqueued.causation_id == f"event:{event_id}"


def test_events_before_the_trigger_existed_fire_nothing(harness: FleetHarness) -> None:
    harness.api.journal.append(None, "news.old")
    assert read_events(harness, harness.triggers(ON_EVENT)) == []


def test_a_trigger_added_while_no_supervisor_ran_handles_only_later_events(harness: FleetHarness) -> None:
    triggers = harness.triggers(ON_EVENT)
    harness.api.journal.append(None, "news.one")  # no supervisor runs
    more = ON_EVENT.replace("triggers = [", "triggers = [{event = 'other'}, ")
    harness.apply(more)
    again = Triggers(harness.api, harness.clock, harness.fleet(more))
    harness.api.journal.append(None, "news.two")
    harness.api.journal.append(None, "other")
    fired = read_events(harness, again)
    assert [key.split(":")[2] for key in fired] == ["1", "0"]  # its number changed, so it counts as a new trigger
    triggers.reload(harness.fleet("slots = 1"))
    harness.api.journal.append(None, "news.three")
    triggers.reload(harness.fleet(ON_EVENT))
    assert read_events(harness, triggers) == []


def test_a_restart_continues_after_the_last_handled_event(harness: FleetHarness) -> None:
    triggers = harness.triggers(ON_EVENT)
    harness.api.journal.append(None, "news.one")
    read_events(harness, triggers)
    harness.api.journal.append(None, "news.two")  # no supervisor runs
    again = Triggers(harness.api, harness.clock, harness.fleet(ON_EVENT))
    assert len(read_events(harness, again)) == 1
    assert len(harness.entries("reader")) == 2


def test_events_that_were_handled_before_are_skipped(harness: FleetHarness) -> None:
    triggers = harness.triggers(ON_EVENT)
    harness.api.journal.append(None, "news.one")
    events = harness.api.journal.tail()
    assert len(triggers.fire_for(events)) == 1
    assert triggers.fire_for(events) == []


def test_a_crash_between_the_entry_and_the_note_creates_no_second_entry(harness: FleetHarness) -> None:
    triggers = harness.triggers(ON_EVENT)
    note = harness.api.journal.recall("triggers:fleet")
    assert note is not None
    harness.api.journal.append(None, "news.one")
    read_events(harness, triggers)
    harness.api.journal.remember("triggers:fleet", note)  # as if the new one had never been written
    (fired,) = Triggers(harness.api, harness.clock, harness.fleet(ON_EVENT)).fire_for(harness.api.journal.tail())
    assert (fired.created, len(harness.entries("reader"))) == (False, 1)


def test_progress_is_saved_every_events_max_events_without_a_firing(harness: FleetHarness) -> None:
    triggers = harness.triggers(ON_EVENT)
    for _ in range(EVENTS_MAX - 1):
        harness.api.journal.append(None, "other")
    read_events(harness, triggers)
    before = harness.api.journal.recall("triggers:fleet")
    harness.api.journal.append(None, "other")
    read_events(harness, triggers)
    after = harness.api.journal.recall("triggers:fleet")
    assert before is not None
    assert after is not None
    assert (before["heard"], after["heard"]) == (after["heard"] - EVENTS_MAX, harness.cursor)


def test_an_after_trigger_fires_for_each_completion_of_the_other_agent(harness: FleetHarness) -> None:
    triggers = harness.triggers("""
        [agents.reader]
        command = 'ls'
        triggers = [{on = 'start'}]
        [agents.writer]
        command = 'ls'
        triggers = [{after = 'reader', event_as = 'read'}]
        [agents.other]
        command = 'ls'
        triggers = [{on = 'start'}]
    """)
    started = {each.agent: each.sched_id or 0 for each in triggers.fire_on_start("1")}
    harness.run(started["other"])
    harness.run(started["reader"])
    (key,) = read_events(harness, triggers)
    (entry,) = harness.entries("writer")
    assert entry.payload["read"]["sched_id"] == started["reader"]
    assert entry.key == key


def test_a_failed_run_does_not_fire_an_after_trigger(harness: FleetHarness) -> None:
    triggers = harness.triggers(
        "[agents.a]\ncommand = 'ls'\ntriggers = [{on = 'start'}]\n"
        "[agents.b]\ncommand = 'ls'\ntriggers = [{after = 'a'}]"
    )
    harness.run(triggers.fire_on_start("1")[0].sched_id or 0, "failed")
    assert read_events(harness, triggers) == []


def test_each_completion_in_one_event_fires(harness: FleetHarness) -> None:
    triggers = harness.triggers(
        "[agents.a]\ncommand = 'ls'\ntriggers = [{on = 'start'}, {on = 'start'}]\n"
        "[agents.b]\ncommand = 'ls'\ntriggers = [{after = 'a'}]"
    )
    triggers.fire_on_start("1")
    claimed = harness.api.queue.claim(worker_id="w", max_n=2)
    harness.api.queue.complete_many([_completion(entry) for entry in claimed])
    assert len(set(read_events(harness, triggers))) == 2


def _completion(entry: ReadyEntry) -> Completion:
    return Completion(entry.sched_id, "completed", entry.token)


# --- on start, several supervisors, reload -----------------------------------------------------------------------


def test_a_start_fires_once_and_the_next_start_fires_again(harness: FleetHarness) -> None:
    triggers = harness.triggers("[agents.a]\ncommand = 'ls'\ntriggers = [{on = 'start'}]")
    assert [each.created for each in triggers.fire_on_start("one")] == [True]
    assert [each.created for each in triggers.fire_on_start("one")] == [False]
    assert [each.created for each in triggers.fire_on_start("two")] == [True]


def test_two_supervisors_of_one_store_create_one_entry_per_firing(harness: FleetHarness) -> None:
    text = MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{event = 'news.*'}, {on = 'start'}]"
    first, second = harness.triggers(text), Triggers(harness.api, harness.clock, harness.fleet(text))
    harness.api.journal.append(None, "news.one")
    fired = []
    for triggers in (first, second):
        fired += [each.created for each in harness.fire_due(triggers, NEXT_MINUTE)]
        fired += [each.created for each in triggers.fire_on_start("1")]
        fired += [each.created for each in triggers.fire_for(harness.api.journal.tail(triggers.cursor))]
    assert fired == [True, True, True, False, False, False]
    assert (len(harness.entries("reader")), len(harness.entries("b"))) == (1, 2)


def test_concurrent_firings_create_one_entry(tmp_path: Path) -> None:
    harness = FleetHarness(tmp_path)
    harness.apply(MINUTELY)
    fleet = harness.fleet(MINUTELY)
    many = [Triggers(harness.api, harness.clock, fleet) for _ in range(6)]
    gate = threading.Barrier(len(many))

    def fire(triggers: Triggers) -> list[bool]:
        gate.wait()
        return [each.created for each in triggers.fire_due()]

    harness.clock.advance(NEXT_MINUTE - START)
    callers = [Caller(partial(fire, triggers)) for triggers in many]
    assert sorted(created for caller in callers for created in caller.outcome()) == [False] * 5 + [True]
    assert len(harness.entries("reader")) == 1
    harness.close()


def test_a_reload_keeps_the_progress_of_triggers_that_stay(harness: FleetHarness) -> None:
    triggers = harness.triggers(MINUTELY)
    more = MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{every = '30s'}]"
    harness.apply(more)
    harness.clock.advance(70)
    triggers.reload(harness.fleet(more))
    assert [each.agent for each in triggers.fire_due()] == ["reader"]  # b is new and has missed nothing
    triggers.reload(harness.fleet("slots = 1"))
    assert harness.next_at(triggers) is None


def test_a_terminated_agent_loses_only_its_own_firing(harness: FleetHarness) -> None:
    text = MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{every = '1m'}]"
    triggers = harness.triggers(text)
    harness.api.terminate(harness.agent("reader").pid, "failed")
    lost, fired = harness.fire_due(triggers, NEXT_MINUTE)
    assert (lost.sched_id, lost.error) == (
        None,
        "no agent is named 'reader'. Apply the fleet file again: `rota reload`.",
    )
    assert fired.created
    harness.apply(text)
    assert len([each for each in harness.fire_due(triggers, NEXT_MINUTE + 60) if each.created]) == 2


def test_a_paused_agent_is_enqueued_too(harness: FleetHarness) -> None:
    triggers = harness.triggers(MINUTELY)
    harness.api.agents.pause(harness.agent("reader").pid, "anna")
    assert [each.created for each in harness.fire_due(triggers, NEXT_MINUTE)] == [True]


def test_a_supervisor_that_stops_leaves_a_backlog_of_events_to_the_next_one(harness: FleetHarness) -> None:
    first = harness.triggers(ON_EVENT)
    for _ in range(2 * TRIGGERING_MAX):
        harness.api.journal.append(None, "news.one")
    _task_of(harness, first, is_stopping=True).on_events(())
    assert len(harness.entries("reader")) == TRIGGERING_MAX
    following = Triggers(harness.api, harness.clock, harness.fleet(ON_EVENT))
    _task_of(harness, following, is_stopping=False).on_events(())
    assert len(harness.entries("reader")) == 2 * TRIGGERING_MAX


def _task_of(harness: FleetHarness, triggers: Triggers, *, is_stopping: bool) -> FleetTask:
    dispatcher = Dispatcher(harness.api, "strict")
    return FleetTask(
        dispatcher,
        triggers,
        FileComparison(dispatcher),
        lambda _events: None,
        lambda: None,
        is_stopping=lambda: is_stopping,
    )


def test_a_firing_is_repeated_after_a_store_failure(harness: FleetHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    triggers = harness.triggers(ON_EVENT)
    harness.api.journal.append(None, "news.one")
    events = harness.api.journal.tail()
    with monkeypatch.context() as broken:
        broken.setattr(harness.api.queue, "enqueue_unique", _raise_full)
        with pytest.raises(StoreUnavailable):
            triggers.fire_for(events)
    assert [each.created for each in triggers.fire_for(events)] == [True]


def _raise_full(*_: object, **__: object) -> None:
    raise StoreUnavailable("the disk is full")


# --- property ---------------------------------------------------------------------------------------


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("pass"), st.integers(1, 400)),
            st.tuples(st.just("news"), st.integers(1, 3)),
            st.tuples(st.just("call"), st.integers(0, 1)),
            st.tuples(st.just("die"), st.integers(0, 1)),
        ),
        max_size=25,
    )
)
def test_with_any_crashes_each_event_is_one_entry_and_each_call_fires_at_most_one_interval(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    harness = FleetHarness(tmp_path_factory.mktemp("property"))
    text = (
        "[agents.t]\ncommand = 'ls'\ntriggers = [{every = '1m'}]\n"
        "[agents.e]\ncommand = 'ls'\ntriggers = [{event = 'news'}]"
    )
    supervisors = [harness.triggers(text), Triggers(harness.api, harness.clock, harness.fleet(text))]
    news = calls = 0
    for step, number in [*steps, ("call", 0)]:
        if step == "pass":
            harness.clock.advance(number)
        elif step == "news":
            news += number
            for _ in range(number):
                harness.api.journal.append(None, "news")
        elif step == "call":
            calls += 1
            supervisors[number].fire_due()
            read_events(harness, supervisors[number])
        else:
            supervisors[number] = Triggers(harness.api, harness.clock, harness.fleet(text))
    assert len(harness.entries("e")) == news
    timed = [entry.key for entry in harness.entries("t")]
    passed = int((harness.clock.now() - START + START % 60) // 60)
    assert len(timed) <= min(calls, passed)
    if passed:
        assert timed[-1] == f"trigger:t:0:{harness.clock.now() // 60 * 60:.0f}"
    harness.close()

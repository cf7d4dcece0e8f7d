"""Triggers at work: each firing is one entry, whoever fires it, and nothing is lost or made twice."""

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
from rota.fleet.triggers import HEARD_MAX, LATE_MAX_S, Triggers
from rota.kernel import Completion
from rota.model.events import TriggerFired
from rota.model.work import ReadyEntry
from tests.fleet.office import START, Office
from tests.store.world import Caller

MINUTELY = "[agents.reader]\ncommand = 'ls'\ntriggers = [{every = '1m'}]"
ON_NEWS = "[agents.reader]\ncommand = 'ls'\ntriggers = [{event = 'news.*', event_as = 'news'}]"
NEXT_MINUTE = START - START % 60 + 60


def listen(office: Office, triggers: Triggers) -> list[str]:
    """Let the triggers hear all that is new; the keys of what fired."""
    fired = []
    while events := office.desk.journal.tail(triggers.cursor):
        fired += triggers.hear(events)
    return [each.key for each in fired]


# --- by the clock ----------------------------------------------------------------------------------


def test_an_interval_fires_when_its_time_has_come_and_not_before(office: Office) -> None:
    triggers = office.triggers(MINUTELY)
    assert triggers.next_at() == NEXT_MINUTE
    assert triggers.due(NEXT_MINUTE - 0.1) == []
    (fired,) = triggers.due(NEXT_MINUTE)
    assert (fired.key, fired.created) == (f"trigger:reader:0:{NEXT_MINUTE:.0f}", True)
    assert triggers.due(NEXT_MINUTE + 1) == []
    assert triggers.next_at() == NEXT_MINUTE + 60
    (entry,) = office.entries("reader")
    assert (entry.sched_id, entry.trigger, entry.key) == (fired.sched_id, "interval", fired.key)


def test_firings_within_one_second_of_each_other_are_told_apart(office: Office) -> None:
    triggers = office.triggers(MINUTELY.replace("every = '1m'", "every_s = 1.25"))
    fired = [each for quarter in range(1, 41) for each in triggers.due(START + quarter / 4)]
    assert len({each.key for each in fired if each.created}) == len(fired) == 8


def test_a_firing_is_on_record(office: Office) -> None:
    triggers = office.triggers(MINUTELY)
    cursor = office.cursor
    (fired,) = triggers.due(NEXT_MINUTE)
    (fact,) = [fact for fact in office.facts(cursor) if isinstance(fact, TriggerFired)]
    assert (fact.trigger, fact.sched_id, fact.created) == (fired.key, fired.sched_id, True)


def test_an_entry_has_the_agents_plan_with_what_the_trigger_says_on_top(office: Office) -> None:
    triggers = office.triggers("""
        [agents.reader]
        command = 'ls'
        priority = 3
        payload = {depth = 1, page = 'a'}
        expected = {tokens = 7}
        triggers = [{every = '1m', payload = {page = 'b'}, priority = 9}]
    """)
    triggers.due(NEXT_MINUTE)
    (entry,) = office.entries("reader")
    assert (entry.priority, entry.payload, entry.expected) == (9, {"depth": 1, "page": "b"}, {"tokens": 7})


def test_a_cron_keeps_to_its_zone_through_a_change_of_the_clock(tmp_path: Path) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    office = Office(tmp_path, datetime(2026, 3, 28, 12, tzinfo=berlin).timestamp())
    triggers = office.triggers("[agents.a]\ncommand = 'ls'\ntriggers = [{cron = '30 2 * * *', zone = 'Europe/Berlin'}]")
    fired = []
    for _ in range(3):
        at = triggers.next_at() or 0.0
        fired += [datetime.fromtimestamp(at, berlin).strftime("%m-%d %H:%M") for _ in triggers.due(at)]
    assert fired == ["03-29 03:00", "03-30 02:30", "03-31 02:30"]
    office.close()


def test_in_the_hour_that_comes_twice_a_fixed_time_fires_once(tmp_path: Path) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    office = Office(tmp_path, datetime(2026, 10, 25, 0, tzinfo=berlin).timestamp())
    triggers = office.triggers("[agents.a]\ncommand = 'ls'\ntriggers = [{cron = '30 2 * * *', zone = 'Europe/Berlin'}]")
    fired = [each.key for minute in range(300) for each in triggers.due(office.clock.now() + 60 * minute)]
    assert len(fired) == len(set(fired)) == 1
    office.close()


def test_a_fleet_without_timed_triggers_never_has_to_be_woken(office: Office) -> None:
    triggers = office.triggers(ON_NEWS)
    assert triggers.next_at() is None
    assert triggers.due(START + 1e6) == []


# --- missed ----------------------------------------------------------------------------------------


def test_what_was_missed_while_nobody_ran_is_made_up_for_once(office: Office) -> None:
    office.triggers(MINUTELY).due(NEXT_MINUTE)
    office.clock.advance(3600)
    again = Triggers(office.desk, office.clock, office.fleet(MINUTELY))
    (fired,) = again.due(office.clock.now())
    assert fired.key == f"trigger:reader:0:{NEXT_MINUTE + 3540:.0f}"
    assert again.due(office.clock.now()) == []
    assert len(office.entries("reader")) == 2


def test_what_was_missed_before_it_ever_fired_is_made_up_for_too(office: Office) -> None:
    office.triggers(MINUTELY)
    office.clock.advance(600)
    assert len(Triggers(office.desk, office.clock, office.fleet(MINUTELY)).due(office.clock.now())) == 1


def test_without_catch_up_what_was_missed_is_gone_and_what_is_only_late_is_not(office: Office) -> None:
    hourly = MINUTELY.replace("every = '1m'", "every = '1h', catch_up = false")
    triggers = office.triggers(hourly)
    due_at = triggers.next_at() or 0.0
    assert triggers.due(due_at + LATE_MAX_S + 1) == []
    assert triggers.next_at() == due_at + 3600
    assert len(triggers.due(due_at + 3600 + LATE_MAX_S)) == 1


def test_what_has_fired_is_not_fired_again_after_a_restart(office: Office) -> None:
    office.triggers(MINUTELY).due(NEXT_MINUTE)
    again = Triggers(office.desk, office.clock, office.fleet(MINUTELY))
    assert again.next_at() == NEXT_MINUTE + 60
    assert again.due(NEXT_MINUTE + 1) == []


def test_a_supervisor_that_is_behind_does_not_unsay_what_another_has_fired(office: Office) -> None:
    text = MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{event = 'news'}]"
    ahead, behind = office.triggers(text), Triggers(office.desk, office.clock, office.fleet(text))
    ahead.due(NEXT_MINUTE)
    office.desk.journal.append(None, "news")
    assert len(listen(office, behind)) == 1  # and notes how far it has come
    assert Triggers(office.desk, office.clock, office.fleet(text)).due(NEXT_MINUTE + 1) == []


def test_a_trigger_that_is_new_or_was_changed_missed_nothing(office: Office) -> None:
    office.triggers(MINUTELY)
    office.clock.advance(600)
    changed = MINUTELY.replace("1m", "2m")
    assert Triggers(office.desk, office.clock, office.fleet(changed)).due(office.clock.now()) == []


def test_when_the_wall_clock_is_put_back_nothing_fires_twice(office: Office) -> None:
    triggers = office.triggers(MINUTELY)
    assert len(triggers.due(NEXT_MINUTE + 120)) == 1
    assert triggers.due(NEXT_MINUTE) == []
    assert triggers.next_at() == NEXT_MINUTE + 180


def test_waiting_and_looking_write_nothing(office: Office) -> None:
    triggers = office.triggers(MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{event = 'x'}]")
    before = office.cursor
    kept = office.desk.journal.recall("triggers:fleet")
    for second in range(10):
        triggers.due(START + second)
        triggers.hear([])
    assert (office.cursor, office.desk.journal.recall("triggers:fleet")) == (before, kept)


# --- by the journal --------------------------------------------------------------------------------


def test_an_event_fires_those_that_wait_for_its_kind_and_is_handed_on(office: Office) -> None:
    triggers = office.triggers(ON_NEWS)
    event_id = office.desk.journal.append(None, "news.weather", {"rain": True})
    office.desk.journal.append(None, "old.weather")
    assert listen(office, triggers) == [f"trigger:reader:0:{event_id}"]
    (entry,) = office.entries("reader")
    assert entry.payload == {
        "news": {"event_id": event_id, "kind": "news.weather", "pid": None, "payload": {"rain": True}}
    }
    (enqueued,) = [e for e in office.desk.journal.tail(event_id) if e.kind == "kernel.sched.enqueued"]
    assert enqueued.causation_id == f"event:{event_id}"


def test_what_happened_before_there_was_a_trigger_fires_nothing(office: Office) -> None:
    office.desk.journal.append(None, "news.old")
    assert listen(office, office.triggers(ON_NEWS)) == []


def test_a_trigger_that_came_while_nobody_listened_hears_only_what_comes_after_it(office: Office) -> None:
    triggers = office.triggers(ON_NEWS)
    office.desk.journal.append(None, "news.one")  # nobody listens yet
    more = ON_NEWS.replace("triggers = [", "triggers = [{event = 'other'}, ")
    office.apply(more)
    again = Triggers(office.desk, office.clock, office.fleet(more))
    office.desk.journal.append(None, "news.two")
    office.desk.journal.append(None, "other")
    fired = listen(office, again)
    assert [key.split(":")[2] for key in fired] == ["1", "0"]  # its number has changed, so it is another trigger
    triggers.reload(office.fleet("slots = 1"))
    office.desk.journal.append(None, "news.three")
    triggers.reload(office.fleet(ON_NEWS))
    assert listen(office, triggers) == []


def test_a_restart_goes_on_where_the_last_one_stopped(office: Office) -> None:
    triggers = office.triggers(ON_NEWS)
    office.desk.journal.append(None, "news.one")
    listen(office, triggers)
    office.desk.journal.append(None, "news.two")  # nobody listens
    again = Triggers(office.desk, office.clock, office.fleet(ON_NEWS))
    assert len(listen(office, again)) == 1
    assert len(office.entries("reader")) == 2


def test_events_that_are_told_again_are_passed_over(office: Office) -> None:
    triggers = office.triggers(ON_NEWS)
    office.desk.journal.append(None, "news.one")
    events = office.desk.journal.tail()
    assert len(triggers.hear(events)) == 1
    assert triggers.hear(events) == []


def test_after_a_death_between_the_entry_and_the_note_the_entry_is_found_again(office: Office) -> None:
    triggers = office.triggers(ON_NEWS)
    note = office.desk.journal.recall("triggers:fleet")
    assert note is not None
    office.desk.journal.append(None, "news.one")
    listen(office, triggers)
    office.desk.journal.remember("triggers:fleet", note)  # as if it had never been written
    (fired,) = Triggers(office.desk, office.clock, office.fleet(ON_NEWS)).hear(office.desk.journal.tail())
    assert (fired.created, len(office.entries("reader"))) == (False, 1)


def test_how_far_it_heard_is_noted_now_and_then_also_when_nothing_fires(office: Office) -> None:
    triggers = office.triggers(ON_NEWS)
    for _ in range(HEARD_MAX - 1):
        office.desk.journal.append(None, "other")
    listen(office, triggers)
    before = office.desk.journal.recall("triggers:fleet")
    office.desk.journal.append(None, "other")
    listen(office, triggers)
    after = office.desk.journal.recall("triggers:fleet")
    assert before is not None
    assert after is not None
    assert (before["heard"], after["heard"]) == (after["heard"] - HEARD_MAX, office.cursor)


def test_an_agent_runs_after_each_completion_of_another(office: Office) -> None:
    triggers = office.triggers("""
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
    started = {each.agent: each.sched_id or 0 for each in triggers.begin("1")}
    office.run(started["other"])
    office.run(started["reader"])
    (key,) = listen(office, triggers)
    (entry,) = office.entries("writer")
    assert entry.payload["read"]["sched_id"] == started["reader"]
    assert entry.key == key


def test_a_run_that_ended_badly_is_no_completion(office: Office) -> None:
    triggers = office.triggers(
        "[agents.a]\ncommand = 'ls'\ntriggers = [{on = 'start'}]\n"
        "[agents.b]\ncommand = 'ls'\ntriggers = [{after = 'a'}]"
    )
    office.run(triggers.begin("1")[0].sched_id or 0, "failed")
    assert listen(office, triggers) == []


def test_several_completions_in_one_event_fire_each(office: Office) -> None:
    triggers = office.triggers(
        "[agents.a]\ncommand = 'ls'\ntriggers = [{on = 'start'}, {on = 'start'}]\n"
        "[agents.b]\ncommand = 'ls'\ntriggers = [{after = 'a'}]"
    )
    triggers.begin("1")
    taken = office.desk.queue.claim(worker_id="w", max_n=2)
    office.desk.queue.complete_many([_completion(entry) for entry in taken])
    assert len(set(listen(office, triggers))) == 2


def _completion(entry: ReadyEntry) -> Completion:
    return Completion(entry.sched_id, "completed", entry.token)


# --- on start, twice, reload -----------------------------------------------------------------------


def test_a_start_fires_once_and_the_next_start_again(office: Office) -> None:
    triggers = office.triggers("[agents.a]\ncommand = 'ls'\ntriggers = [{on = 'start'}]")
    assert [each.created for each in triggers.begin("one")] == [True]
    assert [each.created for each in triggers.begin("one")] == [False]
    assert [each.created for each in triggers.begin("two")] == [True]


def test_two_supervisors_of_one_store_make_one_entry_of_each_firing(office: Office) -> None:
    text = MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{event = 'news.*'}, {on = 'start'}]"
    first, second = office.triggers(text), Triggers(office.desk, office.clock, office.fleet(text))
    office.desk.journal.append(None, "news.one")
    fired = []
    for triggers in (first, second):
        fired += [each.created for each in triggers.due(NEXT_MINUTE)]
        fired += [each.created for each in triggers.begin("1")]
        fired += [each.created for each in triggers.hear(office.desk.journal.tail(triggers.cursor))]
    assert fired == [True, True, True, False, False, False]
    assert (len(office.entries("reader")), len(office.entries("b"))) == (1, 2)


def test_many_that_fire_at_the_same_moment_make_one_entry(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.apply(MINUTELY)
    fleet = office.fleet(MINUTELY)
    many = [Triggers(office.desk, office.clock, fleet) for _ in range(6)]
    gate = threading.Barrier(len(many))

    def fire(triggers: Triggers) -> list[bool]:
        gate.wait()
        return [each.created for each in triggers.due(NEXT_MINUTE)]

    callers = [Caller(partial(fire, triggers)) for triggers in many]
    assert sorted(created for caller in callers for created in caller.outcome()) == [False] * 5 + [True]
    assert len(office.entries("reader")) == 1
    office.close()


def test_a_reload_keeps_what_stays_and_arms_what_is_new(office: Office) -> None:
    triggers = office.triggers(MINUTELY)
    more = MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{every = '30s'}]"
    office.apply(more)
    office.clock.advance(70)
    triggers.reload(office.fleet(more))
    assert [each.agent for each in triggers.due(office.clock.now())] == ["reader"]  # b is new and missed nothing
    triggers.reload(office.fleet("slots = 1"))
    assert triggers.next_at() is None


def test_an_agent_that_has_ended_costs_its_own_firing_and_nobody_elses(office: Office) -> None:
    text = MINUTELY + "\n[agents.b]\ncommand = 'ls'\ntriggers = [{every = '1m'}]"
    triggers = office.triggers(text)
    office.desk.terminate(office.agent("reader").pid, "failed")
    lost, fired = triggers.due(NEXT_MINUTE)
    assert (lost.sched_id, lost.error) == (None, "no agent is called 'reader'. Apply the fleet file first.")
    assert fired.created
    office.apply(text)
    assert len([each for each in triggers.due(NEXT_MINUTE + 60) if each.created]) == 2


def test_a_paused_agent_is_enqueued_all_the_same(office: Office) -> None:
    triggers = office.triggers(MINUTELY)
    office.desk.agents.pause(office.agent("reader").pid, "anna")
    assert [each.created for each in triggers.due(NEXT_MINUTE)] == [True]


def test_when_the_store_fails_the_firing_is_made_up_for(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    triggers = office.triggers(ON_NEWS)
    office.desk.journal.append(None, "news.one")
    events = office.desk.journal.tail()
    with monkeypatch.context() as broken:
        broken.setattr(office.desk.queue, "enqueue_unique", _raise_full)
        with pytest.raises(StoreUnavailable):
            triggers.hear(events)
    assert [each.created for each in triggers.hear(events)] == [True]


def _raise_full(*_: object, **__: object) -> None:
    raise StoreUnavailable("the disk is full")


# --- the law ---------------------------------------------------------------------------------------


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("pass"), st.integers(1, 400)),
            st.tuples(st.just("news"), st.integers(1, 3)),
            st.tuples(st.just("look"), st.integers(0, 1)),
            st.tuples(st.just("die"), st.integers(0, 1)),
        ),
        max_size=25,
    )
)
def test_however_often_supervisors_die_each_event_is_one_entry_and_each_look_at_most_one_interval(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    office = Office(tmp_path_factory.mktemp("law"))
    text = (
        "[agents.t]\ncommand = 'ls'\ntriggers = [{every = '1m'}]\n"
        "[agents.e]\ncommand = 'ls'\ntriggers = [{event = 'news'}]"
    )
    two = [office.triggers(text), Triggers(office.desk, office.clock, office.fleet(text))]
    news = looks = 0
    for step, number in [*steps, ("look", 0)]:
        if step == "pass":
            office.clock.advance(number)
        elif step == "news":
            news += number
            for _ in range(number):
                office.desk.journal.append(None, "news")
        elif step == "look":
            looks += 1
            two[number].due(office.clock.now())
            listen(office, two[number])
        else:
            two[number] = Triggers(office.desk, office.clock, office.fleet(text))
    assert len(office.entries("e")) == news
    timed = [entry.key for entry in office.entries("t")]
    passed = int((office.clock.now() - START + START % 60) // 60)
    assert len(timed) <= min(looks, passed)
    if passed:
        assert timed[-1] == f"trigger:t:0:{office.clock.now() // 60 * 60:.0f}"
    office.close()

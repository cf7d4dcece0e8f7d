"""A core's fair queue chooses what the plain form of virtual time chooses, on any sequence of slices."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.cores.runqueue import (
    CREDIT_MAX_NS,
    FORGIVEN_PART,
    FORGIVEN_WINDOW_NS,
    RULES,
    IndexTable,
    Rule,
    RunQueue,
    Schedulable,
)
from rota.cores.telemetry import Counters
from rota.policy.virtual_time import SCALE, LevelTime, choose, level_time, reweighed, span
from rota.policy.virtual_time import Sibling as PlainSchedulable

# --- a slow queue, built from the plain functions only -------------------------------------------


class PlainQueue:
    """RunQueue's calls, each computed over all schedulables."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.waiting: dict[int, PlainSchedulable] = {}
        self.last_start: dict[int, int] = {}
        self.current: PlainSchedulable | None = None
        self.since = 0
        self.clock = 0
        self.forgiven_at = 0
        self.owed: dict[int, int] = {}  # of those that left: how far they were behind the queue's time

    def present(self) -> list[PlainSchedulable]:
        return [*self.waiting.values(), *([self.current] if self.current else [])]

    def time(self, now: int) -> LevelTime:
        if not self.present():
            return LevelTime.at(self.clock)
        time = level_time(self.present())
        under_way = (now - self.since) * SCALE if self.current else 0
        return LevelTime(time.weighted + under_way, time.weight)

    def enter(self, schedulable: PlainSchedulable, now: int) -> None:
        time, total = self.time(now), sum(one.weight for one in self.present())
        owed = self._still_owed(schedulable, self.owed.get(key_of(schedulable), 0), now)
        start = (time.weighted - owed * (total + schedulable.weight)) // total if total else time.whole  # rounded once
        self.waiting[key_of(schedulable)] = schedulable._replace(virtual_time=start)

    def _still_owed(self, schedulable: PlainSchedulable, owed: int, now: int) -> int:
        """A debt that the time has passed is forgiven, as long as all of these are a fiftieth of the time."""
        if owed >= 0 or self.time(now).whole < schedulable.virtual_time:
            return owed
        cost = -(owed * schedulable.weight * FORGIVEN_PART // SCALE)
        begins = max(self.forgiven_at, now - FORGIVEN_WINDOW_NS)
        if begins + cost > now:
            return owed
        self.forgiven_at = begins + cost
        return 0

    def take(self, now: int) -> int | None:
        if not self.waiting:
            return None
        schedulables = list(self.waiting.values())
        if self.rule == "round_robin":
            chosen = min(schedulables, key=lambda one: (self.last_start.get(key_of(one), 0), key_of(one)))
        else:
            chosen = choose(schedulables, level_time(schedulables), eligibility=self.rule == "eevdf")
        self.current = self.waiting.pop(key_of(chosen))
        self.since = self.last_start[key_of(chosen)] = now
        return key_of(chosen)

    def leave(self, now: int) -> PlainSchedulable:
        self.current, self.since = self._charged(now), now
        gone, time = self.current, self.time(now).whole
        self.current = None
        return self._left(gone, time)

    def _left(self, gone: PlainSchedulable, time: int) -> PlainSchedulable:
        """It keeps its debt, and its credit up to a limit."""
        most = span(max(gone.request, CREDIT_MAX_NS), gone.weight)
        self.owed[key_of(gone)] = min(time - gone.virtual_time, most)
        if not self.present():
            self.clock = time
        return gone

    def put_back(self, now: int) -> None:
        stays = self._charged(now)
        self.current = None
        self.waiting[key_of(stays)] = stays

    def remove(self, key: int, now: int) -> PlainSchedulable:
        time = self.time(now).whole
        return self._left(self.waiting.pop(key), time)

    def reweigh(self, key: int, weight: int, now: int) -> None:
        if self.current and self.current.key == key:
            self.current, self.since = self._charged(now), now
        old = self.current if self.current and self.current.key == key else self.waiting[key]
        stands = reweighed(old.virtual_time, old.weight, weight, self.time(now))
        new = old._replace(weight=weight, virtual_time=stands)
        if old is self.current:
            self.current = new
        else:
            self.waiting[key] = new

    def _charged(self, now: int) -> PlainSchedulable:
        assert self.current is not None
        return self.current.after(now - self.since)


def key_of(schedulable: PlainSchedulable) -> int:
    assert isinstance(schedulable.key, int)
    return schedulable.key


# --- the two, side by side -----------------------------------------------------------------------


class Pair:
    """A RunQueue and a PlainQueue that get the same calls."""

    def __init__(self, rule: Rule, population: list[tuple[int, int]]) -> None:
        self.schedulables: dict[int, Schedulable] = {
            key: Schedulable(key, weight, slice_ns) for key, (weight, slice_ns) in enumerate(population, 1)
        }
        self.queue = queue_of(*self.schedulables.values(), rule=rule)
        self.plain = PlainQueue(rule)
        self.now = 0

    def do(self, verb: str, key: int, number: int) -> None:
        key = key % len(self.schedulables) + 1
        schedulable, waits, runs = self.schedulables[key], key in self.plain.waiting, self._runs(key)
        if verb == "enter" and not waits and not runs:
            self.plain.enter(self._picture(schedulable), self.now)
            self.queue.enter(schedulable, self.now)
        elif verb == "take" and self.plain.current is None:
            taken = self.queue.take(self.now)
            assert (taken.key if taken else None) == self.plain.take(self.now)
        elif verb in ("leave", "put_back") and self.plain.current is not None:
            getattr(self.plain, verb)(self.now)
            getattr(self.queue, verb)(self.now)
        elif verb == "remove" and waits:
            self.plain.remove(key, self.now)
            self.queue.remove(schedulable, self.now)
        elif verb == "reweigh" and (waits or runs):
            self.plain.reweigh(key, number, self.now)
            self.queue.reweigh(schedulable, number, schedulable.slice_ns, self.now)
        elif verb == "start" and waits and self.plain.current is None:
            self.plain.current, self.plain.since = self.plain.waiting.pop(key), self.now
            self.plain.last_start[key] = self.now
            self.queue.start(schedulable, self.now)

    def compare(self) -> None:
        for one in self.plain.present():
            assert self.schedulables[key_of(one)].virtual_time == one.virtual_time
        ours, theirs = self.queue.time(self.now), self.plain.time(self.now)
        assert Fraction(*ours) == Fraction(*theirs)
        assert {one.key for one in self.queue.queued()} == set(self.plain.waiting)
        assert len(self.queue) == len(self.plain.waiting)

    def _runs(self, key: int) -> bool:
        return self.plain.current is not None and self.plain.current.key == key

    @staticmethod
    def _picture(schedulable: Schedulable) -> PlainSchedulable:
        return PlainSchedulable(schedulable.key, schedulable.weight, schedulable.virtual_time, schedulable.slice_ns)


weights = st.integers(1, 10_000)
slices = st.integers(1, 50)
verbs = st.sampled_from(["enter", "enter", "take", "take", "leave", "put_back", "remove", "reweigh", "start"])
stories = st.lists(st.tuples(verbs, st.integers(0, 7), weights, st.integers(0, 60)), max_size=80)


@given(st.sampled_from(RULES), st.lists(st.tuples(weights, slices), min_size=1, max_size=8), stories)
def test_the_queue_chooses_what_the_plain_form_chooses(
    rule: Rule, population: list[tuple[int, int]], story: list[tuple[str, int, int, int]]
) -> None:
    pair = Pair(rule, population)
    for verb, key, number, wait in story:
        pair.now += wait
        pair.do(verb, key, number)
        pair.compare()


@given(st.lists(st.tuples(weights, slices), min_size=1, max_size=8), stories, st.lists(st.sampled_from(RULES)))
def test_a_change_of_rule_keeps_all_usage(
    population: list[tuple[int, int]], story: list[tuple[str, int, int, int]], rules: list[Rule]
) -> None:
    pair = Pair("eevdf", population)
    changes = iter(rules)
    for verb, key, number, wait in story:
        pair.now += wait
        pair.do(verb, key, number)
        if number % 3 == 0 and (rule := next(changes, None)) is not None:
            pair.queue.change_rule(rule)
            pair.plain.rule = rule
        pair.compare()


# --- moving between queues -----------------------------------------------------------------------


@given(weights, st.integers(-(10**12), 10**12), st.integers(0, 10**7), st.lists(weights, min_size=1, max_size=5))
def test_a_schedulable_keeps_its_lag_while_it_is_away(weight: int, owed: int, slept_ns: int, others: list[int]) -> None:
    """Others run meanwhile: what it is owed when it is back is what it was owed when it left."""
    sleeper = Schedulable(9, weight, 100)
    company = [Schedulable(key, one, 100) for key, one in enumerate(others, 1)]
    queue = queue_of(sleeper, *company)
    for one in company:
        queue.enter(one, 0)
    queue.take(0)
    sleeper.ahead = -owed
    queue._forgiven_at_ns = slept_ns  # nothing is left to forgive
    queue.enter(sleeper, slept_ns)
    time = queue.time(slept_ns)
    assert abs(Fraction(*time) - sleeper.virtual_time - owed) <= 2 + Fraction(2 * weight, queue.weight - weight)


@given(weights, st.integers(-(10**15), 10**15), st.integers(0, 10**8), st.lists(weights, min_size=1, max_size=5))
def test_a_moved_schedulable_keeps_its_common_time_up_to_the_limit(
    weight: int, common_time: int, limit_ns: int, others: list[int]
) -> None:
    mover = Schedulable(9, weight, 100)
    company = [Schedulable(key, one, 100) for key, one in enumerate(others, 1)]
    queue = queue_of(mover, *company)
    queue.base = 77
    for one in company:
        queue.enter(one, 0)
    queue.enter_moved(mover, common_time, limit_ns, 0)
    lag_ns = weight * (Fraction(*queue.time(0)) - mover.virtual_time) / SCALE
    kept = mover.virtual_time + queue.base == common_time
    assert abs(lag_ns) <= limit_ns + 1
    assert kept or abs(lag_ns) >= limit_ns - 1


def test_an_empty_queue_takes_over_the_common_time_of_the_first_that_is_moved_there() -> None:
    mover = Schedulable(1, 1000, 100)
    queue = queue_of(mover)
    queue.enter_moved(mover, 12_345, 0, 0)
    assert queue.common_time(0) == 12_345


# --- examples ------------------------------------------------------------------------------------


def queue_of(*schedulables: Schedulable, rule: Rule = "eevdf") -> RunQueue:
    index_table = IndexTable()
    for one in schedulables:
        index_table.add(one)
    return RunQueue(index_table, rule, Counters())


def test_a_wake_in_the_middle_of_a_slice_joins_at_the_current_time() -> None:
    """The example of the module's docstring: A runs from 0 in slices of 6, B wakes at 4."""
    a, b = Schedulable(1, 1000, 6), Schedulable(2, 1000, 6)
    queue = queue_of(a, b)
    queue.enter(a, 0)
    assert queue.take(0) is a
    queue.enter(b, 4)
    assert b.virtual_time == 4 * SCALE // 1000
    queue.put_back(6)
    assert queue.time(6).whole == 5 * SCALE // 1000
    assert queue.take(6) is b


def test_under_wfq_a_heavy_one_runs_ahead_and_under_eevdf_it_does_not() -> None:
    def first_turns(rule: Rule) -> str:
        names = {1: "A", 2: "B"}
        a, b = Schedulable(1, 3000, 6), Schedulable(2, 1000, 6)
        queue = queue_of(a, b, rule=rule)
        queue.enter(a, 0)
        queue.enter(b, 0)
        slices_run = ""
        for slice_number in range(1, 9):
            taken = queue.take(6 * slice_number)
            assert taken is not None
            slices_run += names[taken.key]
            queue.put_back(6 * slice_number + 6)
        return slices_run

    assert first_turns("eevdf") == "ABAAABAA"
    assert first_turns("wfq") == "AAABAAAB"
    assert first_turns("round_robin") == "ABABABAB"


@pytest.mark.parametrize("count", [1, 2, 3, 100, 3_000])
def test_stale_entries_never_outnumber_live_ones(count: int) -> None:
    """Nothing is picked meanwhile, so none of them surfaces."""
    schedulables = [Schedulable(key, 1000 + key * 7 % 500, 10) for key in range(1, count + 1)]
    queue = queue_of(*schedulables, rule="wfq")
    for schedulable in schedulables:
        queue.enter(schedulable, 0)
    draw = Random(count)
    for round_number in range(3 * count):
        schedulable = draw.choice(schedulables)
        queue.remove(schedulable, 0)
        queue.enter(schedulable, round_number)
        assert queue.entries <= 2 * len(queue) + 1
    deadlines = []
    while (taken := queue.take(3 * count)) is not None:
        deadlines.append(taken.virtual_time + taken.span)
        queue.leave(3 * count)
    assert (len(deadlines), sorted(deadlines)) == (count, deadlines)


@pytest.mark.parametrize("call", [RunQueue.leave, RunQueue.put_back])
def test_only_a_running_schedulable_can_stop(call: Callable[[RunQueue, int], None]) -> None:
    with pytest.raises(AssertionError):
        call(queue_of(), 0)


def test_a_heap_entry_of_the_first_instant_differs_from_a_stale_one() -> None:
    """At time 0 an entry could be a small integer, which Python interns: stale and live would be identical."""
    a = Schedulable(1, 1000, 10)
    queue = queue_of(a, rule="round_robin")
    queue.enter(a, 0)
    queue.remove(a, 0)
    queue.enter(a, 0)
    assert [one.key for one in queue.queued()] == [1]
    assert a.virtual_time == 0


def test_a_reused_index_inherits_nothing() -> None:
    index_table = IndexTable()
    gone, stays, comes = Schedulable(1, 1000, 10), Schedulable(2, 1000, 10), Schedulable(3, 1000, 10)
    for one in (gone, stays):
        index_table.add(one)
    queue = RunQueue(index_table, "eevdf", Counters())
    queue.enter(gone, 0)
    queue.enter(stays, 0)
    queue.remove(gone, 0)
    index_table.remove(gone)
    index_table.add(comes)
    assert index_table.items == [comes, stays]
    assert queue.take(0, queue.current) is stays
    assert queue.take(5, queue.current) is None
    queue.enter(comes, 5)
    assert queue.take(5) is comes

"""A budget per period: what is used comes back one period later, an overshoot is paid by later refills."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.errors import ContextInvalid
from rota.model.budgets import REFILLS_MAX
from rota.policy.replenishment import (
    Adjustment,
    Allowance,
    adjusted,
    available,
    charged,
    checked,
    covered_at,
    debt,
    full,
    next_refill_at,
    refilled,
    refunded,
)

UNBOUNDED = 10_000

# --- the story of the module's own page ----------------------------------------------------------------


def test_what_is_used_comes_back_one_period_later_and_an_overshoot_is_paid_by_later_refills() -> None:
    allowance = charged(full(100, 1_000), 30, at=0)
    assert allowance.refills == ((0, 70), (1_000, 30))
    allowance = charged(allowance, 85, at=400)
    assert allowance.refills == ((1_000, 15), (1_400, 70), (2_000, 15))
    assert debt(allowance, 400) == 15
    assert [available(allowance, now) for now in (400, 999, 1_000, 1_400, 2_000)] == [0, 0, 15, 85, 100]
    assert next_refill_at(allowance, 400) == 1_000
    assert covered_at(allowance, 80) == 1_400
    assert covered_at(allowance, 101) is None


def test_a_budget_cannot_be_had_twice_around_the_end_of_a_period() -> None:
    """A counter that is set back at 1,000 would give 100 at 990 and 100 again at 1,000."""
    allowance = charged(full(100, 1_000), 100, at=990)
    assert [available(allowance, now) for now in (1_000, 1_989, 1_990)] == [0, 0, 100]


def test_a_debt_of_several_budgets_is_paid_period_by_period() -> None:
    allowance = charged(full(100, 1_000), 250, at=0)
    assert [debt(allowance, now) for now in (0, 999, 1_000, 1_999, 2_000, 3_000)] == [150, 150, 50, 50, 0, 0]
    assert [available(allowance, now) for now in (999, 1_999, 2_000, 2_999, 3_000)] == [0, 0, 50, 50, 100]


def test_an_absurd_overshoot_costs_no_more_than_a_small_one() -> None:
    allowance = charged(full(100, 1_000), 100 * 10**15 + 1, at=7)
    assert checked(allowance).refills == ((7 + 1_000 * 10**15, 99), (7 + 1_000 * 10**15 + 1_000, 1))


def test_what_comes_due_while_it_is_being_spent_comes_back_a_period_after_it_came() -> None:
    """Ten are there at 0 and forty come at 5; a run that began at 0 uses all fifty."""
    allowance = Allowance(50, 100, ((0, 10), (5, 40)))
    assert charged(allowance, 50, at=0).refills == ((100, 10), (105, 40))


# --- the laws ------------------------------------------------------------------------------------------


class Units:
    """The same rule for one unit at a time: each has the instant from which it may be used."""

    def __init__(self, budget: int, period: int) -> None:
        self.period = period
        self.due = [0] * budget

    def charge(self, amount: int, at: int) -> None:
        for _ in range(amount):
            earliest = min(self.due)
            self.due[self.due.index(earliest)] = max(earliest, at) + self.period

    def available(self, now: int) -> int:
        return sum(due <= now for due in self.due)


budgets = st.integers(1, 12)
periods = st.integers(1, 20)
steps = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30)), max_size=40)  # wait so long, then use so much


@given(budgets, periods, steps)
def test_the_refills_equal_counting_every_unit(budget: int, period: int, story: list[tuple[int, int]]) -> None:
    units, allowance, now = Units(budget, period), full(budget, period), 0
    for wait, amount in story:
        now += wait
        units.charge(amount, now)
        allowance = checked(charged(refilled(allowance, now), amount, now, refills_max=UNBOUNDED))
        for later in range(now, now + 3 * period):
            assert available(allowance, later) == units.available(later)


@given(budgets, periods, steps, st.integers(2, 5))
def test_a_bounded_list_may_be_late_and_is_never_early(
    budget: int, period: int, story: list[tuple[int, int]], most: int
) -> None:
    units, allowance, now = Units(budget, period), full(budget, period), 0
    for wait, amount in story:
        now += wait
        units.charge(amount, now)
        allowance = checked(charged(refilled(allowance, now), amount, now, refills_max=most))
        assert len(allowance.refills) <= most
        for later in range(now, now + 3 * period):
            assert available(allowance, later) <= units.available(later)


@given(budgets, periods, steps, st.integers(2, 20))
def test_in_any_stretch_of_n_periods_no_more_than_n_budgets_are_used_and_one_overshoot(
    budget: int, period: int, story: list[tuple[int, int]], most: int
) -> None:
    allowance, now, used = full(budget, period), 0, []
    for wait, amount in story:
        now += wait
        allowance = refilled(allowance, now)
        if available(allowance, now):
            allowance = charged(allowance, amount, now, refills_max=most)
            used.append((now, amount))
    largest_overshoot = max((amount for _, amount in used), default=0)
    for start, _ in used:
        for periods_long in (1, 2, 3):
            inside = sum(amount for at, amount in used if start <= at < start + periods_long * period)
            assert inside <= periods_long * budget + largest_overshoot


@given(budgets, periods, steps, st.integers(2, 20))
def test_using_only_what_is_available_never_exceeds_the_budget_in_any_period(
    budget: int, period: int, story: list[tuple[int, int]], most: int
) -> None:
    allowance, now, used = full(budget, period), 0, []
    for wait, wanted in story:
        now += wait
        allowance = refilled(allowance, now)
        amount = min(wanted, available(allowance, now))
        allowance = charged(allowance, amount, now, refills_max=most)
        assert debt(allowance, now) == 0
        used.append((now, amount))
    for start, _ in used:
        assert sum(amount for at, amount in used if start <= at < start + period) <= budget


verbs = st.sampled_from(["charge", "refill", "refund", "adjust"])
stories = st.lists(st.tuples(verbs, st.integers(0, 9), st.integers(0, 40), st.integers(1, 30)), max_size=40)


@given(budgets, periods, stories)
def test_the_sum_of_the_refills_is_the_budget_after_every_step(
    budget: int, period: int, story: list[tuple[str, int, int, int]]
) -> None:
    allowance, now = full(budget, period), 0
    for verb, wait, amount, number in story:
        now += wait
        allowance = refilled(allowance, now)
        if verb == "charge":
            allowance = charged(allowance, amount, now)
        elif verb == "refund":
            allowance = refunded(allowance, amount, now)
        elif verb == "adjust":
            allowance = adjusted(allowance, max(1, amount), number, now)
        assert checked(allowance) is allowance
        assert 0 <= available(allowance, now) <= allowance.budget
        assert len(allowance.refills) <= REFILLS_MAX
        again = msgspec.json.decode(msgspec.json.encode(allowance), type=Allowance)
        assert checked(again) == allowance


@given(budgets, periods, steps, st.integers(1, 12))
def test_a_refund_of_the_last_charge_is_available_at_once_and_nothing_returns_earlier(
    budget: int, period: int, story: list[tuple[int, int]], amount: int
) -> None:
    allowance, now = full(budget, period), 0
    for wait, used in story:
        now += wait
        allowance = charged(refilled(allowance, now), used, now, refills_max=UNBOUNDED)
    amount = min(amount, budget)
    undone = refunded(charged(allowance, amount, now, refills_max=UNBOUNDED), amount, now, refills_max=UNBOUNDED)
    assert available(undone, now) == available(allowance, now)
    for later in range(now, now + 4 * period):
        assert available(undone, later) <= available(allowance, later)


refund_stories = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 12), st.integers(0, 9)), max_size=40)


@given(budgets, periods, refund_stories, st.sampled_from([3, REFILLS_MAX, UNBOUNDED]))
@example(2, 4, [(0, 1, 0), (1, 1, 1), (0, 1, 0), (3, 2, 1)], REFILLS_MAX)  # the earlier of two charges is refunded
def test_no_period_sees_more_than_the_budget_whichever_charges_are_refunded(
    budget: int, period: int, story: list[tuple[int, int, int]], refills_max: int
) -> None:
    allowance, now = full(budget, period), 0
    used: list[list[int]] = []  # instant and amount of each charge, without what was refunded
    for wait, amount, which in story:
        now += wait
        allowance = refilled(allowance, now)
        recent = [charge for charge in used if charge[0] > now - period and charge[1]]
        if which < len(recent):
            charge = recent[which]
            back = min(amount, charge[1])
            charge[1] -= back
            allowance = refunded(allowance, back, now, refills_max=refills_max)
        elif taken := min(amount, available(allowance, now)):
            allowance = charged(allowance, taken, now, refills_max=refills_max)
            used.append([now, taken])
        assert sum(taken for at, taken in used if at > now - period) <= budget


# --- refills, refunds and other numbers ----------------------------------------------------------------


def test_a_steady_stream_of_small_charges_loses_little_to_the_bounded_list() -> None:
    """200,000 tokens a minute, asked for 100 at a time for twenty minutes, always as soon as there is enough."""
    minute = 60_000_000
    allowance, now, used = full(200_000, minute), 0, 0
    while now < 20 * minute:
        allowance = refilled(allowance, now)
        if available(allowance, now) >= 100:
            allowance, used = charged(allowance, 100, now), used + 100
            now += 9_973
        else:
            soonest = covered_at(allowance, 100)
            assert soonest is not None
            now = soonest
    assert 0.93 * 21 * 200_000 < used <= 21 * 200_000


def test_a_full_list_gives_up_exactness_where_it_adds_the_least_waiting() -> None:
    allowance = Allowance(100, 1_000, ((0, 40), (300, 20), (310, 20), (900, 20)))
    assert charged(allowance, 10, at=0, refills_max=4).refills == ((0, 30), (310, 40), (900, 20), (1_000, 10))


def test_what_can_be_used_now_is_never_merged_away() -> None:
    allowance = Allowance(100, 1_000, ((0, 2), (5, 49), (700, 49)))
    assert charged(allowance, 1, at=0, refills_max=3).refills == ((0, 1), (5, 49), (1_000, 50))


def test_refills_that_are_due_become_one() -> None:
    allowance = Allowance(100, 1_000, ((0, 40), (300, 20), (310, 20), (900, 20)))
    assert refilled(allowance, 299) is allowance
    assert refilled(allowance, 310).refills == ((310, 80), (900, 20))


def test_a_charge_of_nothing_changes_nothing() -> None:
    allowance = full(10, 10)
    assert charged(allowance, 0, 5) is allowance
    assert refunded(allowance, 5, 5) == allowance  # nothing was used, so nothing comes back


def test_an_estimate_is_corrected_by_a_refund_or_by_another_charge() -> None:
    estimated = charged(full(1_000, 60), 400, at=0)
    assert available(refunded(estimated, 150, now=10), 10) == 750
    assert available(charged(estimated, 150, at=10), 10) == 450


def test_a_refund_pays_debt_before_anything_becomes_available() -> None:
    owing = charged(full(100, 1_000), 130, at=0)
    assert debt(owing, 0) == 30
    less = refunded(owing, 20, now=0)
    assert (debt(less, 0), available(less, 0)) == (10, 0)
    assert available(refunded(owing, 50, now=0), 0) == 20


def test_more_budget_comes_into_force_with_the_next_refill() -> None:
    allowance = charged(full(100, 1_000), 60, at=0)
    waiting = adjusted(allowance, 150, 1_000, now=500)
    assert waiting.budget == 100
    assert waiting.adjustment == Adjustment(150, 1_000, 1_000)
    assert available(refilled(waiting, 999), 999) == 40
    assert available(refilled(waiting, 1_000), 1_000) == 150


def test_less_budget_comes_into_force_with_the_next_refill() -> None:
    allowance = charged(full(100, 1_000), 60, at=0)
    waiting = adjusted(allowance, 30, 500, now=500)
    assert available(waiting, 999) == 40
    shrunk = refilled(waiting, 1_000)
    assert (shrunk.budget, shrunk.period, available(shrunk, 1_000)) == (30, 500, 30)
    assert charged(shrunk, 30, at=1_000).refills == ((1_500, 30),)


def test_an_adjustment_of_an_unused_budget_is_in_force_at_once() -> None:
    allowance = adjusted(full(100, 1_000), 30, 500, now=5)
    assert allowance == Allowance(30, 500, ((0, 30),))


def test_a_second_adjustment_replaces_the_first() -> None:
    used = charged(full(100, 1_000), 60, at=0)
    twice = adjusted(adjusted(used, 150, 1_000, now=10), 120, 1_000, now=20)
    assert refilled(twice, 1_000).budget == 120


# --- a plain value -------------------------------------------------------------------------------------


def test_an_allowance_is_a_short_json_list_of_integers() -> None:
    tokens = charged(full(200_000, 60_000_000), 1_500, at=1_000)
    assert msgspec.json.encode(tokens) == b"[200000,60000000,[[0,198500],[60001000,1500]],null]"


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "1"])
def test_a_budget_that_is_no_amount_is_refused(budget: Any) -> None:
    with pytest.raises(ContextInvalid, match=r"Allowance\.budget"):
        full(budget, 10)


@pytest.mark.parametrize("period", [0, -1, True, 1.5])
def test_a_period_that_is_no_length_of_time_is_refused(period: Any) -> None:
    with pytest.raises(ContextInvalid, match=r"Allowance\.period"):
        full(10, period)
    with pytest.raises(ContextInvalid, match=r"Allowance\.period"):
        adjusted(full(10, 10), 10, period, now=0)


def test_an_amount_below_nothing_is_refused() -> None:
    with pytest.raises(ContextInvalid, match=r"Allowance\.amount"):
        charged(full(10, 10), -1, 0)
    with pytest.raises(ContextInvalid, match=r"Allowance\.amount"):
        refunded(full(10, 10), -1, 0)


@pytest.mark.parametrize(
    "row",
    ["[10,5,[[0,9]],null]", "[10,5,[],null]", "[10,5,[[9,5],[3,5]],null]", "[10,5,[[0,11],[3,-1]],null]", "[0,5,[]]"],
)
def test_a_row_that_breaks_the_law_is_refused_when_it_is_read(row: str) -> None:
    with pytest.raises(ContextInvalid):
        checked(msgspec.json.decode(row, type=Allowance))

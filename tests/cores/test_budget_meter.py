"""A meter gives the same results as the plain functions of replenishment, and grants nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rota.cores.budget_meter import BudgetMeter
from rota.model.budgets import REFILLS_MAX
from rota.policy.replenishment import Allowance, adjusted, available, charged, checked, full, next_refill_at, refilled

MS = 1_000_000


class Plain:
    """The meter's calls by the plain functions: refills due when a spending began come first, spendings in order."""

    def __init__(self, budget: int, period: int) -> None:
        self.allowance = full(budget, period)
        self.begun_at = 0
        self.granted = 0

    def take_in(self, now: int) -> None:
        self.allowance = refilled(self.allowance, now)
        begins, _ = self.allowance.refills[0]
        self.begun_at = max(self.begun_at, begins if begins <= now else 0)

    def grant(self, want: int, now: int) -> int:
        self.take_in(now)
        granted = max(0, min(want, available(self.allowance, now) - self.granted))
        self.granted += granted
        return granted

    def settle(self, granted: int, used: int, at: int, now: int) -> None:
        self.granted -= granted
        if used:
            self.take_in(min(max(self.begun_at, at), now))  # refills that came later are used last
            self.begun_at = max(self.begun_at, at)
            self.allowance = charged(self.allowance, used, self.begun_at)
            self.take_in(now)

    def adjust(self, budget: int, period: int, now: int) -> None:
        self.take_in(now)
        self.allowance = adjusted(self.allowance, budget, period, now)
        self.take_in(now)


def pending(allowance: Allowance, now: int) -> list[tuple[int, int]]:
    return [refill for refill in allowance.refills if refill[0] > now]


waits = st.sampled_from([0, 1, 5, 20, 100, 400])
verbs = st.sampled_from(["grant", "grant", "settle", "settle", "settle", "adjust"])
steps = st.lists(st.tuples(verbs, waits, st.integers(0, 1200), st.integers(0, 110)), max_size=100)


@given(st.sampled_from([5, 20, 100, 1000]), st.sampled_from([10, 60, 300, 3000]), steps)
def test_a_meter_equals_the_plain_functions_on_any_sequence_of_calls(
    budget: int, period: int, story: list[tuple[str, int, int, int]]
) -> None:
    plain, now, total = Plain(budget, period), 0, 0
    meter = BudgetMeter(plain.allowance, now)
    meter.is_shared = True
    runs: list[tuple[int, int]] = []  # granted, began at
    for verb, wait, number, part in story:
        now += wait
        if verb == "grant":
            meter.refill(now)  # an adjustment takes effect at a refill; the engine sets a timer for it
            granted = meter.grant(number + 1, now)
            assert granted == plain.grant(number + 1, now)
            runs.append((granted, now - number % 7))
        elif verb == "settle" and runs:
            granted, at = runs.pop(number % len(runs))
            used = granted * part // 100  # up to a tenth more than granted
            meter.granted -= granted
            meter.settle(used, at, now)
            plain.settle(granted, used, at, now)
            total += used
        elif verb == "adjust":
            meter.adjust(number + 1, period, now)
            plain.adjust(number + 1, period, now)
        ours, theirs = refilled(meter.allowance(), now), refilled(plain.allowance, now)
        assert available(ours, now) == available(theirs, now)
        assert pending(ours, now) == pending(theirs, now)
        assert meter.granted == plain.granted
        assert meter.used == total


def test_what_is_granted_to_one_is_not_granted_to_another() -> None:
    meter = BudgetMeter(full(10 * MS, 100 * MS), 0)
    meter.is_shared = True
    assert meter.grant(3 * MS, 0) == 3 * MS
    assert meter.grant(3 * MS, 0) == 3 * MS
    assert meter.room == 4 * MS
    meter.granted -= 3 * MS
    meter.settle(1 * MS, at=0, now=1 * MS)
    assert meter.room == 6 * MS
    assert meter.grant(50 * MS, 1 * MS) == 6 * MS
    assert meter.grant(1, 1 * MS) == 0


def test_several_slices_of_one_activation_are_refilled_together_one_period_after_it_began() -> None:
    meter = BudgetMeter(full(20 * MS, 100 * MS), 0)
    for slice_number in range(6):
        assert meter.grant(3 * MS, slice_number * 3 * MS)
        meter.settle(3 * MS, at=0, now=(slice_number + 1) * 3 * MS)
    assert meter.allowance().refills == ((0, 2 * MS), (100 * MS, 18 * MS))


def test_a_slice_that_exceeds_its_grant_is_charged_in_full_as_debt() -> None:
    meter = BudgetMeter(full(10 * MS, 100 * MS), 0)
    assert meter.grant(10 * MS, 0) == 10 * MS
    meter.settle(12 * MS, at=0, now=12 * MS)
    assert meter.room == 0
    assert meter.allowance().refills == ((100 * MS, 8 * MS), (200 * MS, 2 * MS))


def test_a_meter_of_many_spendings_stays_small() -> None:
    meter = BudgetMeter(full(1000 * MS, 10_000 * MS), 0)
    for spending in range(5_000):
        now = spending * MS // 2
        assert meter.grant(100_000, now) == 100_000
        meter.settle(100_000, at=now, now=now)
        assert len(meter.allowance().refills) <= REFILLS_MAX
    checked(meter.allowance())


turns = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 130)), max_size=60)


@given(st.sampled_from([7, 60, 100]), st.sampled_from([10, 60, 300]), turns)
def test_turns_that_use_more_than_there_is_are_charged_as_the_plain_functions_say(
    budget: int, period: int, story: list[tuple[int, int]]
) -> None:
    plain, now = Plain(budget, period), 0
    meter = BudgetMeter(plain.allowance, now)
    for wait, used in story:
        began = now = now + wait
        now += used  # nobody ended the turn when the budget was used up
        meter.settle(used, began, now)
        plain.settle(0, used, began, now)
        meter.refill(now)
        plain.take_in(now)
        assert pending(meter.allowance(), now) == pending(plain.allowance, now)
        assert meter.room == available(plain.allowance, now)
        assert meter.next_refill_at == next_refill_at(plain.allowance, now)

"""A budget per period that holds for every window of time: charge it and refill it.

A counter that is reset at the end of each period leaks: a user that spends all of it at the end of one period and again
at the start of the next has had two budgets in a short time. So here every used unit returns exactly one period after
it was used. The budget is a short list of *refills*, each an amount and the instant from which it is available:

    the sum of all refills always equals the budget

    available now   the refills whose instant has come
    pending         the others: what was used less than a period ago

A charge takes from the earliest refills and puts the amount back further down the list. There is one rule:

    what is taken from a refill returns one period after the later of two instants:
    the refill's own, and the start of the spending

100 units per 1,000 (in any unit of time):

    start                   available 100    (0, 100)
    30 are used at 0        available 70     (0, 70)  (1000, 30)
    85 are used at 400      available 0      (1000, 15)  (1400, 70)  (2000, 15)      debt 15
    at 1000                 available 15     (1000, 15)  (1400, 70)  (2000, 15)
    at 1400                 available 85
    at 2000                 available 100

**Debt.** At 400 only 70 were available and 85 were used, because a model cannot be stopped in the middle of a response.
By the rule, the last 15 are taken from the refill of 1000 and return at 2000: an overshoot is used ahead of time, and
later refills pay for it. It is never forgotten and needs no field; `debt` computes it from the instants.

**The guarantee.** For work that starts inside any window as long as a period, no more than the budget is used, plus the
overshoot. This holds for every such window, wherever it begins.

**A bounded list.** Many small charges make many refills. Refills of one instant are merged. Beyond `refills_max` two
neighbours are merged at the later of their instants: this may delay budget but never gives it early. The pair with the
least added waiting (amount × delay) is merged, so that under a steady stream the refills stay spread over the whole
period and little is lost: with 16 of them, a few percent.

**Two users.** A context on a core counts nanoseconds of running per nanoseconds of time, in memory. A provider's limit
(200,000 tokens per 60 s) counts tokens per microsecond and is stored as a row: an `Allowance` is a plain value of
integers, `[200000, 60000000, [[0, 200000]], null]` as JSON. Every function takes one and returns a new one, which the
caller keeps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from rota.errors import ContextInvalid
from rota.model.budgets import REFILLS_MAX
from rota.model.checks import INTEGER_MAX, Checks

__all__ = [
    "Adjustment",
    "Allowance",
    "adjusted",
    "after_charge",
    "available",
    "bound",
    "charged",
    "checked",
    "covered_at",
    "debt",
    "full",
    "moved",
    "next_refill_at",
    "refilled",
    "refunded",
]

_Refill: TypeAlias = tuple[int, int]  # the instant from which it is available, the amount
_checks = Checks("Allowance", ContextInvalid)


class Adjustment(msgspec.Struct, frozen=True, array_like=True):
    """Another budget and period for an allowance, from an instant on."""

    budget: int
    period: int
    at: int

    def __post_init__(self) -> None:
        _check_numbers(self.budget, self.period)


class Allowance(msgspec.Struct, frozen=True, array_like=True):
    """A budget per period and its current refills."""

    budget: int
    period: int
    refills: tuple[_Refill, ...]  # by instant; their sum is the budget
    adjustment: Adjustment | None = None  # takes effect at the next refill


def checked(allowance: Allowance) -> Allowance:
    """Return the allowance if its refills ascend and sum up to its budget; else raise ContextInvalid.

    Every function here returns checked allowances; one that comes from outside must be checked.
    """
    _check_numbers(allowance.budget, allowance.period)
    total, before = 0, -INTEGER_MAX
    for at, amount in allowance.refills:
        if amount <= 0 or at < before:
            raise _checks.refuse("refills", f"must ascend and be positive: {allowance.refills}")
        total += amount
        before = at
    if total != allowance.budget:
        raise _checks.refuse("refills", f"sum up to {total:,} and not to the budget, {allowance.budget:,}")
    return allowance


def full(budget: int, period: int, at: int = 0) -> Allowance:
    """Return an unused allowance, available from an instant on."""
    return checked(Allowance(budget, period, ((_checks.whole("at", at), budget),)))


# --- reading -------------------------------------------------------------------------------------


def available(allowance: Allowance, now: int) -> int:
    """Return the amount that is available now."""
    return sum(amount for at, amount in allowance.refills if at <= now)


def debt(allowance: Allowance, now: int) -> int:
    """Return what was used ahead of the refills that pay for it.

    A unit that returns within one period was used once. One that returns within two was used twice, the second time
    ahead of its refill, and so on.
    """
    period = allowance.period
    return sum(amount * ((at - now - 1) // period) for at, amount in allowance.refills if at > now)


def next_refill_at(allowance: Allowance, now: int) -> int | None:
    """Return when more becomes available; None if nothing is pending."""
    return next((at for at, _ in allowance.refills if at > now), None)


def covered_at(allowance: Allowance, amount: int) -> int | None:
    """Return from when on an amount is available if no more is used; None if it exceeds the budget."""
    so_far = 0
    for at, part in allowance.refills:
        so_far += part
        if so_far >= amount:
            return at
    return None


# --- charge, refill, refund ----------------------------------------------------------------------


def charged(allowance: Allowance, amount: int, at: int, *, refills_max: int = REFILLS_MAX) -> Allowance:
    """Charge an amount used by work that started at an instant, whether it was available or not."""
    budget, period, refills = allowance.budget, allowance.period, allowance.refills
    begins, part = refills[0]
    due = max(begins, at) + period
    if 0 < amount < part and len(refills) < refills_max and due > refills[-1][0]:
        # Nearly every charge: the first refill covers it, and the amount returns last of all. The sum cannot change
        # here, so it is not checked.
        shorter = ((begins, part - amount), *refills[1:], (due, amount))
        return Allowance(budget, period, shorter, allowance.adjustment)
    _checks.whole("amount", amount, 0)
    if not amount:
        return allowance
    after = after_charge(refills, amount, at, budget, period, refills_max=refills_max)
    return checked(Allowance(budget, period, tuple(after), allowance.adjustment))


def after_charge(
    before: Sequence[_Refill], amount: int, at: int, budget: int, period: int, *, refills_max: int = REFILLS_MAX
) -> list[_Refill]:
    """Return the refills after a charge of any size. The caller vouches for the numbers."""
    refills = list(before)
    if amount >= budget:
        # each time the whole budget is taken, every refill moves back once
        times, amount = divmod(amount, budget)
        refills = []
        for begins, part in before:
            _put(refills, max(begins, at) + times * period, part)
    while amount:
        begins, part = refills.pop(0)
        if amount < part:
            refills.insert(0, (begins, part - amount))
            part = amount
        amount -= part
        _put(refills, max(begins, at) + period, part)
    bound(refills, refills_max)
    return refills


def refilled(allowance: Allowance, now: int) -> Allowance:
    """Return the allowance with all due refills merged into one, and a due adjustment applied."""
    refills, adjustment = allowance.refills, allowance.adjustment
    if adjustment is not None and adjustment.at <= now:
        return refilled(_with_adjustment(allowance, adjustment), now)
    if len(refills) == 1 or refills[1][0] > now:
        return allowance
    pending = [refill for refill in refills if refill[0] > now]
    due = refills[: len(refills) - len(pending)]
    together = due[-1][0], sum(amount for _, amount in due)
    return checked(Allowance(allowance.budget, allowance.period, (together, *pending), adjustment))


def refunded(allowance: Allowance, amount: int, now: int, *, refills_max: int = REFILLS_MAX) -> Allowance:
    """Refund an amount that was charged but not used, whichever of the charges it belongs to.

    Each unit moves back by one period, to where it was taken from. Debt is refunded first, the latest of it before the
    rest; then what returns soonest: if that was another user's charge, what remains returns later than it should, and
    not earlier. What is available again cannot be refunded, so an allowance never exceeds its budget.
    """
    _checks.whole("amount", amount, 0)
    refills, period = list(allowance.refills), allowance.period
    while amount and refills[-1][0] > now:
        is_debt = refills[-1][0] > now + period
        place = len(refills) - 1 if is_debt else bisect_left(refills, (now + 1, 0))
        at, part = refills.pop(place)
        if amount < part:
            refills.insert(place, (at, part - amount))
            part = amount
        amount -= part
        _put(refills, at - period, part)
    return _with(allowance, refills, refills_max)


# --- adjustment ----------------------------------------------------------------------------------


def adjusted(allowance: Allowance, budget: int, period: int, now: int) -> Allowance:
    """Change budget and period from the next refill on, or immediately if nothing is pending."""
    at = next_refill_at(allowance, now)
    adjustment = Adjustment(budget, period, now if at is None else at)
    later = Allowance(allowance.budget, allowance.period, allowance.refills, adjustment)
    return refilled(later, now)


def _with_adjustment(allowance: Allowance, adjustment: Adjustment) -> Allowance:
    """Apply an adjustment: more budget is added at its instant; less is taken from the earliest refills."""
    change = adjustment.budget - allowance.budget
    refills = list(allowance.refills)
    if change > 0:
        _put(refills, adjustment.at, change)
    while change < 0:
        at, part = refills.pop(0)
        if part + change > 0:
            refills.insert(0, (at, part + change))
        change += part
    bound(refills, REFILLS_MAX)
    return checked(Allowance(adjustment.budget, adjustment.period, tuple(refills)))


# --- another clock -------------------------------------------------------------------------------


def moved(allowance: Allowance, by: int) -> Allowance:
    """Return the same allowance on a clock that is ahead by this much more: every instant moves with the clock."""
    refills = tuple((at + by, amount) for at, amount in allowance.refills)
    adjustment = allowance.adjustment
    if adjustment is not None:
        adjustment = Adjustment(adjustment.budget, adjustment.period, adjustment.at + by)
    return Allowance(allowance.budget, allowance.period, refills, adjustment)


# --- the list ------------------------------------------------------------------------------------


def _with(allowance: Allowance, refills: list[_Refill], refills_max: int) -> Allowance:
    bound(refills, refills_max)
    return checked(Allowance(allowance.budget, allowance.period, tuple(refills), allowance.adjustment))


def _put(refills: list[_Refill], at: int, amount: int) -> None:
    """Insert a refill in order; refills of the same instant are merged."""
    place = bisect_left(refills, (at, 0))
    if place < len(refills) and refills[place][0] == at:
        refills[place] = at, refills[place][1] + amount
    else:
        refills.insert(place, (at, amount))


def bound(refills: list[_Refill], refills_max: int, *, first: int = 1) -> None:
    """Merge neighbours until there are at most `refills_max`, with as little added waiting as possible.

    Those before `first` are not merged: they are available now.
    """
    while len(refills) > refills_max:
        place, least = first, -1
        for index in range(first, len(refills) - 1):
            at, amount = refills[index]
            waiting = amount * (refills[index + 1][0] - at)
            if waiting < least or least < 0:
                place, least = index, waiting
        (_, sooner), (at, later) = refills[place : place + 2]
        refills[place : place + 2] = [(at, sooner + later)]


def _check_numbers(budget: int, period: int) -> None:
    _checks.whole("budget", budget, 1)
    _checks.whole("period", period, 1)

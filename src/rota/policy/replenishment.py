"""A budget per period that cannot be cheated: charge it, refill it, deplete it.

The obvious way is a counter that is set back at the end of each period. It leaks: whoever spends all of it
in the last moment of one period and again in the first moment of the next has had two budgets at once. So
here every unit that is used comes back exactly one period after the moment it was used. The budget is kept
as a short list of *refills*, each an amount and the instant from which it may be used:

    the sum of all refills is the budget, at all times

    available now   the refills whose instant has come
    pending         the others: what was used less than a period ago

Using something takes it from the earliest refills and puts it back further down the list. There is one rule:

    what is taken from a refill comes back one period after the later of two instants:
    the refill's own, and the moment the spending began

100 units per 1,000 (of whatever unit of time the caller counts in):

    start                   available 100    (0, 100)
    30 are used at 0        available 70     (0, 70)  (1000, 30)
    85 are used at 400      available 0      (1000, 15)  (1400, 70)  (2000, 15)      debt 15
    at 1000                 available 15     (1000, 15)  (1400, 70)  (2000, 15)
    at 1400                 available 85
    at 2000                 available 100

**Debt.** At 400 only 70 were there and 85 were used, because nobody can stop a model in the middle of a word.
The rule says what happens: the last 15 are taken from the refill that would have come at 1000, and so come
back at 2000. An overshoot is used ahead of its time, and later refills pay for it. It is never forgotten
and needs no field of its own; `debt` reads it from the instants.

**What is promised.** Of whatever was begun inside any stretch of time as long as a period, not more than the
budget was used, plus what overshot. This holds for every such stretch, wherever it begins.

**A bounded list.** Many small charges make many refills. Those of one instant are one; beyond `refills_max`
two neighbours become one, at the later instant of the two: a budget may come late by this, never early. The
pair is chosen for which the least waiting is added (amount × how much later), so that under a steady stream
the refills stay spread over the whole period and little is lost: with 16 of them, a few per cent.

**Two users.** A context on a core counts nanoseconds of running per nanoseconds of time, in memory. A
provider's limit (200,000 tokens per 60 s) counts tokens per microsecond and is kept as a row: an
`Allowance` is a plain value of whole numbers, `[200000, 60000000, [[0, 200000]], null]` as JSON. Every
function here takes one and returns another; whoever keeps it, keeps the answer.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeAlias

import msgspec

from rota.errors import ContextInvalid
from rota.model.budgets import REFILLS_MAX
from rota.model.checks import INTEGER_MAX, Checks

__all__ = [
    "Adjustment",
    "Allowance",
    "adjusted",
    "available",
    "bound",
    "charged",
    "covered_at",
    "debt",
    "full",
    "lawful",
    "next_refill_at",
    "refilled",
    "refunded",
]

_Refill: TypeAlias = tuple[int, int]  # the instant from which it may be used, the amount
_checks = Checks("Allowance", ContextInvalid)


class Adjustment(msgspec.Struct, frozen=True, array_like=True):
    """Other numbers for an allowance, from an instant on."""

    budget: int
    period: int
    at: int

    def __post_init__(self) -> None:
        _check_numbers(self.budget, self.period)


class Allowance(msgspec.Struct, frozen=True, array_like=True):
    """A budget per period and where it stands."""

    budget: int
    period: int
    refills: tuple[_Refill, ...]  # by instant; their sum is the budget
    adjustment: Adjustment | None = None  # what comes into force at the next refill


def lawful(allowance: Allowance) -> Allowance:
    """The same allowance if its refills ascend and sum up to its budget; else an error that says so.

    What is made here has passed this; what comes from outside has to.
    """
    _check_numbers(allowance.budget, allowance.period)
    total, before = 0, -INTEGER_MAX
    for at, amount in allowance.refills:
        if amount <= 0 or at < before:
            raise _checks.refuse("refills", f"must ascend and be more than nothing: {allowance.refills}")
        total += amount
        before = at
    if total != allowance.budget:
        raise _checks.refuse("refills", f"sum up to {total:,} and not to the budget, {allowance.budget:,}")
    return allowance


def full(budget: int, period: int, at: int = 0) -> Allowance:
    """An allowance of which nothing has been used, from an instant on."""
    return lawful(Allowance(budget, period, ((_checks.whole("at", at), budget),)))


# --- reading -------------------------------------------------------------------------------------


def available(allowance: Allowance, now: int) -> int:
    """What may be used now."""
    return sum(amount for at, amount in allowance.refills if at <= now)


def debt(allowance: Allowance, now: int) -> int:
    """What was used ahead of the refills that pay for it, as the present period counts.

    A unit that comes back within one period was used once. One that comes back within two was used twice,
    the second time on credit, and so on.
    """
    period = allowance.period
    return sum(amount * ((at - now - 1) // period) for at, amount in allowance.refills if at > now)


def next_refill_at(allowance: Allowance, now: int) -> int | None:
    """When more becomes available, or None when nothing is pending."""
    return next((at for at, _ in allowance.refills if at > now), None)


def covered_at(allowance: Allowance, amount: int) -> int | None:
    """From when on so much is available, if nobody uses any until then; None if it is above the budget."""
    so_far = 0
    for at, part in allowance.refills:
        so_far += part
        if so_far >= amount:
            return at
    return None


# --- using and coming back -----------------------------------------------------------------------


def charged(allowance: Allowance, amount: int, at: int, *, refills_max: int = REFILLS_MAX) -> Allowance:
    """So much was used by a spending that began at an instant, whether it was available or not."""
    budget, period, refills = allowance.budget, allowance.period, allowance.refills
    begins, part = refills[0]
    due = max(begins, at) + period
    if 0 < amount < part and len(refills) < refills_max and due > refills[-1][0]:
        # Nearly every charge: the first refill covers it, and what was used comes back last of all. The sum
        # cannot change here, so it is not taken again.
        shorter = ((begins, part - amount), *refills[1:], (due, amount))
        return Allowance(budget, period, shorter, allowance.adjustment)
    _checks.whole("amount", amount, 0)
    return _with(allowance, _after(refills, amount, at, budget, period), refills_max) if amount else allowance


def _after(before: tuple[_Refill, ...], amount: int, at: int, budget: int, period: int) -> list[_Refill]:
    """The refills once so much was taken, however much it was."""
    refills = list(before)
    if amount >= budget:
        # each time the whole budget is taken, every refill is put back once
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
    return refills


def refilled(allowance: Allowance, now: int) -> Allowance:
    """The same allowance with everything that is due in one refill, and an adjustment that is due in force."""
    refills, adjustment = allowance.refills, allowance.adjustment
    if adjustment is not None and adjustment.at <= now:
        return refilled(_in_force(allowance, adjustment), now)
    if len(refills) == 1 or refills[1][0] > now:
        return allowance
    pending = [refill for refill in refills if refill[0] > now]
    due = refills[: len(refills) - len(pending)]
    together = due[-1][0], sum(amount for _, amount in due)
    return lawful(Allowance(allowance.budget, allowance.period, (together, *pending), adjustment))


def refunded(allowance: Allowance, amount: int, now: int, *, refills_max: int = REFILLS_MAX) -> Allowance:
    """So much of what was charged was not used after all: what comes back last is put back first.

    Each unit goes back by one period, which is where it was taken from. What was charged so long ago that
    it is available again cannot be given back twice, so an allowance never exceeds its budget.
    """
    _checks.whole("amount", amount, 0)
    refills = list(allowance.refills)
    while amount and refills[-1][0] > now:
        at, part = refills.pop()
        if amount < part:
            refills.append((at, part - amount))
            part = amount
        amount -= part
        _put(refills, at - allowance.period, part)
    return _with(allowance, refills, refills_max)


# --- other numbers -------------------------------------------------------------------------------


def adjusted(allowance: Allowance, budget: int, period: int, now: int) -> Allowance:
    """Another budget and period, in force from the next refill on; at once if nothing is pending."""
    at = next_refill_at(allowance, now)
    adjustment = Adjustment(budget, period, now if at is None else at)
    later = Allowance(allowance.budget, allowance.period, allowance.refills, adjustment)
    return refilled(later, now)


def _in_force(allowance: Allowance, adjustment: Adjustment) -> Allowance:
    """More budget is added at the refill it waited for; less is taken from the earliest refills."""
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
    return lawful(Allowance(adjustment.budget, adjustment.period, tuple(refills)))


# --- the list ------------------------------------------------------------------------------------


def _with(allowance: Allowance, refills: list[_Refill], refills_max: int) -> Allowance:
    bound(refills, refills_max)
    return lawful(Allowance(allowance.budget, allowance.period, tuple(refills), allowance.adjustment))


def _put(refills: list[_Refill], at: int, amount: int) -> None:
    """Add a refill where it belongs; one of the same instant becomes part of it."""
    place = bisect_left(refills, (at, 0))
    if place < len(refills) and refills[place][0] == at:
        refills[place] = at, refills[place][1] + amount
    else:
        refills.insert(place, (at, amount))


def bound(refills: list[_Refill], most: int, *, first: int = 1) -> None:
    """Merge neighbours until there are no more refills than allowed, adding as little waiting as can be.

    Those before `first` are left alone: they are what can be used now.
    """
    while len(refills) > most:
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

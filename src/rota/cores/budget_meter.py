"""A budget per period that is charged after every slice: `policy.replenishment`, updated in place.

A context is charged whenever one of its entities stops, so the usual charge must be cheap in time and in memory
touched. The refills are therefore kept in parts:

    used     everything ever used
    left     what is available now
    last     the latest refill, as two numbers
    earlier  the refills before it, if there are any

In the usual case the last refill was due before the spending began: it is applied, and the new charge becomes the last
refill. Everything else is slower. Operations that change the sum in other ways (an overshoot, an adjustment)
convert the meter to an `Allowance`, call the plain functions, and convert the result back. A test compares the meter
with the plain functions on any sequence of calls.

**Reserve, then settle.** When an entity starts to run it is *granted* some time, which cannot be granted to another
entity. So two entities of one context on two cores cannot spend it twice. When an entity stops, its grant ends and the
time it used is charged:

    available 10 ms    A starts and is granted 3    7 are left to grant
                       B starts and is granted 3    4
                       A stops after 1              1 is charged, 2 are returned: 6 to grant

A meter with only one entity does not count its grants: no other entity asks while that one runs.

**In order.** A spending begins when its entity wakes. With several entities a later spending may end first; the earlier
one is then counted as if it had begun no earlier, so that refills stay in order.
"""

from __future__ import annotations

from functools import lru_cache

from rota.model.budgets import REFILLS_MAX
from rota.policy.replenishment import Allowance, adjusted, after_charge, bound, charged, checked, refilled

__all__ = ["BudgetMeter"]

PENDING_MAX = REFILLS_MAX - 1  # the available amount is a refill too
PERIODS_CACHED_MAX = 4_096


class BudgetMeter:
    """A budget per period: what is available, granted, and due to be refilled."""

    __slots__ = (
        "_adjustment",
        "_earlier",
        "_last_amount",
        "_last_at",
        "budget",
        "granted",
        "is_shared",
        "left",
        "period",
        "since",
        "used",
    )

    def __init__(self, allowance: Allowance, now: int) -> None:
        self.used = 0
        self.granted = 0  # granted to running entities, if several share the meter
        self.is_shared = False  # whether several entities share it
        self.since = allowance.refills[0][0]  # no spending counts as begun before this
        self.left = self._last_at = self._last_amount = 0
        self._earlier: list[tuple[int, int]] | None = None
        self._set(allowance, now)

    @property
    def room(self) -> int:
        """What can be granted now. Due refills are included after `refill`."""
        return self.left - self.granted

    @property
    def next_refill_at(self) -> int | None:
        """The instant of the next refill, or None."""
        if self._earlier:
            return self._earlier[0][0]
        return self._last_at if self._last_amount else None

    def grant(self, want: int, now: int) -> int:
        """Reserve up to `want` of what is available; return the granted amount, possibly 0."""
        if want > self.left - self.granted:
            self.refill(now)
            room = self.left - self.granted
            if want > room:
                want = max(0, room)
        if self.is_shared:
            self.granted += want
        return want

    def settle(self, used: int, at: int, now: int) -> None:
        """Charge `used` for a spending that began at `at`. If the meter is shared, its grant has been returned."""
        # every pending refill was due when the spending began
        if self._last_at <= at and self._earlier is None and used:
            left, due_at = self.left + self._last_amount - used, at + self.period
            if left > 0 and now < due_at:
                self.used += used
                self.left = left
                self.since = at
                self._last_at = due_at
                self._last_amount = used
                return
        if used:
            self._settle(used, at, now)

    def set_aside(self, amount: int, at: int, now: int) -> None:
        """Take `amount` away as `settle` does, for something that another meter is charged for."""
        self.settle(amount, at, now)
        self.used -= amount

    def refill(self, now: int) -> None:
        """Apply the refills that are due."""
        earlier = self._earlier
        if earlier is not None:
            if self._adjustment is not None:
                self._set(self.allowance(), now)
                return
            while earlier and earlier[0][0] <= now:
                self.since, amount = earlier.pop(0)
                self.left += amount
            if earlier:
                return
            self._earlier = None
        if self._last_amount and self._last_at <= now:
            self.since = self._last_at
            self.left += self._last_amount
            self._last_amount = 0

    def close(self) -> None:
        """End the budget: nothing is available and nothing is refilled."""
        self.left = self.granted = 0
        self._last_amount, self._earlier = 0, None

    def adjust(self, budget: int, period: int, now: int) -> None:
        """Set another budget and period, effective from the next refill."""
        self.refill(now)
        self._set(adjusted(self.allowance(), budget, period, now), now)

    def allowance(self) -> Allowance:
        """The meter as a plain value."""
        refills = [refill for refill in self._refills() if refill[0] > self.since]  # the others are due
        available = self.budget - sum(amount for _, amount in refills)
        first = ((self.since, available),) if available else ()
        return checked(Allowance(self.budget, self.period, (*first, *refills), self._adjustment))

    def _refills(self) -> list[tuple[int, int]]:
        """What is available and what is pending, as the plain functions have it."""
        refills = [(self.since, self.left)] if self.left else []
        if self._earlier:
            refills += self._earlier
        if self._last_amount:
            refills.append((self._last_at, self._last_amount))
        return refills

    def _settle(self, used: int, at: int, now: int) -> None:
        """Charge any amount, with any pending refills: those that came after the spending began are used last."""
        if at < self.since:  # noqa: PLR1730  # max() costs a call at every charge
            at = self.since
        if self._earlier is not None or self._last_at <= at:
            self.refill(at)
        self.since = at
        self.used += used
        left, due_at, last_at = self.left - used, at + self.period, self._last_at
        if self._adjustment is not None:
            self._set(charged(self.allowance(), used, at), now)
            return
        if left <= 0 or due_at < last_at:
            self._load(after_charge(self._refills(), used, at, self.budget, self.period), now)
            return
        self.left = left
        if due_at == last_at:
            used += self._last_amount
        elif self._last_amount:
            earlier = self._earlier
            if earlier is None:
                self._earlier = [(last_at, self._last_amount)]
            else:
                earlier.append((last_at, self._last_amount))
                if len(earlier) == PENDING_MAX:
                    earlier.append((due_at, used))
                    bound(earlier, PENDING_MAX, first=0)
                    due_at, used = earlier.pop()
        self._last_at, self._last_amount = due_at, used
        if (due_at if self._earlier is None else self._earlier[0][0]) <= now:
            self.refill(now)

    def _set(self, allowance: Allowance, now: int) -> None:
        """Load a plain value."""
        allowance = refilled(allowance, now)  # an adjustment may be due
        self.budget, self.period, self._adjustment = allowance.budget, _shared(allowance.period), allowance.adjustment
        self._load(list(allowance.refills), now)

    def _load(self, refills: list[tuple[int, int]], now: int) -> None:
        """Replace what is available and pending."""
        self.left = 0
        while refills and refills[0][0] <= now:
            begins, amount = refills.pop(0)
            self.left += amount
            if begins > self.since:  # noqa: PLR1730  # max() costs a call at every refill
                self.since = begins
        # without an amount nothing is pending, and all of it is available since that instant
        self._last_at, self._last_amount = refills.pop() if refills else (self.since, 0)
        self._earlier = refills if refills or self._adjustment is not None else None  # None: the fast path applies


@lru_cache(PERIODS_CACHED_MAX)
def _shared(period: int) -> int:
    """Return one integer object for all meters with equal periods, so that it stays in the processor's cache."""
    return period

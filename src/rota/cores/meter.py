"""An allowance that is charged at every turn: `policy.replenishment`, kept up to date in place.

A core charges a context whenever one of its entities stops, so the usual charge must cost little, in time and in memory
that is touched. Here the refills are kept apart:

    used     everything that was ever used
    limit    how far `used` may go for now: limit − used is available
    last     the refill that comes back last, as two numbers
    earlier  those that come back before it, if there are any

The usual charge finds that the last refill has come back meanwhile: it is taken in, and the new one takes its place.
Everything else takes longer; what moves the sum in other ways (an overshoot, an adjustment) is done by turning the
meter into an `Allowance`, asking the plain functions, and turning the answer back. A test holds the meter equal to the
plain functions on any sequence of calls.

**Reserve, then settle.** When an entity starts to run it is *granted* a stretch, and what is granted to one cannot be
granted to another. So two entities that draw on one context at the same time, on two cores, cannot spend it twice.
When one stops, the grant ends and what it really used is charged:

    available 10 ms    A starts and is granted 3    7 are left to grant
                       B starts and is granted 3    4
                       A stops after 1              1 is charged, 2 are left over: 6 to grant

A meter that only one entity draws on need not count what it has granted: nobody else asks while that one runs.

**In order.** A spending begins when its entity wakes. With several entities on one context a later one may end first;
it is then counted as if the other had begun no earlier, so that what comes back comes back in order.
"""

from __future__ import annotations

from rota.model.budgets import REFILLS_MAX
from rota.policy.replenishment import Allowance, adjusted, bound, charged, lawful, refilled

__all__ = ["Meter"]

PENDING_MAX = REFILLS_MAX - 1  # what is available is a refill too


class Meter:
    """A budget per period, and what of it is available, granted and coming back."""

    __slots__ = (
        "_adjustment",
        "_earlier",
        "_last_amount",
        "_last_at",
        "budget",
        "granted",
        "is_shared",
        "limit",
        "period",
        "since",
        "used",
    )

    def __init__(self, allowance: Allowance, now: int) -> None:
        self.used = 0
        self.granted = 0  # to those who run now, if several draw on it
        self.is_shared = False  # whether several do
        self.since = allowance.refills[0][0]  # no spending counts as begun before this
        self.limit = self._last_at = self._last_amount = 0
        self._earlier: list[tuple[int, int]] | None = None
        self._set(allowance, now)

    @property
    def room(self) -> int:
        """What can be granted now; refills that are due count after `refill`."""
        return self.limit - self.used - self.granted

    @property
    def next_refill_at(self) -> int | None:
        """When more comes back, or None when nothing is pending."""
        if self._earlier:
            return self._earlier[0][0]
        return self._last_at if self._last_amount else None

    def grant(self, want: int, now: int) -> int:
        """Reserve as much of `want` as there is; the answer is how much, and may be nothing."""
        if want > self.limit - self.used - self.granted:
            self.refill(now)
            want = max(0, min(want, self.room))
        if self.is_shared:
            self.granted += want
        return want

    def settle(self, granted: int, used: int, at: int, now: int) -> None:
        """A grant has ended and so much was used by a spending that began at an instant."""
        if self.is_shared:
            self.granted -= granted
        last_at = self._last_at
        if last_at <= now and self._earlier is None:  # whatever was pending has come back
            total, limit = self.used + used, self.limit + self._last_amount
            if total < limit and used:
                self.used = total
                self.limit = limit
                self.since = at = at if at > last_at else last_at  # noqa: FURB136  # max() costs a call at every stop
                self._last_at = at + self.period
                self._last_amount = used
                return
        if used:
            self._settle(used, at, now)

    def refill(self, now: int) -> None:
        """Make available what is due."""
        earlier = self._earlier
        if self._adjustment is not None:
            self._set(self.allowance(), now)
            return
        if earlier is not None:
            while earlier and earlier[0][0] <= now:
                self._take_in(*earlier.pop(0))
            self._earlier = earlier or None
        if self._earlier is None and self._last_at <= now:
            self._take_in(self._last_at, self._last_amount)
            self._last_amount = 0

    def _take_in(self, at: int, amount: int) -> None:
        self.limit += amount
        self.since = max(self.since, at)

    def adjust(self, budget: int, period: int, now: int) -> None:
        """Another budget and period, in force from the next refill on."""
        self.refill(now)
        self._set(adjusted(self.allowance(), budget, period, now), now)

    def allowance(self) -> Allowance:
        """The same as a plain value."""
        pending = list(self._earlier or ())
        if self._last_amount:
            pending.append((self._last_at, self._last_amount))
        pending = [refill for refill in pending if refill[0] > self.since]  # the others are due, and not taken in yet
        available = self.budget - sum(amount for _, amount in pending)
        first = ((self.since, available),) if available else ()
        return lawful(Allowance(self.budget, self.period, (*first, *pending), self._adjustment))

    def _settle(self, used: int, at: int, now: int) -> None:
        """Charge anything, whatever is pending."""
        self.refill(now)
        self.since = at = max(at, self.since)
        total = self.used + used
        if total < self.limit and self._put(at + self.period, used):
            self.used = total
            return
        after = charged(self.allowance(), used, at)
        self.used = total
        self._set(after, now)

    def _put(self, at: int, amount: int) -> bool:
        """Make a refill the last one, or part of it if it is of the same instant; whether that was enough."""
        if self._adjustment is not None or at < self._last_at:
            return False
        if not self._last_amount:
            self._last_at, self._last_amount = at, amount
        elif at == self._last_at:
            self._last_amount += amount
        else:
            pending = [*(self._earlier or ()), (self._last_at, self._last_amount), (at, amount)]
            bound(pending, PENDING_MAX, first=0)
            self._last_at, self._last_amount = pending.pop()
            self._earlier = pending
        return True

    def _set(self, allowance: Allowance, now: int) -> None:
        """Become what a plain value says."""
        allowance = refilled(allowance, now)
        self.budget, self.period, self._adjustment = allowance.budget, allowance.period, allowance.adjustment
        pending, available = list(allowance.refills), 0
        if pending[0][0] <= now:
            begins, available = pending.pop(0)
            self.since = max(self.since, begins)
        self.limit = self.used + available
        # without an amount nothing is pending, and all has been available since that instant
        self._last_at, self._last_amount = pending.pop() if pending else (self.since, 0)
        self._earlier = pending if pending or self._adjustment is not None else None  # None: the short way is open

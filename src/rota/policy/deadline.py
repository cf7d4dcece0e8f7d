"""Earliest deadline first, and the tests that say whether deadlines can be met.

*edf* runs the candidate with the earliest deadline; candidates without a deadline come last. On one core, if any order
meets all deadlines, this one does. It has no shares: an owner that always sets the nearest deadline always wins, and
work without a deadline may starve.

**Does a set fit?** A reservation uses `budget` every `period`, and each time it must be done `deadline` after its
release. Two tests decide whether a set of these fits on one core:

    utilisation   the sum of budget / period is at most the share of the core that is available (necessary)
    demand        for every length of time t, what must be done within it is at most t (sufficient)

What must be done within t is the budget once for every period that begins in t and is due by its end:

    budget 2, period 5, deadline 4      t   3   4   8   9   14
                                            0   2   2   4   6

A set that is served after others (a more critical band) has less of each t: what the others may use comes off first.
Only the instants at which something is due need a check, and only as long as the core can be busy without a pause. That
can be long when the core is nearly full, so the number of checks is bounded: a set that is not shown to fit within the
bound is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from rota.lazy import late
from rota.model.reasons import PickReason
from rota.model.snapshot import Candidate, Decisions, Snapshot
from rota.policy.contract import Policy, assign_slots
from rota.policy.ranking import HeapOrder

if TYPE_CHECKING:
    import fractions
else:
    fractions = late("fractions")

__all__ = ["CHECKS_MAX", "Demand", "Overload", "edf", "edf_key", "overload", "utilisation"]

CHECKS_MAX = 100_000  # instants that a demand test checks


def edf_key(candidate: Candidate) -> tuple[float, float, int]:
    """Order by deadline (none is last), then by priority, then by id."""
    due = math.inf if candidate.deadline is None else candidate.deadline
    return due, -candidate.priority, candidate.id


def edf() -> Policy:
    """The candidate with the earliest deadline."""

    def rank(snapshot: Snapshot) -> Decisions:
        return assign_slots(((c, _reason(c)) for c in sorted(snapshot.candidates, key=edf_key)), snapshot.slots)

    return Policy(
        name="edf",
        rank=rank,
        sentence="Earliest deadline first; candidates without a deadline come last. May starve.",
        incremental=lambda: HeapOrder(edf_key),
        window="deadline",
        accounts=(),
    )


def _reason(candidate: Candidate) -> PickReason:
    return PickReason("edf", "no deadline" if candidate.deadline is None else f"due at {candidate.deadline}")


# --- does a set fit? -----------------------------------------------------------------------------


class Demand(NamedTuple):
    """A reservation: a budget every period, to be done within the deadline."""

    budget: int
    period: int
    deadline: int

    def due_within(self, time: int) -> int:
        """Return what must be done within a length of time, at most."""
        return max(0, (time - self.deadline) // self.period + 1) * self.budget

    def used_within(self, time: int) -> int:
        """Return what may be used within a length of time, at most."""
        return -(-time // self.period) * self.budget


class Overload(NamedTuple):
    """The shortest time that cannot hold what must be done within it."""

    time: int
    needed: int  # within that time; more than the time itself, or the test gave up there


def utilisation(demands: Iterable[Demand]) -> fractions.Fraction:
    """Return the share of a core that a set may use."""
    return sum((fractions.Fraction(one.budget, one.period) for one in demands), fractions.Fraction(0))


def overload(demands: Sequence[Demand], ahead: Sequence[Demand] = (), blocking: int = 0) -> Overload | None:
    """Return where a set does not fit on one core after the reservations ahead of it; None if it fits.

    `blocking` is the maximum time for which the core runs something else after more urgent work arrived.
    """
    busy_until = _busy_until(demands, ahead, blocking)
    for checks, time in enumerate(_due_instants(demands)):
        if busy_until is not None and time > busy_until:
            return None
        needed = blocking + sum(one.due_within(time) for one in demands) + sum(one.used_within(time) for one in ahead)
        if needed > time or checks >= CHECKS_MAX:
            return Overload(time, needed)
    return None


def _busy_until(demands: Sequence[Demand], ahead: Sequence[Demand], blocking: int) -> int | None:
    """Return how long the core can be busy without a pause; None if that is not found or has no end."""
    all_demands = (*demands, *ahead)
    if utilisation(all_demands) > 1:
        return None
    time = blocking + sum(one.budget for one in all_demands)
    for _ in range(CHECKS_MAX):
        longer = blocking + sum(one.used_within(time) for one in all_demands)
        if longer == time:
            return time
        time = longer
    return None


def _due_instants(demands: Sequence[Demand]) -> Iterator[int]:
    """Yield every instant at which something is due, each once, if all are released at time 0."""
    heap = [(one.deadline, one.period) for one in demands]
    heapify(heap)
    last = 0
    while heap:
        time, period = heap[0]
        heapreplace(heap, (time + period, period))
        if time > last:
            last = time
            yield time

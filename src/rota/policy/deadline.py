"""Earliest deadline first, and the tests that say whether deadlines can be met.

*edf* runs whatever is due first; what has no deadline comes last. On one core, if any order meets all
deadlines this one does. It knows no shares: whoever always claims the nearest deadline always wins,
and work without a deadline may starve.

**Will it fit?** Somebody may use `budget` every `period`, and each time it must be done `deadline` after it was
asked for. For a set of these on one core two tests answer:

    utilisation   the sum of budget / period is at most what the core gives away (necessary)
    demand        in every stretch of time t, what must be done within it is at most t (sufficient)

What must be done within t is the budget once for every period that begins in t and is due by its end:

    budget 2, period 5, deadline 4      t   3   4   8   9   14
                                            0   2   2   4   6

A set that is served only after others (a more critical band) has less of each stretch: whatever those others
may use in it comes off first. Only the instants at which something is due need to be looked at, and only as
long as the core can be busy without a pause. That can be long when the core is nearly full, so the number of
looks is bounded: a set that is not shown to fit within the bound is taken not to fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from heapq import heapify, heapreplace
from typing import NamedTuple

from rota.model.reasons import Because
from rota.model.snapshot import Candidate, Decisions, Snapshot
from rota.policy.contract import Policy, place
from rota.policy.ranking import LineOrdering

__all__ = ["LOOKS_MAX", "Demand", "Overload", "edf", "edf_key", "overload", "utilisation"]

LOOKS_MAX = 100_000  # instants that a demand test looks at


def edf_key(candidate: Candidate) -> tuple[float, float, int]:
    """Deadline (none is last), then priority, then id."""
    due = math.inf if candidate.deadline is None else candidate.deadline
    return due, -candidate.priority, candidate.id


def edf() -> Policy:
    """Whatever is due first."""

    def rank(snapshot: Snapshot) -> Decisions:
        return place(((c, _because(c)) for c in sorted(snapshot.candidates, key=edf_key)), snapshot.slots)

    return Policy(
        name="edf",
        rank=rank,
        sentence="Whatever is due first; what has no deadline comes last. May starve.",
        ordering=lambda: LineOrdering(edf_key),
        heads="deadline",
    )


def _because(candidate: Candidate) -> Because:
    return Because("edf", "no deadline" if candidate.deadline is None else f"due at {candidate.deadline}")


# --- will it fit? --------------------------------------------------------------------------------


class Demand(NamedTuple):
    """So much every period, to be done within the deadline."""

    budget: int
    period: int
    deadline: int

    def due_within(self, time: int) -> int:
        """What must be done within a stretch of time, at most."""
        return max(0, (time - self.deadline) // self.period + 1) * self.budget

    def used_within(self, time: int) -> int:
        """What may be used within a stretch of time, at most."""
        return -(-time // self.period) * self.budget


class Overload(NamedTuple):
    """The first stretch of time that cannot hold what must be done within it."""

    time: int
    needed: int  # within that time; more than the time itself, or the test gave up there


def utilisation(demands: Iterable[Demand]) -> Fraction:
    """The part of a core that a set may use."""
    return sum((Fraction(one.budget, one.period) for one in demands), Fraction(0))


def overload(demands: Sequence[Demand], ahead: Sequence[Demand] = (), blocking: int = 0) -> Overload | None:
    """Where a set does not fit on one core after those ahead of it; None if every deadline can be met.

    `blocking` is how long at most the core goes on with something else after somebody more urgent came.
    """
    busy_until = _busy_until(demands, ahead, blocking)
    for looks, time in enumerate(_due_instants(demands)):
        if busy_until is not None and time > busy_until:
            return None
        needed = blocking + sum(one.due_within(time) for one in demands) + sum(one.used_within(time) for one in ahead)
        if needed > time or looks >= LOOKS_MAX:
            return Overload(time, needed)
    return None


def _busy_until(demands: Sequence[Demand], ahead: Sequence[Demand], blocking: int) -> int | None:
    """How long the core can be busy without a pause; None if that is not found, or has no end."""
    everybody = (*demands, *ahead)
    if utilisation(everybody) > 1:
        return None
    time = blocking + sum(one.budget for one in everybody)
    for _ in range(LOOKS_MAX):
        longer = blocking + sum(one.used_within(time) for one in everybody)
        if longer == time:
            return time
        time = longer
    return None


def _due_instants(demands: Sequence[Demand]) -> Iterator[int]:
    """Every instant at which something is due, each once, counted from when everybody asks at once."""
    heap = [(one.deadline, one.period) for one in demands]
    heapify(heap)
    last = 0
    while heap:
        time, period = heap[0]
        heapreplace(heap, (time + period, period))
        if time > last:
            last = time
            yield time

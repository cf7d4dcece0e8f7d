"""Policies that rank each candidate by a number of its own: strict, round robin, priority with aging.

*strict* orders by priority, then by the time a candidate became ready, then by id. It is the usual meaning of priority
in a queue, and it starves: while more important work keeps arriving, the rest waits.

*round_robin* picks the owner that has waited longest since its last run. No owner waits longer than it takes to serve
every owner once.

*weighted_priority* and *intent_weighted* order by an effective priority: the candidate's own (times a weight for its
intent), plus a boost for waiting. The growth of the boost decides its effect:

    fixed    one boost after `max_wait`, which never grows. It is enough if every candidate gets a slot in each pass.
             If slots are scarce it is not: priority 1 + 2 never passes priority 10.
    linear   another boost for every further `max_wait`. It grows without end, so every owner is served.

    priority 10 against priority 1, one slot, boost 2 after 5: linear reaches 1 + 2 × 5 > 10 after 25
    passes, runs once, and starts to wait again. Fixed stops at 3 and never runs.

The arithmetic is done in the written order (base, then + boost), so that a faster implementation with the same
operations on columns gives bit for bit the same order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Literal, TypeAlias

from rota.errors import PolicyInvalid
from rota.model.checks import Checks
from rota.model.reasons import PickReason
from rota.model.snapshot import Account, Candidate, Decisions, Key, Snapshot
from rota.model.work import Intent
from rota.policy.contract import Bound, Policy, assign_slots

__all__ = [
    "GROWTHS",
    "INTENT_WEIGHTS",
    "CandidateHeap",
    "Growth",
    "HeapOrder",
    "boost",
    "intent_weighted",
    "round_robin",
    "strict",
    "strict_key",
    "weighted_priority",
]

INTENT_WEIGHTS: Mapping[str, float] = {
    Intent.DOMINATE: 3.0,
    Intent.ACCUMULATE: 2.5,
    Intent.DISCOVER: 2.0,
    Intent.BELONG: 1.8,
    Intent.PROTECT: 1.5,
    Intent.NEUTRAL: 1.0,
}
UNKNOWN_INTENT_WEIGHT = 1.0

Growth: TypeAlias = Literal["fixed", "linear"]
GROWTHS: tuple[Growth, ...] = ("fixed", "linear")
OrderKey: TypeAlias = Callable[[Candidate], tuple[float, float, int]]  # ends in the candidate's id


def strict_key(candidate: Candidate) -> tuple[float, float, int]:
    """Order by priority, then by the time it became ready, then by id."""
    return -candidate.priority, candidate.ready_at, candidate.id


class CandidateHeap:
    """Candidates in an order that depends on each candidate alone: a heap with lazy removal."""

    __slots__ = ("_heap", "_key", "_ready")

    def __init__(self, key: OrderKey) -> None:
        self._key = key
        self._ready: dict[int, Candidate] = {}
        self._heap: list[tuple[float, float, int]] = []  # keys, live and dead; each ends in its candidate's id

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, candidate: Candidate) -> None:
        """Add a candidate."""
        if candidate.id in self._ready:
            raise ValueError(f"candidate {candidate.id} was added already")
        self._ready[candidate.id] = candidate
        heappush(self._heap, self._key(candidate))

    def remove(self, candidate_id: int) -> None:
        """Remove a candidate, wherever it is."""
        del self._ready[candidate_id]
        if len(self._heap) > 2 * len(self._ready):  # dead keys never outnumber the live ones
            self._heap = [self._key(candidate) for candidate in self._ready.values()]
            heapify(self._heap)

    def take(self) -> Candidate | None:
        """Take out and return the first candidate."""
        while self._heap:
            key = heappop(self._heap)
            candidate = self._ready.get(key[2])
            if candidate is not None and self._key(candidate) == key:
                return self._ready.pop(candidate.id)
        return None


class HeapOrder:
    """The incremental order of a policy whose order depends on each candidate alone."""

    def __init__(self, key: OrderKey) -> None:
        self._heap = CandidateHeap(key)

    def set_account(self, level: Literal["owner", "group"], key: Key, account: Account) -> None:
        """Do nothing: accounts do not affect this order."""

    def charge(self, owner: Key, group: Key, cost: int) -> None:
        """Do nothing: costs do not affect this order."""

    def add(self, candidate: Candidate) -> None:
        """Add a candidate that became ready."""
        self._heap.add(candidate)

    def remove(self, candidate_id: int) -> None:
        """Remove a candidate that is no longer ready."""
        self._heap.remove(candidate_id)

    def pick(self) -> Candidate | None:
        """Take out and return the next candidate."""
        return self._heap.take()


def strict() -> Policy:
    """Higher priority first, then the candidate that became ready first."""

    def rank(snapshot: Snapshot) -> Decisions:
        return assign_slots(
            ((c, _strict_reason(c)) for c in sorted(snapshot.candidates, key=strict_key)), snapshot.slots
        )

    return Policy(
        name="strict",
        rank=rank,
        sentence="Higher priority first, then the one that became ready first. May starve.",
        incremental=lambda: HeapOrder(strict_key),
        window="strict",
        accounts=(),
    )


def _strict_reason(candidate: Candidate) -> PickReason:
    return PickReason("strict", f"priority {candidate.priority}, ready at {candidate.ready_at}")


def _by_id(candidate: Candidate) -> int:
    return candidate.id


def round_robin() -> Policy:
    """The owner that has waited longest since its last run."""

    def rank(snapshot: Snapshot) -> Decisions:
        picks: Counter[Key] = Counter()  # of each owner in this pass: an owner that was picked has just run

        def key(candidate: Candidate) -> tuple[int, float, int]:
            pick = picks[candidate.owner]
            picks[candidate.owner] += 1
            return pick, snapshot.owner(candidate).last_run_at if pick == 0 else 0, candidate.id

        keyed = sorted([(key(each), each) for each in sorted(snapshot.candidates, key=_by_id)], key=itemgetter(0))
        return assign_slots(_reasons([candidate for _, candidate in keyed], snapshot), snapshot.slots)

    def _reasons(order: list[Candidate], snapshot: Snapshot) -> Iterator[tuple[Candidate, PickReason]]:
        for candidate in order:
            yield candidate, PickReason("round_robin", f"last run at {snapshot.owner(candidate).last_run_at}")

    return Policy(
        name="round_robin",
        rank=rank,
        sentence="The owner that has waited longest since its last run.",
        bound=Bound(
            "owner",
            # one pass more than a full round: owners that last ran at the same time tie
            lambda snapshot, _: math.ceil(len(snapshot.candidates) / max(1, len(snapshot.slots))) + 1,
            "No owner waits longer than it takes to serve every owner once.",
        ),
        accounts=("owner",),
    )


def boost(waited: float, max_wait: float, step: float, growth: Growth) -> float:
    """Return the boost for waiting."""
    if growth == "linear":
        return step * (waited // max_wait)
    return step if waited >= max_wait else 0.0


def weighted_priority(*, max_wait: float = 5, starvation_boost: float = 2.0, growth: Growth = "linear") -> Policy:
    """Priority plus a boost for waiting."""
    return _aging("weighted_priority", None, max_wait, starvation_boost, growth)


def intent_weighted(
    *,
    max_wait: float = 5,
    starvation_boost: float = 2.0,
    growth: Growth = "linear",
    intent_weights: Mapping[str, float] = INTENT_WEIGHTS,
) -> Policy:
    """Priority times the weight of the intent, plus a boost for waiting."""
    checks = Checks("intent_weighted", PolicyInvalid)
    for intent, weight in intent_weights.items():
        checks.number(f"intent_weights[{intent}]", weight, 0)
    return _aging("intent_weighted", dict(intent_weights), max_wait, starvation_boost, growth)


def _aging(name: str, weights: Mapping[str, float] | None, max_wait: float, step: float, growth: Growth) -> Policy:
    checks = Checks(name, PolicyInvalid)
    checks.number("max_wait", max_wait, 0)
    checks.number("starvation_boost", step, 0)
    checks.one_of("growth", growth, GROWTHS)
    if max_wait == 0:
        raise checks.refuse("max_wait", "must be more than 0")

    def base(candidate: Candidate) -> float:
        if weights is None:
            return candidate.priority
        return candidate.priority * weights.get(candidate.intent, UNKNOWN_INTENT_WEIGHT)

    def effective(snapshot: Snapshot, candidate: Candidate) -> float:
        waited = snapshot.now - snapshot.owner(candidate).last_run_at
        return base(candidate) + boost(waited, max_wait, step, growth)

    def rank(snapshot: Snapshot) -> Decisions:
        scored = sorted((-effective(snapshot, c), c.id, c) for c in snapshot.candidates)
        return assign_slots(
            ((c, PickReason(name, f"effective priority {-score}")) for score, _, c in scored), snapshot.slots
        )

    def passes(snapshot: Snapshot, _: Key) -> int:
        # An owner that runs after X has waited for `unbeatable` is behind X from then on, because X's boost leads by
        # more than the widest gap in priority. So after that moment each other owner goes first at most once.
        bases = [base(candidate) for candidate in snapshot.candidates]
        unbeatable = max_wait * (math.ceil((max(bases) - min(bases)) / step) + 1)
        return math.ceil(unbeatable) + math.ceil(len(bases) / max(1, len(snapshot.slots))) + 1

    bound = Bound("owner", passes, "The boost for waiting grows without end, so every owner is served.")
    weighed = "times the weight of its intent, " if weights is not None else ""
    return Policy(
        name=name,
        rank=rank,
        sentence=f"Priority, {weighed}plus a boost for waiting ({growth}).",
        bound=bound if growth == "linear" and step > 0 else None,
        accounts=("owner",),
    )

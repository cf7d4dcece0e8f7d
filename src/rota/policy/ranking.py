"""The policies that rank each candidate by a number of its own: strict, round robin, priority with aging.

*strict* is priority, then who became ready first, then id. It is what a queue means by priority, and
it starves: while something more important keeps coming, the rest waits for ever.

*round_robin* takes whoever has waited longest since its last run. Nobody waits longer than it takes to
serve everybody once.

*weighted_priority* and *intent_weighted* order by an effective priority: the candidate's own (times a
weight for its intent), plus a boost for having waited. How the boost grows decides what it is worth:

    fixed    boost once `max_wait` has passed, the same for ever. With room for everybody each pass this
             is enough. When room is short it is not: priority 1 + 2 never passes priority 10.
    linear   boost again for every further `max_wait`. It grows without end, so everybody's turn comes.

    priority 10 against priority 1, one slot, boost 2 after 5: linear reaches 1 + 2 × 5 > 10 after 25
    passes, runs once, and starts to wait anew. Fixed stops at 3 and never runs.

The arithmetic is done in the order it is written in (base, then + boost), so that a faster form which
does the same operations on columns gives the same order bit for bit.
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
from rota.model.reasons import Because
from rota.model.snapshot import Account, Candidate, Decisions, Key, Snapshot
from rota.model.work import Intent
from rota.policy.contract import Bound, Policy, place

__all__ = [
    "GROWTHS",
    "INTENT_WEIGHTS",
    "Growth",
    "Line",
    "LineOrdering",
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
    """Priority, then who became ready first, then id."""
    return -candidate.priority, candidate.ready_at, candidate.id


class Line:
    """Candidates in an order that depends on each of them alone: a heap with lazy removal."""

    __slots__ = ("_heap", "_key", "_ready")

    def __init__(self, key: OrderKey) -> None:
        self._key = key
        self._ready: dict[int, Candidate] = {}
        self._heap: list[tuple[float, float, int]] = []  # keys, living and dead; each ends in its candidate's id

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, candidate: Candidate) -> None:
        """Put one in."""
        if candidate.id in self._ready:
            raise ValueError(f"candidate {candidate.id} is there already")
        self._ready[candidate.id] = candidate
        heappush(self._heap, self._key(candidate))

    def remove(self, candidate_id: int) -> None:
        """Take one out, wherever it stands."""
        del self._ready[candidate_id]
        if len(self._heap) > 2 * len(self._ready):  # dead keys never exceed the living
            self._heap = [self._key(candidate) for candidate in self._ready.values()]
            heapify(self._heap)

    def take(self) -> Candidate | None:
        """Take out the first."""
        while self._heap:
            key = heappop(self._heap)
            candidate = self._ready.get(key[2])
            if candidate is not None and self._key(candidate) == key:
                return self._ready.pop(candidate.id)
        return None


class LineOrdering:
    """The ordering of a policy whose order depends on each candidate alone."""

    def __init__(self, key: OrderKey) -> None:
        self._line = Line(key)

    def account(self, level: Literal["owner", "group"], key: Key, account: Account) -> None:
        """Accounts do not move this order."""

    def charge(self, owner: Key, group: Key, cost: int) -> None:
        """Costs do not move this order."""

    def add(self, candidate: Candidate) -> None:
        """A candidate became ready."""
        self._line.add(candidate)

    def remove(self, candidate_id: int) -> None:
        """A candidate is no longer ready."""
        self._line.remove(candidate_id)

    def pick(self) -> Candidate | None:
        """Take out the next one."""
        return self._line.take()


def strict() -> Policy:
    """Priority, then who became ready first."""

    def rank(snapshot: Snapshot) -> Decisions:
        return place(((c, _strict_because(c)) for c in sorted(snapshot.candidates, key=strict_key)), snapshot.slots)

    return Policy(
        name="strict",
        rank=rank,
        sentence="Higher priority first, then whoever became ready first. May starve.",
        ordering=lambda: LineOrdering(strict_key),
        heads="strict",
    )


def _strict_because(candidate: Candidate) -> Because:
    return Because("strict", f"priority {candidate.priority}, ready at {candidate.ready_at}")


def _by_id(candidate: Candidate) -> int:
    return candidate.id


def round_robin() -> Policy:
    """Whoever has waited longest since its last run."""

    def rank(snapshot: Snapshot) -> Decisions:
        turns: Counter[Key] = Counter()  # of each owner in this pass: one that was picked has just run

        def key(candidate: Candidate) -> tuple[int, float, int]:
            turn = turns[candidate.owner]
            turns[candidate.owner] += 1
            return turn, snapshot.owner(candidate).last_run_at if turn == 0 else 0, candidate.id

        keyed = sorted([(key(each), each) for each in sorted(snapshot.candidates, key=_by_id)], key=itemgetter(0))
        return place(_reasons([candidate for _, candidate in keyed], snapshot), snapshot.slots)

    def _reasons(order: list[Candidate], snapshot: Snapshot) -> Iterator[tuple[Candidate, Because]]:
        for candidate in order:
            yield candidate, Because("round_robin", f"last run at {snapshot.owner(candidate).last_run_at}")

    return Policy(
        name="round_robin",
        rank=rank,
        sentence="Whoever has waited longest since its last run.",
        bound=Bound(
            "owner",
            # one pass more than once round: whoever runs at the very moment of your own last run ties with you
            lambda snapshot, _: math.ceil(len(snapshot.candidates) / max(1, len(snapshot.slots))) + 1,
            "Nobody waits longer than it takes to serve everybody once.",
        ),
    )


def boost(waited: float, max_wait: float, step: float, growth: Growth) -> float:
    """What having waited is worth."""
    if growth == "linear":
        return step * (waited // max_wait)
    return step if waited >= max_wait else 0.0


def weighted_priority(*, max_wait: float = 5, starvation_boost: float = 2.0, growth: Growth = "linear") -> Policy:
    """Priority plus a boost for having waited."""
    return _aging("weighted_priority", None, max_wait, starvation_boost, growth)


def intent_weighted(
    *,
    max_wait: float = 5,
    starvation_boost: float = 2.0,
    growth: Growth = "linear",
    intent_weights: Mapping[str, float] = INTENT_WEIGHTS,
) -> Policy:
    """Priority times the weight of the intent, plus a boost for having waited."""
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
        return place(((c, Because(name, f"effective priority {-score}")) for score, _, c in scored), snapshot.slots)

    def passes(snapshot: Snapshot, _: Key) -> int:
        # Whoever runs once `unbeatable` has passed since X began to wait is behind X from then on, because
        # X's boost leads by more than the widest gap in priority. So after that moment each of the others
        # goes first once more at most.
        bases = [base(candidate) for candidate in snapshot.candidates]
        unbeatable = max_wait * (math.ceil((max(bases) - min(bases)) / step) + 1)
        return math.ceil(unbeatable) + math.ceil(len(bases) / max(1, len(snapshot.slots))) + 1

    bound = Bound("owner", passes, "Waiting is worth more and more, so everybody's turn comes.")
    weighed = "times the weight of its intent, " if weights is not None else ""
    return Policy(
        name=name,
        rank=rank,
        sentence=f"Priority, {weighed}plus a boost for having waited ({growth}).",
        bound=bound if growth == "linear" and step > 0 else None,
    )

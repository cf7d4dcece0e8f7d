"""What a policy is.

A policy is a plain function from a `Snapshot` to `Decisions`. Around it travel its name, a sentence,
what it promises about waiting, and, where it has one, an `Ordering`: the same choice kept up to date
step by step, for runtimes that pick too often to look at everybody each time. The plain function is
the oracle; the ordering must pick what it would pick.

The laws every policy keeps are checked by `rota.testing.policy_laws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol, TypeAlias

import msgspec

from rota.model.reasons import Because
from rota.model.snapshot import Account, Candidate, Decision, Decisions, Key, Slot, Snapshot

__all__ = ["Bound", "Ordering", "Policy", "Rank", "place"]

Rank: TypeAlias = Callable[[Snapshot], Decisions]


class Ordering(Protocol):
    """A policy's choice, kept up to date. `pick` takes one out and charges what it is expected to cost."""

    def account(self, level: Literal["owner", "group"], key: Key, account: Account) -> None:
        """Say where an owner or a group stands; also how a weight changes while it waits."""
        ...

    def add(self, candidate: Candidate) -> None:
        """A candidate became ready."""
        ...

    def remove(self, candidate_id: int) -> None:
        """A candidate is no longer ready."""
        ...

    def charge(self, owner: Key, group: Key, cost: int) -> None:
        """Correct what was charged at pick: the run cost this much more (or less)."""
        ...

    def pick(self) -> Candidate | None:
        """Take out the next one, or None when nobody is ready."""
        ...


class Bound(msgspec.Struct, frozen=True):
    """A promise about waiting, as a number that can be tested.

    In a closed world (everybody in the snapshot stays ready, each pass fills the snapshot's slots,
    each pick is charged its cost, a pass takes one unit of time) no subject waits longer than
    `passes(snapshot, subject)`.
    """

    subject: Literal["candidate", "owner", "group"]
    passes: Callable[[Snapshot, Key], int]
    sentence: str


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its parameters bound."""

    name: str
    rank: Rank
    sentence: str
    bound: Bound | None = None  # None: somebody may wait for ever
    ordering: Callable[[], Ordering] | None = None


def place(order: Iterable[tuple[Candidate, Because]], slots: Iterable[Slot]) -> Decisions:
    """Give each candidate, in order, the plainest free slot that fits it.

    The plainest first, so that a slot that can do more is kept for those who need it. One that fits
    nowhere is passed over and hides nobody behind it.
    """
    free = sorted(slots, key=lambda slot: (-len(slot.kinds), -slot.id))  # the plainest last, to pop it
    plain = not any(slot.kinds for slot in free)
    decisions: list[Decision] = []
    for candidate, because in order:
        if not free:
            break
        if candidate.kind is None:
            decisions.append(Decision(candidate.id, free.pop().id, because))
        elif not plain:
            at = next((i for i in range(len(free) - 1, -1, -1) if candidate.kind in free[i].kinds), None)
            if at is not None:
                decisions.append(Decision(candidate.id, free.pop(at).id, because))
    return tuple(decisions)

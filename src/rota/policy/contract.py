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

__all__ = ["Bound", "Heads", "Ordering", "Places", "Policy", "Rank", "load", "place"]

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


def load(ordering: Ordering, snapshot: Snapshot) -> Ordering:
    """Put everybody in a snapshot into a fresh ordering, each standing where the snapshot says."""
    for owner, account in snapshot.owners.items():
        ordering.account("owner", owner, account)
    for group, account in snapshot.groups.items():
        ordering.account("group", group, account)
    for candidate in snapshot.candidates:
        ordering.add(candidate)
    return ordering


class Bound(msgspec.Struct, frozen=True):
    """A promise about waiting, as a number that can be tested.

    In a closed world (everybody in the snapshot stays ready, each pass fills the snapshot's slots,
    each pick is charged its cost, a pass takes one unit of time) no subject waits longer than
    `passes(snapshot, subject)`.
    """

    subject: Literal["owner", "group"]
    passes: Callable[[Snapshot, Key], int]
    sentence: str


# Where not everybody can be shown, what a policy must see: the first candidates of each owner, of each group, by
# deadline, or in strict order. One that goes by flows can be walked down the flows instead (see virtual_time), and one
# that goes by the groups' shares can be walked group by group (see fair_share/contest).
Heads: TypeAlias = Literal["owner", "group", "deadline", "strict", "flow", "share"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its parameters bound."""

    name: str
    rank: Rank
    sentence: str
    bound: Bound | None = None  # None: somebody may wait for ever
    ordering: Callable[[], Ordering] | None = None
    heads: Heads = "owner"
    eligibility: bool = True  # of one that goes by flows: whether those ahead of their share wait
    guarantee: bool = True  # of one that goes by shares: whether those who had no run in the window go first


class Places:
    """The free slots of a pass. A candidate is given the plainest one that fits it, so that a slot that
    can do more is kept for those who need it."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        # the plainest last, to pop it
        self._free = sorted(slots, key=lambda slot: (-len(slot.kinds), -slot.id))

    def __len__(self) -> int:
        return len(self._free)

    def take(self, candidate: Candidate) -> int | None:
        """The slot that is now this candidate's, or None when none fits."""
        free = self._free
        if candidate.kind is None:
            return free.pop().id if free else None
        for at in range(len(free) - 1, -1, -1):
            if candidate.kind in free[at].kinds:
                return free.pop(at).id
        return None

    def kinds(self) -> frozenset[str]:
        """The kinds of work that can still be placed."""
        return frozenset(kind for slot in self._free for kind in slot.kinds)


def place(order: Iterable[tuple[Candidate, Because]], slots: Iterable[Slot]) -> Decisions:
    """Give each candidate, in order, a slot. One that fits nowhere is passed over and hides nobody."""
    places = Places(slots)
    decisions: list[Decision] = []
    for candidate, because in order:
        if not places:
            break
        slot_id = places.take(candidate)
        if slot_id is not None:
            decisions.append(Decision(candidate.id, slot_id, because))
    return tuple(decisions)

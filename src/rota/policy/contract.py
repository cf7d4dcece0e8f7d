"""What a policy is.

A policy is a plain function from a `Snapshot` to `Decisions`. A `Policy` adds its name, a description, its bound on
waiting and, for some policies, an `IncrementalOrder`: the same choice, updated step by step, for runtimes that pick too
often to look at every candidate each time. The plain function is the reference; the incremental order must pick the
same candidates.

`rota.testing.policy_laws` checks the laws that every policy keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol, TypeAlias

import msgspec

from rota.model.reasons import PickReason
from rota.model.snapshot import Account, Candidate, Decision, Decisions, Key, Slot, Snapshot

__all__ = ["Bound", "CandidateWindow", "FreeSlots", "IncrementalOrder", "Policy", "Rank", "assign_slots", "load"]

Rank: TypeAlias = Callable[[Snapshot], Decisions]


class IncrementalOrder(Protocol):
    """A policy's choice, kept up to date. `pick` takes a candidate out and charges its expected cost."""

    def set_account(self, level: Literal["owner", "group"], key: Key, account: Account) -> None:
        """Set the account of an owner or a group; also to change a weight while it waits."""
        ...

    def add(self, candidate: Candidate) -> None:
        """Add a candidate that became ready."""
        ...

    def remove(self, candidate_id: int) -> None:
        """Remove a candidate that is no longer ready."""
        ...

    def charge(self, owner: Key, group: Key, cost: int) -> None:
        """Correct the charge of a pick: the run cost this much more (or less)."""
        ...

    def pick(self) -> Candidate | None:
        """Take out and return the next candidate; None if none is ready."""
        ...


def load(order: IncrementalOrder, snapshot: Snapshot) -> IncrementalOrder:
    """Load the accounts and candidates of a snapshot into a new incremental order."""
    for owner, account in snapshot.owners.items():
        order.set_account("owner", owner, account)
    for group, account in snapshot.groups.items():
        order.set_account("group", group, account)
    for candidate in snapshot.candidates:
        order.add(candidate)
    return order


class Bound(msgspec.Struct, frozen=True):
    """A bound on waiting, as a number that can be tested.

    In a closed world (all candidates of the snapshot stay ready, each pass fills the snapshot's slots, each pick is
    charged its cost, a pass takes one unit of time) no subject waits longer than `passes(snapshot, subject)`.
    """

    subject: Literal["owner", "group"]
    passes: Callable[[Snapshot, Key], int]
    sentence: str


# Which candidates a policy must see if not all of them can be shown: the first ones of each owner, of each group, by
# deadline, or in strict order. A policy with virtual time is run flow by flow instead (see virtual_time), and one with
# group shares group by group (see fair_share/share_ranking).
CandidateWindow: TypeAlias = Literal["owner", "group", "deadline", "strict", "flow", "share"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its parameters bound."""

    name: str
    rank: Rank
    sentence: str
    bound: Bound | None = None  # None: an owner may starve
    incremental: Callable[[], IncrementalOrder] | None = None
    window: CandidateWindow = "owner"
    accounts: tuple[Literal["owner", "group"], ...] = ("owner", "group")  # which it reads; intents belong to owners
    eligibility: bool = True  # window "flow": whether flows ahead of their share wait
    guarantee: bool = True  # window "share": whether groups without a run in the window go first


class FreeSlots:
    """The free slots of a pass. A candidate gets the slot with the fewest kinds that fits it, so that slots with more
    kinds stay free for candidates that need them."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        # the slot with the fewest kinds last, to pop it
        self._free = sorted(slots, key=lambda slot: (-len(slot.kinds), -slot.id))

    def __len__(self) -> int:
        return len(self._free)

    def take(self, candidate: Candidate) -> int | None:
        """Take the slot for a candidate and return its id; None if none fits."""
        free = self._free
        if candidate.kind is None:
            return free.pop().id if free else None
        for at in range(len(free) - 1, -1, -1):
            if candidate.kind in free[at].kinds:
                return free.pop(at).id
        return None

    def kinds(self) -> frozenset[str]:
        """Return the kinds of work that still fit a free slot."""
        return frozenset(kind for slot in self._free for kind in slot.kinds)


def assign_slots(order: Iterable[tuple[Candidate, PickReason]], slots: Iterable[Slot]) -> Decisions:
    """Give each candidate, in order, a slot. A candidate that fits no slot is skipped."""
    free = FreeSlots(slots)
    decisions: list[Decision] = []
    for candidate, reason in order:
        if not free:
            break
        slot_id = free.take(candidate)
        if slot_id is not None:
            decisions.append(Decision(candidate.id, slot_id, reason))
    return tuple(decisions)

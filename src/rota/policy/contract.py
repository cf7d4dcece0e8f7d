"""What a policy is.

A policy is a plain function from a `Snapshot` to `Decisions`. A `Policy` adds its name, a description, its bound on
waiting and, for some policies, an `IncrementalOrder`: the same choice, updated step by step, for runtimes that pick too
often to look at every candidate each time. The plain function is the reference; the incremental order must pick the
same candidates.

`rota.testing.policy_laws` checks the laws that every policy keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypeAlias, get_args

import msgspec

from rota.errors import PolicyInvalid
from rota.model.checks import Checks
from rota.model.reasons import PickReason
from rota.model.snapshot import Account, Candidate, Decision, Decisions, Key, Slot, Snapshot

__all__ = [
    "NAME_CHARS_MAX",
    "SENTENCE_CHARS_MAX",
    "Bound",
    "CandidateWindow",
    "FreeSlots",
    "IncrementalOrder",
    "Policy",
    "PolicyIsolation",
    "Rank",
    "as_policy",
    "assign_slots",
    "load",
]

NAME_CHARS_MAX = 100  # of a policy's name
SENTENCE_CHARS_MAX = 1_000  # of its description

Rank: TypeAlias = Callable[[Snapshot], Decisions]
PolicyIsolation: TypeAlias = Literal["thread", "process"]  # where a policy of another package runs


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
    """A policy with its parameters bound. Its fields are checked when it is created."""

    name: str
    rank: Rank
    sentence: str
    bound: Bound | None = None  # None: an owner may starve
    incremental: Callable[[], IncrementalOrder] | None = None
    window: CandidateWindow = "owner"
    accounts: tuple[Literal["owner", "group"], ...] = ("owner", "group")  # which it reads; intents belong to owners
    eligibility: bool = True  # window "flow": whether flows ahead of their share wait
    priority_first: bool = False  # window "flow": whether inside a group the higher priority goes first
    guarantee: bool = True  # window "share": whether groups without a run in the window go first
    holds_back: bool = False  # whether it may pick nothing although a candidate fits a free slot

    def __post_init__(self) -> None:
        given: Any = self  # of another package, whose types nothing has checked
        _check_line("name", given.name, NAME_CHARS_MAX)
        _check_line("sentence", given.sentence, SENTENCE_CHARS_MAX)
        if not callable(given.rank):
            raise _checks.refuse("rank", "must be a function")
        if given.incremental is not None and not callable(given.incremental):
            raise _checks.refuse("incremental", "must be a function or None")
        if given.bound is not None:
            if type(given.bound) is not Bound:
                raise _checks.refuse("bound", "must be a Bound or None")
            _check_line("bound.sentence", given.bound.sentence, SENTENCE_CHARS_MAX)
        if type(given.window) is not str or given.window not in _WINDOWS:
            raise _checks.refuse("window", f"must be one of {', '.join(_WINDOWS)}")
        if type(given.accounts) is not tuple or not all(
            type(each) is str and each in _LEVELS for each in given.accounts
        ):
            raise _checks.refuse("accounts", f"must be a tuple of {' and '.join(_LEVELS)}")
        for field in ("eligibility", "priority_first", "guarantee", "holds_back"):
            if type(getattr(given, field)) is not bool:
                raise _checks.refuse(field, "must be true or false")


def _check_line(field: str, text: Any, chars_max: int) -> None:
    if type(text) is not str or not text or len(text) > chars_max or not text.isprintable():
        raise _checks.refuse(field, f"must be printable text of 1 to {chars_max:,} characters")


def as_policy(given: object) -> Policy:
    """Return a policy as an exact `Policy`: of a subclass each attribute is read once, now, and checked.

    Raises `PolicyInvalid` for anything else. A subclass may compute its attributes, and change them between two calls.
    """
    if type(given) is Policy:
        return given
    if not issubclass(type(given), Policy):
        raise PolicyInvalid("a policy must be a rota.policy.Policy", field="policy")
    try:
        fields = {name: getattr(given, name) for name in Policy.__struct_fields__}
    except BaseException as problem:  # a property is code of the policy
        if isinstance(problem, KeyboardInterrupt):
            raise
        raise PolicyInvalid("an attribute of the policy raises when it is read", field="policy") from None
    return Policy(**fields)


_checks = Checks("Policy", PolicyInvalid)
_WINDOWS: tuple[str, ...] = get_args(CandidateWindow)
_LEVELS = ("owner", "group")


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

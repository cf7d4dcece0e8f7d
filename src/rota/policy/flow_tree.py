"""The incremental form of virtual_time: the same picks, without looking at every candidate each time.

A tree: root → groups → owners → candidates. The root and each group are a `Level` (see level.py); an owner's candidates
are in strict order. A pick goes down the tree, its charge goes back up, and every change costs O(log n) amortised.
`virtual_time.rank` is the reference: on every sequence of calls the tree picks the same candidates. The two policies
are defined here, where both forms are available.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

from rota.errors import PolicyInvalid
from rota.model.checks import Checks
from rota.model.snapshot import Account, Candidate, Key
from rota.policy.contract import Bound, Policy
from rota.policy.level import Level, check_weight
from rota.policy.ranking import CandidateHeap, strict_key
from rota.policy.virtual_time import passes_max, passes_max_of_group, rank

__all__ = ["FlowTree", "eevdf", "wfq"]

_Side: TypeAlias = Literal["owner", "group"]


class FlowTree:
    """The incremental order of eevdf and wfq: groups, owners in them, each owner's candidates in strict order.

    Until the first pick or charge the tree is being loaded: an added owner or group starts at the virtual time of its
    account, so that a snapshot can be loaded piece by piece. After that the joining rule applies.

    To store a tree, keep `groups()` and `owners()`, each virtual time minus the time of its level; only differences
    inside a level matter. A tree that is loaded with these makes the same picks.
    """

    def __init__(self, *, eligibility: bool = True) -> None:
        self._eligibility = eligibility
        self._root = Level(eligibility=eligibility)
        self._branches: dict[Key, _Branch] = {}  # by group
        self._candidates: dict[int, Candidate] = {}
        self._homes: dict[Key, set[Key]] = {}  # owner → the groups in which it is ready
        self._accounts: dict[_Side, dict[Key, Account]] = {"owner": {}, "group": {}}  # those that differ from a new one
        self._loading = True

    def __len__(self) -> int:
        return len(self._candidates)

    @property
    def time(self) -> int:
        """The level time of the root, rounded down."""
        return self._root.time.whole

    def time_in(self, group: Key) -> int:
        """Return the level time of a group's owners, rounded down."""
        return self._branches[group].level.time.whole if group in self._branches else 0

    def set_account(self, level: _Side, key: Key, account: Account) -> None:
        """Set the account of an owner or a group; a new `Account()` forgets it."""
        check_weight(account.weight)
        self._remember(level, key, Account(account.weight, account.virtual_time, account.request))
        for where in self._levels(level, key):
            where.set_account(key, account)

    def reweigh(self, level: _Side, key: Key, weight: int) -> None:
        """Change the weight of an owner or a group, keeping its lag; a debt keeps its size in usage."""
        check_weight(weight)
        known = self._account(level, key)
        self._remember(level, key, Account(weight, known.virtual_time, known.request))
        for where in self._levels(level, key):
            where.reweigh(key, weight)

    def add(self, candidate: Candidate) -> None:
        """Add a candidate that became ready; with its first candidate an owner, and perhaps its group, joins."""
        if candidate.id in self._candidates:
            raise ValueError(f"candidate {candidate.id} was added already")
        owner, group = candidate.owner, candidate.group
        branch = self._branch(group)
        if owner not in branch.queues:
            branch.level.add(owner, self._account("owner", owner), keep_credit=self._loading)
            branch.queues[owner] = CandidateHeap(strict_key)
            self._homes.setdefault(owner, set()).add(group)
        if group not in self._root:
            self._root.add(group, self._account("group", group), keep_credit=self._loading)
        branch.queues[owner].add(candidate)
        self._candidates[candidate.id] = candidate

    def remove(self, candidate_id: int) -> None:
        """Remove a candidate that is no longer ready."""
        candidate = self._candidates.pop(candidate_id)
        self._branches[candidate.group].queues[candidate.owner].remove(candidate_id)
        self._leave_if_empty(candidate.owner, candidate.group)

    def pick(self) -> Candidate | None:
        """Take out the next candidate and charge its expected cost to its owner and its group."""
        if not self._candidates:
            return None
        group = self._root.pick()
        branch = self._branches[group]
        owner = branch.level.pick()
        candidate = branch.queues[owner].take()
        assert candidate is not None  # noqa: S101  # an owner without candidates has left its level
        del self._candidates[candidate.id]
        self._loading = False
        branch.level.charge(owner, candidate.cost)
        self._root.charge(group, candidate.cost)
        self._leave_if_empty(owner, group)
        return candidate

    def charge(self, owner: Key, group: Key, cost: int) -> None:
        """Correct the charge of a pick: the run cost this much more (or less)."""
        self._loading = False
        self._charge("owner", self._branch(group).level, owner, cost)
        self._charge("group", self._root, group, cost)
        self._drop_if_idle(group)

    def groups(self) -> dict[Key, Account]:
        """Return the account of every group that is ready or owes."""
        owing = {key: self._with_request("group", key, account) for key, account in self._root.debts()}
        return {**owing, **dict(self._root.accounts())}

    def owners(self) -> dict[tuple[Key, Key], Account]:
        """Return the account of every owner that is ready or owes, by group and owner."""
        found: dict[tuple[Key, Key], Account] = {}
        for group, branch in self._branches.items():
            for owner, account in branch.level.debts():
                found[group, owner] = self._with_request("owner", owner, account)
            for owner, account in branch.level.accounts():
                found[group, owner] = account
        return found

    def _charge(self, side: _Side, level: Level, key: Key, cost: int) -> None:
        if key in level:
            level.charge(key, cost)
        else:
            level.charge_departed(key, self._account(side, key), cost)
            self._forget_time(side, key)

    def _leave_if_empty(self, owner: Key, group: Key) -> None:
        """Remove an owner without candidates from its group, and a group without owners from the root."""
        branch = self._branches[group]
        if branch.queues[owner]:
            return
        del branch.queues[owner]
        branch.level.remove(owner)
        self._homes[owner].remove(group)
        if not self._homes[owner]:
            del self._homes[owner]
        self._forget_time("owner", owner)
        if not branch.queues:
            self._root.remove(group)
            self._forget_time("group", group)
            self._drop_if_idle(group)

    def _branch(self, group: Key) -> _Branch:
        if group not in self._branches:
            self._branches[group] = _Branch(Level(eligibility=self._eligibility))
        return self._branches[group]

    def _drop_if_idle(self, group: Key) -> None:
        """Drop a group without ready or owing owners: it restarts at 0, and no difference is lost."""
        if self._branches[group].level.is_idle:
            del self._branches[group]

    def _levels(self, side: _Side, key: Key) -> list[Level]:
        """Return the levels on which an owner or a group is ready."""
        if side == "owner":
            return [self._branches[group].level for group in self._homes.get(key, ())]
        return [self._root] if key in self._root else []

    def _account(self, side: _Side, key: Key) -> Account:
        return self._accounts[side].get(key, _NEW_ACCOUNT)

    def _remember(self, side: _Side, key: Key, account: Account) -> None:
        if account == _NEW_ACCOUNT:
            self._accounts[side].pop(key, None)
        else:
            self._accounts[side][key] = account

    def _forget_time(self, side: _Side, key: Key) -> None:
        """Forget the virtual time that was set: it has left or was charged. Weight and request stay."""
        known = self._account(side, key)
        self._remember(side, key, Account(weight=known.weight, request=known.request))

    def _with_request(self, side: _Side, key: Key, account: Account) -> Account:
        return Account(account.weight, account.virtual_time, self._account(side, key).request)


class _Branch:
    """A group: the level of its owners, and each owner's candidates."""

    __slots__ = ("level", "queues")

    def __init__(self, level: Level) -> None:
        self.level = level
        self.queues: dict[Key, CandidateHeap] = {}


_NEW_ACCOUNT = Account()


# --- the policies --------------------------------------------------------------------------------


def eevdf(*, priority_first: bool = False) -> Policy:
    """Earliest eligible virtual deadline first, groups before owners; by priority inside a group, if that is set."""
    words = "the earliest virtual deadline among those that had no more than their share."
    return _share_by_weight("eevdf", words, priority_first)


def wfq(*, priority_first: bool = False) -> Policy:
    """Weighted fair queueing: eevdf without the eligibility test."""
    words = "the earliest virtual deadline, even of those that had more than their share."
    return _share_by_weight("wfq", words, priority_first)


def _share_by_weight(name: str, words: str, priority_first: bool) -> Policy:
    if type(priority_first) is not bool:
        raise Checks(name, PolicyInvalid).refuse("priority_first", f"must be a bool, not {priority_first!r}")
    eligibility = name == "eevdf"
    return Policy(
        name=name,
        rank=partial(rank, eligibility=eligibility, priority_first=priority_first),
        sentence=f"Groups share by weight; in a group the higher priority first, equals by weight: {words}"
        if priority_first
        else f"Shares by weight: {words}",
        bound=_GROUP_BOUND if priority_first else _BOUND,
        incremental=None if priority_first else partial(FlowTree, eligibility=eligibility),
        window="flow",
        eligibility=eligibility,
        priority_first=priority_first,
    )


_BOUND = Bound(
    "owner",
    passes_max,
    "While an owner waits, no sibling past its virtual deadline is picked, so each of the others goes ahead only until "
    "it has used its share up to there. Holds if every run costs something and every candidate fits every slot.",
)
_GROUP_BOUND = Bound(
    "group",
    passes_max_of_group,
    "While a group waits, each of the others goes ahead only until it has used its share up to the virtual deadline of "
    "the group. An owner of low priority waits while its own group has work of higher priority. Holds if every run "
    "costs something and every candidate fits every slot.",
)

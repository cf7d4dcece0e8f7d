"""The incremental twin of virtual_time: the same picks, without looking at everybody each time.

A tree: root → groups → owners → candidates. The root and each group are a `Level` (see there how one works);
an owner's candidates stand in strict order. Picking goes down the tree, charging comes back up, and every
change costs O(log n) amortised. `virtual_time.rank` is the oracle: on every sequence of calls the tree picks
what it would pick. The two policies are made here, where both forms can be named.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

from rota.model.snapshot import Account, Candidate, Key
from rota.policy.contract import Bound, Policy
from rota.policy.level import Level, check_weight
from rota.policy.ranking import Line, strict_key
from rota.policy.virtual_time import passes_max, rank

__all__ = ["FlowTree", "eevdf", "wfq"]

_Side: TypeAlias = Literal["owner", "group"]


class FlowTree:
    """The ordering of eevdf and wfq: groups, owners in them, each owner's candidates in strict order.

    Until the first pick or charge the tree is being loaded: whoever is added stands where its account
    was said to stand, so that a snapshot can be put in piece by piece. After that the joining rule holds.

    To store it, keep `groups()` and `owners()`, each virtual time less the time of its level; only
    differences inside a level mean anything. A tree that is loaded with these picks the same.
    """

    def __init__(self, *, eligibility: bool = True) -> None:
        self._eligibility = eligibility
        self._root = Level(eligibility=eligibility)
        self._branches: dict[Key, _Branch] = {}  # by group
        self._candidates: dict[int, Candidate] = {}
        self._homes: dict[Key, set[Key]] = {}  # the groups in which an owner is ready
        self._told: dict[_Side, dict[Key, Account]] = {"owner": {}, "group": {}}  # what is not as in a fresh account
        self._loading = True

    def __len__(self) -> int:
        return len(self._candidates)

    @property
    def time(self) -> int:
        """The time of the root, rounded down."""
        return self._root.time.whole

    def time_in(self, group: Key) -> int:
        """The time of a group's owners, rounded down."""
        return self._branches[group].level.time.whole if group in self._branches else 0

    def account(self, level: _Side, key: Key, account: Account) -> None:
        """Say where an owner or a group stands; a fresh account is the same as forgetting it."""
        check_weight(account.weight)
        self._tell(level, key, Account(account.weight, account.virtual_time, account.request))
        for where in self._levels(level, key):
            where.tell(key, account)

    def reweigh(self, level: _Side, key: Key, weight: int) -> None:
        """Give an owner or a group another weight, keeping its lag; whoever owes keeps what it owes in usage."""
        check_weight(weight)
        told = self._account(level, key)
        self._tell(level, key, Account(weight, told.virtual_time, told.request))
        for where in self._levels(level, key):
            where.reweigh(key, weight)

    def add(self, candidate: Candidate) -> None:
        """A candidate became ready; with the first of them its owner, and perhaps its group, joins."""
        if candidate.id in self._candidates:
            raise ValueError(f"candidate {candidate.id} is there already")
        owner, group = candidate.owner, candidate.group
        branch = self._branch(group)
        if owner not in branch.lines:
            branch.level.add(owner, self._account("owner", owner), as_told=self._loading)
            branch.lines[owner] = Line(strict_key)
            self._homes.setdefault(owner, set()).add(group)
        if group not in self._root:
            self._root.add(group, self._account("group", group), as_told=self._loading)
        branch.lines[owner].add(candidate)
        self._candidates[candidate.id] = candidate

    def remove(self, candidate_id: int) -> None:
        """A candidate is no longer ready."""
        candidate = self._candidates.pop(candidate_id)
        self._branches[candidate.group].lines[candidate.owner].remove(candidate_id)
        self._leave_if_empty(candidate.owner, candidate.group)

    def pick(self) -> Candidate | None:
        """Take out the next one and charge its expected cost to its owner and its group."""
        if not self._candidates:
            return None
        group = self._root.pick()
        branch = self._branches[group]
        owner = branch.level.pick()
        candidate = branch.lines[owner].take()
        assert candidate is not None  # noqa: S101  # an owner without candidates has left its level
        del self._candidates[candidate.id]
        self._loading = False
        branch.level.charge(owner, candidate.cost)
        self._root.charge(group, candidate.cost)
        self._leave_if_empty(owner, group)
        return candidate

    def charge(self, owner: Key, group: Key, cost: int) -> None:
        """Correct what was charged at pick: the run cost this much more (or less)."""
        self._loading = False
        self._charge("owner", self._branch(group).level, owner, cost)
        self._charge("group", self._root, group, cost)
        self._drop_if_idle(group)

    def groups(self) -> dict[Key, Account]:
        """Where every group stands that is ready or owes."""
        owing = {key: self._with_request("group", key, account) for key, account in self._root.debts()}
        return {**owing, **dict(self._root.standings())}

    def owners(self) -> dict[tuple[Key, Key], Account]:
        """Where every owner stands that is ready or owes, by group and owner."""
        found: dict[tuple[Key, Key], Account] = {}
        for group, branch in self._branches.items():
            for owner, account in branch.level.debts():
                found[group, owner] = self._with_request("owner", owner, account)
            for owner, account in branch.level.standings():
                found[group, owner] = account
        return found

    def _charge(self, side: _Side, level: Level, key: Key, cost: int) -> None:
        if key in level:
            level.charge(key, cost)
        else:
            level.charge_departed(key, self._account(side, key), cost)
            self._forget_told_time(side, key)

    def _leave_if_empty(self, owner: Key, group: Key) -> None:
        """Without candidates an owner leaves its group, and without owners the group leaves too."""
        branch = self._branches[group]
        if branch.lines[owner]:
            return
        del branch.lines[owner]
        branch.level.remove(owner)
        self._homes[owner].remove(group)
        if not self._homes[owner]:
            del self._homes[owner]
        self._forget_told_time("owner", owner)
        if not branch.lines:
            self._root.remove(group)
            self._forget_told_time("group", group)
            self._drop_if_idle(group)

    def _branch(self, group: Key) -> _Branch:
        if group not in self._branches:
            self._branches[group] = _Branch(Level(eligibility=self._eligibility))
        return self._branches[group]

    def _drop_if_idle(self, group: Key) -> None:
        """A group in which nobody is ready and nobody owes starts anew at 0: no difference is lost."""
        if self._branches[group].level.is_idle:
            del self._branches[group]

    def _levels(self, side: _Side, key: Key) -> list[Level]:
        """Where an owner or a group is ready."""
        if side == "owner":
            return [self._branches[group].level for group in self._homes.get(key, ())]
        return [self._root] if key in self._root else []

    def _account(self, side: _Side, key: Key) -> Account:
        return self._told[side].get(key, _FRESH)

    def _tell(self, side: _Side, key: Key, account: Account) -> None:
        if account == _FRESH:
            self._told[side].pop(key, None)
        else:
            self._told[side][key] = account

    def _forget_told_time(self, side: _Side, key: Key) -> None:
        """What was said about its time is over once it has left or was charged; weight and request stay."""
        told = self._account(side, key)
        self._tell(side, key, Account(weight=told.weight, request=told.request))

    def _with_request(self, side: _Side, key: Key, account: Account) -> Account:
        return Account(account.weight, account.virtual_time, self._account(side, key).request)


class _Branch:
    """A group: the level of its owners, and each owner's candidates."""

    __slots__ = ("level", "lines")

    def __init__(self, level: Level) -> None:
        self.level = level
        self.lines: dict[Key, Line] = {}


_FRESH = Account()


# --- the policies --------------------------------------------------------------------------------


def eevdf() -> Policy:
    """Earliest eligible virtual deadline first, groups before owners."""
    return Policy(
        name="eevdf",
        rank=rank,
        sentence="Shares by weight: of those who have had no more than their share, whoever is due first.",
        bound=_BOUND,
        ordering=FlowTree,
        heads="flow",
    )


def wfq() -> Policy:
    """Weighted fair queueing: eevdf without the eligibility test."""
    return Policy(
        name="wfq",
        rank=partial(rank, eligibility=False),
        sentence="Shares by weight: whoever is due first, even if it has had more than its share.",
        bound=_BOUND,
        ordering=partial(FlowTree, eligibility=False),
        heads="flow",
        eligibility=False,
    )


_BOUND = Bound(
    "owner",
    passes_max,
    "While an owner waits nobody is picked who stands behind its virtual deadline, so each can go ahead only until "
    "it has used its share up to there. Holds where every turn costs something and every slot takes everybody's work.",
)

"""Which group is furthest behind its share: the deficit, and the ranking of groups while picks are made.

A group's *target* is its weight divided by the weight of all competing groups. Its *actual* share is its usage divided
by the usage of all competing groups. The *deficit* is actual minus target: a negative one means behind, and the group
furthest behind is next. A group that has nothing it may run (over its budget, at its cap, idle) counts in neither
total, so it does not move the others: what it cannot use they share by their weights.

    A has weight 3 and used 1,000 tokens, B has weight 1 and used 500.
    targets  A 75%                 B 25%
    actual   A 1000/1500 = 66.7%   B 500/1500 = 33.3%
    deficit  A −8.3%               B +8.3%              → A is next

The *guarantee* comes before the deficit: a group without a run in the window goes ahead of all groups that had one. It
costs one run per group and window, and no group is left out of a window.

Why it converges: the deficits of competing groups add up to zero. So the group furthest behind is at or below its
target when it is picked, and one run of cost c takes it at most c/U above, where U is the usage of competing groups.
Once U has grown so far that a group's initial usage is no more than its target, the group stays within c/U above the
target, and none of n groups can be more than (n−1)·c/U below.

What it does not do:

- It forgets. Usage is counted in a rolling window, so a group that took too much yesterday starts today like the
  others. (eevdf does not forget debt.)
- Inside a group the order is strict: a low-priority entry of a busy group may starve.

**The ranking.** All numbers are integers. A pick counts immediately: it uses up the group's guarantee and adds the
expected cost of the run to the group's usage. So filling many slots in one pass gives the same result as many passes
with one slot.

Every pick changes every deficit, because U changes. But among groups of one weight the order is that of their usage,
whatever the others do. So the groups of each weight are in a heap by usage, and a pick compares only the first group of
each weight. Only one of these can have changed since the pick before: that of the weight that was served.

Only the first candidate of a group matters to the other groups (ties go to the lower id). So a caller that reads
candidates from elsewhere can start each group with its first candidate alone, and add the next one when that is gone.

A ranking can be kept for many passes: `set_group` replaces what is known about one group and puts it in its place, and
the totals follow. So a pass costs as much as there are groups that changed, and a pick as much as there are weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from rota.model.reasons import PickReason
from rota.model.snapshot import Account, Candidate, Key, Snapshot
from rota.policy.ranking import strict_key

__all__ = ["GroupStanding", "ShareRanking", "deficit_ratio"]

_WEIGHT_MIN = 1  # a thousandth: a group of weight 0 would never be served


def deficit_ratio(usage: int, total_usage: int, weight: float, total_weight: float) -> float:
    """Return the deficit as a ratio; if all weights are 0, the targets are equal and do not affect the order."""
    target = weight / total_weight if total_weight else 0.0
    return usage / total_usage - target


class GroupStanding:
    """A group with candidates: its usage, weight and guarantee."""

    __slots__ = ("candidates", "group", "guaranteed", "has_unread", "usage", "weight")

    def __init__(self, group: Key, candidates: Iterable[Candidate], account: Account, min_guarantee: bool) -> None:
        self.group = group
        self.candidates = sorted(candidates, key=strict_key, reverse=True)  # the first one last, to pop it
        self.has_unread = False  # its next candidate is not known, and may not exist
        self.weight = max(_WEIGHT_MIN, account.weight)
        self.usage = account.usage + account.reserved
        self.guaranteed = min_guarantee and account.ended == 0 and account.live == 0

    def drop_unplaceable(self, kinds: frozenset[str]) -> None:
        """Drop first candidates that fit no free slot; slots only get fewer, so they never fit later in the pass."""
        candidates = self.candidates
        while candidates and candidates[-1].kind is not None and candidates[-1].kind not in kinds:
            candidates.pop()

    @property
    def order(self) -> _Order | None:
        """The sort key among groups of the same weight: guarantee, usage, id of the first candidate.

        Before an unread candidate the group comes as early as it could with any: the caller then reads it. None if the
        group has no candidates.
        """
        if not self.candidates and not self.has_unread:
            return None
        return not self.guaranteed, self.usage, self.candidates[-1].id if self.candidates else 0


_Order: TypeAlias = tuple[bool, int, int]


class ShareRanking:
    """All competing groups, and the totals they are measured against."""

    def __init__(
        self, candidates: Mapping[Key, Iterable[Candidate]], accounts: Mapping[Key, Account], *, min_guarantee: bool
    ) -> None:
        self.groups: dict[Key, GroupStanding] = {}  # those that compete
        self.weight_total = 0  # of these groups
        self.usage_charged = 0  # of these groups
        self._min_guarantee = min_guarantee
        self._heaps: dict[int, _GroupHeap] = {}  # by weight
        self._firsts: dict[int, tuple[_Order, GroupStanding]] = {}  # the first group of each weight, and its order
        self._stale: set[int] = set()  # the weights whose first group must be determined again
        self._kinds: frozenset[str] = frozenset()  # the kinds for which `_firsts` holds
        for group in {**accounts, **candidates}:
            self.set_group(group, candidates.get(group, ()), accounts.get(group, _NEW_ACCOUNT))

    @classmethod
    def of(cls, snapshot: Snapshot, *, min_guarantee: bool) -> ShareRanking:
        """Rank the groups of a snapshot."""
        candidates: dict[Key, list[Candidate]] = defaultdict(list)
        for candidate in snapshot.candidates:
            candidates[candidate.group].append(candidate)
        return cls(candidates, snapshot.groups, min_guarantee=min_guarantee)

    @property
    def usage_total(self) -> int:
        """The usage of the competing groups; at least 1, because it is a divisor."""
        return max(1, self.usage_charged)

    # --- which groups compete --------------------------------------------------------------------

    def set_group(self, group: Key, candidates: Iterable[Candidate], account: Account) -> None:
        """Set what is known about a group, new or not: its candidates and its account."""
        self._remove(group)
        standing = GroupStanding(group, candidates, account, self._min_guarantee)
        if standing.candidates:
            self.groups[group] = standing
            self.weight_total += standing.weight
            self.usage_charged += standing.usage
            self._heaps.setdefault(standing.weight, _GroupHeap()).add(standing)
            self._stale.add(standing.weight)

    def set_candidates(self, group: GroupStanding, candidates: list[Candidate], *, has_unread: bool) -> None:
        """Replace the candidates of a competing group; it competes on with what it has used in this pass."""
        group.candidates, group.has_unread = candidates, has_unread
        self._move(group)

    def _remove(self, group: Key) -> None:
        standing = self.groups.pop(group, None)
        if standing is not None:
            self.weight_total -= standing.weight
            self.usage_charged -= standing.usage
            self._heaps[standing.weight].remove(standing)
            self._stale.add(standing.weight)

    def _move(self, group: GroupStanding) -> None:
        """Put a group in its new place among those of its weight."""
        self._heaps[group.weight].add(group)
        self._stale.add(group.weight)

    # --- the next group --------------------------------------------------------------------------

    def next(self, kinds: frozenset[str]) -> GroupStanding | None:
        """Return the next group, among those with a candidate that fits a free slot."""
        if kinds != self._kinds:
            self._kinds, self._stale = kinds, set(self._heaps)
        for weight in self._stale:
            self._firsts.pop(weight, None)
            group = self._heaps[weight].first(kinds)
            if group is not None and (order := group.order) is not None:
                self._firsts[weight] = order, group
        self._stale.clear()
        if not self._firsts:
            return None
        usage_total, weight_total = self.usage_total, self.weight_total
        orders = [
            # guarantee, then deficit, then the lower id of the first candidate; the deficit is multiplied by both
            # totals, which is exact and keeps the order
            (has_run, usage * weight_total - weight * usage_total, first_id, weight)
            for weight, ((has_run, usage, first_id), _) in self._firsts.items()
        ]
        return self._firsts[min(orders)[-1]][1]

    def pick(self, group: GroupStanding) -> Candidate:
        """Take out the group's first candidate and charge its cost."""
        candidate = group.candidates.pop()
        group.guaranteed = False
        group.usage += candidate.cost
        self.usage_charged += candidate.cost
        self._move(group)
        return candidate

    def withdraw(self, group: GroupStanding) -> None:
        """Take a group out that has nothing it may run, so that it does not count in the targets."""
        self._remove(group.group)

    def reason(self, group: GroupStanding) -> PickReason:
        """Return why this group is next."""
        if group.guaranteed:
            return PickReason("fair_share", "guarantee: no run of its group in the window yet")
        actual = 100 * group.usage / self.usage_total
        target = 100 * group.weight / self.weight_total
        return PickReason("fair_share", f"its group used {actual:.1f}% of a target of {target:.1f}%")


class _GroupHeap:
    """The groups of one weight in their order: a heap in which a group that moves leaves a dead item behind."""

    __slots__ = ("_items", "_numbers", "_orders")

    def __init__(self) -> None:
        self._orders: dict[GroupStanding, _Order] = {}  # of the live item of each group
        self._items: list[tuple[_Order, int, GroupStanding]] = []
        self._numbers = count()  # tells items of equal order apart

    def add(self, group: GroupStanding) -> None:
        """Add a group, or move it to where its order says."""
        order = group.order
        if order is None:
            self.remove(group)
        elif self._orders.get(group) != order:
            self._orders[group] = order
            heappush(self._items, (order, next(self._numbers), group))
            if len(self._items) > 2 * len(self._orders) + 8:  # dead items outnumber the live ones
                self._items = [(at, next(self._numbers), each) for each, at in self._orders.items()]
                heapify(self._items)

    def remove(self, group: GroupStanding) -> None:
        """Remove a group, if it is there."""
        self._orders.pop(group, None)

    def first(self, kinds: frozenset[str]) -> GroupStanding | None:
        """Return the first group with a candidate that fits a free slot; candidates that fit none are dropped."""
        while self._items:
            order, _, group = self._items[0]
            is_live = self._orders.get(group) == order
            if is_live:
                group.drop_unplaceable(kinds)
                if group.order == order:
                    return group
            heappop(self._items)
            if is_live:
                self.add(group)
        return None


_NEW_ACCOUNT = Account()

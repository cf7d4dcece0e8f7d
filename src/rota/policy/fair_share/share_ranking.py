"""Which group is furthest behind its share: the deficit, and the ranking of groups while picks are made.

A group's *target* is its weight divided by the weight of all competing groups. Its *actual* share is its usage divided
by the usage of all groups. The *deficit* is actual minus target: a negative one means behind, and the group furthest
behind is next.

    A has weight 3 and used 1,000 tokens, B has weight 1 and used 500.
    targets  A 75%                 B 25%
    actual   A 1000/1500 = 66.7%   B 500/1500 = 33.3%
    deficit  A −8.3%               B +8.3%              → A is next

The *guarantee* comes before the deficit: a group without a run in the window goes ahead of all groups that had one. It
costs one run per group and window, and no group is left out of a window.

Why it converges: the deficits of competing groups add up to zero or less. So the group furthest behind is at or below
its target when it is picked, and one run of cost c takes it at most c/U above, where U is the usage of all groups. Once
U has grown so far that a group's initial usage is no more than its target, the group stays within c/U above the target.
If only competing groups have used anything, the deficits add up to zero, so none of n groups can be more than (n−1)·c/U
below.

What it does not do:

- It forgets. Usage is counted in a rolling window, so a group that took too much yesterday starts today like the
  others. (eevdf does not forget debt.)
- Usage of groups that no longer compete still counts in U. It makes every actual share small, so weights decide almost
  alone until the others have used about as much: heavy groups go first for longer.
- Inside a group the order is strict: a low-priority entry of a busy group may starve.

**The ranking.** All numbers are integers. A pick counts immediately: it uses up the group's guarantee and adds the
expected cost of the run to the group's usage. So filling many slots in one pass gives the same result as many passes
with one slot.

Every pick changes every deficit, because U changes. But among groups of one weight the order is that of their usage,
whatever the others do. So the groups of each weight are in a heap by usage, and a pick compares only the first group of
each weight. Only one of these can have changed since the pick before: that of the weight that was served.

Only the first candidate of a group matters to the other groups (ties go to the lower id). So a caller that reads
candidates from elsewhere can start each group with its first candidate alone, and add the next one when that is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace

from rota.model.reasons import PickReason
from rota.model.snapshot import Account, Candidate, Key, Snapshot
from rota.policy.ranking import strict_key

__all__ = ["GroupStanding", "ShareRanking", "deficit_ratio", "deficit_scaled"]

_WEIGHT_MIN = 1  # a thousandth: a group of weight 0 would never be served


def deficit_scaled(usage: int, total_usage: int, weight: int, total_weight: int) -> int:
    """Return the deficit times both totals: exact, and in the same order as the deficits."""
    return usage * total_weight - weight * total_usage


def deficit_ratio(usage: int, total_usage: int, weight: float, total_weight: float) -> float:
    """Return the deficit as a ratio; if all weights are 0, the targets are equal and do not affect the order."""
    target = weight / total_weight if total_weight else 0.0
    return usage / total_usage - target


class GroupStanding:
    """A group with candidates: its usage, weight and guarantee."""

    __slots__ = ("candidates", "group", "guaranteed", "usage", "weight")

    def __init__(self, group: Key, candidates: list[Candidate], account: Account, min_guarantee: bool) -> None:
        self.group = group
        self.candidates = sorted(candidates, key=strict_key, reverse=True)  # the first one last, to pop it
        self.weight = max(_WEIGHT_MIN, account.weight)
        self.usage = account.usage + account.reserved
        self.guaranteed = min_guarantee and account.ended == 0 and account.live == 0

    def drop_unplaceable(self, kinds: frozenset[str]) -> None:
        """Drop first candidates that fit no free slot; slots only get fewer, so they never fit later in the pass."""
        candidates = self.candidates
        while candidates and candidates[-1].kind is not None and candidates[-1].kind not in kinds:
            candidates.pop()

    @property
    def order(self) -> tuple[bool, int, int]:
        """The sort key among groups of the same weight: guarantee, usage, id of the first candidate."""
        return not self.guaranteed, self.usage, self.candidates[-1].id


_HeapItem = tuple[tuple[bool, int, int], int]  # a group's order when it was pushed, and its number


class ShareRanking:
    """All competing groups of a pass, and the totals they are measured against."""

    def __init__(
        self, candidates: Mapping[Key, list[Candidate]], accounts: Mapping[Key, Account], *, min_guarantee: bool
    ) -> None:
        self.groups = [
            GroupStanding(group, own, accounts.get(group, _NEW_ACCOUNT), min_guarantee)
            for group, own in candidates.items()
            if own
        ]
        self.weight_total = sum(group.weight for group in self.groups)
        # groups without candidates count with their usage too
        self.usage_charged = sum(account.usage + account.reserved for account in accounts.values())
        self._heaps = self._by_weight()
        self._firsts: list[GroupStanding | None] = [None] * len(self._heaps)  # the first group of each weight
        self._stale = list(range(len(self._heaps)))  # the weights whose first group must be determined again
        self._kinds: frozenset[str] = frozenset()  # the kinds for which `_firsts` holds

    @classmethod
    def of(cls, snapshot: Snapshot, *, min_guarantee: bool) -> ShareRanking:
        """Rank the groups of a snapshot."""
        candidates: dict[Key, list[Candidate]] = defaultdict(list)
        for candidate in snapshot.candidates:
            candidates[candidate.group].append(candidate)
        return cls(candidates, snapshot.groups, min_guarantee=min_guarantee)

    def _by_weight(self) -> list[list[_HeapItem]]:
        by_weight: dict[int, list[_HeapItem]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            by_weight[group.weight].append((group.order, number))
        heaps = list(by_weight.values())
        for heap in heaps:
            heapify(heap)
        return heaps

    @property
    def usage_total(self) -> int:
        """The usage of all groups; at least 1, because it is a divisor."""
        return max(1, self.usage_charged)

    def next(self, kinds: frozenset[str]) -> GroupStanding | None:
        """Return the next group, among those with a candidate that fits a free slot."""
        if kinds != self._kinds:
            self._kinds, self._stale = kinds, list(range(len(self._heaps)))
        for number in self._stale:
            self._firsts[number] = self._first(self._heaps[number], kinds)
        usage, weight = self.usage_total, self.weight_total
        orders = [
            # guarantee, then deficit, then the lower id of the first candidate
            (
                not each.guaranteed,
                deficit_scaled(each.usage, usage, each.weight, weight),
                each.candidates[-1].id,
                number,
            )
            for number, each in enumerate(self._firsts)
            if each is not None
        ]
        if not orders:
            return None
        chosen = min(orders)[-1]
        self._stale = [chosen]  # the caller picks or skips its first candidate
        return self._firsts[chosen]

    def _first(self, heap: list[_HeapItem], kinds: frozenset[str]) -> GroupStanding | None:
        """Return the first group of a weight, after moving groups that changed and dropping empty ones."""
        while heap:
            order, number = heap[0]
            group = self.groups[number]
            group.drop_unplaceable(kinds)
            if not group.candidates:
                heappop(heap)
            elif group.order != order:
                heapreplace(heap, (group.order, number))
            else:
                return group
        return None

    def pick(self, group: GroupStanding) -> Candidate:
        """Take out the group's first candidate and charge its cost."""
        candidate = group.candidates.pop()
        group.guaranteed = False
        group.usage += candidate.cost
        self.usage_charged += candidate.cost
        return candidate

    def skip(self, group: GroupStanding) -> None:
        """Drop the group's first candidate without a charge: it may not run after all."""
        group.candidates.pop()

    def withdraw(self, group: GroupStanding) -> None:
        """Take a group out that has nothing it may run, so that it does not count in the targets."""
        group.candidates.clear()
        self.weight_total -= group.weight

    def reason(self, group: GroupStanding) -> PickReason:
        """Return why this group is next."""
        if group.guaranteed:
            return PickReason("fair_share", "guarantee: no run of its group in the window yet")
        actual = 100 * group.usage / self.usage_total
        target = 100 * group.weight / self.weight_total
        return PickReason("fair_share", f"its group used {actual:.1f}% of a target of {target:.1f}%")


_NEW_ACCOUNT = Account()

"""The groups of one pass and where they stand, while picks are made.

Everything is counted in whole numbers. A pick counts at once: it uses up the group's guarantee and adds what
the run is expected to cost to the group's usage, so that many slots filled in one pass come out like as many
passes of one slot.

Every pick changes everybody's deficit, since it is measured against what all used together. But among groups of one
weight the order is simply that of their usage, whatever the others do. So the entrants of each weight stand in a
heap of their own by usage, and a turn compares only the first of each weight. Of those only one can have changed
since the turn before: that of the weight that was served.

Only the first of a line matters to the others (ties go to the lower id), so whoever has the lines elsewhere may
enter each group with its head alone and give it the next one when that is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import heapify, heappop, heapreplace

from rota.model.reasons import Because
from rota.model.snapshot import Account, Candidate, Key, Snapshot
from rota.policy.fair_share.shares import deficit_scaled
from rota.policy.ranking import strict_key

__all__ = ["Contest", "Entrant"]

_WEIGHT_MIN = 1  # a thousandth: a weight of nothing would be owed nothing, for ever


class Entrant:
    """A group with candidates."""

    __slots__ = ("group", "guaranteed", "line", "usage", "weight")

    def __init__(self, group: Key, line: list[Candidate], account: Account, min_guarantee: bool) -> None:
        self.group = group
        self.line = sorted(line, key=strict_key, reverse=True)  # the best last, to pop it
        self.weight = max(_WEIGHT_MIN, account.weight)
        self.usage = account.usage + account.reserved
        self.guaranteed = min_guarantee and account.ended == 0 and account.live == 0

    def drop_unplaceable(self, kinds: frozenset[str]) -> None:
        """Let go of first candidates that fit no free slot: slots only get fewer, so none will fit later."""
        line = self.line
        while line and line[-1].kind is not None and line[-1].kind not in kinds:
            line.pop()

    @property
    def place(self) -> tuple[bool, int, int]:
        """Where it stands among those of its weight: guarantee, usage, the lower id of the best candidate."""
        return not self.guaranteed, self.usage, self.line[-1].id


class Contest:
    """All entrants of a pass, and the totals they are measured against."""

    def __init__(
        self, lines: Mapping[Key, list[Candidate]], accounts: Mapping[Key, Account], *, min_guarantee: bool
    ) -> None:
        self.entrants = [
            Entrant(group, line, accounts.get(group, _FRESH), min_guarantee) for group, line in lines.items() if line
        ]
        self.weight_total = sum(entrant.weight for entrant in self.entrants)
        # groups without candidates have used their part too
        self.usage_charged = sum(account.usage + account.reserved for account in accounts.values())
        self._classes = self._by_weight()
        self._firsts: list[Entrant | None] = [None] * len(self._classes)  # of each weight, as last looked
        self._stale = list(range(len(self._classes)))  # where that has to be looked again
        self._kinds: frozenset[str] = frozenset()  # for which that was looked

    @classmethod
    def of(cls, snapshot: Snapshot, *, min_guarantee: bool) -> Contest:
        """Everybody in a snapshot."""
        lines: dict[Key, list[Candidate]] = defaultdict(list)
        for candidate in snapshot.candidates:
            lines[candidate.group].append(candidate)
        return cls(lines, snapshot.groups, min_guarantee=min_guarantee)

    def _by_weight(self) -> list[list[_Place]]:
        classes: dict[int, list[_Place]] = defaultdict(list)
        for number, entrant in enumerate(self.entrants):
            classes[entrant.weight].append((entrant.place, number))
        heaps = list(classes.values())
        for heap in heaps:
            heapify(heap)
        return heaps

    @property
    def usage_total(self) -> int:
        """What everybody used; at least 1, as a divisor."""
        return max(1, self.usage_charged)

    def next(self, kinds: frozenset[str]) -> Entrant | None:
        """Whose turn it is, among those with a candidate that fits a free slot."""
        if kinds != self._kinds:
            self._kinds, self._stale = kinds, list(range(len(self._classes)))
        for number in self._stale:
            self._firsts[number] = self._first(self._classes[number], kinds)
        usage, weight = self.usage_total, self.weight_total
        standings = [
            # guarantee, then deficit, then the lower id of the best candidate
            (not each.guaranteed, deficit_scaled(each.usage, usage, each.weight, weight), each.line[-1].id, number)
            for number, each in enumerate(self._firsts)
            if each is not None
        ]
        if not standings:
            return None
        chosen = min(standings)[-1]
        self._stale = [chosen]  # its first will be served or passed over
        return self._firsts[chosen]

    def _first(self, heap: list[_Place], kinds: frozenset[str]) -> Entrant | None:
        """The first of a weight, once those who changed or have nothing left are where they belong."""
        while heap:
            place, number = heap[0]
            entrant = self.entrants[number]
            entrant.drop_unplaceable(kinds)
            if not entrant.line:
                heappop(heap)
            elif entrant.place != place:
                heapreplace(heap, (entrant.place, number))
            else:
                return entrant
        return None

    def pick(self, entrant: Entrant) -> Candidate:
        """Take its best candidate and count it."""
        candidate = entrant.line.pop()
        entrant.guaranteed = False
        entrant.usage += candidate.cost
        self.usage_charged += candidate.cost
        return candidate

    def pass_over(self, entrant: Entrant) -> None:
        """Its best candidate may not run after all: nothing is counted."""
        entrant.line.pop()

    def withdraw(self, entrant: Entrant) -> None:
        """It turned out to have nothing that may run, so it does not compete: targets are those of the others."""
        entrant.line.clear()
        self.weight_total -= entrant.weight

    def because(self, entrant: Entrant) -> Because:
        """Why it is its turn."""
        if entrant.guaranteed:
            return Because("fair_share", "guarantee: no run of its group in the window yet")
        actual = 100 * entrant.usage / self.usage_total
        target = 100 * entrant.weight / self.weight_total
        return Because("fair_share", f"its group used {actual:.1f}% of a target of {target:.1f}%")


_FRESH = Account()
_Place = tuple[tuple[bool, int, int], int]  # where an entrant stood when it was put there, and its number

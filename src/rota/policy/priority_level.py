"""Siblings in bands of priority: those of the highest band compete, and inside a band they share by virtual time.

The policies `eevdf` and `wfq` with `priority_first` use it for the owners of a group. Each band is a `Level`. Only the
highest band that has siblings is served, so the level times of the bands drift apart: a band that waits stands still.
What an owner owes is therefore compared inside one band, and two rules connect the bands:

- *A sibling that joins* owes what it owed to the group before: its virtual time minus the group's clock, if that is
  more than 0. It starts that much later than the level time of its band. (Debt is kept, credit is not.)
- *A sibling that changes its band* takes along what it owes to its old band, and no credit.

The group's clock is the level time of the band that is served. When another band is served next, the clock goes on from
where it stands: the numbers of that band are moved by an *offset*, so that its level time is the clock. Virtual times
that are stored are those on the clock of the group (`virtual_time_of`); inside the class they are those of the band. A
restart keeps what siblings owe to the clock, and no credit: in a band that waited, stored times say nothing more.

    A and B at priority 0 have used 10 each. C at priority 5 runs for 90: the clock goes from 10 to 100.
    Then A and B go on from 100, even with each other. Without the offset a new D would start at 100 and wait for 90.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from rota.model.snapshot import Account, Key
from rota.policy.level import Level
from rota.policy.virtual_time import LevelTime, changed_band

__all__ = ["PriorityLevel"]


class PriorityLevel:
    """Siblings of several priorities, and which of them is next."""

    __slots__ = ("_bands", "_clock", "_eligibility", "_offset", "_order", "_priorities", "_top")

    def __init__(self, *, eligibility: bool = True, clock: int = 0) -> None:
        self._eligibility = eligibility
        self._bands: dict[float, Level] = {}  # by priority
        self._order: list[float] = []  # the priorities of bands that have siblings, ascending
        self._priorities: dict[Key, float] = {}  # of the siblings
        self._clock = clock  # of the group, while no band is served
        self._top: float | None = None  # the priority of the band that is served
        self._offset = 0  # from its virtual times to those on the group's clock

    def copy(self) -> PriorityLevel:
        """Return an independent copy."""
        made = PriorityLevel(eligibility=self._eligibility, clock=self._clock)
        made._bands = {priority: band.copy() for priority, band in self._bands.items()}
        made._order, made._priorities = self._order.copy(), self._priorities.copy()
        made._top, made._offset = self._top, self._offset
        return made

    def __len__(self) -> int:
        return len(self._priorities)

    def __contains__(self, key: Key) -> bool:
        return key in self._priorities

    @property
    def time(self) -> LevelTime:
        """The group's clock."""
        return LevelTime.at(self._now())

    @property
    def priority(self) -> float:
        """The priority of the band that is served."""
        assert self._top is not None  # noqa: S101  # it has siblings
        return self._top

    def pick(self) -> Key:
        """Return the next sibling's key. Nothing changes until it is charged."""
        return self._bands[self.priority].pick()

    def upcoming(self, count: int) -> list[Key]:
        """Return up to `count` siblings that are likely to be picked next, for reading ahead."""
        return self._bands[self.priority].upcoming(count) if self._top is not None else []

    def virtual_time_of(self, key: Key) -> int:
        """Return the virtual time of a sibling on the group's clock."""
        priority = self._priorities[key]
        return self._bands[priority].virtual_time_of(key) + self._offset_of(priority)

    def weight_of(self, key: Key) -> int:
        """Return the weight of a sibling."""
        return self._band_of(key).weight_of(key)

    # --- which siblings compete ------------------------------------------------------------------

    def add(self, key: Key, account: Account, priority: float) -> None:
        """Add a sibling that became ready."""
        self.add_all([(key, account, priority)])

    def add_all(self, siblings: Iterable[tuple[Key, Account, float]]) -> None:
        """Add siblings that became ready at the same moment, each with its priority."""
        clock = self._now()
        bands: dict[float, list[tuple[Key, Account]]] = {}
        for key, account, priority in siblings:
            bands.setdefault(priority, []).append((key, account))
        for priority, members in bands.items():
            band = self._bands.setdefault(priority, Level(eligibility=self._eligibility))
            now = band.time.whole
            band.add_all([(key, _at(own, now + max(0, own.virtual_time - clock))) for key, own in members])
            self._priorities.update((key, priority) for key, _ in members)
            if priority not in self._order:
                insort(self._order, priority)
        self._settle(clock)

    def remove(self, key: Key) -> None:
        """Remove a sibling that is no longer ready."""
        self.charge_and_remove(key, 0)

    def charge_and_remove(self, key: Key, cost: int) -> None:
        """Charge a sibling that is no longer ready and remove it."""
        priority = self._priorities.pop(key)
        self._bands[priority].charge_and_remove(key, cost)
        if not len(self._bands[priority]):
            clock = self._now()
            self._order.remove(priority)
            self._settle(clock)

    def set_priority(self, key: Key, priority: float) -> None:
        """Move a sibling to another band: its next candidate has another priority."""
        before = self._priorities[key]
        if before == priority:
            return
        clock = self._now()
        old = self._bands[before]
        new = self._bands.setdefault(priority, Level(eligibility=self._eligibility))
        virtual_time = changed_band(old.virtual_time_of(key), old.time, new.time)
        account = old.take(key)
        new.add(key, _at(account, virtual_time), keep_credit=True)
        self._priorities[key] = priority
        if priority not in self._order:
            insort(self._order, priority)
        if not len(old):
            self._order.remove(before)
        self._settle(clock)

    # --- charges and changes of accounts ---------------------------------------------------------

    def charge(self, key: Key, cost: int) -> None:
        """Charge a sibling; a negative cost corrects an earlier charge."""
        self._band_of(key).charge(key, cost)

    def reweigh(self, key: Key, weight: int) -> None:
        """Change the weight of a sibling, keeping its lag."""
        self._band_of(key).reweigh(key, weight)

    def set_account(self, key: Key, account: Account) -> None:
        """Set the account of a sibling; its virtual time is on the group's clock."""
        priority = self._priorities[key]
        band = self._bands[priority]
        band.set_account(key, _at(account, account.virtual_time - self._offset_of(priority)))

    # --- the group's clock -----------------------------------------------------------------------

    def _now(self) -> int:
        return self._clock if self._top is None else self._bands[self._top].time.whole + self._offset

    def _offset_of(self, priority: float) -> int:
        """Return what leads from the times of a band to the group's clock; a band that waits would start there."""
        return self._offset if priority == self._top else self._now() - self._bands[priority].time.whole

    def _settle(self, clock: int) -> None:
        """Serve the highest band; the clock goes on from where it stood."""
        top = self._order[-1] if self._order else None
        if top != self._top:
            self._clock, self._top = clock, top
            if top is not None:
                self._offset = clock - self._bands[top].time.whole

    def _band_of(self, key: Key) -> Level:
        return self._bands[self._priorities[key]]


def _at(account: Account, virtual_time: int) -> Account:
    return Account(weight=account.weight, virtual_time=virtual_time, request=account.request)

"""What a tick scheduler remembers of each agent: when it last ran, how often, and its virtual time.

The scheduler owns these accounts and policies only read them. They lie in columns, a row per pid, like
those of the process table, and follow it as it grows.

Virtual time (see `rota.policy.virtual_time`) is what an agent has used, divided by its weight, and its
weight is its priority in thousandths. Before a policy is asked, the accounts are brought up to date: an
agent that was away (blocked, or not yet born) joins at the time of those who were there, so that being
away saves nothing up; an agent whose priority changed keeps what it is owed.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from rota.model.snapshot import Account, Candidate, Slot, Snapshot
from rota.model.work import WEIGHT_UNIT
from rota.policy.virtual_time import LevelTime, Sibling, charged, joined, level_time, reweighed
from rota.tick.process_table import INTENTS, Columns

__all__ = ["Accounts"]

ACTIVATION_COST = 1  # usage is counted in activations


class Accounts:
    """The accounts of all agents of a process table."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.last_executed: array[int] = array("q")  # never run: birth
        self.activations: array[int] = array("q")  # counted, like virtual time, for policies that read it
        self.virtual_time: list[int] = []
        self._weights: dict[int, int] = {}  # of those who were ready when a policy was last asked
        self._clock = 0  # the time of their level then
        self.open_new()

    def open_new(self) -> None:
        """Open an account for every agent spawned since the last look."""
        known, spawned = len(self.last_executed), len(self._columns)
        if known < spawned:
            self.last_executed.extend(self._columns.birth_tick[known:])
            self.activations.extend([0] * (spawned - known))
            self.virtual_time.extend([0] * (spawned - known))

    def charge(self, pids: Sequence[int]) -> None:
        """Each of these pays for one activation, at the weight it was picked with."""
        for pid in pids:
            weight = self._weights.get(pid) or self._weight(pid)
            self.activations[pid] += ACTIVATION_COST
            self.virtual_time[pid] = charged(self.virtual_time[pid], ACTIVATION_COST, weight)

    def snapshot(self, ready: Sequence[int], tick: int, room: int | None) -> Snapshot:
        """What a policy is shown: the ready agents, each its own owner, and room for so many of them."""
        self._bring_up_to_date(ready)
        return Snapshot(
            now=tick,
            slots=tuple(Slot(number) for number in range(len(ready) if room is None else room)),
            candidates=tuple(self._candidate(pid) for pid in ready),
            owners={pid: self._account(pid) for pid in ready},
        )

    def to_hash(self) -> str:
        """SHA-256 of every account: equal runs give equal hashes."""
        columns = (self.last_executed.tolist(), self.activations.tolist(), self.virtual_time)
        return hashlib.sha256(repr(columns).encode()).hexdigest()

    def _bring_up_to_date(self, ready: Sequence[int]) -> None:
        before, now = self._weights, {pid: self._weight(pid) for pid in ready}
        time = self._level_time([pid for pid in ready if pid in before])
        for pid, weight in now.items():
            if pid not in before:
                self.virtual_time[pid] = joined(self.virtual_time[pid], time)
            elif before[pid] != weight:
                self.virtual_time[pid] = reweighed(self.virtual_time[pid], before[pid], weight, time)
        self._weights, self._clock = now, time.whole

    def _level_time(self, stayed: Sequence[int]) -> LevelTime:
        """The time of those who were there last time too; if nobody was, the time stood still."""
        if not stayed:
            return LevelTime.at(self._clock)
        return level_time(Sibling(pid, self._weights[pid], self.virtual_time[pid], ACTIVATION_COST) for pid in stayed)

    def _candidate(self, pid: int) -> Candidate:
        intent = INTENTS[self._columns.intent[pid]]
        return Candidate(id=pid, owner=pid, priority=self._columns.priority[pid], intent=intent, cost=ACTIVATION_COST)

    def _account(self, pid: int) -> Account:
        return Account(
            weight=self._weight(pid),
            virtual_time=self.virtual_time[pid],
            request=ACTIVATION_COST,
            usage=self.activations[pid],
            last_run_at=self.last_executed[pid],
        )

    def _weight(self, pid: int) -> int:
        return round(self._columns.priority[pid] * WEIGHT_UNIT)

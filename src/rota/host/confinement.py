"""Keep what this process runs off cores that are leased: itself, its reaper, its workers and all other sessions.

A lease is worth something only if nothing else runs on its core. Groups cover runs that have one; this covers the rest
by affinity, which every process inherits: once the reaper is confined, so is everything that it starts. The cores of
the owners of leases stay as they are. When a lease ends, the processes that were confined get their cores back, unless
they have chosen others meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress

from rota.errors import RotaError
from rota.host.lineage import descendants_of
from rota.host.thread_settings import allowed_cores, confined_from, pin

__all__ = ["Confinement"]

ROUNDS_MAX = 5  # of looking for processes that were started meanwhile


class Confinement:
    """The cores that this process and what it starts may use. Any thread may use it."""

    def __init__(self) -> None:
        self.usable = allowed_cores()  # before any lease
        self._lock = threading.Lock()
        self._open = self.usable
        self._owners: dict[int, frozenset[int]] = {}  # leaders of sessions that have leased cores
        self._before: dict[int, frozenset[int]] = {}  # by process: its cores before it was confined

    @property
    def open_cores(self) -> frozenset[int]:
        """The cores that no lease has."""
        return self._open

    def set_open(self, cores: Iterable[int]) -> None:
        """Confine everything but the owners of leases to these cores."""
        wanted = frozenset(cores) & self.usable or self.usable
        with self._lock:
            if wanted == self._open:
                return
            inherited, self._open = self._open, wanted
            confined_from(self.usable)
            self._apply(inherited)

    def hold(self, leader: int, cores: Iterable[int]) -> None:
        """Let a session that has started use its leased cores, and leave it alone."""
        with self._lock:
            self._owners[leader] = frozenset(cores)
            for pid in (leader, *descendants_of(leader)):
                with suppress(RotaError):  # it has ended, or its group has other cores
                    pin(pid, self._owners[leader])

    def end(self, leader: int) -> None:
        """Forget a session that has ended."""
        with self._lock:
            self._owners.pop(leader, None)

    def _apply(self, inherited: frozenset[int]) -> None:
        done: set[int] = set()
        for _round in range(ROUNDS_MAX):
            owned = {pid for leader in self._owners for pid in (leader, *descendants_of(leader))}
            new = {os.getpid(), *descendants_of(os.getpid())} - owned - done
            if not new:
                break
            for pid in new:
                with suppress(RotaError):  # it has ended, or its group has none of these cores
                    self._confine(pid, inherited)
            done |= new
        self._before = {} if self._open == self.usable else {pid: self._before[pid] for pid in done & {*self._before}}

    def _confine(self, pid: int, inherited: frozenset[int]) -> None:
        """Confine a process, or let it go. One with the `inherited` cores was started while we had only these."""
        now = allowed_cores(pid)
        before = self._before.get(pid) or (self.usable if now == inherited else now)
        wanted = (before & self._open) or self._open
        self._before[pid] = before
        if now != wanted:
            pin(pid, wanted)

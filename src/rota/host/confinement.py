"""Keep what this process runs off cores that are leased: itself, its reaper, its workers and all other sessions.

A lease is worth something only if nothing else runs on its core. Groups cover runs that have one; this covers the rest
by affinity, which every process inherits: once the reaper is confined, so is everything that it starts. The owners of
leases are left alone. When a lease ends, each process gets the cores that it had before, unless it has chosen others
meanwhile.

What a process had before is not always seen, because processes start while others are being confined:

    seen before we began        its cores are its own, or what its parent was confined to by an earlier lease
    started since               its parent was confined before the fork or after it: it has what its parent had

So parents are confined before their children, and a new process whose cores are its parent's, confined or not, gets
back what its parent gets back. A thread of this process may have cores of its own (`placed`); whatever has exactly the
cores that it leases was started by it, and is left alone too. A session that is started on some cores is reported
(`started`): which of them were open was decided before it started, and leases may have begun or ended since.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from rota.errors import RotaError
from rota.host.lineage import descendants_of, parent_of
from rota.host.thread_settings import allowed_cores, confined_from, pin, pin_thread

__all__ = ["Confinement"]

ROUNDS_MAX = 5  # of looking for processes that were started meanwhile


class Confinement:
    """The cores that this process and what it starts may use. Any thread may use it."""

    def __init__(self) -> None:
        self.usable = allowed_cores()  # before any lease
        self._lock = threading.Lock()
        self._open = self.usable
        self._owners: set[int] = set()  # leaders of sessions that have leased cores
        self._placed: dict[int, frozenset[int]] = {}  # threads of this process that have cores of their own
        self._leased: set[frozenset[int]] = set()  # those of them that are leased
        self._before: dict[int, frozenset[int]] = {}  # by process: its cores without any lease

    @property
    def open_cores(self) -> frozenset[int]:
        """The cores that no lease has."""
        return self._open

    def open_of(self, cores: frozenset[int]) -> frozenset[int]:
        """Those of some cores that no lease has; if all are leased, every core that none has."""
        return _open_of(cores, self._open)

    def set_open(self, cores: Iterable[int]) -> None:
        """Confine everything but the owners of leases to these cores."""
        wanted = frozenset(cores) & self.usable or self.usable
        with self._lock:
            if wanted == self._open:
                return
            inherited, self._open = self._open, wanted
            confined_from(self.usable)
            self._apply(inherited)

    def hold(self, leader: int, cores: frozenset[int]) -> None:
        """Let a session that has started use its leased cores, and leave it alone."""
        with self._lock:
            self._owners.add(leader)
            for pid in _tree(leader):
                with suppress(RotaError):  # it has ended, or its group has other cores
                    pin(pid, cores)

    def started(self, leader: int, cores: frozenset[int]) -> None:
        """A session has started that may use these cores: confine it as leases are now."""
        with self._lock:
            wanted = self.open_of(cores)
            if self._open != self.usable:
                self._before[leader] = cores  # what it starts has the cores of its parent
            for pid in _tree(leader):
                with suppress(RotaError):  # it has ended, or its group has other cores
                    if allowed_cores(pid) != wanted:
                        pin(pid, wanted)

    @contextmanager
    def placed(self, cores: frozenset[int], *, leased: bool) -> Iterator[None]:
        """Run the calling thread, and what it starts meanwhile, on these cores."""
        thread = threading.get_native_id()
        with self._lock:
            self._placed[thread] = cores
            if leased:
                self._leased.add(cores)
            pin_thread(thread, cores if leased else self.open_of(cores))
        try:
            yield
        finally:
            with self._lock:
                del self._placed[thread]
                if leased:
                    self._leased.discard(cores)
                with suppress(RotaError):  # they have been taken from this process
                    pin_thread(thread, self._open)
                    if leased:
                        pin(os.getpid(), self._open, but=self._leased)  # threads that it has left behind
                        self._place()

    def end(self, leader: int) -> None:
        """Forget a session that has ended."""
        with self._lock:
            self._owners.discard(leader)
            self._before.pop(leader, None)

    def _apply(self, inherited: frozenset[int]) -> None:
        """Confine every process, or let it go; until now all were confined to the `inherited` cores."""
        done: set[int] = set()
        parents_had = [inherited]
        for _round in range(ROUNDS_MAX):
            owned = {pid for leader in self._owners for pid in _tree(leader)}
            new = [pid for pid in _tree(os.getpid()) if pid not in owned and pid not in done]
            if not new:
                break
            for pid in new:  # parents first
                with suppress(RotaError, OSError):  # it has ended, or its group has none of these cores
                    self._confine(pid, parents_had)
            done.update(new)
            parents_had = [inherited, self._open]  # one that was started since has what its parent had by then
        self._place()
        self._before = {} if self._open == self.usable else {pid: self._before[pid] for pid in done & {*self._before}}

    def _place(self) -> None:
        for thread, cores in self._placed.items():
            if cores not in self._leased:
                with suppress(RotaError):  # its group has other cores
                    pin_thread(thread, self.open_of(cores))

    def _confine(self, pid: int, parents_had: list[frozenset[int]]) -> None:
        now = allowed_cores(pid)
        if now in self._leased:
            return
        before = self._before.get(pid) or self._before.get(parent_of(pid)) or self.usable
        if all(now != _open_of(before, opened) for opened in parents_had):
            before = now  # chosen by itself
        self._before[pid] = before
        wanted = self.open_of(before)
        if now != wanted:
            pin(pid, wanted, but=self._leased)


def _open_of(cores: frozenset[int], opened: frozenset[int]) -> frozenset[int]:
    return (cores & opened) or opened


def _tree(leader: int) -> list[int]:
    """A process and everything that it started, parents before their children."""
    return [leader, *descendants_of(leader)]

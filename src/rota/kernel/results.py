"""Waiting for an entry to end, without asking again and again.

A caller first says which entry it waits for, then looks, then waits: so an end between looking and waiting is
not missed. An end in this process wakes exactly those who wait for that entry, after its commit; a commit of
another process wakes all who wait, to look for themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rota.clock import Clock, wait_until
from rota.store import Store

__all__ = ["Results"]


class _Waiter:
    """Somebody who waits, and whether there is reason to look."""

    __slots__ = ("bell", "rung")

    def __init__(self) -> None:
        self.bell = threading.Condition()
        self.rung = False

    def ring(self) -> None:
        with self.bell:
            self.rung = True
            self.bell.notify_all()

    def wait(self, clock: Clock, timeout_s: float) -> bool:
        with self.bell:
            woken = wait_until(clock, self.bell, lambda: self.rung, timeout_s)
            self.rung = False
            return woken


class _Watcher:
    """Somebody who has no thread to wait on, and is called instead."""

    __slots__ = ("ring",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.ring = call


class Results:
    """Who waits for which entry."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._guard = threading.Lock()
        self._waiters: dict[int, list[_Waiter | _Watcher]] = {}
        self._end_listening: Callable[[], None] | None = None

    def tell(self, sched_ids: Iterable[int]) -> None:
        """These entries have ended, durably."""
        if not self._waiters:
            return
        with self._guard:
            woken = [waiter for sched_id in sched_ids for waiter in self._waiters.get(sched_id, ())]
        for waiter in woken:
            waiter.ring()

    def wait(self, sched_id: int, has_ended: Callable[[], bool], timeout_s: float) -> bool:
        """Whether an entry ended within this time."""
        give_up_at = self._clock.monotonic() + timeout_s
        with self._waiting_for(sched_id) as waiter:
            while not has_ended():
                left_s = give_up_at - self._clock.monotonic()
                if left_s <= 0 or not waiter.wait(self._clock, left_s):
                    return has_ended()
            return True

    def watch(self, sched_id: int, call: Callable[[], None]) -> Callable[[], None]:
        """Have this called whenever there is reason to look at an entry; the answer ends it."""
        watcher = _Watcher(call)
        self._join(sched_id, watcher)
        return lambda: self._leave(sched_id, watcher)

    @contextmanager
    def _waiting_for(self, sched_id: int) -> Iterator[_Waiter]:
        waiter = _Waiter()
        self._join(sched_id, waiter)
        try:
            yield waiter
        finally:
            self._leave(sched_id, waiter)

    def _join(self, sched_id: int, waiter: _Waiter | _Watcher) -> None:
        with self._guard:
            self._waiters.setdefault(sched_id, []).append(waiter)
            if self._end_listening is None:
                self._end_listening = self._store.on_change(self._look, foreign_only=True)

    def _leave(self, sched_id: int, waiter: _Waiter | _Watcher) -> None:
        with self._guard:
            self._waiters[sched_id].remove(waiter)
            if not self._waiters[sched_id]:
                del self._waiters[sched_id]

    def _look(self) -> None:
        """Another process wrote: everybody looks for themselves."""
        with self._guard:
            woken = [waiter for waiters in self._waiters.values() for waiter in waiters]
        for waiter in woken:
            waiter.ring()

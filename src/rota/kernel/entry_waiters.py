"""Callers that wait for an entry to end, without polling.

A caller registers for an entry, then looks at it, then waits, so an end between looking and waiting is not missed.
When an entry ends in this process, only the callers that wait for it are woken, after the commit. A commit of another
process wakes all of them, and each looks for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from rota.clock import Clock, wait_until
from rota.store import Store, Transaction
from rota.store.forks import in_child

__all__ = ["EntryWaiters"]


class _Waiter:
    """A thread that waits for a notification."""

    __slots__ = ("_condition", "_notified")

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._notified = False

    def notify(self) -> None:
        with self._condition:
            self._notified = True
            self._condition.notify_all()

    def wait(self, clock: Clock, timeout_s: float) -> bool:
        with self._condition:
            woken = wait_until(clock, self._condition, lambda: self._notified, timeout_s)
            self._notified = False
            return woken


class _Callback:
    """A function that is called instead of waking a thread."""

    __slots__ = ("notify",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.notify = call


class EntryWaiters:
    """The callers that wait, by entry."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._guard = threading.Lock()
        self._waiters: dict[int, list[_Waiter | _Callback]] = {}
        self._subscribed = False
        in_child(self._forget)

    def _forget(self) -> None:
        """In a forked child: the callers are threads of the parent."""
        self._guard = threading.Lock()
        self._waiters = {}

    def notify_on_commit(self, tx: Transaction, sched_ids: list[int]) -> None:
        """Wake the callers that wait for these entries, once the transaction in which they end is durable."""
        if sched_ids:
            tx.effects.on_commit.append(partial(self._notify, sched_ids))

    def _notify(self, sched_ids: Iterable[int]) -> None:
        if not self._waiters:
            return
        with self._guard:
            woken = [waiter for sched_id in sched_ids for waiter in self._waiters.get(sched_id, ())]
        for waiter in woken:
            waiter.notify()

    def wait(self, sched_id: int, has_ended: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for an entry to end; returns whether it did within the timeout."""
        give_up_at = self._clock.monotonic() + timeout_s
        with self._waiting_for(sched_id) as waiter:
            while not has_ended():
                left_s = give_up_at - self._clock.monotonic()
                if left_s <= 0 or not waiter.wait(self._clock, left_s):
                    return has_ended()
            return True

    def watch(self, sched_id: int, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function whenever an entry may have ended; returns a function that stops it."""
        callback = _Callback(call)
        self._add(sched_id, callback)
        return lambda: self._remove(sched_id, callback)

    @contextmanager
    def _waiting_for(self, sched_id: int) -> Iterator[_Waiter]:
        waiter = _Waiter()
        self._add(sched_id, waiter)
        try:
            yield waiter
        finally:
            self._remove(sched_id, waiter)

    def _add(self, sched_id: int, waiter: _Waiter | _Callback) -> None:
        with self._guard:
            self._waiters.setdefault(sched_id, []).append(waiter)
            if not self._subscribed:
                self._subscribed = True
                self._store.on_change(self._notify_all, foreign_only=True)

    def _remove(self, sched_id: int, waiter: _Waiter | _Callback) -> None:
        with self._guard:
            waiters = self._waiters.get(sched_id, [])
            if waiter in waiters:  # else it was forgotten
                waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(sched_id, None)

    def _notify_all(self) -> None:
        """Wake all callers after a commit of another process."""
        with self._guard:
            woken = [waiter for waiters in self._waiters.values() for waiter in waiters]
        for waiter in woken:
            waiter.notify()

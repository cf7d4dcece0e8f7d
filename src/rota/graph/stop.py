"""Requests to stop a run, and the signal that wakes its thread.

A `StopToken` is a flag that is set once and never cleared. It interrupts nothing: the run checks it before each epoch,
in every wait and from the second iteration of each loop; a component checks it through `cancel_requested()`.

The run's thread waits on a `WakeSignal`: for the next tick, or for work that runs elsewhere. Every event that may end
such a wait calls `notify`. Both classes may be used from a signal handler. The lock is reentrant, so a handler that
interrupts the waiting thread does not deadlock with it. A handler may also notify between the thread's last check and
its wait, where the notification is lost; therefore no wait is longer than `WAIT_MAX_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rota.clock import Clock

__all__ = ["WAIT_MAX_S", "StopToken", "WakeSignal"]

WAIT_MAX_S = 0.05


class StopToken:
    """A request to stop. The first request counts and cannot be withdrawn."""

    __slots__ = ("_subscribers", "is_set", "reason")

    def __init__(self) -> None:
        self.is_set = False
        self.reason = ""
        self._subscribers: list[Callable[[], None]] = []

    def request(self, reason: str = "stop requested") -> None:
        """Request a stop; further requests change nothing."""
        if not self.is_set:
            self.reason = reason
            self.is_set = True
        for wake in tuple(self._subscribers):
            wake()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` when a stop is requested; immediately if it was requested before."""
        self._subscribers.append(wake)
        if self.is_set:
            wake()

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """Remove a subscriber."""
        self._subscribers.remove(wake)


class WakeSignal:
    """A signal for one waiting thread that any thread may notify."""

    __slots__ = ("_clock", "_condition", "_count")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()  # its default lock is reentrant: see above
        self._count = 0

    def notify(self) -> None:
        """Wake the waiting thread."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    @property
    def count(self) -> int:
        """The number of notifications so far. Read it first, then check the condition, then wait with this number."""
        return self._count

    def wait(self, seen_count: int, timeout_s: float = WAIT_MAX_S) -> None:
        """Wait for a notification after `seen_count`, at most `WAIT_MAX_S`; the caller checks and waits again."""
        with self._condition:
            if self._count == seen_count:
                self._clock.wait(self._condition, min(timeout_s, WAIT_MAX_S))

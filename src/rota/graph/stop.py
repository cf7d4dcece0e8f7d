"""Asking a run to stop, and waking it when something happens.

A `StopToken` is a flag that only goes up. Nothing is interrupted by it: the run looks at it before each epoch, in each
wait and in each loop from the second iteration on, and a component looks at it through `cancel_requested()`.

A `Bell` is what the run's own thread sleeps on: the next tick, work under way elsewhere. Everybody who may end such a
sleep rings it. Both may be used from a signal handler. The lock is one that its own thread can take again, so a handler
that interrupts the sleeper does not wait for itself; and because a handler may ring in the very moment between the
sleeper's last look and its sleep, when nobody hears it, no sleep is longer than `NAP_S`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rota.clock import Clock

__all__ = ["NAP_S", "Bell", "StopToken"]

NAP_S = 0.05


class StopToken:
    """A request to stop, made at most once and never taken back."""

    __slots__ = ("_subscribers", "is_set", "reason")

    def __init__(self) -> None:
        self.is_set = False
        self.reason = ""
        self._subscribers: list[Callable[[], None]] = []

    def request(self, reason: str = "stop requested") -> None:
        """Ask to stop; asking again changes nothing."""
        if not self.is_set:
            self.reason = reason
            self.is_set = True
        for wake in tuple(self._subscribers):
            wake()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call this when a stop is requested, at once if it has been."""
        self._subscribers.append(wake)
        if self.is_set:
            wake()

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """Forget a subscriber."""
        self._subscribers.remove(wake)


class Bell:
    """Something to wait for that many may ring."""

    __slots__ = ("_clock", "_condition", "_rings")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()  # over a lock that its holder may take again: see above
        self._rings = 0

    def ring(self) -> None:
        """Wake whoever waits."""
        with self._condition:
            self._rings += 1
            self._condition.notify_all()

    @property
    def rings(self) -> int:
        """How often it has rung. Read this first, look at the world, then wait for the next."""
        return self._rings

    def nap(self, rings_seen: int, most_s: float = NAP_S) -> None:
        """Wait a moment, or until it has rung since. Whoever waits for something looks again and naps again."""
        with self._condition:
            if self._rings == rings_seen:
                self._clock.wait(self._condition, min(most_s, NAP_S))

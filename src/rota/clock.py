"""The only module that reads the machine's clock or sleeps.

Callers pass `now` down, and code that must wait calls `Clock.wait`. So a `ManualClock` also wakes waiting callers, and
a test never sleeps.

A clock has two readings. `now` is the wall clock in epoch seconds: it means a date and may jump. `monotonic` only
grows: it measures durations. When the wall clock jumps, the two readings disagree about how much time has passed, which
is how rota detects the jump.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "wait_until"]


class Clock(Protocol):
    """The clock that rota uses."""

    def now(self) -> float:
        """Return epoch seconds of the wall clock."""
        ...

    def monotonic(self) -> float:
        """Return seconds since a fixed moment; never decreases."""
        ...

    def boot_id(self) -> str:
        """Return the id of the machine's boot: `monotonic` readings compare only within one boot."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition until notified (True) or until `timeout_s` has passed (False).

        As with any condition, a caller that is woken must check its predicate again.
        """
        ...


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.time)  # epoch seconds of the wall clock
    monotonic = staticmethod(time.monotonic)  # seconds since boot; never decreases

    def boot_id(self) -> str:
        """Return the id of this boot; where the system has none, an id of this process."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return f"process-{os.getpid()}"

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition until notified or until the time has passed."""
        return condition.wait(timeout_s)


class ManualClock:
    """A clock that moves only when its methods are called. For tests and simulations.

    `advance` moves both readings and wakes every waiter that is due; `jump` moves the wall clock alone, as a suspended
    laptop or a corrected clock does.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._now = now
        self._monotonic = 0.0
        self._order = itertools.count()
        self._waiters: list[tuple[float, int, threading.Condition]] = []
        self._parked = threading.Condition(self._lock)
        self._parked_count = 0

    def now(self) -> float:
        """Return epoch seconds, as last set."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds advanced since this clock was created."""
        return self._monotonic

    def boot_id(self) -> str:
        """Return an id of this clock: its readings compare with no other clock's."""
        return f"manual-{id(self):x}"

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on the condition until it is notified or this clock has moved far enough."""
        with self._lock:
            wake_at = None if timeout_s is None else self._monotonic + max(timeout_s, 0.0)
            if wake_at is not None:
                if wake_at <= self._monotonic:
                    return False
                heapq.heappush(self._waiters, (wake_at, next(self._order), condition))
            self._parked_count += 1
            self._parked.notify_all()
        try:
            condition.wait()
        finally:
            with self._lock:
                self._parked_count -= 1
        return wake_at is None or self._monotonic < wake_at

    def advance(self, seconds: float) -> None:
        """Move both readings forward and wake the waiters that are due."""
        if not seconds >= 0:
            raise ValueError(f"time only moves forward, not by {seconds}")
        with self._lock:
            self._now += seconds
            self._monotonic += seconds
            due: list[threading.Condition] = []
            while self._waiters and self._waiters[0][0] <= self._monotonic:
                due.append(heapq.heappop(self._waiters)[2])
        for condition in due:  # without the lock: a waiter holds its condition while it calls wait()
            with condition:
                condition.notify_all()

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, in either direction; this wakes no waiter, as on a real machine."""
        with self._lock:
            self._now += seconds

    def until_parked(self, count: int = 1, *, patience_s: float = 30.0) -> None:
        """Block until `count` threads wait on this clock.

        A test calls it before it moves time. `patience_s` is real time and only ends a test that would hang.
        """
        with self._parked:
            if not self._parked.wait_for(lambda: self._parked_count >= count, patience_s):
                raise AssertionError(f"{self._parked_count} of {count} callers parked")


def wait_until(
    clock: Clock, condition: threading.Condition, happened: Callable[[], bool], timeout_s: float | None = None
) -> bool:
    """Wait on a held condition until `happened()`; return whether it did before the timeout."""
    give_up_at = None if timeout_s is None else clock.monotonic() + timeout_s
    while not happened():
        remaining_s = None if give_up_at is None else give_up_at - clock.monotonic()
        if remaining_s is not None and remaining_s <= 0:
            return False
        clock.wait(condition, remaining_s)
    return True

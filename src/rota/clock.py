"""The only module that reads the machine's clock or sleeps.

Callers pass `now` down, and code that must wait calls `Clock.wait`. So a `ManualClock` also wakes waiting callers, and
a test never sleeps.

A clock has two readings. `now` is the wall clock in epoch seconds: it means a date and may jump. `monotonic` only
advances: it measures durations, and it counts the time in which the machine is suspended. When the wall clock jumps,
the two readings disagree about how much time has passed, which is how rota detects it (kernel/clock_jumps.py).
"""

from __future__ import annotations

import datetime as dt
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

__all__ = ["JUMP_MIN_S", "AwakeClock", "Clock", "ManualClock", "SystemClock", "has_jumped", "local_time", "wait_until"]

JUMP_MIN_S = 0.1  # a smaller change of the wall clock against the advancing one is not treated as a jump
SUSPEND_CHECK_S = 5.0  # how late a wait notices that its time has passed while the machine was suspended


class Clock(Protocol):
    """The clock that rota uses."""

    def now(self) -> float:
        """Return epoch seconds of the wall clock."""
        ...

    def monotonic(self) -> float:
        """Return seconds since a fixed moment; never decreases, and goes on while the machine is suspended."""
        ...

    def boot_id(self) -> str:
        """Return the id of the machine's boot: `monotonic` readings compare only within one boot."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition until notified (True) or until `timeout_s` has passed (False).

        As with any condition, a caller that is woken must check its predicate again.
        """
        ...


_CLOCK_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; elsewhere the monotonic clock has to do


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.time)  # epoch seconds of the wall clock
    monotonic = staticmethod(  # seconds since boot; never decreases
        time.monotonic if _CLOCK_BOOTTIME is None else partial(time.clock_gettime, _CLOCK_BOOTTIME)
    )

    def boot_id(self) -> str:
        """Return the id of this boot; where the system has none, an id of this process.

        Processes in different time namespaces read different advancing clocks, so the namespace is part of the id.
        """
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return f"process-{os.getpid()}"
        try:
            return f"{boot}/{Path('/proc/self/ns/time').stat().st_ino}"
        except OSError:
            return boot

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition until notified or until the time has passed.

        The system's own waits stand still while the machine is suspended, so a long one is divided.
        """
        if timeout_s is None or timeout_s <= SUSPEND_CHECK_S:
            return condition.wait(timeout_s)
        end_at = self.monotonic() + timeout_s
        while (left_s := end_at - self.monotonic()) > 0:
            if condition.wait(min(left_s, SUSPEND_CHECK_S)):
                return True
        return False


class AwakeClock(SystemClock):
    """The machine's clock, except that it stands still while the machine is suspended: to measure execution."""

    monotonic = staticmethod(time.monotonic)


class ManualClock:
    """A clock that moves only when its methods are called. For tests and simulations.

    `advance` moves both readings and wakes every waiter that is due, as time and a suspended laptop do; `jump` moves
    the wall clock alone, as a corrected clock does; `reboot` starts another boot.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._now = now
        self._monotonic = 0.0
        self._boots = 1
        self._order = itertools.count()
        self._waiters: list[tuple[float, int, threading.Condition]] = []
        self._parked = threading.Condition(self._lock)
        self._parked_count = 0

    def now(self) -> float:
        """Return epoch seconds, as last set."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds advanced since this clock was created or rebooted."""
        return self._monotonic

    def boot_id(self) -> str:
        """Return an id of this boot of this clock: its readings compare with no other's."""
        return f"manual-{id(self):x}-{self._boots}"

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

    def reboot(self, now: float) -> None:
        """Start another boot, with this wall clock. Nothing may wait on the clock: no process survives a reboot."""
        with self._lock:
            self._now, self._monotonic = now, 0.0
            self._boots += 1

    def until_parked(self, count: int = 1, *, patience_s: float = 30.0) -> None:
        """Block until `count` threads wait on this clock.

        A test calls it before it moves time. `patience_s` is real time and only ends a test that would hang.
        """
        with self._parked:
            if not self._parked.wait_for(lambda: self._parked_count >= count, patience_s):
                raise AssertionError(f"{self._parked_count} of {count} callers parked")


def local_time(at: float) -> str:
    """Return an instant as people read it: date and time in this machine's zone."""
    try:
        return dt.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # beyond the calendar
        return "a time beyond the calendar"


def has_jumped(clock: Clock, offset_s: float) -> bool:
    """Whether the wall clock has moved against the advancing one, since it was ahead of it by `offset_s`."""
    return abs(clock.now() - clock.monotonic() - offset_s) > JUMP_MIN_S


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

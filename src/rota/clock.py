"""The one door through which time comes in.

Nothing else in rota asks the machine what time it is or sleeps. A caller passes `now` down, and
whoever must wait waits here, so a `ManualClock` moves parked callers too and a test never sleeps.

Two readings, because they answer different questions: `now` is the wall clock (epoch seconds; what
people and files mean by a date; may jump), `monotonic` only ever grows (what a duration is measured
with). When the wall clock jumps, the two disagree about how much time passed: that is how a jump is
noticed.
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
    """What rota needs of time."""

    def now(self) -> float:
        """Epoch seconds by the wall clock."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def life(self) -> str:
        """Which life of the machine `monotonic` counts in: two readings compare only within one."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition until notified (True) or until `timeout_s` has passed (False).

        As with any condition, being woken is not proof: the caller looks again.
        """
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Epoch seconds by the wall clock."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since boot; never goes back."""
        return time.monotonic()

    def life(self) -> str:
        """The boot of this machine; where it has no name, this process, whose readings nobody else shares."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return f"process-{os.getpid()}"

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Wait on a held condition until notified or until the time has passed."""
        return condition.wait(timeout_s)


class ManualClock:
    """A clock that moves only when told to. For tests and simulations.

    `advance` moves both readings and wakes every waiter whose time has come; `jump` moves the wall
    clock alone, as a suspended laptop or a corrected clock does.
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
        """Epoch seconds, as last set."""
        return self._now

    def monotonic(self) -> float:
        """Seconds advanced since this clock was made."""
        return self._monotonic

    def life(self) -> str:
        """This clock's own: no other shares its readings."""
        return f"manual-{id(self):x}"

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Park on the condition until somebody notifies it or this clock has moved far enough."""
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
        """Move both readings forward and wake whoever waited for that."""
        if not seconds >= 0:
            raise ValueError(f"time only moves forward; {seconds} was asked")
        with self._lock:
            self._now += seconds
            self._monotonic += seconds
            due: list[threading.Condition] = []
            while self._waiters and self._waiters[0][0] <= self._monotonic:
                due.append(heapq.heappop(self._waiters)[2])
        for condition in due:  # outside our lock: a waiter holds its condition while it calls wait()
            with condition:
                condition.notify_all()

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, either way; nobody is woken, as on a real machine."""
        with self._lock:
            self._now += seconds

    def until_parked(self, count: int = 1, *, patience_s: float = 30.0) -> None:
        """Let other threads run until `count` of them wait on this clock.

        This is how a test knows that a caller is parked before it moves time. `patience_s` is real
        time and only ends a test that would hang.
        """
        with self._parked:
            if not self._parked.wait_for(lambda: self._parked_count >= count, patience_s):
                raise AssertionError(f"{self._parked_count} of {count} callers parked")


def wait_until(
    clock: Clock, condition: threading.Condition, happened: Callable[[], bool], timeout_s: float | None = None
) -> bool:
    """Wait on a held condition until `happened()`; the answer is whether it did."""
    give_up_at = None if timeout_s is None else clock.monotonic() + timeout_s
    while not happened():
        remaining_s = None if give_up_at is None else give_up_at - clock.monotonic()
        if remaining_s is not None and remaining_s <= 0:
            return False
        clock.wait(condition, remaining_s)
    return True

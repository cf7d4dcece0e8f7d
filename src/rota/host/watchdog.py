"""One thread that acts when something has not been called off in time.

Many things are watched and nearly all are called off, so calling off must cost nothing: it forgets the thing, and its
entry in the heap stays until its time comes or until such entries outnumber the others, when the heap is built anew.
The thread starts with the first thing to watch. It waits on the clock, so that a manual clock moves it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from rota.clock import Clock

__all__ = ["Watchdog"]

TIDY_MIN = 64  # called-off entries that are not worth building the heap anew


class Watchdog:
    """Calls `bite` for each watched thing whose time has passed."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._changed = threading.Condition()
        self._tokens = itertools.count(1)
        self._bites: dict[int, Callable[[], None]] = {}
        self._heap: list[tuple[float, int]] = []  # (monotonic instant, token)
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, timeout_s: float, bite: Callable[[], None]) -> int:
        """Bite when this long has passed, unless called off by the token that is the answer."""
        with self._changed:
            token = next(self._tokens)
            entry = (self._clock.monotonic() + timeout_s, token)
            self._bites[token] = bite
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._heap[0] is entry:
                self._changed.notify()  # it waits for a later one
            return token

    def call_off(self, token: int) -> None:
        """Do not bite; nothing happens if it has."""
        with self._changed:
            self._bites.pop(token, None)
            if len(self._heap) > 2 * len(self._bites) + TIDY_MIN:
                self._heap = [entry for entry in self._heap if entry[1] in self._bites]
                heapq.heapify(self._heap)

    def close(self) -> None:
        """Bite no more, and wait until a bite under way is over."""
        with self._changed:
            self._closed = True
            self._bites.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (bite := self._next()) is not None:
            bite()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next one that is due; None at the end."""
        with self._changed:
            while not self._closed:
                now = self._clock.monotonic()
                while self._heap and self._heap[0][0] <= now:
                    bite = self._bites.pop(heapq.heappop(self._heap)[1], None)
                    if bite is not None:
                        return bite
                self._clock.wait(self._changed, self._heap[0][0] - now if self._heap else None)
        return None

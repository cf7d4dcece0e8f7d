"""One thread that calls a function when a timeout passes, unless it was cancelled.

Many timeouts are set and nearly all are cancelled, so cancelling must be cheap: it removes the function and leaves the
entry in the heap until its time comes, or until cancelled entries outnumber the others and the heap is rebuilt. The
thread starts with the first timeout. It waits on the clock, so that a manual clock controls it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from rota.clock import Clock

__all__ = ["Watchdog"]

COMPACT_MIN = 64  # cancelled entries that are not worth rebuilding the heap


class Watchdog:
    """Calls a function for each timeout that passes."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._changed = threading.Condition()
        self._tokens = itertools.count(1)
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._heap: list[tuple[float, int]] = []  # (monotonic instant, token)
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, timeout_s: float, on_timeout: Callable[[], None]) -> int:
        """Call `on_timeout` after this time. Return a token to cancel it."""
        with self._changed:
            token = next(self._tokens)
            entry = (self._clock.monotonic() + timeout_s, token)
            self._callbacks[token] = on_timeout
            heapq.heappush(self._heap, entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._heap[0] is entry:
                self._changed.notify()  # the thread waits for a later one
            return token

    def cancel(self, token: int) -> None:
        """Cancel a timeout. Nothing happens if it has passed."""
        with self._changed:
            self._callbacks.pop(token, None)
            if len(self._heap) > 2 * len(self._callbacks) + COMPACT_MIN:
                self._heap = [entry for entry in self._heap if entry[1] in self._callbacks]
                heapq.heapify(self._heap)

    def close(self) -> None:
        """Cancel every timeout, and wait until a running callback has returned."""
        with self._changed:
            self._closed = True
            self._callbacks.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (on_timeout := self._next()) is not None:
            on_timeout()

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next timeout and return its callback; None after `close`."""
        with self._changed:
            while not self._closed:
                now = self._clock.monotonic()
                while self._heap and self._heap[0][0] <= now:
                    on_timeout = self._callbacks.pop(heapq.heappop(self._heap)[1], None)
                    if on_timeout is not None:
                        return on_timeout
                self._clock.wait(self._changed, self._heap[0][0] - now if self._heap else None)
        return None

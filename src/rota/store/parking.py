"""Parked requests: they found nothing, and run again when a commit or the clock may have changed that.

A request says when time alone may change its result (`effects.retry_at`, a date); the writer thread runs the parked
requests again then. It waits on the clock it was given, so a manual clock moves it. A retry time that has passed
already, or that is not a number, becomes a short pause, so that a request cannot spin.

The date becomes an instant of the advancing clock when the request is parked: most of what is due then is a duration,
and must come neither earlier nor later when the wall clock jumps. What depends on a date does change, so while anything
is due the thread also compares the two clocks every `CLOCK_CHECK_S` and tries the requests after a jump.

The mutex that guards this state is the writer's. Every method expects it to be held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rota.clock import Clock, has_jumped
from rota.errors import StoreUnavailable
from rota.store.protocol import TransactionEffects
from rota.store.requests import Request, RequestState

__all__ = ["CLOCK_CHECK_S", "PAUSE_S", "ParkedRequests"]

PAUSE_S = 0.01  # between two tries of requests that are due and still found nothing
CLOCK_CHECK_S = 1.0  # how late the writer thread notices that the wall clock has jumped


class ParkedRequests:
    """The parked requests, oldest first, and when the clock may change their result."""

    def __init__(self, mutex: threading.Lock, clock: Clock, wake_thread: Callable[[], None]) -> None:
        self.requests: dict[Request[Any], None] = {}
        self.closed = False
        self._mutex = mutex
        self._clock = clock
        self._wake_thread = wake_thread
        self._retry_at: float | None = None  # instant of the next try, on the advancing clock
        self._offset_s = 0.0  # wall minus advancing clock when that was set

    def settle(self, request: Request[Any]) -> None:
        """Finish a request that has run, or park it."""
        if not request.should_park:
            request.move_to(RequestState.DONE)
        elif request.handle is not None and request.handle.signalled:
            request.handle.signalled = False
            request.move_to(RequestState.DONE)
        elif self.closed:
            self.refuse(request)
        else:
            self._park(request)

    def _park(self, request: Request[Any]) -> None:
        if not self.requests:
            self._retry_at = None  # of requests that have left; the thread no longer waits for it
        self.requests[request] = None
        retry_at, request.effects = request.effects.retry_at, TransactionEffects()  # the others took effect already
        if request.condition is None and request.on_done is None:
            request.condition = threading.Condition(self._mutex)
        request.move_to(RequestState.PARKED)
        if retry_at is not None:
            wait_s = retry_at - self._clock.now()
            wait_s = wait_s if wait_s > 0 else PAUSE_S  # written so that NaN is paused too
            if self._retry_at is None or self._clock.monotonic() + wait_s < self._retry_at:
                self.retry_all_in(wait_s)

    def take_all(self) -> list[Request[Any]]:
        """Take every parked request out, to run it."""
        taken = list(self.requests)
        self.requests.clear()
        self._retry_at = None
        for request in taken:
            request.state = RequestState.RUNNING
        return taken

    def retry_all_in(self, wait_s: float) -> None:
        """Have the writer thread run the parked requests after this time."""
        if self.requests:
            monotonic = self._clock.monotonic()
            self._retry_at, self._offset_s = monotonic + wait_s, self._clock.now() - monotonic
            self._wake_thread()

    def is_due(self) -> bool:
        """Whether the time for the next try has come, or the wall clock has jumped."""
        if not self.requests or self._retry_at is None:
            return False
        return self._retry_at <= self._clock.monotonic() or has_jumped(self._clock, self._offset_s)

    def until_due_s(self) -> float | None:
        """How long the writer thread may sleep; None: until it is woken."""
        if not self.requests or self._retry_at is None:
            return None
        return min(max(0.0, self._retry_at - self._clock.monotonic()), CLOCK_CHECK_S)

    def refuse(self, request: Request[Any]) -> None:
        """Tell a caller that the store was closed while it waited."""
        request.error = StoreUnavailable("the store was closed", hint="Open it again.")
        request.move_to(RequestState.DONE)

    def forget(self, mutex: threading.Lock) -> None:
        """In a forked child: the requests belong to threads of the parent."""
        self._mutex = mutex
        self.requests.clear()
        self._retry_at = None

    def fail_all(self, error: BaseException) -> None:
        """End every parked request with an error."""
        for request in self.requests:
            request.error = error
            request.move_to(RequestState.DONE)
        self.requests.clear()

    def close(self) -> None:
        """Refuse every parked request, and park no more."""
        self.closed = True
        for request in self.requests:
            self.refuse(request)
        self.requests.clear()

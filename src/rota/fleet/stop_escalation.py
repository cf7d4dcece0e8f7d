"""The ladder: how a run is made to stop.

Three rungs: a message, SIGTERM, SIGKILL. A rung that the runner does not have is passed over at once; after one that it
has, the run is given its grace before the next. Whoever asks first says why; a later, other reason changes nothing,
except that `hurry` skips to the kill. If the stop is asked for before the run has begun, it waits for the beginning: a
command that is not there yet cannot be signalled, and must not be forgotten either.
"""

from __future__ import annotations

import threading
from typing import Literal, TypeAlias

from rota.fleet.runners.contract import Rung, Stops
from rota.host.watchdog import Watchdog

__all__ = ["Ladder", "StoppedBy"]

StoppedBy: TypeAlias = Literal["message", "TERM", "KILL"]

_RUNGS: tuple[Rung, ...] = ("ask", "terminate", "kill")
_WORDS: dict[Rung, StoppedBy] = {"ask": "message", "terminate": "TERM", "kill": "KILL"}


class Ladder:
    """One run's way to its end, if it has to be ended."""

    def __init__(self, watchdog: Watchdog, grace_s: float) -> None:
        self._watchdog = watchdog
        self._grace_s = grace_s
        self._lock = threading.RLock()  # a rung may end the run, which comes back here
        self._stops: Stops | None = None
        self._reason: str | None = None
        self._next = 0  # the rung to be tried next
        self._reached: Rung | None = None
        self._timer: int | None = None
        self._is_over = False

    @property
    def reason(self) -> str | None:
        """Why it was asked to stop; None as long as it was not."""
        return self._reason

    @property
    def stopped_by(self) -> StoppedBy | None:
        """The rung that was tried last; None if none was."""
        return None if self._reached is None else _WORDS[self._reached]

    def begin(self, stops: Stops) -> None:
        """The run can be stopped from now on; if it was asked to, it is."""
        with self._lock:
            self._stops = stops
            if self._reason is not None:
                self._climb()

    def stop(self, reason: str, grace_s: float | None = None) -> bool:
        """Ask the run to stop, with its usual grace or another; False if it was asked before, or has ended."""
        with self._lock:
            if self._reason is not None or self._is_over:
                return False
            self._reason = reason
            self._grace_s = self._grace_s if grace_s is None else grace_s
            self._climb()
            return True

    def hurry(self, reason: str) -> None:
        """Skip to the last rung."""
        with self._lock:
            self._reason = self._reason or reason
            self._next = max(self._next, len(_RUNGS) - 1)
            self._climb()

    def end(self) -> None:
        """The run has ended: nothing more is to be done to it."""
        with self._lock:
            self._is_over = True
            self._call_off()

    def _climb(self) -> None:
        """Try rungs until one is there; then give the run its grace before the next."""
        with self._lock:
            self._call_off()
            if self._is_over or self._stops is None:
                return
            while self._next < len(_RUNGS):
                rung = _RUNGS[self._next]
                self._next += 1
                if self._try(self._stops, rung):
                    self._reached = rung
                    break
            if self._next < len(_RUNGS) and not self._is_over:
                self._timer = self._watchdog.watch(self._grace_s, self._climb)

    def _try(self, stops: Stops, rung: Rung) -> bool:
        if rung == "ask":
            return stops.ask(self._reason or "")
        return stops.terminate() if rung == "terminate" else stops.kill()

    def _call_off(self) -> None:
        if self._timer is not None:
            self._watchdog.call_off(self._timer)
            self._timer = None

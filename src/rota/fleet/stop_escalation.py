"""How a run is stopped: a stop request, then SIGTERM, then SIGKILL.

A step that the runner does not support is skipped immediately; after a supported step the run has its grace period
before the next one. The first stop reason counts: a later call with another reason changes nothing, except that `kill`
skips to the last step. If a stop is requested before the run has started, the escalation begins when the run starts:
a command that does not exist yet cannot be signalled, and the request must not be lost.

The last step is repeated until the run has ended. For a process here once is enough; but Ray ignores a cancel by force
while it still works on the one before, and says nothing.
"""

from __future__ import annotations

import threading
from typing import Literal, TypeAlias

from rota.fleet.runners.contract import StopHandle, StopStep
from rota.host.watchdog import Watchdog

__all__ = ["KILL_AGAIN_S", "StopEscalation", "StoppedBy"]

StoppedBy: TypeAlias = Literal["message", "TERM", "KILL"]

KILL_AGAIN_S = 2.0  # after which the last step is repeated
_STEPS: tuple[StopStep, ...] = ("request", "terminate", "kill")
_STOPPED_BY: dict[StopStep, StoppedBy] = {"request": "message", "terminate": "TERM", "kill": "KILL"}


class StopEscalation:
    """The stop of one run, if it has to be stopped."""

    def __init__(self, watchdog: Watchdog, grace_s: float) -> None:
        self._watchdog = watchdog
        self._grace_s = grace_s
        self._lock = threading.RLock()  # a step may end the run, which calls `end` on the same thread
        self._handle: StopHandle | None = None
        self._reason: str | None = None
        self._next = 0  # index of the next step
        self._reached: StopStep | None = None
        self._timer: int | None = None
        self._is_over = False

    @property
    def reason(self) -> str | None:
        """Why the run was stopped; None if it was not."""
        return self._reason

    @property
    def stopped_by(self) -> StoppedBy | None:
        """The last step that was taken; None if none was."""
        return None if self._reached is None else _STOPPED_BY[self._reached]

    def start(self, handle: StopHandle) -> None:
        """The run has started and `handle` can stop it. Escalate now if a stop was already requested."""
        with self._lock:
            self._handle = handle
            if self._reason is not None:
                self._escalate()

    def forget_handle(self) -> None:
        """What `start` named has ended, and the next has not started: a stop waits for that, and begins again."""
        with self._lock:
            self._cancel_timer()
            self._handle = None
            self._next = 0

    def stop(self, reason: str, grace_s: float | None = None) -> bool:
        """Begin to stop the run; `grace_s` replaces its usual grace. False if it is being stopped or has ended."""
        with self._lock:
            if self._reason is not None or self._is_over:
                return False
            self._reason = reason
            self._grace_s = self._grace_s if grace_s is None else grace_s
            self._escalate()
            return True

    def kill(self, reason: str) -> None:
        """Skip to the last step."""
        with self._lock:
            self._reason = self._reason or reason
            self._next = max(self._next, len(_STEPS) - 1)
            self._escalate()

    def end(self) -> None:
        """The run has ended: cancel the escalation."""
        with self._lock:
            self._is_over = True
            self._cancel_timer()

    def _escalate(self) -> None:
        """Take the next step that the runner supports; schedule the one after it."""
        with self._lock:
            self._cancel_timer()
            if self._is_over or self._handle is None:
                return
            is_taken = False
            while self._next < len(_STEPS) and not is_taken:
                step = _STEPS[self._next]
                self._next += 1
                if is_taken := self._take(self._handle, step):
                    self._reached = step
            if not is_taken or self._is_over:
                return
            wait_s = self._grace_s
            if self._next == len(_STEPS):
                self._next, wait_s = len(_STEPS) - 1, KILL_AGAIN_S
            self._timer = self._watchdog.watch(wait_s, self._escalate)

    def _take(self, handle: StopHandle, step: StopStep) -> bool:
        if step == "request":
            return handle.request_stop(self._reason or "")
        return handle.terminate() if step == "terminate" else handle.kill()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._watchdog.cancel(self._timer)
            self._timer = None

"""Records of what went wrong in a run: errors of components, and health events of channels and lanes.

An *error* is a failure of a component or of the run itself; a fatal error ends the run. A *health event* records that
something was lost, late or refused although nothing failed: a full channel, a lane at its capacity, a policy that
raised. Both lists are bounded; records over the limit are only counted.
"""

from __future__ import annotations

import re
import threading
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from rota.errors import GraphRunFailed, RotaError

__all__ = [
    "COMPONENT_FAILURES",
    "ERRORS_MAX",
    "HEALTH_EVENTS_MAX",
    "HealthEvent",
    "Phase",
    "ReportedFailure",
    "Reports",
    "RunError",
    "RunStopped",
]

ERRORS_MAX = 10_000  # records kept per run; further ones are only counted
HEALTH_EVENTS_MAX = 10_000
MESSAGE_CHARS_MAX = 2_000

# What a component may raise as its own failure. sys.exit in a component ends the invocation, not the run's process;
# an interrupt by the user is not the component's and passes through.
COMPONENT_FAILURES = (Exception, SystemExit, CancelledError)

Phase: TypeAlias = Literal["configure", "activate", "execute", "deactivate", "validate", "dry_run", "runtime"]


_LIFECYCLE = ("configure", "activate", "execute", "deactivate")  # the phases that are methods of a component


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """One failure."""

    phase: Phase
    code: str  # component_execute, component_hard_timeout, channel_overflow, …
    message: str
    component_id: str = ""
    lane: str = ""
    trace_id: str = ""
    fatal: bool = True

    def __str__(self) -> str:
        """Return one sentence that names the component and the phase, each once."""
        component_id, message = self.component_id, self.message
        if component_id and message.startswith(f"component {component_id} "):
            return message
        if component_id and self.phase in _LIFECYCLE:
            return f"component {component_id} failed to {self.phase}: {message}"
        is_named = not component_id or re.search(rf"\b{re.escape(component_id)}\b", message)
        return f"{self.phase}: {message}" if is_named else f"{self.phase}: component {component_id}: {message}"


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something was lost, late or refused, and the run continued."""

    kind: str  # channel_drop, channel_reject, backpressure, stale_drop, deadline_miss, scheduler_reject, …
    message: str
    component_id: str = ""
    channel_id: str = ""
    lane: str = ""
    epoch_id: int = 0


class ReportedFailure(Exception):
    """A failure in another process, in the words of that process: they already name the exception."""


class RunStopped(Exception):
    """Raised inside a run to leave the epoch after a fatal error; it never reaches the user."""


class Reports:
    """The errors and health events of one run; any thread may add to them."""

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.epoch_id = 0  # the current epoch, set by the run
        self.errors: deque[RunError] = deque(maxlen=ERRORS_MAX)
        self.health_events: deque[HealthEvent] = deque(maxlen=HEALTH_EVENTS_MAX)
        self.error_count = 0
        self.health_count = 0
        self.failure: RunError | None = None  # the first fatal one
        self.on_health: Callable[[HealthEvent], None] | None = None  # writes each event to the trace, if there is one
        self._lock = threading.Lock()

    def error(
        self, phase: Phase, code: str, message: str, *, component_id: str = "", lane: str = "", fatal: bool = True
    ) -> RunError:
        """Record a failure; the first fatal one ends the run."""
        record = RunError(
            phase=phase,
            code=code,
            message=message[:MESSAGE_CHARS_MAX],
            component_id=component_id,
            lane=lane,
            trace_id=self.trace_id,
            fatal=fatal,
        )
        with self._lock:
            self.errors.append(record)
            self.error_count += 1
            if fatal and self.failure is None:
                self.failure = record
        return record

    def health(self, kind: str, message: str, *, component_id: str = "", channel_id: str = "", lane: str = "") -> None:
        """Record a health event."""
        event = HealthEvent(
            kind=kind,
            message=message[:MESSAGE_CHARS_MAX],
            component_id=component_id,
            channel_id=channel_id,
            lane=lane,
            epoch_id=self.epoch_id,
        )
        with self._lock:
            self.health_events.append(event)
            self.health_count += 1
        if self.on_health is not None:
            self.on_health(event)


def error_text(problem: BaseException) -> str:
    """Return the exception's class name and message; of a failure that was described elsewhere, that description.

    An unreadable message does not fail the run.
    """
    try:
        message = problem.message if isinstance(problem, RotaError) else str(problem)
    except Exception:  # __str__ is the component's code and may raise anything
        message = "(its message could not be read)"
    if message and isinstance(problem, (ReportedFailure, GraphRunFailed)):  # a whole sentence
        return message
    return f"{type(problem).__name__}: {message}" if message else type(problem).__name__

"""What went wrong in a run, as records: errors of components, and health events of channels and lanes.

An *error* is a failure of a component or of the run itself. It is fatal when it ends the run. A *health event* says
that something was lost, late or refused although nothing failed: a full channel, a lane without room, a policy that
raised. Both lists are bounded; what no longer fits is counted.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Literal, TypeAlias

import msgspec

from rota.errors import RotaError

__all__ = ["ERRORS_MAX", "HEALTH_EVENTS_MAX", "HealthEvent", "Phase", "Reports", "RunError", "RunStopped"]

ERRORS_MAX = 10_000  # records kept of one run; more are counted
HEALTH_EVENTS_MAX = 10_000
MESSAGE_CHARS_MAX = 2_000

Phase: TypeAlias = Literal["configure", "activate", "execute", "deactivate", "validate", "dry_run", "runtime"]


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
        return f"component {self.component_id} failed: {self.message}" if self.component_id else self.message


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something was lost, late or refused, and the run went on."""

    kind: str  # channel_drop, channel_reject, backpressure, stale_drop, deadline_miss, scheduler_reject, …
    message: str
    component_id: str = ""
    channel_id: str = ""
    lane: str = ""
    epoch_id: int = 0


class RunStopped(Exception):
    """Raised inside a run to leave the epoch after a fatal error; it never reaches a user."""


class Reports:
    """The errors and health events of one run; any thread may add to them."""

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id
        self.epoch_id = 0  # the one under way, noted by the run
        self.errors: deque[RunError] = deque(maxlen=ERRORS_MAX)
        self.health_events: deque[HealthEvent] = deque(maxlen=HEALTH_EVENTS_MAX)
        self.error_count = 0
        self.health_count = 0
        self.failure: RunError | None = None  # the first fatal one
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


def words(problem: BaseException) -> str:
    """What an exception says, with its kind; one that cannot say it must not fail the run."""
    try:
        said = problem.message if isinstance(problem, RotaError) else str(problem)
    except Exception:  # __str__ is the component's code and may raise anything
        said = "(its message could not be read)"
    return f"{type(problem).__name__}: {said}" if said else type(problem).__name__

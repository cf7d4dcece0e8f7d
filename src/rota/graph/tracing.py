"""The trace of a run: compact rows are written while it runs, and expanded to events when the trace is read.

An execution is three events (begin, span, end) and two more for each edge it published on. Writing five structures for
every invocation would cost more than the invocation itself, so the run appends one row and `events` expands it. Events
are in the order of the rows, which is the order of commits: the same on every lane.

    one epoch of a → b       scheduler_iteration_begin
                             component_execute_begin, component_execute, component_execute_end           a
                             publication_staged, publication_committed                                   a's edge
                             component_execute_begin, component_execute, component_execute_end           b
                             scheduler_iteration, scheduler_iteration_end

Only the latest `rows_max` rows are kept; dropped rows are counted. Times are offsets from the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from rota.graph.messages import Origin

__all__ = [
    "LOOP_EVENTS",
    "ROWS_MAX",
    "TRACE_EVENTS",
    "TRACE_SCHEMA_VERSION",
    "ExecutionRow",
    "PlainExecutionRow",
    "RowLabel",
    "RunTrace",
    "TraceEvent",
    "TraceRecorder",
]

TRACE_SCHEMA_VERSION = "1"
ROWS_MAX = 1_000_000

SCHEDULER_EVENTS = (
    "scheduler_iteration_begin",
    "scheduler_iteration",
    "scheduler_iteration_end",
    "component_execute_begin",
    "component_execute",
    "component_execute_end",
    "component_cancellation_requested",
    "component_cancellation_observed",
    "component_timeout_budget_exceeded",
    "thread_pool_batch",
    "fixed_rate_tick_begin",
    "fixed_rate_tick",
    "fixed_rate_tick_end",
    "fixed_rate_overrun",
    "fixed_rate_skipped_tick",
    "loop_cancellation_requested",
    "loop_cancellation_observed",
)
LOOP_EVENTS = (
    "loop_iteration_begin",
    "loop_iteration",
    "loop_iteration_end",
    "loop_converged",
    "loop_budget_overrun",
    "loop_max_iterations_hit",
    "loop_quiescent",
    "loop_error",
    "loop_output_discarded",
)
TRACE_EVENTS = (
    *SCHEDULER_EVENTS,
    *LOOP_EVENTS,
    "trigger_suppressed",
    "health_event",
    "publication_staged",
    "publication_committed",
)

TracePhase: TypeAlias = Literal["begin", "span", "end", "instant"]


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a run."""

    name: str
    trace_id: str
    phase: TracePhase
    component_id: str = ""
    channel_id: str = ""
    lane: str = ""
    worker_id: int | None = None
    epoch_id: int = 0
    transaction_id: str = ""  # publications committed together: "<epoch>/<component>", or "<epoch>/boundary"
    correlation_id: str = ""
    causation_id: str = ""
    start_offset_ns: int = 0
    duration_ns: int = 0
    attributes: Mapping[str, str] = {}


class ExecutionRow(msgspec.Struct, frozen=True, gc=False):
    """A row: one execution and the messages it put on edges."""

    component_id: str
    lane: str
    worker_id: int | None
    started_at_s: float
    ended_at_s: float
    origin: Origin
    committed: tuple[tuple[str, int], ...]  # edge and number of each message that is now visible
    deferred: tuple[str, ...]  # edges whose message will be visible at the next boundary
    attributes: Mapping[str, str]


class RowLabel(msgspec.Struct, frozen=True, gc=False):
    """The fields that are equal in every short row of a component."""

    component_id: str
    lane: str
    immediate: tuple[str, ...]  # the edges of its only output
    deferred: tuple[str, ...]


class PlainExecutionRow(msgspec.Struct, frozen=True, gc=False):
    """A row: one successful execution of a plain component. `numbers` belong to the label's edges."""

    label: RowLabel
    worker_id: int | None
    started_at_s: float
    ended_at_s: float
    origin: Origin
    numbers: tuple[int, ...] | None  # None: nothing was published

    def expanded(self) -> ExecutionRow:
        """Return the same as a full row."""
        label, published = self.label, self.numbers is not None
        return ExecutionRow(
            label.component_id,
            label.lane,
            self.worker_id,
            self.started_at_s,
            self.ended_at_s,
            self.origin,
            tuple(zip(label.immediate, self.numbers or (), strict=published)),
            label.deferred if published else (),
            {},
        )


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """A row: any other event. Without a duration it is one event; with one a span, with or without begin and end."""

    name: str
    at_s: float
    epoch_id: int
    fields: Mapping[str, Any]
    duration_s: float | None = None
    ends: Literal["", "begin", "end"] = ""


Row: TypeAlias = ExecutionRow | PlainExecutionRow | EventRow


class RunTrace:
    """The rows of one run, and how to read them."""

    def __init__(self, trace_id: str, zero_s: float) -> None:
        self.trace_id = trace_id
        self.zero_s = zero_s
        self.rows: list[Row] = []
        self.rows_dropped = 0

    def events(self) -> Iterator[TraceEvent]:
        """Yield every event, in order."""
        for row in self.rows:
            if isinstance(row, EventRow):
                yield from self._unfold(row)
            else:
                yield from self._unfold_execution(row if isinstance(row, ExecutionRow) else row.expanded())

    def _unfold_execution(self, row: ExecutionRow) -> Iterator[TraceEvent]:
        origin = row.origin
        shared: dict[str, Any] = {
            "trace_id": self.trace_id,
            "component_id": row.component_id,
            "lane": row.lane,
            "worker_id": row.worker_id,
            "epoch_id": origin.epoch_id,
            "correlation_id": origin.correlation or "",
            "causation_id": origin.causation_id,
        }
        begin, duration = self._offset(row.started_at_s), self._duration(row.ended_at_s - row.started_at_s)
        name, end = "component_execute", begin + duration
        yield TraceEvent(name=f"{name}_begin", phase="begin", start_offset_ns=begin, **shared)
        attributes = row.attributes
        yield TraceEvent(
            name=name, phase="span", start_offset_ns=begin, duration_ns=duration, attributes=attributes, **shared
        )
        yield TraceEvent(name=f"{name}_end", phase="end", start_offset_ns=end, **shared)
        transaction = f"{origin.epoch_id}/{row.component_id}"
        for edge, number in row.committed:
            yield _publication("staged", edge, end, shared)
            rooted = {**shared, "correlation_id": origin.correlation or f"{edge}#{number}"}
            yield _publication("committed", edge, end, rooted, number=number, transaction_id=transaction)
        for edge in row.deferred:
            yield _publication("staged", edge, end, shared)

    def _unfold(self, row: EventRow) -> Iterator[TraceEvent]:
        shared: dict[str, Any] = {"trace_id": self.trace_id, "epoch_id": row.epoch_id, **row.fields}
        begin = self._offset(row.at_s)
        if row.duration_s is None:
            phase: TracePhase = "begin" if row.ends == "begin" else "instant"
            yield TraceEvent(name=row.name, phase=phase, start_offset_ns=begin, **shared)
            return
        duration = self._duration(row.duration_s)
        yield TraceEvent(name=row.name, phase="span", start_offset_ns=begin, duration_ns=duration, **shared)
        if row.ends == "end":
            yield TraceEvent(name=f"{row.name}_end", phase="end", start_offset_ns=begin + duration, **shared)

    def _offset(self, at_s: float) -> int:
        return self._duration(at_s - self.zero_s)

    def _duration(self, seconds: float) -> int:
        return round(seconds * 1e9)


def _publication(what: str, edge: str, at_ns: int, shared: Mapping[str, Any], **more: Any) -> TraceEvent:
    number = more.pop("number", None)
    attributes = {} if number is None else {"message_id": f"{edge}#{number}"}
    return TraceEvent(
        name=f"publication_{what}",
        phase="instant",
        channel_id=edge,
        start_offset_ns=at_ns,
        attributes=attributes,
        **shared,
        **more,
    )


class TraceRecorder:
    """Writes the rows of a trace. Several threads may write: appending to a list is atomic."""

    __slots__ = ("_rows_max", "rows", "trace")

    def __init__(self, trace_id: str, zero_s: float, rows_max: int = ROWS_MAX) -> None:
        self.trace = RunTrace(trace_id, zero_s)
        self.rows = self.trace.rows
        self._rows_max = rows_max

    def instant(self, name: str, at_s: float, epoch_id: int, **fields: Any) -> None:
        """Record an event without a duration."""
        self.rows.append(EventRow(name, at_s, epoch_id, fields))

    def begin(self, name: str, at_s: float, epoch_id: int, **fields: Any) -> None:
        """Record the beginning of a span: writes `<name>_begin`."""
        self.rows.append(EventRow(f"{name}_begin", at_s, epoch_id, fields, None, "begin"))

    def end(self, name: str, begun_at_s: float, now_s: float, epoch_id: int, **fields: Any) -> None:
        """Record the end of a span: writes the span and `<name>_end`."""
        self.rows.append(EventRow(name, begun_at_s, epoch_id, fields, now_s - begun_at_s, "end"))

    def span(self, name: str, begun_at_s: float, now_s: float, epoch_id: int, **fields: Any) -> None:
        """Record a span without begin and end events."""
        self.rows.append(EventRow(name, begun_at_s, epoch_id, fields, now_s - begun_at_s))

    def committed(self, edge: str, number: int, origin: Origin, at_s: float, epoch_id: int) -> None:
        """Record that a message became visible at the boundary before this epoch."""
        fields = {
            "channel_id": edge,
            "transaction_id": f"{epoch_id}/boundary",
            "correlation_id": origin.correlation or f"{edge}#{number}",
            "causation_id": origin.causation_id,
            "attributes": {"message_id": f"{edge}#{number}"},
        }
        self.rows.append(EventRow("publication_committed", at_s, epoch_id, fields))

    def trim(self) -> None:
        """Drop all but the latest rows."""
        excess = len(self.rows) - self._rows_max
        if excess > 0:
            del self.rows[:excess]
            self.trace.rows_dropped += excess

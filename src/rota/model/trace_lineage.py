"""Which trace an entry belongs to: that of its caller, else that of what spawned it, else its own.

    traceparent given            the caller's trace
    spawned by a run             the trace of that run's entry
    a node of a graph run        the trace of the run's coordinator
    none of these                a trace of its own

A supervisor asks it for a run that begins, a reader of the journal for a run that it shows; both must find the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rota.model.trace_context import (
    SAMPLED,
    SpanRef,
    entry_trace_id,
    graph_trace_id,
    is_sampled,
    parse_traceparent,
    span_id,
)

__all__ = [
    "GENERATIONS_MAX",
    "Trace",
    "TraceOrigin",
    "enqueue_span",
    "graph_span",
    "new_trace",
    "process_span",
    "run_span",
    "trace_of",
]

GENERATIONS_MAX = 64  # entries that are looked up between an entry and the first of its trace


class TraceOrigin(Protocol):
    """What says where an entry comes from."""

    @property
    def sched_id(self) -> int:
        """Its id."""
        ...

    @property
    def created_at(self) -> float:
        """When it was enqueued."""
        ...

    @property
    def parent_id(self) -> int | None:
        """The entry that spawned it."""
        ...

    @property
    def traceparent(self) -> str | None:
        """The span that its caller named."""
        ...


class Trace(NamedTuple):
    """A trace, and whether it is kept."""

    trace_id: str
    flags: int = SAMPLED

    def at(self, span: str) -> SpanRef:
        """Return a span of this trace."""
        return SpanRef(self.trace_id, span, self.flags)


def trace_of(
    entry: TraceOrigin,
    graph_run: str | None,
    find: Callable[[int], tuple[TraceOrigin, str | None] | None],
    coordinator: Callable[[str], int | None],
    ratio: float = 1.0,
) -> Trace:
    """Return the trace of an entry.

    `graph_run` is the run of which it is a node. `find` reads another entry and says the same of it; `coordinator`
    returns the entry that coordinates a graph run.
    """
    for _ in range(GENERATIONS_MAX):
        if entry.traceparent is not None and (caller := parse_traceparent(entry.traceparent)) is not None:
            return Trace(caller.trace_id, caller.flags)
        above = entry.parent_id
        if above is None and graph_run is not None and (above := coordinator(graph_run)) is None:
            return new_trace(graph_trace_id(graph_run), ratio)
        found = None if above is None or above == entry.sched_id else find(above)
        if found is None:
            break
        entry, graph_run = found
    return new_trace(entry_trace_id(entry.sched_id, entry.created_at), ratio)


def new_trace(trace_id: str, ratio: float) -> Trace:
    """Return a trace that begins here."""
    return Trace(trace_id, SAMPLED if is_sampled(trace_id, ratio) else 0)


# --- spans ---------------------------------------------------------------------------------------


def enqueue_span(entry: TraceOrigin) -> str:
    """Return the span of putting an entry into the queue."""
    return span_id("enqueue", entry.sched_id, entry.created_at)


def process_span(sched_id: int, token: int | None) -> str:
    """Return the span from the claim of an entry to its end."""
    return span_id("process", sched_id, token)


def run_span(sched_id: int, token: int | None) -> str:
    """Return the span in which an agent runs: the parent of what the agent itself records."""
    return span_id("run", sched_id, token)


def graph_span(run_id: str, started_at: float) -> str:
    """Return the span of a graph run."""
    return span_id("graph", run_id, started_at)

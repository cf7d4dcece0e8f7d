"""Which trace an entry belongs to and which span caused it, for a reader of the journal.

`rota.model.trace_lineage` has the rule; here is what a reader needs for it: rows of parents and graph runs, and the
last claims of each entry, because a child is below the run that was in progress when the child was enqueued.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from rota.kernel.traced_entries import TracedEntry
from rota.model.trace_context import graph_trace_id, parse_traceparent
from rota.model.trace_lineage import Trace, enqueue_span, graph_span, new_trace, process_span, run_span, trace_of
from rota.telemetry.trace_source import TraceSource

__all__ = ["Recent", "SpanLineage"]

REMEMBERED_MAX = 20_000  # entries whose trace and last claims are kept for their children
CLAIMS_MAX = 8  # of one entry
K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """The last `REMEMBERED_MAX` items."""

    def keep(self, key: K, value: V) -> V:
        """Add an item as the newest one."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > REMEMBERED_MAX:
            self.popitem(last=False)
        return value


class SpanLineage:
    """Finds traces and causes. `find` reads an entry, if it still exists."""

    def __init__(self, source: TraceSource, find: Callable[[int], TracedEntry | None], ratio: float) -> None:
        self._source = source
        self._find = find
        self._ratio = ratio  # of the traces that begin here, those that are sampled
        self._traces: Recent[int, Trace] = Recent()  # by entry
        self._claims: Recent[int, list[tuple[float, str]]] = Recent()  # by entry: when, and the span of the run

    def remember(self, sched_id: int, claimed_at: float, span: str) -> None:
        """Keep the span of a run, for what it spawns."""
        self._claims.keep(sched_id, [*self._claims.get(sched_id, [])[1 - CLAIMS_MAX :], (claimed_at, span)])

    def trace(self, entry: TracedEntry) -> Trace:
        """Return the trace of an entry."""
        known = self._traces.get(entry.sched_id)
        if known is not None:
            return known
        found = trace_of(entry, _run_of(entry), self._origin, self._coordinator, self._ratio)
        return self._traces.keep(entry.sched_id, found)

    def graph_trace(self, run_id: str) -> Trace:
        """Return the trace of a graph run that no entry coordinates."""
        return new_trace(graph_trace_id(run_id), self._ratio)

    def cause(self, entry: TracedEntry) -> tuple[str | None, bool]:
        """Return the span that caused an entry, and whether it is the caller's own."""
        if entry.traceparent is not None and (caller := parse_traceparent(entry.traceparent)) is not None:
            return caller.span_id, True
        if entry.parent_id is not None:
            return self._run_at(entry.parent_id, entry.created_at), False
        if (run_id := _run_of(entry)) is not None:
            run = self._source.runs([run_id]).get(run_id)
            return (None if run is None else graph_span(run.run_id, run.started_at)), False
        return None, False

    def _origin(self, sched_id: int) -> tuple[TracedEntry, str | None] | None:
        found = self._find(sched_id)
        return None if found is None else (found, _run_of(found))

    def _coordinator(self, run_id: str) -> int | None:
        run = self._source.runs([run_id]).get(run_id)
        return None if run is None else run.sched_id

    def _run_at(self, sched_id: int, at: float) -> str | None:
        """Return the span of the run of an entry that was in progress at an instant, else that of its enqueue."""
        for claimed_at, span in reversed(self._claims.get(sched_id, [])):
            if claimed_at <= at:
                return span
        entry = self._find(sched_id)
        if entry is None:
            return None
        if entry.token is not None and entry.dispatched_at is not None and entry.dispatched_at <= at:
            return (process_span if entry.incarnation == "" else run_span)(sched_id, entry.token)
        return enqueue_span(entry)


def _run_of(entry: TracedEntry) -> str | None:
    """Return the graph run of which an entry is a node."""
    node = entry.graph_node
    return None if node is None else node[0]

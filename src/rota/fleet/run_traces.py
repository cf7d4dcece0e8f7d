"""The span in which a run takes place, for the run itself: TRACEPARENT in a program, `ctx.traceparent` in a function.

With telemetry on (ROTA_OTEL), it is the span that the reader of the journal will make of this run; its id is computed,
nothing is written. With telemetry off no reader makes that span, so a run gets what its caller passed, if anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from rota.errors import RotaError
from rota.kernel.traced_entries import traced
from rota.model.trace_context import sampling_ratio, telemetry_is_on
from rota.model.trace_lineage import TraceOrigin, run_span, trace_of
from rota.model.work import ReadyEntry
from rota.service.api import SchedulerApi

__all__ = ["RunTraces"]

RUNS_MAX = 1_000  # graph runs whose coordinators are kept


class RunTraces:
    """Tells the runs of one supervisor their spans."""

    def __init__(self, api: SchedulerApi, environ: Mapping[str, str]) -> None:
        self._api = api
        self._is_on = telemetry_is_on(environ)
        self._ratio = sampling_ratio(environ)
        self._coordinators: dict[str, int | None] = {}

    def variables(self, entry: ReadyEntry) -> dict[str, str]:
        """Return TRACEPARENT and TRACESTATE for a run; empty if it belongs to no trace."""
        traceparent = self._of_run(entry) if self._is_on else entry.traceparent
        if traceparent is None:
            return {}
        state = {} if entry.tracestate is None else {"TRACESTATE": entry.tracestate}
        return {"TRACEPARENT": traceparent, **state}

    def _of_run(self, entry: ReadyEntry) -> str:
        trace = trace_of(entry, _graph_run(entry), self._find, self._coordinator, self._ratio)
        return trace.at(run_span(entry.sched_id, entry.token)).traceparent

    def _find(self, sched_id: int) -> tuple[TraceOrigin, str | None] | None:
        with suppress(RotaError):  # it was pruned, or another project's
            entry = self._api.queue.get(sched_id)
            return entry, _graph_run(entry)
        return None

    def _coordinator(self, run_id: str) -> int | None:
        if run_id not in self._coordinators:
            if len(self._coordinators) >= RUNS_MAX:
                self._coordinators.clear()
            self._coordinators[run_id] = None
            with suppress(RotaError):
                self._coordinators[run_id] = self._api.graphs.get(run_id).sched_id
        return self._coordinators[run_id]


def _graph_run(entry: ReadyEntry) -> str | None:
    node = traced(entry, "").graph_node
    return None if node is None else node[0]

"""Spans from the journal: a fold over its events, page by page.

The fold keeps the runs in progress and makes a span when something has ended. What events do not say, whose an entry is
and what caused it, is read from the tables once per page, for all entries that the page names. An entry that was
pruned has no name and no cause any more; its runs are shown as far as the events go.

A reader that begins in the middle of the journal has not seen the claims of the runs in progress: `begin_with` tells it
those that run now, and the row of an entry that ended in between still has its last claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rota.errors import StoreCorrupt
from rota.kernel.traced_entries import TracedEntry
from rota.model import events as kinds
from rota.model.event_codec import decode
from rota.model.events import Event, EventData
from rota.model.trace_context import SAMPLED, SpanRef, span_id
from rota.model.trace_lineage import enqueue_span, graph_span, process_span, run_span
from rota.telemetry.span_lineage import Recent, SpanLineage
from rota.telemetry.span_records import (
    NOTES_MAX,
    SpanAttributes,
    SpanNote,
    SpanRecord,
    agent_attributes,
    message_attributes,
    nanoseconds,
    usage_attributes,
)
from rota.telemetry.trace_source import TraceSource

__all__ = ["SpanFold"]

RUNS_MAX = 100_000  # runs in progress that are kept; later ones have no spans
_RETURNED = {"retry": "retried", "reclaim": "claim expired", "preempt": "preempted", "yield": "yielded"}
_SUCCEEDED = frozenset(("completed", "cancelled"))


class _Claimed(msgspec.Struct):
    """A run in progress."""

    entry: TracedEntry
    token: int | None
    attempt: int
    claimed_at: float
    worker_id: str
    is_supervised: bool  # a supervisor reports the end of the run; workers of others claim and complete only
    started: kinds.RunStarted | None = None
    started_at: float | None = None
    slot: str | None = None
    invoked: bool = False  # its `invoke_agent` span was made
    model: str | None = None
    used: dict[str, int] = {}
    notes: list[SpanNote] = []


class SpanFold:
    """Makes spans of events. Pages must be given in the order of the journal."""

    def __init__(self, source: TraceSource, *, ratio: float = 1.0) -> None:
        self._source = source
        self._claimed: dict[int, _Claimed] = {}
        self._graphs: dict[str, float] = {}  # graph runs in progress: when they started
        self._lineage = SpanLineage(source, self._find, ratio)
        self._announced: Recent[int, bool] = Recent()  # entries whose `enqueue` span was made
        self._found: dict[int, TracedEntry] = {}  # the entries of this page
        self._runs_of_events: dict[tuple[int, int], _Claimed] = {}  # of this page: the runs by event and entry
        self.unmatched = 0  # ends of runs whose claim is not known
        self._folds: Mapping[str, Callable[[Any, Event], Iterable[SpanRecord]]] = {
            kinds.EntriesClaimed.kind: self._on_claimed,
            kinds.EntriesCompleted.kind: self._on_completed,
            kinds.EntriesReturned.kind: self._on_returned,
            kinds.EntriesExpired.kind: self._on_expired,
            kinds.EntriesCancelled.kind: self._on_cancelled,
            kinds.RunStarted.kind: self._on_started,
            kinds.RunEnded.kind: self._on_ended,
            kinds.LedgerCharged.kind: self._on_charged,
            kinds.RunProgressed.kind: self._on_note,
            kinds.RunCheckpointed.kind: self._on_note,
            kinds.RunOverBudget.kind: self._on_note,
            kinds.LimitAwaited.kind: self._on_note,
            kinds.LimitAcquired.kind: self._on_note,
            kinds.CoresGranted.kind: self._on_note,
            kinds.GraphRunStarted.kind: self._on_graph_started,
            kinds.GraphRunTaken.kind: self._on_graph_started,
            kinds.GraphRunEnded.kind: self._on_graph_ended,
        }

    def begin_with(self, live: Iterable[TracedEntry]) -> None:
        """Take over the runs in progress, whose claims this fold will not see."""
        for entry in live:
            if entry.dispatched_at is not None and len(self._claimed) < RUNS_MAX:
                self._claimed.setdefault(entry.sched_id, _claim_of(entry))

    def fold(self, page: Sequence[Event]) -> Iterator[SpanRecord]:
        """Yield the spans that end with the events of a page, of those traces that are sampled."""
        decoded = [(event, data) for event in page if (data := self._decoded(event)) is not None]
        self._found = self._source.entries(self._unknown(data for _, data in decoded))
        self._runs_of_events.clear()
        for event, data in decoded:
            for span in self._folds[event.kind](data, event):
                if span.ref.flags & SAMPLED:
                    yield span
        self._found = {}

    def open(self, at: float) -> Iterator[SpanRecord]:
        """Yield the runs and graph runs that go on, up to an instant: for the end of an exported stretch."""
        for run in list(self._claimed.values()):
            if run.is_supervised and not run.invoked:
                since = run.claimed_at if run.started_at is None else run.started_at
                yield msgspec.structs.replace(self._invocation(run, since, at, {}, None), is_open=True)
            yield msgspec.structs.replace(self._process(run, at, {}, None), is_open=True)
        for run_id in list(self._graphs):
            for span in self._graph(run_id, "", at, None, {}):
                yield msgspec.structs.replace(span, is_open=True)

    def span_of(self, event_id: int, sched_id: int) -> SpanRef | None:
        """Return the span of the run that an event of the last page is about; None if it is about no run."""
        run = self._runs_of_events.get((event_id, sched_id))
        return None if run is None else self._lineage.trace(run.entry).at(_innermost(run))

    def _decoded(self, event: Event) -> EventData | None:
        """Return the data of an event that spans are made of; None for others, and for one that cannot be read."""
        try:
            return decode(event.kind, event.payload) if event.kind in self._folds else None
        except StoreCorrupt:
            return None

    def _unknown(self, page: Iterable[EventData]) -> set[int]:
        """Return the entries of a page that have to be read."""
        wanted: set[int] = set()
        for data in page:
            if isinstance(data, kinds.EntriesClaimed | kinds.EntriesCompleted):
                wanted.update(each.sched_id for each in data.entries)
            elif isinstance(data, kinds.EntriesExpired | kinds.EntriesCancelled):
                wanted.update(data.sched_ids)
        return wanted - self._claimed.keys()

    # --- entries ---------------------------------------------------------------------------------

    def _on_claimed(self, data: kinds.EntriesClaimed, event: Event) -> Iterator[SpanRecord]:
        for each in data.entries:
            waited_s = (each.waited_ms or 0) / 1000
            entry = self._entry(each.sched_id, each.pid, event.ts - waited_s)
            run = _Claimed(
                entry,
                event.event_id,
                each.attempt,
                event.ts,
                data.worker_id,
                data.incarnation != "",
                used={},
                notes=[],
            )
            if len(self._claimed) < RUNS_MAX:
                self._claimed[each.sched_id] = run
            self._lineage.remember(each.sched_id, event.ts, _innermost(run))
            self._runs_of_events[event.event_id, each.sched_id] = run
            since = event.ts - waited_s if each.waited_ms is not None else entry.created_at
            yield from self._enqueued(entry)
            more: SpanAttributes = {"rota.attempt": each.attempt, "rota.policy": data.policy}
            yield self._wait(entry, event.event_id, (since, event.ts), None, more)

    def _on_completed(self, data: kinds.EntriesCompleted, event: Event) -> Iterator[SpanRecord]:
        for each in data.entries:
            run = self._take(each.sched_id, event)
            if run is None:
                continue
            why = each.outcome or each.exit_kind
            error = None if each.exit_kind in _SUCCEEDED else why
            more: SpanAttributes = {"rota.exit_kind": each.exit_kind}
            if each.outcome is not None:
                more["rota.outcome"] = each.outcome
            yield from self._ended(run, event.ts, more, error)

    def _on_returned(self, data: kinds.EntriesReturned, event: Event) -> Iterator[SpanRecord]:
        for sched_id in data.sched_ids:
            run = self._take(sched_id, event)
            if run is not None:
                how = _RETURNED[data.verb]
                more: SpanAttributes = {"rota.returned": data.verb}
                if data.reason is not None:
                    more["rota.reason"] = data.reason
                yield from self._ended(run, event.ts, more, how if data.verb in ("retry", "reclaim") else None)

    def _on_expired(self, data: kinds.EntriesExpired, event: Event) -> Iterator[SpanRecord]:
        yield from self._left_queue(data.sched_ids, event.ts, "expired")

    def _on_cancelled(self, data: kinds.EntriesCancelled, event: Event) -> Iterator[SpanRecord]:
        yield from self._left_queue(data.sched_ids, event.ts, "cancelled")

    def _left_queue(self, sched_ids: Iterable[int], at: float, how: str) -> Iterator[SpanRecord]:
        for sched_id in sched_ids:
            entry = self._found.get(sched_id)
            if entry is not None:
                yield from self._enqueued(entry)
                error = None if how == "cancelled" else how
                yield self._wait(entry, None, (entry.created_at, at), error, {"rota.exit_kind": how})

    # --- runs ------------------------------------------------------------------------------------

    def _on_started(self, data: kinds.RunStarted, event: Event) -> Iterable[SpanRecord]:
        run = self._running(data.sched_id, event)
        if run is not None:
            run.started, run.started_at, run.slot = data, event.ts, data.slot
        return ()

    def _on_ended(self, data: kinds.RunEnded, event: Event) -> Iterable[SpanRecord]:
        run = self._running(data.sched_id, event)
        if run is None:
            return ()
        since = run.started_at if run.started_at is not None else event.ts - data.wall_ms / 1000
        error = None if data.exit_kind in _SUCCEEDED else data.outcome or data.exit_kind
        more: SpanAttributes = {"rota.exit_kind": data.exit_kind, "rota.cpu_ms": data.cpu_ms}
        if data.stopped_by is not None:
            more["rota.stopped_by"] = data.stopped_by
        if data.failure is not None and data.failure.error is not None:
            more["rota.error"] = data.failure.error
        run.started_at, run.slot, run.invoked = since, run.slot or data.slot, True
        return (self._invocation(run, since, event.ts, more, error),)

    def _on_charged(self, data: kinds.LedgerCharged, _event: Event) -> Iterable[SpanRecord]:
        run = self._claimed.get(data.sched_id) if data.sched_id is not None else None
        if run is not None:
            run.model = data.model or run.model
            for dim, amount in data.amounts.items():
                run.used[dim] = run.used.get(dim, 0) + amount
        return ()

    def _on_note(self, data: Any, event: Event) -> Iterable[SpanRecord]:
        run = self._running(data.sched_id, event)
        if run is not None and len(run.notes) < NOTES_MAX:
            said = msgspec.to_builtins(data)
            plain = {f"rota.{name}": value for name, value in said.items() if isinstance(value, str | int | float)}
            run.notes.append(SpanNote(event.kind.removeprefix("kernel."), nanoseconds(event.ts), plain))
        return ()

    # --- graph runs ------------------------------------------------------------------------------

    def _on_graph_started(
        self, data: kinds.GraphRunStarted | kinds.GraphRunTaken, event: Event
    ) -> Iterable[SpanRecord]:
        self._graphs.setdefault(data.run_id, event.ts)
        return ()

    def _on_graph_ended(self, data: kinds.GraphRunEnded, event: Event) -> Iterable[SpanRecord]:
        error = None if data.status != "failed" else data.error or data.status
        yield from self._graph(data.run_id, data.graph, event.ts, error, {"rota.graph.status": data.status})
        self._graphs.pop(data.run_id, None)

    def _graph(
        self, run_id: str, graph: str, at: float, error: str | None, more: SpanAttributes
    ) -> Iterator[SpanRecord]:
        run = self._source.runs([run_id]).get(run_id)
        if run is None:
            return
        coordinator = None if run.sched_id is None else self._find(run.sched_id)
        trace = self._lineage.graph_trace(run_id) if coordinator is None else self._lineage.trace(coordinator)
        name = graph or run.graph
        yield SpanRecord(
            ref=trace.at(graph_span(run_id, run.started_at)),
            parent=None if coordinator is None else enqueue_span(coordinator),
            name=f"invoke_workflow {name}",
            start_ns=nanoseconds(run.started_at),
            end_ns=nanoseconds(at),
            attributes={
                "gen_ai.operation.name": "invoke_workflow",
                "gen_ai.workflow.name": name,
                "gen_ai.conversation.id": run_id,
                "rota.graph.run": run_id,
                **more,
                **({} if error is None else {"error.type": "failed"}),
            },
            error=error,
        )

    # --- spans -----------------------------------------------------------------------------------

    def _enqueued(self, entry: TracedEntry) -> Iterator[SpanRecord]:
        """Yield the span of the enqueue, once."""
        if entry.sched_id in self._announced:
            return
        self._announced.keep(entry.sched_id, value=True)
        parent, is_remote = self._lineage.cause(entry)
        at = nanoseconds(entry.created_at)
        yield SpanRecord(
            ref=self._lineage.trace(entry).at(enqueue_span(entry)),
            parent=parent,
            parent_is_remote=is_remote,
            name=f"enqueue {entry.agent}",
            kind="producer",
            start_ns=at,
            end_ns=at,
            attributes=message_attributes(entry, "enqueue", "send"),
            tracestate=entry.tracestate,
        )

    def _wait(
        self,
        entry: TracedEntry,
        token: int | None,
        between: tuple[float, float],
        error: str | None,
        more: SpanAttributes,
    ) -> SpanRecord:
        return SpanRecord(
            ref=self._lineage.trace(entry).at(span_id("wait", entry.sched_id, token)),
            parent=enqueue_span(entry),
            name=f"wait {entry.agent}",
            start_ns=nanoseconds(between[0]),
            end_ns=nanoseconds(max(between)),
            attributes={**message_attributes(entry, "wait", None), **more, **_error_type(error)},
            error=error,
            tracestate=entry.tracestate,
        )

    def _ended(self, run: _Claimed, at: float, more: SpanAttributes, error: str | None) -> Iterator[SpanRecord]:
        if run.is_supervised and not run.invoked:  # the supervisor was lost, or had not started it yet
            since = run.claimed_at if run.started_at is None else run.started_at
            yield self._invocation(run, since, at, more, error)
        yield self._process(run, at, more, error)

    def _process(self, run: _Claimed, at: float, more: SpanAttributes, error: str | None) -> SpanRecord:
        entry, trace = run.entry, self._lineage.trace(run.entry)
        caused_by = trace.at(enqueue_span(entry))
        return SpanRecord(
            ref=trace.at(process_span(entry.sched_id, run.token)),
            parent=caused_by.span_id,
            name=f"process {entry.agent}",
            kind="consumer",
            start_ns=nanoseconds(run.claimed_at),
            end_ns=nanoseconds(max(at, run.claimed_at)),
            attributes={
                **message_attributes(entry, "process", "process"),
                "messaging.client.id": run.worker_id,
                "rota.attempt": run.attempt,
                **_slot(run),
                **more,
                **_error_type(error),
            },
            notes=() if run.is_supervised else tuple(run.notes),
            links=(caused_by,),
            error=error,
            tracestate=entry.tracestate,
        )

    def _invocation(
        self, run: _Claimed, since: float, at: float, more: SpanAttributes, error: str | None
    ) -> SpanRecord:
        entry, started = run.entry, run.started
        return SpanRecord(
            ref=self._lineage.trace(entry).at(run_span(entry.sched_id, run.token)),
            parent=process_span(entry.sched_id, run.token),
            name=f"invoke_agent {entry.agent}",
            start_ns=nanoseconds(since),
            end_ns=nanoseconds(max(since, at)),
            attributes={
                **agent_attributes(entry),
                **({"rota.runner": started.runner} if started is not None else {}),
                **_slot(run),
                **({"process.pid": started.os_pid} if started is not None and started.os_pid is not None else {}),
                "rota.attempt": run.attempt,
                **usage_attributes(run.used, run.model),
                **more,
                **_error_type(error),
            },
            notes=tuple(run.notes),
            error=error,
            tracestate=entry.tracestate,
        )

    # --- what belongs together -------------------------------------------------------------------

    def _entry(self, sched_id: int, pid: int, created_at: float) -> TracedEntry:
        """Return an entry of the page; one that was pruned has only its ids."""
        known = self._found.get(sched_id) or (self._claimed[sched_id].entry if sched_id in self._claimed else None)
        return known or TracedEntry(sched_id=sched_id, pid=pid, agent=f"agent {pid}", created_at=created_at)

    def _take(self, sched_id: int, event: Event) -> _Claimed | None:
        """Remove a run that has ended; if its claim was not seen, its row may still have it."""
        run = self._claimed.pop(sched_id, None)
        if run is None:
            entry = self._found.get(sched_id)
            if entry is None or entry.dispatched_at is None or entry.token is None:
                self.unmatched += 1
                return None
            run = _claim_of(entry)
        self._found.setdefault(sched_id, run.entry)  # it may be claimed again in this page
        self._runs_of_events[event.event_id, sched_id] = run
        return run

    def _running(self, sched_id: int, event: Event) -> _Claimed | None:
        """Return the run in progress that an event is about."""
        run = self._claimed.get(sched_id)
        if run is not None:
            self._runs_of_events[event.event_id, sched_id] = run
        return run

    def _find(self, sched_id: int) -> TracedEntry | None:
        if sched_id in self._claimed:
            return self._claimed[sched_id].entry
        if sched_id not in self._found:
            self._found |= self._source.entries([sched_id])
        return self._found.get(sched_id)


def _innermost(run: _Claimed) -> str:
    """Return the span in which the agent runs; without a supervisor, that of the claim."""
    make = run_span if run.is_supervised else process_span
    return make(run.entry.sched_id, run.token)


def _claim_of(entry: TracedEntry) -> _Claimed:
    """Return the run of an entry, as its row has it. Its runner's start was not seen: its end will tell."""
    return _Claimed(
        entry,
        entry.token,
        entry.attempt,
        entry.dispatched_at or entry.created_at,
        entry.worker_id or "",
        entry.incarnation != "",
        used={},
        notes=[],
    )


def _error_type(error: str | None) -> SpanAttributes:
    return {} if error is None else {"error.type": error.replace(" ", "_")}


def _slot(run: _Claimed) -> SpanAttributes:
    return {} if run.slot is None else {"rota.slot": run.slot}

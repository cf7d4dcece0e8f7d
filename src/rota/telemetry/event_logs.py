"""Log records from the journal: the sentences of `rota tail`, with the facts that a search needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rota.model.events import Event
from rota.model.trace_context import SpanRef
from rota.observe import EventText, FleetState, TextTone
from rota.telemetry.span_records import SpanAttributes, nanoseconds

__all__ = ["EventLog", "event_logs", "with_spans"]


class EventLog(msgspec.Struct, frozen=True, kw_only=True):
    """One log record."""

    at_ns: int
    tone: TextTone
    kind: str
    text: str
    attributes: SpanAttributes
    event_id: int
    sched_id: int | None = None
    span: SpanRef | None = None  # of the run that it is about


def event_logs(page: Sequence[Event], state: FleetState) -> list[EventLog]:
    """Return the records of a page; what happens by the thousand has the tone `detail` and is left out."""
    return [_log(event, text, state) for event in page for text in state.fold(event) if text.tone != "detail"]


def with_spans(logs: Sequence[EventLog], find: Callable[[int, int], SpanRef | None]) -> list[EventLog]:
    """Add to the records about runs the spans of the runs; `find` knows them by event and entry."""
    return [
        log if log.sched_id is None else msgspec.structs.replace(log, span=find(log.event_id, log.sched_id))
        for log in logs
    ]


def _log(event: Event, text: EventText, state: FleetState) -> EventLog:
    attributes: SpanAttributes = {"rota.event.id": event.event_id}
    if text.pid is not None:
        attributes["gen_ai.agent.name"] = state.agent(text.pid)
        if (project_id := state.project_of(text.pid)) is not None:
            attributes["rota.project"] = project_id
    if text.sched_id is not None:
        attributes["rota.entry"] = text.sched_id
    if event.author:
        attributes["rota.author"] = event.author
    return EventLog(
        at_ns=nanoseconds(text.at),
        tone=text.tone,
        kind=event.kind,
        text=text.text,
        attributes=attributes,
        event_id=event.event_id,
        sched_id=text.sched_id,
    )

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
    sched_id: int | None = None
    span: SpanRef | None = None  # of the run that it is about


def event_logs(page: Sequence[Event], state: FleetState) -> list[EventLog]:
    """Return the records of a page; what happens by the thousand has the tone `detail` and is left out."""
    return [_log(event, text, state) for event in page for text in state.fold(event) if text.tone != "detail"]


def with_spans(logs: Sequence[EventLog], find: Callable[[int], SpanRef | None]) -> list[EventLog]:
    """Add to the records of runs in progress the spans of the runs."""
    return [
        msgspec.structs.replace(log, span=find(log.sched_id)) if log.span is None and log.sched_id is not None else log
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
        sched_id=text.sched_id,
    )

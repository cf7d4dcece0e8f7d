"""Spans in OTLP's JSON encoding, as collectors read it from files: one export request per line.

Ids are hexadecimal, enumerations are numbers, 64-bit integers are text: the deviations from protobuf's own JSON that
the OTLP specification names. The ids are those that `rota otel` sends, so that both may be loaded into one database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from rota.telemetry.span_records import SpanAttributes, SpanRecord

__all__ = ["SPANS_PER_LINE", "spans_to_otlp"]

SPANS_PER_LINE = 1_000
_KINDS = {"internal": 1, "producer": 4, "consumer": 5}
_ERROR = 2  # Status.StatusCode
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200  # SpanFlags


def spans_to_otlp(spans: Iterable[SpanRecord], resource: Mapping[str, str], version: str) -> Iterator[dict[str, Any]]:
    """Yield export requests to write as lines of JSON."""
    left = iter(spans)
    while batch := list(islice(left, SPANS_PER_LINE)):
        scope = {"scope": {"name": "rota", "version": version}, "spans": [_span(span) for span in batch]}
        yield {"resourceSpans": [{"resource": {"attributes": _attributes(dict(resource))}, "scopeSpans": [scope]}]}


def _span(span: SpanRecord) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": span.ref.trace_id,
        "spanId": span.ref.span_id,
        "flags": span.ref.flags | _HAS_IS_REMOTE | (_IS_REMOTE if span.parent_is_remote else 0),
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "status": {} if span.error is None else {"code": _ERROR, "message": span.error},
    }
    if span.parent is not None:
        found["parentSpanId"] = span.parent
    if span.tracestate is not None:
        found["traceState"] = span.tracestate
    if span.notes:
        found["events"] = [
            {"timeUnixNano": str(note.at_ns), "name": note.name, "attributes": _attributes(note.attributes)}
            for note in span.notes
        ]
    if span.links:
        found["links"] = [
            {"traceId": link.trace_id, "spanId": link.span_id, "flags": link.flags} for link in span.links
        ]
    return found


def _attributes(given: Mapping[str, Any] | SpanAttributes) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}

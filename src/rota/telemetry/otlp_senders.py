"""Spans, metrics and logs as objects of the OpenTelemetry SDK, sent by its OTLP exporters (protobuf over HTTP).

Where to send, with which headers, certificates, compression and timeout is read by the exporters themselves from the
standard variables: OTEL_EXPORTER_OTLP_ENDPOINT and its relatives. `OTEL_TRACES_EXPORTER=none` switches off one signal,
likewise for METRICS and LOGS. This module needs the extra `otel`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace.status import Status, StatusCode

from rota.model.trace_context import SpanRef
from rota.store import without_password
from rota.telemetry.event_logs import EventLog
from rota.telemetry.span_records import SpanRecord

__all__ = ["OtlpSenders"]

SPANS_MAX = 2_000  # of one request
LOGS_MAX = 2_000
_KINDS = {"internal": SpanKind.INTERNAL, "producer": SpanKind.PRODUCER, "consumer": SpanKind.CONSUMER}
_SEVERITIES = {
    "quiet": (SeverityNumber.INFO, "INFO"),
    "plain": (SeverityNumber.INFO, "INFO"),
    "good": (SeverityNumber.INFO, "INFO"),
    "warn": (SeverityNumber.WARN, "WARN"),
    "bad": (SeverityNumber.ERROR, "ERROR"),
    "detail": (SeverityNumber.DEBUG, "DEBUG"),
}
_OK, _FAILED = Status(StatusCode.UNSET), StatusCode.ERROR
_log = logging.getLogger("rota.telemetry")


class OtlpSenders:
    """Sends what a reader of the journal has made. Every method returns whether the collector has taken all of it."""

    def __init__(self, store: str, environ: Mapping[str, str]) -> None:
        own = {"service.version": version("rota"), "rota.store": without_password(store)}
        if "OTEL_SERVICE_NAME" not in environ and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            own["service.name"] = "rota"
        self._resource = Resource.create(own)
        self._scope = InstrumentationScope("rota", version("rota"))
        self._spans = None if _is_off(environ, "TRACES") else OTLPSpanExporter()
        self._metrics = None if _is_off(environ, "METRICS") else OTLPMetricExporter()
        self._logs = None if _is_off(environ, "LOGS") else OTLPLogExporter()

    @property
    def sends_metrics(self) -> bool:
        """Whether metrics are asked for."""
        return self._metrics is not None

    @property
    def sends_logs(self) -> bool:
        """Whether logs are asked for."""
        return self._logs is not None

    @property
    def sends_spans(self) -> bool:
        """Whether spans are asked for."""
        return self._spans is not None

    def send_spans(self, spans: Sequence[SpanRecord]) -> bool:
        """Send spans, in requests of limited size."""
        return self._spans is None or all(
            self._spans.export([self._span(each) for each in batch]).name == "SUCCESS"
            for batch in _batches(spans, SPANS_MAX)
        )

    def send_logs(self, logs: Sequence[EventLog]) -> bool:
        """Send logs, in requests of limited size."""
        return self._logs is None or all(
            self._logs.export([self._record(each) for each in batch]).name == "SUCCESS"
            for batch in _batches(logs, LOGS_MAX)
        )

    def send_metrics(self, metrics: Sequence[Metric]) -> bool:
        """Send the values of all metrics."""
        if self._metrics is None:
            return True
        scope = ScopeMetrics(self._scope, metrics, "")
        return self._metrics.export(MetricsData([ResourceMetrics(self._resource, [scope], "")])).name == "SUCCESS"

    def close(self) -> None:
        """Close the connections."""
        for each in (self._spans, self._metrics, self._logs):
            if each is not None:
                each.shutdown()

    def _span(self, span: SpanRecord) -> ReadableSpan:
        state = None if span.tracestate is None else TraceState.from_header([span.tracestate])
        context = _context(span.ref, state)
        parent = None
        if span.parent is not None:
            parent = _context(SpanRef(span.ref.trace_id, span.parent, span.ref.flags), state, span.parent_is_remote)
        return ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(note.name, note.attributes, note.at_ns) for note in span.notes],
            links=[Link(_context(each)) for each in span.links],
            kind=_KINDS[span.kind],
            status=_OK if span.error is None else Status(_FAILED, span.error),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def _record(self, log: EventLog) -> ReadableLogRecord:
        number, text = _SEVERITIES[log.tone]
        record = LogRecord(
            timestamp=log.at_ns,
            observed_timestamp=log.at_ns,
            context=None if log.span is None else set_span_in_context(NonRecordingSpan(_context(log.span))),
            severity_number=number,
            severity_text=text,
            body=log.text,
            attributes=log.attributes,
            event_name=log.kind,
        )
        return ReadableLogRecord(record, self._resource, self._scope)


def _context(ref: SpanRef, state: TraceState | None = None, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(ref.trace_id, 16), int(ref.span_id, 16), is_remote, TraceFlags(ref.flags), state)


def _is_off(environ: Mapping[str, str], signal: str) -> bool:
    return environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none"


def _batches(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))

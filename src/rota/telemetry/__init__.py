"""Telemetry: the journal as traces, for OpenTelemetry and for viewers; nothing here writes to the queue.

`make_timeline` and `read_spans` fold a stretch of the journal; `timeline_to_chrome`, `timeline_to_perfetto` and
`spans_to_otlp` write it down. `Exporter` follows the journal and sends spans, metrics and logs to an OpenTelemetry
collector; it needs the extra `otel`, which is loaded when an exporter is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.telemetry.chrome_format import timeline_to_chrome
    from rota.telemetry.exporter import Exporter, ExportReport
    from rota.telemetry.exporter_process import (
        ExporterProcess,
        check_installed,
        hold_exporter_lock,
        lower_priority,
        mark_start,
    )
    from rota.telemetry.otlp_json import spans_to_otlp
    from rota.telemetry.perfetto_format import timeline_to_perfetto
    from rota.telemetry.timeline import EVENTS_MAX, make_timeline, read_spans
    from rota.telemetry.trace_source import ApiSource, StoreSource, TraceSource

__all__ = [
    "EVENTS_MAX",
    "ApiSource",
    "ExportReport",
    "Exporter",
    "ExporterProcess",
    "StoreSource",
    "TraceSource",
    "check_installed",
    "hold_exporter_lock",
    "lower_priority",
    "make_timeline",
    "mark_start",
    "read_spans",
    "spans_to_otlp",
    "timeline_to_chrome",
    "timeline_to_perfetto",
]

__getattr__ = exports(
    __name__,
    {
        "chrome_format": ("timeline_to_chrome",),
        "exporter": ("ExportReport", "Exporter"),
        "exporter_process": (
            "ExporterProcess",
            "check_installed",
            "hold_exporter_lock",
            "lower_priority",
            "mark_start",
        ),
        "otlp_json": ("spans_to_otlp",),
        "perfetto_format": ("timeline_to_perfetto",),
        "timeline": ("EVENTS_MAX", "make_timeline", "read_spans"),
        "trace_source": ("ApiSource", "StoreSource", "TraceSource"),
    },
)

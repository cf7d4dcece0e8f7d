"""The trace in which this program enqueues something: its current OpenTelemetry span, else its environment's.

OpenTelemetry is asked only if the program has loaded it: nothing is imported here, and a program that does not trace
pays for one look-up in a dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rota.model.trace_context import TRACESTATE_CHARS_MAX, SpanRef, parse_traceparent

__all__ = ["caller_trace", "current_span"]


def caller_trace(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the fields `traceparent` and `tracestate` of a new entry; empty if the program is not traced.

    Without a current span, the variables TRACEPARENT and TRACESTATE count, which rota and others set for programs.
    """
    return current_span() or _fields(environ.get("TRACEPARENT", ""), environ.get("TRACESTATE", ""))


def current_span() -> dict[str, str]:
    """Return the same for the current span of OpenTelemetry only."""
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is None:
        return {}
    context = tracing.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    ref = SpanRef(f"{context.trace_id:032x}", f"{context.span_id:016x}", int(context.trace_flags))
    return _fields(ref.traceparent, context.trace_state.to_header())


def _fields(traceparent: str, tracestate: str) -> dict[str, str]:
    if parse_traceparent(traceparent) is None:
        return {}
    keeps_state = 0 < len(tracestate) <= TRACESTATE_CHARS_MAX
    return {"traceparent": traceparent, **({"tracestate": tracestate} if keeps_state else {})}

"""Trace context as the W3C writes it, and the ids of the spans that rota makes of its journal.

The ids are computed, not drawn: the trace of an entry from the entry, the span of a run from its claim. So a supervisor
can tell a program which span it runs in without writing anything, and every later reader of the journal
finds the same ids. What a caller passes as `traceparent` is stored with the entry, and its trace is continued.

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    version    trace id, 16 bytes       span id, 8 bytes   flags; 01: sampled
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rota.lazy import late

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = late("hashlib")

__all__ = [
    "SAMPLED",
    "TRACEPARENT_CHARS",
    "TRACESTATE_CHARS_MAX",
    "SpanRef",
    "entry_trace_id",
    "graph_trace_id",
    "is_sampled",
    "parse_traceparent",
    "sampling_ratio",
    "span_id",
    "telemetry_is_on",
]

TRACEPARENT_CHARS = 55
TRACESTATE_CHARS_MAX = 512  # what every participant must be able to pass on, by the W3C
SAMPLED = 1
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ON = frozenset(("1", "on", "true", "yes"))


class SpanRef(NamedTuple):
    """A span of a trace, and whether the trace is sampled."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16
    flags: int = SAMPLED

    @property
    def traceparent(self) -> str:
        """The header that names it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> SpanRef | None:
    """Return the span that a header of version 00 names; None if it is no such header."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or found[1] != "00" or not int(found[2], 16) or not int(found[3], 16):
        return None
    return SpanRef(found[2], found[3], int(found[4], 16))


def entry_trace_id(sched_id: int, created_at: float) -> str:
    """Return the trace of an entry that nothing traced has caused."""
    return _digest(16, "entry", sched_id, created_at)


def graph_trace_id(run_id: str) -> str:
    """Return the trace of a graph run that no entry coordinates."""
    return _digest(16, "graph", run_id)


def span_id(kind: str, *names: object) -> str:
    """Return the id of a span: what it is, and what identifies that."""
    return _digest(8, kind, *names)


def _digest(size: int, *parts: object) -> str:
    text = "\x00".join(map(repr, parts))
    found = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=size).hexdigest()
    return found if int(found, 16) else "1".zfill(2 * size)  # all zeros means "no id"


# --- what the environment says -------------------------------------------------------------------


def telemetry_is_on(environ: Mapping[str, str]) -> bool:
    """Whether ROTA_OTEL asks for OpenTelemetry, and OTEL_SDK_DISABLED does not forbid it."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return environ.get("ROTA_OTEL", "").strip().lower() in _ON


def sampling_ratio(environ: Mapping[str, str]) -> float:
    """Return the share of the traces that begin here and are kept: OTEL_TRACES_SAMPLER and its argument."""
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().removeprefix("parentbased_")
    if sampler == "always_off":
        return 0.0
    if sampler != "traceidratio":
        return 1.0
    try:
        return min(1.0, max(0.0, float(environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
    except ValueError:
        return 1.0


def is_sampled(trace_id: str, ratio: float) -> bool:
    """Whether a trace that begins here is kept: as OpenTelemetry decides it, by the last 8 bytes of its id."""
    return ratio >= 1.0 or int(trace_id[16:], 16) < ratio * 2**64

"""A small fleet in memory whose journal the tests turn into traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rota.kernel import Kernel
from rota.model.events import Event
from rota.telemetry.span_fold import SpanFold
from rota.telemetry.span_records import SpanRecord
from rota.telemetry.trace_source import StoreSource
from rota.testing import InMemoryRota

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@contextmanager
def in_memory() -> Iterator[InMemoryRota]:
    """A Rota in memory, on a clock that the test moves."""
    rota = InMemoryRota()
    with rota:
        yield rota


def kernel_of(rota: InMemoryRota) -> Kernel:
    kernel: Kernel = rota.api.kernel  # type: ignore[attr-defined]  # of a dispatcher in this process
    return kernel


def pages(kernel: Kernel, size: int = 1_000) -> Iterator[list[Event]]:
    """The whole journal, page by page."""
    cursor = 0
    while page := kernel.journal.tail(cursor, size):
        yield page
        cursor = page[-1].event_id


def spans_of(kernel: Kernel, size: int = 1_000) -> list[SpanRecord]:
    """The spans of the whole journal."""
    fold = SpanFold(StoreSource(kernel))
    return [span for page in pages(kernel, size) for span in fold.fold(page)]


def by_name(spans: list[SpanRecord]) -> Mapping[str, list[SpanRecord]]:
    found: dict[str, list[SpanRecord]] = {}
    for span in spans:
        found.setdefault(span.name, []).append(span)
    return found


def one(spans: list[SpanRecord], name: str) -> SpanRecord:
    (found,) = by_name(spans)[name]
    return found


def family(rota: InMemoryRota) -> dict[str, Any]:
    """A planner that spawns a coder, which fails once; returns what the runs say of their spans."""
    seen: dict[str, Any] = {}

    @rota.agent(max_attempts=3)
    def coder(ctx: Any, part: str) -> str:
        seen.setdefault("coder", []).append(ctx.traceparent)
        rota.clock.advance(1.0)
        if ctx.attempt == 1:
            raise OSError("no network")
        ctx.charge(input_tokens=40, cached_input_tokens=10, output_tokens=5, model="m-1")
        return part

    @rota.agent
    def planner(ctx: Any) -> str:
        seen["planner"] = ctx.traceparent
        rota.clock.advance(2.0)
        ctx.progress(0.5, "half")
        seen["child"] = ctx.spawn("coder", part="login").sched_id
        return "done"

    rota.clock.advance(3.0)
    job = planner.enqueue()
    rota.clock.advance(4.0)
    seen["job"] = job
    return seen

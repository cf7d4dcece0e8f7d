"""A stretch of the journal as a viewer of traces shows it: tracks with slices, instants, and arrows between slices.

    worker box                slot-1   ▇▇▇ process coder ▇▇▇   with the agent's own run inside
                              claims   │ one instant for each claim
    waiting                   coder    ▇▇ wait coder ▇▇        entries that wait at the same time have a lane each
    graph runs                release  ▇▇▇▇▇▇
    budgets and limits                 │ what was exceeded, blocked or paused

A slot that a waiting parent has lent to another run has a second lane: two runs never share one. An arrow leads from
the run that enqueued an entry to the first run of that entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from rota.model.events import Event
from rota.telemetry.event_instants import event_instant
from rota.telemetry.span_fold import SpanFold
from rota.telemetry.span_records import SpanAttributes, SpanRecord, nanoseconds
from rota.telemetry.trace_source import TraceSource

__all__ = ["EVENTS_MAX", "FlowArrow", "Instant", "Slice", "Timeline", "Track", "make_timeline", "read_spans"]

EVENTS_MAX = 1_000_000  # events of one export
WAITING, GRAPH_RUNS, BUDGETS = "waiting", "graph runs", "budgets and limits"
RUNS = "runs"  # of a worker that said no slot: one that is no supervisor, and a function that gave its slot back
_SHARED = (WAITING, GRAPH_RUNS)  # groups in which slices of one track overlap
_Lanes: TypeAlias = dict[tuple[str, str], list[int]]  # by group and name: until when each lane is taken


class Track(NamedTuple):
    """A line of the picture; lanes of one name are shown as one."""

    group: str
    name: str
    lane: int = 0


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that takes time."""

    track: Track
    span_id: str
    name: str
    category: str
    start_ns: int
    end_ns: int
    details: SpanAttributes = {}


class Instant(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens."""

    track: Track
    name: str
    category: str
    at_ns: int
    details: SpanAttributes = {}


class FlowArrow(msgspec.Struct, frozen=True, kw_only=True):
    """An arrow from one slice to another."""

    name: str
    source: Track
    source_ns: int
    target: Track
    target_ns: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown."""

    slices: list[Slice]
    instants: list[Instant]
    flows: list[FlowArrow]

    @property
    def tracks(self) -> list[Track]:
        """Every track, group by group in the order of their names; workers first."""
        found = {each.track for each in self.slices} | {each.track for each in self.instants}
        last = {WAITING: 1, GRAPH_RUNS: 2, BUDGETS: 3}
        return sorted(found, key=lambda track: (last.get(track.group, 0), track))


def read_spans(pages: Iterable[Sequence[Event]], source: TraceSource, end_at: float | None = None) -> list[SpanRecord]:
    """Return the spans of a stretch of the journal, with those that go on at its end: its last event, or `end_at`."""
    return _read(pages, source, end_at)[0]


def make_timeline(pages: Iterable[Sequence[Event]], source: TraceSource, end_at: float | None = None) -> Timeline:
    """Return the picture of a stretch of the journal."""
    spans, instants = _read(pages, source, end_at)
    slices = _slices(spans)
    return Timeline(slices=slices, instants=instants, flows=_flows(spans, slices))


def _read(
    pages: Iterable[Sequence[Event]], source: TraceSource, end_at: float | None
) -> tuple[list[SpanRecord], list[Instant]]:
    fold = SpanFold(source)
    spans: list[SpanRecord] = []
    instants: list[Instant] = []
    at = end_at or 0.0
    for page in pages:
        spans += fold.fold(page)
        for event in page:
            at = max(at, event.ts)
            if (found := event_instant(event)) is not None:
                track = Track(f"worker {found.worker_id}", "claims") if found.worker_id else Track(BUDGETS, found.track)
                instants.append(
                    Instant(
                        track=track,
                        name=found.name,
                        category=event.kind.removeprefix("kernel."),
                        at_ns=nanoseconds(event.ts),
                        details={"event_id": event.event_id, **found.details},
                    )
                )
    spans += fold.open(at)
    return spans, instants


# --- slices --------------------------------------------------------------------------------------


def _slices(spans: Sequence[SpanRecord]) -> list[Slice]:
    """Place the spans on tracks, each in the first lane that is free."""
    lanes: _Lanes = {}
    track_of: dict[str, Track] = {}  # by span
    placed: list[Slice] = []
    for span in sorted(spans, key=lambda each: (each.start_ns, -each.end_ns)):
        if (where := _place(span)) is None:
            continue
        track = track_of[span.ref.span_id] = Track(*where, _free_lane(lanes.setdefault(where, []), span))
        placed.append(_slice(span, track))
    inside = [span for span in spans if span.name.startswith("invoke_agent ")]  # the run of an agent is in its claim
    return placed + [_slice(span, track_of[span.parent]) for span in inside if span.parent in track_of]


def _place(span: SpanRecord) -> tuple[str, str] | None:
    """Return the group and the name of a span's track; None if it is no slice of its own."""
    verb, _, name = span.name.partition(" ")
    if verb == "wait":
        return WAITING, name
    if verb == "invoke_workflow":
        return GRAPH_RUNS, name
    if verb == "process":
        return f"worker {span.attributes['messaging.client.id']}", str(span.attributes.get("rota.slot", RUNS))
    return None


def _free_lane(taken: list[int], span: SpanRecord) -> int:
    for lane, until_ns in enumerate(taken):
        if until_ns <= span.start_ns:
            taken[lane] = span.end_ns
            return lane
    taken.append(span.end_ns)
    return len(taken) - 1


def _slice(span: SpanRecord, track: Track) -> Slice:
    entry = span.attributes.get("messaging.message.id", span.attributes.get("rota.entry"))
    details = dict(span.attributes)
    if span.error is not None:
        details["error"] = span.error
    if span.is_open:
        details["goes_on"] = True
    return Slice(
        track=track,
        span_id=span.ref.span_id,
        name=span.name if entry is None else f"{span.name} #{entry}",
        category=span.name.partition(" ")[0],
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        details=details,
    )


# --- arrows --------------------------------------------------------------------------------------


def _flows(spans: Sequence[SpanRecord], slices: Sequence[Slice]) -> list[FlowArrow]:
    """Return an arrow for each entry that a run or a graph run of the stretch enqueued."""
    by_span = {each.span_id: each for each in slices}
    first: dict[str, Slice] = {}  # by enqueue span: the first run of the entry
    for span in spans:
        if span.name.startswith("process ") and span.parent is not None:
            place = by_span[span.ref.span_id]
            if span.parent not in first or place.start_ns < first[span.parent].start_ns:
                first[span.parent] = place
    found: list[FlowArrow] = []
    for span in spans:
        source = by_span.get(span.parent or "")
        target = first.get(span.ref.span_id)
        if span.kind == "producer" and source is not None and target is not None:
            at_ns = min(max(span.start_ns, source.start_ns), source.end_ns)
            found.append(
                FlowArrow(
                    name=span.name,
                    source=source.track,
                    source_ns=at_ns,
                    target=target.track,
                    target_ns=target.start_ns,
                )
            )
    return found

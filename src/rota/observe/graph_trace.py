"""Export the trace of a graph run: as lines of JSON, or in the format of Perfetto and Chrome.

In the Chrome format there is one track per worker: the first one is the scheduler, then each lane has one for each of
its workers (or one, if it has no workers). Spans are complete events; begin and end events are left out because the
span contains both. Everything else is an instant on its track. A message is an arrow from the execution that published
it to the execution it caused. Times are microseconds from the start of the run, as the format requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rota.graph.tracing import TraceEvent

__all__ = ["to_chrome", "to_ndjson"]

SCHEDULER_TRACK = 0
PROCESS_ID = 1
US = 1_000  # nanoseconds


def to_ndjson(events: Iterable[TraceEvent]) -> Iterator[str]:
    """Yield one line of JSON per event."""
    for event in events:
        yield msgspec.json.encode(event).decode()


def to_chrome(events: Iterable[TraceEvent]) -> dict[str, Any]:
    """Return the trace as one object in the Trace Event Format."""
    return _Chrome().convert(events)


class _Chrome:
    """Builds the object; tracks are numbered in the order of their first event."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, int | None], int] = {("", None): SCHEDULER_TRACK}
        self._rows: list[dict[str, Any]] = []
        self._published: dict[str, dict[str, Any]] = {}  # by message id: where its arrow starts
        self._arrows = 0

    def convert(self, events: Iterable[TraceEvent]) -> dict[str, Any]:
        for event in events:
            if event.name == "publication_committed":
                self._published[event.attributes.get("message_id", "")] = self._place(event)
            if event.phase == "span":
                self._span(event)
            elif event.phase == "instant" and not event.name.startswith("publication_"):
                self._rows.append({"name": event.name, "ph": "i", "s": "t", **self._place(event), "args": _args(event)})
        return {"displayTimeUnit": "ms", "traceEvents": [*self._names(), *self._rows]}

    def _span(self, event: TraceEvent) -> None:
        name = event.component_id if event.name == "component_execute" else event.name
        place = self._place(event)
        self._rows.append(
            {
                "name": name,
                "cat": event.name,
                "ph": "X",
                **place,
                "dur": event.duration_ns / US,
                "args": _args(event),
            }
        )
        if event.name == "component_execute" and event.causation_id in self._published:
            self._arrow(event.causation_id, place)

    def _arrow(self, message_id: str, place: dict[str, Any]) -> None:
        self._arrows += 1
        shared = {"name": "message", "cat": "message", "id": self._arrows, "args": {"message_id": message_id}}
        self._rows.append({**shared, "ph": "s", **self._published[message_id]})
        self._rows.append({**shared, "ph": "f", "bp": "e", **place})

    def _place(self, event: TraceEvent) -> dict[str, Any]:
        """The time and the track of an event."""
        key = (event.lane, event.worker_id)
        track = self._tracks.setdefault(key, len(self._tracks))
        return {"pid": PROCESS_ID, "tid": track, "ts": event.start_offset_ns / US}

    def _names(self) -> Iterator[dict[str, Any]]:
        yield {"name": "process_name", "ph": "M", "pid": PROCESS_ID, "tid": 0, "args": {"name": "rota graph"}}
        for (lane, worker_id), track in self._tracks.items():
            yield {
                "name": "thread_name",
                "ph": "M",
                "pid": PROCESS_ID,
                "tid": track,
                "args": {"name": _track_name(lane, worker_id)},
            }
            yield {
                "name": "thread_sort_index",
                "ph": "M",
                "pid": PROCESS_ID,
                "tid": track,
                "args": {"sort_index": track},
            }


def _track_name(lane: str, worker_id: int | None) -> str:
    if not lane:
        return "scheduler"
    return lane if worker_id is None else f"{lane} worker {worker_id}"


def _args(event: TraceEvent) -> dict[str, str]:
    """The details that the viewer shows for an event."""
    details = {
        "epoch": str(event.epoch_id),
        "lane": event.lane,
        "component": event.component_id,
        "correlation": event.correlation_id,
        "causation": event.causation_id,
    }
    return {**{key: value for key, value in details.items() if value}, **event.attributes}

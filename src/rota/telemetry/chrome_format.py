"""A timeline in the Trace Event Format, which Chrome and the Perfetto UI open: one JSON object.

Groups are processes, tracks are threads. A slice is a complete event; where slices of one track overlap (entries that
wait, graph runs) it is a pair of nestable asynchronous events, which the viewer stacks. Times are microseconds from the
first event of the stretch; `otherData` says when that was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.telemetry.timeline import GRAPH_RUNS, WAITING, Slice, Timeline, Track

__all__ = ["timeline_to_chrome"]

_US = 1_000  # nanoseconds
_STACKED = frozenset((WAITING, GRAPH_RUNS))


def timeline_to_chrome(timeline: Timeline) -> dict[str, Any]:
    """Return the object to write as JSON."""
    return _Chrome(timeline).convert()


class _Chrome:
    """Numbers the tracks, and the time from the first event."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        starts = [each.start_ns for each in timeline.slices] + [each.at_ns for each in timeline.instants]
        self._origin_ns = min(starts, default=0)
        self._pids: dict[str, int] = {}
        self._tids: dict[Track, int] = {}
        for track in timeline.tracks:
            self._pids.setdefault(track.group, len(self._pids) + 1)
            self._tids.setdefault(self._shown(track), len(self._tids) + 1)

    def convert(self) -> dict[str, Any]:
        rows = [*self._slices(), *self._instants(), *self._flows()]
        return {
            "displayTimeUnit": "ms",
            "otherData": {"source": "rota", "epoch_ns": str(self._origin_ns)},
            "traceEvents": [*self._names(), *sorted(rows, key=lambda row: float(row["ts"]))],
        }

    def _shown(self, track: Track) -> Track:
        return track._replace(lane=0) if track.group in _STACKED else track

    def _place(self, track: Track, at_ns: int) -> dict[str, Any]:
        ts = (at_ns - self._origin_ns) / _US
        return {"pid": self._pids[track.group], "tid": self._tids[self._shown(track)], "ts": ts}

    def _slices(self) -> Iterator[dict[str, Any]]:
        for each in self._timeline.slices:
            place = self._place(each.track, each.start_ns)
            if each.track.group in _STACKED:
                yield from self._stacked(each, place)
            else:
                length_us = (each.end_ns - each.start_ns) / _US
                yield {
                    "ph": "X",
                    "name": each.name,
                    "cat": each.category,
                    **place,
                    "dur": length_us,
                    "args": each.details,
                }

    def _stacked(self, each: Slice, place: dict[str, Any]) -> Iterator[dict[str, Any]]:
        shared = {"name": each.name, "cat": each.category, "id": f"0x{each.span_id}"}
        yield {"ph": "b", **shared, **place, "args": each.details}
        yield {"ph": "e", **shared, **self._place(each.track, each.end_ns), "args": {}}

    def _instants(self) -> Iterator[dict[str, Any]]:
        for each in self._timeline.instants:
            place = self._place(each.track, each.at_ns)
            yield {"ph": "i", "s": "t", "name": each.name, "cat": each.category, **place, "args": each.details}

    def _flows(self) -> Iterator[dict[str, Any]]:
        for number, flow in enumerate(self._timeline.flows, 1):
            shared = {"name": flow.name, "cat": "spawn", "id": number}
            yield {"ph": "s", **shared, **self._place(flow.source, flow.source_ns), "args": {}}
            yield {"ph": "f", "bp": "e", **shared, **self._place(flow.target, flow.target_ns), "args": {}}

    def _names(self) -> Iterator[dict[str, Any]]:
        for group, pid in self._pids.items():
            yield _metadata("process_name", pid, 0, name=group)
            yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        for track, tid in self._tids.items():
            name = track.name if not track.lane else f"{track.name} ({track.lane + 1})"
            yield _metadata("thread_name", self._pids[track.group], tid, name=name)
            yield _metadata("thread_sort_index", self._pids[track.group], tid, sort_index=tid)


def _metadata(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}

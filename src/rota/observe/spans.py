"""Who ran where and when: the rows of a Gantt chart, bounded in every direction.

A worker has as many rows as it ever had runs at once. A run takes the worker's first free row and keeps it to its end,
so that a row reads like a slot: one run after the other, never two at a time. What is older than the window is
forgotten, and with its last span a worker that is gone.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

import msgspec

__all__ = ["LANES_MAX", "SPANS_MAX", "WINDOW_S", "Ending", "Lane", "Lanes", "Span"]

WINDOW_S = 600.0  # how long a span is remembered
SPANS_MAX = 1_000  # of one row
FORGET_EVERY_S = 10.0
LANES_MAX = 512  # rows in all; a run beyond them is not drawn

Ending: TypeAlias = Literal["well", "badly", "lost", "back"]


class Span(msgspec.Struct):
    """One run in its row: `end_at` and `ending` are None while it lasts."""

    sched_id: int
    pid: int
    project_id: str | None
    start_at: float
    end_at: float | None = None
    ending: Ending | None = None


class Lane(msgspec.Struct, frozen=True):
    """A row: its worker, its number with that worker, and its runs, oldest first."""

    worker_id: str
    number: int
    spans: deque[Span]

    @property
    def is_free(self) -> bool:
        """Whether nothing runs in it."""
        return not self.spans or self.spans[-1].end_at is not None


class Lanes:
    """Every row that something ran in of late."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._workers: dict[str, list[Lane]] = {}
        self._count = 0
        self._forget_at = 0.0

    def begin(self, worker_id: str, span: Span) -> Span | None:
        """A run begins; None if there is no room to draw it."""
        if span.start_at >= self._forget_at or self._count >= LANES_MAX:
            self.forget(span.start_at)
            self._forget_at = span.start_at + FORGET_EVERY_S
        lanes = self._workers.setdefault(worker_id, [])
        lane = next((lane for lane in lanes if lane.is_free), None)
        if lane is None:
            if self._count >= LANES_MAX:
                return None
            lane = Lane(worker_id, len(lanes) + 1, deque(maxlen=SPANS_MAX))
            lanes.append(lane)
            self._count += 1
        lane.spans.append(span)
        return span

    def forget(self, now: float) -> None:
        """Let go of what ended before the window, and of workers of whom nothing is left."""
        for worker_id, lanes in list(self._workers.items()):
            for lane in lanes:
                while lane.spans and (end_at := lane.spans[0].end_at) is not None and end_at < now - self._window_s:
                    lane.spans.popleft()
            if not any(lane.spans for lane in lanes):
                del self._workers[worker_id]
                self._count -= len(lanes)

    def rows(self) -> list[Lane]:
        """Every row, by worker in the order in which they came, then by number."""
        return [lane for lanes in self._workers.values() for lane in lanes]

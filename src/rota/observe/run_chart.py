"""Which entries ran where and when: the rows of a Gantt chart, limited in size.

A worker has as many rows as it had concurrent runs. A run takes the first free row of its worker and keeps it to its
end, so that a row looks like a slot: one run after the other, never two at a time. Spans older than the window are
dropped, and a worker with its last span.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

import msgspec

__all__ = ["ROWS_MAX", "SPANS_MAX", "WINDOW_S", "ChartRow", "ChartRows", "RunEnding", "RunSpan"]

WINDOW_S = 600.0  # how long a span is kept
SPANS_MAX = 1_000  # per row
PRUNE_EVERY_S = 10.0
ROWS_MAX = 512  # in total; a run beyond them is not drawn

RunEnding: TypeAlias = Literal["completed", "failed", "lost", "returned"]


class RunSpan(msgspec.Struct):
    """One run in its row; `end_at` and `ending` are None while it runs."""

    sched_id: int
    pid: int
    project_id: str | None
    start_at: float
    end_at: float | None = None
    ending: RunEnding | None = None


class ChartRow(msgspec.Struct, frozen=True):
    """A row: its worker, its number for that worker, and its runs, oldest first."""

    worker_id: str
    number: int
    spans: deque[RunSpan]

    @property
    def is_free(self) -> bool:
        """Whether no run is active in it."""
        return not self.spans or self.spans[-1].end_at is not None


class ChartRows:
    """The rows with recent runs."""

    def __init__(self, window_s: float = WINDOW_S, spans_max: int = SPANS_MAX) -> None:
        self._window_s = window_s
        self._spans_max = spans_max
        self._workers: dict[str, list[ChartRow]] = {}
        self._count = 0
        self._prune_at = 0.0

    def begin(self, worker_id: str, span: RunSpan) -> RunSpan | None:
        """Add a run that starts; None if there is no row for it."""
        if span.start_at >= self._prune_at or self._count >= ROWS_MAX:
            self.prune(span.start_at)
            self._prune_at = span.start_at + PRUNE_EVERY_S
        rows = self._workers.setdefault(worker_id, [])
        row = next((row for row in rows if row.is_free), None)
        if row is None:
            if self._count >= ROWS_MAX:
                return None
            row = ChartRow(worker_id, len(rows) + 1, deque(maxlen=self._spans_max))
            rows.append(row)
            self._count += 1
        row.spans.append(span)
        return span

    def prune(self, now: float) -> None:
        """Drop spans that ended before the window, and workers without spans."""
        for worker_id, rows in list(self._workers.items()):
            for row in rows:
                while row.spans and (end_at := row.spans[0].end_at) is not None and end_at < now - self._window_s:
                    row.spans.popleft()
            if not any(row.spans for row in rows):
                del self._workers[worker_id]
                self._count -= len(rows)

    def rows(self) -> list[ChartRow]:
        """All rows, by worker in the order of their first run, then by number."""
        return [row for rows in self._workers.values() for row in rows]

"""Preemption: a ready entry of a higher priority band may stop the lowest run. Off by default.

Thresholds divide the priorities into bands: 50 and 100 make three bands, below 50, from 50 to 99, and from 100 on. Only
a higher *band* preempts, so that a small difference in priority does not interrupt runs. The run of the lowest band is
stopped; among equals the one that started last, because it loses the least work. It is asked to save a checkpoint and
yield, and its entry is queued again without counting an attempt. At most one run is stopped per waiting entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rota.model.events import (
    EntriesChanged,
    EntriesEnqueued,
    EntriesHeldForWorker,
    EntriesReleased,
    EntriesReturned,
    Event,
)
from rota.model.work import ReadyEntry

__all__ = ["PEEK_MAX", "Preemptible", "Preemption", "victims"]

PEEK_MAX = 32  # waiting entries to compare with the runs


class Preemptible(NamedTuple):
    """A run that may be preempted."""

    sched_id: int
    priority: int
    started_at: float


def victims(running: Iterable[Preemptible], waiting: Sequence[int], thresholds: Sequence[int]) -> list[int]:
    """Return the entries whose runs to stop for these waiting priorities: lowest run for highest waiting entry."""
    lowest = sorted(running, key=lambda run: (bisect_right(thresholds, run.priority), -run.started_at))
    return [
        run.sched_id
        for run, priority in zip(lowest, sorted(waiting, reverse=True), strict=False)
        if bisect_right(thresholds, priority) > bisect_right(thresholds, run.priority)
    ]


class Preemption:
    """A background task: when entries become ready and no slot is free, preempt lower runs."""

    kinds = (
        EntriesEnqueued.kind,
        EntriesReleased.kind,
        EntriesHeldForWorker.kind,
        EntriesReturned.kind,
        EntriesChanged.kind,
    )

    def __init__(
        self,
        thresholds: Sequence[int],
        *,
        peek: Callable[[int], list[ReadyEntry]],
        running: Callable[[], list[Preemptible]],
        free: Callable[[], int],
        preempt: Callable[[int], None],
    ) -> None:
        self._thresholds = sorted(thresholds)
        self._peek = peek
        self._running = running
        self._free = free
        self._preempt = preempt

    def on_events(self, events: Sequence[Event]) -> None:
        """Preempt runs if entries became ready."""
        if not any(event.kind in self.kinds for event in events) or self._free():
            return
        running = self._running()
        waiting = [entry.priority for entry in self._peek(min(len(running), PEEK_MAX))] if running else []
        for sched_id in victims(running, waiting, self._thresholds):
            self._preempt(sched_id)

    def due_in_s(self) -> float | None:
        """Never due by time."""
        return None

    def on_due(self) -> None:
        """Never due by time."""

"""Preemption: an entry of a higher band may ask the lowest run to make room. Off unless it is asked for.

Bands are marks on the scale of priorities: with marks 50 and 100 there are three bands, below 50, below 100, and the
rest. Only a higher *band* preempts, so that a difference of one between two agents does not throw runs around. The
run of the lowest band gives way, among equals the one that began last, for it has the least to lose. It is asked to
save a checkpoint and yield; it is put back without counting an attempt. One run is asked for each entry that waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rota.model.events import (
    EntriesChanged,
    EntriesEnqueued,
    EntriesKept,
    EntriesReleased,
    EntriesReturned,
    Event,
)
from rota.model.work import ReadyEntry

__all__ = ["PEEK_MAX", "Preemption", "Running", "victims"]

PEEK_MAX = 32  # waiting entries that are looked at


class Running(NamedTuple):
    """A run as preemption sees it."""

    sched_id: int
    priority: int
    began_at: float


def victims(running: Iterable[Running], waiting: Sequence[int], marks: Sequence[int]) -> list[int]:
    """Who has to give way for these waiting priorities, highest first; each pair only if the band is higher."""
    lowest = sorted(running, key=lambda run: (bisect_right(marks, run.priority), -run.began_at))
    return [
        run.sched_id
        for run, priority in zip(lowest, sorted(waiting, reverse=True), strict=False)
        if bisect_right(marks, priority) > bisect_right(marks, run.priority)
    ]


class Preemption:
    """Looks, whenever something became ready, whether somebody has to give way."""

    kinds = (EntriesEnqueued.kind, EntriesReleased.kind, EntriesKept.kind, EntriesReturned.kind, EntriesChanged.kind)

    def __init__(
        self,
        marks: Sequence[int],
        *,
        peek: Callable[[int], list[ReadyEntry]],
        running: Callable[[], list[Running]],
        free: Callable[[], int],
        preempt: Callable[[int], None],
    ) -> None:
        self._marks = sorted(marks)
        self._peek = peek
        self._running = running
        self._free = free
        self._preempt = preempt

    def hear(self, events: Sequence[Event]) -> None:
        """Something was recorded: is anybody in the way?"""
        if not any(event.kind in self.kinds for event in events) or self._free():
            return
        running = self._running()
        waiting = [entry.priority for entry in self._peek(min(len(running), PEEK_MAX))] if running else []
        for sched_id in victims(running, waiting, self._marks):
            self._preempt(sched_id)

    def next_at(self) -> float | None:
        """Nothing falls due by time."""
        return None

    def due(self, _now: float) -> None:
        """Nothing falls due by time."""

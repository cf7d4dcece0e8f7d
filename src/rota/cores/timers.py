"""What is due when: one line of instants, each for one thing.

A thing has one instant at most. Setting an earlier one replaces it; the old entry stays in the heap and is
passed over when it surfaces. Things due at the same instant come in the order in which they were set.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

__all__ = ["Timers"]

T = TypeVar("T", bound=Hashable)


class Timers(Generic[T]):
    """Things that wait for an instant."""

    __slots__ = ("_heap", "_order", "_set", "next_at")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._set: dict[T, tuple[int, int, T]] = {}  # its living entry
        self._order = 0
        self.next_at: int | None = None  # when the next thing is due

    def set(self, thing: T, at: int) -> None:
        """Something is due at an instant, unless it is due earlier already."""
        known = self._set.get(thing)
        if known is not None and known[0] <= at:
            return
        self._order += 1
        entry = at, self._order, thing
        self._set[thing] = entry
        heappush(self._heap, entry)
        self._note_next()

    def cancel(self, thing: T) -> None:
        """Something is not due any more."""
        if self._set.pop(thing, None) is not None and len(self._heap) > 2 * len(self._set):
            self._heap = list(self._set.values())
            heapify(self._heap)
        self._note_next()

    def take_due(self, now: int, most: int) -> list[T]:
        """Take out what is due, no more than so many; what is set anew meanwhile waits for the next time."""
        due: list[T] = []
        while self.next_at is not None and self.next_at <= now and len(due) < most:
            thing = heappop(self._heap)[2]
            del self._set[thing]
            due.append(thing)
            self._note_next()
        return due

    def _note_next(self) -> None:
        """Drop entries that are dead from the top; the next living one is the next that is due."""
        heap = self._heap
        while heap and self._set.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        self.next_at = heap[0][0] if heap else None

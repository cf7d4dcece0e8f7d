"""The reserved line of one core: admitted contexts of the two upper bands, whatever is due first.

Criticality decides first (critical before high), then the deadline, then the context's own priority, then the
lower key. Inside a band this is earliest deadline first, which on one core meets every deadline that any order
could meet; admission (see `policy.deadline`) makes sure that there is such an order. Whoever stands here goes
before everybody in the fair queue, and budgets keep it from staying for ever.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeAlias, TypeVar

__all__ = ["DeadlineQueue", "Urgency"]

Urgency: TypeAlias = tuple[int, int, int, int]  # -band, deadline, -priority, key: the least goes first
T = TypeVar("T")


class DeadlineQueue(Generic[T]):
    """Whoever is queued by urgency. Removal is lazy; the dead never outnumber the living."""

    __slots__ = ("_heap", "_living")

    def __init__(self) -> None:
        self._heap: list[Urgency] = []
        self._living: dict[int, tuple[Urgency, T]] = {}  # by key

    def __len__(self) -> int:
        return len(self._living)

    def enter(self, urgency: Urgency, item: T) -> None:
        """Put somebody in; its key is the last part of its urgency."""
        self._living[urgency[3]] = urgency, item
        heappush(self._heap, urgency)

    def take(self) -> T | None:
        """Take out the most urgent one."""
        heap, living = self._heap, self._living
        while heap:
            urgency = heappop(heap)
            found = living.get(urgency[3])
            if found is not None and found[0] is urgency:
                return living.pop(urgency[3])[1]
        return None

    def remove(self, key: int) -> T:
        """Take out somebody, wherever it stands."""
        _, item = self._living.pop(key)
        if len(self._heap) > 2 * len(self._living):
            self._heap = [urgency for urgency, _ in self._living.values()]
            heapify(self._heap)
        return item

    def items(self) -> list[T]:
        """Everybody in it, in no particular order."""
        return [item for _, item in self._living.values()]

"""Two heaps with lazy removal: timers by instant, and reserved entities by urgency.

Removing an item from the middle of a heap is slow. Both heaps instead forget the item in a dictionary of live entries
and leave its heap entry behind; a stale entry is dropped when it reaches the top. The heap is rebuilt when stale
entries outnumber live ones.

**Timers.** An item has at most one timer. Setting an earlier instant replaces it. Items due at the same instant are
returned in the order in which they were set.

**The reserved queue of one core.** It holds the admitted contexts of the bands *high* and *critical*. Critical goes
before high, then the earlier deadline, then the context's higher priority, then the lower key. Within a band this is
earliest deadline first, which on one core meets every deadline that any order could meet; admission
(`policy.deadline`) guarantees that such an order exists. Entities here run before the fair queue, and their budgets
limit how long.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeAlias, TypeVar

__all__ = ["DeadlineQueue", "Timers", "Urgency"]

Urgency: TypeAlias = tuple[int, int, int, int]  # -band, deadline, -priority, key: the smallest goes first
T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class DeadlineQueue(Generic[T]):
    """Items ordered by urgency."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[Urgency] = []
        self._live: dict[int, tuple[Urgency, T]] = {}  # by key

    def __len__(self) -> int:
        return len(self._live)

    def enter(self, urgency: Urgency, item: T) -> None:
        """Add an item; its key is the last part of its urgency."""
        self._live[urgency[3]] = urgency, item
        heappush(self._heap, urgency)

    def take(self) -> T | None:
        """Remove and return the most urgent item."""
        heap, live = self._heap, self._live
        while heap:
            urgency = heappop(heap)
            found = live.get(urgency[3])
            if found is not None and found[0] is urgency:
                return live.pop(urgency[3])[1]
        return None

    def remove(self, key: int) -> T:
        """Remove and return the item with this key."""
        _, item = self._live.pop(key)
        if len(self._heap) > 2 * len(self._live):
            self._heap = [urgency for urgency, _ in self._live.values()]
            heapify(self._heap)
        return item

    def items(self) -> list[T]:
        """Every item, in no particular order."""
        return [item for _, item in self._live.values()]


class Timers(Generic[H]):
    """Items that are due at an instant."""

    __slots__ = ("_heap", "_live", "_sequence", "next_at")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, H]] = []
        self._live: dict[H, tuple[int, int, H]] = {}  # the live heap entry of each item
        self._sequence = 0
        self.next_at: int | None = None  # when the next item is due

    def set(self, item: H, at: int) -> None:
        """Set an item's timer, unless an earlier one is set."""
        known = self._live.get(item)
        if known is not None and known[0] <= at:
            return
        self._sequence += 1
        entry = at, self._sequence, item
        self._live[item] = entry
        heappush(self._heap, entry)
        self._update_next()

    def is_set(self, item: H) -> bool:
        """Whether an item has a timer."""
        return item in self._live

    def cancel(self, item: H) -> None:
        """Remove an item's timer, if it has one."""
        if self._live.pop(item, None) is not None and len(self._heap) > 2 * len(self._live):
            self._heap = list(self._live.values())
            heapify(self._heap)
        self._update_next()

    def take_due(self, now: int, limit: int) -> list[H]:
        """Remove and return at most `limit` items that are due. Timers set meanwhile are for the next call."""
        due: list[H] = []
        while self.next_at is not None and self.next_at <= now and len(due) < limit:
            item = heappop(self._heap)[2]
            del self._live[item]
            due.append(item)
            self._update_next()
        return due

    def _update_next(self) -> None:
        """Drop stale entries from the top and read the instant of the first live one."""
        heap = self._heap
        while heap and self._live.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        self.next_at = heap[0][0] if heap else None

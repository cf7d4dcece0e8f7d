"""A priority queue of agents whose priorities can change while they wait.

It is a binary heap of entries `(-priority, pid)`: negated, because the heap keeps its smallest entry at the root, and
with the pid second, because of two equal priorities the lower pid goes first.

A heap cannot find an entry in its middle, so changing a priority does not search the old one. It pushes a new entry and
stores it as the agent's live one; the old one is stale:

    push(1, 5.0)             heap: (-5, 1)*                     * marks the live entry
    push(2, 4.0)             heap: (-5, 1)*  (-4, 2)*
    update_priority(1, 3.0)  heap: (-5, 1)   (-4, 2)*  (-3, 1)*

Two rules apply. *The root is always live*: a stale root is removed immediately, so `peek` reads one entry and changes
nothing. *Stale entries never outnumber live ones*: before they would, the heap is rebuilt from the live entries, a cost
that the updates before it have paid for.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from rota.errors import InvalidPayload

__all__ = ["AgentPriorityQueue"]


class AgentPriorityQueue:
    """Agents by priority, highest first; of equals, the lower pid first."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, tuple[float, int]] = {}  # the live entry of each pid

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, pid: object) -> bool:
        return pid in self._live

    def push(self, pid: int, priority: float) -> None:
        """Add an agent. O(log n)."""
        if pid in self._live:
            raise ValueError(f"agent {pid} is already in the queue; use update_priority to change its priority")
        if not -inf < priority < inf:  # NaN compares false, so it is refused here too
            raise _not_finite(pid, priority)
        self._live[pid] = entry = (-priority, pid)
        heappush(self._heap, entry)

    def pop(self) -> int:
        """Remove and return the agent with the highest priority. O(log n)."""
        if not self._heap:
            raise IndexError("pop from an empty queue")
        pid = heappop(self._heap)[1]
        del self._live[pid]
        if len(self._heap) != len(self._live):
            self._remove_stale()
        return pid

    def peek(self) -> int | None:
        """Return the agent with the highest priority, or None. O(1)."""
        return self._heap[0][1] if self._heap else None

    def priority(self, pid: int) -> float:
        """The priority of a waiting agent."""
        return -self._live[pid][0]

    def update_priority(self, pid: int, priority: float) -> None:
        """Change the priority of a waiting agent. Amortized O(log n)."""
        if pid not in self._live:
            raise KeyError(pid)
        if not -inf < priority < inf:
            raise _not_finite(pid, priority)
        self._live[pid] = entry = (-priority, pid)
        heappush(self._heap, entry)
        self._remove_stale()

    def remove(self, pid: int) -> None:
        """Remove a waiting agent. Amortized O(log n)."""
        del self._live[pid]
        self._remove_stale()

    def to_sorted_list(self) -> list[tuple[int, float]]:
        """Every (pid, priority), highest first. O(n log n)."""
        return [(pid, -negated) for negated, pid in sorted(self._live.values())]

    def _remove_stale(self) -> None:
        """Restore both rules: the root is live, and stale entries do not outnumber live ones."""
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][1]) is not heap[0]:
            heappop(heap)
        if len(heap) > 2 * len(live):
            self._heap = list(live.values())
            heapify(self._heap)


def _not_finite(pid: int, priority: float) -> InvalidPayload:
    return InvalidPayload(f"priority of agent {pid} must be a finite number, not {priority}", field="priority")

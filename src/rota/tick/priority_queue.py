"""A queue of agents, most important first, whose priorities may change while they wait.

It is a binary heap of entries `(-priority, pid)`: negated, because the heap keeps its smallest entry at
the root, and with the pid second, because of two equal priorities the lower pid goes first.

A heap cannot find an entry in its middle, so changing a priority does not look for the old one. It
pushes a new entry and remembers it as the agent's live one; the old one is now dead:

    push(1, 5.0)             heap: (-5, 1)*                     * marks the live entry
    push(2, 4.0)             heap: (-5, 1)*  (-4, 2)*
    update_priority(1, 3.0)  heap: (-5, 1)   (-4, 2)*  (-3, 1)*

Two rules keep that honest. *The root is always live*: whoever kills the root entry takes it away at
once, so `peek` is one look that changes nothing. *Dead entries never outnumber live ones*: when they
would, the heap is built anew from the live entries, a cost that the updates before it have paid for.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from rota.errors import InvalidPayload

__all__ = ["AgentPriorityQueue"]


class AgentPriorityQueue:
    """Agents by priority, highest first, the lower pid first among equals."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, tuple[float, int]] = {}  # pid to its one live entry

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, pid: object) -> bool:
        return pid in self._live

    def push(self, pid: int, priority: float) -> None:
        """Add an agent. O(log n)."""
        if pid in self._live:
            raise ValueError(f"agent {pid} is in the queue already; update_priority changes its priority")
        if not -inf < priority < inf:  # NaN compares false, so it is refused here too
            raise _not_finite(pid, priority)
        self._live[pid] = entry = (-priority, pid)
        heappush(self._heap, entry)

    def pop(self) -> int:
        """Take out the agent with the highest priority. O(log n)."""
        if not self._heap:
            raise IndexError("pop from an empty queue")
        pid = heappop(self._heap)[1]
        del self._live[pid]
        if len(self._heap) != len(self._live):
            self._tidy()
        return pid

    def peek(self) -> int | None:
        """The agent with the highest priority, or None. O(1), and nothing changes."""
        return self._heap[0][1] if self._heap else None

    def priority(self, pid: int) -> float:
        """The priority an agent waits with."""
        return -self._live[pid][0]

    def update_priority(self, pid: int, priority: float) -> None:
        """Change the priority of a waiting agent. O(log n), averaged over updates."""
        if pid not in self._live:
            raise KeyError(pid)
        if not -inf < priority < inf:
            raise _not_finite(pid, priority)
        self._live[pid] = entry = (-priority, pid)
        heappush(self._heap, entry)
        self._tidy()

    def remove(self, pid: int) -> None:
        """Take out an agent wherever it stands. O(log n), averaged over removals."""
        del self._live[pid]
        self._tidy()

    def to_sorted_list(self) -> list[tuple[int, float]]:
        """Every (pid, priority), best first. O(n log n)."""
        return [(pid, -negated) for negated, pid in sorted(self._live.values())]

    def _tidy(self) -> None:
        """Restore both rules: the root is live, and dead entries do not outnumber live ones."""
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][1]) is not heap[0]:
            heappop(heap)
        if len(heap) > 2 * len(live):
            self._heap = list(live.values())
            heapify(self._heap)


def _not_finite(pid: int, priority: float) -> InvalidPayload:
    return InvalidPayload(f"priority of agent {pid} must be a finite number, not {priority}", field="priority")

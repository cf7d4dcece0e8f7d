"""The agents' priority queue beside a bare heap, at a steady size: each push is followed by a pop."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from bench.harness import Arena, Case
from rota.tick import AgentPriorityQueue

SEED = 20_260_226
OPERATIONS = 100_000  # in one round
SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}
BARE_HEAP = "bare heapq, push + pop of (-priority, pid)"


def cases() -> Iterator[Case]:
    for label, size in SIZES.items():
        arena = partial(_push_pop_arena, size)
        yield Case(f"queue-push-pop-{label}", size, "ops/s", BARE_HEAP, arena, ops=OPERATIONS, goal=0.5)
    for label in ("1k", "1m"):
        arena = partial(_update_arena, SIZES[label])
        yield Case(f"queue-update-{label}", SIZES[label], "ops/s", BARE_HEAP, arena, ops=OPERATIONS, goal=0.3)


class Sides:
    """The same agents in a queue and in a bare heap, and the same newcomers for both."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rng = random.Random(SEED)
        self.queue = AgentPriorityQueue()
        self.heap: list[tuple[float, int]] = []
        self.newcomers: list[tuple[int, float]] = []
        self.priorities = {pid: self.rng.random() for pid in range(size)}
        for pid, priority in self.priorities.items():
            self.queue.push(pid, priority)
            self.heap.append((-priority, pid))
        heapify(self.heap)

    def draw_newcomers(self, number: int) -> None:
        """Agents that neither side has seen."""
        first = self.size + number * OPERATIONS
        self._draw(number, range(first, first + OPERATIONS))

    def draw_updates(self, number: int) -> None:
        """New priorities for agents that are there."""
        self._draw(number, self.rng.choices(range(self.size), k=OPERATIONS))
        self.priorities.update(self.newcomers)

    def _draw(self, number: int, pids: Sequence[int]) -> None:
        # Priorities sink by the width of the queue in as many steps as it is long. Otherwise the best are
        # soon gone, every newcomer is popped at once, and nothing is measured but the root of the heap.
        past = number * OPERATIONS
        self.newcomers = [(pid, self.rng.random() - (past + at) / self.size) for at, pid in enumerate(pids)]

    def push_pop_queue(self) -> list[int]:
        """Push and pop, ours."""
        push, pop, popped = self.queue.push, self.queue.pop, []
        for pid, priority in self.newcomers:
            push(pid, priority)
            popped.append(pop())
        return popped

    def push_pop_heap(self) -> list[int]:
        """Push and pop, bare."""
        heap, popped = self.heap, []
        for pid, priority in self.newcomers:
            heappush(heap, (-priority, pid))
            popped.append(heappop(heap)[1])
        return popped

    def update_queue(self) -> None:
        """Change priorities in place."""
        update = self.queue.update_priority
        for pid, priority in self.newcomers:
            update(pid, priority)

    def in_order(self, _ours: object, _theirs: object) -> bool:
        """Whether the queue is in the order of the last priorities given."""
        best = sorted(self.priorities.items(), key=lambda item: (-item[1], item[0]))
        return self.queue.to_sorted_list() == best and self.queue.peek() == best[0][0]


def _push_pop_arena(size: int) -> Arena:
    sides = Sides(size)
    return Arena(rota=sides.push_pop_queue, base=sides.push_pop_heap, before=sides.draw_newcomers)


def _update_arena(size: int) -> Arena:
    sides = Sides(size)
    return Arena(rota=sides.update_queue, base=sides.push_pop_heap, before=sides.draw_updates, verify=sides.in_order)

"""An admitted invocation on its way through a lane, and the plain order among them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Protocol

from rota.graph.invocation import Invocation
from rota.graph.messages import Inputs
from rota.graph.nodes import Node

__all__ = ["ClassOrder", "Item", "Order"]


class Item:
    """An admitted invocation. A plain component's has no `Invocation`: what it did is noted here."""

    __slots__ = (
        "ended_at_s",
        "epoch_id",
        "inputs",
        "invocation",
        "is_rejected",
        "is_waiting",
        "node",
        "number",
        "problem",
        "returned",
        "started_at_s",
        "worker_id",
    )

    # these are there once somebody has executed it
    worker_id: int
    started_at_s: float
    ended_at_s: float
    returned: Any

    def __init__(
        self, node: Node, inputs: Inputs, epoch_id: int, number: int, invocation: Invocation | None = None
    ) -> None:
        self.node = node
        self.inputs = inputs
        self.epoch_id = epoch_id  # in which it became ready
        self.number = number  # the order in which invocations became ready on the lane
        self.invocation = invocation
        self.is_waiting = True
        self.is_rejected = False
        self.problem: BaseException | None = None

    @property
    def duration_s(self) -> float:
        """How long it took, once it is done."""
        done = self if self.invocation is None else self.invocation
        return done.ended_at_s - done.started_at_s


class Order(Protocol):
    """An order among the invocations that may be executed now."""

    def add(self, item: Item, /) -> None:
        """One more."""
        ...

    def remove(self, item: Item, /) -> None:
        """One less: it was taken past this order."""
        ...

    def discard(self, item: Item, /) -> None:
        """One less: nobody will execute it."""
        ...

    def take(self, epoch_id: int, /) -> Item | None:
        """The next one."""
        ...

    def first(self) -> Item | None:
        """The next one, if that can be said without taking it."""
        ...

    def done(self, item: Item, /) -> None:
        """It was executed; how long it took is known now."""
        ...


class ClassOrder:
    """The four classes: rank, then the order in which invocations became ready."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Item]] = []  # no two numbers are equal, so items are never compared

    def add(self, item: Item, /) -> None:
        """One more."""
        heappush(self._heap, (-item.node.rank, item.number, item))

    def remove(self, item: Item, /) -> None:
        """It stays in the heap until it comes up; by then it does not wait any more, and is passed over."""

    def discard(self, item: Item, /) -> None:
        """As with remove."""

    def first(self) -> Item | None:
        """The next one."""
        heap = self._heap
        while heap and not heap[0][2].is_waiting:
            heappop(heap)
        return heap[0][2] if heap else None

    def take(self, _epoch_id: int, /) -> Item | None:
        """The next one."""
        heap = self._heap
        while heap:
            item = heappop(heap)[2]
            if item.is_waiting:
                return item
        return None

    def done(self, item: Item, /) -> None:
        """What it cost does not move this order."""

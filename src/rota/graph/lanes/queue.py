"""Who of the ready invocations on a lane goes next.

By default the four classes: rank (high before normal, low, background), then the order in which invocations became
ready. A lane may name any registered policy instead, which sees it as one snapshot (see `model.snapshot`):

    candidate   an invocation, by its number                owner, group    its component, the lane
    now         the epoch                                   slots           one: a worker asks when it is free
    priority    rank 3 … 0                                  weight          8, 4, 2, 1 by class
    deadline    when it became ready + its budget, in ms    cost, usage     nanoseconds: expected, measured

Two rules stand above any order. A component that is not reentrant has one invocation under way: its next one is not
shown before the last one is done. And where a queue outlives an epoch, an invocation that has been passed over for
`starvation_epochs` epochs goes ahead, once, whatever the order says.

    high, high, high … one high invocation arrives each epoch and one is executed; low became ready in epoch 1:
    with starvation_epochs 8 it runs in epoch 9, and starvation_guard_count is 1

A policy that raises or answers nonsense is replaced by the four classes for the rest of the run, with a health event:
it may cost order, never an invocation.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from rota.errors import PolicyFailed
from rota.graph.lanes.order import ClassOrder, Item, Order
from rota.graph.lanes.policy_order import PolicyOrder
from rota.graph.nodes import Node
from rota.graph.reports import Reports, words

__all__ = ["LaneQueue"]


class LaneQueue:
    """Admitted invocations of a lane. It does not lock: its lane does."""

    def __init__(self, lane_id: str, policy: PolicyOrder | None, starvation_epochs: int, reports: Reports) -> None:
        self._lane_id = lane_id
        self._order: Order = ClassOrder() if policy is None else policy
        self._starvation_epochs = starvation_epochs
        self._reports = reports
        self._items: dict[int, Item] = {}  # whoever waits, by number, oldest first
        self._by_age: list[tuple[int, Item]] = []  # those that may go next, as a heap; only where somebody may starve
        self._behind: dict[Node, deque[Item]] = {}  # not reentrant: those that wait for the one before them
        self.visible = 0  # those that may go next
        self.starvation_guards = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_plain(self) -> bool:
        """Whether the order is the four classes and nothing else."""
        return isinstance(self._order, ClassOrder) and not self._starvation_epochs

    def add(self, item: Item) -> None:
        """An invocation was admitted."""
        self._items[item.number] = item
        if not item.node.reentrant:
            behind = self._behind.get(item.node)
            if behind is not None:
                behind.append(item)
                return
            self._behind[item.node] = deque()
        self._show(item)

    def take(self, epoch_id: int) -> Item | None:
        """Take out the next one that may be executed; None when there is none."""
        item = (self._by_age and self._starving(epoch_id)) or self._next(epoch_id)
        if item is not None:
            item.is_waiting = False
            self.visible -= 1
            del self._items[item.number]
        return item

    def done(self, item: Item) -> None:
        """It was executed: the next one of its component may be."""
        try:
            self._order.done(item)
        except Exception as problem:  # a policy's failure, not the lane's
            self._fall_back(problem)
        self._let_next_pass(item.node)

    def discard(self, item: Item) -> None:
        """Throw out an invocation that waits."""
        item.is_waiting = False
        del self._items[item.number]
        behind = self._behind.get(item.node)
        if behind and item in behind:
            behind.remove(item)
            return
        self.visible -= 1
        try:
            self._order.discard(item)
        except Exception as problem:  # a policy's failure, not the lane's
            self._fall_back(problem)
        self._let_next_pass(item.node)

    def drain(self) -> list[Item]:
        """Throw out everything that waits, oldest first."""
        waiting = sorted(self._items.values(), key=lambda item: item.number)
        for item in waiting:
            self.discard(item)
        return waiting

    def _let_next_pass(self, node: Node) -> None:
        """The invocation that stood in the way is gone."""
        if node.reentrant:
            return
        behind = self._behind[node]
        if behind:
            self._show(behind.popleft())
        else:
            del self._behind[node]

    def _show(self, item: Item) -> None:
        self.visible += 1
        if self._starvation_epochs:
            heappush(self._by_age, (item.number, item))
        try:
            self._order.add(item)
        except Exception as problem:  # a policy's failure, not the lane's
            self._fall_back(problem)
            self._order.add(item)

    def _next(self, epoch_id: int) -> Item | None:
        try:
            return self._order.take(epoch_id)
        except Exception as problem:  # a policy's failure, not the lane's
            self._fall_back(problem)
            return self._order.take(epoch_id)

    def _starving(self, epoch_id: int) -> Item | None:
        """The oldest one, if it has been passed over for too long and would be passed over again."""
        while self._by_age and not self._by_age[0][1].is_waiting:
            heappop(self._by_age)
        if not self._by_age:
            return None
        oldest = self._by_age[0][1]
        if epoch_id - oldest.epoch_id < self._starvation_epochs or self._order.first() is oldest:
            return None
        self.starvation_guards += 1
        try:
            self._order.remove(oldest)
        except Exception as problem:  # a policy's failure, not the lane's
            self._fall_back(problem)
        return oldest

    def _fall_back(self, problem: Exception) -> None:
        """Go on with the four classes."""
        if not isinstance(self._order, PolicyOrder):
            raise problem
        failed = PolicyFailed(f"{self._order.name} failed on lane {self._lane_id}: {words(problem)}")
        self._reports.health("policy_failed", failed.message, lane=self._lane_id)
        order = ClassOrder()
        for item in self._order.items():
            order.add(item)
        self._order = order

"""The queue of a lane: which accepted invocation is executed next.

The default order is by class: rank (high before normal, low, background), then the order in which invocations became
ready. A lane may name any registered policy instead, which sees the queue as a snapshot (see `model.snapshot`):

    candidate   an invocation, by its number                owner, group    its component, the lane
    now         the epoch                                   slots           one: a worker asks when it is free
    priority    rank 3 … 0                                  weight          8, 4, 2, 1 by class
    deadline    when it became ready + its budget, in ms    cost, usage     nanoseconds: expected, measured

Two rules come before any order. A component that is not reentrant has at most one invocation in flight: its next one is
hidden until the previous one is done. And if the queue outlives an epoch, an invocation that was passed over for
`starvation_epochs` epochs is taken next, whatever the order says.

    high, high, high … one high invocation arrives each epoch and one is executed; low became ready in epoch 1:
    with starvation_epochs 8 it runs in epoch 9, and starvation_guard_count is 1

A policy that raises or returns an invalid choice is replaced by the default order for the rest of the run, with a
health event: a broken policy affects the order, but loses no invocation.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from rota.errors import PolicyFailed
from rota.graph.lanes.order import LaneOrder, PolicyOrder, PriorityOrder, QueuedInvocation
from rota.graph.nodes import Node
from rota.graph.reports import Reports
from rota.policy.foreign import describe_error

__all__ = ["InvocationQueue"]


class InvocationQueue:
    """The accepted invocations of a lane. It has no lock: the lane's lock protects it."""

    def __init__(self, lane_id: str, policy: PolicyOrder | None, starvation_epochs: int, reports: Reports) -> None:
        self._lane_id = lane_id
        self._order: LaneOrder = PriorityOrder() if policy is None else policy
        self._starvation_epochs = starvation_epochs
        self._reports = reports
        self._items: dict[int, QueuedInvocation] = {}  # all waiting invocations by number, oldest first
        self._by_age: list[tuple[int, QueuedInvocation]] = []  # visible ones as a heap, only with a starvation guard
        self._waiting_behind: dict[
            Node, deque[QueuedInvocation]
        ] = {}  # not reentrant: hidden until the previous one is done
        self.visible = 0  # the number of invocations that may be taken next
        self.starvation_guards = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_plain(self) -> bool:
        """Whether the order is by class, without a starvation guard."""
        return isinstance(self._order, PriorityOrder) and not self._starvation_epochs

    def add(self, item: QueuedInvocation) -> None:
        """Add an accepted invocation."""
        self._items[item.number] = item
        if not item.node.reentrant:
            behind = self._waiting_behind.get(item.node)
            if behind is not None:
                behind.append(item)
                return
            self._waiting_behind[item.node] = deque()
        self._make_visible(item)

    def take(self, epoch_id: int) -> QueuedInvocation | None:
        """Remove and return the next invocation that may be executed; None if there is none."""
        item = (self._by_age and self._take_starving(epoch_id)) or self._next(epoch_id)
        if item is not None:
            item.is_waiting = False
            self.visible -= 1
            del self._items[item.number]
        return item

    def done(self, item: QueuedInvocation) -> None:
        """Record that an invocation was executed: the next one of its component may follow."""
        try:
            self._order.done(item)
        except BaseException as problem:  # the policy's failure, not the lane's
            self._fall_back(problem)
        self._show_next(item.node)

    def discard(self, item: QueuedInvocation) -> None:
        """Remove a waiting invocation that will not be executed."""
        item.is_waiting = False
        del self._items[item.number]
        behind = self._waiting_behind.get(item.node)
        if behind and item in behind:
            behind.remove(item)
            return
        self.visible -= 1
        try:
            self._order.discard(item)
        except BaseException as problem:  # the policy's failure, not the lane's
            self._fall_back(problem)
        self._show_next(item.node)

    def drain(self) -> list[QueuedInvocation]:
        """Remove and return all waiting invocations, oldest first."""
        waiting = sorted(self._items.values(), key=lambda item: item.number)
        for item in waiting:
            self.discard(item)
        return waiting

    def _show_next(self, node: Node) -> None:
        """Make the component's next invocation visible after one was executed or discarded."""
        if node.reentrant:
            return
        behind = self._waiting_behind[node]
        if behind:
            self._make_visible(behind.popleft())
        else:
            del self._waiting_behind[node]

    def _make_visible(self, item: QueuedInvocation) -> None:
        self.visible += 1
        if self._starvation_epochs:
            heappush(self._by_age, (item.number, item))
        try:
            self._order.add(item)
        except BaseException as problem:  # the policy's failure, not the lane's
            self._fall_back(problem)
            self._order.add(item)

    def _next(self, epoch_id: int) -> QueuedInvocation | None:
        try:
            return self._order.take(epoch_id)
        except BaseException as problem:  # the policy's failure, not the lane's
            self._fall_back(problem)
            return self._order.take(epoch_id)

    def _take_starving(self, epoch_id: int) -> QueuedInvocation | None:
        """Take the oldest invocation if it was passed over for too long and is not next anyway."""
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
        except BaseException as problem:  # the policy's failure, not the lane's
            self._fall_back(problem)
        return oldest

    def _fall_back(self, problem: BaseException) -> None:
        """Continue with the default order after a policy failed."""
        if not isinstance(self._order, PolicyOrder) or isinstance(problem, KeyboardInterrupt):
            raise problem
        failed = PolicyFailed(f"{self._order.name} failed on lane {self._lane_id}: {describe_error(problem)}")
        self._reports.health("policy_failed", failed.message, lane=self._lane_id)
        order = PriorityOrder()
        for item in self._order.items():
            order.add(item)
        self._order = order

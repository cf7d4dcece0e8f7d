"""The capacity of a lane: how many of a component's ready invocations it accepts, and what happens to the rest.

Capacity is counted per component and step: the workers it may use (all of the lane's if it is reentrant, else one) plus
`queue_capacity` waiting invocations. `queue_capacity: 0`, the default, accepts everything. For invocations over the
capacity, `overflow` decides:

    drop_oldest, overwrite            the newest are accepted
    drop_newest, reject, reject_new   the oldest are accepted
    block                             the oldest are accepted; with `overflow_deadline_ms` the others are *held* and
                                      accepted one by one as invocations finish, or rejected after the deadline
    fail_fast                         the run ends with an error

    3 workers, queue_capacity 2, a reentrant component with 7 ready invocations: 5 are accepted, 2 are not

When an invocation of a component has finished, the oldest held one is accepted in its place. If the deadline has passed
by then, or the run was asked to stop, all held invocations of the component are rejected: they would only be later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from rota.graph.commit import Committer
from rota.graph.lanes.order import QueuedInvocation
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node
from rota.graph.plan import Lane
from rota.graph.reports import Reports, RunStopped
from rota.graph.spec import PRIORITY_RANKS

__all__ = ["Accepted", "BlockedInvocations", "LaneCapacity"]

_KEEP_NEWEST = ("drop_oldest", "overwrite")
_LOW = PRIORITY_RANKS["low"]


class Accepted(NamedTuple):
    """The inputs that a lane accepts now, and those it holds until there is room."""

    now: Sequence[Inputs]
    held: Sequence[Inputs] = ()


class LaneCapacity:
    """The capacity and overflow policy of one lane."""

    def __init__(self, lane: Lane, meter: LaneMeter, reports: Reports) -> None:
        self._lane = lane
        self._meter = meter
        self._reports = reports
        self._capacity = lane.spec.queue_capacity
        self._overflow = lane.spec.overflow
        self.overflow_timeout_s = lane.spec.overflow_deadline_ms / 1000 if lane.spec.overflow == "block" else 0.0
        meter.queue_capacity = self._capacity

    def room(self, node: Node) -> int | None:
        """Return how many invocations of a component the lane accepts in one step; None: any number."""
        if self._capacity == 0:
            return None
        return (max(1, self._lane.workers) if node.reentrant else 1) + self._capacity

    def accept(self, node: Node, ready: Sequence[Inputs]) -> Accepted:
        """Choose among a component's ready invocations; none of them is on the lane yet."""
        room = self.room(node)
        if room is None or len(ready) <= room:
            return Accepted(ready)
        if self._overflow == "fail_fast":
            self._fail(node, len(ready), room)
        if self.overflow_timeout_s > 0:
            return Accepted(ready[:room], ready[room:])
        self.reject(node, len(ready) - room)
        return Accepted(ready[-room:] if self._overflow in _KEEP_NEWEST else ready[:room])

    def reject(self, node: Node, count: int, reason: str = "") -> None:
        """Count and report invocations that are not executed."""
        meter = self._meter
        meter.rejected_count += count
        node.rejected += count
        if node.rank <= _LOW:
            meter.low_priority_rejected_count += count
        reason = reason or f"lane {self._lane.id} accepts {self.room(node)} per step"
        message = f"{count} ready invocations of {node.id} were rejected (overflow: {self._overflow}): {reason}"
        self._reports.health("scheduler_reject", message, component_id=node.id, lane=self._lane.id)

    def _fail(self, node: Node, ready: int, room: int) -> None:
        self.reject(node, ready - room)
        message = f"{ready} invocations are ready, but lane {self._lane.id} accepts {room} (overflow: fail_fast)"
        self._reports.error("runtime", "lane_overflow", message, component_id=node.id, lane=self._lane.id)
        raise RunStopped


class BlockedInvocations:
    """The invocations that one lane holds until there is room."""

    def __init__(self, lane_capacity: LaneCapacity, meter: LaneMeter) -> None:
        self._lane_capacity = lane_capacity
        self._meter = meter
        self._items: dict[Node, deque[QueuedInvocation]] = {}
        self._since_s: dict[Node, float] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, items: Sequence[QueuedInvocation], now_s: float) -> None:
        """Hold these invocations from now on."""
        for item in items:
            self._items.setdefault(item.node, deque()).append(item)
            self._since_s.setdefault(item.node, now_s)

    def next(self, node: Node, committer: Committer) -> tuple[QueuedInvocation | None, int]:
        """Return the held invocation that takes a free place of this component, and how many were rejected instead."""
        if node not in self._items:
            return None, 0
        waited_s = committer.clock.monotonic() - self._since_s[node]
        if committer.stop_token.is_set:
            return None, self._reject(node, "the run was asked to stop")
        if waited_s > self._lane_capacity.overflow_timeout_s:
            return None, self._reject(node, "there was no room before the overflow deadline")
        item = self._items[node].popleft()
        if not self._items[node]:
            self._remove(node, waited_s)
        return item, 0

    def reject_all(self) -> None:
        """Reject everything that is still held: the run is over."""
        for node in tuple(self._items):
            self._reject(node, "the run ended before there was room")

    def _reject(self, node: Node, reason: str) -> int:
        rejected = self._items[node]
        for item in rejected:
            item.is_rejected = True
        self._remove(node, self._lane_capacity.overflow_timeout_s)
        self._lane_capacity.reject(node, len(rejected), reason)
        return len(rejected)

    def _remove(self, node: Node, waited_s: float) -> None:
        del self._items[node]
        del self._since_s[node]
        self._meter.blocked_s += waited_s

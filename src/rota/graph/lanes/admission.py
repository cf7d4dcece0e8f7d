"""How many of a component's ready invocations a lane takes in, and what becomes of the rest.

Room is counted per component and step: the workers it may use (all of the lane's if it is reentrant, else one) and
`queue_capacity` places behind them. `queue_capacity: 0` takes in everything: nothing is lost by default settings.
For more than there is room for, `overflow` decides:

    drop_oldest, overwrite            the newest are taken in
    drop_newest, reject, reject_new   the oldest are taken in
    block                             the same; with `overflow_deadline_ms` the others are *held*: each is taken in as
                                      soon as there is room, and rejected if that takes too long
    fail_fast                         the run ends with an error

    3 workers, queue_capacity 2, a reentrant component with 7 ready invocations: 5 are taken in, 2 are not
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node
from rota.graph.plan import Lane
from rota.graph.reports import Reports, RunStopped
from rota.graph.spec import PRIORITY_RANKS

__all__ = ["Admission", "Admitted"]

_KEEP_NEWEST = ("drop_oldest", "overwrite")
_LOW = PRIORITY_RANKS["low"]


class Admitted(NamedTuple):
    """What a lane takes in, and what it holds back until there is room."""

    now: Sequence[Inputs]
    held: Sequence[Inputs] = ()


class Admission:
    """The door of one lane."""

    def __init__(self, lane: Lane, meter: LaneMeter, reports: Reports) -> None:
        self._lane = lane
        self._meter = meter
        self._reports = reports
        self._capacity = lane.spec.queue_capacity
        self._overflow = lane.spec.overflow
        self.patience_s = lane.spec.overflow_deadline_ms / 1000 if lane.spec.overflow == "block" else 0.0
        meter.queue_capacity = self._capacity

    def room(self, node: Node) -> int | None:
        """How many invocations of a component may be on the lane at once; None: any number."""
        if self._capacity == 0:
            return None
        return (max(1, self._lane.workers) if node.reentrant else 1) + self._capacity

    def admit(self, node: Node, ready: Sequence[Inputs]) -> Admitted:
        """Choose among the invocations of a component that are ready in this step; none of it is on the lane yet."""
        room = self.room(node)
        if room is None or len(ready) <= room:
            return Admitted(ready)
        if self._overflow == "fail_fast":
            self._fail(node, len(ready), room)
        if self.patience_s > 0:
            return Admitted(ready[:room], ready[room:])
        self.reject(node, len(ready) - room)
        return Admitted(ready[-room:] if self._overflow in _KEEP_NEWEST else ready[:room])

    def reject(self, node: Node, count: int, why: str = "") -> None:
        """So many ready invocations are not executed."""
        meter = self._meter
        meter.rejected_count += count
        if node.rank <= _LOW:
            meter.low_priority_rejected_count += count
        why = why or f"lane {self._lane.id} has room for {self.room(node)} of it"
        message = f"{count} ready invocations of {node.id} were rejected ({self._overflow}): {why}"
        self._reports.health("scheduler_reject", message, component_id=node.id, lane=self._lane.id)

    def _fail(self, node: Node, ready: int, room: int) -> None:
        self.reject(node, ready - room)
        message = f"{ready} invocations are ready where lane {self._lane.id} has room for {room} (overflow: fail_fast)"
        self._reports.error("runtime", "lane_overflow", message, component_id=node.id, lane=self._lane.id)
        raise RunStopped

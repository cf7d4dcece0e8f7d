"""Invocations that wait for room on a lane whose overflow is `block`, each until its deadline.

When one of a component's invocations is done, the oldest that is held back takes its place. If the deadline is over by
then, or the run was asked to stop, all that are held back are rejected: they would only be later still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rota.graph.execution import Settlement
from rota.graph.lanes.admission import Admission
from rota.graph.lanes.order import Item
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node

__all__ = ["HeldBack"]


class HeldBack:
    """What is held back on one lane."""

    def __init__(self, admission: Admission, meter: LaneMeter) -> None:
        self._admission = admission
        self._meter = meter
        self._items: dict[Node, deque[Item]] = {}
        self._since_s: dict[Node, float] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def fill(self, items: Sequence[Item], now_s: float) -> None:
        """These find no room, from now on."""
        for item in items:
            self._items.setdefault(item.node, deque()).append(item)
            self._since_s.setdefault(item.node, now_s)

    def next(self, node: Node, settlement: Settlement) -> tuple[Item | None, int]:
        """There is room for one more of a component: the one that takes it, and how many were rejected instead."""
        if node not in self._items:
            return None, 0
        waited_s = settlement.clock.monotonic() - self._since_s[node]
        if settlement.stop_token.is_set:
            return None, self._reject(node, "the run was asked to stop")
        if waited_s > self._admission.patience_s:
            return None, self._reject(node, "there was no room before the overflow deadline")
        item = self._items[node].popleft()
        if not self._items[node]:
            self._forget(node, waited_s)
        return item, 0

    def give_up(self) -> None:
        """The run is over: reject what is still here."""
        for node in tuple(self._items):
            self._reject(node, "the run ended before there was room")

    def _reject(self, node: Node, why: str) -> int:
        rejected = self._items[node]
        for item in rejected:
            item.is_rejected = True
        self._forget(node, self._admission.patience_s)
        self._admission.reject(node, len(rejected), why)
        return len(rejected)

    def _forget(self, node: Node, waited_s: float) -> None:
        del self._items[node]
        del self._since_s[node]
        self._meter.blocked_s += waited_s

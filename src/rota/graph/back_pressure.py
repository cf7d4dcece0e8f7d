"""Back-pressure: a component is not ready while an edge behind it could not hold what it would publish.

Edges to and from durable lanes are queues that never overwrite: each message there cost a run. When such an edge is
full, the component before it waits, and so the edge before that one fills. On a durable lane, entries that have not
ended count too: no entry is enqueued whose result could not be held.

    capacity 3    2 messages wait on the edge, 1 entry has not ended     the component enqueues nothing
                  a reader takes one message                             the component enqueues one more entry
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rota.graph.channels import MessageChannel
from rota.graph.messages import Inputs
from rota.graph.reports import Reports
from rota.graph.triggers import ComponentTrigger, WrappedTrigger

__all__ = ["BackPressure", "holding_back"]


def holding_back(
    component_id: str, trigger: ComponentTrigger, outgoing: Sequence[MessageChannel], reports: Reports
) -> ComponentTrigger:
    """Return the trigger of a component; if durable edges lead away from it, one that waits for room on them."""
    bounded = [channel for channel in outgoing if channel.is_durable and channel.room() is not None]
    return BackPressure(component_id, trigger, bounded, reports) if bounded else trigger


class BackPressure(WrappedTrigger):
    """A trigger that is not ready while the edges behind its component are full."""

    def __init__(
        self, component_id: str, inner: ComponentTrigger, outgoing: Sequence[MessageChannel], reports: Reports
    ) -> None:
        super().__init__(inner)
        self._component_id = component_id
        self._outgoing = tuple(outgoing)
        self._reports = reports
        self._iteration_id = -1
        self._granted = 0  # invocations of this iteration, whose publications are not on the edges yet
        self._is_held_back = False
        self.in_flight: Callable[[], int] = lambda: 0  # entries whose results are not on the edges yet
        self.held_back = 0  # how often it waited, for metrics
        self.is_timed = True  # it may be ready as soon as there is room

    def counts(self) -> dict[str, int]:
        """Return what the inner trigger did to messages, and how often this one waited."""
        return {**self._inner.counts(), "backpressure_count": self.held_back}

    def next(self, now_s: float, iteration_id: int, /) -> Inputs | None:
        """Return what the inner trigger returns, if there is room for one more result."""
        if iteration_id != self._iteration_id:
            self._iteration_id, self._granted = iteration_id, 0
        full = self._full_edge(self._granted + self.in_flight())
        if full is not None:
            self._hold_back(full, now_s)
            return None
        self._is_held_back = False
        inputs = self._inner.next(now_s, iteration_id)
        if inputs is not None:
            self._granted += 1
        return inputs

    def due_at_s(self, now_s: float, *, timers: bool = True) -> float:
        """Return now if it was held back and there is room, never if there is none, else when the inner trigger is due.

        Time gives no room: while an edge is full, an epoch for a timer that is due would execute nothing, again and
        again. This is asked between epochs, when what the last one published is on the edges.
        """
        if self._is_held_back:
            return math.inf if self.waits_for_room else -math.inf
        return self._inner.due_at_s(now_s, timers=timers)

    @property
    def waits_for_room(self) -> bool:
        """Whether it was held back and there is no room yet."""
        return self._is_held_back and self._full_edge(self.in_flight()) is not None

    def _has_more(self, now_s: float) -> bool:
        """Whether the inner trigger may be ready: by a message, by a timer, or because an iteration begins."""
        inner = self._inner
        if not inner.ready_without_message or any(channel.items for channel in inner.woken_by):
            return inner.may_be_ready
        return (inner.every_iteration and not self._granted) or inner.due_at_s(now_s) <= now_s

    def _full_edge(self, coming: int) -> MessageChannel | None:
        """Return an edge that has no room for one more result than these."""
        for channel in self._outgoing:
            room = channel.room()
            if room is not None and room <= coming:
                return channel
        return None

    def _hold_back(self, full: MessageChannel, now_s: float) -> None:
        if self._is_held_back or not self._has_more(now_s):
            return
        self._is_held_back = True
        self.held_back += 1
        message = f"component {self._component_id} waits: edge {full.id} is full ({full.capacity} messages)"
        self._reports.health("backpressure", message, component_id=self._component_id, channel_id=full.id)

"""The modes of a channel: what becomes of a message that arrives. See `channels` for the words."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from rota.graph.channels import Channel
from rota.graph.messages import Message
from rota.graph.plan import Edge
from rota.graph.reports import Reports
from rota.graph.spec import EdgePolicy, EdgeSpec, Endpoint

__all__ = ["INBOX_CAPACITY", "make_channel", "make_inbox"]

INBOX_CAPACITY = 1_024  # events from outside that may wait for one component


class LatestChannel(Channel):
    """One place: the newest message has it."""

    __slots__ = ()

    def _keep(self, message: Message) -> None:
        items = self.items
        if items:
            items.clear()
            self.overwrites += 1
        items.append(message)


class PreviousTickChannel(Channel):
    """One place, filled when the epoch is over."""

    __slots__ = ()
    minds_epochs = True

    def _keep(self, message: Message) -> None:
        if self._hidden:
            self._hidden.clear()
            self.overwrites += 1
        self._hidden.append(message)

    def next_epoch(self) -> None:
        """What was published in the epoch that ended becomes visible."""
        if self._hidden:
            self.overwrites += len(self.items)
            self.items = deque(self._hidden)
            self._hidden.clear()
            self.max_depth = max(self.max_depth, len(self.items))


class BarrierChannel(Channel):
    """Nobody passes until enough are there; then everybody does."""

    __slots__ = ()

    def _keep(self, message: Message) -> None:
        self._hidden.append(message)
        if len(self._hidden) >= self.capacity:
            self.items.extend(self._hidden)
            self._hidden.clear()


class QueueChannel(Channel):
    """A line of bounded length."""

    __slots__ = ()

    def room(self) -> int | None:
        """How many messages may still come before one is refused with an error."""
        in_flight = super().room()
        if not self._loss_is_error or self._overflow == "overwrite":
            return in_flight
        room = self.capacity - len(self.items)
        return room if in_flight is None else min(room, in_flight)

    def _keep(self, message: Message) -> None:
        if len(self.items) < self.capacity:
            self.items.append(message)
        else:
            self._OVERFLOW[self._overflow](self, message)

    def _overwrite(self, message: Message) -> None:
        self.items.popleft()
        self.overwrites += 1
        self.items.append(message)

    def _drop_oldest(self, message: Message) -> None:
        if self._loss_is_error:
            self._reject(message)  # which raises
        self.drop_front(f"edge {self.id} is full")
        self.items.append(message)

    def _drop_newest(self, _message: Message) -> None:
        self._refuse("channel_drop", self._full())
        self.drops += 1

    def _reject(self, _message: Message) -> None:
        self._refuse("channel_reject", self._full())
        self.rejects += 1

    def _push_back(self, _message: Message) -> None:
        self._refuse("backpressure", self._full())
        self.rejects += 1

    def _full(self) -> str:
        return f"{self.capacity} messages wait already"

    _OVERFLOW: dict[str, Callable[[Any, Message], None]] = {  # noqa: RUF012  # a table of methods, never changed
        "overwrite": _overwrite,
        "drop_oldest": _drop_oldest,
        "drop_newest": _drop_newest,
        "reject": _reject,
        "fail_fast": _reject,
        "block": _push_back,
    }


_Kind: TypeAlias = type[Channel]
_MODES: dict[str, _Kind] = {
    "latest": LatestChannel,
    "latched": LatestChannel,
    "queue": QueueChannel,
    "ring_buffer": QueueChannel,
    "barrier": BarrierChannel,
    "previous_tick": PreviousTickChannel,
}


def make_channel(edge: Edge, reports: Reports, *, capacity: int | None = None) -> Channel:
    """The channel of an edge; `capacity` overrules the edge's own."""
    return _MODES[edge.spec.policy.mode](edge, reports, capacity=capacity)


def make_inbox(component_id: str, port: str, reports: Reports) -> Channel:
    """A channel without an edge: what arrives for a component from outside the graph."""
    policy = EdgePolicy(mode="queue", capacity=INBOX_CAPACITY, overflow="reject", copy_policy="shared_view")
    spec = EdgeSpec(
        id=f"{component_id}:{port}", kind="async", source="", target=f"{component_id}.{port}", policy=policy
    )
    return QueueChannel(Edge(spec=spec, source=Endpoint("", ""), target=Endpoint(component_id, port)), reports)

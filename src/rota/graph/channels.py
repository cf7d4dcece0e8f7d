"""Channels: the messages that wait on an edge for the reading component. One edge, one channel, one reader.

The mode of the edge decides what happens to an arriving message:

    latest         replaces the waiting message (counted as an overwrite, which is not a drop)
    latched        like latest; the value also stays readable after it was taken, but triggers only once
    queue          waits behind the others, up to `capacity`; then `overflow` decides
    ring_buffer    like queue; its usual overflow is to overwrite the oldest message
    barrier        is hidden until `capacity` messages have arrived; then all of them become visible together
    previous_tick  is hidden until the epoch ends; of several messages the last one wins

A `state` edge keeps its value like a latched one, whatever its mode: it is a variable, not a stream.

`take` returns each message once. `read` serves a component that runs anyway: it returns a kept value again. Messages
older than `lifespan_ms` are dropped on the next access; those older than `deadline_ms` are delivered with a mark.

A channel has no lock: only one thread at a time may use it, the run's own or that of the lane that owns it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from rota.errors import ComponentInvalid
from rota.graph.messages import Message, Origin
from rota.graph.plan import Edge
from rota.graph.reports import Reports
from rota.graph.spec import EdgePolicy, EdgeSpec, Endpoint

__all__ = ["INBOX_CAPACITY", "ChannelContents", "ChannelFull", "MessageChannel", "make_channel", "make_inbox"]

INBOX_CAPACITY = 1_024  # outside events that may wait for one component, per port

# Values of these types are immutable: they are passed on without a copy.
_IMMUTABLE = frozenset({int, float, complex, bool, str, bytes, type(None)})


class ChannelFull(Exception):
    """A message was refused on an edge where a loss must stop the run."""


class ChannelContents(msgspec.Struct, frozen=True):
    """The messages of a channel, as a checkpoint stores them."""

    offered: int
    waiting: tuple[Message, ...]
    hidden: tuple[Message, ...]
    kept: Message | None


class MessageChannel:
    """The messages on one edge; a subclass for each mode decides what happens to an arriving message."""

    __slots__ = (
        "_copies",
        "_deadline_s",
        "_hidden",
        "_lifespan_s",
        "_loss_is_error",
        "_max_inflight",
        "_offered_before",
        "_overflow",
        "_reports",
        "_reports_health",
        "_timed",
        "capacity",
        "closed",
        "component_id",
        "deadline_misses",
        "domain",
        "drops",
        "health_events",
        "id",
        "is_deferred",
        "is_durable",
        "items",
        "keeps_order",
        "keeps_value",
        "kept",
        "max_depth",
        "offered",
        "overwrites",
        "payload_copies",
        "port",
        "refused",
        "rejects",
        "stale_drops",
    )

    acts_at_epoch_begin = False  # whether `begin_epoch` does anything

    def __init__(self, edge: Edge, reports: Reports, *, capacity: int | None = None) -> None:
        policy = edge.spec.policy.completed(durable=edge.is_durable)
        self.id = edge.id
        self.component_id = edge.target.component
        self.port = edge.target.port
        self.domain = policy.timestamp_domain
        self.capacity = policy.capacity if capacity is None else capacity
        self.is_deferred = edge.spec.kind != "immediate"
        self.keeps_value = policy.mode == "latched" or edge.spec.kind == "state"
        self.items: deque[Message] = deque()  # visible and not yet taken
        self.kept: Message | None = None  # the last message taken, if the edge keeps its value
        self.closed = False  # the reader was isolated: everything is dropped
        self._hidden: deque[Message] = deque()
        self._overflow = policy.overflow
        self._loss_is_error = policy.overflow == "fail_fast" or not policy.allow_drop
        self._copies = policy.copy_policy == "copy"
        self._lifespan_s = policy.lifespan_ms / 1000
        self._deadline_s = policy.deadline_ms / 1000
        self._timed = bool(policy.lifespan_ms or policy.deadline_ms)
        self.is_durable = edge.is_durable  # each message cost a run
        self.keeps_order = policy.preserve_order  # of the results of entries
        self._max_inflight = policy.max_inflight if edge.spec.kind == "async" else 0
        self._reports_health = policy.emit_health_events
        self._reports = reports
        self.offered = self.refused = 0  # `offered` is also the number of the newest message
        self._offered_before = 0  # by earlier processes of the same run
        self.drops = self.overwrites = self.rejects = self.stale_drops = self.deadline_misses = 0
        self.health_events = self.payload_copies = self.max_depth = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_timed(self) -> bool:
        """Whether messages on this edge expire or can be late."""
        return self._timed

    @property
    def committed(self) -> int:
        """The number of messages that were accepted in this process."""
        return self.offered_here - self.refused

    @property
    def offered_here(self) -> int:
        """The number of messages that were offered in this process."""
        return self.offered - self._offered_before

    # --- writing ---------------------------------------------------------------------------------

    def put(self, payload: Any, origin: Origin, timestamp_ms: float | None = None) -> None:
        """Commit a payload, copied first if the edge copies."""
        if self._copies and type(payload) not in _IMMUTABLE:
            payload = self.copy_payload(payload)
        self.commit(payload, origin, timestamp_ms)

    def copy_payload(self, payload: Any) -> Any:
        """Return the payload as this edge carries it: a deep copy, or the object itself."""
        if not self._copies or type(payload) in _IMMUTABLE:
            return payload
        self.payload_copies += 1
        try:
            return copy.deepcopy(payload)
        except Exception as problem:  # __deepcopy__ is the user's code and may raise anything
            raise ComponentInvalid(
                f"edge {self.id} copies its payloads, but a {type(payload).__name__} cannot be copied: {problem}",
                hint="Set `copy_policy: shared_view` on the edge to pass payloads by reference.",
            ) from problem

    def commit(self, payload: Any, origin: Origin, timestamp_ms: float | None = None) -> None:
        """Accept a payload, or apply the overflow policy to it."""
        self.offered += 1
        if self.closed:
            self.refused += 1
            self.drops += 1
            return
        if self._max_inflight and len(self.items) >= self._max_inflight and not self._makes_room_in_flight():
            return
        self._store(Message(payload, self.id, self.offered, origin, timestamp_ms))
        depth = len(self.items)
        if depth > self.max_depth:  # noqa: PLR1730  # max() would cost a call for every message
            self.max_depth = depth

    def _makes_room_in_flight(self) -> bool:
        """Apply the overflow policy to `max_inflight`; False if the offered message is refused."""
        reason = f"{self._max_inflight} messages are already in flight (max_inflight)"
        if self._overflow == "drop_oldest" and not self._loss_is_error:
            self.drop_front(reason)
        elif self._overflow == "drop_newest":
            self._refuse("channel_drop", reason)
            self.drops += 1
        else:
            self._refuse("channel_reject", reason)
            self.rejects += 1
        return self._overflow == "drop_oldest"

    def room(self) -> int | None:
        """Return how many more messages fit before one is refused with an error; None if that never happens."""
        if self._loss_is_error and self._max_inflight:
            return self._max_inflight - len(self.items)
        return None

    def _store(self, message: Message) -> None:
        raise NotImplementedError

    def _refuse(self, kind: str, reason: str) -> None:
        """Refuse the offered message: raise if no loss is allowed, else report it."""
        self.refused += 1
        if self._loss_is_error:
            raise ChannelFull(f"edge {self.id}: {reason}, and the edge allows no loss")
        self._health(kind, f"edge {self.id}: {reason}")

    def _health(self, kind: str, message: str) -> None:
        if self._reports_health:
            self.health_events += 1
            self._reports.health(kind, message, component_id=self.component_id, channel_id=self.id)

    # --- reading ---------------------------------------------------------------------------------

    def take(self, now_s: float) -> Message | None:
        """Remove and return the next message; None if none waits."""
        items = self.items
        if self._timed:
            self._drop_stale(now_s)
        if not items:
            return None
        message = items.popleft()
        if self._timed:
            self._mark_late(message, now_s)
        if self.keeps_value:
            self.kept = message
        return message

    def read(self, now_s: float) -> Message | None:
        """Remove and return the next message; if none waits, return the kept value."""
        message = self.take(now_s)
        return message if message is not None or not self.keeps_value else self.kept

    def peek(self, now_s: float) -> Message | None:
        """Return what `read` would return, without removing it."""
        if self._timed:
            self._drop_stale(now_s)
        return self.items[0] if self.items else self.kept

    def take_up_to(self, now_s: float, max_n: int) -> tuple[Message, ...]:
        """Remove and return up to `max_n` waiting messages, oldest first."""
        taken: list[Message] = []
        while len(taken) < max_n and (message := self.take(now_s)) is not None:
            taken.append(message)
        return tuple(taken)

    def newest(self) -> Message | None:
        """Return the last accepted message that was not taken, even if it is still hidden."""
        if self._hidden:
            return self._hidden[-1]
        return self.items[-1] if self.items else None

    def keep_newest(self) -> None:
        """Drop all waiting messages except the newest; the others count as overwritten."""
        while len(self.items) > 1:
            self.items.popleft()
            self.overwrites += 1

    def drop_front(self, reason: str) -> None:
        """Drop the message that would be taken next."""
        message = self.items.popleft()
        self.drops += 1
        self._health("channel_drop", f"message {message.id} was dropped: {reason}")

    def drop_older(self, than_s: float, now_s: float) -> None:
        """Drop waiting messages that were published more than `than_s` seconds ago."""
        items = self.items
        while items and now_s - items[0].origin.published_at_s > than_s:
            self._count_stale(items.popleft())

    def _drop_stale(self, now_s: float) -> None:
        lifespan_s = self._lifespan_s
        if lifespan_s:
            self.drop_older(lifespan_s, now_s)
            if self.kept is not None and now_s - self.kept.origin.published_at_s > lifespan_s:
                self._count_stale(self.kept)
                self.kept = None

    def _count_stale(self, message: Message) -> None:
        self.stale_drops += 1
        self._health("stale_drop", f"message {message.id} was dropped: too old")

    def _mark_late(self, message: Message, now_s: float) -> None:
        if self._deadline_s and now_s - message.origin.published_at_s > self._deadline_s:
            message.deadline_missed = True
            self.deadline_misses += 1
            self._health("deadline_miss", f"message {message.id} was delivered late")

    # --- between epochs --------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """A new epoch begins; only some modes do anything here."""

    @property
    def waits_for_epoch(self) -> bool:
        """Whether a message becomes visible when the next epoch begins."""
        return self.acts_at_epoch_begin and bool(self._hidden)

    def close(self) -> None:
        """Drop everything, now and in future: the reader was isolated."""
        self.closed = True
        self.drops += len(self.items) + len(self._hidden)
        self.items.clear()
        self._hidden.clear()
        self.kept = None

    def contents(self) -> ChannelContents:
        """Return all messages of the channel."""
        return ChannelContents(self.offered, tuple(self.items), tuple(self._hidden), self.kept)

    def restore(self, contents: ChannelContents) -> None:
        """Replace the messages of the channel; counting starts at zero."""
        self.offered, self.kept = contents.offered, contents.kept
        self._offered_before = contents.offered
        self.items = deque(contents.waiting)
        self._hidden = deque(contents.hidden)


class LatestChannel(MessageChannel):
    """A channel that holds only the newest message."""

    __slots__ = ()

    def _store(self, message: Message) -> None:
        items = self.items
        if items:
            items.clear()
            self.overwrites += 1
            if self.is_durable:
                self._health("channel_overwrite", f"edge {self.id}: a newer message replaced one that was not read")
        items.append(message)


class PreviousTickChannel(MessageChannel):
    """A channel that holds only the newest message and shows it when the epoch has ended."""

    __slots__ = ()
    acts_at_epoch_begin = True

    def _store(self, message: Message) -> None:
        if self._hidden:
            self._hidden.clear()
            self.overwrites += 1
        self._hidden.append(message)

    def begin_epoch(self) -> None:
        """Show the message of the epoch that ended."""
        if self._hidden:
            self.overwrites += len(self.items)
            self.items = deque(self._hidden)
            self._hidden.clear()
            self.max_depth = max(self.max_depth, len(self.items))


class BarrierChannel(MessageChannel):
    """A channel that hides messages until `capacity` of them have arrived, then shows them all."""

    __slots__ = ()

    def _store(self, message: Message) -> None:
        self._hidden.append(message)
        if len(self._hidden) >= self.capacity:
            self.items.extend(self._hidden)
            self._hidden.clear()


class QueueChannel(MessageChannel):
    """A bounded queue."""

    __slots__ = ()

    def room(self) -> int | None:
        """Return how many more messages fit before one is refused with an error; None if that never happens."""
        in_flight = super().room()
        if not self._loss_is_error or self._overflow == "overwrite":
            return in_flight
        room = self.capacity - len(self.items)
        return room if in_flight is None else min(room, in_flight)

    def _store(self, message: Message) -> None:
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
            self._reject(message)  # raises
        self.drop_front(f"edge {self.id} is full")
        self.items.append(message)

    def _drop_newest(self, _message: Message) -> None:
        self._refuse("channel_drop", self._full_text())
        self.drops += 1

    def _reject(self, _message: Message) -> None:
        self._refuse("channel_reject", self._full_text())
        self.rejects += 1

    def _apply_backpressure(self, _message: Message) -> None:
        self._refuse("backpressure", self._full_text())
        self.rejects += 1

    def _full_text(self) -> str:
        return f"{self.capacity} messages are already waiting (capacity)"

    _OVERFLOW: dict[str, Callable[[Any, Message], None]] = {  # noqa: RUF012  # a table of methods, never changed
        "overwrite": _overwrite,
        "drop_oldest": _drop_oldest,
        "drop_newest": _drop_newest,
        "reject": _reject,
        "fail_fast": _reject,
        "block": _apply_backpressure,
    }


_CHANNEL_CLASSES: dict[str, type[MessageChannel]] = {
    "latest": LatestChannel,
    "latched": LatestChannel,
    "queue": QueueChannel,
    "ring_buffer": QueueChannel,
    "barrier": BarrierChannel,
    "previous_tick": PreviousTickChannel,
}


def make_channel(edge: Edge, reports: Reports, *, capacity: int | None = None) -> MessageChannel:
    """Return the channel for an edge; `capacity` overrides the edge's own."""
    mode = edge.spec.policy.completed(durable=edge.is_durable).mode
    return _CHANNEL_CLASSES[mode](edge, reports, capacity=capacity)


def make_inbox(component_id: str, port: str, reports: Reports) -> MessageChannel:
    """Return a channel without an edge, for events that reach a component from outside the graph."""
    policy = EdgePolicy(mode="queue", capacity=INBOX_CAPACITY, overflow="reject", copy_policy="shared_view")
    spec = EdgeSpec(
        id=f"{component_id}:{port}", kind="async", source="", target=f"{component_id}.{port}", policy=policy
    )
    return QueueChannel(Edge(spec=spec, source=Endpoint("", ""), target=Endpoint(component_id, port)), reports)

"""Channels: where messages wait until their reader takes them. One edge, one channel, one reader.

What differs between the modes (see `channel_modes`) is only what happens to a message that arrives:

    latest         takes the place of the one before it (counted as an overwrite, which is not a drop)
    latched        the same, and the value stays readable after it was taken; as an event it counts once
    queue          waits behind the others, up to `capacity`; then `overflow` decides
    ring_buffer    the same; its usual overflow is to overwrite the oldest
    barrier        is hidden until `capacity` of them are there, then all of them are released together
    previous_tick  is hidden until the epoch is over; of several, the last one counts

A `state` edge keeps its value like a latched one, whatever its mode: it is a variable, not a stream.

`take` gives the next message once. `read` is for a component that runs anyway: it also gives a kept value again.
Messages older than `lifespan_ms` are dropped when somebody looks; those older than `deadline_ms` are delivered, marked.

A channel does not lock. Its run commits to it and reads from it under one roof (the epoch, or the lane that owns it).
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import msgspec

from rota.errors import ComponentInvalid
from rota.graph.messages import Message, Origin
from rota.graph.plan import Edge
from rota.graph.reports import Reports

__all__ = ["Channel", "ChannelContents", "ChannelFull"]

# Nothing can be changed in these, so a reference is as good as a copy.
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None)})


class ChannelFull(Exception):
    """A message was refused where the edge says that a loss must stop the run."""


class ChannelContents(msgspec.Struct, frozen=True):
    """What a channel holds, to be stored and put back."""

    offered: int
    waiting: tuple[Message, ...]
    hidden: tuple[Message, ...]
    kept: Message | None


class Channel:
    """Messages on one edge; the subclasses say what becomes of a new one."""

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
        "_speaks",
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
        "items",
        "keeps",
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

    minds_epochs = False  # whether `next_epoch` does anything

    def __init__(self, edge: Edge, reports: Reports, *, capacity: int | None = None) -> None:
        policy = edge.spec.policy
        self.id = edge.id
        self.component_id = edge.target.component
        self.port = edge.target.port
        self.domain = policy.timestamp_domain
        self.capacity = policy.capacity if capacity is None else capacity
        self.is_deferred = edge.spec.kind != "immediate"
        self.keeps = policy.mode == "latched" or edge.spec.kind == "state"
        self.items: deque[Message] = deque()  # visible and not yet taken
        self.kept: Message | None = None  # the last one taken, where the value stays readable
        self.closed = False  # the reader was isolated: nothing is kept for it
        self._hidden: deque[Message] = deque()
        self._overflow = policy.overflow
        self._loss_is_error = policy.overflow == "fail_fast" or not policy.allow_drop
        self._copies = policy.copy_policy == "copy"
        self._lifespan_s = policy.lifespan_ms / 1000
        self._deadline_s = policy.deadline_ms / 1000
        self._timed = bool(policy.lifespan_ms or policy.deadline_ms)
        self._max_inflight = policy.max_inflight if edge.spec.kind == "async" else 0
        self._speaks = policy.emit_health_events
        self._reports = reports
        self.offered = self.refused = 0  # a message's number is the count of offers so far
        self._offered_before = 0  # in an earlier process of the same run
        self.drops = self.overwrites = self.rejects = self.stale_drops = self.deadline_misses = 0
        self.health_events = self.payload_copies = self.max_depth = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_timed(self) -> bool:
        """Whether it matters when somebody looks."""
        return self._timed

    @property
    def committed(self) -> int:
        """How many messages were let in."""
        return self.offers - self.refused

    @property
    def offers(self) -> int:
        """How many messages were offered in this process."""
        return self.offered - self._offered_before

    # --- the writer's side -----------------------------------------------------------------------

    def put(self, payload: Any, origin: Origin, timestamp_ms: float | None = None) -> None:
        """Commit a payload, copied if the edge says so."""
        if self._copies and type(payload) not in _ATOMS:
            payload = self.copied(payload)
        self.commit(payload, origin, timestamp_ms)

    def copied(self, payload: Any) -> Any:
        """The payload as this edge carries it."""
        if not self._copies or type(payload) in _ATOMS:
            return payload
        self.payload_copies += 1
        try:
            return copy.deepcopy(payload)
        except Exception as problem:  # __deepcopy__ is the user's code and may raise anything
            raise ComponentInvalid(
                f"edge {self.id} copies its payloads, and a {type(payload).__name__} cannot be copied: {problem}",
                hint="Say `copy_policy: shared_view` on the edge to pass it by reference.",
            ) from problem

    def commit(self, payload: Any, origin: Origin, timestamp_ms: float | None = None) -> None:
        """Let a payload in, or do with it what the overflow policy says."""
        self.offered += 1
        if self.closed:
            self.refused += 1
            self.drops += 1
            return
        if self._max_inflight and len(self.items) >= self._max_inflight:
            self._refuse("channel_reject", f"{self._max_inflight} messages are in flight already")
            self.rejects += 1
            return
        self._keep(Message(payload, self.id, self.offered, origin, timestamp_ms))
        depth = len(self.items)
        if depth > self.max_depth:  # noqa: PLR1730  # max() would cost a call for every message
            self.max_depth = depth

    def room(self) -> int | None:
        """How many messages may still come before one is refused with an error; None: as many as you like."""
        if self._loss_is_error and self._max_inflight:
            return self._max_inflight - len(self.items)
        return None

    def _keep(self, message: Message) -> None:
        raise NotImplementedError

    def _refuse(self, kind: str, why: str) -> None:
        """The message on offer is not let in."""
        self.refused += 1
        if self._loss_is_error:
            raise ChannelFull(f"edge {self.id}: {why}, and nothing may be lost on it")
        self._health(kind, f"edge {self.id}: {why}")

    def _health(self, kind: str, message: str) -> None:
        if self._speaks:
            self.health_events += 1
            self._reports.health(kind, message, component_id=self.component_id, channel_id=self.id)

    # --- the reader's side -----------------------------------------------------------------------

    def take(self, now_s: float) -> Message | None:
        """The next message, once; None when nothing waits."""
        items = self.items
        if self._timed:
            self._drop_stale(now_s)
        if not items:
            return None
        message = items.popleft()
        if self._timed:
            self._mark_late(message, now_s)
        if self.keeps:
            self.kept = message
        return message

    def read(self, now_s: float) -> Message | None:
        """The next message, or else the value that stayed readable."""
        message = self.take(now_s)
        return message if message is not None or not self.keeps else self.kept

    def front(self, now_s: float) -> Message | None:
        """What `read` would give, without taking it."""
        if self._timed:
            self._drop_stale(now_s)
        return self.items[0] if self.items else self.kept

    def take_all(self, now_s: float, most: int) -> tuple[Message, ...]:
        """As many as wait, oldest first, at most so many."""
        taken: list[Message] = []
        while len(taken) < most and (message := self.take(now_s)) is not None:
            taken.append(message)
        return tuple(taken)

    def newest(self) -> Message | None:
        """The last message that was let in and not taken, also while it is hidden."""
        if self._hidden:
            return self._hidden[-1]
        return self.items[-1] if self.items else None

    def keep_newest(self) -> None:
        """Merge what waits into its newest message; the others count as overwritten."""
        while len(self.items) > 1:
            self.items.popleft()
            self.overwrites += 1

    def drop_front(self, why: str) -> None:
        """Give up the message that would come next."""
        message = self.items.popleft()
        self.drops += 1
        self._health("channel_drop", f"message {message.id} was dropped: {why}")

    def drop_older(self, than_s: float, now_s: float) -> None:
        """Drop what was published longer ago than this."""
        items = self.items
        while items and now_s - items[0].origin.published_at_s > than_s:
            self._note_stale(items.popleft())

    def _drop_stale(self, now_s: float) -> None:
        lifespan_s = self._lifespan_s
        if lifespan_s:
            self.drop_older(lifespan_s, now_s)
            if self.kept is not None and now_s - self.kept.origin.published_at_s > lifespan_s:
                self._note_stale(self.kept)
                self.kept = None

    def _note_stale(self, message: Message) -> None:
        self.stale_drops += 1
        self._health("stale_drop", f"message {message.id} was dropped: too old")

    def _mark_late(self, message: Message, now_s: float) -> None:
        if self._deadline_s and now_s - message.origin.published_at_s > self._deadline_s:
            message.deadline_missed = True
            self.deadline_misses += 1
            self._health("deadline_miss", f"message {message.id} was delivered late")

    # --- between epochs --------------------------------------------------------------------------

    def next_epoch(self) -> None:
        """An epoch has passed; most modes do not mind."""

    def close(self) -> None:
        """The reader takes part no more: what waits is dropped, and so is what comes."""
        self.closed = True
        self.drops += len(self.items) + len(self._hidden)
        self.items.clear()
        self._hidden.clear()
        self.kept = None

    def contents(self) -> ChannelContents:
        """Everything it holds."""
        return ChannelContents(self.offered, tuple(self.items), tuple(self._hidden), self.kept)

    def restore(self, contents: ChannelContents) -> None:
        """Hold this instead. What is counted from here on starts at nothing."""
        self.offered, self.kept = contents.offered, contents.kept
        self._offered_before = contents.offered
        self.items = deque(contents.waiting)
        self._hidden = deque(contents.hidden)

"""The journal as server-sent events.

Events are pulled, not pushed: the next batch is read from the journal when the subscriber has taken the previous one,
so a slow subscriber costs one batch of memory. A subscriber that falls too far behind gets a `gap`, which names the
first and last event it misses, and is disconnected; it can continue from the journal with the last id it saw. A
subscriber that asks for events that retention has removed also gets a `gap`.

All subscribers that keep up need the same few events. These are read and encoded once and cached, up to a number and a
size. A subscriber that is further behind, or may not see all projects, reads the journal for itself.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request

from rota.errors import InvalidInput, LimitExceeded
from rota.model.events import Event
from rota.rpc.authorization import Principal
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.handlers import RpcHandlers
from rota.rpc.methods import METHODS
from rota.rpc.results import EventsResult

__all__ = ["BATCH", "EventStream", "Subscriber"]

BATCH = 64  # events read at a time; the memory of a subscriber is at most this many of the largest events
RECENT_MAX = 1_024  # events cached for subscribers that keep up
RECENT_BYTES_MAX = 4 * 1024 * 1024
_encode = msgspec.json.Encoder().encode
_TAIL = METHODS["kernel.event.tail"]
_HEARTBEAT = b": alive\n\n"


class Subscriber:
    """A client that follows the journal."""

    def __init__(self, principal: Principal, since: int | None) -> None:
        self.principal = principal
        self.cursor = since
        self.caught_up = False  # it has read all there was; from then on it can fall behind
        self.changed = asyncio.Event()


class RecentEvents:
    """The last events, encoded for subscribers that may see all projects."""

    def __init__(self, read: Callable[[int], list[Event]]) -> None:
        self._read = read  # a batch of events after a cursor
        self._lock = asyncio.Lock()
        self._ids: list[int] = []
        self._frames: list[bytes] = []
        self._bytes = 0
        self._start = 0  # the events after this id are cached
        self.last = 0

    def restart(self, cursor: int) -> None:
        """Start again after a cursor, as when there was no subscriber for a while."""
        self._ids, self._frames, self._bytes = [], [], 0
        self._start = self.last = cursor

    def has(self, cursor: int) -> bool:
        """Return whether the cache continues from this cursor."""
        return self._start <= cursor <= self.last

    def after(self, cursor: int) -> tuple[list[bytes], int]:
        """Return a batch of the events after a cursor, and the last id in it."""
        at = bisect_right(self._ids, cursor)
        frames = self._frames[at : at + BATCH]
        return frames, self._ids[at + len(frames) - 1] if frames else cursor

    async def read_on(self, cursor: int) -> None:
        """Read the next events, unless another subscriber has just done so."""
        async with self._lock:
            if cursor < self.last:
                return
            for event in await asyncio.to_thread(self._read, self.last):
                self._append(event)

    def _append(self, event: Event) -> None:
        frame = _frame(event)
        self._ids.append(event.event_id)
        self._frames.append(frame)
        self._bytes += len(frame)
        self.last = event.event_id
        while len(self._ids) > 1 and (self._bytes > RECENT_BYTES_MAX or len(self._ids) > RECENT_MAX):
            self._start = self._ids.pop(0)
            self._bytes -= len(self._frames.pop(0))


class EventStream:
    """All subscribers."""

    def __init__(self, executor: CallExecutor, handlers: RpcHandlers, limits: DaemonLimits) -> None:
        self._executor = executor
        self._handlers = handlers
        self._limits = limits
        self._subscribers: set[Subscriber] = set()
        self._ended = False
        self._stop_following: Any = None
        self._recent = RecentEvents(self._read_batch)

    def subscribe(self, request: Request, principal: Principal) -> Subscriber:
        """Add a subscriber: from `since`, from `Last-Event-ID`, or from now on."""
        limit = self._limits.subscribers_max
        if len(self._subscribers) >= limit:
            raise LimitExceeded("subscribers_max", limit, limit + 1)
        asked = request.headers.get("last-event-id") or request.query_params.get("since")
        if asked is not None and not re.fullmatch("[0-9]{1,18}", asked):
            raise InvalidInput(f"since must be the id of an event, not {asked!r}", field="since")
        subscriber = Subscriber(principal, None if asked is None else int(asked))
        if not self._subscribers:
            self._stop_following = self._executor.follow(self._wake)
        self._subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        self._subscribers.discard(subscriber)
        if not self._subscribers and self._stop_following is not None:
            self._stop_following()
            self._stop_following = None

    def end(self) -> None:
        """Send all subscribers a `shutdown` event and end their streams."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        for subscriber in self._subscribers:
            subscriber.changed.set()

    async def chunks(self, subscriber: Subscriber, gone: asyncio.Future[None]) -> AsyncIterator[bytes]:
        """Yield what a subscriber is sent, until it disconnects or falls too far behind."""
        first, last = await asyncio.to_thread(self._first_and_last)
        if subscriber.cursor is None:
            subscriber.cursor = last
        if first is not None and subscriber.cursor < first - 1:
            yield _gap(subscriber.cursor + 1, first - 1, "removed")
            subscriber.cursor = first - 1
        yield _HEARTBEAT  # confirms the subscription
        while not gone.done():
            subscriber.changed.clear()  # before reading, so that a later event sets it again
            frames, cursor = await self._next(subscriber, subscriber.cursor)
            subscriber.caught_up = subscriber.caught_up or len(frames) < BATCH
            if frames:
                yield b"".join(frames)
                subscriber.cursor = cursor
                if gap := await self._gap_if_slow(subscriber, len(frames)):
                    yield gap
                    return
            elif self._ended:
                yield b"event: shutdown\ndata: {}\n\n"
                return
            elif not await self._changed(subscriber, gone):
                yield _HEARTBEAT

    async def _next(self, subscriber: Subscriber, cursor: int) -> tuple[list[bytes], int]:
        """Return the next batch for a subscriber, and its cursor after it."""
        if cursor > self._recent.last:
            self._recent.restart(cursor)
        if subscriber.principal.projects is None and self._recent.has(cursor):
            await self._recent.read_on(cursor)
            if self._recent.has(cursor):  # it may have dropped events meanwhile
                return self._recent.after(cursor)
        events = await asyncio.to_thread(self._read, subscriber, cursor)
        return [_frame(event) for event in events], events[-1].event_id if events else cursor

    async def _changed(self, subscriber: Subscriber, gone: asyncio.Future[None]) -> bool:
        """Wait for a change; return False when it is time for a heartbeat."""
        changed = asyncio.ensure_future(subscriber.changed.wait())
        done, _ = await asyncio.wait(
            (changed, gone), timeout=self._limits.heartbeat_s, return_when=asyncio.FIRST_COMPLETED
        )
        changed.cancel()
        return bool(done)

    async def _gap_if_slow(self, subscriber: Subscriber, sent: int) -> bytes | None:
        """Return a gap for a subscriber that fell too far behind while it was sent a whole batch."""
        if sent < BATCH or not subscriber.caught_up or subscriber.cursor is None:
            return None
        _, last = await asyncio.to_thread(self._first_and_last)
        behind = last - subscriber.cursor
        if behind > self._limits.lag_events_max:
            return _gap(subscriber.cursor + 1, last, "slow")
        return None

    def _read(self, subscriber: Subscriber, cursor: int) -> list[Event]:
        result: EventsResult = self._handlers.execute(
            _TAIL, _TAIL.params(since=cursor, limit=BATCH), subscriber.principal
        )
        return result.events

    def _read_batch(self, cursor: int) -> list[Event]:
        return self._handlers.kernel.journal.tail(cursor, BATCH)

    def _first_and_last(self) -> tuple[int | None, int]:
        return self._handlers.kernel.journal.ends()


def _frame(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.event_id, _line(event.kind), _encode(event))


def _line(kind: str) -> bytes:
    """Return a kind on one line: users choose the kinds of their events."""
    return " ".join(kind.splitlines()).encode(errors="replace")


def _gap(first: int, last: int, reason: str) -> bytes:
    return b"event: gap\ndata: %s\n\n" % _encode({"from": first, "to": last, "reason": reason})

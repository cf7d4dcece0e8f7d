"""The journal as server-sent events.

Events are pulled, not pushed: the next part is read from the journal when the subscriber has taken the previous one, so
a slow subscriber costs one part of memory, which is `PART_BYTES` or one event. A subscriber that falls too far behind
or reads nothing gets a `gap`, which names the first and last event it misses, and is disconnected; it can continue from
the journal with the last id it saw. A subscriber that asks for events that retention has removed also gets a `gap`.

All subscribers that keep up need the same few events. These are read and encoded once and cached, up to a number and a
size. A subscriber that is further behind, or is bound to projects, reads the journal for itself. When a subscriber's
access token is revoked or expires, an `ended` frame says so and the stream ends.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable
from itertools import groupby
from typing import Any

import msgspec

from rota.errors import InvalidInput, LimitExceeded, RotaError, Unauthenticated
from rota.model.events import Event
from rota.rpc.authorization import Principal
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.handlers import RpcHandlers
from rota.rpc.methods import METHODS
from rota.rpc.results import EventsResult

__all__ = ["BATCH", "EventStream", "Subscriber"]

BATCH = 64  # events read at a time, fewer if they are large
KEEPS_UP_S = 0.1  # a subscriber that takes what it is sent within this time keeps up
PART_BYTES = 256 * 1024  # of events sent at a time, unless one alone is larger
RECENT_MAX = 1_024  # events cached for subscribers that keep up
RECENT_BYTES_MAX = 4 * 1024 * 1024
_encode = msgspec.json.Encoder().encode
_TAIL = METHODS["kernel.event.tail"]
_HEARTBEAT = b": alive\n\n"


class Subscriber:
    """A client that follows the journal."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.cursor = 0  # the last event before those that it is still sent
        self.missed = b""  # the gap before these, if it asked for events that were removed
        self.caught_up = False  # it has read all there was; from then on it can fall behind
        self.changed = asyncio.Event()
        self.gone = False  # its connection is lost
        self.ended: RotaError | None = None  # its rights have ended
        self.unwatch: Callable[[], None] | None = None  # whether they have
        self.batch = BATCH  # events to read at a time

    def lost(self) -> None:
        """Its connection is lost."""
        self.gone = True
        self.changed.set()

    def end(self, error: RotaError) -> None:
        """Its rights have ended: it is told so, and sent nothing more."""
        self.ended = error
        self.changed.set()


class RecentEvents:
    """The last events, encoded for subscribers that may see all projects."""

    def __init__(self, read: Callable[[int, int], list[Event]]) -> None:
        self._read = read  # events after a cursor, up to a number
        self._batch = BATCH
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
        """Return a part of the events after a cursor, and the last id in it."""
        at = bisect_right(self._ids, cursor)
        frames = first_part(self._frames[at : at + BATCH])
        return frames, self._ids[at + len(frames) - 1] if frames else cursor

    async def read_on(self, cursor: int) -> None:
        """Read the next events, unless another subscriber has just done so."""
        async with self._lock:
            if cursor < self.last:
                return
            events = await asyncio.to_thread(self._read, self.last, self._batch)
            before = self._bytes
            for event in events:
                self._append(event)
            self._batch = next_batch(self._batch, self._bytes - before)

    def _append(self, event: Event) -> None:
        frame = _frame(event)
        self._ids.append(event.event_id)
        self._frames.append(frame)
        self._bytes += len(frame)
        self.last = event.event_id
        while len(self._ids) > 1 and (self._bytes > RECENT_BYTES_MAX or len(self._ids) > RECENT_MAX):
            self._start = self._ids.pop(0)
            self._bytes -= len(self._frames.pop(0))


def first_part(frames: list[bytes]) -> list[bytes]:
    """Return as many of the frames as are sent at a time."""
    size = 0
    for count, frame in enumerate(frames):
        size += len(frame)
        if size > PART_BYTES:
            return frames[: max(1, count)]
    return frames


def next_batch(count: int, size: int) -> int:
    """Return how many events to read next, after this many had this size: about as many as are sent at a time."""
    if size > PART_BYTES:
        return max(1, count * PART_BYTES // size)
    return min(BATCH, 2 * count)


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
        self._reading = asyncio.Lock()  # one subscriber at a time reads for itself: a batch may be large

    async def subscribe(self, asked: str | None, principal: Principal) -> Subscriber:
        """Add a subscriber: from the event that it asks for, or from now on. It gets all that is appended from then on.

        So a client is answered only after this: what it does next it will see.
        """
        limit = self._limits.subscribers_max
        if len(self._subscribers) >= limit:
            raise LimitExceeded("subscribers_max", limit, limit + 1)
        if asked is not None and not re.fullmatch("[0-9]{1,18}", asked):
            raise InvalidInput(f"since must be the id of an event, not {asked!r}", field="since")
        subscriber = Subscriber(principal)
        if not self._subscribers:
            self._stop_following = self._executor.follow(self._wake)
        self._subscribers.add(subscriber)
        if principal.can_end:
            subscriber.unwatch = self._executor.rights.watch(principal, subscriber.end)
        try:
            first, last = await asyncio.to_thread(self._first_and_last)
        except BaseException:
            self.unsubscribe(subscriber)
            raise
        subscriber.cursor = last if asked is None else int(asked)
        if first is not None and subscriber.cursor < first - 1:
            subscriber.missed = _gap(subscriber.cursor + 1, first - 1, "removed")
            subscriber.cursor = first - 1
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        self._subscribers.discard(subscriber)
        if subscriber.unwatch is not None:
            subscriber.unwatch()
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

    async def parts(self, subscriber: Subscriber) -> AsyncIterator[bytes]:
        """Yield what a subscriber is sent, until it disconnects or falls too far behind."""
        loop = asyncio.get_running_loop()
        yield subscriber.missed + _HEARTBEAT
        while not subscriber.gone:
            subscriber.changed.clear()  # before reading, so that a later event sets it again
            frames, cursor = await self._next(subscriber, subscriber.cursor)
            if subscriber.ended is not None:
                yield b"event: ended\ndata: %s\n\n" % _encode({"reason": subscriber.ended.message})
                return
            if not frames and cursor > subscriber.cursor:  # events of other projects: its own may be behind them
                subscriber.cursor = cursor
                continue
            if frames:
                began_at = loop.time()
                subscriber.cursor = cursor  # first: a subscriber that is dropped meanwhile still gets these
                yield b"".join(frames)
                is_slow = loop.time() - began_at > KEEPS_UP_S or cursor < self._recent.last
                if is_slow and (gap := await self._gap_if_behind(subscriber)):
                    yield gap
                    return
            elif self._ended:
                yield b"event: shutdown\ndata: {}\n\n"
                return
            elif not await self._changed(subscriber):
                yield _HEARTBEAT
            subscriber.caught_up = subscriber.caught_up or not frames

    def slow_gap(self, subscriber: Subscriber) -> bytes:
        """Return the last frame for a subscriber that does not read."""
        missed = subscriber.cursor + 1
        return _gap(missed, max(missed, self._recent.last), "slow")

    async def _next(self, subscriber: Subscriber, cursor: int) -> tuple[list[bytes], int]:
        """Return the next batch for a subscriber, and its cursor after it."""
        if cursor > self._recent.last:
            self._recent.restart(cursor)
        if subscriber.principal.projects is None and self._recent.has(cursor):
            await self._recent.read_on(cursor)
            if self._recent.has(cursor):  # it may have dropped events meanwhile
                return self._recent.after(cursor)
        async with self._reading:
            return await asyncio.to_thread(self._read, subscriber, cursor)

    async def _changed(self, subscriber: Subscriber) -> bool:
        """Wait for a change; return False when it is time for a heartbeat."""
        try:
            async with asyncio.timeout(self._limits.heartbeat_s):
                await subscriber.changed.wait()
        except TimeoutError:
            return False
        return True

    async def _gap_if_behind(self, subscriber: Subscriber) -> bytes | None:
        """Return a gap for a subscriber that had read everything and then fell too far behind."""
        if not subscriber.caught_up:
            return None
        _, last = await asyncio.to_thread(self._first_and_last)
        behind = last - subscriber.cursor
        if behind > self._limits.lag_events_max:
            return _gap(subscriber.cursor + 1, last, "slow")
        return None

    def _read(self, subscriber: Subscriber, cursor: int) -> tuple[list[bytes], int]:
        params = _TAIL.params(since=cursor, limit=subscriber.batch)
        try:
            result: EventsResult = self._handlers.execute(_TAIL, params, subscriber.principal)
        except Unauthenticated as error:  # a run ended in the commit that woke its subscriber
            subscriber.ended = error
            return [], cursor
        by_id = [list(group) for _, group in groupby(result.events, key=lambda event: event.event_id)]
        frames = [b"".join(map(_frame, events)) for events in by_id]
        subscriber.batch = next_batch(subscriber.batch, sum(map(len, frames)))
        sent = first_part(frames)
        return sent, result.next_cursor if len(sent) == len(frames) else by_id[len(sent) - 1][0].event_id

    def _read_batch(self, cursor: int, count: int) -> list[Event]:
        return self._handlers.kernel.journal.tail(cursor, count)

    def _first_and_last(self) -> tuple[int | None, int]:
        return self._handlers.kernel.journal.ends()


def _frame(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.event_id, _line(event.kind), _encode(event))


def _line(kind: str) -> bytes:
    """Return a kind on one line: users choose the kinds of their events."""
    return " ".join(kind.splitlines()).encode(errors="replace")


def _gap(first: int, last: int, reason: str) -> bytes:
    return b"event: gap\ndata: %s\n\n" % _encode({"from": first, "to": last, "reason": reason})

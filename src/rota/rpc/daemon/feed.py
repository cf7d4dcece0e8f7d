"""The journal as server-sent events.

A subscriber is not sent to: it fetches. What it is sent is read from the journal when it has taken what it was sent
before, a batch at a time, so a slow one costs one batch of memory and no more. One that falls too far behind gets a
`gap`, which names the first and last event it will not see here, and is cut off; with the last id it saw it can come
back and read on from the journal. The same notice goes to whoever asks for events that retention has removed.

Those who keep up all want the same few events: these are read and encoded once, and kept for as long as somebody may
want them, up to a limit in bytes. Whoever is further behind, or may not see everything, reads for itself.
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
from rota.rpc.daemon.exchange import Exchange
from rota.rpc.daemon.limits import Limits
from rota.rpc.handlers import Caller, Office
from rota.rpc.methods import METHODS
from rota.rpc.params.register import Tail
from rota.rpc.results.register import Events
from rota.store.statements import journal as sql

__all__ = ["BATCH", "Feed", "Subscriber"]

BATCH = 64  # events read at a time: what a subscriber costs at most is so many of the largest
RECENT_MAX = 1_024  # events kept for those who keep up
RECENT_BYTES_MAX = 4 * 1024 * 1024
_encode = msgspec.json.Encoder().encode
_TAIL = METHODS["kernel.event.tail"]
_HEARTBEAT = b": alive\n\n"


class Subscriber:
    """Somebody who follows the journal."""

    def __init__(self, caller: Caller, since: int | None) -> None:
        self.caller = caller
        self.cursor = since
        self.live = False  # it has seen all there was: from here on falling behind is its own doing
        self.news = asyncio.Event()


class Recent:
    """The last events, as they are sent to whoever may see everything."""

    def __init__(self, read: Callable[[int], list[Event]]) -> None:
        self._read = read  # a batch of events after a cursor
        self._turn = asyncio.Lock()
        self._ids: list[int] = []
        self._frames: list[bytes] = []
        self._bytes = 0
        self._start = 0  # what follows this id is here
        self.last = 0

    def begin(self, cursor: int) -> None:
        """Somebody is ahead of what is kept, as after a time in which nobody followed: from here on it is kept anew."""
        self._ids, self._frames, self._bytes = [], [], 0
        self._start = self.last = cursor

    def has(self, cursor: int) -> bool:
        """Whether all that follows a cursor is here, or still to be read."""
        return self._start <= cursor <= self.last

    def after(self, cursor: int) -> tuple[list[bytes], int]:
        """A batch of what follows a cursor, and the last of its ids."""
        at = bisect_right(self._ids, cursor)
        frames = self._frames[at : at + BATCH]
        return frames, self._ids[at + len(frames) - 1] if frames else cursor

    async def look(self, cursor: int) -> None:
        """Read on, unless somebody else has just done so."""
        async with self._turn:
            if cursor < self.last:
                return
            for event in await asyncio.to_thread(self._read, self.last):
                self._keep(event)

    def _keep(self, event: Event) -> None:
        frame = _frame(event)
        self._ids.append(event.event_id)
        self._frames.append(frame)
        self._bytes += len(frame)
        self.last = event.event_id
        while len(self._ids) > 1 and (self._bytes > RECENT_BYTES_MAX or len(self._ids) > RECENT_MAX):
            self._start = self._ids.pop(0)
            self._bytes -= len(self._frames.pop(0))


class Feed:
    """All who follow."""

    def __init__(self, exchange: Exchange, office: Office, limits: Limits) -> None:
        self._exchange = exchange
        self._office = office
        self._limits = limits
        self._subscribers: set[Subscriber] = set()
        self._ended = False
        self._end_following: Any = None
        self._recent = Recent(self._read_batch)

    def subscribe(self, request: Request, caller: Caller) -> Subscriber:
        """Take in somebody who asks from `since` on, from the last event it saw, or from now on."""
        if len(self._subscribers) >= self._limits.subscribers_max:
            most = self._limits.subscribers_max
            raise LimitExceeded("subscribers_max", most, most + 1)
        asked = request.headers.get("last-event-id") or request.query_params.get("since")
        if asked is not None and not re.fullmatch("[0-9]{1,18}", asked):
            raise InvalidInput(f"since must be the id of an event, not {asked!r}", field="since")
        subscriber = Subscriber(caller, None if asked is None else int(asked))
        if not self._subscribers:
            self._end_following = self._exchange.follow(self._ring)
        self._subscribers.add(subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Forget a subscriber."""
        self._subscribers.discard(subscriber)
        if not self._subscribers and self._end_following is not None:
            self._end_following()
            self._end_following = None

    def end(self) -> None:
        """Tell all that there will be no more."""
        self._ended = True
        self._ring()

    def _ring(self) -> None:
        for subscriber in self._subscribers:
            subscriber.news.set()

    async def chunks(self, subscriber: Subscriber, gone: asyncio.Future[None]) -> AsyncIterator[bytes]:
        """What a subscriber is sent, as long as it is there."""
        first, last = await asyncio.to_thread(self._ends)
        if subscriber.cursor is None:
            subscriber.cursor = last
        if first is not None and subscriber.cursor < first - 1:
            yield _gap(subscriber.cursor + 1, first - 1, "removed")
            subscriber.cursor = first - 1
        yield _HEARTBEAT  # it is heard
        while not gone.done():
            subscriber.news.clear()  # before looking: what comes after it rings again
            frames, cursor = await self._next(subscriber, subscriber.cursor)
            subscriber.live = subscriber.live or len(frames) < BATCH
            if frames:
                yield b"".join(frames)
                subscriber.cursor = cursor
                if gap := await self._gap_if_slow(subscriber, len(frames)):
                    yield gap
                    return
            elif self._ended:
                yield b"event: shutdown\ndata: {}\n\n"
                return
            elif not await self._news(subscriber, gone):
                yield _HEARTBEAT

    async def _next(self, subscriber: Subscriber, cursor: int) -> tuple[list[bytes], int]:
        """The next batch for a subscriber, and where it is then."""
        if cursor > self._recent.last:
            self._recent.begin(cursor)
        if subscriber.caller.projects is None and self._recent.has(cursor):
            await self._recent.look(cursor)
            if self._recent.has(cursor):  # it may have moved on meanwhile
                return self._recent.after(cursor)
        events = await asyncio.to_thread(self._read, subscriber, cursor)
        return [_frame(event) for event in events], events[-1].event_id if events else cursor

    async def _news(self, subscriber: Subscriber, gone: asyncio.Future[None]) -> bool:
        """Whether there is something to look at before it is time for a sign of life."""
        news = asyncio.ensure_future(subscriber.news.wait())
        done, _ = await asyncio.wait(
            (news, gone), timeout=self._limits.heartbeat_s, return_when=asyncio.FIRST_COMPLETED
        )
        news.cancel()
        return bool(done)

    async def _gap_if_slow(self, subscriber: Subscriber, sent: int) -> bytes | None:
        """A notice for one that has fallen too far behind while it was sent a whole batch."""
        if sent < BATCH or not subscriber.live or subscriber.cursor is None:
            return None
        _, last = await asyncio.to_thread(self._ends)
        behind = last - subscriber.cursor
        if behind > self._limits.lag_events_max:
            return _gap(subscriber.cursor + 1, last, "slow")
        return None

    def _read(self, subscriber: Subscriber, cursor: int) -> list[Event]:
        result: Events = self._office.run(_TAIL, Tail(since=cursor, limit=BATCH), subscriber.caller)
        return result.events

    def _read_batch(self, cursor: int) -> list[Event]:
        return self._office.kernel.journal.tail(cursor, BATCH)

    def _ends(self) -> tuple[int | None, int]:
        rows = self._office.kernel.store.read(lambda tx: tx.run(sql.EVENT_ENDS))
        return rows[0][0], rows[0][1] or 0


def _frame(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.event_id, _line(event.kind), _encode(event))


def _line(kind: str) -> bytes:
    """A kind on one line, whatever somebody called their event."""
    return " ".join(kind.splitlines()).encode(errors="replace")


def _gap(first: int, last: int, why: str) -> bytes:
    return b"event: gap\ndata: %s\n\n" % _encode({"from": first, "to": last, "reason": why})

"""Parts of the API in another process that also have functions which are not methods, but made from methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Unpack

import msgspec

from rota.kernel.turn import ClaimOptions
from rota.model.events import Event, EventData
from rota.model.work import ReadyEntry
from rota.rpc.client.parts import AsyncJournalPart, AsyncQueuePart, JournalPart, QueuePart
from rota.rpc.methods import METHODS

__all__ = ["AsyncRemoteJournal", "AsyncRemoteQueue", "RemoteJournal", "RemoteQueue"]

POLL_S = 30.0  # how long one request waits for events

_CLAIM = METHODS["kernel.sched.claim"]
_RECORD = METHODS["kernel.event.record"]


# --- the queue: its claims obey the store's policy; without one they are in strict order ------------


class RemoteQueue(QueuePart):
    """The queue."""

    def claim(
        self, *, worker_id: str, max_n: int = 1, wait_s: float = 0.0, **options: Unpack[ClaimOptions]
    ) -> list[ReadyEntry]:
        """Claim ready entries by the store's policy; without one, in strict order."""
        params = _CLAIM.params(worker_id, max_n, wait_s=wait_s, **options)
        entries: list[ReadyEntry] = self._send(_CLAIM, params)
        return entries


class AsyncRemoteQueue(AsyncQueuePart):
    """The queue."""

    async def claim(
        self, *, worker_id: str, max_n: int = 1, wait_s: float = 0.0, **options: Unpack[ClaimOptions]
    ) -> list[ReadyEntry]:
        """Claim ready entries by the store's policy; without one, in strict order."""
        params = _CLAIM.params(worker_id, max_n, wait_s=wait_s, **options)
        entries: list[ReadyEntry] = await self._send(_CLAIM, params)
        return entries


# --- the journal: to follow it, the client repeats requests that wait for events -------------------


class RemoteJournal(JournalPart):
    """The journal."""

    def record(self, fact: EventData, *, pid: int | None = None) -> int:
        """Record an event about a run, a trigger, a supervisor or the fleet."""
        event_id: int = self._send(_RECORD, _RECORD.params(fact.kind, msgspec.to_builtins(fact), pid))
        return event_id

    def wait(self, since: int, wait_s: float) -> int:
        """Wait up to `wait_s` for an event after `since`, and return the id of the last event."""
        self.tail(since, 1, wait_s=wait_s)
        return self.cursor()

    def follow(self, since: int | None = None, *, wait_s: float | None = None) -> Iterator[Event]:
        """Yield events as they are committed, from a cursor or from now on; end after `wait_s` without one."""
        cursor = self.cursor() if since is None else since
        left_s = wait_s
        while left_s is None or left_s > 0:
            poll_s = POLL_S if left_s is None else min(left_s, POLL_S)
            events = self.tail(cursor, wait_s=poll_s)
            if events:
                yield from events
                cursor, left_s = events[-1].event_id, wait_s
            elif left_s is not None:
                left_s -= poll_s


class AsyncRemoteJournal(AsyncJournalPart):
    """The journal."""

    async def record(self, fact: EventData, *, pid: int | None = None) -> int:
        """Record an event about a run, a trigger, a supervisor or the fleet."""
        event_id: int = await self._send(_RECORD, _RECORD.params(fact.kind, msgspec.to_builtins(fact), pid))
        return event_id

    async def wait(self, since: int, wait_s: float) -> int:
        """Wait up to `wait_s` for an event after `since`, and return the id of the last event."""
        await self.tail(since, 1, wait_s=wait_s)
        return await self.cursor()

    async def follow(self, since: int | None = None, *, wait_s: float | None = None) -> AsyncIterator[Event]:
        """Yield events as they are committed, from a cursor or from now on; end after `wait_s` without one."""
        cursor = await self.cursor() if since is None else since
        left_s = wait_s
        while left_s is None or left_s > 0:
            poll_s = POLL_S if left_s is None else min(left_s, POLL_S)
            events = await self.tail(cursor, wait_s=poll_s)
            for event in events:
                yield event
            if events:
                cursor, left_s = events[-1].event_id, wait_s
            elif left_s is not None:
                left_s -= poll_s

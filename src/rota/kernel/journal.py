"""The journal: facts appended in the transaction that makes them true, and read from a cursor.

Whoever wants to hear of new events follows the journal from a cursor. Nobody hears of an event before its
commit: a follower reads only what is in the file, and is woken after a commit, of this process or another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from rota.clock import wait_until
from rota.errors import InvalidPayload, UnknownPid
from rota.kernel.core import Core
from rota.model.checks import Checks
from rota.model.events import Event, Fact, check_user_event, encode
from rota.store import Row, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import journal as sql

__all__ = ["TAIL_MAX", "Journal", "append", "event_of"]

TAIL_MAX = 10_000  # events in one answer
_checks = Checks("Event", InvalidPayload)


def append(
    tx: Transaction,
    fact: Fact,
    *,
    now: float,
    pid: int | None = None,
    causation_id: str | None = None,
    correlation_id: str | None = None,
) -> int:
    """Append a fact to the journal; its event id is the answer."""
    row = (pid, now, fact.kind, encode(fact).decode(), causation_id, correlation_id)
    return tx.insert(sql.EVENT_APPEND, row)


class Journal:
    """Reading what happened, and adding one's own events."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._news = threading.Condition()
        self._count = 0  # of commits that brought news: a follower looks again when it grows
        self._listening = False

    def append(
        self,
        pid: int | None,
        kind: str,
        payload: dict[str, Any] | None = None,
        *,
        causation_id: str | None = None,
        correlation_id: str | None = None,
    ) -> int:
        """Record an event of one's own; its id is the answer. Kinds that begin with `kernel.` are rota's."""
        if pid is not None:
            _checks.whole("pid", pid)
        body = check_user_event(kind, payload if payload is not None else {}).decode()
        for field, value in (("causation_id", causation_id), ("correlation_id", correlation_id)):
            if value is not None:
                _checks.text(field, value)
        now = self._core.now()

        def work(tx: Transaction) -> int:
            if pid is not None and not tx.run(agent_sql.STATE, (pid,)):
                raise UnknownPid(pid)
            row = (pid, now, kind, body, causation_id, correlation_id)
            event_id = tx.insert(sql.EVENT_APPEND, row)
            if pid is not None:
                tx.run(agent_sql.TOUCH, (event_id, now, pid))
            return event_id

        return self._core.write(work)

    def tail(
        self, since: int = 0, limit: int = 1_000, *, pid: int | None = None, kinds: tuple[str, ...] = ()
    ) -> list[Event]:
        """Events after `since`, oldest first, at most `TAIL_MAX`; of one agent, or of some kinds, if asked."""
        _checks.whole("since", since)
        most = max(1, min(_checks.whole("limit", limit), TAIL_MAX))
        if kinds != ():
            if pid is not None:
                raise _checks.refuse("kinds", "cannot be asked for together with a pid")
            names = msgspec.json.encode(_checks.texts("kinds", kinds)).decode()
            rows = self._core.read(lambda tx: tx.run(sql.EVENT_TAIL_KINDS, (since, names, most)))
        elif pid is None:
            rows = self._core.read(lambda tx: tx.run(sql.EVENT_TAIL, (since, most)))
        else:
            rows = self._core.read(lambda tx: tx.run(sql.EVENT_TAIL_OF, (pid, since, most)))
        return [event_of(row) for row in rows]

    def cursor(self) -> int:
        """The id of the last event."""
        rows = self._core.read(lambda tx: tx.run(sql.EVENT_ENDS))
        return int(rows[0][1] or 0)

    def wait(self, since: int, wait_s: float) -> int:
        """Wait until something was recorded after `since`, or until the time has passed; the cursor is the answer."""
        _checks.whole("since", since)
        _checks.duration("wait_s", wait_s)
        self._listen()
        give_up_at = self._core.clock.monotonic() + wait_s
        while True:
            with self._news:
                seen = self._count
            cursor = self.cursor()
            left_s = give_up_at - self._core.clock.monotonic()
            if cursor > since or left_s <= 0:
                return cursor
            with self._news:
                wait_until(self._core.clock, self._news, partial(self._has_news, seen), left_s)

    def follow(self, since: int | None = None, *, wait_s: float | None = None) -> Iterator[Event]:
        """Events as they are committed, from a cursor or from now on; ends when nothing came for `wait_s`."""
        self._listen()
        cursor = self.cursor() if since is None else since
        while True:
            with self._news:
                seen = self._count
            while events := self.tail(cursor):
                yield from events
                cursor = events[-1].event_id
            with self._news:
                news = partial(self._has_news, seen)
                if not wait_until(self._core.clock, self._news, news, wait_s):
                    return

    def _has_news(self, seen: int) -> bool:
        return self._count > seen

    def ring(self) -> None:
        """Something was committed: let the followers look."""
        with self._news:
            self._count += 1
            self._news.notify_all()

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._core.store.on_change(self.ring)


def event_of(row: Row) -> Event:
    """The event in a row."""
    event_id, pid, ts, kind, payload, causation_id, correlation_id = row
    return Event(event_id, pid, ts, kind, msgspec.json.decode(payload), causation_id, correlation_id)

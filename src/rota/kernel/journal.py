"""The journal: facts appended in the transaction that makes them true, and read from a cursor.

Whoever wants to hear of new events follows the journal from a cursor. Nobody hears of an event before its
commit: a follower reads only what is in the file, and is woken after a commit, of this process or another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from rota.clock import wait_until
from rota.errors import InvalidPayload, StoreCorrupt, UnknownPid
from rota.kernel.core import READ_MAX, Core
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.events import Event, Fact, check_user_event, decode, encode
from rota.store import Row, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import file as file_sql
from rota.store.statements import journal as sql

__all__ = ["NOTE", "READ_MAX", "RUNTIME_KINDS", "TAIL_BYTES_MAX", "TAIL_MAX", "Journal", "append", "event_of"]

TAIL_MAX = 10_000  # events in one answer
TAIL_BYTES_MAX = 16 * 1024 * 1024  # with so much an answer is long enough
# Facts of whoever runs the work: they change nothing that the kernel keeps, so no verb of the kernel writes them.
RUNTIME_KINDS = ("kernel.run.", "kernel.trigger.", "kernel.supervisor.", "kernel.fleet.")
NOTE = "note:"  # before the name of a note, among the file's settings
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
        row = (pid, now, kind, body, causation_id, correlation_id)
        return self._core.write(lambda tx: _put(tx, pid, now, row))

    def record(self, fact: Fact, *, pid: int | None = None) -> int:
        """Record a fact about running work: a run, a trigger, a supervisor or the fleet; its event id is the answer."""
        if pid is not None:
            _checks.whole("pid", pid)
        body = _runtime_fact(fact)
        now = self._core.now()
        row = (pid, now, fact.kind, body, None, None)
        return self._core.write_steadily(lambda tx: _put(tx, pid, now, row))

    def remember(self, name: str, note: dict[str, Any]) -> None:
        """Keep a note under a name, in place of the one before: where a reader of the journal stands, for example."""
        _checks.text("name", name)
        _checks.mapping("note", note)
        body = _as_json("note", note)
        self._core.write_steadily(lambda tx: tx.run(file_sql.META_SET, (NOTE + name, body)))

    def recall(self, name: str) -> dict[str, Any] | None:
        """The note kept under a name, if there is one."""
        _checks.text("name", name)
        rows = self._core.read(lambda tx: tx.run(file_sql.META_GET, (NOTE + name,)))
        return msgspec.json.decode(rows[0][0]) if rows else None

    def tail(
        self, since: int = 0, limit: int = 1_000, *, pid: int | None = None, kinds: tuple[str, ...] = ()
    ) -> list[Event]:
        """Events after `since`, oldest first, at most `TAIL_MAX`; of one agent, or of some kinds, if asked.

        Where they are large, fewer may come than there are and were asked for, but not fewer than `READ_MAX`.
        """
        _checks.whole("since", since)
        most = max(1, min(_checks.whole("limit", limit), TAIL_MAX))
        if kinds != ():
            if pid is not None:
                raise _checks.refuse("kinds", "cannot be asked for together with a pid")
            names = msgspec.json.encode(_checks.texts("kinds", kinds)).decode()
            return self._read(lambda tx, at, count: tx.run(sql.EVENT_TAIL_KINDS, (at, names, count)), since, most)
        if pid is None:
            return self._read(lambda tx, at, count: tx.run(sql.EVENT_TAIL, (at, count)), since, most)
        return self._read(lambda tx, at, count: tx.run(sql.EVENT_TAIL_OF, (pid, at, count)), since, most)

    def _read(self, part: Callable[[Transaction, int, int], list[Row]], since: int, most: int) -> list[Event]:
        """Read in parts until there are so many, or so much."""

        def work(tx: Transaction) -> list[Row]:
            rows = part(tx, since, min(most, READ_MAX))
            size, read = _size(rows), len(rows)
            while read == READ_MAX and len(rows) < most and size < TAIL_BYTES_MAX:
                more = part(tx, rows[-1][0], min(most - len(rows), READ_MAX))
                rows += more
                size, read = size + _size(more), len(more)
            return rows

        return [event_of(row) for row in self._core.read(work)]

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


def _put(tx: Transaction, pid: int | None, now: float, row: Row) -> int:
    """Append an event of which only the agent is still to be checked."""
    if pid is not None and not tx.run(agent_sql.STATE, (pid,)):
        raise UnknownPid(pid)
    event_id = tx.insert(sql.EVENT_APPEND, row)
    if pid is not None:
        tx.run(agent_sql.TOUCH, (event_id, now, pid))
    return event_id


def _runtime_fact(fact: Any) -> str:
    """A fact as it is stored, once it is found to be of those that `record` takes and to be readable again."""
    if not isinstance(fact, Fact) or not fact.kind.startswith(RUNTIME_KINDS):
        kinds = ", ".join(f"{kind}*" for kind in RUNTIME_KINDS)
        raise _checks.refuse("fact", f"must be one of {kinds}, not {getattr(fact, 'kind', type(fact).__name__)}")
    body = _as_json("fact", fact)
    try:
        decode(fact.kind, msgspec.json.decode(body))
    except StoreCorrupt as problem:
        raise _checks.refuse("fact", f"cannot be read again: {problem.message}") from problem
    return body


def _as_json(field: str, value: Any) -> str:
    try:
        body = encode(value) if isinstance(value, Fact) else msgspec.json.encode(value)
    except (TypeError, ValueError) as problem:
        raise _checks.refuse(field, f"is not JSON: {problem}") from problem
    if len(body) > PAYLOAD_BYTES_MAX:
        raise _checks.refuse(field, f"is {len(body):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are taken")
    return body.decode()


def _size(rows: Iterable[Row]) -> int:
    return sum(len(row[4]) for row in rows)


def event_of(row: Row) -> Event:
    """The event in a row."""
    event_id, pid, ts, kind, payload, causation_id, correlation_id = row
    return Event(event_id, pid, ts, kind, msgspec.json.decode(payload), causation_id, correlation_id)

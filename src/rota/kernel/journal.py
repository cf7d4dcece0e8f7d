"""The journal: events appended in the transaction of the change that they describe, and read from a cursor.

A reader follows the journal from a cursor. It never sees an event before its commit: it reads only what is in the file,
and is woken after a commit of this process or of another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from rota.clock import wait_until
from rota.decoding import json_decoder
from rota.errors import InvalidPayload, StoreCorrupt, UnknownPid
from rota.kernel.environment import KernelEnvironment
from rota.kernel.lookups import check_project_exists
from rota.kernel.paging import READ_MAX
from rota.kernel.progress import NoRepeats
from rota.kernel.rows import DECODE_ERRORS, PROBLEM_CHARS_MAX, json_text
from rota.kernel.settings import read_setting, write_setting
from rota.model.agent_metadata import hide_env_in_event
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.event_codec import check_user_event, decode, encode
from rota.model.events import Event, EventData, OperatorActed, ProcessUpdated, RowUnreadable
from rota.store import Row, Transaction
from rota.store.author import author_of_caller, current_author, process_user
from rota.store.forks import in_child
from rota.store.statements import agents as agent_sql
from rota.store.statements import journal as sql

__all__ = [
    "NOTE_PREFIX",
    "PROJECT_NOTE_PREFIX",
    "RUNTIME_KINDS",
    "TAIL_BYTES_MAX",
    "TAIL_MAX",
    "Journal",
    "append",
    "event_from_row",
    "events_naming",
    "first_event_at",
    "newest_claim",
    "newest_policy_failure",
    "read_note",
]

TAIL_MAX = 10_000  # events in one result
TAIL_BYTES_MAX = 16 * 1024 * 1024  # of payloads after which a result gets no more events
# Events of the processes that run the work. They change no other table, so no method of the kernel writes them.
RUNTIME_KINDS = (
    "kernel.run.",
    "kernel.trigger.",
    "kernel.hook.",
    "kernel.supervisor.",
    "kernel.fleet.",
    RowUnreadable.kind,
)
NOTE_PREFIX = "note:"  # of the settings that hold the operator's notes; the notes of projects have another
PROJECT_NOTE_PREFIX = "project_note:"
_WITH_SETTINGS = (ProcessUpdated.kind, OperatorActed.kind)  # events that may contain an agent's settings
_OF_ENTRIES = "kernel.sched."  # of the kinds of events about entries
_checks = Checks("Event", InvalidPayload)
_encode = msgspec.json.Encoder().encode
_decode_payload = json_decoder(dict[str, Any]).decode


def append(
    tx: Transaction,
    fact: EventData,
    *,
    now: float,
    pid: int | None = None,
    causation_id: str | None = None,
    correlation_id: str | None = None,
) -> int:
    """Append an event inside a transaction; returns its id."""
    body = _encode(fact) if fact.version == 1 else encode(fact)  # almost all have version 1
    author = author_of_caller.get() or process_user()  # current_author(), without a call for each event
    row = (pid, now, fact.kind, body.decode(), causation_id, correlation_id, author)
    return tx.insert(sql.EVENT_APPEND, row)


def _note_key(name: str, project_id: str | None) -> str:
    """Return the setting of a note. No project's note has the key of another's, whatever their names contain."""
    if project_id is None:
        return NOTE_PREFIX + name
    return PROJECT_NOTE_PREFIX + _encode([project_id, name]).decode()


def read_note(tx: Transaction, name: str, project_id: str | None = None) -> dict[str, Any] | None:
    """Return the note stored under a name, or None; raises `StoreCorrupt` if it cannot be read."""
    body = read_setting(tx, _note_key(name, project_id))
    try:
        return None if body is None else _decode_payload(body)
    except DECODE_ERRORS as problem:
        hint = "The program that wrote it replaces it; `remember` does so by hand."
        raise StoreCorrupt(f"the note {name!r} cannot be read: {problem}", hint=hint, note=name) from problem


def first_event_at(tx: Transaction, low: int, high: int, at: float) -> int:
    """Return the first event of a range at or after an instant, or the one after `high`."""
    low = max(low, int(tx.run(sql.EVENT_ENDS)[0][0] or 1))
    while low <= high:
        middle = (low + high) // 2
        rows = tx.run(sql.EVENT_FROM, (middle,))
        if rows and rows[0][1] < at:
            low = max(middle, int(rows[0][0])) + 1
        else:
            high = middle - 1
    return low


def events_naming(tx: Transaction, sched_id: int, low: int, high: int) -> Iterator[Event]:
    """Yield the events of a range that may concern an entry."""
    for row in tx.run(sql.EVENTS_NAMING, (low, high, sched_id, str(sched_id))):
        yield event_from_row(row)


def newest_claim(tx: Transaction, after: int, until: int) -> tuple[int, str] | None:
    """Return the event and the policy of the newest claim in a range that was not forced."""
    rows = tx.run(sql.LAST_CLAIM, (after, until))
    return (rows[0][0], rows[0][1]) if rows else None


def newest_policy_failure(tx: Transaction, after: int, until: int) -> str | None:
    """Return the policy that failed last in a range."""
    rows = tx.run(sql.LAST_FAILURE, (after, until))
    return rows[0][0] if rows else None


class Journal:
    """Reading events and adding user events."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env
        self._committed = threading.Condition()
        self._commits = 0  # a follower reads again when it has grown
        self._subscribed = False
        in_child(self._forget_followers)

    def _forget_followers(self) -> None:
        """In a forked child: the followers are threads of the parent."""
        self._committed = threading.Condition()

    def append(
        self,
        pid: int | None,
        kind: str,
        payload: dict[str, Any] | None = None,
        *,
        causation_id: str | None = None,
        correlation_id: str | None = None,
    ) -> int:
        """Record a user event and return its id. Kinds that begin with `kernel.` are reserved."""
        if pid is not None:
            _checks.whole("pid", pid)
        body = check_user_event(kind, payload if payload is not None else {}).decode()
        for field, value in (("causation_id", causation_id), ("correlation_id", correlation_id)):
            if value is not None:
                _checks.text(field, value)
        now = self._env.now()
        row = (pid, now, kind, body, causation_id, correlation_id, current_author())
        return self._env.write(lambda tx: _append_row(tx, pid, now, row))

    def record(self, fact: EventData, *, pid: int | None = None) -> int:
        """Record an event about a run, a trigger, a supervisor or the fleet; returns its id."""
        if pid is not None:
            _checks.whole("pid", pid)
        body = _check_runtime_fact(fact)
        now = self._env.now()
        row = (pid, now, fact.kind, body, None, None, current_author())
        return self._env.write_keeping_cache(lambda tx: _append_row(tx, pid, now, row))

    def remember(self, name: str, note: dict[str, Any], *, project_id: str | None = None) -> None:
        """Store a note under a name, replacing the previous one; for example a reader's cursor.

        The notes of a project are its own. Those without a project are the operator's, such as how far the triggers of
        a fleet have come.
        """
        _checks.text("name", name)
        _checks.mapping("note", note)
        body = _json("note", note)
        if project_id is not None:
            _checks.text("project_id", project_id)

        def work(tx: Transaction) -> None:
            if project_id is not None:
                check_project_exists(tx, project_id)
            write_setting(tx, _note_key(name, project_id), body)

        self._env.write_keeping_cache(work)

    def recall(self, name: str, *, project_id: str | None = None) -> dict[str, Any] | None:
        """Return the note stored under a name, or None."""
        _checks.text("name", name)
        if project_id is not None:
            _checks.text("project_id", project_id)
        return self._env.read(lambda tx: read_note(tx, name, project_id))

    def tail(
        self,
        since: int = 0,
        limit: int = 1_000,
        *,
        pid: int | None = None,
        kinds: tuple[str, ...] = (),
        wait_s: float = 0.0,
    ) -> list[Event]:
        """Return events after `since`, oldest first, at most `TAIL_MAX`: of one agent, of some kinds, of both, or all.

        The events of an agent's entries are left out, unless their kinds are given. If events are large, it may return
        fewer than `limit`, but not fewer than `READ_MAX`. While there are none, it waits up to `wait_s`.
        """
        events = self._tail(since, limit, pid, kinds)
        if events or wait_s <= 0:
            return events
        for _ in self.follow(since, wait_s=wait_s):
            if events := self._tail(since, limit, pid, kinds):
                break
        return events

    def _tail(self, since: int, limit: int, pid: int | None, kinds: tuple[str, ...]) -> list[Event]:
        _checks.whole("since", since)
        count_max = max(1, min(_checks.whole("limit", limit), TAIL_MAX))
        if kinds != ():
            names = msgspec.json.encode(_checks.texts("kinds", kinds)).decode()
            if pid is None:
                return self._read(
                    lambda tx, at, count: tx.run(sql.EVENT_TAIL_KINDS, (at, names, count)), since, count_max
                )
            # the index by agent has no events of entries
            of_entries = any(kind.startswith(_OF_ENTRIES) for kind in kinds)
            of_agent = sql.EVENT_TAIL_OF_ENTRY_KINDS if of_entries else sql.EVENT_TAIL_OF_KINDS
            return self._read(lambda tx, at, count: tx.run(of_agent, (pid, at, names, count)), since, count_max)
        if pid is None:
            return self._read(lambda tx, at, count: tx.run(sql.EVENT_TAIL, (at, count)), since, count_max)
        return self._read(lambda tx, at, count: tx.run(sql.EVENT_TAIL_OF, (pid, at, count)), since, count_max)

    def _read(self, part: Callable[[Transaction, int, int], list[Row]], since: int, count_max: int) -> list[Event]:
        """Read in parts until `count_max` events or `TAIL_BYTES_MAX` bytes are read."""

        def work(tx: Transaction) -> list[Row]:
            rows = part(tx, since, min(count_max, READ_MAX))
            size, read = _size(rows), len(rows)
            while read == READ_MAX and len(rows) < count_max and size < TAIL_BYTES_MAX:
                more = part(tx, rows[-1][0], min(count_max - len(rows), READ_MAX))
                rows += more
                size, read = size + _size(more), len(more)
            return rows

        return [event_from_row(row) for row in self._env.read(work)]

    def cursor(self) -> int:
        """Return the id of the last event."""
        return self.ends()[1]

    def ends(self) -> tuple[int | None, int]:
        """Return the ids of the first event, if there is one, and of the last, or 0."""
        ((first, last),) = self._env.read(lambda tx: tx.run(sql.EVENT_ENDS))
        return first, last or 0

    def wait(self, since: int, wait_s: float) -> int:
        """Wait until an event after `since` exists or the time has passed; returns the id of the last event."""
        _checks.whole("since", since)
        _checks.duration("wait_s", wait_s)
        self._subscribe()
        give_up_at = self._env.clock.monotonic() + wait_s
        while True:
            with self._committed:
                seen = self._commits
            cursor = self.cursor()
            left_s = give_up_at - self._env.clock.monotonic()
            if cursor > since or left_s <= 0:
                return cursor
            with self._committed:
                wait_until(self._env.clock, self._committed, partial(self._has_commits, seen), left_s)

    def follow(self, since: int | None = None, *, wait_s: float | None = None) -> Iterator[Event]:
        """Yield events as they are committed, after a cursor or from now on; ends when none came for `wait_s`."""
        self._subscribe()
        cursor = self.cursor() if since is None else since
        read = NoRepeats("events")
        while True:
            with self._committed:
                seen = self._commits
            while events := self.tail(cursor):
                read.check([event.event_id for event in events])
                yield from events
                cursor = events[-1].event_id
            with self._committed:
                if not wait_until(self._env.clock, self._committed, partial(self._has_commits, seen), wait_s):
                    return

    def _has_commits(self, seen: int) -> bool:
        return self._commits > seen

    def notify_followers(self) -> None:
        """Wake the followers after a commit."""
        with self._committed:
            self._commits += 1
            self._committed.notify_all()

    def _subscribe(self) -> None:
        if not self._subscribed:
            self._subscribed = True
            self._env.store.on_change(self.notify_followers)


def _append_row(tx: Transaction, pid: int | None, now: float, row: Row) -> int:
    """Append an event after checking that its agent exists."""
    if pid is not None and not tx.run(agent_sql.STATE, (pid,)):
        raise UnknownPid(pid)
    event_id = tx.insert(sql.EVENT_APPEND, row)
    if pid is not None:
        tx.run(agent_sql.TOUCH, (event_id, now, pid))
    return event_id


def _check_runtime_fact(fact: Any) -> str:
    """Check that an event is of a runtime kind and can be decoded again; returns it encoded."""
    if not isinstance(fact, EventData) or not fact.kind.startswith(RUNTIME_KINDS):
        kinds = ", ".join(f"{kind}*" for kind in RUNTIME_KINDS)
        raise _checks.refuse("fact", f"must be one of {kinds}, not {getattr(fact, 'kind', type(fact).__name__)}")
    body = _json("fact", fact)
    try:
        decode(fact.kind, msgspec.json.decode(body))
    except StoreCorrupt as problem:
        raise _checks.refuse("fact", f"cannot be decoded: {problem.message}") from problem
    return body


def _json(field: str, value: Any) -> str:
    return json_text(_checks, field, value, PAYLOAD_BYTES_MAX, encode if isinstance(value, EventData) else _encode)


def _size(rows: Iterable[Row]) -> int:
    return sum(len(row[4]) for row in rows)


def event_from_row(row: Row) -> Event:
    """Build an event from a row; one whose payload cannot be read becomes a `RowUnreadable` in its place."""
    event_id, pid, ts, kind, payload, causation_id, correlation_id, author = row
    try:
        body = _decode_payload(payload)
        if type(kind) is not str:
            raise ValueError("its kind is not text")
        if type(ts) is not float and type(ts) is not int:
            raise ValueError("its time is not a number")
        if kind in _WITH_SETTINGS:  # earlier versions wrote the values of variables into them
            body = hide_env_in_event(body)
    except DECODE_ERRORS as problem:  # one damaged event must not hide the others from their readers
        text = f"{kind}: {problem}"[:PROBLEM_CHARS_MAX]
        damaged = RowUnreadable(table="agent_events", key=str(event_id), problem=text)
        kind, body = damaged.kind, msgspec.to_builtins(damaged)
        ts = ts if isinstance(ts, int | float) else 0.0
    return Event(event_id, pid, ts, kind, body, causation_id, correlation_id, author)

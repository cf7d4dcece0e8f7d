"""The PostgreSQL connection that writes, as the writer sees it.

**A turn.** All processes that share a schema take turns: a transaction begins with an advisory lock whose number is
made from the schema's name, and the lock ends with the transaction. So write transactions run one after the other, as
on a file, and everything that the kernel concludes from that holds: ids in the order of commits, exact caps and
budgets, memory that is valid until another process has written.

    trip 1      BEGIN · take the lock · read who wrote last, the last ids, the schema's version and the time
                · and what the kernel prefetches: what it reads after others have changed what it remembers
    trips       statements with rows, each with the writes that were queued before it
    last trip   the other writes · notify · COMMIT · flush

The lock is a statement of its own: a statement sees what was committed when it began, and one that waits for the lock
began too early. Writes that return no rows are queued and not awaited. What is wrong with one is found out
with the next result; then the whole transaction is undone, and the writer runs its requests one by one.

**Who wrote last** is the sequence `news`: every transaction that writes takes a number of it just before it commits. A
process that finds another number than its own last one knows that others have written. A sequence has no transactions,
so a number may belong to a transaction that was undone; that costs a look and is otherwise harmless.

**Notifying** costs the server more than most statements of a turn, and PostgreSQL commits transactions that notify one
after the other in the whole database. So a process that listens shares a lock (`listeners_key`), and a turn that finds
this lock free does not notify. It keeps the lock until its commit: a process that begins to listen meanwhile waits for
that, and then reads the last number.

**What others remember.** Nearly every transaction only adds entries, claims them and ends them. That changes nothing of
what processes keep in memory: settings, agents, projects, which limits exist. So there is a second sequence, `facts`,
and only a transaction with a statement that is not `everyday` takes a number of it. Many workers that drain a queue
read these rows once, not in every turn.

**Early release.** A commit inside the lock is asynchronous: the lock ends and others see the rows, but the log may not
be on disk. A second, tiny transaction follows in the same trip, outside the lock, and it is synchronous: the log is
flushed in order, so with it everything before is on disk. Only then does the caller get its result. So others need not
wait for the disk, and one flush serves many turns.

**A lost connection.** The server undoes what was open, and the writer runs the request again on a new connection. If it
was lost during the commit, the new connection looks for the last event of that transaction. Everything remembered of
the database is dropped then (`foreign_version`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal

import psycopg

from rota.clock import SystemClock
from rota.errors import SchemaMismatch, StoreError, StoreUnavailable
from rota.store.engine import RequestFailed, TransactionLost
from rota.store.migrations import LATEST
from rota.store.postgres_clock import DatabaseClock
from rota.store.postgres_connection import (
    TURN_S_MAX,
    PostgresAddress,
    connect,
    one_line,
    statement_error,
    unavailable,
)
from rota.store.postgres_locks import lock_number
from rota.store.postgres_pipeline import Pipeline
from rota.store.postgres_schema import COLUMNS
from rota.store.postgres_text import postgres_text
from rota.store.postgres_timeline import EVENT_ID_GAP, TIMELINE_KEY, read_timeline
from rota.store.postgres_transaction import PostgresTransaction
from rota.store.postgres_worker_ids import HeldWorkerIds
from rota.store.protocol import Row, Statement, Transaction, TransactionEffects
from rota.store.statements.file import META_GET, META_SET
from rota.store.statements.journal import EVENT_APPEND

__all__ = ["FLUSH", "LAST_NEWS", "Durability", "PostgresEngine", "channel", "listeners_key", "turn_key"]

Durability = Literal["full", "normal"]
_WORD = re.compile(r"\w+")
ABSENT_S = 0.5  # how long a server that could not be reached is not asked again
_BEGIN = "BEGIN"
_LOCK = "SELECT pg_advisory_xact_lock($1::bigint)"
_INBOX = "(SELECT true FROM enqueue_inbox ORDER BY inbox_id LIMIT 1) IS NOT NULL"  # a program has enqueued
LAST_NEWS = "coalesce(pg_sequence_last_value('news'::regclass), 0)"  # the last number that was taken
_FACTS = "coalesce(pg_sequence_last_value('facts'::regclass), 0)"
_TURN = f"""SELECT {LAST_NEWS}, {_FACTS},
    coalesce((SELECT event_id FROM agent_events ORDER BY event_id DESC LIMIT 1), 0),
    coalesce((SELECT sched_id FROM agent_schedule_queue ORDER BY sched_id DESC LIMIT 1), 0),
    (SELECT value FROM kernel_meta WHERE key = 'schema_version'),
    (SELECT value FROM kernel_meta WHERE key = 'clock_offset'),
    extract(epoch FROM clock_timestamp())::double precision,
    {_INBOX}"""  # noqa: S608  # a constant
_SINCE = f"{_FACTS} <> $%d::bigint OR {_INBOX}"  # others have changed some
_SETTINGS = f"SELECT key, value FROM kernel_meta WHERE key = ANY ($1::text[]) AND ({_SINCE % 2})"  # noqa: S608  # as above
_TIME = "SELECT extract(epoch FROM clock_timestamp())::double precision"
_LAST_IDS = """SELECT coalesce((SELECT event_id FROM agent_events ORDER BY event_id DESC LIMIT 1), 0),
    coalesce((SELECT sched_id FROM agent_schedule_queue ORDER BY sched_id DESC LIMIT 1), 0)"""
# the lock is free while no process listens
_NOTIFY = "(SELECT pg_notify($1, currval('news')::text) WHERE NOT pg_try_advisory_xact_lock($2::bigint))"
_NEWS = f"SELECT nextval('news'), {_NOTIFY}"
_NEWS_AND_FACTS = f"SELECT nextval('news'), {_NOTIFY}, nextval('facts')"
# the setting ends with its own transaction, which is over when the log is flushed
FLUSH = "SELECT set_config('synchronous_commit', $1, true), pg_logical_emit_message(true, 'rota', '')"
_IS_THERE = """SELECT 1 FROM agent_events WHERE event_id = $1 AND ts = $2 AND kind = $3 AND payload = $4
    AND author = $5"""


@cache
def _tables_in(text: str) -> frozenset[str]:
    """Return the tables that a statement names."""
    return frozenset(_WORD.findall(text)) & COLUMNS.keys()


def turn_key(schema: str) -> int:
    """Return the number of the advisory lock that is held during a turn."""
    return lock_number(f"rota {schema}")


def listeners_key(schema: str) -> int:
    """Return the number of the advisory lock that each process shares while it listens on the channel."""
    return lock_number(f"rota {schema} listens")


def channel(schema: str) -> str:
    """Return the channel on which commits are announced."""
    return f"rota_{schema}"


class PostgresEngine:
    """The writing connection of a process."""

    sole_user = False  # others are notified of every commit
    has_savepoints = False
    lost_hint = "See that the server runs and has disk space, and what it logs, then retry: `rota doctor`."

    def __init__(
        self,
        address: PostgresAddress,
        *,
        durability: Durability = "full",
        read_only: bool = False,
        foreign_version: int = 0,
        clock: DatabaseClock | None = None,
        connection: psycopg.Connection[Any] | None = None,
    ) -> None:
        self.address = address
        self.read_only = read_only
        self.durability = durability
        self.foreign_version = foreign_version  # grows when a transaction finds that others have written
        self.facts_version = foreign_version  # grows when it finds that they have changed what is remembered
        self.changed = 0  # writes since the connection was made
        self.ids_known = False  # `_last_ids` are those of this transaction
        self.last_event: tuple[int, Sequence[Any]] | None = None  # the last one of this transaction, to look for it
        self.in_transaction = False
        self.prefetched: dict[tuple[Statement, Row], list[Row]] = {}  # read with the first trip of this transaction
        self.also_prefetched: list[tuple[Statement, Row]] = []  # reads that the transaction itself named in time
        self.is_pending = False  # the turn is asked for, and the answer not read
        self._prefetches: dict[tuple[Statement, Row], str] = {}  # what `prefetch` has named, and the text of each
        self._settings: dict[str, None] = {}  # the settings among them, which one statement reads
        self._clock = clock  # it is set by the time of the server, in every turn
        self._refusal = ("the store was opened read-only", "Open it without read_only.") if read_only else None
        self._pipeline: Pipeline | None = None
        self._key = turn_key(address.schema)
        self._channel = channel(address.schema)
        self._listeners_key = listeners_key(address.schema)
        self.flush_mode = "on"  # the synchronous_commit that the server's administrator has chosen
        self._last_ids = {"event": 0, "entry": 0}
        self._changed_before = 0  # `changed` when the transaction began
        self._requests = 0  # of this transaction
        self._aborted = False  # the server has undone it
        self._durable = False  # COMMIT was answered
        self._news: int | None = None  # the last number of `news` that this process knows of
        self._facts: int | None = None  # the last number of `facts`
        self._changes_facts = False  # this transaction takes one
        self._reads_facts = True  # prefetch with the first trip: others had changed something last time
        self._foreign = False  # others have written, and `has_foreign_commit` has not reported it
        self._absent: StoreError | None = None  # the server could not be reached a moment ago
        self._absent_until = 0.0
        self.on_failover: Callable[[Transaction, str, str], None] | None = None
        self._timeline: str | None = None  # of the server, None if it does not say
        self._fence_due = False  # the store remembers another one
        self._worker_ids = HeldWorkerIds(address.schema)
        self._lost_pid = 0  # the server's process for the connection before this one
        if not read_only:
            self._connect(connection)

    # --- connecting ------------------------------------------------------------------------------

    def _connect(self, connection: psycopg.Connection[Any] | None = None) -> Pipeline:
        """Connect, and forget everything that was remembered of the database."""
        self._drop()
        connection = connection or self._reach()
        try:
            row = connection.execute("SHOW synchronous_commit").fetchone()
            self.flush_mode = "on" if row is None or row[0] == "off" else str(row[0])
            # commits are asynchronous, and flushed by a transaction of their own
            connection.execute("SET synchronous_commit = off")
            self._timeline, known = read_timeline(connection)
            self._worker_ids.take_again(connection, self._lost_pid)
            pipeline = Pipeline(connection)
        except psycopg.Error as problem:
            connection.close()
            raise unavailable(self.address, problem) from None
        self._pipeline = pipeline
        self._news, self._facts, self._foreign = None, None, True
        self._fence_due = self._timeline is not None and self._timeline != known
        return pipeline

    def _reach(self) -> psycopg.Connection[Any]:
        """Connect. Many requests may fail at the same time: not each of them waits for a server that is away."""
        if self._absent is not None and SystemClock.monotonic() < self._absent_until:
            raise self._absent
        try:
            connection = connect(self.address, "writer")
        except StoreError as problem:
            self._absent, self._absent_until = problem, SystemClock.monotonic() + ABSENT_S
            raise
        self._absent = None
        return connection

    @property
    def pipeline(self) -> Pipeline:
        """The connection; raises if it is lost."""
        if self._pipeline is None:
            raise TransactionLost("the connection to PostgreSQL was lost")
        return self._pipeline

    @property
    def backend_pid(self) -> int:
        """The server's process for this connection, 0 while there is none."""
        return 0 if self._pipeline is None else self._pipeline.backend_pid

    def _drop(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        self.in_transaction = False
        if pipeline is not None:
            self._lost_pid = pipeline.backend_pid
            with contextlib.suppress(psycopg.Error):
                pipeline.close()

    def take_worker_id(self, worker_id: str) -> None:
        """Hold a worker's id over all hosts, or raise WorkerExists.

        A connection that broke while it was not in use is made again.
        """
        if self._refusal is not None:
            text, hint = self._refusal
            raise StoreUnavailable(text, hint=hint)
        is_new = self._pipeline is None or self._pipeline.is_broken
        pipeline = self._connect() if is_new else self.pipeline
        try:
            self._worker_ids.take(pipeline.rows, worker_id)
        except psycopg.Error as problem:
            if is_new or not pipeline.is_broken:
                raise unavailable(self.address, problem) from problem
            self.take_worker_id(worker_id)

    def release_worker_id(self, worker_id: str) -> None:
        """Release a worker's id."""
        pipeline = self._pipeline
        is_connected = pipeline is not None and not pipeline.is_broken
        with contextlib.suppress(psycopg.Error):  # the server has ended the session, and with it the lock
            self._worker_ids.release(pipeline.rows if pipeline is not None and is_connected else None, worker_id)

    # --- transactions ----------------------------------------------------------------------------

    def begin(self, *, alone: bool = False) -> None:
        """Take the turn; if `alone`, ask for it, and wait for it in the first statement, with the prefetched reads.

        A connection that broke while it was not in use is made again.
        """
        if self._refusal is not None:
            text, hint = self._refusal
            raise StoreUnavailable(text, hint=hint)
        self._durable = self._aborted = False
        self.last_event = None
        self._requests = 0
        is_new = self._pipeline is None
        if is_new:
            self._connect()
        try:
            if self._fence_due and self.on_failover is not None:
                self._fence(self.on_failover)
            self._ask_for_turn()
            if not alone:
                self._take_turn()
        except psycopg.Error as problem:
            broken = self.pipeline.is_broken
            self.rollback()
            if isinstance(problem, psycopg.errors.LockNotAvailable):
                raise self._kept_out() from problem
            if is_new or not broken:
                raise unavailable(self.address, problem) from problem
            self.begin(alone=alone)
        except BaseException:
            self.rollback()
            raise

    def _fence(self, on_failover: Callable[[Transaction, str, str], None]) -> None:
        """Remember the timeline in a turn of its own; if it is not the one that the store knows, fence all claims."""
        self._ask_for_turn()
        self._take_turn()
        effects = TransactionEffects()
        try:
            tx = self.transaction(effects)
            known = tx.run(META_GET, (TIMELINE_KEY,))
            if known != [(self._timeline,)]:  # else another process was first
                if known:
                    self._last_ids["event"] += EVENT_ID_GAP
                    on_failover(tx, str(known[0][0]), str(self._timeline))
                tx.run(META_SET, (TIMELINE_KEY, self._timeline))
            self.commit()
        except BaseException:
            for call in effects.on_rollback:
                call()
            raise
        self._fence_due = self._durable = False
        self.last_event, self._requests = None, 0
        for call in effects.on_commit:
            call()

    def take_turn(self) -> None:
        """Wait for the turn inside the first statement of a request."""
        try:
            self._take_turn()
        except psycopg.errors.LockNotAvailable as problem:
            self._aborted = True
            raise self._kept_out() from problem
        except psycopg.Error as problem:
            raise self.failed(problem) from problem

    def _kept_out(self) -> StoreUnavailable:
        text = f"another process has kept the turn at {self.address.shown} for {TURN_S_MAX:g} s"
        return StoreUnavailable(text, hint="See who: `rota doctor`.", address=self.address.shown)

    def _ask_for_turn(self) -> None:
        pipeline = self.pipeline
        self.in_transaction = self.is_pending = True
        self.prefetched, self.also_prefetched = {}, []
        self._changed_before, self._changes_facts = self.changed, False
        pipeline.send(_BEGIN)
        pipeline.send(_LOCK, (self._key,))
        pipeline.send(_TURN)
        if self._reads_facts:
            self._send_facts()

    def _send_facts(self) -> None:
        """Ask for the prefetched reads. If no other process has changed any of it, the server does not read."""
        known = -1 if self._facts is None else self._facts
        self.pipeline.send(_SETTINGS, (f"{{{','.join(self._settings)}}}", known))
        for (_, parameters), text in self._prefetches.items():
            self.pipeline.send(text, (*parameters, known))

    def _take_turn(self) -> None:
        pipeline = self.pipeline
        self.is_pending = False
        asked_at = SystemClock.monotonic()
        _, _, (turn,), *found = pipeline.collect()
        news, facts, event_id, sched_id, version, clock_offset, time_s, inbox = turn
        if version != str(LATEST):
            text = f"schema_version is {version} now; this process writes {LATEST}"
            raise SchemaMismatch(text, hint="Restart it with the version of rota that migrated the schema.")
        self._last_ids = {"event": event_id, "entry": sched_id}
        self.ids_known = True
        # the request's own reads come last: the others were put into the buffer before them, if they were
        also = found[len(found) - len(self.also_prefetched) :]
        if inbox or news != self._news:  # a program's own transaction takes no number
            self.foreign_version += 1
            self._news, self._foreign = news, True
        changed = inbox or facts != self._facts
        if changed:
            self.facts_version += 1
            if not self._reads_facts:
                self._send_facts()
                found = pipeline.collect()
            self._facts = facts
            settings, *prefetched = found
            self.prefetched = dict(zip(self._prefetches, prefetched, strict=False))
            values: dict[str, Any] = dict(settings)
            for key in self._settings:
                self.prefetched[META_GET, (key,)] = [(values[key],)] if key in values else []
        self._reads_facts = changed  # most likely as in this turn
        for read, rows in zip(self.also_prefetched, also, strict=True):
            self.prefetched[read] = rows
        if self._clock is not None:
            while not self._clock.set_by(asked_at, time_s, clock_offset):
                asked_at = SystemClock.monotonic()
                ((time_s,),) = pipeline.rows(_TIME)

    def prefetch(self, reads: Iterable[tuple[Statement, Row]]) -> None:
        """Read these with the first trip of a transaction, if others have changed what is remembered, or enqueued."""
        for statement, parameters in reads:
            if statement is META_GET and str(parameters[0]).isidentifier():  # together, in one statement
                self._settings[str(parameters[0])] = None
                continue
            text = f"SELECT * FROM ({postgres_text(statement)}) prefetched WHERE "  # noqa: S608  # a statement of rota
            self._prefetches[statement, parameters] = text + _SINCE % (len(parameters) + 1)  # else it is not run

    def changing(self, text: str, count: int, *, moves_ids: bool, is_everyday: bool) -> None:
        """Note that writes are sent, and drop the prefetched rows of the tables that they change."""
        self.changed += count
        if not is_everyday:
            self._changes_facts = True
        if moves_ids:
            self.ids_known = False
        if self.prefetched:
            written = _tables_in(text)
            self.prefetched = {
                read: rows for read, rows in self.prefetched.items() if written.isdisjoint(_tables_in(read[0].sql))
            }

    def take_ids(self, statement: Statement, count: int) -> int:
        """Return the first of so many new ids. The rows must be inserted in this transaction."""
        if not self.ids_known:
            ((event_id, sched_id),) = self.pipeline.rows(_LAST_IDS)
            self._last_ids, self.ids_known = {"event": event_id, "entry": sched_id}, True
        kind = "event" if statement is EVENT_APPEND else "entry"
        first_id = self._last_ids[kind] + 1
        self._last_ids[kind] += count
        return first_id

    def commit(self) -> None:
        """Commit, release the turn, and return when it is durable."""
        if self.changed == self._changed_before and not self._aborted:
            self.rollback()
            self._durable = True
            return
        pipeline = self.pipeline
        if self._aborted:
            raise TransactionLost("a statement of it failed")
        try:
            pipeline.send(_NEWS_AND_FACTS if self._changes_facts else _NEWS, (self._channel, self._listeners_key))
            pipeline.send("COMMIT")
            if self.durability == "full":
                pipeline.send(FLUSH, (self.flush_mode,))
            results = pipeline.collect()
        except psycopg.Error as problem:
            if not (pipeline.is_broken or pipeline.is_idle):
                raise self.failed(problem) from problem
            self._find_out(problem)  # the flush behind the commit may be what failed
            return
        except BaseException as interrupt:
            self._find_out(interrupt)
            raise
        self._durable, self.in_transaction = True, False
        self._news, _, *facts = results[-3 if self.durability == "full" else -2][0]
        if facts:
            (self._facts,) = facts

    def _find_out(self, problem: BaseException) -> None:
        """A commit was sent and its answer lost: return if it is durable, raise TransactionLost if it is not.

        The lock is taken before the question, so the lost session has ended. A transaction without events may simply
        run again.
        """
        event, self.last_event = self.last_event, None
        try:
            pipeline = self._connect()
            pipeline.send(_BEGIN)
            pipeline.send(_LOCK, (self._key,))
            if event is None:
                found: list[Row] = []
            else:
                event_id, (_, ts, kind, payload, _, _, author) = event
                found = pipeline.rows(_IS_THERE, (event_id, ts, kind, payload, author))
            pipeline.send("ROLLBACK")
            pipeline.send(FLUSH, (self.flush_mode,))
            pipeline.collect()
        except (psycopg.Error, StoreError) as worse:
            self._drop()
            raise unavailable(self.address, worse, may_be_executed=True) from problem
        if not found:
            raise TransactionLost(one_line(problem)) from problem
        self._durable = True

    def failed(self, problem: psycopg.Error) -> BaseException:
        """Return rota's error for a statement that failed: the server has undone the transaction."""
        self._aborted = True
        self.changed += 1  # whatever raised it, the transaction cannot go on
        if self._pipeline is None or self._pipeline.is_broken:
            return TransactionLost(one_line(problem))
        error = statement_error(problem)
        # a queued write may be another request's than the one that learns of it: then each runs on its own
        return RequestFailed(one_line(problem)) if self._requests > 1 and isinstance(error, Exception) else error

    def rollback(self) -> bool:
        """Roll back; return False if the transaction is already durable. Its answer is read with the next turn's."""
        if self._durable:
            return False
        self.is_pending = False
        if self.in_transaction and self._pipeline is not None:
            self.in_transaction = False
            try:
                if not self._pipeline.is_broken:
                    self._pipeline.post("ROLLBACK")
                    return True
            except psycopg.Error:
                pass
            self._drop()
        return True

    def changes(self) -> int:
        """Return a number that grows with every write."""
        return self.changed

    def savepoint(self) -> None:
        """Not offered: the writer runs the requests one by one."""
        raise TransactionLost("no savepoints")

    release = rollback_to = savepoint

    def transaction(self, effects: TransactionEffects) -> Transaction:
        """Return the open transaction as one request sees it."""
        self._requests += 1
        return PostgresTransaction(self.pipeline, effects, self)

    def cause_of(self, error: BaseException) -> BaseException:
        """Return the error: a column has values of its own type only."""
        return error

    def check_files(self) -> None:
        """Nothing can be put in place of a database."""

    # --- other processes -------------------------------------------------------------------------

    def has_foreign_commit(self) -> bool:
        """Whether another connection has committed since the last call."""
        found, self._foreign = self._foreign, False
        return found

    def note_news(self, news: int | None) -> bool:
        """Record what the listener has received; return whether it is another's commit. None has no number."""
        if news is None:
            self._news, self._reads_facts = None, True  # the next turn takes it in
        elif self._news is not None and news <= self._news:
            return False
        self._foreign = True
        return True

    def notify_listeners(self) -> None:
        """Others are notified by the commit itself."""

    def close(self) -> None:
        """Close the connection."""
        self._refusal = "the store is closed", "Open it again."
        self._drop()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's, so it is neither used nor closed."""
        self._refusal = "this transaction belongs to the process that began it", "Fork outside of transactions."

"""The PostgreSQL store: one rota is one schema, used by processes on many hosts.

One connection writes, behind the `Writer`, and takes turns with those of other processes (postgres_engine.py). Readers
have connections of their own, which see the last commit and never wait. A third kind listens for the commits of others,
if a request or a listener here waits for them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import psycopg

from rota.clock import Clock, SystemClock
from rota.errors import InvalidInput, StoreError, StoreReplaced, StoreUnavailable
from rota.store.addresses import host_path
from rota.store.engine import TransactionLost
from rota.store.forks import add_store
from rota.store.migrations import TABLES
from rota.store.postgres_clock import DatabaseClock
from rota.store.postgres_connection import PostgresAddress, connect, parse_url, unavailable
from rota.store.postgres_engine import FLUSH, Durability, PostgresEngine
from rota.store.postgres_listener import NewsListener
from rota.store.postgres_opening import open_schema
from rota.store.postgres_pipeline import Pipeline
from rota.store.postgres_schema import COLUMNS
from rota.store.postgres_transaction import PostgresTransaction
from rota.store.protocol import Row, Statement, Transaction, TransactionEffects
from rota.store.writer import Writer

__all__ = ["PostgresStore"]

_UNLISTED = """SELECT count(*) FROM agent_entries a FULL JOIN agent_schedule_queue q
    ON q.pid = a.pid AND q.sched_id = a.sched_id WHERE a.sched_id IS NULL OR q.sched_id IS NULL"""
READERS_MAX = 4  # connections that read at the same time; more readers wait
_INHERITED: list[object] = []  # connections of the parent: a child must neither use nor close them
T = TypeVar("T")


class PostgresStore(Writer):
    """A schema of a database: a writer over its engine, and readers beside it."""

    _engine: PostgresEngine
    path = None  # there is no file

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        read_only: bool = False,
        create: bool = True,
    ) -> None:
        if durability not in ("full", "normal"):
            raise InvalidInput(f"durability must be full or normal, not {durability!r}", field="durability")
        self.address: PostgresAddress = parse_url(url)
        self.host_name = socket.gethostname()
        self.host_path = host_path(url)
        self.lost: StoreReplaced | None = None  # as reported to the listeners: the schema was dropped
        self._durability: Durability = durability
        self._read_only = read_only
        self._database_clock = DatabaseClock() if clock is None else None
        self._inherited = False  # from the parent, by a fork: opened again when it is used
        self._reopening = threading.Lock()
        self._guard = threading.Lock()  # guards all that follows
        self._readers: list[Pipeline] = []
        self._reader_slots = threading.BoundedSemaphore(READERS_MAX)
        self._listener: NewsListener | None = None
        self._prefetches: list[tuple[Statement, Row]] = []
        self._on_failover: Callable[[Transaction, str, str], None] | None = None
        connection = open_schema(self.address, self._database_clock, read_only=read_only, create=create)
        if read_only:
            self._readers.append(Pipeline(connection))
        self._engine = self._open_engine(None if read_only else connection)
        super().__init__(self._engine, clock or self._database_clock or SystemClock())
        add_store(self)

    def _open_engine(
        self, connection: psycopg.Connection[Any] | None = None, foreign_version: int = 0
    ) -> PostgresEngine:
        engine = PostgresEngine(
            self.address,
            durability=self._durability,
            read_only=self._read_only,
            foreign_version=foreign_version,
            clock=self._database_clock,
            connection=connection,
        )
        engine.prefetch(self._prefetches)
        engine.on_failover = self._on_failover
        return engine

    # --- reading ---------------------------------------------------------------------------------

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing and without waiting for writers."""
        self._check_open()
        while True:
            with self._reader() as pipeline:
                is_new = not pipeline.trips
                tx = PostgresTransaction(pipeline, TransactionEffects())
                try:
                    pipeline.send("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    result = work(tx)
                    if tx.has_read_journal and not self._read_only:
                        self._flush_seen(pipeline)
                except (TransactionLost, psycopg.Error) as problem:
                    if is_new or not pipeline.is_broken:
                        raise unavailable(self.address, problem) from problem
                else:
                    return result
            self._drop_readers()  # they broke while they were not in use

    def _flush_seen(self, pipeline: Pipeline) -> None:
        """Return when what this view shows is on disk: a reader of the journal must not see an event that can be lost.

        Commits are seen a moment before they are flushed (postgres_engine.py).
        """
        if pipeline.rows("SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()")[0][0]:
            pipeline.post("ROLLBACK")
            pipeline.rows(FLUSH, (self._engine.flush_mode,))

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Pipeline]:
        with self._reader_slots:
            with self._guard:
                pipeline = self._readers.pop() if self._readers else None
            if pipeline is None:
                pipeline = self._connect_reader()
            try:
                yield pipeline
            finally:
                self._give_back(pipeline)

    def _connect_reader(self) -> Pipeline:
        return Pipeline(connect(self.address, "reader", read_only=self._read_only))

    def _give_back(self, pipeline: Pipeline) -> None:
        """End the view without waiting for the answer, which is read with the next one's."""
        with contextlib.suppress(psycopg.Error):
            if not (pipeline.is_broken or pipeline.is_idle):
                pipeline.post("ROLLBACK")
        with self._guard:
            if not (self._closed or pipeline.is_broken):
                self._readers.append(pipeline)
                return
        pipeline.close()

    def prefetch(self, reads: Iterable[tuple[Statement, Row]]) -> None:
        """Name reads that most transactions make after another process has written: they come with the first trip."""
        self._prefetches += reads
        self._engine.prefetch(self._prefetches)

    def on_failover(self, call: Callable[[Transaction, str, str], None]) -> None:
        """Call this, in a transaction of its own, when a new connection finds the database on another timeline."""
        self._on_failover = self._engine.on_failover = call

    def _drop_readers(self) -> None:
        with self._guard:
            readers, self._readers = self._readers, []
        for pipeline in readers:
            pipeline.close()

    def dry_run(self, work: Callable[[Transaction], T]) -> T:
        """Run work as `write` does and always roll back. It holds the turn and notifies no listener."""
        effects = TransactionEffects()
        with self.exclusive():
            if self._engine.in_transaction:
                raise StoreError("a dry run inside a write", hint="Call dry_run outside of the transaction.")
            try:
                self._engine.begin()
                return work(self._engine.transaction(effects))
            except TransactionLost as problem:
                raise StoreUnavailable(f"the dry run failed: {problem}") from problem
            finally:
                self._engine.rollback()
                for call in effects.on_rollback:
                    call()

    # --- other processes -------------------------------------------------------------------------

    def _start_listening(self) -> None:
        """Listen for commits of other processes: a parked request or a listener here waits for them."""
        if self._listener is not None:
            return
        if self._inherited:
            self._check_open()
        with self._guard:
            if not self._closed and self._listener is None:
                self._listener = NewsListener(self.address, self._hear, self._end_waits, read_only=self._read_only)

    def _hear(self, news: int | None) -> None:
        """A commit was announced: if it is another process's, try the parked requests and call the listeners."""
        if not (self._foreign_listeners or self.parked):
            return
        with self._write_lock:  # a commit of this process may be announced before it is answered
            is_foreign = self._engine.note_news(news)
        if is_foreign and self.check_foreign_commit():
            self._batches.call_each(self._foreign_listeners)

    def _end_waits(self, problem: StoreReplaced) -> None:
        """The schema was dropped: fail the parked requests, and tell the listeners."""
        self.lost = problem
        with self._mutex:
            self._parked.fail_all(problem)
        self._batches.call_each(self._foreign_listeners)

    @contextlib.contextmanager
    def hold_worker_id(self, worker_id: str) -> Iterator[None]:
        """Hold a worker's id over all hosts during the block; raises WorkerExists if another process has it."""
        with self.exclusive():
            self._engine.take_worker_id(worker_id)
        try:
            yield
        finally:
            with contextlib.suppress(StoreUnavailable), self.exclusive():  # a store that was closed has released it
                self._engine.release_worker_id(worker_id)

    # --- backup, check, close --------------------------------------------------------------------

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:  # noqa: ARG002
        """Refuse: PostgreSQL has its own tools for that."""
        hint = f"Use pg_dump --schema={self.address.schema}, or copy it to a file: `rota db copy URL {path}`."
        raise StoreError("a store on PostgreSQL is not backed up by rota", hint=hint)

    def check(self) -> list[str]:
        """Return the problems found in the schema, one sentence each; empty if it is sound."""
        with self._maintenance() as connection:
            rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema").fetchall()
            found = {row[0] for row in rows}
            broken = connection.execute(
                "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
                "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema AND NOT i.indisvalid"
            ).fetchall()
            missing = [f"table {name} is missing" for name in sorted(self._tables() - found)]
            ((unlisted,),) = connection.execute(_UNLISTED).fetchall() if not missing else ((0,),)
        problems = [*missing, *(f"index {row[0]} is not valid" for row in broken)]
        if unlisted:
            problems.append(f"rows that differ between agent_entries and the queue: {unlisted}")
        return problems

    @staticmethod
    def _tables() -> frozenset[str]:
        return frozenset(name for name in TABLES | COLUMNS.keys() if not name.rpartition("_")[2].isdigit())

    def vacuum(self) -> None:
        """Have PostgreSQL reuse the space of deleted rows and look at its statistics again. No writer waits for it."""
        with self._maintenance() as connection:
            rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema").fetchall()
            for (name,) in rows:
                connection.execute(f'VACUUM (ANALYZE) "{name}"')

    @contextlib.contextmanager
    def _maintenance(self) -> Iterator[psycopg.Connection[Any]]:
        self._check_open()
        try:
            with contextlib.closing(
                connect(self.address, "maintenance", read_only=self._read_only, waits=True)
            ) as connection:
                yield connection
        except psycopg.Error as problem:
            raise unavailable(self.address, problem) from problem

    def close(self) -> None:
        """Close the connections. Waiting callers get StoreUnavailable."""
        with self._reopening:
            self._inherited = False
        super().close()  # first: it refuses to close inside a write, and then nothing is closed
        with self._guard:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
        self._drop_readers()
        self._engine.close()

    # --- forks (forks.py) ------------------------------------------------------------------------

    def before_fork(self, give_up_at: float) -> bool:
        """Keep other threads out of the writing connection; a child can always open another one."""
        if not self._is_writing():
            self._hold_writers(give_up_at)
        return True

    def after_fork_in_parent(self) -> None:
        """Let other threads write again."""
        self._release_writers()

    def after_fork_in_child(self, *, usable: bool) -> None:  # noqa: ARG002  # of SQLite
        """Give up every inherited connection without a word to the server; new ones are made when they are needed."""
        forked_inside = self._is_writing()
        self._guard, self._reopening = threading.Lock(), threading.Lock()
        self._reader_slots = threading.BoundedSemaphore(READERS_MAX)
        self._forget_writers()
        if self._listener is not None:
            self._listener.forget()
            _INHERITED.append(self._listener)
            self._listener = None
        self._engine.abandon()
        _INHERITED.extend([*self._readers, self._engine])
        self._readers = []
        if self._closed:  # before the fork, or since an earlier one
            return
        self._closed = True
        self._inherited = not forked_inside
        self._parked.closed = forked_inside
        if forked_inside:
            self._closed_because = "this process was forked inside a call of the store", "Open it again in the child."

    def _check_open(self) -> None:
        if self._inherited:
            with self._reopening:
                if self._inherited:
                    self._engine = self._open_engine(foreign_version=self._engine.foreign_version + 1)
                    self._batches.use(self._engine)
                    self._inherited = self._closed = False
                    if self._foreign_listeners:
                        self._start_listening()
        super()._check_open()

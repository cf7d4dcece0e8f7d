"""The SQLite store, through apsw (which brings its own SQLite; see docs/decisions/0002).

One connection writes, behind the `Writer`. Readers have connections of their own: in WAL mode they see the last commit
and never wait. Several processes may use the same file; `sqlite_engine.py` says how they take turns.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw

from rota.clock import Clock, SystemClock
from rota.errors import InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from rota.store.engine import TransactionLost
from rota.store.ipc_notify import CommitListener
from rota.store.protocol import Transaction, TransactionEffects
from rota.store.sqlite_connection import configure, connect, migrate, translate_errors
from rota.store.sqlite_engine import MEMORY, Durability, SqliteEngine, SqliteTransaction, open_engine
from rota.store.statements import file as sql
from rota.store.writer import Writer

__all__ = ["SQLITE_OLDEST", "Durability", "SqliteStore"]

SQLITE_OLDEST = (3, 51, 3)  # older versions can lose commits when a checkpoint runs beside a write
READERS_MAX = 16  # idle reading connections kept open
BACKUP_PAGES = 1_024  # copied at a time
T = TypeVar("T")


class SqliteStore(Writer):
    """A database file, or a database in memory: a writer over its engine, and readers beside it."""

    _engine: SqliteEngine

    def __init__(
        self,
        path: str,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        read_only: bool = False,
    ) -> None:
        if tuple(map(int, apsw.sqlite_lib_version().split("."))) < SQLITE_OLDEST:
            raise StoreUnavailable(
                f"SQLite {apsw.sqlite_lib_version()} can lose commits", hint="Upgrade apsw: pip install -U apsw."
            )
        if durability not in ("full", "normal"):
            raise InvalidInput(f"durability must be full or normal, not {durability!r}", field="durability")
        if not path:
            raise InvalidInput("the path is empty", field="path")
        # as SQLite does it: a relative path or a link still means the same file after a change of directory
        self._path = path = path if path == MEMORY else os.path.realpath(path)
        self._readers: list[apsw.Connection] = []
        self._guard = threading.Lock()  # guards the readers and all that follows
        self._foreign_listeners: tuple[Callable[[], None], ...] = ()  # called when another process has written
        self._commit_listener: CommitListener | None = None
        self._released = False
        with translate_errors("open", path):
            self._engine = open_engine(path, durability, read_only=read_only)
        super().__init__(self._engine, clock or SystemClock())
        try:
            if not read_only:
                with translate_errors("migrate", path):
                    self.write(migrate)
        except BaseException:
            self._engine.close()
            raise

    # --- reading ---------------------------------------------------------------------------------

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing and without waiting for writers."""
        if self._path == MEMORY:
            return self._read_memory(work)
        with self._reader() as connection:
            return self._read_view(connection, work)

    def dry_run(self, work: Callable[[Transaction], T]) -> T:
        """Run work as `write` does and always roll back. It holds the write lock and notifies no listener."""
        effects = TransactionEffects()
        with self.exclusive():
            if self._engine.connection.in_transaction:
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

    def _read_view(self, connection: apsw.Connection, work: Callable[[Transaction], T]) -> T:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        try:
            return work(SqliteTransaction(cursor, TransactionEffects()))
        except TransactionLost as problem:
            raise StoreUnavailable(f"the file could not be read: {problem}") from problem
        finally:
            if connection.in_transaction:
                cursor.execute("ROLLBACK")

    def _read_memory(self, work: Callable[[Transaction], T]) -> T:
        """Read on the only connection there is: with the write lock held, and with writing disabled."""
        with self.exclusive():
            connection = self._engine.connection
            if connection.in_transaction:
                raise StoreError("a read inside a write", hint="Use the open transaction.")
            connection.execute("PRAGMA query_only = ON")
            try:
                return work(SqliteTransaction(connection.cursor(), TransactionEffects()))
            finally:
                connection.execute("PRAGMA query_only = OFF")

    @contextlib.contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        with self._guard:
            self._check_readable()
            connection = self._readers.pop() if self._readers else None
        if connection is None:
            connection = self._connect_reader()
        try:
            yield connection
        finally:
            with self._guard:
                keep = not self._released and len(self._readers) < READERS_MAX
                if keep:
                    self._readers.append(connection)
            if not keep:
                connection.close()

    def _connect_reader(self) -> apsw.Connection:
        connection = connect(self._path, read_only=True)
        with translate_errors("read", self._path):
            configure(connection)
        return connection

    def _check_readable(self) -> None:
        if self._released:
            raise StoreUnavailable("the store is closed", hint="Open it again.")

    # --- other processes -------------------------------------------------------------------------

    def on_change(self, call: Callable[[], None], *, foreign_only: bool = False) -> Callable[[], None]:
        """Call this after every commit, or only after commits of other processes; returns a function that stops it."""
        with self._guard:
            self._foreign_listeners = (*self._foreign_listeners, call)
            if not foreign_only:
                self.add_listener(call)
        self._start_listening()

        def stop() -> None:
            with self._guard:
                self._foreign_listeners = tuple(each for each in self._foreign_listeners if each is not call)
                self.remove_listener(call)

        return stop

    def _start_listening(self) -> None:
        """Listen for commits of other processes: a parked request or a listener here waits for them."""
        with self._guard:
            if self._commit_listener is None and not self._released and self._path != MEMORY:
                self._commit_listener = CommitListener(self._engine.notifier, self._check_foreign_commit)

    def _check_foreign_commit(self) -> None:
        if (self._foreign_listeners or self.parked) and self.check_foreign_commit():
            for call in self._foreign_listeners:
                call()

    # --- backup, check, close --------------------------------------------------------------------

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy everything to a new file while others write; the copy appears complete or not at all."""
        part = Path(f"{path}.part")
        if self._path != MEMORY and os.path.realpath(path) == self._path:
            raise InvalidInput("a store cannot be its own backup", field="path", path=path)
        part.unlink(missing_ok=True)
        target = connect(str(part))
        try:
            with translate_errors("back up to", path):
                with self._source() as source:
                    _copy(source, target, progress)
                target.close()
                _put_in_place(part, Path(path))
        finally:
            target.close()
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _source(self) -> Iterator[apsw.Connection]:
        if self._path == MEMORY:
            with self.exclusive():
                yield self._engine.connection
            return
        with self._reader() as connection:
            connection.execute("BEGIN")  # one consistent view, however long the copy takes
            try:
                connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def check(self) -> list[str]:
        """Return the problems found in the file, one sentence each; empty if it is sound."""
        try:
            if self._path == MEMORY:
                return self._read_memory(_problems)
            with self._guard:
                self._check_readable()
            with contextlib.closing(self._connect_reader()) as connection:  # a new one, with an empty cache
                return self._read_view(connection, _problems)
        except StoreCorrupt as problem:
            return [problem.message]

    def close(self) -> None:
        """Release the file. Waiting callers get StoreUnavailable."""
        super().close()  # first: it refuses to close inside a write, and then nothing is closed
        with self._guard:
            if self._released:
                return
            self._released = True
            readers, self._readers = self._readers, []
        if self._commit_listener is not None:
            self._commit_listener.stop()
        for connection in readers:
            connection.close()
        self._engine.close()


# --- backup and check ----------------------------------------------------------------------------


def _copy(source: apsw.Connection, target: apsw.Connection, progress: Callable[[int, int], None] | None) -> None:
    with target.backup("main", source, "main") as copy:
        while not copy.done:
            copy.step(BACKUP_PAGES)
            if progress is not None:
                progress(copy.page_count - copy.remaining, copy.page_count)


def _put_in_place(part: Path, path: Path) -> None:
    """Rename the copy durably. Remove the log of an earlier file first: SQLite would replay it into the copy."""
    _flush(part)
    for beside in ("-wal", "-shm", "-journal"):
        Path(f"{path}{beside}").unlink(missing_ok=True)
    part.replace(path)
    _flush(path.absolute().parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _problems(tx: Transaction) -> list[str]:
    found = [str(row[0]) for row in tx.run(sql.INTEGRITY) if row[0] != "ok"]
    orphans = [f"{row[0]} row {row[1]} refers to a missing row of {row[2]}" for row in tx.run(sql.ORPHANS)]
    return found + orphans

"""The SQLite connection that writes, as the writer sees it.

Processes that share a file take an exclusive `flock` on a second file, `-lock`, before SQLite's own lock. The system
grants it in order of arrival, which SQLite does not do with its own, so no process starves.

**Sole user.** The `flock` is for fairness; SQLite's lock is what keeps two writers apart. So a process that has the
file to itself skips the `flock` and the notifications, which saves a twentieth of a small commit. To be sure of it:

1. Every process that has the file open holds a shared `flock` on a third file, `-here`. The system releases it when the
   process ends in any way. A process that gets this lock exclusively while it opens the file is the only user.
2. Every process that opens the file writes a random id into shared memory before it writes to the database. The sole
   user remains one until it finds another id there, and never becomes one again after that.
3. Opening is done under the `-lock`, so two processes that open the file do it one after the other.
4. The sole user checks the id again when it holds SQLite's lock. If the id is still its own, a process that opens the
   file from then on waits at SQLite's lock and has read nothing yet. If not, the commit sends notifications.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Literal

import apsw
import msgspec

from rota.errors import InvalidInput, StoreCorrupt, StoreUnavailable
from rota.store import sqlite_connection
from rota.store.engine import TransactionLost
from rota.store.ipc_notify import CommitNotifier, SharedWords
from rota.store.protocol import Row, Statement, Transaction, TransactionEffects
from rota.store.sqlite_connection import DAMAGED, check_file, configure, connect
from rota.store.statements.queue import IDS

__all__ = ["MEMORY", "Durability", "SqliteEngine", "SqliteTransaction", "open_engine"]

PAGE_BYTES = 2_048  # half of SQLite's default: a small commit flushes half as much (docs/decisions/0006)
LOG_PAGES = 4_000  # 8 MiB of log before a checkpoint, so that a page that changes often is copied once
MEMORY = ":memory:"
OPENER_ID_BYTES = 8

Durability = Literal["full", "normal"]
_encode = msgspec.json.Encoder().encode

# not caused by the statement: these end the whole transaction, or leave no way to go on with it
_LOST = (apsw.FullError, apsw.IOError, apsw.NoMemError, apsw.BusyError, apsw.CantOpenError, apsw.ProtocolError)
_TRANSLATED = (*_LOST, *DAMAGED, TypeError, OverflowError, UnicodeEncodeError)


@cache
def _for_one(statement: Statement) -> Statement:
    assert IDS in statement.sql, statement.name  # noqa: S101  # it has no list
    return statement._replace(sql=statement.sql.replace(IDS, "(?)"))


class SqliteTransaction:
    """An open transaction, as one request sees it."""

    __slots__ = ("_cursor", "effects", "foreign_version")

    def __init__(self, cursor: apsw.Cursor, effects: TransactionEffects, foreign_version: int = 0) -> None:
        self._cursor = cursor
        self.effects = effects
        self.foreign_version = foreign_version

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        try:
            return self._cursor.execute(statement.sql, parameters).fetchall()
        except _TRANSLATED as problem:
            raise _translated(problem) from problem

    def run_for(self, statement: Statement, keys: Collection[int | str]) -> list[Row]:
        """Run a statement for a list of keys, as JSON; for a single key in a form that takes a third of the time."""
        if len(keys) == 1:
            return self.run(_for_one(statement), tuple(keys))
        return self.run(statement, (_encode(list(keys)).decode(),))

    def insert(self, statement: Statement, parameters: Sequence[Any]) -> int:
        """Run a statement that inserts one row and return the row's id."""
        try:
            self._cursor.execute(statement.sql, parameters)
        except _TRANSLATED as problem:
            raise _translated(problem) from problem
        return self._cursor.connection.last_insert_rowid()

    def insert_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> int:
        """Insert one row for each row of parameters and return the first id; the other ids follow it."""
        if len(parameters) == 1:
            return self.insert(statement, parameters[0])  # half the cost of `executemany`
        self.run_many(statement, parameters)
        return self._cursor.connection.last_insert_rowid() - len(parameters) + 1

    def run_many(self, statement: Statement, parameters: Collection[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""
        if len(parameters) == 1:
            self.run(statement, next(iter(parameters)))  # half the cost of `executemany`
            return
        try:
            self._cursor.executemany(statement.sql, parameters).fetchall()  # without fetchall it stops at a result row
        except _TRANSLATED as problem:
            raise _translated(problem) from problem


def _translated(problem: BaseException) -> BaseException:
    """The rota error for a failed statement."""
    if isinstance(problem, _LOST):
        return TransactionLost(str(problem))
    if isinstance(problem, DAMAGED):
        return StoreCorrupt(f"the file is damaged: {problem}")
    return InvalidInput(f"a value cannot be stored: {problem}")  # the last resort, if an earlier check missed it


class SqliteEngine:
    """The writing connection."""

    def __init__(self, connection: apsw.Connection, path: str, *, read_only: bool = False) -> None:
        self.connection = connection
        self.read_only = read_only
        self._path = path = MEMORY if read_only else path  # a reader locks and notifies nothing
        self._cursor = connection.cursor()
        self._seen_version = self._data_version()
        self._notified_changes = 0  # rows changed when other processes were last notified
        self._lock: int | None = None
        self._words: SharedWords | None = None
        self._notifier: CommitNotifier | None = None
        self._last_opener: memoryview | bytes = b""  # in shared memory
        self._foreign_version = 0  # how many times a transaction found that others had written
        self._file_version = connection.data_version()  # as this connection last left or found the file
        self._committing = False  # COMMIT was issued: if no transaction is left then, it is durable
        if path != MEMORY:
            self._lock = os.open(path + "-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._words = SharedWords(self._lock)
            except BaseException:
                os.close(self._lock)
                raise
            self._notifier = CommitNotifier(path, self._words)
            self._last_opener = self._words.last_opener
        self._presence_lock: int | None = None  # locked as long as the file is open
        self._opener_id = b""  # what it wrote into shared memory, if it was the only user then
        self.sole_user = False  # as found when the last transaction began; once False, it stays False

    def prepare(self, durability: Durability) -> None:
        """Set the connection up, under the lock: a file cannot switch to WAL while another process reads it."""
        configure(self.connection)
        if self.read_only:
            return
        self._acquire_lock()
        try:
            self.connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file; others keep theirs
            mode = self.connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
            self._announce()
        finally:
            self._release_lock()
        if mode == "delete":
            raise StoreUnavailable("this file system has no shared memory for WAL", hint="Use a local disk.")
        self.connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")

    def _announce(self) -> None:
        """Make this user visible to others, and find out whether there are any. The lock is held."""
        if self._words is None:
            return
        self._presence_lock = os.open(self._path + "-here", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._presence_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._opener_id = os.urandom(OPENER_ID_BYTES)
            self.sole_user = True
        except BlockingIOError:
            pass  # another process has the file open: the id in shared memory never equals our empty one
        fcntl.flock(self._presence_lock, fcntl.LOCK_SH)
        self._words.last_opener[:] = self._opener_id or os.urandom(OPENER_ID_BYTES)

    @property
    def notifier(self) -> CommitNotifier | None:
        """Notifications to other processes on the same file; None in memory."""
        return self._notifier

    # --- transactions ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the lock between processes, then SQLite's own, which no rota process holds by then."""
        self._committing = False
        if self.read_only:
            text = f"{self.connection.filename} was opened read-only"
            raise StoreUnavailable(text, hint="Open it without read_only.")
        try:
            if not self.sole_user or self._last_opener != self._opener_id:
                self._acquire_lock()
            self._cursor.execute("BEGIN IMMEDIATE")
            # again: a process that came meanwhile may have read something, and has to be notified of this commit
            self.sole_user = self.sole_user and self._last_opener == self._opener_id
            version = self.connection.data_version()  # current, because SQLite has just checked the file
            if version != self._file_version:
                self._file_version = version
                self._foreign_version += 1
        except BaseException as problem:
            self.rollback()  # an interrupt may come after BEGIN has succeeded
            if isinstance(problem, apsw.BusyError):
                held_s = sqlite_connection.BUSY_TIMEOUT_MS / 1000
                text = f"another program has kept the file locked for {held_s:g} s"
                hint = f"Find it and stop it: fuser {self._path}. It is not rota: its processes take turns."
                raise StoreUnavailable(text, hint=hint) from problem
            if isinstance(problem, DAMAGED):
                raise StoreCorrupt(f"the file is damaged: {problem}") from problem
            if isinstance(problem, apsw.Error | OSError):
                raise TransactionLost(str(problem)) from problem
            raise

    def commit(self) -> None:
        """Make it durable."""
        self._committing = True
        try:
            self._cursor.execute("COMMIT")
        except apsw.Error as problem:
            raise TransactionLost(str(problem)) from problem
        self._file_version = self.connection.data_version()
        if not self.sole_user:
            self._release_lock()  # harmless if it was not taken because the other process came a moment later

    def rollback(self) -> bool:
        """Roll back; return False if the transaction is already durable."""
        undo = self.connection.in_transaction
        try:
            if undo:
                self._cursor.execute("ROLLBACK")
        except apsw.Error:
            pass  # SQLite drops the transaction all the same
        finally:
            self._release_lock()
        return undo or not self._committing

    def savepoint(self) -> None:
        """Mark where a request begins."""
        self._control("SAVEPOINT request")

    def release(self) -> None:
        """Keep the request's changes."""
        self._control("RELEASE request")

    def rollback_to(self) -> None:
        """Undo the request's changes and no others."""
        self._control("ROLLBACK TO request")

    def _control(self, command: str) -> None:
        """Run a savepoint command. If it fails, the transaction is lost, whatever the reason."""
        try:
            self._cursor.execute(command)
        except apsw.Error as problem:
            raise TransactionLost(str(problem)) from problem

    def transaction(self, effects: TransactionEffects) -> Transaction:
        """Return the open transaction as one request sees it."""
        return SqliteTransaction(self._cursor, effects, self._foreign_version)

    # --- other processes -------------------------------------------------------------------------

    def has_foreign_commit(self) -> bool:
        """Whether another connection has committed since the last call."""
        try:
            version = self._data_version()
        except apsw.Error:
            return False  # unknown now; the next call still finds the change
        changed = version != self._seen_version
        self._seen_version = version
        return changed

    def notify_listeners(self) -> None:
        """Notify other processes of a commit, if rows changed and another process has the file open."""
        if self.sole_user or self._notifier is None:
            return
        changes = self.connection.total_changes()
        if changes != self._notified_changes:
            self._notified_changes = changes
            self._notifier.notify()

    def _data_version(self) -> int:
        # the pragma: outside a transaction data_version() does not see other processes
        rows: list[Row] = self._cursor.execute("PRAGMA data_version").fetchall()
        return int(rows[0][0])

    def _acquire_lock(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _release_lock(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release the file."""
        self.connection.close()
        if self._notifier is not None:
            self._notifier.close()
        if self._words is not None:
            self._words.close()
        for descriptor in (self._presence_lock, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._presence_lock = self._lock = None


def open_engine(path: str, durability: Durability, *, read_only: bool) -> SqliteEngine:
    """Open a rota database for writing."""
    connection = connect(path, read_only=read_only)
    try:
        check_file(connection, read_only=read_only)  # before anything is written, to the file or beside it
        engine = SqliteEngine(connection, path, read_only=read_only)
    except BaseException:
        connection.close()
        raise
    try:
        engine.prepare(durability)
    except BaseException:
        engine.close()
        raise
    return engine

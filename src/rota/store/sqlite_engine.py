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
5. A forked child gives up what it inherits, and opens the file like any other process before it uses it (`forks.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Literal

import apsw
import msgspec

from rota.clock import AwakeClock
from rota.errors import InvalidInput, StoreCorrupt, StoreError, StoreReplaced, StoreUnavailable
from rota.store import sqlite_connection
from rota.store.engine import TransactionLost
from rota.store.file_identity import StoreFiles, check_generation, check_path, check_users, is_first_user
from rota.store.forks import abandon
from rota.store.ipc_notify import CommitNotifier, SharedWords
from rota.store.private_files import create_private, open_private, refuse_link
from rota.store.protocol import Row, Statement, Transaction, TransactionEffects
from rota.store.sqlite_connection import DAMAGED, check_file, check_folder, configure, connect
from rota.store.statements.queue import IDS
from rota.store.stored_values import cause_of, read_with_bytes

__all__ = ["MEMORY", "Durability", "SqliteEngine", "SqliteTransaction", "open_engine"]

PAGE_BYTES = 2_048  # half of SQLite's default: a small commit flushes half as much (docs/decisions/0006)
LOG_PAGES = 4_000  # 8 MiB of log before a checkpoint, so that a page that changes often is copied once
MEMORY = ":memory:"
OPENER_ID_BYTES = 8
_BESIDE = ("-wal", "-shm", "-journal", "-lock", "-here")  # the files beside a database

Durability = Literal["full", "normal"]
_encode = msgspec.json.Encoder().encode
_monotonic = AwakeClock.monotonic  # a suspended machine does not use the store

# not caused by the statement: these end the whole transaction, or leave no way to go on with it
_LOST = (apsw.FullError, apsw.IOError, apsw.NoMemError, apsw.BusyError, apsw.CantOpenError, apsw.ProtocolError)
_FORKED = "this transaction belongs to the process that began it", "Fork outside of transactions and listeners."
_ENDED = (apsw.CursorClosedError, apsw.ConnectionClosedError)
_TRANSLATED = (*_LOST, *DAMAGED, *_ENDED, apsw.Error, TypeError, OverflowError, UnicodeError)


@cache
def _for_one(statement: Statement) -> Statement:
    assert IDS in statement.sql, statement.name  # noqa: S101  # it has no list
    return msgspec.structs.replace(statement, sql=statement.sql.replace(IDS, "(?)"))


@cache
def _unless_known(statement: Statement) -> Statement:
    return msgspec.structs.replace(statement, sql=f"{statement.sql} ON CONFLICT DO NOTHING")


class SqliteTransaction(msgspec.Struct, eq=False):
    """An open transaction, as one request sees it."""

    _cursor: apsw.Cursor
    effects: TransactionEffects
    foreign_version: int = 0
    facts_version: int = 0
    prefetches: bool = False  # a read costs no round trip

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        try:
            return self._cursor.execute(statement.sql, parameters).fetchall()
        except UnicodeDecodeError as problem:
            if not statement.sql.startswith(("SELECT", "WITH")):
                raise _translated(problem) from problem
            try:
                return read_with_bytes(self._cursor.connection, statement, parameters)
            except _TRANSLATED as worse:
                raise _translated(worse) from worse
        except _TRANSLATED as problem:
            raise _translated(problem) from problem

    def run_for(self, statement: Statement, keys: Collection[int | str]) -> list[Row]:
        """Run a statement for a list of keys, as JSON; for a single key in a form that takes a third of the time."""
        if len(keys) == 1:
            return self.run(_for_one(statement), tuple(keys))
        return self.run(statement, (_encode(list(keys)).decode(),))

    def read_together(self, reads: Sequence[tuple[Statement, Row]]) -> None:
        """Do nothing: a read costs no round trip here."""

    def insert(self, statement: Statement, parameters: Sequence[Any]) -> int:
        """Run a statement that inserts one row and return the row's id."""
        try:
            self._cursor.execute(statement.sql, parameters)
        except _TRANSLATED as problem:
            raise _translated(problem) from problem
        return self._cursor.connection.last_insert_rowid()

    def insert_unless(
        self,
        statement: Statement,
        parameters: Sequence[Any],
        known: tuple[Statement, Row],  # noqa: ARG002  # the index finds it
    ) -> int | None:
        """Insert one row and return its id; None if there is a row with its unique key. That is one statement."""
        row_id = self.insert(_unless_known(statement), parameters)
        return row_id if self._cursor.connection.changes() else None

    def insert_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> int:
        """Insert one row for each row of parameters and return the first id; the other ids follow it."""
        if len(parameters) == 1:
            return self.insert(statement, parameters[0])  # half the cost of `executemany`
        self.run_many(statement, parameters)
        return self._cursor.connection.last_insert_rowid() - len(parameters) + 1

    def run_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""
        try:
            if len(parameters) == 1:
                self._cursor.execute(statement.sql, parameters[0])  # half the cost of `executemany`
            else:
                self._cursor.executemany(statement.sql, parameters).fetchall()  # else it stops at a result row
        except _TRANSLATED as problem:
            raise _translated(problem) from problem


def _translated(problem: BaseException) -> BaseException:
    """The rota error for a failed statement."""
    if isinstance(problem, _LOST):
        return TransactionLost(str(problem))
    if isinstance(problem, (*DAMAGED, UnicodeDecodeError)):
        return StoreCorrupt(f"the file is damaged: {problem}")
    if isinstance(problem, apsw.Error) and not isinstance(problem, _ENDED):
        hint = "Run `rota db check`; if it finds nothing, this is a defect of rota."
        return StoreError(f"a statement failed: {problem}", hint=hint)
    if isinstance(problem, _ENDED):
        text, hint = _FORKED
        return StoreUnavailable(text, hint=hint)
    return InvalidInput(f"a value cannot be stored: {problem}")  # the last resort, if an earlier check missed it


class SqliteEngine:
    """The writing connection."""

    has_savepoints = True
    lost_hint = "Free disk space or repair the disk, then retry."

    def __init__(
        self, connection: apsw.Connection, path: str, *, read_only: bool = False, foreign_version: int = 0
    ) -> None:
        self.connection = connection
        self.read_only = read_only
        self._refusal: tuple[str, str] | None = None  # why no transaction may begin, and what to do
        if read_only:
            self._refusal = f"{connection.filename} was opened read-only", "Open it without read_only."
        self.files: StoreFiles | None = None  # what is open, to be compared with what is at the path; None in memory
        self._began_at = 0.0  # when the last transaction began
        self._released = False  # closed, or inherited by a forked child, which must not use it
        self._path = path = MEMORY if read_only else path  # a reader locks and notifies nothing
        self._cursor = connection.cursor()
        self.changes = connection.total_changes  # of rows; also what a failed statement has tried
        self._seen_version = self._data_version()
        self._notified_changes = 0  # rows changed when other processes were last notified
        self._lock: int | None = None
        self._words: SharedWords | None = None
        self._notifier: CommitNotifier | None = None
        self._last_opener: memoryview | bytes = b""  # in shared memory
        self.foreign_version = foreign_version  # grows when a transaction finds that others have written
        self._file_version = connection.data_version()  # as this connection last left or found the file
        self._committing = False  # COMMIT was issued: if no transaction is left then, it is durable
        if path != MEMORY:
            self._lock = open_private(path + "-lock", like=path)
            try:
                self._words = SharedWords(self._lock)
            except BaseException:
                os.close(self._lock)
                raise
            self._notifier = CommitNotifier(path, self._words)
            self._last_opener = self._words.last_opener
        self._leave: weakref.finalize[[int, int], SqliteEngine] | None = None  # unlocks the presence file
        self._opener_id = b""  # what it wrote into shared memory, if it was the only user then
        self.sole_user = False  # as found when the last transaction began; once False, it stays False

    def prepare(self, durability: Durability) -> None:
        """Set the connection up, under the lock: a file cannot switch to WAL while another process reads it."""
        configure(self.connection)
        if self.read_only:
            self.files = StoreFiles(self.connection.filename, self.connection)
            return
        self._acquire_lock()
        try:
            if not self.connection.execute("PRAGMA page_count").fetchall()[0][0]:  # a new file; others keep theirs
                self.connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                self.connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # a prune can shorten it
            mode = self.connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
            self._seen_version = self._data_version()  # the switch changes it, as a commit of another process would
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
        self.files = StoreFiles(self._path, self.connection)
        presence_lock = open_private(self._path + "-here", like=self._path)
        # before SQLite closes the file, also if the program forgets the store or ends without closing it: the last one
        # that closes the file deletes the log, and while the file is locked, the log is there
        self._leave = weakref.finalize(self, _unlock, presence_lock, os.getpid())
        own = self.files.identities
        # otherwise another process has the file open: the id in shared memory never equals our empty one
        if is_first_user(self._path, presence_lock, bytes(self._words.files), own):
            self._opener_id = os.urandom(OPENER_ID_BYTES)
            self.sole_user = True
            self._words.files[:] = own
        fcntl.flock(presence_lock, fcntl.LOCK_SH)
        self._words.last_opener[:] = self._opener_id or os.urandom(OPENER_ID_BYTES)

    @property
    def notifier(self) -> CommitNotifier | None:
        """Notifications to other processes on the same file; None in memory."""
        return self._notifier

    # --- transactions ----------------------------------------------------------------------------

    def begin(self, *, alone: bool = False) -> None:  # noqa: ARG002  # it begins the same way
        """Take the lock between processes, then SQLite's own, which no rota process holds by then."""
        self._committing = False
        if self._refusal is not None:
            text, hint = self._refusal
            raise StoreUnavailable(text, hint=hint)
        files = self.files
        if files is not None:
            self._began_at = now = _monotonic()
            if now >= files.due_at:
                self.check_files()
        try:
            if not self.sole_user or self._last_opener != self._opener_id:
                self._acquire_lock()
            self._cursor.execute("BEGIN IMMEDIATE")
            # again: a process that came meanwhile may have read something, and has to be notified of this commit
            self.sole_user = self.sole_user and self._last_opener == self._opener_id
            version = self.connection.data_version()  # current, because SQLite has just checked the file
            if version != self._file_version:
                self._file_version = version
                self.foreign_version += 1
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
        files = self.files
        try:
            if files is not None and self._began_at >= files.advance_at:
                files.advance(self.connection)
            self._cursor.execute("COMMIT")
        except apsw.Error as problem:
            raise TransactionLost(str(problem)) from problem
        self._file_version = self.connection.data_version()
        if not self.sole_user:
            self._release_lock()  # harmless if it was not taken because the other process came a moment later
        if files is not None and (files.changed() or files.drained):
            self.check_files()

    def check_files(self) -> None:
        """Raise StoreReplaced if the files at the path are not those that are open. The write lock is held."""
        if self.files is None:
            return
        try:
            self.files.check(self.connection, is_writer=True)
        except StoreReplaced:
            if not self.read_only:
                self._acquire_lock()  # no other process opens the file meanwhile
                try:
                    self.files.rescue_log(self.connection)
                finally:
                    self._release_lock()
            raise

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
        version = self.foreign_version  # a file does not say what others have written
        return SqliteTransaction(self._cursor, effects, version, version)

    def cause_of(self, error: BaseException) -> BaseException:
        """Return StoreCorrupt if work failed because of a stored value of the wrong type; else the error itself."""
        return cause_of(self.transaction(TransactionEffects()), error)

    def vacuum(self) -> None:
        """Rewrite the file without its free pages, outside of a transaction, and empty its log."""
        self._acquire_lock()
        try:
            self._cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect in an older file only by the VACUUM
            self._cursor.execute("VACUUM")
            self._cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._release_lock()

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
        if not self._released:
            self._released = True
            with contextlib.suppress(StoreReplaced):
                self.check_files()
            if self.files is not None and self.files.lost:  # a checkpoint could go into the wrong file
                self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if self._leave is not None:
                self._leave()
            try:
                self.connection.close()
            finally:
                self._release_descriptors()

    def abandon(self, *, usable: bool) -> None:
        """In a forked child: release what was inherited, without a change to the file or to a lock of the parent.

        The descriptors are closed in any case: a `flock` on them lasts until the last process has closed them.
        """
        if self._released:
            return
        self._released, self._refusal = True, _FORKED
        with contextlib.suppress(apsw.Error):
            if self.connection.in_transaction:
                self._cursor.close()  # the transaction runs no more statements here
        if self.connection.filename:  # not in memory
            abandon(self.connection, usable=usable)
        if self._leave is not None:
            self._leave()
        self._release_descriptors()
        self.files = None

    def _release_descriptors(self) -> None:
        if self._notifier is not None:
            self._notifier.close()
        if self._words is not None:
            self._words.close()
        if self.files is not None:
            self.files.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = self._notifier = self._words = None


def _unlock(descriptor: int, process: int) -> None:
    if os.getpid() == process:  # a forked child would unlock it for its parent
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing does not unlock it while a child just forked has it too
    os.close(descriptor)


def open_engine(path: str, durability: Durability, *, read_only: bool, foreign_version: int = 0) -> SqliteEngine:
    """Open a rota database for writing."""
    if path != MEMORY:
        check_folder(path)
        for suffix in _BESIDE:
            refuse_link(path + suffix)  # SQLite would follow it
        check_path(path)
        check_users(path)
        if not read_only:
            with contextlib.suppress(FileExistsError):
                os.close(create_private(path))  # SQLite would create it for all to read
    connection = connect(path, read_only=read_only)
    try:
        if path != MEMORY:
            check_generation(connection)
        check_file(connection, read_only=read_only)  # before anything is written, to the file or beside it
        engine = SqliteEngine(connection, path, read_only=read_only, foreign_version=foreign_version)
    except BaseException:
        connection.close()
        raise
    try:
        engine.prepare(durability)
    except BaseException:
        engine.close()
        raise
    return engine

"""SQLite connections: opening a file that is ours, and the one that writes, as the writer sees it.

Processes take turns by an exclusive lock on a file beside the database, which the system hands out in order.

**Alone.** Turns are for fairness; what keeps two writers apart is SQLite's own lock. So one who has the file to itself
need not take turns or ring bells, a twentieth of a small commit. It must not be mistaken:

1. Everybody who has the file open holds a shared lock on a second file, `-here`. The system lets go of it when its
   holder dies, however. Who can have that lock exclusively for a moment while it opens the file is the only one there.
2. Everybody who opens the file leaves a name on the board, before it writes anything. The first one is alone until it
   finds another name there, and not again after that.
3. Opening is done in a turn, so two who open at once do it one after the other.
4. The first one looks at the board again when it has SQLite's lock. If it is alone then, whoever comes waits at that
   lock for the transaction to end, and has read nothing before. If it is not, its commit is rung.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import apsw

from rota.errors import InvalidInput, SchemaMismatch, StoreCorrupt, StoreUnavailable
from rota.store import migrations
from rota.store.engine import GroupFailed
from rota.store.ipc_notify import Bells, Board
from rota.store.protocol import Notes, Row, Statement, Transaction
from rota.store.statements import file as sql

__all__ = [
    "BROKEN",
    "BUSY_TIMEOUT_MS",
    "MEMORY",
    "Durability",
    "Session",
    "SqliteEngine",
    "connect",
    "migrate",
    "named",
    "open_engine",
    "tune",
]

BUSY_TIMEOUT_MS = 10_000  # how long a foreign program may hold the file before a caller hears of it
STAMP_MAX = 20  # characters of a version that are looked at: Python will not read a number of thousands of digits
PAGE_BYTES = 2_048  # half of SQLite's own default: a small commit flushes half as much (docs/decisions/0006)
LOG_PAGES = (
    4_000  # of the log, before it is moved into the file: 8 MiB, so that a page that changes often is moved once
)
CACHE_KIB = 8 * 1024  # of the file, in each connection: what bounds memory. More gains nothing, the system caches too
MEMORY = ":memory:"
NAME_BYTES = 8  # of one who opens a file, on the board

Durability = Literal["full", "normal"]

# no fault of the statement: these end the whole transaction, or leave no way to go on with it
_GONE = (apsw.FullError, apsw.IOError, apsw.NoMemError, apsw.BusyError, apsw.CantOpenError, apsw.ProtocolError)
BROKEN = (apsw.CorruptError, apsw.NotADBError)
_TROUBLE = (*_GONE, *BROKEN, TypeError, OverflowError, UnicodeEncodeError)


@contextlib.contextmanager
def named(deed: str, path: str) -> Iterator[None]:
    """Give what SQLite or the system complains of a name of ours."""
    try:
        yield
    except BROKEN as problem:
        text = f"cannot {deed} {path}: not a file of ours, or damaged: {problem}"
        wrong = "Is this the right file? If it is, restore it from a backup."
        hint = wrong if isinstance(problem, apsw.NotADBError) else None
        raise StoreCorrupt(text, hint=hint, path=path) from problem
    except (apsw.Error, OSError, GroupFailed) as problem:
        raise StoreUnavailable(f"cannot {deed} {path}: {problem}", path=path) from problem


def connect(path: str, *, read_only: bool = False) -> apsw.Connection:
    """A connection, or an error of ours."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with named("open", path):
        connection = apsw.Connection(path, flags=flags)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    return connection


class Session:
    """An open transaction, as one request sees it."""

    __slots__ = ("_cursor", "news", "notes")

    def __init__(self, cursor: apsw.Cursor, notes: Notes, news: int = 0) -> None:
        self._cursor = cursor
        self.notes = notes
        self.news = news

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        try:
            return self._cursor.execute(statement.sql, parameters).fetchall()
        except _TROUBLE as problem:
            raise _translated(problem) from problem

    def insert(self, statement: Statement, parameters: Sequence[Any]) -> int:
        """Run a statement that inserts a row and return its id."""
        try:
            self._cursor.execute(statement.sql, parameters)
        except _TROUBLE as problem:
            raise _translated(problem) from problem
        return self._cursor.connection.last_insert_rowid()

    def insert_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> int:
        """Run a statement that inserts a row once for each row of parameters; the first new id. The rest follow it."""
        self.run_many(statement, parameters)
        return self._cursor.connection.last_insert_rowid() - len(parameters) + 1

    def run_many(self, statement: Statement, parameters: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""
        try:
            self._cursor.executemany(statement.sql, parameters).fetchall()  # it stops at a row that nobody takes
        except _TROUBLE as problem:
            raise _translated(problem) from problem


def _translated(problem: BaseException) -> BaseException:
    """What went wrong with a statement, in our words."""
    if isinstance(problem, _GONE):
        return GroupFailed(str(problem))
    if isinstance(problem, BROKEN):
        return StoreCorrupt(f"the file is damaged: {problem}")
    return InvalidInput(f"a value cannot be stored: {problem}")  # the net under checks that were too kind


class SqliteEngine:
    """The writing connection."""

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self.connection = connection
        self._path = path
        self._cursor = connection.cursor()
        self._version = self._data_version()
        self._rung = 0  # rows changed when the bells were last rung
        self._lock: int | None = None
        self._board: Board | None = None
        self._bells: Bells | None = None
        self._last_comer: memoryview | bytes = b""  # on the board
        self._news = 0  # how often others were found to have written
        self._file_version = connection.data_version()  # of the file, as it was left or found by this connection
        self._committing = False  # COMMIT was begun: if no transaction is left then, it is durable
        if path != MEMORY:
            self._lock = os.open(path + "-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._board = Board(self._lock)
            except BaseException:
                os.close(self._lock)
                raise
            self._bells = Bells(path, self._board)
            self._last_comer = self._board.last_comer
        self._here: int | None = None  # locked as long as the file is open
        self._name = b""  # what it left on the board, if nobody else was there
        self.alone = False  # until somebody else was seen; as was found when the last transaction began

    def prepare(self, durability: Durability, *, read_only: bool) -> None:
        """Set the connection up. Alone, because a file cannot turn to WAL while another process looks."""
        tune(self.connection)
        if read_only:
            return
        self._enter()
        try:
            self.connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file; others keep theirs
            mode = self.connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
            self._arrive()
        finally:
            self._leave()
        if mode == "delete":
            raise StoreUnavailable("this file system has no shared memory for WAL", hint="Use a local disk.")
        self.connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")

    @property
    def bells(self) -> Bells | None:
        """Those of other processes on the same file; None in memory."""
        return self._bells

    def begin(self) -> None:
        """Take this process's turn, then SQLite's own lock, which nobody of ours then holds."""
        self._committing = False
        try:
            if not self.alone or self._last_comer != self._name:
                self._enter()
            self._cursor.execute("BEGIN IMMEDIATE")
            # again: who came meanwhile may have read something, and must hear of this
            self.alone = self.alone and self._last_comer == self._name
            version = self.connection.data_version()  # SQLite has just looked
            if version != self._file_version:
                self._file_version = version
                self._news += 1
        except BaseException as problem:
            self.rollback()  # an interrupt may come when it is done
            if isinstance(problem, apsw.BusyError):
                text = f"another program has kept the file locked for {BUSY_TIMEOUT_MS / 1000:g} s"
                raise StoreUnavailable(text, hint="Find who holds it; rota's own processes take turns.") from problem
            if isinstance(problem, BROKEN):
                raise StoreCorrupt(f"the file is damaged: {problem}") from problem
            if isinstance(problem, apsw.Error | OSError):
                raise GroupFailed(str(problem)) from problem
            raise

    def commit(self) -> None:
        """Make it durable."""
        self._committing = True
        try:
            self._cursor.execute("COMMIT")
        except apsw.Error as problem:
            raise GroupFailed(str(problem)) from problem
        self._file_version = self.connection.data_version()
        if not self.alone:
            self._leave()  # also where no turn was taken, because the other one came a moment later

    def rollback(self) -> bool:
        """Undo it, unless it is durable already: then the answer is False."""
        undo = self.connection.in_transaction
        try:
            if undo:
                self._cursor.execute("ROLLBACK")
        except apsw.Error:
            pass  # SQLite drops the transaction all the same
        finally:
            self._leave()
        return undo or not self._committing

    def savepoint(self) -> None:
        """Mark where a request begins."""
        self._do("SAVEPOINT request")

    def release(self) -> None:
        """Keep what the request did."""
        self._do("RELEASE request")

    def rollback_to(self) -> None:
        """Undo what the request did, and only that."""
        self._do("ROLLBACK TO request")

    def _do(self, verb: str) -> None:
        """Move the transaction on. If that fails, it is no one request's fault, whatever the reason."""
        try:
            self._cursor.execute(verb)
        except apsw.Error as problem:
            raise GroupFailed(str(problem)) from problem

    def transaction(self, notes: Notes) -> Transaction:
        """The open transaction as one request sees it."""
        return Session(self._cursor, notes, self._news)

    def changed_elsewhere(self) -> bool:
        """Whether another connection has committed since the last time this was asked."""
        try:
            version = self._data_version()
        except apsw.Error:
            return False  # not to be known now; it will still have changed at the next look
        changed = version != self._version
        self._version = version
        return changed

    def ring(self) -> None:
        """Tell other processes that something was committed, if anything was and anybody is there."""
        if self.alone or self._bells is None:
            return
        changes = self.connection.total_changes()
        if changes != self._rung:
            self._rung = changes
            self._bells.ring()

    def close(self) -> None:
        """Release the file."""
        self.connection.close()
        if self._bells is not None:
            self._bells.close()
        if self._board is not None:
            self._board.close()
        for held in (self._here, self._lock):
            if held is not None:
                os.close(held)
        self._here = self._lock = None

    def _arrive(self) -> None:
        """Be seen by whoever else has the file open, and see whether anybody has. In a turn."""
        if self._board is None:
            return
        self._here = os.open(self._path + "-here", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._here, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._name = os.urandom(NAME_BYTES)
            self.alone = True
        except BlockingIOError:
            pass  # somebody is there: its name on the board is not ours, and never will be
        fcntl.flock(self._here, fcntl.LOCK_SH)
        self._board.last_comer[:] = self._name or os.urandom(NAME_BYTES)

    def _data_version(self) -> int:
        # the pragma: outside a transaction data_version() does not see other processes
        rows: list[Row] = self._cursor.execute("PRAGMA data_version").fetchall()
        return int(rows[0][0])

    def _enter(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _leave(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


# --- opening -------------------------------------------------------------------------------------


def open_engine(path: str, durability: Durability, *, read_only: bool) -> SqliteEngine:
    """A connection to a file that is ours, ready to write."""
    connection = connect(path, read_only=read_only)
    try:
        _judge(connection, read_only=read_only)  # before anything is written, beside it too
        engine = SqliteEngine(connection, MEMORY if read_only else path)
    except BaseException:
        connection.close()
        raise
    try:
        engine.prepare(durability, read_only=read_only)
    except BaseException:
        engine.close()
        raise
    return engine


def _judge(connection: apsw.Connection, *, read_only: bool) -> None:
    """Refuse a file that is not ours, or that reading alone cannot open, and leave it as it was found."""
    try:
        _check_stamp(connection, read_only=read_only)
    except SchemaMismatch:
        # the last to close a file moves its log into it
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(_has_log(connection)))
        raise
    if connection.readonly("main") and not read_only:
        text = f"{connection.filename} may not be written"
        raise StoreUnavailable(text, hint="Change its rights, or open it with read_only.")


def _check_stamp(connection: apsw.Connection, *, read_only: bool) -> None:
    steps = migrations.plan(_stamp(connection), empty=_is_empty(connection))
    if read_only and steps:
        text = "the file is of an older version, and reading only never migrates it"
        raise SchemaMismatch(text, hint="Take it to this version: `rota db migrate`.")


def _has_log(connection: apsw.Connection) -> bool:
    log = Path(f"{connection.filename}-wal")
    return log.exists() and log.stat().st_size > 0


def tune(connection: apsw.Connection) -> None:
    """Set what every connection has in common."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")


def _is_empty(connection: apsw.Connection) -> bool:
    return not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()


def _stamp(connection: apsw.Connection) -> str | None:
    if not connection.execute(sql.META_EXISTS.sql).fetchall():
        return None
    try:
        rows = connection.execute(sql.META_GET.sql, ("schema_version",)).fetchall()
    except apsw.SQLError as problem:
        raise SchemaMismatch(f"the file's kernel_meta is another program's: {problem}") from problem
    return str(rows[0][0])[:STAMP_MAX] if rows else None


def migrate(tx: Transaction) -> None:
    """Take the file forward. Asked again inside the transaction, since another process may have done it."""
    tables = tx.run(sql.META_EXISTS)
    rows = tx.run(sql.META_GET, ("schema_version",)) if tables else []
    for step in migrations.plan(str(rows[0][0]) if rows else None, empty=not tables):
        tx.run(migrations.step(step))
        tx.run(sql.META_SET, ("schema_version", str(step)))

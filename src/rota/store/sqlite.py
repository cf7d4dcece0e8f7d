"""The SQLite store, through apsw (which brings its own SQLite; see docs/decisions/0002).

One connection writes, behind the `Writer`; readers have connections of their own, which in WAL mode see the
last commit and never wait. Several processes may hold the same file: each takes its turn by an exclusive lock
on a file beside it, which the system hands out in order, so nobody meets SQLite's own lock, which it does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw

from rota.clock import Clock, SystemClock
from rota.errors import InvalidInput, SchemaMismatch, StoreCorrupt, StoreError, StoreUnavailable
from rota.store import migrations
from rota.store.doorbell import Bells, Board, Watch
from rota.store.protocol import Notes, Row, Statement, Transaction
from rota.store.statements import file as sql
from rota.store.writer import GroupFailed, Writer

__all__ = ["BUSY_TIMEOUT_MS", "Durability", "SqliteStore"]

SQLITE_OLDEST = (3, 51, 3)  # below it, a checkpoint beside a write can lose commits
BUSY_TIMEOUT_MS = 10_000  # how long a foreign program may hold the file before a caller hears of it
READERS_MAX = 16  # idle reading connections kept open
STAMP_MAX = 20  # characters of a version that are looked at: Python will not read a number of thousands of digits
BACKUP_PAGES = 1_024  # copied at a time
PAGE_BYTES = 2_048  # half of SQLite's own default: a small commit flushes half as much (docs/decisions/0006)
CACHE_KIB = 8 * 1024  # of the file, in each connection: what bounds memory. More gains nothing, the system caches too
MEMORY = ":memory:"

Durability = Literal["full", "normal"]
T = TypeVar("T")

# no fault of the statement: these end the whole transaction, or leave no way to go on with it
_GONE = (apsw.FullError, apsw.IOError, apsw.NoMemError, apsw.BusyError, apsw.CantOpenError, apsw.ProtocolError)
_BROKEN = (apsw.CorruptError, apsw.NotADBError)
_TROUBLE = (*_GONE, *_BROKEN, TypeError, OverflowError, UnicodeEncodeError)


@contextlib.contextmanager
def _named(deed: str, path: str) -> Iterator[None]:
    """Give what SQLite or the system complains of a name of ours."""
    try:
        yield
    except _BROKEN as problem:
        text = f"cannot {deed} {path}: not a file of ours, or damaged: {problem}"
        raise StoreCorrupt(text, path=path) from problem
    except (apsw.Error, OSError, GroupFailed) as problem:
        raise StoreUnavailable(f"cannot {deed} {path}: {problem}", path=path) from problem


def _connect(path: str, *, read_only: bool = False) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with _named("open", path):
        connection = apsw.Connection(path, flags=flags)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    return connection


class _Session:
    """An open transaction, as one request sees it."""

    __slots__ = ("_cursor", "commits_elsewhere", "notes")

    def __init__(self, cursor: apsw.Cursor, notes: Notes, commits_elsewhere: int = 0) -> None:
        self._cursor = cursor
        self.notes = notes
        self.commits_elsewhere = commits_elsewhere

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        try:
            return self._cursor.execute(statement.sql, parameters).fetchall()
        except _TROUBLE as problem:
            raise _translated(problem) from problem

    def insert(self, statement: Statement, parameters: Sequence[Any]) -> int:
        """Run a statement that inserts a row and return its id, or 0 if it inserted none."""
        try:
            self._cursor.execute(statement.sql, parameters)
        except _TROUBLE as problem:
            raise _translated(problem) from problem
        connection = self._cursor.connection
        return connection.last_insert_rowid() if connection.changes() else 0

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
    if isinstance(problem, _BROKEN):
        return StoreCorrupt(f"the file is damaged: {problem}")
    return InvalidInput(f"a value cannot be stored: {problem}")  # the net under checks that were too kind


class _Engine:
    """The writing connection."""

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self.connection = connection
        self._cursor = connection.cursor()
        self._version = self._data_version()
        self._rung = 0  # rows changed when the bells were last rung
        self._lock: int | None = None
        self._board: Board | None = None
        self._bells: Bells | None = None
        self._commits = 0  # of this connection
        self._committing = False  # COMMIT was begun: if no transaction is left then, it is durable
        if path != MEMORY:
            self._lock = os.open(path + "-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._board = Board(self._lock)
            except BaseException:
                os.close(self._lock)
                raise
            self._bells = Bells(path, self._board)

    def prepare(self, durability: Durability, *, read_only: bool) -> None:
        """Set the connection up. Alone, because a file cannot turn to WAL while another process looks."""
        _tune(self.connection)
        if read_only:
            return
        self._enter()
        try:
            self.connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file; others keep theirs
            mode = self.connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
        finally:
            self._leave()
        if mode == "delete":
            raise StoreUnavailable("this file system has no shared memory for WAL", hint="Use a local disk.")
        self.connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")

    @property
    def bells(self) -> Bells | None:
        """Those of other processes on the same file; None in memory."""
        return self._bells

    def begin(self) -> None:
        """Take this process's turn, then SQLite's own lock, which nobody of ours then holds."""
        self._committing = False
        try:
            self._enter()
            self._cursor.execute("BEGIN IMMEDIATE")
        except BaseException as problem:
            self.rollback()  # an interrupt may come when it is done
            if isinstance(problem, apsw.BusyError):
                text = f"another program has kept the file locked for {BUSY_TIMEOUT_MS / 1000:g} s"
                raise StoreUnavailable(text, hint="Find who holds it; rota's own processes take turns.") from problem
            if isinstance(problem, _BROKEN):
                raise StoreCorrupt(f"the file is damaged: {problem}") from problem
            if isinstance(problem, apsw.Error | OSError):
                raise GroupFailed(str(problem)) from problem
            raise

    def commit(self) -> None:
        """Make it durable. It is counted first: one too many has others look in vain, one too few leaves them wrong."""
        self._commits += 1
        if self._board is not None:
            self._board.count_commit()
        self._committing = True
        self._do("COMMIT")
        self._leave()

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
        return _Session(self._cursor, notes, 0 if self._board is None else self._board.commits - self._commits)

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
        """Tell other processes that something was committed, if anything was."""
        changes = self.connection.total_changes()
        if self._bells is not None and changes != self._rung:
            self._rung = changes
            self._bells.ring()

    def close(self) -> None:
        """Release the file."""
        self.connection.close()
        if self._bells is not None:
            self._bells.close()
        if self._board is not None:
            self._board.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _data_version(self) -> int:
        # the pragma, not apsw's data_version(): that one does not see other processes
        rows: list[Row] = self._cursor.execute("PRAGMA data_version").fetchall()
        return int(rows[0][0])

    def _enter(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _leave(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)


class SqliteStore:
    """One file, or one memory."""

    def __init__(
        self,
        path: str,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        read_only: bool = False,
    ) -> None:
        if tuple(map(int, apsw.sqlite_lib_version().split("."))) < SQLITE_OLDEST:
            raise StoreUnavailable(f"SQLite {apsw.sqlite_lib_version()} can lose commits", hint="Upgrade apsw.")
        if durability not in ("full", "normal"):
            raise InvalidInput(f"durability must be full or normal, not {durability!r}", field="durability")
        if not path:
            raise InvalidInput("the path is empty", field="path")
        self.clock: Clock = clock or SystemClock()
        # as SQLite itself does it: whoever changes folder, or comes by a link, still means the same file
        self._path = path = path if path == MEMORY else os.path.realpath(path)
        self._read_only = read_only
        self._readers: list[apsw.Connection] = []
        self._guard = threading.Lock()  # of what follows
        self._foreign: tuple[Callable[[], None], ...] = ()  # called when another process wrote
        self._watch: Watch | None = None
        self._closed = False
        with _named("open", path):
            self._engine = _open(path, durability, read_only=read_only)
        self._writer = Writer(self._engine, self.clock)
        try:
            if not read_only:
                with _named("migrate", path):
                    self._writer.write(_migrate)
        except BaseException:
            self._engine.close()
            raise

    # --- reading and writing ---------------------------------------------------------------------

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that writes: all of it or, if it raises, nothing."""
        self._check_writable()
        return self._writer.write(work)

    def wait(self, work: Callable[[Transaction], list[T]], timeout_s: float, same: Hashable = None) -> list[T]:
        """Like write, but while the answer is empty wait for one, at most this long."""
        self._check_writable()
        if timeout_s > 0:
            self._start_watch()
        return self._writer.wait(work, timeout_s, same)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing and without waiting for whoever writes."""
        if self._path == MEMORY:
            return self._read_memory(work)
        with self._reader() as connection:
            return self._read_view(connection, work)

    def _read_view(self, connection: apsw.Connection, work: Callable[[Transaction], T]) -> T:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        try:
            return work(_Session(cursor, Notes()))
        except GroupFailed as problem:
            raise StoreUnavailable(f"the file could not be read: {problem}") from problem
        finally:
            if connection.in_transaction:
                cursor.execute("ROLLBACK")

    def _read_memory(self, work: Callable[[Transaction], T]) -> T:
        """There is only one connection, so here a read does take its turn, and is kept from writing all the same."""
        with self._writer.exclusive():
            connection = self._engine.connection
            if connection.in_transaction:
                raise StoreError("a read inside a write", hint="Use the transaction that is open.")
            connection.execute("PRAGMA query_only = ON")
            try:
                return work(_Session(connection.cursor(), Notes()))
            finally:
                connection.execute("PRAGMA query_only = OFF")

    @contextlib.contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        with self._guard:
            self._check_open()
            connection = self._readers.pop() if self._readers else None
        if connection is None:
            connection = self._connect_reader()
        try:
            yield connection
        finally:
            with self._guard:
                keep = not self._closed and len(self._readers) < READERS_MAX
                if keep:
                    self._readers.append(connection)
            if not keep:
                connection.close()

    def _connect_reader(self) -> apsw.Connection:
        connection = _connect(self._path, read_only=True)
        with _named("read", self._path):
            _tune(connection)
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed", hint="Open it again.")

    def _check_writable(self) -> None:
        if self._read_only:
            raise StoreUnavailable(f"{self._path} was opened for reading only", hint="Open it without read_only.")

    # --- other processes -------------------------------------------------------------------------

    def on_change(self, call: Callable[[], None], *, foreign_only: bool = False) -> Callable[[], None]:
        """Have this called after every commit, of this process or only of others; the answer ends it."""
        with self._guard:
            self._foreign = (*self._foreign, call)
            if not foreign_only:
                self._writer.listeners = (*self._writer.listeners, call)
        self._start_watch()

        def end() -> None:
            with self._guard:
                self._foreign = tuple(each for each in self._foreign if each is not call)
                self._writer.listeners = tuple(each for each in self._writer.listeners if each is not call)

        return end

    def _start_watch(self) -> None:
        with self._guard:
            if self._watch is None and not self._closed and self._path != MEMORY:
                self._watch = Watch(self._engine.bells, self._look)

    def _look(self) -> None:
        if (self._foreign or self._writer.parked) and self._writer.look_elsewhere():
            for call in self._foreign:
                call()

    # --- care ------------------------------------------------------------------------------------

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy everything to a new file while others go on; the copy appears whole or not at all."""
        part = Path(f"{path}.part")
        if self._path != MEMORY and os.path.realpath(path) == self._path:
            raise InvalidInput("a store cannot be its own backup", field="path", path=path)
        part.unlink(missing_ok=True)
        target = _connect(str(part))
        try:
            with _named("back up to", path):
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
            with self._writer.exclusive():
                yield self._engine.connection
            return
        with self._reader() as connection:
            connection.execute("BEGIN")  # one view throughout, however long it takes
            try:
                connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def check(self) -> list[str]:
        """What is wrong with the file, in sentences; empty when nothing is."""
        try:
            if self._path == MEMORY:
                return self._read_memory(_problems)
            with self._guard:
                self._check_open()
            with contextlib.closing(self._connect_reader()) as connection:  # a new one: it remembers no good pages
                return self._read_view(connection, _problems)
        except StoreCorrupt as problem:
            return [problem.message]

    def close(self) -> None:
        """Release the file. Whoever still waits is told."""
        self._writer.close()  # first: inside a write this is refused, and then nothing has been closed
        with self._guard:
            if self._closed:
                return
            self._closed = True
            readers, self._readers = self._readers, []
        if self._watch is not None:
            self._watch.stop()
        for connection in readers:
            connection.close()
        self._engine.close()


# --- opening -------------------------------------------------------------------------------------


def _open(path: str, durability: Durability, *, read_only: bool) -> _Engine:
    """A connection to a file that is ours, ready to write."""
    connection = _connect(path, read_only=read_only)
    try:
        _judge(connection, read_only=read_only)  # before anything is written, beside it too
        engine = _Engine(connection, MEMORY if read_only else path)
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
        raise SchemaMismatch("the file is of an older version, and reading only never migrates it")


def _has_log(connection: apsw.Connection) -> bool:
    log = Path(f"{connection.filename}-wal")
    return log.exists() and log.stat().st_size > 0


def _tune(connection: apsw.Connection) -> None:
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


def _migrate(tx: Transaction) -> None:
    """Take the file forward. Asked again inside the transaction, since another process may have done it."""
    tables = tx.run(sql.META_EXISTS)
    rows = tx.run(sql.META_GET, ("schema_version",)) if tables else []
    for step in migrations.plan(str(rows[0][0]) if rows else None, empty=not tables):
        tx.run(migrations.step(step))
        tx.run(sql.META_SET, ("schema_version", str(step)))


# --- care ----------------------------------------------------------------------------------------


def _copy(source: apsw.Connection, target: apsw.Connection, progress: Callable[[int, int], None] | None) -> None:
    with target.backup("main", source, "main") as copy:
        while not copy.done:
            copy.step(BACKUP_PAGES)
            if progress is not None:
                progress(copy.page_count - copy.remaining, copy.page_count)


def _put_in_place(part: Path, path: Path) -> None:
    """Let the copy take its name, durably. A log that an earlier file left there would be taken for its own."""
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
    orphans = [f"{row[0]} row {row[1]} names a missing row of {row[2]}" for row in tx.run(sql.ORPHANS)]
    return found + orphans

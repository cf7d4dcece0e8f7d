"""The SQLite store, through apsw (which brings its own SQLite; see docs/decisions/0002).

One connection writes, behind the `Writer`. Readers have connections of their own: in WAL mode they see the last commit
and never wait. Several processes may use the same file; `sqlite_engine.py` says how they take turns.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import apsw

from rota.clock import Clock, SystemClock
from rota.errors import InvalidInput, StoreCorrupt, StoreError, StoreReplaced, StoreUnavailable
from rota.lazy import late
from rota.store.engine import TransactionLost
from rota.store.file_identity import new_generation, unused
from rota.store.first_kernel import Migration, keep_copy
from rota.store.forks import abandon, add_store, sqlite_calls
from rota.store.ipc_notify import CommitListener
from rota.store.private_files import create_private, refuse_link
from rota.store.protocol import Row, Statement, Transaction, TransactionEffects
from rota.store.sqlite_check import find_problems
from rota.store.sqlite_connection import configure, connect, foreign_keys_off, migrate, translate_errors
from rota.store.sqlite_engine import MEMORY, Durability, SqliteEngine, SqliteTransaction, open_engine
from rota.store.statements import file as sql
from rota.store.stored_values import cause_of
from rota.store.writer import Writer

if TYPE_CHECKING:
    import logging
else:
    logging = late("logging")

__all__ = ["NORMAL_DURABILITY_KEY", "SQLITE_OLDEST", "Durability", "SqliteStore"]

SQLITE_OLDEST = (3, 51, 3)  # older versions can lose commits when a checkpoint runs beside a write
READERS_MAX = 16  # idle reading connections kept open
NORMAL_DURABILITY_KEY = "durability_normal_at"  # the setting that says when a process last opened the file that way
BACKUP_PAGES = 1_024  # copied at a time
_EMPTY: list[bytes] = []  # the first store in memory of this process, new: a copy takes a thirtieth of all the steps
T = TypeVar("T")


class SqliteStore(Writer):
    """A database file, or a database in memory: a writer over its engine, and readers beside it."""

    _engine: SqliteEngine
    host_name = None  # a file belongs to one host

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
        self._durability: Durability = durability
        self._reopening = threading.Lock()
        self._inherited = False  # from the parent, by a fork: opened again when it is used
        self._readers: list[apsw.Connection] = []
        self._readers_in_use: set[apsw.Connection] = set()
        self._guard = threading.Lock()  # guards the readers and all that follows
        self._commit_listener: CommitListener | None = None
        self.lost: StoreReplaced | None = None  # as reported to the listeners
        self.migration: Migration | None = None  # what became of a file of the first kernel when it was opened here
        with sqlite_calls:
            with translate_errors("open", path):
                self._engine = open_engine(path, durability, read_only=read_only)
            super().__init__(self._engine, clock or SystemClock())
            try:
                if not read_only:
                    self._migrate()
            except BaseException:
                self._engine.close()
                raise
            add_store(self)

    @property
    def path(self) -> str | None:
        """The file's path with links resolved; None of a store in memory."""
        return None if self._path == MEMORY else self._path

    @property
    def host_path(self) -> str | None:
        """The path beside which this host keeps files for the store: the file's own."""
        return self.path

    def _migrate(self) -> None:
        """Migrate the file, and say where the copy of a file of the first kernel is."""
        if self._path == MEMORY and _EMPTY:
            _copy_into(self._engine.connection, _EMPTY[0])
            return
        with translate_errors("migrate", self._path), foreign_keys_off(self._engine.connection):
            self.migration = self.write(self._begin)
        if self._path == MEMORY:
            _EMPTY[:] = [self._engine.connection.serialize("main")]
        if self.migration is not None:
            version, copy, changed = self.migration
            values = f"; {changed} JSON values that JSON does not have were replaced" if changed else ""
            logging.getLogger(__name__).warning(
                "%s was migrated from schema %d of the first kernel; a copy as it was: %s%s",
                self._path, version, copy, values,
            )  # fmt: skip

    def _begin(self, tx: Transaction) -> Migration | None:
        """Migrate the file, and record if commits may be lost from now on."""
        migration = migrate(tx, self.clock.now(), self._keep_copy)
        if self._durability == "normal" and self._path != MEMORY:
            tx.run(sql.META_SET, (NORMAL_DURABILITY_KEY, repr(self.clock.now())))
        return migration

    def _keep_copy(self, version: int) -> str | None:
        """Copy the file, whose write lock is held, as it was before this transaction."""
        if self._path == MEMORY:
            return None

        def copy(part: Path) -> None:
            source = connect(self._path, read_only=True)
            with contextlib.closing(source), contextlib.closing(connect(str(part))) as target:
                _copy(source, target, None)

        with translate_errors("copy", self._path):
            return keep_copy(self._path, version, copy)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing and without waiting for writers."""
        if self._path == MEMORY:
            return self._read_memory(work)
        with self._reader() as connection:
            return self._read_view(connection, work)

    def prefetch(self, reads: Iterable[tuple[Statement, Row]]) -> None:
        """Do nothing: a read costs no round trip here."""

    def on_failover(self, call: Callable[[Transaction, str, str], None]) -> None:
        """Do nothing: a file has no standby."""

    def hold_worker_id(self, worker_id: str) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: a file has one host, which locks ids by files."""
        return contextlib.nullcontext()

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
            except Exception as problem:
                raise cause_of(self._engine.transaction(effects), problem) from problem.__cause__
            finally:
                self._engine.rollback()
                for call in effects.on_rollback:
                    call()

    def _read_view(self, connection: apsw.Connection, work: Callable[[Transaction], T]) -> T:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        files = self._engine.files
        tx = SqliteTransaction(cursor, TransactionEffects())
        try:
            result = work(tx)
        except (TransactionLost, Exception) as problem:
            error = cause_of(tx, problem)
            if files is not None and isinstance(error, TransactionLost | StoreError):
                files.check(connection)  # a replaced file looks damaged
            if isinstance(error, TransactionLost):
                raise StoreUnavailable(f"the file could not be read: {error}") from error
            raise error from error.__cause__
        else:
            if files is not None and (files.changed() or SystemClock.monotonic() >= files.due_at):
                files.check(connection)
            return result
        finally:
            with contextlib.suppress(apsw.ConnectionClosedError):  # in a child that was forked here
                if connection.in_transaction:
                    cursor.execute("ROLLBACK")

    def _read_memory(self, work: Callable[[Transaction], T]) -> T:
        """Read on the only connection there is: with the write lock held, and with writing disabled."""
        with self.exclusive():
            connection = self._engine.connection
            if connection.in_transaction:
                raise StoreError("a read inside a write", hint="Use the open transaction.")
            connection.execute("PRAGMA query_only = ON")
            tx = SqliteTransaction(connection.cursor(), TransactionEffects())
            try:
                return work(tx)
            except Exception as problem:
                raise cause_of(tx, problem) from problem.__cause__
            finally:
                connection.execute("PRAGMA query_only = OFF")

    @contextlib.contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        self._check_readable()
        with sqlite_calls:
            with self._guard:
                connection = self._readers.pop() if self._readers else None
            if connection is None:
                connection = self._connect_reader()
            self._readers_in_use.add(connection)
            try:
                yield connection
            finally:
                self._return(connection)

    def _return(self, connection: apsw.Connection) -> None:
        with self._guard:
            if connection not in self._readers_in_use:
                return  # inherited
            self._readers_in_use.remove(connection)
            keep = not self._closed and len(self._readers) < READERS_MAX
            if keep:
                self._readers.append(connection)
        if not keep:
            connection.close()

    def _connect_reader(self) -> apsw.Connection:
        if self._engine.files is not None:
            self._engine.files.check_names()
        connection = connect(self._path, read_only=True)
        with translate_errors("read", self._path):
            configure(connection)
        return connection

    def _check_readable(self) -> None:
        if self._closed:
            self._check_open()

    # --- other processes -------------------------------------------------------------------------

    def _start_listening(self) -> None:
        """Listen for commits of other processes: a parked request or a listener here waits for them."""
        if self._inherited:
            self._check_open()
        with self._guard:
            if self._commit_listener is None and not self._closed and self._path != MEMORY:
                self._commit_listener = CommitListener(self._engine.notifier, self._check_foreign_commit)

    def _check_foreign_commit(self) -> None:
        if (self._foreign_listeners or self.parked) and (self.check_foreign_commit() or self._find_loss()):
            self._batches.call_each(self._foreign_listeners)

    def _find_loss(self) -> bool:
        """Whether the files were found moved, deleted or replaced for the first time; ends the parked requests then."""
        files = self._engine.files
        if files is None or self.lost or not (files.changed() or SystemClock.monotonic() >= files.due_at):
            return False
        with self._write_lock:
            try:
                if not self._closed:
                    self._engine.check_files()
            except StoreReplaced as error:
                self.lost = error
        if self.lost is not None:
            with self._mutex:
                self._parked.fail_all(self.lost)
        return self.lost is not None

    # --- backup, check, close --------------------------------------------------------------------

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy everything to a new file while others write; the copy appears complete or not at all."""
        part = Path(f"{path}.part")
        if self._path != MEMORY and os.path.realpath(path) == self._path:
            raise InvalidInput("a store cannot be its own backup", field="path")
        part.unlink(missing_ok=True)
        with sqlite_calls, unused(path):
            refuse_link(path, hint="Choose another path, or remove the link.")
            self._back_up(part, path, progress)

    def _back_up(self, part: Path, path: str, progress: Callable[[int, int], None] | None) -> None:
        with translate_errors("back up to", path):
            os.close(create_private(part))  # a link that was planted since fails here
        target = connect(str(part))
        try:
            with translate_errors("back up to", path):
                with self._source() as source:
                    _copy(source, target, progress)
                target.execute(f"PRAGMA user_version = {new_generation()}")  # it fits the log of no other file
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
                if self._engine.files is not None:
                    self._engine.files.check(connection)
            finally:
                connection.execute("ROLLBACK")

    def check(self) -> list[str]:
        """Return the problems found in the file, one sentence each; empty if it is sound."""
        try:
            if self._path == MEMORY:
                return self._read_memory(find_problems)
            self._check_readable()
            with sqlite_calls, contextlib.closing(self._connect_reader()) as connection:  # new, with an empty cache
                return self._read_view(connection, find_problems)
        except StoreCorrupt as problem:
            return [problem.message]

    def vacuum(self) -> None:
        """Rewrite the file so that it is as small as its rows; a prune can shorten it from then on.

        Writers wait until it has ended. It needs free space of up to three times the file's size meanwhile: for a
        temporary copy, for the log, and for the file.
        """
        with self.exclusive(), translate_errors("vacuum", self._path):
            self._engine.vacuum()

    def close(self) -> None:
        """Release the file. Waiting callers get StoreUnavailable."""
        with self._reopening:
            self._inherited = False
        super().close()  # first: it refuses to close inside a write, and then nothing is closed
        with self._guard:
            listener, self._commit_listener = self._commit_listener, None
        if listener is not None:
            listener.stop()
        with sqlite_calls:
            with self._guard:
                readers, self._readers = self._readers, []
            for connection in readers:
                connection.close()  # it does not checkpoint: the writing connection is still open
            self._engine.close()

    # --- forks (forks.py) ------------------------------------------------------------------------

    def before_fork(self, give_up_at: float) -> bool:
        """Keep other threads out of the writing connection; return whether a child can close it."""
        if self._is_writing():  # the fork is inside a transaction, or inside a listener after its commit
            return self._path == MEMORY or not self._engine.connection.in_transaction
        return self._hold_writers(give_up_at)

    def after_fork_in_parent(self) -> None:
        """Let other threads write again."""
        self._release_writers()

    def after_fork_in_child(self, *, usable: bool) -> None:
        """Give up everything inherited. The listeners stay; the file is opened again when it is used."""
        forked_inside = self._is_writing()
        self._guard, self._reopening = threading.Lock(), threading.Lock()
        self._forget_writers()
        if self._commit_listener is not None:
            self._commit_listener.forget()
            self._commit_listener = None
        for connection in (*self._readers, *self._readers_in_use):
            abandon(connection, usable=usable)
        self._readers.clear()
        self._readers_in_use.clear()
        self._engine.abandon(usable=usable)
        if self._closed:  # before the fork, or since an earlier one
            return
        self._closed = True
        self._inherited = not forked_inside and self._path != MEMORY
        self._parked.closed = not self._inherited
        if self._path == MEMORY:
            self._closed_because = "a store in memory belongs to the process that opened it", "Use a file."
        elif forked_inside:
            self._closed_because = "this process was forked inside a call of the store", "Open the file in the child."

    def _check_open(self) -> None:
        if self._inherited:
            with self._reopening:
                if self._inherited:
                    self._open_again()
        super()._check_open()

    def _open_again(self) -> None:
        """Open the file like any other process. A larger foreign version drops what the parent had cached."""
        before = self._engine
        with sqlite_calls, translate_errors("open", self._path):
            self._engine = open_engine(
                self._path,
                self._durability,
                read_only=before.read_only,
                foreign_version=before.foreign_version + 1,
            )
        self._batches.use(self._engine)
        self._inherited = self._closed = False
        if self._foreign_listeners:
            self._start_listening()


# --- backup --------------------------------------------------------------------------------------


def _copy_into(target: apsw.Connection, database: bytes) -> None:
    """Make a database in memory equal to another one."""
    with contextlib.closing(apsw.Connection(MEMORY)) as source:
        source.deserialize("main", database)
        _copy(source, target, None)


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

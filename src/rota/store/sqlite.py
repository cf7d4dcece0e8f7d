"""The SQLite store, through apsw (which brings its own SQLite; see docs/decisions/0002).

One connection writes, behind the `Writer`; readers have connections of their own, which in WAL mode see the
last commit and never wait. Several processes may hold the same file: each takes its turn by an exclusive lock
on a file beside it, which the system hands out in order, so nobody meets SQLite's own lock, which it does not.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from rota.clock import Clock, SystemClock
from rota.errors import InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from rota.store.engine import GroupFailed
from rota.store.ipc_notify import Watch
from rota.store.protocol import Notes, Nudge, Transaction
from rota.store.requests import Posted
from rota.store.sqlite_engine import MEMORY, Durability, Session, connect, migrate, named, open_engine, tune
from rota.store.statements import file as sql
from rota.store.writer import Writer

__all__ = ["Durability", "SqliteStore"]

SQLITE_OLDEST = (3, 51, 3)  # below it, a checkpoint beside a write can lose commits
READERS_MAX = 16  # idle reading connections kept open
BACKUP_PAGES = 1_024  # copied at a time
T = TypeVar("T")


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
        with named("open", path):
            self._engine = open_engine(path, durability, read_only=read_only)
        self._writer = Writer(self._engine, self.clock)
        try:
            if not read_only:
                with named("migrate", path):
                    self._writer.write(migrate)
        except BaseException:
            self._engine.close()
            raise

    # --- reading and writing ---------------------------------------------------------------------

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that writes: all of it or, if it raises, nothing."""
        if self._read_only:
            self._check_writable()
        return self._writer.write(work)

    def wait(
        self,
        work: Callable[[Transaction], list[T]],
        timeout_s: float,
        same: Hashable = None,
        nudge: Nudge | None = None,
    ) -> list[T]:
        """Like write, but while the answer is empty wait for one, at most this long, or until nudged."""
        self._check_writable()
        if timeout_s > 0:
            self._start_watch()
        return self._writer.wait(work, timeout_s, same, nudge)

    def nudge(self, nudge: Nudge) -> None:
        """Let whoever waits with this nudge go, empty-handed; if nobody does yet, the next who would."""
        self._writer.nudge(nudge)

    def post(self, requests: Sequence[Posted[Any]]) -> None:
        """Leave work with the writer, together, without waiting for it."""
        self._check_writable()
        if any(request.parks for request in requests):
            self._start_watch()
        self._writer.post(requests)

    def run(self, requests: Sequence[Posted[Any]]) -> bool:
        """Run posted work here and now, as one group, if nobody else writes; the answer is whether it was."""
        self._check_writable()
        if any(request.parks for request in requests):
            self._start_watch()
        return self._writer.run(requests)

    def settled(self) -> None:
        """Come back when the group whose answers are being given has all of them."""
        self._writer.settled()

    @property
    def parked(self) -> int:
        """How many wait for an answer that is not empty."""
        return self._writer.parked

    def withdraw(self, request: Posted[Any]) -> None:
        """Let posted work wait no longer."""
        self._writer.withdraw(request)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing and without waiting for whoever writes."""
        if self._path == MEMORY:
            return self._read_memory(work)
        with self._reader() as connection:
            return self._read_view(connection, work)

    def rehearse(self, work: Callable[[Transaction], T]) -> T:
        """Run work as `write` would, and undo it, always. It takes its turn with whoever writes; nobody is told."""
        self._check_writable()
        notes = Notes()
        with self._writer.exclusive():
            if self._engine.connection.in_transaction:
                raise StoreError("a rehearsal inside a write", hint="Call it from outside.")
            try:
                self._engine.begin()
                return work(self._engine.transaction(notes))
            except GroupFailed as problem:
                raise StoreUnavailable(f"the rehearsal could not be run: {problem}") from problem
            finally:
                self._engine.rollback()
                for call in notes.undone:
                    call()

    def _read_view(self, connection: apsw.Connection, work: Callable[[Transaction], T]) -> T:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        try:
            return work(Session(cursor, Notes()))
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
                return work(Session(connection.cursor(), Notes()))
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
        connection = connect(self._path, read_only=True)
        with named("read", self._path):
            tune(connection)
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
        target = connect(str(part))
        try:
            with named("back up to", path):
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

"""The SQLite store, through apsw (which brings its own SQLite; see docs/decisions/0002)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from rota.errors import StoreUnavailable
from rota.store import migrations, statements
from rota.store.protocol import Row, Statement, Transaction

__all__ = ["SqliteStore"]

SQLITE_OLDEST = (3, 51, 3)  # below it, a checkpoint beside a write can lose commits
T = TypeVar("T")


class SqliteStore:
    """One file, one writing connection behind a lock."""

    def __init__(self, path: str) -> None:
        if tuple(map(int, apsw.sqlite_lib_version().split("."))) < SQLITE_OLDEST:
            raise StoreUnavailable(f"SQLite {apsw.sqlite_lib_version()} can lose commits", hint="Upgrade apsw.")
        self._lock = threading.Lock()
        try:
            self._connection = apsw.Connection(path)
        except apsw.CantOpenError as problem:
            raise StoreUnavailable(f"cannot open {path}: {problem}", path=path) from problem
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        steps = migrations.plan(self._stamp())  # judged before anything is written
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        self.write(lambda tx: self._migrate(tx, steps))

    def _stamp(self) -> str | None:
        tables = self._connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'kernel_meta'").fetchall()
        if not tables:
            return None
        rows = self._connection.execute(statements.META_GET.sql, ("schema_version",)).fetchall()
        return str(rows[0][0]) if rows else None

    def _migrate(self, tx: Transaction, steps: list[int]) -> None:
        for step in steps:
            self._connection.execute(migrations.STEPS[step])
            tx.run(statements.META_SET, ("schema_version", str(step)))

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement in the open transaction."""
        return self._connection.execute(statement.sql, parameters).fetchall()

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that writes: all of it or, if it raises, nothing."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                answer = work(self)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            return answer

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                return work(self)
            finally:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

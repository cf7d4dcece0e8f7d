"""SQLite connections: open a file, check that it is rota's, and migrate it, with rota's errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from rota.errors import SchemaMismatch, StoreCorrupt, StoreUnavailable
from rota.store import first_kernel, migrations
from rota.store.engine import TransactionLost
from rota.store.forks import check_usable
from rota.store.protocol import Transaction
from rota.store.statements import file as sql

__all__ = [
    "BUSY_TIMEOUT_MS",
    "DAMAGED",
    "check_file",
    "check_folder",
    "configure",
    "connect",
    "foreign_keys_off",
    "migrate",
    "translate_errors",
]

BUSY_TIMEOUT_MS = 10_000  # how long another program may hold SQLite's lock before the caller gets an error
CACHE_KIB = 8 * 1024  # page cache per connection: bounds memory. More gains nothing, the system caches the file too
STAMP_CHARS_MAX = 20  # of a schema version: Python refuses to parse a number of thousands of digits

DAMAGED = (apsw.CorruptError, apsw.NotADBError)


# --- opening -------------------------------------------------------------------------------------


def connect(path: str, *, read_only: bool = False) -> apsw.Connection:
    """Open a connection, or raise StoreUnavailable or StoreCorrupt."""
    check_usable()
    check_folder(path)
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with translate_errors("open", path):
        connection = apsw.Connection(path, flags=flags)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    return connection


def check_folder(path: str) -> None:
    """Raise StoreUnavailable if the folder of a file is missing."""
    folder = os.path.dirname(path)  # noqa: PTH120  # of a file that may be named by a link
    if folder and not os.path.isdir(folder):  # noqa: PTH112
        text = f"cannot open {path}: there is no folder {folder}"
        raise StoreUnavailable(text, hint=f"Create it (mkdir -p {folder}), or name another file.", path=path)


def configure(connection: apsw.Connection) -> None:
    """Set the pragmas that every connection shares."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")


@contextlib.contextmanager
def translate_errors(action: str, path: str) -> Iterator[None]:
    """Raise errors of SQLite and of the system as rota's own errors."""
    try:
        yield
    except DAMAGED as problem:
        text = f"cannot {action} {path}: not a rota database, or damaged: {problem}"
        wrong_file = "Check that this is the right file. If it is, restore it from a backup."
        hint = wrong_file if isinstance(problem, apsw.NotADBError) else None
        raise StoreCorrupt(text, hint=hint, path=path) from problem
    except (apsw.Error, OSError, TransactionLost) as problem:
        raise StoreUnavailable(f"cannot {action} {path}: {problem}", path=path) from problem


def check_file(connection: apsw.Connection, *, read_only: bool) -> None:
    """Refuse a file that is not rota's, or that cannot be opened this way, and leave it unchanged."""
    try:
        _check_version(connection, read_only=read_only)
    except SchemaMismatch:
        # the last connection that closes a file checkpoints its log into it: prevent that
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(_has_log(connection)))
        raise
    if connection.readonly("main") and not read_only:
        text = f"{connection.filename} is not writable"
        raise StoreUnavailable(text, hint="Change its permissions, or open it with read_only=True.")


def _check_version(connection: apsw.Connection, *, read_only: bool) -> None:
    with connection:  # one view: another process may be creating the tables
        version, empty = _schema_version(connection), _is_empty(connection)
        steps = migrations.plan(version, empty=empty)
        if version is not None and int(version) in migrations.FIRST_KERNEL:
            first_kernel.check_columns(lambda table: _columns(connection, table))
    if read_only and steps:
        found = f"{version or 'none'}; this rota has {migrations.LATEST}"
        text = f"the file has an older schema ({found}), and a read-only connection never migrates it"
        raise SchemaMismatch(text, hint=migrations.MIGRATE_HINT)


def _schema_version(connection: apsw.Connection) -> str | None:
    if not connection.execute(sql.META_EXISTS.sql).fetchall():
        return None
    try:
        rows = connection.execute(sql.META_GET.sql, ("schema_version",)).fetchall()
    except apsw.SQLError as problem:
        raise SchemaMismatch(f"the file's kernel_meta table belongs to another program: {problem}") from problem
    return str(rows[0][0])[:STAMP_CHARS_MAX] if rows else None


def _columns(connection: apsw.Connection, table: str) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _is_empty(connection: apsw.Connection) -> bool:
    return not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()


def _has_log(connection: apsw.Connection) -> bool:
    log = Path(f"{connection.filename}-wal")
    return log.exists() and log.stat().st_size > 0


@contextlib.contextmanager
def foreign_keys_off(connection: apsw.Connection) -> Iterator[None]:
    """Let tables be rebuilt while rows, views and tables of other programs refer to them."""
    connection.execute("PRAGMA foreign_keys = OFF; PRAGMA legacy_alter_table = ON")
    try:
        yield
    finally:
        connection.execute("PRAGMA legacy_alter_table = OFF; PRAGMA foreign_keys = ON")


def migrate(tx: Transaction, now: float, keep_copy: Callable[[int], str | None]) -> first_kernel.Migration | None:
    """Apply the missing schema steps; returns what became of a file of the first kernel, else None.

    The steps are determined inside the transaction: another process may have migrated. `keep_copy` copies the file as
    it is; it gets the version.
    """
    tables = tx.run(sql.META_EXISTS)
    rows = tx.run(sql.META_GET, ("schema_version",)) if tables else []
    stamp = str(rows[0][0]) if rows else None
    steps = migrations.plan(stamp, empty=not tables)
    taken_over = None
    if stamp is not None and int(stamp) in migrations.FIRST_KERNEL:
        copy = keep_copy(int(stamp))
        taken_over = first_kernel.Migration(int(stamp), copy, first_kernel.adopt(tx))
    for step in steps:
        tx.run(migrations.step(step))
        tx.run(sql.META_SET, ("schema_version", str(step)))
    if taken_over is not None:
        first_kernel.finish(tx, taken_over.from_version, migrations.LATEST, now)
    return taken_over

"""Values that a damaged file, or another program, left in a column of another type.

SQLite stores any type of value in any column. rota does not check the type of every value that it reads: a claim reads
hundreds. So such a value surfaces as a `TypeError` or `ValueError` somewhere in the work of a transaction. When work
ends with an error that is not rota's own, the store looks for such a value, and if there is one, raises `StoreCorrupt`
with its table and row instead. An error without such a value is a defect of the work and passes unchanged.

Text that is not UTF-8 cannot be read as text. A query that meets it is run once more and returns such text as bytes, so
that it harms its own row and not the query: what decodes the row finds it (kernel/rows.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from rota.errors import RotaError, StoreCorrupt
from rota.store.migrations import TABLES
from rota.store.protocol import Row, Statement, Transaction

__all__ = ["PROBLEMS_MAX", "cause_of", "misplaced_values", "read_with_bytes", "unreadable_texts"]

PROBLEMS_MAX = 100  # reported for one table
PAGE_ROWS = 1_000  # read at a time
_SYMPTOMS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
_TYPES = {"INTEGER": "'integer'", "REAL": "'real', 'integer'", "TEXT": "'text'"}
_TABLES = Statement(
    "tables",
    "The tables, and whether each has a rowid.",
    "SELECT name, NOT wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT GLOB 'sqlite_*' "
    "ORDER BY name",
    postgres="SELECT '', false WHERE false",  # it stores no value of another type
)
_COLUMNS = Statement(
    "columns",
    "The columns of a table: name, type, whether it may be NULL, position in the primary key.",
    'SELECT name, type, NOT "notnull" AND NOT pk, pk FROM pragma_table_info(?)',
)


def read_with_bytes(connection: apsw.Connection, statement: Statement, parameters: Sequence[Any]) -> list[Row]:
    """Run a query that met text which is not UTF-8; returns such text as bytes. Only for statements that read."""
    with contextlib.closing(connection.cursor()) as cursor:
        width = len(cursor.execute(statement.sql, parameters).get_description())
    names = [f"c{number}" for number in range(width)]
    values = [f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names]
    # the statement is one of rota's own
    sql = f"WITH found({', '.join(names)}) AS ({statement.sql}) SELECT {', '.join(values)} FROM found"  # noqa: S608
    with contextlib.closing(connection.cursor()) as cursor:
        return [tuple(map(_as_text, row)) for row in cursor.execute(sql, parameters)]


def _as_text(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def cause_of(tx: Transaction, error: BaseException) -> BaseException:
    """Return StoreCorrupt if work failed because of a stored value of the wrong type; else the error itself."""
    if not isinstance(error, _SYMPTOMS) or isinstance(error, RotaError):
        return error
    try:
        problem = next(misplaced_values(tx, limit=1), None)
    except RotaError as found:
        return found
    if problem is None:
        return error
    damage = StoreCorrupt(f"the file is damaged: {problem}")
    damage.__cause__ = error
    return damage


def _tables(tx: Transaction) -> Iterator[Row]:
    """Yield rota's tables; a file may have others."""
    yield from (row for row in tx.run(_TABLES) if row[0] in TABLES)


def misplaced_values(tx: Transaction, limit: int = PROBLEMS_MAX) -> Iterator[str]:
    """Yield a sentence for each value that is not of its column's type."""
    for table, _ in _tables(tx):
        columns = tx.run(_COLUMNS, (table,))
        wrong = [
            f"WHEN typeof({name}) NOT IN ({_TYPES[kind]}{', ' + repr('null') if nullable else ''}) "
            f"THEN '{name} is ' || typeof({name}) || ', not {kind.lower()}'"
            for name, kind, nullable, _ in columns
            if kind in _TYPES and _is_name(name)
        ]
        keys = [name for name, _, _, position in columns if position and _is_name(name)]
        if not wrong or not keys:
            continue
        rows = f"SELECT {', '.join(keys)}, CASE {' '.join(wrong)} END AS wrong FROM {table}"  # noqa: S608  # names of the schema
        text = f"SELECT * FROM ({rows}) WHERE wrong IS NOT NULL LIMIT {limit}"  # noqa: S608
        for *key, problem in tx.run(Statement("misplaced", "Values of another type than their column's.", text)):
            yield f"{table} row {', '.join(map(repr, key))}: {problem}"


def _is_name(name: str | bytes) -> bool:
    """Whether a column's name can be written in a statement; that of a damaged definition may not."""
    return isinstance(name, str) and name.isidentifier()


def _not_utf8(row: Row) -> str | None:
    """Describe the first text of a row that is not UTF-8, which `read_with_bytes` returned as bytes."""
    return next((f"{value[:40]!r} is not UTF-8" for value in row if isinstance(value, bytes)), None)


def unreadable_texts(tx: Transaction) -> Iterator[str]:
    """Yield a sentence for each part of a table that has text which is not UTF-8."""
    for table, has_rowid in _tables(tx):
        key = "rowid" if has_rowid else "1"
        text = f"SELECT {key}, * FROM {table}"  # noqa: S608
        page = f" WHERE rowid > ? ORDER BY rowid LIMIT {PAGE_ROWS}" if has_rowid else " WHERE 1 > ?"
        statement = Statement("read_all", "Every value of a table, to see that it can be read.", text + page)
        last = -(2**63) if has_rowid else 0
        try:
            while rows := tx.run(statement, (last,)):
                yield from (
                    f"{table} row {row[0]}: {problem}" for row in rows if (problem := _not_utf8(row)) is not None
                )
                if not has_rowid or rows[-1][0] <= last:  # the whole table was read, or its order is damaged
                    break
                last = rows[-1][0]
        except StoreCorrupt as damage:
            yield f"{table}: {damage.message}"

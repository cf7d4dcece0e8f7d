"""What is wrong with a SQLite file: `rota db check`, as far as the file itself goes.

SQLite's own check reads pages and indexes. It does not know which tables and columns rota uses, and it does not count
the rows of a partial index. A damaged definition can make any statement fail, also one of a check: then its message is
the finding, and the other checks go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import apsw

from rota.errors import StoreError
from rota.store import migrations
from rota.store.engine import is_damage
from rota.store.migrations import TABLES
from rota.store.protocol import Row, Statement, Transaction, TransactionEffects
from rota.store.sqlite_engine import MEMORY, SqliteTransaction
from rota.store.statements import file as sql
from rota.store.stored_values import misplaced_values, unreadable_texts

__all__ = ["find_problems"]


def find_problems(tx: Transaction) -> list[str]:
    """Return the problems of a file, one sentence each."""
    found: list[str] = []
    checks: tuple[Callable[[Transaction], Iterator[str]], ...] = (
        _damaged_pages, _missing_columns, _wrong_counts, _orphans, misplaced_values, unreadable_texts,
    )  # fmt: skip
    for check in checks:
        try:
            found.extend(check(tx))
        except StoreError as damage:
            if not is_damage(damage):
                raise
            found.append(damage.message)
    return found


def _damaged_pages(tx: Transaction) -> Iterator[str]:
    yield from (str(row[0]) for row in tx.run(sql.INTEGRITY) if row[0] != "ok")


def _orphans(tx: Transaction) -> Iterator[str]:
    yield from (f"{row[0]} row {row[1]} refers to a missing row of {row[2]}" for row in tx.run(sql.ORPHANS))


def _missing_columns(tx: Transaction) -> Iterator[str]:
    """Yield a sentence for each column that a new file has and this one has not."""
    there = set(tx.run(sql.COLUMNS))
    for table, column in _columns_of_a_new_file():
        if (table, column) not in there:
            yield f"the table {table} has no column {column}: its definition is damaged"


def _columns_of_a_new_file() -> list[Row]:
    with contextlib.closing(apsw.Connection(MEMORY)) as connection:
        new = SqliteTransaction(connection.cursor(), TransactionEffects())
        for version in migrations.plan(None, empty=True):
            new.run(migrations.step(version))
        return new.run(sql.COLUMNS)


def _wrong_counts(tx: Transaction) -> Iterator[str]:
    """Yield a sentence for each partial index with rows that do not belong there: SQLite does not count them."""
    for name, table, condition in tx.run(sql.PARTIAL_INDEXES):
        if table not in TABLES:
            continue
        by_index, by_table = (
            f"SELECT count(*) FROM {table} {how} WHERE {condition}"  # noqa: S608  # names of the schema
            for how in (f"INDEXED BY {name}", "NOT INDEXED")
        )
        text = f"SELECT ({by_index}), ({by_table})"
        try:
            ((in_index, in_table),) = tx.run(Statement("index_counts", "The rows of an index, and of its table.", text))
        except StoreError as damage:
            yield f"index {name}: {damage.message}"
            continue
        if in_index != in_table:
            yield f"index {name} has {in_index:,} entries for {in_table:,} rows"

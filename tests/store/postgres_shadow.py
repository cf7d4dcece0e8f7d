"""Everything that a kernel in memory asks of SQLite, asked of PostgreSQL again: same statements, values and results.

`recorded()` collects each statement with its parameters and rows while a kernel works. `Shadow.replay` runs them on
PostgreSQL in the same order and in the same transactions, and yields what differs.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import apsw
import psycopg
import pytest
from psycopg.pq import ExecStatus

from rota.store import postgres_schema
from rota.store.migrations import LATEST
from rota.store.postgres_connection import connect, parse_url
from rota.store.postgres_pipeline import Pipeline
from rota.store.postgres_text import postgres_text
from rota.store.protocol import Row, Statement
from rota.store.sqlite_engine import SqliteEngine, SqliteTransaction
from rota.store.statements import file as file_sql
from rota.store.statements.claims import COSTLY_INDEX

CONTROL = {
    "begin": "BEGIN",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "savepoint": "SAVEPOINT request",
    "release": "RELEASE request",
    "rollback_to": "ROLLBACK TO request",
}
# what is about the file or the database itself, and cannot be equal
OF_THE_FILE = {value.name for value in vars(file_sql).values() if isinstance(value, Statement)} - {
    "meta_get",
    "meta_set",
    "meta_unset",
    "meta_prefix",
} | {COSTLY_INDEX.name}

OTHERS = (
    "migrate_",
    "adopt",
    "test",
    "tables",
    "columns",
    "misplaced",
    "read_all",
)  # not for PostgreSQL, or made by a test for SQLite


class Step(NamedTuple):
    """A statement with the rows that SQLite returned, None if it failed; or a command of the transaction."""

    command: str
    statement: Statement | None = None
    parameters: Sequence[Any] = ()
    rows: list[Row] | None = None


@contextlib.contextmanager
def recorded() -> Iterator[dict[apsw.Connection, list[Step]]]:
    """Record what every connection to a database in memory asks of SQLite."""
    steps: dict[apsw.Connection, list[Step]] = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:
        for name in CONTROL:
            patch.setattr(SqliteEngine, name, _noted(steps, name, getattr(SqliteEngine, name)))
        plain_run, plain_insert = SqliteTransaction.run, SqliteTransaction.insert

        def add(transaction: SqliteTransaction, step: Step) -> None:
            connection = transaction._cursor.connection
            if not connection.filename:
                steps[connection].append(step)

        def run(self: SqliteTransaction, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
            try:
                rows = plain_run(self, statement, parameters)
            except BaseException:
                add(self, Step("run", statement, tuple(parameters)))
                raise
            add(self, Step("run", statement, tuple(parameters), rows))
            return rows

        def run_for(self: SqliteTransaction, statement: Statement, keys: Sequence[Any]) -> list[Row]:
            return run(self, statement, (json.dumps(list(keys)),))

        def insert(self: SqliteTransaction, statement: Statement, parameters: Sequence[Any]) -> int:
            new_id = plain_insert(self, statement, parameters)
            add(self, Step("run", statement, (new_id, *parameters), []))
            return new_id

        def insert_many(self: SqliteTransaction, statement: Statement, parameters: Sequence[Sequence[Any]]) -> int:
            first, *_ = [insert(self, statement, row) for row in parameters]
            return first

        def run_many(self: SqliteTransaction, statement: Statement, parameters: Any) -> None:
            for row in parameters:
                run(self, statement, row)

        for name, made in {"run": run, "run_for": run_for, "insert": insert}.items():
            patch.setattr(SqliteTransaction, name, made)
        patch.setattr(SqliteTransaction, "insert_many", insert_many)
        patch.setattr(SqliteTransaction, "run_many", run_many)
        yield steps


def _noted(steps: dict[apsw.Connection, list[Step]], name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def noted(self: SqliteEngine, *given: Any, **named: Any) -> Any:
        if not self.connection.filename and (name != "rollback" or self.connection.in_transaction):
            steps[self.connection].append(Step(name))
        return plain(self, *given, **named)

    return noted


class Shadow:
    """A schema of its own on a PostgreSQL server."""

    def __init__(self, dsn: str, schema: str) -> None:
        address = parse_url(f"{dsn}{'&' if '?' in dsn else '?'}schema={schema}")
        connection, self.plain = connect(address, "test"), connect(address, "test")
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        connection.execute(f'CREATE SCHEMA "{schema}"')
        with connection.transaction():
            for text in postgres_schema.creation():
                connection.execute(text)
        self.schema = schema
        self.pipeline = Pipeline(connection)
        self._in_transaction = False

    def run(self, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self.pipeline.rows(text, parameters)

    def types(self, text: str) -> list[int]:
        """The types of a statement's parameters, as PostgreSQL infers them; raises if it cannot prepare it."""
        link = self.plain.pgconn
        result = link.prepare(b"", text.encode())
        if result.status != ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
        shape = link.describe_prepared(b"")
        return [shape.param_type(number) for number in range(shape.nparams)]

    def drop(self) -> None:
        """Delete the schema."""
        self.run(f'DROP SCHEMA "{self.schema}" CASCADE')
        self.pipeline.close()
        self.plain.close()

    def empty(self) -> None:
        """Delete every row but those of a new schema."""
        if self._in_transaction:
            self.run("ROLLBACK")
            self._in_transaction = False
        held = {row[0] for row in self.run("SELECT tablename FROM pg_tables WHERE schemaname = $1", (self.schema,))}
        self.run("BEGIN")
        self.run("SET LOCAL session_replication_role = replica")  # without foreign keys the order does not matter
        for table in sorted(held):
            self.run(f"DELETE FROM {table}")
        self.run("INSERT INTO kernel_meta VALUES ('schema_version', $1), ('finished_cursor', '0')", (str(LATEST),))
        self.run("COMMIT")
        self.restart_sequences(1)

    def restart_sequences(self, next_id: int) -> None:
        """Give this id to the next row of each table whose ids PostgreSQL gives."""
        for table, column in postgres_schema.SEQUENCES.items():
            self.run(f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), {next_id}, false)")

    def replay(self, steps: list[Step]) -> Iterator[str]:
        """Run the steps again and yield a sentence for each result that differs."""
        for number, step in enumerate(steps):
            if step.statement is None:
                # a transaction that PostgreSQL has aborted ends either way
                self.run(CONTROL[step.command])
                self._in_transaction = step.command not in ("commit", "rollback")
            elif step.statement.name not in OF_THE_FILE and not step.statement.name.startswith(OTHERS):
                yield from (f"step {number}: {problem}" for problem in self._again(step, step.statement))

    def _again(self, step: Step, statement: Statement) -> Iterator[str]:
        text = postgres_text(statement)
        given = step.parameters
        guarded = step.rows is None and self._in_transaction
        if guarded:
            self.run("SAVEPOINT failed")
        try:
            rows = self.run(text, given)
        except psycopg.Error as problem:
            if step.rows is not None:
                yield f"{statement.name} {given}: {problem}\n{text}"
            if guarded:
                self.run("ROLLBACK TO failed")
            return
        if step.rows is None:
            yield f"{statement.name} {given}: failed on SQLite, returned {rows}"
        elif not same(statement, step.rows, rows):
            yield f"{statement.name} {given}:\n  SQLite     {step.rows}\n  PostgreSQL {rows}\n{text}"


def same(statement: Statement, expected: list[Row], found: list[Row]) -> bool:
    """Whether the rows are equal in values and types, and in order where the statement has one."""
    outermost = statement.sql
    while (inner := re.sub(r"\([^()]*\)", "", outermost)) != outermost:
        outermost = inner
    if "ORDER BY" not in outermost or statement.sql.startswith(("INSERT", "UPDATE", "DELETE")):
        expected, found = sorted(expected, key=repr), sorted(found, key=repr)
    return len(expected) == len(found) and all(
        len(one) == len(two) and all(map(_same_value, one, two)) for one, two in zip(expected, found, strict=True)
    )


def _same_value(one: Any, two: Any) -> bool:
    """SQLite may return 0 where a column of floats is missing; there is no other difference of types."""
    numbers = isinstance(one, int | float) and isinstance(two, int | float)
    return bool(one == two) and (numbers or type(one) is type(two))

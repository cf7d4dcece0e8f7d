"""Opening a schema: create it if it is new, migrate it if it is old, refuse it if it is another program's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import psycopg

from rota.clock import SystemClock
from rota.errors import SchemaMismatch, StoreError, StoreMissing, StoreUnavailable
from rota.store import postgres_schema
from rota.store.engine import TransactionLost
from rota.store.migrations import LATEST, MIGRATE_HINT
from rota.store.postgres_clock import DatabaseClock
from rota.store.postgres_connection import PostgresAddress, connect, one_line, statement_error, unavailable
from rota.store.postgres_engine import turn_key

__all__ = ["open_schema"]

NAMED_MAX = 5  # other schemas that a message names
_OWNER = """SELECT pg_get_userbyid(coalesce(c.relowner, n.nspowner)) FROM pg_namespace n
    LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'kernel_meta'
    WHERE n.nspname = %s"""  # of the tables: those of a restored backup may not be the schema's owner's
_CREATED_FUNCTION = re.compile(r"CREATE FUNCTION (\w+)")
Connection: TypeAlias = psycopg.Connection[Any]


def open_schema(
    address: PostgresAddress, clock: DatabaseClock | None, *, read_only: bool, create: bool = True
) -> Connection:
    """Create or migrate the schema in a turn, if it needs that, and set the clock; returns the connection."""
    connection = connect(address, "reader" if read_only else "writer", read_only=read_only)
    try:
        _open(connection, address, clock, read_only=read_only, create=create)
    except BaseException:
        connection.close()
        raise
    return connection


def _open(
    connection: Connection, address: PostgresAddress, clock: DatabaseClock | None, *, read_only: bool, create: bool
) -> None:
    try:
        version = _version(connection, address.schema)
        if version is None and (read_only or not create):
            raise _missing(connection, address)
        if version != str(LATEST):
            if read_only:
                postgres_schema.plan(str(version))  # raises if it is newer, or another program's
                found = f"{version}; this rota has {LATEST}"
                text = f"{address.shown} has an older schema ({found}), and a read-only connection never migrates it"
                raise SchemaMismatch(text, hint=MIGRATE_HINT)
            _create_or_migrate(connection, address)
        if clock is not None:
            _set(clock, connection)
    except psycopg.errors.InsufficientPrivilege as problem:
        raise _no_right(connection, address, problem) from problem
    except psycopg.Error as problem:
        if isinstance(statement_error(problem), TransactionLost):  # the server is being stopped, or the network is
            raise unavailable(address, problem) from problem
        raise StoreError(f"the schema {address.schema} cannot be opened: {one_line(problem)}") from problem


def _no_right(connection: Connection, address: PostgresAddress, problem: psycopg.Error) -> StoreError:
    """Return the error of a role that may not open the schema, with the statement that gives it the right."""
    schema, role = f'"{address.schema}"', f'"{connection.info.user}"'
    owner = connection.execute(_OWNER, (address.schema,)).fetchone()
    if owner is None:
        hint = f"Have an administrator run: CREATE SCHEMA {schema} AUTHORIZATION {role}."
    else:
        hint = f'Connect as the owner "{owner[0]}", or have an administrator run: GRANT "{owner[0]}" TO {role}.'
    text = f"the role {role} may not open the schema {schema}: {one_line(problem)}"
    return StoreError(text, hint=hint)


def _missing(connection: Connection, address: PostgresAddress) -> StoreMissing:
    """Return the error of a schema without a rota: most often its name is mistyped, so others are named."""
    rows = connection.execute(
        "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relname = 'kernel_meta' AND has_schema_privilege(n.oid, 'USAGE') ORDER BY n.nspname LIMIT %s",
        (NAMED_MAX,),
    ).fetchall()
    text = f"there is no rota in the schema {address.schema} of {address.shown.partition('?')[0]}"
    if not rows:
        return StoreMissing(text, address=address.shown)
    others = ", ".join(str(row[0]) for row in rows)
    hint = f"Name a schema that has one ({others}), or create the store: `rota agents create NAME`."
    return StoreMissing(text, hint=hint, address=address.shown)


def _create_or_migrate(connection: Connection, address: PostgresAddress) -> None:
    with connection.transaction():
        for limit in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(f"SET LOCAL {limit} = 0")  # it may take long
        # of the first process that opens it; the others find it done
        connection.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (turn_key(address.schema),))
        version = _version(connection, address.schema)
        if version is None:
            _check_encoding(connection, address)
            if _is_used(connection, address.schema):
                text = f"the schema {address.schema} has tables of another program"
                raise SchemaMismatch(text, hint="Name another one: `…?schema=rota`.")
            _check_functions(connection, address.schema, postgres_schema.creation())
            # IF NOT EXISTS needs the right to create schemas also where there is one
            if connection.execute("SELECT to_regnamespace(%s)", (address.schema,)).fetchone() == (None,):
                connection.execute(f'CREATE SCHEMA "{address.schema}"')
            for text in postgres_schema.creation():
                connection.execute(text)
            return
        steps = postgres_schema.plan(version)
        _check_functions(connection, address.schema, [postgres_schema.step(step).sql for step in steps])
        for step in steps:
            connection.execute(postgres_schema.step(step).sql)
            connection.execute("UPDATE kernel_meta SET value = %s WHERE key = 'schema_version'", (str(step),))


def _version(connection: Connection, schema: str) -> str | None:
    """Return the version of the schema; None if rota's tables are not there."""
    # by its name: a schema that the role may not use is not the current one, and this fails
    table = f'"{schema}".kernel_meta'
    if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone() in (None, (None,)):
        return None
    row = connection.execute("SELECT value FROM kernel_meta WHERE key = 'schema_version'").fetchone()
    return str(row[0]) if row else ""


def _check_encoding(connection: Connection, address: PostgresAddress) -> None:
    """Refuse a database whose texts are not Unicode: names and results of agents have any letters."""
    row = connection.execute("SHOW server_encoding").fetchone()
    if row is not None and row[0] != "UTF8":
        database = address.shown.partition("?")[0]
        hint = "Make one that has: CREATE DATABASE rota ENCODING 'UTF8' TEMPLATE template0."
        text = f"the database {database} has the encoding {row[0]}, and rota needs UTF8"
        raise StoreUnavailable(text, hint=hint, address=address.shown)


def _check_functions(connection: Connection, schema: str, texts: Iterable[str]) -> None:
    """Refuse a schema in which another program has a function of a name that rota is about to create.

    Beside one with other parameters, a call without their types could mean either.
    """
    names = _CREATED_FUNCTION.findall(" ".join(texts))
    row = connection.execute(
        "SELECT min(proname) FROM pg_proc WHERE pronamespace = to_regnamespace(%s) AND proname = ANY (%s)",
        (schema, names),
    ).fetchone()
    if row is not None and row[0] is not None:
        text = f"the schema {schema} has a function {row[0]} of another program"
        raise SchemaMismatch(text, hint="Drop that function, or name another schema: `…?schema=rota`.")


def _is_used(connection: Connection, schema: str) -> bool:
    row = connection.execute("SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = %s)", (schema,)).fetchone()
    return row is not None and bool(row[0])


def _set(clock: DatabaseClock, connection: Connection) -> None:
    asked_at = SystemClock.monotonic()
    row = connection.execute(
        "SELECT extract(epoch FROM clock_timestamp())::double precision, "
        "(SELECT value FROM kernel_meta WHERE key = 'clock_offset')"
    ).fetchone()
    if row is not None:
        clock.set_by(asked_at, row[0], row[1], in_turn=False)

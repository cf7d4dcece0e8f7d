"""What an operator should know of a server: read for `rota doctor`, in one short visit that changes nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import psycopg

from rota.clock import SystemClock
from rota.store.postgres_connection import connect, parse_url, unavailable
from rota.store.postgres_engine import turn_key

__all__ = ["DeadRows", "ServerHealth", "ServerSession", "server_health"]

ROUND_TRIPS = 9  # of which the shortest counts
LISTEN_S_MAX = 2.0  # how long a notification may take
CHANNEL = "rota_doctor"
INBOX_MAX = 100_000  # rows of the inbox that are counted

_SETTINGS = """SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('server_encoding'), (SELECT datcollate FROM pg_database WHERE datname = current_database()),
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
    count(*) FILTER (WHERE backend_type = 'client backend' OR is_hidden),
    count(*) FILTER (WHERE application_name LIKE 'rota %'), count(*) FILTER (WHERE is_hidden),
    least(
        (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = session_user)
            - count(*) FILTER (WHERE usename = session_user),
        (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database())
            - count(*) FILTER (WHERE datname = current_database()))
    FROM (SELECT *, backend_type IS NULL AND usesysid IS NOT NULL AND datid IS NOT NULL AS is_hidden
        FROM pg_stat_activity) sessions"""  # hidden: of other roles, for a role without pg_read_all_stats
_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"  # by its schema's name: without the right to use it, this fails
_VERSION = "SELECT value FROM kernel_meta WHERE key = 'schema_version'"
_TURN = """SELECT l.granted, a.pid, coalesce(a.application_name, ''), coalesce(host(a.client_addr), 'this host'),
    coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::double precision
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.database = (SELECT oid FROM pg_database
        WHERE datname = current_database()) AND (l.classid::bigint << 32 | l.objid::bigint) = %s::bigint
    ORDER BY l.granted DESC, a.xact_start"""
_OLDEST = """SELECT true, pid, coalesce(application_name, ''), coalesce(host(client_addr), 'this host'),
    extract(epoch FROM clock_timestamp() - xact_start)::double precision FROM pg_stat_activity
    WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND pid != pg_backend_pid()
    ORDER BY xact_start LIMIT 1"""
_DEAD = """SELECT relname::text, n_dead_tup, n_live_tup FROM pg_stat_user_tables
    WHERE schemaname = %s ORDER BY n_dead_tup DESC, relname LIMIT 1"""
_INBOX = """SELECT count(*), coalesce(extract(epoch FROM clock_timestamp()) - min(created_at), 0)::double precision
    FROM (SELECT created_at FROM enqueue_inbox LIMIT %s) counted"""
_SLOTS = """SELECT slot_name::text, coalesce(pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0)
    ::bigint FROM pg_replication_slots WHERE NOT active ORDER BY slot_name"""


class ServerSession(msgspec.Struct, frozen=True):
    """A session of the server, and how long its transaction is open."""

    pid: int
    name: str
    host: str
    open_s: float


class DeadRows(msgspec.Struct, frozen=True):
    """The table with the most rows that are waiting for vacuum."""

    table: str
    dead: int
    live: int


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server, as one schema's users should see it."""

    shown: str  # the address without a password
    schema: str
    schema_version: str | None  # None: the schema has no rota
    version: str
    is_standby: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    encoding: str
    collation: str
    round_trip_s: float
    clock_ahead_s: float  # the server's clock minus this machine's
    connections: int
    connections_of_rota: int
    connections_hidden: int  # of other roles, whose transactions this role may not see
    connections_max: int
    connections_left: int | None  # by the limits of the role and of the database; None: they have none
    turn: ServerSession | None  # who holds the turn now
    waiting: int  # how many wait for it
    oldest: ServerSession | None  # the longest open transaction
    dead_rows: DeadRows | None
    inactive_slots: dict[str, int]  # name → bytes of the log that they keep
    listen_s: float | None  # how long a notification took; None: it did not arrive
    inbox: int = 0  # what programs have enqueued and no claim has taken in
    inbox_s: float = 0.0  # how long the oldest of it waits


def server_health(url: str) -> ServerHealth:
    """Ask a server how it is; raises StoreUnavailable if it does not answer."""
    address = parse_url(url)
    try:
        with contextlib.closing(connect(address, "doctor", read_only=True)) as connection:
            return _examine(connection, address.shown, address.schema)
    except psycopg.Error as problem:
        raise unavailable(address, problem) from problem


def _examine(connection: psycopg.Connection[Any], shown: str, schema: str) -> ServerHealth:
    round_trip_s, clock_ahead_s = _times(connection)
    found = _row(connection, _SETTINGS)
    turn = [(row[0], ServerSession(*row[1:])) for row in connection.execute(_TURN, (turn_key(schema),))]
    oldest, dead = _row(connection, _OLDEST), _row(connection, _DEAD, (schema,))
    inbox = _inbox(connection, schema)
    return ServerHealth(
        shown=shown,
        schema=schema,
        schema_version=_version(connection, schema),
        version=str(found[0]),
        is_standby=bool(found[1]),
        fsync=found[2] == "on",
        full_page_writes=found[3] == "on",
        synchronous_commit=str(found[4]),
        encoding=str(found[5]),
        collation=str(found[6]),
        connections_max=found[7],
        connections=found[8],
        connections_of_rota=found[9],
        connections_hidden=found[10],
        connections_left=found[11],
        round_trip_s=round_trip_s,
        clock_ahead_s=clock_ahead_s,
        turn=next((session for granted, session in turn if granted), None),
        waiting=sum(not granted for granted, _ in turn),
        oldest=ServerSession(*oldest[1:]) if oldest else None,
        dead_rows=DeadRows(*dead) if dead else None,
        inactive_slots={name: int(size) for name, size in connection.execute(_SLOTS)},
        listen_s=None if found[1] else _listen(connection),
        inbox=inbox[0],
        inbox_s=inbox[1],
    )


def _row(connection: psycopg.Connection[Any], text: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = connection.execute(text.encode(), parameters or None).fetchone()
    return found or ()


def _version(connection: psycopg.Connection[Any], schema: str) -> str | None:
    exists = _row(connection, _EXISTS, (f'"{schema}".kernel_meta',))
    found = _row(connection, _VERSION) if exists and exists[0] else ()
    return str(found[0]) if found else None


def _inbox(connection: psycopg.Connection[Any], schema: str) -> tuple[Any, ...]:
    exists = _row(connection, _EXISTS, (f'"{schema}".enqueue_inbox',))
    return _row(connection, _INBOX, (INBOX_MAX,)) if exists and exists[0] else (0, 0.0)


def _times(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """The shortest round trip, and how far the server's clock is ahead, as that trip shows it."""
    clock, best = SystemClock(), (float("inf"), 0.0)
    for _ in range(ROUND_TRIPS):
        asked_at, sent_s = clock.now(), clock.monotonic()
        (server_s,) = _row(connection, "SELECT extract(epoch FROM clock_timestamp())::double precision")
        took_s = clock.monotonic() - sent_s
        best = min(best, (took_s, server_s - (asked_at + took_s / 2)))
    return best


def _listen(connection: psycopg.Connection[Any]) -> float | None:
    """Send a notification to this session itself; a pooler that changes sessions loses it."""
    clock = SystemClock()
    connection.execute(f"LISTEN {CHANNEL}")
    begun_s = clock.monotonic()
    connection.execute(f"NOTIFY {CHANNEL}, 'check'")
    for _ in connection.notifies(timeout=LISTEN_S_MAX, stop_after=1):
        return clock.monotonic() - begun_s
    return None

"""PostgreSQL connections: what a URL means, how a connection is made, and rota's errors for what goes wrong.

    postgresql://user@host/database?schema=rota

is one rota: a schema of that name holds its tables. `schema` (default `rota`) and `pooler` are rota's own parameters;
all others go to libpq, so several hosts, TLS and password files work as in any other client.

**Time limits.** A holder of the turn keeps all others waiting, so no failure may last long. The server ends a session
that does nothing inside a transaction (a stopped process), a statement that runs too long, and a wait for the turn. The
operating system ends a connection whose peer does not answer (`tcp_user_timeout`, and probes while nothing is on its
way), so a cut network is noticed after `CUT_S_MAX` on both sides. The server's side is what counts for other hosts,
because its session holds the turn: so each session asks the server for the limits that its own end has. Without that,
only `IDLE_S_MAX` ends the session.

**Poolers.** A pooler that gives each transaction another session breaks prepared statements, LISTEN and locks of
sessions. A pooler is noticed by the number of the server process, which it makes up; then the URL has to say
`pooler=session`, which is the one mode that works.
"""

from __future__ import annotations

import re
from shlex import quote
from typing import Any, NamedTuple

import psycopg
from psycopg import conninfo
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.numeric import NumericBinaryLoader

from rota.errors import InvalidInput, RotaError, StoreCorrupt, StoreError, StoreReplaced, StoreUnavailable
from rota.store.addresses import DEFAULT_SCHEMA, SECRET, PostgresUrl, has_raw_password, resolved
from rota.store.engine import TransactionLost

__all__ = [
    "CUT_S_MAX",
    "IDLE_S_MAX",
    "PLANNER",
    "TURN_S_MAX",
    "PostgresAddress",
    "connect",
    "one_line",
    "parse_url",
    "statement_error",
    "unavailable",
]

OLDEST_SERVER = 150_000  # PostgreSQL 15
CONNECT_S_MAX = 5  # for each host
TURN_S_MAX = 30.0  # how long a process waits for its turn
STATEMENT_S_MAX = 60.0
IDLE_S_MAX = 10.0  # how long a session may do nothing inside a transaction
HOSTS_NAMED_MAX = 3  # hosts that are named with one problem
CUT_S_MAX = 4  # how long a connection may be without an answer, seen from either side
# a probe after 2 s of silence, then one a second; Linux gives up after `tcp_user_timeout`, others after 3 probes
KEEPALIVE = {
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": CUT_S_MAX * 1_000,
}
# what a service file or the environment (PGOPTIONS) says holds as if it were in the URL, and not rota's default
_ALSO_FROM_ELSEWHERE = ("options", "connect_timeout", *KEEPALIVE)
SERVER_KEEPALIVE = {  # the same for the server's end of the connection
    "tcp_keepalives_idle": str(KEEPALIVE["keepalives_idle"]),
    "tcp_keepalives_interval": str(KEEPALIVE["keepalives_interval"]),
    "tcp_keepalives_count": str(KEEPALIVE["keepalives_count"]),
    "tcp_user_timeout": str(KEEPALIVE["tcp_user_timeout"]),
}
# A statement is planned once, often while its tables are empty, and the plan is used when they hold a million rows. So
# no plan may depend on what the planner believes about sizes: rows are found by indexes, in the order of the index, and
# joined by keys. What is switched off is still done where there is no other way (kernel_proof/test_postgres_plans.py).
PLANNER = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",
}
_SET = """SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS settings (name, value)
    WHERE current_setting(name, true) IS NOT NULL AND %s::int IN (0, pg_backend_pid())"""
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,57}")  # with `rota_` before it, the name of a channel
_HOSTS = re.compile(r"[\w.:,%-]+")  # names and addresses, in a list; not the folder of a socket


class PostgresAddress(NamedTuple):
    """Where a rota is: how to connect, its schema, and its name for people, without a password."""

    conninfo: str
    schema: str
    shown: str
    pooled: bool = False  # a pooler in session mode is between


def parse_url(url: str) -> PostgresAddress:
    """Split rota's own parameters from those of libpq, and check them."""
    if has_raw_password(url):
        text = "the URL of the store cannot be read: its port is no number, or its password has one of / ? #"
        raise InvalidInput(text, field="url", hint="Leave the password out: use ~/.pgpass, or write / as %2F.")
    parts = PostgresUrl.split(url)
    schema, pooler = parts.own("schema", DEFAULT_SCHEMA), parts.own("pooler", "")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        text = f"{schema!r} cannot be a schema: lower-case letters, digits and _ only, at most 58, not pg_…"
        raise InvalidInput(text, field="schema", hint=f"Write ?schema={DEFAULT_SCHEMA} at the end of the URL.")
    if pooler not in ("", "session"):
        raise InvalidInput(f"pooler must be session, not {pooler!r}", field="pooler")
    try:
        settings: dict[str, Any] = conninfo.conninfo_to_dict(parts.of_libpq().text())
    except psycopg.Error as problem:
        text = f"the URL of the store cannot be read{'' if parts.has_password else f': {one_line(problem)}'}"
        hint = "Write postgresql://user@host/database?schema=rota, and an IPv6 address in brackets: user@[::1]."
        raise InvalidInput(text, field="url", hint=hint) from None
    if not all(port.isdecimal() for port in str(settings.get("port") or "").split(",") if port):
        text = "the URL of the store cannot be read: its port is no number"
        hint = "Write an IPv6 address in brackets: postgresql://user@[::1]:5432/database?schema=rota."
        raise InvalidInput(text, field="url", hint=hint)
    found = resolved(parts)
    settings |= {name: found[name] for name in _ALSO_FROM_ELSEWHERE if found.get(name)}
    host = str(settings.get("host") or settings.get("hostaddr") or "local")
    shown = f"{host if _HOSTS.fullmatch(host) else 'local'}/{settings.get('dbname') or settings.get('user') or ''}"
    return PostgresAddress(conninfo.make_conninfo(**settings), schema, f"{shown}?schema={schema}", pooler == "session")


def connect(
    address: PostgresAddress, role: str, *, read_only: bool = False, waits: bool = False
) -> psycopg.Connection[Any]:
    """Connect, or raise StoreUnavailable.

    The server shows the `role` in its list of sessions. A connection that `waits` has no time limits.
    """
    known = conninfo.conninfo_to_dict(address.conninfo)
    limits = {
        "lock_timeout": TURN_S_MAX,
        "statement_timeout": STATEMENT_S_MAX,
        "idle_in_transaction_session_timeout": IDLE_S_MAX,
    }
    session = {
        "search_path": address.schema,
        "default_transaction_isolation": "read committed",  # a turn reads what was committed while it waited
        "default_transaction_read_only": "off",
        "transaction_timeout": "0",  # since PostgreSQL 17; a copy is one, and turns have limits of their own
        "idle_session_timeout": "0",  # a session that waits holds the worker's id and hears of commits
        "standard_conforming_strings": "on",  # the functions of the schema have texts with \\
        "array_nulls": "on",  # rows are sent as arrays of text
        "extra_float_digits": "1",  # times keep all of their digits in JSON
        "jit": "off",
        **PLANNER,
        **SERVER_KEEPALIVE,
        "client_encoding": "UTF8",
        **{name: "0" if waits else f"{limit_s * 1000:.0f}" for name, limit_s in limits.items()},
    }
    defaults: dict[str, Any] = {
        "connect_timeout": CONNECT_S_MAX,
        "target_session_attrs": "primary",  # it is written also where transactions begin read-only
        "application_name": f"rota {role}",
        **KEEPALIVE,
    }
    given = {name: value for name, value in defaults.items() if name not in known}
    try:
        connection = _connected(address, given, read_only=read_only)
    except (psycopg.Error, UnicodeError) as problem:  # a name that no host can have is not encoded
        raise unavailable(address, problem) from None
    try:
        _check_version(address, connection)
        _set(address, connection, session)
        _read_as_sqlite(connection)
    except psycopg.Error as problem:
        connection.close()
        raise unavailable(address, problem) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _connected(address: PostgresAddress, given: dict[str, Any], *, read_only: bool) -> psycopg.Connection[Any]:
    """Connect to the server that accepts writes; to read, to any if none does: a standby may lack the last commits."""
    try:
        return psycopg.Connection.connect(address.conninfo, autocommit=True, prepare_threshold=None, **given)
    except psycopg.Error:
        if not read_only or "target_session_attrs" not in given:
            raise
    any_server = {**given, "target_session_attrs": "any"}
    return psycopg.Connection.connect(address.conninfo, autocommit=True, prepare_threshold=None, **any_server)


def _check_version(address: PostgresAddress, connection: psycopg.Connection[Any]) -> None:
    """Refuse a server that is too old."""
    if connection.info.server_version < OLDEST_SERVER:
        text = f"{address.shown} is PostgreSQL {connection.info.server_version // 10_000}; rota needs 15 or newer"
        raise StoreUnavailable(text, hint="Upgrade the server, or use a file.", address=address.shown)


def _set(address: PostgresAddress, connection: psycopg.Connection[Any], session: dict[str, str]) -> None:
    """Make the settings that the server has, in one trip; refuse a pooler that the URL does not name.

    Nothing is set behind such a pooler: its next client would get the session as it is.
    """
    pid = 0 if address.pooled else connection.info.backend_pid
    if not connection.execute(_SET, (list(session), list(session.values()), pid)).fetchall():
        text = f"a connection pooler stands in front of {address.shown}"
        hint = "Connect to PostgreSQL itself; for a pooler in session mode, add &pooler=session to the URL."
        raise StoreUnavailable(text, hint=hint, address=address.shown)


# --- values --------------------------------------------------------------------------------------


class _BoolAsInt(Loader):
    """Truth values are 1 and 0, as SQLite has them."""

    format = Format.BINARY

    def load(self, data: Any) -> int:
        return data[0]  # type: ignore[no-any-return]  # bytes, or a view of them


class _NumericAsNumber(NumericBinaryLoader):
    """A sum of whole numbers is a whole number, any other a float."""

    def load(self, data: Any) -> Any:
        value = super().load(data)
        return int(value) if value.is_finite() and value.as_tuple().exponent == 0 else float(value)


class _JsonAsText(Loader):
    """JSON is text: the kernel decodes it."""

    format = Format.BINARY

    def load(self, data: Any) -> str:
        return bytes(data).removeprefix(b"\x01").decode()  # jsonb begins with its version


def _read_as_sqlite(connection: psycopg.Connection[Any]) -> None:
    """Have rows hold what the same rows of SQLite hold."""
    connection.adapters.register_loader("bool", _BoolAsInt)
    connection.adapters.register_loader("numeric", _NumericAsNumber)
    connection.adapters.register_loader("json", _JsonAsText)
    connection.adapters.register_loader("jsonb", _JsonAsText)


# --- errors --------------------------------------------------------------------------------------

# connection (but not 08P01, which is this program's fault), resources, operator intervention, system
_LOST_CLASSES = ("08", "53", "57", "58")
_GONE_STATES = ("3F000", "42P01")  # no such schema, no such table
_READ_ONLY_SERVER = ("session is read-only", "server is in hot standby mode")  # as libpq says it
_LOCKED = "55P03"  # a statement waited for a lock for too long
_HOST_FAILED = re.compile(r"- host: (.*?), port: (.*?), hostaddr: .*?: (.*)")  # as psycopg says it
_CONNECTING = re.compile(r".*?\bconnection to server (?:(?:at|on) .*? failed: FATAL: +|at .*? failed: |on )")
_NAME_PRIMARY = "Name the primary in the URL, or all hosts: postgresql://a,b/database."
_PREFIX = re.compile(
    "connection failed: |connection is bad: |consuming input failed: "
)  # psycopg's, before libpq's words
_DISK_FULL, _NO_SPACE = "53100", "No space left on device"  # a session may not even begin
_HINTS = (  # what to do where the server, or libpq, says one of these words
    (
        ("too many connections for", "too many clients already", "remaining connection slots"),
        "Raise max_connections, or the CONNECTION LIMIT of the role or the database: a process needs up to six.",
    ),
    (
        ("password authentication failed", "no password supplied"),
        "Write the password of this role into ~/.pgpass, which only you may read, or into the URL's passfile.",
    ),
    (('" does not exist',), "Create it, or correct its name in the URL of the store."),
    (("invalid response to SSL negotiation",), "Another program listens there: correct the port in the URL."),
)
_LOST_STATES = ("25P03", "25P04", "40001", "40P01", "55P03")  # session ended by a time limit; deadlock; no turn


def statement_error(problem: psycopg.Error) -> BaseException:
    """Return rota's error for a failed statement: `TransactionLost` if the statement is not the cause."""
    state = problem.sqlstate
    if state is None or (state[:2] in _LOST_CLASSES and state != "08P01") or state in _LOST_STATES:
        return TransactionLost(one_line(problem))
    if state.startswith("22"):  # the last resort, if an earlier check missed it
        return InvalidInput(f"a value cannot be stored: {one_line(problem)}")
    if state.startswith("XX"):
        return StoreCorrupt(f"the database is damaged: {one_line(problem)}")
    if (refused := _refused(problem)) is not None:
        return refused
    hint = "Run `rota db check`; if it finds nothing, this is a defect of rota."
    return StoreError(f"a statement failed: {one_line(problem)}", hint=hint)


def _refused(problem: BaseException) -> StoreError | None:
    """Return the error of a server that answers and refuses, whatever it was asked; None if it is another problem."""
    state = problem.sqlstate if isinstance(problem, psycopg.Error) else None
    if state == "42501":
        hint = "Connect as the role that owns the schema, or have that role grant the right."
        return StoreError(f"the role lacks a right: {one_line(problem)}", hint=hint)
    if state in _GONE_STATES:
        hint = "If USAGE on the schema was revoked, grant it; if it was dropped by mistake, restore it from a backup."
        text = f"the store is no longer in the database, or hidden from this role: {one_line(problem)}"
        return StoreReplaced(text, hint=f"{hint} Then start this process again.")
    if state == "25006":
        return StoreUnavailable("the server accepts no writes: it is a standby", hint=_NAME_PRIMARY)
    if any(said in str(problem) for said in _READ_ONLY_SERVER):
        return StoreUnavailable(f"no server of the address accepts writes: {one_line(problem)}", hint=_NAME_PRIMARY)
    return None


def unavailable(address: PostgresAddress, problem: BaseException, *, may_be_executed: bool = False) -> RotaError:
    """Return the error of a call that could not reach the server."""
    data = {"address": address.shown, "detail": " ".join(str(problem).split())}
    if may_be_executed:
        text = f"the connection to {address.shown} was lost ({one_line(problem)}): the call may have been executed"
        hint = "When the server is back, see whether it was (`rota tail`), and repeat it only if it was not."
        return StoreUnavailable(text, hint=hint, may_be_executed=True, **data)
    if (refused := _refused(problem)) is not None:
        refused.data["address"] = address.shown
        return refused
    text = f"PostgreSQL at {address.shown} cannot be reached: {one_line(problem)}"
    command = f"Check that it runs and accepts you: psql {quote(_without_password(address))} -c 'SELECT 1'."
    hint = next((hint for words, hint in _HINTS if any(each in str(problem) for each in words)), command)
    states = {getattr(each, "sqlstate", None) for each in (problem, problem.__cause__)}
    if _DISK_FULL in states or _NO_SPACE in str(problem):
        text = f"PostgreSQL at {address.shown} has no disk space: {one_line(problem)}"
        hint = "Free space on the server's disk, then retry."
    elif _LOCKED in states:
        text = f"PostgreSQL at {address.shown} kept a statement waiting: {one_line(problem)}"
        hint = "A session has locked what it needs. `rota doctor` names the oldest transaction."
    return StoreUnavailable(text, hint=hint, **data)


def _without_password(address: PostgresAddress) -> str:
    settings: dict[str, Any] = conninfo.conninfo_to_dict(address.conninfo)
    kept = {name: value for name, value in settings.items() if name not in (*SECRET, "passfile")}
    return conninfo.make_conninfo(**kept)


def one_line(problem: BaseException) -> str:
    """Return the server's message, without the statement; or libpq's, without details and hints.

    Of several hosts, those with the same problem are named together, the first few.
    """
    if isinstance(problem, RotaError):
        return problem.message
    if isinstance(problem, psycopg.Error) and problem.diag.message_primary:
        return " ".join(problem.diag.message_primary.split())
    lines = [line for line in str(problem).splitlines() if not line.startswith(("\t", "DETAIL: ", "HINT: "))]
    hosts: dict[str, dict[str, None]] = {}  # by problem, in their order
    for found in filter(None, map(_HOST_FAILED.fullmatch, lines)):
        host, port, text = found.groups()
        hosts.setdefault(_why(text), {})[f"{host}:{port}".replace("'", "")] = None
    if len(hosts) > 1:
        return "; ".join(f"{why} ({_first_few(list(names))})" for why, names in hosts.items())
    return next(iter(hosts), None) or _why(" ".join(lines)) or type(problem).__name__


def _why(text: str) -> str:
    """Return libpq's message without the address of the server, which is known; the path of a socket stays."""
    return " ".join(_CONNECTING.sub("", _PREFIX.sub("", text, count=1), count=1).split())


def _first_few(names: list[str]) -> str:
    more = f" and {len(names) - HOSTS_NAMED_MAX} more" if len(names) > HOSTS_NAMED_MAX else ""
    return ", ".join(names[:HOSTS_NAMED_MAX]) + more

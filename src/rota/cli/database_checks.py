"""The checks of `rota doctor` for a store on PostgreSQL: what the server says of itself, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from rota.cli.health_finding import Finding
from rota.cli.output import span
from rota.store import ServerHealth, ServerSession, server_health

__all__ = ["examine_server"]

ROUND_TRIP_S_MAX = 0.005  # a turn takes two to ten of them, and all other writers wait meanwhile
CLOCK_S_MAX = 1.0  # rota goes by the server's clock; people read their own
TURN_S_MAX = 1.0  # a turn takes milliseconds
TRANSACTION_S_MAX = 300.0  # an older one keeps vacuum from its work
DEAD_ROWS_MIN = 50_000
CONNECTIONS_LEFT_MIN = 10
INBOX_S_MAX = 60.0  # the next claim takes in what programs have enqueued
PART = "server"


def examine_server(url: str) -> tuple[ServerHealth, list[Finding]]:
    """Ask a server and judge what it says."""
    health = server_health(url)
    return health, list(_findings(health))


def _findings(health: ServerHealth) -> Iterator[Finding]:
    yield from _identity(health)
    yield from _durability(health)
    yield from _times(health)
    yield from _turn(health)
    yield from _upkeep(health)
    yield from _connections(health)


def _identity(health: ServerHealth) -> Iterator[Finding]:
    role = "a standby, which cannot be written" if health.is_standby else "the primary"
    fix = "Name the primary, or all hosts: postgresql://one,two/database" if health.is_standby else ""
    words = f"PostgreSQL {health.version} at {health.shown}, {role}"
    yield Finding(PART, "bad" if health.is_standby else "good", words, fix)
    is_utf8 = health.encoding == "UTF8"
    words = f'encoding {health.encoding}, collation {health.collation}; rota\'s own text sorts by "C"'
    fix = "" if is_utf8 else "Use a database with ENCODING 'UTF8'."
    yield Finding(PART, "good" if is_utf8 else "bad", words, fix)


def _durability(health: ServerHealth) -> Iterator[Finding]:
    wrong = [name for name, on in (("fsync", health.fsync), ("full_page_writes", health.full_page_writes)) if not on]
    words = f"synchronous_commit {health.synchronous_commit}"
    if wrong:
        words = f"{' and '.join(wrong)} off: a power cut can destroy the database"
        fix = " ".join(f"ALTER SYSTEM SET {name} = on;" for name in wrong)
        yield Finding(PART, "bad", words, f"{fix} SELECT pg_reload_conf();")
    else:
        yield Finding(PART, "good", f"fsync and full_page_writes are on, {words}")


def _times(health: ServerHealth) -> Iterator[Finding]:
    is_far = health.round_trip_s > ROUND_TRIP_S_MAX
    fix = "Run workers near the server: each turn takes two trips or more." if is_far else ""
    yield Finding(PART, "note" if is_far else "good", f"a round trip takes {health.round_trip_s * 1e3:.2f} ms", fix)
    ahead_s = health.clock_ahead_s
    is_off = abs(ahead_s) > CLOCK_S_MAX
    words = f"the server's clock is {abs(ahead_s):.3f} s {'ahead' if ahead_s > 0 else 'behind'}; rota goes by it"
    fix = "Check the time service of both machines." if is_off else ""
    yield Finding(PART, "note" if is_off else "good", words, fix)
    if health.is_standby:
        return
    if health.listen_s is None:
        fix = "Connect without a pooler, or with one in session mode: &pooler=session"
        yield Finding(PART, "bad", "LISTEN does not reach this session: waiting claims look once a second", fix)
    else:
        yield Finding(PART, "good", f"LISTEN reaches this session after {health.listen_s * 1e3:.2f} ms")


def _turn(health: ServerHealth) -> Iterator[Finding]:
    if health.turn is None:
        yield Finding(PART, "good", "no process holds the turn")
        return
    waiting = f", {health.waiting:,} wait for it" if health.waiting else ""
    words = f"the turn is held by {_session(health.turn)} since {health.turn.open_s:.3f} s{waiting}"
    is_long = health.turn.open_s > TURN_S_MAX
    fix = f"If that process hangs, end its session: SELECT pg_terminate_backend({health.turn.pid})" if is_long else ""
    yield Finding(PART, "bad" if is_long else "good", words, fix)


def _upkeep(health: ServerHealth) -> Iterator[Finding]:
    oldest = health.oldest
    if oldest is not None:
        is_old = oldest.open_s > TRANSACTION_S_MAX
        fix = f"It keeps vacuum from its work. End it: SELECT pg_terminate_backend({oldest.pid})" if is_old else ""
        words = f"the oldest transaction is {span(oldest.open_s)} old: {_session(oldest)}"
        yield Finding(PART, "note" if is_old else "good", words, fix)
    if health.connections_hidden:
        words = f"transactions of other roles are not seen: {health.connections_hidden:,} sessions"
        yield Finding(PART, "note", words, "To see them, have an administrator GRANT pg_read_all_stats to this role.")
    rows = health.dead_rows
    if rows is not None:
        is_much = rows.dead > DEAD_ROWS_MIN and rows.dead > rows.live
        fix = f"VACUUM (ANALYZE) {health.schema}.{rows.table}" if is_much else ""
        words = f"most dead rows: {rows.dead:,} in {rows.table}, beside {rows.live:,} live ones"
        yield Finding(PART, "note" if is_much else "good", words, fix)
    if health.inbox:
        is_old = health.inbox_s > INBOX_S_MAX
        words = f"{health.inbox:,} rows of the inbox wait to be taken in, the oldest for {span(health.inbox_s)}"
        fix = "The next claim takes them in. Start a worker: `rota run fleet.toml`" if is_old else ""
        yield Finding(PART, "note" if is_old else "good", words, fix)
    for name, size in health.inactive_slots.items():
        words = f"replication slot {name} is not in use and keeps {size / 2**20:,.1f} MiB of the log"
        yield Finding(PART, "note", words, f"If it is not needed: SELECT pg_drop_replication_slot('{name}')")


def _connections(health: ServerHealth) -> Iterator[Finding]:
    words = f"{health.connections:,} of {health.connections_max:,} connections, {health.connections_of_rota:,} of rota"
    yield _left(words, health.connections_max - health.connections, "max_connections")
    if health.connections_left is not None:
        words = "the role or the database has a limit of connections"
        yield _left(words, health.connections_left, "the CONNECTION LIMIT (\\du and \\l+ of psql show it)")


def _left(words: str, left: int, setting: str) -> Finding:
    is_low = left < CONNECTIONS_LEFT_MIN
    fix = f"Raise {setting}: a process of rota needs up to six." if is_low else ""
    return Finding(PART, "bad" if is_low else "good", f"{words}; {left:,} left", fix)


def _session(session: ServerSession) -> str:
    return f"process {session.pid} ({session.name or 'unnamed'}, {session.host})"

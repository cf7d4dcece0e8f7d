"""Which history of the database a connection sees: it changes when a standby is promoted or a backup is restored.

PostgreSQL numbers its histories: a promoted standby, and a recovery to a point in time, begin a new *timeline*. A new
server into which a dump was restored has another system identifier. The store remembers both in a setting, and every
connection that writes compares. If they differ, commits may be missing that were acknowledged: an asynchronous standby,
or a backup, is always a little behind.

So all claims are suspect: a worker may hold one that the database no longer knows, or hold it for an entry that another
worker gets next. The first process that notices takes all live claims back (kernel/failover.py), in a turn of its own,
before anything else is written. The token of a claim is the id of its event, and ids go on from the last one that the
database knows: those of lost claims would be given again, to other claims. Hence the ids leave out `EVENT_ID_GAP`.
"""

from __future__ import annotations

from typing import Any

import psycopg

__all__ = ["EVENT_ID_GAP", "TIMELINE_KEY", "read_timeline"]

TIMELINE_KEY = "timeline"  # the setting with the system identifier and the timeline
EVENT_ID_GAP = 1_000_000  # more events than a standby can be behind
_TIMELINE = """SELECT (SELECT system_identifier FROM pg_control_system()) || '/'
    || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), (SELECT value FROM kernel_meta WHERE key = 'timeline')"""
_REFUSED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFunction)


def read_timeline(connection: psycopg.Connection[Any]) -> tuple[str | None, str | None]:
    """Return the timeline of the server and the one that the store remembers.

    Some hosted servers refuse to say. Then both are None, and a failover is not noticed.
    """
    try:
        row = connection.execute(_TIMELINE).fetchone()
    except _REFUSED:
        return None, None
    return (None, None) if row is None else (row[0], row[1])

"""Locks of sessions: what one process of all hosts may do at a time.

The server holds such a lock for a session and drops it when the session ends, also that of a killed process. A session
that is lost while its process lives loses the lock too, so it keeps two processes from doing the same work twice, and
nothing may depend on it that a second process could break.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg

from rota.store.postgres_connection import connect, parse_url, unavailable

__all__ = ["lock_number", "session_lock"]


def lock_number(text: str) -> int:
    """Return the number of the advisory lock that a text stands for."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


@contextmanager
def session_lock(url: str, name: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that tries to take the lock of this name in a schema. What it took is held during the block."""
    address = parse_url(url)
    key = lock_number(f"rota {address.schema} {name}")
    with closing(connect(address, name, waits=True)) as connection:

        def take() -> bool:
            try:
                row = connection.execute("SELECT pg_try_advisory_lock(%s::bigint)", (key,)).fetchone()
            except psycopg.Error as problem:
                raise unavailable(address, problem) from problem
            return row is not None and bool(row[0])

        yield take

"""Worker ids that a process holds over all hosts, as advisory locks of its session that writes.

The server releases such a lock when the session ends, however that happens: the process ends, its host is cut off, the
server restarts. A process that goes on connects again and takes its ids again. If another process has taken one
meanwhile, that is logged, and both go on: tokens fence their claims.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from rota.errors import WorkerExists
from rota.store.postgres_locks import lock_number
from rota.store.protocol import Row

__all__ = ["HeldWorkerIds"]

END_MS_MAX = 1_000  # how long a session that is lost already may take to end
_TAKE = "SELECT pg_try_advisory_lock($1::bigint)"
_RELEASE = "SELECT pg_advisory_unlock($1::bigint)"
_HOLDER = """SELECT l.pid, coalesce(host(a.client_addr), 'the server''s host') FROM pg_locks l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::bigint << 32 | l.objid::bigint) = $1::bigint"""
_log = logging.getLogger("rota.store")
Ask = Callable[[str, Sequence[Any]], list[Row]]  # runs a statement in the session


class HeldWorkerIds:
    """The worker ids that one process holds. The caller keeps other threads out."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._held: dict[str, int] = {}  # id → number of its lock

    def take(self, ask: Ask, worker_id: str) -> None:
        """Take an id, or raise WorkerExists."""
        if worker_id in self._held:
            raise WorkerExists(f"worker id {worker_id} is in use in this process", worker_id=worker_id)
        key = _key(self._schema, worker_id)
        if ask(_TAKE, (key,)) != [(1,)]:
            text = f"worker id {worker_id} is in use by a process at {_host(ask(_HOLDER, (key,)))}"
            raise WorkerExists(text, worker_id=worker_id)
        self._held[worker_id] = key

    def release(self, ask: Ask | None, worker_id: str) -> None:
        """Release an id; without a session the server has done it."""
        key = self._held.pop(worker_id, None)
        if key is not None and ask is not None:
            ask(_RELEASE, (key,))

    def take_again(self, connection: psycopg.Connection[Any], lost_pid: int) -> None:
        """Take all ids in a new session. `lost_pid` is the server's process for the session before it."""

        def ask(text: str, parameters: Sequence[Any]) -> list[Row]:
            return connection.execute(text.replace("$1", "%s").encode(), parameters).fetchall()

        for worker_id, key in self._held.items():
            if ask(_TAKE, (key,)) == [(1,)]:
                continue
            holders = ask(_HOLDER, (key,))
            if [row[0] for row in holders] == [lost_pid]:  # the server has not noticed yet that it is lost
                ask(f"SELECT pg_terminate_backend($1::int, {END_MS_MAX})", (lost_pid,))
                if ask(_TAKE, (key,)) == [(1,)]:
                    continue
            _log.error("worker id %s is now in use by a process at %s; stop one of the two", worker_id, _host(holders))


def _key(schema: str, worker_id: str) -> int:
    """Return the number of the lock; the texts of rota's other locks have two or three words, and this one has more."""
    return lock_number(f"rota worker {schema} {worker_id}")


def _host(holders: list[Row]) -> str:
    return str(holders[0][1]) if holders else "another host"

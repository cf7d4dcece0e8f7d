"""When each worker last claimed or ended a run, so that affinity knows which workers are alive.

The record is in memory only. A claim that finds nothing writes nothing, so a process knows only the workers that it
served itself; a daemon serves all of them.
"""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

from rota.store import Store, Transaction
from rota.store.statements import claims as sql

__all__ = ["ALIVE_S", "WORKERS_MAX", "WorkersSeen", "worker_names", "workers_seen_of"]

ALIVE_S = 300.0  # how long after it was last seen a worker without claims counts as alive
WORKERS_MAX = 10_000  # workers remembered; the one first seen is dropped first
_GONE = -math.inf


class WorkersSeen:
    """When this process last saw each worker."""

    __slots__ = ("_seen_at",)

    def __init__(self, seen_at: dict[str, float] | None = None) -> None:
        self._seen_at = seen_at if seen_at is not None else {}

    def copy(self) -> WorkersSeen:
        """Return an independent copy, for a dry run."""
        return WorkersSeen(dict(self._seen_at))

    def mark_seen(self, worker_id: str, now: float) -> None:
        """Record that a worker claimed or ended a run."""
        self._seen_at[worker_id] = now
        if "/" in worker_id:
            self._seen_at.update(dict.fromkeys(worker_names(worker_id), now))
        while len(self._seen_at) > WORKERS_MAX:
            del self._seen_at[next(iter(self._seen_at))]

    def mark_gone(self, worker_id: str) -> None:
        """Record that a worker claims nothing more, because it said so or let a claim expire."""
        self.mark_seen(worker_id, _GONE)
        for name in [name for name in self._seen_at if name.startswith(f"{worker_id}/")]:
            self._seen_at[name] = _GONE

    def is_alive(self, tx: Transaction, worker_id: str, now: float) -> bool:
        """Whether a worker can be expected to claim again: it was seen lately, or it holds a claim."""
        seen_at = self._seen_at.get(worker_id)
        if seen_at is not None and (seen_at == _GONE or now - seen_at < ALIVE_S):
            return seen_at != _GONE
        return bool(tx.run(sql.WORKER_HAS_CLAIM, (worker_id,)))


def worker_names(worker_id: str) -> tuple[str, ...]:
    """Return the names by which an entry may address a worker: its own and, for `name/kind`, the name alone."""
    owner, slash, _ = worker_id.rpartition("/")
    return (worker_id, owner) if slash and owner else (worker_id,)


_WORKERS_SEEN: WeakKeyDictionary[Store, WorkersSeen] = WeakKeyDictionary()


def workers_seen_of(store: Store) -> WorkersSeen:
    """Return the one record of a store, shared by all kernels over it."""
    return _WORKERS_SEEN.setdefault(store, WorkersSeen())

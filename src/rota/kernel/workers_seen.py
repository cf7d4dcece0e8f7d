"""Which workers this process has seen lately, so that an entry waits only for a worker that can come."""

from __future__ import annotations

import math
from collections.abc import Callable

from rota.store import Transaction
from rota.store.statements import claims as sql

__all__ = ["ALIVE_S", "WORKERS_MAX", "WorkersSeen", "worker_names"]

ALIVE_S = 300.0  # how long after it was last seen a worker without claims counts as alive
WORKERS_MAX = 10_000  # workers remembered; the one first seen is dropped first
_GONE = -math.inf


class WorkersSeen:
    """When this process last saw each worker claim or end a run, so that affinity knows which workers are alive.

    It is in memory only. A claim that finds nothing writes nothing, so a process knows only the workers that it served
    itself; a daemon serves all of them. The instants are those of the advancing clock.
    """

    __slots__ = ("__weakref__", "_monotonic", "_seen_at")

    def __init__(self, monotonic: Callable[[], float], seen_at: dict[str, float] | None = None) -> None:
        self._monotonic = monotonic
        self._seen_at = seen_at if seen_at is not None else {}

    def copy(self) -> WorkersSeen:
        """Return an independent copy, for a dry run."""
        return WorkersSeen(self._monotonic, dict(self._seen_at))

    def forget(self) -> None:
        """In a forked child: the workers go on in the parent."""
        self._seen_at = {}

    def mark_seen(self, worker_id: str, at: float | None = None) -> None:
        """Record that a worker claimed or ended a run: now, unless `at` is given."""
        at = self._monotonic() if at is None else at
        self._seen_at[worker_id] = at
        if "/" in worker_id:
            self._seen_at.update(dict.fromkeys(worker_names(worker_id), at))
        while len(self._seen_at) > WORKERS_MAX:
            del self._seen_at[next(iter(self._seen_at))]

    def mark_gone(self, worker_id: str) -> None:
        """Record that a worker claims nothing more, because it said so or let a claim expire."""
        self.mark_seen(worker_id, _GONE)
        for name in [name for name in self._seen_at if name.startswith(f"{worker_id}/")]:
            self._seen_at[name] = _GONE

    def is_alive(self, tx: Transaction, worker_id: str) -> bool:
        """Whether a worker can be expected to claim again: it was seen lately, or it holds a claim."""
        seen_at = self._seen_at.get(worker_id)
        if seen_at is not None and (seen_at == _GONE or self._monotonic() - seen_at < ALIVE_S):
            return seen_at != _GONE
        return bool(tx.run(sql.WORKER_HAS_CLAIM, (worker_id,)))


def worker_names(worker_id: str) -> tuple[str, ...]:
    """Return the names by which an entry may address a worker: its own and, for `name/kind`, the name alone."""
    owner, slash, _ = worker_id.rpartition("/")
    return (worker_id, owner) if slash and owner else (worker_id,)

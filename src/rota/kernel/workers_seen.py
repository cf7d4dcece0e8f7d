"""Who is about: when each worker was last seen, as it asked for work or as a run of its own ended.

Nothing of it is written down. A worker that asks and gets nothing writes nothing, and that is how it should be; so each
process knows only whom it saw itself. A daemon sees everybody.
"""

from __future__ import annotations

import math

from rota.store import Transaction
from rota.store.statements import claims as sql

__all__ = ["ABOUT_S", "SEEN_MAX", "Attendance", "names_of"]

ABOUT_S = 300.0  # how long after it was last seen a worker that holds nothing is taken to be about
SEEN_MAX = 10_000  # workers that are remembered; the one first seen is forgotten first
_LEFT = -math.inf


class Attendance:
    """When workers were last seen in this process."""

    __slots__ = ("_seen_at",)

    def __init__(self, seen_at: dict[str, float] | None = None) -> None:
        self._seen_at = seen_at if seen_at is not None else {}

    def copy(self) -> Attendance:
        """One of its own, for a rehearsal."""
        return Attendance(dict(self._seen_at))

    def saw(self, worker_id: str, now: float) -> None:
        """A worker is there."""
        self._seen_at[worker_id] = now
        if "/" in worker_id:
            self._seen_at.update(dict.fromkeys(names_of(worker_id), now))
        while len(self._seen_at) > SEEN_MAX:
            del self._seen_at[next(iter(self._seen_at))]

    def left(self, worker_id: str) -> None:
        """A worker takes nothing more, whatever it still holds: it said so, or let a claim expire."""
        self.saw(worker_id, _LEFT)
        for name in [name for name in self._seen_at if name.startswith(f"{worker_id}/")]:
            self._seen_at[name] = _LEFT

    def is_about(self, tx: Transaction, worker_id: str, now: float) -> bool:
        """Whether a worker can be expected to ask for work."""
        seen_at = self._seen_at.get(worker_id)
        if seen_at is not None and (seen_at == _LEFT or now - seen_at < ABOUT_S):
            return seen_at != _LEFT
        return bool(tx.run(sql.AT_WORK, (worker_id,)))


def names_of(worker_id: str) -> tuple[str, ...]:
    """What an entry may call a worker that asks by this name: its own, and that of whom the slots belong to."""
    owner, slash, _ = worker_id.rpartition("/")
    return (worker_id, owner) if slash and owner else (worker_id,)

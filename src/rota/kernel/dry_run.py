"""A dry run: what a claim would do, done in a transaction that is rolled back.

To say exactly what a claim would return, the same code must run on the same rows: maintenance first (held entries
released, expired claims taken back, deadlines swept), then a pass that checks and writes. So a dry run is a write
transaction that always rolls back. It queues like any writer and delays the others while it runs, so its work must be
bounded.

It leaves nothing behind, in the file or in memory: the maintenance state, the cache, the record of workers and the
random generator are copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rota.errors import SchedUnknownId
from rota.kernel.cache import KernelCache
from rota.kernel.due_summary import DueSummary
from rota.kernel.environment import KernelEnvironment
from rota.kernel.maintenance import Maintenance
from rota.store import Row, Transaction
from rota.store.statements import journal as journal_sql
from rota.store.statements import queue as sql

__all__ = ["DryRun", "dry_run"]

T = TypeVar("T")


class DryRun(NamedTuple):
    """What the work of a dry run gets: a transaction in which maintenance has been done."""

    tx: Transaction
    now: float
    due: DueSummary
    cursor: int  # the last event before the dry run

    def row(self, sched_id: int) -> Row:
        """Return an entry as a claim would find it."""
        rows = self.tx.run(sql.GET, (sched_id,))
        if not rows:
            raise SchedUnknownId(sched_id)
        return rows[0]


def dry_run(env: KernelEnvironment, work: Callable[[DryRun], T], *, now: float | None = None) -> T:
    """Do what is due, run the work, roll everything back and return the work's result."""
    given = None if now is None else env.now(now)
    isolated = env._replace(rng=copy.copy(env.rng), cache=KernelCache(), workers_seen=env.workers_seen.copy())

    def rolled_back(tx: Transaction) -> T:
        cursor = int(tx.run(journal_sql.EVENT_ENDS)[0][1] or 0)
        at = env.now() if given is None else given
        due, _ = Maintenance(isolated).run_due(tx, at, now_from_clock=given is None)
        return work(DryRun(tx, at, due, cursor))

    return env.store.dry_run(rolled_back)

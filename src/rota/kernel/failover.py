"""After a failover: every live claim is taken back, because the database may have forgotten some of them.

The store calls this in a transaction of its own when it finds itself on another timeline (store/postgres_timeline.py).
A claim that is taken back counts as expired: its run is told at its next heartbeat or report, the entry is retried if
its attempts allow it, and fails otherwise.
"""

from __future__ import annotations

import math

from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.maintenance import RECLAIM_MAX, reclaim_runs
from rota.kernel.progress import NoRepeats
from rota.model.events import StoreFailedOver
from rota.store import Transaction
from rota.store.author import MAINTENANCE, acting_as
from rota.store.statements import claims as sql

__all__ = ["fence_claims"]


def fence_claims(env: KernelEnvironment, tx: Transaction, before: str, after: str) -> None:
    """Take back every live claim, and record why."""
    env.cache.invalidate()
    now = env.read_clock(tx)
    with acting_as(MAINTENANCE):
        append(tx, StoreFailedOver(before=before, after=after), now=now)  # its id comes after those that were lost
        seen = NoRepeats("claims to take back")
        while claims := tx.run(sql.STALE_CLAIMS, (math.inf, RECLAIM_MAX)):
            seen.check(claims)
            reclaim_runs(tx, env, [row[0] for row in claims], now)
    tx.effects.wake_parked = True
    env.cache.invalidate()

"""Affinity: hold a ready entry for the worker it names, for a limited time.

A worker may already have what a run needs: a checkout, a loaded model, a warm cache. An entry can name such a worker
in `affinity`. When the entry becomes ready for its first attempt it is then held, so that other workers' claims skip
it, until the first of these:

    the named worker claims                  the entry becomes ready, and that claim chooses in its usual order
    `affinity_wait_s` has passed             the entry is ready for every worker
    the worker drains or stops               the same, also for entries that become ready later
    an operator releases or forces it        affinity is a preference, never a reason to refuse

An entry is held only for a worker that is alive (see `WorkersSeen`): it holds a claim or was seen lately. A worker
with slots of several kinds claims as `name/kind` for each kind; an entry that names `name` means any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rota.errors import SchedInvalidPayload
from rota.kernel import flows
from rota.kernel.environment import KernelEnvironment, worker_names
from rota.kernel.journal import append
from rota.kernel.settings import read_number, write_setting
from rota.kernel.turn import TurnRequest
from rota.model.checks import Checks
from rota.model.events import AffinityWaitSet, EntriesReleased
from rota.model.workers import takes_no_kind
from rota.store import Row, Transaction
from rota.store.statements import queue as sql

__all__ = [
    "AFFINITY_WAIT_KEY",
    "AFFINITY_WAIT_S",
    "RELEASE_MAX",
    "AffinityEntry",
    "AffinitySettings",
    "affinity_wait_s",
    "drop_holds",
    "expire_holds_for",
    "hold_for_worker",
    "record_released",
    "release",
    "release_expired_holds",
    "release_for_claim",
]

AFFINITY_WAIT_S = 120.0  # the default of the setting
AFFINITY_WAIT_KEY = "affinity_wait_s"  # the setting in the store: how long entries are held
RELEASE_MAX = 1_000  # entries released in one transaction
_queue = Checks("Queue", SchedInvalidPayload)


class AffinityEntry(NamedTuple):
    """An entry, the worker it names, and the columns that order it among others."""

    sched_id: int
    worker_id: str | None
    kind: str | None
    priority: int
    runnable_at: float


def affinity_wait_s(tx: Transaction) -> float:
    """Return how long entries are held in this store, in seconds."""
    return read_number(tx, AFFINITY_WAIT_KEY, AFFINITY_WAIT_S)


def hold_for_worker(
    tx: Transaction, env: KernelEnvironment, entry: AffinityEntry, now: float
) -> Literal["worker"] | None:
    """Hold an entry that would be ready now for the worker it names, if that worker is alive; returns the hold.

    `now` is from `read_clock`.
    """
    if entry.worker_id is None or not env.workers_seen.is_alive(tx, entry.worker_id):
        return None
    wait_s = affinity_wait_s(tx)
    if wait_s <= 0:
        return None
    tx.run(sql.AFFINITY_ADD, (*entry, now + wait_s))
    return "worker"


def release_for_claim(tx: Transaction, env: KernelEnvironment, request: TurnRequest, now: float) -> None:
    """Release the first entries that are held for the claiming worker, at most as many as it requests."""
    names = worker_names(request.worker.worker_id)
    none = (None,) if takes_no_kind(request.kinds) else ()
    queries = [(name, kind, request.max_n) for name in names for kind in (*none, *request.kinds)]
    rows = [row for query in queries for row in tx.run(sql.AFFINITY_FIRST, query)]
    rows.sort(key=lambda row: (-row[3], row[4], row[0]))  # strict order
    release(tx, env, rows[: request.max_n], now)


def expire_holds_for(tx: Transaction, worker_id: str, now: float) -> None:
    """End all holds for a worker that claims nothing more."""
    tx.run(sql.AFFINITY_END_BY_OF_WORKER, (now, worker_id))
    tx.effects.wake_parked = True


def release_expired_holds(tx: Transaction, env: KernelEnvironment, now: float) -> None:
    """Release entries whose hold has ended."""
    release(tx, env, tx.run(sql.AFFINITY_DUE, (now, RELEASE_MAX)), now)


def release(tx: Transaction, env: KernelEnvironment, rows: Sequence[Row], now: float) -> None:
    """Make held entries ready."""
    if rows:
        sched_ids = [row[0] for row in rows]
        drop_holds(tx, sched_ids)
        tx.run_many(sql.RELEASE, [(None, sched_id) for sched_id in sched_ids])
        record_released(tx, env, "worker", rows, now)


def record_released(tx: Transaction, env: KernelEnvironment, hold: str, rows: Sequence[Row], now: float) -> None:
    """Record that entries (id, agent, project, …) are no longer held, and that their agents have ready entries."""
    event_id = append(tx, EntriesReleased(hold=hold, sched_ids=[row[0] for row in rows]), now=now)
    owners = {(row[1], row[2]) for row in rows}
    flows.mark_ready(tx, owners, event_id=event_id)
    for pid, project_id in owners:
        env.cache.touch(pid, project_id)
    tx.effects.wake_parked = True


def drop_holds(tx: Transaction, sched_ids: Sequence[int]) -> None:
    """Delete the affinity holds of entries, if they have any."""
    tx.run_for(sql.AFFINITY_REMOVE, sched_ids)


class AffinitySettings:
    """Reading and changing how long entries are held for the worker they name."""

    _env: KernelEnvironment

    def affinity_wait(self) -> float:
        """Return how long an entry is held for the worker it names, in seconds."""
        return self._env.read(affinity_wait_s)

    def set_affinity_wait(self, wait_s: float) -> None:
        """Set how long entries are held for the worker they name; holds that would last longer are shortened."""
        _queue.duration("wait_s", wait_s)

        def work(tx: Transaction) -> None:
            now = self._env.read_clock(tx)
            before_s = affinity_wait_s(tx)
            if before_s != wait_s:
                write_setting(tx, AFFINITY_WAIT_KEY, repr(float(wait_s)))
                tx.run(sql.AFFINITY_END_BY, (now + wait_s,))
                append(tx, AffinityWaitSet(wait_s=wait_s, previous_s=before_s), now=now)
                tx.effects.wake_parked = True

        self._env.write(work)

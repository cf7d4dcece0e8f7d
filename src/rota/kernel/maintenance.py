"""Maintenance: everything that happens because time passes.

No separate janitor process is needed: every claim first does what is due, in bounded batches, and a parked claim is
woken when the next thing falls due. Held entries are released, expired claims taken back, passed deadlines swept,
usage that left its window subtracted, contexts refilled, affinity holds ended, dependents processed. When the wall
clock jumps, what is due moves with it, before maintenance looks at it (clock_jumps.py).
"""

from __future__ import annotations

from rota.kernel import affinity, contexts, dependencies, usage_windows
from rota.kernel.completion import end_runs
from rota.kernel.environment import DueSummary, KernelEnvironment, read_due_summary
from rota.kernel.journal import append
from rota.kernel.rows import decode_options
from rota.kernel.run_reports import RunEnd
from rota.model.events import EntriesExpired, EntriesHeldForWorker
from rota.store import Row, Transaction
from rota.store.statements import claims as sql
from rota.store.statements import queue as queue_sql

__all__ = ["PROMOTE_MAX", "RECLAIM_MAX", "SWEEP_MAX", "Maintenance", "reclaim_runs", "sweep"]

PROMOTE_MAX = 1_000  # held entries released in one transaction
RECLAIM_MAX = 1_000  # claims taken back in one transaction
SWEEP_MAX = 1_000  # deadlines swept in one transaction
NO_AGENT = 0  # agents are numbered from 1


class Maintenance:
    """Does what is due, at the start of each call that needs it done."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def run_due(self, tx: Transaction, now: float, *, now_from_clock: bool) -> DueSummary:
        """Do what is due; returns the due summary afterwards.

        `now_from_clock` says whether `now` comes from `read_clock`: a caller may pass any time.
        """
        if now_from_clock:
            cached = self._env.cache.due_summary(tx)
            if cached is not None and not cached.is_due(now):
                return cached
        due = read_due_summary(tx)
        if due.is_due(now):
            if now_from_clock:
                self._env.note_time(tx, now)
            self._do_due(tx, due, now)
            due = read_due_summary(tx)
        if now_from_clock:
            self._env.cache.set_due_summary(tx, due)
        else:
            self._env.cache.invalidate()
        return due

    def _do_due(self, tx: Transaction, due: DueSummary, now: float) -> None:
        env = self._env
        expired: list[int] = []
        if due.held_at is not None and due.held_at <= now:
            promote(tx, env, now)
        if due.expires_at is not None and due.expires_at <= now:
            expired = [row[0] for row in tx.run(sql.EXPIRED_CLAIMS, (now, RECLAIM_MAX))]
            reclaim_runs(tx, env, expired, now)
        if expired or (due.deadline is not None and due.deadline < now):  # a reclaimed entry may be past its deadline
            sweep(tx, env, now)
        if due.window_edge_at is not None and due.window_edge_at <= now:
            for owner in usage_windows.roll(tx, now):
                env.cache.touch(NO_AGENT, owner)
        if due.refill_at is not None and due.refill_at <= now:
            contexts.refill(tx, now)
        if due.affinity_until is not None and due.affinity_until <= now:
            affinity.release_expired_holds(tx, env, now)
        if due.dependents_pending:
            env.cache.invalidate()  # entries of any owner may be released or cancelled
            env.waiters.notify_on_commit(tx, dependencies.resolve_pending_dependents(tx, env, now))


def promote(tx: Transaction, env: KernelEnvironment, now: float) -> None:
    """Release held entries that are due, earliest first; some are then held for the worker they name."""
    rows = tx.run(sql.HELD_DUE, (now, PROMOTE_MAX))
    for_worker = {row[0] for row in rows if row[4] is not None and _is_held_for_worker(tx, env, row, now)}
    tx.run_many(queue_sql.RELEASE, [("worker" if row[0] in for_worker else None, row[0]) for row in rows])
    for hold in ("time", "backoff"):
        released = [row for row in rows if row[3] == hold and row[0] not in for_worker]
        if released:
            affinity.record_released(tx, env, hold, released, now)
    if for_worker:
        append(tx, EntriesHeldForWorker(hold="time", sched_ids=sorted(for_worker)), now=now)
    tx.effects.wake_parked = tx.effects.wake_parked or bool(rows)


def _is_held_for_worker(tx: Transaction, env: KernelEnvironment, row: Row, now: float) -> bool:
    """Hold a due entry for the worker it names, if it has had no attempt yet; returns whether it is held."""
    sched_id, _, _, hold, options, attempt, kind, priority, runnable_at = row
    if hold != "time" or attempt > 0:
        return False
    entry = affinity.AffinityEntry(sched_id, decode_options(options).affinity, kind, priority, runnable_at)
    return affinity.hold_for_worker(tx, env, entry, now) is not None


def reclaim_runs(tx: Transaction, env: KernelEnvironment, sched_ids: list[int], now: float) -> None:
    """Take claims back and count their runs as crashed."""
    run_ends = [RunEnd(sched_id, "crashed", outcome="claim_expired", verb="reclaim") for sched_id in sched_ids]
    if run_ends:
        end_runs(tx, env, run_ends, now)


def sweep(tx: Transaction, env: KernelEnvironment, now: float) -> list[int]:
    """Expire at most `SWEEP_MAX` queued entries past their deadline; returns them."""
    rows = tx.run(sql.PAST_DEADLINE, (now, SWEEP_MAX))
    if not rows:
        return []
    late = [row[0] for row in rows]
    affinity.drop_holds(tx, late)
    tx.run_many(sql.EXPIRE, [(now, sched_id) for sched_id in late])
    append(tx, EntriesExpired(sched_ids=late), now=now)
    for _, pid, project_id in rows:
        env.cache.touch(pid, project_id)
    cancelled = dependencies.resolve_dependents(tx, env, late, now)
    if cancelled:
        env.cache.invalidate()
    env.waiters.notify_on_commit(tx, late + cancelled)
    return late

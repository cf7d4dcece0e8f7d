"""Maintenance: everything that happens because time passes.

No separate janitor process is needed: every claim first does what is due, in bounded batches, and a parked claim is
woken when the next thing falls due. Workers whose slots are all taken claim nothing, so a heartbeat does the same once
it has extended its claims. Held entries are released, expired claims taken back, passed deadlines swept,
usage that left its window subtracted, contexts refilled, affinity holds ended, dependents processed, and what programs
enqueued in transactions of their own is taken in (inbox.py). When the wall clock jumps, what is due moves with it,
before maintenance looks at it (clock_jumps.py).

**What is due together.** A transaction releases at most `PROMOTE_MAX` held entries, those of the highest priority. A
claim in strict order goes on when it comes to an entry that is not ahead of all that are left (claim_pass.py), so the
bound never lets a lower priority go first. A policy that shares sees everything that is due.

**Workers that were away.** While a worker cannot reach the store, or is suspended with its machine, its claims expire
although its runs live. So a worker that comes back takes back no claims before it has renewed its registration, which
it does after its heartbeats; and for some time after that the process that served it takes back none (`was_away` in
workers.py, `ReturnOfWorkers`): other workers were away too.

**A caller's time.** A claim may have a `now` of the caller. It decides which entries the claim sees, and nothing else
goes by it: maintenance goes by the clock. Held entries that are runnable by then are lifted for the length of the
claim and put back afterwards; nothing records that. Past deadlines are not swept by such a claim: the caller's time may
be before them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from rota.kernel import affinity, contexts, dependencies, usage_windows, workers
from rota.kernel.completion import end_runs
from rota.kernel.environment import RETURN_S, DueSummary, KernelEnvironment, read_due_summary, worker_names
from rota.kernel.journal import append
from rota.kernel.rows import decode_options
from rota.kernel.run_reports import RunEnd
from rota.model.events import EntriesExpired, EntriesHeldForWorker
from rota.model.work import Worker
from rota.store import Row, Transaction
from rota.store.author import MAINTENANCE, acting_as
from rota.store.statements import claims as sql
from rota.store.statements import queue as queue_sql

__all__ = [
    "LIFT_MAX",
    "PROMOTE_MAX",
    "RECLAIM_MAX",
    "SWEEP_MAX",
    "Maintenance",
    "lift_holds",
    "promote",
    "reclaim_runs",
    "restore_holds",
    "sweep",
]

PROMOTE_MAX = 1_000  # held entries released in one transaction
RECLAIM_MAX = 1_000  # claims taken back in one transaction
SWEEP_MAX = 1_000  # deadlines swept in one transaction
LIFT_MAX = 10_000  # held entries that a claim with a caller's time sees, those of the highest priority
NO_AGENT = 0  # agents are numbered from 1


class Maintenance:
    """Does what is due, at the start of each call that needs it done."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env
        self.take_in: Callable[[Transaction, float], None] = lambda _tx, _now: None  # the inbox; set by the kernel

    def run_due(
        self,
        tx: Transaction,
        now: float,
        *,
        now_from_clock: bool,
        sweeps: bool = True,
        takes_in: bool = True,
        reclaims: bool = True,
        claimant: Worker | None = None,
    ) -> DueSummary:
        """Do what is due; returns the due summary afterwards.

        `now_from_clock` says whether `now` comes from `read_clock`: a caller may pass any time. Without `sweeps`
        entries past their deadline stay as they are. Without `takes_in` the inbox stays as it is: for callers that may
        refuse and undo the transaction, because a row that is undone again and again is taken for a bad one. Without
        `reclaims` expired claims stay as they are. So they do for a `claimant`, the worker whose claim this is, while
        workers come back that were away; the summary then says when to look again.
        """
        if now_from_clock:
            cached = self._env.cache.due_summary(tx)
            if cached is not None and not cached.is_due(now):
                return cached
        due, spares = read_due_summary(tx), False
        if due.is_due(now):
            if now_from_clock:
                self._env.note_time(tx, now)
            if claimant is not None and reclaims and due.expires_at is not None and due.expires_at <= now:
                spares = self._env.returning.is_going_on or workers.was_away(tx, claimant, now)
                reclaims = not spares
            with acting_as(MAINTENANCE):
                self._do_due(tx, due, now, sweeps=sweeps, takes_in=takes_in, reclaims=reclaims)
            due = read_due_summary(tx)
        if now_from_clock:
            self._env.cache.set_due_summary(tx, due, now)
        else:
            self._env.cache.invalidate()
        if spares:  # only for this claim: another worker's may take them back
            tx.effects.applies_to_equivalents = False
            due = msgspec.structs.replace(due, expires_at=now + RETURN_S)
        return due

    def remember_due(self, tx: Transaction, now: float, *, until_due: bool = False) -> DueSummary:
        """Return the due summary, which is read unless it is cached: before runs end, whose changes adjust it.

        Cached instants may be too early. With `until_due` it is also read again when something seems to be due.
        """
        due = self._env.cache.due_summary(tx)
        if due is None or (until_due and due.is_due(now)):
            due = read_due_summary(tx)
            self._env.cache.set_due_summary(tx, due, now)
        return due

    def expired_claims(self, tx: Transaction, now: float) -> frozenset[int]:
        """Return the entries whose claims have expired and were not taken back, the first `RECLAIM_MAX`."""
        expires_at = self.remember_due(tx, now).expires_at
        if expires_at is None or expires_at > now:
            return frozenset()
        return frozenset(row[0] for row in tx.run(sql.EXPIRED_CLAIMS, (now, RECLAIM_MAX)))

    def _do_due(
        self, tx: Transaction, due: DueSummary, now: float, *, sweeps: bool, takes_in: bool, reclaims: bool
    ) -> None:
        env = self._env
        expired: list[int] = []
        if due.inbox_pending and takes_in:
            self.take_in(tx, now)
        if due.held_at is not None and due.held_at <= now:
            promote(tx, env, now)
        if reclaims and due.expires_at is not None and due.expires_at <= now:
            rows = tx.run(sql.EXPIRED_CLAIMS, (now, RECLAIM_MAX))
            expired = [row[0] for row in rows]
            workers.count_returned(tx, [row[1:] for row in rows])
            reclaim_runs(tx, env, expired, now)
            workers.remove_lost(tx, now)
        is_past = due.deadline is not None and due.deadline < now
        if sweeps and (expired or is_past):  # a reclaimed entry may be past its deadline
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


def promote(tx: Transaction, env: KernelEnvironment, now: float) -> bool:
    """Release held entries that are due, in strict order; some are then held for the worker they name.

    Returns whether there may be more.
    """
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
    return len(rows) == PROMOTE_MAX


def lift_holds(tx: Transaction, env: KernelEnvironment, until_at: float, worker_id: str) -> list[Row]:
    """Let a worker's claim see held entries that are runnable by a time, until `restore_holds`; returns their rows.

    Those that would then be held for another worker are left out.
    """
    names = worker_names(worker_id)

    def is_shown(row: Row) -> bool:
        named = decode_options(row[4]).affinity if row[4] is not None and row[3] == "time" and row[5] == 0 else None
        return named is None or named in names or not env.workers_seen.is_alive(tx, named)

    lifted = [row for row in tx.run(sql.HELD_DUE, (until_at, LIFT_MAX)) if is_shown(row)]
    tx.run_many(queue_sql.RELEASE, [(None, row[0]) for row in lifted])
    return lifted


def restore_holds(tx: Transaction, rows: list[Row], claimed: Collection[int]) -> None:
    """Hold lifted entries again, except those that were claimed."""
    tx.run_many(queue_sql.RELEASE, [(row[3], row[0]) for row in rows if row[0] not in claimed])


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

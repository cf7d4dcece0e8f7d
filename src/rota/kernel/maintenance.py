"""Maintenance: everything that happens because time passes.

No separate janitor process is needed: every claim first does what is due, in bounded batches, and a parked claim is
woken when the next thing falls due. Held entries are released, expired claims taken back, passed deadlines swept,
usage that left its window subtracted, contexts refilled, affinity holds ended, dependents processed.

**When the wall clock jumps** (a laptop slept, a clock was corrected), every live claim would seem to have expired, or
would last for hours. A claim lasts for an *elapsed* time. So the store remembers the difference between the wall
clock and the monotonic clock. The first process that finds it changed by more than `JUMP_MIN_S` moves the expiry of
every live claim by as much and records that. It happens once for all processes, because they share the machine's
monotonic clock. After a reboot there is nothing to compare with, and the new difference is stored.
"""

from __future__ import annotations

from rota.kernel import affinity, contexts, dependencies, usage_windows
from rota.kernel.completion import end_runs
from rota.kernel.environment import DueSummary, KernelEnvironment, read_due_summary
from rota.kernel.journal import append
from rota.kernel.rows import decode_options
from rota.kernel.run_reports import RunEnd
from rota.kernel.settings import read_setting, write_setting
from rota.model.events import ClaimsExtended, ClockJumped, EntriesExpired, EntriesHeldForWorker
from rota.store import Row, Transaction
from rota.store.statements import claims as sql
from rota.store.statements import queue as queue_sql

__all__ = ["JUMP_MIN_S", "PROMOTE_MAX", "RECLAIM_MAX", "SWEEP_MAX", "Maintenance", "reclaim_runs", "sweep"]

PROMOTE_MAX = 1_000  # held entries released in one transaction
RECLAIM_MAX = 1_000  # claims taken back in one transaction
SWEEP_MAX = 1_000  # deadlines swept in one transaction
JUMP_MIN_S = 5.0  # a smaller change is drift, not a jump
NO_AGENT = 0  # agents are numbered from 1
_OFFSET_KEY = "clock_offset"  # setting in the store: the boot, and wall minus monotonic clock since it


class Maintenance:
    """Does what is due, at the start of each call that needs it done."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env
        self._boot = env.clock.boot_id()
        self._offset_s: float | None = None  # wall minus monotonic clock, as this process last saw it

    def run_due(self, tx: Transaction, now: float, *, now_from_clock: bool) -> DueSummary:
        """Do what is due; returns the due summary afterwards.

        Only a `now` that was read from the clock can show a clock jump; a caller may pass any time.
        """
        if now_from_clock:
            self.detect_clock_jump(tx, now)
            cached = self._env.cache.due_summary(tx)
            if cached is not None and not cached.is_due(now):
                return cached
        due = read_due_summary(tx)
        if due.is_due(now):
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

    def detect_clock_jump(self, tx: Transaction, now: float) -> None:
        """If the wall clock has jumped, move the expiry of every live claim by as much."""
        offset_s = now - self._env.clock.monotonic()
        before_s = self._offset_s
        if before_s is not None and abs(offset_s - before_s) <= JUMP_MIN_S:
            return
        self._offset_s = offset_s
        tx.effects.on_rollback.append(lambda: self._restore_offset(before_s))
        boot, _, known = (read_setting(tx, _OFFSET_KEY) or "").partition(" ")
        comparable = boot == self._boot
        by_s = offset_s - float(known) if comparable else 0.0
        if comparable and abs(by_s) <= JUMP_MIN_S:
            return  # another process handled the jump, or there was none
        write_setting(tx, _OFFSET_KEY, f"{self._boot} {offset_s!r}")
        if by_s:
            self._env.cache.invalidate()
            append(tx, ClockJumped(by_s=by_s), now=now)
            moved = tx.run(sql.EXTEND_ALL, (by_s,))
            if moved:
                append(tx, ClaimsExtended(by_s=by_s, count=len(moved)), now=now)

    def _restore_offset(self, before_s: float | None) -> None:
        """Forget a jump whose transaction was rolled back, so that it is detected again."""
        self._offset_s = before_s


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
    return affinity.hold_for_worker(tx, env.workers_seen, entry, now) is not None


def reclaim_runs(tx: Transaction, env: KernelEnvironment, sched_ids: list[int], now: float) -> None:
    """Take claims back and count their runs as crashed."""
    run_ends = [RunEnd(sched_id, "crashed", outcome="claim_expired", verb="reclaim") for sched_id in sched_ids]
    if run_ends:
        end_runs(tx, env, run_ends, now)


def sweep(tx: Transaction, env: KernelEnvironment, now: float) -> int:
    """Expire at most `SWEEP_MAX` queued entries past their deadline; returns the number."""
    rows = tx.run(sql.PAST_DEADLINE, (now, SWEEP_MAX))
    if not rows:
        return 0
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
    return len(late)

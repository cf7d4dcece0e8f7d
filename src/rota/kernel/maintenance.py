"""What time alone brings about, and what keeps the file small.

Nobody has to run a janitor: every claim first does what is due, each thing in bounded batches, and a parked
claim is woken when the next thing falls due. Held entries are released, expired claims taken back, passed
deadlines swept, usage that left its window taken off, contexts refilled, entries kept no longer for a worker,
dependents seen to.

**When the wall clock jumps** (a laptop slept, a clock was corrected) every live claim would seem to have
expired at once, or to last for hours. A claim is a hold for so much *elapsed* time. So the file remembers by how
much the wall clock was ahead of the monotonic one; whoever finds that changed by more than `JUMP_MIN_S` moves every
live claim by as much and records it. That is done once for all processes, which share the machine's monotonic clock
until it is started anew; after that there is nothing to compare with.
"""

from __future__ import annotations

from rota.kernel import affinity, contexts, dependencies, usage_windows
from rota.kernel.completion import Ending, end_runs
from rota.kernel.core import Core
from rota.kernel.due_summary import Pulse, pulse
from rota.kernel.journal import append
from rota.kernel.rows import options_of
from rota.model.events import ClaimsExtended, ClockJumped, EntriesExpired, EntriesKept
from rota.store import Row, Transaction
from rota.store.statements import claims as sql
from rota.store.statements import file as file_sql
from rota.store.statements import queue as queue_sql

__all__ = ["JUMP_MIN_S", "PROMOTE_MAX", "RECLAIM_MAX", "SWEEP_MAX", "Clockwork", "expire_claims", "sweep"]

PROMOTE_MAX = 1_000  # held entries released in one go
RECLAIM_MAX = 1_000  # claims taken back in one go
SWEEP_MAX = 1_000  # deadlines swept in one go
JUMP_MIN_S = 5.0  # less is drift, not a jump
_OFFSET = "clock_offset"  # the file's setting: which life of the machine, and wall less monotonic clock in it


class Clockwork:
    """Does what is due, at the beginning of whatever needs it done."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._life = core.clock.life()
        self._offset_s: float | None = None  # wall less monotonic clock, as last seen here

    def turn(self, tx: Transaction, now: float, *, own_time: bool) -> tuple[Pulse, list[int]]:
        """Do what is due; the answer is the pulse after it, and every entry that ended for good.

        `own_time` says that now is the clock's and not a caller's invention, so a jump may be read from it.
        """
        if own_time:
            self.notice_jump(tx, now)
            known: Pulse | None = self._core.memo.pulse(tx)
            if known is not None and not known.is_due(now):
                return known, []
        beat = pulse(tx)
        if not beat.is_due(now):
            return self._remember(tx, beat, own_time), []
        final: list[int] = []
        expired: list[int] = []
        if beat.held_at is not None and beat.held_at <= now:
            promote(tx, self._core, now)
        if beat.expires_at is not None and beat.expires_at <= now:
            expired = [row[0] for row in tx.run(sql.EXPIRED_CLAIMS, (now, RECLAIM_MAX))]
            final += expire_claims(tx, self._core, expired, now)
        if expired or (beat.deadline is not None and beat.deadline < now):  # what was taken back may be too late, too
            swept, cancelled = sweep(tx, self._core, now)
            final += swept + cancelled
        if beat.edge_at is not None and beat.edge_at <= now:
            usage_windows.roll(tx, now)
        if beat.refill_at is not None and beat.refill_at <= now:
            contexts.refill(tx, now)
        if beat.kept_until is not None and beat.kept_until <= now:
            affinity.long_enough(tx, now)
        if beat.fallout:
            final += dependencies.see_to_fallout(tx, self._core, now)
        return self._remember(tx, pulse(tx), own_time), final

    def _remember(self, tx: Transaction, beat: Pulse, own_time: bool) -> Pulse:
        if own_time:
            self._core.memo.keep_pulse(tx, beat)
        else:
            self._core.memo.forget()
        return beat

    def notice_jump(self, tx: Transaction, now: float) -> None:
        """If the wall clock has jumped since anybody looked, give live claims the time back."""
        offset_s = now - self._core.clock.monotonic()
        before_s = self._offset_s
        if before_s is not None and abs(offset_s - before_s) <= JUMP_MIN_S:
            return
        self._offset_s = offset_s
        tx.notes.undone.append(lambda: self._forget(before_s))
        rows = tx.run(file_sql.META_GET, (_OFFSET,))
        life, _, known = str(rows[0][0]).partition(" ") if rows else ("", "", "")
        comparable = life == self._life
        by_s = offset_s - float(known) if comparable else 0.0
        if comparable and abs(by_s) <= JUMP_MIN_S:
            return  # another process saw it first, or it never happened
        tx.run(file_sql.META_SET, (_OFFSET, f"{self._life} {offset_s!r}"))
        if by_s:
            self._core.memo.forget()
            append(tx, ClockJumped(by_s=by_s), now=now)
            moved = tx.run(sql.EXTEND_ALL, (by_s,))
            if moved:
                append(tx, ClaimsExtended(by_s=by_s, count=len(moved)), now=now)

    def _forget(self, before_s: float | None) -> None:
        """What was noticed was undone: let it be noticed again."""
        self._offset_s = before_s


def promote(tx: Transaction, core: Core, now: float) -> int:
    """Release held entries whose time has come, earliest first; some are then kept for a worker."""
    due = tx.run(sql.HELD_DUE, (now, PROMOTE_MAX))
    kept = {row[0] for row in due if row[4] is not None and _is_kept(tx, core, row, now)}
    tx.run_many(queue_sql.RELEASE, [("worker" if row[0] in kept else None, row[0]) for row in due])
    for hold in ("time", "backoff"):
        rows = [row for row in due if row[3] == hold and row[0] not in kept]
        if rows:
            affinity.tell_ready(tx, hold, rows, now)
    if kept:
        append(tx, EntriesKept(hold="time", sched_ids=sorted(kept)), now=now)
    tx.notes.wake = tx.notes.wake or bool(due)
    return len(due)


def _is_kept(tx: Transaction, core: Core, due: Row, now: float) -> bool:
    """Whether an entry whose time has come waits on, for a worker; one that was tried before goes anywhere."""
    sched_id, _, _, hold, options, attempt, kind, priority, runnable_at = due
    if hold != "time" or attempt > 0:
        return False
    wish = affinity.Wish(sched_id, options_of(options).affinity, kind, priority, runnable_at)
    return affinity.hold_for(tx, core.seen, wish, now) is not None


def expire_claims(tx: Transaction, core: Core, sched_ids: list[int], now: float) -> list[int]:
    """Take claims back: their runs count as crashed. The answer is every entry that ended for good."""
    endings = [Ending(sched_id, "crashed", outcome="claim_expired", verb="reclaim") for sched_id in sched_ids]
    return end_runs(tx, core, endings, now).final if endings else []


def sweep(tx: Transaction, core: Core, now: float) -> tuple[list[int], list[int]]:
    """Move waiting entries past their deadline to expired, at most `SWEEP_MAX`: who, and who was cancelled for it."""
    late = [row[0] for row in tx.run(sql.PAST_DEADLINE, (now, SWEEP_MAX))]
    if not late:
        return [], []
    affinity.forget(tx, late)
    tx.run_many(sql.EXPIRE, [(now, sched_id) for sched_id in late])
    append(tx, EntriesExpired(sched_ids=late), now=now)
    return late, dependencies.ended(tx, core, late, now)

"""Clock jumps: durations last as long as they were meant to, whatever happens to the wall clock.

The wall clock can be set, corrected, or wrong after a boot. What people name by it follows it: a date (`runnable_at`),
a deadline, a cron expression, the expiry of an access token. Everything else that waits does so for an *elapsed* time:

    a claim until it expires, a back-off, a delay, a pause of a limit, a quarantine, an affinity hold
    a worker that was last seen, until it counts as lost
    what was used of a limit, a context or a budget, until it leaves its period or window

Elapsed time is that of the *advancing clock* (`Clock.monotonic`), which cannot be set and which goes on while the
machine is suspended. Its readings mean nothing to people and nothing after a reboot, so the tables hold wall-clock
times throughout, and the store remembers how far the wall clock is ahead of the advancing one:

    wall clock                12:00:00    12:00:10   set to 09:00:10   09:00:20
    advancing clock                500         510               510        520
    ahead by                  11:51:40    11:51:40          08:51:40   08:51:40
    a back-off of 30 s ends   12:00:30    12:00:30          09:00:30   09:00:30      (moved by −3 h)

**The rule.** A transaction that writes an instant of the second kind, or acts on one, reads the clock with
`KernelEnvironment.read_clock`, inside the transaction and before it does anything else. If the difference has changed
by more than `JUMP_MIN_S`, that transaction first moves every such instant by the change, and records a `ClockJumped`
(from which replay moves the contexts). So in every committed state all instants belong to the stored difference:

- Two processes move nothing twice. Write transactions run one after the other, and the second finds the difference
  that the first has stored. What a process remembers of it is valid until another connection has changed it.
- Small steps do not add up: each reading is compared with the stored difference, not with the previous reading.
- A process that is interrupted between the two readings sees a wrong difference; so before it is believed, the clocks
  are read again, and of several pairs of readings the closest counts.
- The change is rounded up to a whole millisecond, so that nothing is given back too early; the stored difference is
  rounded with it, so the error stays below a millisecond, however often the clock jumps.

**Ready entries.** A jump backwards must not make a ready entry one of the future: it moves too, unless its time is a
date; then it is held again until the date comes.

**After a reboot** the advancing clock has started again and compares with nothing. The store also knows the last time
at which it was written: the time of the last event, or `clock_seen_at`, which is written every `SEEN_EVERY_S` while
there is work. If the wall clock is behind that, everything moves back by as much, as if no time had passed: nothing
waits for longer than its own length. If it is ahead, the difference counts as elapsed: nothing shows whether the
machine was off for so long or its clock was set.

Copies of a store on machines with different boots, and processes in different time namespaces, look like reboots.
"""

from __future__ import annotations

import math

import msgspec

from rota.clock import JUMP_MIN_S, Clock
from rota.decoding import decode_json
from rota.kernel.environment import OFFSET_KEY, SEEN_EVERY_S, SEEN_KEY, KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.rows import DECODE_ERRORS
from rota.kernel.settings import read_setting, write_setting
from rota.kernel.usage_windows import count_notes, share_window_s
from rota.model.events import ClaimsExtended, ClockJumped, EntriesChanged
from rota.policy import replenishment
from rota.policy.replenishment import Allowance
from rota.store import Transaction
from rota.store.author import MAINTENANCE, acting_as
from rota.store.statements import clock as sql
from rota.store.statements import queue as queue_sql

__all__ = ["ROUNDED_S", "compare_clocks", "jump_ms", "now_as_stored"]

READINGS = 5  # of both clocks, before a jump is believed
ROUNDED_S = 0.002  # after a jump and this time, whatever was due before it is due
NOISE_MS = 0.01  # what floating-point numbers may add to a difference of epoch seconds


def jump_ms(by_s: float) -> int:
    """Convert the extent of a recorded jump to whole milliseconds."""
    return round(by_s * 1000)


def compare_clocks(tx: Transaction, env: KernelEnvironment, now: float, ahead_s: float) -> float:
    """Compare the clocks with what the store has, and move what has to move; returns the time."""
    known = env.clock_offset
    known.facts_version = -1  # until all of it is done
    boot_id, _, text = (read_setting(tx, OFFSET_KEY) or "").partition(" ")
    stored_s = _number(text) if boot_id == known.boot_id else None
    if stored_s is None:  # the first transaction on this file or since the boot
        seen_at = _last_seen_at(tx)
        by_s = 0.0 if seen_at is None or now >= seen_at else -_whole_ms(seen_at - now)
        stored_s = ahead_s
        write_setting(tx, OFFSET_KEY, f"{known.boot_id} {ahead_s!r}")
        with acting_as(MAINTENANCE):
            _keep_ready(tx, by_s, now)  # the clock may have been put back since the stored time
    elif abs(ahead_s - stored_s) <= JUMP_MIN_S:  # no jump, or another process was first
        by_s = 0.0
    else:
        now, ahead_s = _read_closely(env.clock)
        by_s = _whole_ms(ahead_s - stored_s) if abs(ahead_s - stored_s) > JUMP_MIN_S else 0.0
        stored_s += by_s
        if by_s:
            write_setting(tx, OFFSET_KEY, f"{known.boot_id} {stored_s!r}")
    if by_s:
        with acting_as(MAINTENANCE):
            _move(tx, env, by_s, now)
        write_setting(tx, SEEN_KEY, repr(now))
    known.offset_s, known.facts_version = stored_s, tx.facts_version
    tx.effects.on_rollback.append(lambda: setattr(known, "facts_version", -1))
    return now


def now_as_stored(tx: Transaction, env: KernelEnvironment) -> float:
    """Return the time by which the stored instants can be compared in a transaction that only reads.

    If the wall clock has jumped, the next write moves them; until then this is the time without the jump.
    """
    boot_id, _, text = (read_setting(tx, OFFSET_KEY) or "").partition(" ")
    ahead_s = _number(text) if boot_id == env.clock_offset.boot_id else None
    return env.clock.now() if ahead_s is None else env.clock.monotonic() + ahead_s


def _last_seen_at(tx: Transaction) -> float | None:
    """Return the last time that the store knows of: the stored one or, if it is a little later, the last event's.

    The time of an event may be one that a caller gave, so it is believed only within `SEEN_EVERY_S`.
    """
    seen_at = _number(read_setting(tx, SEEN_KEY) or "")
    events = tx.run(sql.LAST_EVENT_AT)
    if seen_at is None or not events:
        return seen_at
    event_at = float(events[0][0])
    return event_at if seen_at < event_at < seen_at + SEEN_EVERY_S else seen_at


def _read_closely(clock: Clock) -> tuple[float, float]:
    """Read both clocks several times; returns the time and by how much it is ahead, from the closest readings."""
    found = []
    for _ in range(READINGS):
        before_s, now, after_s = clock.monotonic(), clock.now(), clock.monotonic()
        found.append((after_s - before_s, now, now - (before_s + after_s) / 2))
    return min(found)[1:]


def _whole_ms(seconds: float) -> float:
    return math.ceil(seconds * 1000 - NOISE_MS) / 1000


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _move(tx: Transaction, env: KernelEnvironment, by_s: float, now: float) -> None:
    """Move every instant that is a duration from some moment, and record the jump."""
    env.cache.invalidate()
    count_notes(tx, share_window_s(tx), now - by_s)
    claims = len(tx.run(sql.MOVE_CLAIMS, (by_s,)))
    moved = {
        "claims": claims,
        "delays": len(tx.run(sql.MOVE_DELAYS, (by_s,))) + len(tx.run(sql.MOVE_DELAYS_AFTER, (by_s,))),
        "affinity": len(tx.run(sql.MOVE_AFFINITY, (by_s,))),
        "contexts": _move_contexts(tx, by_s, now),
        "windows": len(tx.run(sql.MOVE_WINDOWS, (by_s,))),
        "quarantines": len(tx.run(sql.MOVE_QUARANTINES, (by_s,))),
    }
    tx.run(sql.MOVE_ASKS, (by_s,))
    tx.run(sql.MOVE_WORKERS, (by_s,))
    tx.run(sql.COPY_BUCKETS, (by_s,))
    tx.run(sql.DROP_BUCKETS)
    tx.run(sql.PUT_BUCKETS)
    event = ClockJumped(by_s=by_s, moved={what: count for what, count in moved.items() if count})
    tx.run(sql.MOVE_LAST_RUNS, (by_s, append(tx, event, now=now)))
    if claims:
        append(tx, ClaimsExtended(by_s=by_s, count=claims), now=now)
    if by_s < 0:
        _keep_ready(tx, by_s, now)
    tx.effects.wake_parked = True  # what depends on a date may be due


def _move_contexts(tx: Transaction, by_s: float, now: float) -> int:
    """Move the instants of every context; returns their number.

    What was available may come to lie in the future, by less than the millisecond to which jumps are rounded up. So
    maintenance looks at each context again right after that.
    """
    by_ms, count = jump_ms(by_s), 0
    for context_id, text in tx.run(sql.CONTEXTS):
        try:
            allowance = replenishment.moved(decode_json(text, Allowance), by_ms)
        except DECODE_ERRORS:
            continue  # a damaged row must not stop all others; what draws on this context waits
        tx.run(sql.MOVE_CONTEXT, (by_s, msgspec.json.encode(allowance).decode(), context_id, now + ROUNDED_S))
        count += 1
    return count


def _keep_ready(tx: Transaction, by_s: float, now: float) -> None:
    """If the clock was put back: move ready entries with it, and hold those again whose date is to come."""
    tx.run(sql.MOVE_READY, (by_s, now))
    tx.run(sql.MOVE_READY_FOR_WORKER, (by_s, now))
    held = tx.run(sql.HOLD_READY, (now,)) + tx.run(sql.HOLD_READY_FOR_WORKER, (now,))
    if held:
        sched_ids = sorted(row[0] for row in held)
        tx.run_for(queue_sql.AFFINITY_REMOVE, sched_ids)
        changes = {"runnable_at": min(row[1] for row in held)}
        append(tx, EntriesChanged(sched_ids=sched_ids, changes=changes), now=now)

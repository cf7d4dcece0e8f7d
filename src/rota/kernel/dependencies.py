"""What waits for what: `after` dependencies between entries.

An entry enqueued `after` others is held until each of them has completed well. Edges never change and name only
entries that exist already, so there can be no cycle. When a predecessor ends otherwise, the entry's `on_failed`
says what becomes of it: cancelled (and so are those who wait for *it*), run all the same, or held until an
operator decides: to cancel it, or to let it go (`release`), which makes its `on_failed` "run". A retried predecessor
keeps its id, so those behind it wait through all its attempts.

An end may concern many. It is seen to in batches of `FALLOUT_MAX`: the first in the transaction of the end,
the rest from a small table by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rota.errors import SchedInvalidPayload, SchedUnknownId
from rota.kernel import affinity
from rota.kernel.core import Core
from rota.kernel.journal import append
from rota.kernel.rows import options_of
from rota.model.checks import Checks
from rota.model.events import EntriesCancelled, EntriesKept
from rota.model.lifecycle import ENTRY
from rota.store import Row, Transaction
from rota.store.statements import queue as sql

__all__ = ["FALLOUT_MAX", "ended", "hold_for", "let_go", "see_to_fallout", "wait_for"]

FALLOUT_MAX = 1_000  # dependents seen to in one go
_queue = Checks("ScheduleSpec", SchedInvalidPayload)
_GOOD = ("completed", "completed")
_encode = msgspec.json.Encoder().encode


def hold_for(tx: Transaction, after: Sequence[int], on_failed: str) -> str | None:
    """What becomes of a new entry: "after" if it must wait, "cancel" if it waits in vain, None if it may go."""
    found = {sched_id: (state, exit_kind) for sched_id, state, exit_kind in tx.run(sql.STATES_OF, (_ids(after),))}
    for sched_id in after:
        if sched_id not in found:
            raise SchedUnknownId(sched_id)
    return _verdict(found.values(), on_failed)


def wait_for(tx: Transaction, sched_id: int, after: Iterable[int]) -> None:
    """Write an entry's edges."""
    tx.run_many(sql.AFTER_ADD, [(sched_id, other) for other in dict.fromkeys(after)])


def ended(tx: Transaction, core: Core, sched_ids: Sequence[int], now: float) -> list[int]:
    """Entries have ended: see to those who wait for them. The answer is those who were cancelled for it."""
    awaited = [row[0] for row in tx.run(sql.AWAITED, (_ids(sched_ids),))] if sched_ids else []
    if not awaited:
        return []
    tx.run_many(sql.FALLOUT_ADD, [(sched_id,) for sched_id in awaited])
    return see_to_fallout(tx, core, now)


def see_to_fallout(tx: Transaction, core: Core, now: float) -> list[int]:
    """Release or cancel those whose predecessors have ended, at most `FALLOUT_MAX` of them."""
    left = FALLOUT_MAX
    seen_to = _SeenTo([], [], [])
    while left > 0 and (rows := tx.run(sql.FALLOUT_NEXT)):
        predecessor, seen_id = rows[0]
        dependents = tx.run(sql.DEPENDENTS, (predecessor, seen_id, left))
        for dependent in dependents:
            _see_to(tx, core, dependent, now, seen_to)
        if len(dependents) < left:
            tx.run(sql.FALLOUT_DONE, (predecessor,))
        else:
            tx.run(sql.FALLOUT_SEEN, (dependents[-1][0], predecessor))
        left -= len(dependents)
    _tell(tx, seen_to, now)
    return seen_to.cancelled


def let_go(tx: Transaction, core: Core, dependent: Row, now: float) -> None:
    """Let an entry run although a predecessor failed; for those that have not ended it goes on waiting."""
    options = msgspec.structs.replace(options_of(dependent[4]), on_failed="run")
    tx.run(sql.SET_OPTIONS, (_encode(options).decode(), dependent[0]))
    seen_to = _SeenTo([], [], [])
    _see_to(tx, core, (*dependent[:4], _encode(options).decode(), *dependent[5:]), now, seen_to)
    _tell(tx, seen_to, now)


class _SeenTo(NamedTuple):
    """What became of dependents."""

    released: list[Row]
    kept: list[int]  # for a worker
    cancelled: list[int]


def _see_to(tx: Transaction, core: Core, dependent: Row, now: float, seen_to: _SeenTo) -> None:
    """Judge one dependent."""
    sched_id, runnable_at, options = dependent[0], dependent[3], dependent[4]
    predecessors = [(state, exit_kind) for _, state, exit_kind in tx.run(sql.PREDECESSORS, (sched_id,))]
    verdict = _verdict(predecessors, options_of(options).on_failed)
    if verdict is None:
        hold = "time" if runnable_at > now else _kept(tx, core, dependent, now)
        tx.run(sql.RELEASE, (hold, sched_id))
        if hold == "worker":
            seen_to.kept.append(sched_id)
        else:
            seen_to.released.append(dependent)
    elif verdict == "cancel":
        tx.run(sql.CANCEL, (now, "predecessor_failed", sched_id))
        tx.run(sql.FALLOUT_ADD, (sched_id,))
        seen_to.cancelled.append(sched_id)


def _kept(tx: Transaction, core: Core, dependent: Row, now: float) -> str | None:
    """Keep an entry that could be ready for the worker it would rather have, if that is about."""
    sched_id, _, _, runnable_at, options, kind, priority = dependent
    if options is None:
        return None
    wish = affinity.Wish(sched_id, options_of(options).affinity, kind, priority, runnable_at)
    return affinity.hold_for(tx, core.seen, wish, now)


def _verdict(predecessors: Iterable[tuple[str | None, str | None]], on_failed: str) -> str | None:
    """An entry may go when each predecessor completed well (or was pruned); one that ended badly decides at once."""
    waits = False
    for state, exit_kind in predecessors:
        if state is None or (state, exit_kind) == _GOOD:
            continue
        if state in ENTRY.final and on_failed == "run":
            continue
        if state in ENTRY.final and on_failed == "cancel":
            return "cancel"
        waits = True
    return "after" if waits else None


def _tell(tx: Transaction, seen_to: _SeenTo, now: float) -> None:
    released, kept, cancelled = seen_to
    if released:
        affinity.tell_ready(tx, "after", released, now)
    if kept:
        append(tx, EntriesKept(hold="after", sched_ids=kept), now=now)
        tx.notes.wake = True
    if cancelled:
        append(tx, EntriesCancelled(sched_ids=cancelled, reason="predecessor_failed"), now=now)


def _ids(values: Iterable[int]) -> str:
    return _encode(list(values)).decode()

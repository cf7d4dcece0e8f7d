"""An entry's story, told from the journal.

The journal has no index by entry, and needs none for this: an entry's row says when it was enqueued and when it
ended, event ids grow with time, so a few looks find the stretch in which everything about it must lie. A long
stretch is read from both ends, `SCAN_MAX` events each, and the story then says that something may be missing. What a
caller recorded with a time of its own making may lie elsewhere and is not found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from rota.kernel.journal import event_of
from rota.kernel.rows import COMPLETED_AT, CREATED_AT, TOKEN
from rota.model import events
from rota.model.events import Event, Fact
from rota.model.explanation import Step
from rota.store import Row, Transaction
from rota.store.statements import journal as sql

__all__ = ["SCAN_MAX", "Story", "tell"]

SCAN_MAX = 5_000  # events that are looked at from each end


class Story(NamedTuple):
    """What happened to an entry, oldest first."""

    steps: tuple[Step, ...]
    is_whole: bool


def tell(tx: Transaction, row: Row, cursor: int) -> Story:
    """The story of an entry up to an event."""
    sched_id, created_at, completed_at, token = row[0], row[CREATED_AT], row[COMPLETED_AT], row[TOKEN]
    first = int(tx.run(sql.EVENT_ENDS)[0][0] or 1)
    start = _first_from(tx, first, cursor, created_at)
    end = cursor
    if completed_at is not None:
        end = _first_from(tx, start, cursor, math.nextafter(completed_at, math.inf)) - 1
    found = {event.event_id: event for event in _naming(tx, sched_id, _stretches(start, end, token))}
    steps = tuple(_steps(found, sched_id))
    begins = bool(steps) and steps[0].kind == events.EntriesEnqueued.kind
    return Story(steps, begins and end - start < 2 * SCAN_MAX)


def _first_from(tx: Transaction, low: int, high: int, at: float) -> int:
    """The first event at or after an instant, or the one behind `high`."""
    while low <= high:
        middle = (low + high) // 2
        rows = tx.run(sql.EVENT_FROM, (middle,))
        if rows and rows[0][1] < at:
            low = max(middle, int(rows[0][0])) + 1
        else:
            high = middle - 1
    return low


def _stretches(start: int, end: int, token: int | None) -> list[tuple[int, int]]:
    """What to read: everything, or both ends and the live claim, whose token is its event's id."""
    if end - start < 2 * SCAN_MAX:
        return [(start, end)]
    ends = [(start, start + SCAN_MAX - 1), (end - SCAN_MAX + 1, end)]
    return ends if token is None else [*ends, (token, token)]


def _naming(tx: Transaction, sched_id: int, stretches: list[tuple[int, int]]) -> Iterator[Event]:
    for start, end in stretches:
        for row in tx.run(sql.EVENTS_NAMING, (start, end, sched_id, str(sched_id))):
            yield event_of(row)


_HOLDS = {"worker": "for its worker"}  # the others say it themselves


def _steps(found: dict[int, Event], sched_id: int) -> Iterator[Step]:
    for event_id, event in sorted(found.items()):
        words = _words(events.decode(event.kind, event.payload), sched_id)
        if words is not None:
            yield Step(event_id, event.ts, event.kind, words)


def _words(fact: Fact, sched_id: int) -> str | None:  # noqa: PLR0911, PLR0912  # one line for each kind of fact
    """What a fact says about an entry; None if it is about others in whose numbers its own occurs."""
    match fact:
        case events.EntriesEnqueued(held=held):
            hold = next((hold for hold, ids in held.items() if sched_id in ids), None)
            return f"enqueued, held: {_HOLDS.get(hold, hold)}" if hold else "enqueued"
        case events.EntriesClaimed():
            return _claimed(fact, sched_id)
        case events.EntriesCompleted(entries=entries):
            for each in entries:
                if each.sched_id == sched_id:
                    return f"ended: {each.exit_kind}" + (f" ({each.outcome})" if each.outcome else "")
        case events.EntriesReturned(sched_ids=ids) if sched_id in ids:
            return f"back in the queue: {fact.verb}" + (f" ({fact.reason})" if fact.reason else "")
        case events.EntriesReleased(sched_ids=ids) if sched_id in ids:
            return f"ready: its wait ({_HOLDS.get(fact.hold, fact.hold)}) is over"
        case events.EntriesKept(sched_ids=ids) if sched_id in ids:
            return f"kept for its worker: its wait ({_HOLDS.get(fact.hold, fact.hold)}) is over"
        case events.EntriesExpired(sched_ids=ids) if sched_id in ids:
            return "expired: its deadline passed"
        case events.EntriesCancelled(sched_ids=ids) if sched_id in ids:
            return "cancelled" + (f" ({fact.reason})" if fact.reason else "")
        case events.EntriesChanged(sched_ids=ids) if sched_id in ids:
            return "changed: " + ", ".join(f"{name} = {value}" for name, value in fact.changes.items())
        case events.CancelRequested(sched_ids=ids) if sched_id in ids:
            return "asked to stop" + (f" by {fact.by}" if fact.by else "")
        case events.LedgerCharged(sched_id=charged) if charged == sched_id:
            return "used " + ", ".join(f"{amount:,} {dim}" for dim, amount in fact.amounts.items())
        case events.RunStarted(sched_id=run) if run == sched_id:
            return f"run {fact.attempt} began on {fact.slot}"
        case events.RunEnded(sched_id=run) if run == sched_id:
            return f"run {fact.attempt} ended: {fact.exit_kind}"
    return None


def _claimed(fact: events.EntriesClaimed, sched_id: int) -> str | None:
    for at, each in enumerate(fact.entries):
        if each.sched_id == sched_id:
            because = f": {fact.because[at]}" if len(fact.because) == len(fact.entries) else ""
            return f"claimed by {fact.worker_id} (attempt {each.attempt}), chosen by {fact.policy}{because}"
    return None

"""The history of an entry, read from the journal.

The journal has no index by entry. The row of an entry says when it was enqueued and when it ended, and event ids grow
with time, so a binary search finds the range of events that can be about it. Hosts that share a database write with
clocks that differ a little, so an event may have an earlier time than the one before it: the range is searched with a
margin of `DISORDER_S` at both ends. A long range is read from both ends, `SCAN_MAX` events each, and the history is
then marked as incomplete. An event that a caller recorded with another time may lie outside the range and is not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rota.clock import local_time
from rota.errors import StoreCorrupt
from rota.kernel import journal
from rota.kernel.rows import COMPLETED_AT, CREATED_AT, TOKEN, entry_from_row
from rota.model import events
from rota.model.event_codec import decode
from rota.model.events import Event, EventData
from rota.model.explanation import HistoryStep
from rota.model.money import amount_text, amounts_text, dim_text
from rota.model.retries import why_not_retried
from rota.model.work import ReadyEntry
from rota.store import Row, Transaction

__all__ = ["SCAN_MAX", "EntryHistory", "read_history"]

SCAN_MAX = 5_000  # events that are read from each end
DISORDER_S = 0.25  # by how much an event may be earlier than the one before it; a database's clocks differ by 0.03
ERROR_CHARS_MAX = 200  # of an error, in a line


class EntryHistory(NamedTuple):
    """What happened to an entry, oldest first."""

    steps: tuple[HistoryStep, ...]
    is_complete: bool
    events: tuple[Event, ...]  # that may name it


def read_history(tx: Transaction, row: Row, cursor: int) -> EntryHistory:
    """Read the history of an entry up to an event."""
    sched_id, created_at, completed_at, token = row[0], row[CREATED_AT], row[COMPLETED_AT], row[TOKEN]
    start = journal.first_event_at(tx, 1, cursor, created_at - DISORDER_S)
    end = cursor
    if completed_at is not None:
        end = journal.first_event_at(tx, start, cursor, completed_at + DISORDER_S) - 1
    found = {
        event.event_id: event
        for low, high in _id_ranges(start, end, token)
        for event in journal.events_naming(tx, sched_id, low, high)
    }
    steps = tuple(_steps(found, entry_from_row(row)))
    has_start = bool(steps) and steps[0].kind == events.EntriesEnqueued.kind
    is_complete = has_start and end - start < 2 * SCAN_MAX
    return EntryHistory(steps, is_complete, tuple(event for _, event in sorted(found.items())))


def _id_ranges(start: int, end: int, token: int | None) -> list[tuple[int, int]]:
    """The ranges to read: everything, or both ends and the live claim, whose token is the id of its event."""
    if end - start < 2 * SCAN_MAX:
        return [(start, end)]
    ends = [(start, start + SCAN_MAX - 1), (end - SCAN_MAX + 1, end)]
    return ends if token is None else [*ends, (token, token)]


_HOLDS = {"worker": "for its worker"}  # the names of the other holds are clear
_RETURNED = ("yield", "preempt")  # outcomes of runs that went back to the queue, which the history says anyway


def _steps(found: dict[int, Event], entry: ReadyEntry) -> Iterator[HistoryStep]:
    for event_id, event in sorted(found.items()):
        try:
            text = _describe(decode(event.kind, event.payload), entry)
        except StoreCorrupt as problem:
            text = problem.message
        if text is not None:
            yield HistoryStep(event_id, event.ts, event.kind, text, event.author)


def _describe(event: EventData, entry: ReadyEntry) -> str | None:  # noqa: PLR0911, PLR0912  # one line for each kind
    """Describe what an event says about an entry; None if it is about other entries only."""
    sched_id = entry.sched_id
    match event:
        case events.EntriesEnqueued(held=held):
            hold = next((hold for hold, ids in held.items() if sched_id in ids), None)
            return f"enqueued, held: {_HOLDS.get(hold, hold)}" if hold else "enqueued"
        case events.EntriesClaimed():
            return _describe_claim(event, sched_id)
        case events.EntriesCompleted(entries=entries):
            for each in entries:
                if each.sched_id == sched_id:
                    why = why_not_retried(entry)
                    final = f"; not retried: {why}" if why is not None and each.exit_kind != "cancelled" else ""
                    return f"ended: {each.exit_kind}" + (f" ({each.outcome})" if each.outcome else "") + final
        case events.EntriesReturned(sched_ids=ids) if sched_id in ids:
            return f"back in the queue: {event.verb}" + (f" ({event.reason})" if event.reason else "")
        case events.EntriesReleased(sched_ids=ids) if sched_id in ids:
            return f"ready: its hold ({_HOLDS.get(event.hold, event.hold)}) is over"
        case events.EntriesHeldForWorker(sched_ids=ids) if sched_id in ids:
            return f"held for its worker: its hold ({_HOLDS.get(event.hold, event.hold)}) is over"
        case events.EntriesExpired(sched_ids=ids) if sched_id in ids:
            return "expired: its deadline passed"
        case events.EntriesCancelled(sched_ids=ids) if sched_id in ids:
            return "cancelled" + (f" ({event.reason})" if event.reason else "")
        case events.EntriesChanged(sched_ids=ids) if sched_id in ids:
            return "changed: " + ", ".join(_change(name, value) for name, value in event.changes.items())
        case events.CancelRequested(sched_ids=ids) if sched_id in ids:
            return "asked to stop" + (f" by {event.by}" if event.by else "")
        case events.LedgerCharged(sched_id=charged) if charged == sched_id:
            return f"used {amounts_text(event.amounts)}"
        case events.CoresGranted(sched_id=granted, leased=leased) if granted == sched_id:
            cores = f"core{'s' * (len(leased) > 1)} {', '.join(map(str, leased))}"
            return f"granted {cores} for itself" if leased else "granted its cpu settings"
        case events.CoresRefused(sched_id=refused) if refused == sched_id:
            return "refused the cores that it asked for"  # who has them is not for every reader
        case events.CoresReturned(sched_ids=ids) if sched_id in ids:
            return "its grant of cores and CPU time ended"
        case events.RunOverBudget(sched_id=run) if run == sched_id:
            used, limit = amount_text(event.dim, event.used), amount_text(event.dim, event.limit)
            return f"over budget: {used} of {limit} {dim_text(event.dim)} used"
        case events.RunStarted(sched_id=run) if run == sched_id:
            return f"run {event.attempt} started on {event.slot}"
        case events.RunSettingsChanged(sched_id=run) if run == sched_id:
            told = "; ".join((*event.enforced, *event.advisories)) or "none is left"
            return f"run {event.attempt} has other cpu settings: {told}"
        case events.RunProgressed(sched_id=run) if run == sched_id:
            return f"run {event.attempt}: {event.fraction:.0%} {event.text}".rstrip()
        case events.RunEnded(sched_id=run) if run == sched_id and event.outcome not in _RETURNED:
            return f"run {event.attempt} ended: {event.exit_kind}{_error_of(entry, event.attempt)}"
    return None


def _change(field: str, value: Any) -> str:
    """What an entry was changed to, for people."""
    if field == "runnable_at":
        return f"start {local_time(value)}" if value else "start at once"
    if field == "deadline":
        return "no deadline" if value is None else f"deadline {local_time(value)}"
    if field == "tags":
        return f"tags {', '.join(value)}" if value else "no tags"
    return f"{field} = {value}"


def _error_of(entry: ReadyEntry, attempt: int) -> str:
    """The error of an attempt, as the end of a line."""
    error = next((each.error for each in entry.errors if each.attempt == attempt), None)
    if error is None and attempt == entry.attempt and isinstance(entry.result, dict):
        error = entry.result.get("error")
    return f": {error[:ERROR_CHARS_MAX]}" if isinstance(error, str) else ""


def _describe_claim(event: events.EntriesClaimed, sched_id: int) -> str | None:
    for at, each in enumerate(event.entries):
        if each.sched_id == sched_id:
            reason = f": {event.because[at]}" if len(event.because) == len(event.entries) else ""
            place = f" in workspace {each.workspace}" if each.workspace else ""
            return f"claimed by {event.worker_id} (attempt {each.attempt}){place}, chosen by {event.policy}{reason}"
    return None

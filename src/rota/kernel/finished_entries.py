"""The finished entries in the order in which they ended, for retention.

To keep the newest 100,000 entries, and no entry that ended more than a week ago, the oldest ones must be found without
reading the whole queue. An index on the time at which entries ended would do, but every completion would pay for it. So
retention makes its own list: it reads the events with which entries end (completed, expired, cancelled) from a cursor
on, and appends their ids to `finished_entries`. A completion writes nothing there, and an entry that ended since the
last look is merely not in the list yet.

    event 90: entries 7, 8 end          place 1: entry 7     place 2: entry 8     cursor 90
    event 95: entry 3 ends              place 3: entry 3                          cursor 95

The list and its cursor change in one transaction, so every entry is appended once, whichever process is killed when.
No event behind the cursor is removed.

**What stays.** An entry on which a live entry depends (`after`), that a live entry spawned, or that belongs to a graph
run which has not ended is moved to the end of the list, to be looked at again when its turn comes. So is the newest
entry, because its id must not be used again. A graph run that has ended goes with its coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from rota.errors import StoreCorrupt
from rota.kernel import graph_budgets
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append, event_from_row
from rota.kernel.replay import id_ranges
from rota.kernel.rows import json_list
from rota.kernel.settings import read_number, write_setting
from rota.model.event_codec import decode
from rota.model.events import (
    EntriesCancelled,
    EntriesCompleted,
    EntriesExpired,
    Event,
    GraphRunForgotten,
    RowsPruned,
)
from rota.store import Transaction
from rota.store.statements import graph_runs as graph_sql
from rota.store.statements import journal as journal_sql
from rota.store.statements import retention as sql

__all__ = [
    "COLLECT_MAX",
    "Finished",
    "collect",
    "excess_place",
    "finished_before",
    "finished_cursor",
    "not_collected",
    "remove",
]

COLLECT_MAX = 1_000  # events of which the entries are appended in one transaction
_CURSOR = "finished_cursor"  # the setting with the last event whose entries are in the list
_KINDS = json_list((EntriesCompleted.kind, EntriesExpired.kind, EntriesCancelled.kind))


class Finished(NamedTuple):
    """An entry that has ended, and its place in the list."""

    place: int
    sched_id: int


class _Ended(NamedTuple):
    since: int
    until: int
    rows: list[tuple[int, float]]  # sched_id and when it ended


def finished_cursor(tx: Transaction) -> int:
    """Return the last event whose entries are in the list."""
    return int(read_number(tx, _CURSOR, 0))


def collect(env: KernelEnvironment) -> bool:
    """Append the entries of the next events to the list; returns whether there may be more."""
    found = env.read(_read_ended)

    def work(tx: Transaction) -> None:
        if finished_cursor(tx) == found.since:  # otherwise another process has appended them
            tx.run_many(sql.FINISHED_APPEND, found.rows)
            write_setting(tx, _CURSOR, str(found.until))

    if found.until > found.since:
        env.write_keeping_cache(work)
    return found.until < env.read(_journal_end)


def not_collected(tx: Transaction) -> int:
    """Return how many entries have ended that are not in the list yet, as far as the next step would find."""
    return len(_read_ended(tx).rows)


def _read_ended(tx: Transaction) -> _Ended:
    since, end = finished_cursor(tx), _journal_end(tx)
    rows = tx.run(journal_sql.EVENT_TAIL_KINDS, (since, _KINDS, COLLECT_MAX))
    events = [event_from_row(row) for row in rows]
    ended = [(sched_id, event.ts) for event in events for sched_id in _ended_by(event)]
    return _Ended(since, events[-1].event_id if len(rows) == COLLECT_MAX else end, ended)


def _ended_by(event: Event) -> Iterator[int]:
    try:
        data = decode(event.kind, event.payload)
    except StoreCorrupt:  # a damaged event: its entries stay
        return
    if isinstance(data, EntriesCompleted):
        yield from (entry.sched_id for entry in data.entries)
    elif isinstance(data, EntriesExpired | EntriesCancelled):
        yield from data.sched_ids


def _journal_end(tx: Transaction) -> int:
    return int(tx.run(journal_sql.EVENT_ENDS)[0][1] or 0)


def excess_place(tx: Transaction, keep_max: int) -> int:
    """Return the last place of the list that is not among the newest `keep_max`; 0 if there are no more than these."""
    rows = tx.run(sql.FINISHED_EXCESS, (keep_max,))
    return int(rows[0][0]) if rows else 0


def finished_before(tx: Transaction, before_at: float, after: int, until: int, max_n: int) -> list[Finished]:
    """Return entries that ended before a time, in places after one and up to another, the oldest place first."""
    return [Finished(*row) for row in tx.run(sql.FINISHED_OLDEST, (after, until, before_at, max_n))]


def remove(tx: Transaction, finished: list[Finished], now: float) -> int:
    """Delete these entries, except those that must stay; returns how many were deleted."""
    ids, places = json_list(each.sched_id for each in finished), json_list(each.place for each in finished)
    gone = {row[0]: "" for row in tx.run(sql.FINISHED_DELETE, (ids,))}
    tx.run(sql.FINISHED_TO_END, (places,))
    tx.run(sql.FINISHED_FORGET, (places,))
    if gone:
        ranges = [(first, first + number - 1) for first, number, _ in id_ranges(gone)]
        append(tx, RowsPruned(table="agent_schedule_queue", count=len(gone), ranges=ranges), now=now)
        _forget_graph_runs(tx, gone, now)
    return len(gone)


def _forget_graph_runs(tx: Transaction, coordinators: Collection[int], now: float) -> None:
    """Delete the ended graph runs of coordinators that were removed."""
    for run_id, pid in tx.run(graph_sql.RUN_PRUNE, (json_list(coordinators),)):
        graph_budgets.drop(tx, run_id)
        append(tx, GraphRunForgotten(run_id=run_id), now=now, pid=pid, correlation_id=run_id)

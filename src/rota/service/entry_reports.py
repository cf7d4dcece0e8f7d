"""Everything about one entry, in one read: its row, its attempts, what it used, its relatives and its history."""

from __future__ import annotations

from rota.clock import Clock
from rota.errors import SchedInvalidPayload
from rota.kernel.entry_relations import read_relations, read_row
from rota.kernel.graph_places import graph_node_of
from rota.kernel.rows import entry_from_row
from rota.kernel.running_entries import progress_of
from rota.model.checks import Checks
from rota.model.entry_report import EntryReport
from rota.model.retries import why_not_retried
from rota.service.attempts import attempts_of, total_usage
from rota.service.entry_history import read_history
from rota.store import Store, Transaction

__all__ = ["entry_report"]

_checks = Checks("Queue", SchedInvalidPayload)


def entry_report(store: Store, clock: Clock, sched_id: int) -> EntryReport:
    """Return everything about an entry, as of one moment."""
    _checks.whole("sched_id", sched_id)
    return store.read(lambda tx: _report(tx, clock.now(), sched_id))


def _report(tx: Transaction, now: float, sched_id: int) -> EntryReport:
    row, cursor = read_row(tx, sched_id)
    entry = entry_from_row(row)
    history = read_history(tx, row, cursor)
    attempts = attempts_of(history.events, entry)
    return EntryReport(
        entry=entry,
        now=now,
        cursor=cursor,
        attempts=attempts,
        usage=total_usage(attempts),
        not_retried=why_not_retried(entry),
        progress=progress_of(tx, entry),
        graph=graph_node_of(tx, entry),
        history=history.steps,
        history_is_complete=history.is_complete,
        **read_relations(tx, entry)._asdict(),
    )

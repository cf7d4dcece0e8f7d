"""Everything about one entry, in one read: its row, its attempts, what it used, its relatives and its history."""

from __future__ import annotations

from rota.errors import SchedInvalidPayload
from rota.kernel import Kernel
from rota.kernel.entry_relations import read_relations, read_row
from rota.kernel.graph_places import graph_node_of
from rota.kernel.rows import entry_from_row
from rota.kernel.running_entries import progress_of
from rota.model.checks import Checks
from rota.model.entry_report import EntryReport
from rota.model.retries import why_not_retried
from rota.service.attempts import attempts_of, total_usage
from rota.service.entry_history import read_history
from rota.store import Transaction

__all__ = ["entry_report"]

_checks = Checks("Queue", SchedInvalidPayload)


def entry_report(kernel: Kernel, sched_id: int) -> EntryReport:
    """Return everything about an entry, as of one moment."""
    _checks.whole("sched_id", sched_id)
    return kernel.store.read(lambda tx: _report(tx, kernel, sched_id))


def _report(tx: Transaction, kernel: Kernel, sched_id: int) -> EntryReport:
    row, cursor = read_row(tx, sched_id)
    entry = entry_from_row(row)
    history = read_history(tx, row, cursor)
    attempts = attempts_of(history.events, entry)
    return EntryReport(
        entry=entry,
        now=kernel.clock.now(),
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

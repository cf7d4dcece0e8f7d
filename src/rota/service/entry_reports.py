"""Everything about one entry, in one read: its row, its attempts, what it used, its relatives and its history."""

from __future__ import annotations

from rota.errors import SchedInvalidPayload
from rota.kernel import Kernel
from rota.kernel.entry_relations import read_relations, read_row
from rota.kernel.rows import entry_from_row
from rota.kernel.running_entries import progress_of
from rota.model.checks import Checks
from rota.model.entry_report import EntryReport, GraphNode
from rota.model.retries import why_not_retried
from rota.model.work import ReadyEntry
from rota.service.attempts import attempts_of, total_usage
from rota.service.entry_history import read_history
from rota.store import Transaction

__all__ = ["entry_report"]

_GRAPH_KIND = "graph:"  # of the slots in which the entries of a graph run, before its name
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
        graph=_graph_node(entry),
        history=history.steps,
        history_is_complete=history.is_complete,
        **read_relations(tx, entry)._asdict(),
    )


def _graph_node(entry: ReadyEntry) -> GraphNode | None:
    """Return the place of an entry in a graph run, from what the run put into its payload."""
    run_id, component = entry.payload.get("run"), entry.payload.get("component")
    is_graph = entry.kind is not None and entry.kind.startswith(_GRAPH_KIND)
    if not is_graph or not isinstance(run_id, str) or not isinstance(component, str):
        return None
    epoch_id = entry.payload.get("epoch")
    graph = (entry.kind or "").removeprefix(_GRAPH_KIND)
    return GraphNode(run_id, graph, component, epoch_id if isinstance(epoch_id, int) else None)

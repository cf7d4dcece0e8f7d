"""Where an entry belongs in a graph run. `rota why` and `rota show` ask this one function.

The key of an entry names its run, its epoch and its node (graph_entries.py); a coordinator is named by its run's row.
"""

from __future__ import annotations

from rota.kernel.graph_entries import split_key
from rota.model.graph_places import GraphNode
from rota.model.graph_runs import TRIGGER
from rota.model.work import ReadyEntry
from rota.store import Transaction
from rota.store.statements import graph_runs as sql

__all__ = ["graph_node_of"]


def graph_node_of(tx: Transaction, entry: ReadyEntry) -> GraphNode | None:
    """Return the place of an entry in a graph run; None if it belongs to none."""
    run_id = entry.correlation_id
    place: tuple[str, int | None] | None = None
    if entry.trigger == TRIGGER and run_id and entry.key:
        place = split_key(run_id, entry.key)
    if place is None:
        rows = tx.run(sql.RUN_OF_COORDINATOR, (entry.sched_id,))
        if not rows:
            return None
        run_id, place = str(rows[0][0]), ("", None)
    found = tx.run(sql.RUN_GRAPH, (run_id,))
    return GraphNode(str(run_id), found[0][0] if found else None, *place)

"""Where an entry belongs in a graph run. `rota why` and `rota show` ask `graph_node_of`.

The key of an entry names its run, its epoch and its node; a coordinator is named by its run's row.
"""

from __future__ import annotations

from rota.model.graph_places import TRIGGER, GraphNode
from rota.model.work import ReadyEntry
from rota.store import Transaction
from rota.store.statements import graph_runs as sql

__all__ = ["graph_node_of", "key_prefix", "split_key"]


def key_prefix(run_id: str) -> str:
    """Return what the keys of a run's entries begin with."""
    return f"graph/{run_id}/"


def split_key(run_id: str, key: str) -> tuple[str, int] | None:
    """Return the node and the epoch in the key of a run's entry; None if it is not such a key."""
    epoch, _, rest = key.removeprefix(key_prefix(run_id)).partition("/")
    node, _, _number = rest.rpartition("/")
    if not key.startswith(key_prefix(run_id)) or not node or not (epoch.isascii() and epoch.isdecimal()):
        return None
    return node, int(epoch)


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

"""The durable state of graph runs."""

from __future__ import annotations

from rota.store.protocol import Statement

RUN_TAKE = Statement(
    "graph_run_take",
    "Create or take over a graph run: only the process with this fence may write it from now on.",
    "INSERT INTO graph_runs (run_id, graph, pid, fence, updated_at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run_id) DO UPDATE SET fence = excluded.fence, updated_at = excluded.updated_at",
)
RUN_GET = Statement(
    "graph_run_get",
    "One graph run.",
    "SELECT run_id, graph, pid, fence, next_epoch_id, updated_at, checkpoint FROM graph_runs WHERE run_id = ?",
)
RUN_COMMIT = Statement(
    "graph_run_commit",
    "Save a run's state, if no other process has taken it over.",
    "UPDATE graph_runs SET next_epoch_id = ?, checkpoint = ?, updated_at = ? WHERE run_id = ? AND fence = ? "
    "RETURNING pid",
)
RUN_FORGET = Statement(
    "graph_run_forget",
    "Delete a graph run.",
    "DELETE FROM graph_runs WHERE run_id = ? RETURNING pid",
)
RUN_LIST = Statement(
    "graph_run_list",
    "A page of graph runs by name, without their checkpoints.",
    "SELECT run_id, graph, pid, fence, next_epoch_id, updated_at, NULL FROM graph_runs "
    "ORDER BY run_id LIMIT +? OFFSET +?",
)

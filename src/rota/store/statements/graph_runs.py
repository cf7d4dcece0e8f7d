"""Runs of graphs: where each stands."""

from __future__ import annotations

from rota.store.protocol import Statement

RUN_TAKE = Statement(
    "graph_run_take",
    "Begin a run, or go on with it: either way the writer from now on is whoever wrote this fence.",
    "INSERT INTO graph_runs (run_id, graph, pid, fence, updated_at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run_id) DO UPDATE SET fence = excluded.fence, updated_at = excluded.updated_at",
)
RUN_GET = Statement(
    "graph_run_get",
    "One run.",
    "SELECT run_id, graph, pid, fence, next_epoch_id, updated_at, checkpoint FROM graph_runs WHERE run_id = ?",
)
RUN_COMMIT = Statement(
    "graph_run_commit",
    "Write down where a run stands, if nobody has taken it since.",
    "UPDATE graph_runs SET next_epoch_id = ?, checkpoint = ?, updated_at = ? WHERE run_id = ? AND fence = ? "
    "RETURNING pid",
)
RUN_FORGET = Statement(
    "graph_run_forget",
    "Remove a run.",
    "DELETE FROM graph_runs WHERE run_id = ? RETURNING pid",
)
RUN_LIST = Statement(
    "graph_run_list",
    "A page of runs by name, without their checkpoints.",
    "SELECT run_id, graph, pid, fence, next_epoch_id, updated_at, NULL FROM graph_runs "
    "ORDER BY run_id LIMIT +? OFFSET +?",
)

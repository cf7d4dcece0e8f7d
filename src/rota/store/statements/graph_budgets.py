"""The budgets of graph runs and of their nodes."""

from __future__ import annotations

from rota.store.protocol import Statement

OPEN = Statement(
    "graph_budget_open",
    "Give a graph run or a node a budget in one dimension, unless it has one.",
    "INSERT INTO graph_budgets (run_id, node, dim, amount) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING dim",
)
SET = Statement(
    "graph_budget_set",
    "Set the budget of a graph run or a node in one dimension; what was used stays.",
    "INSERT INTO graph_budgets (run_id, node, dim, amount) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (run_id, node, dim) DO UPDATE SET amount = excluded.amount",
)
_LINES = (
    "SELECT b.run_id, b.node, b.dim, b.amount, b.used, r.project_id FROM graph_budgets b "
    "LEFT JOIN graph_runs r ON r.run_id = b.run_id WHERE b.run_id = ?1"
)
LINES = Statement(
    "graph_budget_lines", "The budgets of a graph run and of its nodes.", f"{_LINES} ORDER BY b.node, b.dim"
)
LINES_OF_NODE = Statement(
    "graph_budget_lines_of_node",
    "The budgets of a graph run and of one of its nodes.",
    f"{_LINES} AND b.node IN ('', ?2) ORDER BY b.node, b.dim",
)
CHARGE = Statement(
    "graph_budget_charge",
    "Add usage of one dimension to the line of a run and to that of a node.",
    "UPDATE graph_budgets SET used = used + ?1 WHERE run_id = ?2 AND (node = '' OR node = ?3) AND dim = ?4 "
    "RETURNING node, amount, used",
)
DROP = Statement(
    "graph_budget_drop",
    "Delete the budgets of a graph run.",
    "DELETE FROM graph_budgets WHERE run_id = ?",
)
RUN_OWNER = Statement(
    "graph_run_owner",
    "The agent, the project and the fence of a graph run.",
    "SELECT pid, project_id, fence FROM graph_runs WHERE run_id = ?",
)
COORDINATOR_WAITING = Statement(
    "graph_coordinator_waiting",
    "The coordinator of a graph run, if it waits in the queue for a time or for entries.",
    "SELECT q.sched_id, q.pid, q.project_id FROM graph_runs r CROSS JOIN agent_schedule_queue q "
    "ON q.sched_id = r.sched_id WHERE r.run_id = ? AND q.state = 'queued' AND (q.hold = 'time' OR q.hold = 'after')",
)
STATES = Statement(
    "graph_budget_states",
    "Every budget of a graph run or node, for the comparison with the journal.",
    "SELECT run_id, node, dim, amount, used FROM graph_budgets",
)

"""What a trace needs to know of entries and graph runs besides their events."""

from __future__ import annotations

from rota.store.protocol import Statement
from rota.store.statements.queue import IDS

# kernel/traced_entries.py relies on this order
_TRACED = (
    "q.sched_id, q.pid, p.name, q.project_id, q.created_at, q.priority, q.trigger, q.key, q.options, q.attempt, "
    "q.token, q.dispatched_at, q.worker_id, q.incarnation"
)
_AGENT = "LEFT JOIN agent_processes p ON p.pid = q.pid"

TRACED = Statement(
    "traced_entries",
    "What a trace shows of some entries.",
    f"SELECT {_TRACED} FROM agent_schedule_queue q {_AGENT} WHERE q.sched_id IN {IDS}",
)
TRACED_LIVE = Statement(
    "traced_live_entries",
    "What a trace shows of the entries that run now.",
    # by its id, the planner would look at every entry that ever was
    f"SELECT {_TRACED} FROM agent_schedule_queue q INDEXED BY idx_sched_queue_live {_AGENT} "
    "WHERE q.state = 'dispatched' ORDER BY q.sched_id LIMIT +?",
    postgres=f"SELECT {_TRACED} FROM agent_schedule_queue q {_AGENT} "
    "WHERE q.state = 'dispatched' ORDER BY q.sched_id + 0 LIMIT ?",
)
TRACED_RUNS = Statement(
    "traced_graph_runs",
    "The graphs, coordinators and starts of some graph runs.",
    f"SELECT run_id, graph, sched_id, started_at FROM graph_runs WHERE run_id IN {IDS}",
)

"""What runs ask of limits while they execute, and the shares of those who ask."""

from __future__ import annotations

from rota.store.protocol import Statement
from rota.store.statements.queue import IDS

# An ask belongs to a claim: the row counts only while that claim lives.
# From the asks to their runs: there are fewer of them than live runs.
_LIVE = "CROSS JOIN agent_schedule_queue q ON q.sched_id = a.sched_id AND q.token = a.token AND q.state = 'dispatched'"

ADD = Statement(
    "limit_ask_add",
    "Add an ask that waits.",
    "INSERT INTO limit_asks (sched_id, ask_key, token, name, asked, rest, cost, asked_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING ask_id",
)
GET = Statement(
    "limit_ask_get",
    "One ask of a claim.",
    "SELECT ask_id, name, asked, rest, cost, asked_at, granted_at FROM limit_asks "
    "WHERE sched_id = ? AND ask_key = ? AND token = ?",
)
WAITING = Statement(
    "limit_asks_waiting",
    "The asks of live runs that wait for a limit, of all projects or of one, with the weights they are served by.",
    "SELECT a.ask_id, coalesce(q.project_id, ''), q.pid, coalesce(p.weight, 1000), g.weight, a.cost, a.sched_id, "
    "a.asked, a.asked_at, a.name, q.needs, q.spent, (SELECT sum(json_extract(h.rest, '$.tokens')) FROM limit_asks h "
    "WHERE h.sched_id = a.sched_id AND h.name = a.name AND h.token = a.token AND h.granted_at IS NOT NULL) "
    f"FROM limit_asks a {_LIVE} CROSS JOIN agent_processes g ON g.pid = q.pid "
    "LEFT JOIN projects p ON p.project_id = q.project_id WHERE a.name = +?1 AND a.granted_at IS NULL "
    "AND (?2 IS NULL OR q.project_id = ?2) ORDER BY a.ask_id LIMIT +?3",
    postgres="SELECT a.ask_id, coalesce(q.project_id, ''), q.pid, coalesce(p.weight, 1000), g.weight, a.cost, "
    "a.sched_id, "
    "a.asked, a.asked_at, a.name, q.needs, q.spent, (SELECT sum(rota_json_number(h.rest, 'tokens'))::bigint "
    "FROM limit_asks h WHERE h.sched_id = a.sched_id AND h.name = a.name AND h.token = a.token "
    f"AND h.granted_at IS NOT NULL) FROM limit_asks a {_LIVE} CROSS JOIN agent_processes g ON g.pid = q.pid "
    "LEFT JOIN projects p ON p.project_id = q.project_id WHERE a.name = ?1 AND a.granted_at IS NULL "
    "AND (?2 IS NULL OR q.project_id = ?2) ORDER BY a.ask_id LIMIT ?3",
)
LIVE = Statement(
    "limit_asks_live",
    "Every ask of a live run, with what the run reserves besides.",
    "SELECT a.sched_id, a.name, a.asked, a.rest, a.granted_at, q.pid, q.project_id, q.needs, q.spent "
    f"FROM limit_asks a {_LIVE}",
)
OF_RUN = Statement(
    "limit_asks_of_run",
    "The asks of a claim, oldest first.",
    "SELECT ask_id, name, asked, rest, cost, asked_at, granted_at FROM limit_asks "
    "WHERE sched_id = ? AND token = ? ORDER BY ask_id",
)
WAITING_RUNS = Statement(
    "limit_asks_waiting_runs",
    "What some runs wait for at limits.",
    f"SELECT a.sched_id, a.name, a.asked, a.asked_at FROM limit_asks a {_LIVE} "
    f"WHERE a.granted_at IS NULL AND a.sched_id IN {IDS} ORDER BY a.ask_id",
)
GRANT = Statement(
    "limit_ask_grant",
    "An ask has got what it asked for.",
    "UPDATE limit_asks SET granted_at = ? WHERE ask_id = ?",
)
SET_REST = Statement(
    "limit_ask_set_rest",
    "Set what of an ask no charge has covered.",
    "UPDATE limit_asks SET rest = ? WHERE ask_id = ?",
)
REMOVE = Statement(
    "limit_ask_remove",
    "Remove an ask.",
    "DELETE FROM limit_asks WHERE ask_id = ?",
)
REMOVE_OF_RUN = Statement(
    "limit_asks_remove_of_run",
    "Remove the asks of an entry.",
    "DELETE FROM limit_asks WHERE sched_id = ?",
)
SHARES = Statement(
    "limit_shares",
    "The virtual times of those who ask a limit.",
    "SELECT level, key, virtual_time, clock FROM limit_shares WHERE name = ?",
)
SHARE_SET = Statement(
    "limit_share_set",
    "Set a virtual time.",
    "INSERT INTO limit_shares (name, level, key, virtual_time, clock) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (name, level, key) DO UPDATE SET virtual_time = excluded.virtual_time, clock = excluded.clock",
)
SHARES_FORGET = Statement(
    "limit_shares_forget",
    "Forget the virtual times of those who ask a limit.",
    "DELETE FROM limit_shares WHERE name = ?",
)

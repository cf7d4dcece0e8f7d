"""Flows: the virtual time of projects and agents.

`stamp` is the event id of a row's last change. A process that caches the rows reads those with a later stamp than the
last one it saw, and so learns of its own changes and of other processes' in the same way. Agents that became ready by a
new entry are found from the entries with a higher id than the last one seen, so enqueueing writes no flow.
"""

from __future__ import annotations

from rota.store.protocol import Statement

AGENT_MOVE = Statement(
    "agent_flow_move",
    "Set an agent's virtual time, and record when it last ran.",
    "INSERT INTO agent_flows (pid, project_id, virtual_time, last_run_at, stamp) VALUES (?1, ?2, ?3, ?4, ?5) "
    "ON CONFLICT (pid) DO UPDATE SET virtual_time = ?3, last_run_at = max(last_run_at, ?4), stamp = ?5",
    postgres="INSERT INTO agent_flows AS f (pid, project_id, virtual_time, last_run_at, stamp) VALUES (?1, "
    "?2, ?3, ?4, ?5) "
    "ON CONFLICT (pid) DO UPDATE SET virtual_time = excluded.virtual_time, "
    "last_run_at = greatest(f.last_run_at, excluded.last_run_at), stamp = excluded.stamp",
    everyday=True,
)
AGENT_SERVED = Statement(
    "agent_flow_served",
    "Record when an agent last ran, under a policy without virtual time.",
    "INSERT INTO agent_flows (pid, project_id, last_run_at, stamp) VALUES (?1, ?2, ?3, ?4) "
    "ON CONFLICT (pid) DO UPDATE SET last_run_at = max(last_run_at, ?3), stamp = ?4",
    postgres="INSERT INTO agent_flows AS f (pid, project_id, last_run_at, stamp) VALUES (?1, ?2, ?3, ?4) ON "
    "CONFLICT (pid) "
    "DO UPDATE SET last_run_at = greatest(f.last_run_at, excluded.last_run_at), stamp = excluded.stamp",
    everyday=True,
)
AGENT_TOUCH = Statement(
    "agent_flow_touch",
    "Stamp an agent's flow after a change elsewhere: its weight, or entries that are ready again.",
    "INSERT INTO agent_flows (pid, project_id, stamp) VALUES (?1, ?2, ?3) ON CONFLICT (pid) DO UPDATE SET stamp = ?3",
)
AGENT_ENTER = Statement(
    "agent_flow_enter",
    "Record that an agent has ready entries; writes nothing if that is recorded already.",
    "INSERT INTO agent_flows (pid, project_id, in_line, stamp) VALUES (?1, ?2, 1, ?3) "
    "ON CONFLICT (pid) DO UPDATE SET in_line = 1 WHERE in_line = 0",
    postgres="INSERT INTO agent_flows AS f (pid, project_id, in_line, stamp) VALUES (?1, ?2, 1, ?3) "
    "ON CONFLICT (pid) DO UPDATE SET in_line = 1 WHERE f.in_line = 0",
    everyday=True,
)
AGENT_LEAVE = Statement(
    "agent_flow_leave",
    "Record that an agent has no ready entries.",
    "UPDATE agent_flows SET in_line = 0 WHERE pid = ? AND in_line = 1",
    everyday=True,
)
AGENTS_SINCE = Statement(
    "agent_flows_since",
    "Agents' flows that changed after an event.",
    "SELECT f.pid, f.project_id, f.virtual_time, f.last_run_at, p.weight, p.intent, p.created_at, f.in_line, f.stamp "
    "FROM agent_flows f JOIN agent_processes p ON p.pid = f.pid WHERE f.stamp > +? ORDER BY f.stamp",
    postgres="SELECT f.pid, f.project_id, f.virtual_time, f.last_run_at, p.weight, p.intent, p.created_at, f.in_line, "
    "f.stamp FROM agent_flows f JOIN agent_processes p ON p.pid = f.pid WHERE f.stamp > ? ORDER BY f.stamp, f.pid",
)
_FLOW = (
    "p.pid, coalesce(p.project_id, ''), coalesce(f.virtual_time, 0), coalesce(f.last_run_at, 0), p.weight, p.intent, "
    "p.created_at, coalesce(f.in_line, 0), coalesce(f.stamp, 0)"
)
AGENTS_OF = Statement(
    "agent_flows_of",
    "The flows of some agents, with defaults for those that never ran.",
    f"SELECT {_FLOW} FROM agent_processes p LEFT JOIN agent_flows f ON f.pid = p.pid "
    "WHERE p.pid IN (SELECT value FROM json_each(?))",
)
AGENTS_CHANGED = Statement(
    "agent_flows_changed",
    "The flows of some agents, whether each has ready entries, and the highest sched_id.",
    f"SELECT {_FLOW}, EXISTS (SELECT 1 FROM agent_schedule_queue q INDEXED BY idx_sched_queue_pickable_by_agent "
    "WHERE q.pid = p.pid AND q.state = 'queued' AND q.hold IS NULL), "
    "(SELECT max(sched_id) FROM agent_schedule_queue) FROM agent_processes p "
    "LEFT JOIN agent_flows f ON f.pid = p.pid WHERE p.pid IN (SELECT value FROM json_each(?))",
    postgres=f"SELECT {_FLOW}, (SELECT true FROM agent_schedule_queue q INDEXED BY idx_sched_queue_pickable_by_agent "
    "WHERE q.pid = p.pid AND q.state = 'queued' AND q.hold IS NULL "  # EXISTS can become a hash of all ready entries
    "ORDER BY q.priority DESC LIMIT 1) IS NOT NULL, "
    "(SELECT sched_id FROM agent_schedule_queue ORDER BY sched_id DESC LIMIT 1) FROM agent_processes p "
    "LEFT JOIN agent_flows f ON f.pid = p.pid WHERE p.pid IN (SELECT value FROM json_each(?))",
)
AGENTS_READY = Statement(
    "agent_flows_ready",
    "The flow of every agent with ready entries: one step along the index for each.",
    "WITH RECURSIVE owner(pid) AS ("
    "SELECT min(pid) FROM agent_schedule_queue WHERE state = 'queued' AND hold IS NULL "
    "UNION ALL SELECT (SELECT min(q.pid) FROM agent_schedule_queue q WHERE q.state = 'queued' AND q.hold IS NULL "
    "AND q.pid > owner.pid) FROM owner WHERE owner.pid IS NOT NULL) "
    f"SELECT {_FLOW} FROM owner CROSS JOIN agent_processes p ON p.pid = owner.pid "
    "LEFT JOIN agent_flows f ON f.pid = p.pid",
    postgres="WITH RECURSIVE owner(pid) AS ((SELECT pid FROM agent_schedule_queue "
    "INDEXED BY idx_sched_queue_pickable_by_agent WHERE state = 'queued' AND hold IS NULL "
    "ORDER BY pid, priority DESC LIMIT 1) UNION ALL SELECT (SELECT q.pid FROM agent_schedule_queue q "
    "WHERE q.state = 'queued' AND q.hold IS NULL AND q.pid > owner.pid ORDER BY q.pid, q.priority DESC LIMIT 1) "
    "FROM owner WHERE owner.pid IS NOT NULL) "
    f"SELECT {_FLOW} FROM owner JOIN agent_processes p ON p.pid = owner.pid "
    "LEFT JOIN agent_flows f ON f.pid = p.pid",
)
FIRST_PRIORITIES = Statement(
    "first_priorities",
    "The priority of the first ready entry of each of some agents.",
    "SELECT k.value, (SELECT q.priority FROM agent_schedule_queue q INDEXED BY idx_sched_queue_pickable_by_agent "
    "WHERE q.pid = k.value AND q.state = 'queued' AND q.hold IS NULL ORDER BY q.priority DESC LIMIT 1) "
    "FROM json_each(?) k",
    postgres="SELECT k.value, (SELECT q.priority FROM agent_schedule_queue q "
    "INDEXED BY idx_sched_queue_pickable_by_agent WHERE q.pid = k.value AND q.state = 'queued' AND q.hold IS NULL "
    "ORDER BY q.priority DESC LIMIT 1) "
    "FROM (SELECT jsonb_array_elements_text(?::jsonb)::bigint AS value) k",
)
OWNERS_NEW = Statement(
    "owners_new",
    "The agents of ready entries that were enqueued after an entry.",
    # by id: every index that matches the conditions would be scanned from its start
    "SELECT DISTINCT pid FROM agent_schedule_queue NOT INDEXED "
    "WHERE sched_id > ? AND state = 'queued' AND hold IS NULL",
    # ordered by id: else the order of an index by pid may seem useful for DISTINCT
    postgres="SELECT DISTINCT pid FROM (SELECT pid FROM agent_schedule_queue WHERE sched_id > ? AND +state = 'queued' "
    "AND hold IS NULL ORDER BY sched_id) q",
)
LAST_ENTRY = Statement(
    "last_entry",
    "The highest sched_id.",
    "SELECT coalesce(max(sched_id), 0) FROM agent_schedule_queue",
    postgres="SELECT coalesce((SELECT sched_id FROM agent_schedule_queue ORDER BY sched_id DESC LIMIT 1), 0)",
)
PROJECT_MOVE = Statement(
    "project_flow_move",
    "Set a project's virtual time and the virtual clock of its agents.",
    "INSERT INTO project_flows (project_id, virtual_time, clock, stamp) VALUES (?1, ?2, ?3, ?4) "
    "ON CONFLICT (project_id) DO UPDATE SET virtual_time = ?2, clock = ?3, stamp = ?4",
    everyday=True,
)
PROJECT_TOUCH = Statement(
    "project_flow_touch",
    "Stamp a project's flow after a change elsewhere.",
    "INSERT INTO project_flows (project_id, stamp) VALUES (?1, ?2) ON CONFLICT (project_id) DO UPDATE SET stamp = ?2",
)
PROJECTS_OF = Statement(
    "project_flows_of",
    "The flows of some projects, with their weights.",
    "SELECT f.project_id, f.virtual_time, f.clock, coalesce(p.weight, 1000), f.stamp FROM project_flows f "
    "LEFT JOIN projects p ON p.project_id = f.project_id WHERE f.project_id IN (SELECT value FROM json_each(?))",
)
PROJECTS_SINCE = Statement(
    "project_flows_since",
    "Projects' flows that changed after an event.",
    "SELECT f.project_id, f.virtual_time, f.clock, coalesce(p.weight, 1000), f.stamp FROM project_flows f "
    "LEFT JOIN projects p ON p.project_id = f.project_id WHERE f.stamp > +? ORDER BY f.stamp",
    postgres="SELECT f.project_id, f.virtual_time, f.clock, coalesce(p.weight, 1000), f.stamp FROM project_flows f "
    "LEFT JOIN projects p ON p.project_id = f.project_id WHERE f.stamp > ? ORDER BY f.stamp, f.project_id",
)

# --- when sharing begins to count something else ---------------------------------------------------

AGENTS_RESTART = Statement(
    "agent_flows_restart",
    "Set the virtual time of every agent to 0.",
    "UPDATE agent_flows SET virtual_time = 0, stamp = ?",
)
PROJECTS_RESTART = Statement(
    "project_flows_restart",
    "Set the virtual time of every project to 0.",
    "UPDATE project_flows SET virtual_time = 0, clock = 0, stamp = ?",
)
SHARE_WINDOWS_RESTART = Statement(
    "share_windows_restart",
    "Set the usage in every share window to 0; the number of runs stays.",
    "UPDATE usage_windows SET used = 0 WHERE dim = 'share'",
)
SHARE_BUCKETS_RESTART = Statement(
    "share_buckets_restart",
    "Set the usage in the buckets of share windows to 0.",
    "UPDATE usage_buckets SET amount = 0 WHERE dim = 'share'",
)
ESTIMATES_RESTART = Statement(
    "estimates_restart",
    "Forget what live runs were expected to use.",
    "UPDATE agent_schedule_queue SET estimate = 0 WHERE state = 'dispatched'",
)

"""Agents."""

from __future__ import annotations

from rota.store.protocol import Statement

AGENT = (
    "pid, parent_pid, name, template, state, state_reason, created_at, updated_at, started_at, ended_at, exit_kind, "
    "exit_detail, metadata, last_event_id, project_id, priority, weight, intent, rerunnable, max_concurrent, paused_by"
)

CREATE = Statement(
    "agent_create",
    "Create an agent in state READY.",
    "INSERT INTO agent_processes (parent_pid, name, template, state, created_at, updated_at, metadata, project_id, "
    "priority, weight, intent, rerunnable, max_concurrent) VALUES (?, ?, ?, 'READY', ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "RETURNING pid",
    postgres="INSERT INTO agent_processes (pid, parent_pid, name, template, state, created_at, updated_at, metadata, "
    "project_id, priority, weight, intent, rerunnable, max_concurrent) VALUES (coalesce((SELECT pid FROM "
    "agent_processes ORDER BY pid DESC LIMIT 1), 0) + 1, ?, ?, ?, 'READY', ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING pid",
)
GET = Statement(
    "agent_get",
    "One agent.",
    f"SELECT {AGENT} FROM agent_processes WHERE pid = ?",
)
STATE = Statement(
    "agent_state",
    "An agent's state and project.",
    "SELECT state, project_id FROM agent_processes WHERE pid = ?",
)
FIND = Statement(
    "agent_find",
    "The agents with a name that are not DEAD, newest first.",
    f"SELECT {AGENT} FROM agent_processes WHERE name = +? AND state != 'DEAD' ORDER BY pid DESC",
)
FIND_IN_PROJECT = Statement(
    "agent_find_in_project",
    "The first agent with a name in a project, or in none, that is not DEAD.",
    "SELECT pid FROM agent_processes WHERE name = +?1 AND project_id IS ?2 AND state != 'DEAD' ORDER BY pid LIMIT 1",
)
LIST = Statement(
    "agent_list",
    "A page of agents, by pid.",
    f"SELECT {AGENT} FROM agent_processes WHERE (?1 IS NULL OR state = +?1) AND (?2 IS NULL OR project_id = +?2) "
    "AND (?3 IS NULL OR parent_pid = +?3) ORDER BY pid LIMIT +?4 OFFSET ?5",
)
COUNT = Statement(
    "agent_count",
    "The total number of agents in a listing.",
    "SELECT count(*) FROM agent_processes WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR project_id = ?2) "
    "AND (?3 IS NULL OR parent_pid = ?3)",
)
COUNT_BY_STATE = Statement(
    "agent_count_by_state",
    "The number of agents in each state.",
    "SELECT state, count(*) FROM agent_processes GROUP BY state",
)
# of some projects (a list as JSON; '' is no project)
_WITHIN = "coalesce(project_id, '') IN (SELECT value FROM json_each(?1))"
LIST_WITHIN = Statement(
    "agent_list_within",
    "A page of the agents of some projects, by pid.",
    f"SELECT {AGENT} FROM agent_processes WHERE {_WITHIN} AND (?2 IS NULL OR state = ?2) "
    "AND (?3 IS NULL OR parent_pid = ?3) ORDER BY pid LIMIT +?4 OFFSET ?5",
)
COUNT_BY_STATE_WITHIN = Statement(
    "agent_count_by_state_within",
    "The number of agents of some projects in each state.",
    f"SELECT state, count(*) FROM agent_processes WHERE {_WITHIN} AND (?2 IS NULL OR parent_pid = ?2) GROUP BY state",
)
PAUSED_WITHIN = Statement(
    "agents_paused_within",
    "Agents of some projects paused by a name whose first characters are these.",
    f"SELECT {AGENT} FROM agent_processes WHERE {_WITHIN} AND paused_by IS NOT NULL AND substr(paused_by, 1, ?2) = ?3 "
    "ORDER BY pid LIMIT +?4",
)
PROJECTS_OF = Statement(
    "agent_projects_of",
    "The projects of some agents.",
    "SELECT pid, project_id FROM agent_processes WHERE pid IN (SELECT value FROM json_each(?))",
)
NAMES_OF = Statement(
    "agent_names_of",
    "The names of some agents.",
    "SELECT pid, name FROM agent_processes WHERE pid IN (SELECT value FROM json_each(?))",
)
LAST_PID = Statement(
    "agent_last_pid",
    "The highest pid given so far.",
    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'agent_processes'), 0)",
    postgres="SELECT coalesce((SELECT pid FROM agent_processes ORDER BY pid DESC LIMIT 1), 0)",
)
_STARTED = "started_at = CASE WHEN ?1 = 'RUNNING' THEN coalesce(started_at, ?3) ELSE started_at END"
MOVE = Statement(
    "agent_move",
    "Move an agent to another state, but not to DEAD.",
    f"UPDATE agent_processes SET state = ?1, state_reason = ?2, updated_at = ?3, {_STARTED}, last_event_id = ?4 "
    "WHERE pid = ?5",
    everyday=True,
)
MOVE_OR_END = Statement(
    "agent_move_or_end",
    "Move an agent to any other state.",
    f"UPDATE agent_processes SET state = ?1, state_reason = ?2, updated_at = ?3, {_STARTED}, "
    "ended_at = CASE WHEN ?1 = 'DEAD' THEN ?3 ELSE ended_at END, "
    "exit_kind = coalesce(?4, exit_kind), exit_detail = coalesce(?5, exit_detail), last_event_id = ?6 WHERE pid = ?7",
)
TOUCH = Statement(
    "agent_touch",
    "Record an agent's latest event.",
    "UPDATE agent_processes SET last_event_id = ?, updated_at = ? WHERE pid = ?",
)
SET = Statement(
    "agent_set",
    "Change an agent's settings.",
    "UPDATE agent_processes SET priority = ?, weight = ?, intent = ?, max_concurrent = ?, metadata = ?, "
    "updated_at = ?, last_event_id = ? WHERE pid = ?",
)
PAUSE = Statement(
    "agent_pause",
    "Pause or resume an agent.",
    "UPDATE agent_processes SET paused_by = ?, updated_at = ? WHERE pid = ?",
)
INTERRUPTED = Statement(
    "agent_interrupted",
    "Agents in state RUNNING or WAITING, to recover after a restart.",
    "SELECT pid, state FROM agent_processes WHERE state IN ('RUNNING','WAITING') ORDER BY pid",
)
INTERRUPTED_BY_RUN = Statement(
    "agent_interrupted_by_run",
    "Agents in state RUNNING or WAITING, when they last changed, and whether each has a live run.",
    "SELECT pid, state, updated_at, pid IN (SELECT pid FROM agent_schedule_queue WHERE state = 'dispatched') "
    "FROM agent_processes WHERE state IN ('RUNNING','WAITING') ORDER BY pid",
)
WITH_LIVE_RUNS = Statement(
    "agents_with_live_runs",
    "The state of some agents, and whether each has a live run.",
    "SELECT pid, state, pid IN (SELECT pid FROM agent_schedule_queue WHERE state = 'dispatched'), rerunnable "
    "FROM agent_processes WHERE pid IN (SELECT value FROM json_each(?)) ORDER BY pid",
)
PAUSED = Statement(
    "agents_paused",
    "Agents paused by a name whose first characters are these.",
    f"SELECT {AGENT} FROM agent_processes WHERE paused_by IS NOT NULL AND substr(paused_by, 1, ?) = ? "
    "ORDER BY pid LIMIT +?",
)

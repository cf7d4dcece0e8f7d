"""The first ready entries of many agents or projects, each in one statement.

In these rows the columns that only a claim needs (payload, options, result, …) are missing: what a policy looks at is
kept in memory between passes, and payloads may be large. The others have the same positions as in `READY_COLUMNS`.
"""

from __future__ import annotations

from rota.store.protocol import Statement
from rota.store.statements.queue import IDS, READY_COLUMNS, of_kinds

_SHOWN = {"sched_id", "pid", "priority", "runnable_at", "deadline", "project_id", "kind", "needs"}
_COLUMNS = ", ".join(f"q.{each}" if each in _SHOWN else "NULL" for each in READY_COLUMNS.split(", "))
_IS_READY = "state = 'queued' AND hold IS NULL"
# ?1 keys, ?2 now, ?3 the latest runnable_at, ?4 kinds of slots, ?5 entries of each key
_FITS = (
    f"e.{_IS_READY} AND e.runnable_at <= +?3 AND (e.deadline IS NULL OR e.deadline > +?2) "
    f"AND {of_kinds('e.kind', '?4')}"
)
_FIRST = "ORDER BY e.priority DESC, e.runnable_at, e.sched_id LIMIT +?5"

OF_AGENTS = Statement(
    "heads_of_agents",
    "The first ready entries of each of some agents, in no order.",
    f"SELECT k.value, {_COLUMNS} FROM json_each(?1) k CROSS JOIN agent_schedule_queue q WHERE q.sched_id IN ("
    "SELECT e.sched_id FROM agent_schedule_queue e INDEXED BY idx_sched_queue_pickable_by_agent "
    f"WHERE e.pid = k.value AND {_FITS} {_FIRST})",
    postgres=f"SELECT k.value, {_COLUMNS} FROM (SELECT jsonb_array_elements_text(?1::jsonb)::bigint AS value) k "
    f"CROSS JOIN LATERAL (SELECT * FROM agent_schedule_queue e INDEXED BY idx_sched_queue_pickable_by_agent "
    f"WHERE e.pid = k.value AND {_FITS} {_FIRST}) q",
)
# ?6: agents whose entries are left out
OF_PROJECTS = Statement(
    "heads_of_projects",
    "The first ready entries of each of some projects that are neither paused nor archived, in no order.",
    f"SELECT k.value, {_COLUMNS} FROM json_each(?1) k CROSS JOIN agent_schedule_queue q WHERE q.sched_id IN ("
    "SELECT e.sched_id FROM agent_schedule_queue e INDEXED BY idx_sched_queue_pickable_by_project "
    f"WHERE e.project_id IS nullif(k.value, '') AND {_FITS} AND e.pid NOT IN (SELECT value FROM json_each(?6)) "
    f"{_FIRST}) AND NOT EXISTS (SELECT 1 FROM projects p WHERE p.project_id = k.value "
    f"AND (p.status != 'ACTIVE' OR p.paused_by IS NOT NULL))",
    postgres=f"SELECT k.value, {_COLUMNS} FROM (SELECT jsonb_array_elements_text(?1::jsonb) AS value) k "
    "CROSS JOIN LATERAL (SELECT * FROM agent_schedule_queue e INDEXED BY idx_sched_queue_pickable_by_project "
    "WHERE coalesce(e.project_id, '') = k.value "
    f"AND {_FITS} AND e.pid NOT IN (SELECT value FROM json_each(?6)) {_FIRST}) q "
    "WHERE NOT EXISTS (SELECT 1 FROM projects p WHERE p.project_id = k.value "
    "AND (p.status != 'ACTIVE' OR p.paused_by IS NOT NULL))",
)
_OF_ANY = f"agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_project WHERE {_IS_READY}"
PROJECTS = Statement(
    "projects_ready",
    "Every project with an entry without a hold, one step along the index for each; '' is no project.",
    "WITH RECURSIVE line(name) AS (SELECT '' UNION ALL "
    f"SELECT (SELECT min(project_id) FROM {_OF_ANY} AND project_id > line.name) FROM line WHERE line.name IS NOT NULL) "
    f"SELECT name FROM line WHERE name > '' UNION ALL SELECT '' "
    f"WHERE EXISTS (SELECT 1 FROM {_OF_ANY} AND project_id IS NULL)",
    postgres=f"WITH RECURSIVE line(name) AS ((SELECT coalesce(project_id, '') FROM {_OF_ANY} "
    "ORDER BY coalesce(project_id, ''), priority DESC LIMIT 1) UNION ALL SELECT (SELECT coalesce(project_id, '') "
    f"FROM {_OF_ANY} AND coalesce(project_id, '') > line.name ORDER BY coalesce(project_id, ''), priority DESC "
    "LIMIT 1) FROM line WHERE line.name IS NOT NULL) "
    "SELECT name FROM line WHERE name IS NOT NULL ORDER BY name = '', name",
)
AGENTS = Statement(
    "agents_ready_of",
    "Those of some agents that have an entry without a hold.",
    "SELECT k.value FROM json_each(?) k WHERE EXISTS (SELECT 1 FROM agent_schedule_queue e "
    f"INDEXED BY idx_sched_queue_pickable_by_agent WHERE e.pid = k.value AND e.{_IS_READY})",
    postgres="SELECT k.value FROM (SELECT jsonb_array_elements_text(?::jsonb)::bigint AS value) k "
    f"WHERE (SELECT true FROM agent_schedule_queue e INDEXED BY idx_sched_queue_pickable_by_agent "
    f"WHERE e.pid = k.value AND e.{_IS_READY} ORDER BY e.priority DESC LIMIT 1)",
)
ENTRIES = Statement(
    "entries_still_ready",
    "Those of some entries that are queued without a hold, with all columns that a claim needs.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue WHERE sched_id IN {IDS} AND +{_IS_READY}",
)
PROJECTS_OF_AGENTS = Statement(
    "projects_of_agents",
    "The projects of some agents; '' is no project.",
    f"SELECT DISTINCT coalesce(project_id, '') FROM agent_processes WHERE pid IN {IDS}",
)

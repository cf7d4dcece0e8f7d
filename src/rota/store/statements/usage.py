"""Usage per day: the rows that the fold over the journal adds up, and what it knows of unfinished entries."""

from __future__ import annotations

from rota.store.protocol import Statement
from rota.store.statements.queue import IDS

# kernel/usage_fold.py relies on this order
SUMS = (
    "runs, failures, tokens, input_tokens, cached_input_tokens, output_tokens, cost_micro, cpu_ms, wall_ms, waits, "
    "wait_ms, wait_max_ms, wait_sizes"
)

EVENTS_OF_KINDS = Statement(
    "usage_events",
    "The events of some kinds in a range of the journal, oldest first.",
    "SELECT event_id, pid, ts, kind, payload, causation_id, correlation_id, author FROM agent_events "
    "WHERE event_id > +?1 AND event_id <= +?2 AND kind IN (SELECT value FROM json_each(?3)) ORDER BY event_id",
)
AGENTS_OF_ENTRIES = Statement(
    "usage_agents_of_entries",
    "The agents of some entries.",
    f"SELECT sched_id, pid FROM agent_schedule_queue WHERE sched_id IN {IDS}",
)
NOTES = Statement(
    "usage_notes",
    "What the fold knows of some entries.",
    f"SELECT sched_id, model, released_at, waited_ms FROM usage_entries WHERE sched_id IN {IDS}",
)
NOTE_PUT = Statement(
    "usage_note_put",
    "Keep what the fold knows of an entry.",
    "INSERT OR REPLACE INTO usage_entries (sched_id, model, released_at, waited_ms) VALUES (?, ?, ?, ?)",
    postgres="INSERT INTO usage_entries (sched_id, model, released_at, waited_ms) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (sched_id) DO UPDATE SET model = excluded.model, released_at = excluded.released_at, "
    "waited_ms = excluded.waited_ms",
)
NOTE_DROP = Statement(
    "usage_note_drop",
    "Forget an entry that has ended.",
    "DELETE FROM usage_entries WHERE sched_id = ?",
)
DAY_GET = Statement(
    "usage_day_get",
    "The rows of a day and an agent, by model.",
    f"SELECT model, {SUMS} FROM usage_daily WHERE day = ? AND pid = ?",
)
DAY_PUT = Statement(
    "usage_day_put",
    "Store a row of a day, an agent and a model.",
    f"INSERT OR REPLACE INTO usage_daily (day, pid, model, project_id, {SUMS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    postgres=f"INSERT INTO usage_daily (day, pid, model, project_id, {SUMS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, pid, model) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in ["project_id", *SUMS.split(", ")]),
)
AGENTS = Statement(
    "usage_agents",
    "The projects ('' is none) and names of some agents.",
    f"SELECT pid, coalesce(project_id, ''), name FROM agent_processes WHERE pid IN {IDS}",
)
# ?1, ?2: the first and the last day; ?3: the projects as JSON ('' is none), NULL is all; ?4: the name of an agent, or
# NULL; ?5 to ?7: the key after which to go on
DAYS = Statement(
    "usage_days",
    "A page of the rows of some days, by day, agent and model, with the agent's name.",
    f"SELECT u.day, u.pid, u.model, u.project_id, coalesce(p.name, ''), "
    f"{', '.join(f'u.{column}' for column in SUMS.split(', '))} "
    "FROM usage_daily u LEFT JOIN agent_processes p ON p.pid = u.pid "
    "WHERE u.day >= +?1 AND u.day <= +?2 AND (?3 IS NULL OR u.project_id IN (SELECT value FROM json_each(?3))) "
    "AND (?4 IS NULL OR p.name = ?4) AND (u.day, u.pid, u.model) > (?5, ?6, ?7) "
    "ORDER BY u.day, u.pid, u.model LIMIT +?8",
)

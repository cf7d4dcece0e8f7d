"""Lists of entries for people: pages by filter, searches, counts, groups, children.

A filter names a status among others. The entries of each status but `succeeded` have a partial index, in which few rows
are, or which claims need anyway. So `_OF_STATUS` finds the ids of some statuses without looking at all entries.
"""

from __future__ import annotations

import re

import msgspec

from rota.store.protocol import Statement
from rota.store.statements.queue import BY_AGENT, ENTRY, IDS

_COLUMNS = ", ".join(f"q.{column}" for column in ENTRY.split(", "))

# the same rule as `model/entry_status.py`
STATUS = (
    "CASE q.state WHEN 'queued' THEN CASE WHEN q.hold IS NULL THEN 'ready' ELSE 'waiting' END "
    "WHEN 'dispatched' THEN 'running' WHEN 'completed' THEN CASE coalesce(q.exit_kind, 'completed') "
    "WHEN 'completed' THEN 'succeeded' WHEN 'cancelled' THEN 'cancelled' ELSE 'failed' END "
    "WHEN 'expired' THEN 'expired' ELSE 'cancelled' END"
)
# Filter: ?1 state, ?2 pid, ?3 project, ?4 trigger, ?5 exit_kind, ?6 tag, ?7 statuses as JSON; NULL matches any.
_MATCHES = (
    "(?1 IS NULL OR q.state = ?1) AND (?2 IS NULL OR q.pid = ?2) AND (?3 IS NULL OR q.project_id = ?3) "
    "AND (?4 IS NULL OR q.trigger = ?4) AND (?5 IS NULL OR q.exit_kind = ?5) "
    "AND (?6 IS NULL OR EXISTS (SELECT 1 FROM entry_tags t WHERE t.tag = ?6 AND t.sched_id = q.sched_id)) "
    f"AND (?7 IS NULL OR {STATUS} IN (SELECT value FROM json_each(?7)))"
)
_MATCHES_WITHIN = _MATCHES.replace(
    "(?3 IS NULL OR q.project_id = ?3)", "coalesce(q.project_id, '') IN (SELECT value FROM json_each(?3))"
)

_NOT_SUCCEEDED = "agent_schedule_queue WHERE completed_at IS NOT NULL AND exit_kind IS NOT 'completed'"
_PARTS = {  # the ids of each status, with the condition of a partial index; `_MATCHES` decides about each of them
    "ready": ["agent_schedule_queue WHERE state = 'queued' AND hold IS NULL"],
    "waiting": [
        "agent_schedule_queue WHERE state = 'queued' AND (hold = 'time' OR hold = 'backoff')",
        "agent_schedule_queue WHERE hold = 'after'",  # no other state has a hold
        "kept_entries WHERE sched_id > 0",
    ],
    "running": ["agent_schedule_queue WHERE state = 'dispatched'"],
    "failed": [f"{_NOT_SUCCEEDED} AND exit_kind IS NOT NULL AND exit_kind != 'cancelled'"],
    "expired": [f"{_NOT_SUCCEEDED} AND exit_kind IS NULL AND state = 'expired'"],
    "cancelled": [
        f"{_NOT_SUCCEEDED} AND exit_kind = 'cancelled'",
        f"{_NOT_SUCCEEDED} AND exit_kind IS NULL AND state = 'cancelled'",
    ],
}
_OF_STATUS = " UNION ALL ".join(
    f"SELECT sched_id FROM {rows} AND instr(?7, '\"{status}\"')" for status, parts in _PARTS.items() for rows in parts
)


def _ids_first(sql: str) -> str:
    """The same for PostgreSQL: the ids in their order, then each row by its key, until a LIMIT ends it."""
    order = "DESC" if "DESC" in sql else ""
    return (
        sql.replace(
            f"agent_schedule_queue q WHERE q.sched_id IN ({_OF_STATUS})",
            f"(SELECT DISTINCT sched_id AS id FROM ({_OF_STATUS}) u ORDER BY 1 {order}) i CROSS JOIN LATERAL "
            "(SELECT * FROM agent_schedule_queue e WHERE e.sched_id = i.id OFFSET 0) q WHERE true",
        )
    ).replace("ORDER BY q.sched_id", "ORDER BY i.id")


def _by_agent(statement: Statement) -> Statement:
    """The same with a text for PostgreSQL, where an agent's ids have a table of their own."""
    text = statement.sql.replace("agent_schedule_queue q WHERE q.pid", f"{BY_AGENT} WHERE a.pid")
    text = re.sub(r"\+?q\.sched_id (?=>)|(?<=ORDER BY )q\.sched_id ", "a.sched_id ", text)
    return msgspec.structs.replace(statement, postgres=text)


def _with_ids_first(statement: Statement) -> Statement:
    return msgspec.structs.replace(statement, postgres=_ids_first(statement.sql))


# --- pages: ?8 limit, ?9 offset, ?10 the id after which the page begins -----------------------------

FILTERED = Statement(
    "entry_filtered",
    "A page of entries that match a filter, by id.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.sched_id > ?10 AND {_MATCHES} "
    "ORDER BY q.sched_id LIMIT +?8 OFFSET ?9",
)
FILTERED_OF_AGENT = Statement(
    "entry_filtered_of_agent",
    "A page of one agent's entries that match a filter, by id.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.pid = +?2 AND +q.sched_id > ?10 AND {_MATCHES} "
    "ORDER BY q.sched_id LIMIT +?8 OFFSET ?9",
)
FILTERED_OF_AGENT = _by_agent(FILTERED_OF_AGENT)
FILTERED_OF_TAG = Statement(
    "entry_filtered_of_tag",
    "A page of the entries with a tag that match a filter, by id.",
    f"SELECT {_COLUMNS} FROM entry_tags g CROSS JOIN agent_schedule_queue q ON q.sched_id = g.sched_id "
    f"WHERE g.tag = +?6 AND g.sched_id > ?10 AND {_MATCHES} ORDER BY g.sched_id LIMIT +?8 OFFSET ?9",
)
FILTERED_OF_STATUS = Statement(
    "entry_filtered_of_status",
    "A page of the entries of some statuses, not succeeded, that match a filter, by id.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.sched_id IN ({_OF_STATUS}) AND +q.sched_id > ?10 "
    f"AND {_MATCHES} ORDER BY q.sched_id LIMIT +?8 OFFSET ?9",
)
FILTERED_OF_STATUS = _with_ids_first(FILTERED_OF_STATUS)
IDS_OF_STATUS = Statement(
    "entry_ids_of_status",
    "The first entries of some statuses, not succeeded, that match a filter, by id.",
    f"SELECT q.sched_id FROM agent_schedule_queue q WHERE q.sched_id IN ({_OF_STATUS}) AND {_MATCHES} "
    "ORDER BY q.sched_id LIMIT +?8",
)
IDS_OF_STATUS = _with_ids_first(IDS_OF_STATUS)
FILTERED_COUNT = Statement(
    "entry_filtered_count",
    "The number of entries that match a filter.",
    f"SELECT count(*) FROM agent_schedule_queue q WHERE {_MATCHES}",
)
FILTERED_COUNT_OF_AGENT = Statement(
    "entry_filtered_count_of_agent",
    "The number of an agent's entries that match a filter.",
    f"SELECT count(*) FROM agent_schedule_queue q WHERE q.pid = ?2 AND {_MATCHES}",
    postgres="SELECT count(*) FROM agent_entries a JOIN agent_schedule_queue q ON q.sched_id = a.sched_id "
    f"WHERE a.pid = ?2 AND {_MATCHES}",
)
FILTERED_COUNT_OF_STATUS = Statement(
    "entry_filtered_count_of_status",
    "The number of entries of some statuses, not succeeded, that match a filter.",
    f"SELECT count(*) FROM agent_schedule_queue q WHERE q.sched_id IN ({_OF_STATUS}) AND {_MATCHES}",
)
FILTERED_COUNT_OF_STATUS = _with_ids_first(FILTERED_COUNT_OF_STATUS)
FILTERED_WITHIN = Statement(
    "entry_filtered_within",
    "A page of the entries of some projects that match a filter, by id; '' is no project.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.sched_id > ?10 AND {_MATCHES_WITHIN} "
    "ORDER BY q.sched_id LIMIT +?8 OFFSET ?9",
)
FILTERED_OF_STATUS_WITHIN = Statement(
    "entry_filtered_of_status_within",
    "A page of the entries of some projects and statuses, not succeeded, that match a filter, by id.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.sched_id IN ({_OF_STATUS}) AND +q.sched_id > ?10 "
    f"AND {_MATCHES_WITHIN} ORDER BY q.sched_id LIMIT +?8 OFFSET ?9",
)
FILTERED_OF_STATUS_WITHIN = _with_ids_first(FILTERED_OF_STATUS_WITHIN)
FILTERED_COUNT_WITHIN = Statement(
    "entry_filtered_count_within",
    "The number of entries of some projects that match a filter.",
    f"SELECT count(*) FROM agent_schedule_queue q WHERE {_MATCHES_WITHIN}",
)
FILTERED_COUNT_OF_STATUS_WITHIN = Statement(
    "entry_filtered_count_of_status_within",
    "The number of entries of some projects and statuses, not succeeded, that match a filter.",
    f"SELECT count(*) FROM agent_schedule_queue q WHERE q.sched_id IN ({_OF_STATUS}) AND {_MATCHES_WITHIN}",
)
FILTERED_COUNT_OF_STATUS_WITHIN = _with_ids_first(FILTERED_COUNT_OF_STATUS_WITHIN)
MATCHING_IDS = Statement(
    "entry_matching_ids",
    "The next entries that match a filter, by id, for a change in batches.",
    f"SELECT q.sched_id FROM agent_schedule_queue q WHERE q.sched_id > +?8 AND {_MATCHES} "
    "ORDER BY q.sched_id LIMIT +?9",
)
MATCHING_IDS_OF_AGENT = Statement(
    "entry_matching_ids_of_agent",
    "The next of an agent's entries that match a filter, by id, for a change in batches.",
    f"SELECT q.sched_id FROM agent_schedule_queue q WHERE q.pid = +?2 AND q.sched_id > +?8 AND {_MATCHES} "
    "ORDER BY q.sched_id LIMIT +?9",
)
MATCHING_IDS_OF_AGENT = _by_agent(MATCHING_IDS_OF_AGENT)

# --- search: the newest ids of a group, then those of them that hold a text ------------------------

NEWEST = Statement(
    "entries_newest",
    "The newest entries.",
    "SELECT sched_id FROM agent_schedule_queue ORDER BY sched_id DESC LIMIT +?",
)
NEWEST_OF_AGENT = Statement(
    "entries_newest_of_agent",
    "The newest entries of an agent.",
    "SELECT sched_id FROM agent_schedule_queue WHERE pid = +? ORDER BY sched_id DESC LIMIT +?",
    postgres="SELECT sched_id FROM agent_entries WHERE pid = ? ORDER BY sched_id DESC LIMIT ?",
)
NEWEST_OF_STATUS = Statement(
    "entries_newest_of_status",
    "The newest entries of some statuses, not succeeded; the first six parameters are not used.",
    f"SELECT q.sched_id FROM agent_schedule_queue q WHERE q.sched_id IN ({_OF_STATUS}) "
    "ORDER BY q.sched_id DESC LIMIT +?8",
    postgres=_ids_first(
        f"SELECT q.sched_id FROM agent_schedule_queue q WHERE q.sched_id IN ({_OF_STATUS}) "
        "AND (true OR coalesce(?1, ?2, ?3, ?4, ?5, ?6::text) = '') ORDER BY q.sched_id DESC LIMIT ?8"
    ),
)
_ERRORS = (
    "CASE WHEN instr(q.options, '\"errors\":') AND json_valid(q.options) THEN json_extract(q.options, '$.errors') END"
)
_HOLDS_TEXT = " OR ".join(  # ?8 and ?9 are the text as it is, and as JSON has it
    f"{column} LIKE {pattern} ESCAPE '\\'" for column in ("q.payload", "q.result", _ERRORS) for pattern in ("?8", "?9")
)
_ERRORS_POSTGRES = "CASE WHEN strpos(q.options, '\"errors\":') > 0 THEN rota_json_text(q.options, 'errors') END"
_HOLDS_TEXT_POSTGRES = _HOLDS_TEXT.replace(_ERRORS, _ERRORS_POSTGRES).replace(" LIKE ", " ILIKE ")
SEARCHED = Statement(
    "entries_searched",
    "Those of some entries that match a filter and hold a text, newest first.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.sched_id IN (SELECT value FROM json_each(?10)) "
    f"AND {_MATCHES} AND ({_HOLDS_TEXT}) ORDER BY q.sched_id DESC LIMIT +?11",
    postgres=f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.sched_id IN (SELECT value FROM json_each(?10)) "
    f"AND {_MATCHES} AND ({_HOLDS_TEXT_POSTGRES}) ORDER BY q.sched_id DESC LIMIT ?11",
)
SEARCHED_WITHIN = Statement(
    "entries_searched_within",
    "Those of some entries that are of some projects, match a filter and hold a text, newest first.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.sched_id IN (SELECT value FROM json_each(?10)) "
    f"AND {_MATCHES_WITHIN} AND ({_HOLDS_TEXT}) ORDER BY q.sched_id DESC LIMIT +?11",
    postgres=f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.sched_id IN (SELECT value FROM json_each(?10)) "
    f"AND {_MATCHES_WITHIN} AND ({_HOLDS_TEXT_POSTGRES}) ORDER BY q.sched_id DESC LIMIT ?11",
)

# --- counts and groups ---------------------------------------------------------------------------

COUNT_BY_STATE = Statement(
    "entry_count_by_state",
    "The number of entries in each state and hold.",
    "SELECT state, hold, count(*) FROM agent_schedule_queue GROUP BY state, hold",
)
COUNT_BY_STATE_WITHIN = Statement(
    "entry_count_by_state_within",
    "The number of entries of some projects in each state and hold; '' is no project.",
    f"SELECT state, hold, count(*) FROM agent_schedule_queue WHERE coalesce(project_id, '') IN {IDS} "
    "GROUP BY state, hold",
)
COUNT_BY_STATUS = Statement(
    "entry_count_by_status",
    "The number of entries of each status but succeeded, and of all of them under ''.",
    "SELECT '', count(*) FROM agent_schedule_queue UNION ALL "
    + " UNION ALL ".join(
        f"SELECT '{status}', count(*) FROM {rows}"
        if not rows.startswith("kept_entries")
        # the table of entries decides whether one is still held for its worker
        else f"SELECT '{status}', count(*) FROM kept_entries k CROSS JOIN agent_schedule_queue q "
        "ON q.sched_id = k.sched_id WHERE q.state = 'queued' AND q.hold = 'worker'"
        for status, parts in _PARTS.items()
        for rows in parts
    ),
)
COUNT_BY_STATUS_WITHIN = Statement(
    "entry_count_by_status_within",
    "The number of entries of some projects of each status; '' is no project.",
    f"SELECT {STATUS}, count(*) FROM agent_schedule_queue q WHERE coalesce(q.project_id, '') IN {IDS} GROUP BY 1",
)
UNFINISHED = Statement(
    "entry_unfinished",
    "Groups of entries that are queued or running and alike in agent, hold, kind and needs.",
    "SELECT pid, state, hold, kind, worker_id, count(*), min(sched_id), min(runnable_at), min(claim_expires_at) "
    "FROM agent_schedule_queue WHERE state IN ('queued', 'dispatched') "
    "GROUP BY state, hold, pid, kind, needs, worker_id ORDER BY min(sched_id) LIMIT +?",
)

# --- relatives -----------------------------------------------------------------------------------

_RELATIVE = f"q.sched_id, q.pid, {STATUS}, q.project_id"
CHILDREN = Statement(
    "entry_children",
    "The entries that an entry spawned, with their agents and statuses, by id.",
    f"SELECT {_RELATIVE} FROM agent_schedule_queue q WHERE instr(q.options, '\"parent_id\":') > 0 "
    "AND CASE WHEN json_valid(q.options) THEN json_extract(q.options, '$.parent_id') END = ? "
    "ORDER BY q.sched_id LIMIT +?",
    postgres=f"SELECT {_RELATIVE} FROM agent_schedule_queue q WHERE strpos(q.options, '\"parent_id\":') > 0 "
    "AND rota_json_text(q.options, 'parent_id') = ? ORDER BY q.sched_id LIMIT ?",
)
RELATIVES = Statement(
    "entry_relatives",
    "Some entries, with their agents and statuses, by id.",
    f"SELECT {_RELATIVE} FROM agent_schedule_queue q WHERE q.sched_id IN {IDS} ORDER BY q.sched_id",
)

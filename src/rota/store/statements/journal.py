"""The journal and its checkpoints."""

from __future__ import annotations

from rota.store.protocol import Statement

_EVENT = "event_id, pid, ts, kind, payload, causation_id, correlation_id, author"
_BODY = "CASE WHEN json_valid(payload) THEN payload ELSE '{}' END"  # for functions that fail on a damaged payload

EVENT_APPEND = Statement(
    "event_append",
    "Append an event.",
    "INSERT INTO agent_events (pid, ts, kind, payload, causation_id, correlation_id, author) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)",
    everyday=True,
)
EVENT_TAIL = Statement(
    "event_tail",
    "Events after a cursor, oldest first.",
    f"SELECT {_EVENT} FROM agent_events WHERE event_id > +? ORDER BY event_id LIMIT +?",
)
EVENT_TAIL_KINDS = Statement(
    "event_tail_kinds",
    "Events of some kinds after a cursor.",
    f"SELECT {_EVENT} FROM agent_events WHERE event_id > +?1 "
    "AND kind IN (SELECT value FROM json_each(?2)) ORDER BY event_id LIMIT +?3",
)
EVENT_TAIL_OF = Statement(
    "event_tail_of",
    "One agent's events after a cursor, oldest first, without those of its entries.",
    f"SELECT {_EVENT} FROM agent_events WHERE pid = +? AND pid IS NOT NULL AND kind NOT GLOB 'kernel.sched.*' "
    "AND event_id > +? ORDER BY event_id LIMIT +?",
)
EVENT_TAIL_OF_KINDS = Statement(
    "event_tail_of_kinds",
    "One agent's events of some kinds after a cursor, oldest first, without those of its entries.",
    f"SELECT {_EVENT} FROM agent_events WHERE pid = +?1 AND pid IS NOT NULL AND kind NOT GLOB 'kernel.sched.*' "
    "AND event_id > +?2 AND +kind IN (SELECT value FROM json_each(?3)) ORDER BY event_id LIMIT +?4",
)
EVENT_TAIL_OF_ENTRY_KINDS = Statement(
    "event_tail_of_entry_kinds",
    "One agent's events of some kinds after a cursor, oldest first, also those of its entries.",
    f"SELECT {_EVENT} FROM agent_events WHERE +pid = ?1 AND event_id > +?2 "
    "AND kind IN (SELECT value FROM json_each(?3)) ORDER BY event_id LIMIT +?4",
)
LAST_PROGRESS = Statement(
    "event_last_progress",
    "The newest progress report of a run among the newest events of its agent, without those of its entries.",
    "SELECT ts, payload FROM (SELECT event_id, ts, kind, payload FROM agent_events WHERE pid = +?1 "
    "AND pid IS NOT NULL AND kind NOT GLOB 'kernel.sched.*' AND event_id > +?2 ORDER BY event_id DESC LIMIT +?3) "
    f"WHERE kind = ?4 AND json_extract({_BODY}, '$.sched_id') = ?5 ORDER BY event_id DESC LIMIT 1",
    postgres="SELECT ts, payload FROM (SELECT event_id, ts, kind, payload FROM agent_events WHERE pid = ?1 "
    "AND pid IS NOT NULL AND kind NOT GLOB 'kernel.sched.*' AND event_id > ?2 ORDER BY event_id DESC LIMIT ?3) e "
    "WHERE kind = ?4 AND rota_json_number(payload, 'sched_id') = ?5 ORDER BY event_id DESC LIMIT 1",
)
EVENT_ENDS = Statement(
    "event_ends",
    "The first and the last event id.",
    "SELECT (SELECT min(event_id) FROM agent_events), (SELECT max(event_id) FROM agent_events)",
    postgres="SELECT (SELECT event_id FROM agent_events ORDER BY event_id LIMIT 1), "
    "(SELECT event_id FROM agent_events ORDER BY event_id DESC LIMIT 1)",
)
EVENT_FROM = Statement(
    "event_from",
    "The first event from an id on, and its time.",
    "SELECT event_id, ts FROM agent_events WHERE event_id >= +? ORDER BY event_id LIMIT 1",
)
EVENTS_NAMING = Statement(
    "events_naming",
    "Events in a range that may concern an entry: it was enqueued there, or its id occurs.",
    f"SELECT {_EVENT} FROM agent_events WHERE event_id >= +?1 AND event_id <= +?2 AND ("
    f"(kind = 'kernel.sched.enqueued' AND json_extract({_BODY}, '$.first_id') <= ?3 "
    f"AND json_extract({_BODY}, '$.first_id') + coalesce(json_extract({_BODY}, '$.count'), 1) > ?3) "
    "OR (kind GLOB 'kernel.*' AND kind != 'kernel.sched.enqueued' AND instr(payload, ?4))) ORDER BY event_id",
    postgres=f"SELECT {_EVENT} FROM agent_events WHERE event_id >= ?1 AND event_id <= ?2 AND ("
    "(kind = 'kernel.sched.enqueued' AND rota_json_number(payload, 'first_id') <= ?3 "
    "AND rota_json_number(payload, 'first_id') + coalesce(rota_json_number(payload, 'count'), 1) > ?3) "
    "OR (kind GLOB 'kernel.*' AND kind != 'kernel.sched.enqueued' AND strpos(payload, ?4) > 0)) ORDER BY event_id",
)
RECENT_CLAIMS = Statement(
    "recent_claims",
    "The number of entries claimed in a range of the journal, and the time of the first claim.",
    f"SELECT coalesce(sum(json_array_length({_BODY}, '$.entries')), 0), min(ts) FROM agent_events "
    "WHERE event_id > +?1 AND event_id <= +?2 AND kind = 'kernel.sched.claimed'",
    postgres="SELECT coalesce(sum(rota_json_length(payload, 'entries')), 0)::bigint, min(ts) FROM agent_events "
    "WHERE event_id > ?1 AND event_id <= ?2 AND kind = 'kernel.sched.claimed'",
)
LAST_CLAIM = Statement(
    "last_claim",
    "The newest claim in a range of the journal that was not forced, and its policy.",
    f"SELECT event_id, json_extract({_BODY}, '$.policy') FROM agent_events WHERE event_id > +?1 AND event_id <= +?2 "
    f"AND kind = 'kernel.sched.claimed' AND json_valid(payload) AND json_extract({_BODY}, '$.forced_by') IS NULL "
    "ORDER BY event_id DESC LIMIT 1",
    postgres="SELECT event_id, rota_json_text(payload, 'policy') FROM agent_events WHERE event_id > ?1 AND "
    "event_id <= ?2 "
    "AND kind = 'kernel.sched.claimed' AND rota_json_valid(payload) AND rota_json_text(payload, 'forced_by') IS NULL "
    "ORDER BY event_id DESC LIMIT 1",
)
LAST_FAILURE = Statement(
    "last_failure",
    "The policy that failed last in a range of the journal.",
    f"SELECT json_extract({_BODY}, '$.policy') FROM agent_events WHERE event_id > +?1 AND event_id <= +?2 "
    "AND kind = 'kernel.policy.fell_back' AND json_valid(payload) ORDER BY event_id DESC LIMIT 1",
    postgres="SELECT rota_json_text(payload, 'policy') FROM agent_events WHERE event_id > ?1 AND event_id <= ?2 "
    "AND kind = 'kernel.policy.fell_back' AND rota_json_valid(payload) ORDER BY event_id DESC LIMIT 1",
)
EVENT_COUNT = Statement(
    "event_count",
    "The number of events.",
    "SELECT count(*) FROM agent_events",
)
EVENTS_PRUNE = Statement(
    "events_prune",
    "Delete a batch of the oldest events.",
    # the last event stays, so that its id is never reused
    "DELETE FROM agent_events WHERE event_id IN (SELECT event_id FROM agent_events WHERE event_id <= +?1 AND ts < +?2 "
    "AND event_id < (SELECT max(event_id) FROM agent_events) ORDER BY event_id LIMIT +?3) RETURNING event_id",
    postgres="DELETE FROM agent_events WHERE event_id = ANY (ARRAY(SELECT event_id FROM agent_events "
    "WHERE event_id <= ?1 AND ts < ?2 AND event_id < (SELECT event_id FROM agent_events ORDER BY event_id "
    "DESC LIMIT 1) "
    "ORDER BY event_id LIMIT ?3)) RETURNING event_id",
)
CHECKPOINT_PUT = Statement(
    "checkpoint_put",
    "Store one part of a checkpoint, in place of the same part that a killed process left.",
    "INSERT INTO journal_checkpoints (through_id, part, made_at, body) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (through_id, part) DO UPDATE SET made_at = excluded.made_at, body = excluded.body",
)
CHECKPOINT_GET = Statement(
    "checkpoint_get",
    "The first parts of a checkpoint.",
    "SELECT body FROM journal_checkpoints WHERE through_id = ? AND part < ? ORDER BY part",
)
CHECKPOINT_DROP = Statement(
    "checkpoint_drop",
    "Delete some parts of checkpoints older than one.",
    "DELETE FROM journal_checkpoints WHERE (through_id, part) IN "
    "(SELECT through_id, part FROM journal_checkpoints WHERE through_id < ? LIMIT +?) RETURNING part",
)
ENTRY_STATES = Statement(
    "entry_states",
    "The state of every entry after one, by id, for a checkpoint.",
    "SELECT sched_id, state FROM agent_schedule_queue WHERE sched_id > +? ORDER BY sched_id LIMIT +?",
)
LEDGER_STATES = Statement(
    "ledger_states",
    "Every ledger line, for a checkpoint.",
    "SELECT pid, dim, used, granted FROM agent_ledgers ORDER BY pid, dim",
)
PROJECT_FLOW_STATES = Statement(
    "project_flow_states",
    "Every project flow that is not zero, for a checkpoint.",
    "SELECT project_id, virtual_time, clock FROM project_flows WHERE virtual_time != 0 OR clock != 0 "
    "ORDER BY project_id",
)
AGENT_FLOW_STATES = Statement(
    "agent_flow_states",
    "Every agent flow that is not zero, for a checkpoint.",
    "SELECT pid, virtual_time FROM agent_flows WHERE virtual_time != 0 ORDER BY pid",
)
CONTEXT_STATES = Statement(
    "context_states",
    "Every context's standing, for a checkpoint.",
    "SELECT context_id, state, standing FROM contexts ORDER BY context_id",
)
GRANT_STATES = Statement(
    "grant_states",
    "Every grant between projects, for a checkpoint.",
    "SELECT from_project, to_project FROM project_grants ORDER BY from_project, to_project",
)

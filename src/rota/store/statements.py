"""Every SQL statement, in one place, each with a name and a sentence. The caller passes `now`."""

from __future__ import annotations

from rota.store.protocol import Statement

_ENTRY = (
    "sched_id, pid, priority, runnable_at, deadline, trigger, payload, state, worker_id, "
    "created_at, dispatched_at, completed_at, exit_kind, attempt, result, token"
)

META_GET = Statement(
    "meta_get",
    "Read a value of the file's own settings.",
    "SELECT value FROM kernel_meta WHERE key = ?",
)
META_SET = Statement(
    "meta_set",
    "Write a value of the file's own settings.",
    "INSERT INTO kernel_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
)

EVENT_APPEND = Statement(
    "event_append",
    "Append to the journal.",
    "INSERT INTO agent_events (pid, ts, kind, payload, causation_id, correlation_id) VALUES (?, ?, ?, ?, ?, ?) "
    "RETURNING event_id",
)
EVENT_TAIL = Statement(
    "event_tail",
    "Events after a cursor, oldest first.",
    "SELECT event_id, pid, ts, kind, payload, causation_id, correlation_id FROM agent_events "
    "WHERE event_id > ? ORDER BY event_id LIMIT ?",
)

AGENT_CREATE = Statement(
    "agent_create",
    "Make an agent, ready to run.",
    "INSERT INTO agent_processes (parent_pid, name, template, state, created_at, updated_at, metadata) "
    "VALUES (?, ?, ?, 'READY', ?, ?, ?) RETURNING pid",
)
AGENT_STATE = Statement(
    "agent_state",
    "An agent's state.",
    "SELECT state FROM agent_processes WHERE pid = ?",
)

ENTRY_ENQUEUE = Statement(
    "entry_enqueue",
    "Put an entry into the queue.",
    "INSERT INTO agent_schedule_queue (pid, priority, runnable_at, deadline, trigger, payload, created_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING sched_id",
)
ENTRY_GET = Statement(
    "entry_get",
    "One entry.",
    f"SELECT {_ENTRY} FROM agent_schedule_queue WHERE sched_id = ?",
)
ENTRY_CLAIM_STRICT = Statement(
    "entry_claim_strict",
    "Hand the first ready entries, in strict order, to a worker.",
    # The rows are chosen by the index in its own order; the update then goes by primary key.
    "UPDATE agent_schedule_queue SET state = 'dispatched', worker_id = ?1, dispatched_at = ?2, "
    "attempt = attempt + 1 "
    "WHERE sched_id IN (SELECT sched_id FROM agent_schedule_queue WHERE state = 'queued' "
    "AND runnable_at <= ?2 AND (deadline IS NULL OR deadline > ?2) "
    "ORDER BY priority DESC, runnable_at, sched_id LIMIT ?3) "
    f"RETURNING {_ENTRY}",
)
ENTRY_TOKEN = Statement(
    "entry_token",
    "Stamp a claimed entry with its claim's token.",
    "UPDATE agent_schedule_queue SET token = ? WHERE sched_id = ?",
)
ENTRY_COMPLETE = Statement(
    "entry_complete",
    "End a run.",
    "UPDATE agent_schedule_queue SET state = 'completed', completed_at = ?, exit_kind = ?, result = ? "
    "WHERE sched_id = ?",
)

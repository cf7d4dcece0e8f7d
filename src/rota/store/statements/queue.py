"""The queue: enqueue, read, change and cancel entries; dependencies, affinity and retention."""

from __future__ import annotations

from rota.store.protocol import Statement

# kernel/rows.py relies on this order. The columns of a ready entry come first; a claim reads only those, because
# every column costs time.
READY_COLUMNS = (
    "sched_id, pid, priority, runnable_at, deadline, trigger, payload, created_at, project_id, attempt, max_attempts, "
    "outcome, key, kind, needs, options, result"  # of a ready entry: the checkpoint of an earlier attempt
)
ENTRY = (
    f"{READY_COLUMNS}, state, worker_id, dispatched_at, completed_at, exit_kind, hold, token, "
    "claim_expires_at, cancel_requested, held_workspace"
)
IDS = "(SELECT value FROM json_each(?))"
# on PostgreSQL: the ids of agents' entries have a table of their own, in their order, and each row is found by its key
BY_AGENT = (
    "agent_entries a CROSS JOIN LATERAL (SELECT * FROM agent_schedule_queue e WHERE e.sched_id = a.sched_id OFFSET 0) q"
)


def of_kinds(column: str, kinds: str) -> str:
    """Return the condition for entries of listed kinds, or of none: a list that begins with `!` leaves these out."""
    has_none = f"({column} IS NULL AND substr({kinds}, 3, 1) IS NOT '!')"
    return f"({has_none} OR {column} IN (SELECT value FROM json_each({kinds})))"


# --- enqueue -------------------------------------------------------------------------------------

_GIVEN = (
    "pid, project_id, priority, runnable_at, trigger, payload, created_at, max_attempts, key, kind, needs, options, "
    "by_date"
)
ENQUEUE = Statement(
    "entry_enqueue",
    # not INSERT … SELECT from the agent's row: reading that first and inserting values takes half the time
    "Enqueue an entry; the caller has checked that its agent is alive.",
    f"INSERT INTO agent_schedule_queue ({_GIVEN}, deadline, hold) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
)
ENQUEUE_READY = Statement(
    "entry_enqueue_ready",
    "Enqueue an entry that is ready now and has no deadline: it changes nothing that other processes remember.",
    f"INSERT INTO agent_schedule_queue ({_GIVEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    everyday=True,
)
ENQUEUE_SIMPLE = Statement(
    "entry_enqueue_simple",
    "Enqueue an entry of which nothing else is given, like nearly all: a third of the parameters to pass.",
    "INSERT INTO agent_schedule_queue (pid, project_id, priority, payload, created_at) VALUES (?, ?, ?, ?, ?)",
    everyday=True,
)
COPY = Statement(
    "entry_copy",
    "Enqueue a copy of an entry, ready now.",
    "INSERT INTO agent_schedule_queue (pid, priority, trigger, payload, created_at, project_id, max_attempts, kind, "
    "needs, options) SELECT pid, priority, trigger, payload, ?, project_id, max_attempts, kind, "
    "json_remove(needs, '$.lender'), json_remove(options, '$.errors') "  # nothing is lent to the copy
    "FROM agent_schedule_queue WHERE sched_id = ? RETURNING sched_id",
    postgres="INSERT INTO agent_schedule_queue (sched_id, pid, priority, trigger, payload, created_at, project_id, "
    "max_attempts, kind, needs, options) "
    "SELECT (SELECT sched_id FROM agent_schedule_queue ORDER BY sched_id DESC LIMIT 1) + 1, pid, priority, "
    "trigger, payload, ?, project_id, max_attempts, kind, "
    "rota_json_without(needs, 'lender'), rota_json_without(options, 'errors') "
    "FROM agent_schedule_queue WHERE sched_id = ? RETURNING sched_id",
)
COPY_TAGS = Statement(
    "entry_copy_tags",
    "Copy an entry's tags.",
    "INSERT INTO entry_tags (tag, sched_id) SELECT tag, ? FROM entry_tags WHERE sched_id = ?",
)
BY_KEY = Statement(
    "entry_by_key",
    "The entry of a project with an idempotency key; NULL is no project.",
    "SELECT sched_id FROM agent_schedule_queue WHERE key = ? AND coalesce(project_id, '') = coalesce(?, '')",
)
# Made by the first call that compares entries of an agent: without it, such a call reads all that the agent ever ran.
INDEX_UNENDED = Statement(
    "index_unended_by_agent",
    "Index the queued and running entries of each agent by trigger.",
    "CREATE INDEX IF NOT EXISTS idx_sched_queue_unended_by_agent "
    "ON agent_schedule_queue (pid, trigger, sched_id) WHERE state IN ('queued','dispatched')",
    # the sum keeps the planner from walking along the primary key in place of it
    postgres="CREATE INDEX IF NOT EXISTS idx_sched_queue_unended_by_agent "
    "ON agent_schedule_queue (pid, trigger, (sched_id + 0)) WHERE state IN ('queued','dispatched')",
)
DUPLICATE = Statement(
    "entry_duplicate",
    "A queued or running entry of an agent with the same trigger and payload; a payload of NULL equals any.",
    "SELECT sched_id FROM agent_schedule_queue INDEXED BY idx_sched_queue_unended_by_agent "
    "WHERE pid = ?1 AND trigger = ?2 AND state IN ('queued','dispatched') "
    "AND (?3 IS NULL OR payload = +?3) ORDER BY sched_id LIMIT 1",
    postgres="SELECT sched_id FROM agent_schedule_queue WHERE pid = ?1 AND trigger = ?2 "
    "AND state IN ('queued','dispatched') AND (?3 IS NULL OR payload = ?3) ORDER BY sched_id + 0 LIMIT 1",
)
DUPLICATE_OF_ANY_TRIGGER = Statement(
    "entry_duplicate_of_any_trigger",
    "A queued or running entry of an agent with the same payload; a payload of NULL equals any.",
    "SELECT sched_id FROM agent_schedule_queue INDEXED BY idx_sched_queue_unended_by_agent "
    "WHERE pid = ?1 AND state IN ('queued','dispatched') "
    "AND (?2 IS NULL OR payload = +?2) ORDER BY trigger, sched_id LIMIT 1",
    postgres="SELECT sched_id FROM agent_schedule_queue WHERE pid = ?1 AND state IN ('queued','dispatched') "
    "AND (?2 IS NULL OR payload = ?2) ORDER BY trigger, sched_id + 0 LIMIT 1",
)
TAG = Statement(
    "entry_tag",
    "Tag an entry.",
    "INSERT INTO entry_tags (tag, sched_id) VALUES (?, ?)",
)

# --- read ----------------------------------------------------------------------------------------

GET = Statement(
    "entry_get",
    "One entry.",
    f"SELECT {ENTRY} FROM agent_schedule_queue WHERE sched_id = ?",
)
PROJECTS_OF = Statement(
    "entry_projects_of",
    "The projects of some entries.",
    f"SELECT sched_id, project_id FROM agent_schedule_queue WHERE sched_id IN {IDS}",
)

# --- change queued entries -----------------------------------------------------------------------

FOR_CHANGE = Statement(
    "entry_for_change",
    "The columns needed to change entries.",
    "SELECT sched_id, state, hold, exit_kind, runnable_at, deadline, priority, pid, project_id, created_at, options, "
    f"cancel_requested FROM agent_schedule_queue WHERE sched_id IN {IDS} ORDER BY sched_id",
)
CHANGE = Statement(
    "entry_change",
    "Change the priority, time or deadline of a queued entry.",
    "UPDATE agent_schedule_queue SET priority = ?, runnable_at = ?, deadline = ?, hold = ?, "
    "by_date = coalesce(?, by_date) WHERE sched_id = ?",
)
UNTAG = Statement(
    "entry_untag",
    "Remove the tags of an entry.",
    "DELETE FROM entry_tags WHERE sched_id = ?",
)
CANCEL = Statement(
    "entry_cancel",
    "Cancel a queued entry.",
    "UPDATE agent_schedule_queue SET state = 'cancelled', hold = NULL, completed_at = ?, outcome = ? "
    "WHERE sched_id = ?",
)
RELEASE = Statement(
    "entry_release",
    "Set or clear the hold of an entry.",
    "UPDATE agent_schedule_queue SET hold = ? WHERE sched_id = ?",
)
REQUEST_CANCEL = Statement(
    "entry_request_cancel",
    "Request cancellation of a running entry.",
    "UPDATE agent_schedule_queue SET cancel_requested = 1 WHERE sched_id = ?",
)

# --- dependencies --------------------------------------------------------------------------------

AFTER_ADD = Statement(
    "after_add",
    "Record that an entry waits for another.",
    "INSERT INTO entry_after (sched_id, waits_for) VALUES (?, ?)",
)
AFTER_OF = Statement(
    "after_of",
    "The entries that an entry waits for.",
    "SELECT waits_for FROM entry_after WHERE sched_id = +?",
)
AFTER_REMOVE = Statement(
    "after_remove",
    "Record that an entry no longer waits for another.",
    "DELETE FROM entry_after WHERE sched_id = ? AND waits_for = ?",
)
WAKE = Statement(
    "entry_wake",
    "Make an entry ready that waits for others or for a time.",
    "UPDATE agent_schedule_queue SET hold = NULL, runnable_at = min(runnable_at, ?1) WHERE sched_id = ?2",
)
STATES_OF = Statement(
    "entry_states_of",
    "The states and projects of some entries.",
    f"SELECT sched_id, state, exit_kind, project_id FROM agent_schedule_queue WHERE sched_id IN {IDS}",
)
PREDECESSORS = Statement(
    "entry_predecessors",
    "The states of an entry's predecessors.",
    "SELECT a.waits_for, p.state, p.exit_kind FROM entry_after a "
    "LEFT JOIN agent_schedule_queue p ON p.sched_id = a.waits_for WHERE a.sched_id = +? ORDER BY a.waits_for",
)
AWAITED = Statement(
    "entry_awaited",
    "Those of some entries that have dependents which wait now.",
    f"SELECT DISTINCT a.waits_for FROM entry_after a CROSS JOIN agent_schedule_queue q ON q.sched_id = a.sched_id "
    f"WHERE a.waits_for IN {IDS} AND q.state = 'queued' AND q.hold IS NOT NULL",
    postgres=f"SELECT DISTINCT a.waits_for FROM entry_after a WHERE a.waits_for IN {IDS} AND (SELECT true FROM "
    "agent_schedule_queue q WHERE q.sched_id = a.sched_id AND +q.state = 'queued' AND q.hold IS NOT NULL)",
)
DEPENDENTS = Statement(
    "entry_dependents",
    "The next entries held for a predecessor, by id.",
    "SELECT q.sched_id, q.pid, q.project_id, q.runnable_at, q.options, q.kind, q.priority FROM entry_after a "
    "CROSS JOIN agent_schedule_queue q ON q.sched_id = a.sched_id "
    "WHERE a.waits_for = +? AND a.sched_id > +? AND q.state = 'queued' AND (q.hold = 'after' OR q.hold = 'time') "
    "ORDER BY a.sched_id LIMIT +?",
)
DEPENDENT = Statement(
    "entry_dependent",
    "One entry, if it is held for a predecessor.",
    "SELECT sched_id, pid, project_id, runnable_at, options, kind, priority FROM agent_schedule_queue "
    "WHERE sched_id = ? AND state = 'queued' AND hold = 'after'",
)
SET_OPTIONS = Statement(
    "entry_set_options",
    "Change an entry's options.",
    "UPDATE agent_schedule_queue SET options = ? WHERE sched_id = ?",
)
PENDING_ADD = Statement(
    "dependents_pending_add",
    "Record that an ended entry's dependents must be updated.",
    "INSERT INTO entry_fallout (sched_id, seen_id) VALUES (?, 0) ON CONFLICT (sched_id) DO NOTHING",
)
PENDING_NEXT = Statement(
    "dependents_pending_next",
    "An ended entry whose dependents must be updated.",
    "SELECT sched_id, seen_id FROM entry_fallout ORDER BY sched_id LIMIT 1",
)
PENDING_ADVANCE = Statement(
    "dependents_pending_advance",
    "Record how far an entry's dependents are updated.",
    "UPDATE entry_fallout SET seen_id = ? WHERE sched_id = ?",
)
PENDING_DONE = Statement(
    "dependents_pending_done",
    "Record that all dependents of an entry are updated.",
    "DELETE FROM entry_fallout WHERE sched_id = ?",
)

# --- affinity: ready entries held for a worker ---------------------------------------------------

AFFINITY_ADD = Statement(
    "affinity_add",
    "Hold an entry for a worker until a time, with its place in strict order, to find the first of many.",
    "INSERT OR REPLACE INTO kept_entries (sched_id, worker_id, kind, priority, runnable_at, until_at) "
    "VALUES (?, ?, ?, ?, ?, ?)",
    postgres="INSERT INTO kept_entries (sched_id, worker_id, kind, priority, runnable_at, until_at) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (sched_id) DO UPDATE SET worker_id = excluded.worker_id, "
    "kind = excluded.kind, priority = excluded.priority, runnable_at = excluded.runnable_at, "
    "until_at = excluded.until_at",
)
AFFINITY_REORDER = Statement(
    "affinity_reorder",
    "Change the place in strict order of an entry held for a worker.",
    "UPDATE kept_entries SET priority = ?, runnable_at = ? WHERE sched_id = ?",
)
AFFINITY_END_BY = Statement(
    "affinity_end_by",
    "End every affinity hold by this time at the latest.",
    "UPDATE kept_entries SET until_at = ?1 WHERE until_at > ?1",
)
AFFINITY_END_BY_OF_WORKER = Statement(
    "affinity_end_by_of_worker",
    "End the affinity holds for a worker, or for one of its slot kinds, by this time at the latest.",
    "UPDATE kept_entries SET until_at = ?1 WHERE until_at > ?1 "
    "AND (worker_id = ?2 OR (worker_id > ?2 || '/' AND worker_id < ?2 || '0'))",  # "0" follows "/" in ASCII
)
AFFINITY_WORKER = Statement(
    "affinity_worker",
    "The worker an entry is held for, and until when.",
    "SELECT worker_id, until_at FROM kept_entries WHERE sched_id = ?",
)
_HELD = (
    "SELECT k.sched_id, q.pid, q.project_id, k.priority, k.runnable_at "
    "FROM kept_entries k CROSS JOIN agent_schedule_queue q ON q.sched_id = k.sched_id"
)
AFFINITY_FIRST = Statement(
    "affinity_first",
    "The first entries of a kind held for a worker, in strict order.",
    f"{_HELD} WHERE k.worker_id = +?1 AND k.kind IS +?2 ORDER BY k.priority DESC, k.runnable_at, k.sched_id LIMIT +?3",
    postgres=f"{_HELD} WHERE k.worker_id = ?1 AND coalesce(k.kind, '') = coalesce(?2, '') "
    "ORDER BY k.priority DESC, k.runnable_at, k.sched_id LIMIT ?3",
)
AFFINITY_DUE = Statement(
    "affinity_due",
    "Entries whose affinity hold has ended, longest ago first.",
    f"{_HELD} WHERE k.until_at <= +?1 ORDER BY k.until_at, k.sched_id LIMIT +?2",
)
AFFINITY_GET = Statement(
    "affinity_get",
    "One entry, if it is held for a worker.",
    f"{_HELD} WHERE k.sched_id = ?",
)
AFFINITY_REMOVE = Statement(
    "affinity_remove",
    "Remove the affinity holds of some entries.",
    f"DELETE FROM kept_entries WHERE sched_id IN {IDS}",
)

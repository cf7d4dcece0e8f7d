"""The queue: putting entries in, looking at them, changing and cancelling those that wait."""

from __future__ import annotations

from rota.store.protocol import Statement

# The order is known to kernel/rows. What an entry has while it is ready comes first, and of those that a claim looks
# at nothing else is read: every column has its price.
READY_COLUMNS = (
    "sched_id, pid, priority, runnable_at, deadline, trigger, payload, created_at, project_id, attempt, max_attempts, "
    "outcome, key, kind, needs, options, result"  # a result there is where an earlier attempt stood
)
ENTRY = (
    f"{READY_COLUMNS}, state, worker_id, dispatched_at, completed_at, exit_kind, hold, token, "
    "claim_expires_at, cancel_requested, held_workspace"
)
_COLUMNS = ", ".join(f"q.{column}" for column in ENTRY.split(", "))
IDS = "(SELECT value FROM json_each(?))"

# --- in ------------------------------------------------------------------------------------------

ENQUEUE = Statement(
    "entry_enqueue",
    # not INSERT … SELECT from the agent's row: looking at that first and inserting values takes half the time
    "Put an entry into the queue, whose agent is known to live.",
    "INSERT INTO agent_schedule_queue (pid, project_id, priority, runnable_at, deadline, trigger, payload, created_at, "
    "hold, max_attempts, key, kind, needs, options) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
)
ENQUEUE_PLAIN = Statement(
    "entry_enqueue_plain",
    "Put an entry into the queue of which nothing but the usual is said, ready at once, and whose agent lives.",
    "INSERT INTO agent_schedule_queue (pid, project_id, priority, runnable_at, trigger, payload, created_at, key) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
)
COPY = Statement(
    "entry_copy",
    "Put a copy of an entry into the queue, to be run now.",
    "INSERT INTO agent_schedule_queue (pid, priority, trigger, payload, created_at, project_id, max_attempts, kind, "
    "needs, options) SELECT pid, priority, trigger, payload, ?, project_id, max_attempts, kind, needs, options "
    "FROM agent_schedule_queue WHERE sched_id = ? RETURNING sched_id",
)
COPY_TAGS = Statement(
    "entry_copy_tags",
    "Give a copy its tags.",
    "INSERT INTO entry_tags (tag, sched_id) SELECT tag, ? FROM entry_tags WHERE sched_id = ?",
)
BY_KEY = Statement(
    "entry_by_key",
    "The entry of an idempotency key.",
    "SELECT sched_id FROM agent_schedule_queue WHERE key = ?",
)
ALIKE = Statement(
    "entry_alike",
    "A waiting or running entry of an agent with the same trigger and payload, each compared only if asked.",
    "SELECT sched_id FROM agent_schedule_queue WHERE pid = +?1 AND state IN ('queued','dispatched') "
    "AND (?2 IS NULL OR trigger = +?2) AND (?3 IS NULL OR payload = +?3) ORDER BY sched_id LIMIT 1",
)
TAG = Statement(
    "entry_tag",
    "Tag an entry.",
    "INSERT INTO entry_tags (tag, sched_id) VALUES (?, ?)",
)

# --- looking -------------------------------------------------------------------------------------

GET = Statement(
    "entry_get",
    "One entry.",
    f"SELECT {ENTRY} FROM agent_schedule_queue WHERE sched_id = ?",
)
COUNT_BY_STATE = Statement(
    "entry_count_by_state",
    "How many entries are in each state, and why those that wait do.",
    "SELECT state, hold, count(*) FROM agent_schedule_queue GROUP BY state, hold",
)

# A filter: ?1 state, ?2 pid, ?3 project, ?4 trigger, ?5 exit_kind, ?6 tag; NULL is any. By id, after ?7.
_MATCHES = (
    "(?1 IS NULL OR q.state = ?1) AND (?2 IS NULL OR q.pid = ?2) AND (?3 IS NULL OR q.project_id = ?3) "
    "AND (?4 IS NULL OR q.trigger = ?4) AND (?5 IS NULL OR q.exit_kind = ?5) "
    "AND (?6 IS NULL OR EXISTS (SELECT 1 FROM entry_tags t WHERE t.tag = ?6 AND t.sched_id = q.sched_id))"
)
FILTERED = Statement(
    "entry_filtered",
    "A page of entries that match a filter, by id.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE {_MATCHES} ORDER BY q.sched_id LIMIT +?7 OFFSET ?8",
)
FILTERED_OF_AGENT = Statement(
    "entry_filtered_of_agent",
    "A page of one agent's entries that match a filter, by id.",
    f"SELECT {_COLUMNS} FROM agent_schedule_queue q WHERE q.pid = +?2 AND {_MATCHES} "
    "ORDER BY q.sched_id LIMIT +?7 OFFSET ?8",
)
FILTERED_OF_TAG = Statement(
    "entry_filtered_of_tag",
    "A page of the entries with a tag that match a filter, by id.",
    f"SELECT {_COLUMNS} FROM entry_tags g CROSS JOIN agent_schedule_queue q ON q.sched_id = g.sched_id "
    f"WHERE g.tag = +?6 AND {_MATCHES} ORDER BY g.sched_id LIMIT +?7 OFFSET ?8",
)
FILTERED_COUNT = Statement(
    "entry_filtered_count",
    "How many entries match a filter.",
    f"SELECT count(*) FROM agent_schedule_queue q WHERE {_MATCHES}",
)
FILTERED_COUNT_OF_AGENT = Statement(
    "entry_filtered_count_of_agent",
    "How many of an agent's entries match a filter.",
    f"SELECT count(*) FROM agent_schedule_queue q WHERE q.pid = ?2 AND {_MATCHES}",
)
MATCHING_IDS = Statement(
    "entry_matching_ids",
    "The next entries that match a filter, by id, for a change in batches.",
    f"SELECT q.sched_id FROM agent_schedule_queue q WHERE q.sched_id > +?7 AND {_MATCHES} "
    "ORDER BY q.sched_id LIMIT +?8",
)
MATCHING_IDS_OF_AGENT = Statement(
    "entry_matching_ids_of_agent",
    "The next of an agent's entries that match a filter, by id, for a change in batches.",
    f"SELECT q.sched_id FROM agent_schedule_queue q WHERE q.pid = +?2 AND q.sched_id > +?7 AND {_MATCHES} "
    "ORDER BY q.sched_id LIMIT +?8",
)

# --- changing what waits -------------------------------------------------------------------------

WAITING = Statement(
    "entry_waiting",
    "What has to be known of entries to change them.",
    # The plus keeps SQLite on the primary key: by state, ten ids would walk a whole index.
    f"SELECT sched_id, state, hold, runnable_at, deadline, priority, pid, project_id "
    f"FROM agent_schedule_queue WHERE sched_id IN {IDS}",
)
CHANGE = Statement(
    "entry_change",
    "Give a waiting entry another priority, time or deadline.",
    "UPDATE agent_schedule_queue SET priority = ?, runnable_at = ?, deadline = ?, hold = ? WHERE sched_id = ?",
)
CANCEL = Statement(
    "entry_cancel",
    "Cancel an entry that waits.",
    "UPDATE agent_schedule_queue SET state = 'cancelled', hold = NULL, completed_at = ?, outcome = ? "
    "WHERE sched_id = ?",
)
RELEASE = Statement(
    "entry_release",
    "Let a held entry go, or hold it for another reason.",
    "UPDATE agent_schedule_queue SET hold = ? WHERE sched_id = ?",
)
REQUEST_CANCEL = Statement(
    "entry_request_cancel",
    "Ask a run to stop.",
    "UPDATE agent_schedule_queue SET cancel_requested = 1 WHERE sched_id = ?",
)

# --- what waits for what -------------------------------------------------------------------------

AFTER_ADD = Statement(
    "after_add",
    "Note that an entry waits for another.",
    "INSERT INTO entry_after (sched_id, waits_for) VALUES (?, ?)",
)
STATES_OF = Statement(
    "entry_states_of",
    "How some entries stand.",
    f"SELECT sched_id, state, exit_kind FROM agent_schedule_queue WHERE sched_id IN {IDS}",
)
PREDECESSORS = Statement(
    "entry_predecessors",
    "How the entries stand that one waits for.",
    "SELECT a.waits_for, p.state, p.exit_kind FROM entry_after a "
    "LEFT JOIN agent_schedule_queue p ON p.sched_id = a.waits_for WHERE a.sched_id = +? ORDER BY a.waits_for",
)
AWAITED = Statement(
    "entry_awaited",
    "Which of some entries others wait for.",
    f"SELECT DISTINCT waits_for FROM entry_after WHERE waits_for IN {IDS}",
)
DEPENDENTS = Statement(
    "entry_dependents",
    "The next entries that are held for one, by id.",
    "SELECT q.sched_id, q.pid, q.project_id, q.runnable_at, q.options, q.kind, q.priority FROM entry_after a "
    "CROSS JOIN agent_schedule_queue q ON q.sched_id = a.sched_id "
    "WHERE a.waits_for = +? AND a.sched_id > +? AND q.state = 'queued' AND q.hold = 'after' "
    "ORDER BY a.sched_id LIMIT +?",
)
DEPENDENT = Statement(
    "entry_dependent",
    "One entry that is held for others.",
    "SELECT sched_id, pid, project_id, runnable_at, options, kind, priority FROM agent_schedule_queue "
    "WHERE sched_id = ? AND state = 'queued' AND hold = 'after'",
)
SET_OPTIONS = Statement(
    "entry_set_options",
    "Change what an entry says about later.",
    "UPDATE agent_schedule_queue SET options = ? WHERE sched_id = ?",
)
FALLOUT_ADD = Statement(
    "fallout_add",
    "Note that those who wait for an entry have to be seen to.",
    "INSERT INTO entry_fallout (sched_id, seen_id) VALUES (?, 0) ON CONFLICT (sched_id) DO NOTHING",
)
FALLOUT_NEXT = Statement(
    "fallout_next",
    "An entry whose dependents have to be seen to.",
    "SELECT sched_id, seen_id FROM entry_fallout ORDER BY sched_id LIMIT 1",
)
FALLOUT_SEEN = Statement(
    "fallout_seen",
    "Note how far an entry's dependents have been seen to.",
    "UPDATE entry_fallout SET seen_id = ? WHERE sched_id = ?",
)
FALLOUT_DONE = Statement(
    "fallout_done",
    "All who waited for an entry have been seen to.",
    "DELETE FROM entry_fallout WHERE sched_id = ?",
)

# --- what is kept for a worker -------------------------------------------------------------------

KEEP = Statement(
    "entry_keep",
    "Keep an entry for a worker until some time. Its place in strict order is noted too, to find the first of many.",
    "INSERT OR REPLACE INTO kept_entries (sched_id, worker_id, kind, priority, runnable_at, until_at) "
    "VALUES (?, ?, ?, ?, ?, ?)",
)
KEPT_PLACE = Statement(
    "entry_kept_place",
    "An entry that is kept has another place in strict order.",
    "UPDATE kept_entries SET priority = ?, runnable_at = ? WHERE sched_id = ?",
)
KEEP_NO_LONGER = Statement(
    "entries_keep_no_longer",
    "No entry is kept for longer than to this time.",
    "UPDATE kept_entries SET until_at = ?1 WHERE until_at > ?1",
)
KEEP_FOR_NO_LONGER = Statement(
    "entries_keep_for_no_longer",
    "No entry is kept for a worker, or for one of its kinds of slots, for longer than to this time.",
    "UPDATE kept_entries SET until_at = ?1 WHERE until_at > ?1 "
    "AND (worker_id = ?2 OR (worker_id > ?2 || '/' AND worker_id < ?2 || '0'))",  # 0 comes after the slash
)
KEPT_FOR = Statement(
    "entry_kept_for",
    "The worker that an entry is kept for, and until when.",
    "SELECT worker_id, until_at FROM kept_entries WHERE sched_id = ?",
)
_KEPT = (
    "SELECT k.sched_id, q.pid, q.project_id, k.priority, k.runnable_at "
    "FROM kept_entries k CROSS JOIN agent_schedule_queue q ON q.sched_id = k.sched_id"
)
FIRST_KEPT = Statement(
    "entries_first_kept",
    "The first entries of a kind that are kept for a worker, in strict order.",
    f"{_KEPT} WHERE k.worker_id = +?1 AND k.kind IS +?2 ORDER BY k.priority DESC, k.runnable_at, k.sched_id LIMIT +?3",
)
KEPT_LONG_ENOUGH = Statement(
    "entries_kept_long_enough",
    "The entries that are kept no longer than to this time, longest first.",
    f"{_KEPT} WHERE k.until_at <= +?1 ORDER BY k.until_at, k.sched_id LIMIT +?2",
)
KEPT = Statement(
    "entry_kept",
    "One entry, if it is kept for a worker.",
    f"{_KEPT} WHERE k.sched_id = ?",
)
KEEP_NO_MORE = Statement(
    "entries_keep_no_more",
    "Entries are kept for nobody.",
    f"DELETE FROM kept_entries WHERE sched_id IN {IDS}",
)

# --- retention -----------------------------------------------------------------------------------

FINISHED_PRUNE = Statement(
    "entries_prune",
    # among a stretch of ids, so that a batch is bounded also where little has ended; the last entry stays, so that its
    # number is never given twice
    "Remove what ended before some time from the next stretch of ids; one that somebody still waits for stays.",
    "DELETE FROM agent_schedule_queue WHERE sched_id > ?1 AND sched_id <= ?2 "
    "AND sched_id < (SELECT max(sched_id) FROM agent_schedule_queue) "
    "AND state IN ('completed','expired','cancelled') AND completed_at < ?3 AND NOT EXISTS "
    "(SELECT 1 FROM entry_after a JOIN agent_schedule_queue d ON d.sched_id = a.sched_id "
    "WHERE a.waits_for = agent_schedule_queue.sched_id AND d.state IN ('queued','dispatched')) RETURNING sched_id",
)

"""What a jump of the wall clock moves: every instant that is a duration from some moment. ?1 is the jump in seconds."""

from __future__ import annotations

from rota.store.protocol import Statement

LAST_EVENT_AT = Statement(
    "clock_last_event_at",
    "The time of the last event.",
    "SELECT ts FROM agent_events ORDER BY event_id DESC LIMIT 1",
)
MOVE_CLAIMS = Statement(
    "clock_move_claims",
    "Move the expiry, the last heartbeat and the start of live claims.",
    "UPDATE agent_schedule_queue SET claim_expires_at = claim_expires_at + ?1, heartbeat_at = heartbeat_at + ?1, "
    "dispatched_at = dispatched_at + ?1 WHERE state = 'dispatched' RETURNING sched_id",
)
MOVE_DELAYS = Statement(
    "clock_move_delays",
    "Move the end of back-offs and delays.",
    "UPDATE agent_schedule_queue SET runnable_at = runnable_at + ?1 WHERE state = 'queued' "
    "AND (hold = 'time' OR hold = 'backoff') AND by_date = 0 RETURNING sched_id",
)
MOVE_DELAYS_AFTER = Statement(
    "clock_move_delays_after",
    "Move the end of the delays of entries that wait for a predecessor.",
    "UPDATE agent_schedule_queue SET runnable_at = runnable_at + ?1 "
    "WHERE sched_id IN (SELECT sched_id FROM entry_after) "
    "AND state = 'queued' AND hold = 'after' AND by_date = 0 AND runnable_at > 0 RETURNING sched_id",
)
# Only after a jump backwards, with ?2 the time after it: a ready entry must not become one of the future, not even by
# the fraction of a millisecond by which jumps are rounded.
MOVE_READY = Statement(
    "clock_move_ready",
    "Move the time since when entries are ready, where it would lie in the future.",
    "UPDATE agent_schedule_queue SET runnable_at = min(runnable_at + ?1, ?2) "
    "WHERE state = 'queued' AND hold IS NULL AND runnable_at > +?2 AND by_date = 0",
)
MOVE_READY_FOR_WORKER = Statement(
    "clock_move_ready_for_worker",
    "The same for entries that are held for a worker.",
    "UPDATE agent_schedule_queue SET runnable_at = min(runnable_at + ?1, ?2) "
    "WHERE sched_id IN (SELECT sched_id FROM kept_entries) "
    "AND state = 'queued' AND hold = 'worker' AND runnable_at > +?2 AND by_date = 0",
)
HOLD_READY = Statement(
    "clock_hold_ready",
    "Hold entries again whose date has become one of the future.",
    "UPDATE agent_schedule_queue SET hold = 'time' WHERE state = 'queued' AND hold IS NULL AND runnable_at > +?1 "
    "AND by_date = 1 RETURNING sched_id, runnable_at",
)
HOLD_READY_FOR_WORKER = Statement(
    "clock_hold_ready_for_worker",
    "The same for entries that are held for a worker.",
    "UPDATE agent_schedule_queue SET hold = 'time' WHERE sched_id IN (SELECT sched_id FROM kept_entries) "
    "AND state = 'queued' AND hold = 'worker' AND runnable_at > +?1 AND by_date = 1 RETURNING sched_id, runnable_at",
)
MOVE_AFFINITY = Statement(
    "clock_move_affinity",
    "Move the end of affinity holds.",
    "UPDATE kept_entries SET until_at = until_at + ?1 RETURNING sched_id",
)
CONTEXTS = Statement(
    "clock_contexts",
    "The allowance of every context.",
    "SELECT context_id, standing FROM contexts",
)
MOVE_CONTEXT = Statement(
    "clock_move_context",
    "Replace a context's allowance by the moved one, ?2, move its other instants, and look at it again at ?4.",
    "UPDATE contexts SET standing = ?2, throttled_until = throttled_until + ?1, refill_at = "
    "CASE WHEN state = 'revoked' THEN NULL ELSE min(coalesce(refill_at + ?1, ?4), ?4) END WHERE context_id = ?3",
)
MOVE_ASKS = Statement(
    "clock_move_asks",
    "Move the instants at which runs asked limits, and were served.",
    "UPDATE limit_asks SET asked_at = asked_at + ?1, granted_at = granted_at + ?1",
)
MOVE_WORKERS = Statement(
    "clock_move_workers",
    "Move the instants at which workers started and were last seen.",
    "UPDATE workers SET started_at = started_at + ?1, seen_at = seen_at + ?1",
)
MOVE_WINDOWS = Statement(
    "clock_move_windows",
    "Move the instants at which usage first leaves each window.",
    "UPDATE usage_windows SET edge_at = edge_at + ?1 WHERE edge_at IS NOT NULL RETURNING owner",
)
# In three steps: a bucket that is moved by a multiple of the width would meet the next one, which is not moved yet. So
# the moved ones are first stored with a negative window. Two that rounding makes equal are added up.
COPY_BUCKETS = Statement(
    "clock_copy_buckets",
    "Store a copy of every bucket that leaves later or earlier by the jump.",
    "INSERT INTO usage_buckets (owner, dim, window_s, leaves_at, amount, ended) "
    "SELECT owner, dim, -window_s, leaves_at + ?1, sum(amount), sum(ended) FROM usage_buckets "
    "GROUP BY owner, dim, window_s, leaves_at + ?1",
)
DROP_BUCKETS = Statement(
    "clock_drop_buckets",
    "Delete the originals.",
    "DELETE FROM usage_buckets WHERE window_s > 0",
)
PUT_BUCKETS = Statement(
    "clock_put_buckets",
    "Let the copies replace them.",
    "UPDATE usage_buckets SET window_s = -window_s",
)
MOVE_LAST_RUNS = Statement(
    "clock_move_last_runs",
    "Move the instants at which agents were last served, with ?2 as the stamp of the change.",
    "UPDATE agent_flows SET last_run_at = last_run_at + ?1, stamp = ?2 WHERE last_run_at != 0",
)
MOVE_QUARANTINES = Statement(
    "clock_move_quarantines",
    "Move the end of quarantines.",
    "UPDATE agent_processes SET metadata = json_set(metadata, '$.quarantined_until', "
    "json_extract(metadata, '$.quarantined_until') + ?1) WHERE paused_by = 'quarantine' AND CASE WHEN "
    "json_valid(metadata) THEN json_type(metadata, '$.quarantined_until') IN ('real', 'integer') ELSE 0 END "
    "RETURNING pid",
    postgres="UPDATE agent_processes SET metadata = (SELECT '{' || string_agg(to_json(e.key)::text || ':' || "
    "CASE e.key WHEN 'quarantined_until' THEN (rota_json_number(metadata, e.key) + ?1)::text ELSE e.value::text END, "
    "',' ORDER BY e.place) || '}' FROM json_each(metadata::json) WITH ORDINALITY AS e(key, value, place)) "
    "WHERE paused_by = 'quarantine' AND rota_json_number(metadata, 'quarantined_until') IS NOT NULL RETURNING pid",
)

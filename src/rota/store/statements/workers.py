"""The register of workers, and the claims by which workers are known."""

from __future__ import annotations

from rota.store.protocol import Statement

WORKER = "worker_id, incarnation, kind, host, os_pid, pools, version, started_at, seen_at, draining"

REGISTER = Statement(
    "worker_register",
    "Register a worker, or renew what is registered.",
    f"INSERT INTO workers ({WORKER}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9) "
    "ON CONFLICT (worker_id, incarnation) DO UPDATE SET pools = ?6, seen_at = ?8, draining = ?9, returned = 0",
)
REPLACE = Statement(
    "worker_replace",
    "Remove the earlier incarnations of a worker.",
    "DELETE FROM workers WHERE worker_id = ?1 AND incarnation != ?2",
)
LEAVE = Statement(
    "worker_leave",
    "Remove a worker.",
    "DELETE FROM workers WHERE worker_id = ? AND incarnation = ?",
)
COUNT = Statement(
    "worker_count",
    "The number of registered workers.",
    "SELECT count(*) FROM workers",
)
LIST = Statement(
    "worker_list",
    "Workers by id.",
    f"SELECT {WORKER} FROM workers ORDER BY worker_id, incarnation LIMIT +?",
)
CLAIMS = Statement(
    "worker_claims",
    "The claims of each worker that expire after a time: their number, the first start and the last heartbeat.",
    "SELECT worker_id, coalesce(incarnation, ''), count(*), min(dispatched_at), "
    "max(coalesce(heartbeat_at, dispatched_at)) FROM agent_schedule_queue INDEXED BY idx_sched_queue_live "
    "WHERE state = 'dispatched' AND claim_expires_at > +?1 AND worker_id IS NOT NULL GROUP BY 1, 2",
)
COUNT_RETURNED = Statement(
    "worker_count_returned",
    "Add to the number of entries whose claims a worker let expire; ?1 is its name or `name/kind`.",
    "UPDATE workers SET returned = returned + ?3 WHERE incarnation = ?2 "
    "AND (worker_id = ?1 OR substr(?1, 1, length(worker_id) + 1) = worker_id || '/')",
)
FIRST_SEEN_AT = Statement(
    "worker_first_seen_at",
    "When the worker was seen that was seen longest ago.",
    "SELECT min(seen_at) FROM workers",
    postgres="SELECT (SELECT seen_at FROM workers ORDER BY seen_at LIMIT 1)",
)
UNSEEN = Statement(
    "workers_unseen",
    "Workers that were last seen before a time, longest ago first.",
    "SELECT worker_id, incarnation, host, returned, pools FROM workers WHERE seen_at <= ?1 ORDER BY seen_at LIMIT +?2",
    postgres="SELECT worker_id, incarnation, host, returned, pools FROM workers WHERE seen_at <= ?1 "
    "ORDER BY seen_at, worker_id, incarnation LIMIT ?2",
)
WAS_AWAY = Statement(
    "worker_was_away",
    "Whether a worker was last seen before ?3, or its claims have expired since, by ?4; ?1 is its name or `name/kind`.",
    "SELECT 1 FROM workers w WHERE w.incarnation = ?2 "
    "AND (w.worker_id = ?1 OR substr(?1, 1, length(w.worker_id) + 1) = w.worker_id || '/') "
    "AND (w.seen_at < ?3 OR EXISTS ("
    "SELECT 1 FROM agent_schedule_queue q INDEXED BY idx_sched_queue_live WHERE q.state = 'dispatched' "
    "AND q.claim_expires_at >= w.seen_at AND q.claim_expires_at <= ?4 AND q.incarnation = w.incarnation "
    "AND (q.worker_id = w.worker_id OR substr(q.worker_id, 1, length(w.worker_id) + 1) = w.worker_id || '/')))",
)
RUNS = Statement(
    "worker_runs",
    "The running entries with their workers, longest running first, without those that wait for others: these have "
    "given up their slots.",
    "SELECT q.sched_id, q.worker_id, coalesce(q.incarnation, '') FROM agent_schedule_queue q "
    "INDEXED BY idx_sched_queue_live JOIN agent_processes p ON p.pid = q.pid "
    "WHERE q.state = 'dispatched' AND p.state != 'WAITING' ORDER BY q.dispatched_at, q.sched_id LIMIT +?",
)

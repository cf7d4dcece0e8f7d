"""Claims: find eligible entries, claim, heartbeat, end, requeue; and what becomes due with time."""

from __future__ import annotations

from rota.store.protocol import Statement
from rota.store.statements.queue import IDS, READY_COLUMNS, of_kinds

# --- what is due ---------------------------------------------------------------------------------

DUE_SUMMARY = Statement(
    "due_summary",
    "When time next changes something, and which tables a claim has to check besides the queue.",
    "SELECT "
    "(SELECT min(runnable_at) FROM agent_schedule_queue "
    "WHERE state = 'queued' AND (hold = 'time' OR hold = 'backoff')), "
    "(SELECT min(claim_expires_at) FROM agent_schedule_queue WHERE state = 'dispatched'), "
    "(SELECT min(deadline) FROM agent_schedule_queue WHERE deadline IS NOT NULL AND state = 'queued'), "
    "(SELECT min(edge_at) FROM usage_windows WHERE edge_at IS NOT NULL), "
    "(SELECT min(refill_at) FROM contexts WHERE refill_at IS NOT NULL), "
    "(SELECT min(until_at) FROM kept_entries), "
    "EXISTS (SELECT 1 FROM entry_fallout), "
    "EXISTS (SELECT 1 FROM enqueue_inbox), "
    "EXISTS (SELECT 1 FROM entry_loans NOT INDEXED), "
    "(SELECT value FROM kernel_meta WHERE key = 'fleet_paused_by'), "
    "EXISTS (SELECT 1 FROM agent_processes WHERE paused_by IS NOT NULL OR max_concurrent = 0), "
    "EXISTS (SELECT 1 FROM agent_processes WHERE max_concurrent IS NOT NULL), "
    "EXISTS (SELECT 1 FROM agent_ledgers), "
    "EXISTS (SELECT 1 FROM budgets WHERE owner = '*'), "
    "EXISTS (SELECT 1 FROM budgets WHERE owner != '*'), "
    "EXISTS (SELECT 1 FROM contexts)",
    postgres="SELECT "
    "(SELECT runnable_at FROM agent_schedule_queue "
    "WHERE state = 'queued' AND (hold = 'time' OR hold = 'backoff') ORDER BY runnable_at LIMIT 1), "
    "(SELECT claim_expires_at FROM agent_schedule_queue WHERE state = 'dispatched' "
    "ORDER BY claim_expires_at LIMIT 1), "
    "(SELECT deadline FROM agent_schedule_queue WHERE deadline IS NOT NULL AND state = 'queued' "
    "ORDER BY deadline LIMIT 1), "
    "(SELECT edge_at FROM usage_windows WHERE edge_at IS NOT NULL ORDER BY edge_at LIMIT 1), "
    "(SELECT refill_at FROM contexts WHERE refill_at IS NOT NULL ORDER BY refill_at LIMIT 1), "
    "(SELECT until_at FROM kept_entries ORDER BY until_at LIMIT 1), "
    "EXISTS (SELECT 1 FROM entry_fallout), "
    "(SELECT true FROM enqueue_inbox ORDER BY inbox_id LIMIT 1) IS NOT NULL, "
    "EXISTS (SELECT 1 FROM entry_loans), "
    "(SELECT value FROM kernel_meta WHERE key = 'fleet_paused_by'), "
    "EXISTS (SELECT 1 FROM agent_processes WHERE paused_by IS NOT NULL OR max_concurrent = 0), "
    "EXISTS (SELECT 1 FROM agent_processes WHERE max_concurrent IS NOT NULL), "
    "EXISTS (SELECT 1 FROM agent_ledgers), "
    "EXISTS (SELECT 1 FROM budgets WHERE owner = '*'), "
    "EXISTS (SELECT 1 FROM budgets WHERE owner != '*'), "
    "EXISTS (SELECT 1 FROM contexts)",
)

# --- eligible entries ----------------------------------------------------------------------------

_READY = (
    "state = 'queued' AND hold IS NULL AND runnable_at <= +?1 AND (deadline IS NULL OR deadline > +?1) "
    f"AND {of_kinds('kind', '?2')}"
)
_STRICT = "ORDER BY priority DESC, runnable_at, sched_id"

READY = Statement(
    "entries_ready",
    "The first ready entries in strict order, when no agent, project or budget is blocked.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue WHERE {_READY} {_STRICT} LIMIT +?3",
)
READY_AT_ANY_TIME = Statement(
    "entries_ready_at_any_time",
    "The first entries without a hold in strict order, read before the transaction knows its time.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue WHERE state = 'queued' AND hold IS NULL "
    f"AND {of_kinds('kind', '?1')} {_STRICT} LIMIT +?2",
)
# ?4: whether budgets count. JSON lists of what this pass has found blocked: ?5 pids, ?6 projects, ?7 needs, ?8 the
# combinations of pid, kind and needs; ?9: the ids it has claimed already. The filter comes before the LIMIT, so that
# blocked entries at the head hide none behind them.
_UNBLOCKED = (
    "pid NOT IN (SELECT p.pid FROM agent_processes p WHERE p.paused_by IS NOT NULL OR p.max_concurrent = 0) "
    "AND (NOT ?4 OR pid NOT IN (SELECT l.pid FROM agent_ledgers l WHERE l.used > l.hard_limit)) "
    "AND pid NOT IN (SELECT value FROM json_each(?5)) "
    "AND (project_id IS NULL OR project_id NOT IN (SELECT value FROM json_each(?6))) "
    "AND (needs IS NULL OR needs NOT IN (SELECT value FROM json_each(?7))) "
    "AND pid || '|' || coalesce(kind, '') || '|' || coalesce(needs, '') NOT IN (SELECT value FROM json_each(?8)) "
    "AND sched_id NOT IN (SELECT value FROM json_each(?9))"
)
READY_UNBLOCKED = Statement(
    "entries_ready_unblocked",
    "The first ready entries in strict order whose owner, budget and needs are not known to be blocked.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue WHERE {_READY} AND {_UNBLOCKED} {_STRICT} LIMIT +?3",
)
READY_OF_AGENT = Statement(
    "entries_ready_of_agent",
    "An agent's first ready entries in strict order, without needs that were refused in this pass.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_agent "
    f"WHERE pid = +?4 AND {_READY} "
    "AND coalesce(kind, '') || '|' || coalesce(needs, '') NOT IN (SELECT value FROM json_each(?5)) "
    "AND sched_id NOT IN (SELECT value FROM json_each(?6)) "
    "AND (needs IS NULL OR needs NOT IN (SELECT value FROM json_each(?7))) "
    f"{_STRICT} LIMIT +?3",
)
# Each of these indexes writes another page in every commit, and strict order needs none. So the first pass that
# reads entries by agent, by project or by deadline creates the index it needs; from then on it stays.
INDEX_BY_AGENT = Statement(
    "index_by_agent",
    "Index the ready entries of each agent in strict order.",
    "CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_agent "
    "ON agent_schedule_queue (pid, priority DESC, runnable_at, sched_id) WHERE state = 'queued' AND hold IS NULL",
    postgres="CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_agent "
    "ON agent_schedule_queue (pid, priority DESC, runnable_at, sched_id) "
    "WHERE state = 'queued' AND coalesce(hold, '') = ''",
)
INDEX_BY_PROJECT = Statement(
    "index_by_project",
    "Index the ready entries of each project in strict order.",
    "CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_project "
    "ON agent_schedule_queue (project_id, priority DESC, runnable_at, sched_id) "
    "WHERE state = 'queued' AND hold IS NULL",
    postgres="CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_project "
    "ON agent_schedule_queue (coalesce(project_id, ''), priority DESC, runnable_at, sched_id) "
    "WHERE state = 'queued' AND coalesce(hold, 'none') = 'none'",
)
INDEX_BY_DEADLINE = Statement(
    "index_by_deadline",
    "Index the ready entries by deadline.",
    "CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_deadline "
    "ON agent_schedule_queue (deadline, priority DESC, sched_id) "
    "WHERE state = 'queued' AND hold IS NULL AND deadline IS NOT NULL",
    postgres="CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_deadline "
    "ON agent_schedule_queue (deadline, priority DESC, sched_id) "
    "WHERE state = 'queued' AND hold IS NULL AND deadline IS NOT NULL",
)
COSTLY_INDEX = Statement(
    "index_is_costly",
    "Whether an index does not exist, and more ready entries than ?2 would have to be read to create it.",
    "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = ?1) AND EXISTS ("
    "SELECT 1 FROM agent_schedule_queue WHERE state = 'queued' AND hold IS NULL LIMIT 1 OFFSET +?2)",
    postgres="SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_indexes WHERE schemaname = current_schema() "
    "AND indexname = ?1::name) AND EXISTS ("
    "SELECT 1 FROM agent_schedule_queue WHERE state = 'queued' AND hold IS NULL LIMIT 1 OFFSET ?2)",
)
NEXT_OF_AGENT = Statement(
    "entries_next_of_agent",
    "An agent's next entries without a hold, in strict order, also those that are blocked.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_agent "
    f"WHERE pid = +?1 AND state = 'queued' AND hold IS NULL {_STRICT} LIMIT +?2 OFFSET +?3",
)
_OF_AGENT = (
    "FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_agent "
    "WHERE pid = k.value AND state = 'queued' AND hold IS NULL"
)
NEXT_OF_AGENTS = Statement(
    "entries_next_of_agents",
    "The next entries without a hold of each of some agents, also those that are blocked, in no order.",
    f"SELECT {', '.join(f'q.{column}' for column in READY_COLUMNS.split(', '))} "
    "FROM json_each(?1) k CROSS JOIN agent_schedule_queue q "
    f"WHERE q.sched_id IN (SELECT sched_id {_OF_AGENT} {_STRICT} LIMIT +?2)",
    postgres=f"SELECT {', '.join(f'q.{column}' for column in READY_COLUMNS.split(', '))} "
    "FROM (SELECT jsonb_array_elements_text(?1::jsonb)::bigint AS value) k "
    f"CROSS JOIN LATERAL (SELECT {READY_COLUMNS} {_OF_AGENT} {_STRICT} LIMIT ?2) q",
)
NEXT_OF_PROJECT = Statement(
    "entries_next_of_project",
    "The next entries of a project, or of none, without a hold, in strict order, also those that are blocked.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_project "
    f"WHERE project_id IS +?1 AND state = 'queued' AND hold IS NULL {_STRICT} LIMIT +?2 OFFSET +?3",
    postgres=f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_project "
    "WHERE coalesce(project_id, '') = coalesce(?1, '') "
    f"AND state = 'queued' AND hold IS NULL {_STRICT} LIMIT ?2 OFFSET ?3",
)
READY_IDS = Statement(
    "entries_ready_ids",
    "The first entries of an agent without a hold, also those that are blocked.",
    "SELECT sched_id FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_agent "
    "WHERE pid = +? AND state = 'queued' AND hold IS NULL LIMIT +?",
    postgres="SELECT sched_id FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_agent "
    "WHERE pid = ? AND state = 'queued' AND hold IS NULL "
    f"{_STRICT} LIMIT ?",
)
READY_OF_PROJECT = Statement(
    "entries_ready_of_project",
    "The first ready entries of a project, or of none, in strict order that are not known to be blocked.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_project "
    f"WHERE project_id IS +?10 AND {_READY} AND {_UNBLOCKED} {_STRICT} LIMIT +?3",
    postgres=f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_project "
    "WHERE coalesce(project_id, '') = coalesce(?10, '') "
    f"AND {_READY} AND {_UNBLOCKED} {_STRICT} LIMIT ?3",
)
READY_BY_DEADLINE = Statement(
    "entries_ready_by_deadline",
    "The ready entries with the nearest deadlines.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_deadline "
    f"WHERE deadline IS NOT NULL AND {_READY} AND {_UNBLOCKED} ORDER BY deadline, priority DESC, sched_id LIMIT +?3",
)
STOPPED = Statement(
    "agents_stopped",
    "Agents that are paused or have max_concurrent 0.",
    "SELECT pid FROM agent_processes WHERE paused_by IS NOT NULL OR max_concurrent = 0",
)
BREACHED = Statement(
    "agents_breached",
    "Agents over a hard limit.",
    "SELECT DISTINCT pid FROM agent_ledgers WHERE used > hard_limit",
)
CAPPED_OUT = Statement(
    "agents_capped_out",
    "Agents that already run max_concurrent entries.",
    "SELECT q.pid FROM agent_schedule_queue q INDEXED BY idx_sched_queue_live JOIN agent_processes p ON p.pid = q.pid "
    "WHERE q.state = 'dispatched' AND p.max_concurrent IS NOT NULL "
    "GROUP BY q.pid HAVING count(*) >= max(p.max_concurrent)",
)
LIVE = Statement(
    "claims_live",
    "Live claims, counted by agent, project, kind, needs and usage so far.",
    "SELECT pid, project_id, kind, needs, spent, count(*) FROM agent_schedule_queue WHERE state = 'dispatched' "
    "GROUP BY pid, project_id, kind, needs, spent",
)
AGENT_FACTS = Statement(
    "agent_facts",
    "Project, death, pause and cap of some agents.",
    f"SELECT pid, project_id, state = 'DEAD', paused_by, max_concurrent FROM agent_processes WHERE pid IN {IDS}",
)
LEDGER_FACTS = Statement(
    "ledger_facts",
    "The usage and limits of some agents.",
    f"SELECT pid, dim, used, hard_limit FROM agent_ledgers WHERE pid IN {IDS}",
)
PROJECT_FACTS = Statement(
    "project_facts",
    "Status, pause, cap and constraint of some projects.",
    f"SELECT project_id, status, paused_by, max_concurrent, restraint FROM projects WHERE project_id IN {IDS}",
)
FEW_PROJECTS = 50
FIRST_PROJECTS = Statement(
    "project_facts_first",
    "Status, pause, cap and constraint of the first projects: all of them, if there are few.",
    f"SELECT project_id, status, paused_by, max_concurrent, restraint FROM projects LIMIT {FEW_PROJECTS}",
)
BUDGET_FACTS = Statement(
    "budget_facts",
    "The usage and amount of some owners' budgets.",
    "SELECT b.owner, b.dim, b.amount, coalesce(w.used, 0), w.edge_at FROM budgets b "
    "LEFT JOIN usage_windows w ON w.owner = b.owner AND w.dim = b.dim AND w.window_s = b.window_s "
    f"WHERE b.owner IN {IDS}",
)

# --- claim and heartbeat -------------------------------------------------------------------------

CLAIM = Statement(
    "entry_claim",
    "Claim an entry without a hold for a worker.",
    "UPDATE agent_schedule_queue SET state = 'dispatched', worker_id = ?, incarnation = ?, dispatched_at = ?, "
    "heartbeat_at = ?, claim_timeout_s = ?, claim_expires_at = ?, token = ?, attempt = attempt + 1, "
    "held_workspace = ?, estimate = ?, spent = NULL WHERE sched_id = ?",
    everyday=True,
)
HEARTBEAT = Statement(
    "claim_heartbeat",
    "Extend a live claim.",
    "UPDATE agent_schedule_queue SET heartbeat_at = ?1, claim_expires_at = ?1 + claim_timeout_s "
    "WHERE sched_id = ?2 AND token = ?3 AND state = 'dispatched' RETURNING cancel_requested, claim_expires_at",
    everyday=True,
)
LIVE_CLAIM = Statement(
    "claim_live",
    "A live claim, by its number.",
    "SELECT sched_id, pid, project_id, token, claim_expires_at FROM agent_schedule_queue "
    "WHERE sched_id = ? AND token = ? AND state = 'dispatched'",
)
SPEND = Statement(
    "claim_spend",
    "Record what a run has used so far.",
    "UPDATE agent_schedule_queue SET spent = ? WHERE sched_id = ?",
    everyday=True,
)

CHECKPOINT = Statement(
    "claim_checkpoint",
    "Save a run's checkpoint, in the column of its result.",
    "UPDATE agent_schedule_queue SET result = ? WHERE sched_id = ?",
    everyday=True,
)
LIVE_RUNS = Statement(
    "claims_live_runs",
    "The number of an agent's live runs.",
    "SELECT count(*) FROM agent_schedule_queue WHERE state = 'dispatched' AND +pid = ?",
)

# --- end a run -----------------------------------------------------------------------------------

_RUN = (
    "sched_id, state, token, pid, project_id, attempt, max_attempts, options, estimate, spent, dispatched_at, "
    "cancel_requested, worker_id, needs, "
    "EXISTS (SELECT 1 FROM entry_after a WHERE a.waits_for = agent_schedule_queue.sched_id)"
)
RUNS = Statement(
    "claims_of",
    "The columns needed to end several runs.",
    f"SELECT {_RUN} FROM agent_schedule_queue WHERE sched_id IN {IDS}",
)
COMPLETE = Statement(
    "entry_complete",
    "Complete an entry.",
    "UPDATE agent_schedule_queue SET state = 'completed', completed_at = ?, exit_kind = ?, outcome = ?, "
    "result = coalesce(?, result), claim_expires_at = NULL WHERE sched_id = ?",
    everyday=True,
)
REQUEUE = Statement(
    "entry_requeue",
    "Put an entry back into the queue.",
    "UPDATE agent_schedule_queue SET state = 'queued', hold = ?, runnable_at = ?, by_date = ?, attempt = ?, "
    "outcome = ?, worker_id = NULL, incarnation = NULL, dispatched_at = NULL, heartbeat_at = NULL, "
    "claim_expires_at = NULL, "
    "token = NULL, cancel_requested = 0, estimate = 0, spent = NULL WHERE sched_id = ?",
)

# --- due with time -------------------------------------------------------------------------------

# These statements find entries by an index of one state, and SQLite does not test again what an index implies. In a
# damaged file it can name an entry of another state, which would come again and again; so the table decides, by id.
# PostgreSQL tests the row in any case.
_IN_TABLE = (
    "EXISTS (SELECT 1 FROM agent_schedule_queue t WHERE t.sched_id = agent_schedule_queue.sched_id AND t.state ="
)
_IS_QUEUED = f"{_IN_TABLE} 'queued')"
_IS_LIVE = f"{_IN_TABLE} 'dispatched')"

# One step along the index for each priority that held entries have, the highest first; the rows of a priority are read
# only as far as they are due. The LIMIT ends the recursion.
_HELD = "state = 'queued' AND (hold = 'time' OR hold = 'backoff')"
_HELD_QUEUE = "agent_schedule_queue q INDEXED BY idx_sched_queue_held_by_priority"
_HELD_IN_TABLE = "EXISTS (SELECT 1 FROM agent_schedule_queue t WHERE t.sched_id = q.sched_id AND t.state = 'queued')"
HELD_DUE = Statement(
    "entries_held_due",
    "Entries whose time or backoff hold has ended, in strict order.",
    f"WITH RECURSIVE line(priority) AS (SELECT max(q.priority) FROM {_HELD_QUEUE} WHERE {_HELD} UNION ALL "
    f"SELECT (SELECT max(q.priority) FROM {_HELD_QUEUE} WHERE {_HELD} AND q.priority < line.priority) FROM line "
    "WHERE line.priority IS NOT NULL) "
    "SELECT q.sched_id, q.pid, q.project_id, q.hold, q.options, q.attempt, q.kind, q.priority, q.runnable_at "
    f"FROM line CROSS JOIN {_HELD_QUEUE} WHERE q.priority = line.priority AND {_HELD} AND {_HELD_IN_TABLE} "
    "AND q.runnable_at <= +?1 LIMIT +?2",
    postgres="WITH RECURSIVE line(priority) AS ((SELECT priority FROM agent_schedule_queue "
    f"WHERE {_HELD} ORDER BY priority DESC LIMIT 1) UNION ALL SELECT (SELECT q.priority FROM agent_schedule_queue q "
    f"WHERE {_HELD} AND q.priority < line.priority ORDER BY q.priority DESC LIMIT 1) FROM line "
    "WHERE line.priority IS NOT NULL) "
    "SELECT q.sched_id, q.pid, q.project_id, q.hold, q.options, q.attempt, q.kind, q.priority, q.runnable_at "
    f"FROM line CROSS JOIN LATERAL (SELECT * FROM {_HELD_QUEUE.replace(' q ', ' e ')} WHERE e.priority = line.priority "
    f"AND {_HELD} AND e.runnable_at <= ?1 ORDER BY e.priority DESC, e.runnable_at, e.sched_id LIMIT ?2) q LIMIT ?2",
)
EXPIRED_CLAIMS = Statement(
    "claims_expired",
    "Expired claims, longest expired first.",
    "SELECT sched_id, worker_id, incarnation FROM agent_schedule_queue "
    f"WHERE state = 'dispatched' AND {_IS_LIVE} AND claim_expires_at <= +? "
    "ORDER BY claim_expires_at LIMIT +?",
    postgres="SELECT sched_id, worker_id, incarnation FROM agent_schedule_queue "
    "WHERE state = 'dispatched' AND claim_expires_at <= ? ORDER BY claim_expires_at, sched_id LIMIT ?",
)
STALE_CLAIMS = Statement(
    "claims_stale",
    "Claims whose last heartbeat is older than a time.",
    f"SELECT sched_id, token FROM agent_schedule_queue INDEXED BY idx_sched_queue_live WHERE state = 'dispatched' "
    f"AND {_IS_LIVE} AND coalesce(heartbeat_at, dispatched_at) < +? ORDER BY claim_expires_at LIMIT +?",
    postgres="SELECT sched_id, token FROM agent_schedule_queue WHERE state = 'dispatched' "
    "AND coalesce(heartbeat_at, dispatched_at) < ? ORDER BY claim_expires_at, sched_id LIMIT ?",
)
PAST_DEADLINE = Statement(
    "entries_past_deadline",
    "Queued entries past their deadline.",
    "SELECT sched_id, pid, project_id FROM agent_schedule_queue "
    f"WHERE deadline IS NOT NULL AND state = 'queued' AND {_IS_QUEUED} AND deadline < +? ORDER BY deadline LIMIT +?",
    postgres="SELECT sched_id, pid, project_id FROM agent_schedule_queue "
    "WHERE deadline IS NOT NULL AND state = 'queued' AND deadline < ? ORDER BY deadline, sched_id LIMIT ?",
)
EXPIRE = Statement(
    "entry_expire",
    "Expire a queued entry past its deadline.",
    "UPDATE agent_schedule_queue SET state = 'expired', hold = NULL, completed_at = ? WHERE sched_id = ?",
)
WORKER_HAS_CLAIM = Statement(
    "worker_has_claim",
    "Whether a worker, or one of its slot kinds, holds a claim.",
    "SELECT 1 FROM agent_schedule_queue INDEXED BY idx_sched_queue_live WHERE state = 'dispatched' "
    "AND (worker_id = +?1 OR substr(worker_id, 1, length(?1) + 1) = ?1 || '/') LIMIT 1",
)
CLAIMS_OF_WORKER = Statement(
    "claims_of_worker",
    "The live claims of a worker's earlier incarnations.",
    "SELECT sched_id, token FROM agent_schedule_queue INDEXED BY idx_sched_queue_live WHERE state = 'dispatched' "
    f"AND {_IS_LIVE} AND worker_id = +? AND incarnation != ? ORDER BY claim_expires_at LIMIT +?",
    postgres="SELECT sched_id, token FROM agent_schedule_queue WHERE state = 'dispatched' "
    "AND worker_id = ? AND incarnation != ? ORDER BY claim_expires_at, sched_id LIMIT ?",
)

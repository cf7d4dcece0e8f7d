"""Claims: who may run, handing out, holding on, ending, taking back. And what time alone brings about."""

from __future__ import annotations

from rota.store.protocol import Statement
from rota.store.statements.queue import IDS, READY_COLUMNS

# --- the pulse -----------------------------------------------------------------------------------

PULSE = Statement(
    "pulse",
    "When time next changes something, and what a claim has to look at besides the queue.",
    "SELECT "
    "(SELECT min(runnable_at) FROM agent_schedule_queue "
    "WHERE state = 'queued' AND (hold = 'time' OR hold = 'backoff')), "
    "(SELECT min(claim_expires_at) FROM agent_schedule_queue WHERE state = 'dispatched'), "
    "(SELECT min(deadline) FROM agent_schedule_queue WHERE deadline IS NOT NULL AND state = 'queued'), "
    "(SELECT min(edge_at) FROM usage_windows WHERE edge_at IS NOT NULL), "
    "(SELECT min(refill_at) FROM contexts WHERE refill_at IS NOT NULL), "
    "(SELECT min(until_at) FROM kept_entries), "
    "EXISTS (SELECT 1 FROM entry_fallout), "
    "(SELECT value FROM kernel_meta WHERE key = 'fleet_paused_by'), "
    "EXISTS (SELECT 1 FROM agent_processes WHERE paused_by IS NOT NULL OR max_concurrent = 0), "
    "EXISTS (SELECT 1 FROM agent_processes WHERE max_concurrent IS NOT NULL), "
    "EXISTS (SELECT 1 FROM agent_ledgers), "
    "EXISTS (SELECT 1 FROM budgets WHERE owner = '*'), "
    "EXISTS (SELECT 1 FROM contexts)",
)

# --- who may run ---------------------------------------------------------------------------------

_READY = (
    "state = 'queued' AND hold IS NULL AND runnable_at <= +?1 AND (deadline IS NULL OR deadline > +?1) "
    "AND (kind IS NULL OR kind IN (SELECT value FROM json_each(?2)))"
)
_STRICT = "ORDER BY priority DESC, runnable_at, sched_id"

READY = Statement(
    "entries_ready",
    "The first ready entries in strict order, when nobody is held back.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue WHERE {_READY} {_STRICT} LIMIT +?3",
)
# ?4 whether budgets count; JSON lists of what this pass has found: ?5 pids, ?6 projects, ?7 needs, ?8 what is alike
# (pid, kind and needs together), ?9 ids it took already. The filter stands before the LIMIT: a blocked head hides none.
_OPEN = (
    "pid NOT IN (SELECT p.pid FROM agent_processes p WHERE p.paused_by IS NOT NULL OR p.max_concurrent = 0) "
    "AND (NOT ?4 OR pid NOT IN (SELECT l.pid FROM agent_ledgers l WHERE l.used > l.hard_limit)) "
    "AND pid NOT IN (SELECT value FROM json_each(?5)) "
    "AND (project_id IS NULL OR project_id NOT IN (SELECT value FROM json_each(?6))) "
    "AND (needs IS NULL OR needs NOT IN (SELECT value FROM json_each(?7))) "
    "AND pid || '|' || coalesce(kind, '') || '|' || coalesce(needs, '') NOT IN (SELECT value FROM json_each(?8)) "
    "AND sched_id NOT IN (SELECT value FROM json_each(?9))"
)
READY_OPEN = Statement(
    "entries_ready_open",
    "The first ready entries in strict order whose owners, budgets and needs are not known to be blocked.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue WHERE {_READY} AND {_OPEN} {_STRICT} LIMIT +?3",
)
READY_OF_AGENT = Statement(
    "entries_ready_of_agent",
    "An agent's first ready entries in strict order, without those that ask for what was refused.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_agent "
    f"WHERE pid = +?4 AND {_READY} "
    "AND coalesce(kind, '') || '|' || coalesce(needs, '') NOT IN (SELECT value FROM json_each(?5)) "
    "AND sched_id NOT IN (SELECT value FROM json_each(?6)) "
    "AND (needs IS NULL OR needs NOT IN (SELECT value FROM json_each(?7))) "
    f"{_STRICT} LIMIT +?3",
)
# Who only ever claims in strict order does not pay for these: each would be another page in every commit. The first
# pass that looks at agents or projects one by one, or by deadline, makes the one it needs, and from then on it is kept.
INDEX_BY_AGENT = Statement(
    "index_by_agent",
    "Keep each agent's ready entries in strict order.",
    "CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_agent "
    "ON agent_schedule_queue (pid, priority DESC, runnable_at, sched_id) WHERE state = 'queued' AND hold IS NULL",
)
INDEX_BY_PROJECT = Statement(
    "index_by_project",
    "Keep each project's ready entries in strict order.",
    "CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_project "
    "ON agent_schedule_queue (project_id, priority DESC, runnable_at, sched_id) "
    "WHERE state = 'queued' AND hold IS NULL",
)
INDEX_BY_DEADLINE = Statement(
    "index_by_deadline",
    "Keep ready entries by deadline.",
    "CREATE INDEX IF NOT EXISTS idx_sched_queue_pickable_by_deadline "
    "ON agent_schedule_queue (deadline, priority DESC, sched_id) "
    "WHERE state = 'queued' AND hold IS NULL AND deadline IS NOT NULL",
)
HEADS_OF_AGENT = Statement(
    "entries_heads_of_agent",
    "An agent's next entries that are not held, in strict order, whoever may have them.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_agent "
    f"WHERE pid = +?1 AND state = 'queued' AND hold IS NULL {_STRICT} LIMIT +?2 OFFSET +?3",
)
HEADS_OF_PROJECT = Statement(
    "entries_heads_of_project",
    "The next entries of a project, or of none, that are not held, in strict order, whoever may have them.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_project "
    f"WHERE project_id IS +?1 AND state = 'queued' AND hold IS NULL {_STRICT} LIMIT +?2 OFFSET +?3",
)
_COLUMNS = ", ".join(f"q.{column}" for column in READY_COLUMNS.split(", "))
_OF_PROJECTS = (
    "agent_schedule_queue q INDEXED BY idx_sched_queue_pickable_by_project WHERE q.state = 'queued' AND q.hold IS NULL"
)
FIRST_OF_PROJECTS = Statement(
    "entries_first_of_projects",
    "The first entry of every project that has one that is not held, whoever may have it; '' is no project.",
    f"WITH RECURSIVE line(name) AS (SELECT '' UNION ALL "
    f"SELECT (SELECT min(q.project_id) FROM {_OF_PROJECTS} AND q.project_id > line.name) FROM line "
    f"WHERE line.name IS NOT NULL) SELECT {_COLUMNS}, line.name, coalesce(p.weight, 1000) "
    f"FROM line CROSS JOIN agent_schedule_queue q LEFT JOIN projects p ON p.project_id = line.name "
    f"WHERE line.name IS NOT NULL AND q.sched_id = (SELECT q.sched_id FROM {_OF_PROJECTS} "
    f"AND q.project_id IS nullif(line.name, '') {_STRICT} LIMIT 1)",
)
READY_IDS = Statement(
    "entries_ready_ids",
    "The first entries of an agent that are ready, whoever may have them.",
    "SELECT sched_id FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_agent "
    "WHERE pid = +? AND state = 'queued' AND hold IS NULL LIMIT +?",
)
READY_OF_PROJECT = Statement(
    "entries_ready_of_project",
    "The first ready entries of a project, or of none, in strict order that are not known to be blocked.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_project "
    f"WHERE project_id IS +?10 AND {_READY} AND {_OPEN} {_STRICT} LIMIT +?3",
)
READY_BY_DEADLINE = Statement(
    "entries_ready_by_deadline",
    "The ready entries with the nearest deadlines.",
    f"SELECT {READY_COLUMNS} FROM agent_schedule_queue INDEXED BY idx_sched_queue_pickable_by_deadline "
    f"WHERE deadline IS NOT NULL AND {_READY} AND {_OPEN} ORDER BY deadline, priority DESC, sched_id LIMIT +?3",
)
STOPPED = Statement(
    "agents_stopped",
    "Agents that are paused or may run nothing.",
    "SELECT pid FROM agent_processes WHERE paused_by IS NOT NULL OR max_concurrent = 0",
)
BREACHED = Statement(
    "agents_breached",
    "Agents that have used up a grant and more.",
    "SELECT DISTINCT pid FROM agent_ledgers WHERE used > hard_limit",
)
CAPPED_OUT = Statement(
    "agents_capped_out",
    "Agents that already run as much as they may.",
    "SELECT q.pid FROM agent_schedule_queue q INDEXED BY idx_sched_queue_live JOIN agent_processes p ON p.pid = q.pid "
    "WHERE q.state = 'dispatched' AND p.max_concurrent IS NOT NULL "
    "GROUP BY q.pid HAVING count(*) >= max(p.max_concurrent)",
)
LIVE = Statement(
    "claims_live",
    "Live claims, counted by whose they are, what they asked for and what they have spent of it.",
    "SELECT pid, project_id, kind, needs, spent, count(*) FROM agent_schedule_queue WHERE state = 'dispatched' "
    "GROUP BY pid, project_id, kind, needs, spent",
)
LIVE_SHARES = Statement(
    "claims_live_shares",
    "Live claims of each project, and what their runs are expected to use.",
    "SELECT project_id, count(*), sum(max(estimate, 1)) FROM agent_schedule_queue WHERE state = 'dispatched' "
    "GROUP BY project_id",
)
AGENT_FACTS = Statement(
    "agent_facts",
    "What decides whether some agents may run.",
    f"SELECT pid, paused_by, max_concurrent FROM agent_processes WHERE pid IN {IDS}",
)
AGENT_FACT = Statement(
    "agent_fact",
    "What decides whether an agent may run, a row for each line of its ledger.",
    "SELECT p.paused_by, p.max_concurrent, l.dim, l.used, l.hard_limit FROM agent_processes p "
    "LEFT JOIN agent_ledgers l ON l.pid = p.pid WHERE p.pid = +?",
)
LEDGER_FACTS = Statement(
    "ledger_facts",
    "Where some agents' ledgers stand.",
    f"SELECT pid, dim, used, hard_limit FROM agent_ledgers WHERE pid IN {IDS}",
)
PROJECT_FACTS = Statement(
    "project_facts",
    "What decides whether some projects may run.",
    f"SELECT project_id, status, paused_by, max_concurrent, restraint FROM projects WHERE project_id IN {IDS}",
)
BUDGET_FACTS = Statement(
    "budget_facts",
    "Where some owners' budgets stand.",
    "SELECT b.owner, b.dim, b.amount, coalesce(w.used, 0), w.edge_at FROM budgets b "
    "LEFT JOIN usage_windows w ON w.owner = b.owner AND w.dim = b.dim AND w.window_s = b.window_s "
    f"WHERE b.owner IN {IDS}",
)

# --- handing out and holding on ------------------------------------------------------------------

CLAIM = Statement(
    "entry_claim",
    "Hand an entry to a worker.",
    "UPDATE agent_schedule_queue SET state = 'dispatched', worker_id = ?, incarnation = ?, dispatched_at = ?, "
    "heartbeat_at = ?, claim_timeout_s = ?, claim_expires_at = ?, token = ?, attempt = attempt + 1, "
    "held_workspace = ?, estimate = ?, spent = NULL, hold = NULL WHERE sched_id = ?",
)
HEARTBEAT = Statement(
    "claim_heartbeat",
    "Hold on to a live claim.",
    "UPDATE agent_schedule_queue SET heartbeat_at = ?1, claim_expires_at = ?1 + claim_timeout_s "
    "WHERE sched_id = ?2 AND token = ?3 AND state = 'dispatched' RETURNING cancel_requested, claim_expires_at",
)
SPEND = Statement(
    "claim_spend",
    "Note what a run has used so far.",
    "UPDATE agent_schedule_queue SET spent = ? WHERE sched_id = ?",
)

CHECKPOINT = Statement(
    "claim_checkpoint",
    "Keep where a run stands, in the place of its result.",
    "UPDATE agent_schedule_queue SET result = ? WHERE sched_id = ?",
)
LIVE_RUNS = Statement(
    "claims_live_runs",
    "How many runs of an agent live.",
    "SELECT count(*) FROM agent_schedule_queue WHERE state = 'dispatched' AND +pid = ?",
)

# --- ending --------------------------------------------------------------------------------------

_RUN = (
    "sched_id, state, token, pid, project_id, attempt, max_attempts, options, estimate, spent, dispatched_at, "
    "cancel_requested, worker_id, "
    "EXISTS (SELECT 1 FROM entry_after a WHERE a.waits_for = agent_schedule_queue.sched_id)"
)
RUN = Statement(
    "claim_of",
    "What has to be known of a run to end it.",
    f"SELECT {_RUN} FROM agent_schedule_queue WHERE sched_id = ?",
)
RUNS = Statement(
    "claims_of",
    "What has to be known of runs to end them.",
    f"SELECT {_RUN} FROM agent_schedule_queue WHERE sched_id IN {IDS}",
)
COMPLETE = Statement(
    "entry_complete",
    "End a run for good.",
    "UPDATE agent_schedule_queue SET state = 'completed', completed_at = ?, exit_kind = ?, outcome = ?, "
    "result = coalesce(?, result), "
    "held_workspace = NULL, claim_expires_at = NULL WHERE sched_id = ?",
)
RETURN = Statement(
    "entry_return",
    "Put an entry back into the queue.",
    "UPDATE agent_schedule_queue SET state = 'queued', hold = ?, runnable_at = ?, attempt = ?, outcome = ?, "
    "worker_id = NULL, incarnation = NULL, dispatched_at = NULL, heartbeat_at = NULL, claim_expires_at = NULL, "
    "token = NULL, held_workspace = NULL, cancel_requested = 0, estimate = 0, spent = NULL WHERE sched_id = ?",
)

# --- what time brings about ------------------------------------------------------------------------

HELD_DUE = Statement(
    "entries_held_due",
    "Held entries whose time has come, earliest first.",
    "SELECT sched_id, pid, project_id, hold, options, attempt, kind, priority, runnable_at FROM agent_schedule_queue "
    "WHERE state = 'queued' AND (hold = 'time' OR hold = 'backoff') AND runnable_at <= +? "
    "ORDER BY runnable_at, sched_id LIMIT +?",
)
EXPIRED_CLAIMS = Statement(
    "claims_expired",
    "Claims that nobody held on to, longest expired first.",
    "SELECT sched_id FROM agent_schedule_queue WHERE state = 'dispatched' AND claim_expires_at <= +? "
    "ORDER BY claim_expires_at LIMIT +?",
)
STALE_CLAIMS = Statement(
    "claims_stale",
    "Claims whose last heartbeat is longer ago than some time.",
    "SELECT sched_id FROM agent_schedule_queue INDEXED BY idx_sched_queue_live WHERE state = 'dispatched' "
    "AND coalesce(heartbeat_at, dispatched_at) < +? ORDER BY claim_expires_at LIMIT +?",
)
PAST_DEADLINE = Statement(
    "entries_past_deadline",
    "Waiting entries whose deadline has passed.",
    "SELECT sched_id FROM agent_schedule_queue "
    "WHERE deadline IS NOT NULL AND state = 'queued' AND deadline < +? ORDER BY deadline LIMIT +?",
)
EXPIRE = Statement(
    "entry_expire",
    "A waiting entry's deadline has passed.",
    "UPDATE agent_schedule_queue SET state = 'expired', hold = NULL, completed_at = ? WHERE sched_id = ?",
)
EXTEND_ALL = Statement(
    "claims_extend_all",
    "Give live claims the time back by which the wall clock jumped.",
    "UPDATE agent_schedule_queue SET claim_expires_at = claim_expires_at + ?1, heartbeat_at = heartbeat_at + ?1 "
    "WHERE state = 'dispatched' RETURNING sched_id",
)
AT_WORK = Statement(
    "worker_at_work",
    "Whether a worker, or one of its kinds of slots, holds a claim.",
    "SELECT 1 FROM agent_schedule_queue INDEXED BY idx_sched_queue_live WHERE state = 'dispatched' "
    "AND (worker_id = +?1 OR substr(worker_id, 1, length(?1) + 1) = ?1 || '/') LIMIT 1",
)
CLAIMS_OF_WORKER = Statement(
    "claims_of_worker",
    "The live claims of a worker's earlier lives.",
    "SELECT sched_id FROM agent_schedule_queue INDEXED BY idx_sched_queue_live "
    "WHERE state = 'dispatched' AND worker_id = +? AND incarnation != ? ORDER BY claim_expires_at LIMIT +?",
)

"""The schema as ordered migrations. Versions 1 to 5 are the first kernel's; rota's own begin at 100.

Steps 1 to 3 create the tables that rota shares with the first kernel. A file of the first kernel itself has other
constraints and is taken over before step 100 (first_kernel.py); its versions 4 and 5 have more tables, which rota does
not touch. Versions 6 to 99 belong to another program: such a file is refused, and so is one that is newer than this
rota or whose version cannot be parsed. A refused file is not written.

Version 100 rebuilds the journal and the queue without AUTOINCREMENT, which writes one more page in every commit. Ids
are still never reused: the newest row is never pruned, and SQLite continues from the highest id (a file whose newest
rows were deleted gets a placeholder row with the last id). Its CHECK constraints are chains of OR: for an IN list
SQLite builds a temporary table each time it checks a row, which doubles the cost of a write.
"""

from __future__ import annotations

import re

from rota.errors import SchemaMismatch
from rota.store.protocol import Statement

__all__ = [
    "FIRST_KERNEL",
    "LATEST",
    "MIGRATE_HINT",
    "POSTGRES_BASE",
    "POSTGRES_STEPS",
    "STEPS",
    "TABLES",
    "plan",
    "step",
]

FIRST_KERNEL = range(1, 6)  # the versions of the first kernel
MIGRATE_HINT = "Stop the processes of the older version, then migrate it: `rota db migrate`."

STEPS: dict[int, str] = {
    1: """
        CREATE TABLE kernel_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE agent_processes (
            pid INTEGER PRIMARY KEY AUTOINCREMENT,
            parent_pid INTEGER REFERENCES agent_processes(pid),
            name TEXT NOT NULL,
            template TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('READY','RUNNING','WAITING','SUSPENDED','DEAD')),
            state_reason TEXT,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            started_at REAL,
            ended_at REAL,
            exit_kind TEXT,
            exit_detail TEXT NOT NULL DEFAULT '{}',
            metadata TEXT NOT NULL DEFAULT '{}',
            last_event_id INTEGER
        );
        CREATE TABLE agent_events (
            event_id INTEGER PRIMARY KEY AUTOINCREMENT,
            pid INTEGER,
            ts REAL NOT NULL,
            kind TEXT NOT NULL,
            payload TEXT NOT NULL DEFAULT '{}',
            causation_id TEXT,
            correlation_id TEXT
        );
    """,
    2: """
        CREATE TABLE agent_ledgers (
            pid INTEGER NOT NULL REFERENCES agent_processes(pid),
            dim TEXT NOT NULL,
            used INTEGER NOT NULL DEFAULT 0,
            granted INTEGER NOT NULL,
            hard_limit INTEGER NOT NULL,
            warn_at REAL NOT NULL DEFAULT 0.8,
            PRIMARY KEY (pid, dim)
        ) WITHOUT ROWID;
    """,
    3: """
        CREATE TABLE agent_schedule_queue (
            sched_id INTEGER PRIMARY KEY AUTOINCREMENT,
            pid INTEGER NOT NULL,
            priority INTEGER NOT NULL DEFAULT 0,
            runnable_at REAL NOT NULL DEFAULT 0,
            deadline REAL,
            trigger TEXT NOT NULL DEFAULT 'manual',
            payload TEXT NOT NULL DEFAULT '{}',
            state TEXT NOT NULL DEFAULT 'queued'
                CHECK (state IN ('queued','dispatched','completed','expired','cancelled')),
            worker_id TEXT,
            created_at REAL NOT NULL,
            dispatched_at REAL,
            completed_at REAL,
            exit_kind TEXT,
            FOREIGN KEY (pid) REFERENCES agent_processes(pid)
        );
        CREATE INDEX idx_sched_queue_pickable ON agent_schedule_queue (state, priority DESC, runnable_at, sched_id);
        CREATE INDEX idx_sched_queue_pid ON agent_schedule_queue (pid);
        CREATE INDEX idx_sched_queue_deadline ON agent_schedule_queue (deadline) WHERE deadline IS NOT NULL;
    """,
    100: """
        ALTER TABLE agent_processes ADD COLUMN project_id TEXT;
        ALTER TABLE agent_processes ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE agent_processes ADD COLUMN weight INTEGER NOT NULL DEFAULT 1000;
        ALTER TABLE agent_processes ADD COLUMN intent TEXT NOT NULL DEFAULT 'NEUTRAL';
        ALTER TABLE agent_processes ADD COLUMN rerunnable INTEGER NOT NULL DEFAULT 1;
        ALTER TABLE agent_processes ADD COLUMN max_concurrent INTEGER;
        ALTER TABLE agent_processes ADD COLUMN paused_by TEXT;
        CREATE INDEX idx_process_stopped ON agent_processes (pid) WHERE paused_by IS NOT NULL OR max_concurrent = 0;
        CREATE INDEX idx_process_capped ON agent_processes (pid, max_concurrent) WHERE max_concurrent IS NOT NULL;
        CREATE INDEX idx_process_live ON agent_processes (state) WHERE state IN ('RUNNING','WAITING');
        CREATE INDEX idx_process_project ON agent_processes (project_id) WHERE project_id IS NOT NULL;
        CREATE INDEX idx_process_name ON agent_processes (name);

        CREATE TABLE agent_events_100 (
            event_id INTEGER PRIMARY KEY,
            pid INTEGER,
            ts REAL NOT NULL,
            kind TEXT NOT NULL,
            payload TEXT NOT NULL DEFAULT '{}',
            causation_id TEXT,
            correlation_id TEXT
        );
        INSERT INTO agent_events_100 SELECT event_id, pid, ts, kind, payload, causation_id, correlation_id
            FROM agent_events;
        INSERT INTO agent_events_100 (event_id, ts, kind, payload)
            SELECT seq + 1, 0, 'kernel.store.migrated', '{"from_version":3,"to_version":100}' FROM sqlite_sequence
            WHERE name = 'agent_events' AND seq > (SELECT coalesce(max(event_id), 0) FROM agent_events);
        DROP TABLE agent_events;
        ALTER TABLE agent_events_100 RENAME TO agent_events;
        CREATE INDEX idx_events_pid ON agent_events (pid, event_id)
            WHERE pid IS NOT NULL AND kind NOT GLOB 'kernel.sched.*';
        CREATE TABLE journal_checkpoints (
            through_id INTEGER NOT NULL,
            part INTEGER NOT NULL,
            made_at REAL NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (through_id, part)
        ) WITHOUT ROWID;

        CREATE INDEX idx_ledger_breached ON agent_ledgers (pid) WHERE used > hard_limit;

        CREATE TABLE agent_schedule_queue_100 (
            sched_id INTEGER PRIMARY KEY,
            pid INTEGER NOT NULL,
            priority INTEGER NOT NULL DEFAULT 0,
            runnable_at REAL NOT NULL DEFAULT 0,
            deadline REAL,
            trigger TEXT NOT NULL DEFAULT 'manual',
            payload TEXT NOT NULL DEFAULT '{}',
            state TEXT NOT NULL DEFAULT 'queued'
                CHECK (state = 'queued' OR state = 'dispatched' OR state = 'completed' OR state = 'expired'
                    OR state = 'cancelled'),
            worker_id TEXT,
            created_at REAL NOT NULL,
            dispatched_at REAL,
            completed_at REAL,
            exit_kind TEXT,
            project_id TEXT,
            hold TEXT CHECK (hold IS NULL OR hold = 'time' OR hold = 'after' OR hold = 'backoff'),
            attempt INTEGER NOT NULL DEFAULT 0,
            max_attempts INTEGER NOT NULL DEFAULT 3,
            outcome TEXT,
            result TEXT,
            key TEXT,
            token INTEGER,
            incarnation TEXT,
            heartbeat_at REAL,
            claim_timeout_s REAL,
            claim_expires_at REAL,
            cancel_requested INTEGER NOT NULL DEFAULT 0,
            held_workspace TEXT,
            kind TEXT,
            needs TEXT,
            options TEXT,
            estimate INTEGER NOT NULL DEFAULT 0,
            spent TEXT,
            FOREIGN KEY (pid) REFERENCES agent_processes(pid)
        );
        INSERT INTO agent_schedule_queue_100 (sched_id, pid, priority, runnable_at, deadline, trigger, payload, state,
            worker_id, created_at, dispatched_at, completed_at, exit_kind)
            SELECT sched_id, pid, priority, runnable_at, deadline, trigger, payload, state,
            worker_id, created_at, dispatched_at, completed_at, exit_kind FROM agent_schedule_queue;
        INSERT INTO agent_schedule_queue_100 (sched_id, pid, trigger, state, created_at, completed_at, outcome)
            SELECT seq, (SELECT max(pid) FROM agent_processes), 'migration', 'cancelled', 0, 0, 'placeholder'
            FROM sqlite_sequence WHERE name = 'agent_schedule_queue'
            AND seq > (SELECT coalesce(max(sched_id), 0) FROM agent_schedule_queue);
        DROP TABLE agent_schedule_queue;
        ALTER TABLE agent_schedule_queue_100 RENAME TO agent_schedule_queue;
        UPDATE agent_schedule_queue SET hold = 'time' WHERE state = 'queued' AND runnable_at > 0;
        UPDATE agent_schedule_queue SET heartbeat_at = dispatched_at, claim_timeout_s = 3600,
            claim_expires_at = coalesce(dispatched_at, 0) + 3600 WHERE state = 'dispatched';

        CREATE INDEX idx_sched_queue_pid ON agent_schedule_queue (pid);
        CREATE INDEX idx_sched_queue_pickable ON agent_schedule_queue (priority DESC, runnable_at, sched_id)
            WHERE state = 'queued' AND hold IS NULL;
        CREATE INDEX idx_sched_queue_held ON agent_schedule_queue (runnable_at, sched_id)
            WHERE state = 'queued' AND (hold = 'time' OR hold = 'backoff');
        CREATE INDEX idx_sched_queue_live ON agent_schedule_queue (claim_expires_at)
            WHERE state = 'dispatched';
        CREATE INDEX idx_sched_queue_workspace ON agent_schedule_queue (held_workspace)
            WHERE state = 'dispatched' AND held_workspace IS NOT NULL;
        CREATE UNIQUE INDEX idx_sched_queue_key ON agent_schedule_queue (key) WHERE key IS NOT NULL;
        CREATE INDEX idx_sched_queue_deadline ON agent_schedule_queue (deadline)
            WHERE deadline IS NOT NULL AND state = 'queued';

        CREATE TABLE entry_after (
            sched_id INTEGER NOT NULL REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
            waits_for INTEGER NOT NULL,
            PRIMARY KEY (sched_id, waits_for)
        ) WITHOUT ROWID;
        CREATE INDEX idx_after_waits_for ON entry_after (waits_for, sched_id);
        CREATE TABLE entry_tags (
            tag TEXT NOT NULL,
            sched_id INTEGER NOT NULL REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
            PRIMARY KEY (tag, sched_id)
        ) WITHOUT ROWID;
        CREATE INDEX idx_tags_entry ON entry_tags (sched_id);
        CREATE TABLE entry_fallout (
            sched_id INTEGER PRIMARY KEY,
            seen_id INTEGER NOT NULL DEFAULT 0
        );

        CREATE TABLE projects (
            project_id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            weight INTEGER NOT NULL,
            max_concurrent INTEGER,
            status TEXT NOT NULL CHECK (status IN ('ACTIVE','PAUSED','ARCHIVED')),
            restraint TEXT NOT NULL DEFAULT '{}',
            paused_by TEXT,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            metadata TEXT NOT NULL DEFAULT '{}'
        ) WITHOUT ROWID;
        CREATE TABLE workspaces (
            workspace_id TEXT PRIMARY KEY,
            project_id TEXT NOT NULL REFERENCES projects(project_id),
            path TEXT NOT NULL,
            source TEXT NOT NULL DEFAULT 'folder',
            fence INTEGER NOT NULL DEFAULT 0
        ) WITHOUT ROWID;
        CREATE INDEX idx_workspace_project ON workspaces (project_id);
        CREATE UNIQUE INDEX idx_workspace_path ON workspaces (path);

        CREATE TABLE budgets (
            owner TEXT NOT NULL,
            dim TEXT NOT NULL,
            amount INTEGER NOT NULL,
            window_s REAL NOT NULL,
            PRIMARY KEY (owner, dim)
        ) WITHOUT ROWID;
        CREATE TABLE usage_windows (
            owner TEXT NOT NULL,
            dim TEXT NOT NULL,
            window_s REAL NOT NULL,
            used INTEGER NOT NULL DEFAULT 0,
            ended INTEGER NOT NULL DEFAULT 0,
            edge_at REAL,
            PRIMARY KEY (owner, dim, window_s)
        ) WITHOUT ROWID;
        CREATE INDEX idx_window_edge ON usage_windows (edge_at) WHERE edge_at IS NOT NULL;
        CREATE TABLE usage_buckets (
            owner TEXT NOT NULL,
            dim TEXT NOT NULL,
            window_s REAL NOT NULL,
            leaves_at REAL NOT NULL,
            amount INTEGER NOT NULL,
            ended INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (owner, dim, window_s, leaves_at)
        ) WITHOUT ROWID;

        CREATE TABLE project_flows (
            project_id TEXT PRIMARY KEY,
            virtual_time INTEGER NOT NULL DEFAULT 0,
            clock INTEGER NOT NULL DEFAULT 0,
            stamp INTEGER NOT NULL DEFAULT 0
        ) WITHOUT ROWID;
        CREATE TABLE agent_flows (
            pid INTEGER PRIMARY KEY,
            project_id TEXT NOT NULL DEFAULT '',
            virtual_time INTEGER NOT NULL DEFAULT 0,
            last_run_at REAL NOT NULL DEFAULT 0,
            in_line INTEGER NOT NULL DEFAULT 0,
            stamp INTEGER NOT NULL DEFAULT 0
        );
        CREATE INDEX idx_agent_flow_stamp ON agent_flows (stamp);
        CREATE INDEX idx_project_flow_stamp ON project_flows (stamp);

        CREATE TABLE contexts (
            context_id INTEGER PRIMARY KEY AUTOINCREMENT,
            bound_to TEXT NOT NULL CHECK (bound_to IN ('agent','project','call_path','name')),
            bound_id TEXT NOT NULL,
            unit TEXT NOT NULL,
            budget INTEGER NOT NULL,
            period_ms INTEGER NOT NULL,
            state TEXT NOT NULL,
            standing TEXT NOT NULL,
            pending TEXT,
            refill_at REAL,
            throttled_until REAL,
            generation INTEGER NOT NULL DEFAULT 0
        );
        CREATE UNIQUE INDEX idx_context_bound ON contexts (bound_to, bound_id, unit) WHERE state != 'revoked';
        CREATE INDEX idx_context_refill ON contexts (refill_at) WHERE refill_at IS NOT NULL;
    """,
    101: """
        CREATE TABLE entry_loans (
            sched_id INTEGER PRIMARY KEY REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
            parent_id INTEGER NOT NULL,
            amounts TEXT NOT NULL,
            since_id INTEGER NOT NULL
        );
        CREATE INDEX idx_loans_parent ON entry_loans (parent_id);
        DROP INDEX IF EXISTS idx_sched_queue_pickable_by_project; -- recreated on demand, with entries of no project
    """,
    102: """
        CREATE TABLE graph_runs (
            run_id TEXT PRIMARY KEY,
            graph TEXT NOT NULL,
            pid INTEGER NOT NULL REFERENCES agent_processes(pid),
            fence INTEGER NOT NULL,
            next_epoch_id INTEGER NOT NULL DEFAULT 1,
            updated_at REAL NOT NULL,
            checkpoint TEXT
        );
    """,
    # A CHECK is only text in the schema, and the looser one holds for every existing row. So this changes the text and
    # does not rebuild the table, which could take minutes.
    103: """
        PRAGMA writable_schema = ON;
        UPDATE sqlite_schema SET sql = replace(sql, 'hold = ''backoff'')', 'hold = ''backoff'' OR hold = ''worker'')')
            WHERE type = 'table' AND name = 'agent_schedule_queue';
        PRAGMA writable_schema = RESET;
        CREATE TABLE kept_entries (
            sched_id INTEGER PRIMARY KEY REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
            worker_id TEXT NOT NULL,
            kind TEXT,
            priority INTEGER NOT NULL,
            runnable_at REAL NOT NULL,
            until_at REAL NOT NULL
        );
        CREATE INDEX idx_kept_worker ON kept_entries (worker_id, kind, priority DESC, runnable_at, sched_id);
        CREATE INDEX idx_kept_until ON kept_entries (until_at);
    """,
    104: """
        -- the checkpoint that replay starts from: the last one whose event was recorded, after all of its parts
        INSERT INTO kernel_meta (key, value)
            SELECT 'journal_checkpoint', json_object('through_id', through_id, 'parts', count(*))
            FROM journal_checkpoints WHERE through_id = (
                SELECT max(CASE WHEN json_valid(payload) THEN json_extract(payload, '$.through_id') END)
                FROM agent_events WHERE kind = 'kernel.journal.checkpointed'
                AND event_id > (SELECT min(through_id) FROM journal_checkpoints))
            GROUP BY through_id;
        -- what a loan returned to its parent: a retried parent asks for its whole ceiling again; NULL while it is open
        ALTER TABLE entry_loans ADD COLUMN returned TEXT;
        -- whether runnable_at was given as a date and follows the wall clock; other ones move when that clock jumps
        ALTER TABLE agent_schedule_queue ADD COLUMN by_date INTEGER NOT NULL DEFAULT 0;
        UPDATE agent_schedule_queue SET by_date = 1 WHERE state = 'queued' AND attempt = 0 AND runnable_at > 0;
    """,
    105: """
        -- who wrote an event: a token, a worker, a run or a user; empty in events of earlier versions
        ALTER TABLE agent_events ADD COLUMN author TEXT NOT NULL DEFAULT '';
        -- an idempotency key belongs to a project; the entries without a project have keys of their own
        DROP INDEX idx_sched_queue_key;
        CREATE UNIQUE INDEX idx_sched_queue_key ON agent_schedule_queue (key, coalesce(project_id, ''))
            WHERE key IS NOT NULL;
        -- which project may reach into which other one; '' is no project
        CREATE TABLE project_grants (
            from_project TEXT NOT NULL,
            to_project TEXT NOT NULL,
            granted_at REAL NOT NULL,
            granted_by TEXT NOT NULL,
            PRIMARY KEY (from_project, to_project)
        ) WITHOUT ROWID;
        -- the project of a named limit that only the entries of one project draw on
        ALTER TABLE contexts ADD COLUMN project_id TEXT;
        DROP INDEX idx_context_bound;
        CREATE UNIQUE INDEX idx_context_bound ON contexts (bound_to, bound_id, unit, coalesce(project_id, ''))
            WHERE state != 'revoked';
    """,
    106: """
        -- the held entries in strict order: of all that is due, the highest priority is released first
        CREATE INDEX idx_sched_queue_held_by_priority ON agent_schedule_queue (priority DESC, runnable_at, sched_id)
            WHERE state = 'queued' AND (hold = 'time' OR hold = 'backoff');
    """,
    107: """
        -- what a run asks of a named limit; granted_at is NULL while it waits, rest is what no charge has covered
        CREATE TABLE limit_asks (
            ask_id INTEGER PRIMARY KEY AUTOINCREMENT,
            sched_id INTEGER NOT NULL REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
            ask_key TEXT NOT NULL,
            token INTEGER NOT NULL,
            name TEXT NOT NULL,
            asked TEXT NOT NULL,
            rest TEXT NOT NULL,
            cost INTEGER NOT NULL,
            asked_at REAL NOT NULL,
            granted_at REAL,
            UNIQUE (sched_id, ask_key)
        );
        CREATE INDEX idx_limit_asks_waiting ON limit_asks (name, ask_id) WHERE granted_at IS NULL;
        CREATE TABLE limit_shares (
            name TEXT NOT NULL,
            level TEXT NOT NULL,
            key TEXT NOT NULL,
            virtual_time INTEGER NOT NULL,
            clock INTEGER NOT NULL,
            PRIMARY KEY (name, level, key)
        ) WITHOUT ROWID;
    """,
    108: """
        -- what people look for: the entries that ended otherwise than well, that wait for others, and that an entry
        -- spawned. No claim and no completion of a run that succeeded writes to these indexes; their conditions are on
        -- columns that few statements set, because SQLite checks them whenever one of these is set
        CREATE INDEX idx_sched_queue_unsuccessful ON agent_schedule_queue (exit_kind, sched_id)
            WHERE completed_at IS NOT NULL AND exit_kind IS NOT 'completed';
        CREATE INDEX idx_sched_queue_after ON agent_schedule_queue (sched_id) WHERE hold = 'after';
        CREATE INDEX idx_sched_queue_parent ON agent_schedule_queue
            (CASE WHEN json_valid(options) THEN json_extract(options, '$.parent_id') END, sched_id)
            WHERE instr(options, '"parent_id":') > 0;
    """,
    109: """
        -- the workers that are there; one that leaves is removed, and so is one that is lost (decision 0035). pools is
        -- JSON; returned counts the entries of expired claims since it was last seen
        CREATE TABLE workers (
            worker_id TEXT NOT NULL,
            incarnation TEXT NOT NULL,
            kind TEXT NOT NULL,
            host TEXT NOT NULL,
            os_pid INTEGER NOT NULL,
            pools TEXT NOT NULL,
            version TEXT NOT NULL,
            started_at REAL NOT NULL,
            seen_at REAL NOT NULL,
            draining INTEGER NOT NULL DEFAULT 0,
            returned INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (worker_id, incarnation)
        ) WITHOUT ROWID;
        CREATE INDEX idx_workers_seen ON workers (seen_at);
    """,
    110: """
        -- usage per day, agent and model, added up from the journal; the setting usage_cursor is the last event in it
        CREATE TABLE usage_daily (
            day INTEGER NOT NULL,
            pid INTEGER NOT NULL,
            model TEXT NOT NULL,
            project_id TEXT NOT NULL,
            runs INTEGER NOT NULL DEFAULT 0,
            failures INTEGER NOT NULL DEFAULT 0,
            tokens INTEGER NOT NULL DEFAULT 0,
            input_tokens INTEGER NOT NULL DEFAULT 0,
            cached_input_tokens INTEGER NOT NULL DEFAULT 0,
            output_tokens INTEGER NOT NULL DEFAULT 0,
            cost_micro INTEGER NOT NULL DEFAULT 0,
            cpu_ms INTEGER NOT NULL DEFAULT 0,
            wall_ms INTEGER NOT NULL DEFAULT 0,
            waits INTEGER NOT NULL DEFAULT 0,
            wait_ms INTEGER NOT NULL DEFAULT 0,
            wait_max_ms INTEGER NOT NULL DEFAULT 0,
            wait_sizes TEXT NOT NULL DEFAULT '[]',
            PRIMARY KEY (day, pid, model)
        ) WITHOUT ROWID;
        CREATE TABLE usage_entries (
            sched_id INTEGER PRIMARY KEY,
            model TEXT NOT NULL DEFAULT '',
            released_at REAL,
            waited_ms INTEGER
        );
        -- shares of a budget at which an alert is recorded; alert_at is the usage at which the next one is due
        ALTER TABLE agent_ledgers ADD COLUMN alerts TEXT NOT NULL DEFAULT '[0.8,1.0]';
        ALTER TABLE budgets ADD COLUMN alerts TEXT NOT NULL DEFAULT '[0.8,1.0]';
        ALTER TABLE budgets ADD COLUMN alerted TEXT NOT NULL DEFAULT '{}';
        ALTER TABLE usage_windows ADD COLUMN alert_at INTEGER;
        UPDATE usage_windows SET alert_at = 0 WHERE dim != 'share';
    """,
    111: """
        -- the finished entries in the order in which they ended, for retention (kernel/finished_entries.py)
        CREATE TABLE finished_entries (
            place INTEGER PRIMARY KEY AUTOINCREMENT,
            sched_id INTEGER NOT NULL,
            ended_at REAL NOT NULL
        );
        INSERT INTO finished_entries (sched_id, ended_at)
            SELECT sched_id, coalesce(completed_at, 0) FROM agent_schedule_queue
            WHERE state = 'completed' OR state = 'expired' OR state = 'cancelled' ORDER BY completed_at, sched_id;
        INSERT INTO kernel_meta (key, value)
            SELECT 'finished_cursor', coalesce(max(event_id), 0) FROM agent_events;
    """,
    112: """
        -- why the worktree of an entry that has ended is kept; NULL for every other workspace
        ALTER TABLE workspaces ADD COLUMN kept TEXT;
    """,
    113: """
        -- graph runs as the product executes them: the document, and what became of the run. Those of earlier versions
        -- are run by a process that has the graph, and have no coordinator
        ALTER TABLE graph_runs ADD COLUMN project_id TEXT;
        ALTER TABLE graph_runs ADD COLUMN status TEXT NOT NULL DEFAULT 'running' CHECK (status = 'running'
            OR status = 'waiting' OR status = 'succeeded' OR status = 'failed' OR status = 'cancelled');
        ALTER TABLE graph_runs ADD COLUMN sched_id INTEGER;
        ALTER TABLE graph_runs ADD COLUMN document TEXT;
        ALTER TABLE graph_runs ADD COLUMN inputs TEXT NOT NULL DEFAULT '{}';
        ALTER TABLE graph_runs ADD COLUMN budget TEXT NOT NULL DEFAULT '{}';
        ALTER TABLE graph_runs ADD COLUMN waits TEXT;
        ALTER TABLE graph_runs ADD COLUMN waits_since REAL;
        ALTER TABLE graph_runs ADD COLUMN result TEXT;
        ALTER TABLE graph_runs ADD COLUMN error TEXT;
        ALTER TABLE graph_runs ADD COLUMN started_at REAL NOT NULL DEFAULT 0;
        ALTER TABLE graph_runs ADD COLUMN ended_at REAL;
        ALTER TABLE graph_runs ADD COLUMN resumes INTEGER NOT NULL DEFAULT 0;
        UPDATE graph_runs SET started_at = updated_at,
            project_id = (SELECT a.project_id FROM agent_processes a WHERE a.pid = graph_runs.pid);
        CREATE INDEX idx_graph_runs_coordinator ON graph_runs (sched_id) WHERE sched_id IS NOT NULL;
        CREATE INDEX idx_graph_runs_live ON graph_runs (run_id) WHERE ended_at IS NULL;
    """,
    114: """
        -- what live claims were granted of the cores of a host (kernel/core_grants.py); body is JSON. A grant whose
        -- claim has ended does not count, whether or not its row is still there
        CREATE TABLE core_grants (
            sched_id INTEGER PRIMARY KEY,
            token INTEGER NOT NULL,
            host TEXT NOT NULL,
            body TEXT NOT NULL
        );
        CREATE INDEX idx_core_grants_host ON core_grants (host, sched_id);
        CREATE TABLE core_leases (
            host TEXT NOT NULL,
            core INTEGER NOT NULL,
            sched_id INTEGER NOT NULL REFERENCES core_grants(sched_id) ON DELETE CASCADE,
            PRIMARY KEY (host, core)
        ) WITHOUT ROWID;
        CREATE INDEX idx_core_leases_entry ON core_leases (sched_id);
        -- contexts of CPU time, which few stores have: the end of a run asks whether there is one
        CREATE INDEX idx_context_cpu ON contexts (context_id) WHERE unit = 'cpu_ms' AND state != 'revoked';
    """,
    115: """
        -- the budgets of graph runs (node '') and of their nodes, and what was used (kernel/graph_budgets.py)
        CREATE TABLE graph_budgets (
            run_id TEXT NOT NULL,
            node TEXT NOT NULL,
            dim TEXT NOT NULL,
            amount INTEGER NOT NULL,
            used INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (run_id, node, dim)
        ) WITHOUT ROWID;
    """,
    116: """
        -- what programs enqueue in transactions of their own; the next claim takes it in (kernel/inbox.py). options are
        -- further fields of the entry, as JSON
        CREATE TABLE enqueue_inbox (
            inbox_id INTEGER PRIMARY KEY AUTOINCREMENT,
            agent TEXT NOT NULL,
            payload TEXT NOT NULL DEFAULT '{}',
            options TEXT NOT NULL DEFAULT '{}',
            author TEXT NOT NULL,
            created_at REAL NOT NULL
        );
    """,
    117: """
        SELECT 1; -- only PostgreSQL has a sequence for what other processes remember
    """,
    118: """
        -- only queued entries have a hold. Without a condition on their state, claims and ends of runs, which set that
        -- and leave the hold, do not open these indexes: that is a fiftieth of their work
        DROP INDEX idx_sched_queue_held;
        DROP INDEX idx_sched_queue_held_by_priority;
        CREATE INDEX idx_sched_queue_held ON agent_schedule_queue (runnable_at, sched_id)
            WHERE hold = 'time' OR hold = 'backoff';
        CREATE INDEX idx_sched_queue_held_by_priority ON agent_schedule_queue (priority DESC, runnable_at, sched_id)
            WHERE hold = 'time' OR hold = 'backoff';
    """,
    119: """
        SELECT 1; -- only PostgreSQL changes every index of a row with the row
    """,
    120: """
        SELECT 1; -- only PostgreSQL reads the text of a check for every statement
    """,
    121: """
        -- ended runs that are not in the share windows of their projects yet (kernel/usage_windows.py): the event of
        -- their end, and the usage and number of the runs of each project, as JSON
        CREATE TABLE share_notes (
            event_id INTEGER PRIMARY KEY,
            noted_at REAL NOT NULL,
            runs TEXT NOT NULL
        );
    """,
    122: """
        -- the keys of charges of live runs: a charge that is repeated counts once
        CREATE TABLE charge_keys (
            sched_id INTEGER NOT NULL,
            charge_key TEXT NOT NULL,
            PRIMARY KEY (sched_id, charge_key)
        ) WITHOUT ROWID;
    """,
}
# The same steps for PostgreSQL, from the version on that postgres_schema.py creates at once. Each later step of STEPS
# has its twin here, in the types of PostgreSQL (bigint, double precision, text COLLATE "C").
POSTGRES_BASE = 115
POSTGRES_STEPS: dict[int, str] = {
    # The function is a program's only way in, and has the rights of its owner: a role that may call it needs no other
    # right. The role that calls is the author, also after SET ROLE, and cannot be given. `created_at` is the time of
    # the call, not that of the transaction's begin. `current_schema()` is the schema in which it was created.
    116: """
        CREATE TABLE enqueue_inbox (
            inbox_id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
            created_at double precision NOT NULL,
            agent text COLLATE "C" NOT NULL,
            author text COLLATE "C" NOT NULL,
            payload text COLLATE "C" NOT NULL DEFAULT '{}',
            options text COLLATE "C" NOT NULL DEFAULT '{}'
        );
        ALTER TABLE enqueue_inbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_scale_factor = 0,
            autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 1000);
        SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
        CREATE FUNCTION enqueue(agent text, payload json DEFAULT '{}', options jsonb DEFAULT '{}') RETURNS bigint
            LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
        DECLARE
            new_id bigint;
        BEGIN
            IF octet_length(payload::text) > 1048576 OR octet_length(options::text) > 262144 THEN
                RAISE EXCEPTION 'the payload or the options are too large' USING ERRCODE = 'program_limit_exceeded';
            END IF;
            INSERT INTO enqueue_inbox (agent, payload, options, author, created_at)
                VALUES (enqueue.agent, enqueue.payload::text, enqueue.options::text,
                    'role:' || coalesce(nullif(current_setting('role'), 'none'), session_user),
                    extract(epoch FROM clock_timestamp()))
                RETURNING inbox_id INTO new_id;
            PERFORM pg_notify('rota_' || current_schema(), 'inbox');
            RETURN new_id;
        END $$;
        REVOKE ALL ON FUNCTION enqueue(text, json, jsonb) FROM PUBLIC;
    """,
    # one number for each transaction that changed what other processes remember (postgres_engine.py)
    117: """
        CREATE SEQUENCE facts;
    """,
    118: """
        SELECT 1; -- a server checks the conditions of all indexes at every change of a row
    """,
    # The entries of each agent, in place of an index: that got a new item with every claim and every end of a run,
    # since these change columns of other indexes. It was a tenth of a worker's turn. An entry keeps its agent for ever.
    119: """
        DROP INDEX idx_sched_queue_pid;
        CREATE TABLE agent_entries (
            pid bigint NOT NULL,
            sched_id bigint NOT NULL,
            PRIMARY KEY (pid, sched_id)
        );
        INSERT INTO agent_entries SELECT pid, sched_id FROM agent_schedule_queue;
        SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
        CREATE FUNCTION rota_add_agent_entries() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            INSERT INTO agent_entries SELECT pid, sched_id FROM added;
            RETURN NULL;
        END $$;
        CREATE FUNCTION rota_remove_agent_entries() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
            DELETE FROM agent_entries a USING removed r WHERE a.pid = r.pid AND a.sched_id = r.sched_id;
            RETURN NULL;
        END $$;
        CREATE TRIGGER add_agent_entries AFTER INSERT ON agent_schedule_queue
            REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION rota_add_agent_entries();
        CREATE TRIGGER remove_agent_entries AFTER DELETE ON agent_schedule_queue
            REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION rota_remove_agent_entries();
    """,
    # The states and holds of entries as types of their own, in place of checks of the table: the server reads the texts
    # of all checks for every statement that writes, and checks a type only where a column of it gets a value.
    120: """
        CREATE DOMAIN entry_state AS text COLLATE "C"
            CHECK (VALUE IN ('queued', 'dispatched', 'completed', 'expired', 'cancelled'));
        CREATE DOMAIN entry_hold AS text COLLATE "C" CHECK (VALUE IN ('time', 'after', 'backoff', 'worker'));
        ALTER TABLE agent_schedule_queue
            DROP CONSTRAINT agent_schedule_queue_state_check,
            DROP CONSTRAINT agent_schedule_queue_hold_check,
            ALTER COLUMN state TYPE entry_state,
            ALTER COLUMN hold TYPE entry_hold;
    """,
    121: """
        CREATE TABLE share_notes (
            event_id bigint PRIMARY KEY,
            noted_at double precision NOT NULL,
            runs text COLLATE "C" NOT NULL
        );
        -- nothing for a note that cannot be read: a cast would fail the statement
        CREATE FUNCTION rota_noted_runs(runs text) RETURNS TABLE (owner text, used bigint, ended bigint)
            IMMUTABLE STRICT LANGUAGE plpgsql AS $$
        BEGIN
            RETURN QUERY SELECT e.key, (e.value ->> 0)::bigint, (e.value ->> 1)::bigint FROM json_each(runs::json) e
                WHERE json_typeof(e.value) = 'array';
        EXCEPTION WHEN others THEN
            RETURN;
        END $$;
        ALTER TABLE share_notes SET (autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_scale_factor = 0,
            autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 1000);
    """,
    122: """
        CREATE TABLE charge_keys (
            sched_id bigint NOT NULL,
            charge_key text COLLATE "C" NOT NULL,
            PRIMARY KEY (sched_id, charge_key)
        );
        ALTER TABLE charge_keys SET (autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_scale_factor = 0,
            autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 1000);
    """,
}

LATEST = max(STEPS)
TABLES = frozenset(re.findall(r"CREATE TABLE (\w+)", "".join(STEPS.values())))  # and their names while they are rebuilt


def plan(stamp: str | None, *, empty: bool) -> list[int]:
    """Return the steps a file needs, oldest first, for its stored schema version (None: it has none)."""
    if stamp is None:
        if not empty:
            raise SchemaMismatch(
                "the file has tables but no schema_version: it belongs to another program", stamp=stamp
            )
        return sorted(STEPS)
    if not (stamp.isascii() and stamp.isdecimal()):
        raise SchemaMismatch(f"schema_version {stamp!r} is not a number", stamp=stamp)
    version = int(stamp)
    if version in FIRST_KERNEL:
        return [step for step in sorted(STEPS) if step not in FIRST_KERNEL]
    if version not in STEPS:
        origin = "a newer rota" if version > LATEST else "another program"
        text = f"schema_version {version} was written by {origin}; this rota reads up to {LATEST}"
        raise SchemaMismatch(text, stamp=stamp, latest=LATEST)
    return [step for step in sorted(STEPS) if step > version]


def step(version: int) -> Statement:
    """Return one step as a statement."""
    return Statement(f"migrate_{version}", f"Migrate the file to version {version}.", STEPS[version])

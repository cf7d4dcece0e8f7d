"""The schema on PostgreSQL: the same tables, columns and indexes as SQLite has at `POSTGRES_BASE`, created at once.

Versions are shared with SQLite: the setting `schema_version` has the number, every turn reads it, and each later step
of `migrations.STEPS` has a twin in `migrations.POSTGRES_STEPS`. Other than on SQLite:

- Text is compared byte by byte (COLLATE "C"), whatever the database's own collation is.
- There is no foreign key from an entry to its agent: PostgreSQL would lock the agent's row for every enqueued entry.
  The kernel has read that row in the same turn, and agents are never deleted.
- Ids of events and entries are given by the holder of the turn. Those of agents and contexts follow the highest,
  because these rows are never deleted. Places and asks have sequences (`SEQUENCES`), because theirs are.
- Rows that are equal in the order of a statement come by id, as on SQLite: the id is part of the index.
- An index cannot find rows by `IS NOT DISTINCT FROM`, so where NULL is one of the values, the index has `coalesce`.
- `rota_json_…` read a value of a JSON text and return NULL where the text is damaged: a cast would fail the statement.
- Rows that change often leave space in their pages, and vacuum comes after a number of changes, not after a share of
  the table: what a claim reads must not grow with the number of finished entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rota.errors import SchemaMismatch
from rota.store.migrations import LATEST, POSTGRES_BASE, POSTGRES_STEPS
from rota.store.protocol import Statement

__all__ = ["COLUMNS", "SEQUENCES", "STORAGE", "creation", "plan", "step"]

# The tables whose ids the database gives, and the column. No id is given twice, also when its row is gone.
SEQUENCES = {"finished_entries": "place", "limit_asks": "ask_id", "enqueue_inbox": "inbox_id"}

_FUNCTIONS = r"""
    CREATE FUNCTION rota_json_valid(body text) RETURNS boolean IMMUTABLE STRICT LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM body::json;
        RETURN true;
    EXCEPTION WHEN others THEN
        RETURN false;
    END $$;
    -- an escaped NUL is valid JSON, but PostgreSQL has no text for it
    CREATE FUNCTION rota_json_text(body text, field text) RETURNS text IMMUTABLE STRICT LANGUAGE plpgsql AS $$
    BEGIN
        RETURN CASE json_typeof(body::json) WHEN 'object'
            THEN replace(body, '\u0000', '\ufffd')::json ->> field END COLLATE "C";
    EXCEPTION WHEN others THEN
        RETURN NULL;
    END $$;
    CREATE FUNCTION rota_json_number(body text, field text) RETURNS double precision IMMUTABLE STRICT
        LANGUAGE plpgsql AS $$
    BEGIN
        RETURN CASE WHEN json_typeof(body::json -> field) = 'number' THEN (body::json -> field)::text END;
    EXCEPTION WHEN others THEN
        RETURN NULL;
    END $$;
    CREATE FUNCTION rota_json_without(body text, field text) RETURNS text IMMUTABLE STRICT LANGUAGE plpgsql AS $$
    BEGIN
        RETURN (SELECT '{' || coalesce(string_agg(to_json(e.key)::text || ':' || e.value::text, ',' ORDER BY e.place),
            '') || '}' FROM json_each(body::json) WITH ORDINALITY AS e(key, value, place) WHERE e.key != field);
    EXCEPTION WHEN others THEN
        RETURN body;
    END $$;
    CREATE FUNCTION rota_json_length(body text, field text) RETURNS bigint IMMUTABLE STRICT LANGUAGE plpgsql AS $$
    BEGIN
        RETURN CASE json_typeof(body::json -> field) WHEN 'array' THEN json_array_length(body::json -> field)
            ELSE 0 END;
    EXCEPTION WHEN others THEN
        RETURN NULL;
    END $$;
"""

_TABLES = """
    CREATE SEQUENCE news; -- one number for each transaction that wrote, so that processes notice those of others
    CREATE TABLE kernel_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);

    CREATE TABLE agent_processes (
        pid INTEGER PRIMARY KEY,
        parent_pid INTEGER REFERENCES agent_processes(pid),
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        priority INTEGER NOT NULL DEFAULT 0,
        weight INTEGER NOT NULL DEFAULT 1000,
        rerunnable INTEGER NOT NULL DEFAULT 1,
        max_concurrent INTEGER,
        started_at REAL,
        ended_at REAL,
        last_event_id INTEGER,
        name TEXT NOT NULL,
        template TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('READY','RUNNING','WAITING','SUSPENDED','DEAD')),
        intent TEXT NOT NULL DEFAULT 'NEUTRAL',
        project_id TEXT,
        paused_by TEXT,
        state_reason TEXT,
        exit_kind TEXT,
        exit_detail TEXT NOT NULL DEFAULT '{}',
        metadata TEXT NOT NULL DEFAULT '{}'
    );
    CREATE INDEX idx_process_stopped ON agent_processes (pid) WHERE paused_by IS NOT NULL OR max_concurrent = 0;
    CREATE INDEX idx_process_capped ON agent_processes (pid, max_concurrent) WHERE max_concurrent IS NOT NULL;
    CREATE INDEX idx_process_live ON agent_processes (pid) WHERE state IN ('RUNNING','WAITING');
    CREATE INDEX idx_process_project ON agent_processes (project_id) WHERE project_id IS NOT NULL;
    CREATE INDEX idx_process_name ON agent_processes (name, pid);

    CREATE TABLE agent_events (
        event_id INTEGER PRIMARY KEY,
        ts REAL NOT NULL,
        pid INTEGER,
        kind TEXT NOT NULL,
        author TEXT NOT NULL DEFAULT '',
        causation_id TEXT,
        correlation_id TEXT,
        payload TEXT NOT NULL DEFAULT '{}'
    );
    CREATE INDEX idx_events_pid ON agent_events (pid, event_id)
        WHERE pid IS NOT NULL AND kind NOT LIKE 'kernel.sched.%';
    CREATE TABLE journal_checkpoints (
        through_id INTEGER NOT NULL,
        part INTEGER NOT NULL,
        made_at REAL NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (through_id, part)
    );

    CREATE TABLE agent_ledgers (
        pid INTEGER NOT NULL REFERENCES agent_processes(pid),
        used INTEGER NOT NULL DEFAULT 0,
        granted INTEGER NOT NULL,
        hard_limit INTEGER NOT NULL,
        warn_at REAL NOT NULL DEFAULT 0.8,
        dim TEXT NOT NULL,
        alerts TEXT NOT NULL DEFAULT '[0.8,1.0]',
        PRIMARY KEY (pid, dim)
    );
    CREATE INDEX idx_ledger_breached ON agent_ledgers (pid) WHERE used > hard_limit;

    CREATE TABLE agent_schedule_queue (
        sched_id INTEGER PRIMARY KEY,
        pid INTEGER NOT NULL,
        priority INTEGER NOT NULL DEFAULT 0,
        runnable_at REAL NOT NULL DEFAULT 0,
        created_at REAL NOT NULL,
        attempt INTEGER NOT NULL DEFAULT 0,
        max_attempts INTEGER NOT NULL DEFAULT 3,
        cancel_requested INTEGER NOT NULL DEFAULT 0,
        estimate INTEGER NOT NULL DEFAULT 0,
        by_date INTEGER NOT NULL DEFAULT 0,
        deadline REAL,
        token INTEGER,
        dispatched_at REAL,
        heartbeat_at REAL,
        claim_timeout_s REAL,
        claim_expires_at REAL,
        completed_at REAL,
        state TEXT NOT NULL DEFAULT 'queued'
            CHECK (state IN ('queued','dispatched','completed','expired','cancelled')),
        hold TEXT CHECK (hold IS NULL OR hold IN ('time','after','backoff','worker')),
        trigger TEXT NOT NULL DEFAULT 'manual',
        project_id TEXT,
        kind TEXT,
        key TEXT,
        worker_id TEXT,
        incarnation TEXT,
        held_workspace TEXT,
        exit_kind TEXT,
        outcome TEXT,
        needs TEXT,
        spent TEXT,
        options TEXT,
        payload TEXT NOT NULL DEFAULT '{}',
        result TEXT
    );
    CREATE INDEX idx_sched_queue_pid ON agent_schedule_queue (pid, sched_id);
    CREATE INDEX idx_sched_queue_pickable ON agent_schedule_queue (priority DESC, runnable_at, sched_id)
        WHERE state = 'queued' AND hold IS NULL;
    CREATE INDEX idx_sched_queue_held ON agent_schedule_queue (runnable_at, sched_id)
        WHERE state = 'queued' AND (hold = 'time' OR hold = 'backoff');
    CREATE INDEX idx_sched_queue_held_by_priority ON agent_schedule_queue (priority DESC, runnable_at, sched_id)
        WHERE state = 'queued' AND coalesce(hold, '') IN ('time', 'backoff'); -- see postgres_text.NAMED
    CREATE INDEX idx_sched_queue_live ON agent_schedule_queue (claim_expires_at, sched_id) WHERE state = 'dispatched';
    CREATE INDEX idx_sched_queue_workspace ON agent_schedule_queue (held_workspace)
        WHERE state = 'dispatched' AND held_workspace IS NOT NULL;
    CREATE INDEX idx_sched_queue_deadline ON agent_schedule_queue (deadline, sched_id)
        WHERE deadline IS NOT NULL AND state = 'queued';
    CREATE UNIQUE INDEX idx_sched_queue_key ON agent_schedule_queue (key, coalesce(project_id, ''))
        WHERE key IS NOT NULL;
    CREATE INDEX idx_sched_queue_unsuccessful ON agent_schedule_queue (exit_kind, sched_id)
        WHERE completed_at IS NOT NULL AND exit_kind IS DISTINCT FROM 'completed';
    CREATE INDEX idx_sched_queue_after ON agent_schedule_queue (sched_id) WHERE hold = 'after';
    CREATE INDEX idx_sched_queue_parent ON agent_schedule_queue (rota_json_text(options, 'parent_id'), sched_id)
        WHERE strpos(options, '"parent_id":') > 0;

    CREATE TABLE entry_after (
        sched_id INTEGER NOT NULL REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
        waits_for INTEGER NOT NULL,
        PRIMARY KEY (sched_id, waits_for)
    );
    CREATE INDEX idx_after_waits_for ON entry_after (waits_for, sched_id);
    CREATE TABLE entry_tags (
        sched_id INTEGER NOT NULL REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
        tag TEXT NOT NULL,
        PRIMARY KEY (tag, sched_id)
    );
    CREATE INDEX idx_tags_entry ON entry_tags (sched_id);
    CREATE TABLE entry_fallout (
        sched_id INTEGER PRIMARY KEY,
        seen_id INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE entry_loans (
        sched_id INTEGER PRIMARY KEY REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
        parent_id INTEGER NOT NULL,
        since_id INTEGER NOT NULL,
        amounts TEXT NOT NULL,
        returned TEXT
    );
    CREATE INDEX idx_loans_parent ON entry_loans (parent_id);
    CREATE TABLE kept_entries (
        sched_id INTEGER PRIMARY KEY REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
        priority INTEGER NOT NULL,
        runnable_at REAL NOT NULL,
        until_at REAL NOT NULL,
        worker_id TEXT NOT NULL,
        kind TEXT
    );
    CREATE INDEX idx_kept_worker ON kept_entries
        (worker_id, coalesce(kind, ''), priority DESC, runnable_at, sched_id);
    CREATE INDEX idx_kept_until ON kept_entries (until_at, sched_id);
    CREATE TABLE finished_entries (
        place INTEGER GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        sched_id INTEGER NOT NULL,
        ended_at REAL NOT NULL
    );

    CREATE TABLE projects (
        project_id TEXT PRIMARY KEY,
        weight INTEGER NOT NULL,
        max_concurrent INTEGER,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        name TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('ACTIVE','PAUSED','ARCHIVED')),
        restraint TEXT NOT NULL DEFAULT '{}',
        paused_by TEXT,
        metadata TEXT NOT NULL DEFAULT '{}'
    );
    CREATE TABLE project_grants (
        granted_at REAL NOT NULL,
        from_project TEXT NOT NULL,
        to_project TEXT NOT NULL,
        granted_by TEXT NOT NULL,
        PRIMARY KEY (from_project, to_project)
    );
    CREATE TABLE workspaces (
        workspace_id TEXT PRIMARY KEY,
        project_id TEXT NOT NULL REFERENCES projects(project_id),
        path TEXT NOT NULL,
        source TEXT NOT NULL DEFAULT 'folder',
        fence INTEGER NOT NULL DEFAULT 0,
        kept TEXT
    );
    CREATE INDEX idx_workspace_project ON workspaces (project_id);
    CREATE UNIQUE INDEX idx_workspace_path ON workspaces (path);

    CREATE TABLE budgets (
        owner TEXT NOT NULL,
        dim TEXT NOT NULL,
        amount INTEGER NOT NULL,
        window_s REAL NOT NULL,
        alerts TEXT NOT NULL DEFAULT '[0.8,1.0]',
        alerted TEXT NOT NULL DEFAULT '{}',
        PRIMARY KEY (owner, dim)
    );
    CREATE TABLE usage_windows (
        window_s REAL NOT NULL,
        used INTEGER NOT NULL DEFAULT 0,
        ended INTEGER NOT NULL DEFAULT 0,
        edge_at REAL,
        alert_at INTEGER,
        owner TEXT NOT NULL,
        dim TEXT NOT NULL,
        PRIMARY KEY (owner, dim, window_s)
    );
    CREATE INDEX idx_window_edge ON usage_windows (edge_at) WHERE edge_at IS NOT NULL;
    CREATE TABLE usage_buckets (
        window_s REAL NOT NULL,
        leaves_at REAL NOT NULL,
        amount INTEGER NOT NULL,
        ended INTEGER NOT NULL DEFAULT 0,
        owner TEXT NOT NULL,
        dim TEXT NOT NULL,
        PRIMARY KEY (owner, dim, window_s, leaves_at)
    );

    CREATE TABLE project_flows (
        project_id TEXT PRIMARY KEY,
        virtual_time INTEGER NOT NULL DEFAULT 0,
        clock INTEGER NOT NULL DEFAULT 0,
        stamp INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX idx_project_flow_stamp ON project_flows (stamp, project_id);
    CREATE TABLE agent_flows (
        pid INTEGER PRIMARY KEY,
        virtual_time INTEGER NOT NULL DEFAULT 0,
        last_run_at REAL NOT NULL DEFAULT 0,
        in_line INTEGER NOT NULL DEFAULT 0,
        stamp INTEGER NOT NULL DEFAULT 0,
        project_id TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX idx_agent_flow_stamp ON agent_flows (stamp, pid);

    CREATE TABLE contexts (
        context_id INTEGER PRIMARY KEY,
        budget INTEGER NOT NULL,
        period_ms INTEGER NOT NULL,
        generation INTEGER NOT NULL DEFAULT 0,
        refill_at REAL,
        throttled_until REAL,
        bound_to TEXT NOT NULL CHECK (bound_to IN ('agent','project','call_path','name')),
        bound_id TEXT NOT NULL,
        unit TEXT NOT NULL,
        state TEXT NOT NULL,
        standing TEXT NOT NULL,
        pending TEXT,
        project_id TEXT
    );
    CREATE UNIQUE INDEX idx_context_bound ON contexts (bound_to, bound_id, unit, coalesce(project_id, ''))
        WHERE state != 'revoked';
    CREATE INDEX idx_context_refill ON contexts (refill_at, context_id) WHERE refill_at IS NOT NULL;
    CREATE INDEX idx_context_cpu ON contexts (context_id) WHERE unit = 'cpu_ms' AND state != 'revoked';

    CREATE TABLE limit_asks (
        ask_id INTEGER GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        sched_id INTEGER NOT NULL REFERENCES agent_schedule_queue(sched_id) ON DELETE CASCADE,
        token INTEGER NOT NULL,
        cost INTEGER NOT NULL,
        asked_at REAL NOT NULL,
        granted_at REAL,
        ask_key TEXT NOT NULL,
        name TEXT NOT NULL,
        asked TEXT NOT NULL,
        rest TEXT NOT NULL,
        UNIQUE (sched_id, ask_key)
    );
    CREATE INDEX idx_limit_asks_waiting ON limit_asks (name, ask_id) WHERE granted_at IS NULL;
    CREATE TABLE limit_shares (
        virtual_time INTEGER NOT NULL,
        clock INTEGER NOT NULL,
        name TEXT NOT NULL,
        level TEXT NOT NULL,
        key TEXT NOT NULL,
        PRIMARY KEY (name, level, key)
    );

    CREATE TABLE graph_runs (
        run_id TEXT PRIMARY KEY,
        pid INTEGER NOT NULL REFERENCES agent_processes(pid),
        fence INTEGER NOT NULL,
        next_epoch_id INTEGER NOT NULL DEFAULT 1,
        updated_at REAL NOT NULL,
        started_at REAL NOT NULL DEFAULT 0,
        resumes INTEGER NOT NULL DEFAULT 0,
        ended_at REAL,
        waits_since REAL,
        sched_id INTEGER,
        graph TEXT NOT NULL,
        project_id TEXT,
        status TEXT NOT NULL DEFAULT 'running'
            CHECK (status IN ('running','waiting','succeeded','failed','cancelled')),
        waits TEXT,
        error TEXT,
        inputs TEXT NOT NULL DEFAULT '{}',
        budget TEXT NOT NULL DEFAULT '{}',
        document TEXT,
        result TEXT,
        checkpoint TEXT
    );
    CREATE INDEX idx_graph_runs_coordinator ON graph_runs (sched_id) WHERE sched_id IS NOT NULL;
    CREATE INDEX idx_graph_runs_live ON graph_runs (run_id) WHERE ended_at IS NULL;
    CREATE TABLE graph_budgets (
        run_id TEXT NOT NULL,
        node TEXT NOT NULL,
        dim TEXT NOT NULL,
        amount INTEGER NOT NULL,
        used INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (run_id, node, dim)
    );

    CREATE TABLE workers (
        os_pid INTEGER NOT NULL,
        started_at REAL NOT NULL,
        seen_at REAL NOT NULL,
        draining INTEGER NOT NULL DEFAULT 0,
        returned INTEGER NOT NULL DEFAULT 0,
        worker_id TEXT NOT NULL,
        incarnation TEXT NOT NULL,
        kind TEXT NOT NULL,
        host TEXT NOT NULL,
        pools TEXT NOT NULL,
        version TEXT NOT NULL,
        PRIMARY KEY (worker_id, incarnation)
    );
    CREATE INDEX idx_workers_seen ON workers (seen_at);
    CREATE TABLE core_grants (
        sched_id INTEGER PRIMARY KEY,
        token INTEGER NOT NULL,
        host TEXT NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX idx_core_grants_host ON core_grants (host, sched_id);
    CREATE TABLE core_leases (
        core INTEGER NOT NULL,
        sched_id INTEGER NOT NULL REFERENCES core_grants(sched_id) ON DELETE CASCADE,
        host TEXT NOT NULL,
        PRIMARY KEY (host, core)
    );
    CREATE INDEX idx_core_leases_entry ON core_leases (sched_id);

    CREATE TABLE usage_daily (
        day INTEGER NOT NULL,
        pid INTEGER NOT NULL,
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
        model TEXT NOT NULL,
        project_id TEXT NOT NULL,
        wait_sizes TEXT NOT NULL DEFAULT '[]',
        PRIMARY KEY (day, pid, model)
    );
    CREATE TABLE usage_entries (
        sched_id INTEGER PRIMARY KEY,
        released_at REAL,
        waited_ms INTEGER,
        model TEXT NOT NULL DEFAULT ''
    );
"""
_TYPES = {"INTEGER": "bigint", "REAL": "double precision", "TEXT": 'text COLLATE "C"'}

COLUMNS = {  # table: the type of each column; below, those of the later steps
    table: {
        name: {"INTEGER": "bigint", "REAL": "double precision", "TEXT": "text"}[kind]
        for name, kind in re.findall(r"^ {8}(\w+) (INTEGER|REAL|TEXT)\b", body, re.MULTILINE)
    }
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n? *\);", _TABLES, re.DOTALL)
}
COLUMNS |= {
    table: dict(re.findall(r"^ +(\w+) (bigint|double precision|text)\b", body, re.MULTILINE))
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n? *\);", "".join(POSTGRES_STEPS.values()), re.DOTALL)
}

# A vacuum after so many changed rows, whatever the size of the table, without pauses: the tables of this list are read
# or written in every turn, and a claim that steps over dead rows takes longer.
_VACUUM = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_scale_factor = 0, autovacuum_vacuum_cost_delay = 0, "
    "autovacuum_vacuum_threshold = {dead}, autovacuum_analyze_threshold = {dead}"
)
_SMALL = f"fillfactor = 50, {_VACUUM.format(dead=1_000)}"  # few rows that change all the time
STORAGE = {
    "agent_schedule_queue": f"fillfactor = 70, {_VACUUM.format(dead=10_000)}",
    "agent_events": "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000",
    "agent_processes": f"fillfactor = 80, {_VACUUM.format(dead=5_000)}",
    "finished_entries": _VACUUM.format(dead=10_000),
    "entry_after": _VACUUM.format(dead=5_000),
    "kept_entries": _VACUUM.format(dead=1_000),
    "entry_fallout": _VACUUM.format(dead=1_000),
    **dict.fromkeys(
        (
            "kernel_meta",
            "agent_ledgers",
            "agent_flows",
            "project_flows",
            "usage_windows",
            "usage_buckets",
            "contexts",
            "limit_asks",
            "limit_shares",
            "workers",
            "graph_budgets",
            "usage_daily",
            "usage_entries",
        ),
        _SMALL,
    ),
}


def creation() -> Iterator[str]:
    """Yield the commands that create the tables in the first schema of the search path, and record the version."""
    yield _FUNCTIONS
    yield re.sub(rf"\b(?:{'|'.join(_TYPES)})\b", lambda found: _TYPES[found[0]], _TABLES)
    for table, options in STORAGE.items():
        yield f"ALTER TABLE {table} SET ({options})"
    yield "INSERT INTO kernel_meta (key, value) VALUES ('finished_cursor', '0')"  # as step 111 leaves a new file
    for version in sorted(POSTGRES_STEPS):
        yield POSTGRES_STEPS[version]
    yield f"INSERT INTO kernel_meta (key, value) VALUES ('schema_version', '{LATEST}')"  # noqa: S608  # a number


def plan(stamp: str) -> list[int]:
    """Return the steps that a schema of this version needs, oldest first; raises SchemaMismatch if it is unknown."""
    version = int(stamp) if stamp.isascii() and stamp.isdecimal() else -1
    if version != POSTGRES_BASE and version not in POSTGRES_STEPS:
        origin = "a newer rota" if version > LATEST else "another program"
        text = f"schema_version {stamp} was written by {origin}; this rota reads {POSTGRES_BASE} to {LATEST}"
        raise SchemaMismatch(text, stamp=stamp, latest=LATEST)
    return [step for step in sorted(POSTGRES_STEPS) if step > version]


def step(version: int) -> Statement:
    """Return one step as a statement."""
    text = POSTGRES_STEPS[version]
    return Statement(f"migrate_{version}", f"Migrate the schema to version {version}.", text, postgres=text)

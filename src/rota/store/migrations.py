"""The schema, as ordered steps forward. Versions 1 to 3 are the first kernel's; rota's own begin at 100.

Versions 4 to 99 belong to another kernel: such a file is refused, and so is one that is newer than
this rota or whose stamp cannot be read. A refused file is not written.
"""

from __future__ import annotations

from rota.errors import SchemaMismatch

__all__ = ["LATEST", "STEPS", "plan"]

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
        ALTER TABLE agent_schedule_queue ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
        ALTER TABLE agent_schedule_queue ADD COLUMN result TEXT;
        ALTER TABLE agent_schedule_queue ADD COLUMN token INTEGER;
    """,
}
LATEST = max(STEPS)


def plan(stamp: str | None) -> list[int]:
    """The steps a file needs, oldest first, judged by its stamp (None: a new file)."""
    if stamp is None:
        return sorted(STEPS)
    if not stamp.isdecimal():
        raise SchemaMismatch(f"schema_version {stamp!r} is not a number", stamp=stamp)
    version = int(stamp)
    if version not in STEPS:
        whose = "a newer rota" if version > LATEST else "another program"
        raise SchemaMismatch(f"schema_version {version} is of {whose}; this rota knows up to {LATEST}", stamp=stamp)
    return [step for step in sorted(STEPS) if step > version]

"""Files as the first kernel writes them, schema 1 to 5: its own columns, indexes and values."""

from __future__ import annotations

import json
import math
import sqlite3
from typing import Any

__all__ = ["UNKNOWN_TABLES", "VERSIONS", "make_first_kernel"]

VERSIONS = (1, 2, 3, 4, 5)
_SCHEMA = {
    1: """
        CREATE TABLE kernel_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE agent_processes (pid INTEGER PRIMARY KEY AUTOINCREMENT, parent_pid INTEGER, name TEXT NOT NULL,
            template TEXT NOT NULL, state TEXT NOT NULL
            CHECK (state IN ('READY', 'RUNNING', 'WAITING', 'SUSPENDED', 'DEAD')), state_reason TEXT,
            created_at REAL NOT NULL, updated_at REAL NOT NULL, started_at REAL, ended_at REAL, exit_kind TEXT,
            exit_detail TEXT, metadata TEXT NOT NULL DEFAULT '{}', last_event_id INTEGER NOT NULL DEFAULT 0,
            FOREIGN KEY (parent_pid) REFERENCES agent_processes (pid));
        CREATE INDEX idx_process_live ON agent_processes (state);  -- a name that rota uses for another index
        CREATE INDEX first_by_parent ON agent_processes (parent_pid);
        CREATE TABLE agent_events (event_id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL, ts REAL NOT NULL,
            kind TEXT NOT NULL, payload TEXT NOT NULL, causation_id INTEGER, correlation_id TEXT,
            FOREIGN KEY (pid) REFERENCES agent_processes (pid));
        CREATE INDEX first_events_by_pid ON agent_events (pid, event_id);
        CREATE INDEX first_events_by_kind ON agent_events (kind);
    """,
    2: """
        CREATE TABLE agent_capabilities (cap_id INTEGER PRIMARY KEY AUTOINCREMENT, parent_cap_id INTEGER,
            pid INTEGER NOT NULL UNIQUE, tool_grants TEXT NOT NULL, fs_grants TEXT NOT NULL, net_grants TEXT NOT NULL,
            model_grants TEXT NOT NULL, sub_agent INTEGER NOT NULL CHECK (sub_agent IN (0, 1)),
            created_at REAL NOT NULL, FOREIGN KEY (pid) REFERENCES agent_processes (pid));
        CREATE TABLE agent_ledgers (pid INTEGER NOT NULL, dim TEXT NOT NULL, used INTEGER NOT NULL DEFAULT 0,
            granted INTEGER NOT NULL, hard_limit INTEGER NOT NULL, warn_at REAL NOT NULL DEFAULT 0.8,
            created_at REAL NOT NULL, updated_at REAL NOT NULL, PRIMARY KEY (pid, dim),
            FOREIGN KEY (pid) REFERENCES agent_processes (pid));
        CREATE INDEX idx_ledger_breached ON agent_ledgers (pid);
    """,
    3: """
        CREATE TABLE agent_schedule_queue (sched_id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL,
            priority INTEGER NOT NULL DEFAULT 0, runnable_at REAL NOT NULL DEFAULT 0, deadline REAL,
            trigger TEXT NOT NULL DEFAULT 'manual', payload TEXT NOT NULL DEFAULT '{}',
            state TEXT NOT NULL DEFAULT 'queued'
            CHECK (state IN ('queued', 'dispatched', 'completed', 'expired', 'cancelled')), worker_id TEXT,
            created_at REAL NOT NULL, dispatched_at REAL, completed_at REAL, exit_kind TEXT,
            FOREIGN KEY (pid) REFERENCES agent_processes (pid));
        CREATE INDEX idx_sched_queue_pickable ON agent_schedule_queue (state, priority DESC, runnable_at, sched_id);
        CREATE INDEX idx_sched_queue_pid ON agent_schedule_queue (pid);
        CREATE INDEX idx_sched_queue_deadline ON agent_schedule_queue (deadline) WHERE deadline IS NOT NULL;
    """,
    4: """
        CREATE TABLE agent_mailboxes (pid INTEGER PRIMARY KEY REFERENCES agent_processes (pid),
            queue_size INTEGER NOT NULL DEFAULT 1024);
        CREATE TABLE agent_subscriptions (pid INTEGER NOT NULL REFERENCES agent_processes (pid), topic TEXT NOT NULL);
        CREATE TABLE agent_messages (msg_id INTEGER PRIMARY KEY AUTOINCREMENT,
            recipient_pid INTEGER NOT NULL REFERENCES agent_processes (pid) ON DELETE CASCADE, payload TEXT NOT NULL,
            event_id INTEGER REFERENCES agent_events (event_id) ON DELETE CASCADE);
        CREATE TABLE agent_registry (name TEXT PRIMARY KEY, pid INTEGER NOT NULL REFERENCES agent_processes (pid));
        CREATE VIEW live_agents AS SELECT a.pid, e.kind FROM agent_processes a JOIN agent_events e ON e.pid = a.pid;
    """,
    5: """
        CREATE TABLE agent_fs_objects (path TEXT PRIMARY KEY,
            owner_pid INTEGER NOT NULL REFERENCES agent_processes (pid) ON DELETE CASCADE, content BLOB NOT NULL);
    """,
}
UNKNOWN_TABLES = {
    "agent_capabilities": 2,
    "agent_mailboxes": 4,
    "agent_subscriptions": 4,
    "agent_messages": 4,
    "agent_registry": 4,
    "agent_fs_objects": 5,
}
_UNKNOWN_ROWS = {
    2: "INSERT INTO agent_capabilities VALUES (7, NULL, 2, '[]', '[]', '[]', '[\"*\"]', 1, 102.0);",
    4: """
        INSERT INTO agent_mailboxes VALUES (1, 64); INSERT INTO agent_subscriptions VALUES (1, 'news');
        INSERT INTO agent_messages VALUES (9, 1, '{}', 2); INSERT INTO agent_registry VALUES ('root', 1);
    """,
    5: "INSERT INTO agent_fs_objects VALUES ('/a', 2, x'00ff');",
}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)  # as Python's: NaN and lone surrogates pass


AGENTS: list[tuple[Any, ...]] = [
    (1, None, "root", "shell", "RUNNING", None, 100.5, 101.5, 100.7, None, None, None, _json({"a": 1}), 2),
    (2, 1, "child", "python", "READY", None, 102.0, 102.0, None, None, None, None, "{}", 0),
    (3, 1, "child", "python", "WAITING", "children", 102.5, 103.0, 102.6, None, None, None, "{}", 0),
    (4, 2, "paused \u00e9", "py" * 400, "SUSPENDED", "r" * 9_000, 103.0, 104.0, 103.1, None, None, None, "{}", 0),
    (5, None, "over", "python", "READY", "", 103.0, 103.0, None, None, None, None, _json({"load": math.nan}), 0),
    (9, 1, "gone", "python", "DEAD", None, 103.0, 190.0, 104.0, 190.0, "failed", _json({"at": math.inf}), "{}", 4),
    (10, 1, "gone", "python", "DEAD", "stopped", 103.0, 191.0, None, 191.0, None, None, "{}", 0),
]
_MOVED = {"prev_state": "READY", "new_state": "RUNNING", "reason": None}
_ENDED = {"prev_state": "RUNNING", "new_state": "DEAD", "reason": None, "exit_kind": "failed", "exit_detail": {"x": 1}}
_BACK = {"prev_state": "RUNNING", "new_state": "SUSPENDED", "policy": "suspend", "reason": "daemon_restart"}
EVENTS: list[tuple[Any, ...]] = [
    (1, 1, 100.5, "kernel.process.created", {"name": "root", "template": "shell", "parent_pid": None}, None, "c-1"),
    (2, 1, 100.7, "kernel.process.transitioned", _MOVED, 1, None),
    (3, 2, 102.0, "user.note", {"heat": math.nan, "text": "half \ud83d of it"}, None, None),
    (4, 9, 190.0, "kernel.process.terminated", _ENDED, None, None),
    (6, 3, 190.5, "kernel.process.recovered", _BACK, None, None),
    (7, 3, 190.5, "kernel.mailbox.sent", {"to": 1}, 6, None),  # a kind that rota does not know
]
LEDGERS: list[tuple[Any, ...]] = [
    (1, "tokens", 1_200, 5_000, 5_000, 0.75, 100.0, 101.0),
    (5, "cost_micro", 7_000, 5_000, 5_000, 0.8, 100.0, 101.0),  # over its limit
    (2, "any name", 0, 1, 1, 0.0, 100.0, 101.0),
]
ENTRIES: list[tuple[Any, ...]] = [
    (1, 1, 5, 0, None, "manual", {"n": 1}, "queued", None, 100.0, None, None, None),
    (2, 2, -3, 5_000.0, 6_000.0, "cron", {}, "queued", None, 101.0, None, None, None),
    (3, 1, 0, 0, None, "manual", {}, "dispatched", "w-1", 102.0, 140.0, None, None),
    (4, 2, 0, 0, None, "event", {}, "completed", "w-2", 103.0, 141.0, 150.0, "completed"),
    (5, 5, 9, 0, None, "manual", {}, "queued", None, 103.0, None, None, None),  # its agent is over its limit
    (6, 2, True, 0, math.inf, "t" * 500, {"x": math.inf}, "queued", None, 103.0, None, None, None),
    (7, 4, 1, math.inf, None, "resume", {"s": "\udc00"}, "queued", None, 103.0, None, None, None),
    (8, 9, 0, 0, 120.0, "manual", {}, "expired", None, 104.0, None, 121.0, None),
    (9, 9, 0, 0, None, "manual", {}, "cancelled", None, 105.0, None, 122.0, None),
    (11, 10, 0, 0, None, "manual", {}, "queued", None, 105.0, None, None, None),  # its agent died after the enqueue
    (12, 1, 2**63 - 1, 0, 10.0, "manual", {}, "queued", None, 105.0, None, None, None),  # past its deadline
    (13, 3, 0, 0, None, "manual", {}, "dispatched", "w-1", 106.0, 3_000_000_000.0, None, None),
    (14, 3, 0, 0, None, "manual", {}, "completed", "w-1", 106.0, 107.0, 108.0, "crashed"),
]


def _insert(connection: sqlite3.Connection, table: str, rows: list[tuple[Any, ...]]) -> None:
    values = [tuple(_json(value) if isinstance(value, dict) else value for value in row) for row in rows]
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)


def make_first_kernel(path: str, version: int, *, filler: int = 0) -> None:
    """Write a file of a schema version, with rows in every state, and `filler` more queued entries."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    for step in range(1, version + 1):
        connection.executescript(_SCHEMA[step])
    connection.execute("INSERT INTO kernel_meta VALUES ('schema_version', ?)", (str(version),))
    connection.execute("INSERT INTO kernel_meta VALUES ('host', 'box')")
    _insert(connection, "agent_processes", AGENTS)
    _insert(connection, "agent_events", EVENTS)
    if version >= 2:
        _insert(connection, "agent_ledgers", LEDGERS)
    if version >= 3:
        _insert(connection, "agent_schedule_queue", ENTRIES)
        extra = (
            (100 + n, 1, 0, 0, None, "manual", "{}", "queued", None, 106.0, None, None, None) for n in range(filler)
        )
        connection.executemany(f"INSERT INTO agent_schedule_queue VALUES ({', '.join('?' * 13)})", extra)
        connection.execute("UPDATE sqlite_sequence SET seq = 20000 WHERE name = 'agent_schedule_queue'")
    for step, text in _UNKNOWN_ROWS.items():
        if step <= version:
            connection.executescript(text)
    connection.execute("UPDATE sqlite_sequence SET seq = 15 WHERE name = 'agent_processes'")  # a pid is never reused
    connection.commit()
    connection.close()

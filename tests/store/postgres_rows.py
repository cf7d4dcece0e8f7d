"""Rows of every table, made from a seed: the same in SQLite and in PostgreSQL, and parameters that meet them."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import apsw

ROWS = 12  # in each table
IDS = range(1, ROWS + 1)
INSTANTS = [0.0, 0.5, 900.0, 1_000.0, 1_000.25, 1_060.0, 2_000.0]
NAMES = ["lab", "ops", "worker", "worker/cpu", "tokens", "cost", "api", "a", "b", "k1", "run-1", "", "*"]
WORDS: dict[str, list[Any]] = {  # the texts of columns that have few
    "agent_processes.state": ["READY", "RUNNING", "WAITING", "SUSPENDED", "DEAD"],
    "agent_processes.paused_by": [None, None, "quarantine", "me"],
    "agent_schedule_queue.state": ["queued", "queued", "dispatched", "completed", "expired", "cancelled"],
    "agent_schedule_queue.hold": [None, None, "time", "after", "backoff", "worker"],
    "agent_schedule_queue.exit_kind": [None, "completed", "failed", "crashed", "cancelled"],
    "agent_schedule_queue.options": [
        None,
        '{"parent_id":3}',
        '{"parent_id":4,"correlation_id":"run-1","errors":["Lab fell"]}',
        '{"correlation_id":"run-1","note":"\\u0000"}',
        "{damaged",
        "[]",
    ],
    "agent_schedule_queue.needs": [None, '{"tokens":5}', '{"lender":3,"tokens":5}'],
    "agent_schedule_queue.kind": [None, "cpu", "gpu"],
    "agent_schedule_queue.worker_id": [None, "worker", "worker/cpu"],
    "agent_events.kind": [
        "kernel.sched.enqueued",
        "kernel.sched.claimed",
        "kernel.policy.fell_back",
        "kernel.cores.refused",
        "kernel.ledger.charged",
        "mine",
    ],
    "agent_events.payload": [
        '{"first_id":3,"count":2,"policy":"strict","entries":[3,4]}',
        '{"sched_id":3,"policy":"eevdf","forced_by":"me"}',
        '{"entries":"none"}',
        "{damaged",
        '"text"',
    ],
    "agent_processes.metadata": ["{}", '{"b":1,"quarantined_until":1500.5,"a":{"c":[1, 2]}}', "{damaged"],
    "projects.status": ["ACTIVE", "ACTIVE", "PAUSED", "ARCHIVED"],
    "contexts.bound_to": ["agent", "project", "name"],
    "contexts.bound_id": ["1", "2", "lab", "api"],
    "contexts.state": ["active", "revoked"],
    "contexts.unit": ["tokens", "cpu_ms"],
    "graph_runs.status": ["running", "waiting", "succeeded", "failed", "cancelled"],
    "limit_asks.rest": ['{"tokens":5}', '{"requests":1}'],
    "kept_entries.kind": [None, "cpu"],
    "kept_entries.worker_id": ["worker", "worker/cpu"],
    "usage_windows.window_s": [60.0, 3_600.0],
    "usage_buckets.window_s": [60.0, 3_600.0],
    "usage_windows.dim": ["tokens", "share"],
    "usage_buckets.dim": ["tokens", "share"],
    "kernel_meta.key": ["schema_version", "fleet_paused_by", "note:a", "note:b", "finished_cursor"],
}
# the first of them have rows that those of other tables refer to
PARENTS = ("agent_processes", "projects", "agent_schedule_queue", "core_grants", "agent_events")
# What a parameter of type text may be. Lists are JSON; which kind of values one has is seen in the statement.
LISTS_OF_IDS = ["[]", "[3]", "[1,2,3,4,5,6,7,8,9,10,11,12,99]", "[4,2]"]
LISTS_OF_NAMES = ["[]", '["lab"]', '["lab",""]', '["ready","failed","cancelled"]', '["waiting","running","expired"]']
VALUES: dict[str, list[Any]] = {
    "truth": [True, False],
    "integer": [0, 1, 2, 3, 4, 5, 11, 100],
    "real": INSTANTS,
    "text": NAMES,
}
TYPES = {20: "integer", 23: "integer", 701: "real", 25: "text", 3802: "list", 16: "truth", 19: "text"}  # by oid
FIRST_OWN_OID = 16_384  # types of the schema itself: the states and holds of entries, which are texts


def fill(connection: apsw.Connection, generator: random.Random) -> None:
    """Put rows into every table of an empty database."""
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    tables = [name for name in tables if not name.startswith("sqlite_")]
    for table in sorted(tables, key=lambda name: (PARENTS.index(name) if name in PARENTS else len(PARENTS), name)):
        columns = connection.execute('SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (table,)).fetchall()
        names, holes = ", ".join(str(column[0]) for column in columns), ", ".join("?" * len(columns))
        for number in IDS if table in PARENTS else IDS[:8]:
            row = [_value(table, column, number, generator) for column in columns]
            with contextlib.suppress(apsw.ConstraintError):  # the same key again, or a row that is not there
                connection.execute(f"INSERT INTO {table} ({names}) VALUES ({holes})", row)
    connection.execute(  # what the kernel always stores of a live claim, and never of an entry without a project
        "UPDATE agent_schedule_queue SET project_id = nullif(project_id, ''), token = coalesce(token, 3), "
        "dispatched_at = coalesce(dispatched_at, 900), claim_expires_at = coalesce(claim_expires_at, 1060)"
    )


def _value(table: str, column: tuple[Any, ...], number: int, generator: random.Random) -> Any:
    name, kind, not_null, position = column
    words = WORDS.get(f"{table}.{name}")
    if words is not None:
        return generator.choice(words)
    if name == "parent_pid" or (not (not_null or position) and generator.random() < 0.4):
        return None
    if kind == "INTEGER":
        return number if position == 1 else generator.choice([1, 2, 3, 4, 5, 7, 11])
    if kind == "REAL":
        return generator.choice(INSTANTS)
    return generator.choice(NAMES) if name.endswith(("_id", "owner", "dim", "name", "key", "host", "node")) else "{}"


BEFORE_120 = """
    ALTER TABLE agent_schedule_queue ALTER COLUMN state TYPE text COLLATE "C", ALTER COLUMN hold TYPE text COLLATE "C",
        ADD CHECK (state IN ('queued', 'dispatched', 'completed', 'expired', 'cancelled')),
        ADD CHECK (hold IS NULL OR hold IN ('time', 'after', 'backoff', 'worker'));
    DROP DOMAIN entry_state, entry_hold;
    DROP FUNCTION rota_noted_runs;
    DROP TABLE share_notes, charge_keys
"""  # makes the schema what it was before version 120


def parameters(text: str, types: Sequence[int], generator: random.Random) -> tuple[Any, ...]:
    """Make parameters of these types for a statement's text, as the kernel passes them."""
    kinds = ["text" if oid >= FIRST_OWN_OID else TYPES[oid] for oid in types]
    return tuple(_parameter(text, number, kind, generator) for number, kind in enumerate(kinds, 1))


def _parameter(text: str, number: int, kind: str, generator: random.Random) -> Any:
    place = rf"\${number}(?!\d)"
    of_numbers = rf"jsonb_array_elements_text\({place}::jsonb\)::bigint|translate\({place}::text|'parent_id'"
    if kind == "list" or re.search(rf"(?:jsonb_array_elements_text|translate)\({place}", text):
        of_ids = re.search(of_numbers, text)
        return generator.choice(LISTS_OF_IDS if of_ids else LISTS_OF_NAMES)
    if re.search(rf"(?:LIMIT|OFFSET) {place}", text):
        return generator.choice([0, 1, 3, 100])
    if kind == "text" and re.search(rf"= coalesce\({place}", text):  # NULL is one of the values, and '' none
        return generator.choice([None, "lab", "ops", "cpu"])
    if words := _words(text, number, place):
        return generator.choice(words)
    choices = VALUES[kind]
    compared = "greatest(" in text or "least(" in text  # the kernel passes no NULL there; SQLite returns NULL for it
    return None if not compared and generator.random() < 0.1 else generator.choice(choices)


def _words(text: str, number: int, place: str) -> list[Any]:
    """The texts of the column that a parameter is compared with or stored in, where it has few."""
    text = re.sub(r"coalesce\(\(SELECT .*?\), 0\) \+ 1", "an id", text)
    inserted = re.match(r"INSERT INTO (\w+)(?: AS \w+)? \(([^)]*)\) VALUES \(([^)]*)\)", text)
    if inserted is not None:
        columns = dict(zip(re.split(", ", inserted[3]), re.split(", ", inserted[2]), strict=False))
        return WORDS.get(f"{inserted[1]}.{columns.get(f'${number}')}", [])
    compared = re.search(rf"(\w+) = {place}", text)
    if compared is None:
        return []
    return next((WORDS[name] for name in WORDS if name.endswith(f".{compared[1]}") and name.split(".")[0] in text), [])


def rows_of(table: str, columns: Sequence[str]) -> str:
    """The text that reads every row of a table, with its columns in one order for both."""
    return f"SELECT {', '.join(columns)} FROM {table}"


def columns_of(connection: apsw.Connection) -> Iterator[tuple[str, list[str]]]:
    """Every table with its columns."""
    named = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
    for table in [str(row[0]) for row in connection.execute(named)]:
        yield (
            table,
            [str(row[0]) for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))],
        )

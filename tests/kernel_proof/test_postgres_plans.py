"""How PostgreSQL finds the rows of the statements of every claim, enqueue and completion.

A statement is planned once in the life of a connection, for any parameters, and often while its tables are empty. So
each plan is looked at three times: made when all tables are empty and unknown to the planner; when the queue is full;
and when everything has ended. It never looks at all rows of a large table in any of them.

`test_query_plans.py` says which statements are hot and how SQLite finds their rows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from rota.store.postgres_text import NAMED, postgres_text
from tests.kernel_proof.test_query_plans import CLAIM_PATH, HOT, STATEMENTS
from tests.postgres_server import shared_dsn
from tests.store.postgres_shadow import Shadow

AGENTS = 300
ENDED, QUEUED = 20_000, 2_000
LARGE = {
    "agent_schedule_queue", "agent_events", "finished_entries", "agent_processes", "agent_flows", "agent_ledgers",
    "usage_daily", "usage_entries", "entry_after", "entry_tags", "agent_entries",
}  # fmt: skip
INDEXES = ("index_by_agent", "index_by_project", "index_by_deadline", "index_unended_by_agent")
SORTS = {"projects_ready": "a name for each project that has ready entries"}
WALKS = {"due_summary": "whether there is any row: the first ends it"}

FILL = f"""
    INSERT INTO agent_processes (pid, name, template, state, created_at, updated_at)
        SELECT i, 'agent' || i, 'callable', 'READY', 0, 0 FROM generate_series(1, {AGENTS}) i;
    INSERT INTO agent_flows (pid) SELECT i FROM generate_series(1, {AGENTS}) i;
    INSERT INTO agent_ledgers (pid, dim, granted, hard_limit)
        SELECT i, 'tokens', 9, 9 FROM generate_series(1, {AGENTS}) i;
    INSERT INTO agent_schedule_queue (sched_id, pid, created_at, state, completed_at, exit_kind)
        SELECT i, i % {AGENTS} + 1, i, 'completed', i, 'completed' FROM generate_series(1, {ENDED}) i;
    INSERT INTO agent_schedule_queue (sched_id, pid, priority, runnable_at, created_at, state, hold, token,
        dispatched_at, claim_expires_at, deadline)
        SELECT {ENDED} + i, i % {AGENTS} + 1, i % 5, i, i, CASE i % 20 WHEN 0 THEN 'dispatched' ELSE 'queued' END,
            CASE i % 20 WHEN 1 THEN 'time' END, CASE i % 20 WHEN 0 THEN i END, CASE i % 20 WHEN 0 THEN i END,
            CASE i % 20 WHEN 0 THEN i END, CASE i % 20 WHEN 2 THEN 9e9 + i END
        FROM generate_series(1, {QUEUED}) i;
    INSERT INTO agent_events (event_id, ts, pid, kind)
        SELECT i, i, i % {AGENTS} + 1, CASE i % 3 WHEN 0 THEN 'kernel.ledger.charged' ELSE 'kernel.sched.claimed' END
        FROM generate_series(1, {ENDED}) i;
    INSERT INTO finished_entries (place, sched_id, ended_at) SELECT i, i, i FROM generate_series(1, {ENDED}) i;
    INSERT INTO entry_after (sched_id, waits_for) SELECT i, i - 1 FROM generate_series(2, {QUEUED}) i;
    INSERT INTO entry_tags (sched_id, tag) SELECT i, 'tag' || i % 7 FROM generate_series(1, {QUEUED}) i;
    INSERT INTO usage_daily (day, pid, model, project_id) SELECT i % 10, i, '', '' FROM generate_series(1, {QUEUED}) i;
    INSERT INTO usage_entries (sched_id) SELECT i FROM generate_series(1, {QUEUED}) i;
"""
END = "UPDATE agent_schedule_queue SET state = 'completed', hold = NULL, completed_at = 1, exit_kind = 'completed'"


class Access(NamedTuple):
    """How a plan gets at a table."""

    table: str
    way: str  # "whole", "along NAME" an index from its beginning, or "by NAME"
    filtered: bool  # it looks at more rows than it returns
    limited: bool  # a LIMIT ends it


@pytest.fixture(scope="module")
def shadow() -> Iterator[Shadow]:
    made = Shadow(shared_dsn(), f"plans_{os.getpid()}")
    for name in INDEXES:
        made.plain.execute(postgres_text(STATEMENTS[name]))
    yield made
    made.drop()


@pytest.fixture(scope="module")
def plans(shadow: Shadow) -> dict[str, dict[str, Any]]:
    """The plans of all hot statements, by what the planner knows."""
    found = {"nothing": {name: plan(shadow, name) for name in HOT}}
    shadow.plain.execute(FILL)
    shadow.plain.execute("ANALYZE")
    found["a full queue"] = {name: plan(shadow, name) for name in HOT}
    shadow.plain.execute(END)
    shadow.plain.execute("VACUUM ANALYZE")
    found["all has ended"] = {name: plan(shadow, name) for name in HOT}
    return found


@pytest.fixture(scope="module")
def first(shadow: Shadow) -> dict[str, str]:
    rows = shadow.run(
        "SELECT c.relname::text, pg_get_indexdef(i.indexrelid, 1, true) FROM pg_index i JOIN pg_class c "
        "ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1",
        (shadow.schema,),
    )
    return {str(name): str(column).replace("'::text", "'") for name, column in rows}


@pytest.fixture(scope="module")
def partial(shadow: Shadow) -> set[str]:
    rows = shadow.run("SELECT indexname::text FROM pg_indexes WHERE schemaname = $1 AND indexdef LIKE '% WHERE %'",
                      (shadow.schema,))  # fmt: skip
    return {row[0] for row in rows}


def plan(shadow: Shadow, name: str) -> dict[str, Any]:
    """The plan of a statement for any parameters."""
    text = postgres_text(STATEMENTS[name])
    count = len(shadow.types(text))
    connection: psycopg.Connection[Any] = shadow.plain
    connection.execute(f"PREPARE planned AS {text}".encode())
    try:
        given = f"({', '.join(['NULL'] * count)})" if count else ""
        ((found,),) = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned{given}".encode()).fetchall()
    finally:
        connection.execute("DEALLOCATE planned")
    root: dict[str, Any] = found[0]["Plan"]
    return root


def accesses(node: dict[str, Any], first: dict[str, str], *, limited: bool = False) -> Iterator[Access]:
    """Every table that a plan reads, and how. `first` is the first column of each index: only that narrows a search."""
    kind, table = node["Node Type"], node.get("Relation Name")
    limited = (limited or kind == "Limit") and kind not in ("Sort", "Hash", "Aggregate")
    if table in LARGE and kind != "ModifyTable":
        index = node.get("Index Name")
        narrow = index is not None and first[index] in node.get("Index Cond", "")
        way = "whole" if index is None else f"{'by' if narrow else 'along'} {index}"
        yield Access(table, way, "Filter" in node, limited)
    for part in node.get("Plans", []):
        yield from accesses(part, first, limited=limited)


def kinds(node: dict[str, Any]) -> Iterator[str]:
    yield node["Node Type"]
    for part in node.get("Plans", []):
        yield from kinds(part)


@pytest.mark.parametrize("known", ["nothing", "a full queue", "all has ended"])
def test_a_hot_statement_never_looks_at_all_rows_of_a_large_table(
    plans: dict[str, dict[str, Any]], partial: set[str], first: dict[str, str], known: str
) -> None:
    def is_short(access: Access) -> bool:
        """By a key; along an index that holds few rows; or at an end of one."""
        index = access.way.split(" ")[-1]
        return access.way.startswith("by ") or index in partial or (access.limited and not access.filtered)

    long = {
        name: [access for access in accesses(found, first) if not is_short(access)]
        for name, found in plans[known].items()
    }
    assert {name: found for name, found in long.items() if found and name not in WALKS} == {}


@pytest.mark.parametrize("known", ["nothing", "a full queue", "all has ended"])
def test_on_the_claim_path_nothing_is_sorted(plans: dict[str, dict[str, Any]], known: str) -> None:
    """The index has the order already, whatever the planner believes about the number of ready entries."""
    assert {name for name in CLAIM_PATH if "Sort" in set(kinds(plans[known][name]))} - set(SORTS) == set()


def test_a_statement_that_names_an_index_uses_it(plans: dict[str, dict[str, Any]], first: dict[str, str]) -> None:
    """Whatever the planner knows: several indexes fit, and while they are empty, one is as good as another."""
    for known, found in plans.items():
        for name in HOT:
            wanted = set(re.findall(r"INDEXED BY (\w+)", STATEMENTS[name].postgres or STATEMENTS[name].sql)) & set(
                NAMED
            )
            used = {access.way.split(" ")[-1] for access in accesses(found[name], first)}
            assert wanted <= used, f"{name}, when the planner knows {known}: {used}"


# --- how much is read ----------------------------------------------------------------------------

_MANY = json.dumps(list(range(1, 101)))
READS = {  # what a claim of 10 or of 100 asks, and the most pages that it may read
    "entries_ready": (("10000", "'[]'", "10"), 20),
    "entries_ready_at_any_time": (("'[]'", "10"), 20),
    "entries_next_of_agents": ((f"'{_MANY}'", "1"), 800),
    "heads_of_agents": ((f"'{_MANY}'", "10000", "10000", "'[]'", "1"), 500),
    "first_priorities": ((f"'{_MANY}'",), 500),
    "entries_held_due": (("10000", "10"), 40),
    "claims_expired": (("10000", "10"), 20),
    "due_summary": ((), 60),
    "last_entry": ((), 6),
    "agents_ready_of": ((f"'{_MANY}'",), 500),
    "agent_flows_changed": ((f"'{_MANY}'",), 1_000),
    "entries_next_of_agent": (("7", "3", "0"), 10),
    "entries_still_ready": ((f"'[{ENDED + 3}]'",), 6),
    "claims_of": ((f"'[{ENDED + 20}]'",), 8),
    "event_tail": (("19990", "10"), 8),
    "owners_new": ((str(ENDED + QUEUED - 10),), 8),
}


def test_a_plan_made_on_empty_tables_reads_few_pages_of_full_ones() -> None:
    """The pages of a claim do not grow with what waits or has ended."""
    shadow = Shadow(shared_dsn(), f"reads_{os.getpid()}")
    try:
        for name in INDEXES:
            shadow.plain.execute(postgres_text(STATEMENTS[name]))
        for name, (given, _) in READS.items():
            shadow.plain.execute(f"PREPARE {name} AS {postgres_text(STATEMENTS[name])}".encode())
            shadow.plain.execute(f"EXPLAIN EXECUTE {name}{_call(given)}".encode())  # planned now
        for command in FILL.strip().rstrip(";").split(";"):
            shadow.run(command)
        assert {name: pages for name in READS if (pages := _pages(shadow, name)) > READS[name][1]} == {}
    finally:
        shadow.drop()


def _call(given: tuple[str, ...]) -> str:
    return f"({', '.join(given)})" if given else ""


def _pages(shadow: Shadow, name: str) -> int:
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}{_call(READS[name][0])}"
    ((found,),) = shadow.plain.execute(explain.encode()).fetchall()
    root = found[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])

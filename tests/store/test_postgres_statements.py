"""Every statement on a real PostgreSQL: it can be prepared, and it returns and writes what it does on SQLite."""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import apsw
import msgspec
import psycopg
import pytest

from rota import store
from rota.errors import SchemaMismatch
from rota.kernel import Kernel, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from rota.store import Row, Statement, postgres_schema, statements
from rota.store.migrations import LATEST, POSTGRES_BASE, POSTGRES_STEPS, STEPS
from rota.store.postgres_batches import (
    BATCH_ROWS_MAX,
    BATCH_ROWS_MIN,
    FORMS_MAX,
    batch_of,
    command_for,
    commands,
)
from rota.store.postgres_text import gives_id, postgres_text
from tests.kernel.populated_world import PopulatedWorld
from tests.postgres_server import shared_dsn
from tests.store.postgres_rows import IDS, columns_of, fill, parameters, rows_of
from tests.store.postgres_shadow import OF_THE_FILE, Shadow, recorded, same

STATEMENTS = {
    value.name: value
    for module in pkgutil.iter_modules(statements.__path__)
    for value in vars(importlib.import_module(f"{statements.__name__}.{module.name}")).values()
    if isinstance(value, Statement)
}
TRIES = 8  # parameters for each statement
TRIES_MAX = 64  # if the tables have refused all of them
LAST_ID = max(IDS)
INDEXES = ("index_by_agent", "index_by_project", "index_by_deadline", "index_unended_by_agent")


@pytest.fixture(scope="module")
def shadow() -> Iterator[Shadow]:
    made = Shadow(shared_dsn(), f"statements_{os.getpid()}")
    for name in INDEXES:
        made.run(postgres_text(STATEMENTS[name]))
    yield made
    made.drop()


@pytest.fixture(scope="module")
def connection() -> Iterator[apsw.Connection]:
    """A database in memory with rows in every table."""
    opened = store.open(":memory:")
    found: apsw.Connection = opened._engine.connection  # type: ignore[attr-defined]
    for name in INDEXES:
        found.execute(STATEMENTS[name].sql)
    found.execute("DELETE FROM kernel_meta")
    fill(found, random.Random(22))
    yield found
    opened.close()


@pytest.fixture(scope="module")
def filled(shadow: Shadow, connection: apsw.Connection) -> Shadow:
    """The same rows on PostgreSQL."""
    shadow.empty()
    shadow.run("BEGIN")
    shadow.run("SET LOCAL session_replication_role = replica")
    shadow.run("DELETE FROM kernel_meta")
    for table, columns in columns_of(connection):
        holes = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        for row in connection.execute(rows_of(table, columns)).fetchall():
            shadow.run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({holes})", row)
    shadow.run("INSERT INTO agent_entries SELECT pid, sched_id FROM agent_schedule_queue")  # no trigger runs here
    shadow.run("COMMIT")
    return shadow


@cache
def tables(connection: apsw.Connection) -> dict[str, Statement]:
    """A statement for each table that reads all of it."""
    return {
        table: Statement(f"rows_of_{table}", "Made for a test.", rows_of(table, columns))
        for table, columns in columns_of(connection)
    }


# --- every statement -----------------------------------------------------------------------------


def test_every_statement_can_be_prepared_on_postgresql(shadow: Shadow) -> None:
    failed = {}
    for name, statement in STATEMENTS.items():
        if name not in INDEXES:
            try:
                shadow.types(postgres_text(statement))
            except psycopg.Error as problem:
                failed[name] = str(problem)
    assert failed == {}


def test_a_statement_that_no_rule_translates_needs_a_second_text() -> None:
    statement = Statement("mine", "Made for a test.", "SELECT json_extract(options, '$.a') FROM agent_schedule_queue")
    with pytest.raises(AssertionError, match="mine has no text"):
        postgres_text(statement)
    assert postgres_text(msgspec.structs.replace(statement, postgres="SELECT options FROM x WHERE a = +?")).endswith(
        "a = $1"
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 WHERE a = ? AND b = +?", "SELECT 1 WHERE a = $1 AND b = $2"),
        ("SELECT 1 WHERE a = ?2 AND b = +?1", "SELECT 1 WHERE a = $2 AND b = $1"),
        ("SELECT 1 FROM q INDEXED BY idx WHERE +pid = ?", "SELECT 1 FROM q WHERE +pid = $1"),
        ("SELECT 1 FROM q NOT INDEXED WHERE +state = 'x'", "SELECT 1 FROM q WHERE state || '' = 'x'"),
        ("a WHERE x IS ?1 AND y IS NOT 'b' AND z IS NOT NULL",
         "a WHERE x IS NOT DISTINCT FROM $1 AND y IS DISTINCT FROM 'b' AND z IS NOT NULL"),
        ("a WHERE (?1 IS NULL OR (x) = ?1) AND b", "a WHERE ((x) = $1 OR $1 IS NULL) AND b"),
        ("SELECT max(a, min(b, ?1)), max(c)", "SELECT greatest(a, least(b, $1)), max(c)"),
        ("a WHERE kind NOT GLOB 'kernel.*'", "a WHERE kind NOT LIKE 'kernel.%'"),
        ("k CROSS JOIN t q ON q.a = k.a CROSS JOIN u", "k JOIN t q ON q.a = k.a CROSS JOIN u"),
        ("x WHERE q.pid IN (SELECT value FROM json_each(?))",
         "x WHERE q.pid = ANY (translate($1::text, '[]', '{}')::bigint[])"),
        ("x WHERE coalesce(pid, '') NOT IN (SELECT value FROM json_each(?2))",
         "x WHERE coalesce(pid, '') NOT IN (SELECT jsonb_array_elements_text($2::jsonb))"),
    ],
)  # fmt: skip
def test_what_is_derived(sql: str, expected: str) -> None:
    assert postgres_text(Statement("mine", "Made for a test.", sql)) == expected


def test_the_holder_of_the_turn_gives_the_ids_of_events_and_entries() -> None:
    given = {"event_append", "entry_enqueue", "entry_enqueue_ready", "entry_enqueue_simple"}
    assert {name for name, each in STATEMENTS.items() if gives_id(each)} == given
    assert postgres_text(STATEMENTS["event_append"]).startswith("INSERT INTO agent_events (event_id, pid, ")
    assert not gives_id(
        Statement("mine", "A row with its id.", "INSERT INTO agent_events (event_id, ts) VALUES (?, ?)")
    )


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - OF_THE_FILE - set(INDEXES)))
def test_a_statement_returns_and_writes_the_same_rows(filled: Shadow, connection: apsw.Connection, name: str) -> None:
    statement, text = STATEMENTS[name], postgres_text(STATEMENTS[name])
    types, generator = filled.types(text), random.Random(name)
    writes = not text.startswith(("SELECT", "WITH"))
    table = re.match(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", text)
    worked = 0
    for number in range(TRIES_MAX if types else 1):
        if number >= TRIES and worked:
            break
        given = parameters(text, types, generator)
        if gives_id(statement):
            given = (LAST_ID + 1, *given[1:])
        connection.execute("SAVEPOINT attempt")
        filled.pipeline.send("BEGIN")
        if table is not None and table[1] in postgres_schema.SEQUENCES:
            filled.restart_sequences(LAST_ID - 3)
        try:
            expected = connection.execute(statement.sql, given[1:] if gives_id(statement) else given).fetchall()
            found = filled.run(text, given)
        except (apsw.ConstraintError, apsw.MismatchError, apsw.SQLError):
            continue
        except (psycopg.errors.NotNullViolation, psycopg.errors.DivisionByZero):
            continue  # SQLite gives a missing id itself, and divides by 0
        else:
            assert same(statement, expected, found), f"{given}:\n{expected}\n{found}\n{text}"
            worked += 1
            if writes and table is not None:
                read = tables(connection)[table[1]]
                after = connection.execute(read.sql).fetchall()
                assert same(read, after, filled.run(read.sql)), f"{given} changed other rows"
        finally:
            filled.run("ROLLBACK")
            connection.execute("ROLLBACK TO attempt; RELEASE attempt")
    assert worked


# --- many rows at once -----------------------------------------------------------------------------

BATCHED = {name: batch for name, each in STATEMENTS.items() if (batch := batch_of(each)) is not None}


WRITTEN_FOR_MANY = {  # what a turn writes for many entries or agents
    "entry_enqueue", "entry_enqueue_ready", "entry_enqueue_simple", "entry_claim", "entry_complete", "entry_requeue",
    "entry_release", "entry_cancel", "entry_expire", "entry_tag", "after_add", "finished_append", "agent_flow_move",
    "agent_flow_served", "agent_flow_enter", "agent_flow_leave", "agent_flow_touch", "project_flow_move",
    "bucket_add",
}  # fmt: skip


def test_what_a_turn_writes_for_many_entries_or_agents_is_one_statement() -> None:
    assert set(BATCHED) >= WRITTEN_FOR_MANY


@pytest.mark.parametrize("name", sorted(BATCHED))
def test_a_batch_does_what_its_rows_do_one_by_one(filled: Shadow, connection: apsw.Connection, name: str) -> None:
    statement, text, batch = STATEMENTS[name], postgres_text(STATEMENTS[name]), BATCHED[name]
    types, generator = filled.types(text), random.Random(name)
    table = re.match(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", text)
    assert table is not None
    read = tables(connection).get(table[1])
    worked = 0
    for attempt in range(TRIES_MAX):
        rows = [parameters(text, types, generator) for _ in range(2)]
        if gives_id(statement):
            rows = [(LAST_ID + number, *row[1:]) for number, row in enumerate(rows, 1)]
        elif attempt % 2:  # as in a claim, only the key of the row differs
            rows[1] = tuple(rows[place in batch.keys][place] for place in range(len(types)))
        command = command_for(batch, rows)
        if read is None or command is None or worked == 4:
            continue
        after = [_written(filled, read, [(text, row) for row in rows]), _written(filled, read, [command])]
        assert (after[0] is None) == (after[1] is None), rows
        if after[0] is not None and after[1] is not None:
            assert same(read, after[0], after[1]), rows
            worked += 1
    assert worked or name not in WRITTEN_FOR_MANY


def _written(filled: Shadow, read: Statement, commands: list[tuple[str, Sequence[Any]]]) -> list[Row] | None:
    """All rows of a table after some commands, which are undone; None if one failed."""
    filled.run("BEGIN")
    filled.restart_sequences(LAST_ID)
    try:
        for command in commands:
            filled.run(*command)
        return filled.run(read.sql)
    except (psycopg.errors.IntegrityError, psycopg.errors.DivisionByZero):  # a window of no buckets
        return None
    finally:
        filled.run("ROLLBACK")


def test_many_rows_are_sent_in_few_commands() -> None:
    release, text = STATEMENTS["entry_release"], postgres_text(STATEMENTS["entry_release"])
    rows = [(None, sched_id) for sched_id in range(1, BATCH_ROWS_MAX + 2)]
    (_, many), rest = commands(release, rows)
    assert len(many[1].split(",")) == BATCH_ROWS_MAX
    assert rest == (text, rows[-1])
    assert list(commands(release, rows[: BATCH_ROWS_MIN - 1])) == [(text, row) for row in rows[: BATCH_ROWS_MIN - 1]]
    assert list(commands(release, [rows[0]] * 3)) == [(text, rows[0])] * 3  # the same key again
    moved = STATEMENTS["entry_copy"]  # inserts what it selects: no batch
    assert [each for each, _ in commands(moved, [()] * 3)] == [postgres_text(moved)] * 3


def test_a_copy_of_rows_is_a_batch_too() -> None:
    copy = Statement("copy", "A copied row.", 'INSERT INTO "entry_tags" ("tag", "sched_id") VALUES (?, ?)')
    copied = batch_of(copy)
    assert copied is not None and copied.text == BATCHED["entry_tag"].text  # noqa: PT018  # one statement about it


def test_rows_with_the_same_key_and_difficult_texts() -> None:
    batch = BATCHED["entry_release"]
    assert command_for(batch, [("time", 1), (None, 1)]) is None
    command = command_for(batch, [('a"b\\c,{}', 1), (None, 2)])
    assert command == (batch.text, ['{"a\\"b\\\\c,{}",NULL}', "{1, 2}"])


def test_what_is_the_same_in_all_rows_is_sent_once_in_a_bounded_number_of_forms() -> None:
    batch = batch_of(STATEMENTS["entry_claim"])
    assert batch is not None
    batch.forms.clear()
    row = ("worker", "", 1.0, 1.0, 30.0, 31.0, 7, None, 0)
    text, values = command_for(batch, [(*row, number) for number in (1, 2)]) or ("", [])
    assert text.endswith(" spent = NULL WHERE sched_id = ANY ($10::bigint[])")  # and no join with rows of an array
    assert values == [*row, "{1, 2}"]
    tag = batch_of(STATEMENTS["entry_tag"])
    assert tag is not None
    assert (command_for(tag, [("red", 1)] * 3) or ("", []))[1] == ['{"red","red","red"}', 1]  # all three rows
    for place in range(9):
        rows = [(*row[:place], None if number else row[place], *row[place + 1 :], number) for number in (0, 1)]
        assert command_for(batch, rows) is not None
    assert len(batch.forms) == FORMS_MAX
    assert (command_for(batch, rows) or ("",))[0] == batch.text  # one form too many: all as arrays


# --- a kernel at work ----------------------------------------------------------------------------


def test_what_a_kernel_does_on_sqlite_does_the_same_on_postgresql(shadow: Shadow) -> None:
    """All of its statements in their order, with the values that the kernel passes."""
    with recorded() as steps:
        world = PopulatedWorld()
        tour(world)
        (done,) = steps.values()
        done = list(done)
    shadow.empty()
    assert list(shadow.replay(done)) == []
    connection: apsw.Connection = world.store._engine.connection  # type: ignore[attr-defined]
    for table, read in tables(connection).items():
        assert same(read, connection.execute(read.sql).fetchall(), shadow.run(read.sql)), table
    world.close()


def tour(world: PopulatedWorld) -> None:
    """Use most verbs once."""
    kernel: Kernel = world.kernel
    world.queue.enqueue_many([ScheduleSpec(1, tags=("a", "b")), ScheduleSpec(1, after=(-1,), payload={"x": "ü"})])
    for policy in ("strict", "round_robin", "fair_share", "eevdf", "edf"):
        world.put(1, deadline=world.now + 50, priority=3)
        Dispatcher(kernel, policy).claim("w", max_n=2)
        world.clock.advance(1)
    world.queue.list(state="queued", limit=5)
    world.queue.counts()
    world.clock.advance(100)
    world.queue.upkeep()
    kernel.info()
    world.journal.tail(0, 1_000)


# --- the schema ----------------------------------------------------------------------------------


def test_the_tables_have_the_same_columns_and_keys(shadow: Shadow, connection: apsw.Connection) -> None:
    shown = {"bigint": "INTEGER", "double precision": "REAL", "text": "TEXT"}
    sqlite = {
        (table, name, kind, bool(not_null or key), default or None, key)
        for table, _ in columns_of(connection)
        for name, kind, not_null, default, key in connection.execute(
            'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (table,)
        )
    }
    rows = shadow.run(
        "SELECT c.table_name, c.column_name, c.data_type, c.is_nullable = 'NO', c.column_default, coalesce((SELECT "
        "k.ordinal_position FROM information_schema.key_column_usage k JOIN information_schema.table_constraints t "
        "USING (constraint_schema, constraint_name) WHERE k.table_schema = c.table_schema AND k.table_name = "
        "c.table_name AND k.column_name = c.column_name AND t.constraint_type = 'PRIMARY KEY'), 0)::bigint "
        "FROM information_schema.columns c WHERE c.table_schema = $1",
        (shadow.schema,),
    )
    postgres = {
        (table, name, shown[kind], bool(not_null), default and default.removesuffix("::text"), key)
        for table, name, kind, not_null, default, key in rows
    }
    assert {row for row in postgres if row[0] != "agent_entries"} == sqlite  # in place of the index by agent


def test_the_tables_have_the_same_indexes(shadow: Shadow, connection: apsw.Connection) -> None:
    sqlite = connection.execute("SELECT name, tbl_name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")
    postgres = shadow.run(
        "SELECT indexname::text, tablename::text FROM pg_indexes WHERE schemaname = $1 AND indexname LIKE 'idx%'",
        (shadow.schema,),
    )
    by_agent = ("idx_sched_queue_pid", "agent_schedule_queue")
    assert sorted([*postgres, by_agent]) == sorted(sqlite.fetchall())


def test_text_is_compared_byte_by_byte(shadow: Shadow) -> None:
    others = shadow.run(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = $1 AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'",
        (shadow.schema,),
    )
    assert others == []


def test_every_later_step_has_a_twin_for_postgresql() -> None:
    assert sorted(POSTGRES_STEPS) == [step for step in sorted(STEPS) if step > POSTGRES_BASE]


def test_a_version_is_brought_up_to_date_or_refused() -> None:
    assert postgres_schema.plan(str(LATEST)) == []
    assert postgres_schema.plan(str(POSTGRES_BASE)) == sorted(POSTGRES_STEPS)
    for stamp in (str(LATEST + 1), str(POSTGRES_BASE - 1), "3", "", "one"):
        with pytest.raises(SchemaMismatch, match="schema_version"):
            postgres_schema.plan(stamp)

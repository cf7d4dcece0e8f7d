"""Enqueueing inside a program's own PostgreSQL transaction, with the drivers that programs use.

Specific, because only PostgreSQL has programs with transactions of their own. What becomes of a row is tested on every
store in tests/kernel/test_inbox.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import signal
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import TupleRow

from rota import enqueue_statement, store
from rota.errors import InvalidInput, SchedInvalidPayload
from rota.kernel import Kernel, KernelState, copy_store
from rota.store import postgres_listener, server_health
from rota.store.postgres import PostgresStore
from tests.postgres_server import shared_dsn
from tests.store import postgres_children as children
from tests.store.postgres_rows import BEFORE_120
from tests.store.world import PATIENCE_S, Caller

processes = multiprocessing.get_context("spawn")
Connection = psycopg.Connection[TupleRow]


class Program:
    """A program with tables of its own, in the database of a rota."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.url = f"{shared_dsn()}&schema={schema}"
        self.opened = store.open(self.url)
        self.kernel = Kernel(self.opened)
        self.kernel.agents.create("reader")

    def trips_of_a_claim(self) -> int:
        assert isinstance(self.opened, PostgresStore)
        before = self.opened._engine.pipeline.trips
        self.kernel.queue.claim(worker_id="worker", max_n=10)
        return self.opened._engine.pipeline.trips - before

    def statement(self, number: int, **options: Any) -> Any:
        return enqueue_statement("reader", {"order": number}, schema=self.schema, **options)

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(shared_dsn(), autocommit=True) as connection:
            cursor = connection.execute(text.replace("rota.", f"{self.schema}.").encode())
            return cursor.fetchall() if cursor.description else []

    def claimed(self) -> list[int]:
        """Claim everything; returns the orders."""
        return sorted(entry.payload["order"] for entry in self.kernel.queue.claim(worker_id="worker", max_n=1_000))


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program(f"inbox_{uuid.uuid4().hex[:12]}")
    yield made
    made.opened.close()
    made.sql(f"DROP SCHEMA {made.schema} CASCADE")


# --- drivers -------------------------------------------------------------------------------------
# each enqueues an order in a transaction, and commits it or not


def with_psycopg(program: Program, number: int, *, commits: bool) -> None:
    with psycopg.connect(shared_dsn()) as connection:
        connection.execute(*program.statement(number).psycopg)
        if not commits:
            connection.rollback()


def with_psycopg_async(program: Program, number: int, *, commits: bool) -> None:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(shared_dsn()) as connection:
            await connection.execute(*program.statement(number).psycopg)
            if not commits:
                await connection.rollback()

    asyncio.run(run())


def with_asyncpg(program: Program, number: int, *, commits: bool, encodes_json: bool = False) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(shared_dsn())
        for kind in ("json", "jsonb") if encodes_json else ():
            await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        transaction = connection.transaction()
        await transaction.start()
        assert isinstance(await connection.fetchval(*program.statement(number).asyncpg), int)
        await (transaction.commit() if commits else transaction.rollback())
        await connection.close()

    asyncio.run(run())


def with_asyncpg_that_encodes_json(program: Program, number: int, *, commits: bool) -> None:
    with_asyncpg(program, number, commits=commits, encodes_json=True)


def with_sqlalchemy(program: Program, number: int, *, commits: bool) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(shared_dsn()))
    statement, parameters = program.statement(number).sqlalchemy
    with engine.connect() as connection, connection.begin() as transaction:
        connection.execute(sqlalchemy.text(statement), parameters)
        if not commits:
            transaction.rollback()
    engine.dispose()


def with_plain_sql(program: Program, number: int, *, commits: bool) -> None:
    program.sql(
        f"BEGIN; SELECT rota.enqueue('reader', '{{\"order\": {number}}}'); {'COMMIT' if commits else 'ROLLBACK'}"
    )


@pytest.mark.parametrize(
    "driver",
    [with_psycopg, with_psycopg_async, with_asyncpg, with_asyncpg_that_encodes_json, with_sqlalchemy, with_plain_sql],
    ids=lambda each: each.__name__,
)
def test_an_entry_is_enqueued_if_the_programs_transaction_commits(
    program: Program, driver: Callable[..., None]
) -> None:
    driver(program, 1, commits=False)
    assert program.claimed() == []
    driver(program, 2, commits=True)
    driver(program, 3, commits=False)
    assert program.claimed() == [2]
    assert [entry.status for entry in program.kernel.queue.list()[0]] == ["running"]


def test_a_row_is_not_seen_before_its_commit_and_seen_by_the_next_claim_after_it(program: Program) -> None:
    """Also if claims have looked in between: nothing is remembered of a look that came too early."""
    with psycopg.connect(shared_dsn()) as connection:
        connection.execute(*program.statement(1).psycopg)
        assert program.claimed() == []
        assert program.claimed() == []
        connection.commit()
        assert program.claimed() == [1]


def test_many_entries_and_a_table_of_the_program_are_one_transaction(program: Program) -> None:
    program.sql("CREATE TABLE rota.orders (number int PRIMARY KEY)")
    with psycopg.connect(shared_dsn()) as connection:
        for number in range(300):
            connection.execute(f"INSERT INTO {program.schema}.orders VALUES (%s)".encode(), (number,))
            connection.execute(*program.statement(number, key=f"order-{number}" if number % 50 == 0 else None).psycopg)
    found = program.claimed()
    found += program.claimed()
    assert sorted(found) == list(range(300))
    program.sql("DROP TABLE rota.orders")


# --- waking --------------------------------------------------------------------------------------


def parked_claim(program: Program) -> Caller[list[int]]:
    assert isinstance(program.opened, PostgresStore)
    claim = Caller(
        lambda: [each.sched_id for each in program.kernel.queue.claim(worker_id="worker", wait_s=PATIENCE_S)]
    )
    while not program.opened.parked:
        claim._thread.join(0.001)
    return claim


def test_the_commit_wakes_a_worker(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_listener, "POLL_S", 2 * PATIENCE_S)  # only the notification can
    claim = parked_claim(program)
    with_psycopg(program, 1, commits=True)
    assert len(claim.outcome()) == 1


def test_a_lost_notification_is_found_by_the_poll(program: Program) -> None:
    claim = parked_claim(program)
    program.sql("INSERT INTO rota.enqueue_inbox (agent, author, created_at) VALUES ('reader', 'role:x', 0)")
    assert len(claim.outcome()) == 1


# --- round trips ---------------------------------------------------------------------------------


def test_a_claim_that_takes_in_many_rows_has_few_round_trips_and_one_without_a_row_none_more(program: Program) -> None:
    program.claimed()  # the first claim of a store compares the clocks
    with psycopg.connect(shared_dsn()) as connection:
        for number in range(100):
            connection.execute(*program.statement(number).psycopg)
    assert program.trips_of_a_claim() <= 8  # one is for what it remembered: nothing told it before the turn
    assert program.trips_of_a_claim() == 3  # the turn, the ready entries, the commit
    with psycopg.connect(shared_dsn()) as connection:
        for number in range(100):
            connection.execute(*program.statement(number, key=f"order-{number}").psycopg)
    assert program.trips_of_a_claim() <= 9  # all keys are looked up in one more


# --- rights and authors --------------------------------------------------------------------------


@pytest.fixture
def role(program: Program) -> Iterator[str]:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    program.sql(f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA {program.schema} TO {name}")
    yield name
    program.sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_role_needs_one_right_and_is_the_author(program: Program, role: str) -> None:
    call = "SELECT rota.enqueue('reader', '{\"order\": 1}')"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        program.sql(f"SET ROLE {role}; {call}")
    program.sql(f"GRANT EXECUTE ON FUNCTION rota.enqueue TO {role}")
    program.sql(f"SET ROLE {role}; {call}")
    for text in (
        "SELECT * FROM rota.enqueue_inbox",
        "DELETE FROM rota.enqueue_inbox",
        "SELECT 1 FROM rota.kernel_meta",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            program.sql(f"SET ROLE {role}; {text}")
    program.sql(f"SET ROLE {role}; CREATE TEMP TABLE enqueue_inbox (agent text); {call}")  # in front of the real one
    assert program.claimed() == [1, 1]
    events = program.kernel.journal.tail()
    assert {event.author for event in events if event.kind == "kernel.sched.enqueued"} == {f"role:{role}"}


# --- what is wrong -------------------------------------------------------------------------------


def test_a_program_hears_at_once_what_is_wrong_with_its_call() -> None:
    for wrong in (
        {"prio": 1},
        {"priority": "high"},
        {"payload_": 1},
        {"pid": 4},
        {"deadline": 1.0, "runnable_at": 2.0},
    ):
        with pytest.raises(SchedInvalidPayload, match="options"):
            enqueue_statement("reader", **wrong)
    with pytest.raises(SchedInvalidPayload) as refused:
        enqueue_statement("reader", delay_s=-1)
    assert str(refused.value).count(SchedInvalidPayload.hint) == 1
    for payload in ({"a": object()}, {"a": float("nan")}, {"a": "x" * 300_000}):
        with pytest.raises(SchedInvalidPayload, match="payload"):
            enqueue_statement("reader", payload)
    for schema in ('a"b', "A", "", "a;b"):
        with pytest.raises(InvalidInput, match="schema"):
            enqueue_statement("reader", schema=schema)
    with pytest.raises(SchedInvalidPayload, match="agent"):
        enqueue_statement("")
    assert enqueue_statement(7, tags=("a",), key=None) == ("rota", "7", "{}", '{"tags":["a"]}')


def test_the_function_refuses_what_it_cannot_keep(program: Program) -> None:
    for call in ("'reader', '{'", "'reader', NULL", "NULL", f"'reader', '{json.dumps('x' * 1_100_000)}'"):
        with pytest.raises(psycopg.Error):
            program.sql(f"SELECT rota.enqueue({call})")
    assert program.sql("SELECT count(*) FROM rota.enqueue_inbox") == [(0,)]


# --- exactly once --------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["taken", "committed"])
def test_a_taker_that_is_killed_leaves_each_row_one_entry(program: Program, stage: str) -> None:
    with psycopg.connect(shared_dsn()) as connection:
        for number in range(5):
            connection.execute(*program.statement(number).psycopg)
    killed = processes.Process(target=children.take_in_and_die, args=(program.url, stage))
    killed.start()
    killed.join(PATIENCE_S)
    assert killed.exitcode == -signal.SIGKILL
    assert len(program.claimed()) == (5 if stage == "taken" else 4)
    entries = program.kernel.queue.list()[0]
    assert sorted(entry.payload["order"] for entry in entries) == [0, 1, 2, 3, 4]
    assert program.sql("SELECT count(*) FROM rota.enqueue_inbox") == [(0,)]
    assert program.opened.read(lambda tx: KernelState.from_tables(tx) == KernelState.from_journal(tx))


def test_several_takers_take_each_row_once_while_programs_commit(program: Program) -> None:
    total, takers = 120, [Program.__new__(Program) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for taker in takers:
            taker.opened = stack.enter_context(contextlib.closing(store.open(program.url)))
            taker.kernel = Kernel(taker.opened)
        found: list[int] = []

        def take(taker: Program) -> None:
            while len(found) < total:
                found.extend(
                    entry.payload["order"]
                    for entry in taker.kernel.queue.claim(worker_id="worker", max_n=7, wait_s=0.05)
                )

        callers = [Caller(lambda taker=taker: take(taker)) for taker in takers]  # type: ignore[misc]
        with psycopg.connect(shared_dsn()) as connection:
            for number in range(total):
                connection.execute(*program.statement(number).psycopg)
                if number % 10 == 9:
                    connection.commit()
        for caller in callers:
            caller.outcome()
    assert sorted(found) == list(range(total))


# --- looking at it ---------------------------------------------------------------------------------


def test_the_doctor_counts_rows_that_nobody_takes_in(program: Program) -> None:
    with_psycopg(program, 1, commits=True)
    assert server_health(program.url).inbox == 1
    program.claimed()
    assert server_health(program.url).inbox == 0


# --- the schema ----------------------------------------------------------------------------------


def test_a_schema_without_an_inbox_gets_one(program: Program) -> None:
    program.opened.close()
    program.sql("DROP TABLE rota.enqueue_inbox; DROP FUNCTION rota.enqueue; DROP SEQUENCE rota.facts")
    program.sql("DROP TABLE rota.agent_entries; CREATE INDEX idx_sched_queue_pid ON rota.agent_schedule_queue (pid)")
    for function in ("rota_add_agent_entries", "rota_remove_agent_entries"):
        program.sql(f"DROP FUNCTION rota.{function} CASCADE")
    program.sql(f"SET search_path = {program.schema}; {BEFORE_120}")
    program.sql("UPDATE rota.kernel_meta SET value = '115' WHERE key = 'schema_version'")
    program.opened = store.open(program.url)
    program.kernel = Kernel(program.opened)
    assert program.opened.check() == []
    with_psycopg(program, 1, commits=True)
    assert program.claimed() == [1]


def test_a_copy_has_what_is_in_the_inbox(program: Program) -> None:
    with_psycopg(program, 1, commits=True)
    with contextlib.closing(store.open(":memory:")) as target:
        assert copy_store(program.opened, target).rows["enqueue_inbox"] == 1
        (entry,) = Kernel(target).queue.claim(worker_id="worker")
        assert entry.payload == {"order": 1}

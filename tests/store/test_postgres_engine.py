"""The PostgreSQL engine: turns, round trips, failures of single requests, lost connections, other processes.

Specific, because it is about what other stores do not have: a network, and a server that ends sessions.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import psycopg
import pytest

from rota import Rota, store
from rota.cli.graph_start import wait_for_run
from rota.cli.outages import wait_for_end
from rota.errors import InvalidInput, SchemaMismatch, StoreReplaced, StoreUnavailable
from rota.kernel import Completion, Kernel, ReadyEntry, ScheduleSpec, copy_store
from rota.service import SchedulerApi
from rota.service.dispatcher import Dispatcher
from rota.service.outages import call_through_outage
from rota.store import Transaction, postgres_connection, postgres_listener
from rota.store.migrations import LATEST
from rota.store.postgres import PostgresStore
from rota.store.postgres_engine import FLUSH, channel, listeners_key
from rota.store.postgres_listener import NewsListener
from rota.store.postgres_pipeline import UNREAD_MAX, Pipeline
from rota.store.statements.file import META_GET, META_SET
from rota.store.statements.journal import EVENT_APPEND
from tests.postgres_server import PostgresServer, own_schema, shared_dsn
from tests.short_folders import short_folder
from tests.store import postgres_children as children
from tests.store.files import thousands_of_open_files
from tests.store.postgres_rows import BEFORE_120
from tests.store.world import PATIENCE_S, Caller
from tests.stores import database_url, store_kind

__all__ = ["store_kind"]  # it takes the schemas of a test back

processes = multiprocessing.get_context("forkserver")  # one process imports rota, the children are its copies
processes.set_forkserver_preload([children.__name__])
TIME_AS_JSON = "SELECT to_json(?::double precision)"
FAILING = store.Statement(
    "test_failing", "It fails on the server.", "UPDATE kernel_meta SET value = 1 / 0 WHERE key = ?"
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An empty schema on the server of this run: an earlier test's, because making one takes 0.2 s."""
    return database_url(tmp_path / "store")


@pytest.fixture
def opened(url: str) -> Iterator[PostgresStore]:
    made = open_postgres(url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may kill; it has to run again at the end. Its log is written only where somebody waits."""
    with short_folder() as folder, PostgresServer(folder, settings={"wal_writer_delay": "10000"}) as server:
        yield server


def open_postgres(url: str) -> PostgresStore:
    made = store.open(url)
    assert isinstance(made, PostgresStore)
    return made


def put(key: str, value: str) -> Callable[[Transaction], None]:
    def work(tx: Transaction) -> None:
        tx.run(META_SET, (key, value))

    return work


def drop(url: str) -> None:
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {url.rpartition('=')[2]} CASCADE".encode())


def test_a_claim_that_waits_ends_when_the_schema_is_dropped() -> None:
    with own_schema("rota_dropped") as url, contextlib.closing(open_postgres(url)) as opened:
        kernel = Kernel(opened)
        kernel.agents.create("coder")
        waiting = Caller(lambda: kernel.queue.claim(worker_id="worker", wait_s=PATIENCE_S))
        while not opened.parked:
            threading.Event().wait(0.01)
        drop(url)
        with pytest.raises(StoreReplaced, match="no longer in the database"):
            waiting.outcome()
        assert isinstance(opened.lost, StoreReplaced)


def test_a_worker_ends_when_its_schema_is_dropped() -> None:
    with own_schema("rota_dropped") as url, Rota(url) as rota:

        @rota.agent
        def drops() -> None:
            drop(url)

        drops.enqueue()
        with pytest.raises(StoreReplaced, match="no longer in the database"):
            rota.run()


def value_of(opened: store.Store, key: str) -> str | None:
    rows = opened.read(lambda tx: tx.run(META_GET, (key,)))
    return rows[0][0] if rows else None


def until_waiting(backend_pid: int) -> None:
    """Return when a session waits for the turn."""
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        for _ in range(int(PATIENCE_S * 100)):
            asked = "SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted"
            if connection.execute(asked, (backend_pid,)).fetchone() == (1,):
                return
            connection.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("it does not wait")


def end_sessions(opened: PostgresStore) -> None:
    """Have the server end every session of this store, as an administrator or a restart does."""
    for pipeline in (opened._engine.pipeline, *opened._readers):
        end_session(pipeline.backend_pid)


def end_session(backend_pid: int) -> None:
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", (backend_pid,))


def trips_of(opened: PostgresStore, call: Callable[[], object]) -> int:
    before = opened._engine.pipeline.trips
    call()
    return opened._engine.pipeline.trips - before


# --- turns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooler", ["", "&pooler=session"])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_turn_sees_what_was_committed_while_it_waited(url: str, level: str, pooler: str) -> None:
    """Also at a server, or for a role, whose transactions begin otherwise."""
    settings = f"-c default_transaction_isolation={level}".replace(" r", r"\ r")
    theirs = f"{url}&options={quote(settings)}{pooler}"
    seen: list[str | None] = []

    def look(tx: Transaction) -> None:
        rows = tx.run(META_GET, ("word",))
        seen.append(str(rows[0][0]) if rows else None)
        tx.run(META_SET, ("word", "second"))

    with contextlib.closing(open_postgres(theirs)) as one, contextlib.closing(open_postgres(theirs)) as two:
        waits = threading.Thread(target=lambda: two.write(look))

        def first(tx: Transaction) -> None:
            tx.run(META_SET, ("word", "first"))
            waits.start()
            until_waiting(two._engine.backend_pid)

        one.write(first)
        waits.join(PATIENCE_S)
    assert seen == ["first"]


@pytest.mark.parametrize("pooler", ["", "&pooler=session"])
def test_a_server_whose_transactions_begin_read_only_is_written(url: str, pooler: str) -> None:
    settings = quote("-c default_transaction_read_only=on")
    with contextlib.closing(open_postgres(f"{url}&options={settings}{pooler}")) as opened:
        opened.write(put("word", "written"))
        assert value_of(opened, "word") == "written"


@pytest.mark.parametrize("pooler", ["", "&pooler=session"])
def test_an_idle_session_stays_where_the_server_ends_those_of_others(url: str, pooler: str) -> None:
    """It holds the worker's id, and hears of commits."""
    with contextlib.closing(open_postgres(f"{url}&options={quote('-c idle_session_timeout=50')}{pooler}")) as opened:
        session = opened._engine.backend_pid
        with psycopg.connect(shared_dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_sleep(0.2)")
            asked = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
            assert connection.execute(asked, (session,)).fetchone() == (1,)


def test_a_schema_is_made_and_read_where_a_backslash_escapes(url: str) -> None:
    settings = quote("-c standard_conforming_strings=off")
    with contextlib.closing(open_postgres(f"{url}&options={settings}")) as opened:
        asked = store.Statement("test.json_text", "A text with an escaped NUL.", "SELECT rota_json_text(?, 'word')")
        assert opened.read(lambda tx: tx.run(asked, ('{"word": "a\\u0000b"}',))) == [("a\ufffdb",)]


def test_a_table_that_another_session_locks_is_called_that(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connection, "TURN_S_MAX", 0.05)
    with contextlib.closing(open_postgres(url)) as opened, psycopg.connect(shared_dsn()) as connection:
        connection.execute(f"LOCK TABLE {url.rpartition('=')[2]}.kernel_meta".encode())
        with pytest.raises(StoreUnavailable, match=r"kept a statement waiting: .* lock timeout") as refused:
            value_of(opened, "word")
    assert "`rota doctor` names the oldest transaction" in str(refused.value)


def test_a_transaction_may_be_long_where_the_server_limits_those_of_others(url: str) -> None:
    with contextlib.closing(open_postgres(f"{url}&options={quote('-c transaction_timeout=50')}")) as opened:
        sleep = store.Statement("test.sleep", "A long copy.", "SELECT pg_sleep(0.2)::text")
        assert opened.read(lambda tx: len(tx.run(sleep)))


def test_a_copy_whose_source_is_lost_says_so_and_leaves_the_target_empty(url: str, tmp_path: Path) -> None:
    name = f"copied_{os.getpid()}"

    def end(_table: str, _rows: int) -> None:
        with psycopg.connect(shared_dsn(), autocommit=True) as connection:
            asked = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s"
            connection.execute(asked, (name,))

    with (
        contextlib.closing(open_postgres(f"{url}&application_name={name}")) as source,
        contextlib.closing(store.open(str(tmp_path / "copy.db"))) as target,
    ):
        Kernel(source).agents.create("reader")
        with pytest.raises(StoreUnavailable, match="the source could not be read to its end"):
            copy_store(source, target, progress=end)
        assert copy_store(source, target).through_event_id == 1


def test_values_are_kept_where_arrays_have_no_null_and_numbers_are_short(url: str) -> None:
    settings = quote("-c array_nulls=off -c extra_float_digits=-10")
    with contextlib.closing(open_postgres(f"{url}&options={settings}")) as opened:
        kernel = Kernel(opened)
        agent = kernel.agents.create("reader")
        kernel.queue.enqueue_many([ScheduleSpec(agent, kind=kind) for kind in (None, None, "gpu")])
        assert [entry.kind for entry in kernel.queue.list()[0]] == [None, None, "gpu"]
        text = store.Statement("test.a_time", "A time in JSON.", "SELECT to_json(?)", postgres=TIME_AS_JSON)
        assert opened.read(lambda tx: tx.run(text, (1_700_000_000.125,))) == [("1700000000.125",)]


def test_a_claim_after_commits_of_another_process_takes_three_round_trips(url: str, opened: PostgresStore) -> None:
    with contextlib.closing(open_postgres(url)) as other:
        kernel, foreign = Kernel(opened), Kernel(other)
        pid = kernel.agents.create("coder")
        for _ in range(2):
            foreign.queue.enqueue_many([ScheduleSpec(pid)] * 30)
            kernel.queue.claim(worker_id="worker", max_n=10)
        foreign.queue.enqueue(ScheduleSpec(pid))
        assert trips_of(opened, lambda: kernel.queue.claim(worker_id="worker", max_n=10)) == 3
        (entry,) = kernel.queue.claim(worker_id="worker")
        assert trips_of(opened, lambda: kernel.queue.complete(entry.sched_id, "completed", token=entry.token)) == 2
        assert trips_of(opened, lambda: kernel.queue.enqueue_many([ScheduleSpec(pid)] * 30)) <= 3


@pytest.mark.parametrize("projects", [0, 3])
@pytest.mark.parametrize(("policy", "trips"), [("strict", 2), ("eevdf", 5), ("fair_share", 9)])  # docs/postgres.md
def test_a_turn_that_ends_runs_and_claims_has_few_round_trips(
    url: str, opened: PostgresStore, policy: str, trips: int, projects: int
) -> None:
    """Two processes take turns, so that nothing a process remembers is valid."""
    with contextlib.closing(open_postgres(url)) as other:
        ours, theirs = Dispatcher(Kernel(opened)), Dispatcher(Kernel(other))
        names = [f"project {number}" for number in range(projects)]
        for name in names:
            ours.kernel.projects.create(name)
        owners = [names[number % projects] if names else None for number in range(5)]
        pids = [ours.kernel.agents.create(f"agent {number}", project_id=owners[number]) for number in range(5)]
        ours.kernel.queue.enqueue_many([ScheduleSpec(pid) for pid in pids * 20])
        held: dict[Dispatcher, list[ReadyEntry]] = {ours: [], theirs: []}

        def turn(of: Dispatcher) -> None:
            ended = [Completion(entry.sched_id, "completed", token=entry.token) for entry in held[of]]
            held[of] = of.complete_and_claim(ended, "worker", 10, policy=policy).entries
            assert len(held[of]) == 10

        for _ in range(2):
            turn(ours)
            turn(theirs)
        assert trips_of(opened, lambda: turn(ours)) <= trips


def test_what_was_prefetched_is_not_used_after_a_write(url: str, opened: PostgresStore) -> None:
    opened.prefetch([(META_GET, ("word",))])
    with contextlib.closing(open_postgres(url)) as other:
        for number in range(3):
            other.write(put("word", f"foreign {number}"))

            def work(tx: Transaction, number: int = number) -> list[Any]:
                before = tx.run(META_GET, ("word",))
                tx.run(META_SET, ("word", f"own {number}"))
                return [*before, *tx.run(META_GET, ("word",))]

            assert opened.write(work) == [(f"foreign {number}",), (f"own {number}",)]


def test_what_another_process_wrote_is_noticed_in_the_next_turn(url: str, opened: PostgresStore) -> None:
    version = opened.write(lambda tx: tx.foreign_version)
    opened.write(put("word", "own"))
    assert opened.write(lambda tx: tx.foreign_version) == version
    with contextlib.closing(open_postgres(url)) as other:
        other.write(put("word", "foreign"))
    assert opened.write(lambda tx: tx.foreign_version) == version + 1


def test_everyday_work_of_another_process_leaves_what_is_remembered(url: str, opened: PostgresStore) -> None:
    def versions(tx: Transaction) -> tuple[int, int]:
        return tx.foreign_version, tx.facts_version

    def entry_done(tx: Transaction) -> None:
        tx.insert(EVENT_APPEND, (None, 0.0, "kernel.run.ended", "{}", None, None, "me"))

    foreign, facts = opened.write(versions)
    opened.write(put("word", "own"))
    opened.write(entry_done)
    assert opened.write(versions) == (foreign, facts)
    with contextlib.closing(open_postgres(url)) as other:
        other.write(entry_done)
        assert opened.write(versions) == (foreign + 1, facts)
        other.write(put("word", "foreign"))
        other.write(entry_done)
        assert opened.write(versions) == (foreign + 2, facts + 1)


def test_what_was_prefetched_is_read_in_one_more_trip_at_most(url: str, opened: PostgresStore) -> None:
    """It is read with the first trip while others keep changing it, and with a second one if they begin to."""
    opened.prefetch([(META_GET, ("word",))])

    def read(tx: Transaction) -> list[Any]:
        assert tx.facts_version  # what a cache asks first
        return tx.run(META_GET, ("word",))

    trips = []
    with contextlib.closing(open_postgres(url)) as other:
        for word in ("one", "two", None, None, "three", "four"):
            if word is not None:
                other.write(put("word", word))
            before = opened._engine.pipeline.trips
            if word is None:
                opened.write(lambda tx: tx.facts_version)
            else:
                assert opened.write(read) == [(word,)]
            trips.append(opened._engine.pipeline.trips - before)
    assert trips == [1, 1, 1, 1, 2, 1]


def test_a_reader_does_not_wait_for_the_holder_of_the_turn(opened: PostgresStore) -> None:
    opened.write(put("word", "before"))
    seen: list[str | None] = []

    def work(tx: Transaction) -> None:
        tx.run(META_SET, ("word", "after"))
        tx.run(META_GET, ("word",))  # the write is at the server now
        seen.append(value_of(opened, "word"))

    opened.write(work)
    assert [*seen, value_of(opened, "word")] == ["before", "after"]


def test_ids_follow_one_another_in_the_order_of_commits(url: str, opened: PostgresStore) -> None:
    with contextlib.closing(open_postgres(url)) as other:
        kernels = Kernel(opened), Kernel(other)
        pid = kernels[0].agents.create("coder")
        found = [kernels[number % 2].queue.enqueue(ScheduleSpec(pid)) for number in range(6)]
        assert found == [1, 2, 3, 4, 5, 6]
        kernels[0].queue.cancel(6)
        assert kernels[1].queue.retry(6) == 7  # a copy, whose id the database gives
        assert kernels[1].queue.enqueue(ScheduleSpec(pid)) == 8
    events = kernels[0].journal.tail()
    assert [event.event_id for event in events] == list(range(1, len(events) + 1))


def test_a_process_does_not_write_after_another_has_migrated_the_schema(opened: PostgresStore) -> None:
    opened.write(put("word", "before"))
    with psycopg.connect(opened.address.conninfo, autocommit=True) as connection:
        schema = opened.address.schema
        connection.execute(f"UPDATE {schema}.kernel_meta SET value = '9999' WHERE key = 'schema_version'".encode())
    with pytest.raises(SchemaMismatch, match="9999"):
        opened.write(put("word", "after"))
    assert value_of(opened, "word") == "before"
    with psycopg.connect(opened.address.conninfo, autocommit=True) as connection:  # the schema is used again
        connection.execute(f"UPDATE {schema}.kernel_meta SET value = '{LATEST}' WHERE value = '9999'".encode())


def test_statements_that_were_prepared_before_a_migration_are_prepared_again() -> None:
    """A newer rota may give a column another type. The error of the server would be taken for a defect."""
    with own_schema("rota_retyped") as url, contextlib.closing(open_postgres(url)) as opened:
        opened.write(put("word", "before"))
        read = lambda tx: tx.run(META_GET, ("word",))  # noqa: E731
        assert opened.read(read) == opened.write(read) == [("before",)]
        with psycopg.connect(opened.address.conninfo, autocommit=True) as connection:
            meta = f"{opened.address.schema}.kernel_meta"
            connection.execute(f"ALTER TABLE {meta} ALTER COLUMN value TYPE varchar".encode())
            assert opened.read(read) == opened.write(read) == [("before",)]
            connection.execute(f"ALTER TABLE {meta} ALTER COLUMN value TYPE text".encode())
            connection.execute(f"UPDATE {meta} SET value = '9999' WHERE key = 'schema_version'".encode())
        with pytest.raises(SchemaMismatch, match="9999"):
            opened.write(put("word", "after"))
        assert opened.read(read) == [("before",)]


# --- the entries of each agent -------------------------------------------------------------------


def listed(opened: PostgresStore) -> list[tuple[int, int]]:
    with psycopg.connect(opened.address.conninfo) as connection:
        text = f"SELECT pid, sched_id FROM {opened.address.schema}.agent_entries ORDER BY pid, sched_id"
        return connection.execute(text.encode()).fetchall()


def test_the_entries_of_each_agent_are_listed_however_they_come_and_go(opened: PostgresStore) -> None:
    kernel, schema = Kernel(opened), opened.address.schema
    first, second = kernel.agents.create("first"), kernel.agents.create("second")
    kernel.queue.enqueue_many([ScheduleSpec(first), ScheduleSpec(second), ScheduleSpec(first)])
    kernel.queue.cancel(3)
    assert kernel.queue.retry(3) == 4
    assert listed(opened) == [(first, 1), (first, 3), (first, 4), (second, 2)]
    with psycopg.connect(opened.address.conninfo, autocommit=True) as connection:  # whose search path has no rota
        queue = f"{schema}.agent_schedule_queue"
        connection.execute(f"INSERT INTO {queue} (sched_id, pid, created_at) VALUES (9, {second}, 0)".encode())
        connection.execute(f"DELETE FROM {queue} WHERE sched_id < 3".encode())
    assert listed(opened) == [(first, 3), (first, 4), (second, 9)]
    assert [entry.sched_id for entry in kernel.queue.list(pid=first)[0]] == [3, 4]
    assert opened.check() == []


def test_a_schema_that_had_an_index_by_agent_gets_the_table(url: str, opened: PostgresStore) -> None:
    kernel, schema = Kernel(opened), opened.address.schema
    pid = kernel.agents.create("coder")
    kernel.queue.enqueue_many([ScheduleSpec(pid)] * 3)
    opened.close()
    with psycopg.connect(opened.address.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        connection.execute("DROP FUNCTION rota_add_agent_entries CASCADE")
        connection.execute("DROP FUNCTION rota_remove_agent_entries CASCADE")
        connection.execute("DROP TABLE agent_entries")
        connection.execute("CREATE INDEX idx_sched_queue_pid ON agent_schedule_queue (pid, sched_id)")
        connection.execute(BEFORE_120)
        connection.execute("UPDATE kernel_meta SET value = '118' WHERE key = 'schema_version'")
    with contextlib.closing(open_postgres(url)) as migrated:
        assert listed(migrated) == [(pid, 1), (pid, 2), (pid, 3)]
        assert migrated.check() == []


def test_a_check_finds_entries_that_are_not_listed(opened: PostgresStore) -> None:
    kernel, schema = Kernel(opened), opened.address.schema
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder")))
    with psycopg.connect(opened.address.conninfo, autocommit=True) as connection:
        connection.execute(f"DELETE FROM {schema}.agent_entries".encode())
    assert opened.check() == ["rows that differ between agent_entries and the queue: 1"]


# --- the states of entries -------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["state = 'lost'", "state = NULL", "hold = 'never'"])
def test_the_server_refuses_a_state_or_a_hold_that_rota_does_not_know(opened: PostgresStore, change: str) -> None:
    kernel, queue = Kernel(opened), f"{opened.address.schema}.agent_schedule_queue"
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder")))
    with psycopg.connect(opened.address.conninfo, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.IntegrityError):
            connection.execute(f"UPDATE {queue} SET {change}".encode())
        connection.execute(f"UPDATE {queue} SET hold = NULL".encode())
    (entry,) = kernel.queue.claim(worker_id="worker")
    assert entry.sched_id == 1


def test_a_schema_with_checks_on_the_table_gets_types(url: str, opened: PostgresStore) -> None:
    kernel = Kernel(opened)
    pid = kernel.agents.create("coder")
    kernel.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid, delay_s=1_000)])
    kernel.queue.claim(worker_id="worker")
    opened.close()
    with psycopg.connect(opened.address.conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path = {opened.address.schema}".encode())
        connection.execute(BEFORE_120)
        connection.execute("UPDATE kernel_meta SET value = '119' WHERE key = 'schema_version'")
    with contextlib.closing(open_postgres(url)) as migrated:
        assert migrated.check() == []
        entries = Kernel(migrated).queue.list(pid=pid)[0]
        assert [(entry.sched_id, entry.state) for entry in entries] == [(1, "dispatched"), (2, "queued")]
        with psycopg.connect(opened.address.conninfo) as connection:
            text = "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conrelid = %s::regclass"
            assert connection.execute(text, (f"{opened.address.schema}.agent_schedule_queue",)).fetchone() == (0,)


# --- failures of a request -----------------------------------------------------------------------


def test_a_request_that_fails_on_the_server_fails_alone(opened: PostgresStore) -> None:
    """The write that fails is only queued: whoever waits for the next result must not be blamed for it."""

    def failing(tx: Transaction) -> None:
        tx.run(FAILING, ("schema_version",))

    started, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> str:
        started.set()
        assert go_on.wait(PATIENCE_S)
        tx.run(META_SET, ("first", "1"))
        return "first"

    first = Caller(lambda: opened.write(slow))
    assert started.wait(PATIENCE_S)
    calls = [Caller(lambda work=work: opened.write(work)) for work in (put("a", "1"), failing, put("b", "2"))]  # type: ignore[misc]
    while len(opened._queue) < 3:
        started.wait(0)
    go_on.set()
    assert first.outcome() == "first"
    assert isinstance(calls[1].error(), InvalidInput)
    assert calls[0].outcome() is calls[2].outcome() is None
    assert (value_of(opened, "a"), value_of(opened, "b")) == ("1", "2")


def test_a_request_that_raises_after_a_write_is_undone_alone(opened: PostgresStore) -> None:
    class Refused(Exception):
        pass

    def refused(tx: Transaction) -> None:
        tx.run(META_SET, ("refused", "1"))
        raise Refused

    with pytest.raises(Refused):
        opened.write(refused)
    joined = store.JoinedStore(opened)
    done = threading.Semaphore(0)
    works = [put("a", "1"), refused, put("b", "2")]
    writes = [joined.posted_write(lambda work=work: joined.write(work), done.release) for work in works]  # type: ignore[misc]
    joined.post(writes)
    for _ in writes:
        assert done.acquire(timeout=PATIENCE_S)
    assert [type(write.error) for write in writes] == [type(None), Refused, type(None)]
    assert [value_of(opened, key) for key in ("a", "refused", "b")] == ["1", None, "2"]


@pytest.mark.parametrize("value", ["a\0b", "\ud800", 2**63, b"bytes"])
def test_a_value_that_cannot_be_stored_is_refused(opened: PostgresStore, value: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be stored"):
        opened.write(put("word", value))
    opened.write(put("word", "x" * 100_000))
    assert len(value_of(opened, "word") or "") == 100_000


def test_more_writes_than_the_buffers_hold_go_through(opened: PostgresStore) -> None:
    opened.write(lambda tx: tx.run_many(META_SET, [(f"key {number}", "x" * 200) for number in range(5_000)]))
    assert value_of(opened, "key 4999") == "x" * 200


def test_a_result_that_comes_when_the_buffers_are_full_is_not_lost(opened: PostgresStore) -> None:
    for count in range(UNREAD_MAX - 6, UNREAD_MAX + 2):

        def work(tx: Transaction, count: int = count) -> list[Any]:
            for number in range(count):
                tx.run(META_SET, ("number", str(number)))
            tx.read_together([(META_GET, ("number",)), (META_GET, ("none",))])
            return [*tx.run(META_GET, ("number",)), *tx.run(META_GET, ("none",))]

        assert opened.write(work) == [(str(count - 1),)]


# --- lost connections ----------------------------------------------------------------------------


def test_a_session_that_ended_while_nobody_used_it_is_made_again(opened: PostgresStore) -> None:
    opened.write(put("word", "before"))
    version = opened.write(lambda tx: tx.foreign_version)
    assert value_of(opened, "word") == "before"
    end_sessions(opened)
    opened.write(put("word", "after"))
    assert value_of(opened, "word") == "after"
    assert opened.write(lambda tx: tx.foreign_version) > version  # nothing remembered is used any more


def test_a_session_that_ends_inside_a_transaction_costs_nothing(opened: PostgresStore) -> None:
    runs: list[int] = []

    def work(tx: Transaction) -> None:
        runs.append(1)
        tx.run(META_SET, ("runs", str(len(runs))))
        if len(runs) == 1:
            end_sessions(opened)
        tx.run(META_GET, ("runs",))

    opened.write(work)
    assert value_of(opened, "runs") == "2"


class InterruptedAtSync(deque[str | None]):
    """The results that a pipeline owes, with an interrupt just after it has asked for an end of them."""

    def append(self, kind: str | None) -> None:
        if kind is not None and not kind:
            raise KeyboardInterrupt
        super().append(kind)


def test_a_connection_that_was_left_by_an_interrupt_is_not_used_again(opened: PostgresStore) -> None:
    """Its next results would be taken for those of other statements."""
    opened.write(put("word", "1"))
    opened._engine.pipeline._owed = InterruptedAtSync(opened._engine.pipeline._owed)
    with pytest.raises(KeyboardInterrupt):
        opened.write(lambda tx: tx.run(META_GET, ("word",)))  # nothing was written: it is rolled back
    for _ in range(3):
        assert opened.write(lambda tx: tx.run(META_GET, ("word",))) == [("1",)]


def test_a_statement_that_cannot_be_committed_fails(url: str) -> None:
    """Outside of BEGIN and COMMIT it has its result before that: a full disk of the log, say, is noticed afterwards."""
    with psycopg.connect(url.rpartition("schema=")[0].rstrip("?&"), autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE later (number int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        pipeline = Pipeline(connection)
        for _ in range(2):
            with pytest.raises(psycopg.errors.UniqueViolation):
                pipeline.rows("INSERT INTO later VALUES (1), (1) RETURNING number")
            assert pipeline.is_idle
        assert pipeline.rows("SELECT count(*) FROM later") == [(0,)]


@pytest.mark.parametrize("when", ["before", "after", "flush"])
def test_a_connection_lost_during_the_commit_writes_once(
    opened: PostgresStore, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the server has committed is not known then; what was committed must not be written again."""
    kernel = Kernel(opened)
    pid = kernel.agents.create("coder")
    pipeline = opened._engine.pipeline
    collect = pipeline.collect
    lost: list[str] = []

    def collect_and_lose() -> Any:
        is_commit = any(text == "COMMIT" for text in sent)
        if not is_commit or lost or when == "flush":
            return collect()
        lost.append(when)
        if when == "after":
            collect()
        pipeline.connection.pgconn.finish()
        raise psycopg.OperationalError("the connection is lost")

    sent: list[str] = []
    send = pipeline.send
    monkeypatch.setattr(pipeline, "collect", collect_and_lose)

    def send_and_note(text: str, parameters: Any = ()) -> None:
        sent.append(text)
        if (when, text, lost) == ("flush", FLUSH, []):  # the server refuses it, and the connection stays
            lost.append(when)
            text, parameters = "SELECT 1 / 0", ()
        send(text, parameters)

    monkeypatch.setattr(pipeline, "send", send_and_note)
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    assert lost == [when]
    assert [entry.sched_id for entry in kernel.queue.list()[0]] == [sched_id]
    assert [event.kind for event in kernel.journal.tail()].count("kernel.sched.enqueued") == 1


def test_a_holder_that_does_nothing_loses_its_turn(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stopped process does. It runs its work again when it goes on."""
    monkeypatch.setattr(postgres_connection, "IDLE_S_MAX", 0.2)
    with contextlib.closing(open_postgres(url)) as holder, contextlib.closing(open_postgres(url)) as other:
        holds, go_on, runs = threading.Event(), threading.Event(), []

        def work(tx: Transaction) -> int:
            runs.append(1)
            tx.run(META_GET, ("word",))
            holds.set()
            assert go_on.wait(PATIENCE_S)
            tx.run(META_SET, ("holder", str(len(runs))))
            return len(runs)

        held = Caller(lambda: holder.write(work))
        assert holds.wait(PATIENCE_S)
        other.write(put("other", "1"))
        go_on.set()
        assert held.outcome() == 2
        assert (value_of(other, "holder"), value_of(other, "other")) == ("2", "1")


def test_a_server_that_is_away_is_said_and_used_again_when_it_is_back(own_server: PostgresServer) -> None:
    opened = open_postgres(f"{own_server.dsn()}&schema=away")
    kernel = Kernel(opened)
    pid = kernel.agents.create("coder")
    parked = Caller(lambda: kernel.queue.claim(worker_id="worker", wait_s=PATIENCE_S))
    while not opened.parked:
        threading.Event().wait(0.01)
    own_server.stop(signal.SIGKILL)
    with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
        kernel.queue.enqueue(ScheduleSpec(pid))
    assert "psql" in str(refused.value)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        kernel.queue.list()
    own_server.restart(signal.SIGKILL)
    # as a worker does it: the server is not asked again at once
    sched_id = call_through_outage(opened.clock, lambda: kernel.queue.enqueue(ScheduleSpec(pid)), lambda: False)
    assert [entry.sched_id for entry in parked.outcome()] == [sched_id]
    opened.close()


# --- other processes -----------------------------------------------------------------------------


def test_a_claim_that_waits_in_another_process_gets_what_is_enqueued(url: str, opened: PostgresStore) -> None:
    kernel = Kernel(opened)
    pid = kernel.agents.create("coder")
    parked, claimed = processes.Event(), processes.Queue()
    child = processes.Process(target=children.claim_one, args=(url, parked, claimed))
    child.start()
    assert parked.wait(PATIENCE_S)
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    assert claimed.get(timeout=PATIENCE_S) == [sched_id]
    child.join(PATIENCE_S)
    assert kernel.queue.get(sched_id).worker_id == "child"


def test_a_cap_is_exact_and_nothing_is_claimed_twice_with_three_processes(url: str, opened: PostgresStore) -> None:
    kernel = Kernel(opened)
    pid = kernel.agents.create("coder", max_concurrent=5)
    ids = kernel.queue.enqueue_many([ScheduleSpec(pid)] * 60)
    together, claimed = processes.Barrier(3), processes.Queue()
    workers = [
        processes.Process(target=children.drain, args=(url, together, claimed, f"worker-{number}"))
        for number in range(3)
    ]
    for worker in workers:
        worker.start()
    found = [claimed.get(timeout=PATIENCE_S) for _ in workers]
    for worker in workers:
        worker.join(PATIENCE_S)
    rest = [entry.sched_id for entry in kernel.queue.claim(worker_id="last", max_n=100)]
    assert sorted([sched_id for mine, _ in found for sched_id in mine] + rest) == sorted(ids)
    assert max(live for _, live in found) <= 5


def test_a_listener_hears_of_commits_of_others_and_a_lost_notification_is_found(
    url: str, opened: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = threading.Semaphore(0)
    opened.on_change(heard.release, foreign_only=True)
    with contextlib.closing(open_postgres(url)) as other:
        other.write(put("word", "1"))
        assert heard.acquire(timeout=PATIENCE_S)
        while heard.acquire(blocking=False):
            pass
        monkeypatch.setattr(other._engine, "_channel", "nobody_listens_here")
        other.write(put("word", "2"))
        assert heard.acquire(timeout=PATIENCE_S)


def test_commits_notify_only_while_a_process_listens(url: str, opened: PostgresStore) -> None:
    with psycopg.connect(shared_dsn(), autocommit=True) as program:
        program.execute(f'LISTEN "{channel(opened.address.schema)}"'.encode())
        opened.write(put("word", "1"))
        program.execute("SELECT pg_notify(%s, 'all of before')", (channel(opened.address.schema),))
        with contextlib.closing(open_postgres(url)) as other:
            other.on_change(lambda: None)
            opened.write(put("word", "2"))
            notices = program.notifies(timeout=PATIENCE_S, stop_after=2)
            assert [each.payload.isdecimal() for each in notices] == [False, True]


def test_a_process_that_begins_to_listen_during_a_commit_hears_of_it(
    opened: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_listener, "POLL_S", 2 * PATIENCE_S)
    heard: queue.Queue[int | None] = queue.Queue()
    schema = opened.address.schema
    with psycopg.connect(shared_dsn()) as committing:
        committing.execute("SELECT pg_advisory_xact_lock(%s)", (listeners_key(schema),))  # no process listens
        starting = threading.Thread(target=lambda: listeners.append(NewsListener(opened.address, heard.put)))
        listeners: list[NewsListener] = []
        starting.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid::bigint = %s"
        with psycopg.connect(shared_dsn(), autocommit=True) as looking:
            while looking.execute(waits, (listeners_key(schema) & 0xFFFFFFFF,)).fetchone() != (1,):
                pass
        row = committing.execute(f"SELECT nextval('{schema}.news')".encode()).fetchone()
        committing.commit()
    assert row is not None
    assert heard.get(timeout=PATIENCE_S) == row[0]
    starting.join(PATIENCE_S)
    listeners[0].stop()


def test_a_listener_whose_connection_ends_listens_again_in_a_process_with_thousands_of_open_files(
    url: str, opened: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening: list[psycopg.Connection[Any]] = []

    def connect(*args: Any, **options: Any) -> psycopg.Connection[Any]:
        listening.append(postgres_connection.connect(*args, **options))
        return listening[-1]

    monkeypatch.setattr(postgres_listener, "connect", connect)
    heard = threading.Semaphore(0)
    with thousands_of_open_files(), contextlib.closing(open_postgres(url)) as other:
        stop = opened.on_change(heard.release, foreign_only=True)
        end_session(listening[0].info.backend_pid)
        for _ in range(int(PATIENCE_S * 100)):
            if len(listening) > 1:
                break
            threading.Event().wait(0.01)
        while heard.acquire(blocking=False):
            pass
        other.write(put("word", "1"))
        assert heard.acquire(timeout=PATIENCE_S)
        stop()
        opened.close()


def test_a_listener_reports_a_notification_that_comes_with_the_answer_to_its_own_question(
    opened: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = NewsListener._ask
    heard: queue.Queue[int | None] = queue.Queue()

    def ask_while_a_program_commits(self: NewsListener, connection: psycopg.Connection[Any]) -> None:
        ask(self, connection)
        with psycopg.connect(shared_dsn(), autocommit=True) as program:
            program.execute("SELECT pg_notify(%s, 'inbox')", (channel(opened.address.schema),))
        connection.execute("SELECT 1")

    monkeypatch.setattr(NewsListener, "_ask", ask_while_a_program_commits)
    monkeypatch.setattr(postgres_listener, "POLL_S", 2 * PATIENCE_S)
    listener = NewsListener(opened.address, heard.put)
    while heard.get(timeout=PATIENCE_S) is not None:
        pass
    listener.stop()


def test_a_forked_child_has_connections_of_its_own(opened: PostgresStore) -> None:
    opened.write(put("word", "parent"))
    value_of(opened, "word")
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            opened.write(put("child", str(value_of(opened, "word"))))
            code = 0
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    opened.write(put("word", "parent again"))
    assert (value_of(opened, "child"), value_of(opened, "word")) == ("parent", "parent again")


# --- early release -------------------------------------------------------------------------------


def test_a_command_that_waits_for_an_entry_waits_for_the_server_too(
    own_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_postgres(f"{own_server.dsn()}&schema=waits")
    kernel = Kernel(opened)
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder")))
    (entry,) = kernel.queue.claim(worker_id="worker")
    own_server.stop(signal.SIGKILL)
    waiting = Caller(lambda: wait_for_end(cast("SchedulerApi", kernel), sched_id, PATIENCE_S))
    said = ""
    while "waiting for it" not in said:
        assert not waiting.is_done
        said += capsys.readouterr().err
        threading.Event().wait(0.01)
    own_server.restart(signal.SIGKILL)
    call_through_outage(
        kernel.clock, lambda: kernel.queue.complete(sched_id, "completed", token=entry.token), lambda: False
    )
    assert waiting.outcome().status == "succeeded"
    assert capsys.readouterr().err == "connected again\n"
    opened.close()


def test_a_command_that_waits_for_a_graph_run_waits_for_the_server_too(
    own_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_postgres(f"{own_server.dsn()}&schema=graph_waits")
    api = Dispatcher(Kernel(opened))
    api.agents.create("coder")
    node = {"id": "code", "execution": {"agent": "coder"}}
    document = {"schema_version": 2, "graph": {"name": "g"}, "lanes": {}, "components": [node], "edges": []}
    run, cursor = api.graphs.start(document, run_id="r1"), api.journal.cursor()
    own_server.stop(signal.SIGKILL)
    waiting = Caller(lambda: wait_for_run(api, run, cursor))
    said = ""
    while "waiting for it" not in said:
        assert not waiting.is_done
        said += capsys.readouterr().err
        threading.Event().wait(0.01)
    own_server.restart(signal.SIGKILL)
    call_through_outage(api.clock, lambda: api.graphs.cancel("r1"), lambda: False)
    assert waiting.outcome().status == "cancelled"
    opened.close()


def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed(own_server: PostgresServer) -> None:
    """Commits are asynchronous inside the turn: without the flush behind it, the last of them are lost here."""
    url = f"{own_server.dsn()}&schema=acknowledged"
    opened = open_postgres(url)
    pid = Kernel(opened).agents.create("coder")
    opened.close()
    started, acknowledged = processes.Semaphore(0), processes.Queue()
    names = ("a", "b")
    children_ = [
        processes.Process(target=children.enqueue_until_lost, args=(url, started, acknowledged, pid, name))
        for name in names
    ]
    for child in children_:
        child.start()
    for _ in names:
        assert started.acquire(timeout=PATIENCE_S)
    own_server.stop(signal.SIGQUIT)
    keys = [key for _ in names for key in acknowledged.get(timeout=PATIENCE_S)]
    for child in children_:
        child.join(PATIENCE_S)
    own_server.start()
    opened = open_postgres(url)
    found = [entry.key for entry in Kernel(opened).queue.list(limit=10_000)[0]]
    opened.close()
    assert len(found) == len(set(found))
    assert set(keys) <= set(found)
    assert len(found) <= len(keys) + len(names)  # of each process, at most the one that was not answered


def test_an_event_that_a_reader_was_shown_is_not_lost_when_the_server_is_killed(own_server: PostgresServer) -> None:
    """Its writer has not flushed it: with durability "normal" it never does."""
    url = f"{own_server.dsn()}&schema=seen"
    reader, writer = open_postgres(url), store.open(url, durability="normal")
    Kernel(writer).journal.append(None, "seen")
    seen = [event.kind for event in Kernel(reader).journal.tail()]
    own_server.restart(signal.SIGQUIT)
    after = [event.kind for event in Kernel(reader).journal.tail()]
    reader.close()
    writer.close()
    assert seen == after == ["seen"]
    assert "no transaction in progress" not in Path(own_server.folder, "log").read_text()


def test_a_session_that_ends_while_it_waits_for_the_standby_has_acknowledged_nothing(
    own_server: PostgresServer,
) -> None:
    """The call waits on in a new session, and has written once."""
    opened = open_postgres(f"{own_server.dsn()}&schema=standby")
    kernel = Kernel(opened)
    pid = kernel.agents.create("coder")
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with psycopg.connect(own_server.dsn(), autocommit=True) as connection:

        def waiting(other_than: int = 0) -> int:
            while (row := connection.execute(waits).fetchone()) is None or row[0] == other_than:
                threading.Event().wait(0.01)
                if calls[-1].is_done:  # the setting was not in force yet
                    calls.append(Caller(lambda: kernel.queue.enqueue(ScheduleSpec(pid))))
            return int(row[0])

        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
        connection.execute("SELECT pg_reload_conf()")
        calls = [Caller(lambda: kernel.queue.enqueue(ScheduleSpec(pid)))]
        first = waiting()
        count = len(calls)
        connection.execute("SELECT pg_terminate_backend(%s)", (first,))
        waiting(other_than=first)
        assert len(kernel.queue.list()[0]) == len(calls) == count
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        connection.execute("SELECT pg_reload_conf()")
    assert [entry.sched_id for entry in kernel.queue.list()[0]] == [call.outcome() for call in calls]
    opened.close()

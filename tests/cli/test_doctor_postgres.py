"""`rota doctor` at a store on PostgreSQL: what a real server says, and what is made of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from rota.cli.database_checks import _findings, examine_server
from rota.store.postgres_engine import turn_key
from rota.store.postgres_health import DeadRows, ServerHealth, ServerSession
from tests.cli.shell import Shell, make_shell
from tests.postgres_server import own_schema, shared_dsn

GOOD = ServerHealth(
    shown="db/fleet?schema=rota", schema="rota", schema_version="115", version="17.2", is_standby=False, fsync=True,
    full_page_writes=True, synchronous_commit="on", encoding="UTF8", collation="en_US.utf8", round_trip_s=0.0004,
    clock_ahead_s=-0.01, connections=20, connections_of_rota=6, connections_hidden=0, connections_max=97,
    connections_left=None, turn=None, waiting=0,
    oldest=None, dead_rows=DeadRows("agent_events", 3, 900), inactive_slots={}, listen_s=0.001,
)  # fmt: skip


@pytest.fixture
def url() -> Iterator[str]:
    with own_schema("rota_doctor") as made:
        yield made


@pytest.fixture
def rota(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("COLUMNS", "200")
    return make_shell(monkeypatch, capsys)


def test_a_server_without_trouble_has_no_note() -> None:
    assert {finding.verdict for finding in _findings(GOOD)} == {"good"}


@pytest.mark.parametrize(
    ("changed", "verdict", "words", "fix"),
    [
        ({"is_standby": True}, "bad", "a standby, which cannot be written", "primary"),
        ({"fsync": False}, "bad", "fsync off", "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();"),
        ({"fsync": False, "full_page_writes": False}, "bad", "fsync and full_page_writes off", "writes = on;"),
        ({"encoding": "SQL_ASCII"}, "bad", "encoding SQL_ASCII", "UTF8"),
        ({"round_trip_s": 0.02}, "note", "20.00 ms", "near"),
        ({"clock_ahead_s": -7_200.0}, "note", "7200.000 s behind", "time service"),
        ({"listen_s": None}, "bad", "LISTEN does not reach", "pooler=session"),
        ({"turn": ServerSession(77, "rota writer", "10.0.0.9", 12.5), "waiting": 3}, "bad",
         "held by process 77 (rota writer, 10.0.0.9) since 12.500 s, 3 wait", "pg_terminate_backend(77)"),
        ({"oldest": ServerSession(78, "psql", "this host", 4_000.0)}, "note", "process 78 (psql", "backend(78)"),
        ({"dead_rows": DeadRows("agent_events", 90_000, 10)}, "note", "90,000 in agent_events", "VACUUM (ANALYZE)"),
        ({"inactive_slots": {"old": 2**30}}, "note", "not in use and keeps 1,024.0 MiB", "drop_replication"),
        ({"inbox": 3, "inbox_s": 4_000.0}, "note", "3 rows of the inbox wait to be taken in", "rota run"),
        ({"connections": 95}, "bad", "2 left", "max_connections"),
        ({"connections_left": 2}, "bad", "limit of connections; 2 left", "CONNECTION LIMIT"),
        ({"connections_hidden": 3}, "note", "not seen: 3 sessions", "pg_read_all_stats"),
    ],
)  # fmt: skip
def test_each_trouble_is_named_with_what_to_do(changed: dict[str, Any], verdict: str, words: str, fix: str) -> None:
    (found,) = [each for each in _findings(msgspec.structs.replace(GOOD, **changed)) if each.verdict != "good"]
    assert found.verdict == verdict
    assert words in found.words
    assert fix in found.fix


def test_a_short_turn_is_no_trouble() -> None:
    health = msgspec.structs.replace(GOOD, turn=ServerSession(77, "rota writer", "10.0.0.9", 0.002))
    assert {finding.verdict for finding in _findings(health)} == {"good"}


def test_a_real_server_is_examined_and_the_holder_of_the_turn_is_named(url: str) -> None:
    with contextlib.closing(psycopg.connect(shared_dsn(), application_name="a stuck one")) as stuck:
        stuck.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (turn_key(url.rpartition("=")[2]),))
        health, _ = examine_server(url)
        assert health.turn is not None
        assert (health.turn.pid, health.turn.name) == (stuck.info.backend_pid, "a stuck one")
        assert health.oldest is not None
        stuck.rollback()
    health, _ = examine_server(url)
    assert health.turn is None
    assert (health.is_standby, health.schema_version, health.encoding) == (False, None, "UTF8")
    assert health.listen_s is not None
    assert health.connections_of_rota >= 1
    assert abs(health.clock_ahead_s) < 60


@pytest.fixture
def role() -> Iterator[str]:
    """An ordinary role, which does not see what sessions of others do."""
    name = f"rota_doctor_{os.getpid()}"
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 5".encode())
        try:
            yield name
        finally:
            connection.execute(f"DROP ROLE {name}".encode())


def test_an_ordinary_role_is_told_of_the_connections_of_others_and_of_its_own_limit(role: str, url: str) -> None:
    own = url.replace("postgresql://rota@", f"postgresql://{role}@")
    with contextlib.closing(psycopg.connect(shared_dsn())):
        health, _ = examine_server(own)
    assert health.connections >= 2
    assert health.connections_hidden == health.connections - 1
    assert health.connections_left == 4


def test_an_inactive_slot_is_found(url: str) -> None:
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot('left_behind', true)")
        try:
            health, _ = examine_server(url)
        finally:
            connection.execute("SELECT pg_drop_replication_slot('left_behind')")
    assert "left_behind" in health.inactive_slots


def test_the_command_shows_server_store_and_work(rota: Shell, url: str) -> None:
    before = rota("doctor", "--store", url)
    assert f"the schema {url.rpartition('=')[2]} has no rota" in before.out
    assert rota("agents", "create", "coder", "--store", url).code == 0
    told = rota("doctor", "--store", url)
    assert "PostgreSQL 1" in told.out
    assert "the primary" in told.out
    assert "no damage found" in told.out
    found = {each["words"] for each in rota("doctor", "--store", url, "--json").json["findings"]}
    assert any(words.startswith("a round trip takes") for words in found)


def test_the_command_does_not_migrate_a_schema_that_processes_of_an_older_version_use(rota: Shell, url: str) -> None:
    assert rota("agents", "create", "coder", "--store", url).code == 0
    name = url.rpartition("=")[2]
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute(f"SET search_path = {name}".encode())
        connection.execute("DROP TABLE charge_keys")  # as version 121 is
        connection.execute("UPDATE kernel_meta SET value = '121' WHERE key = 'schema_version'")
        told = rota("doctor", "--store", url)
        assert (told.code, "has an older schema (121; this rota has" in told.out) == (1, True)
        assert "rota db migrate" in told.out
        version = connection.execute("SELECT value FROM kernel_meta WHERE key = 'schema_version'").fetchone()
        assert version == ("121",)
    assert rota("db", "migrate", "--store", url).code == 0
    assert "no damage found" in rota("doctor", "--store", url).out


def test_a_server_that_does_not_answer_is_a_finding(rota: Shell) -> None:
    told = rota("doctor", "--store", "postgresql://nobody@127.0.0.1:1/none?schema=rota")
    assert told.code == 1
    assert "✗" in told.out

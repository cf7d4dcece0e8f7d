"""A file is migrated with its rows unchanged, or refused and left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from rota import store
from rota.errors import SchemaMismatch, StoreError, StoreReplaced
from rota.store import Row, Transaction
from rota.store.migrations import LATEST, STEPS, plan
from rota.store.statements.file import META_SET
from tests.store.files import CLEAN, children, contents, open_together, script
from tests.store.world import sql

PROCESSES = """
    INSERT INTO agent_processes (pid, parent_pid, name, template, state, created_at, updated_at, exit_kind, metadata)
    VALUES (1, NULL, 'root', 'shell', 'RUNNING', 100.5, 101.5, NULL, '{"a": 1}'),
           (2, 1, 'child', 'python', 'READY', 102.0, 102.0, NULL, '{}'),
           (9, 1, 'gone', 'python', 'DEAD', 103.0, 190.0, 'completed', '{}');
    INSERT INTO agent_events (event_id, pid, ts, kind, payload, causation_id, correlation_id)
    VALUES (1, 1, 100.5, 'kernel.process.created', '{"name":"root"}', NULL, 'c-1'),
           (40, NULL, 150.0, 'user.note', '{}', '1', NULL);
"""
LEDGERS = """
    INSERT INTO agent_ledgers (pid, dim, used, granted, hard_limit, warn_at)
    VALUES (1, 'tokens', 1200, 5000, 6000, 0.75), (2, 'tokens', 7000, 5000, 6000, 0.8), (2, 'cost', 0, 1, 1, 0.8);
"""
QUEUE = """
    INSERT INTO agent_schedule_queue (sched_id, pid, priority, runnable_at, deadline, trigger, payload, state,
        worker_id, created_at, dispatched_at, completed_at, exit_kind)
    VALUES (1, 1, 5, 0, NULL, 'manual', '{"n":1}', 'queued', NULL, 100.0, NULL, NULL, NULL),
           (2, 2, -3, 5000.0, 6000.0, 'cron', '{}', 'queued', NULL, 101.0, NULL, NULL, NULL),
           (3, 1, 0, 0, NULL, 'manual', '{}', 'dispatched', 'w-1', 102.0, 140.0, NULL, NULL),
           (4, 2, 0, 0, NULL, 'event', '{}', 'completed', 'w-2', 103.0, 141.0, 150.0, 'completed'),
           (8, 9, 0, 0, 120.0, 'manual', '{}', 'expired', NULL, 104.0, NULL, 121.0, NULL),
           (9, 9, 0, 0, NULL, 'manual', '{}', 'cancelled', NULL, 105.0, NULL, 122.0, NULL);
"""
ROWS = {1: PROCESSES, 2: PROCESSES + LEDGERS, 3: PROCESSES + LEDGERS + QUEUE}
TABLES = ("agent_processes", "agent_events", "agent_ledgers", "agent_schedule_queue")


def make(path: str, *scripts: str, mode: str = "delete") -> None:
    connection = apsw.Connection(path)
    connection.execute(f"PRAGMA journal_mode = {mode}").fetchall()
    for each in scripts:
        connection.execute(each).fetchall()
    connection.close()


def columns(connection: apsw.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})").fetchall()]


def dump(path: str, shape: dict[str, list[str]] | None = None) -> dict[str, list[tuple[str, Any]]]:
    """Every row of the first kernel's tables, in the given columns or in all of them, as it was before a migration."""
    connection = apsw.Connection(path)
    kept = shape or {table: columns(connection, table) for table in TABLES}
    rows = {
        table: connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY 1, 2").fetchall()
        for table, names in kept.items()
        if names
    }
    connection.close()
    return {
        table: [(",".join(kept[table]), row) for row in found if "kernel.store.migrated" not in row]
        for table, found in rows.items()
    }


def shape_of(path: str) -> dict[str, list[str]]:
    connection = apsw.Connection(path)
    shape = {table: columns(connection, table) for table in TABLES}
    connection.close()
    return shape


def stamp(tx: Transaction) -> Any:
    return tx.run(sql("SELECT value FROM kernel_meta WHERE key = 'schema_version'"))[0][0]


def schema(tx: Transaction) -> list[Row]:
    """Every table and index with its columns."""
    names = tx.run(sql("SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY 1, 2"))
    return [
        (kind, name, tx.run(sql(f"PRAGMA {'table_info' if kind == 'table' else 'index_xinfo'}({name})")))
        for kind, name in names
    ]


# --- migrated ------------------------------------------------------------------------------------


def test_a_new_file_has_the_latest_version(path: str) -> None:
    opened = store.open(path)
    assert opened.read(stamp) == str(LATEST)
    assert opened.check() == []
    opened.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_older_file_is_migrated_with_its_rows_unchanged(path: str, version: int, mode: str) -> None:
    make(path, script(version), ROWS[version], mode=mode)
    before, shape = dump(path), shape_of(path)
    opened = store.open(path)
    assert opened.read(stamp) == str(LATEST)
    assert opened.check() == []
    fresh = store.open(":memory:")
    assert opened.read(schema) == fresh.read(schema)  # and it has the schema of a new file
    fresh.close()
    opened.close()
    assert sum(len(rows) for rows in before.values()) >= 5
    assert dump(path, shape) == before


def test_a_file_without_the_graph_runs_table_gets_it(path: str) -> None:
    make(path, script(100))
    opened, fresh = store.open(path), store.open(":memory:")
    assert opened.read(stamp) == str(LATEST)
    assert opened.read(schema) == fresh.read(schema)
    assert opened.read(lambda tx: tx.run(sql("SELECT count(*) FROM graph_runs"))) == [(0,)]
    fresh.close()
    opened.close()


def test_graph_runs_of_an_older_file_have_no_coordinator_and_the_project_of_their_agent(path: str) -> None:
    run = """
        UPDATE agent_processes SET project_id = 'lab' WHERE pid = 2;
        INSERT INTO graph_runs (run_id, graph, pid, fence, next_epoch_id, updated_at, checkpoint)
        VALUES ('r1', 'report', 2, 40, 7, 160.0, '{"a":1}');
    """
    make(path, script(112), PROCESSES, run)
    opened, fresh = store.open(path), store.open(":memory:")
    assert opened.read(schema) == fresh.read(schema)
    assert opened.check() == []
    columns = "run_id, next_epoch_id, checkpoint, project_id, status, sched_id, inputs, started_at, ended_at"
    found = opened.read(lambda tx: tx.run(sql(f"SELECT {columns} FROM graph_runs")))
    assert found == [("r1", 7, '{"a":1}', "lab", "running", None, "{}", 160.0, None)]
    fresh.close()
    opened.close()


@pytest.mark.parametrize("version", [100, 101, 102])
def test_a_file_without_affinity_holds_gets_them(path: str, version: int) -> None:
    make(path, script(version), PROCESSES, QUEUE.replace("(2, 2,", "(7, 2,"))
    before, shape = dump(path), shape_of(path)
    opened, fresh = store.open(path), store.open(":memory:")
    assert opened.read(schema) == fresh.read(schema)
    assert opened.check() == []
    hold = "UPDATE agent_schedule_queue SET hold = '{}' WHERE sched_id = 1"
    opened.write(lambda tx: tx.run(sql(hold.format("worker"))))
    with pytest.raises(StoreError, match="CHECK"):
        opened.write(lambda tx: tx.run(sql(hold.format("whim"))))
    opened.write(lambda tx: tx.run(sql("UPDATE agent_schedule_queue SET hold = NULL WHERE sched_id = 1")))
    fresh.close()
    opened.close()
    assert dump(path, shape) == before


def test_ids_continue_after_a_migration(path: str) -> None:
    make(path, script(3), ROWS[3])
    opened = store.open(path)
    entry = sql("INSERT INTO agent_schedule_queue (pid, created_at) VALUES (1, 200) RETURNING sched_id")
    event = sql("INSERT INTO agent_events (ts, kind) VALUES (200, 'user.note') RETURNING event_id")
    assert opened.write(lambda tx: tx.run(entry)) == [(10,)]
    assert opened.write(lambda tx: tx.run(event)) == [(42,)]  # 41 is that of the migration
    opened.close()


def test_entries_of_an_older_queue_keep_their_hold_or_claim(path: str) -> None:
    make(path, script(3), ROWS[3])
    opened = store.open(path)
    query = sql("SELECT sched_id, hold, heartbeat_at, claim_timeout_s, claim_expires_at FROM agent_schedule_queue")
    rows = {row[0]: row[1:] for row in opened.read(lambda tx: tx.run(query))}
    assert rows[1] == (None, None, None, None)  # ready
    assert rows[2] == ("time", None, None, None)  # held until its time
    assert rows[3] == (None, 140.0, 3_600, 3_740.0)  # claimed, and requeued when the claim expires
    assert [rows[n][0] for n in (4, 8, 9)] == [None] * 3
    opened.close()


def test_a_migrated_file_is_not_written_again(path: str) -> None:
    make(path, script(2), ROWS[2])
    store.open(path).close()
    before = Path(path).read_bytes()
    store.open(path).close()
    assert Path(path).read_bytes() == before


def test_a_failed_step_leaves_the_file_at_its_version(path: str) -> None:
    make(path, script(2), ROWS[2], "CREATE TABLE projects (mine TEXT); INSERT INTO projects VALUES ('keep me')")
    before = dump(path)
    with pytest.raises(StoreError, match="projects already exists"):
        store.open(path)
    assert dump(path) == before
    connection = apsw.Connection(path)
    assert connection.execute("SELECT value FROM kernel_meta").fetchall() == [("2",)]
    assert connection.execute("SELECT mine FROM projects").fetchall() == [("keep me",)]
    connection.close()


def test_every_version_has_a_plan_to_the_latest() -> None:
    steps = sorted(STEPS)
    assert steps[:3] == [1, 2, 3]
    assert all(step >= 100 for step in steps[3:])
    assert plan(None, empty=True) == steps
    for version in range(1, 6):  # of the first kernel
        assert plan(str(version), empty=False) == steps[3:]
    for place, step in enumerate(steps[3:], 3):
        assert plan(str(step), empty=False) == steps[place + 1 :]


# --- refused -------------------------------------------------------------------------------------

FULL_WIDTH_100 = "\uff11\uff10\uff10"  # digits for Python, not for rota
FOREIGN = ["6", "99", str(LATEST + 1), "99999", "9" * 5_000, "0", "-1"]
MALFORMED = ["", " ", "abc", "3.0", "1e2", "+3", " 3", FULL_WIDTH_100, "\u2162"]


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("stamped", FOREIGN + MALFORMED)
def test_a_foreign_newer_or_malformed_version_is_refused_and_nothing_is_written(
    tmp_path: Path, path: str, stamped: str, mode: str
) -> None:
    make(path, script(3), ROWS[3], f"UPDATE kernel_meta SET value = '{stamped}'", mode=mode)
    refused(tmp_path, path)


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE bookmarks (url TEXT)",  # of another program
        "CREATE VIEW bookmarks AS SELECT 1",
        "CREATE TABLE kernel_meta (key TEXT PRIMARY KEY, value TEXT)",  # no schema_version
        "CREATE TABLE kernel_meta (name TEXT, version INTEGER)",  # other columns
        "CREATE TABLE kernel_meta (key, value); INSERT INTO kernel_meta VALUES ('schema_version', NULL)",
        "CREATE TABLE kernel_meta (key, value); INSERT INTO kernel_meta VALUES ('schema_version', x'33')",
        "CREATE TABLE kernel_meta (key, value); INSERT INTO kernel_meta VALUES ('schema_version', 4)",
    ],
)
def test_a_file_of_another_program_is_refused_and_nothing_is_written(
    tmp_path: Path, path: str, text: str, mode: str
) -> None:
    make(path, text, mode=mode)
    refused(tmp_path, path)


def refused(folder: Path, path: str) -> None:
    """It is refused for writing and reading, its bytes are unchanged, and no file is created beside it."""
    before = contents(folder)
    with pytest.raises(SchemaMismatch):
        store.open(path)
    assert contents(folder) == before
    with pytest.raises(SchemaMismatch):
        store.open(path, read_only=True)
    after = contents(folder)
    assert after["rota.db"] == before["rota.db"]
    assert after.keys() - before.keys() <= {"rota.db-wal", "rota.db-shm"}  # created by SQLite when it reads
    assert after.get("rota.db-wal", b"") == b""


def test_the_log_of_a_refused_file_is_left_beside_it(tmp_path: Path, path: str) -> None:
    owner = apsw.Connection(path)
    owner.execute("PRAGMA journal_mode = WAL").fetchall()
    owner.execute("CREATE TABLE bookmarks (url TEXT); INSERT INTO bookmarks VALUES ('a page')").fetchall()
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name, text in contents(tmp_path).items():
        (crashed / name).write_bytes(text)  # as a killed program leaves them
    owner.close()
    before = contents(crashed)
    assert before["rota.db-wal"] != b""
    with pytest.raises(SchemaMismatch):
        store.open(str(crashed / "rota.db"))
    after = contents(crashed)
    assert (after["rota.db"], after["rota.db-wal"]) == (before["rota.db"], before["rota.db-wal"])
    again = apsw.Connection(str(crashed / "rota.db"))
    assert again.execute("SELECT url FROM bookmarks").fetchall() == [("a page",)]
    again.close()


# --- several processes ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2])
def test_processes_that_open_a_file_together_migrate_it_once(tmp_path: Path, version: int) -> None:
    paths = [str(tmp_path / f"{n}.db") for n in range(12)]
    if version:
        for path in paths:
            make(path, script(version), ROWS[version])
    together = CLEAN.Barrier(4)
    with children(open_together, [(together, paths)] * 4):
        pass
    for path in paths:
        opened = store.open(path)
        assert opened.read(stamp) == str(LATEST)
        assert opened.check() == []
        opened.close()


def test_a_process_notices_that_a_newer_rota_has_migrated_its_file(path: str) -> None:
    opened = store.open(path)
    opened.write(lambda tx: tx.run(META_SET, ("note", "1")))
    newer = apsw.Connection(path)
    newer.execute(f"UPDATE kernel_meta SET value = {LATEST + 1} WHERE key = 'schema_version'")
    newer.close()
    opened._engine.files.due_at = 0.0  # type: ignore[attr-defined]  # half a second later
    with pytest.raises(
        StoreReplaced, match=f"migrated .* to schema_version {LATEST + 1}; this process writes {LATEST}"
    ):
        opened.write(lambda tx: tx.run(META_SET, ("note", "2")))
    with pytest.raises(StoreReplaced, match="with the version of rota that migrated the file"):
        opened.read(stamp)
    opened.close()
    with pytest.raises(SchemaMismatch):
        store.open(path)

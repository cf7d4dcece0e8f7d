"""A file of the first kernel is taken over with its rows, its other tables untouched and a copy beside it."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import apsw
import pytest

from rota import store
from rota.errors import SchemaMismatch, StoreUnavailable
from rota.kernel import Kernel, KernelState
from rota.store import first_kernel
from rota.store.migrations import LATEST
from tests.store import child_processes
from tests.store.files import CLEAN, contents
from tests.store.first_kernel_files import UNKNOWN_TABLES, VERSIONS, make_first_kernel
from tests.store.world import PATIENCE_S, sql


def rows_of(path: str, table: str, columns: str = "*") -> list[Any]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(f"SELECT {columns} FROM {table}").fetchall()
    finally:
        connection.close()


def schema_of(path: str) -> dict[str, str]:
    return dict(rows_of(path, "sqlite_schema", "name, sql"))


@pytest.mark.parametrize("version", VERSIONS)
def test_it_gets_the_tables_of_a_new_file_and_keeps_its_own(path: str, version: int) -> None:
    make_first_kernel(path, version)
    unknown = [name for name, since in UNKNOWN_TABLES.items() if since <= version]
    before, texts = {name: rows_of(path, name) for name in unknown}, schema_of(path)
    assert all(before.values())
    opened = store.open(path)
    fresh = store.open(path + ".new")
    assert opened.check() == []
    assert Kernel(opened).check() == []
    opened.close()
    fresh.close()
    after, new = schema_of(path), schema_of(path + ".new")
    assert {name: after[name] for name in new if not name.startswith("sqlite_")} == {
        name: text for name, text in new.items() if not name.startswith("sqlite_")
    }
    assert {name: rows_of(path, name) for name in unknown} == before
    kept = {*unknown, "live_agents"} & texts.keys()
    assert {name: after[name] for name in kept} == {name: texts[name] for name in kept}
    assert {name for name in after.keys() - new.keys() if name.startswith("agent_")} == set(unknown)


def test_what_json_does_not_have_is_replaced_and_the_rest_is_as_it_was(path: str) -> None:
    make_first_kernel(path, 5)
    store.open(path).close()
    agents = {row[0]: row[1:] for row in rows_of(path, "agent_processes", "pid, exit_kind, exit_detail, metadata")}
    assert agents[1] == (None, "{}", '{"a":1}')
    assert agents[5] == (None, "{}", '{"load":null}')
    assert agents[9] == ("failed", '{"at":null}', "{}")
    columns = "sched_id, payload, runnable_at, deadline"
    entries = {row[0]: row[1:] for row in rows_of(path, "agent_schedule_queue", columns)}
    assert entries[1] == ('{"n":1}', 0.0, None)
    assert entries[6] == ('{"x":null}', 0.0, None)  # no deadline is after all of them
    assert entries[7] == ('{"s":"\ufffd"}', first_kernel.INSTANT_MAX, None)
    events = {row[0]: row[1] for row in rows_of(path, "agent_events", "event_id, payload")}
    assert events[3] == '{"heat":null,"text":"half \ufffd of it"}'


@pytest.mark.parametrize("version", VERSIONS)
def test_ids_are_never_reused_and_replay_gives_the_tables(path: str, version: int) -> None:
    make_first_kernel(path, version)
    kernel = Kernel(store.open(path))
    assert kernel.agents.create("new") == 16  # 11 to 15 were given once
    assert kernel.store.read(KernelState.from_journal) == kernel.store.read(KernelState.from_tables)
    migrated = [event for event in kernel.journal.tail(0) if event.kind == "kernel.store.migrated"]
    assert [event.payload for event in migrated] == [{"from_version": version, "to_version": LATEST}]
    kernel.store.close()


def test_a_copy_that_only_its_owner_can_read_is_left_and_said_in_one_line(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_first_kernel(path, 5)
    tables = ("agent_processes", "agent_events", "agent_ledgers", "agent_fs_objects")
    before = {table: rows_of(path, table) for table in tables}
    with caplog.at_level(logging.WARNING, "rota.store"):
        opened = store.open(path)
    opened.close()
    copy = f"{path}.schema-5.bak"
    real = os.path.realpath(path)
    said = f"{real} was migrated from schema 5 of the first kernel; a copy as it was: {real}.schema-5.bak"
    changed = "5 JSON values that JSON does not have were replaced"
    assert [record.getMessage() for record in caplog.records] == [f"{said}; {changed}"]
    assert stat.S_IMODE(Path(copy).stat().st_mode) == 0o600
    assert {table: rows_of(copy, table) for table in before} == before
    assert rows_of(copy, "kernel_meta")[0] == ("schema_version", "5")
    assert not [name for name in contents(tmp_path) if ".part" in name]
    caplog.clear()
    store.open(path).close()  # once
    assert not caplog.records
    assert sorted(tmp_path.glob("*.bak")) == [Path(copy)]


def test_a_copy_never_replaces_another_file(tmp_path: Path, path: str) -> None:
    make_first_kernel(path, 2)
    mine = Path(f"{path}.schema-2.bak")
    mine.write_text("mine")
    store.open(path).close()
    assert mine.read_text() == "mine"
    assert rows_of(f"{path}.schema-2.2.bak", "kernel_meta")[0] == ("schema_version", "2")
    assert len(list(tmp_path.glob("*.bak"))) == 2


def test_a_copy_that_cannot_be_made_leaves_the_file_as_it_was(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_first_kernel(path, 3)
    before = rows_of(path, "agent_schedule_queue")

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(first_kernel, "_flush", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.open(path)
    assert rows_of(path, "agent_schedule_queue") == before
    assert not list(Path(path).parent.glob("*.bak"))
    monkeypatch.undo()
    store.open(path).close()
    assert rows_of(path, "kernel_meta", "value")[-1] is not None


@pytest.mark.parametrize(
    "harm",
    [
        "ALTER TABLE agent_processes RENAME COLUMN template TO kind",
        "DROP TABLE agent_events",
        "ALTER TABLE agent_ledgers DROP COLUMN used",
    ],
)
def test_a_file_with_other_columns_is_refused_and_unchanged(tmp_path: Path, path: str, harm: str) -> None:
    make_first_kernel(path, 3)
    connection = sqlite3.connect(path)
    connection.execute(harm)
    connection.commit()
    connection.close()
    before = contents(tmp_path)
    with pytest.raises(SchemaMismatch, match="belongs to another program"):
        store.open(path)
    assert contents(tmp_path) == before


def test_reading_never_migrates_and_leaves_no_copy(tmp_path: Path, path: str) -> None:
    make_first_kernel(path, 4)
    before = Path(path).read_bytes()
    with pytest.raises(SchemaMismatch, match="older schema"):
        store.open(path, read_only=True)
    assert Path(path).read_bytes() == before
    assert not list(tmp_path.glob("*.bak"))


@pytest.mark.timeout(120)
def test_a_migration_that_is_killed_continues_or_the_file_is_whole(tmp_path: Path) -> None:
    at_version = {4: 0, LATEST: 0}
    statements = (*range(0, 80, 5), 10_000)  # the last one is not reached
    for number in statements:
        path = str(tmp_path / f"{number}.db")
        make_first_kernel(path, 4, filler=50)
        process = CLEAN.Process(target=child_processes.migrate_until_killed, args=(path, number), daemon=True)
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode in (-9, 0)
        process.close()
        version = int(dict(rows_of(path, "kernel_meta"))["schema_version"])
        at_version[version] += 1
        assert len(rows_of(path, "agent_schedule_queue WHERE trigger != 'migration'")) == 63
        assert len(rows_of(path, "agent_messages")) == 1
        kernel = Kernel(store.open(path))
        assert kernel.check() == []
        assert kernel.info()["schema_version"] == LATEST
        assert len(kernel.queue.claim(worker_id="w", max_n=100)) == 53  # the filler, and three more
        kernel.store.close()
        assert [each.name for each in tmp_path.glob(f"{number}.db.*bak")] == [f"{number}.db.schema-4.bak"]
    assert all(at_version.values()), at_version  # some were killed before their commit, some were not


def test_another_program_may_have_the_file_open_meanwhile(path: str) -> None:
    make_first_kernel(path, 5)
    other = apsw.Connection(path)  # two copies of SQLite in one process would release each other's locks
    other.execute("BEGIN")
    assert len(other.execute("SELECT * FROM agent_processes").fetchall()) == 7
    opened = store.open(path)
    assert len(other.execute("SELECT * FROM agent_processes").fetchall()) == 7  # its own view
    other.close()
    assert len(opened.read(lambda tx: tx.run(sql("SELECT pid FROM agent_processes")))) == 7
    opened.close()

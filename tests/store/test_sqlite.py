"""The SQLite store: settings, views, change listeners. Specific to SQLite, because it tests the file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from rota import store
from rota.errors import SchemaMismatch, StoreError, StoreUnavailable
from rota.store import Store, Transaction
from rota.store import sqlite as module
from tests.store.files import contents, script
from tests.store.world import PUT, WORDS, Caller, acquire, happened, put, sql, take, words


def pragma(tx: Transaction, name: str) -> Any:
    return tx.run(sql(f"PRAGMA {name}"))[0][0]


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
def test_a_file_has_wal_mode_foreign_keys_and_the_requested_durability(path: str, durability: Any, level: int) -> None:
    opened = store.open(path, durability=durability)
    assert opened.write(lambda tx: pragma(tx, "journal_mode")) == "wal"
    assert opened.write(lambda tx: pragma(tx, "synchronous")) == level
    assert opened.write(lambda tx: pragma(tx, "foreign_keys")) == 1
    assert opened.read(lambda tx: pragma(tx, "foreign_keys")) == 1
    opened.close()


def test_full_durability_is_the_default(file: Store) -> None:
    assert file.write(lambda tx: pragma(tx, "synchronous")) == 2


def test_a_row_that_refers_to_a_missing_row_is_refused(opened: Store) -> None:
    def work(tx: Transaction) -> None:
        tx.run(PUT, ("before",))
        tx.run(sql("INSERT INTO agent_ledgers (pid, dim, granted, hard_limit) VALUES (7, 'tokens', 1, 1)"))

    with pytest.raises(StoreError, match="FOREIGN KEY"):
        opened.write(work)
    assert opened.read(words) == []


def test_an_sqlite_that_can_lose_commits_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, is_good in (("3.51.2", False), ("3.9.9", False), ("3.51.3", True), ("3.100.0", True)):
        monkeypatch.setattr(apsw, "sqlite_lib_version", lambda version=version: version)
        if is_good:
            store.open(path).close()
        else:
            with pytest.raises(StoreUnavailable, match="lose commits"):
                store.open(path)


# --- reading -------------------------------------------------------------------------------------


def test_a_read_does_not_wait_for_a_writer_and_sees_the_last_commit(file: Store) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        tx.run(PUT, ("not yet",))
        begun.set()
        happened(end)

    file.write(put("there"))
    writer = Caller(lambda: file.write(slow))
    happened(begun)
    assert file.read(words) == ["there"]
    end.set()
    writer.outcome()
    assert file.read(words) == ["there", "not yet"]


def test_a_read_sees_one_view_while_others_write(file: Store) -> None:
    file.write(put("before"))

    def look_twice(tx: Transaction) -> tuple[list[str], list[str]]:
        first = words(tx)
        Caller(lambda: file.write(put("meanwhile"))).outcome()
        return first, words(tx)

    assert file.read(look_twice) == (["before"], ["before"])
    assert file.read(words) == ["before", "meanwhile"]


def test_a_read_transaction_cannot_write(opened: Store) -> None:
    with pytest.raises(StoreError, match="readonly"):
        opened.read(lambda tx: tx.run(PUT, ("word",)))
    assert opened.read(words) == []
    opened.write(put("word"))
    assert opened.read(words) == ["word"]


def test_a_read_that_raises_releases_its_view(opened: Store) -> None:
    def fail(tx: Transaction) -> None:
        words(tx)
        raise KeyError("mine")

    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            opened.read(fail)
    opened.write(put("word"))
    assert opened.read(words) == ["word"]


def test_many_can_read_at_the_same_time_and_few_connections_are_kept(file: Store) -> None:
    count = module.READERS_MAX + 8
    together = threading.Barrier(count)

    def read(tx: Transaction) -> list[str]:
        together.wait(60)
        return words(tx)

    callers = [Caller(lambda: file.read(read)) for _ in range(count)]
    assert [caller.outcome() for caller in callers] == [[]] * count
    assert isinstance(file, module.SqliteStore)
    assert len(file._readers) == module.READERS_MAX


def test_in_memory_a_read_inside_a_write_is_refused_and_inside_a_file_it_sees_the_last_commit(opened: Store) -> None:
    opened.write(put("there"))

    def work(tx: Transaction) -> list[str]:
        tx.run(PUT, ("not yet",))
        return opened.read(words)

    if opened._path == ":memory:":  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match="inside a write"):
            opened.write(work)
    else:
        assert opened.write(work) == ["there"]


def test_an_on_commit_call_may_read(opened: Store) -> None:
    seen = []

    def work(tx: Transaction) -> None:
        tx.run(PUT, ("word",))
        tx.effects.on_commit.append(lambda: seen.append(opened.read(words)))

    opened.write(work)
    assert seen == [["word"]]


def test_two_stores_in_memory_are_separate() -> None:
    one, two = store.open(":memory:"), store.open(":memory:")
    one.write(lambda tx: tx.run(WORDS))
    with pytest.raises(StoreError, match="no such table"):
        two.read(words)
    one.close()
    two.close()


# --- inserting -----------------------------------------------------------------------------------


def test_inserts_return_the_ids(opened: Store) -> None:
    insert = sql("INSERT INTO words (word) VALUES (?)")
    assert opened.write(lambda tx: [tx.insert(insert, (word,)) for word in "abc"]) == [1, 2, 3]
    assert opened.write(lambda tx: tx.insert_many(insert, [(word,) for word in "def"])) == 4
    assert opened.read(lambda tx: tx.run(sql("SELECT id, word FROM words"))) == list(enumerate("abcdef", 1))


def test_run_many_inserts_all_rows_of_a_returning_statement(opened: Store) -> None:
    opened.write(lambda tx: tx.run_many(PUT, [(word,) for word in "abc"]))
    assert opened.read(words) == ["a", "b", "c"]


# --- read-only -----------------------------------------------------------------------------------


def test_a_read_only_store_never_writes(tmp_path: Path, path: str, file: Store) -> None:
    file.write(put("word"))
    file.close()
    before = contents(tmp_path)
    reading = store.open(path, read_only=True)
    assert reading.read(words) == ["word"]
    assert reading.check() == []
    calls: list[Callable[[], object]] = [lambda: reading.write(put("no")), lambda: reading.wait(take(), 5.0)]
    for call in calls:
        with pytest.raises(StoreUnavailable, match="read-only"):
            call()
    reading.close()
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() <= {
        "rota.db-wal",
        "rota.db-shm",
    }  # SQLite may leave these, with an empty log
    assert after.get("rota.db-wal", b"") == b""


def test_a_read_only_store_never_migrates(tmp_path: Path, path: str) -> None:
    connection = apsw.Connection(path)
    connection.execute(script(3))
    connection.close()
    before = contents(tmp_path)
    with pytest.raises(SchemaMismatch, match=r"never migrates.*rota db migrate"):
        store.open(path, read_only=True)
    assert contents(tmp_path) == before


def test_a_read_only_store_creates_no_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(StoreUnavailable, match="cannot open"):
        store.open(path, read_only=True)
    assert contents(tmp_path) == {}


def test_a_read_only_store_reports_foreign_commits(file: Store, path: str) -> None:
    calls = threading.Semaphore(0)
    reading = store.open(path, read_only=True)
    reading.on_change(calls.release)
    file.write(put("word"))
    acquire(calls)
    assert reading.read(words) == ["word"]
    reading.close()


# --- change listeners ----------------------------------------------------------------------------


def test_on_change_reports_local_and_foreign_commits_until_stopped(file: Store, path: str) -> None:
    calls = threading.Semaphore(0)
    end = file.on_change(calls.release)
    file.write(put("here"))
    acquire(calls)
    other = store.open(path)  # to the file, another connection is like another process
    other.write(put("elsewhere"))
    acquire(calls)
    end()
    end()
    while calls.acquire(blocking=False):
        pass
    file.write(put("unheard"))
    assert not calls.acquire(blocking=False)
    other.close()


def test_a_new_file_reports_no_commit_of_another_process(file: Store, path: str) -> None:
    assert isinstance(file, module.SqliteStore)
    file.write(put("here"))
    assert not file.check_foreign_commit()
    other = store.open(path)
    other.write(put("elsewhere"))
    assert file.check_foreign_commit()
    other.close()


def test_a_change_listener_that_raises_is_called_again_and_logged_once(
    file: Store, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = threading.Semaphore(0)

    def fall() -> None:
        raise RuntimeError("a bad listener")

    file.on_change(fall)
    file.on_change(calls.release)
    other = store.open(path)
    for n in range(3):
        other.write(put(f"word {n}"))
        acquire(calls)
    other.close()
    file.close()
    assert caplog.text.count("RuntimeError: a bad listener") == 1


def test_a_change_listener_may_close_the_store(path: str) -> None:
    closed = threading.Event()
    first, second = store.open(path), store.open(path)

    def close() -> None:
        first.close()
        closed.set()

    first.on_change(close)
    second.write(lambda tx: tx.run(WORDS))
    second.write(put("word"))
    happened(closed)
    second.close()

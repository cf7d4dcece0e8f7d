"""The errors of the SQLite store, and what close leaves behind."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from rota.store import Store, Transaction
from rota.store import sqlite_connection as module
from tests.store.files import contents, descriptors, name_of_error, without_rights
from tests.store.world import LIST, PUT, WORDS, Caller, happened, put, sql, take, words

# --- errors --------------------------------------------------------------------------------------


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no such") as caught:
        store.open(str(tmp_path / "no such" / "rota.db"))
    assert caught.value.data["path"].endswith("rota.db")
    assert contents(tmp_path) == {}


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreUnavailable, match="cannot open"):
        store.open(str(tmp_path / "folder"))


@pytest.mark.parametrize("text", [b"these are my notes, not a database, and they are mine\n" * 40, b"x" * 4_096])
def test_a_text_file_is_refused_and_left_unchanged(tmp_path: Path, path: str, text: bytes) -> None:
    Path(path).write_bytes(text)
    for read_only in (False, True):
        with pytest.raises(StoreCorrupt, match="not a rota database"):
            store.open(path, read_only=read_only)
    assert contents(tmp_path) == {"rota.db": text}


def test_an_empty_path_and_an_unknown_durability_are_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        store.open("")
    with pytest.raises(InvalidInput, match="durability"):
        store.open(path, durability="some")  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable, match="no store for"):
        store.open("mysql://somewhere")


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "read_only", "error"),
    [
        (0o555, None, False, "StoreUnavailable"),  # cannot be created
        (0o777, 0o000, False, "StoreUnavailable"),
        (0o777, 0o000, True, "StoreUnavailable"),
        (0o555, 0o444, False, "StoreUnavailable"),  # readable, not writable
        (0o777, 0o444, False, "StoreUnavailable"),
        (0o777, 0o666, False, "nothing"),
    ],
)
def test_without_permissions_a_file_is_unavailable(
    folder_mode: int, file_mode: int | None, read_only: bool, error: str
) -> None:
    folder = Path(tempfile.mkdtemp())  # not tmp_path: other users may not enter that
    try:
        path = folder / "rota.db"
        if file_mode is not None:
            store.open(str(path)).close()
            path.chmod(file_mode)
            for beside in ("lock", "here"):  # other users may not open these
                (folder / f"rota.db-{beside}").unlink()
        folder.chmod(folder_mode)
        assert without_rights(name_of_error, str(path), read_only) == error
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_file_locked_by_another_program_is_an_error_after_the_timeout(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_MS", 20)
    opened = store.open(path)
    opened.write(lambda tx: tx.run(WORDS))
    foreign = apsw.Connection(path)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"locked for 0.02 s"):
        opened.write(put("word"))
    assert opened.read(words) == []
    foreign.execute("ROLLBACK")
    assert opened.write(put("word")) == 1
    foreign.close()
    opened.close()


def test_a_statement_that_meets_damage_raises_store_corrupt(path: str) -> None:
    opened = store.open(path)
    opened.write(lambda tx: tx.run(WORDS))
    opened.write(lambda tx: tx.run_many(PUT, [(f"word {n}" * 50,) for n in range(2_000)]))
    opened.close()
    damage(Path(path))
    damaged = store.open(path)
    with pytest.raises(StoreCorrupt, match="damaged"):
        damaged.read(lambda tx: tx.run(LIST))
    with pytest.raises(StoreCorrupt, match="damaged"):
        damaged.write(lambda tx: tx.run(sql("UPDATE words SET word = word || '!'")))
    damaged.close()


def damage(path: Path) -> None:
    """Overwrite the second half of a file, as a failing disk would."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xa5" * (size - size // 2))


# --- closing -------------------------------------------------------------------------------------


def test_every_call_of_a_closed_store_raises(opened: Store, tmp_path: Path) -> None:
    opened.close()
    opened.close()
    calls: list[Callable[[], object]] = [
        lambda: opened.write(put("word")),
        lambda: opened.wait(take(), 5.0),
        lambda: opened.read(words),
        lambda: opened.backup(str(tmp_path / "copy.db")),
        opened.check,
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable, match="closed"):
            call()
    assert not (tmp_path / "copy.db").exists()


def test_close_ends_waits(path: str) -> None:
    clock = ManualClock()
    opened = store.open(path, clock=clock)
    opened.write(lambda tx: tx.run(WORDS))
    waiter = Caller(lambda: opened.wait(take(), 3_600.0))
    clock.until_parked(1)
    opened.close()
    assert isinstance(waiter.error(), StoreUnavailable)


def test_a_read_continues_while_the_store_closes(path: str) -> None:
    begun, end = threading.Event(), threading.Event()
    opened = store.open(path)
    opened.write(lambda tx: tx.run(WORDS))
    opened.write(put("word"))

    def slow(tx: Transaction) -> list[str]:
        begun.set()
        happened(end)
        return words(tx)

    reader = Caller(lambda: opened.read(slow))
    happened(begun)
    opened.close()
    end.set()
    assert reader.outcome() == ["word"]


def test_a_store_that_was_closed_or_refused_leaves_nothing_open(tmp_path: Path, path: str) -> None:
    before = descriptors(), threading.active_count()
    for _ in range(3):
        opened = store.open(path)
        opened.on_change(lambda: None)
        opened.write(lambda tx: tx.run(sql("CREATE TABLE IF NOT EXISTS words (word TEXT)")))
        opened.write(lambda tx: tx.run(sql("INSERT INTO words VALUES ('word')")))
        opened.read(lambda tx: tx.run(sql("SELECT * FROM words")))
        opened.close()
    foreign = apsw.Connection(str(tmp_path / "foreign.db"))
    foreign.execute("CREATE TABLE kernel_meta (something TEXT)")
    foreign.close()
    for refused in ("foreign.db", "no/such.db"):
        with pytest.raises(StoreError):
            store.open(str(tmp_path / refused))
    assert (descriptors(), threading.active_count()) == before


# --- one file by many names ----------------------------------------------------------------------


def test_a_relative_path_means_the_same_file_after_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = store.open("rota.db")
    opened.write(lambda tx: tx.run(WORDS))
    monkeypatch.chdir(tmp_path / "elsewhere")
    opened.write(put("word"))
    assert opened.read(words) == ["word"]
    opened.close()
    assert contents(tmp_path / "elsewhere") == {}


def test_a_store_opened_by_a_link_shares_the_lock(tmp_path: Path, path: str, file: Store) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    linked = store.open(str(link))
    linked.write(put("word"))
    assert file.read(words) == ["word"]
    linked.close()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("link")] == ["link.db"]

"""Backups are made while others write and appear complete or not at all; `check` reports damage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from rota import store
from rota.errors import InvalidInput, StoreError
from rota.store import Store
from rota.store.sqlite import BACKUP_PAGES
from tests.store import child_processes
from tests.store.files import contents, descriptors
from tests.store.world import WORDS, Caller, acquire, put, sql, words

FILL = sql("INSERT INTO words (word) VALUES (randomblob(1500))")


@pytest.fixture
def copy(tmp_path: Path) -> str:
    (tmp_path / "copies").mkdir()
    return str(tmp_path / "copies" / "copy.db")


@pytest.fixture(params=["file", "memory"])
def opened(request: pytest.FixtureRequest, path: str) -> Iterator[Store]:
    made = store.open(path if request.param == "file" else ":memory:")
    made.write(lambda tx: tx.run(WORDS))
    made.write(lambda tx: tx.run(child_processes.PAIR))
    yield made
    made.close()


@pytest.fixture
def file(path: str) -> Iterator[Store]:
    made = store.open(path)
    made.write(lambda tx: tx.run(WORDS))
    made.write(lambda tx: tx.run(child_processes.PAIR))
    yield made
    made.close()


def fill(opened: Store, rows: int) -> None:
    opened.write(lambda tx: [tx.run(FILL) for _ in range(rows)])


# --- the copy ------------------------------------------------------------------------------------


def test_the_copy_holds_the_committed_rows_and_can_be_opened(opened: Store, copy: str) -> None:
    opened.write(put("word"))
    opened.backup(copy)
    opened.write(put("later"))
    copied = store.open(copy)
    assert copied.read(words) == ["word"]
    assert copied.check() == []
    copied.write(put("its own way from here"))
    copied.close()
    assert opened.read(words) == ["word", "later"]


def test_a_copy_made_while_others_write_is_one_consistent_view(file: Store, copy: str) -> None:
    fill(file, 3 * BACKUP_PAGES)
    copied, stop = threading.Semaphore(0), threading.Event()
    numbers = iter(range(1_000_000))

    def write_on() -> None:
        while not stop.is_set():
            file.write(child_processes.write_pair(str(next(numbers))))
            copied.release()

    writer = Caller(write_on)
    acquire(copied)
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        before = len(file.read(words))
        for _ in range(3):  # some commits between two steps, however slow the machine is
            acquire(copied)
        assert len(file.read(words)) == before

    file.backup(copy, progress)
    stop.set()
    writer.outcome()
    made = store.open(copy)
    firsts = made.read(lambda tx: tx.run(sql("SELECT word FROM firsts ORDER BY 1")))
    seconds = made.read(lambda tx: tx.run(sql("SELECT word FROM seconds ORDER BY 1")))
    assert firsts == seconds
    assert 0 < len(firsts) < file.read(lambda tx: tx.run(sql("SELECT count(*) FROM firsts")))[0][0]
    assert made.check() == []
    made.close()
    assert len(seen) >= 3


def test_progress_increases_to_the_total(opened: Store, copy: str) -> None:
    fill(opened, 3 * BACKUP_PAGES)
    seen: list[tuple[int, int]] = []
    opened.backup(copy, lambda done, total: seen.append((done, total)))
    dones, totals = zip(*seen, strict=True)
    assert list(dones) == sorted(set(dones))
    assert len(set(totals)) == 1
    assert 0 < dones[0] < dones[-1] == totals[0]


def test_a_copy_does_not_block_writers(file: Store, copy: str) -> None:
    fill(file, 2 * BACKUP_PAGES)
    written: list[int] = []
    file.backup(copy, lambda _done, _total: written.append(Caller(lambda: file.write(put("meanwhile"))).outcome()))
    assert len(written) >= 2


# --- an existing target --------------------------------------------------------------------------


def test_an_earlier_copy_is_replaced_completely(opened: Store, copy: str) -> None:
    opened.write(put("first"))
    opened.backup(copy)
    opened.write(put("second"))
    opened.backup(copy)
    made = store.open(copy, read_only=True)
    assert made.read(words) == ["first", "second"]
    made.close()


def test_the_log_of_an_earlier_file_is_not_replayed_into_the_copy(opened: Store, copy: str) -> None:
    """After a crash of the earlier file's user its log remains, full of its pages."""
    earlier = store.open(copy)
    earlier.write(lambda tx: tx.run(WORDS))
    for n in range(50):
        earlier.write(put(f"of the earlier file {n}"))
    log = Path(f"{copy}-wal").read_bytes()
    earlier.close()
    Path(f"{copy}-wal").write_bytes(log)
    opened.write(put("word"))
    opened.backup(copy)
    made = store.open(copy)
    assert made.read(words) == ["word"]
    assert made.check() == []
    made.close()


def test_a_partial_copy_left_by_a_crash_is_replaced(opened: Store, copy: str) -> None:
    Path(f"{copy}.part").write_bytes(b"half of something")
    opened.write(put("word"))
    opened.backup(copy)
    made = store.open(copy)
    assert made.read(words) == ["word"]
    made.close()


def test_a_store_is_not_its_own_backup(tmp_path: Path, path: str, file: Store) -> None:
    file.write(put("word"))
    (tmp_path / "link.db").symlink_to(path)
    for name in (path, str(tmp_path / "." / "rota.db"), str(tmp_path / "link.db")):
        with pytest.raises(InvalidInput, match="its own backup"):
            file.backup(name)
    file.write(put("still here"))
    file.close()
    again = store.open(path)
    assert again.read(words) == ["word", "still here"]
    again.close()


# --- a copy that fails ---------------------------------------------------------------------------


def test_a_copy_that_raises_leaves_the_target_unchanged(opened: Store, copy: str) -> None:
    fill(opened, 2 * BACKUP_PAGES)
    Path(copy).write_bytes(b"what was there")
    before, open_before = contents(Path(copy).parent), descriptors()

    def stop(_done: int, _total: int) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        opened.backup(copy, stop)
    assert contents(Path(copy).parent) == before
    assert descriptors() <= open_before + 3  # a reader connection may have been opened and kept
    assert opened.write(put("word")) > 0


def test_a_copy_to_an_impossible_path_is_refused(opened: Store, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "no such" / "copy.db", tmp_path / "folder"):
        with pytest.raises(StoreError, match="cannot"):
            opened.backup(str(target))
    assert list((tmp_path / "folder").iterdir()) == []
    assert not list(tmp_path.glob("*.part*"))
    assert opened.write(put("word")) == 1


# --- damage --------------------------------------------------------------------------------------


def test_a_sound_file_has_no_problems(opened: Store) -> None:
    fill(opened, 50)
    assert opened.check() == []


def test_check_finds_damage_on_disk_although_the_page_is_cached(path: str, file: Store) -> None:
    fill(file, 200)
    file.close()
    opened = store.open(path)
    assert len(opened.read(lambda tx: tx.run(sql("SELECT * FROM words")))) == 200
    size = Path(path).stat().st_size
    with Path(path).open("r+b") as raw:
        raw.seek(size // 2)
        raw.write(b"\xa5" * 8_192)
    assert opened.check() != []
    opened.close()


def test_check_finds_a_row_that_refers_to_a_missing_row(path: str, file: Store) -> None:
    file.close()
    foreign = apsw.Connection(path)  # with foreign keys off, as another program would
    foreign.execute("INSERT INTO agent_ledgers (pid, dim, granted, hard_limit) VALUES (77, 'tokens', 1, 1)")
    foreign.close()
    opened = store.open(path)
    (problem,) = opened.check()
    assert "agent_ledgers" in problem
    assert "agent_processes" in problem
    opened.close()

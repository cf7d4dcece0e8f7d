"""Several processes on one file: no write is lost, no process starves, every waiter is woken."""

from __future__ import annotations

import itertools
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import SystemClock
from rota.store import Store, Transaction, ipc_notify
from rota.store.socket_paths import socket_path
from rota.store.sqlite import SqliteStore
from tests.store import child_processes
from tests.store.files import CLEAN, children
from tests.store.world import PATIENCE_S, WORDS, Caller, WatchedParking, put, sql, take, words

PROCESSES = 8


@pytest.fixture
def opened(path: str) -> Iterator[Store]:
    made = store.open(path)
    made.write(lambda tx: tx.run(WORDS))
    made.write(lambda tx: tx.run(child_processes.TURNS))
    yield made
    made.close()


# --- concurrent writes ---------------------------------------------------------------------------


def test_eight_processes_write_as_fast_as_they_can_and_nothing_is_lost(path: str, opened: Store) -> None:
    count = 100
    together = CLEAN.Barrier(PROCESSES)
    with children(child_processes.take_turns, [(path, together, process, count) for process in range(PROCESSES)]):
        pass  # an error in a child is its exit code
    rows = opened.read(lambda tx: tx.run(sql("SELECT process, number FROM turns ORDER BY id")))
    assert sorted(rows) == [(process, number) for process in range(PROCESSES) for number in range(count)]
    for process in range(PROCESSES):
        assert [number for each, number in rows if each == process] == list(range(count))
    assert opened.check() == []


def test_no_process_that_waits_to_write_starves(path: str, opened: Store) -> None:
    """The lock goes to the process that waited longest. The last holder may take it again before that process is
    awake: such turns in a row count as one.
    """
    count = 20
    together = CLEAN.Barrier(PROCESSES)
    with children(
        child_processes.take_turns_under_contention, [(path, together, process, count) for process in range(PROCESSES)]
    ):
        pass
    rows = opened.read(lambda tx: tx.run(sql("SELECT process FROM turns WHERE number >= 0 ORDER BY id")))
    assert len(rows) == PROCESSES * count
    turns = [process for process, _ in itertools.groupby(process for (process,) in rows)]
    assert len(turns) > 2 * PROCESSES, "they took turns"
    assert max(gaps(turns)) <= 2 * PROCESSES


def gaps(turns: list[int]) -> list[int]:
    """The number of turns between two turns of the same process."""
    last: dict[int, int] = {}
    found = []
    for turn, process in enumerate(turns):
        found.append(turn - last.get(process, -1))
        last[process] = turn
    return found


def test_foreign_version_changes_with_writes_of_others_only(path: str, opened: Store) -> None:
    def news(tx: Transaction) -> int:
        return tx.foreign_version

    before = opened.write(news)
    opened.write(put("mine"))
    with pytest.raises(ZeroDivisionError):
        opened.write(lambda _tx: 1 / 0)
    assert opened.write(news) == before
    other = store.open(path)
    other.write(put("theirs"))
    assert opened.write(news) > before
    other.close()


def test_foreign_version_changes_with_writes_of_another_program(path: str, opened: Store) -> None:
    before = opened.write(lambda tx: tx.foreign_version)
    # in a process of its own: two SQLite libraries in one process drop each other's locks
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1], isolation_level=None).execute(sys.argv[2])"
    statement = "INSERT INTO kernel_meta (key, value) VALUES ('theirs', '1')"
    subprocess.run([sys.executable, "-c", program, path, statement], check=True)
    assert opened.write(lambda tx: tx.foreign_version) > before


# --- notifications -------------------------------------------------------------------------------


@pytest.fixture
def room(opened: Store) -> WatchedParking:
    """The parked requests of this process."""
    assert isinstance(opened, SqliteStore)
    opened._parked.requests = made = WatchedParking()
    return made


def wait_for_a_word_of_another_process(
    path: str, opened: Store, room: WatchedParking, ready: Any = lambda: None
) -> list[str]:
    """Wait here, and let another process write once this one waits."""
    go = CLEAN.Event()
    with children(child_processes.write_on_event, [(path, go, ["word"])]):
        waiter = Caller(lambda: opened.wait(take(), PATIENCE_S))
        room.until(1)
        ready()
        go.set()
        return waiter.outcome()


def until_listening(path: str) -> None:
    clock = SystemClock()
    give_up_at = clock.monotonic() + PATIENCE_S
    while not list(Path(f"{path}-bells").glob("*.bell")):
        assert clock.monotonic() < give_up_at, "no socket"
        os.sched_yield()


def test_a_waiter_is_woken_by_the_notification_of_another_process(
    path: str, opened: Store, room: WatchedParking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc_notify, "POLL_S", 3_600.0)  # without the poll
    assert wait_for_a_word_of_another_process(path, opened, room, lambda: until_listening(path)) == ["word"]


def test_notifications_work_for_a_path_longer_than_a_socket_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.joinpath(*["a folder with a rather long name"] * 6)
    folder.mkdir(parents=True)
    path = str(folder / "rota.db")
    assert len(path) > 108  # more than a socket address holds
    monkeypatch.setattr(ipc_notify, "POLL_S", 3_600.0)
    deep = SqliteStore(path)
    deep.write(lambda tx: tx.run(WORDS))
    deep._parked.requests = room = WatchedParking()
    assert wait_for_a_word_of_another_process(path, deep, room, lambda: until_listening(path)) == ["word"]
    deep.close()


def test_without_a_socket_the_poll_finds_the_commit(path: str, opened: Store, room: WatchedParking) -> None:
    Path(f"{path}-bells").write_text("not a folder")
    assert wait_for_a_word_of_another_process(path, opened, room) == ["word"]


def test_with_the_sockets_deleted_the_poll_finds_the_commit(path: str, opened: Store, room: WatchedParking) -> None:
    folder = Path(f"{path}-bells")

    def delete_sockets() -> None:
        until_listening(path)
        for own in folder.iterdir():
            own.unlink()
        folder.rmdir()

    assert wait_for_a_word_of_another_process(path, opened, room, delete_sockets) == ["word"]


def test_each_word_reaches_exactly_one_of_many_waiting_processes(path: str, opened: Store) -> None:
    results = CLEAN.Queue()
    with children(child_processes.take_words, [(path, results, "end")] * 3):
        for n in range(40):
            opened.write(put(f"word {n}"))
        got = [results.get(timeout=PATIENCE_S) for _ in range(40)]
        for _ in range(3):
            opened.write(put("end"))
    assert sorted(got) == sorted(f"word {n}" for n in range(40))
    with pytest.raises(queue.Empty):
        results.get(block=False)
    assert opened.read(words) == []
    results.close()
    results.join_thread()


def test_the_socket_of_a_killed_process_is_removed_by_the_next_notification(path: str, opened: Store) -> None:
    opened.on_change(lambda: None)  # creates the folder
    until_listening(path)
    left = Path(f"{path}-bells") / "1-left.bell"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with socket_path(str(left)) as address:
        dead.bind(address)
    dead.close()
    assert left.exists()
    other = store.open(path)
    other.write(put("word"))
    assert not left.exists()
    assert len(list(left.parent.iterdir())) == 1  # and the live socket is still there
    other.close()

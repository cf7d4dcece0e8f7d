"""Several processes on one file: nothing is lost, nobody is left out, everybody is woken."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import SystemClock
from rota.store import Store, Transaction, ipc_notify
from rota.store.sqlite import SqliteStore
from tests.store import deeds
from tests.store.files import CLEAN, children
from tests.store.world import PATIENCE_S, WORDS, Caller, Room, put, sql, take, words

PROCESSES = 8


@pytest.fixture
def opened(path: str) -> Iterator[Store]:
    made = store.open(path)
    made.write(lambda tx: tx.run(WORDS))
    made.write(lambda tx: tx.run(deeds.TURNS))
    yield made
    made.close()


# --- writing together ----------------------------------------------------------------------------


def test_eight_processes_write_as_fast_as_they_can_and_nothing_is_lost(path: str, opened: Store) -> None:
    count = 100
    together = CLEAN.Barrier(PROCESSES)
    with children(deeds.take_turns, [(path, together, who, count) for who in range(PROCESSES)]):
        pass  # an error in any of them would be its exit code
    rows = opened.read(lambda tx: tx.run(sql("SELECT who, number FROM turns ORDER BY id")))
    assert sorted(rows) == [(who, number) for who in range(PROCESSES) for number in range(count)]
    for who in range(PROCESSES):
        assert [number for each, number in rows if each == who] == list(range(count))
    assert opened.check() == []


def test_nobody_who_wants_to_write_is_passed_over(path: str, opened: Store) -> None:
    """The lock goes to whoever waited longest. One who just had it may take it again before those are awake:
    such turns in a row are counted as one, and the processor sees to it that they end.
    """
    count = 20
    together = CLEAN.Barrier(PROCESSES)
    with children(deeds.take_turns_in_a_crowd, [(path, together, who, count) for who in range(PROCESSES)]):
        pass
    rows = opened.read(lambda tx: tx.run(sql("SELECT who FROM turns WHERE number >= 0 ORDER BY id")))
    assert len(rows) == PROCESSES * count
    turns = [who for who, _ in itertools.groupby(who for (who,) in rows)]
    assert len(turns) > 2 * PROCESSES, "they took turns"
    assert max(gaps(turns)) <= 2 * PROCESSES


def gaps(turns: list[int]) -> list[int]:
    """How many turns each had to wait for its next."""
    last: dict[int, int] = {}
    found = []
    for turn, who in enumerate(turns):
        found.append(turn - last.get(who, -1))
        last[who] = turn
    return found


def test_a_store_hears_that_others_have_written_and_not_of_its_own_writes(path: str, opened: Store) -> None:
    def news(tx: Transaction) -> int:
        return tx.news

    before = opened.write(news)
    opened.write(put("mine"))
    with pytest.raises(ZeroDivisionError):
        opened.write(lambda _tx: 1 / 0)
    assert opened.write(news) == before
    other = store.open(path)
    other.write(put("theirs"))
    assert opened.write(news) > before
    other.close()


def test_a_store_hears_that_a_program_which_is_not_ours_has_written(path: str, opened: Store) -> None:
    before = opened.write(lambda tx: tx.news)
    with contextlib.closing(sqlite3.connect(path)) as foreign:
        foreign.execute("INSERT INTO kernel_meta (key, value) VALUES ('theirs', '1')")
        foreign.commit()
    assert opened.write(lambda tx: tx.news) > before


# --- waking each other ---------------------------------------------------------------------------


@pytest.fixture
def room(opened: Store) -> Room:
    """Where those wait who wait for words in this process."""
    assert isinstance(opened, SqliteStore)
    opened._writer._parked = made = Room()
    return made


def wait_for_a_word_of_another_process(path: str, opened: Store, room: Room, ready: Any = lambda: None) -> list[str]:
    """Wait here, and once we do, have another process write."""
    go = CLEAN.Event()
    with children(deeds.write_when_told, [(path, go, ["word"])]):
        waiter = Caller(lambda: opened.wait(take(), PATIENCE_S))
        room.until(1)
        ready()
        go.set()
        return waiter.outcome()


def until_bell_hangs(path: str) -> None:
    clock = SystemClock()
    give_up_at = clock.monotonic() + PATIENCE_S
    while not list(Path(f"{path}-bells").glob("*.bell")):
        assert clock.monotonic() < give_up_at, "no bell"
        os.sched_yield()


def test_a_waiter_is_woken_by_the_bell_of_another_process(
    path: str, opened: Store, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc_notify, "POLL_S", 3_600.0)  # without the net
    assert wait_for_a_word_of_another_process(path, opened, room, lambda: until_bell_hangs(path)) == ["word"]


def test_a_bell_works_however_deep_the_file_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path.joinpath(*["a folder with a rather long name"] * 6)
    folder.mkdir(parents=True)
    path = str(folder / "rota.db")
    assert len(path) > 108  # more than the address of a socket holds
    monkeypatch.setattr(ipc_notify, "POLL_S", 3_600.0)
    deep = SqliteStore(path)
    deep.write(lambda tx: tx.run(WORDS))
    deep._writer._parked = room = Room()
    assert wait_for_a_word_of_another_process(path, deep, room, lambda: until_bell_hangs(path)) == ["word"]
    deep.close()


def test_where_no_bell_can_be_hung_the_poll_is_the_net(path: str, opened: Store, room: Room) -> None:
    Path(f"{path}-bells").write_text("not a folder")
    assert wait_for_a_word_of_another_process(path, opened, room) == ["word"]


def test_where_the_bells_are_thrown_away_the_poll_is_the_net(path: str, opened: Store, room: Room) -> None:
    folder = Path(f"{path}-bells")

    def throw_away() -> None:
        until_bell_hangs(path)
        for bell in folder.iterdir():
            bell.unlink()
        folder.rmdir()

    assert wait_for_a_word_of_another_process(path, opened, room, throw_away) == ["word"]


def test_words_for_many_waiting_processes_reach_each_exactly_one(path: str, opened: Store) -> None:
    answers = CLEAN.Queue()
    with children(deeds.take_words, [(path, answers, "end")] * 3):
        for n in range(40):
            opened.write(put(f"word {n}"))
        got = [answers.get(timeout=PATIENCE_S) for _ in range(40)]
        for _ in range(3):
            opened.write(put("end"))
    assert sorted(got) == sorted(f"word {n}" for n in range(40))
    with pytest.raises(queue.Empty):
        answers.get(block=False)
    assert opened.read(words) == []
    answers.close()
    answers.join_thread()


def test_the_bell_of_one_who_was_killed_is_taken_down_by_the_next_who_rings(path: str, opened: Store) -> None:
    opened.on_change(lambda: None)  # so that there is a folder
    until_bell_hangs(path)
    left = Path(f"{path}-bells") / "1-left.bell"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(left))
    dead.close()
    assert left.exists()
    other = store.open(path)
    other.write(put("word"))
    assert not left.exists()
    assert len(list(left.parent.iterdir())) == 1  # and the one that is listened to hangs where it hung
    other.close()

"""Who has a file to itself takes no turns, and is never mistaken about it.

Whether a store takes turns is seen from outside: while it writes, is the lock of the turns free?
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from rota import store
from rota.store import Store, Transaction
from rota.store.sqlite import SqliteStore
from tests.store.world import PATIENCE_S, WORDS, put, words

DIES_WITH_THE_FILE_OPEN = """
import os, sys
from rota import store
opened = store.open(sys.argv[1])
os.kill(os.getpid(), 9)
"""


def takes_turns(path: str, opened: Store) -> bool:
    lock = os.open(f"{path}-lock", os.O_RDWR)

    def look(_: Transaction) -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False

    try:
        return opened.write(look)
    finally:
        os.close(lock)


def test_the_only_one_takes_no_turns(path: str) -> None:
    opened = store.open(path)
    assert not takes_turns(path, opened)
    opened.close()


def test_from_when_a_second_one_comes_both_take_turns(path: str) -> None:
    first = store.open(path)
    second = store.open(path)
    assert takes_turns(path, first)
    assert takes_turns(path, second)
    second.close()
    assert takes_turns(path, first)  # it does not find out that it is alone again
    first.close()


def test_one_who_comes_when_the_first_has_gone_and_the_second_has_not_is_not_alone(path: str) -> None:
    first, second = store.open(path), store.open(path)
    first.close()
    third = store.open(path)
    assert takes_turns(path, second)
    assert takes_turns(path, third)
    second.close()
    third.close()


def test_one_who_comes_when_all_have_gone_is_alone_however_they_went(path: str) -> None:
    died = subprocess.run([sys.executable, "-c", DIES_WITH_THE_FILE_OPEN, path], check=False, timeout=PATIENCE_S)
    assert died.returncode == -9
    opened = store.open(path)
    assert not takes_turns(path, opened)
    opened.close()


def test_one_who_comes_while_the_only_one_writes_waits_for_it_and_sees_what_it_wrote(path: str) -> None:
    first = store.open(path)
    first.write(lambda tx: tx.run(WORDS))
    seen: list[list[str]] = []
    coming = threading.Event()

    def come() -> None:
        coming.set()
        second = store.open(path)
        second.write(put("second"))
        seen.append(second.read(words))
        second.close()

    newcomer = threading.Thread(target=come)

    def write(tx: Transaction) -> None:
        newcomer.start()
        assert coming.wait(PATIENCE_S)
        put("first")(tx)

    first.write(write)
    newcomer.join(PATIENCE_S)
    assert seen == [["first", "second"]]
    assert takes_turns(path, first)
    first.close()


class Waits:
    """A cursor that lets something happen before a transaction begins, once."""

    def __init__(self, cursor: Any, meanwhile: Callable[[], None]) -> None:
        self._cursor = cursor
        self._meanwhile = [meanwhile]

    def execute(self, statement: str, parameters: Any = ()) -> Any:
        if statement == "BEGIN IMMEDIATE" and self._meanwhile:
            self._meanwhile.pop()()
        return self._cursor.execute(statement, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def test_one_who_comes_just_before_the_only_one_begins_hears_of_what_it_commits(path: str) -> None:
    first = SqliteStore(path)
    first.write(lambda tx: tx.run(WORDS))
    came: list[Store] = []
    before: list[int] = []

    def come() -> None:
        came.append(store.open(path))
        before.append(came[0].write(lambda tx: tx.news))

    first._engine._cursor = Waits(first._engine._cursor, come)  # type: ignore[assignment]
    first.write(put("word"))
    assert came[0].write(lambda tx: tx.news) > before[0]
    came[0].close()
    first.close()


def test_what_was_committed_alone_is_not_missed_by_those_who_come_later(path: str) -> None:
    first = store.open(path)
    first.write(lambda tx: tx.run(WORDS))
    second = store.open(path)
    before = second.write(lambda tx: tx.news)
    first.write(put("word"))
    assert second.write(lambda tx: tx.news) > before
    first.close()
    second.close()

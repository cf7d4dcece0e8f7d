"""The sole user of a file takes no lock between processes, and never believes it is one while it is not.

Whether a store takes the lock is seen from outside: while it writes, can the lock be taken?
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


def takes_lock(path: str, opened: Store) -> bool:
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


def test_a_sole_user_takes_no_lock(path: str) -> None:
    opened = store.open(path)
    assert not takes_lock(path, opened)
    opened.close()


def test_after_a_second_store_opens_both_take_the_lock(path: str) -> None:
    first = store.open(path)
    second = store.open(path)
    assert takes_lock(path, first)
    assert takes_lock(path, second)
    second.close()
    assert takes_lock(path, first)  # it never becomes the sole user again
    first.close()


def test_a_third_store_is_not_sole_user_while_the_second_is_open(path: str) -> None:
    first, second = store.open(path), store.open(path)
    first.close()
    third = store.open(path)
    assert takes_lock(path, second)
    assert takes_lock(path, third)
    second.close()
    third.close()


def test_a_store_is_sole_user_after_all_others_ended_in_any_way(path: str) -> None:
    died = subprocess.run([sys.executable, "-c", DIES_WITH_THE_FILE_OPEN, path], check=False, timeout=PATIENCE_S)
    assert died.returncode == -9
    opened = store.open(path)
    assert not takes_lock(path, opened)
    opened.close()


def test_a_store_opened_during_a_write_waits_and_sees_the_write(path: str) -> None:
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
    assert takes_lock(path, first)
    first.close()


class Waits:
    """A cursor that runs a call once before a transaction begins."""

    def __init__(self, cursor: Any, meanwhile: Callable[[], None]) -> None:
        self._cursor = cursor
        self._meanwhile = [meanwhile]

    def execute(self, statement: str, parameters: Any = ()) -> Any:
        if statement == "BEGIN IMMEDIATE" and self._meanwhile:
            self._meanwhile.pop()()
        return self._cursor.execute(statement, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def test_a_store_opened_just_before_begin_is_notified_of_the_commit(path: str) -> None:
    first = SqliteStore(path)
    first.write(lambda tx: tx.run(WORDS))
    came: list[Store] = []
    before: list[int] = []

    def come() -> None:
        came.append(store.open(path))
        before.append(came[0].write(lambda tx: tx.foreign_version))

    first._engine._cursor = Waits(first._engine._cursor, come)  # type: ignore[assignment]
    first.write(put("word"))
    assert came[0].write(lambda tx: tx.foreign_version) > before[0]
    came[0].close()
    first.close()


def test_a_commit_of_a_former_sole_user_is_seen_by_later_stores(path: str) -> None:
    first = store.open(path)
    first.write(lambda tx: tx.run(WORDS))
    second = store.open(path)
    before = second.write(lambda tx: tx.foreign_version)
    first.write(put("word"))
    assert second.write(lambda tx: tx.foreign_version) > before
    first.close()
    second.close()

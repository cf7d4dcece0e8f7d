"""Functions that child processes run in the store tests. It imports little, so that they start quickly."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota import store
from rota.clock import SystemClock
from rota.store import Transaction, sqlite_engine
from tests.store.world import PATIENCE_S, put, sql, take

TURNS = sql("CREATE TABLE turns (id INTEGER PRIMARY KEY, process INTEGER NOT NULL, number INTEGER NOT NULL)")
TURN = sql("INSERT INTO turns (process, number) VALUES (?, ?)")
STILL = sql(
    "SELECT count(*) FROM (SELECT process FROM turns WHERE process != ? GROUP BY process HAVING max(number) < ?)"
)
PAIR = sql("CREATE TABLE firsts (word TEXT PRIMARY KEY); CREATE TABLE seconds (word TEXT PRIMARY KEY)")
FIRST = sql("INSERT INTO firsts (word) VALUES (?)")
SECOND = sql("INSERT INTO seconds (word) VALUES (?)")


def take_turns(path: str, together: Any, process: int, count: int) -> None:
    """Write rows one after another, without a pause."""
    opened = store.open(path)
    together.wait(PATIENCE_S)
    for number in range(count):
        opened.write(lambda tx, number=number: tx.run(TURN, (process, number)))  # type: ignore[misc]
    opened.close()


def take_turns_under_contention(path: str, together: Any, process: int, count: int) -> None:
    """The same, but end a write only after all other processes with writes left wait for the lock."""
    opened = store.open(path, durability="normal")
    lock = Path(f"{path}-lock").stat().st_ino

    def work(tx: Transaction, number: int) -> None:
        tx.run(TURN, (process, number))
        until_waiting(lock, tx.run(STILL, (process, count - 1))[0][0])

    opened.write(lambda tx: tx.run(TURN, (process, -1)))
    together.wait(PATIENCE_S)
    for number in range(count):
        opened.write(lambda tx, number=number: work(tx, number))  # type: ignore[misc]
    opened.close()


def until_waiting(inode: int, count: int) -> None:
    """Return once this many processes wait for the lock on this file, as listed in /proc/locks."""
    clock = SystemClock()
    give_up_at = clock.monotonic() + PATIENCE_S
    while sum(f":{inode} " in line and "->" in line for line in Path("/proc/locks").read_text().splitlines()) < count:
        assert clock.monotonic() < give_up_at, "the other processes do not come"
        os.sched_yield()


def write_on_event(path: str, go: Any, words: list[str]) -> None:
    """Write words when the event is set, one commit each."""
    opened = store.open(path)
    assert go.wait(PATIENCE_S)
    for word in words:
        opened.write(put(word))
    opened.close()


def take_words(path: str, results: Any, last: str) -> None:
    """Wait for words and forward them, until the last one comes."""
    opened = store.open(path)
    while last not in (got := opened.wait(take(), PATIENCE_S, "words")):
        assert got, "nothing came"
        results.put(got[0])
    opened.close()


def write_pair(word: str) -> Callable[[Transaction], None]:
    """Work that writes one word to two tables."""

    def work(tx: Transaction) -> None:
        tx.run(FIRST, (word,))
        tx.run(SECOND, (word,))

    return work


def write_until_killed(path: str, acknowledged: Any, name: str) -> None:
    """Write pairs from several threads, and send each word after its write returned."""
    opened = store.open(path)
    guard = threading.Lock()

    def write(thread: int) -> None:
        number = 0
        while True:
            word = f"{name}.{thread}.{number}"
            opened.write(write_pair(word))
            with guard:
                acknowledged.send_bytes(word.encode())
            number += 1

    for thread in range(2):
        threading.Thread(target=write, args=(thread,), daemon=True).start()
    write(2)


def migrate_until_killed(path: str, statements: int) -> None:
    """Open a file that has to be migrated, and be killed before a statement of the migration, if it has as many."""
    run, count = sqlite_engine.SqliteTransaction.run, itertools.count()

    def counted(self: Any, statement: Any, parameters: Any = ()) -> Any:
        if next(count) == statements:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(self, statement, parameters)

    sqlite_engine.SqliteTransaction.run = counted  # type: ignore[method-assign]
    store.open(path).close()

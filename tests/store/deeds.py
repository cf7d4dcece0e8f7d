"""What other processes do in the store's tests. It imports little, so that they start quickly."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota import store
from rota.clock import SystemClock
from rota.store import Transaction
from tests.store.world import PATIENCE_S, put, sql, take

TURNS = sql("CREATE TABLE turns (id INTEGER PRIMARY KEY, who INTEGER NOT NULL, number INTEGER NOT NULL)")
TURN = sql("INSERT INTO turns (who, number) VALUES (?, ?)")
STILL = sql("SELECT count(*) FROM (SELECT who FROM turns WHERE who != ? GROUP BY who HAVING max(number) < ?)")
PAIR = sql("CREATE TABLE firsts (word TEXT PRIMARY KEY); CREATE TABLE seconds (word TEXT PRIMARY KEY)")
FIRST = sql("INSERT INTO firsts (word) VALUES (?)")
SECOND = sql("INSERT INTO seconds (word) VALUES (?)")


def take_turns(path: str, together: Any, who: int, count: int) -> None:
    """Write one row after another, as fast as it goes."""
    opened = store.open(path)
    together.wait(PATIENCE_S)
    for number in range(count):
        opened.write(lambda tx, number=number: tx.run(TURN, (who, number)))  # type: ignore[misc]
    opened.close()


def take_turns_in_a_crowd(path: str, together: Any, who: int, count: int) -> None:
    """The same, but end no turn before all others who still want one are seen to wait for it."""
    opened = store.open(path, durability="normal")
    lock = Path(f"{path}-lock").stat().st_ino

    def work(tx: Transaction, number: int) -> None:
        tx.run(TURN, (who, number))
        until_waiting(lock, tx.run(STILL, (who, count - 1))[0][0])

    opened.write(lambda tx: tx.run(TURN, (who, -1)))
    together.wait(PATIENCE_S)
    for number in range(count):
        opened.write(lambda tx, number=number: work(tx, number))  # type: ignore[misc]
    opened.close()


def until_waiting(inode: int, count: int) -> None:
    """Go on once this many processes wait for the lock on this file; the system lists them."""
    clock = SystemClock()
    give_up_at = clock.monotonic() + PATIENCE_S
    while sum(f":{inode} " in line and "->" in line for line in Path("/proc/locks").read_text().splitlines()) < count:
        assert clock.monotonic() < give_up_at, "the others do not come"
        os.sched_yield()


def write_when_told(path: str, go: Any, words: list[str]) -> None:
    """Write words when the event says so, one commit each."""
    opened = store.open(path)
    assert go.wait(PATIENCE_S)
    for word in words:
        opened.write(put(word))
    opened.close()


def take_words(path: str, answers: Any, last: str) -> None:
    """Wait for words and pass them on, until the last one comes."""
    opened = store.open(path)
    while last not in (got := opened.wait(take(), PATIENCE_S, "words")):
        assert got, "nothing came"
        answers.put(got[0])
    opened.close()


def write_pair(word: str) -> Callable[[Transaction], None]:
    """Work that writes one word in two places."""

    def work(tx: Transaction) -> None:
        tx.run(FIRST, (word,))
        tx.run(SECOND, (word,))

    return work


def write_until_killed(path: str, acknowledged: Any, name: str) -> None:
    """Write pairs from several threads, and say of each when the store has said so."""
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

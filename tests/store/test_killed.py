"""Writers are killed while they write: everything acknowledged is in the file, and no write is there in part.

A test runs twenty seeded rounds, a soak `ROTA_SOAK_ROUNDS` of them.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from functools import partial
from pathlib import Path

import pytest

from rota import store
from rota.store import Store, Transaction
from tests.store import child_processes
from tests.store.files import CLEAN
from tests.store.world import PATIENCE_S, Caller, sql

ROUNDS = int(os.environ.get("ROTA_SOAK_ROUNDS", "20"))


def acknowledged_until_killed(path: str, name: str, count: int) -> list[str]:
    """Start a process that writes, kill it after `count` words, and return every word it acknowledged."""
    pipe, end = CLEAN.Pipe(duplex=False)
    process = CLEAN.Process(target=child_processes.write_until_killed, args=(path, end, name), daemon=True)
    process.start()
    end.close()
    words = []
    try:
        while True:
            assert pipe.poll(PATIENCE_S), "the process sent nothing"
            words.append(pipe.recv_bytes().decode())
            if len(words) == count:
                process.kill()
    except (EOFError, OSError):  # the last word may be incomplete
        pass
    process.join(PATIENCE_S)
    assert process.exitcode == -9
    process.close()
    pipe.close()
    return words


def write_until(opened: Store, stop: threading.Event) -> list[str]:
    """Write until stopped, as a process that is not killed, and return the words."""
    words = []
    for number in itertools.count():
        if stop.is_set():
            break
        opened.write(child_processes.write_pair(f"ours.{number}"))
        words.append(f"ours.{number}")
    return words


def pairs(tx: Transaction) -> tuple[set[str], set[str]]:
    return (
        {str(row[0]) for row in tx.run(sql("SELECT word FROM firsts"))},
        {str(row[0]) for row in tx.run(sql("SELECT word FROM seconds"))},
    )


@pytest.mark.timeout(60 + 5 * ROUNDS)
def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    opened = store.open(path)
    opened.write(lambda tx: tx.run(child_processes.PAIR))
    expected: set[str] = set()
    for seed in range(ROUNDS):
        stop = threading.Event()
        bystander = Caller(partial(write_until, opened, stop))
        expected.update(acknowledged_until_killed(path, str(seed), random.Random(seed).randrange(1, 60)))
        stop.set()
        expected.update(bystander.outcome())  # the kill did not affect it
        firsts, seconds = opened.read(pairs)
        assert firsts == seconds, f"half written, seed {seed}"
        assert expected <= firsts, f"acknowledged and lost, seed {seed}"
        assert opened.check() == [], f"damaged, seed {seed}"
        opened.write(lambda tx: tx.run(sql("DELETE FROM firsts; DELETE FROM seconds")))
        expected.clear()
    opened.close()

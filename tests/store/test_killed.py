"""Writers are killed in the midst of it, round after round: what was acknowledged is there, and nothing by halves.

Twenty seeded rounds in a test, `ROTA_SOAK_ROUNDS` of them in a soak.
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
from tests.store import deeds
from tests.store.files import CLEAN
from tests.store.world import PATIENCE_S, Caller, sql

ROUNDS = int(os.environ.get("ROTA_SOAK_ROUNDS", "20"))


def acknowledged_until_killed(path: str, name: str, count: int) -> list[str]:
    """Have a process write, kill it after so many words, and return every word it was told is written."""
    pipe, end = CLEAN.Pipe(duplex=False)
    process = CLEAN.Process(target=deeds.write_until_killed, args=(path, end, name), daemon=True)
    process.start()
    end.close()
    said = []
    try:
        while True:
            assert pipe.poll(PATIENCE_S), "it says nothing"
            said.append(pipe.recv_bytes().decode())
            if len(said) == count:
                process.kill()
    except (EOFError, OSError):  # the last word may be cut short
        pass
    process.join(PATIENCE_S)
    assert process.exitcode == -9
    process.close()
    pipe.close()
    return said


def write_until(opened: Store, stop: threading.Event) -> list[str]:
    """Write all the while, as a process that is not killed, and say what was written."""
    said = []
    for number in itertools.count():
        if stop.is_set():
            break
        opened.write(deeds.write_pair(f"ours.{number}"))
        said.append(f"ours.{number}")
    return said


def pairs(tx: Transaction) -> tuple[set[str], set[str]]:
    return (
        {str(row[0]) for row in tx.run(sql("SELECT word FROM firsts"))},
        {str(row[0]) for row in tx.run(sql("SELECT word FROM seconds"))},
    )


@pytest.mark.timeout(60 + 5 * ROUNDS)
def test_whoever_is_killed_while_writing_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    opened = store.open(path)
    opened.write(lambda tx: tx.run(deeds.PAIR))
    expected: set[str] = set()
    for seed in range(ROUNDS):
        stop = threading.Event()
        bystander = Caller(partial(write_until, opened, stop))
        expected.update(acknowledged_until_killed(path, str(seed), random.Random(seed).randrange(1, 60)))
        stop.set()
        expected.update(bystander.outcome())  # nothing reached it of the other's end
        firsts, seconds = opened.read(pairs)
        assert firsts == seconds, f"half written, seed {seed}"
        assert expected <= firsts, f"acknowledged and lost, seed {seed}"
        assert opened.check() == [], f"damaged, seed {seed}"
        opened.write(lambda tx: tx.run(sql("DELETE FROM firsts; DELETE FROM seconds")))
        expected.clear()
    opened.close()

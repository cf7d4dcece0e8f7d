"""`kill -9` of a process that runs a graph with a queue lane, again and again.

The first life is killed in the middle of an epoch, after its entry was enqueued and before the epoch was over; others
at moments that a seed chooses, counted in what they told. At the end:

- what was committed is what an undisturbed run commits
- every invocation has one entry, however often its epoch was repeated
- none of them ran twice, but after a claim had expired
- the run's budget has counted every charge once

`ROTA_SOAK_ROUNDS` sets how many lives there are (4; under `./dev soak` 60).
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from rota import store
from rota.kernel import Kernel
from rota.kernel.replay import KernelState
from rota.model.events import EntriesReturned, LedgerCharged
from tests.graph.killed_runs import RUN_ID, TOKENS, VALUES, live

LIVES = int(os.environ.get("ROTA_SOAK_ROUNDS", "60" if "ROTA_SOAK" in os.environ else "4"))
TEST_TIMEOUT_S = 60.0  # real time; it only ends a test that hangs
BLOCKS_AT = 3

Word = tuple[str, Any]


class Place:
    """A file with a run in it, and the lives of processes that ran it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "rota.db")
        self.runs = folder / "runs"
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.graph.killed_runs"])

    def life(self, *, blocks_at: int | None = None, until: Word | None = None, words_max: int = 10**6) -> list[Word]:
        """Let a process run the graph until it has told this, or so much, or the result; then kill it."""
        listen, there = self.context.Pipe(duplex=False)
        arguments = {"path": self.path, "runs_path": str(self.runs), "blocks_at": blocks_at}
        process = self.context.Process(target=live, args=(there,), kwargs=arguments, daemon=True)
        process.start()
        there.close()
        told = _listen(listen, until, words_max)
        process.kill()
        process.join(TEST_TIMEOUT_S)
        listen.close()
        return told

    def check_ledger(self, kernel: Kernel) -> None:
        """What the run's budget says was used is the sum of all charges, and what was done was charged."""
        events = kernel.journal.follow(0, wait_s=0)
        charged = sum(event.payload["amounts"]["tokens"] for event in events if event.kind == LedgerCharged.kind)
        (line,) = kernel.ledger.graph_budgets(RUN_ID)
        assert line.used == charged
        assert line.used >= TOKENS * len(self.runs.read_text().splitlines())
        tables, journal = kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
        assert tables.graph_budgets == journal.graph_budgets

    def story(self) -> tuple[dict[int, int], Counter[int]]:
        """By value, how many entries it has; and how often a claim of them expired."""
        kernel = Kernel(store.open(self.path))
        value_of = {entry.sched_id: int(entry.payload["inputs"][0]["payload"]) for entry in kernel.queue.list()[0]}
        expired: Counter[int] = Counter()
        for event in kernel.journal.follow(0, wait_s=0):
            if event.kind == EntriesReturned.kind and event.payload["verb"] == "reclaim":
                expired.update(value_of[sched_id] for sched_id in event.payload["sched_ids"])
        assert kernel.store.check() == []
        self.check_ledger(kernel)
        kernel.store.close()
        return Counter(value_of.values()), expired


def _listen(pipe: Connection, until: Word | None, words_max: int) -> list[Word]:
    told: list[Word] = []
    while len(told) < words_max and not (told and (told[-1] == until or told[-1][0] == "result")):
        assert pipe.poll(TEST_TIMEOUT_S), f"nothing was told for too long, after {told}"
        told.append(pipe.recv())
    return told


def test_a_run_whose_process_is_killed_commits_the_same_values(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    errors, expected = Place(tmp_path / "calm").life()[-1][1]
    assert (errors, len(expected)) == ((), VALUES)

    place, chance = Place(tmp_path), random.Random(5)
    in_flight = ("source", BLOCKS_AT)
    assert in_flight in place.life(blocks_at=BLOCKS_AT, until=("blocked", BLOCKS_AT))
    assert in_flight in place.life(until=in_flight)  # the epoch is repeated
    for _ in range(LIVES - 2):
        place.life(words_max=chance.randrange(1, 8))
    word, (errors, values) = place.life()[-1]

    assert (word, errors, sorted(values)) == ("result", (), sorted(expected))
    entries, expired = place.story()
    assert entries == dict.fromkeys(range(1, VALUES + 1), 1)
    runs = Counter(int(line) for line in place.runs.read_text().splitlines())
    assert set(runs) == set(entries)
    assert all(runs[value] <= 1 + expired[value] for value in runs), (runs, expired)

"""S4: a graph of agents. A plan, three researchers, a critic loop and a writer, each an agent with a budget, beside
other work; the supervisor and the daemon are killed with `kill -9` at random moments, and the run is cancelled.

The result is that of an undisturbed run; the ledgers equal what was charged; no entry is left; nothing runs twice
within a live claim; nothing keeps spending after a cancellation.
"""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.kernel import Kernel
from rota.kernel.replay import KernelState
from rota.model.events import EntriesCancelled, EntriesCompleted, EntriesReturned, GraphRunEnded, LedgerCharged
from rota.model.graph_runs import ENDED, GraphRunInfo
from rota.model.lifecycle import ENTRY
from rota.model.work import ScheduleSpec
from rota.service.dispatcher import Dispatcher
from tests.adversity.conftest import Rounds
from tests.daemon.harness import Process
from tests.stories.report_agents import COSTS, ITEMS, MAPPED_RESULT, RESULT, document, mapped_document, supervise

PATIENCE_S = 60.0  # real time; it only ends a test that hangs
PARTS = 3  # tests that share the seeds, so that they run side by side
OTHERS = 6  # entries of another project
BUDGET = 1_000  # tokens of each agent
ENDS = (EntriesCompleted.kind, EntriesCancelled.kind, GraphRunEnded.kind)  # events after which all may have ended
_context: ForkServerContext = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.stories.report_agents"])


class Desk:
    """A store with the agents of a report and a run of it, as this process sees it, and its supervisors."""

    def __init__(self, folder: Path, graph: Mapping[str, Any] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.path, self.notes = str(folder / "rota.db"), folder / "notes"
        self.notes.touch()
        self.kernel = Kernel(store.open(self.path, durability="normal"))
        self.api = Dispatcher(self.kernel)
        for project in ("desk", "elsewhere"):
            self.api.projects.create(project)
        self.pids = {name: self._agent(name) for name in COSTS}
        self.api.queue.enqueue_many([ScheduleSpec(self.pids["other"], retry_on=("crashed",))] * OTHERS)
        self.run_id = self.api.graphs.start(graph or document(), {"topic": "topic"}, project="desk").run_id

    def _agent(self, name: str) -> int:
        backoff = {"base_s": 0.01, "factor": 1.0, "cap_s": 0.01}
        settings = {
            "function": f"tests.stories.report_agents:{name}",
            "max_attempts": 50,
            "restart": {"when": "on_crash", "backoff": backoff, "quarantine_after": 0},
        }
        project = "elsewhere" if name == "other" else "desk"
        pid = self.api.agents.create(name, metadata={"run": settings}, project_id=project)
        self.api.ledger.create(pid, {"tokens": BUDGET})
        return pid

    @contextmanager
    def supervisor(self, address: str | None = None, slots: int = 2) -> Iterator[BaseProcess]:
        """A supervisor in a process of its own, which is killed at the end."""
        arguments = (address or self.path, str(self.notes))
        process = _context.Process(target=supervise, args=arguments, kwargs={"slots": slots}, daemon=True)
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join(PATIENCE_S)

    def run(self) -> GraphRunInfo:
        """How the run is."""
        return self.kernel.graphs.get(self.run_id)

    def watch(self, since: int, events_max: int | None = None) -> int:
        """Follow the journal for so many events, or until everything has ended; return the last one."""
        last, count = since, 0
        for event in self.kernel.journal.follow(since, wait_s=PATIENCE_S):
            last, count = event.event_id, count + 1
            if count == events_max or (event.kind in ENDS and self.is_over()):
                break
        return last

    def is_over(self) -> bool:
        """Whether every entry has ended, and the run."""
        counts = self.api.queue.counts(by="state")
        return set(counts) <= set(ENTRY.final) and self.run().status in ENDED

    def live(self, seed: int, kills: int, *, address: str | None = None) -> None:
        """Kill supervisors at random moments, then let one finish."""
        rng, last = random.Random(seed), 0
        for _ in range(kills):
            with self.supervisor(address, slots=rng.choice((1, 2, 3))):
                last = self.watch(last, rng.randint(3, 40))
        if not self.is_over():
            with self.supervisor(address):
                self.watch(last)

    def check(self) -> None:
        """Check all that the story promises about a run that has ended."""
        events = list(self.kernel.journal.follow(0, wait_s=0))
        charged: Counter[int] = Counter()
        reclaimed: Counter[int] = Counter()
        for event in events:
            if event.kind == LedgerCharged.kind and event.pid is not None:
                charged[event.pid] += event.payload["amounts"].get("tokens", 0)
            if event.kind == EntriesReturned.kind and event.payload["verb"] == "reclaim":
                reclaimed.update(event.payload["sched_ids"])
        for name, pid in self.pids.items():
            (line,) = self.api.ledger.get(pid)
            assert line.used == charged[pid], f"the ledger of {name} differs from its charges"
        ran = [tuple(line.split()) for line in self.notes.read_text().splitlines()]
        assert len(ran) == len(set(ran)), "an attempt of an entry ran twice"
        times = Counter(sched_id for _, sched_id, _ in ran)
        assert all(count <= 1 + reclaimed[int(sched_id)] for sched_id, count in times.items())
        assert set(self.api.queue.counts(by="state")) <= set(ENTRY.final)
        tables, journal = self.kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
        now = self.kernel.store.clock.now()
        assert tables.at(now) == journal.at(now)
        assert self.kernel.store.check() == []

    def close(self) -> None:
        self.kernel.store.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path / "desk")
    yield found
    found.close()


def nodes(desk: Desk) -> Counter[str]:
    """How many entries each node of the run has."""
    return Counter(str(entry.key).split("/")[3] for entry in desk.api.queue.list(limit=1_000)[0] if entry.key)


ENTRIES = {"plan": 1, "r0": 1, "r1": 1, "r2": 1, "merge": 1, "critic": 3, "revise": 3, "write": 1}


def test_an_undisturbed_run_with_one_slot(desk: Desk) -> None:
    with desk.supervisor(slots=1):
        desk.watch(0)
    run = desk.run()
    assert (run.status, run.result) == ("succeeded", RESULT)
    assert nodes(desk) == ENTRIES
    desk.check()


@pytest.mark.parametrize("part", range(PARTS))
def test_supervisors_that_are_killed_change_nothing(tmp_path: Path, rounds: Rounds, part: int) -> None:
    for seed in (PARTS * number + part for number in rounds(2)):
        desk = Desk(tmp_path / str(seed))
        desk.live(seed, kills=2)
        run = desk.run()
        assert (run.status, run.result) == ("succeeded", RESULT), f"seed {seed}: {run.error}"
        assert nodes(desk) == ENTRIES, f"seed {seed}"
        desk.check()
        desk.close()


def test_supervisors_that_are_killed_during_a_map_change_nothing(tmp_path: Path, rounds: Rounds) -> None:
    """Each item has one entry (one of them a second, because its first fails), and the results keep their order."""
    for seed in rounds(2):
        desk = Desk(tmp_path / str(seed), mapped_document())
        rng, last = random.Random(seed), 0
        while not nodes(desk)["search"]:
            with desk.supervisor():
                last = desk.watch(last, rng.randint(3, 20))
        for _ in range(2):  # in the middle of the map
            with desk.supervisor(slots=rng.choice((1, 2, 3))):
                last = desk.watch(last, rng.randint(2, 12))
        if not desk.is_over():
            with desk.supervisor():
                desk.watch(last)
        run = desk.run()
        assert (run.status, run.result) == ("succeeded", MAPPED_RESULT), f"seed {seed}: {run.error}"
        assert nodes(desk) == {"list": 1, "search": ITEMS + 1, "join": 1}, f"seed {seed}"
        desk.check()
        desk.close()


def test_daemons_that_are_killed_change_nothing(tmp_path: Path, rounds: Rounds) -> None:
    for seed in rounds(3):
        desk = Desk(tmp_path / str(seed))
        rng, last = random.Random(seed), 0
        for _ in range(2):
            daemon = Process(desk.path)
            with desk.supervisor(daemon.addresses[0]):
                last = desk.watch(last, rng.randint(10, 40))
                daemon.kill()
        if not desk.is_over():
            with desk.supervisor():
                desk.watch(last)
        run = desk.run()
        assert (run.status, run.result) == ("succeeded", RESULT), f"seed {seed}: {run.error}"
        desk.check()
        desk.close()


def test_nothing_keeps_spending_after_a_cancellation(desk: Desk) -> None:
    with desk.supervisor():
        last = 0
        while not nodes(desk)["r0"]:
            last = desk.watch(last, 1)
        desk.api.graphs.cancel(desk.run_id)
        if not desk.is_over():
            desk.watch(last)
        spent: Any = {name: desk.api.ledger.get(pid)[0].used for name, pid in desk.pids.items()}
    assert desk.run().status == "cancelled"
    assert spent["writer"] == 0
    desk.check()

"""Emptying a queue: rota's workers beside Huey's, and policies that share beside strict order.

A worker claims up to a hundred entries in one commit, runs them (they do nothing) and completes them in another;
while it finds none it waits to be woken. A round begins with a copy of a file that was filled once, so both sides
and all rounds begin alike, and it ends with the last completion. It counts only if every entry ran exactly once
and the file agrees.

`fair-drain` and `eevdf-drain` have what makes a claim expensive: ten thousand agents in a hundred projects, every
agent with a ledger and one run at a time, every project with a cap and a token budget. All of that is looked at
before an entry is handed out, and counted while it runs. The other side drains the same file in strict order, with
the same caps and budgets on.

`isolated-drain` drains that file by a policy as another package would write it, in a process of its own. The other side
runs the same policy on a thread.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from bench.harness import Arena, Case, Measured
from bench.queue_baselines import HueyQueue
from bench.queue_files import PRIORITIES, Folder, draw, enqueue_all, new_file, open_kernel
from rota.kernel import Completion, Kernel, ReadyEntry, ScheduleSpec
from rota.model.reasons import PickReason
from rota.model.snapshot import Decisions, Snapshot
from rota.policy.contract import Policy, PolicyIsolation, assign_slots
from rota.service.dispatcher import Dispatcher

__all__ = ["cases"]

SEED = 20_260_508
ENTRIES = 20_000
BATCH = 100
WAIT_S = 0.05  # how long an idle worker is parked before it asks whether all is done
ROUNDS = 3  # a drain is long, and so its own average
PROJECTS = 100
AGENTS = 10_000
PROJECT_CAP = 16
TOKENS = 1_000_000  # enough for everybody: what is measured is looking, not refusing


def cases() -> Iterator[Case]:
    for workers in (1, 4):
        arena = partial(_huey_arena, workers)
        baseline = f"SqliteHuey, fsync, {workers} consumer worker{'s' if workers > 1 else ''}"
        yield Case(f"drain-{workers}w", ENTRIES, "ops/s", baseline, arena, goal=3.0, rounds=ROUNDS)
    baseline = "rota, one worker"
    yield Case("drain-4w-to-1w", ENTRIES, "ops/s", baseline, _workers_arena, goal=0.8, rounds=ROUNDS)
    for name, policy in (("fair", "fair_share"), ("eevdf", "eevdf")):
        arena = partial(_policy_arena, policy, 4)
        baseline = "strict drain of the same file"
        yield Case(f"{name}-drain-4w", ENTRIES, "ops/s", baseline, arena, goal=0.65, rounds=ROUNDS)
    baseline = "the same policy on a thread"
    yield Case("isolated-drain", ENTRIES, "ops/s", baseline, _isolated_arena, goal=0.3, rounds=ROUNDS)


# --- a drain -------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a drain came to."""

    ran: int  # different entries
    runs: int
    left: int  # entries that are not completed


Claim = Callable[[str], list[ReadyEntry]]


class Drain:
    """Workers that empty a kernel's queue."""

    def __init__(self, kernel: Kernel, claim: Claim) -> None:
        self._kernel = kernel
        self._claim = claim
        self._guard = threading.Lock()
        self._ids: list[int] = []  # of all that ran
        self._ended_at = 0.0
        self._failed = threading.Event()

    def run(self, workers: int) -> Measured:
        """Empty it."""
        started = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(self._work, range(workers)))
        states = self._kernel.queue.counts()
        outcome = Outcome(len(set(self._ids)), len(self._ids), ENTRIES - states.get("completed", 0))
        return Measured(ENTRIES / (self._ended_at - started), outcome)

    def _work(self, number: int) -> None:
        try:
            while len(self._ids) < ENTRIES and not self._failed.is_set():
                entries = self._claim(f"worker {number}")
                for entry in entries:
                    _run(entry)
                if entries:
                    self._complete(entries)
        except BaseException:
            self._failed.set()  # what it held stays held, and the others would wait for it
            raise

    def _complete(self, entries: list[ReadyEntry]) -> None:
        self._kernel.queue.complete_many([Completion(entry.sched_id, token=entry.token) for entry in entries])
        with self._guard:
            self._ids += [entry.sched_id for entry in entries]
            self._ended_at = time.perf_counter()


def _run(_entry: ReadyEntry) -> None:
    """Nothing, as on the other side."""


def _all_ran_once(*outcomes: Outcome) -> bool:
    return all(outcome == Outcome(ENTRIES, ENTRIES, 0) for outcome in outcomes)


# --- beside Huey ---------------------------------------------------------------------------------


def _huey_arena(workers: int) -> Arena:
    folder = Folder()
    entries = draw(random.Random(SEED), ENTRIES)
    ours = new_file(folder.file("rota-full.db"), [entry.spec for entry in entries])
    theirs = folder.file("huey-full.db")
    _fill_huey(theirs)

    def rota() -> Measured:
        return _drain_rota(folder.copy(ours, "rota.db"), None, workers)

    def huey() -> Measured:
        queue = HueyQueue(folder.copy(theirs, "huey.db"))
        seconds, ran = queue.drain(ENTRIES, workers)
        left = queue.left()
        queue.close()
        return Measured(ENTRIES / seconds, Outcome(ENTRIES - left, ran, left))

    return Arena(rota=rota, base=huey, verify=_all_ran_once, close=folder.close)


def _workers_arena() -> Arena:
    """Four workers beside one: threads must not be in each other's way."""
    folder = Folder()
    full = new_file(folder.file("full.db"), [entry.spec for entry in draw(random.Random(SEED), ENTRIES)])

    def drain(workers: int) -> Measured:
        return _drain_rota(folder.copy(full, f"{workers}.db"), None, workers)

    return Arena(rota=lambda: drain(4), base=lambda: drain(1), verify=_all_ran_once, close=folder.close)


def _fill_huey(path: str) -> None:
    queue = HueyQueue(path, fsync=False)
    queue.fill(ENTRIES)
    queue.close()


def _drain_rota(
    path: str, policy: Policy | str | None, workers: int, isolation: PolicyIsolation = "thread"
) -> Measured:
    """Drain a file by a policy, or by the queue's own strict order."""
    kernel = open_kernel(path)
    api = None if policy is None else Dispatcher(kernel, policy, policy_isolation=isolation)

    def claim(worker_id: str) -> list[ReadyEntry]:
        if api is not None:
            return api.claim(worker_id, BATCH, wait_s=WAIT_S)
        return kernel.queue.claim(worker_id=worker_id, max_n=BATCH, wait_s=WAIT_S)

    try:
        return Drain(kernel, claim).run(workers)
    finally:
        if api is not None:
            api.close_policies()
        kernel.store.close()


# --- in a process of its own ---------------------------------------------------------------------


def least_recent_first(snapshot: Snapshot) -> Decisions:
    """A policy of another package: the agent that ran least recently, then the higher priority."""
    owners = snapshot.owners
    order = sorted(
        snapshot.candidates, key=lambda each: (owners[each.owner].last_run_at, -each.priority, each.ready_at, each.id)
    )
    reason = PickReason("least_recent_first", "ran least recently")
    return assign_slots(((candidate, reason) for candidate in order), snapshot.slots)


def _isolated_arena() -> Arena:
    folder = Folder()
    full = folder.file("full.db")
    _fill_fleet(full)
    policy = Policy(name="least_recent_first", rank=least_recent_first, sentence="The agent that ran least recently.")

    def drain(isolation: PolicyIsolation) -> Measured:
        return _drain_rota(folder.copy(full, f"{isolation}.db"), policy, 4, isolation)

    return Arena(rota=lambda: drain("process"), base=lambda: drain("thread"), verify=_all_ran_once, close=folder.close)


# --- beside strict order -------------------------------------------------------------------------


def _policy_arena(policy: str, workers: int) -> Arena:
    folder = Folder()
    full = folder.file("full.db")
    _fill_fleet(full)

    def drain(by: str) -> Measured:
        return _drain_rota(folder.copy(full, f"{by}.db"), by, workers)

    return Arena(rota=lambda: drain(policy), base=lambda: drain("strict"), verify=_all_ran_once, close=folder.close)


def _fill_fleet(path: str) -> None:
    """Projects, their agents, and two entries for each agent, in no order."""
    chance = random.Random(SEED)
    kernel = open_kernel(path, durability="normal")
    for number in range(PROJECTS):
        project_id = f"project {number}"
        kernel.projects.create(project_id, weight=1_000 * chance.randint(1, 10), max_concurrent=PROJECT_CAP)
        kernel.ledger.set_budget("project", project_id, "tokens", TOKENS)
    pids = [_make_agent(kernel, f"project {number % PROJECTS}") for number in range(AGENTS)]
    owners = pids * (ENTRIES // AGENTS)
    chance.shuffle(owners)
    enqueue_all(kernel, [ScheduleSpec(pid, chance.randrange(PRIORITIES)) for pid in owners])
    kernel.store.close()


def _make_agent(kernel: Kernel, project_id: str) -> int:
    pid = kernel.agents.create("agent", project_id=project_id, max_concurrent=1)
    kernel.ledger.create(pid, {"tokens": TOKENS})
    return pid

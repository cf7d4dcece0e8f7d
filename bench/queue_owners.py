"""Claims among many owners: ten thousand projects, a hundred thousand agents and a million entries.

Both sides use the same policy; the other side has a hundred projects, a thousand agents and ten thousand entries. If a
claim costs the same however many owners there are, both have the same rate. Only claims are timed. After each claim its
entries are completed and as many are enqueued for the same agents, so that the queue keeps its size. The first claim of
each side loads the owners and creates the index that the policy needs: it is printed, and not part of the rate.

Every policy has something to decide: projects and agents differ in weight, entries in priority and deadline, and each
project has used something. A round counts only if every claim was full, no entry came twice, and the journal says that
the policy itself made each claim: a policy that fails is replaced by strict order, whose rate is not the question.
"""

from __future__ import annotations

import atexit
import random
import sys
import time
from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

from bench.harness import Arena, Case, Measured
from bench.queue_files import PRIORITIES, Folder, enqueue_all, open_kernel
from rota.kernel import Completion, Kernel, ReadyEntry, ScheduleSpec
from rota.service import Dispatcher

__all__ = ["cases"]

SEED = 20_260_508
POLICIES = ("eevdf", "edf", "round_robin", "weighted_priority", "fair_share")
PROJECTS = 10_000
FEW_PROJECTS = 100
AGENTS_EACH = 10  # of a project
ENTRIES_EACH = 10  # of an agent
WEIGHTS = 10
PAST_RUNS_MAX = 3  # of a project
BATCH = 4  # entries in one claim
CLAIMS_MAX = 50  # in one round of one side
ROUND_S = 1.0  # a slow policy makes as many claims as it can in this time
DAY_S = 86_400.0
PROGRESS = 100_000  # entries after which a line says how far the file is


def cases() -> Iterator[Case]:
    entries = PROJECTS * AGENTS_EACH * ENTRIES_EACH
    baseline = f"the same policy with {FEW_PROJECTS:,} projects and {FEW_PROJECTS * AGENTS_EACH:,} agents"
    for policy in POLICIES:
        name = f"owners-10k-{policy}"
        yield Case(name, entries, "ops/s", baseline, partial(_arena, name, policy), goal=0.5)


def _arena(name: str, policy: str) -> Arena:
    folder = Folder()
    many = Owners(folder.copy(_filled(PROJECTS), "many.db"), policy)
    few = Owners(folder.copy(_filled(FEW_PROJECTS), "few.db"), policy)
    first_ms = [side.claim_and_replace().seconds * 1e3 for side in (many, few)]
    _progress(f"{name}: the first claim took {first_ms[0]:,.0f} ms, {first_ms[1]:,.0f} ms with {FEW_PROJECTS} projects")

    def close() -> None:
        many.close()
        few.close()
        folder.close()

    return Arena(rota=many.run_round, base=few.run_round, verify=_is_valid, close=close)


# --- claims --------------------------------------------------------------------------------------


class TimedClaim(NamedTuple):
    """One claim and how long it took."""

    seconds: float
    ids: list[int]


class Outcome(NamedTuple):
    """What one side claimed in a round."""

    ids: list[int]
    claims: int
    by_policy: int  # claims that the policy made itself


class Owners:
    """A store with many owners, and a worker that claims from it by one policy."""

    def __init__(self, path: str, policy: str) -> None:
        self._api = Dispatcher(open_kernel(path), policy)
        self._chance = random.Random(SEED)

    def run_round(self) -> Measured:
        """Claim up to `CLAIMS_MAX` times, for about `ROUND_S`."""
        since = self._api.journal.cursor()
        until = time.perf_counter() + ROUND_S
        claims = [self.claim_and_replace()]
        while len(claims) < CLAIMS_MAX and time.perf_counter() < until:
            claims.append(self.claim_and_replace())
        rate = len(claims) / sum(claim.seconds for claim in claims)
        return Measured(
            rate, Outcome([each for claim in claims for each in claim.ids], len(claims), self._by_policy(since))
        )

    def claim_and_replace(self) -> TimedClaim:
        """Claim entries, complete them, and enqueue as many for the same agents."""
        started = time.perf_counter()
        entries = self._api.claim("worker", BATCH)
        seconds = time.perf_counter() - started
        self._api.queue.complete_many([Completion(entry.sched_id, token=entry.token) for entry in entries])
        self._api.queue.enqueue_many([self._successor(entry) for entry in entries])
        return TimedClaim(seconds, [entry.sched_id for entry in entries])

    def _successor(self, entry: ReadyEntry) -> ScheduleSpec:
        return ScheduleSpec(entry.pid, entry.priority, deadline=_deadline(self._chance))

    def _by_policy(self, since: int) -> int:
        events = self._api.journal.tail(since, kinds=("kernel.sched.claimed",))
        return sum(event.payload["policy"] == self._api.policy.name for event in events)

    def close(self) -> None:
        """Close the store."""
        self._api.close()


def _is_valid(*outcomes: Outcome) -> bool:
    return all(
        len(outcome.ids) == len(set(outcome.ids)) == BATCH * outcome.claims and outcome.by_policy == outcome.claims
        for outcome in outcomes
    )


def _deadline(chance: random.Random) -> float:
    """A deadline that no benchmark lives to see."""
    return time.time() + (1 + chance.random()) * DAY_S


# --- the file ------------------------------------------------------------------------------------


@cache
def _filled(projects: int) -> str:
    """A file with so many projects, their agents and entries, which stays until this process ends."""
    folder = Folder()
    atexit.register(folder.close)
    path = folder.file("filled.db")
    chance = random.Random(SEED)
    kernel = open_kernel(path, durability="normal")  # filling is not what is measured
    pids = _make_agents(kernel, projects, chance)
    _run_some(kernel, pids[:projects], chance)
    for done in range(0, ENTRIES_EACH * len(pids), len(pids)):
        if done % PROGRESS == 0:
            _progress(f"{projects:,} projects: {done:,} of {ENTRIES_EACH * len(pids):,} entries")
        chance.shuffle(pids)
        enqueue_all(
            kernel, [ScheduleSpec(pid, chance.randrange(PRIORITIES), deadline=_deadline(chance)) for pid in pids]
        )
    kernel.store.close()
    return path


def _make_agents(kernel: Kernel, projects: int, chance: random.Random) -> list[int]:
    """Create projects and their agents; the first agents are one of each project."""
    names = [f"project {number}" for number in range(projects)]
    for name in names:
        kernel.projects.create(name, weight=1_000 * chance.randint(1, WEIGHTS))
    _progress(f"{projects:,} projects: creating {projects * AGENTS_EACH:,} agents")
    return [
        kernel.agents.create("agent", project_id=name, weight=1_000 * chance.randint(1, WEIGHTS))
        for _ in range(AGENTS_EACH)
        for name in names
    ]


def _run_some(kernel: Kernel, pids: list[int], chance: random.Random) -> None:
    """Run a few entries of each agent, so that every project has used something."""
    runs = [ScheduleSpec(pid) for pid in pids for _ in range(chance.randint(1, PAST_RUNS_MAX))]
    enqueue_all(kernel, runs)
    while entries := kernel.queue.claim(worker_id="past", max_n=1_000):
        kernel.queue.complete_many([Completion(entry.sched_id, token=entry.token) for entry in entries])


def _progress(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)

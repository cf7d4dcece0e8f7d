"""The queue beside a bare loop over SQLite: one by one, from sixteen threads, and a hundred at a time.

Both sides have the same entries in the same order, commit to the same disk with `synchronous=FULL`, and are in
lockstep: a round counts only if both handed out the same ids and their files have the same entries in each state.
What rota does and the bare loop does not: it checks the entry and its owner, keeps the claim with its token and
its expiry, appends every fact to the journal, and looks at whatever else could be due.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.harness import Arena, Case
from bench.queue_baselines import BareQueue
from bench.queue_files import Entry, Folder, draw, new_file, open_kernel
from rota.kernel import Completion

__all__ = ["cases"]

SEED = 20_260_508
STANDING = 10_000  # entries that wait throughout, so that a claim has something to choose from
THREADS = 16
PROJECTS = 10  # of the agents, where they have projects
BATCH = 100
BARE_LOOP = "bare apsw loop, one table, no journal"
BARE_THREADS = f"{THREADS} bare threads, own connections, busy timeout"
BARE_BATCHES = f"bare apsw loop, {BATCH} in a commit"

Make = Callable[["Sides"], Arena]


def cases() -> Iterator[Case]:
    yield _case("enqueue-1t", 1_000, BARE_LOOP, _enqueue, goal=0.65)
    yield _case("claim-complete-1t", 500, BARE_LOOP, _claim_complete, goal=0.5)
    yield _case("claim-complete-1t-projects", 500, BARE_LOOP, _claim_complete, goal=0.35, projects=PROJECTS)
    yield _case("enqueue-16t", 1_600, BARE_THREADS, _enqueue_threads, goal=2.0)
    yield _case("claim-complete-16t", 800, BARE_THREADS, _claim_complete_threads, goal=2.0)
    yield _case("enqueue-many-100", 5_000, BARE_BATCHES, _enqueue_many, goal=0.5)
    yield _case("batch-100", 5_000, BARE_BATCHES, _batches, goal=0.5)


def _case(name: str, count: int, baseline: str, make: Make, *, goal: float, projects: int = 0) -> Case:
    return Case(name, count, "ops/s", baseline, partial(_arena, count, make, projects), ops=count, goal=goal)


def _arena(count: int, make: Make, projects: int) -> Arena:
    return make(Sides(count, projects))


class Sides:
    """The same entries in a kernel and in a bare table."""

    def __init__(self, count: int, projects: int = 0) -> None:
        self.count = count  # in one round
        self.entries: list[Entry] = []
        self._chance = random.Random(SEED)
        self._folder = Folder()
        self.kernel = open_kernel(new_file(self._folder.file("rota.db"), projects=projects))
        self.bare = BareQueue(self._folder.file("bare.db"), THREADS)

    def stand(self) -> None:
        """Put in what waits throughout."""
        self._add(draw(self._chance, STANDING))

    def draw(self, _round: int) -> None:
        """The entries that a round enqueues."""
        self.entries = draw(self._chance, self.count)

    def top_up(self, _round: int) -> None:
        """Put in as many as a round takes out."""
        self._add(draw(self._chance, self.count))

    def _add(self, entries: list[Entry]) -> None:
        self.kernel.queue.enqueue_many([entry.spec for entry in entries])
        self.bare.enqueue_many(entries, len(entries))

    def same(self, ours: list[int], theirs: list[int]) -> bool:
        """Whether both handed out the same ids, and as many entries are in each state."""
        return sorted(ours) == sorted(theirs) and self.kernel.queue.counts() == self.bare.counts()

    def shares(self) -> list[list[Entry]]:
        """The round's entries, dealt to the threads."""
        return [self.entries[thread::THREADS] for thread in range(THREADS)]

    def close(self) -> None:
        """Remove the files."""
        self.kernel.store.close()
        self.bare.close()
        self._folder.close()

    # --- what rota does --------------------------------------------------------------------------

    def enqueue(self, entries: list[Entry]) -> list[int]:
        """Put entries in one by one."""
        enqueue = self.kernel.queue.enqueue
        return [enqueue(entry.spec) for entry in entries]

    def enqueue_many(self) -> list[int]:
        """Put entries in, a batch in each call."""
        batches = (self.entries[at : at + BATCH] for at in range(0, self.count, BATCH))
        return [sched_id for batch in batches for sched_id in self.kernel.queue.enqueue_many([e.spec for e in batch])]

    def claim_complete(self, count: int, worker_id: str = "worker") -> list[int]:
        """Claim and complete one by one."""
        queue, ids = self.kernel.queue, []
        for _ in range(count):
            (entry,) = queue.claim(worker_id=worker_id)
            queue.complete(entry.sched_id, "completed", token=entry.token)
            ids.append(entry.sched_id)
        return ids

    def batches(self) -> list[int]:
        """Claim a batch, then complete it."""
        queue, ids = self.kernel.queue, []
        for _ in range(0, self.count, BATCH):
            entries = queue.claim(worker_id="worker", max_n=BATCH)
            queue.complete_many([Completion(entry.sched_id, token=entry.token) for entry in entries])
            ids += [entry.sched_id for entry in entries]
        return ids


def _enqueue(sides: Sides) -> Arena:
    return _between(sides, lambda: sides.enqueue(sides.entries), lambda: sides.bare.enqueue(sides.entries), sides.draw)


def _claim_complete(sides: Sides) -> Arena:
    sides.stand()
    count = sides.count
    return _between(sides, lambda: sides.claim_complete(count), lambda: sides.bare.claim_complete(count), sides.top_up)


def _enqueue_threads(sides: Sides) -> Arena:
    def ours() -> list[int]:
        return _in_threads(lambda thread: sides.enqueue(sides.shares()[thread]))

    def theirs() -> list[int]:
        return _in_threads(lambda thread: sides.bare.enqueue(sides.shares()[thread], thread))

    return _between(sides, ours, theirs, sides.draw)


def _claim_complete_threads(sides: Sides) -> Arena:
    sides.stand()
    each = sides.count // THREADS

    def ours() -> list[int]:
        return _in_threads(lambda thread: sides.claim_complete(each, f"worker {thread}"))

    def theirs() -> list[int]:
        return _in_threads(lambda thread: sides.bare.claim_complete(each, thread))

    return _between(sides, ours, theirs, sides.top_up)


def _enqueue_many(sides: Sides) -> Arena:
    return _between(sides, sides.enqueue_many, lambda: sides.bare.enqueue_many(sides.entries, BATCH), sides.draw)


def _batches(sides: Sides) -> Arena:
    sides.stand()
    return _between(sides, sides.batches, lambda: sides.bare.batches(sides.count, BATCH), sides.top_up)


def _between(sides: Sides, ours: Callable[[], Any], theirs: Callable[[], Any], before: Callable[[int], None]) -> Arena:
    return Arena(rota=ours, base=theirs, before=before, verify=sides.same, close=sides.close)


def _in_threads(work: Callable[[int], list[int]]) -> list[int]:
    """Run the same work in all threads at once; what they answered together."""
    with ThreadPoolExecutor(THREADS) as pool:
        return [each for answer in pool.map(work, range(THREADS)) for each in answer]

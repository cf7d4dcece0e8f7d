"""The queue when it is large: a million waiting, a million finished, a hundred thousand asleep. And what it remembers.

Both sides are rota and do the same, claim and complete one by one; the other side has ten thousand waiting entries
and nothing else. What is there before a case begins is written by `write_rows`. A round counts only if the entries
came in strict order, none twice, and each was completed.

Memory is that of a process of its own at its peak: it opens the file, claims and completes for a while, in strict
order and by eevdf, and looks at a page of the list. How many agents have entries is the same on both sides.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from bench.harness import Arena, Case, Measured
from bench.queue_files import Folder, Rows, draw, new_file, open_kernel, write_rows
from bench.queue_processes import Child
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ReadyEntry
from rota.service.dispatcher import Dispatcher

__all__ = ["cases"]

SEED = 20_260_508
SMALL = 10_000
LARGE = 1_000_000
SLEEPERS = 100_000
TURNS = 500  # claims and completions in one round
BATCH = 100
NEVER_AT = 4e9  # far beyond any round
AT_SMALL = "rota with 10,000 waiting"
NOW = 1_000.0
NIGHT_S = 100.0


def cases() -> Iterator[Case]:
    waiting = Rows(SMALL)
    yield _size_case("depth-1m", LARGE, Rows(LARGE))
    yield _size_case("finished-1m", LARGE, Rows(LARGE, state="completed"), waiting)
    yield _size_case("sleepers-100k", SLEEPERS, Rows(SLEEPERS, due_at=NEVER_AT, priority=100), waiting)
    yield Case("sleepers-due", SLEEPERS, "ops/s", "", lambda: _due_arena(SLEEPERS, _rate), rounds=1)
    yield Case("sleepers-due-worst-claim", SLEEPERS, "ms", "", lambda: _due_arena(SLEEPERS // 10, _worst_ms), rounds=3)
    yield Case("memory-1m", LARGE, "MiB", AT_SMALL, _memory_arena, goal=0.75, rounds=1)


def _size_case(name: str, size: int, *rows: Rows) -> Case:
    return Case(name, size, "ops/s", AT_SMALL, partial(_size_arena, rows), ops=TURNS, goal=0.75)


def _file(folder: Folder, name: str, rows: tuple[Rows, ...]) -> str:
    """A file with agents and these rows."""
    path = new_file(folder.file(name))
    write_rows(path, *rows)
    return path


# --- size ----------------------------------------------------------------------------------------


def _size_arena(rows: tuple[Rows, ...]) -> Arena:
    folder = Folder()
    large = open_kernel(_file(folder, "large.db", rows))
    small = open_kernel(_file(folder, "small.db", (Rows(SMALL),)))
    chance = random.Random(SEED)

    def top_up(_round: int) -> None:
        specs = [entry.spec for entry in draw(chance, TURNS)]
        for kernel in (large, small):
            kernel.queue.enqueue_many(specs)

    def close() -> None:
        large.store.close()
        small.store.close()
        folder.close()

    return Arena(
        rota=lambda: _claim_complete(large),
        base=lambda: _claim_complete(small),
        before=top_up,
        verify=lambda ours, theirs: _in_order(ours) and _in_order(theirs),
        close=close,
    )


def _claim_complete(kernel: Kernel) -> list[ReadyEntry]:
    queue, done = kernel.queue, []
    for _ in range(TURNS):
        (entry,) = queue.claim(worker_id="worker")
        queue.complete(entry.sched_id, "completed", token=entry.token)
        done.append(entry)
    return done


def _in_order(done: list[ReadyEntry]) -> bool:
    keys = [(-entry.priority, entry.runnable_at, entry.sched_id) for entry in done]
    return len(done) == TURNS and all(one < other for one, other in pairwise(keys))


# --- sleepers that wake together -----------------------------------------------------------------


class Morning(NamedTuple):
    """How it went when everybody woke at once."""

    ran: int
    seconds: float
    worst_claim_s: float


def _rate(morning: Morning) -> float:
    return morning.ran / morning.seconds


def _worst_ms(morning: Morning) -> float:
    return morning.worst_claim_s * 1e3


def _due_arena(most: int, figure: Callable[[Morning], float]) -> Arena:
    """Run so many of those who woke at once."""
    folder = Folder()
    asleep = _file(folder, "asleep.db", (Rows(SLEEPERS, due_at=NOW + NIGHT_S),))

    def rota() -> Measured:
        clock = ManualClock(NOW)
        kernel = open_kernel(folder.copy(asleep, "due.db"), clock=clock)
        clock.advance(NIGHT_S)
        morning = _run(kernel, most)
        kernel.store.close()
        return Measured(figure(morning), morning)

    return Arena(rota=rota, verify=lambda ours, _theirs: ours.ran == most, close=folder.close)


def _run(kernel: Kernel, most: int) -> Morning:
    ids: set[int] = set()
    worst_s = 0.0
    started = time.perf_counter()
    for _ in range(0, most, BATCH):
        asked = time.perf_counter()
        entries = kernel.queue.claim(worker_id="worker", max_n=BATCH)
        worst_s = max(worst_s, time.perf_counter() - asked)
        kernel.queue.complete_many([Completion(entry.sched_id, token=entry.token) for entry in entries])
        ids.update(entry.sched_id for entry in entries)
    return Morning(len(ids), time.perf_counter() - started, worst_s)


# --- memory --------------------------------------------------------------------------------------


def _memory_arena() -> Arena:
    folder = Folder()
    large, small = _file(folder, "large.db", (Rows(LARGE),)), _file(folder, "small.db", (Rows(SMALL),))
    return Arena(
        rota=lambda: _peak_of(large),
        base=lambda: _peak_of(small),
        verify=lambda ours, theirs: ours == theirs,
        close=folder.close,
    )


def _peak_of(path: str) -> Measured:
    """The most memory that a process working on a file has had, and how many entries it ran."""
    worker = Child(_work_and_tell, path)
    try:
        peak_mib, ran = worker.hear()
        return Measured(peak_mib, ran)
    finally:
        worker.end()


def _work_and_tell(pipe: Connection, path: str) -> None:
    kernel = open_kernel(path)
    ran = len(_claim_complete(kernel))
    api = Dispatcher(kernel, "eevdf")
    for _ in range(TURNS // BATCH):
        entries = api.claim("worker", BATCH)
        api.queue.complete_many([Completion(entry.sched_id, token=entry.token) for entry in entries])
        ran += len(entries)
    kernel.queue.list(state="queued", limit=BATCH)
    kernel.store.close()
    pipe.send((_peak_mib(), ran))


def _peak_mib() -> float:
    """As the system counts it for this program; getrusage would count its parent's too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:", 1)[1].split(maxsplit=1)[0]) / 1024

"""A fleet of functions: how many runs a second, how soon one begins, and what waiting costs.

`callable-4slots` goes from the first enqueue to the last durable completion; on both sides the workers run already
when the work comes, rota's in batches of a thousand, Huey's one by one, which is all it offers. `start` is the time
from the call that enqueues to the first line of the function, on an idle slot; Huey looks every 10 ms, rota is woken.
`idle-cpu` is the processor time of a supervisor with a thousand agents that all have nothing to do.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench.harness import Arena, Case, Measured
from bench.queue_baselines import PATIENCE_S, POLL_S, HueyQueue
from bench.queue_files import Folder
from rota import Rota
from rota.fleet.supervisor import Supervisor

__all__ = ["cases"]

RUNS = 10_000
BATCH = 1_000
SLOTS = 4
STARTS = 200
AGENTS = 1_000
IDLE_S = 5.0
ROUNDS = 3  # each is long, and so its own average


def cases() -> Iterator[Case]:
    yield Case("callable-4slots", RUNS, "ops/s", "SqliteHuey, fsync, 4 workers", _runs_arena, goal=2.5, rounds=ROUNDS)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        arena = partial(_start_arena, share)
        yield Case(f"start-{name}", STARTS, "ms", "SqliteHuey looking every 10 ms", arena, goal=3.0, rounds=ROUNDS)
    yield Case("idle-cpu", AGENTS, "%", "", _idle_arena, rounds=1)


# --- many small runs -----------------------------------------------------------------------------


def _runs_arena() -> Arena:
    folder = Folder()
    numbers = iter(range(1_000_000))

    def ours() -> Measured:
        return _run_rota(folder.file(f"rota-{next(numbers)}.db"))

    def theirs() -> Measured:
        queue = HueyQueue(folder.file(f"huey-{next(numbers)}.db"))
        with queue.consuming(RUNS, SLOTS) as ended_at:
            started = time.perf_counter()
            queue.fill(RUNS)
            seconds = ended_at() - started
        queue.close()
        return Measured(RUNS / seconds, RUNS)

    return Arena(rota=ours, base=theirs, close=folder.close)


def _run_rota(path: str) -> Measured:
    with Rota(path) as rota:
        agent = rota.agent()(_nothing)
        with _running(rota) as supervisor:
            started = time.perf_counter()
            for _ in range(RUNS // BATCH):
                agent.enqueue_many([{}] * BATCH)
            while supervisor.ended_runs < RUNS:  # it counts a run when its end is durable
                time.sleep(0.001)
            seconds = time.perf_counter() - started
        completed = rota.api.queue.counts()["completed"]
    return Measured(RUNS / seconds, completed)


@contextlib.contextmanager
def _running(rota: Rota, slots: int = SLOTS) -> Iterator[Supervisor]:
    supervisor = rota.supervisor(slots)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.drain()
        thread.join()


# --- how soon one begins -------------------------------------------------------------------------


def _start_arena(share: float) -> Arena:
    folder = Folder()
    chance = random.Random(1)
    stack = contextlib.ExitStack()
    rota = stack.enter_context(Rota(folder.file("rota.db")))
    began: list[float] = []
    there = threading.Event()

    def first_line() -> None:
        began.append(time.perf_counter())
        there.set()

    agent = rota.agent()(first_line)
    stack.enter_context(_running(rota, 1))
    queue = HueyQueue(folder.file("huey.db"))
    task = stack.enter_context(queue.serving(first_line))

    def starts(enqueue: Callable[[], Any]) -> Measured:
        waits = []
        for _ in range(STARTS):
            time.sleep(chance.uniform(0.0, 2 * POLL_S))  # so that polling is met at any moment
            there.clear()
            asked = time.perf_counter()
            enqueue()
            if not there.wait(PATIENCE_S):
                return Measured(float("inf"), False)
            waits.append(began[-1] - asked)
        return Measured(1e3 * statistics.quantiles(waits, n=100)[round(100 * share) - 1], True)

    def close() -> None:
        stack.close()
        queue.close()
        folder.close()

    return Arena(rota=lambda: starts(agent.enqueue), base=lambda: starts(task), close=close)


# --- what waiting costs --------------------------------------------------------------------------


def _idle_arena() -> Arena:
    folder = Folder()

    def ours() -> Measured:
        with Rota(folder.file("idle.db")) as rota:
            for number in range(AGENTS):
                rota.agent(f"agent {number}")(_nothing)
            with _running(rota):
                time.sleep(0.5)  # it has begun
                cpu, wall = time.process_time(), time.perf_counter()
                time.sleep(IDLE_S)
                used = (time.process_time() - cpu) / (time.perf_counter() - wall)
        return Measured(100 * used, True)

    return Arena(rota=ours, verify=lambda ours, _theirs: bool(ours), close=folder.close)


def _nothing() -> None:
    """As on the other side."""

"""Several processes on one file, as figures: how long the unluckiest of eight writers waits, how fast a waiter wakes.

There is nothing to compare with in the same run: what others do is poll. Each process is a new interpreter that
opens the file by itself, as a program of a user's would.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from bench.harness import Arena, Case, Measured
from bench.queue_files import Folder, draw, new_file, open_kernel
from rota.kernel import ScheduleSpec

__all__ = ["Child", "cases"]

SEED = 20_260_508
WRITERS = 8
WRITES = 200  # by each of them
WAKES = 200
PAUSE_S = (0.005, 0.02)  # between two wake-ups, long enough for the waiter to be parked again
PATIENCE_S = 120.0  # ends a hang, measures nothing


def cases() -> Iterator[Case]:
    yield Case("writers-8p-worst-wait", WRITERS * WRITES, "ms", "", _writers_arena, rounds=3)
    yield Case("wake-up-p50", WAKES, "ms", "", lambda: _wake_arena(statistics.median), rounds=2)
    yield Case("wake-up-p99", WAKES, "ms", "", lambda: _wake_arena(_p99), rounds=2)


def _p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


class Child:
    """A process of ours and the pipe to it."""

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, there = spawn.Pipe()
        self._process = spawn.Process(target=work, args=(there, *args), daemon=True)
        self._process.start()
        there.close()

    def hear(self) -> Any:
        """What it says next."""
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError(f"no answer within {PATIENCE_S} s")
        return self._pipe.recv()

    def tell(self, word: str) -> None:
        """Say something to it."""
        self._pipe.send(word)

    def end(self) -> None:
        """Wait for its end, and do not wait for ever."""
        self._pipe.close()
        self._process.join(PATIENCE_S)
        self._process.kill()


# --- writers -------------------------------------------------------------------------------------


def _writers_arena() -> Arena:
    folder = Folder()
    path = new_file(folder.file("rota.db"))
    written = 0

    def rota() -> Measured:
        nonlocal written
        writers = [Child(_write, path, SEED + number, WRITES) for number in range(WRITERS)]
        try:
            for writer in writers:
                writer.hear()  # it is ready
            for writer in writers:
                writer.tell("go")
            worst_s = max(writer.hear() for writer in writers)
        finally:
            for writer in writers:
                writer.end()
        written += WRITERS * WRITES
        return Measured(worst_s * 1e3, _count(path))

    return Arena(rota=rota, verify=lambda count, _theirs: count == written, close=folder.close)


def _count(path: str) -> int:
    kernel = open_kernel(path)
    try:
        return kernel.queue.counts()["queued"]
    finally:
        kernel.store.close()


def _write(pipe: Connection, path: str, seed: int, writes: int) -> None:
    """Enqueue one by one, as soon as all are ready; tell how long the longest took."""
    kernel = open_kernel(path)
    entries = draw(random.Random(seed), writes)
    pipe.send("ready")
    pipe.recv()
    worst_s = 0.0
    for entry in entries:
        asked = time.perf_counter()
        kernel.queue.enqueue(entry.spec)
        worst_s = max(worst_s, time.perf_counter() - asked)
    pipe.send(worst_s)
    kernel.store.close()


# --- waking up -----------------------------------------------------------------------------------


def _wake_arena(figure: Callable[[list[float]], float]) -> Arena:
    folder = Folder()
    path = new_file(folder.file("rota.db"))

    def rota() -> Measured:
        latencies_s, ids = _wake(path)
        return Measured(figure(latencies_s) * 1e3, ids)

    return Arena(rota=rota, verify=lambda ids, _theirs: all(sent == got for sent, got in ids), close=folder.close)


def _wake(path: str) -> tuple[list[float], list[tuple[int, int]]]:
    """Enqueue while another process waits; from before the call until the other has its entry, and both ids."""
    chance = random.Random(SEED)
    kernel = open_kernel(path)
    waiter = Child(_wait, path, WAKES)
    latencies_s, ids = [], []
    try:
        for _ in range(WAKES):
            waiter.hear()  # it is about to wait
            time.sleep(chance.uniform(*PAUSE_S))
            asked = time.perf_counter()  # one clock for all processes of a Linux machine
            sent = kernel.queue.enqueue(ScheduleSpec(1))
            got, woken = waiter.hear()
            latencies_s.append(woken - asked)
            ids.append((sent, got))
    finally:
        waiter.end()
        kernel.store.close()
    return latencies_s, ids


def _wait(pipe: Connection, path: str, wakes: int) -> None:
    """Wait for entries one after the other; tell when each came."""
    kernel = open_kernel(path)
    for _ in range(wakes):
        pipe.send("ready")
        (entry,) = kernel.queue.claim(worker_id="waiter", wait_s=PATIENCE_S)
        pipe.send((entry.sched_id, time.perf_counter()))
        kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    kernel.store.close()

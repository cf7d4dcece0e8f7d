"""Processes: the reaper beside bare spawns, and warm workers beside the standard library's pool.

These are figures, without goals: what a start costs beside what the system itself takes for it. On every side the
program is the same, and all of rota's limits are on.
"""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from bench.harness import Arena, Case, Measured
from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
from rota.host.worker_pool import WorkerPool
from rota.model.work import Limits

SPAWNS = 200  # in one round
CALLS = 2_000
STARTS = 5
WIDTH = 8  # threads that start or call at once

ENV = {"PATH": os.environ["PATH"]}
TRUE = "/bin/true"
LIMITED = Command(
    argv=(TRUE,),
    env=ENV,
    cwd="/tmp",
    limits=Limits(cpu_s=60, memory_bytes=1024**3, open_files=256, processes=10_000),
    cores=frozenset(os.sched_getaffinity(0)),
)


def cases() -> Iterator[Case]:
    yield Case("reaper-start", STARTS, "ms", "python -I -S -c pass", _start_arena, ops=STARTS)
    bare = "os.posix_spawn + waitpid"
    yield Case("spawn", SPAWNS, "ops/s", bare, lambda: _spawn_arena(_one_by_one, _bare), ops=SPAWNS)
    yield Case("spawn-8", SPAWNS, "ops/s", f"{bare}, 8 threads", lambda: _spawn_arena(_in_threads, _bare), ops=SPAWNS)
    yield Case("spawn-run", SPAWNS, "ops/s", "subprocess.run", lambda: _spawn_arena(_one_by_one, _run), ops=SPAWNS)
    pool = "ProcessPoolExecutor({}).submit().result()"
    yield Case("warm-call", CALLS, "ops/s", pool.format(1), lambda: _call_arena(_one_by_one, 1), ops=CALLS)
    yield Case("warm-call-8", CALLS, "ops/s", pool.format(8), lambda: _call_arena(_in_threads, WIDTH), ops=CALLS)


Doing = Callable[[Callable[[int], int], int], list[int]]


def _one_by_one(act: Callable[[int], int], count: int) -> list[int]:
    return [act(number) for number in range(count)]


def _in_threads(act: Callable[[int], int], count: int) -> list[int]:
    with ThreadPoolExecutor(WIDTH) as threads:
        return list(threads.map(act, range(count)))


# --- starting the reaper -------------------------------------------------------------------------


def _start_arena() -> Arena:
    def ours() -> Measured:
        started = time.perf_counter()
        reapers = [ReaperClient() for _ in range(STARTS)]
        codes = [reaper.spawn(LIMITED).wait() for reaper in reapers]
        seconds = time.perf_counter() - started
        for reaper in reapers:
            reaper.close()
        return Measured(seconds * 1e3 / STARTS, [code.code for code in codes if code is not None])

    def theirs() -> list[int]:
        bare = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "pass"]) for _ in range(STARTS)]
        return [process.wait() for process in bare]

    return Arena(rota=ours, base=theirs)


# --- starting commands ---------------------------------------------------------------------------


def _bare(_number: int) -> int:
    _pid, status = os.waitpid(os.posix_spawn(TRUE, [TRUE], ENV), 0)
    return os.waitstatus_to_exitcode(status)


def _run(_number: int) -> int:
    return subprocess.run([TRUE], env=ENV, cwd="/tmp", check=False).returncode


def _spawn_arena(doing: Doing, theirs: Callable[[int], int]) -> Arena:
    reaper = ReaperClient()

    def ours(_number: int) -> int:
        ended = reaper.start(LIMITED).wait()
        return -1 if ended is None or ended.code is None else ended.code

    return Arena(rota=lambda: doing(ours, SPAWNS), base=lambda: doing(theirs, SPAWNS), close=reaper.close)


# --- calling warm workers ------------------------------------------------------------------------


def _call_arena(doing: Doing, processes: int) -> Arena:
    reaper = ReaperClient()
    workers = WorkerPool(reaper, processes)
    executor = ProcessPoolExecutor(processes)

    def close() -> None:
        workers.close()
        reaper.close()
        executor.shutdown()

    def ours(number: int) -> int:
        value: int = workers.call(operator.neg, (number,)).value
        return value

    return Arena(
        rota=lambda: doing(ours, CALLS),
        base=lambda: doing(lambda number: executor.submit(operator.neg, number).result(), CALLS),
        close=close,
    )

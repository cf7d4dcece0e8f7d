"""Runs on Ray beside bare Ray, on one cluster of this machine, in a network namespace of its own (as root).

`in-flight-64` is a function that does nothing: rota from the first claim to the last durable completion, bare Ray with
64 tasks submitted at any time and the next one submitted when one has ended. Both sides have 64 warm worker processes
that stay: Ray ends idle ones after a second, and starting others would be most of what is measured. `start` is the time
from the call that enqueues, or submits, to the first line of the function. `memory-1000` is what 1,000 runs in flight
add to the memory of the supervisor's process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from bench.harness import Arena, Case, Measured
from bench.queue_files import Folder
from rota import Rota
from rota.fleet.supervisor import Supervisor
from rota.model.ray import RayCluster

__all__ = ["cases"]

RUNS = 2_000
IN_FLIGHT = 64
MANY = 1_000
STARTS = 50
CPUS = 2
NEEDS = {"CPU": 0.02}  # so that 64 fit on two CPUs; 1,000 need less
CLONE_NEWNET = 0x40000000
PATIENCE_S = 300.0
ROUNDS = 3


def cases() -> Iterator[Case]:
    yield Case("memory-1000", MANY, "MiB", "", _memory_arena, rounds=1)  # first: later the process has grown already
    yield Case("in-flight-64", RUNS, "ops/s", "bare Ray, 64 in flight", _flight_arena, goal=0.8, rounds=ROUNDS)
    yield Case("start-p50", STARTS, "ms", "bare Ray", _start_arena, rounds=ROUNDS)


@cache
def _cluster() -> tuple[Any, str]:
    """Start a cluster for all cases, and connect this process to it, as bare Ray's side."""
    folder = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    os.environ.update(HOME=folder.name, RAY_TMPDIR=folder.name, RAY_USAGE_STATS_ENABLED="0")
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    import ray  # noqa: PLC0415  # after the environment is set

    started: Any = ray.init(
        address="local",
        num_cpus=CPUS,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        _system_config={"num_workers_soft_limit": 3 * IN_FLIGHT, "idle_worker_killing_time_threshold_ms": 3_600_000},
    )
    atexit.register(ray.shutdown)
    return ray, started.address_info["gcs_address"]


@contextlib.contextmanager
def _running(rota: Rota, address: str, in_flight: int) -> Iterator[Supervisor]:
    supervisor = rota.supervisor(1, ray=RayCluster(address=address, in_flight=in_flight), echo=False)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.drain()
        thread.join()


def _wait(supervisor: Supervisor, ended: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while supervisor.ended_runs < ended and time.monotonic() < give_up_at:  # it counts a run when its end is durable
        time.sleep(0.001)


def _functions() -> tuple[Any, Any]:
    """Functions that are sent to the nodes, where this package cannot be imported: one does nothing, one tells when."""

    def nothing() -> None:
        pass

    def first_line() -> float:
        import time  # noqa: PLC0415  # on the node

        return time.monotonic()

    return nothing, first_line


# --- many small runs -----------------------------------------------------------------------------


def _flight_arena() -> Arena:
    stack, folder = contextlib.ExitStack(), Folder()
    ray, address = _cluster()
    remote = ray.remote(max_retries=0, num_cpus=NEEDS["CPU"])(_functions()[0])
    rota = stack.enter_context(Rota(folder.file("rota.db")))
    agent = rota.agent("nothing", runner="ray", resources=NEEDS)(_functions()[0])
    supervisor = stack.enter_context(_running(rota, address, IN_FLIGHT))

    def ours(runs: int = RUNS) -> Measured:
        before = supervisor.ended_runs
        agent.enqueue_many([{}] * runs)
        started = time.perf_counter()
        _wait(supervisor, before + runs)
        return Measured(runs / (time.perf_counter() - started), runs)

    def theirs(runs: int = RUNS) -> Measured:
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        started = time.perf_counter()
        submitted = done = 0
        while done < runs:
            while submitted < min(runs, done + IN_FLIGHT):
                remote.remote().future().add_done_callback(ended.put)
                submitted += 1
            ended.get().result()
            done += 1
        return Measured(runs / (time.perf_counter() - started), runs)

    theirs(IN_FLIGHT)
    ours(IN_FLIGHT)
    return Arena(rota=ours, base=theirs, close=partial(_close, stack, folder))


# --- how soon one begins -------------------------------------------------------------------------


def _start_arena() -> Arena:
    stack, folder = contextlib.ExitStack(), Folder()
    ray, address = _cluster()
    remote = ray.remote(max_retries=0)(_functions()[1])
    rota = stack.enter_context(Rota(folder.file("rota.db")))
    agent = rota.agent("first", runner="ray")(_functions()[1])
    stack.enter_context(_running(rota, address, IN_FLIGHT))

    def starts(start: Any) -> Measured:
        waits = []
        for _ in range(STARTS):
            asked = time.monotonic()
            waits.append(start() - asked)
        return Measured(1e3 * statistics.median(waits), True)

    ours = partial(starts, lambda: agent.enqueue().result(PATIENCE_S))
    theirs = partial(starts, lambda: ray.get(remote.remote()))
    theirs()
    ours()
    return Arena(rota=ours, base=theirs, close=partial(_close, stack, folder))


# --- memory --------------------------------------------------------------------------------------


def _memory_arena() -> Arena:
    stack, folder = contextlib.ExitStack(), Folder()
    _, address = _cluster()
    rota = stack.enter_context(Rota(folder.file("rota.db")))
    agent = rota.agent("nothing", runner="ray", resources={"CPU": 0.001})(_functions()[0])
    supervisor = stack.enter_context(_running(rota, address, MANY))

    agent.enqueue()
    _wait(supervisor, 1)
    before = _resident_mib()

    def ours() -> Measured:
        all_ended = supervisor.ended_runs + MANY
        agent.enqueue_many([{}] * MANY)
        highest = before
        while supervisor.ended_runs < all_ended:
            highest = max(highest, _resident_mib())
            time.sleep(0.01)
        return Measured(highest - before)

    return Arena(rota=ours, close=partial(_close, stack, folder))


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def _close(stack: contextlib.ExitStack, folder: Folder) -> None:
    stack.close()
    folder.close()

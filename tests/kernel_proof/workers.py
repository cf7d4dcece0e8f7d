"""Functions that run in child processes: claimers that drain a file, and writers and claimers that are killed.

Processes come from a fork server that has imported everything once, so each starts in a few milliseconds and has
no thread or open file of the test's own.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, replay, retention
from rota.model.work import Backoff, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from rota.store import Transaction

PATIENCE_S = 60.0  # real time, and only to end a test that would hang
CLAIM_TIMEOUT_S = 600.0
AT_ONCE = Backoff(0.0, 1.0, 0.0)


def fork_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def start(
    context: ForkServerContext, target: Callable[..., None], **arguments: Any
) -> tuple[ForkServerProcess, Connection]:
    """A process, and the pipe on which it reports."""
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(there,), kwargs=arguments, daemon=True)
    process.start()
    there.close()
    return process, here


def opened(path: str, now: float) -> Kernel:
    return Kernel(store.open(path, clock=ManualClock(now), durability="normal"), rng=random.Random(1))


def drain(tell: Connection, *, path: str, worker_id: str, policy: str, most: int) -> None:
    """Claim until nothing is left, and report the ids."""
    kernel = opened(path, 2_000.0)
    api = Dispatcher(kernel, policy)
    ids: list[int] = []
    while entries := api.claim(worker_id, most):
        ids += [entry.sched_id for entry in entries]
    tell.send(ids)
    kernel.store.close()


# --- to be killed --------------------------------------------------------------------------------
#
# Each call is reported once it has returned, so the parent knows what was acknowledged. An enqueue is also reported
# before it begins: it may or may not have happened when its process is killed, and can be repeated.


def write_for_ever(tell: Connection, *, path: str, now: float, pid: int, name: str, seed: int) -> None:
    """Enqueue one by one and in batches, each entry under a key of its own."""
    kernel = opened(path, now)
    rng = random.Random(seed)
    numbers = itertools.count()
    while True:
        count = rng.choice([1, 1, 1, 5, 40])
        keys = [f"{name}-{next(numbers)}" for _ in range(count)]
        tell.send(("enqueue", keys))
        specs = [
            ScheduleSpec(pid, rng.randrange(3), key=key, payload={"key": key}, max_attempts=50, backoff=AT_ONCE)
            for key in keys
        ]
        ids = [kernel.queue.enqueue(specs[0])] if count == 1 else kernel.queue.enqueue_many(specs)
        tell.send(("enqueued", dict(zip(keys, ids, strict=True))))


def work_for_ever(tell: Connection, *, path: str, now: float, worker_id: str, policy: str, seed: int) -> None:
    """Claim, send heartbeats, return some entries and complete the rest; wait while there are none."""
    kernel = opened(path, now)
    api = Dispatcher(kernel, policy)
    rng = random.Random(seed)
    while True:
        runs = api.claim(worker_id, rng.choice([1, 2, 10]), wait_s=3_600, claim_timeout_s=CLAIM_TIMEOUT_S)
        tell.send(("claimed", [(run.sched_id, run.token) for run in runs]))
        last = runs.pop() if rng.random() < 0.3 else None
        if last is not None and last.token is not None:
            kernel.queue.heartbeat(last.sched_id, last.token)
            kernel.queue.put_back(last.sched_id, token=last.token)
            tell.send(("was put back", (last.sched_id, last.token)))
        ids = [run.sched_id for run in runs]
        answers = kernel.queue.complete_many([Completion(run.sched_id, "completed", run.token) for run in runs])
        tell.send(("completed", [id_ for id_, answer in zip(ids, answers, strict=True) if isinstance(answer, tuple)]))


def prune_for_ever(tell: Connection, *, path: str, now: float, age_s: float, stride: int) -> None:
    """Prune what is older than an age, again and again, in many small commits; tell every so many of them."""
    replay.PART_MAX, retention.PRUNE_MAX, retention.DROP_MAX = 10, 20, 1  # of this process only
    kernel = opened(path, now)
    write, commits = kernel.store.write, itertools.count(1)

    def told(work: Callable[[Transaction], Any]) -> Any:
        answer = write(work)
        if next(commits) % stride == 0:
            tell.send(("committed", None))
        return answer

    kernel.store.write = told  # type: ignore[method-assign]
    while True:
        kernel.retention.prune(events_older_than_s=age_s, entries_older_than_s=age_s)

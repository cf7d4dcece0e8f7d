"""Processes on PostgreSQL that are killed, and whose server is killed: they say what they begin and what was answered.

They do what workers do while the server is away: wait, and make the call again. A call that may have been executed is
made again only if it has a key (an enqueue) or a token (a completion). A claim has neither: it is given up and expires.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

from rota import store
from rota.clock import ManualClock, SystemClock
from rota.errors import StoreUnavailable
from rota.kernel import Completion, Kernel, ReadyEntry
from rota.model.work import ScheduleSpec
from rota.service.dispatcher import Dispatcher
from rota.service.outages import call_through_outage
from tests.kernel_proof.workers import AT_ONCE, CLAIM_TIMEOUT_S

_real = SystemClock()
T = TypeVar("T")


def _opened(url: str, now: float) -> Kernel:
    """Open the store; the server may be away."""
    opened = call_through_outage(_real, lambda: store.open(url, clock=ManualClock(now)), lambda: False)
    return Kernel(opened, rng=random.Random(1))


def _repeated(call: Callable[[], T]) -> T:
    return call_through_outage(_real, call, lambda: False, repeats=True)


def write_for_ever(tell: Connection, *, path: str, now: float, pid: int, name: str, seed: int) -> None:
    """Enqueue one by one and in batches, each entry under a key of its own."""
    kernel = _opened(path, now)
    rng = random.Random(seed)
    numbers = itertools.count()
    while True:
        keys = [f"{name}-{next(numbers)}" for _ in range(rng.choice([1, 1, 1, 5, 40]))]
        tell.send(("enqueue", keys))
        specs = [ScheduleSpec(pid, key=key, payload={"key": key}, max_attempts=50, backoff=AT_ONCE) for key in keys]
        ids = _repeated(partial(kernel.queue.enqueue_many, specs))
        tell.send(("enqueued", dict(zip(keys, ids, strict=True))))


def work_for_ever(tell: Connection, *, path: str, now: float, worker_id: str, policy: str, seed: int) -> None:
    """Claim, return some entries and complete the rest; wait while there are none."""
    kernel = _opened(path, now)
    api = Dispatcher(kernel, policy)
    rng = random.Random(seed)
    while True:
        runs = _claimed(api, worker_id, rng.choice([1, 2, 10]))
        tell.send(("claimed", [(run.sched_id, run.token) for run in runs]))
        ends = [Completion(run.sched_id, "completed", run.token) for run in runs]
        answers = _repeated(partial(kernel.queue.complete_many, ends))
        done = [end.sched_id for end, answer in zip(ends, answers, strict=True) if isinstance(answer, tuple)]
        tell.send(("completed", done))


def _claimed(api: Dispatcher, worker_id: str, most: int) -> list[ReadyEntry]:
    try:
        return call_through_outage(
            _real, lambda: api.claim(worker_id, most, wait_s=3_600, claim_timeout_s=CLAIM_TIMEOUT_S), lambda: False
        )
    except StoreUnavailable:  # it may have been executed
        return []

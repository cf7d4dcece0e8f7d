"""Functions that child processes run in the tests of the PostgreSQL store."""

from __future__ import annotations

import os
import signal
from typing import Any

from rota import store
from rota.kernel import Kernel, ScheduleSpec


def claim_one(url: str, parked: Any, claimed: Any) -> None:
    """Wait for an entry, and report its id."""
    opened = store.open(url)
    kernel = Kernel(opened)
    opened.on_change(lambda: None)  # from here on it hears of commits
    parked.set()
    claimed.put([entry.sched_id for entry in kernel.queue.claim(worker_id="child", wait_s=30.0)])
    opened.close()


def drain(url: str, together: Any, claimed: Any, worker_id: str) -> None:
    """Claim and complete until nothing is left; report the ids and how many ran at the same time at most."""
    opened = store.open(url)
    kernel = Kernel(opened)
    together.wait(30.0)
    mine: list[int] = []
    live_max = 0
    while entries := kernel.queue.claim(worker_id=worker_id, max_n=3):
        live_max = max(live_max, opened.read(lambda tx: tx.run(LIVE)[0][0]))
        for entry in entries:
            kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
        mine += [entry.sched_id for entry in entries]
    claimed.put((mine, live_max))
    opened.close()


def enqueue_until_lost(url: str, started: Any, acknowledged: Any, pid: int, name: str) -> None:
    """Enqueue entries with keys until the server is gone; report the acknowledged keys."""
    from rota.errors import StoreError  # noqa: PLC0415

    kernel = Kernel(store.open(url))
    keys: list[str] = []
    try:
        while True:
            key = f"{name}-{len(keys)}"
            kernel.queue.enqueue(ScheduleSpec(pid, key=key))
            keys.append(key)
            if len(keys) == 20:
                started.release()
    except StoreError:
        acknowledged.put(keys)


LIVE = store.Statement(
    "test_live",
    "The number of running entries.",
    "SELECT count(*) FROM agent_schedule_queue WHERE state = 'dispatched'",
)


def take_in_and_die(url: str, stage: str) -> None:
    """Claim one entry, and be killed when the inbox is taken in, before or after the commit."""
    opened: Any = store.open(url)
    kernel = Kernel(opened)
    commit = opened._engine.commit

    def die() -> None:
        if stage == "committed":
            commit()
        os.kill(os.getpid(), signal.SIGKILL)

    opened._engine.commit = die
    kernel.queue.claim(worker_id="child")

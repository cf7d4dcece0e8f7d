"""`rota graph run --island`: admit a graph whole before it runs in this process.

With a store the island is a grant of a claim there, as for a run of a fleet: other processes on this host see it, and
it ends with this process. Without a store it is admitted beside nothing else, and holds for this process only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rota.cli.connection import open_api
from rota.cli.terminal_text import say
from rota.clock import SystemClock
from rota.graph import Plan, island_ask
from rota.model import ScheduleSpec
from rota.service import Asker, decide, this_host

if TYPE_CHECKING:
    from rota.model import CoreGrant
    from rota.service import SchedulerApi

__all__ = ["OnEpoch", "admitted"]

CLAIM_TIMEOUT_S = 60.0  # after the end of a killed process its cores are free again this much later
HEARTBEAT_S = 15.0
OnEpoch = Callable[[int], None]


@contextlib.contextmanager
def admitted(plan: Plan, store: str | None, *, quiet: bool) -> Iterator[OnEpoch]:
    """Admit a graph as an island, or raise what is missing; this process stays on its cores meanwhile.

    The function that it yields has to be called after each epoch: it keeps the claim alive.
    """
    with _granted(plan, store) as (grant, heartbeat), _on_cores(_places(grant)):
        if not quiet:
            say(f"{plan.name}: island admitted: {'; '.join(_words(grant))}", err=True)
        yield heartbeat


def _words(grant: CoreGrant) -> Iterator[str]:
    if grant.leased:
        yield f"core{'s' * (len(grant.leased) > 1)} {', '.join(map(str, grant.leased))} for itself"
    for one in grant.reserved:
        yield f"{one.name} {one.budget_ns / 1e6:g} ms in {one.period_ns / 1e6:g} ms on core {one.core}"


@contextlib.contextmanager
def _granted(plan: Plan, store: str | None) -> Iterator[tuple[CoreGrant, OnEpoch]]:
    ask = island_ask(plan)
    host = this_host()
    if store is None:
        asker = Asker(0, 0, 0, plan.name, None, SystemClock().now())
        yield decide(host, (), ask, asker, []), lambda _epoch: None
        return
    with open_api(store, create=True) as api:
        sched_id, token = _claim(api, plan.name)
        exit_kind = "failed"
        try:
            yield api.cores.grant(sched_id, token, host, ask), _heartbeat(api, sched_id, token)
            exit_kind = "completed"
        finally:
            api.cores.release(sched_id, token)  # what waits for its cores is claimed at once
            api.queue.complete(sched_id, exit_kind, token=token)


def _claim(api: SchedulerApi, name: str) -> tuple[int, int]:
    """Claim an entry of the agent with the graph's name: the grant belongs to it."""
    found = api.agents.find(name)
    pid = found[0].pid if found else api.agents.create(name)
    # one attempt: if this process is killed, no worker can go on with its run
    sched_id = api.queue.enqueue(ScheduleSpec(pid, max_attempts=1))
    worker = f"graph-run-{os.getpid()}"
    entry = api.queue.force_claim(sched_id, worker_id=worker, claim_timeout_s=CLAIM_TIMEOUT_S)
    return sched_id, entry.token or 0


def _heartbeat(api: SchedulerApi, sched_id: int, token: int) -> OnEpoch:
    clock = SystemClock()
    sent_at = clock.monotonic()

    def beat(_epoch: int) -> None:
        nonlocal sent_at
        if clock.monotonic() - sent_at >= HEARTBEAT_S:
            sent_at = clock.monotonic()
            api.queue.heartbeat(sched_id, token=token)

    return beat


def _places(grant: CoreGrant) -> tuple[int, ...]:
    """Return where this process may run: no supervisor would keep it off the cores that others have leased."""
    return grant.leased or tuple(core for core in grant.allowed if core in grant.open_cores)


@contextlib.contextmanager
def _on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """Keep this process, and the threads that it starts, on some cores."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

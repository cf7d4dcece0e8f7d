"""What `rota graph` does with a store: runs that can be resumed, and workers for their entries."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rota import store
from rota.errors import RotaError
from rota.graph.component_registry import ComponentRegistry
from rota.graph.entry_worker import EntryWorker
from rota.graph.lanes.durable import DurableRuns
from rota.graph.plan import Plan
from rota.graph.stop import StopToken
from rota.kernel import Kernel
from rota.service.dispatcher import Dispatcher

__all__ = ["Keeping", "kept", "work"]


class Keeping(NamedTuple):
    """Where a run is kept, under which name, and how many threads of this process run its entries."""

    store: Path | None
    run_id: str | None
    workers: int


@contextlib.contextmanager
def kept(plan: Plan, registry: ComponentRegistry, keeping: Keeping) -> Iterator[DurableRuns | None]:
    """What keeps the run while it goes on; None without a store, or without a lane that needs one."""
    if keeping.store is None or not any(lane.type == "queue" for lane in plan.lanes.values()):
        yield None
        return
    with _opened(keeping.store) as kernel, _at_work(kernel, plan, registry, keeping.workers):
        yield DurableRuns(kernel)


def work(plan: Plan, registry: ComponentRegistry, path: Path, stop_token: StopToken, *, until_idle: bool) -> int:
    """Run the entries of a graph until stopped, or until none is ready; returns how many."""
    with _opened(path) as kernel:
        worker = _worker(kernel, plan, registry, 0)
        return worker.run_ready() if until_idle else worker.serve(stop_token)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Kernel]:
    opened = store.open(os.fspath(path))
    try:
        yield Kernel(opened)
    finally:
        opened.close()


@contextlib.contextmanager
def _at_work(kernel: Kernel, plan: Plan, registry: ComponentRegistry, count: int) -> Iterator[None]:
    """Workers on threads of this process; they finish what they have before the store is closed."""
    enough = StopToken()
    threads = [
        threading.Thread(target=_serve, args=(_worker(kernel, plan, registry, number), enough), name=f"worker-{number}")
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.request()
        for thread in threads:
            thread.join()


def _worker(kernel: Kernel, plan: Plan, registry: ComponentRegistry, number: int) -> EntryWorker:
    return EntryWorker(Dispatcher(kernel), registry, [plan.name], worker_id=f"graph-{os.getpid()}-{number}")


def _serve(worker: EntryWorker, enough: StopToken) -> None:
    try:
        worker.serve(enough)
    except RotaError as error:  # the run will meet it too; this says why entries are not run
        print(f"rota: a worker ended: {error}", file=sys.stderr)

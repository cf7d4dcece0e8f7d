"""Worker processes of both sides: they stay for all rounds, and do what the pipe tells them.

Every process is a new interpreter, as a worker of a user's is. Times are those of the machine's monotonic clock, which
is the same in all of its processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from bench.queue_processes import Child
from rota import store
from rota.kernel import Completion, Kernel
from rota.service.dispatcher import Dispatcher

__all__ = ["Drained", "PgQueuerSide", "RotaSide", "open_store", "pgqueuer_fill", "pgqueuer_install"]


class Drained(NamedTuple):
    """How many a worker ran, and when its first and last were."""

    ran: int
    began_at: float
    ended_at: float


def together(found: Sequence[Drained]) -> tuple[int, float]:
    """Return how many were run by all, and in how many seconds."""
    worked = [each for each in found if each.ran]
    began_at, ended_at = min(each.began_at for each in worked), max(each.ended_at for each in worked)
    return sum(each.ran for each in worked), ended_at - began_at


class _Side:
    """The worker processes of one side."""

    def __init__(self, work: Any, workers: int) -> None:
        self._children = [Child(work) for _ in range(workers)]

    def each(self, *message: Any) -> list[Any]:
        """Tell all the same, and return what they say."""
        for child in self._children:
            child.tell(message)  # type: ignore[arg-type]  # a pipe takes anything
        return [child.hear() for child in self._children]

    def close(self) -> None:
        """End them."""
        for child in self._children:
            child.tell("end")
            child.end()


class RotaSide(_Side):
    """Supervisors that end what they had and claim the next, in one commit."""

    def __init__(self, workers: int) -> None:
        super().__init__(_rota_worker, workers)

    def open(self, url: str, *, early_release: bool = True) -> None:
        """Open a store in every worker."""
        self.each("open", url, early_release)

    def drain(self, batch: int, policy: str = "strict") -> tuple[int, float]:
        """Run everything that is ready; returns how many, and the seconds it took."""
        return together(self.each("drain", batch, policy))

    def start_waiting(self) -> None:
        """Let the workers wait for one entry each."""
        for child in self._children:
            child.tell(("wait",))  # type: ignore[arg-type]
        for child in self._children:
            child.hear()

    def claimed_at(self) -> float:
        """Return when the first worker got its entry."""
        return float(self._children[0].hear())


class PgQueuerSide(_Side):
    """PgQueuer's own manager in every process, with a job that only counts."""

    def __init__(self, workers: int) -> None:
        super().__init__(_pgqueuer_worker, workers)

    def drain(self, dsn: str, batch: int) -> tuple[int, float]:
        """Run everything that is queued; returns how many, and the seconds it took."""
        self.each("connect", dsn)
        return together(self.each("drain", batch))

    def start_waiting(self, dsn: str) -> None:
        """Let one worker wait for jobs and report each."""
        self.each("connect", dsn)
        self.each("serve")

    def claimed_at(self) -> float:
        """Return when the worker got the next job."""
        return float(self._children[0].hear())


# --- in the workers ------------------------------------------------------------------------------


def open_store(url: str, *, early_release: bool = True) -> Any:
    """Open a store; without early release the commit is flushed inside the turn."""
    if early_release:
        return store.open(url)
    opened: Any = store.open(url, durability="normal")
    opened._engine.pipeline.rows("SET synchronous_commit = on")
    return opened


def _rota_worker(pipe: Connection) -> None:
    opened: Any = None
    dispatcher: Any = None
    while (message := pipe.recv()) != "end":
        match message:
            case ("open", url, early_release):
                if opened is not None:
                    opened.close()
                opened = open_store(url, early_release=early_release)
                dispatcher = Dispatcher(Kernel(opened))
                dispatcher.queue.upkeep()  # the first call compares the clocks
                pipe.send("open")
            case ("drain", batch, policy):
                pipe.send(_drain(dispatcher, batch, policy))
            case ("wait",):
                opened.on_change(lambda: None)  # from here on it hears of commits
                pipe.send("waits")
                (entry,) = dispatcher.claim("waiter", 1, wait_s=60.0)
                pipe.send(time.monotonic())
                dispatcher.queue.complete(entry.sched_id, "completed", token=entry.token)
    if opened is not None:
        opened.close()


def _drain(dispatcher: Dispatcher, batch: int, policy: str) -> Drained:
    began_at = ended_at = time.monotonic()
    count, entries = 0, dispatcher.claim("worker", batch, policy=policy)
    while entries:
        count += len(entries)
        ended = [Completion(entry.sched_id, "completed", token=entry.token) for entry in entries]
        entries = dispatcher.complete_and_claim(ended, "worker", batch, policy=policy).entries
        ended_at = time.monotonic()
    return Drained(count, began_at, ended_at)


def _pgqueuer_worker(pipe: Connection) -> None:
    asyncio.run(_pgqueuer_loop(pipe))


async def _pgqueuer_loop(pipe: Connection) -> None:
    import asyncpg  # type: ignore[import-untyped]  # noqa: PLC0415  # of the dependency group bench
    from pgqueuer import PgQueuer  # noqa: PLC0415
    from pgqueuer.db import AsyncpgDriver  # noqa: PLC0415
    from pgqueuer.types import QueueExecutionMode  # noqa: PLC0415

    made: Any = None
    ran: list[float] = []
    serving: list[bool] = []

    async def count(_job: Any) -> None:
        ran.append(time.monotonic())
        if serving:
            pipe.send(ran[-1])

    loop, task = asyncio.get_running_loop(), None
    while (message := await loop.run_in_executor(None, pipe.recv)) != "end":
        match message:
            case ("connect", dsn):
                made = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))
                made.entrypoint("count")(count)
                ran.clear()
                pipe.send("connected")
            case ("drain", batch):
                began_at = time.monotonic()
                await made.qm.run(batch_size=batch, mode=QueueExecutionMode.drain)
                # the last jobs are logged after this: what that takes is left out, in its favour
                pipe.send(Drained(len(ran), began_at, max(ran, default=began_at)))
            case ("serve",):
                serving.append(True)
                task = asyncio.create_task(made.qm.run(batch_size=1))
                pipe.send("serves")
    if task is not None:
        made.qm.shutdown.set()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wait_for(task, 5)


@contextlib.asynccontextmanager
async def _queries(dsn: str) -> AsyncIterator[Any]:
    import asyncpg  # noqa: PLC0415
    from pgqueuer.db import AsyncpgDriver  # noqa: PLC0415
    from pgqueuer.queries import Queries  # noqa: PLC0415

    connection = await asyncpg.connect(dsn)
    try:
        yield Queries(AsyncpgDriver(connection))
    finally:
        await connection.close()


def pgqueuer_fill(dsn: str, count: int) -> None:
    """Put jobs in: many in one statement."""

    async def fill() -> None:
        async with _queries(dsn) as queries:
            for first in range(0, count, 1_000):
                size = min(1_000, count - first)
                await queries.enqueue(["count"] * size, [b"{}"] * size, [0] * size)

    asyncio.run(fill())


def pgqueuer_install(dsn: str) -> None:
    """Create its tables."""

    async def install() -> None:
        async with _queries(dsn) as queries:
            await queries.install()

    asyncio.run(install())

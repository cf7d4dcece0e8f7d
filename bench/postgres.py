"""Rota on PostgreSQL beside PgQueuer on the same server, in turns: drains, latency; and what a turn costs.

`drain-100x4`: four worker processes claim a hundred at a time, in strict order, until all have run; PgQueuer does the
same with batches of a hundred. rota keeps owners, budgets, a journal and claims that expire; PgQueuer deletes a job and
logs that. `eevdf-100x4`, `finished-1m` and `early-release` compare rota with itself.

`round-trips-…` are exact whatever else the machine does: how often a turn that ends ten runs and claims ten waits for
the server, when another process has written since the last one.

`early-release`: four processes that claim one by one while each flush of the log takes 2 ms more, beside the same with
the flush inside the turn.

ROTA_BENCH_N is the number of entries in a drain (20,000); the other sizes follow it.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from bench.harness import Arena, Case, Measured
from bench.postgres_server import BenchServer
from bench.postgres_workers import PgQueuerSide, RotaSide, open_store, pgqueuer_fill, pgqueuer_install
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.service.dispatcher import Dispatcher

__all__ = ["cases"]

N = int(os.environ.get("ROTA_BENCH_N", "20000"))
FINISHED = 50 * N  # rows that have ended before finished-1m begins: a million
ENTRIES_1 = max(100, N // 20)  # claimed one by one
WAKES = max(20, N // 100)
PROJECTS, AGENTS = 4, 20
SEED = 20_261_116
SLOW_FLUSH = {"commit_delay": "2000", "commit_siblings": "0"}  # each flush begins 2 ms later
PAUSE_S = 0.01  # before each wake-up: the waiter is parked again
FILL_MAX = 1_000  # entries in one commit
PGQUEUER = "PgQueuer"


def cases() -> Iterator[Case]:
    yield Case("drain-100x4", N, "ops/s", f"{PGQUEUER}, batch 100", lambda: _drain(100, 4), N, 1.5)
    yield Case("drain-100x1", N, "ops/s", f"{PGQUEUER}, batch 100", lambda: _drain(100, 1), N, 2.0)
    yield Case("drain-10x4", N // 2, "ops/s", f"{PGQUEUER}, batch 10", lambda: _drain(10, 4), N // 2, 1.2)
    yield Case("eevdf-100x4", N, "ops/s", "strict order", _eevdf, N, 0.5)
    yield Case("finished-1m", N // 2, "ops/s", "a new schema", _finished, N // 2, 0.8, rounds=3)
    yield Case("latency", WAKES, "ms", PGQUEUER, _latency, goal=1.0, rounds=3)
    yield Case("round-trips-strict", 1, "trips", "the bar", lambda: _round_trips("strict", 3), goal=1.0, rounds=1)
    yield Case("round-trips-eevdf", 1, "trips", "the bar", lambda: _round_trips("eevdf", 6), goal=1.0, rounds=1)
    yield Case("early-release", ENTRIES_1, "ops/s", "flush in the turn", _early_release, ENTRIES_1, 2.4, rounds=3)


# --- stores --------------------------------------------------------------------------------------


def _fill(url: str, count: int) -> None:
    """Create a store with agents of several projects, and enqueue their entries in one order for all rounds."""
    opened = open_store(url)
    kernel, chance = Kernel(opened), random.Random(SEED)
    for number in range(PROJECTS):
        kernel.projects.create(f"project {number}", weight=1_000 + 500 * number)
    pids = [kernel.agents.create(f"agent {each}", project_id=f"project {each % PROJECTS}") for each in range(AGENTS)]
    for first in range(0, count, FILL_MAX):
        size = min(FILL_MAX, count - first)
        kernel.queue.enqueue_many([ScheduleSpec(chance.choice(pids)) for _ in range(size)])
    opened.close()
    _settle(url)


def _settle(url: str) -> None:
    """Vacuum, so that no round does what an earlier one left to do."""
    dsn, _, schema = url.rpartition("&schema=")
    with psycopg.connect(dsn, autocommit=True) as connection:
        for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)):
            connection.execute(f'VACUUM (ANALYZE) {schema}."{name}"'.encode())


def _left(url: str) -> int:
    """How many entries have not completed."""
    dsn, _, schema = url.rpartition("&schema=")
    with psycopg.connect(dsn) as connection:
        text = f"SELECT count(*) FROM {schema}.agent_schedule_queue WHERE exit_kind IS DISTINCT FROM 'completed'"
        row = connection.execute(text.encode()).fetchone()
    return -1 if row is None else int(row[0])


def _drop(url: str) -> None:
    dsn, _, schema = url.rpartition("&schema=")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


class _Stores:
    """A new store for each round of a side; the one before is removed."""

    def __init__(self, server: BenchServer, side: RotaSide, *, early_release: bool = True) -> None:
        self._server, self._side, self._early_release = server, side, early_release
        self.url = ""

    def renew(self, count: int, prepare: Callable[[str], None] = lambda _url: None) -> None:
        before, self.url = self.url, self._server.new_store()
        _fill(self.url, count)
        prepare(self.url)
        self._side.open(self.url, early_release=self._early_release)
        if before:
            _drop(before)

    def drain(self, batch: int, policy: str = "strict") -> Measured:
        count, seconds = self._side.drain(batch, policy)
        return Measured(count / seconds, (count, _left(self.url)))


# --- drains --------------------------------------------------------------------------------------


def _drain(batch: int, workers: int) -> Arena:
    count = N if batch > 10 else N // 2
    server = BenchServer()
    ours, theirs = RotaSide(workers), PgQueuerSide(workers)
    stores = _Stores(server, ours)
    pgqueuer_install(server.dsn)

    def before(_round: int) -> None:
        stores.renew(count)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("TRUNCATE pgqueuer, pgqueuer_log")
        pgqueuer_fill(server.dsn, count)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE) pgqueuer")
            connection.execute("CHECKPOINT")

    def base() -> Measured:
        ran, seconds = theirs.drain(server.dsn, batch)
        with psycopg.connect(server.dsn) as connection:
            row = connection.execute("SELECT count(*) FROM pgqueuer").fetchone()
        return Measured(ran / seconds, (ran, -1 if row is None else row[0]))

    return Arena(
        rota=lambda: stores.drain(batch),
        base=base,
        before=before,
        verify=lambda us, them: us == them == (count, 0),
        close=_closing(ours, theirs, server),
    )


def _eevdf() -> Arena:
    return _beside_itself(N, lambda store: store.drain(100, "eevdf"), lambda store: store.drain(100))


def _finished() -> Arena:
    return _beside_itself(N // 2, lambda store: store.drain(100), lambda store: store.drain(100), prepare=_add_finished)


def _early_release() -> Arena:
    return _beside_itself(
        ENTRIES_1,
        lambda store: store.drain(1),
        lambda store: store.drain(1),
        server=BenchServer(**SLOW_FLUSH),
        base_early_release=False,
    )


def _beside_itself(
    count: int,
    rota: Callable[[_Stores], Measured],
    base: Callable[[_Stores], Measured],
    *,
    prepare: Callable[[str], None] = lambda _url: None,
    server: BenchServer | None = None,
    base_early_release: bool = True,
) -> Arena:
    """Two drains of rota's own, each by four workers. `prepare` changes a new store of the first one."""
    server = server or BenchServer()
    sides = RotaSide(4), RotaSide(4)
    ours = _Stores(server, sides[0])
    theirs = _Stores(server, sides[1], early_release=base_early_release)

    def before(_round: int) -> None:
        ours.renew(count, prepare)
        theirs.renew(count)

    return Arena(
        rota=lambda: rota(ours),
        base=lambda: base(theirs),
        before=before,
        verify=lambda us, them: us == them == (count, 0),
        close=_closing(*sides, server),
    )


def _add_finished(url: str) -> None:
    """Add rows that ended long ago, with ids before those of the entries."""
    dsn, _, schema = url.rpartition("&schema=")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}".encode())
        connection.execute(
            "INSERT INTO agent_schedule_queue (sched_id, pid, priority, created_at, completed_at, state, exit_kind, "
            "attempt) SELECT -id, 1 + id %% %s, 0, 1, 2, 'completed', 'completed', 1 FROM generate_series(1, %s) id",
            (AGENTS, FINISHED),
        )
    _settle(url)


def _closing(*parts: Any) -> Callable[[], None]:
    def close() -> None:
        for part in parts:
            part.close()

    return close


# --- latency -------------------------------------------------------------------------------------


def _latency() -> Arena:
    """From just before the call that enqueues to the moment at which a waiting process has the entry: the median."""
    server = BenchServer()
    ours, theirs = RotaSide(1), PgQueuerSide(1)
    url = server.new_store()
    _fill(url, 0)
    opened = open_store(url)
    kernel = Kernel(opened)
    pid = kernel.agents.create("waiter")
    ours.open(url)
    pgqueuer_install(server.dsn)
    theirs.start_waiting(server.dsn)

    def rota() -> Measured:
        took = []
        for _ in range(WAKES):
            ours.start_waiting()
            time.sleep(PAUSE_S)
            asked_at = time.monotonic()
            kernel.queue.enqueue(ScheduleSpec(pid))
            took.append(ours.claimed_at() - asked_at)
        return Measured(statistics.median(took) * 1e3, len(took))

    def base() -> Measured:
        took = []
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for _ in range(WAKES):
                time.sleep(PAUSE_S)
                asked_at = time.monotonic()
                connection.execute(
                    "INSERT INTO pgqueuer (priority, status, entrypoint, payload, execute_after) "
                    "VALUES (0, 'queued', 'count', '', now())"
                )
                took.append(theirs.claimed_at() - asked_at)
        return Measured(statistics.median(took) * 1e3, len(took))

    def close() -> None:
        ours.close()
        theirs.close()
        opened.close()
        server.close()

    return Arena(rota=rota, base=base, close=close)


# --- round trips ---------------------------------------------------------------------------------


def _round_trips(policy: str, bar: int) -> Arena:
    server = BenchServer()
    url = server.new_store()
    _fill(url, 400)
    stores = [open_store(url), open_store(url)]
    workers = [Dispatcher(Kernel(each)) for each in stores]
    held: list[list[Any]] = [[], []]

    def turn(worker: int) -> None:
        ended = [Completion(entry.sched_id, "completed", token=entry.token) for entry in held[worker]]
        held[worker] = workers[worker].complete_and_claim(ended, "worker", 10, policy=policy).entries

    def rota() -> Measured:
        found = []
        for _ in range(5):
            turn(1)
            before = stores[0]._engine.pipeline.trips
            turn(0)
            found.append(stores[0]._engine.pipeline.trips - before)
        return Measured(float(statistics.median(found)), len(held[0]))

    return Arena(
        rota=rota,
        base=lambda: Measured(float(bar), 10),
        close=_closing(*stores, server),
    )

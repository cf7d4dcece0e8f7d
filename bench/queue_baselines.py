"""What people run instead of rota's queue: a loop of their own over SQLite, and Huey.

`BareQueue` does the least that keeps a queue: one table, one index in the order of claims, an UPDATE to claim and
one to complete, each in a transaction of its own. No journal, no owners, no budgets, no claim that expires, nothing
but itself in the file. It has SQLite's best conditions: apsw, statements that stay prepared, one cursor. With
several threads each has a connection of its own and waits by busy timeout, as SQLite's documentation has it.

`HueyQueue` is SqliteHuey with its own consumer and no stored results. It deletes a job when it claims it, so a job
is gone when its worker dies, and it writes once where rota writes twice.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apsw

from bench.queue_files import Entry

__all__ = ["PATIENCE_S", "POLL_S", "BareQueue", "HueyQueue"]

BUSY_TIMEOUT_MS = 60_000
NOW = 1e9  # anything after every runnable_at
POLL_S = 0.01
PATIENCE_S = 300.0  # ends a hang, measures nothing

_SCHEMA = """
    CREATE TABLE job (
        id INTEGER PRIMARY KEY,
        pid INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        runnable_at REAL NOT NULL,
        payload TEXT NOT NULL,
        state INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX job_order ON job (priority DESC, runnable_at, id) WHERE state = 0;
"""
_STATES = ("queued", "dispatched", "completed")
_INSERT = "INSERT INTO job (pid, priority, runnable_at, payload) VALUES (?, ?, ?, ?)"
_FIRST = "SELECT id FROM job WHERE state = 0 AND runnable_at <= ? ORDER BY priority DESC, runnable_at, id LIMIT"
_CLAIM = f"UPDATE job SET state = 1 WHERE id = ({_FIRST} 1) RETURNING id, payload"
_CLAIM_MANY = f"UPDATE job SET state = 1 WHERE id IN ({_FIRST} ?) RETURNING id, payload"
_COMPLETE = "UPDATE job SET state = 2 WHERE id = ? AND state = 1"


class BareQueue:
    """A queue in one table, with one connection for each thread."""

    def __init__(self, path: str, threads: int = 1) -> None:
        self._connections = [self._connect(path) for _ in range(threads)]
        self._cursors: list[Any] = [connection.cursor() for connection in self._connections]
        self._cursors[0].execute(_SCHEMA)

    def _connect(self, path: str) -> apsw.Connection:
        connection = apsw.Connection(path)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def enqueue(self, entries: Sequence[Entry], thread: int = 0) -> list[int]:
        """Put entries in one by one; their ids."""
        execute, last_id = self._cursors[thread].execute, self._connections[thread].last_insert_rowid
        ids = []
        for entry in entries:
            execute("BEGIN IMMEDIATE")
            execute(_INSERT, entry.row)
            execute("COMMIT")
            ids.append(last_id())
        return ids

    def enqueue_many(self, entries: Sequence[Entry], size: int) -> list[int]:
        """Put entries in, so many in a commit; their ids."""
        cursor, last_id = self._cursors[0], self._connections[0].last_insert_rowid
        ids: list[int] = []
        for at in range(0, len(entries), size):
            rows = [entry.row for entry in entries[at : at + size]]
            cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany(_INSERT, rows)
            cursor.execute("COMMIT")
            last = last_id()
            ids += range(last - len(rows) + 1, last + 1)
        return ids

    def claim_complete(self, count: int, thread: int = 0) -> list[int]:
        """Claim and complete one by one, each its own commit; the ids."""
        execute = self._cursors[thread].execute
        ids = []
        for _ in range(count):
            execute("BEGIN IMMEDIATE")
            ((job, _payload),) = execute(_CLAIM, (NOW,)).fetchall()
            execute("COMMIT")
            execute("BEGIN IMMEDIATE")
            execute(_COMPLETE, (job,))
            execute("COMMIT")
            ids.append(job)
        return ids

    def batches(self, count: int, size: int) -> list[int]:
        """Claim so many in a commit and complete them in another; the ids."""
        cursor = self._cursors[0]
        ids: list[int] = []
        for _ in range(0, count, size):
            cursor.execute("BEGIN IMMEDIATE")
            jobs = [row[0] for row in cursor.execute(_CLAIM_MANY, (NOW, size)).fetchall()]
            cursor.execute("COMMIT")
            cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany(_COMPLETE, [(job,) for job in jobs])
            cursor.execute("COMMIT")
            ids += jobs
        return ids

    def counts(self) -> dict[str, int]:
        """How many entries are in each state."""
        rows = self._cursors[0].execute("SELECT state, count(*) FROM job GROUP BY state")
        return {_STATES[state]: count for state, count in rows}

    def close(self) -> None:
        """Release the file."""
        for connection in self._connections:
            connection.close()


class HueyQueue:
    """SqliteHuey on a file of its own, with tasks that only count themselves."""

    def __init__(self, path: str, *, fsync: bool = True) -> None:
        from huey import SqliteHuey  # noqa: PLC0415  # of the dependency group bench: listing the cases works without it

        self._huey: Any = SqliteHuey("bench", filename=path, results=False, fsync=fsync)
        self._numbers = itertools.count(1)  # next() on it is one step, so threads may share it
        self._last = 0
        self._last_at = 0.0
        self._ended = threading.Event()
        self._task = self._huey.task(name="count")(self._count)

    def fill(self, count: int) -> None:
        """Put no-op tasks in."""
        for _ in range(count):
            self._task()

    def drain(self, count: int, workers: int) -> tuple[float, int]:
        """Let Huey's consumer run everything: the seconds from its start to the last task, and how many ran."""
        consumer = _consumer(self._huey, workers)
        self._last = count
        started = time.perf_counter()
        consumer.start()
        ended = self._ended.wait(PATIENCE_S)
        consumer.stop(graceful=True)
        if not ended:
            raise TimeoutError(f"Huey did not run {count:,} tasks within {PATIENCE_S:g} s")
        return self._last_at - started, next(self._numbers) - 1

    @contextlib.contextmanager
    def consuming(self, count: int, workers: int) -> Iterator[Callable[[], float]]:
        """Huey's consumer at work; what is given waits for the last of so many tasks and says when it ran."""
        consumer = _consumer(self._huey, workers)
        self._last = count
        consumer.start()

        def ended_at() -> float:
            if not self._ended.wait(PATIENCE_S):
                raise TimeoutError(f"Huey did not run {count:,} tasks within {PATIENCE_S:g} s")
            return self._last_at

        try:
            yield ended_at
        finally:
            consumer.stop(graceful=True)

    @contextlib.contextmanager
    def serving(self, function: Callable[[], None]) -> Iterator[Callable[[], object]]:
        """Huey's consumer with one worker, and how to give it this function to run."""
        task = self._huey.task(name="serve")(function)
        consumer = _consumer(self._huey, 1, first_delay_s=POLL_S)
        consumer.start()
        try:
            yield task
        finally:
            consumer.stop(graceful=True)

    def left(self) -> int:
        """How many tasks wait."""
        return int(self._huey.pending_count())

    def close(self) -> None:
        """Release the file."""
        self._huey.storage.close()

    def _count(self) -> None:
        if next(self._numbers) == self._last:
            self._last_at = time.perf_counter()
            self._ended.set()


def _consumer(huey: Any, workers: int, first_delay_s: float = 0.001) -> Any:
    """Huey's own consumer, with threads, leaving this process's signals alone. Idle, it looks every `POLL_S`."""
    from huey.consumer import Consumer  # noqa: PLC0415  # as above

    class Quiet(Consumer):  # type: ignore[misc]  # huey has no types
        def _set_signal_handlers(self) -> None:
            """Ours stay as they are."""

    return Quiet(huey, workers=workers, periodic=False, initial_delay=first_delay_s, max_delay=POLL_S)

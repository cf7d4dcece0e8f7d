"""A test world for the store: a table of words, callers on their own threads, an engine that can fail."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import apsw

from rota.clock import Clock, ManualClock
from rota.store import Statement, Transaction
from rota.store.engine import TransactionLost, WriteEngine
from rota.store.protocol import TransactionEffects
from rota.store.sqlite_engine import SqliteEngine
from rota.store.writer import Writer

PATIENCE_S = 60.0  # real time; only ends a test that would hang
T = TypeVar("T")


def sql(text: str) -> Statement:
    return Statement("test", "Made for a test.", text)


WORDS = sql("CREATE TABLE words (id INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT NOT NULL)")
PUT = sql("INSERT INTO words (word) VALUES (?) RETURNING id")
TAKE = sql("DELETE FROM words WHERE id = (SELECT min(id) FROM words WHERE word LIKE ?) RETURNING word")
LIST = sql("SELECT word FROM words ORDER BY id")


def put(word: str, *, wake: bool = True) -> Callable[[Transaction], int]:
    """Work that adds a word and wakes parked requests."""

    def work(tx: Transaction) -> int:
        tx.effects.wake_parked = wake
        return int(tx.run(PUT, (word,))[0][0])

    return work


def put_all(names: list[str]) -> Callable[[Transaction], list[int]]:
    """Work that adds several words."""
    return lambda tx: [put(name)(tx) for name in names]


def take(pattern: str = "%") -> Callable[[Transaction], list[str]]:
    """Work that takes the oldest matching word, if there is one."""
    return lambda tx: [str(row[0]) for row in tx.run(TAKE, (pattern,))]


def words(tx: Transaction) -> list[str]:
    return [str(row[0]) for row in tx.run(LIST)]


def failing(
    times: int, error: Callable[[], BaseException] = lambda: TransactionLost("disk full")
) -> Callable[[], None]:
    """A hook that raises this many times and then never again."""
    left = [times]

    def hook() -> None:
        if left[0] > 0:
            left[0] -= 1
            raise error()

    return hook


def noting(log: list[str], word: str) -> Callable[[Transaction], str]:
    """Work that adds a word and logs whether it became durable."""

    def work(tx: Transaction) -> str:
        tx.effects.wake_parked = True
        tx.effects.on_commit.append(lambda: log.append(f"{word} durable"))
        tx.effects.on_rollback.append(lambda: log.append(f"{word} undone"))
        tx.run(PUT, (word,))
        return word

    return work


def acquire(semaphore: threading.Semaphore) -> None:
    assert semaphore.acquire(timeout=PATIENCE_S), "waited too long"


def happened(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "waited too long"


class Caller(Generic[T]):
    """A call on its own thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except BaseException as error:  # `outcome` raises it
            self._error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def outcome(self) -> T:
        """Return what the call returned, or raise what it raised."""
        self._thread.join(PATIENCE_S)
        assert self.is_done, "the call hangs"
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def error(self) -> BaseException:
        """Return what the call raised."""
        self._thread.join(PATIENCE_S)
        assert self.is_done, "the call hangs"
        assert self._error is not None, f"it raised nothing and answered {self._answer}"
        return self._error


class Probe:
    """The real engine, with a log of its calls and hooks before and after each."""

    def __init__(self, inner: WriteEngine) -> None:
        self.inner = inner
        self.has_savepoints, self.lost_hint, self.cause_of = inner.has_savepoints, inner.lost_hint, inner.cause_of
        self.log: list[str] = []
        self.before: dict[str, Callable[[], object]] = {}
        self.after: dict[str, Callable[[], object]] = {}
        self.foreign = False  # another process has written
        self.sole_user = False

    def _do(self, verb: str, act: Callable[[], T]) -> T:
        self.log.append(verb)
        self.before.get(verb, _nothing)()
        answer = act()
        self.after.get(verb, _nothing)()
        return answer

    def begin(self, *, alone: bool = False) -> None:
        self._do("begin", lambda: self.inner.begin(alone=alone))

    def commit(self) -> None:
        self._do("commit", self.inner.commit)

    def rollback(self) -> bool:
        return self._do("rollback", self.inner.rollback)

    def changes(self) -> int:
        return self.inner.changes()

    def savepoint(self) -> None:
        self._do("savepoint", self.inner.savepoint)

    def release(self) -> None:
        self._do("release", self.inner.release)

    def rollback_to(self) -> None:
        self._do("rollback_to", self.inner.rollback_to)

    def transaction(self, effects: TransactionEffects) -> Transaction:
        return self.inner.transaction(effects)

    def check_files(self) -> None:
        self.inner.check_files()

    def has_foreign_commit(self) -> bool:
        foreign, self.foreign = self.foreign, False
        return foreign

    def notify_listeners(self) -> None:
        self._do("notify_listeners", self.inner.notify_listeners)


def _nothing() -> None:
    pass


class WatchedQueue(deque[Any]):
    """A queue on which a test can wait until it fills."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = threading.Semaphore(0)

    def append(self, request: Any) -> None:
        super().append(request)
        self.arrivals.release()

    def until(self, count: int) -> None:
        while len(self) < count:
            acquire(self.arrivals)


class WatchedParking(dict[Any, None]):
    """Parked requests on which a test can wait until they are there."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = threading.Semaphore(0)

    def __setitem__(self, request: Any, nothing: None) -> None:
        super().__setitem__(request, nothing)
        self.arrivals.release()

    def until(self, count: int) -> None:
        while len(self) < count:
            acquire(self.arrivals)


class World:
    """A writer over a real engine in memory, with a table of words."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = ManualClock(now=1_000.0)
        self.connection = apsw.Connection(":memory:")
        self.engine = Probe(SqliteEngine(self.connection, ":memory:"))
        self.writer = Writer(self.engine, clock or self.clock)
        self.writer._queue = self.queue = WatchedQueue()
        self.writer._parked.requests = self.parked = WatchedParking()
        self.writer.write(lambda tx: tx.run(WORDS))
        self.engine.log.clear()

    @property
    def commits(self) -> int:
        return self.engine.log.count("commit")

    def words(self) -> list[str]:
        with self.writer.exclusive():
            return [str(row[0]) for row in self.connection.execute(LIST.sql).fetchall()]

    def write(self, work: Callable[[Transaction], T]) -> Caller[T]:
        """Write from another thread."""
        return Caller(lambda: self.writer.write(work))

    def wait(self, pattern: str = "%", timeout_s: float = 3_600.0, equivalence_key: Any = "words") -> Caller[list[str]]:
        """Wait for a word on another thread; return once that request is parked."""
        return self.wait_for(take(pattern), timeout_s, equivalence_key)

    def wait_for(
        self, work: Callable[[Transaction], list[str]], timeout_s: float = 3_600.0, equivalence_key: Any = "words"
    ) -> Caller[list[str]]:
        count = len(self.parked)
        caller = Caller(lambda: self.writer.wait(work, timeout_s, equivalence_key))
        self.parked.until(count + 1)
        return caller

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep a write running, so that other writes are queued."""
        begun, end = threading.Event(), threading.Event()

        def work(_tx: Transaction) -> None:
            begun.set()
            happened(end)

        caller = self.write(work)
        happened(begun)
        try:
            yield
        finally:
            end.set()
            caller.outcome()

    def close(self) -> None:
        self.writer.close()
        self.connection.close()

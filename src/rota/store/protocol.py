"""What the kernel needs of a store: transactions that run named statements.

The caller passes its work as a function of a transaction. The store decides when the function runs and which other
requests share its commit. A call returns only after its commit is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from rota.clock import Clock

__all__ = ["Row", "Statement", "Store", "Transaction", "TransactionEffects", "WakeHandle"]

T = TypeVar("T")
Row = tuple[Any, ...]


class Statement(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """An SQL text with a name, for plans and traces, and a description, for readers.

    `postgres` is the same statement for PostgreSQL, where `store/postgres_text.py` cannot derive it from `sql`.
    A statement that is `everyday` changes nothing that other processes may remember (see `Transaction.facts_version`).
    """

    name: str
    about: str
    sql: str
    postgres: str | None = None
    everyday: bool = False


class TransactionEffects(msgspec.Struct, eq=False):
    """What the store has to do because of a request, besides returning its result."""

    wake_parked: bool = False  # parked requests may find something now: run them again in this transaction
    retry_at: float | None = None  # wall-clock time at which this request may find something, if it parks
    applies_to_equivalents: bool = True  # an empty result holds for every request with the same equivalence key
    on_commit: list[Callable[[], None]] = []  # called once the transaction is durable
    on_rollback: list[Callable[[], None]] = []  # called if the transaction never becomes durable


class Transaction(Protocol):
    """Statements inside one transaction.

    A request may run more than once, because its commit can fail. So it must have no effect outside the transaction.
    """

    effects: TransactionEffects
    prefetches: bool  # whether naming reads early saves a round trip (`read_together`)

    @property
    def foreign_version(self) -> int:
        """A number that grows when another connection has written, in this process or in another one."""
        ...

    @property
    def facts_version(self) -> int:
        """A number that grows when another connection has changed what processes remember; it may grow more often.

        While it stays the same, others have at most run `Statement`s that are `everyday`.
        """
        ...

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        ...

    def run_for(self, statement: Statement, keys: Collection[int | str]) -> list[Row]:
        """Run a statement whose one parameter is a list of keys (`statements.queue.IDS`) and return its rows."""
        ...

    def read_together(self, reads: Sequence[tuple[Statement, Row]]) -> None:
        """Say that these are run next, before anything is written.

        Across a network they are then read in one round trip, as the first call of a transaction in that with which it
        begins; otherwise it does nothing.
        """
        ...

    def insert(self, statement: Statement, parameters: Sequence[Any]) -> int:
        """Run a statement that inserts one row and return the row's id."""
        ...

    def insert_unless(
        self, statement: Statement, parameters: Sequence[Any], known: tuple[Statement, Row]
    ) -> int | None:
        """Insert one row and return its id; None if there is a row with its unique key, which `known` would find."""
        ...

    def insert_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> int:
        """Insert one row for each row of parameters and return the first id; the other ids follow it."""
        ...

    def run_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""
        ...


class WakeHandle:
    """Ends a wait early. A signal before the wait is kept: the next wait on the handle returns immediately."""

    __slots__ = ("signalled",)

    def __init__(self) -> None:
        self.signalled = False


class Store(Protocol):
    """Durable rows, read and written in transactions."""

    clock: Clock

    @property
    def path(self) -> str | None:
        """The file's path with links resolved; None of a store in memory or on PostgreSQL."""
        ...

    @property
    def host_name(self) -> str | None:
        """The name of this host, of a store that many hosts share; None of a file, which belongs to one."""
        ...

    @property
    def host_path(self) -> str | None:
        """The path beside which this host keeps files for the store, such as logs; None of a store in memory."""
        ...

    @property
    def is_joined(self) -> bool:
        """Whether the caller is inside a transaction that its writes join, so that they are one unit."""
        ...

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a write transaction: all of it is committed or, if it raises, none of it."""
        ...

    def wait(
        self,
        work: Callable[[Transaction], list[T]],
        timeout_s: float,
        equivalence_key: Hashable = None,
        handle: WakeHandle | None = None,
    ) -> list[T]:
        """Like write, but while the result is empty, park the request until it has one, the timeout or an interrupt.

        Requests with equal keys are equivalent: when one finds nothing, the others are not tried, unless
        `effects.applies_to_equivalents` is False.
        """
        ...

    def interrupt(self, handle: WakeHandle) -> None:
        """Wake the request parked on this handle; if none is parked, the next wait returns immediately."""
        ...

    def prefetch(self, reads: Iterable[tuple[Statement, Row]]) -> None:
        """Name reads that most transactions make after another process has written.

        A store across a network reads them in its first round trip; others ignore it.
        """
        ...

    def on_failover(self, call: Callable[[Transaction, str, str], None]) -> None:
        """Call this, in a transaction of its own, when the database may have lost commits: a standby was promoted.

        It gets the names of the two histories. A file has only one.
        """
        ...

    def hold_worker_id(self, worker_id: str) -> AbstractContextManager[None]:
        """Hold a worker's id over all hosts during the block; raises WorkerExists if another process has it.

        A file does nothing: it has one host, which locks ids by files (fleet/worker_lock.py).
        """
        ...

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing and without waiting for writers."""
        ...

    def dry_run(self, work: Callable[[Transaction], T]) -> T:
        """Run work as `write` does, return its result, and always roll back."""
        ...

    def on_change(self, call: Callable[[], None], *, foreign_only: bool = False) -> Callable[[], None]:
        """Call this after every commit, or only after commits of other processes; returns a function that stops it.

        It runs while the next writer waits, so it must not write.
        """
        ...

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy everything to a new file while others write; calls progress(pages_done, pages_total)."""
        ...

    def check(self) -> list[str]:
        """Return the problems found in the file, one sentence each; empty if it is sound."""
        ...

    def vacuum(self) -> None:
        """Rewrite everything, so that no space is left of deleted rows. Writers wait until it has ended."""
        ...

    def close(self) -> None:
        """Release the file. Waiting callers get StoreUnavailable."""
        ...

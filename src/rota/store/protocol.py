"""What the kernel needs of a store: transactions that run named statements.

Work is handed to the store as a function of a transaction, so the store decides when it runs and
with whom it shares a commit. Nobody is answered before the commit is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from rota.clock import Clock

__all__ = ["Notes", "Nudge", "Row", "Statement", "Store", "Transaction"]

T = TypeVar("T")
Row = tuple[Any, ...]


class Statement(NamedTuple):
    """A piece of SQL with a name, for plans and traces, and a sentence, for readers."""

    name: str
    about: str
    sql: str


class Notes:
    """What work has to say besides its answer."""

    __slots__ = ("after", "due_at", "speaks_for_others", "undone", "wake")

    def __init__(self) -> None:
        self.wake = False  # somebody who waits may have an answer now
        self.due_at: float | None = None  # somebody who waits may have one then, by the wall clock
        self.speaks_for_others = True  # who asks the same question would get the same answer
        self.after: list[Callable[[], None]] = []  # to be called once it is durable
        self.undone: list[Callable[[], None]] = []  # to be called if it never became durable


class Transaction(Protocol):
    """Statements inside one transaction. Work may be run again when a commit fails, so it writes only here."""

    notes: Notes
    news: int  # it grows when others have written to the same file, in this process or another, ours or not

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        ...

    def insert(self, statement: Statement, parameters: Sequence[Any]) -> int:
        """Run a statement that inserts a row and return its id."""
        ...

    def insert_many(self, statement: Statement, parameters: Sequence[Sequence[Any]]) -> int:
        """Run a statement that inserts a row once for each row of parameters; the first new id. The rest follow it."""
        ...

    def run_many(self, statement: Statement, parameters: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row of parameters."""
        ...


class Nudge:
    """A way to end somebody's wait. It is not lost if it comes too early: the next wait with it does not begin."""

    __slots__ = ("given",)

    def __init__(self) -> None:
        self.given = False


class Store(Protocol):
    """Rows that survive."""

    clock: Clock

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that writes: all of it or, if it raises, nothing."""
        ...

    def wait(
        self,
        work: Callable[[Transaction], list[T]],
        timeout_s: float,
        same: Hashable = None,
        nudge: Nudge | None = None,
    ) -> list[T]:
        """Like write, but while the answer is empty wait for one, at most this long, or until nudged.

        Those who wait with an equal `same` ask the same question: when one gets nothing, none would, unless its notes
        say that it speaks for nobody else.
        """
        ...

    def nudge(self, nudge: Nudge) -> None:
        """Let whoever waits with this nudge go, empty-handed; if nobody does yet, the next who would."""
        ...

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing and without waiting for whoever writes."""
        ...

    def rehearse(self, work: Callable[[Transaction], T]) -> T:
        """Run work as `write` would, answer with what it found, and undo it, always: nothing is written."""
        ...

    def on_change(self, call: Callable[[], None], *, foreign_only: bool = False) -> Callable[[], None]:
        """Have this called after every commit, of this process or only of others; the answer ends it.

        It is called while the next writer waits, so it must not write.
        """
        ...

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy everything to a new file while others go on; progress hears (done, total)."""
        ...

    def check(self) -> list[str]:
        """What is wrong with the file, in sentences; empty when nothing is."""
        ...

    def close(self) -> None:
        """Release the file. Whoever still waits is told."""
        ...

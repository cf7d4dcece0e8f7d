"""What the kernel needs of a store: transactions that run named statements.

Work is handed to the store as a function of a transaction, so the store decides when it runs and
with whom it shares a commit. Nobody is answered before the commit is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = ["Row", "Statement", "Store", "Transaction"]

T = TypeVar("T")
Row = tuple[Any, ...]


class Statement(NamedTuple):
    """A piece of SQL with a name, for plans and traces, and a sentence, for readers."""

    name: str
    about: str
    sql: str


class Transaction(Protocol):
    """Statements run inside one transaction."""

    def run(self, statement: Statement, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        ...


class Store(Protocol):
    """Rows that survive."""

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that writes: all of it or, if it raises, nothing."""
        ...

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view, without writing."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...

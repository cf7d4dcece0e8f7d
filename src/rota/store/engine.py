"""What the writer needs of a database: a transaction, savepoints in it, and notice of foreign commits."""

from __future__ import annotations

from typing import Protocol

from rota.errors import StoreCorrupt, StoreError
from rota.store.protocol import Transaction, TransactionEffects

__all__ = ["RequestFailed", "TransactionLost", "WriteEngine", "is_damage"]


class TransactionLost(BaseException):
    """The database dropped the whole transaction, and not because of one request: a full disk, an I/O error.

    Not an `Exception`: work that catches those must not go on writing when no transaction is left.
    """


class RequestFailed(TransactionLost):
    """One request of a shared transaction has ended it for all: each of them has to run in a transaction of its own."""


def is_damage(error: StoreError) -> bool:
    """Whether a statement failed because of what is stored, and not because the store is away or was replaced."""
    return type(error) in (StoreError, StoreCorrupt)


class WriteEngine(Protocol):
    """The database as the writer sees it. Any method may raise `TransactionLost`."""

    has_savepoints: bool  # otherwise requests of a batch that has to be undone run one by one
    lost_hint: str  # what to do when transactions are lost again and again
    sole_user: bool  # no other connection had the file open when the last transaction began: no notifications

    def begin(self, *, alone: bool = False) -> None:
        """Begin a write transaction. For one request `alone` it may be that the first statement waits for it."""
        ...

    def commit(self) -> None:
        """Make it durable."""
        ...

    def rollback(self) -> bool:
        """Roll back; return False if the transaction is already durable. Never raises."""
        ...

    def changes(self) -> int:
        """Return a number that grows with every row that this connection changes."""
        ...

    def savepoint(self) -> None:
        """Mark where a request begins."""
        ...

    def release(self) -> None:
        """Keep the request's changes."""
        ...

    def rollback_to(self) -> None:
        """Undo the request's changes and no others."""
        ...

    def transaction(self, effects: TransactionEffects) -> Transaction:
        """Return the open transaction as one request sees it."""
        ...

    def cause_of(self, error: BaseException) -> BaseException:
        """Return what to report for work that ended with this error: damage to the database, or the error itself."""
        ...

    def check_files(self) -> None:
        """Raise StoreReplaced if the files at the path are not those that are open."""
        ...

    def has_foreign_commit(self) -> bool:
        """Whether another connection has committed since the last call."""
        ...

    def notify_listeners(self) -> None:
        """Tell other processes that something was committed."""
        ...

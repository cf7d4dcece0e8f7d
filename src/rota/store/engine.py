"""What a database does for the writer: a transaction, marks in it, and word of what others did."""

from __future__ import annotations

from typing import Protocol

from rota.store.protocol import Notes, Transaction

__all__ = ["Engine", "GroupFailed"]


class GroupFailed(BaseException):
    """The transaction is gone with everything in it, through no fault of one request.

    Not an `Exception`: work that catches those must not go on writing when there is nothing left to write in.
    """


class Engine(Protocol):
    """What a database does for a group. `GroupFailed` out of any of it means that the transaction is gone."""

    alone: bool  # nobody else had the file open when the last transaction began, so there is nobody to tell

    def begin(self) -> None:
        """Begin a transaction that may write."""
        ...

    def commit(self) -> None:
        """Make it durable."""
        ...

    def rollback(self) -> bool:
        """Undo it, unless it is durable already: then the answer is False. Never raises."""
        ...

    def savepoint(self) -> None:
        """Mark where a request begins."""
        ...

    def release(self) -> None:
        """Keep what the request did."""
        ...

    def rollback_to(self) -> None:
        """Undo what the request did, and only that."""
        ...

    def transaction(self, notes: Notes) -> Transaction:
        """The open transaction as one request sees it."""
        ...

    def changed_elsewhere(self) -> bool:
        """Whether somebody outside this engine has committed since the last time this was asked."""
        ...

    def ring(self) -> None:
        """Tell other processes that something was committed."""
        ...

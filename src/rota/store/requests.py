"""Requests to the writer: the work, its state, and how its caller learns the result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, TypeVar

from rota.store.author import author_of_caller
from rota.store.protocol import Transaction, TransactionEffects, WakeHandle

__all__ = ["PostedWrite", "Request", "RequestState"]

T = TypeVar("T")


class RequestState(Enum):
    """Where a request is."""

    QUEUED = 1
    RUNNING = 2
    PARKED = 3
    DONE = 4


class Request(Generic[T]):
    """Work, and the caller that waits for its result."""

    __slots__ = (
        "applied",
        "author",
        "condition",
        "effects",
        "equivalence_key",
        "error",
        "handle",
        "may_park",
        "on_done",
        "state",
        "value",
        "withdrawn",
        "work",
    )

    def __init__(
        self, work: Callable[[Transaction], T], *, may_park: bool = False, equivalence_key: Hashable = None
    ) -> None:
        self.work = work
        self.author = author_of_caller.get()
        self.may_park = may_park  # an empty result means: wait for one
        self.equivalence_key = equivalence_key  # requests with equal keys find the same; None: equivalent to no other
        self.handle: WakeHandle | None = None  # ends its wait early
        self.state = RequestState.RUNNING
        self.value: T | None = None
        self.error: BaseException | None = None
        self.applied = False  # its changes are in the transaction
        self.effects = TransactionEffects()
        self.condition: threading.Condition | None = None  # its caller's thread waits on it
        self.on_done: Callable[[], None] | None = None  # of a posted write: called when it is done
        self.withdrawn = False  # it no longer waits

    @property
    def should_park(self) -> bool:
        """Whether it found nothing and is allowed to wait."""
        return self.may_park and not self.withdrawn and self.error is None and not self.value

    def run(self, tx: Transaction) -> T:
        """Run the work as its author, whichever thread this is."""
        before = author_of_caller.set(self.author)
        try:
            return self.work(tx)
        finally:
            author_of_caller.reset(before)

    def move_to(self, state: RequestState) -> None:
        """Set the state and notify the caller. The writer's mutex is held."""
        self.state = state
        if self.condition is not None:
            self.condition.notify()
        elif self.on_done is not None and state is RequestState.DONE:
            self.on_done()

    def result(self) -> T:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # it is set where there is no error


class PostedWrite(Request[T]):
    """A request that no thread waits for. Its result is there once `on_done` is called, which must return quickly."""

    __slots__ = ()

    def __init__(
        self,
        work: Callable[[Transaction], T],
        on_done: Callable[[], None],
        *,
        may_park: bool = False,
        equivalence_key: Hashable = None,
    ) -> None:
        super().__init__(work, may_park=may_park, equivalence_key=equivalence_key)
        self.on_done = on_done

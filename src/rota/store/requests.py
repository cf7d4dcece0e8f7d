"""What is asked of the writer: work, where it stands, and who waits for its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, TypeVar

from rota.store.protocol import Notes, Nudge, Transaction

__all__ = ["Place", "Posted", "Request"]

T = TypeVar("T")


class Place(Enum):
    """Where a request is."""

    IN_LINE = 1
    RUNNING = 2
    PARKED = 3
    ANSWERED = 4


class Request(Generic[T]):
    """Work, and the caller who waits for it."""

    __slots__ = (
        "answer",
        "bell",
        "error",
        "given_up",
        "kept",
        "notes",
        "nudge",
        "parks",
        "place",
        "same",
        "told",
        "work",
    )

    def __init__(self, work: Callable[[Transaction], T], *, parks: bool = False, same: Hashable = None) -> None:
        self.work = work
        self.parks = parks  # an empty answer means: not yet
        self.same = same  # who asks the same question gets the same answer; None: nobody does
        self.nudge: Nudge | None = None  # what may end its wait
        self.place = Place.RUNNING
        self.answer: T | None = None
        self.error: BaseException | None = None
        self.kept = False  # what it did is in the transaction
        self.notes = Notes()
        self.bell: threading.Condition | None = None
        self.told: Callable[[], None] | None = None  # of posted work: called when it is answered
        self.given_up = False  # it would no longer wait

    @property
    def waits(self) -> bool:
        """It found nothing, and would rather wait than be told so."""
        return self.parks and not self.given_up and self.error is None and not self.answer

    def result(self) -> T:
        """The answer, or the error, for the caller."""
        if self.error is not None:
            raise self.error
        return self.answer  # type: ignore[return-value]  # it is set where there is no error


class Posted(Request[T]):
    """Work that no thread waits for. Its answer is there once `told` was called, which must be quick."""

    __slots__ = ()

    def __init__(
        self,
        work: Callable[[Transaction], T],
        told: Callable[[], None],
        *,
        parks: bool = False,
        same: Hashable = None,
    ) -> None:
        super().__init__(work, parks=parks, same=same)
        self.told = told

"""A step towards what a fleet file says: a change, and how it is made through the kernel's own verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from rota.fleet.config.changes import Change
from rota.fleet.config.tables import Fleet
from rota.kernel.core import LIST_MAX
from rota.service.api import Registers

__all__ = ["Note", "Step", "every", "later"]

T = TypeVar("T")


class Step(NamedTuple):
    """A change, and how it is made."""

    change: Change
    make: Callable[[], object]


class Note(msgspec.Struct):
    """What a fleet remembers of what it has said, where the store has no place for it."""

    limits: dict[str, dict[str, list[int]]] = {}  # by name and unit: budget and period in milliseconds
    budget: list[str] = []  # the dimensions of everybody's budget

    @staticmethod
    def of(desk: Registers, fleet: Fleet) -> Note:
        """The note of this fleet in this store."""
        return msgspec.convert(desk.journal.recall(f"fleet:{fleet.title}") or {}, Note)

    def keep(self, desk: Registers, fleet: Fleet) -> None:
        """Write it down, if it says something new."""
        if self != Note.of(desk, fleet):
            desk.journal.remember(f"fleet:{fleet.title}", msgspec.to_builtins(self))


def later(verb: Callable[..., object], *args: Any, **said: Any) -> Callable[[], object]:
    """A call to be made when its step is taken."""
    return lambda: verb(*args, **said)


def every(listing: Callable[..., tuple[list[T], int]]) -> Iterable[T]:
    """Every row of a listing, page by page."""
    offset = 0
    while rows := listing(limit=LIST_MAX, offset=offset)[0]:
        yield from rows
        offset += len(rows)

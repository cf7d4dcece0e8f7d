"""What every part of the kernel stands on: the store, the clock, chance, and the time of a call."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from rota.clock import Clock
from rota.errors import InvalidPayload
from rota.model.checks import INTEGER_MAX, Checks
from rota.store import Store, Transaction

__all__ = ["LIST_MAX", "Core", "Memo", "Page", "memo_of", "page"]

LIST_MAX = 10_000  # rows in one answer
LIST_DEFAULT = 100
T = TypeVar("T")
_call = Checks("Call", InvalidPayload)


class Memo:
    """What was last read of the pulse (see admission), while nothing can have changed it.

    Every write forgets it, but for those that are known to leave the pulse alone. It may be too early in what it
    says will happen, which costs a look, and is never too late.
    """

    __slots__ = ("elsewhere", "pulse", "read_at")

    def __init__(self) -> None:
        self.pulse: Any = None
        self.elsewhere = 0  # commits of others when it was read
        self.read_at = 0.0

    def forget(self) -> None:
        """Read it again next time."""
        self.pulse = None


_MEMOS: WeakKeyDictionary[Store, Memo] = WeakKeyDictionary()


def memo_of(store: Store) -> Memo:
    """The one memo of a store, whoever looks at it: two kernels over one store obey each other at once."""
    return _MEMOS.setdefault(store, Memo())


class Core(NamedTuple):
    """The store, the clock, the generator that jitter comes from, and what was last read of the pulse."""

    store: Store
    clock: Clock
    chance: random.Random
    memo: Memo

    def now(self, given: float | None = None) -> float:
        """The caller's own `now`, or the clock's."""
        return self.clock.now() if given is None else _call.instant("now", given)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction that writes."""

        def changing(tx: Transaction) -> T:
            self.memo.forget()
            return work(tx)

        return self.store.write(changing)

    def write_steadily(self, work: Callable[[Transaction], T]) -> T:
        """Run work that leaves the pulse as it is, or forgets it by itself."""
        return self.store.write(work)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view."""
        return self.store.read(work)


class Page(NamedTuple):
    """Which part of a listing."""

    limit: int
    offset: int


def page(limit: object, offset: object) -> Page:
    """A page from what a caller gave: a bad limit is 100, a bad offset 0, and no page is above `LIST_MAX`."""
    good_limit = limit if type(limit) is int and limit >= 1 else LIST_DEFAULT
    good_offset = offset if type(offset) is int and 0 <= offset <= INTEGER_MAX else 0
    return Page(min(good_limit, LIST_MAX), good_offset)

"""What every part of the kernel stands on: the store, the clock, chance, and the time of a call."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from rota.clock import Clock
from rota.errors import InvalidPayload
from rota.kernel.workers_seen import Attendance
from rota.model.checks import INTEGER_MAX, Checks
from rota.store import Store, Transaction

__all__ = ["LIST_MAX", "READ_MAX", "Core", "Memo", "Page", "attendance_of", "memo_of", "page"]

LIST_MAX = 10_000  # rows in one answer
LIST_DEFAULT = 100
READ_MAX = 250  # rows that may be large are read so many at a time
LIVING_MAX = 10_000  # agents that are known to live
T = TypeVar("T")
_call = Checks("Call", InvalidPayload)


class Memo:
    """What was last read and every verb needs, while nothing can have changed it: the pulse, and who lives.

    Every write forgets it, but for those that are known to leave both alone. The pulse may be too early in what it
    says will happen, which costs a look, and is never too late.
    """

    __slots__ = ("_living", "_news", "_pulse")

    def __init__(self) -> None:
        self._news = -1  # of others, when anything was last looked up here
        self._pulse: Any = None
        self._living: dict[int, str | None] = {}

    def forget(self) -> None:
        """Read it all again next time."""
        self._pulse = None
        self._living = {}

    def pulse(self, tx: Transaction) -> Any:
        """The pulse, if it is known."""
        if self._news != tx.news:
            self._begin_anew(tx)
        return self._pulse

    def keep_pulse(self, tx: Transaction, pulse: Any) -> None:
        """Remember the pulse that was just read."""
        if self._news != tx.news:
            self._begin_anew(tx)
        self._pulse = pulse
        tx.notes.undone.append(self.forget)

    def move_pulse(self, pulse: Any) -> None:
        """Remember what a verb knows to have changed of the pulse."""
        if self._pulse is not None:
            self._pulse = pulse

    def living(self, tx: Transaction) -> dict[int, str | None]:
        """The agents that are known to live, each with its project."""
        if self._news != tx.news:
            self._begin_anew(tx)
        return self._living

    def keep_living(self, tx: Transaction, found: Mapping[int, str | None]) -> None:
        """Remember agents that were just found to live."""
        if len(self._living) + len(found) > LIVING_MAX:
            self._living = {}
        self._living.update(found)
        tx.notes.undone.append(self.forget)

    def _begin_anew(self, tx: Transaction) -> None:
        """Others have written."""
        self._news = tx.news
        self.forget()


_MEMOS: WeakKeyDictionary[Store, Memo] = WeakKeyDictionary()


def memo_of(store: Store) -> Memo:
    """The one memo of a store, whoever looks at it: two kernels over one store obey each other at once."""
    return _MEMOS.setdefault(store, Memo())


_SEEN: WeakKeyDictionary[Store, Attendance] = WeakKeyDictionary()


def attendance_of(store: Store) -> Attendance:
    """Who was seen at a store, whichever kernel saw it."""
    return _SEEN.setdefault(store, Attendance())


class Core(NamedTuple):
    """The store, the clock, the generator that jitter comes from, what was last read of the pulse, and who is about."""

    store: Store
    clock: Clock
    chance: random.Random
    memo: Memo
    seen: Attendance

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

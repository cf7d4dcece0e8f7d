"""What a fork does to open stores.

A forked child has a copy of the parent's memory and shares its descriptors, but has one thread and none of SQLite's
locks. Three things go wrong if it uses an inherited connection:

- SQLite keeps its file locks in memory and believes that it still holds them. So do connections that the child opens
  later, because SQLite shares its locks on a file between all connections of a process. Another process then finds the
  file unused, and deletes the log that the child writes to.
- A thread of the parent may be inside SQLite at the moment of the fork. The child inherits the mutexes that it holds,
  and no thread that releases them.
- A `flock` belongs to the descriptor and not to the process: the child would unlock it for the parent.

So a fork is done in three steps, with the functions that Python calls at every `os.fork`:

1. *Before*: wait until no other thread is inside SQLite, at most `FORK_WAIT_S`. Writers are kept out by the write lock
   of each store, all others (readers, opening, closing) by `sqlite_calls`.
2. *In the parent*: go on. Nothing has changed.
3. *In the child*: close what was inherited. A connection without a write transaction can be closed there without a
   change to the file or to a lock of the parent, if it is told not to checkpoint. The store opens the file again when
   it is used, like any other process.

If step 1 fails, or the forking thread itself is inside a write transaction, nothing inherited can be closed. Then the
child cannot use SQLite, and every call says so. A program that is started with `exec` is not affected.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from threading import get_ident
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakSet, ref

import apsw

from rota.clock import SystemClock
from rota.errors import StoreUnavailable
from rota.lazy import late

if TYPE_CHECKING:
    import ctypes
else:
    ctypes = late("ctypes")

__all__ = [
    "FORK_WAIT_S",
    "ForkedStore",
    "abandon",
    "add_store",
    "check_usable",
    "in_child",
    "owned",
    "sqlite_calls",
]

FORK_WAIT_S = 5.0  # how long a fork waits for other threads to leave SQLite

_monotonic = SystemClock.monotonic


class ForkedStore(Protocol):
    """A store, as a fork sees it."""

    def before_fork(self, give_up_at: float) -> bool:
        """Keep other threads out of its writing connection; return whether the child can close it."""
        ...

    def after_fork_in_parent(self) -> None:
        """Let other threads in again."""
        ...

    def after_fork_in_child(self, *, usable: bool) -> None:
        """Give up everything inherited; if SQLite is usable, open the file again at the next call."""
        ...


class _SqliteCalls:
    """The threads that are inside SQLite without a write lock. Used as a context manager; it may be nested.

    Entering takes no lock: a thread first says that it is inside and then looks whether a fork is in progress. The fork
    does it the other way around, so at least one of them finds the other.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside: dict[int, int] = {}  # thread → how many times it has entered
        self._closed_by: int | None = None  # the thread that forks

    def __enter__(self) -> None:
        me = get_ident()
        self._inside[me] = depth = self._inside.get(me, 0) + 1
        if self._closed_by is not None and depth == 1 and self._closed_by != me:
            self._wait(me)

    def __exit__(self, *_: object) -> None:
        me = get_ident()
        if (depth := self._inside[me]) > 1:
            self._inside[me] = depth - 1
            return
        del self._inside[me]
        if self._closed_by is not None:
            with self._changed:
                self._changed.notify_all()

    def _wait(self, me: int) -> None:
        """Step out until the fork is done."""
        with self._changed:
            while self._closed_by is not None:
                self._inside.pop(me, None)
                self._changed.notify_all()
                self._changed.wait()
            self._inside[me] = 1

    def close(self, give_up_at: float) -> bool:
        """Let no other thread in, and return whether those inside left in time."""
        me = get_ident()
        if not self._changed.acquire(timeout=max(0.0, give_up_at - _monotonic())):
            return False
        try:
            self._closed_by = me
            while any(thread != me for thread in list(self._inside)):
                left_s = give_up_at - _monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
            return True
        finally:
            self._changed.release()

    def open(self) -> None:
        """Let other threads in again."""
        with self._changed:
            self._closed_by = None
            self._changed.notify_all()

    def renew(self) -> None:
        """Forget the threads that the child does not have."""
        me = get_ident()
        self._changed = threading.Condition(threading.Lock())
        self._inside = {me: self._inside[me]} if me in self._inside else {}
        self._closed_by = None


class _Fork:
    """A fork in progress: the stores that are open, and whether the child can use SQLite."""

    def __init__(self) -> None:
        self.stores = list(_stores)
        self.usable = False

    def prepare(self, wait_s: float) -> None:
        """Wait until no other thread is inside SQLite."""
        give_up_at = _monotonic() + wait_s
        quiet = [store.before_fork(give_up_at) for store in self.stores]  # each, even after one that is not
        # last: a thread that holds a write lock may still read
        self.usable = sqlite_calls.close(give_up_at) and all(quiet)


sqlite_calls = _SqliteCalls()
_stores: WeakSet[ForkedStore] = WeakSet()
_methods: dict[int, tuple[ref[Any], Callable[[Any], None]]] = {}  # the object of each method, and its function
_method_numbers = count()
_descriptors: set[int] = set()
_one_at_a_time = threading.RLock()  # reentrant: a signal handler may fork while a fork waits
_forks: list[_Fork] = []  # in progress on the thread that holds the lock, outermost first
_usable = True


def add_store(store: ForkedStore) -> None:
    """Include a store in every fork while it exists."""
    _stores.add(store)


def in_child(method: Callable[[], None]) -> None:
    """Call a method in every forked child while its object exists. The child has one thread then."""
    # not a WeakMethod: one whose object goes at the end of the process may be gone itself, and then writes a traceback
    bound, number = cast("MethodType", method), next(_method_numbers)
    _methods[number] = ref(bound.__self__, partial(_methods.pop, number)), bound.__func__


@contextmanager
def owned(descriptor: int) -> Iterator[None]:
    """Unlock and close a descriptor at the end of the block; in a child that is forked inside it, close it at once."""
    _descriptors.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _descriptors:
            _descriptors.remove(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would not do it while a child still has the descriptor
            os.close(descriptor)


def check_usable() -> None:
    """Raise an error in a child that cannot use SQLite."""
    if not _usable:
        text = "this process was forked while its parent was inside a transaction or busy in SQLite"
        hint = "Fork outside of transactions, or use the start method spawn or forkserver of multiprocessing."
        raise StoreUnavailable(text, hint=hint)


def abandon(connection: apsw.Connection, *, usable: bool) -> None:
    """Close an inherited connection in a child, or keep it for ever if that could change the file."""
    if usable:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()
    else:
        # one reference too many: otherwise the end of the interpreter closes it, and so does the end of the module
        for kept in (connection, apsw):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _before() -> None:
    _one_at_a_time.acquire()
    _forks.append(_Fork())
    if len(_forks) == 1:  # a fork inside a fork cannot wait for the locks that its own thread holds
        _forks[0].prepare(FORK_WAIT_S)


def _in_parent() -> None:
    fork = _forks.pop()
    if not _forks:
        sqlite_calls.open()
        for store in fork.stores:
            store.after_fork_in_parent()
    _one_at_a_time.release()


def _in_child() -> None:
    global _one_at_a_time, _usable  # noqa: PLW0603  # they belong to the process
    if not _forks:  # a server written in C may call only this function: see which locks were free, without waiting
        _forks.append(_Fork())
        _forks[0].prepare(0.0)
    fork = _forks[-1]
    _usable = _usable and fork.usable
    _forks.clear()
    _one_at_a_time = threading.RLock()
    sqlite_calls.renew()
    for store in fork.stores:
        store.after_fork_in_child(usable=_usable)
    for reference, function in list(_methods.values()):
        if (owner := reference()) is not None:
            function(owner)
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

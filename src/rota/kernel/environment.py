"""What every part of the kernel shares: the store, the clock, and what this process remembers between transactions.

Three things are remembered: what was read of the store (kernel_cache.py), which workers this process has seen
(workers_seen.py), and how far the wall clock is ahead of the advancing one (clock_jumps.py). All kernels over one store
share them.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from rota.clock import JUMP_MIN_S, Clock
from rota.errors import InvalidPayload
from rota.kernel.entry_waiters import EntryWaiters
from rota.kernel.kernel_cache import KernelCache
from rota.kernel.settings import write_setting
from rota.kernel.store_policy import POLICY_KEY, SHARE_BY_KEY
from rota.kernel.usage_windows import SHARE_WINDOW_KEY
from rota.kernel.workers_seen import WorkersSeen
from rota.model.checks import Checks
from rota.store import Store, Transaction
from rota.store.forks import in_child
from rota.store.statements import claims as sql
from rota.store.statements.file import META_GET

__all__ = ["OFFSET_KEY", "SEEN_EVERY_S", "SEEN_KEY", "ClockOffset", "KernelEnvironment", "kernel_environment"]

SEEN_EVERY_S = 10.0  # how old the stored wall-clock time may become while there is work
SEEN_KEY = "clock_seen_at"  # the setting in the store that holds it
OFFSET_KEY = "clock_offset"  # the setting that holds the boot, and wall minus advancing clock (clock_jumps.py)
T = TypeVar("T")
_call = Checks("Call", InvalidPayload)


class KernelEnvironment(NamedTuple):
    """The store, the clock, the generator for jitter, what is remembered of the store, and waiting callers."""

    store: Store
    clock: Clock
    rng: random.Random
    cache: KernelCache
    workers_seen: WorkersSeen
    waiters: EntryWaiters
    clock_offset: ClockOffset
    is_isolated: bool = False  # its transaction is rolled back

    def isolated(self) -> KernelEnvironment:
        """Return an environment for a transaction that leaves nothing behind: what is remembered is copied or empty."""
        return self._replace(
            rng=copy.copy(self.rng),
            cache=KernelCache(),
            workers_seen=self.workers_seen.copy(),
            clock_offset=copy.copy(self.clock_offset),
            is_isolated=True,
        )

    def now(self, given: float | None = None) -> float:
        """Return the caller's `now` after checking it, or the clock's time."""
        return self.clock.now() if given is None else _call.instant("now", given)

    def read_clock(self, tx: Transaction, *, writes: bool = True) -> float:
        """Return the wall-clock time. If that clock has jumped, first move every duration that is running.

        A transaction that writes an instant a duration from now, or acts on one, has to use it (see clock_jumps.py).
        Without `writes` it may write nothing; it then calls `note_time` if it does.
        """
        known, version = self.clock_offset, tx.foreign_version  # before the clock: this may wait for other processes
        now = self.clock.now()
        ahead_s = now - self.clock.monotonic()
        if known.foreign_version != version or not -JUMP_MIN_S <= ahead_s - known.offset_s <= JUMP_MIN_S:
            now = known.compare(tx, self, now, ahead_s)
        if writes and not known.seen_at <= now < known.seen_at + SEEN_EVERY_S:
            self.note_time(tx, now)
        return now

    def note_time(self, tx: Transaction, now: float) -> None:
        """Store the time, which is from `read_clock`, unless a recent one is stored."""
        known = self.clock_offset
        if not known.seen_at <= now < known.seen_at + SEEN_EVERY_S:
            known.seen_at = now
            tx.effects.on_rollback.append(lambda: setattr(known, "seen_at", -math.inf))
            write_setting(tx, SEEN_KEY, repr(now))

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work that may change anything: nothing cached before it, or by it, is used afterwards."""

        def changing(tx: Transaction) -> T:
            self.cache.invalidate()
            result = work(tx)
            self.cache.invalidate()
            return result

        return self.store.write(changing)

    def write_keeping_cache(self, work: Callable[[Transaction], T]) -> T:
        """Run work that leaves the cached rows unchanged, or adjusts the cache itself."""
        return self.store.write(work)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view."""
        return self.store.read(work)


# --- the clock offset ----------------------------------------------------------------------------

Compare: TypeAlias = Callable[[Transaction, KernelEnvironment, float, float], float]


class ClockOffset:
    """The store's record of how far the wall clock is ahead of the advancing one, as last read (see clock_jumps.py).

    `compare` is called if it is not known or no longer true; it returns the time.
    """

    __slots__ = ("boot_id", "compare", "foreign_version", "offset_s", "seen_at")

    def __init__(self, clock: Clock, compare: Compare) -> None:
        self.compare = compare
        self.boot_id = clock.boot_id()
        self.foreign_version = -1  # of the transaction in which it was read: a later one may find another
        self.offset_s = 0.0
        self.seen_at = -math.inf  # the last wall-clock time that this process has stored


_REMEMBERED: WeakKeyDictionary[Store, tuple[KernelCache, WorkersSeen, ClockOffset]] = WeakKeyDictionary()


def kernel_environment(store: Store, clock: Clock, rng: random.Random, compare: Compare) -> KernelEnvironment:
    """Return the environment of a kernel. All kernels over one store share what is remembered of it."""
    remembered = _REMEMBERED.get(store)
    if remembered is None:
        remembered = _REMEMBERED[store] = KernelCache(), WorkersSeen(clock.monotonic), ClockOffset(clock, compare)
        in_child(remembered[1].forget)
        # what nearly every transaction reads when nothing remembered is valid any more
        settings = (OFFSET_KEY, POLICY_KEY, SHARE_BY_KEY, SHARE_WINDOW_KEY)
        store.foretell([(META_GET, (key,)) for key in settings])
        store.foretell([(sql.DUE_SUMMARY, ()), (sql.FIRST_PROJECTS, ())])
    cache, workers_seen, clock_offset = remembered
    return KernelEnvironment(store, clock, rng, cache, workers_seen, EntryWaiters(store, clock), clock_offset)

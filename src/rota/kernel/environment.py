"""What every part of the kernel shares: the store, the clock, the random generator and the caches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rota.clock import Clock
from rota.errors import InvalidPayload
from rota.kernel.cache import KernelCache
from rota.kernel.workers_seen import WorkersSeen
from rota.model.checks import Checks
from rota.store import Store, Transaction

__all__ = ["KernelEnvironment"]

T = TypeVar("T")
_call = Checks("Call", InvalidPayload)


class KernelEnvironment(NamedTuple):
    """The store, the clock, the generator for jitter, and what is cached per store."""

    store: Store
    clock: Clock
    rng: random.Random
    cache: KernelCache
    workers_seen: WorkersSeen

    def now(self, given: float | None = None) -> float:
        """Return the caller's `now` after checking it, or the clock's time."""
        return self.clock.now() if given is None else _call.instant("now", given)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a write transaction and invalidate the cache."""

        def changing(tx: Transaction) -> T:
            self.cache.invalidate()
            return work(tx)

        return self.store.write(changing)

    def write_keeping_cache(self, work: Callable[[Transaction], T]) -> T:
        """Run work that leaves the cached rows unchanged, or invalidates the cache itself."""
        return self.store.write(work)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view."""
        return self.store.read(work)

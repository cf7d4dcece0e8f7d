"""The two things that almost every call reads, cached per store: the due summary and the live agents."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from rota.kernel.due_summary import DueSummary
from rota.store import Store, Transaction

__all__ = ["LIVE_AGENTS_MAX", "KernelCache", "cache_of"]

LIVE_AGENTS_MAX = 10_000  # agents cached as alive


class KernelCache:
    """The due summary and the live agents, as last read.

    Every write invalidates the cache, except writes that are known to leave both unchanged, and so does a write of
    another connection. A cached due summary may name instants that are too early, which costs one needless read,
    but never one that is too late.
    """

    __slots__ = ("_due", "_foreign_version", "_live_agents")

    def __init__(self) -> None:
        self._foreign_version = -1  # of the transaction in which the cache was last used
        self._due: DueSummary | None = None
        self._live_agents: dict[int, str | None] = {}

    def invalidate(self) -> None:
        """Drop everything, so that it is read again."""
        self._due = None
        self._live_agents = {}

    def due_summary(self, tx: Transaction) -> DueSummary | None:
        """Return the cached due summary, or None."""
        if self._foreign_version != tx.foreign_version:
            self._start_over(tx)
        return self._due

    def set_due_summary(self, tx: Transaction, due: DueSummary) -> None:
        """Cache a due summary that was just read."""
        if self._foreign_version != tx.foreign_version:
            self._start_over(tx)
        self._due = due
        tx.effects.on_rollback.append(self.invalidate)

    def update_due_summary(self, due: DueSummary) -> None:
        """Replace the cached due summary, if there is one, after a change whose effect on it is known."""
        if self._due is not None:
            self._due = due

    def live_agents(self, tx: Transaction) -> dict[int, str | None]:
        """Return the agents cached as alive, each with its project."""
        if self._foreign_version != tx.foreign_version:
            self._start_over(tx)
        return self._live_agents

    def add_live_agents(self, tx: Transaction, found: Mapping[int, str | None]) -> None:
        """Cache agents that were just found alive."""
        if len(self._live_agents) + len(found) > LIVE_AGENTS_MAX:
            self._live_agents = {}
        self._live_agents.update(found)
        tx.effects.on_rollback.append(self.invalidate)

    def _start_over(self, tx: Transaction) -> None:
        """Invalidate the cache because another connection has written."""
        self._foreign_version = tx.foreign_version
        self.invalidate()


_CACHES: WeakKeyDictionary[Store, KernelCache] = WeakKeyDictionary()


def cache_of(store: Store) -> KernelCache:
    """Return the one cache of a store: two kernels over one store see each other's writes immediately."""
    return _CACHES.setdefault(store, KernelCache())

"""The workers that a store knows: which processes claim entries, where they run and how many slots they have.

A worker *registers* when it starts, repeats that every `WORKER_REFRESH_S` while it works, and *leaves* at its end. It
is alive while it was seen within `WORKER_ALIVE_S` or holds a live claim. A caller that only claims need not register;
it is known by its claims.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["WORKER_ALIVE_S", "WORKER_REFRESH_S", "SlotPool", "WorkerInfo", "WorkerKind"]

WORKER_REFRESH_S = 15.0  # how often a worker repeats its registration
WORKER_ALIVE_S = 60.0  # how long after it was last seen a worker without claims counts as alive

WorkerKind: TypeAlias = Literal["supervisor", "entry_worker", "graph"]


class SlotPool(msgspec.Struct, frozen=True):
    """The equal slots of a worker: they run entries of no kind and of these kinds."""

    worker_id: str  # the name under which it claims for these slots: the worker's own, or `worker/kind`
    slots: int
    kinds: tuple[str, ...] = ()
    running: int = 0  # live claims under that name

    def takes(self, kind: str | None) -> bool:
        """Whether these slots run entries of this kind."""
        return kind is None or kind in self.kinds


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it registered; or, with kind `unregistered`, as its claims show it."""

    worker_id: str
    incarnation: str
    kind: Literal["supervisor", "entry_worker", "graph", "unregistered"]
    host: str = ""
    os_pid: int | None = None
    slots: int = 0  # of all pools; 0 for an unregistered one
    kinds: tuple[str, ...] = ()  # of all pools
    started_at: float
    seen_at: float
    draining: bool = False  # it claims no more entries
    alive: bool = True
    running: int = 0  # live claims
    pools: tuple[SlotPool, ...] = ()
    version: str = ""  # of rota

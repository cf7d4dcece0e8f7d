"""The workers that a store knows: which processes claim entries, where they run and how many slots they have.

A worker *registers* when it starts, repeats that every `WORKER_REFRESH_S` while it works, and *leaves* at its end. It
is alive while it was seen within `WORKER_ALIVE_S` or holds a live claim. A caller that only claims need not register;
it is known by its claims.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "ONLY_KINDS",
    "WORKER_ALIVE_S",
    "WORKER_REFRESH_S",
    "WORKER_SILENT_S",
    "PlacementCode",
    "PlacementProblem",
    "SlotPool",
    "WorkerInfo",
    "WorkerKind",
    "lost_worker_text",
    "takes_no_kind",
]

WORKER_REFRESH_S = 15.0  # how often a worker repeats its registration
WORKER_SILENT_S = WORKER_REFRESH_S + 5.0  # a worker that was not seen for so long is stopped, cut off or dead
WORKER_ALIVE_S = 60.0  # how long after it was last seen a worker without claims counts as alive

ONLY_KINDS = "!"  # among the kinds of a claim or a pool: it takes no entries that have no kind

PlacementCode: TypeAlias = Literal["resource_missing", "node_missing", "cluster_unreachable", "withdrawn"]
WorkerKind: TypeAlias = Literal["supervisor", "entry_worker", "graph"]


def takes_no_kind(kinds: Collection[str]) -> bool:
    """Whether slots of these kinds also run entries that have no kind."""
    return ONLY_KINDS not in kinds


def lost_worker_text(worker_id: str, host: str, entries: int) -> str:
    """Return what the loss of a worker means for the entries whose claims have expired with it."""
    if not entries:
        return f"worker {worker_id} on {host} is lost: it ran nothing"
    runs = "1 run, which is" if entries == 1 else f"{entries:,} runs, which are"
    return f"worker {worker_id} on {host} is lost with {runs} tried again if attempts are left"


class PlacementProblem(msgspec.Struct, frozen=True):
    """Why a worker that places runs elsewhere, on a cluster, does not place those of one kind now."""

    kind: str
    code: PlacementCode
    text: str  # with the names and numbers


class SlotPool(msgspec.Struct, frozen=True):
    """The equal slots of a worker: they run entries of these kinds and, without `ONLY_KINDS`, of no kind."""

    worker_id: str  # the name under which it claims for these slots: the worker's own, or `worker/kind`
    slots: int
    kinds: tuple[str, ...] = ()
    running: int = 0  # live claims under that name
    problems: tuple[PlacementProblem, ...] = ()  # of kinds that it does not run now
    except_agents: tuple[int, ...] = ()  # agents whose entries it leaves to others: it cannot run them
    lacks: dict[int, str] = {}  # what cannot be imported here, by agent: of the first few of them

    def takes(self, kind: str | None) -> bool:
        """Whether these slots run entries of this kind."""
        return kind in self.kinds if kind is not None else takes_no_kind(self.kinds)


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
    silent: bool = False  # it registered, and was not seen for `WORKER_SILENT_S`
    running: int = 0  # live claims
    pools: tuple[SlotPool, ...] = ()
    version: str = ""  # of rota

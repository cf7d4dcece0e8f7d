"""The durable kernel, as runs with a queue lane use it.

An invocation is an entry: under a key of its own (so that asking twice adds nothing), of the kind `graph:NAME` (so that
only workers of this graph take it), with all that is needed to run it as its payload. The priority classes become the
queue's priorities around its default: high +1, normal 0, low -1, background -2. A worker that dies leaves a claim that
expires, and the kernel hands the entry out again; what fails for good is told by how the entry ended.

Where the run itself stands is a row that the kernel keeps (see `kernel.graph_runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from rota.graph.invocation import Publication
from rota.graph.spec import PRIORITY_RANKS
from rota.kernel import Kernel
from rota.kernel.enqueue import ENQUEUE_MAX
from rota.kernel.graph_runs import GraphRun
from rota.model.work import ReadyEntry, ScheduleSpec

__all__ = ["DurableRun", "DurableRuns", "EntryOutcome", "EntryRequest", "EntryResult", "entry_kind"]

TEMPLATE = "graph"  # of the agents that graphs make for themselves
TRIGGER = "graph"
_NORMAL = PRIORITY_RANKS["normal"]


def entry_kind(graph: str) -> str:
    """The kind of slot that the entries of a graph need: a worker that has its components."""
    return f"graph:{graph}"


class EntryRequest(NamedTuple):
    """An invocation that is to become an entry."""

    key: str
    payload: dict[str, Any]
    rank: int  # 3 high … 0 background


class EntryResult(msgspec.Struct, frozen=True):
    """What a worker says of an invocation that ended well: the result of its entry."""

    published: list[Publication]
    duration_s: float


class EntryOutcome(NamedTuple):
    """How an entry ended."""

    succeeded: bool
    result: Any = None  # an `EntryResult` as JSON, if its worker was one of ours
    error: str = ""


class DurableRuns:
    """A kernel that keeps runs of graphs, and on which agent's account their entries are.

    Without a `pid` each graph has an agent of its own name, which is made when its first run begins.
    """

    def __init__(self, kernel: Kernel, pid: int | None = None) -> None:
        self._kernel = kernel
        self._pid = pid

    def take(self, run_id: str, graph: str) -> DurableRun:
        """Begin a run, or go on with it; a process that had it before may not write any more."""
        return DurableRun(self._kernel, self._kernel.graphs.take(run_id, graph, self._account(graph)))

    def _account(self, graph: str) -> int:
        if self._pid is not None:
            return self._pid
        known = [agent.pid for agent in self._kernel.agents.find(graph) if agent.template == TEMPLATE]
        return min(known) if known else self._kernel.agents.create(graph, TEMPLATE)


class DurableRun:
    """One run, held by this process."""

    def __init__(self, kernel: Kernel, run: GraphRun) -> None:
        self._kernel = kernel
        self._run = run

    @property
    def checkpoint(self) -> bytes | None:
        """Where the run stood when it was taken; None for one that is new."""
        return self._run.checkpoint

    def enqueue(self, requests: Sequence[EntryRequest]) -> list[int]:
        """Make entries, in one commit for each `ENQUEUE_MAX`; a key that was used before gives the entry of then."""
        specs = [self._spec(request) for request in requests]
        ids: list[int] = []
        for start in range(0, len(specs), ENQUEUE_MAX):
            ids += self._kernel.queue.enqueue_many(specs[start : start + ENQUEUE_MAX])
        return ids

    def _spec(self, request: EntryRequest) -> ScheduleSpec:
        return ScheduleSpec(
            self._run.pid,
            request.rank - _NORMAL,
            trigger=TRIGGER,
            payload=request.payload,
            key=request.key,
            kind=entry_kind(self._run.graph),
            correlation_id=self._run.run_id,
        )

    def ended(self, entry_ids: Sequence[int]) -> dict[int, EntryOutcome]:
        """How those of these entries ended that have ended."""
        return {entry_id: _outcome(entry) for entry_id, entry in self._kernel.graphs.ended(entry_ids).items()}

    def commit(self, next_epoch_id: int, checkpoint: bytes) -> None:
        """Keep where the run stands, in place of what was kept before; durable when it returns."""
        self._kernel.graphs.commit(
            self._run.run_id, fence=self._run.fence, next_epoch_id=next_epoch_id, checkpoint=checkpoint
        )

    def on_change(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call this after every commit, of any process: an entry may have ended. The answer ends it."""
        return self._kernel.store.on_change(ring)


def _outcome(entry: ReadyEntry | None) -> EntryOutcome:
    if entry is None:
        return EntryOutcome(succeeded=False, error="its entry was pruned before the run saw how it ended")
    if entry.state == "completed" and entry.exit_kind == "completed":
        return EntryOutcome(succeeded=True, result=entry.result)
    return EntryOutcome(succeeded=False, error=_why(entry))


def _why(entry: ReadyEntry) -> str:
    """Why an entry did not succeed: what its worker said, else how it ended."""
    if isinstance(entry.result, dict) and isinstance(entry.result.get("error"), str):
        return str(entry.result["error"])
    ending = " ".join(filter(None, (entry.state, entry.exit_kind, entry.outcome)))
    return f"entry {entry.sched_id} ended without a result: {ending}"

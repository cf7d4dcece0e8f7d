"""The durable kernel, as runs with a queue lane use it.

An invocation is an entry: with a key of its own (so that enqueueing it twice adds nothing), of the kind `graph:NAME`
(so that only workers of this graph claim it), and with everything needed to run it as its payload. The priority classes
become queue priorities around the default: high +1, normal 0, low -1, background -2. If a worker dies its claim expires
and the kernel hands the entry out again; how the entry ended says whether it failed for good.

The state of the run itself is a row that the kernel stores (see `kernel.graph_runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from rota.errors import ComponentInvalid
from rota.graph.invocation import Publication
from rota.graph.reports import error_text
from rota.graph.spec import PRIORITY_RANKS
from rota.kernel import Kernel
from rota.kernel.enqueue import ENQUEUE_MAX
from rota.kernel.graph_runs import GraphRun
from rota.model.work import ReadyEntry, ScheduleSpec

__all__ = [
    "NEW_RUN_HINT",
    "DurableRun",
    "DurableRuns",
    "EntryOutcome",
    "EntryRequest",
    "EntryResult",
    "entry_kind",
    "json_value",
]

TEMPLATE = "graph"  # of the agents that are created for graphs
TRIGGER = "graph"
NEW_RUN_HINT = "Start a new run with another run_id (--run-id)."
_NORMAL = PRIORITY_RANKS["normal"]


def entry_kind(graph: str) -> str:
    """Return the kind of a graph's entries; only workers that have its components claim this kind."""
    return f"graph:{graph}"


class EntryRequest(NamedTuple):
    """An invocation to enqueue."""

    key: str
    payload: dict[str, Any]
    rank: int  # 3 high … 0 background


class EntryResult(msgspec.Struct, frozen=True):
    """The result of an entry whose invocation succeeded, as its worker reports it."""

    published: list[Publication]
    duration_s: float


class EntryOutcome(NamedTuple):
    """How an entry ended."""

    succeeded: bool
    result: Any = None  # an `EntryResult` as JSON, if an `EntryWorker` ran it
    error: str = ""


class DurableRuns:
    """A kernel that stores runs of graphs, and the agent that their entries belong to.

    Without a `pid` each graph has an agent with its own name, which is created when its first run begins.
    """

    def __init__(self, kernel: Kernel, pid: int | None = None) -> None:
        self._kernel = kernel
        self._pid = pid

    def acquire(self, run_id: str, graph: str) -> DurableRun:
        """Begin or resume a run; a process that held it before can no longer write to it."""
        return DurableRun(self._kernel, self._kernel.graphs.take(run_id, graph, self._agent(graph)))

    def _agent(self, graph: str) -> int:
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
        """The latest checkpoint when the run was acquired; None for a new run."""
        return self._run.checkpoint

    def enqueue(self, requests: Sequence[EntryRequest]) -> list[int]:
        """Enqueue entries, in one commit per `ENQUEUE_MAX`, and return their ids; a known key returns the old entry."""
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
        """Return the outcomes of those of these entries that have ended."""
        return {entry_id: _outcome(entry) for entry_id, entry in self._kernel.graphs.ended(entry_ids).items()}

    def commit(self, next_epoch_id: int, checkpoint: bytes) -> None:
        """Store a checkpoint in place of the previous one; durable when it returns."""
        self._kernel.graphs.commit(
            self._run.run_id, fence=self._run.fence, next_epoch_id=next_epoch_id, checkpoint=checkpoint
        )

    def on_change(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` after every commit of any process, when an entry may have ended; return an unsubscriber."""
        return self._kernel.store.on_change(notify)


def _outcome(entry: ReadyEntry | None) -> EntryOutcome:
    if entry is None:
        return EntryOutcome(succeeded=False, error="the entry was pruned before the run saw how it ended")
    if entry.state == "completed" and entry.exit_kind == "completed":
        return EntryOutcome(succeeded=True, result=entry.result)
    return EntryOutcome(succeeded=False, error=_failure_text(entry))


def _failure_text(entry: ReadyEntry) -> str:
    """Return why an entry did not succeed: its worker's error, else how it ended."""
    if isinstance(entry.result, dict) and isinstance(entry.result.get("error"), str):
        return str(entry.result["error"])
    ending = " ".join(filter(None, (entry.state, entry.exit_kind, entry.outcome)))
    return f"entry {entry.sched_id} ended without a result: {ending}"


def json_value(what: str, value: Any) -> Any:
    """Return a value as it reads back from JSON; raises if that is not the same value."""
    try:
        back = msgspec.json.decode(msgspec.json.encode(value))
        same = bool(back == value)
    except Exception as problem:  # the value's own methods may raise anything
        raise _not_json(what, value, error_text(problem)) from problem
    if not same:
        raise _not_json(what, value, "it changes when it is read back")
    return back


def _not_json(what: str, value: Any, reason: str) -> ComponentInvalid:
    return ComponentInvalid(
        f"{what} is a {type(value).__name__} that cannot be stored as JSON: {reason}",
        hint="In a graph with a queue lane use only dictionaries, lists, strings, numbers, booleans and `None`.",
    )

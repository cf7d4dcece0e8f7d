"""The methods for graph runs: starting and operating them, and what their coordinators need.

A document names functions that supervisors call, so starting one needs scope `operate`, as creating an agent does. A
caller with fewer rights enqueues an entry of a graph that the operator's fleet file has: `kernel.sched.enqueue_agent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from rota import errors as e
from rota.model.graph_runs import GraphCancellation, GraphRun, GraphRunInfo, GraphRunReport, GraphRunStatus
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.service.api.declaration import REFUSED, method, own_reads, owned

__all__ = ["GraphsApi"]

Ids: TypeAlias = list[int]
RunList: TypeAlias = list[GraphRunInfo]  # in the class, `list` is a method
_RUN = (e.GraphRunUnknown, e.InvalidPayload)
_HELD = (e.GraphRunUnknown, e.StaleClaim, e.InvalidPayload)


class GraphsApi(Protocol):
    """Graph runs."""

    @method(
        "kernel.graph.start",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        errors=(e.GraphInvalid, e.GraphRunExists, e.ProjectUnknown, e.InvalidInput, e.InvalidPayload),
    )
    def start(
        self,
        document: Mapping[str, Any],
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        project: str | None = None,
        budget: Mapping[str, int] | None = None,
    ) -> GraphRunInfo:
        """Check and store a graph, and enqueue the entry that coordinates its run.

        Without a `project` the run is in the one that has all of its agents. All problems of the document are reported
        together. With a `run_id` that exists, the same document and the same inputs, it returns that run.
        """
        ...

    @method(
        "kernel.graph.list",
        scope="read",
        execution="read",
        bound=own_reads("graph_runs"),
        run="view",
        result=("runs", "total"),
        errors=(e.InvalidPayload,),
    )
    def list(
        self, *, status: str | None = None, graph: str | None = None, limit: int = 100, offset: int = 0
    ) -> tuple[RunList, int]:
        """Return a page of graph runs, newest first, and the number of all that match."""
        ...

    @method(
        "kernel.graph.get",
        scope="read",
        execution="read",
        bound=owned("run_id"),
        run="view",
        errors=_RUN,
    )
    def get(self, run_id: str) -> GraphRunInfo:
        """Return a graph run without its nodes: how it is, its result, what it waits for. `show` reads its entries."""
        ...

    @method(
        "kernel.graph.show",
        scope="read",
        execution="read",
        bound=owned("run_id", view="graph_run"),
        run="view",
        errors=_RUN,
    )
    def show(self, run_id: str) -> GraphRunReport:
        """Return everything about a graph run: its nodes, their entries, what it waits for, what it used."""
        ...

    @method(
        "kernel.graph.cancel",
        scope="enqueue",
        execution="multi_commit",
        bound=owned("run_id"),
        run="refused",
        retry_safe=True,
        errors=_RUN,
    )
    def cancel(self, run_id: str, *, stop: bool = True, by: str | None = None) -> GraphCancellation:
        """Cancel a graph run with its queued entries, and ask its running entries to stop."""
        ...

    @method(
        "kernel.graph.resume",
        scope="enqueue",
        execution="write",
        bound=owned("run_id"),
        run="refused",
        errors=(e.GraphRunRefused, *_RUN),
    )
    def resume(self, run_id: str) -> GraphRunInfo:
        """Let a failed or cancelled graph run go on from its checkpoint."""
        ...

    @method(
        "kernel.graph.forget",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        result="existed",
        errors=(e.GraphRunRefused, e.InvalidPayload),
    )
    def forget(self, run_id: str, *, cancel: bool = False) -> bool:
        """Delete a graph run that has ended; with `cancel`, a live one is cancelled first."""
        ...

    # --- for the process that executes a run -----------------------------------------------------

    @method(
        "kernel.graph.take",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.UnknownPid, e.InvalidPayload),
    )
    def take(self, run_id: str, graph: str, pid: int) -> GraphRun:
        """Start a graph run that the caller executes itself, or take over an existing one."""
        ...

    @method(
        "kernel.graph.take_entry",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.GraphInvalid, e.SchedUnknownId, e.StaleClaim, e.InvalidPayload),
    )
    def take_entry(self, sched_id: int, token: int) -> GraphRun:
        """For a coordinator: take the graph run that its entry coordinates, or begin it."""
        ...

    @method(
        "kernel.graph.commit",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.StaleClaim, e.InvalidPayload),
    )
    def commit(
        self, run_id: str, *, fence: int, next_epoch_id: int, checkpoint: bytes, waits: str | None = None
    ) -> None:
        """Store the checkpoint of a graph run before an epoch, and what the run waits for."""
        ...

    @method(
        "kernel.graph.enqueue",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        result="sched_ids",
        errors=(e.StaleClaim, e.UnknownPid, e.SchedInvalidPayload, e.InvalidPayload),
    )
    def enqueue(self, run_id: str, fence: int, specs: Sequence[ScheduleSpec]) -> Ids:
        """Enqueue entries of a graph run, all or none; refused once the run has ended."""
        ...

    @method(
        "kernel.graph.ended",
        scope="work",
        execution="read",
        bound=REFUSED,
        run="refused",
        result="entries",
        errors=(e.InvalidPayload,),
    )
    def ended(self, sched_ids: Sequence[int]) -> dict[int, ReadyEntry | None]:
        """Return those of some entries that have ended; null for one that was pruned."""
        ...

    @method(
        "kernel.graph.finish",
        scope="work",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=_HELD,
    )
    def finish(
        self, run_id: str, fence: int, status: GraphRunStatus, *, result: Any = None, error: str | None = None
    ) -> GraphRunInfo:
        """End a graph run, and cancel or stop what is left of its entries."""
        ...

    @method(
        "kernel.graph.tidy",
        scope="work",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        result="count",
        retry_safe=True,
    )
    def tidy(self) -> int:
        """End graph runs whose coordinator has ended without ending them."""
        ...

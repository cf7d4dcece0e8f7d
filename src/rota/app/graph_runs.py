"""Handles on graph runs, for the code that started them.

    run = rota.run_graph(g, inputs={"topic": "owls"})
    print(run.result())

Where a run lives follows from its graph. A graph of functions alone runs on a thread of this program, and the store
hears nothing of it. A graph with agents is stored and coordinated by a supervisor, so it outlives this program. If it
has functions that no other process can import, a thread of this program coordinates it instead.

`result` and `wait` block the calling thread; in a coroutine `await run` is the result, and every method has a twin with
an `a` in front.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from typing import Any

from rota.app.async_run import on_own_thread
from rota.app.jobs import StoreLink
from rota.app.moments import Duration, seconds_of
from rota.clock import Clock
from rota.errors import GraphRunFailed, GraphRunRefused, RotaError, WaitTimeout
from rota.graph import RuntimeRunner, RuntimeRunnerResult, SchedulerStopReason
from rota.graph.builder import RESULT
from rota.graph.run_values import outputs_of
from rota.model.graph_runs import ENDED, GraphNodeReport, GraphRun, GraphRunInfo, GraphRunStatus

__all__ = ["GraphRunHandle", "LocalGraphRun", "StoredGraphRun", "Worker"]

WAIT_S = 60.0  # one wait for the coordinator's entry; a longer one is repeated
EPOCHS_MAX = 10_000_000  # of a run in this process; loops have their own maximum

Worker = Callable[[], contextlib.AbstractContextManager[None]]  # runs entries meanwhile, if nothing else does


class GraphRunHandle(ABC):
    """A handle on a graph run. `await run` waits for its result."""

    def __init__(self, graph: str, run_id: str, clock: Clock, worker: Worker) -> None:
        self.graph = graph
        self.run_id = run_id
        self._clock = clock
        self._worker = worker

    def __repr__(self) -> str:
        return f"<GraphRun {self.run_id} of {self.graph}>"

    @property
    @abstractmethod
    def status(self) -> GraphRunStatus:
        """One word: running, waiting, succeeded, failed or cancelled."""

    @abstractmethod
    def _wait(self, wait_s: float | None) -> bool:
        """Wait until the run has ended; False if it has not after this time."""

    @abstractmethod
    def _ended(self) -> tuple[GraphRunStatus, Any, str | None]:
        """Return how a run ended that was waited for: its status, its outputs, its error."""

    @abstractmethod
    def nodes(self) -> tuple[GraphNodeReport, ...]:
        """Return the state of every node."""

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the run: nothing more of it starts, and its running entries are asked to stop."""

    @abstractmethod
    def resume(self) -> None:
        """Let a failed or cancelled run go on from its checkpoint."""

    def wait(self, wait_s: Duration | None = None) -> GraphRunStatus:
        """Wait until the run has ended, in any way, and return its status; `WaitTimeout` after `wait_s`.

        While no worker is alive that runs the agents of this program, entries run here.
        """
        limit_s = None if wait_s is None else seconds_of("wait_s", wait_s)
        with self._worker() if limit_s != 0 else contextlib.nullcontext():
            if not self._wait(limit_s):
                hint = f"`rota graph show {self.run_id}` shows what it waits for."
                raise WaitTimeout(f"graph run {self.run_id} has not ended after {limit_s:g} s", hint=hint)
        return self._ended()[0]

    def result(self, wait_s: Duration | None = None) -> Any:
        """Wait for the run and return its result; raises `GraphRunFailed` if it failed or was cancelled.

        The result is what the graph's output received, or a dictionary of its outputs if they have names.
        """
        self.wait(wait_s)
        status, outputs, error = self._ended()
        if status == "succeeded":
            is_single = isinstance(outputs, Mapping) and list(outputs) == [RESULT]
            return outputs[RESULT] if is_single else outputs
        text = f"graph run {self.run_id} of {self.graph} ended {status}"
        raise GraphRunFailed(f"{text}: {error}" if error else text, graph=self.graph)

    # --- for coroutines --------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aresult().__await__()

    async def aresult(self, wait_s: Duration | None = None) -> Any:
        """Wait for the result like `result`."""
        return await on_own_thread(lambda: self.result(wait_s), lambda: None)

    async def await_end(self, wait_s: Duration | None = None) -> GraphRunStatus:
        """Wait until the run has ended like `wait`."""
        return await on_own_thread(lambda: self.wait(wait_s), lambda: None)

    async def astatus(self) -> GraphRunStatus:
        """One word, like `status`."""
        return await asyncio.to_thread(lambda: self.status)

    async def anodes(self) -> tuple[GraphNodeReport, ...]:
        """Return the state of every node."""
        return await asyncio.to_thread(self.nodes)

    async def acancel(self) -> None:
        """Cancel the run."""
        await asyncio.to_thread(self.cancel)

    async def aresume(self) -> None:
        """Let a failed or cancelled run go on from its checkpoint."""
        await asyncio.to_thread(self.resume)


class LocalGraphRun(GraphRunHandle):
    """A run on a thread of this program; one with agents has a row in the store."""

    def __init__(
        self,
        runner: RuntimeRunner,
        run_id: str,
        worker: Worker,
        stored: tuple[StoreLink, GraphRun] | None = None,
    ) -> None:
        super().__init__(runner.plan.name, run_id, runner.options.clock, worker)
        self._runner = runner
        self._stored = stored
        self._is_over = threading.Event()
        self._problem: BaseException | None = None
        threading.Thread(target=self._run, name=f"rota-graph-{run_id[:8]}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._runner.run()
            if self._stored is not None:
                link, run = self._stored
                status, outputs, error = self._ended()
                link.api.graphs.finish(run.run_id, run.fence, status, result=outputs, error=error)
        except BaseException as problem:  # of the engine or the store: `result` raises it
            self._problem = problem
        finally:
            self._is_over.set()

    @property
    def status(self) -> GraphRunStatus:
        """One word: running, succeeded, failed or cancelled."""
        return self._ended()[0] if self._is_over.is_set() else "running"

    def _wait(self, wait_s: float | None) -> bool:
        return self._is_over.wait(wait_s)

    def _ended(self) -> tuple[GraphRunStatus, Any, str | None]:
        result: RuntimeRunnerResult = self._runner.result
        if self._problem is not None:
            text = self._problem.message if isinstance(self._problem, RotaError) else repr(self._problem)
            return "failed", None, text
        if result.scheduler_stop_reason == SchedulerStopReason.STOP_REQUESTED:
            return "cancelled", None, None
        if result.scheduler_stop_reason != SchedulerStopReason.IDLE:
            return "failed", None, next(iter(result.errors), f"it ended by {result.scheduler_stop_reason}")
        return "succeeded", outputs_of(self._runner.plan.components, result.snapshots), None

    def nodes(self) -> tuple[GraphNodeReport, ...]:
        """Return the state of every node, as of the last epoch."""
        shown = () if self._stored is None else self._stored[0].api.graphs.show(self.run_id).nodes
        stored = {node.node: node for node in shown}  # those that have entries
        return tuple(
            stored.get(name)
            or GraphNodeReport(node=name, state="failed" if failed else "succeeded" if completed else "pending")
            for name, (completed, failed) in self._runner.node_counts().items()
        )

    def cancel(self) -> None:
        """Stop the run at its next epoch, loop iteration or wait; a component that runs is finished."""
        self._runner.stop("cancelled")
        if self._stored is not None:
            self._stored[0].api.graphs.cancel(self.run_id)

    def resume(self) -> None:
        """Raise: only a stored run can be resumed."""
        hint = "Start it again with run_graph(…)."
        raise GraphRunRefused(f"run {self.run_id} is a run of this program, which cannot be resumed", hint=hint)


class StoredGraphRun(GraphRunHandle):
    """A run in a store, which a supervisor coordinates."""

    def __init__(self, link: StoreLink, info: GraphRunInfo, worker: Worker) -> None:
        super().__init__(info.graph, info.run_id, link.api.clock, worker)
        self._link = link
        self._found = info  # as `_wait` saw it last

    def info(self) -> GraphRunInfo:
        """Return the run as it is stored now."""
        return self._link.api.graphs.get(self.run_id)

    @property
    def status(self) -> GraphRunStatus:
        """One word: running, waiting, succeeded, failed or cancelled."""
        return self.info().status

    def _wait(self, wait_s: float | None) -> bool:
        give_up_at = None if wait_s is None else self._clock.monotonic() + wait_s
        while self._find().status not in ENDED:
            left_s = WAIT_S if give_up_at is None else max(0.0, give_up_at - self._clock.monotonic())
            if self._found.sched_id is not None:
                try:
                    self._link.api.queue.wait(self._found.sched_id, min(left_s, WAIT_S))
                except WaitTimeout:
                    if give_up_at is not None and left_s <= WAIT_S:
                        return self._find().status in ENDED
                    continue
            self._link.api.graphs.tidy()  # a coordinator that was cancelled by itself has not ended its run
        return True

    def _find(self) -> GraphRunInfo:
        self._found = self.info()
        return self._found

    def _ended(self) -> tuple[GraphRunStatus, Any, str | None]:
        return self._found.status, self._found.result, self._found.error

    def nodes(self) -> tuple[GraphNodeReport, ...]:
        """Return the state of every node."""
        return self._link.api.graphs.show(self.run_id).nodes

    def cancel(self) -> None:
        """Cancel the run with its queued entries, and ask its running entries to stop."""
        self._link.api.graphs.cancel(self.run_id)

    def resume(self) -> None:
        """Let a failed or cancelled run go on from its checkpoint."""
        self._link.api.graphs.resume(self.run_id)

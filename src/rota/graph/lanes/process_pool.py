"""The process_pool lane: a pool whose workers are processes, so that a hard timeout really ends the work.

Each worker thread of the pool has one process of the host's worker pool: it sends an invocation there as a call and
waits for its outcome. A call that takes longer than the component's `timeout_ms` is killed (SIGKILL) and the invocation
fails with `component_hard_timeout`. If the process exits by itself, it fails with `worker_crashed`. In both cases
another process is reserved when it is next needed, and its components are configured and activated again. With
`on_error: retry` a timeout and a crash are retried like an exception.

Payloads, components and publications cross by pickle; an object that cannot be pickled fails only the invocation that
needed it. Functions and reentrant classes may be called in any worker. A class that is not reentrant has state that
must stay in one process, so it is *pinned* to one worker and called there, whichever thread picked it.

As with multiprocessing, a script that runs a graph with such a lane must have its main code behind
`if __name__ == "__main__":`.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rota.errors import ComponentInvalid, InvalidInput, RunnerHandshakeFailed, RunnerIpcTimeout, WorkersUnavailable
from rota.graph.invocation import Invocation
from rota.graph.lanes import worker_process
from rota.graph.lanes.order import QueuedInvocation
from rota.graph.lanes.worker_process import ComponentSetup, InvocationReport, RunRequest, hook
from rota.graph.lanes.worker_settings import WorkerReport, apply_worker_settings
from rota.graph.nodes import Node
from rota.graph.plan import Lane
from rota.graph.reports import ReportedFailure, Reports, error_text
from rota.graph.stop import StopToken
from rota.host.call_outcome import CallOutcome
from rota.host.main_module import this_process
from rota.host.reaper_client import ReaperClient
from rota.host.worker_pool import Worker, WorkerCall, WorkerPool

__all__ = ["ProcessComponents", "ProcessWorker", "WorkerProcesses"]

START_TIMEOUT_S = 60.0  # for importing the components' modules, and for each lifecycle method
STOP = "stop"  # the notice to a running call
END_GRACE_S = 5.0  # for closing the event loop of a worker; then it is killed


class WorkerProcessFailed(ReportedFailure):
    """A failure in a worker process, with the text of what was raised there."""


class _CallTimeout(Exception):
    """The call took too long, and its process was killed."""


class _ProcessExited(Exception):
    """The process exited during the call."""


class WorkerProcesses:
    """The worker processes of one run, for all its lanes. They start with the first worker that needs one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._cleanup = contextlib.ExitStack()
        self._pool: WorkerPool | None = None

    @property
    def pool(self) -> WorkerPool:
        """The pool, which is started now if it has not been."""
        with self._lock:
            if self._pool is None:
                if this_process.is_loading:
                    raise RunnerHandshakeFailed(
                        "a worker process tried to run the graph again while it loaded the main script",
                        hint='Put the script\'s main code behind `if __name__ == "__main__":`.',
                    )
                reaper = self._cleanup.enter_context(ReaperClient())
                pool = WorkerPool(reaper, self._size, preload=[worker_process.__name__], load_timeout_s=START_TIMEOUT_S)
                self._pool = self._cleanup.enter_context(pool)
            return self._pool

    def close(self) -> None:
        """End all processes."""
        self._cleanup.close()


class ProcessWorker:
    """One worker of a process pool."""

    def __init__(self, lane: Lane, worker_id: int, remote: ProcessComponents) -> None:
        self.worker_id = worker_id
        self.lock = threading.Lock()  # one call at a time
        self._lane = lane
        self._remote = remote
        self._setups: dict[str, ComponentSetup] = {}  # the components to start in a new process
        self._process: Worker | None = None
        self._running_call: WorkerCall | None = None

    def open(self) -> WorkerReport:
        """Reserve a process."""
        self._remote.add_worker(self)
        self._process, report = self._start()
        return report

    def _start(self) -> tuple[Worker, WorkerReport]:
        """Reserve a process, apply the lane's settings and start the components it must have."""
        with self._handshake():
            process = self._remote.processes.pool.reserve()
            try:
                report = self._call(process, apply_worker_settings, self._lane, self.worker_id)
                for setup in self._setups.values():
                    self._call(process, worker_process.start, setup)
            except BaseException:
                self._remote.processes.pool.release(process)
                raise
        assert isinstance(report, WorkerReport)  # noqa: S101  # the worker runs code from this package
        return process, report

    @contextlib.contextmanager
    def _handshake(self) -> Iterator[None]:
        try:
            yield
        except (_CallTimeout, _ProcessExited, WorkersUnavailable) as problem:
            raise RunnerHandshakeFailed(
                f"worker {self.worker_id} of lane {self._lane.id} did not start: {problem}",
                hint='Check that the script\'s main code is behind `if __name__ == "__main__":`.',
            ) from problem

    def _call(
        self, process: Worker, function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None
    ) -> Any:
        """Call a function in a process and return its value."""
        timeout_s = START_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            call = self._remote.processes.pool.start(function, arguments, timeout_s=timeout_s or None, worker=process)
        except InvalidInput as refused:
            if refused.__cause__ is None:  # it is too long
                raise
            raise ComponentInvalid(
                f"a request to a worker process cannot be pickled: {error_text(refused.__cause__)}",
                hint="Define components at the top level of a module, and publish payloads that can be pickled.",
            ) from refused
        self._running_call = call
        if self._remote.stop_is_requested:
            self.request_stop()
        try:
            return _value(call.outcome(), timeout_s)
        finally:
            self._running_call = None

    def request(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the worker process outside of any invocation."""
        with self.lock:
            try:
                return self._call(self._running_process(), function, *arguments)
            except (_CallTimeout, _ProcessExited) as problem:
                self._discard()
                name = function.__name__
                raise RunnerIpcTimeout(
                    f"worker {self.worker_id} of lane {self._lane.id} did not reply to {name!r}: {problem}",
                    hint=f"The lifecycle methods of a component must return within {START_TIMEOUT_S:g} s.",
                ) from problem

    def start_component(self, setup: ComponentSetup) -> None:
        """Configure and activate a component, now and in every later process of this worker."""
        self.request(worker_process.start, setup)
        self._setups[setup.component_id] = setup

    def execute(self, item: QueuedInvocation, /) -> None:
        """Execute an invocation, in this worker or in the one its component is pinned to."""
        pinned_worker = self._remote.pinned_worker(item.node) or self
        with pinned_worker.lock:
            pinned_worker.execute_here(item)

    def execute_here(self, item: QueuedInvocation) -> None:
        """Execute an invocation in this worker's process; the caller holds the lock."""
        invocation = item.invocation
        assert invocation is not None  # noqa: S101  # every item of a remote pool has one
        item.worker_id = self.worker_id
        self._attempt(item.node, invocation)
        while invocation.should_retry(item.node.component.attempts_max):
            self._attempt(item.node, invocation)

    def _attempt(self, node: Node, invocation: Invocation) -> None:
        invocation.begin()
        invocation.code = "component_execute"
        request = RunRequest(node.id, invocation.inputs, invocation.epoch_id, invocation.number, invocation.attempt)
        try:
            report = self._call(self._running_process(), worker_process.run, request, timeout_s=node.timeout_s)
        except _CallTimeout:
            invocation.code = "component_hard_timeout"
            invocation.end(WorkerProcessFailed(f"killed after {node.timeout_s * 1000:g} ms (timeout_ms)"))
            self._replace(node)
        except _ProcessExited as problem:
            invocation.code = "worker_crashed"
            invocation.end(WorkerProcessFailed(str(problem)))
            self._replace(node)
        except Exception as problem:  # a payload that cannot be pickled, or a process that does not start
            invocation.end(problem)
        else:
            _apply_report(invocation, report)

    def request_stop(self) -> None:
        """Tell the running call that the run was asked to stop."""
        call = self._running_call
        if call is not None:
            call.notify(STOP)

    def close(self) -> None:
        """Close the event loop of the process and end it."""
        with self.lock:
            if self._process is not None:
                with contextlib.suppress(_CallTimeout, _ProcessExited, WorkerProcessFailed):
                    self._call(self._process, worker_process.close, timeout_s=END_GRACE_S)
                self._discard()

    def _replace(self, node: Node) -> None:
        """Report the lost process and discard it; the next call reserves another."""
        self._remote.report_lost_worker(self.worker_id, node)
        self._discard()

    def _discard(self) -> None:
        if self._process is not None:
            self._remote.processes.pool.release(self._process)
            self._process = None

    def _running_process(self) -> Worker:
        """Return the process; reserve a new one, with all its components, if the last one was lost."""
        if self._process is None:
            self._process, _ = self._start()
        return self._process


def _value(outcome: CallOutcome, timeout_s: float) -> Any:
    """Return the value of a call, or raise how it ended."""
    if outcome.ok:
        return outcome.value
    if outcome.kind == "timed_out":
        raise _CallTimeout(f"no reply within {timeout_s:g} s")
    if outcome.kind in {"crashed", "killed"}:
        raise _ProcessExited(_exit_description(outcome))
    raised = error_text(outcome.error) if outcome.error is not None else f"{outcome.error_type}: {outcome.message}"
    raise WorkerProcessFailed(_PREFIXES.get(outcome.kind, "") + raised)


_PREFIXES = {
    "unloadable": "the request cannot be unpickled in the worker process: ",
    "unpicklable": "the result cannot be pickled: ",
}


def _exit_description(outcome: CallOutcome) -> str:
    if outcome.signal is not None:
        return f"the worker process was killed by signal {outcome.signal}"
    return outcome.message if outcome.code is None else f"the worker process exited with code {outcome.code}"


def _apply_report(invocation: Invocation, report: InvocationReport) -> None:
    """Copy the worker's report into the invocation of this process."""
    invocation.end(None if report.problem is None else WorkerProcessFailed(report.problem))
    invocation.staged = list(report.staged)
    invocation.cancel_observed = invocation.cancel_observed or report.cancel_observed
    invocation.converged, invocation.residual = report.converged, report.residual
    if report.budget_observed:
        invocation.budget_spent_at_s = invocation.ended_at_s


class ProcessComponents:
    """The components of one process_pool lane, and the workers they run in."""

    def __init__(
        self,
        lane: Lane,
        processes: WorkerProcesses,
        graph_config: Mapping[str, Any],
        stop_token: StopToken,
        reports: Reports,
    ) -> None:
        self.processes = processes
        self._lane = lane
        self._graph_config = graph_config
        self._stop_token = stop_token
        self._reports = reports
        self._workers: dict[int, ProcessWorker] = {}
        self._pinned: dict[Node, int] = {}

    @property
    def stop_is_requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stop_token.is_set

    def open(self) -> None:
        """Forward stop requests from now on."""
        self._stop_token.subscribe(self._forward_stop)

    def add_worker(self, worker: ProcessWorker) -> None:
        """Add a worker that has started."""
        self._workers[worker.worker_id] = worker

    def pinned_worker(self, node: Node) -> ProcessWorker | None:
        """Return the only worker that may call a component; None if any may."""
        worker_id = self._pinned.get(node)
        return None if worker_id is None else self._workers[worker_id]

    def start(self, node: Node, state: Any, has_state: bool, /) -> None:
        """Configure and activate a component in every worker that may call it."""
        if node.component.type.kind == "class" and not node.reentrant:
            self._pinned[node] = len(self._pinned) % len(self._workers)
        setup = self._setup(node, state, has_state=has_state)
        for worker in self._workers_of(node):
            worker.start_component(setup)

    def snapshot(self, node: Node, /) -> Any:
        """Return the state of a pinned component; None for one that runs in several workers."""
        pinned_worker = self.pinned_worker(node)
        return None if pinned_worker is None else pinned_worker.request(hook, node.id, "snapshot")

    def end(self, node: Node, /) -> None:
        """Deactivate a component in every worker that has it."""
        for worker in self._workers_of(node):
            worker.request(hook, node.id, "deactivate")

    def report_lost_worker(self, worker_id: int, node: Node) -> None:
        """Report that a worker process was lost."""
        message = f"worker {worker_id} of lane {self._lane.id} was lost while running {node.id} and will be restarted"
        self._reports.health("worker_restarted", message, component_id=node.id, lane=self._lane.id)

    def close(self) -> None:
        """Stop forwarding stop requests and end the worker processes: the run is over."""
        self._stop_token.unsubscribe(self._forward_stop)
        self.processes.close()

    def _workers_of(self, node: Node) -> list[ProcessWorker]:
        pinned_worker = self.pinned_worker(node)
        return (
            [self._workers[worker_id] for worker_id in sorted(self._workers)]
            if pinned_worker is None
            else [pinned_worker]
        )

    def _forward_stop(self) -> None:
        # on another thread: this one may be a signal handler that interrupted a thread with the lock of the pool
        _thread.start_new_thread(self._notify_workers, ())

    def _notify_workers(self) -> None:
        for worker in tuple(self._workers.values()):
            worker.request_stop()

    def _setup(self, node: Node, state: Any, *, has_state: bool) -> ComponentSetup:
        component = node.component
        return ComponentSetup(
            component_id=node.id,
            lane=node.lane.id,
            component_type=component.type,
            config=dict(node.spec.config),
            graph_config=dict(self._graph_config),
            channel_ports=component.channel_ports,
            output_ports=component.output_ports,
            fills_every_input=node.trigger.fills_every_input,
            budget_s=component.budget_s,
            state=state,
            has_state=has_state,
        )

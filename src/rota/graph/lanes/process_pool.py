"""The process_pool lane: a pool whose workers are processes, so that a hard timeout really ends the work.

Each worker thread of the pool drives one process: it sends an invocation over a pipe and waits for the reply. If the
reply does not arrive within the component's `timeout_ms`, the process is killed (SIGKILL) and the invocation fails with
`component_hard_timeout`. If the process exits by itself, it fails with `worker_crashed`. In both cases a new process is
started when it is next needed, and its components are configured and activated again. With `on_error: retry` a timeout
and a crash are retried like an exception.

Payloads, components and publications cross the pipe by pickle; an object that cannot be pickled fails only the
invocation that needed it. Functions and reentrant classes may be called in any worker. A class that is not reentrant
has state that must stay in one process, so it is *pinned* to one worker and called there, whichever thread picked it.

As with multiprocessing, a script that runs a graph with such a lane must have its main code behind
`if __name__ == "__main__":`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from rota.errors import ComponentInvalid, RunnerHandshakeFailed, RunnerIpcTimeout
from rota.graph.invocation import Invocation
from rota.graph.lanes import worker_process
from rota.graph.lanes.order import QueuedInvocation
from rota.graph.lanes.worker_process import (
    ComponentSetup,
    InvocationReport,
    MainScript,
    RunRequest,
    WorkerProcessFailed,
    WorkerReply,
)
from rota.graph.lanes.worker_settings import WorkerReport
from rota.graph.nodes import Node
from rota.graph.plan import Lane
from rota.graph.reports import Reports, error_text
from rota.graph.stop import StopToken

__all__ = ["ProcessComponents", "ProcessWorker"]

START_TIMEOUT_S = 60.0  # for starting Python and importing the components' modules
END_GRACE_S = 5.0  # for a worker that was asked to end; then it is killed


class _ReplyTimeout(Exception):
    """No reply arrived in time."""


class _ProcessExited(Exception):
    """The process exited instead of replying."""


class _Process:
    """One worker process and the two pipes to it."""

    def __init__(self) -> None:
        if worker_process.importing_main:
            raise RunnerHandshakeFailed(
                "a worker process tried to run the graph again while it loaded the main script",
                hint='Put the script\'s main code behind `if __name__ == "__main__":`.',
            )
        self._requests, requests = Pipe()
        control, self._control = Pipe(duplex=False)
        with requests, control:
            self._process = subprocess.Popen(  # noqa: S603  # this interpreter, with code from this package
                _command(requests.fileno(), control.fileno()),
                pass_fds=(requests.fileno(), control.fileno()),
                stdin=subprocess.DEVNULL,
            )
        # A process may exit while a process it started keeps the pipe open, so watch the process itself.
        self._sentinel = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None

    def request(self, verb: str, arguments: tuple[Any, ...], timeout_s: float | None = None) -> Any:
        """Send a request and wait for its reply."""
        data = _pickled(verb, arguments)
        try:
            self._requests.send_bytes(data)
            reply = self._reply(timeout_s)
        except (EOFError, OSError) as problem:
            raise _ProcessExited(self._exit_description()) from problem
        if reply.error is not None:
            raise WorkerProcessFailed(reply.error)
        return reply.value

    def _reply(self, timeout_s: float | None) -> WorkerReply:
        """Wait for a reply, or for the end of the process."""
        waitables: list[Connection | int] = [self._requests]
        if self._sentinel is not None:
            waitables.append(self._sentinel)
        if not wait(waitables, timeout_s):
            raise _ReplyTimeout(f"no reply within {timeout_s:g} s")
        if not self._requests.poll():
            raise EOFError
        reply: WorkerReply = pickle.loads(self._requests.recv_bytes())  # noqa: S301  # a worker of this pool wrote it
        return reply

    def request_stop(self) -> None:
        """Forward the request to stop the run."""
        with contextlib.suppress(OSError):  # the process has exited
            self._control.send_bytes(b"stop")

    def kill(self) -> None:
        """Kill the process immediately."""
        self._process.kill()
        self._process.wait()
        self._close()

    def end(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        with contextlib.suppress(OSError):  # the process has exited
            self._requests.send_bytes(b"")
        try:
            self._process.wait(END_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        self._requests.close()
        self._control.close()
        if self._sentinel is not None:
            os.close(self._sentinel)

    def _exit_description(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_GRACE_S)
        code = self._process.returncode
        if code is None:
            return "the worker process closed its pipe"
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        return f"the worker process {how}"


def _command(requests: int, control: int) -> list[str]:
    """Return the command that starts a worker: this Python with this process's import path."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from rota.graph.lanes import worker_process; worker_process.main()"
    script = _main_script()
    return [sys.executable, "-c", code, str(requests), str(control), script.module, script.path]


def _main_script() -> MainScript:
    """Return this process's script, in case a worker must look up a definition in it."""
    found = sys.modules.get("__main__")
    spec = getattr(found, "__spec__", None)
    if spec is not None:
        return MainScript(module=spec.name)
    path = getattr(found, "__file__", None)
    return MainScript(path=str(Path(path).resolve())) if path and Path(path).exists() else MainScript()


def _pickled(verb: str, arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((verb, arguments))
    except Exception as problem:  # pickling runs the user's code
        raise ComponentInvalid(
            f"a request to a worker process cannot be pickled: {error_text(problem)}",
            hint="Define components at the top level of a module, and publish payloads that can be pickled.",
        ) from problem


class ProcessWorker:
    """One worker of a process pool."""

    def __init__(self, lane: Lane, worker_id: int, remote: ProcessComponents) -> None:
        self.worker_id = worker_id
        self.lock = threading.Lock()  # one request at a time
        self._lane = lane
        self._remote = remote
        self._setups: dict[str, ComponentSetup] = {}  # the components to start in a new process
        self._process: _Process | None = None

    def open(self) -> WorkerReport:
        """Start the process."""
        self._remote.add_worker(self)
        self._process, report = self._start()
        return report

    def _start(self) -> tuple[_Process, WorkerReport]:
        """Start a process, apply the lane's settings and start the components it must have."""
        process = _Process()
        try:
            report = process.request("apply_worker_settings", (self._lane, self.worker_id), START_TIMEOUT_S)
            for setup in self._setups.values():
                process.request("start", (setup,), START_TIMEOUT_S)
        except BaseException as problem:
            process.kill()
            if not isinstance(problem, _ReplyTimeout | _ProcessExited):
                raise
            raise RunnerHandshakeFailed(
                f"worker {self.worker_id} of lane {self._lane.id} did not start: {problem}",
                hint='Check that the script\'s main code is behind `if __name__ == "__main__":`.',
            ) from problem
        assert isinstance(report, WorkerReport)  # noqa: S101  # the worker runs code from this package
        return process, report

    def request(self, verb: str, *arguments: Any) -> Any:
        """Send a request outside of any invocation."""
        with self.lock:
            try:
                return self._running_process().request(verb, arguments, START_TIMEOUT_S)
            except (_ReplyTimeout, _ProcessExited) as problem:
                self._discard()  # a late reply would be taken for that of the next request
                raise RunnerIpcTimeout(
                    f"worker {self.worker_id} of lane {self._lane.id} did not reply to {verb!r}: {problem}",
                    hint=f"The lifecycle methods of a component must return within {START_TIMEOUT_S:g} s.",
                ) from problem

    def start_component(self, setup: ComponentSetup) -> None:
        """Configure and activate a component, now and in every later process of this worker."""
        self.request("start", setup)
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
            report = self._running_process().request("run", (request,), node.timeout_s or None)
        except _ReplyTimeout:
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
        """Forward the request to stop the run."""
        process = self._process
        if process is not None:
            process.request_stop()

    def close(self) -> None:
        """End the process."""
        with self.lock:
            if self._process is not None:
                self._process.end()
                self._process = None

    def _replace(self, node: Node) -> None:
        """Report the lost process and discard it; the next request starts another."""
        self._remote.report_lost_worker(self.worker_id, node)
        self._discard()

    def _discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _running_process(self) -> _Process:
        """Return the process; start a new one, with all its components, if the last one was lost."""
        if self._process is None:
            self._process, _ = self._start()
            if self._remote.stop_is_requested:
                self._process.request_stop()
        return self._process


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

    def __init__(self, lane: Lane, graph_config: Mapping[str, Any], stop_token: StopToken, reports: Reports) -> None:
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
        return None if pinned_worker is None else pinned_worker.request("hook", node.id, "snapshot")

    def end(self, node: Node, /) -> None:
        """Deactivate a component in every worker that has it."""
        for worker in self._workers_of(node):
            worker.request("hook", node.id, "deactivate")

    def report_lost_worker(self, worker_id: int, node: Node) -> None:
        """Report that a worker process was lost."""
        message = f"worker {worker_id} of lane {self._lane.id} was lost while running {node.id} and will be restarted"
        self._reports.health("worker_restarted", message, component_id=node.id, lane=self._lane.id)

    def close(self) -> None:
        """Stop forwarding stop requests: the run is over."""
        self._stop_token.unsubscribe(self._forward_stop)

    def _workers_of(self, node: Node) -> list[ProcessWorker]:
        pinned_worker = self.pinned_worker(node)
        return (
            [self._workers[worker_id] for worker_id in sorted(self._workers)]
            if pinned_worker is None
            else [pinned_worker]
        )

    def _forward_stop(self) -> None:
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

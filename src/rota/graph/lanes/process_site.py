"""The process_pool lane: a pool whose workers are processes, so that a hard timeout really ends the work.

Each worker thread of the pool drives one process: it sends an invocation over a pipe and waits for the answer. If the
answer does not come within the component's `timeout_ms`, the process is killed (SIGKILL: no cooperation is needed) and
the invocation fails with `component_hard_timeout`. If the process dies by itself, it fails with `worker_crashed`.
Either way a new process takes its place, with its components configured and activated anew, when it is next needed.
With `on_error: retry` a timeout and a crash are tried again like an exception.

Payloads, components and what is published cross the pipe by pickle; what cannot be pickled fails the one invocation
that needed it. Functions and reentrant classes may be called in any worker. A class that is not reentrant has state
that must stay in one place, so it lives in one worker, its *home*, and is called there whichever thread picked it.

As with everything that starts Python processes, a script that runs a graph with such a lane must have its own work
behind `if __name__ == "__main__":`.
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
from rota.graph.lanes import process_child
from rota.graph.lanes.order import Item
from rota.graph.lanes.process_child import Answer, Call, ChildFailed, MainScript, Performed, UnitSetup
from rota.graph.lanes.threads import WorkerReport
from rota.graph.nodes import Node
from rota.graph.plan import Lane
from rota.graph.reports import Reports, words
from rota.graph.stop import StopToken

__all__ = ["ProcessRemote", "ProcessSite"]

START_TIMEOUT_S = 60.0  # for Python to start and to import the components' modules
END_GRACE_S = 5.0  # for a worker that was told to end; then it is killed


class _Timeout(Exception):
    """No answer came in time."""


class _Crashed(Exception):
    """The process ended instead of answering."""


class _Process:
    """One worker process and the two pipes to it."""

    def __init__(self) -> None:
        if process_child.importing_main:
            raise RunnerHandshakeFailed(
                "a worker process was asked to run the graph again",
                hint='Put the script\'s own work behind `if __name__ == "__main__":`.',
            )
        self._requests, requests = Pipe()
        lifeline, self._lifeline = Pipe(duplex=False)
        with requests, lifeline:
            self._process = subprocess.Popen(  # noqa: S603  # this very interpreter, and our own code
                _command(requests.fileno(), lifeline.fileno()),
                pass_fds=(requests.fileno(), lifeline.fileno()),
                stdin=subprocess.DEVNULL,
            )
        # A process may end while something it started keeps its pipe open; the kernel knows better.
        self._sentinel = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None

    def ask(self, verb: str, arguments: tuple[Any, ...], timeout_s: float | None = None) -> Any:
        """Send a request and wait for its answer."""
        data = _pickled(verb, arguments)
        try:
            self._requests.send_bytes(data)
            answer = self._answer(timeout_s)
        except (EOFError, OSError) as problem:
            raise _Crashed(self._exit_words()) from problem
        if answer.error is not None:
            raise ChildFailed(answer.error)
        return answer.value

    def _answer(self, timeout_s: float | None) -> Answer:
        """Wait for an answer, or for the end of the process."""
        signs: list[Connection | int] = [self._requests]
        if self._sentinel is not None:
            signs.append(self._sentinel)
        if not wait(signs, timeout_s):
            raise _Timeout
        if not self._requests.poll():
            raise EOFError
        answer: Answer = pickle.loads(self._requests.recv_bytes())  # noqa: S301  # our own worker wrote it
        return answer

    def tell_to_stop(self) -> None:
        """Pass on that the run was asked to stop."""
        with contextlib.suppress(OSError):  # it is gone already
            self._lifeline.send_bytes(b"stop")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self._close()

    def end(self) -> None:
        """Let it end by itself, and see to it that it does."""
        with contextlib.suppress(OSError):  # it is gone already
            self._requests.send_bytes(b"")
        try:
            self._process.wait(END_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        self._requests.close()
        self._lifeline.close()
        if self._sentinel is not None:
            os.close(self._sentinel)

    def _exit_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_GRACE_S)
        code = self._process.returncode
        if code is None:
            return "the worker process closed its pipe"
        return f"the worker process was ended by signal {-code}" if code < 0 else f"the worker process exited: {code}"


def _command(requests: int, lifeline: int) -> list[str]:
    """What starts a worker: this Python, with this process's path, and as little as possible before it serves."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from rota.graph.lanes import process_child; process_child.main()"
    script = _main_script()
    return [sys.executable, "-c", code, str(requests), str(lifeline), script.module, script.path]


def _main_script() -> MainScript:
    """The script of this process, in case a worker has to look for something in it."""
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
            f"what a worker process needs cannot be pickled: {words(problem)}",
            hint="Define components at the top level of a module, and send payloads that can be pickled.",
        ) from problem


class ProcessSite:
    """One worker of a process pool."""

    def __init__(self, lane: Lane, worker_id: int, remote: ProcessRemote) -> None:
        self.worker_id = worker_id
        self.lock = threading.Lock()  # one request at a time
        self._lane = lane
        self._remote = remote
        self._setups: dict[str, UnitSetup] = {}  # what has to be started in a new process
        self._process: _Process | None = None

    def open(self) -> WorkerReport:
        """Start the process."""
        self._remote.join(self)
        self._process, report = self._start()
        return report

    def _start(self) -> tuple[_Process, WorkerReport]:
        """A new process that has settled in, with the components it must have."""
        process = _Process()
        try:
            report = process.ask("settle_in", (self._lane, self.worker_id), START_TIMEOUT_S)
            for setup in self._setups.values():
                process.ask("start", (setup,), START_TIMEOUT_S)
        except BaseException as problem:
            process.kill()
            if not isinstance(problem, _Timeout | _Crashed):
                raise
            raise RunnerHandshakeFailed(
                f"worker {self.worker_id} of lane {self._lane.id} did not start: {words(problem)}",
                hint='Is the script\'s own work behind `if __name__ == "__main__":`?',
            ) from problem
        assert isinstance(report, WorkerReport)  # noqa: S101  # the worker is our own code
        return process, report

    def ask(self, verb: str, *arguments: Any) -> Any:
        """A request outside of any invocation."""
        with self.lock:
            try:
                return self._living().ask(verb, arguments, START_TIMEOUT_S)
            except (_Timeout, _Crashed) as problem:
                self._discard()  # a late answer would be taken for that of the next request
                raise RunnerIpcTimeout(
                    f"worker {self.worker_id} of lane {self._lane.id} gave no answer: {words(problem)}",
                    hint=f"A component's {verb} must end within {START_TIMEOUT_S:g} s.",
                ) from problem

    def start_unit(self, setup: UnitSetup) -> None:
        """Configure and activate a component here, now and in every process that takes this one's place."""
        self.ask("start", setup)
        self._setups[setup.component_id] = setup

    def perform(self, item: Item, /) -> None:
        """Execute an invocation, here or where its component lives."""
        home = self._remote.home(item.node) or self
        with home.lock:
            home.execute(item)

    def execute(self, item: Item) -> None:
        """Execute an invocation in this worker's process; the caller holds the lock."""
        invocation = item.invocation
        assert invocation is not None  # noqa: S101  # every item of a pool that is remote has one
        item.worker_id = self.worker_id
        self._attempt(item.node, invocation)
        while invocation.may_be_repeated(item.node.unit.attempts_max):
            self._attempt(item.node, invocation)

    def _attempt(self, node: Node, invocation: Invocation) -> None:
        invocation.begin()
        invocation.code = "component_execute"
        call = Call(node.id, invocation.inputs, invocation.epoch_id, invocation.number, invocation.attempt)
        try:
            performed = self._living().ask("run", (call,), node.timeout_s or None)
        except _Timeout:
            invocation.code = "component_hard_timeout"
            invocation.end(ChildFailed(f"it took longer than {node.timeout_s * 1000:g} ms and was killed"))
            self._replace(node)
        except _Crashed as problem:
            invocation.code = "worker_crashed"
            invocation.end(ChildFailed(str(problem)))
            self._replace(node)
        except Exception as problem:  # a payload that cannot be pickled, a new process that cannot be started
            invocation.end(problem)
        else:
            _take_over(invocation, performed)

    def tell_to_stop(self) -> None:
        """Pass on that the run was asked to stop."""
        process = self._process
        if process is not None:
            process.tell_to_stop()

    def close(self) -> None:
        """End the process."""
        with self.lock:
            if self._process is not None:
                self._process.end()
                self._process = None

    def _replace(self, node: Node) -> None:
        """Get rid of the process, and say so; the next request starts another."""
        self._remote.note_loss(self.worker_id, node)
        self._discard()

    def _discard(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _living(self) -> _Process:
        """The process; a new one, with all its components started, where the last one was lost."""
        if self._process is None:
            self._process, _ = self._start()
            if self._remote.stop_is_requested:
                self._process.tell_to_stop()
        return self._process


def _take_over(invocation: Invocation, performed: Performed) -> None:
    """Let the invocation in this process look as if it had happened here."""
    invocation.end(None if performed.problem is None else ChildFailed(performed.problem))
    invocation.staged = list(performed.staged)
    invocation.cancel_observed = invocation.cancel_observed or performed.cancel_observed
    invocation.converged, invocation.residual = performed.converged, performed.residual
    if performed.budget_observed:
        invocation.budget_spent_at_s = invocation.ended_at_s


class ProcessRemote:
    """The processes of one lane as the home of components."""

    def __init__(self, lane: Lane, graph_config: Mapping[str, Any], stop_token: StopToken, reports: Reports) -> None:
        self._lane = lane
        self._graph_config = graph_config
        self._stop_token = stop_token
        self._reports = reports
        self._sites: dict[int, ProcessSite] = {}
        self._homes: dict[Node, int] = {}

    @property
    def stop_is_requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stop_token.is_set

    def open(self) -> None:
        """Pass on requests to stop from now on."""
        self._stop_token.subscribe(self._pass_on_stop)

    def join(self, site: ProcessSite) -> None:
        """A worker is there."""
        self._sites[site.worker_id] = site

    def home(self, node: Node) -> ProcessSite | None:
        """The one worker that may call a component; None when any may."""
        worker_id = self._homes.get(node)
        return None if worker_id is None else self._sites[worker_id]

    def start(self, node: Node, state: Any, has_state: bool, /) -> None:
        """Configure and activate a component in every worker that may call it."""
        if node.unit.kind.kind == "class" and not node.reentrant:
            self._homes[node] = len(self._homes) % len(self._sites)
        setup = self._setup(node, state, has_state=has_state)
        for site in self._sites_of(node):
            site.start_unit(setup)

    def snapshot(self, node: Node, /) -> Any:
        """The state of a component that has one; None where it lives in several workers."""
        home = self.home(node)
        return None if home is None else home.ask("hook", node.id, "snapshot")

    def end(self, node: Node, /) -> None:
        """Deactivate a component wherever it was started."""
        for site in self._sites_of(node):
            site.ask("hook", node.id, "deactivate")

    def note_loss(self, worker_id: int, node: Node) -> None:
        """A worker process was lost."""
        message = f"worker {worker_id} of lane {self._lane.id} was lost while it ran {node.id} and is replaced"
        self._reports.health("worker_restarted", message, component_id=node.id, lane=self._lane.id)

    def close(self) -> None:
        """The run is over."""
        self._stop_token.unsubscribe(self._pass_on_stop)

    def _sites_of(self, node: Node) -> list[ProcessSite]:
        home = self.home(node)
        return [self._sites[worker_id] for worker_id in sorted(self._sites)] if home is None else [home]

    def _pass_on_stop(self) -> None:
        for site in tuple(self._sites.values()):
            site.tell_to_stop()

    def _setup(self, node: Node, state: Any, *, has_state: bool) -> UnitSetup:
        unit = node.unit
        return UnitSetup(
            component_id=node.id,
            lane=node.lane.id,
            kind=unit.kind,
            config=dict(node.spec.config),
            graph_config=dict(self._graph_config),
            channel_ports=unit.channel_ports,
            output_ports=unit.output_ports,
            fills=node.trigger.fills,
            budget_s=unit.budget_s,
            state=state,
            has_state=has_state,
        )

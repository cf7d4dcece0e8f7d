"""A worker process of the process_pool lane: it holds component instances and calls them on request.

It is a single loop over one pipe: a request, a reply. A thread reads a second pipe, the *control* pipe: a byte on it
means that the run was asked to stop, and end-of-file means that the parent has exited, so the worker exits too.
Components are the same objects as elsewhere and are called the same way; only what needs the run's own process (shared
values, background tasks) is refused with an error.

Objects that were defined in the script that started the run are found by running that script once more, under the name
`__mp_main__`, as Python's multiprocessing does; but only when such an object is needed.
"""

from __future__ import annotations

import os
import pickle
import runpy
import signal
import sys
import threading
import types
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from rota.graph.calling import BoundComponent, CoroutineRunner, execute
from rota.graph.components import ComponentType
from rota.graph.invocation import Invocation, Publication
from rota.graph.lanes.worker_settings import apply_worker_settings
from rota.graph.lifecycle import call_hook
from rota.graph.messages import Inputs
from rota.graph.plan import Lane
from rota.graph.reports import error_text
from rota.graph.scope import DetachedScope
from rota.graph.stop import StopToken

__all__ = [
    "ComponentSetup",
    "InvocationReport",
    "MainScript",
    "RunRequest",
    "WorkerProcessFailed",
    "WorkerReply",
    "main",
]

EXIT_PARENT_GONE = 71  # the exit code of a worker whose parent has exited
MP_MAIN = "__mp_main__"

importing_main = False  # true while a worker runs the script only to find its definitions


class ComponentSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs to create and call a component."""

    component_id: str
    lane: str
    component_type: ComponentType
    config: Mapping[str, Any]
    graph_config: Mapping[str, Any]
    channel_ports: tuple[str, ...]
    output_ports: frozenset[str]
    fills_every_input: bool
    budget_s: float
    state: Any = None
    has_state: bool = False


class RunRequest(msgspec.Struct, frozen=True):
    """A request to run a component."""

    component_id: str
    inputs: Inputs
    epoch_id: int
    number: int
    attempt: int


class InvocationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an invocation."""

    staged: tuple[Publication, ...] = ()
    problem: str | None = None
    cancel_observed: bool = False
    budget_observed: bool = False
    converged: str | None = None
    residual: float | None = None


class WorkerReply(msgspec.Struct, frozen=True):
    """The reply to a request: a value, or the text of what was raised."""

    value: Any = None
    error: str | None = None


class WorkerProcessFailed(Exception):
    """A failure in a worker process, with the text of what was raised there."""


class _Worker:
    """The components of this process."""

    def __init__(self, stop_token: StopToken) -> None:
        self._stop_token = stop_token
        self._coroutines = CoroutineRunner()
        self._components: dict[str, BoundComponent] = {}
        self._scopes: dict[str, DetachedScope] = {}

    def apply_worker_settings(self, lane: Lane, worker_id: int) -> Any:
        """Apply the lane's operating-system settings."""
        return apply_worker_settings(lane, worker_id)

    def start(self, setup: ComponentSetup) -> None:
        """Create a component, configure it, restore its state and activate it."""
        component_type = setup.component_type
        instance = component_type.implementation(**setup.config) if component_type.kind == "class" else None
        component = BoundComponent(
            setup.component_id,
            setup.lane,
            component_type,
            instance,
            setup.channel_ports,
            config=setup.config if component_type.kind == "function" else {},
            output_ports=setup.output_ports,
            fills_every_input=setup.fills_every_input,
            budget_s=setup.budget_s,
        )
        call_hook(instance, "configure", self._coroutines)
        if setup.has_state and hasattr(instance, "restore"):
            call_hook(instance, "restore", self._coroutines, setup.state)
        else:
            call_hook(instance, "reset", self._coroutines)
        call_hook(instance, "activate", self._coroutines)
        self._components[component.id] = component
        self._scopes[component.id] = DetachedScope(setup.graph_config, self._stop_token, "a worker process")

    def hook(self, component_id: str, hook: str) -> Any:
        """Call one of a component's lifecycle methods."""
        return call_hook(self._components[component_id].instance, hook, self._coroutines)

    def run(self, request: RunRequest) -> InvocationReport:
        """Run a component to its end."""
        component = self._components[request.component_id]
        invocation = Invocation(component, self._scopes[component.id], request.inputs, request.epoch_id, request.number)
        invocation.attempt = request.attempt - 1  # the parent decides about retries
        execute(component, invocation, self._coroutines)
        return InvocationReport(
            staged=tuple(invocation.staged),
            problem=None if invocation.problem is None else error_text(invocation.problem),
            cancel_observed=invocation.cancel_observed,
            budget_observed=invocation.budget_spent_at_s is not None,
            converged=invocation.converged,
            residual=invocation.residual,
        )

    def close(self) -> None:
        """Release everything: the run is over."""
        self._coroutines.close()


class MainScript(msgspec.Struct, frozen=True):
    """The script that started the run: a module's name (python -m) or a file; empty if there is none."""

    module: str = ""
    path: str = ""

    def load(self) -> None:
        """Run the script under another name, so that its definitions can be found."""
        global importing_main  # noqa: PLW0603  # set by the only thread that imports
        already = getattr(sys.modules["__main__"], "__name__", "") == MP_MAIN
        if already or not (self.module or self.path):
            return
        importing_main = True
        try:
            run, where = (runpy.run_module, self.module) if self.module else (runpy.run_path, self.path)
            found = run(where, run_name=MP_MAIN)
        finally:
            importing_main = False
        module = types.ModuleType(MP_MAIN)
        module.__dict__.update(found)
        sys.modules["__main__"] = sys.modules[MP_MAIN] = module


def main() -> None:
    """Run the worker process: the two pipes and the script are arguments of its command line."""
    requests, control, module, path = sys.argv[1:]
    serve(Connection(int(requests)), Connection(int(control), writable=False), MainScript(module, path))


def serve(requests: Connection, control: Connection, script: MainScript) -> None:
    """Reply to requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides what it means
    stop_token = StopToken()
    threading.Thread(target=_watch_parent, args=(control, stop_token), daemon=True).start()
    worker = _Worker(stop_token)
    while (request := _receive(requests, script)) is not None:
        _send(requests, _reply(worker, request))
    worker.close()


def _watch_parent(control: Connection, stop_token: StopToken) -> None:
    try:
        while control.recv_bytes():
            stop_token.request()
    except (EOFError, OSError):
        os._exit(EXIT_PARENT_GONE)


def _receive(requests: Connection, script: MainScript) -> tuple[str, tuple[Any, ...]] | WorkerReply | None:
    """Return the next request; a reply if it could not be read; None if there are no more."""
    try:
        data = requests.recv_bytes()
    except EOFError:
        return None
    try:
        return _unpickled(data, script) if data else None
    except Exception as problem:  # unpickling runs the user's code
        return WorkerReply(error=f"the request cannot be unpickled in the worker process: {error_text(problem)}")


def _unpickled(data: bytes, script: MainScript) -> tuple[str, tuple[Any, ...]]:
    try:
        request = pickle.loads(data)  # noqa: S301  # the other end of this pipe is the parent
    except AttributeError:  # perhaps the script defines it
        script.load()
        request = pickle.loads(data)  # noqa: S301
    return request  # type: ignore[no-any-return]


def _reply(worker: _Worker, request: tuple[str, tuple[Any, ...]] | WorkerReply) -> WorkerReply:
    if isinstance(request, WorkerReply):
        return request
    verb, arguments = request
    try:
        return WorkerReply(value=getattr(worker, verb)(*arguments))
    except BaseException as problem:  # a component's SystemExit must not end the worker
        return WorkerReply(error=error_text(problem))


def _send(requests: Connection, reply: WorkerReply) -> None:
    try:
        data = pickle.dumps(reply)
    except Exception as problem:  # pickling runs the user's code
        data = pickle.dumps(WorkerReply(error=f"the result cannot be pickled: {error_text(problem)}"))
    requests.send_bytes(data)

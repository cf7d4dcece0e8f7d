"""A worker process: it holds instances of components and calls them on request.

It is a single loop over one pipe: a request, an answer. A second pipe is the *lifeline*, read by a thread of its own: a
byte on it means that the run was asked to stop, and its end means that the parent is gone, so nothing is left to do.
Components are the same objects as elsewhere and are called the same way; only what belongs to the whole run (shared
values, background tasks) is not here and is refused with an error that says so.

Things that were defined in the script that started the run are found by running that script once more, under the name
`__mp_main__`, as Python's own worker processes do; but only when such a thing is really asked for.
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

from rota.graph.calling import Coroutines, Unit, perform
from rota.graph.components import ComponentType
from rota.graph.invocation import Invocation, Publication
from rota.graph.lanes.threads import settle_in
from rota.graph.lifecycle import call_hook
from rota.graph.messages import Inputs
from rota.graph.plan import Lane
from rota.graph.reports import words
from rota.graph.scope import DetachedScope
from rota.graph.stop import StopToken

__all__ = ["Answer", "Call", "ChildFailed", "MainScript", "Performed", "UnitSetup", "main"]

PARENT_GONE = 71  # the exit code of a worker whose parent went away
MP_MAIN = "__mp_main__"

importing_main = False  # whether this process is a worker that runs the script only to find what it defines


class UnitSetup(msgspec.Struct, frozen=True, kw_only=True):
    """All a worker needs to make and call a component."""

    component_id: str
    lane: str
    kind: ComponentType
    config: Mapping[str, Any]
    graph_config: Mapping[str, Any]
    channel_ports: tuple[str, ...]
    output_ports: frozenset[str]
    fills: bool
    budget_s: float
    state: Any = None
    has_state: bool = False


class Call(msgspec.Struct, frozen=True):
    """Run a component."""

    component_id: str
    inputs: Inputs
    epoch_id: int
    number: int
    attempt: int


class Performed(msgspec.Struct, frozen=True, kw_only=True):
    """What an invocation did."""

    staged: tuple[Publication, ...] = ()
    problem: str | None = None
    cancel_observed: bool = False
    budget_observed: bool = False
    converged: str | None = None
    residual: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """What a request came to: a value, or the words of what was raised."""

    value: Any = None
    error: str | None = None


class ChildFailed(Exception):
    """What a component raised in another process; it says what it said there."""


class _Worker:
    """The components of this process."""

    def __init__(self, stop_token: StopToken) -> None:
        self._stop_token = stop_token
        self._coroutines = Coroutines()
        self._units: dict[str, Unit] = {}
        self._scopes: dict[str, DetachedScope] = {}

    def settle_in(self, lane: Lane, worker_id: int) -> Any:
        """Apply what the lane asks of the operating system."""
        return settle_in(lane, worker_id)

    def start(self, setup: UnitSetup) -> None:
        """Make a component, configure it, bring back its state and activate it."""
        kind = setup.kind
        instance = kind.implementation(**setup.config) if kind.kind == "class" else None
        unit = Unit(
            setup.component_id,
            setup.lane,
            kind,
            instance,
            setup.channel_ports,
            config=setup.config if kind.kind == "function" else {},
            output_ports=setup.output_ports,
            fills=setup.fills,
            budget_s=setup.budget_s,
        )
        call_hook(instance, "configure", self._coroutines)
        if setup.has_state and hasattr(instance, "restore"):
            call_hook(instance, "restore", self._coroutines, setup.state)
        else:
            call_hook(instance, "reset", self._coroutines)
        call_hook(instance, "activate", self._coroutines)
        self._units[unit.id] = unit
        self._scopes[unit.id] = DetachedScope(setup.graph_config, self._stop_token, "a worker process")

    def hook(self, component_id: str, hook: str) -> Any:
        """Call one of a component's lifecycle methods."""
        return call_hook(self._units[component_id].instance, hook, self._coroutines)

    def run(self, call: Call) -> Performed:
        """Run a component to its end."""
        unit = self._units[call.component_id]
        invocation = Invocation(unit, self._scopes[unit.id], call.inputs, call.epoch_id, call.number)
        invocation.attempt = call.attempt - 1  # trying again is decided by the parent
        perform(unit, invocation, self._coroutines)
        return Performed(
            staged=tuple(invocation.staged),
            problem=None if invocation.problem is None else words(invocation.problem),
            cancel_observed=invocation.cancel_observed,
            budget_observed=invocation.budget_spent_at_s is not None,
            converged=invocation.converged,
            residual=invocation.residual,
        )

    def close(self) -> None:
        """The run is over."""
        self._coroutines.close()


class MainScript(msgspec.Struct, frozen=True):
    """The script that started the run: a module's name (python -m), or a file; empty where there is none."""

    module: str = ""
    path: str = ""

    def load(self) -> None:
        """Run it under another name, so that what it defines can be found."""
        global importing_main  # noqa: PLW0603  # said once, by the only thread that imports
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
    """The worker process: the two pipes and the script are named on its command line."""
    requests, lifeline, module, path = sys.argv[1:]
    serve(Connection(int(requests)), Connection(int(lifeline), writable=False), MainScript(module, path))


def serve(requests: Connection, lifeline: Connection, script: MainScript) -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody at once; the parent decides what it means
    stop_token = StopToken()
    threading.Thread(target=_hold_the_line, args=(lifeline, stop_token), daemon=True).start()
    worker = _Worker(stop_token)
    while (request := _receive(requests, script)) is not None:
        _send(requests, _answer(worker, request))
    worker.close()


def _hold_the_line(lifeline: Connection, stop_token: StopToken) -> None:
    try:
        while lifeline.recv_bytes():
            stop_token.request()
    except (EOFError, OSError):
        os._exit(PARENT_GONE)


def _receive(requests: Connection, script: MainScript) -> tuple[str, tuple[Any, ...]] | Answer | None:
    """The next request; an answer when it could not even be read; None when there are no more."""
    try:
        data = requests.recv_bytes()
    except EOFError:
        return None
    try:
        return _unpickled(data, script) if data else None
    except Exception as problem:  # unpickling runs the user's code
        return Answer(error=f"what was sent cannot be read here: {words(problem)}")


def _unpickled(data: bytes, script: MainScript) -> tuple[str, tuple[Any, ...]]:
    try:
        request = pickle.loads(data)  # noqa: S301  # the other end of this pipe is our parent
    except AttributeError:  # perhaps something that the script defines
        script.load()
        request = pickle.loads(data)  # noqa: S301
    return request  # type: ignore[no-any-return]


def _answer(worker: _Worker, request: tuple[str, tuple[Any, ...]] | Answer) -> Answer:
    if isinstance(request, Answer):
        return request
    verb, arguments = request
    try:
        return Answer(value=getattr(worker, verb)(*arguments))
    except BaseException as problem:  # SystemExit of a component must not end the worker
        return Answer(error=words(problem))


def _send(requests: Connection, answer: Answer) -> None:
    try:
        data = pickle.dumps(answer)
    except Exception as problem:  # pickling runs the user's code
        data = pickle.dumps(Answer(error=f"what was published cannot be pickled: {words(problem)}"))
    requests.send_bytes(data)

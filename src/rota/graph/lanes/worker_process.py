"""What the process_pool lane calls in its worker processes: functions on component instances that live there.

The worker process belongs to the host's worker pool and is reserved for one worker of the lane, so a component that one
call starts is there for the next. Components are the same objects as elsewhere and are called the same way; only what
needs the run's own process (shared values, background tasks) is refused with an error. The pool sends a notice to the
running call when the run is asked to stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.graph.calling import BoundComponent, CoroutineRunner, execute
from rota.graph.components import ComponentType
from rota.graph.invocation import Invocation, Publication
from rota.graph.lifecycle import call_hook
from rota.graph.messages import Inputs
from rota.graph.reports import error_text
from rota.graph.scope import DetachedScope
from rota.host import worker

__all__ = ["ComponentSetup", "InvocationReport", "RunRequest", "close", "hook", "run", "start"]


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


class _StopNotice:
    """Whether the run was asked to stop, as far as the notices of the running call say. Once set, it stays set."""

    def __init__(self) -> None:
        self._is_set = False

    @property
    def is_set(self) -> bool:
        self._is_set = self._is_set or bool(worker.notices())
        return self._is_set


class _Process:
    """What this process holds between calls."""

    def __init__(self) -> None:
        self.stop = _StopNotice()
        self.coroutines = CoroutineRunner()
        self.components: dict[str, BoundComponent] = {}
        self.scopes: dict[str, DetachedScope] = {}


_process = _Process()


def start(setup: ComponentSetup) -> None:
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
    call_hook(instance, "configure", _process.coroutines)
    if setup.has_state and hasattr(instance, "restore"):
        call_hook(instance, "restore", _process.coroutines, setup.state)
    else:
        call_hook(instance, "reset", _process.coroutines)
    call_hook(instance, "activate", _process.coroutines)
    _process.components[component.id] = component
    _process.scopes[component.id] = DetachedScope(setup.graph_config, _process.stop, "a worker process")


def hook(component_id: str, name: str) -> Any:
    """Call one of a component's lifecycle methods."""
    return call_hook(_process.components[component_id].instance, name, _process.coroutines)


def run(request: RunRequest) -> InvocationReport:
    """Run a component to its end."""
    component, scope = _process.components[request.component_id], _process.scopes[request.component_id]
    invocation = Invocation(component, scope, request.inputs, request.epoch_id, request.number)
    invocation.attempt = request.attempt - 1  # the parent decides about retries
    execute(component, invocation, _process.coroutines)
    return InvocationReport(
        staged=tuple(invocation.staged),
        problem=None if invocation.problem is None else error_text(invocation.problem),
        cancel_observed=invocation.cancel_observed,
        budget_observed=invocation.budget_spent_at_s is not None,
        converged=invocation.converged,
        residual=invocation.residual,
    )


def close() -> None:
    """Close the event loop of the components: the run is over."""
    _process.coroutines.close()

"""Runners by name. Other packages add theirs under the entry point group `rota.runners`.

An entry point names a function like those in `_BUILT_IN`: it takes the `RunnerResources`, the registered functions (see
`registered_function`) and the number of slots, and returns a `Runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from rota.errors import FleetInvalid
from rota.fleet.runners.callable import CallableRunner
from rota.fleet.runners.command import CommandRunner
from rota.fleet.runners.contract import RegisteredFunctions, Runner
from rota.fleet.runners.hook import HookRunner
from rota.fleet.runners.ndjson import NdjsonRunner
from rota.fleet.runners.resources import RunnerResources

__all__ = ["GROUP", "RunnerFactory", "make", "names"]

GROUP = "rota.runners"
RunnerFactory: TypeAlias = Callable[[RunnerResources, RegisteredFunctions, int], Runner]

_BUILT_IN: Mapping[str, RunnerFactory] = {
    "command": lambda resources, _functions, _slots: CommandRunner(resources),
    "ndjson": lambda resources, _functions, _slots: NdjsonRunner(resources),
    "callable": lambda resources, functions, slots: CallableRunner(resources, functions, slots=slots),
    "hook": lambda _resources, _functions, _slots: HookRunner(),
    "graph": lambda resources, _functions, _slots: _graph_runner(resources),
}


def _graph_runner(resources: RunnerResources) -> Runner:
    # loaded when it is needed: most supervisors run no graphs, and the graph runtime is large (decision 0014)
    runner: Runner = import_module("rota.fleet.runners.graph").GraphRunner(resources)
    return runner


@cache
def _added() -> Mapping[str, EntryPoint]:
    """The runners of other packages. They cannot replace a built-in one."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _BUILT_IN}


def names() -> tuple[str, ...]:
    """Return the names of all installed runners."""
    return (*_BUILT_IN, *_added())


def make(name: str, resources: RunnerResources, functions: RegisteredFunctions, slots: int) -> Runner:
    """Create the runner of this name."""
    if name in _BUILT_IN:
        return _BUILT_IN[name](resources, functions, slots)
    point = _added().get(name)
    if point is None:
        raise FleetInvalid(
            f"there is no runner {name!r}", field="runner", hint=f"Installed runners: {', '.join(names())}."
        )
    try:
        runner: Runner = point.load()(resources, functions, slots)
    except Exception as problem:  # another package's code
        raise FleetInvalid(
            f"runner {name!r} ({point.value}) cannot be created: {type(problem).__name__}: {problem}",
            field="runner",
            hint=f"The error is in the package that provides {point.value}.",
        ) from problem
    return runner

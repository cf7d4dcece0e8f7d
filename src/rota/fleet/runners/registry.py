"""Name to runner. Other packages add theirs under the entry point group `rota.runners`.

An entry point names a function like the ones in `_BUILT_IN`: it takes the workshop, the functions that were registered
by agent name, and how many slots there are, and returns a `Runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

from rota.errors import FleetInvalid
from rota.fleet.runners.callable import CallableRunner
from rota.fleet.runners.command import CommandRunner
from rota.fleet.runners.contract import Runner
from rota.fleet.runners.ndjson import NdjsonRunner
from rota.fleet.runners.resources import Workshop

__all__ = ["GROUP", "Factory", "Functions", "make", "names"]

GROUP = "rota.runners"
Functions: TypeAlias = Mapping[str, Callable[..., Any]]
Factory: TypeAlias = Callable[[Workshop, Functions, int], Runner]

_BUILT_IN: Mapping[str, Factory] = {
    "command": lambda workshop, _functions, _slots: CommandRunner(workshop),
    "ndjson": lambda workshop, _functions, _slots: NdjsonRunner(workshop),
    "callable": lambda workshop, functions, slots: CallableRunner(workshop, functions, slots=slots),
}


@cache
def _added() -> Mapping[str, EntryPoint]:
    """Those of other packages: they cannot replace ours, only add to them."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _BUILT_IN}


def names() -> tuple[str, ...]:
    """Every runner that can be made."""
    return (*_BUILT_IN, *_added())


def make(name: str, workshop: Workshop, functions: Functions, slots: int) -> Runner:
    """The runner of this name."""
    if name in _BUILT_IN:
        return _BUILT_IN[name](workshop, functions, slots)
    point = _added().get(name)
    if point is None:
        raise FleetInvalid(
            f"there is no runner {name!r}", field="runner", hint=f"Installed runners: {', '.join(names())}."
        )
    try:
        runner: Runner = point.load()(workshop, functions, slots)
    except Exception as problem:  # another package's code
        raise FleetInvalid(
            f"runner {name!r} ({point.value}) cannot be made: {type(problem).__name__}: {problem}",
            field="runner",
            hint="It comes from another package: look there.",
        ) from problem
    return runner

"""Type name to component. Other packages add theirs under the entry point group `rota.components`.

An entry point names a decorated function or class, which is then known by the entry point's name, or a module, all of
whose decorated things are added under their own names. Nothing is loaded that was not asked for: a graph file names
types, and a type that nobody registered is an error, never an import.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import msgspec

from rota.errors import ComponentInvalid, ComponentUnknown
from rota.graph.components import ComponentType, component_type
from rota.graph.ports import ComponentDescriptor

__all__ = ["GROUP", "ComponentRegistry"]

GROUP = "rota.components"


class ComponentRegistry:
    """The component types that graphs may name."""

    def __init__(self, things: Iterable[Any] = ()) -> None:
        self._types: dict[str, ComponentType] = {}
        for thing in things:
            self.add(thing)

    def add(self, thing: Any, *, type_name: str | None = None) -> ComponentType:
        """Add a decorated function or class, under its own type name or another."""
        found = component_type(thing)
        if found is None:
            raise ComponentInvalid(f"{thing!r} is not a component", hint="Decorate it with @component.")
        if type_name is not None and type_name != found.name:
            found = msgspec.structs.replace(found, descriptor=msgspec.structs.replace(found.descriptor, type=type_name))
        known = self._types.setdefault(found.name, found)
        if known.implementation is not found.implementation:
            raise ComponentInvalid(
                f"two components are called {found.name!r}: {_where(known)} and {_where(found)}",
                hint="Give one of them another type name.",
                component_type=found.name,
            )
        return found

    def load_module(self, module: str | ModuleType) -> tuple[str, ...]:
        """Add every decorated thing that a module defines or imports; returns their type names."""
        if isinstance(module, str):
            module = _import(module)
        things = [thing for thing in vars(module).values() if component_type(thing) is not None]
        return tuple(self.add(thing).name for thing in things)

    def load_entry_points(self) -> tuple[str, ...]:
        """Add what installed packages offer; returns the type names."""
        added: list[str] = []
        for point in entry_points(group=GROUP):
            added.extend(self._load_entry_point(point))
        return tuple(added)

    def _load_entry_point(self, point: EntryPoint) -> tuple[str, ...]:
        try:
            thing = point.load()
        except Exception as problem:  # loading runs another package's code, which may fail in any way
            raise ComponentInvalid(
                f"entry point {point.name} of {GROUP} cannot be loaded: {type(problem).__name__}: {problem}",
                hint="Mend or uninstall the package that offers it.",
            ) from problem
        if isinstance(thing, ModuleType):
            return self.load_module(thing)
        return (self.add(thing, type_name=point.name).name,)

    def find(self, type_name: str) -> ComponentType:
        """The type of this name."""
        found = self._types.get(type_name)
        if found is None:
            known = ", ".join(sorted(self._types)) or "none"
            raise ComponentUnknown(
                f"no component type is called {type_name!r}", hint=f"Registered: {known}.", component_type=type_name
            )
        return found

    def describe(self, component_type: str) -> ComponentDescriptor | None:
        """What a type offers, for the compiler."""
        found = self._types.get(component_type)
        return None if found is None else found.descriptor

    def names(self) -> tuple[str, ...]:
        """Every registered type name, sorted."""
        return tuple(sorted(self._types))


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise ComponentInvalid(
            f"the component module {name!r} cannot be imported: {problem}",
            hint="Name a module that is installed or lies on the path.",
            module=name,
        ) from problem


def _where(known: ComponentType) -> str:
    return f"{known.implementation.__module__}.{known.implementation.__qualname__}"

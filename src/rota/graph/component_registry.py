"""The registry of component types, by type name. Packages add types in the entry point group `rota.components`.

An entry point refers to a decorated function or class, which is registered under the entry point's name, or to a
module, whose decorated functions and classes are all registered under their own type names. A graph file cannot cause
an import: an unregistered type is an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import msgspec

from rota.errors import ComponentInvalid, ComponentUnknown
from rota.graph.components import ComponentDescriptor, ComponentType, component_type

__all__ = ["GROUP", "ComponentRegistry"]

GROUP = "rota.components"


class ComponentRegistry:
    """The component types that graphs may use."""

    def __init__(self, components: Iterable[Any] = ()) -> None:
        self._types: dict[str, ComponentType] = {}
        for decorated in components:
            self.add(decorated)

    def add(self, decorated: Any, *, type_name: str | None = None) -> ComponentType:
        """Register a decorated function or class, under `type_name` or its own type name."""
        found = component_type(decorated)
        if found is None:
            raise ComponentInvalid(f"{decorated!r} is not a component", hint="Decorate it with @component.")
        if type_name is not None and type_name != found.name:
            found = msgspec.structs.replace(found, descriptor=msgspec.structs.replace(found.descriptor, type=type_name))
        known = self._types.setdefault(found.name, found)
        if known.implementation is not found.implementation:
            raise ComponentInvalid(
                f"two components have the type name {found.name!r}: {_where(known)} and {_where(found)}",
                hint="Give one of them another type name.",
                component_type=found.name,
            )
        return found

    def load_module(self, module: str | ModuleType) -> tuple[str, ...]:
        """Register all decorated functions and classes in a module, also imported ones. Return their type names."""
        if isinstance(module, str):
            module = _import(module)
        components = [value for value in vars(module).values() if component_type(value) is not None]
        return tuple(self.add(decorated).name for decorated in components)

    def load_entry_points(self) -> tuple[str, ...]:
        """Register the entry points of installed packages. Return their type names."""
        added: list[str] = []
        for point in entry_points(group=GROUP):
            added.extend(self._load_entry_point(point))
        return tuple(added)

    def _load_entry_point(self, point: EntryPoint) -> tuple[str, ...]:
        try:
            loaded = point.load()
        except Exception as problem:  # loading runs another package's code, which may fail in any way
            raise ComponentInvalid(
                f"entry point {point.name} of {GROUP} cannot be loaded: {type(problem).__name__}: {problem}",
                hint="Fix or uninstall the package that provides it.",
            ) from problem
        if isinstance(loaded, ModuleType):
            return self.load_module(loaded)
        return (self.add(loaded, type_name=point.name).name,)

    def find(self, type_name: str) -> ComponentType:
        """Return the type of this name, or raise `ComponentUnknown`."""
        found = self._types.get(type_name)
        if found is None:
            known = ", ".join(sorted(self._types)) or "none"
            raise ComponentUnknown(
                f"unknown component type {type_name!r}", hint=f"Registered types: {known}.", component_type=type_name
            )
        return found

    def describe(self, component_type: str) -> ComponentDescriptor | None:
        """Return the descriptor of a type, or None if the type is not registered."""
        found = self._types.get(component_type)
        return None if found is None else found.descriptor

    def names(self) -> tuple[str, ...]:
        """Return all registered type names, sorted."""
        return tuple(sorted(self._types))


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise ComponentInvalid(
            f"the component module {name!r} cannot be imported: {problem}",
            hint="Give the name of a module that is installed or on the Python path.",
            module=name,
        ) from problem


def _where(known: ComponentType) -> str:
    return f"{known.implementation.__module__}.{known.implementation.__qualname__}"

"""The registry of component types, by type name. Packages add types in the entry point group `rota.components`.

An entry point refers to a decorated function or class, which is registered under the entry point's name, or to a
module, whose decorated functions and classes are all registered under their own type names. A graph file cannot cause
an import: an unregistered type is an error. A type that is written `module:function` is an ordinary function of a
module that was loaded before; only a registry with `imports=True`, for graphs of a trusted author, imports any module.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import msgspec

from rota.errors import ComponentInvalid, ComponentUnknown
from rota.graph import standard_components
from rota.graph.components import ComponentDescriptor, ComponentType, component_type, function_type
from rota.graph.importable_names import load_importable

__all__ = ["GROUP", "ComponentRegistry", "standard_types"]

GROUP = "rota.components"


class ComponentRegistry:
    """The component types that graphs may use."""

    def __init__(self, components: Iterable[Any] = (), *, imports: bool = False) -> None:
        self._types: dict[str, ComponentType] = {}
        self._imports = imports
        self._modules: set[str] = set()  # loaded ones, whose functions are types too: `module:function`
        for decorated in components:
            self.add(decorated)

    def add(self, decorated: Any, *, type_name: str | None = None) -> ComponentType:
        """Register a decorated function or class, under `type_name` or its own type name."""
        found = component_type(decorated)
        if found is None:
            raise ComponentInvalid(f"{decorated!r} is not a component", hint="Decorate it with @component.")
        if type_name is not None and type_name != found.name:
            found = msgspec.structs.replace(found, descriptor=msgspec.structs.replace(found.descriptor, type=type_name))
        return self.register(found)

    def register(self, found: ComponentType) -> ComponentType:
        """Register a type under its own name."""
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
        self._modules.add(module.__name__)
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
        found = self._types.get(type_name) or standard_types().get(type_name)
        is_importable = self._imports or type_name.partition(":")[0] in self._modules
        if found is None and is_importable and ":" in type_name:
            found = self.register(_imported(type_name))
        if found is None:
            known = ", ".join(sorted(self._types)) or "none"
            raise ComponentUnknown(
                f"unknown component type {type_name!r}", hint=f"Registered types: {known}.", component_type=type_name
            )
        return found

    def check_function(self, name: str) -> None:
        """Refuse a function that a configuration names if its module would have to be imported and may not be."""
        module = name.partition(":")[0]
        if not (self._imports or module in self._modules or module in sys.modules):
            raise ComponentInvalid(
                f"the function {name!r} is in a module that is not loaded",
                hint=f"Load it with `--components {module}`: a graph file alone causes no import.",
            )

    def describe(self, component_type: str) -> ComponentDescriptor | None:
        """Return the descriptor of a type, or None if the type is not registered."""
        try:
            return self.find(component_type).descriptor
        except ComponentUnknown:
            return None

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


@functools.cache
def standard_types() -> dict[str, ComponentType]:
    """Return the types that every registry has, by name."""
    found = (component_type(value) for value in vars(standard_components).values())
    return {each.name: each for each in found if each is not None}


def _imported(type_name: str) -> ComponentType:
    try:
        return function_type(load_importable(type_name), type_name)
    except ComponentInvalid:
        raise
    except Exception as problem:  # importing runs another module's code, which may fail in any way
        raise ComponentUnknown(
            f"the component type {type_name!r} cannot be imported: {type(problem).__name__}: {problem}",
            hint="Write it as module:function, with a module that is installed or on the Python path of this process.",
            component_type=type_name,
        ) from problem


def _where(known: ComponentType) -> str:
    return f"{known.implementation.__module__}.{known.implementation.__qualname__}"

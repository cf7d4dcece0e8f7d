"""Names and modules that are loaded when they are first used.

A face (`__init__.py`) exports the public names of its package. Where loading all of them would slow down the command
line or a worker process, the face lists which module defines which names and loads that module on first use: `exports`.
A module of Python that takes long to load, and that most commands do without, is loaded in the same way: `late`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["exports", "late"]


def exports(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a module `__getattr__` for a face: `homes` maps each submodule to the names it defines."""
    home_of = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home_of[name]), name)

    return load


def late(module: str) -> Any:
    """Return what stands for a module, and loads it when something of it is first used."""
    return _Late(module)


class _Late:
    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self._module), name)
        setattr(self, name, found)
        return found

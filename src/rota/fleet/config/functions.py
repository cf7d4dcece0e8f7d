"""Functions that a fleet file names: where they are looked for, and whether they are there.

The folder of the file is on the path, before everything else. The check runs no code of the module: it finds the file
and looks for the name among those that the module defines.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["import_problem", "put_on_path"]


def put_on_path(folder: str) -> None:
    """Let functions be imported from a folder, also by the worker processes, which inherit the path."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


def import_problem(function: str, folder: str) -> str | None:
    """Return why a function cannot be imported, as far as its file tells; None if no problem was found."""
    module, _, name = function.partition(":")
    path: list[str] | None = [folder, *sys.path]
    origin: str | None = None
    for part in _parents(module):
        try:
            spec = PathFinder.find_spec(part, path)
        except (ImportError, ValueError, OSError):
            return None  # the import itself says what is wrong
        if spec is None:
            return None if part in sys.builtin_module_names else f"there is no module {part} in {folder} or on the path"
        origin = spec.origin
        path = list(spec.submodule_search_locations or ())
    names = _defined_names(origin)
    return None if names is None or name.partition(".")[0] in names else f"module {module} does not define {name}"


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _defined_names(origin: str | None) -> set[str] | None:
    """Return the names that a source file defines at its top level; None if that cannot be told."""
    if origin is None or not origin.endswith(".py"):
        return None
    try:
        body = ast.parse(Path(origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    names: set[str] = set()
    for node in ast.walk(body):  # also inside `if` and `try`
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
    return None if {"*", "__getattr__"} & names else names

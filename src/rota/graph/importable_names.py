"""Names by which another process finds a function: `shop.reports:write`.

A function has such a name if importing its module and looking up its name there returns this very function. A lambda, a
function inside another function, a method of an object and everything in the program that was started (`__main__`)
have none: another process cannot get hold of them.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["called_name", "expand_partial", "importable_name", "load_importable", "why_not_importable"]


def importable_name(function: Any) -> str | None:
    """Return `module:name` for a function that another process can import; None for any other."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "<" in name:
        return None
    try:
        found = load_importable(f"{module}:{name}")
    except Exception:  # another name, or a module that cannot be imported again
        return None
    return f"{module}:{name}" if found == function else None


def load_importable(name: str) -> Any:
    """Import the module and return what the name refers to there; a function that became an agent is unwrapped."""
    found = pkgutil.resolve_name(name)
    while hasattr(found, "__wrapped__") and not inspect.isroutine(found):
        found = found.__wrapped__
    return found


def why_not_importable(function: Any) -> str:
    """Return why another process cannot import a function, as the end of a sentence about it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if isinstance(function, functools.partial):
        return "it is a partial with values that are not JSON, or of a function that cannot be imported"
    if "<lambda>" in name:
        return "it is a lambda"
    if "<locals>" in name:
        return f"it is defined inside {name.rpartition('.<locals>.')[0]}"
    if inspect.ismethod(function) and not inspect.isclass(function.__self__):
        return f"it is a method of an object of type {type(function.__self__).__name__}"
    if module == "__main__":
        return "it is defined in the program that was started, which has no module name"
    return f"{module}.{name} is not this function"


def called_name(function: Any) -> str:
    """Return the name of a function as messages and nodes show it: of a partial, the name of its function."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def expand_partial(function: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function behind a partial and the arguments it sets by name.

    A partial that cannot be written that way (values that are not JSON, `*args`) is returned as it is.
    """
    if not isinstance(function, functools.partial):
        return function, {}
    try:
        bound = inspect.signature(function.func).bind_partial(*function.args, **function.keywords)
        given = dict(bound.arguments)
        for parameter in bound.signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL and parameter.name in given:
                return function, {}
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
        if msgspec.json.decode(msgspec.json.encode(given)) != given:
            return function, {}
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return function, {}
    return function.func, given

"""The changes that `explain` suggests, as calls that a button makes. Pure."""

from __future__ import annotations

import inspect
from typing import Any

from rota.decoding import convert
from rota.model import Suggestion
from rota.rpc import METHODS, Method

__all__ = ["call_of", "function_of"]

_BY_VERB = {f"{method.part}.{method.verb}": method for method in METHODS.values()}
_NOT_FOR_PEOPLE = frozenset({"queue.force_claim"})  # a claim needs a worker that runs it


def call_of(change: Suggestion, caller: str) -> tuple[Method, dict[str, Any]] | None:
    """Return the method of a suggestion and its arguments; None if it is something to wait for or to do elsewhere.

    The arguments have the types of the method. Where it takes the name of the one who acts, that is the caller.
    """
    method = _BY_VERB.get(change.verb or "")
    if method is None or change.verb in _NOT_FOR_PEOPLE:
        return None
    arguments = dict(change.arguments)
    if "by" in inspect.signature(method.function).parameters:
        arguments["by"] = caller
    typed = convert(arguments, method.params)
    return method, {name: getattr(typed, name) for name in typed.__struct_fields__ if name in arguments}


def function_of(api: Any, method: Method) -> Any:
    """Return the function of the API that a method is."""
    return getattr(getattr(api, method.part), method.verb)

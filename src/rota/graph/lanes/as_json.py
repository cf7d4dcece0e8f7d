"""Values that must survive this process: they are kept as JSON, or refused."""

from __future__ import annotations

from typing import Any

import msgspec

from rota.errors import ComponentInvalid
from rota.graph.reports import words

__all__ = ["as_json"]


def as_json(what: str, value: Any) -> Any:
    """A value as it comes back from JSON; refused when that is not the same value."""
    try:
        back = msgspec.json.decode(msgspec.json.encode(value))
        same = bool(back == value)
    except Exception as problem:  # the value's own code may raise anything
        raise _not_json(what, value, words(problem)) from problem
    if not same:
        raise _not_json(what, value, "it would come back changed")
    return back


def _not_json(what: str, value: Any, why: str) -> ComponentInvalid:
    return ComponentInvalid(
        f"{what} is a {type(value).__name__} that cannot be kept as JSON: {why}",
        hint="In a graph with a queue lane use dictionaries, lists, text, numbers and None.",
    )

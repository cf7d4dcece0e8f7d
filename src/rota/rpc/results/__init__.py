"""What each method answers, where that is not one of the model's own nouns, and how answers become results.

A `Shape` says how what a kernel's verb returns is put on the wire and taken off again, so that a client's verb
returns exactly what the kernel's would. `work.py` has what is answered about entries and their runs, `register.py`
what is answered about all that is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

__all__ = ["DONE", "Done", "Shape", "fields", "one", "same", "together"]


class Shape(NamedTuple):
    """How an answer is put on the wire (it sees the parameters too) and taken off again."""

    result: Any  # its type on the wire
    pack: Callable[[Any, Any], Any]
    unpack: Callable[[Any], Any]


def same(result: Any) -> Shape:
    """The answer is the result."""
    return Shape(result, lambda _params, answer: answer, lambda result: result)


def one(result: type[msgspec.Struct]) -> Shape:
    """The answer is the result's one field."""
    (field,) = result.__struct_fields__
    return Shape(result, lambda _params, answer: result(answer), lambda packed: getattr(packed, field))


def fields(result: type[msgspec.Struct], back: Callable[..., Any]) -> Shape:
    """The answer is a tuple of the result's fields."""
    return Shape(result, lambda _params, answer: result(*answer), lambda packed: back(*msgspec.structs.astuple(packed)))


def together(*items: Any) -> tuple[Any, ...]:
    """A plain tuple of fields."""
    return items


class Done(msgspec.Struct, frozen=True):
    """Nothing but that it was done."""


DONE = Shape(Done, lambda _params, _answer: Done(), lambda _result: None)

"""The result of each method, where it is not a struct of the model, and how it is encoded.

A `ResultCodec` converts what the implementing function returns to the result on the wire and back, so that a client's
function returns exactly what the local one would. `entries.py` has the results for entries and runs, `accounts.py`
those for agents, projects and budgets, `system.py` those for events, access tokens and the daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

__all__ = ["NO_RESULT", "NoResult", "ResultCodec", "as_is", "as_tuple", "many_fields", "one_field"]


class ResultCodec(NamedTuple):
    """The conversion between a function's return value and the result on the wire."""

    result: Any  # its type on the wire
    pack: Callable[[Any, Any], Any]  # from the parameters and the return value to the result
    unpack: Callable[[Any], Any]


def as_is(result: Any) -> ResultCodec:
    """The result is the return value."""
    return ResultCodec(result, lambda _params, value: value, lambda result: result)


def one_field(result: type[msgspec.Struct]) -> ResultCodec:
    """The return value is the result's only field."""
    (field,) = result.__struct_fields__
    return ResultCodec(result, lambda _params, value: result(value), lambda packed: getattr(packed, field))


def many_fields(result: type[msgspec.Struct], build: Callable[..., Any]) -> ResultCodec:
    """The return value is a tuple of the result's fields; `build` makes it from them."""
    return ResultCodec(
        result, lambda _params, value: result(*value), lambda packed: build(*msgspec.structs.astuple(packed))
    )


def as_tuple(*items: Any) -> tuple[Any, ...]:
    """Return the fields as a plain tuple."""
    return items


class NoResult(msgspec.Struct, frozen=True):
    """An empty result."""


NO_RESULT = ResultCodec(NoResult, lambda _params, _value: NoResult(), lambda _result: None)

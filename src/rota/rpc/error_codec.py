"""Conversion between errors and JSON-RPC error objects.

An error object has the error's code, a message that begins with the class name, and the error's facts as data. The
client converts it back to the same class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rota import errors
from rota.errors import InvalidInput, RotaError

__all__ = [
    "INTERNAL",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "ErrorObject",
    "from_error_object",
    "to_error_object",
]

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INTERNAL = -32700, -32600, -32601, -32603


class ErrorObject(msgspec.Struct, frozen=True):
    """A JSON-RPC error object."""

    code: int
    message: str
    data: Any = None


def to_error_object(error: BaseException) -> ErrorObject:
    """Convert an error. An exception that is not a `RotaError` is a defect: only its class is revealed."""
    if not isinstance(error, RotaError):
        text = f"internal error in rota: {type(error).__name__}; search the daemon's log for the request id"
        return ErrorObject(INTERNAL, text)
    return ErrorObject(error.code, f"{type(error).__name__}: {error.message}", _to_json(error.to_rpc_data()))


def _to_json(data: dict[str, Any]) -> dict[str, Any]:
    """Return the facts as JSON values; a value that JSON has no type for becomes its text."""
    return {key: msgspec.to_builtins(value, enc_hook=str, str_keys=True) for key, value in data.items()}


def from_error_object(packed: ErrorObject) -> RotaError:
    """Return the error that the server raised: same class, same facts."""
    data = dict(packed.data) if isinstance(packed.data, dict) else {}
    name, hint = data.pop("name", None), data.pop("hint", None)
    kind = _BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        kind = InvalidInput if packed.code == InvalidInput.code else RotaError
        return errors.rebuilt(kind, packed.message, hint or "", data | {"code": packed.code})
    return errors.rebuilt(kind, packed.message.removeprefix(f"{kind.__name__}: "), hint or "", data)


def _subclasses(root: type[RotaError]) -> Iterator[type[RotaError]]:
    yield root
    for child in root.__subclasses__():
        yield from _subclasses(child)


# reversed, so that of classes with the same name the first wins
_BY_NAME = {kind.name: kind for kind in reversed(list(_subclasses(RotaError)))}

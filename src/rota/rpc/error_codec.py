"""Errors on the wire: a number, a sentence that begins with the class, and the facts. And back into the same class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rota import errors
from rota.errors import InvalidInput, RotaError

__all__ = ["INTERNAL", "INVALID_REQUEST", "METHOD_NOT_FOUND", "PARSE_ERROR", "Fault", "error_of", "fault_of"]

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INTERNAL = -32700, -32600, -32601, -32603


class Fault(msgspec.Struct, frozen=True):
    """An error as it travels."""

    code: int
    message: str
    data: Any = None


def fault_of(error: BaseException) -> Fault:
    """An error for the wire. What is not ours is a defect, of which only the kind is told."""
    if not isinstance(error, RotaError):
        return Fault(INTERNAL, f"a defect in rota: {type(error).__name__}; the log has the request id")
    return Fault(error.code, f"{type(error).__name__}: {error.message}", _plain(error.to_rpc_data()))


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """The facts as JSON can say them: an odd value is told by its text."""
    return {key: msgspec.to_builtins(value, enc_hook=str, str_keys=True) for key, value in data.items()}


def error_of(fault: Fault) -> RotaError:
    """The error that was raised on the other side, in the same class and with the same facts."""
    data = dict(fault.data) if isinstance(fault.data, dict) else {}
    name, hint = data.pop("name", None), data.pop("hint", None)
    kind = _BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        kind = InvalidInput if fault.code == InvalidInput.code else RotaError
        return errors.rebuilt(kind, fault.message, hint or "", data | {"code": fault.code})
    return errors.rebuilt(kind, fault.message.removeprefix(f"{kind.__name__}: "), hint or "", data)


def _tree(root: type[RotaError]) -> Iterator[type[RotaError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


_BY_NAME = {kind.name: kind for kind in reversed(list(_tree(RotaError)))}  # of those that share a name, the first

"""Decoders of typed data. Every one is made here, by one thread at a time.

msgspec prepares a type when it is first decoded, and lets other threads see it half prepared: two threads that decode
it for the first time at the same moment can crash the process. So all code that decodes into a type asks this
file, which prepares each type once, under one lock (tests/house/test_decoding.py looks for any other use).
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar, overload

import msgspec

__all__ = ["convert", "decode_json", "json_decoder", "msgpack_decoder"]

T = TypeVar("T")
_preparing = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}  # by type
# a fork waits for a type that is being prepared: the child would have it half prepared for ever
os.register_at_fork(before=_preparing.acquire, after_in_parent=_preparing.release, after_in_child=_preparing.release)


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...


@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...


def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of JSON text into a type."""
    found = _decoders.get(kind)
    if found is None:
        with _preparing:
            found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Make a decoder of msgpack data into a type."""
    with _preparing:
        return msgspec.msgpack.Decoder(kind)


@overload
def decode_json(text: bytes | str, kind: type[T]) -> T: ...


@overload
def decode_json(text: bytes | str, kind: Any) -> Any: ...


def decode_json(text: bytes | str, kind: Any) -> Any:
    """Decode JSON text into a type; raises `msgspec.DecodeError`, whatever is wrong with the text."""
    try:
        return json_decoder(kind).decode(text)
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None
    except UnicodeError as problem:
        raise msgspec.DecodeError(str(problem)) from None


@overload
def convert(value: Any, kind: type[T], *, strict: bool = ...) -> T: ...


@overload
def convert(value: Any, kind: Any, *, strict: bool = ...) -> Any: ...


def convert(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """Convert plain data into a type; raises as `msgspec.convert` does."""
    if kind not in _decoders:
        json_decoder(kind)
    return msgspec.convert(value, kind, strict=strict)

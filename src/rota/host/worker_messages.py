"""How a pool and its warm worker speak: pickles, each behind a byte that says what it is and four that say how long.

    pool → worker    CALL (number, function, arguments)    TELL (number, value), while it works
    worker → pool    NOTE (number, value), while it works  then one of VALUE, RAISED, UNPICKLABLE, UNLOADABLE
    worker → pool    ASK (number, question, value), while it works
    pool → worker    ANSWER (number, question, whether it went well, value)

A worker reads nothing but CALLs until it has answered, except when its function asks, or asks what it was told.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from rota.errors import InvalidInput, LimitExceeded

__all__ = ["CALL_BYTES_MAX", "TELL_BYTES_MAX", "Kind", "Line", "pickled_call"]

CALL_BYTES_MAX = 256 * 1024 * 1024
TELL_BYTES_MAX = 4 * 1024  # so small that it is sent whole or not at all
READ_BYTES = 64 * 1024
_HEADER = struct.Struct(">BI")


class Kind(IntEnum):
    """What a message is."""

    CALL = 1
    TELL = 2
    NOTE = 3
    VALUE = 4
    RAISED = 5
    UNPICKLABLE = 6  # the value cannot be sent
    UNLOADABLE = 7  # the function or its arguments cannot be understood here
    ASK = 8
    ANSWER = 9


def pickled_call(
    number: int, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> bytes:
    """A call as it travels."""
    try:
        payload = pickle.dumps((number, function, tuple(args), dict(kwargs or {})))
    except Exception as problem:
        raise InvalidInput(
            f"the call cannot be sent to another process: {type(problem).__name__}: {problem}",
            field="function",
            hint="Use a function of a module, and arguments that pickle takes.",
        ) from problem
    if len(payload) > CALL_BYTES_MAX:
        raise LimitExceeded("call_bytes_max", CALL_BYTES_MAX, len(payload), field="args")
    return payload


class Line:
    """One end of the line between a pool and a worker."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._read = bytearray()

    def fileno(self) -> int:
        """The descriptor."""
        return self._socket.fileno()

    def send(self, kind: Kind, payload: bytes) -> None:
        """Send one message. OSError when nobody is there to read it."""
        self._socket.sendall(_HEADER.pack(kind, len(payload)) + payload)

    def send_now(self, kind: Kind, payload: bytes) -> bool:
        """Send one small message if that can be done without waiting."""
        try:
            self._socket.send(_HEADER.pack(kind, len(payload)) + payload, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def is_dead(self) -> bool:
        """Whether the other side is gone, as far as can be seen without waiting."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self) -> tuple[Kind, bytes] | None:
        """The next message; None when the other side is gone."""
        while (message := self._whole()) is None:
            if not self._more():
                return None
        return message

    def waiting(self) -> tuple[Kind, bytes] | None:
        """The next message if it is here already, without waiting for it."""
        try:
            while (message := self._whole()) is None and self._more(socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return None
        return message

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _more(self, flags: int = 0) -> bool:
        try:
            chunk = self._socket.recv(READ_BYTES, flags)
        except ConnectionError:
            return False
        self._read += chunk
        return bool(chunk)

    def _whole(self) -> tuple[Kind, bytes] | None:
        if len(self._read) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack_from(self._read)
        end = _HEADER.size + length
        if len(self._read) < end:
            return None
        payload = bytes(memoryview(self._read)[_HEADER.size : end])
        del self._read[:end]
        return Kind(kind), payload

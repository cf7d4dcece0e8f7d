"""Messages between a worker pool and its workers: a byte for the kind, four bytes for the length, a pickle.

    pool → worker    CALL (number, function, arguments)      NOTICE (number, value), while it runs
    worker → pool    REPORT (number, value), while it runs   then one of VALUE, RAISED, UNPICKLABLE, UNLOADABLE, each
                     with the CPU time of the call in front of the pickle
    worker → pool    REQUEST (number, request id, value), while it runs
    pool → worker    RESPONSE (number, request id, whether it succeeded, value)

While a call runs, the worker reads messages only when its function sends a request or looks for notices.

The function of a call can reach the connection of its worker. Bytes that are not a message raise `GarbledMessage`: the
pool kills such a worker, and its call has crashed.
"""

from __future__ import annotations

import math
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

from rota.errors import InvalidInput, LimitExceeded

__all__ = [
    "CALL_BYTES_MAX",
    "NOTICE_BYTES_MAX",
    "GarbledMessage",
    "MessageKind",
    "WorkerConnection",
    "pickle_call",
    "unpack_result",
]

CALL_BYTES_MAX = 256 * 1024 * 1024
MESSAGE_BYTES_MAX = 1024 * 1024 * 1024  # of any message; a longer one is not a message
NOTICE_BYTES_MAX = 4 * 1024  # small enough to be sent completely or not at all
READ_BYTES = 64 * 1024
BLOCKED_S = 0.1  # a message that takes longer than this to send has a reader that hangs
_CPU_S = struct.Struct(">d")
_HEADER = struct.Struct(">BI")


class GarbledMessage(Exception):
    """The other side sent bytes that are not a message."""


class MessageKind(IntEnum):
    """The kind of a message."""

    CALL = 1
    NOTICE = 2
    REPORT = 3
    VALUE = 4
    RAISED = 5
    UNPICKLABLE = 6  # the value cannot be pickled
    UNLOADABLE = 7  # the worker cannot load the function or its arguments
    REQUEST = 8
    RESPONSE = 9


_KINDS = frozenset(MessageKind)


def pickle_call(
    number: int, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> bytes:
    """Return the payload of a CALL message."""
    try:
        payload = pickle.dumps((number, function, tuple(args), dict(kwargs or {})))
    except Exception as problem:
        raise InvalidInput(
            f"the call cannot be sent to another process: {type(problem).__name__}: {problem}",
            field="function",
            hint="Use a function defined at the top of a module, and arguments that can be pickled.",
        ) from problem
    if len(payload) > CALL_BYTES_MAX:
        raise LimitExceeded("call_bytes_max", CALL_BYTES_MAX, len(payload), field="args")
    return payload


def unpack_result(payload: bytes) -> tuple[float, memoryview]:
    """Return the CPU time of a call and its pickled result, which may be large and is not copied."""
    if len(payload) < _CPU_S.size:
        raise GarbledMessage(f"a result of {len(payload)} bytes")
    (cpu_s,) = _CPU_S.unpack_from(payload)
    if not 0 <= cpu_s < math.inf:  # false for NaN
        raise GarbledMessage(f"a result after {cpu_s} s of CPU time")
    return cpu_s, memoryview(payload)[_CPU_S.size :]


class WorkerConnection:
    """One end of the connection between a pool and a worker."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._sending = threading.Lock()  # a large message is sent in parts

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def send(self, kind: MessageKind, payload: bytes) -> None:
        """Send one message. Raises OSError if the other side is gone."""
        self._send(_HEADER.pack(kind, len(payload)), payload)

    def send_result(self, kind: MessageKind, cpu_s: float, pickled: bytes) -> None:
        """Send the message that ends a call, with its CPU time. Raises OSError if the other side is gone."""
        self._send(_HEADER.pack(kind, _CPU_S.size + len(pickled)) + _CPU_S.pack(cpu_s), pickled)

    def _send(self, head: bytes, payload: bytes) -> None:
        with self._sending:
            self._socket.sendall(head + payload)

    def try_send(self, kind: MessageKind, payload: bytes) -> bool:
        """Send one small message unless the connection is blocked. Return whether it was sent."""
        if not self._sending.acquire(timeout=BLOCKED_S):
            return False
        try:
            self._socket.send(_HEADER.pack(kind, len(payload)) + payload, socket.MSG_DONTWAIT)
        except OSError:
            return False
        finally:
            self._sending.release()
        return True

    def is_closed_by_peer(self) -> bool:
        """Whether the other side is gone, as far as can be seen without waiting."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self) -> tuple[MessageKind, bytes] | None:
        """Wait for the next message and return it; None when the other side is gone."""
        while (message := self._next_message()) is None:
            if not self._read_more():
                return None
        return message

    def try_receive(self) -> tuple[MessageKind, bytes] | None:
        """Return the next message if it has arrived, without waiting."""
        try:
            while (message := self._next_message()) is None and self._read_more(socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return None
        return message

    def shut_down(self) -> None:
        """Make a thread that reads find the end, after what has arrived."""
        with suppress(OSError):  # it is closed
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _read_more(self, flags: int = 0) -> bool:
        try:
            chunk = self._socket.recv(READ_BYTES, flags)
        except BlockingIOError:
            raise
        except OSError:  # the other side is gone, or this end is closed
            return False
        self._buffer += chunk
        return bool(chunk)

    def _next_message(self) -> tuple[MessageKind, bytes] | None:
        """Take the first message from the buffer, if it has arrived completely."""
        if len(self._buffer) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack_from(self._buffer)
        if kind not in _KINDS or length > MESSAGE_BYTES_MAX:
            raise GarbledMessage(f"kind {kind}, {length:,} bytes")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        return MessageKind(kind), payload

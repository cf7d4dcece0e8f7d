"""JSON lines over a stream socket, with file descriptors riding along.

A frame is one JSON object on one line. A frame that brings descriptors says how many in its `fds` field, and they
are attached to its first byte. Two facts of the kernel make it certain whose descriptors they are: each frame is
handed over in one piece, and a read ends after the piece that carried descriptors. So whatever descriptors come with
a read belong to the last frame that begins in it:

    sent      {"op":"kill",…}⏎      {"op":"spawn","fds":3,…}⏎ + 3 descriptors      {"op":"kill",…}⏎
    one read  {"op":"kill",…}⏎{"op":"spawn","fds":3,… + 3 descriptors              (stops here, even with room left)

If descriptors are lost on the way (the receiver may open no more), the frame arrives with fewer than it says and the
receiver refuses that one frame; nobody else's are mixed up.

The minder imports this, so it imports almost nothing.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

__all__ = ["FRAME_BYTES_MAX", "FRAME_FDS_MAX", "REPORT_BYTES", "Frame", "Inbox", "Outbox", "encode", "send"]

FRAME_BYTES_MAX = 40 * 1024 * 1024  # the longest argument list a kernel takes (6 MiB), every byte as six
FRAME_FDS_MAX = 16
READ_BYTES = 64 * 1024  # above the allocator's mmap threshold every read would cost a mapping
REPORT_BYTES = 4 * 1024  # to be read at once where only reports come
_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # what we receive is for one child, not for all of them
_ANCILLARY_BYTES = socket.CMSG_SPACE(FRAME_FDS_MAX * array.array("i").itemsize)
_dumps = json.JSONEncoder(separators=(",", ":")).encode
_parse = json.JSONDecoder().raw_decode  # not loads, which looks for what we never send


class Frame(NamedTuple):
    """A message and the descriptors that came with it; who takes the frame closes them."""

    message: dict[str, Any]
    fds: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every descriptor arrived that the message speaks of."""
        return len(self.fds) == int(self.message.get("fds", 0))

    def close(self) -> None:
        """Close the descriptors."""
        _close(self.fds)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def encode(message: dict[str, Any], fds: Sequence[int] = ()) -> bytes:
    """A message as one line of ASCII, so that any bytes of a path survive as escapes."""
    if fds:
        message = {**message, "fds": len(fds)}
    return _dumps(message).encode("ascii") + b"\n"


def send(sock: socket.socket, line: bytes, fds: Sequence[int] = ()) -> None:
    """Send one whole line on a blocking socket."""
    sent = socket.send_fds(sock, [line], fds) if fds else sock.send(line)
    if sent < len(line):
        sock.sendall(memoryview(line)[sent:])


class Inbox:
    """Frames as they come in."""

    def __init__(self, sock: socket.socket, read_bytes: int = READ_BYTES) -> None:
        self._socket = sock
        self._read_bytes = read_bytes
        self._begun = bytearray()  # the frame that has begun and not ended
        self._begun_fds: tuple[int, ...] = ()

    def receive(self, flags: int = 0) -> list[Frame] | None:
        """What one read brings, perhaps nothing whole; None when the other side has closed."""
        chunk, ancillary, _flags, _address = self._socket.recvmsg(self._read_bytes, _ANCILLARY_BYTES, _CLOEXEC | flags)
        if not chunk:
            return None
        fds = tuple(_descriptors(ancillary)) if ancillary else ()
        if not self._begun and chunk.find(b"\n") == len(chunk) - 1:  # one frame and no more, as it mostly is
            return [Frame(_message(chunk), fds)]
        return list(self._split(chunk, fds))

    def close(self) -> None:
        """Close what belongs to a frame that will never end."""
        _close(self._begun_fds)
        self._begun_fds = ()

    def _split(self, chunk: bytes, fds: tuple[int, ...]) -> Iterator[Frame]:
        *ends, rest = chunk.split(b"\n")
        if not ends and len(self._begun) + len(chunk) > FRAME_BYTES_MAX:
            raise ValueError(f"a frame is longer than {FRAME_BYTES_MAX:,} bytes")
        lines: list[tuple[bytes, tuple[int, ...]]] = []
        for end in ends:
            lines.append((bytes(self._begun) + end, self._begun_fds))
            self._begun, self._begun_fds = bytearray(), ()
        if rest:  # it is the last frame that begins here
            self._begun += rest
            self._begun_fds += fds
        elif fds:
            line, _none = lines.pop()
            lines.append((line, fds))
        for line, belonging in lines:
            yield Frame(_message(line), belonging)


def _message(line: bytes) -> dict[str, Any]:
    message: dict[str, Any] = _parse(line.decode())[0]
    return message


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            yield from fds


class Outbox:
    """Frames on their way out of a process that must never wait for its reader."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._waiting: deque[tuple[bytes, tuple[int, ...]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send a message now or when there is room. The descriptors are closed here once they have gone."""
        self._waiting.append((encode(message, fds), fds))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for."""
        while self._waiting:
            line, fds = self._waiting[0]
            try:
                sent = socket.send_fds(self._socket, [line], fds) if fds else self._socket.send(line)
            except BlockingIOError:
                return
            except ConnectionError:  # nobody is left to be told; the loop notices by itself that its client is gone
                self.close()
                return
            _close(fds)
            if sent < len(line):
                self._waiting[0] = (line[sent:], ())
                return
            self._waiting.popleft()

    def close(self) -> None:
        """Give up what has not gone."""
        for _line, fds in self._waiting:
            _close(fds)
        self._waiting.clear()

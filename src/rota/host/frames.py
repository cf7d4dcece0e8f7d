"""Messages over a stream socket, each with the file descriptors that belong to it.

A frame is a head of eight bytes (the number of bytes that follow and the number of descriptors sent with them) and a
message encoded with `marshal`. Descriptors are attached to the first byte of a frame. The kernel guarantees two things
that make it certain which frame they belong to: a frame is sent in one call, and a read stops after the data that
carried descriptors. So the descriptors of one read belong to the last frame that begins in it:

    sent      [kill …]      [spawn … 3] + 3 descriptors      [kill …]
    one read  [kill …][spawn … 3 + 3 descriptors             (stops here, even with room left)

If descriptors are lost on the way (the receiver has reached its limit of open files), the frame arrives with fewer
than its head says and the receiver rejects that frame only; descriptors are never assigned to another frame.

Why `marshal`? A frame is written and read in the middle of a run that may take a millisecond. JSON costs three times
as much, and faster libraries are not loaded in the reaper. Two common objections to marshal do not apply. Its format
depends on the version of Python: both ends run the same interpreter, because one starts the other
(`reaper_client.python_command`). It must not read untrusted data: the sockets are unnamed pairs that no other process
can connect to and no command inherits; the reaper and its client belong to the same user and the same program; and the
fork server, which runs modules of the user, has workers whose results its client unpickles anyway. Any text survives,
also surrogates that stand for bytes that are not UTF-8. Subclasses of str and int are rejected.

The reaper imports this module, so it imports very little itself.
"""

from __future__ import annotations

import array
import marshal
import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

__all__ = [
    "FRAME_BYTES_MAX",
    "FRAME_FDS_MAX",
    "REPORT_BYTES",
    "Frame",
    "FrameReader",
    "FrameWriter",
    "encode",
    "receive_all",
    "send",
]

FRAME_BYTES_MAX = 40 * 1024 * 1024  # the kernel's longest argument list (6 MiB), each byte encoded as five
FRAME_FDS_MAX = 16
READ_BYTES = 64 * 1024  # a larger buffer would be above the allocator's mmap threshold: one mapping per read
REPORT_BYTES = 4 * 1024  # read size of a channel that carries only reports
_HEAD = Struct("<II")  # number of bytes that follow, number of descriptors
_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # a received descriptor is for one child, not for all
_ANCILLARY_BYTES = socket.CMSG_SPACE(FRAME_FDS_MAX * array.array("i").itemsize)


class Frame(NamedTuple):
    """A message and the descriptors that came with it. The receiver closes the descriptors."""

    message: dict[str, Any]
    fds: tuple[int, ...]
    fds_sent: int = 0

    @property
    def has_all_fds(self) -> bool:
        """Whether all descriptors that were sent with the message have arrived."""
        return len(self.fds) == self.fds_sent

    def close(self) -> None:
        """Close the descriptors."""
        _close(self.fds)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def encode(message: dict[str, Any], fds: Sequence[int] = ()) -> bytes:
    """Encode a message as a frame. It may contain the types of JSON and bytes, no instances of other classes."""
    body = marshal.dumps(message)
    return _HEAD.pack(len(body), len(fds)) + body


def send(sock: socket.socket, frame: bytes, fds: Sequence[int] = ()) -> None:
    """Send a frame on a blocking socket."""
    sent = _send_some(sock, frame, fds)
    if sent < len(frame):
        sock.sendall(memoryview(frame)[sent:])


def _send_some(sock: socket.socket, frame: bytes, fds: Sequence[int]) -> int:
    if not fds:
        return sock.send(frame)
    return sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


class FrameReader:
    """Reads frames from a socket."""

    def __init__(self, sock: socket.socket, read_bytes: int = READ_BYTES) -> None:
        self._socket = sock
        self._read_bytes = read_bytes
        self._partial = bytearray()  # the beginning of a frame that has not arrived completely
        self._partial_fds: tuple[int, ...] = ()

    def receive(self, flags: int = 0) -> list[Frame] | None:
        """Return the frames completed by one read, possibly none; None when the other side has closed."""
        chunk, ancillary, _flags, _address = self._socket.recvmsg(self._read_bytes, _ANCILLARY_BYTES, _CLOEXEC | flags)
        if not chunk:
            return None
        fds = _descriptors(ancillary) if ancillary else ()
        if not self._partial and len(chunk) >= _HEAD.size:
            body_bytes, fds_sent = _HEAD.unpack_from(chunk)
            if len(chunk) == _HEAD.size + body_bytes:  # exactly one frame: the usual case
                return [Frame(marshal.loads(chunk[_HEAD.size :]), fds, fds_sent)]  # noqa: S302  # trusted: see the top
        return self._split(chunk, fds)

    def close(self) -> None:
        """Close the descriptors of a frame that has not arrived completely."""
        _close(self._partial_fds)
        self._partial_fds = ()

    def _split(self, chunk: bytes, fds: tuple[int, ...]) -> list[Frame]:
        frames: list[Frame] = []
        self._partial += chunk
        while (frame_bytes := self._complete_frame_bytes()) is not None:
            _body_bytes, fds_sent = _HEAD.unpack_from(self._partial)
            message = marshal.loads(self._partial[_HEAD.size : frame_bytes])  # noqa: S302  # trusted: see the top
            frames.append(Frame(message, self._partial_fds, fds_sent))
            del self._partial[:frame_bytes]
            self._partial_fds = ()
        if self._partial:  # the descriptors belong to the last frame that begins in this read
            self._partial_fds += fds
        elif fds:
            frames[-1] = frames[-1]._replace(fds=fds)
        return frames

    def _complete_frame_bytes(self) -> int | None:
        """The length of the first frame in the buffer, if it has arrived completely."""
        if len(self._partial) < _HEAD.size:
            return None
        frame_bytes = _HEAD.size + int(_HEAD.unpack_from(self._partial)[0])
        if frame_bytes > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {frame_bytes:,} bytes is longer than {FRAME_BYTES_MAX:,} bytes")
        return frame_bytes if frame_bytes <= len(self._partial) else None


def receive_all(sock: socket.socket) -> Iterator[Frame]:
    """Yield the frames that arrive on a blocking socket until the other side is gone."""
    reader = FrameReader(sock)
    try:
        while (frames := reader.receive()) is not None:
            yield from frames
    except OSError:
        pass  # the same as an end of file
    finally:
        reader.close()


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return tuple(fds)


class FrameWriter:
    """Sends frames on a non-blocking socket and buffers what the socket does not accept yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer: deque[tuple[bytes, tuple[int, ...]]] = deque()

    def __bool__(self) -> bool:
        """Whether frames wait in the buffer."""
        return bool(self._buffer)

    def put(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send a message now, or in a later `flush`. The writer closes the descriptors when they are sent."""
        self._buffer.append((encode(message, fds), fds))
        self.flush()

    def flush(self) -> None:
        """Send as much of the buffer as the socket accepts."""
        while self._buffer:
            frame, fds = self._buffer[0]
            try:
                sent = _send_some(self._socket, frame, fds)
            except BlockingIOError:
                return
            except ConnectionError:  # no reader is left; the caller's loop detects that its client has exited
                self.close()
                return
            if fds:
                _close(fds)
            if sent < len(frame):
                self._buffer[0] = (frame[sent:], ())
                return
            self._buffer.popleft()

    def close(self) -> None:
        """Discard the buffer and close its descriptors."""
        for _frame, fds in self._buffer:
            _close(fds)
        self._buffer.clear()

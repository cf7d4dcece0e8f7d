"""Messages over a stream socket, with file descriptors riding along.

A frame is a head of eight bytes (how many bytes follow, how many descriptors came with it) and a message in the form of
`marshal`. Descriptors are attached to a frame's first byte. Two facts of the kernel make it certain whose they are:
each frame is handed over in one piece, and a read ends after the piece that carried descriptors. So whatever
descriptors come with a read belong to the last frame that begins in it:

    sent      [kill …]      [spawn … 3] + 3 descriptors      [kill …]
    one read  [kill …][spawn … 3 + 3 descriptors             (stops here, even with room left)

If descriptors are lost on the way (the receiver may open no more), the frame arrives with fewer than its head says and
the receiver refuses that one frame; nobody else's are mixed up.

Why `marshal`? A frame is written and read in the middle of a run that may be over in a millisecond. JSON costs three
times as much there, and what is as fast is a library, which the minder does not load. Two things that are said against
marshal do not hold here. It is made for one version of Python: both ends are the same interpreter, one started by the
other (`processes.python_start`). It must not read what a stranger wrote: the sockets are pairs that nobody can connect
to and no command inherits; a minder and its client are one user's, and one program; and a nursery, which runs other
people's modules, has workers whose answers its client unpickles anyway. Any text survives, also what stands for bytes
that are not UTF-8. What JSON would take in passing is refused: a subclass of text or of a number.

The minder imports this, so it imports almost nothing.
"""

from __future__ import annotations

import array
import marshal
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, NamedTuple

__all__ = ["FRAME_BYTES_MAX", "FRAME_FDS_MAX", "REPORT_BYTES", "Frame", "Inbox", "Outbox", "encode", "send"]

FRAME_BYTES_MAX = 40 * 1024 * 1024  # the longest argument list a kernel takes (6 MiB), every byte as five
FRAME_FDS_MAX = 16
READ_BYTES = 64 * 1024  # above the allocator's mmap threshold every read would cost a mapping
REPORT_BYTES = 4 * 1024  # to be read at once where only reports come
_HEAD = Struct("<II")  # bytes that follow, descriptors
_CLOEXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # what we receive is for one child, not for all of them
_ANCILLARY_BYTES = socket.CMSG_SPACE(FRAME_FDS_MAX * array.array("i").itemsize)


class Frame(NamedTuple):
    """A message and the descriptors that came with it; who takes the frame closes them."""

    message: dict[str, Any]
    fds: tuple[int, ...]
    fds_sent: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every descriptor arrived that was sent with the message."""
        return len(self.fds) == self.fds_sent

    def close(self) -> None:
        """Close the descriptors."""
        _close(self.fds)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def encode(message: dict[str, Any], fds: Sequence[int] = ()) -> bytes:
    """A message as a frame. It holds what JSON would, and bytes; nothing of a class of its own."""
    body = marshal.dumps(message)
    return _HEAD.pack(len(body), len(fds)) + body


def send(sock: socket.socket, frame: bytes, fds: Sequence[int] = ()) -> None:
    """Send one whole frame on a blocking socket."""
    sent = _sent(sock, frame, fds)
    if sent < len(frame):
        sock.sendall(memoryview(frame)[sent:])


def _sent(sock: socket.socket, frame: bytes, fds: Sequence[int]) -> int:
    if not fds:
        return sock.send(frame)
    return sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


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
        fds = _descriptors(ancillary) if ancillary else ()
        if not self._begun and len(chunk) >= _HEAD.size:
            body_bytes, fds_sent = _HEAD.unpack_from(chunk)
            if len(chunk) == _HEAD.size + body_bytes:  # one frame and no more, as it mostly is
                return [Frame(marshal.loads(chunk[_HEAD.size :]), fds, fds_sent)]  # noqa: S302  # see above
        return self._split(chunk, fds)

    def close(self) -> None:
        """Close what belongs to a frame that will never end."""
        _close(self._begun_fds)
        self._begun_fds = ()

    def _split(self, chunk: bytes, fds: tuple[int, ...]) -> list[Frame]:
        frames: list[Frame] = []
        self._begun += chunk
        while (frame_bytes := self._whole_bytes()) is not None:
            _body_bytes, fds_sent = _HEAD.unpack_from(self._begun)
            message = marshal.loads(self._begun[_HEAD.size : frame_bytes])  # noqa: S302  # see above
            frames.append(Frame(message, self._begun_fds, fds_sent))
            del self._begun[:frame_bytes]
            self._begun_fds = ()
        if self._begun:  # it is the last frame that begins here
            self._begun_fds += fds
        elif fds:
            frames[-1] = frames[-1]._replace(fds=fds)
        return frames

    def _whole_bytes(self) -> int | None:
        """The length of the frame that has begun, if all of it is here."""
        if len(self._begun) < _HEAD.size:
            return None
        frame_bytes = _HEAD.size + int(_HEAD.unpack_from(self._begun)[0])
        if frame_bytes > FRAME_BYTES_MAX:
            raise ValueError(f"a frame is longer than {FRAME_BYTES_MAX:,} bytes")
        return frame_bytes if frame_bytes <= len(self._begun) else None


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return tuple(fds)


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
            frame, fds = self._waiting[0]
            try:
                sent = _sent(self._socket, frame, fds)
            except BlockingIOError:
                return
            except ConnectionError:  # nobody is left to be told; the loop notices by itself that its client is gone
                self.close()
                return
            if fds:
                _close(fds)
            if sent < len(frame):
                self._waiting[0] = (frame[sent:], ())
                return
            self._waiting.popleft()

    def close(self) -> None:
        """Give up what has not gone."""
        for _frame, fds in self._waiting:
            _close(fds)
        self._waiting.clear()

"""What a run printed, within a limit: its beginning and its end.

A program can print without end. The beginning says what it set out to do and the end says what became of it, so the
first half of the limit is kept for the one and the second half for the other; between them what is dropped is counted.

    limit 10:   "abcdefghijklmno"   →   "abcde" … 5 bytes dropped … "klmno"

The copy in a file is in order at every moment, so that it can be read while the run goes on and after a crash. Its end
cannot be shifted in place; it grows until it is twice as long as it may be, and is then written anew. So the file is
never longer than one and a half times the limit, and each byte is written at most twice.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

__all__ = ["BoundedLog"]

_MIDDLE = 0b1000_0000  # how a byte begins that is not the first of a character


class BoundedLog:
    """The beginning and the end of a stream. One thread writes; a reader on another may see it a moment late."""

    def __init__(self, log_bytes: int, path: Path | None = None) -> None:
        self._head_bytes = (log_bytes + 1) // 2
        self._tail_bytes = log_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()  # up to twice as long as it may be, so that it is not shifted at every write
        self._past_head = 0  # bytes that came when the head was full
        self._mirror = _Mirror(path) if path is not None else None

    @property
    def seen_bytes(self) -> int:
        """How much was written in all."""
        return len(self._head) + self._past_head

    @property
    def dropped_bytes(self) -> int:
        """How much was not kept."""
        return max(self._past_head - self._tail_bytes, 0)

    @property
    def mirror_problem(self) -> str | None:
        """Why the copy in the file ends early; None if it does not."""
        return self._mirror.problem if self._mirror is not None else None

    def write(self, data: bytes) -> None:
        """Take what was printed."""
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            if self._mirror is not None:
                self._mirror.append(data[:room])
            data = data[room:]
        if data:
            self._past_head += len(data)
            self._write_tail(data[-self._tail_bytes :] if self._tail_bytes else b"")

    def kept(self) -> bytes:
        """What was kept, with a line in the place of what was dropped."""
        return bytes(self._head) + self._gap() + self._end()

    def tail(self, count: int) -> str:
        """The last `count` bytes of what was kept, as text."""
        if count <= 0:
            return ""
        end = self._end()
        if len(end) < count and not self.dropped_bytes:
            end = bytes(self._head[-(count - len(end)) :]) + end
        return _whole_characters(end[-count:]).decode("utf-8", "replace")

    def close(self) -> None:
        """Nothing more comes: the file gets its final length."""
        if self._mirror is not None:
            if self.dropped_bytes:
                self._rewrite_mirror()
            self._mirror.close()

    def _write_tail(self, data: bytes) -> None:
        shifted = len(self._tail) + len(data) > 2 * self._tail_bytes
        self._tail += data
        if shifted:
            del self._tail[: len(self._tail) - self._tail_bytes]
        if self._mirror is not None:
            if shifted:
                self._rewrite_mirror()
            else:
                self._mirror.append(data)

    def _rewrite_mirror(self) -> None:
        if self._mirror is not None:
            self._mirror.rewrite(self._head_bytes, self._gap() + self._end())

    def _end(self) -> bytes:
        return bytes(self._tail[-self._tail_bytes :]) if self._tail_bytes else b""

    def _gap(self) -> bytes:
        return f"\n… {self.dropped_bytes:,} bytes dropped …\n".encode() if self.dropped_bytes else b""


def _whole_characters(data: bytes) -> bytes:
    """Without the rest of a character that was cut at the beginning."""
    for index, byte in enumerate(data[:4]):
        if byte & 0b1100_0000 != _MIDDLE:
            return data[index:]
    return data


class _Mirror:
    """The copy in a file. A full disk ends the copy, never the run."""

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        self._file: io.FileIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "r+")
        except OSError as problem:
            self.problem = str(problem)

    def append(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as problem:
            self._give_up(problem)

    def rewrite(self, start: int, data: bytes) -> None:
        """Put `data` in the place of everything from `start` on."""
        if self._file is None:
            return
        try:
            self._file.seek(start)
            self._file.truncate()
        except OSError as problem:
            self._give_up(problem)
        self.append(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, problem: OSError) -> None:
        self.problem = str(problem)
        self.close()

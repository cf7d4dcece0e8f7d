"""The output of one run, as its supervisor holds it: bounded in memory, and copied to where it is kept.

A program can print without end. The beginning says what it set out to do and the end says what became of it, so the log
keeps both: the first half of the limit for the beginning, the second half for the end. It counts the bytes dropped
between them.

    limit 10:   "abcdefghijklmno"   →   "abcde" … 5 bytes dropped … "klmno"

What is printed is copied as it comes: to the files beside the store (service/log_files.py) if this process has opened
the store, else to the daemon (log_shipping.py), and to a folder of this machine if one is configured. A copy that fails
costs log bytes, never the run.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from rota.errors import RotaError
from rota.service.log_files import LoggedRun, LogWriter, gap_line
from rota.service.log_folder import LogFolder

__all__ = ["BoundedLog", "LogCopy", "LogFileCopy"]

_CONTINUATION = 0b1000_0000  # the two high bits of a UTF-8 byte that is not the first of its character
_log = logging.getLogger("rota.fleet")


class LogCopy(Protocol):
    """Where the output of a run is copied to."""

    @property
    def problem(self) -> str | None:
        """Why the copy is incomplete, as a sentence. The log that is copied reports it once."""
        ...

    def write(self, offset: int, data: bytes) -> None:
        """Take output; `offset` counts what was printed before. It must not block, and not log: a lock is held."""
        ...

    def close(self) -> None:
        """The run has ended: nothing more is printed."""
        ...


class BoundedLog:
    """The beginning and the end of a stream. Any thread may use it."""

    def __init__(self, log_bytes: int, *copies: LogCopy) -> None:
        self.copies = list(copies)
        self._head_bytes = (log_bytes + 1) // 2
        self._tail_bytes = log_bytes // 2
        self._lock = threading.Lock()  # guards all below, and keeps the copies in order
        self._head = bytearray()
        self._tail = bytearray()  # up to twice its final length, so that not every write shifts it
        self._past_head = 0  # bytes that arrived when the head was full
        self._reported: set[str] = set()  # problems of copies

    @property
    def seen_bytes(self) -> int:
        """The number of bytes written in total."""
        return len(self._head) + self._past_head

    @property
    def dropped_bytes(self) -> int:
        """The number of bytes that were not kept."""
        return max(self._past_head - self._tail_bytes, 0)

    def write(self, data: bytes) -> None:
        """Append output."""
        if not data:
            return
        with self._lock:
            offset = self.seen_bytes
            rest = data[self._head_bytes - len(self._head) :]
            self._head += data[: len(data) - len(rest)]
            if rest:
                self._past_head += len(rest)
                self._write_tail(rest)
            for copy in self.copies:
                copy.write(offset, data)
        self._report_problems()

    def _write_tail(self, data: bytes) -> None:
        if len(data) >= self._tail_bytes:
            self._tail[:] = data[len(data) - self._tail_bytes :]
            return
        self._tail += data
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: len(self._tail) - self._tail_bytes]

    def kept(self) -> bytes:
        """Return what was kept, with a line in place of the dropped bytes."""
        with self._lock:
            return bytes(self._head) + gap_line(self.dropped_bytes).encode() + self._end()

    def since(self, offset: int, bytes_max: int) -> tuple[int, bytes]:
        """Return what was printed from an offset on, with the offset where it begins: later, if bytes were dropped."""
        with self._lock:
            if offset < len(self._head):
                return offset, bytes(self._head[offset : offset + bytes_max])
            tail_at = self.seen_bytes - len(self._tail)  # it may have more than in the end
            offset = max(offset, tail_at)
            return offset, bytes(self._tail[offset - tail_at :][:bytes_max])

    def tail(self, count: int) -> str:
        """Return the last `count` bytes of what was kept, as text."""
        if count <= 0:
            return ""
        with self._lock:
            end = self._end()
            if len(end) < count and not self.dropped_bytes:
                end = bytes(self._head[-(count - len(end)) :]) + end
        return _without_partial_character(end[-count:]).decode("utf-8", "replace")

    def close(self) -> None:
        """The run has ended: bring the copies to their end."""
        for copy in self.copies:
            copy.close()
        self._report_problems()

    def _report_problems(self) -> None:
        """Log why copies are incomplete; without the lock, for which a handler may wait that writes to this log."""
        if all(copy.problem is None for copy in self.copies):
            return
        with self._lock:
            new = {copy.problem for copy in self.copies if copy.problem is not None} - self._reported
            self._reported |= new
        for problem in sorted(new):
            _log.warning("%s", problem)

    def _end(self) -> bytes:
        return bytes(self._tail[-self._tail_bytes :]) if self._tail_bytes else b""


def _without_partial_character(data: bytes) -> bytes:
    """Remove the rest of a character that was cut at the beginning."""
    for index, byte in enumerate(data[:4]):
        if byte & 0b1100_0000 != _CONTINUATION:
            return data[index:]
    return data


class LogFileCopy:
    """The copy of a log in files, which the first output creates. A full disk ends the copy, never the run."""

    def __init__(self, folder: LogFolder, run: LoggedRun, log_bytes: int) -> None:
        self.problem: str | None = None
        self._folder = folder
        self._run = run
        self._log_bytes = log_bytes
        self._writer: LogWriter | None = None

    def write(self, offset: int, data: bytes) -> None:
        """Write output to the files."""
        if self.problem is not None:
            return
        try:
            self._folder.make_room(runs=1 if self._writer is None else 0, size=len(data))
            if self._writer is None:
                self._writer = LogWriter(self._folder.path, self._run, self._log_bytes)
            self._writer.append(offset, data)
        except (OSError, RotaError) as problem:
            self._give_up(problem)

    def close(self) -> None:
        """Close the files."""
        try:
            if self._writer is not None:
                self._writer.close()
        except (OSError, RotaError) as problem:
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        self.problem = f"the output of entry {self._run.sched_id} is not kept in {self._folder.path}: {problem}"

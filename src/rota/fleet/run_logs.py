"""The output of runs: a bounded log for each run, and the folder that holds the log files.

**One log.** A program can print without end. The beginning says what it set out to do and the end says what became of
it, so the log keeps both: the first half of the limit for the beginning, the second half for the end. It counts the
bytes dropped between them.

    limit 10:   "abcdefghijklmno"   →   "abcde" … 5 bytes dropped … "klmno"

The copy in a file is in order at every moment, so that it can be read during the run and after a crash. Its end cannot
be shifted in place: it grows to twice its final length and is then rewritten. So the file never exceeds one and a half
times the limit, and each byte is written at most twice.

**The folder.** A file is named after the entry and the attempt, so `rota logs 7` finds it. When there are more files
than `logs_max`, the oldest are removed, by modification time; files of runs in progress here stay. Listing the folder
for every run would cost more than the run, so it is listed once per `logs_max / 10` runs; in between there are up to a
tenth more files than the maximum. Only the owner may read the folder and the files (store/private_files.py).
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rota.errors import UnsafePath
from rota.store.private_files import make_private_folder, open_private

__all__ = ["LOGS_MAX", "BoundedLog", "LogFolder", "find_logs", "log_name"]

LOGS_MAX = 10_000  # default maximum number of log files
SUFFIX = ".log"
_CONTINUATION = 0b1000_0000  # the two high bits of a UTF-8 byte that is not the first of its character


# --- the log of one run ----------------------------------------------------------------------------


class BoundedLog:
    """The beginning and the end of a stream. One thread writes; a reader on another thread may lag slightly."""

    def __init__(self, log_bytes: int, path: Path | None = None, *, opens_late: bool = False) -> None:
        """With `opens_late` the file is created when something is written."""
        self._head_bytes = (log_bytes + 1) // 2
        self._tail_bytes = log_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()  # up to twice its final length, so that not every write shifts it
        self._past_head = 0  # bytes that arrived when the head was full
        self._copy = _FileCopy(path, opens_late=opens_late) if path is not None else None

    @property
    def seen_bytes(self) -> int:
        """The number of bytes written in total."""
        return len(self._head) + self._past_head

    @property
    def dropped_bytes(self) -> int:
        """The number of bytes that were not kept."""
        return max(self._past_head - self._tail_bytes, 0)

    @property
    def copy_problem(self) -> str | None:
        """Why the copy in the file is incomplete; None if it is not."""
        return self._copy.problem if self._copy is not None else None

    def write(self, data: bytes) -> None:
        """Append output."""
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            if self._copy is not None:
                self._copy.append(data[:room])
            data = data[room:]
        if data:
            self._past_head += len(data)
            self._write_tail(data[-self._tail_bytes :] if self._tail_bytes else b"")

    def kept(self) -> bytes:
        """Return what was kept, with a line in place of the dropped bytes."""
        return bytes(self._head) + self._gap() + self._end()

    def tail(self, count: int) -> str:
        """Return the last `count` bytes of what was kept, as text."""
        if count <= 0:
            return ""
        end = self._end()
        if len(end) < count and not self.dropped_bytes:
            end = bytes(self._head[-(count - len(end)) :]) + end
        return _without_partial_character(end[-count:]).decode("utf-8", "replace")

    def close(self) -> None:
        """Bring the file to its final length and close it."""
        if self._copy is not None:
            if self.dropped_bytes:
                self._rewrite_copy()
            self._copy.close()

    def _write_tail(self, data: bytes) -> None:
        shifted = len(self._tail) + len(data) > 2 * self._tail_bytes
        self._tail += data
        if shifted:
            del self._tail[: len(self._tail) - self._tail_bytes]
        if self._copy is not None:
            if shifted:
                self._rewrite_copy()
            else:
                self._copy.append(data)

    def _rewrite_copy(self) -> None:
        if self._copy is not None:
            self._copy.rewrite(self._head_bytes, self._gap() + self._end())

    def _end(self) -> bytes:
        return bytes(self._tail[-self._tail_bytes :]) if self._tail_bytes else b""

    def _gap(self) -> bytes:
        return f"\n… {self.dropped_bytes:,} bytes dropped …\n".encode() if self.dropped_bytes else b""


def _without_partial_character(data: bytes) -> bytes:
    """Remove the rest of a character that was cut at the beginning."""
    for index, byte in enumerate(data[:4]):
        if byte & 0b1100_0000 != _CONTINUATION:
            return data[index:]
    return data


class _FileCopy:
    """The copy of a log in a file. A full disk ends the copy, never the run."""

    def __init__(self, path: Path, *, opens_late: bool = False) -> None:
        self.problem: str | None = None
        self._file: io.FileIO | None = None
        self._path: Path | None = path  # None: it was opened
        if not opens_late:
            self._open()

    def _open(self) -> None:
        path, self._path = self._path, None
        if path is None:
            return
        try:
            self._file = io.FileIO(_open_log(path), "r+")
            self._file.truncate()
        except (OSError, UnsafePath) as problem:
            self.problem = str(problem)

    def append(self, data: bytes) -> None:
        """Write data at the end."""
        if self._path is not None:
            self._open()
        if self._file is None:
            return
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as problem:
            self._give_up(problem)

    def rewrite(self, start: int, data: bytes) -> None:
        """Replace everything from `start` on with `data`."""
        if self._file is None:
            return
        try:
            self._file.seek(start)
            self._file.truncate()
        except OSError as problem:
            self._give_up(problem)
        self.append(data)

    def close(self) -> None:
        """Close the file."""
        self._path = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, problem: OSError) -> None:
        self.problem = str(problem)
        self.close()


def _open_log(path: Path) -> int:
    """Open a log file in its folder, which is created if it is missing; a link in the folder is not followed."""
    folder = make_private_folder(path.parent, follows_own_link=True, parents=True)
    try:
        return open_private(path.name, dir_fd=folder)
    except UnsafePath as problem:
        raise UnsafePath(f"{path.parent}/{problem.message}", path=str(path)) from None
    finally:
        os.close(folder)


# --- the folder of log files -----------------------------------------------------------------------


def log_name(sched_id: int, attempt: int) -> str:
    """Return the file name of a run's log."""
    return f"{sched_id}.{attempt}{SUFFIX}"


def find_logs(folder: Path, sched_id: int) -> dict[int, Path]:
    """Return the log files of an entry, by attempt."""
    found: dict[int, Path] = {}
    for path in folder.glob(f"{sched_id}.*{SUFFIX}"):
        attempt = path.name.removeprefix(f"{sched_id}.").removesuffix(SUFFIX)
        if attempt.isascii() and attempt.isdecimal():
            found[int(attempt)] = path
    return dict(sorted(found.items()))


class LogFolder:
    """A folder with a bounded number of log files. Any thread may use it."""

    def __init__(self, folder: str, logs_max: int, live: Callable[[], Iterable[int]]) -> None:
        """Keep at most `logs_max` files; `live` returns the entries that run now."""
        self._folder = Path(folder)
        self._logs_max = logs_max
        self._live = live
        self._lock = threading.Lock()
        self._until_listing = 0  # how many more runs may start before the folder is listed

    def path_for(self, sched_id: int, attempt: int) -> Path | None:
        """Return the path for the log of a run that starts now; None if no logs are kept."""
        if self._logs_max <= 0:
            return None
        with self._lock:
            lists = self._until_listing <= 0
            self._until_listing = self._logs_max // 10 if lists else self._until_listing - 1
        if lists:
            self.remove_surplus(for_new=1)
        return self._folder / log_name(sched_id, attempt)

    def remove_surplus(self, *, for_new: int = 0) -> None:
        """Remove the oldest files beyond the maximum, and `for_new` more to make room for new ones."""
        with suppress(FileNotFoundError), os.scandir(self._folder) as files:
            logs = [file for file in files if file.name.endswith(SUFFIX)]
            surplus = len(logs) + for_new - self._logs_max
            if surplus > 0:
                self._remove_oldest(logs, surplus)

    def _remove_oldest(self, logs: list[os.DirEntry[str]], count: int) -> None:
        live = {str(sched_id) for sched_id in self._live()}
        by_age = sorted((_modified_at(log), log.path) for log in logs if log.name.partition(".")[0] not in live)
        for _, path in by_age[:count]:
            with suppress(OSError):  # another supervisor has removed it, or this one lacks the permission
                Path(path).unlink()


def _modified_at(log: os.DirEntry[str]) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0

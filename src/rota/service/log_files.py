"""The files of one run's log: append-only, bounded, and readable at every moment.

A program can print without end. The beginning says what it set out to do and the end says what became of it, so a log
keeps both and counts what was dropped between them. It has at most three files:

    7.1.log                     the beginning: the first half of the limit
    7.1.a.log and 7.1.b.log     the end: each takes half of the limit; when one is full, the other one is replaced

So nothing that was written is ever moved or rewritten, each byte is written once, and the files together never exceed
one and a half times the limit. Each file begins with one line:

    rota-log 1 store=0f3a… claim=8812 base=0 from=524288

`from` is the offset of the file's first byte in the stream: the bytes that the attempt has printed, kept or not. A
reader names an offset in the stream, never in a file. If the bytes there were dropped, it gets the next ones that were
kept with their offset, so it knows how many are missing. It opens the files before it reads their first lines; a file
that is replaced meanwhile stays as it was for the reader that has it open.

`claim` is the token of the run's claim, and `base` is where the stream of that claim begins. A run that is preempted,
drained or yields is claimed again under the same attempt; its output is appended. A writer that is repeated or resumed
finds by its claim how far it was: what it has written already is left out. What lies there of another store (`store`),
or of a store that was restored from a backup, is removed. A file without the first line is of an earlier version; it is
read as it is.

Only the owner may read the files, and no link is followed (store/private_files.py).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rota.errors import StaleClaim, UnsafePath
from rota.store.private_files import create_private, make_private_folder

__all__ = ["LogContent", "LogWriter", "LoggedRun", "gap_line", "has_log", "log_name", "read_log", "run_of_file"]

SUFFIX = ".log"
_BEGINNING, _ENDS = "", (".a", ".b")
_NAME = re.compile(r"([0-9]{1,19})\.([0-9]{1,10})(?:\.[ab])?\.log", re.ASCII)
_HEADER = re.compile(rb"rota-log 1 store=([0-9a-f]{1,64}) claim=([0-9]{1,19}) base=([0-9]{1,19}) from=([0-9]{1,19})\n")
_HEADER_BYTES_MAX = 192
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LoggedRun(NamedTuple):
    """The run whose output is written."""

    sched_id: int
    attempt: int
    claim: int  # its token
    store_id: str


class LogContent(NamedTuple):
    """A part of a log."""

    offset: int  # of the first byte
    data: bytes
    total_bytes: int
    dropped_bytes: int


def log_name(sched_id: int, attempt: int, part: str = _BEGINNING) -> str:
    """Return the name of a log's file."""
    return f"{sched_id}.{attempt}{part}{SUFFIX}"


def run_of_file(name: str) -> tuple[int, int] | None:
    """Return the entry and the attempt that a file belongs to; None if it is no part of a log."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def gap_line(dropped_bytes: int) -> str:
    """Return the line in place of dropped bytes; empty if there are none."""
    return f"\n… {dropped_bytes:,} bytes dropped …\n" if dropped_bytes > 0 else ""


# --- reading ---------------------------------------------------------------------------------------


class _Header(NamedTuple):
    store_id: str
    claim: int
    base: int
    start: int

    def line(self) -> bytes:
        return f"rota-log 1 store={self.store_id} claim={self.claim} base={self.base} from={self.start}\n".encode()


class _File(NamedTuple):
    part: str
    descriptor: int
    header: _Header | None  # None: of an earlier version
    skip: int  # bytes of the first line
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@contextmanager
def _open_folder(path: Path) -> Iterator[int]:
    """Open the folder, creating it if it is missing; a link is followed if it belongs to this user or to root."""
    descriptor = make_private_folder(path, follows_own_link=True, parents=True)
    try:
        yield descriptor
    except UnsafePath as problem:
        raise UnsafePath(f"{path}/{problem.message}", path=f"{path}/{problem.data['path']}") from None
    finally:
        os.close(descriptor)


@contextmanager
def _open_files(folder: int, sched_id: int, attempt: int) -> Iterator[list[_File]]:
    """Open the files of a log that exist, ordered by their place in the stream."""
    files: list[_File] = []
    try:
        for part in (_BEGINNING, *_ENDS):
            descriptor = _open_existing(log_name(sched_id, attempt, part), _READ_ONLY, folder)
            if descriptor is not None:
                files += _described(part, descriptor)
        yield sorted(files, key=lambda file: (file.start, file.size))
    finally:
        for file in files:
            os.close(file.descriptor)


def _open_existing(name: str, flags: int, folder: int) -> int | None:
    """Open a file of a log; None if there is none; raises `UnsafePath` for a link and for what is no file."""
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            raise UnsafePath(f"{name} is no regular file, and rota does not use it", path=name) from None
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise UnsafePath(f"{name} is no regular file or has other names, and rota does not use it", path=name)


def _described(part: str, descriptor: int) -> list[_File]:
    """Return an open file with its place in the stream; an end without a first line was just created: leave it out."""
    found = _HEADER.match(os.pread(descriptor, _HEADER_BYTES_MAX, 0))
    size = os.fstat(descriptor).st_size
    if found is not None:
        header = _Header(found[1].decode(), *map(int, found.groups()[1:]))
        return [_File(part, descriptor, header, found.end(), header.start, size - found.end())]
    if part == _BEGINNING:
        return [_File(part, descriptor, None, 0, 0, size)]
    os.close(descriptor)
    return []


def has_log(folder: Path, sched_id: int, attempt: int) -> bool:
    """Return whether something that an attempt printed is kept."""
    return (folder / log_name(sched_id, attempt)).exists()


def read_log(
    folder: Path, sched_id: int, attempt: int, offset: int, limit_bytes: int, *, store_id: str | None = None
) -> LogContent:
    """Return what was printed from an offset on; a negative offset counts from the end.

    With `store_id`, the log of an entry with the same number in another store is left out.
    """
    if not folder.exists():
        return LogContent(0, b"", 0, 0)
    with _open_folder(folder) as opened, _open_files(opened, sched_id, attempt) as found:
        files = [file for file in found if store_id is None or file.header is None or file.header.store_id == store_id]
        total = max((file.end for file in files), default=0)
        dropped = total - sum(file.size for file in files)
        start = max(0, total + offset) if offset < 0 else min(offset, total)
        start = next((max(start, file.start) for file in files if start < file.end), total)
        data = b""
        for file in files:
            at = start + len(data)
            if file.start <= at < file.end:  # files that follow each other without a gap are read as one
                count = min(limit_bytes - len(data), file.end - at)
                data += os.pread(file.descriptor, count, file.skip + at - file.start)
        return LogContent(start, data, total, dropped)


# --- writing ---------------------------------------------------------------------------------------


class LogWriter:
    """Writes the output of one claim. The files are opened by the first output. One thread at a time may use it."""

    def __init__(self, folder: Path, run: LoggedRun, log_bytes: int, *, is_live: bool = True) -> None:
        """`is_live`: the claim is live, so whatever has a higher one is not of this store as it is now."""
        self._folder = folder
        self._run = run
        self._is_live = is_live
        self._bytes_max = {_BEGINNING: (log_bytes + 1) // 2, **dict.fromkeys(_ENDS, log_bytes // 2)}
        self._descriptor: int | None = None
        self._part: str | None = None  # None: nothing of this claim is written
        self._size = 0  # of that part
        self._has_beginning = False
        self._base = self._end = 0  # where the claim's stream begins, and where everything ends
        self._kept_end = 0  # the end of what the files say
        self._is_open = False

    @property
    def end(self) -> int:
        """How much of the claim's output was written or passed over."""
        return self._end - self._base

    def append(self, offset: int, data: bytes) -> int:
        """Write what the claim's run has printed from an offset on; return the number of bytes that were new.

        What was written before is left out. If bytes between are missing, they count as dropped.
        """
        if not self._is_open:
            self._open()
        data = data[max(0, self._end - self._base - offset) :]
        if not data:
            return 0
        if self._base + offset > self._end:
            self._end = self._base + offset
            self._close_part()
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:
            self._close_part()  # it was removed: go on in a new file
        new_bytes = len(data)
        while data:
            data = self._write(data)
        return new_bytes

    def close(self) -> None:
        """Write down where the output ended, if its end was not kept, and close the file."""
        if self._is_open and self._kept_end < self._end:
            self._begin_part()
        self._close_part()

    def _write(self, data: bytes) -> bytes:
        """Write as much as fits into one file; return the rest."""
        if self._part is None or self._size >= self._bytes_max[self._part]:
            if not self._bytes_max[self._next_part()]:  # a limit of a few bytes has no end
                self._end += len(data)
                return b""
            self._begin_part()
        assert self._part is not None  # noqa: S101  # it has begun
        descriptor = self._opened_part()
        count = os.write(descriptor, data[: self._bytes_max[self._part] - self._size])
        self._size += count
        self._end += count
        self._kept_end = self._end
        return data[count:]

    def _opened_part(self) -> int:
        if self._descriptor is None:  # it was resumed, or its file was removed
            name = log_name(self._run.sched_id, self._run.attempt, self._part or _BEGINNING)
            with _open_folder(self._folder) as folder:
                self._descriptor = _open_existing(name, _APPEND, folder)
            if self._descriptor is None:
                self._begin_part()
        assert self._descriptor is not None  # noqa: S101  # it was opened
        return self._descriptor

    def _next_part(self) -> str:
        if not self._has_beginning:
            return _BEGINNING
        return _ENDS[1] if self._part == _ENDS[0] else _ENDS[0]

    def _begin_part(self) -> None:
        """Begin a file at the end of the stream; of the two for the end, the older one is replaced."""
        part = self._next_part()
        self._close_part()
        name = log_name(self._run.sched_id, self._run.attempt, part)
        header = _Header(self._run.store_id, self._run.claim, self._base, self._end)
        with _open_folder(self._folder) as folder:
            if part != _BEGINNING:
                _unlink(name, folder)
            try:
                self._descriptor = create_private(name, dir_fd=folder)
            except FileExistsError:
                raise UnsafePath(f"{name} is taken, and rota does not use it", path=name) from None
        os.write(self._descriptor, header.line())
        self._part, self._size, self._has_beginning = part, 0, True
        self._kept_end = self._end

    def _close_part(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._size = None, 0
        if self._part is not None:
            self._size = self._bytes_max[self._part]  # what comes next begins another file

    def _open(self) -> None:
        """Find out what is there: of this claim, of an earlier claim of the same attempt, or of another store."""
        run = self._run
        with _open_folder(self._folder) as folder, _open_files(folder, run.sched_id, run.attempt) as found:
            headers = [file.header for file in found]
            is_foreign = any(header is None or header.store_id != run.store_id for header in headers)
            is_later = any(header is not None and header.claim > run.claim for header in headers)
            if is_later and not is_foreign and not self._is_live:
                text = f"token {run.claim} of entry {run.sched_id} is not that of its last claim"
                raise StaleClaim(text, sched_id=run.sched_id, token=run.claim)
            files = found
            if is_foreign or is_later:
                files = []
                for file in found:
                    _unlink(log_name(run.sched_id, run.attempt, file.part), folder)
            own = [file for file in files if file.header is not None and file.header.claim == run.claim]
            self._has_beginning = bool(files)
            self._end = self._kept_end = max((file.end for file in files), default=0)
            self._base = own[0].header.base if own and own[0].header is not None else self._end
            if files:
                self._part, self._size = files[-1].part, files[-1].size if own else self._bytes_max[files[-1].part]
        self._is_open = True


def _unlink(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)

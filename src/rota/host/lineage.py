"""Who descends from whom, as Linux tells it in /proc, and the mark by which we know our own.

A command may leave children behind, and they may leave its session too: a daemon forks twice, so that its parent is
gone, and calls setsid, so that its group is gone. Three ties remain, and each catches what the one before lost:

    the process group     every child that did not ask for another             killed with one call
    parentage             a subreaper becomes the parent of all orphans        found among its children
    the mark              ROTA_SESSION in the environment, inherited by all    found in /proc/PID/environ

A process that breaks all three (double fork, setsid, and an exec with an emptied environment) is still a child of the
minder and dies with it, but nobody can say from which session it came.

A mark is `kill.MINDER_PID.MINDER_START.SESSION` (or `continue.…`, what its minder does when its client is lost), the
start in clock ticks since boot: a pid may be used again, a pid and its start may not. So a mark also says whether its
minder still lives.

The minder imports this, so it imports almost nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["MARK", "Mark", "OwnChildren", "all_pids", "children_of", "descendants_of", "identity", "mark_of"]

MARK = "ROTA_SESSION"
_MARK_PREFIX = MARK.encode() + b"="
READ_BYTES = 32 * 1024
WHOLE_BYTES_MAX = 2 * 1024  # a list shorter than this was not cut: the kernel gives at least most of a page at once
_PPID, _START = 1, 19  # fields of /proc/PID/stat behind the name, which may hold anything


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # not open(): a file object costs more than the read
    try:
        text = b""
        while piece := os.read(fd, READ_BYTES):
            text += piece
        return text
    finally:
        os.close(fd)


def _stat(pid: int) -> list[bytes]:
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


class Mark(NamedTuple):
    """Which minder started a process, in which session, and what it does when its client is lost."""

    on_loss: str
    minder: str  # its identity
    session: int

    def __str__(self) -> str:
        return f"{self.on_loss}.{self.minder}.{self.session}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """A mark from its text; None when it is not one of ours."""
        on_loss, _, rest = text.partition(".")
        minder, _, session = rest.rpartition(".")
        return cls(on_loss, minder, int(session)) if minder and session.isdecimal() else None


def identity(pid: int) -> str:
    """A name for a process that is never used again while the machine is up: its pid and when it started."""
    return f"{pid}.{int(_stat(pid)[_START])}"


def mark_of(pid: int) -> Mark | None:
    """The mark in a process's environment; None without one, or when it may not be read."""
    try:
        environment = _read(f"/proc/{pid}/environ")
    except OSError:
        return None
    for line in environment.split(b"\0"):
        if line.startswith(_MARK_PREFIX):
            return Mark.parse(line[len(_MARK_PREFIX) :].decode("ascii", "replace"))
    return None


def all_pids() -> Iterator[int]:
    """Every process that can be seen."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def children_of(pid: int) -> list[int]:
    """The children of a process, of all its threads; also dead ones that are not waited for."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]
    except FileNotFoundError:
        return _children_by_looking_at_everybody(pid) if os.path.exists(f"/proc/{pid}") else []
    except ProcessLookupError:
        return []


def _children_by_looking_at_everybody(parent: int) -> list[int]:
    """The same for a kernel that was built without the list."""
    found = []
    for pid in all_pids():
        try:
            if int(_stat(pid)[_PPID]) == parent:
                found.append(pid)
        except (OSError, IndexError):
            continue  # it has ended meanwhile
    return found


class OwnChildren:
    """The children of this process, which has one thread. It asks at every death, so the list is kept open."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        try:
            self._fd: int | None = os.open(f"/proc/self/task/{self._pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._fd = None

    def __call__(self) -> list[int]:
        """Who they are now."""
        if self._fd is None:
            return _children_by_looking_at_everybody(self._pid)
        text = b""
        while piece := os.pread(self._fd, READ_BYTES, len(text)):
            text += piece
            if len(piece) < WHOLE_BYTES_MAX:
                break
        return [int(child) for child in text.split()]


def descendants_of(pid: int) -> Iterator[int]:
    """Children, their children, and so on: a picture of a moment that is passing."""
    waiting = children_of(pid)
    seen = {pid}
    while waiting:
        child = waiting.pop()
        if child not in seen:
            seen.add(child)
            yield child
            waiting += children_of(child)

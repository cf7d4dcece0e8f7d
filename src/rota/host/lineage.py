"""Process trees as /proc shows them, and the mark that identifies processes started by rota.

A command may leave children behind, and they may leave its session too: a daemon forks twice, so that its parent is
gone, and calls setsid, so that it is in another process group. Three ties remain; each finds what the one before lost:

    process group     every child that did not change it                        killed with one call
    parent            a subreaper becomes the parent of all orphans             found among its children
    mark              ROTA_SESSION in the environment, inherited by all         found in /proc/PID/environ

A process that breaks all three (double fork, setsid, and an exec with an empty environment) is still a child of the
reaper and is killed with it, but its session is unknown.

A mark is `kill.REAPER_PID.REAPER_START.SESSION`, or `continue.…`: the first word is what the reaper does when it loses
its client. REAPER_START is in clock ticks since boot. A pid can be reused; a pid with its start time cannot, so a mark
also tells whether its reaper is still alive. `kill_orphans` uses this to clean up after a crash of both.

The reaper imports this module, so it imports very little itself.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

__all__ = [
    "KILL_ROUNDS_MAX",
    "MARK",
    "Mark",
    "OwnChildren",
    "children_of",
    "descendants_of",
    "ended_children_cpu_s",
    "identity",
    "kill_orphans",
    "mark_of",
    "mark_of_child",
    "marked_processes",
    "parent_of",
    "send_signal",
    "thread_states",
]

MARK = "ROTA_SESSION"
_MARK_PREFIX = MARK.encode() + b"="
READ_BYTES = 32 * 1024
COMPLETE_BYTES_MAX = 2 * 1024  # a shorter list was not truncated: the kernel returns at least most of a page per read
KILL_ROUNDS_MAX = 20  # how often to look for marked processes: each round may reveal new ones
EXEC_LOOKS_MAX = 200  # how often to look at a process that is about to execute a program
EXEC_LOOK_MS = 1  # between two looks
# fields of /proc/PID/stat after the name, which may contain anything
_STATE, _PPID, _ENDED_USER, _ENDED_SYSTEM, _START = 0, 1, 13, 14, 19
_EXITED = (b"Z", b"X")  # states of a process that has no memory any more


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # not open(): a file object costs more than the read
    try:
        text = b""
        while piece := os.read(fd, READ_BYTES):
            text += piece
        return text
    finally:
        os.close(fd)


def _stat(process: int | str) -> list[bytes]:
    return _read(f"/proc/{process}/stat").rpartition(b")")[2].split()


# --- marks -----------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """Which reaper started a process, in which session, and what the reaper does when it loses its client."""

    on_loss: str
    reaper: str  # its identity
    session: int

    def __str__(self) -> str:
        return f"{self.on_loss}.{self.reaper}.{self.session}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Parse a mark; None when the text is not one."""
        on_loss, _, rest = text.partition(".")
        reaper, _, session = rest.rpartition(".")
        return cls(on_loss, reaper, int(session)) if reaper and session.isdecimal() else None


def identity(pid: int) -> str:
    """A name for a process that is unique until the machine reboots: its pid and its start time."""
    return f"{pid}.{int(_stat(pid)[_START])}"


def mark_of(pid: int) -> Mark | None:
    """The mark in the environment of a process; None if it has none or may not be read."""
    try:
        return _mark_in(_read(f"/proc/{pid}/environ"))
    except OSError:
        return None


def mark_of_child(pid: int) -> Mark | None:
    """The mark of a child that is not reaped; None if it has none, or has exited.

    A process that is about to execute another program has no environment and no command line for a moment, and may be
    preempted just then. So an empty environment counts only if there is a command line, before it was read and after.
    """
    try:
        for _look in range(EXEC_LOOKS_MAX):
            command = _read(f"/proc/{pid}/cmdline")
            environment = _read(f"/proc/{pid}/environ")
            if environment or (command and command == _read(f"/proc/{pid}/cmdline")) or _stat(pid)[_STATE] in _EXITED:
                return _mark_in(environment)
            select.poll().poll(EXEC_LOOK_MS)
    except OSError:
        pass
    return None


def _mark_in(environment: bytes) -> Mark | None:
    for line in environment.split(b"\0"):
        if line.startswith(_MARK_PREFIX):
            return Mark.parse(line[len(_MARK_PREFIX) :].decode("ascii", "replace"))
    return None


# --- children ----------------------------------------------------------------------------------------


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process, including those that have exited and are not reaped."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]
    except FileNotFoundError:
        return _scan_for_children(pid) if os.path.exists(f"/proc/{pid}") else []
    except ProcessLookupError:
        return []


def parent_of(pid: int) -> int:
    """The parent of a process. Raises OSError if it is gone."""
    return int(_stat(pid)[_PPID])


def _scan_for_children(parent: int) -> list[int]:
    """The children of a process, on a kernel built without the `children` file."""
    found = []
    for pid in _all_pids():
        try:
            if int(_stat(pid)[_PPID]) == parent:
                found.append(pid)
        except (OSError, IndexError):
            continue  # it has exited meanwhile
    return found


def ended_children_cpu_s(pid: int) -> float:
    """CPU time of the children that a process has waited for, and of theirs; 0 if it is gone."""
    try:
        stat = _stat(pid)
    except OSError:
        return 0.0
    return (int(stat[_ENDED_USER]) + int(stat[_ENDED_SYSTEM])) / os.sysconf("SC_CLK_TCK")


class OwnChildren:
    """The children of this single-threaded process. They are read at every exit, so the file is kept open."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        try:
            self._fd: int | None = os.open(f"/proc/self/task/{self._pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._fd = None

    def __call__(self) -> list[int]:
        """Return their pids."""
        if self._fd is None:
            return _scan_for_children(self._pid)
        text = b""
        while piece := os.pread(self._fd, READ_BYTES, len(text)):
            text += piece
            if len(piece) < COMPLETE_BYTES_MAX:
                break
        return [int(child) for child in text.split()]


def thread_states(pid: int) -> Iterator[str]:
    """The state of each thread of a process: R runnable, D waits for the disk, S asleep, T stopped."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        with suppress(OSError):  # it has exited meanwhile
            yield _stat(f"{pid}/task/{thread}")[_STATE].decode("ascii")


def descendants_of(pid: int) -> Iterator[int]:
    """Children, their children, and so on. Processes that start meanwhile may be missed."""
    waiting = children_of(pid)
    seen = {pid}
    while waiting:
        child = waiting.pop()
        if child not in seen:
            seen.add(child)
            yield child
            waiting += children_of(child)


# --- orphans of a dead reaper ------------------------------------------------------------------------


def marked_processes() -> Iterator[tuple[int, Mark]]:
    """Every process of this user and pid namespace that has a mark."""
    ours = _user_and_namespace("self")
    for pid in _all_pids():
        mark = mark_of(pid)
        if mark is not None and _user_and_namespace(str(pid)) == ours:
            yield pid, mark


def _user_and_namespace(process: str) -> tuple[int, str] | None:
    """The user and pid namespace of a process: in another namespace the pid in a mark means another process."""
    try:
        return os.stat(f"/proc/{process}").st_uid, os.readlink(f"/proc/{process}/ns/pid")
    except OSError:
        return None


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have exited."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_orphans() -> list[int]:
    """Kill the processes whose reaper is dead and would have killed them. Return their pids.

    They remain when the reaper and its client are killed at the same time. Processes of a reaper that lets its sessions
    continue are left alone.
    """
    killed: list[int] = []
    for _round in range(KILL_ROUNDS_MAX):
        orphans = [pid for pid, mark in marked_processes() if mark.on_loss == "kill" and not _is_alive(mark.reaper)]
        if not orphans:
            break
        for pid in orphans:
            send_signal(pid, signal.SIGKILL)
        killed += orphans
    return sorted(set(killed))


def _is_alive(reaper: str) -> bool:
    pid = reaper.partition(".")[0]
    try:
        return pid.isdigit() and identity(int(pid)) == reaper
    except OSError:
        return False

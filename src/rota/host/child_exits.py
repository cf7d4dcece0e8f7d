"""Noticing that children died, and taking leave of them.

A dead child keeps its pid until its parent has waited for it. That is what makes killing safe: as long as we have not
waited, the number cannot belong to a stranger. So we first look who died without waiting (`WNOWAIT`), do what must be
done while the number is still theirs, and only then `bury` them, which also tells what they used.

That somebody died is told by a bell, of which there are two kinds. The minder has nothing but its own code, so it
blocks SIGCHLD and polls for it: a death costs one read, and no call of a handler. The nursery runs other people's
modules and forks workers from itself; a blocked signal would go along, so there a handler rings.

The minder and the nursery import this, so it imports almost nothing.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from rota.host.syscalls import signal_descriptor

__all__ = ["BlockedBell", "ChildBell", "bury", "dead_child", "kill_group"]

RINGS_READ = 4096
RSS_UNIT_BYTES = 1024  # ru_maxrss counts KiB on Linux
_LOOK_ONLY = getattr(os, "WEXITED", 0) | getattr(os, "WNOHANG", 0) | getattr(os, "WNOWAIT", 0)


class ChildBell:
    """A descriptor that becomes readable when a child has died."""

    def __init__(self) -> None:
        self._rung, self._rings = socket.socketpair()
        self._rung.setblocking(False)
        self._rings.setblocking(False)
        self.install()

    def install(self) -> None:
        """Ring from now on, also if somebody else has listened for signals meanwhile."""
        signal.signal(signal.SIGCHLD, _nothing)  # without a handler Python does not ring
        signal.set_wakeup_fd(self._rings.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """What to poll."""
        return self._rung.fileno()

    def hush(self) -> None:
        """Forget the rings so far; who died is found by looking."""
        try:
            while len(self._rung.recv(RINGS_READ)) == RINGS_READ:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Ring no more."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._rung.close()
        self._rings.close()


class BlockedBell:
    """The same for a process that can do without the signal itself: from now on SIGCHLD is blocked in it."""

    def __init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may have ignored it: then nobody is left to bury
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        self._fd = signal_descriptor(signal.SIGCHLD)

    def fileno(self) -> int:
        """What to poll."""
        return self._fd

    def hush(self) -> None:
        """Forget the rings so far; who died is found by looking."""
        try:  # noqa: SIM105  # suppress costs more than the read
            os.read(self._fd, RINGS_READ)  # all of them: a signal that is pending is not pending twice
        except BlockingIOError:
            pass


def _nothing(_signal: int, _frame: object) -> None:
    """The ring is all we need."""


def dead_child(pid: int | None = None) -> int | None:
    """The pid of a child (of this one, or of any) that has died and is not buried, or None."""
    try:
        found = os.waitid(os.P_ALL if pid is None else os.P_PID, pid or 0, _LOOK_ONLY)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def bury(pid: int) -> dict[str, Any]:
    """Wait for a dead child: how it ended, and what it and the children it waited for have used."""
    _pid, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {
        "code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "user_s": usage.ru_utime,
        "system_s": usage.ru_stime,
        "rss_bytes_max": usage.ru_maxrss * RSS_UNIT_BYTES,
    }


def kill_group(leader: int, signal_number: int) -> bool:
    """Send a signal to a whole process group; the answer is whether anybody could get it."""
    try:
        os.killpg(leader, signal_number)
    except (ProcessLookupError, PermissionError):  # nobody there, or only those who have become another user
        return False
    return True

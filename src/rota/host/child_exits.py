"""Detect the exits of child processes and reap them.

A child that has exited keeps its pid until its parent waits for it. Until then, a signal sent to that pid cannot reach
an unrelated process. So a parent first looks which child has exited without waiting for it (`exited_child`, by
WNOWAIT), kills the child's process group while the pid is still reserved, and only then waits for it (`reap`), which
also returns the resources it used.

SIGCHLD tells that some child has exited. There are two ways to receive it through a descriptor that can be polled:

- `ChildSignalFd` for the reaper, which runs only its own code: the signal is blocked and read from a signalfd. An exit
  costs one read, and no signal handler runs.
- `ChildWakeupFd` for the fork server, which runs modules of the user and forks workers: a blocked signal would be
  inherited by the workers, so here a signal handler writes to a socket.

The reaper and the fork server import this module, so it imports very little itself.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

from rota.host.syscalls import signal_descriptor

__all__ = ["ChildSignalFd", "ChildWakeupFd", "exited_child", "reap", "signal_group"]

DRAIN_BYTES = 4096
RSS_UNIT_BYTES = 1024  # ru_maxrss counts KiB on Linux
_LOOK_ONLY = getattr(os, "WEXITED", 0) | getattr(os, "WNOHANG", 0) | getattr(os, "WNOWAIT", 0)


class ChildWakeupFd:
    """A descriptor that becomes readable when a child has exited, written by a signal handler."""

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        self.install()

    def install(self) -> None:
        """Install the signal handler, also if other code has replaced it meanwhile."""
        signal.signal(signal.SIGCHLD, _ignore)  # without a handler Python does not write to the wakeup descriptor
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._read_end.fileno()

    def clear(self) -> None:
        """Discard the pending notifications. `exited_child` finds the children they were for."""
        try:
            while len(self._read_end.recv(DRAIN_BYTES)) == DRAIN_BYTES:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Restore the default handler and close the descriptors."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._read_end.close()
        self._write_end.close()


class ChildSignalFd:
    """A descriptor that becomes readable when a child has exited. SIGCHLD is blocked in this process from now on."""

    def __init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if a parent ignored it, the kernel would reap the children
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        self._fd = signal_descriptor(signal.SIGCHLD)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._fd

    def clear(self) -> None:
        """Discard the pending notification. `exited_child` finds the children it was for."""
        try:  # noqa: SIM105  # suppress costs more than the read
            os.read(self._fd, DRAIN_BYTES)  # one read is enough: a pending signal is not queued twice
        except BlockingIOError:
            pass


def _ignore(_signal: int, _frame: object) -> None:
    """Do nothing: Python has written to the wakeup descriptor."""


def exited_child(pid: int | None = None) -> int | None:
    """Return the pid of a child that has exited and is not reaped, or None. With `pid`, look at this child only."""
    try:
        found = os.waitid(os.P_ALL if pid is None else os.P_PID, pid or 0, _LOOK_ONLY)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def reap(pid: int) -> dict[str, Any]:
    """Wait for a child that has exited. Return its exit status and the usage of it and the children it waited for."""
    _pid, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {
        "code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "user_s": usage.ru_utime,
        "system_s": usage.ru_stime,
        "rss_bytes_max": usage.ru_maxrss * RSS_UNIT_BYTES,
    }


def signal_group(leader: int, signal_number: int) -> None:
    """Send a signal to a process group, which may be gone."""
    try:
        os.killpg(leader, signal_number)
    except (ProcessLookupError, PermissionError):  # no process left, or only processes that changed their user
        return

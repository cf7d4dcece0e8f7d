"""The process of a policy, seen from the one that started it: a session with a limit on memory, and a connection."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from rota import host  # its names are loaded when they are used: most processes start no policy
from rota.lazy import late
from rota.model.work import Limits
from rota.service.policy_worker import CONNECTION_FD, Description

if TYPE_CHECKING:
    import socket
else:
    socket = late("socket")

__all__ = ["MEMORY_BYTES_MAX", "PolicySession"]

MEMORY_BYTES_MAX = 1024 * 1024 * 1024
EXIT_WAIT_S = 1.0  # how long to wait for the exit status of a process that has closed its connection
ENVIRONMENT = ("PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH")  # besides what commands get


class PolicySession:
    """One process, with its own reaper: a policy that kills its parent process harms nothing else."""

    description: Description

    def __init__(self) -> None:
        command = host.Command(
            argv=tuple(host.python_command("rota.service.policy_worker")),
            env=host.filter_environment(os.environ, allow=ENVIRONMENT),
            limits=Limits(memory_bytes=MEMORY_BYTES_MAX),
        )
        self._owner_pid = os.getpid()
        self._reaper = host.ReaperClient()
        self.connection, theirs = socket.socketpair()
        try:
            self._session: host.Session = self._reaper.spawn(command, more_fds={CONNECTION_FD: theirs.fileno()})
        except BaseException:
            self.connection.close()
            self._reaper.close()
            raise
        finally:
            theirs.close()

    def exit_text(self) -> str:
        """How the process ended, as text."""
        ended = self._session.wait(EXIT_WAIT_S)
        if ended is None or ended.lost:
            return "it closed its connection"
        return f"signal {ended.signal}" if ended.signal is not None else f"exit code {ended.code}"

    def shut_down(self) -> None:
        """Make a thread that waits for a message find the end of the connection."""
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended

    def end(self) -> None:
        """Kill it with all that it has started. A second call does nothing."""
        self.connection.close()
        if os.getpid() != self._owner_pid:
            return  # this process is a fork: the policy's process belongs to its parent
        self._session.signal(signal.SIGKILL)
        if not self._reaper.is_lost:
            with suppress(ProcessLookupError):
                os.kill(self._reaper.pid, signal.SIGCONT)  # the policy may have stopped its parent process
        self._reaper.close()

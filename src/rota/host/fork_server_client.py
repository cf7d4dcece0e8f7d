"""The pool's side of the fork server: start it through the reaper, send it requests, receive its reports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rota.host.command import Command, SessionExit, without_credentials
from rota.host.fork_server import CONTROL_FD
from rota.host.frames import encode, receive_all, send
from rota.host.reaper_client import ReaperClient, python_command
from rota.host.session import Session
from rota.model.work import Limits

__all__ = ["ForkServerClient"]


class ForkServerClient:
    """One fork server at a time; after it has exited, another can be started."""

    def __init__(
        self,
        reaper: ReaperClient,
        *,
        env: Mapping[str, str] | None,
        limits: Limits,
        stdout: int | None,
        stderr: int | None,
    ) -> None:
        environment = without_credentials(os.environ) if env is None else dict(env)
        self._command = Command(argv=tuple(python_command("rota.host.fork_server")), env=environment, limits=limits)
        self._reaper = reaper
        self._stdout, self._stderr = stdout, stderr
        self.session: Session
        self._control: socket.socket

    def start(self) -> None:
        """Start a fork server."""
        self._control, theirs = socket.socketpair()
        fds = {CONTROL_FD: theirs.fileno()}
        try:
            self.session = self._reaper.spawn(self._command, stdout=self._stdout, stderr=self._stderr, more_fds=fds)
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request. If the fork server is gone, `reports` ends."""
        with suppress(OSError):
            send(self._control, encode(message, fds), fds)

    def reports(self) -> Iterator[dict[str, Any]]:
        """Yield the reports of the fork server until it is gone."""
        return (frame.message for frame in receive_all(self._control))

    def shut_down(self) -> None:
        """Make the fork server and the thread that reads its reports find the end of the connection."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def end(self) -> SessionExit | None:
        """Kill it with all its workers, in case it has only closed the connection, and wait until they are gone."""
        self.session.kill()
        return self.session.wait()

    def close(self) -> None:
        """Close the connection to a fork server that has ended."""
        self._control.close()

"""Listening on a unix socket, and its end: used by the daemon, and by a supervisor for its runs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from rota.rpc.daemon.buffers import SharedMemory
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.connections import Connections
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.daemon.unix_socket import LineProtocol
from rota.store.socket_paths import socket_path

__all__ = ["UnixListener"]

BACKLOG = 4_096  # connections that are not accepted yet


class UnixListener:
    """A unix socket for this user only, and the connections that it accepts. Create it inside the event loop."""

    def __init__(
        self, executor: CallExecutor, memory: SharedMemory, limits: DaemonLimits, *, runs_only: bool = False
    ) -> None:
        """With `runs_only` it serves clients with the token of a run."""
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self.connections = Connections(limits, self._loop.time)
        self._grace_s = limits.grace_s
        self._protocol = partial(LineProtocol, executor, self.connections, memory, limits, runs_only=runs_only)
        self._server: asyncio.AbstractServer

    async def open(self, path: str) -> None:
        """Listen; raises OSError if the system refuses."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(bound.fileno(), 0o600)  # the file that `bind` makes has at most this mode, whatever the umask is
            with socket_path(path) as address:
                bound.bind(address)
            Path(path).chmod(0o600)  # whatever the umask has taken away
            self._server = await self._loop.create_unix_server(self._protocol, sock=bound, backlog=BACKLOG)
        except OSError:
            bound.close()
            raise

    async def close(self, *others: Coroutine[Any, Any, None]) -> bool:
        """Accept no more calls, end the waiting ones, and give the rest, and `others`, `grace_s` to finish.

        Returns whether every call got its response, and every client has read it.
        """
        self._server.close()
        self._executor.stop_waiting()
        self.connections.finish()
        try:
            async with asyncio.timeout(self._grace_s):
                await asyncio.gather(self._until_idle(), *others)
        except TimeoutError:
            return False
        finally:
            self._executor.record_rest()
        return True

    async def _until_idle(self) -> None:
        while self._executor.pending_calls or len(self.connections):
            await asyncio.sleep(0.01)

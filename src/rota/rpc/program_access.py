"""How the programs of a supervisor that opened a file itself reach the store: by the file's daemon, if there is one,
else by a socket of the supervisor's own process, which is opened when the first program needs it.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from rota.errors import StoreUnavailable
from rota.lazy import exports
from rota.rpc.daemon.runtime_dir import daemon_address
from rota.service.dispatcher import Dispatcher
from rota.store import JoinedStore
from rota.store.forks import in_child

if TYPE_CHECKING:
    from rota.rpc.daemon.run_socket import RunSocket

__all__ = ["DaemonOrOwnSocket", "give_programs_access"]

_load = exports("rota.rpc", {"daemon.run_socket": ("RunSocket",)})  # a fleet of functions needs nothing of the daemon
_log = logging.getLogger("rota.fleet")


def give_programs_access(dispatcher: Dispatcher, path: str) -> None:
    """Let the programs that a supervisor starts reach the store of this dispatcher, which is the file at `path`."""
    joined = dispatcher.kernel.store
    if isinstance(joined, JoinedStore):
        dispatcher.program_access = DaemonOrOwnSocket(dispatcher, joined, path)


class DaemonOrOwnSocket:
    """The address that programs get."""

    def __init__(self, dispatcher: Dispatcher, joined: JoinedStore, path: str) -> None:
        self._dispatcher = dispatcher
        self._joined = joined
        self._path = path
        self._forget_socket()
        in_child(self._forget_socket)

    def _forget_socket(self) -> None:
        """Also in every forked child: the socket is served by a thread of the parent, which may hold the lock."""
        self._lock = threading.Lock()
        self._socket: RunSocket | None = None
        self._has_failed = False

    def address(self) -> str | None:
        """Return the address for the next program; None if no socket can be opened, which the log says once."""
        found = daemon_address(self._path)
        if found is not None:
            return found
        with self._lock:
            if self._socket is None and not self._has_failed:
                try:
                    self._socket = _load("RunSocket")(self._dispatcher, self._joined)
                except StoreUnavailable as problem:
                    self._has_failed = True
                    _log.warning("programs cannot reach the store, `rota enqueue` in a run fails: %s", problem.message)
            return None if self._socket is None else self._socket.address

    def close(self) -> None:
        """Close the socket, if it was opened; a later program opens another one."""
        with self._lock:
            socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

"""Where the MCP server over HTTP sends the calls of its clients: always to a server that checks their tokens.

That is the daemon that is named, or the one that serves the file. A file without a daemon is served by this process
itself, at a socket that only its owner can reach: so the walls between projects hold in every case, and there is one
place that enforces them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rota import store
from rota.kernel import Kernel
from rota.rpc.client.connect import is_remote
from rota.rpc.daemon.run_socket import RunSocket
from rota.rpc.daemon.runtime_dir import daemon_address
from rota.service.dispatcher import Dispatcher

__all__ = ["Upstream", "upstream_of"]


class Upstream(NamedTuple):
    """The address of a server that checks tokens, and what ends it if it was started here."""

    address: str
    close: Callable[[], None]


def upstream_of(path: str) -> Upstream:
    """Return the server for an address or a file; that of a file without a daemon is started."""
    found = path if is_remote(path) else daemon_address(path)
    if found is not None:
        return Upstream(found, lambda: None)
    joined = store.open_joined(path, create=False)
    try:
        dispatcher = Dispatcher(Kernel(joined))
        socket = RunSocket(dispatcher, joined, runs_only=False)
    except BaseException:
        joined.close()
        raise

    def close() -> None:
        socket.close()
        dispatcher.close_policies()
        joined.close()

    return Upstream(socket.address, close)

"""The open connections of one transport: how many there may be, and which is closed for a new one.

A connection is a *stranger* until it has made an authenticated request. When all places are taken, a new connection
takes the place of the oldest stranger; if there is none, of the connection that has been idle for the longest, at least
`idle_s`; else it is rejected. So connections that do nothing keep out neither a new client nor those that work, and a
client that has just connected has as long to send its request as it takes others to open `connections_max` connections.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from typing import Protocol

import msgspec

from rota.rpc.daemon.transport import DaemonLimits

__all__ = ["Connection", "Connections", "fit_open_files"]

OTHER_FILES = 128  # that the daemon opens besides its connections
OPEN_FILES_WANTED = 4_096
_log = logging.getLogger("rota.daemon")


class Connection(Protocol):
    """An open connection."""

    @property
    def idle_since(self) -> float | None:
        """When its last request ended; None while it has one."""
        ...

    def make_room(self) -> None:
        """Close: another connection needs the place."""
        ...

    def finish(self) -> None:
        """Close after the current response."""
        ...


class Connections:
    """The open connections of one transport."""

    def __init__(self, limits: DaemonLimits, monotonic: Callable[[], float]) -> None:
        self._max = limits.connections_max
        self._idle_s = limits.idle_s
        self._monotonic = monotonic
        self._strangers: dict[Connection, None] = {}  # oldest first
        self._known: dict[Connection, None] = {}
        self._count = 0
        self.is_ending = False  # no connection is served any more, not even one that was accepted just before

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._strangers or connection in self._known

    def open(self) -> list[Connection]:
        """Return the open connections."""
        return [*self._strangers, *self._known]

    def finish(self) -> None:
        """Close each connection after its current response; one that is still being accepted is closed at once."""
        self.is_ending = True
        for connection in self.open():
            connection.finish()

    def next_number(self) -> int:
        """Return the next connection's number."""
        self._count += 1
        return self._count

    def add(self, connection: Connection) -> bool:
        """Add a new connection, which may close another one; return whether there is a place for it."""
        if len(self) >= self._max and not self.make_room():
            return False
        self._strangers[connection] = None
        return True

    def make_room(self) -> bool:
        """Close the connection that is needed least; return whether there was one."""
        found = next(iter(self._strangers), None) or self._longest_idle()
        if found is None:
            return False
        self.remove(found)
        found.make_room()
        return True

    def _longest_idle(self) -> Connection | None:
        before = self._monotonic() - self._idle_s
        idle = [(since, each) for each in self._known if (since := each.idle_since) is not None and since <= before]
        return min(idle, key=lambda pair: pair[0])[1] if idle else None

    def authenticated(self, connection: Connection) -> None:
        """The connection has made an authenticated request."""
        if connection in self._strangers:
            del self._strangers[connection]
            self._known[connection] = None

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._strangers.pop(connection, None)
        self._known.pop(connection, None)


def fit_open_files(limits: DaemonLimits, transports: int) -> DaemonLimits:
    """Raise the limit on open files if the system allows it; return limits whose connections fit into it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(OPEN_FILES_WANTED, limits.connections_max * transports + OTHER_FILES)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft == resource.RLIM_INFINITY:
        return limits
    fitting = (soft - OTHER_FILES) // transports
    if fitting >= limits.connections_max:
        return limits
    fitting = max(fitting, 1)
    _log.warning(
        "connections_max is %d instead of %d: this process may open only %d files (ulimit -n)",
        fitting,
        limits.connections_max,
        soft,
    )
    return msgspec.structs.replace(limits, connections_max=fitting)

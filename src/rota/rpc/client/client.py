"""The client: the scheduler API of a kernel in another process.

It has the parts and functions of `SchedulerApi`; they return and raise what the kernel does. Many threads may use one
client: each call has a connection to itself, and connections are pooled. `remote_calls.py` says which calls are retried
when a connection is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota.clock import Clock, SystemClock
from rota.errors import StoreUnavailable
from rota.rpc.client import parts
from rota.rpc.client.connections import Connection
from rota.rpc.client.remote_calls import ConnectionLost, RemoteCalls
from rota.rpc.client.remote_parts import RemoteJournal, RemoteQueue
from rota.rpc.methods import METHODS, Method
from rota.store.forks import in_child

__all__ = ["Client", "variables_for"]

IDLE_MAX = 32  # connections in the pool


def variables_for(address: str, ca_file: str | None = None) -> dict[str, str]:
    """Return the environment variables by which a program on this machine reaches a daemon, in any directory."""
    scheme, _, path = address.partition(":")
    variables = {"ROTA_STORE": f"unix:{Path(path).absolute()}" if scheme == "unix" else address}
    if ca_file is not None:
        variables["ROTA_CA_FILE"] = str(Path(ca_file).absolute())
    return variables


class Client(parts.ClaimsPart, parts.SystemPart):
    """The scheduler API over connections to a daemon."""

    def __init__(
        self,
        open_connection: Callable[[], Connection],
        address: str,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 30.0,
        keys: bool = True,
        ca_file: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(self.send)
        self.address = address
        self.clock = clock or SystemClock()
        self._ca_file = ca_file
        self._open_connection = open_connection
        self._calls = RemoteCalls(address, timeout_s=timeout_s, retry_s=retry_s, keys=keys)
        self._idle: list[Connection] = []
        self._in_use: set[Connection] = set()
        self._closed = False
        self._ended = threading.Condition()
        in_child(self._forget_connections)
        self.queue = RemoteQueue(self.send)
        self.supervision = parts.SupervisionPart(self.send)
        self.graphs = parts.GraphsPart(self.send)
        self.workers = parts.WorkersPart(self.send)
        self.cores = parts.CoresPart(self.send)
        self.logs = parts.LogsPart(self.send)
        self.agents = parts.AgentsPart(self.send)
        self.ledger = parts.LedgerPart(self.send)
        self.usage = parts.UsagePart(self.send)
        self.projects = parts.ProjectsPart(self.send)
        self.contexts = parts.ContextsPart(self.send)
        self.policies = parts.PoliciesPart(self.send)
        self.journal = RemoteJournal(self.send)
        self.retention = parts.RetentionPart(self.send)
        self.tokens = parts.TokensPart(self.send)
        self.server = parts.ServerPart(self.send)
        # the most used functions can be called without naming their part
        self.create_agent = self.agents.create
        self.enqueue, self.enqueue_many = self.queue.enqueue, self.queue.enqueue_many
        self.complete, self.complete_many = self.queue.complete, self.queue.complete_many
        self.heartbeat = self.queue.heartbeat
        self.get, self.wait = self.queue.get, self.queue.wait

    def call(self, name: str, /, **params: Any) -> Any:
        """Call a method by its name on the wire."""
        return self.send(METHODS[name], METHODS[name].params(**params))

    def send(self, method: Method, params: Any) -> Any:
        """Send a call and wait for its response."""
        call = self._calls.make(method, params, self.clock.monotonic())
        while True:
            connection: Connection | None = None
            try:
                connection = self._take()
                response = connection.request(call.body, call.timeout_s)
            except ConnectionLost as lost:
                if connection is not None:
                    self._drop(connection)
                self._close_idle()  # they go to the same daemon and are lost with it
                self._pause(call.pause_after(lost, self.clock.monotonic()))
            except BaseException:  # an interrupt: the response may still come, so the connection cannot be reused
                if connection is not None:
                    self._drop(connection)
                raise
            else:
                self._in_use.discard(connection)
                self._idle.append(connection) if len(self._idle) < IDLE_MAX else connection.close()
                if self._closed:  # meanwhile, on another thread
                    self._close_idle()
                return call.result_of(response)

    def _take(self) -> Connection:
        if self._closed:
            hint = "Create a new client with `connect`."
            raise StoreUnavailable("the client is closed", hint=hint, closed=True)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open_connection()
        self._in_use.add(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        self._in_use.discard(connection)
        connection.close()

    def _forget_connections(self) -> None:
        """In a forked child: close the parent's connections, without a word to the daemon, and open others.

        Otherwise the two would read each other's responses, and the daemon would not notice the end of the parent.
        """
        self._ended = threading.Condition()
        for connection in (*self._idle, *self._in_use):
            connection.close()
        self._idle.clear()
        self._in_use.clear()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _pause(self, pause_s: float) -> None:
        with self._ended:
            self.clock.wait(self._ended, pause_s)

    def program_variables(self) -> dict[str, str]:
        """Return the environment variables by which a program on this machine reaches the same daemon."""
        return variables_for(self.address, self._ca_file)

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._close_idle()
        with self._ended:
            self._ended.notify_all()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

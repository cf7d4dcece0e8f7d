"""The unix socket: one JSON-RPC request or batch per line, one line per response.

The operating system reports the peer's user. Only processes of the daemon's own user are served, and they have all
rights, as they have on the file. A client that exceeds a limit gets an error and is disconnected; so is, after
`slow_s`, a client that does not read its responses or does not end its line. Responses may come in another order than
their requests; the id says which request each belongs to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from rota.errors import LimitExceeded, Unauthenticated
from rota.rpc.authorization import Principal
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.pending_calls import PendingCall
from rota.rpc.daemon.transport import DaemonLimits, RequestLog, ResponseBudget, encode_response
from rota.rpc.error_codec import to_error_object
from rota.rpc.jsonrpc import BODY_BYTES_MAX, Id, RejectedCall, RpcCall, decode_calls, encode_error

__all__ = ["Connections", "LineProtocol"]

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_log = logging.getLogger("rota.daemon")


class Connections:
    """The open connections."""

    def __init__(self) -> None:
        self.open: set[LineProtocol] = set()
        self.count = 0  # since the start

    def next_number(self) -> int:
        """Return the next connection's number."""
        self.count += 1
        return self.count


class LineProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, executor: CallExecutor, connections: Connections, limits: DaemonLimits) -> None:
        self._executor = executor
        self._connections = connections
        self._limits = limits
        self._number = connections.next_number()
        self._received = 0  # requests
        self._line_parts: list[bytes] = []  # of a line that has not ended
        self._line_bytes = 0  # in them
        self._lines: list[bytes] = []  # complete lines that wait until the pipeline has room
        self._calls: set[PendingCall] = set()
        self._unanswered = 0  # requests without a response
        self._reading_paused = False  # the client sends faster than its requests are executed
        self._line_timer: asyncio.TimerHandle | None = None  # disconnects a client that does not end its line
        self._unread_timer: asyncio.TimerHandle | None = None  # disconnects a client that does not read
        self._ending = False  # nothing more is read
        self._transport: Any = None
        self._principal: Principal | None = None

    # --- opening and closing ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the peer's user and the number of connections."""
        self._transport = transport
        pid, uid = _peer(transport.get_extra_info("socket"))
        if uid != os.geteuid():
            self._reject(Unauthenticated(f"this socket serves user {os.geteuid()}, not user {uid}"))
            principal = Principal(name=f"uid:{uid}", scope="read", peer=f"unix pid {pid}")
            self._executor.record_denied(principal, None, "another user")
            return
        limit = self._limits.connections_max
        if len(self._connections.open) >= limit:
            self._reject(LimitExceeded("connections_max", limit, limit + 1))
            return
        self._principal = Principal(name=f"uid:{uid}", scope="admin", peer=f"unix pid {pid}")
        self._connections.open.add(self)
        transport.set_write_buffer_limits(self._limits.out_bytes_max)  # type: ignore[attr-defined]  # it writes, too

    def connection_lost(self, _error: Exception | None) -> None:
        """Withdraw the connection's calls."""
        self._connections.open.discard(self)
        for timer in (self._line_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._lines.clear()
        for call in list(self._calls):
            self._executor.withdraw(call)
        self._calls.clear()

    def eof_received(self) -> bool:
        """The client sends no more: execute what it sent, but withdraw calls that wait.

        A client that has gone and one that only sends no more look the same, and the first must not be handed entries.
        """
        self._ending = True
        for call in [call for call in self._calls if call.waits]:
            self._calls.discard(call)
            self._unanswered -= 1
            self._executor.withdraw(call)
        return self._unanswered > 0

    def pause_writing(self) -> None:
        """The client does not read its responses: execute nothing more, and disconnect it after `slow_s`."""
        self._unread_timer = self._loop().call_later(
            self._limits.slow_s, self._disconnect, "does not read its responses"
        )

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
            self._continue()

    def finish(self) -> None:
        """Read nothing more, and close after the pending responses."""
        self._ending = True
        self._lines.clear()
        self._transport.pause_reading()
        if not self._unanswered:
            self._transport.close()

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _disconnect(self, reason: str) -> None:
        _log.warning("connection=%d disconnected: the client %s", self._number, reason)
        self._transport.abort()

    def _reject(self, error: LimitExceeded | Unauthenticated) -> None:
        _log.warning("connection=%d rejected: %s", self._number, error.message)
        self._ending = True
        self._transport.write(encode_error(None, to_error_object(error)) + b"\n")
        self._transport.close()

    # --- requests --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Split the data into lines and execute them."""
        if self._ending:
            return
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._line_parts:
                lines[0] = b"".join((*self._line_parts, lines[0]))
                self._line_parts.clear()
                self._line_bytes = 0
            for line in lines:
                self._take(line)
        if rest:
            self._keep(rest)
        elif self._line_timer is not None:
            self._line_timer.cancel()
            self._line_timer = None

    def _keep(self, part: bytes) -> None:
        """Keep an unfinished line, up to a size and for a time."""
        self._line_parts.append(part)
        self._line_bytes += len(part)
        if self._line_bytes > BODY_BYTES_MAX:
            self._line_parts.clear()
            self._reject(LimitExceeded("body_bytes_max", BODY_BYTES_MAX, self._line_bytes))
        elif self._line_timer is None:
            self._line_timer = self._loop().call_later(self._limits.slow_s, self._disconnect, "does not end its line")

    def _take(self, line: bytes) -> None:
        if self._has_room() and not self._lines:
            self._execute(line)
            return
        self._lines.append(line)
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _execute(self, line: bytes) -> None:
        if not line.strip():
            return
        calls, is_batch = decode_calls(line)
        budget = ResponseBudget(self._limits.answer_bytes_max)
        if not is_batch:
            self._submit(calls[0], self._send, budget)
            return
        responses: list[bytes] = []
        missing = len(calls)

        def collect(response: bytes | None) -> None:
            nonlocal missing
            missing -= 1
            if response is not None:
                responses.append(response)
            if not missing:
                self._send(b"[" + b",".join(responses) + b"]" if responses else None)

        for call in calls:
            self._submit(call, collect, budget)

    def _submit(
        self, call: RpcCall | RejectedCall, send: Callable[[bytes | None], None], budget: ResponseBudget
    ) -> None:
        """Execute one request; a notification is executed without a response."""
        assert self._principal is not None  # noqa: S101  # other connections are closed
        self._received += 1
        log = RequestLog(self._number, self._received, self._principal)
        ident: Id = None if call.id is UNSET else call.id
        wanted = call.id is not UNSET
        if isinstance(call, RejectedCall):
            log.rejected(call)
            send(encode_error(ident, call.error) if wanted else None)
            return
        self._unanswered += 1
        pending: PendingCall | None = None

        def reply(result: Any, error: BaseException | None) -> None:
            self._unanswered -= 1
            if pending is not None:
                self._calls.discard(pending)
            body = encode_response(ident, result, error, log, call.method.name, budget=budget)
            send(body if wanted else None)
            self._continue()

        pending = self._executor.submit(call.method, call.params, self._principal, reply)
        if pending.reply is not None:
            self._calls.add(pending)

    def _continue(self) -> None:
        """After a response: execute the lines that waited for room."""
        while self._lines and self._has_room():
            self._execute(self._lines.pop(0))
        if self._reading_paused and not self._lines and not self._ending:
            self._reading_paused = False
            self._transport.resume_reading()
        if self._ending and not self._unanswered:
            self._transport.close()

    def _has_room(self) -> bool:
        return self._unanswered < self._limits.pipeline_max and self._unread_timer is None

    def _send(self, body: bytes | None) -> None:
        if body is not None and not self._transport.is_closing():
            self._transport.write(body + b"\n")


def _peer(peer: socket.socket) -> tuple[int, int]:
    """Return the pid and the user id of the process at the other end."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid

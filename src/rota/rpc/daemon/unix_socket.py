"""The unix socket: one JSON-RPC request or batch per line, one line per response.

The operating system reports the peer's user. Only processes of the daemon's own user are served, and they have all
rights, as they have on the file. A client that shows an access token in `system.hello`, as the program of a run does,
has the rights of that token from then on, or none if it is not valid. A supervisor's own socket (`run_socket.py`)
serves runs only: there a client without the valid token of a run has no rights at all.

A client that exceeds a limit gets an error and is disconnected; so is, after `slow_s`, a client that does not read its
responses or does not end its line. Responses may come in another order than their requests; the id says which request
each belongs to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from rota.errors import LimitExceeded, RotaError, Unauthenticated
from rota.kernel.run_tokens import is_run_token
from rota.rpc.authorization import Principal
from rota.rpc.daemon.buffers import LARGE_REQUEST_BYTES, LINGER_S, TURN_MAX, Outbox, SharedMemory
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.connections import Connections
from rota.rpc.daemon.pending_calls import PendingCall
from rota.rpc.daemon.transport import BatchLimit, DaemonLimits, Request, ResponseLimit
from rota.rpc.error_codec import to_error_object
from rota.rpc.jsonrpc import BODY_BYTES_MAX, RejectedCall, RpcCall, decode_calls, encode_error
from rota.rpc.methods import METHODS

__all__ = ["LineProtocol"]

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_HELLO = METHODS["system.hello"]
_RUNS_ONLY = "Open the store's file, or the daemon that serves it: `rota queue --store rota.db`."
_log = logging.getLogger("rota.daemon")


class LineProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        executor: CallExecutor,
        connections: Connections,
        memory: SharedMemory,
        limits: DaemonLimits,
        *,
        runs_only: bool = False,
    ) -> None:
        self._executor = executor
        self._connections = connections
        self._runs_only = runs_only
        self._buffers, self._large = memory.buffers, memory.large
        self._limits = limits
        self._response_limit = ResponseLimit(limits.answer_bytes_max)
        self.number = connections.next_number()
        self.received = 0  # requests
        self._line_parts: list[bytes] = []  # of a line that has not ended
        self._line_bytes = 0  # in them
        self._permit: bool | None = None  # to receive a large line: None not needed, False waits for it
        self._permits = 0  # of large lines that are being executed
        self._lines: deque[bytes] = deque()  # complete lines that wait until the pipeline has room
        self._calls: set[PendingCall] = set()
        self._unanswered = 0  # requests without a response
        self._started = 0  # lines in this turn
        self._reading_paused = False  # the client sends faster than its requests are executed
        self._line_timer: asyncio.TimerHandle | None = None  # disconnects a client that does not end its line
        self._unread_timer: asyncio.TimerHandle | None = None  # disconnects a client that does not read
        self._ending = False  # nothing more is read
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._refusal: RotaError | None = None  # of the access token that the client has shown, or has not
        self._outbox: Outbox
        self.principal: Principal
        self._idle_at = self._loop.time()

    # --- opening and closing ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Check the peer's user and the number of connections."""
        self._transport = transport
        self._outbox = Outbox(transport, self, self._buffers)
        if self._connections.is_ending:
            self._ending = True
            self._transport.abort()
            return
        pid, uid = _peer(transport.get_extra_info("socket"))
        self.principal = Principal(name=f"uid:{uid}", scope="admin", peer=f"unix pid {pid}")
        if self._runs_only:
            self.principal = msgspec.structs.replace(self.principal, scope="read")
            self._refusal = Unauthenticated(
                "this socket serves runs only, and no run's token was shown", hint=_RUNS_ONLY
            )
        if uid != os.geteuid():
            self._reject(Unauthenticated(f"this socket serves user {os.geteuid()}, not user {uid}"))
            principal = Principal(name=f"uid:{uid}", scope="read", peer=f"unix pid {pid}")
            self._executor.record_denied(principal, None, "another user")
        elif not self._connections.add(self):
            self._reject(
                LimitExceeded("connections_max", self._limits.connections_max, self._limits.connections_max + 1)
            )

    def connection_lost(self, _error: Exception | None) -> None:
        """Withdraw the connection's calls."""
        self._ending = True
        self._connections.remove(self)
        self._buffers.closed(self)
        self._return_permits()
        for timer in (self._line_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._outbox.clear()
        self._line_parts.clear()
        self._lines.clear()
        for call in list(self._calls):
            self._executor.withdraw(call)
        self._calls.clear()
        self._executor.resume_reads()

    def eof_received(self) -> bool:
        """The client sends no more: execute what it sent, but withdraw calls that wait.

        A client that has gone and one that only sends no more look the same, and the first must not be handed entries.
        """
        self._ending = True
        for call in [call for call in self._calls if call.waits]:
            self._calls.discard(call)
            self._unanswered -= 1
            self._executor.withdraw(call)
        return self._unanswered > 0 or self._outbox.size > 0 or bool(self._lines)

    def pause_writing(self) -> None:
        """The client does not read: beyond `out_bytes_max` execute nothing more, and drop it after `slow_s`."""
        self._outbox.pause()
        if self._unread_timer is None:
            self._unread_timer = self._loop.call_later(self._limits.slow_s, self.drop, "slow_s")

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        self._outbox.resume()
        if not self._outbox.paused:
            self._executor.resume_reads()
            self._continue()

    @property
    def idle_since(self) -> float | None:
        """When its last request ended; None while it has one."""
        return None if self._unanswered or self._line_parts or self._outbox.paused else self._idle_at

    def make_room(self) -> None:
        """Close: another connection needs the place."""
        _log.info("connection=%d closed: it was idle, and a new connection needs the place", self.number)
        self._ending = True
        self._transport.close()

    def drop(self, limit: str) -> None:
        """Disconnect a client that does not read or does not send the rest; tell it why if its stream allows."""
        if self._ending and self._transport.is_closing():
            return
        _log.warning("connection=%d dropped: the client does not read, or not in time (%s)", self.number, limit)
        self._buffers.release(self)
        self._reject_with(_too_slow(limit, self._limits))

    def finish(self) -> None:
        """Read nothing more, and close after the pending responses."""
        self._ending = True
        self._lines.clear()
        self._transport.pause_reading()
        if not self._unanswered:
            self._close()

    def _close(self) -> None:
        if not self._outbox.size:
            self._transport.close()

    def _disconnect(self, reason: str) -> None:
        _log.warning("connection=%d disconnected: the client %s", self.number, reason)
        self._transport.abort()

    def _reject(self, error: LimitExceeded | Unauthenticated) -> None:
        _log.warning("connection=%d rejected: %s", self.number, error.message)
        self._reject_with(encode_error(None, to_error_object(error)))

    def _reject_with(self, body: bytes) -> None:
        """Send a last line, if the client is not in the middle of another, and close."""
        self._ending = True
        self._line_parts.clear()
        self._lines.clear()
        if self._outbox.end(body + b"\n"):
            self._transport.close()  # after what the transport has
            self._loop.call_later(LINGER_S, self._transport.abort)
        else:
            self._outbox.clear()
            self._transport.abort()

    # --- requests --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Split the data into lines and execute them."""
        if self._ending:
            return
        if self._started < TURN_MAX:
            self._started = 0
        if not self._line_parts and data.find(b"\n") == len(data) - 1:  # the usual case: one whole line
            if len(self._connections) > 1:
                self._take(data)
                return
            self._executor.hold_writes()
            try:
                self._take(data)
            finally:
                self._executor.run_writes()
            return
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._line_parts:
            lines[0] = b"".join((*self._line_parts, lines[0]))
            self._line_parts.clear()
            self._buffers.give(self, self._line_bytes)
            self._line_bytes = 0
            if self._line_timer is not None:
                self._line_timer.cancel()
                self._line_timer = None
        for line in lines:
            self._take(line)
        if rest:
            self._keep(rest)

    def _keep(self, part: bytes) -> None:
        """Keep an unfinished line, up to a size and for a time; a large one needs a permit."""
        self._line_parts.append(part)
        self._line_bytes += len(part)
        self._buffers.take(self, len(part))
        if self._line_bytes > BODY_BYTES_MAX:
            self._line_parts.clear()
            self._reject(LimitExceeded("body_bytes_max", BODY_BYTES_MAX, self._line_bytes))
            return
        if self._line_timer is None:
            self._line_timer = self._loop.call_later(self._limits.slow_s, self._disconnect, "does not end its line")
        if self._permit is None and self._line_bytes > LARGE_REQUEST_BYTES:
            self._permit = self._large.acquire(self, self._permitted)
            if not self._permit:
                self._pause_reading()
                self._line_timer.cancel()  # it is the daemon that waits

    def _permitted(self) -> None:
        self._permit = True
        self._line_timer = self._loop.call_later(self._limits.slow_s, self._disconnect, "does not end its line")
        self._continue()

    def _return_permits(self) -> None:
        """Return all permits: the connection is lost."""
        if self._permit is False:
            self._large.withdraw(self)
        for _ in range(self._permits + (self._permit is True)):
            self._large.release()
        self._permits, self._permit = 0, None

    def _releasing_permit(self, send: Callable[[bytes | None], None], count: int) -> Callable[[bytes | None], None]:
        """Return a function that sends responses and returns the permit of their line after the last."""
        self._permits += 1
        self._permit = None

        def send_and_release(body: bytes | None) -> None:
            nonlocal count
            count -= 1
            if not count and self._permits:
                self._permits -= 1
                self._large.release()
            send(body)

        return send_and_release

    def _take(self, line: bytes) -> None:
        if not self._lines and self._has_room():
            self._execute(line)
            return
        self._lines.append(line)
        self._buffers.take(self, len(line))
        self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _execute(self, line: bytes) -> None:
        if not line.strip():
            return
        self._started += 1
        if self._started == TURN_MAX:
            self._loop.call_soon(self._next_turn)
        calls, is_batch = decode_calls(line)
        if self.received == 0:
            self._connections.authenticated(self)
        if not is_batch and self._permit is None:  # the usual case
            self._submit(calls[0], self._respond, self._response_limit)
            return
        limit = BatchLimit(self._limits.answer_bytes_max) if is_batch else self._response_limit
        send = self._batch(len(calls)) if is_batch else self._respond
        if self._permit and len(line) > LARGE_REQUEST_BYTES:
            send = self._releasing_permit(send, len(calls))
        for call in calls:
            self._submit(call, send, limit)

    def _batch(self, missing: int) -> Callable[[bytes | None], None]:
        """Return a function that collects the responses to a batch and sends them when it has all."""
        responses: list[bytes] = []

        def collect(response: bytes | None) -> None:
            nonlocal missing
            missing -= 1
            if response is not None:
                responses.append(response)
                self._buffers.take(self, len(response))
            if missing:
                self._respond(None)
                return
            self._buffers.give(self, sum(map(len, responses)))
            self._respond(b"[" + b",".join(responses) + b"]" if responses else None)

        return collect

    def _submit(self, call: RpcCall | RejectedCall, send: Callable[[bytes | None], None], limit: ResponseLimit) -> None:
        """Execute one request; a notification is executed without a response."""
        self.received += 1
        self._unanswered += 1
        if isinstance(call, RejectedCall):
            Request(self, call.id, call.method, send, limit).reject(call)
            return
        request = Request(self, call.id, call.method.name, send, limit)
        if call.method is _HELLO and call.params.access_token:
            self._authenticate(call.params.access_token)
        if self._refusal is not None:
            request.reply(None, self._refusal)
            return
        self._executor.submit(call.method, call.params, self.principal, request, self._calls)

    def _authenticate(self, token: str) -> None:
        """Take on the rights of an access token; if it is not valid, the connection has none from now on."""
        if self._runs_only and not is_run_token(token):
            return
        try:
            self.principal = self._executor.authenticate(token, self.principal.peer)
        except RotaError as error:  # also if the store cannot be asked
            self._refusal = error
        else:
            self._refusal = None

    def _respond(self, body: bytes | None) -> None:
        """Send a response, and execute the lines that waited for it."""
        self._unanswered -= 1
        if body is not None and not self._transport.is_closing():
            self._outbox.send(body + b"\n")
        if not self._unanswered:
            self._idle_at = self._loop.time()
        if self._lines or self._reading_paused or self._ending:
            self._continue()

    def _next_turn(self) -> None:
        self._started = 0
        self._continue()

    def _continue(self) -> None:
        """Execute the lines that waited for room, then read on."""
        while self._lines and self._has_room():
            line = self._lines.popleft()
            self._buffers.give(self, len(line))
            self._execute(line)
        if self._reading_paused and not self._lines and not self._ending and self._permit is not False:
            self._reading_paused = False
            self._transport.resume_reading()
        if self._ending and not self._unanswered and not self._lines:
            self._close()

    def _has_room(self) -> bool:
        return self._unanswered < self._limits.pipeline_max and self._started < TURN_MAX and self.reads_responses()

    def reads_responses(self) -> bool:
        """Whether the client reads its responses, so that it may be sent more of them."""
        return not self._outbox.paused or self._outbox.size <= self._limits.out_bytes_max


def _too_slow(limit: str, limits: DaemonLimits) -> bytes:
    """Return the error for a client that is dropped."""
    value = getattr(limits, limit)
    text = f"the connection is dropped: the client did not read its responses, or end its request, in time ({limit}"
    error = LimitExceeded(limit, value, value)
    error.message = f"{text}, {value:,})"
    error.hint = "Connect again, read the responses as they come, and send fewer requests at a time."
    return encode_error(None, to_error_object(error))


def _peer(peer: socket.socket) -> tuple[int, int]:
    """Return the pid and the user id of the process at the other end."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid

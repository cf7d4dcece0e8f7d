"""The unix socket: one JSON-RPC request, or batch, on each line, and one line for each answer.

A client is whoever runs as the same user, which the system tells us; it may do everything, as it could with the file.
A client that sends too much is told so and cut off; one that does not fetch its answers, or does not end its line, is
cut off after a while. Requests of one connection may be answered out of order: that is what their ids are for.
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
from rota.rpc.daemon.exchange import Exchange
from rota.rpc.daemon.jobs import Job
from rota.rpc.daemon.limits import Limits
from rota.rpc.daemon.requests import Log, Room, bytes_of
from rota.rpc.error_codec import fault_of
from rota.rpc.handlers import Caller
from rota.rpc.jsonrpc import BODY_BYTES_MAX, Call, Id, Refused, calls_of, refuse

__all__ = ["Connections", "LineProtocol"]

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_log = logging.getLogger("rota.daemon")


class Connections:
    """Who is connected."""

    def __init__(self) -> None:
        self.open: set[LineProtocol] = set()
        self.count = 0  # ever

    def number(self) -> int:
        """The next connection's number."""
        self.count += 1
        return self.count


class LineProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, exchange: Exchange, connections: Connections, limits: Limits) -> None:
        self._exchange = exchange
        self._connections = connections
        self._limits = limits
        self._number = connections.number()
        self._received = 0  # requests
        self._parts: list[bytes] = []  # of a line that has not ended
        self._held = 0  # bytes of it
        self._lines: list[bytes] = []  # whole, and to be answered when some others are
        self._jobs: set[Job] = set()
        self._pending = 0  # requests not answered yet
        self._paused = False  # it sends faster than it is answered
        self._slow: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._ending = False  # no more is read
        self._transport: Any = None
        self._caller: Caller | None = None

    # --- a connection's life ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Find out who it is."""
        self._transport = transport
        pid, uid = _peer(transport.get_extra_info("socket"))
        if uid != os.geteuid():
            self._refuse(Unauthenticated(f"this socket is for user {os.geteuid()}, not {uid}"))
            caller = Caller(name=f"uid:{uid}", scope="read", peer=f"unix pid {pid}")
            self._exchange.record_denied(caller, None, "another user")
            return
        if len(self._connections.open) >= self._limits.connections_max:
            most = self._limits.connections_max
            self._refuse(LimitExceeded("connections_max", most, most + 1))
            return
        self._caller = Caller(name=f"uid:{uid}", scope="admin", peer=f"unix pid {pid}")
        self._connections.open.add(self)
        transport.set_write_buffer_limits(self._limits.out_bytes_max)  # type: ignore[attr-defined]  # it writes, too

    def connection_lost(self, _error: Exception | None) -> None:
        """Let go of all that was under way for it."""
        self._connections.open.discard(self)
        for timer in (self._slow, self._stuck):
            if timer is not None:
                timer.cancel()
        self._lines.clear()
        for job in list(self._jobs):
            self._exchange.withdraw(job)
        self._jobs.clear()

    def eof_received(self) -> bool:
        """It will send no more: what it sent is still answered, but what would wait is let go.

        One who has gone and one who only sends no more look the same, and nothing should be handed to the first.
        """
        self._ending = True
        for job in [job for job in self._jobs if job.waits]:
            self._jobs.discard(job)
            self._pending -= 1
            self._exchange.withdraw(job)
        return self._pending > 0

    def pause_writing(self) -> None:
        """It does not fetch its answers: give it a while, and meanwhile answer nothing more."""
        self._stuck = self._loop().call_later(self._limits.slow_s, self._cut, "does not fetch its answers")

    def resume_writing(self) -> None:
        """It fetches them after all."""
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
            self._go_on()

    def finish(self) -> None:
        """Read no more, answer what is under way, then close."""
        self._ending = True
        self._lines.clear()
        self._transport.pause_reading()
        if not self._pending:
            self._transport.close()

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _cut(self, why: str) -> None:
        _log.warning("connection=%d cut off: it %s", self._number, why)
        self._transport.abort()

    def _refuse(self, error: LimitExceeded | Unauthenticated) -> None:
        _log.warning("connection=%d refused: %s", self._number, error.message)
        self._ending = True
        self._transport.write(refuse(None, fault_of(error)) + b"\n")
        self._transport.close()

    # --- requests --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what came, line by line."""
        if self._ending:
            return
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._parts:
                lines[0] = b"".join((*self._parts, lines[0]))
                self._parts.clear()
                self._held = 0
            for line in lines:
                self._take(line)
        if rest:
            self._keep(rest)
        elif self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _keep(self, part: bytes) -> None:
        """Keep the beginning of a line until the rest has come, but not for ever and not without bound."""
        self._parts.append(part)
        self._held += len(part)
        if self._held > BODY_BYTES_MAX:
            self._parts.clear()
            self._refuse(LimitExceeded("body_bytes_max", BODY_BYTES_MAX, self._held))
        elif self._slow is None:
            self._slow = self._loop().call_later(self._limits.slow_s, self._cut, "does not end its line")

    def _take(self, line: bytes) -> None:
        if self._has_room() and not self._lines:
            self._answer(line)
            return
        self._lines.append(line)
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _answer(self, line: bytes) -> None:
        if not line.strip():
            return
        calls, is_batch = calls_of(line)
        room = Room(self._limits.answer_bytes_max)
        if not is_batch:
            self._carry(calls[0], self._send, room)
            return
        answers: list[bytes] = []
        left = len(calls)

        def collect(answer: bytes | None) -> None:
            nonlocal left
            left -= 1
            if answer is not None:
                answers.append(answer)
            if not left:
                self._send(b"[" + b",".join(answers) + b"]" if answers else None)

        for call in calls:
            self._carry(call, collect, room)

    def _carry(self, call: Call | Refused, send: Callable[[bytes | None], None], room: Room) -> None:
        """Have one request answered; a notification is carried out and not answered."""
        assert self._caller is not None  # noqa: S101  # who is not known is not heard
        self._received += 1
        log = Log(self._number, self._received, self._caller)
        ident: Id = None if call.id is UNSET else call.id
        wanted = call.id is not UNSET
        if isinstance(call, Refused):
            log.refused(call)
            send(refuse(ident, call.error) if wanted else None)
            return
        self._pending += 1
        job: Job | None = None

        def reply(result: Any, error: BaseException | None) -> None:
            self._pending -= 1
            if job is not None:
                self._jobs.discard(job)
            body = bytes_of(ident, result, error, log, call.method.name, room=room)
            send(body if wanted else None)
            self._go_on()

        job = self._exchange.carry(call.method, call.params, self._caller, reply)
        if job.reply is not None:
            self._jobs.add(job)

    def _go_on(self) -> None:
        """Something was answered: take what had to wait for that."""
        while self._lines and self._has_room():
            self._answer(self._lines.pop(0))
        if self._paused and not self._lines and not self._ending:
            self._paused = False
            self._transport.resume_reading()
        if self._ending and not self._pending:
            self._transport.close()

    def _has_room(self) -> bool:
        return self._pending < self._limits.pipeline_max and self._stuck is None

    def _send(self, body: bytes | None) -> None:
        if body is not None and not self._transport.is_closing():
            self._transport.write(body + b"\n")


def _peer(peer: socket.socket) -> tuple[int, int]:
    """Whose process is at the other end, as the system says: its pid and its user."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid

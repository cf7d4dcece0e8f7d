"""HTTP: the methods as `POST /rpc` and as REST routes, the journal as server-sent events, health checks and metrics.

Every request needs an access token, except `/livez` and `/readyz`. `tcp.py` has the listening socket and TLS,
`http_protocol.py` the protocol, `hosts.py` the hosts and origins that are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec

from rota.errors import Forbidden, LimitExceeded, LockedOut, RotaError, StoreError, Unauthenticated
from rota.fault_log import FaultLog
from rota.observe.metrics import Metrics
from rota.rpc.authorization import Principal
from rota.rpc.daemon.buffers import SharedMemory
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.connections import Connections
from rota.rpc.daemon.event_stream import EventStream, Subscriber
from rota.rpc.daemon.hosts import AllowedHosts
from rota.rpc.daemon.http_protocol import TEXT, HttpProtocol, HttpRequest
from rota.rpc.daemon.lockout import Lockout
from rota.rpc.daemon.pending_calls import PendingCall
from rota.rpc.daemon.rest_calls import RestCalls, refusal_of
from rota.rpc.daemon.tcp import HttpSettings, Listener
from rota.rpc.daemon.transport import BatchLimit, DaemonLimits, Request, ResponseLimit
from rota.rpc.error_codec import to_error_object
from rota.rpc.handlers import RpcHandlers
from rota.rpc.jsonrpc import BODY_BYTES_MAX, RejectedCall, decode_calls, encode_error
from rota.rpc.methods import PROTOCOL
from rota.rpc.openapi import openapi_document
from rota.rpc.rest import OPENAPI, PREFIX, error_body, status_of
from rota.rpc.tokens import token_id_of

__all__ = ["HttpServer"]

METRICS_UPDATE_S = 5.0  # between two reads of the journal for the metrics
READY_S = 5.0  # how long a readiness check waits for the store
_PROTOCOL = b"%d" % PROTOCOL
_OPENAPI, _REST = OPENAPI.encode(), PREFIX.encode()
_METHODS = {
    b"/rpc": b"POST",
    b"/events": b"GET",
    b"/metrics": b"GET",
    b"/livez": b"GET",
    b"/readyz": b"GET",
    _OPENAPI: b"GET",
}
_OPEN = (b"/livez", b"/readyz")  # without a token
_log = logging.getLogger("rota.daemon")


class HttpServer:
    """The daemon's HTTP transport."""

    def __init__(
        self,
        settings: HttpSettings,
        executor: CallExecutor,
        handlers: RpcHandlers,
        memory: SharedMemory,
        limits: DaemonLimits,
    ) -> None:
        self._executor = executor
        self._handlers = handlers
        self._settings = settings
        self._limits = limits
        self._response_limit = ResponseLimit(limits.answer_bytes_max)
        self._hosts = AllowedHosts(settings.host, settings.allowed_hosts, is_tls=settings.certificate is not None)
        self._lockout = Lockout(limits, handlers.kernel.clock.monotonic)
        self._rest = RestCalls(executor, self._response_limit)
        self._metrics = Metrics(handlers.kernel)
        self._ready = False
        self.events = EventStream(executor, handlers, limits)
        self.connections = Connections(limits, asyncio.get_running_loop().time)
        protocol = partial(HttpProtocol, self, self.connections, memory, limits)
        self._listener = Listener(settings, self.connections, protocol, limits)
        self._tasks: set[asyncio.Task[None]] = set()

    # --- opening and closing ---------------------------------------------------------------------

    @property
    def address_for_others(self) -> str | None:
        """The address at which other machines reach it, while it listens; None if they do not."""
        return self._listener.address_for_others

    async def open(self) -> str:
        """Listen, and return the address."""
        address = await self._listener.open()
        self._run(self._update_metrics())
        self._ready = True
        return address

    async def close(self) -> None:
        """End the event streams, finish pending requests, and stop listening."""
        self._ready = False
        self.events.end()
        await self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _update_metrics(self) -> None:
        """Read the journal regularly, so that a request for metrics has little left to read."""
        faults = FaultLog("rota.daemon")
        while True:
            await asyncio.sleep(METRICS_UPDATE_S)
            try:
                await asyncio.to_thread(self._metrics.catch_up)
            except RotaError as problem:
                faults.failed("the metrics are not updated", problem, then=f"trying every {METRICS_UPDATE_S:g} s")
            else:
                faults.worked()

    # --- checking a request before its body comes ------------------------------------------------

    def check(self, connection: HttpProtocol, request: HttpRequest) -> None:
        """Refuse a request, or set its principal."""
        headers = request.headers
        path = request.path.partition(b"?")[0]
        try:
            self._hosts.check(headers.get(b"host"), headers.get(b"origin"))
        except Forbidden as error:
            caller = Principal(name="unknown", scope="read", peer=connection.peer)
            self._executor.record_denied(caller, None, f"the {error.data['header']} header")
            _refuse(request, error, status=421 if error.data["header"] == "Host" else 403)
            return
        expected = _METHODS.get(path)
        if expected is None and path.startswith(_REST):
            if (refusal := refusal_of(request.method, path)) is not None:
                status, problem, more = refusal
                request.refuse(status, problem, headers=more)
                return
            expected = request.method
        if expected is None:
            request.refuse(404, b"Not Found\n", TEXT)
        elif request.method != expected and (request.method != b"HEAD" or expected != b"GET"):
            request.refuse(405, b"Method Not Allowed\n", TEXT, b"allow: %b\r\n" % expected)
        elif path == b"/rpc" and (got := headers.get(b"rota-protocol", _PROTOCOL)) != _PROTOCOL:
            text = got.decode("latin-1")
            body = {"error": "another protocol", "expected": PROTOCOL, "got": text, "header": "Rota-Protocol"}
            request.refuse(426, msgspec.json.encode(body))
        elif path not in _OPEN and not (path == b"/metrics" and self._settings.open_metrics):
            try:
                request.principal = self._authenticate(connection, request)
                if path == b"/metrics":
                    _check_metrics(request.principal)
            except RotaError as error:
                _refuse(request, error)
            else:
                self.connections.authenticated(connection)

    def _authenticate(self, connection: HttpProtocol, request: HttpRequest) -> Principal:
        given = request.headers.get(b"authorization", b"")
        token = given[7:].decode("latin-1").strip() if given[:7].lower() == b"bearer " else ""
        try:
            return self._executor.authenticate(token, connection.peer)
        except Unauthenticated:
            if token:
                connection.failures += 1
                if connection.failures >= self._limits.failures_max:
                    request.keep_alive = False  # a new connection costs more than a new guess
                self._lockout.failed(token_id_of(token))
            raise

    def too_large(self, request: HttpRequest) -> None:
        """Refuse a request whose body is larger than `body_bytes_max`."""
        _refuse(request, LimitExceeded("body_bytes_max", BODY_BYTES_MAX, request.size), status=413)

    # --- answering a request ---------------------------------------------------------------------

    def handle(self, connection: HttpProtocol, request: HttpRequest) -> None:
        """Answer a complete request, now or later."""
        path, _, query = request.path.partition(b"?")
        if path == b"/rpc":
            self._rpc(connection, request)
        elif path == _OPENAPI:
            connection.respond(200, msgspec.json.encode(openapi_document(self._handlers.rota_version)))
        elif path.startswith(_REST):
            self._rest.handle(connection, request)
        elif path == b"/livez":
            connection.respond(200, b"ok\n", TEXT)
        elif path == b"/events":
            self._run(self._stream(connection, request, query))
        else:
            answer = self._metrics_page if path == b"/metrics" else self._readiness
            self._run(self._respond_with(connection, answer))

    async def _respond_with(self, connection: HttpProtocol, answer: Callable[[], Any]) -> None:
        try:
            connection.respond(*await answer())
        except RotaError as error:
            connection.respond(503, encode_error(None, to_error_object(error)))
        except Exception as error:
            _log.exception("a request over HTTP failed")
            connection.respond(500, encode_error(None, to_error_object(error)))

    # --- POST /rpc -------------------------------------------------------------------------------

    def _rpc(self, connection: HttpProtocol, request: HttpRequest) -> None:
        parts = request.body_parts
        calls, is_batch = decode_calls(parts[0] if len(parts) == 1 else b"".join(parts))
        parts.clear()
        answer = _BatchAnswer(connection, len(calls)) if is_batch else None
        send = answer.add if answer is not None else partial(_send, connection)
        limit = BatchLimit(self._limits.answer_bytes_max) if is_batch else self._response_limit
        pending: set[PendingCall] = set()
        for call in calls:
            connection.received += 1
            if isinstance(call, RejectedCall):
                Request(connection, call.id, call.method, send, limit).reject(call)
                continue
            origin = Request(connection, call.id, call.method.name, send, limit)
            self._executor.submit(call.method, call.params, connection.principal, origin, pending)
        if pending:
            connection.on_lost = partial(self._withdraw, pending)
            connection.waits = any(call.waits for call in pending)

    def _withdraw(self, calls: set[PendingCall]) -> None:
        for call in list(calls):
            self._executor.withdraw(call)
        self._executor.resume_reads()

    # --- GET /events -----------------------------------------------------------------------------

    async def _stream(self, connection: HttpProtocol, request: HttpRequest, query: bytes) -> None:
        asked = request.headers.get(b"last-event-id", b"").decode("latin-1")
        asked = asked or (parse_qs(query.decode("latin-1")).get("since") or [""])[-1]
        connection.waits = True
        try:
            subscriber = await self.events.subscribe(asked or None, connection.principal)
        except RotaError as error:
            _refuse(request, error)
            if request.refusal is not None:
                connection.respond(*request.refusal)
            return
        connection.on_lost = subscriber.lost
        try:
            await self._send_events(connection, subscriber)
        except RotaError as error:
            _log.warning("a stream of events ended: %s", error.message)
        finally:
            self.events.unsubscribe(subscriber)
            connection.end_stream()

    async def _send_events(self, connection: HttpProtocol, subscriber: Subscriber) -> None:
        head = b"content-type: text/event-stream\r\ncache-control: no-store\r\n"
        connection.start_stream(head, partial(self.events.slow_gap, subscriber))
        async for part in self.events.parts(subscriber):
            if not await connection.send_part(part):
                return

    # --- health and metrics ----------------------------------------------------------------------

    async def _readiness(self) -> tuple[int, bytes, bytes]:
        """Whether the daemon can read and write its store."""
        if not self._ready:
            return 503, b"stopping\n", TEXT
        try:
            async with asyncio.timeout(READY_S):
                await asyncio.to_thread(self._handlers.kernel.journal.cursor)
                await self._executor.check_writable()
        except StoreError as error:
            return 503, f"{error.message}\n".encode(), TEXT
        except TimeoutError:
            return 503, b"the store has not answered for %d s\n" % READY_S, TEXT
        return 200, b"ok\n", TEXT

    async def _metrics_page(self) -> tuple[int, bytes, bytes]:
        body = await asyncio.to_thread(self._metrics.exposition)
        return 200, body, self._metrics.content_type.encode()


class _BatchAnswer:
    """Collects the responses to a batch."""

    def __init__(self, connection: HttpProtocol, missing: int) -> None:
        self._connection = connection
        self._missing = missing
        self._responses: list[bytes] = []

    def add(self, body: bytes | None) -> None:
        """Add a response, and send all after the last one."""
        self._missing -= 1
        if body is not None:
            self._responses.append(body)
            self._connection.hold(len(body))
        if not self._missing:
            self._connection.unhold(sum(map(len, self._responses)))
            _send(self._connection, b"[" + b",".join(self._responses) + b"]" if self._responses else None)


def _check_metrics(principal: Principal) -> None:
    """The metrics count the entries of all projects together, so they are refused to callers bound to projects."""
    if principal.projects is not None:
        hint = "Use a token that is not bound to projects; kernel.sched.counts counts the entries of your own."
        raise Forbidden(f"/metrics counts all projects, and {principal.name} is bound to some", hint=hint)


def _send(connection: HttpProtocol, body: bytes | None) -> None:
    if body is None:
        connection.respond(204, b"")
    else:
        connection.respond(200, body)


def _refuse(request: HttpRequest, error: RotaError, *, status: int | None = None) -> None:
    headers = b""
    if isinstance(error, LockedOut):
        headers = b"retry-after: %d\r\n" % max(1, round(error.data["retry_after_s"]))
    elif isinstance(error, Unauthenticated):
        headers = b"www-authenticate: Bearer\r\n"
    is_rest = request.path.startswith(_REST)
    body = error_body(error) if is_rest else encode_error(None, to_error_object(error))
    request.refuse(status or status_of(error), body, headers=headers)

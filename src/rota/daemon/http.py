"""TCP: the same methods as `POST /rpc`, the journal as server-sent events, health and metrics.

Whoever calls over TCP has a token; without one only `/livez` and `/readyz` answer. Beyond this machine's own addresses
the daemon listens with TLS only: a token that is sent in the clear is everybody's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import uvicorn
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rota.daemon.exchange import Exchange, Job
from rota.daemon.feed import Feed, Subscriber
from rota.daemon.limits import Limits
from rota.daemon.lockout import Lockout
from rota.daemon.requests import Log, bytes_of
from rota.errors import Forbidden, InvalidInput, LimitExceeded, LockedOut, NotAllowed, RotaError, Unauthenticated
from rota.observe.metrics import Metrics
from rota.office import Caller, Office
from rota.wire.envelope import BODY_BYTES_MAX, Call, Refused, calls_of, refuse
from rota.wire.faults import fault_of
from rota.wire.methods import PROTOCOL

__all__ = ["HttpDoor", "HttpSettings"]

PROTOCOL_HEADER = b"rota-protocol"
KEEP_ALIVE_S = 75  # an idle connection is kept open
CATCH_UP_S = 5.0  # between two looks of the metrics at the journal
_log = logging.getLogger("rota.daemon")
_STATUS: dict[type[RotaError], int] = {LockedOut: 429, Unauthenticated: 401, Forbidden: 403, LimitExceeded: 429}


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, with what."""

    host: str = "127.0.0.1"
    port: int = 7682
    certificate: str | None = None  # a PEM file
    key: str | None = None
    open_metrics: bool = False  # /metrics without a token

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("TLS needs both a certificate and its key", field="certificate")
        if self.certificate is None and not _is_loopback(self.host):
            text = f"{self.host} can be reached from elsewhere, and without TLS tokens would be sent in the clear"
            hint = "Give --tls-cert and --tls-key, or listen on 127.0.0.1 and put a proxy with TLS in front."
            raise InvalidInput(text, field="host", hint=hint)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can mean anything


class HttpDoor:
    """The daemon over TCP."""

    def __init__(self, settings: HttpSettings, exchange: Exchange, office: Office, limits: Limits) -> None:
        self._exchange = exchange
        self._office = office
        self._settings = settings
        self._limits = limits
        self._lockout = Lockout(limits, office.kernel.clock.monotonic)
        self._metrics = Metrics(office.kernel)
        self._received = 0
        self._ready = False
        self._stopping = False
        self.transports: dict[tuple[str, int], asyncio.Transport] = {}
        self.feed = Feed(exchange, office, limits)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: _Server | None = None

    # --- opening and closing ---------------------------------------------------------------------

    async def open(self) -> str:
        """Listen; the answer is the address."""
        settings = self._settings
        listener = _bound(settings.host, settings.port)
        config = uvicorn.Config(
            self._app(),
            http=_protocol_of(self),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # an address in a header is whatever somebody wrote there
            server_header=False,
            date_header=False,
            limit_concurrency=self._limits.connections_max + 1,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
        )
        self._server = _Server(config)
        await self._start(self._server, listener)
        self._tasks.append(asyncio.create_task(self._keep_up()))
        self._ready = True
        host, port = listener.getsockname()[:2]
        scheme = "http" if settings.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def _start(self, server: _Server, listener: socket.socket) -> None:
        serving = asyncio.create_task(server.serve([listener]))
        self._tasks.append(serving)
        while not server.started:
            if serving.done():
                await serving  # raises what went wrong
                raise InvalidInput("the daemon could not listen", field="host")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Tell subscribers, answer what is under way, and listen no more."""
        self._stopping = True
        self._ready = False
        self.feed.end()
        if self._server is not None:
            self._server.should_exit = True
            await self._tasks[0]
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks[1:], return_exceptions=True)

    async def _keep_up(self) -> None:
        """Let the metrics follow the journal, so that nobody who asks has to wait for a long way."""
        while True:
            await asyncio.sleep(CATCH_UP_S)
            await asyncio.to_thread(self._metrics.catch_up)

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/rpc", _Endpoint(self._rpc), methods=["POST"]),
                Route("/events", _Endpoint(self._events), methods=["GET"]),
                Route("/metrics", self._show_metrics, methods=["GET"]),
                Route("/livez", self._livez, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
            ]
        )

    # --- who calls -------------------------------------------------------------------------------

    def _caller(self, scope: Scope) -> Caller:
        address = scope["client"][0] if scope.get("client") else "?"
        self._lockout.check(address)
        token = ""
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                token = value[7:].decode("latin-1").strip()
        try:
            return self._office.tokens.caller(token, address)
        except Unauthenticated as error:
            self._lockout.failed(address)
            self._exchange.record_denied(Caller(name="unknown", scope="read", peer=address), None, error.message)
            raise

    # --- POST /rpc -------------------------------------------------------------------------------

    async def _rpc(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_protocol(scope)
            caller = self._caller(scope)
            async with asyncio.timeout(self._limits.slow_s):
                body = await _body(receive)
        except _Mismatch as mismatch:
            await _send(send, 426, msgspec.json.encode(mismatch.said))
            return
        except RotaError as error:
            await _refuse(send, error)
            return
        except TimeoutError:
            text = f"the request was not whole after {self._limits.slow_s:g} s (slow_s)"
            await _send(send, 408, refuse(None, fault_of(InvalidInput(text))))
            return
        calls, is_batch = calls_of(body)
        pending = [self._carry(call, caller) for call in calls]
        bodies = await self._gather(pending, receive)
        if bodies is None:
            return  # nobody is there any more
        answers = [each for each in bodies if each is not None]
        if not answers:
            await _send(send, 204, b"")
        elif is_batch:
            await _send(send, 200, b"[" + b",".join(answers) + b"]")
        else:
            await _send(send, 200, answers[0])

    def _carry(self, call: Call | Refused, caller: Caller) -> _Pending:
        self._received += 1
        log = Log(0, self._received, caller)
        pending = _Pending(asyncio.get_running_loop())
        wanted = call.id is not UNSET
        ident: Any = call.id if wanted else None
        if isinstance(call, Refused):
            log.refused(call)
            pending.settle(refuse(ident, call.error) if wanted else None)
            return pending
        name = call.method.name

        def reply(result: Any, error: BaseException | None) -> None:
            body = bytes_of(ident, result, error, log, name)
            pending.settle(body if wanted else None)

        pending.job = self._exchange.carry(call.method, call.params, caller, reply)
        return pending

    async def _gather(self, pending: list[_Pending], receive: Receive) -> list[bytes | None] | None:
        """The answers; None if whoever asked has gone away while a call was waiting."""
        if not any(each.waits for each in pending):
            return [await each.answered for each in pending]
        gone = asyncio.ensure_future(_disconnected(receive))
        answered = asyncio.gather(*(each.answered for each in pending))
        await asyncio.wait((gone, answered), return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            gone.cancel()
            return answered.result()
        for each in pending:
            if each.job is not None:
                self._exchange.withdraw(each.job)
        answered.cancel()
        return None

    # --- GET /events -----------------------------------------------------------------------------

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = self._caller(scope)
            subscriber = self.feed.subscribe(Request(scope), caller)
        except RotaError as error:
            await _refuse(send, error)
            return
        try:
            await self._feed_one(subscriber, receive, send)
        except TimeoutError:
            _log.warning("subscriber %s cut off: it does not fetch what it is sent", caller.name)
            transport = self.transports.get(scope["client"])
            if transport is not None:
                transport.abort()
        finally:
            self.feed.leave(subscriber)

    async def _feed_one(self, subscriber: Subscriber, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            async for chunk in self.feed.chunks(subscriber, gone):
                async with asyncio.timeout(self._limits.slow_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()

    # --- health and metrics ----------------------------------------------------------------------

    async def _livez(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        if not self._ready:
            return PlainTextResponse("stopping\n", 503)
        try:
            await asyncio.to_thread(self._office.kernel.journal.cursor)
        except RotaError as error:
            return PlainTextResponse(f"{error.message}\n", 503)
        return PlainTextResponse("ok\n")

    async def _show_metrics(self, request: Request) -> Response:
        if not self._settings.open_metrics:
            try:
                self._caller(request.scope)
            except NotAllowed as error:
                return JSONResponse(msgspec.to_builtins(fault_of(error)), _STATUS[type(error)])
        body = await asyncio.to_thread(self._metrics.exposition)
        return Response(body, media_type=self._metrics.content_type)


# --- a call under way ----------------------------------------------------------------------------


class _Pending:
    """A call, and its answer to be."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answered: asyncio.Future[bytes | None] = loop.create_future()
        self.job: Job | None = None

    @property
    def waits(self) -> bool:
        """Whether it may take long, so that whoever asked may have gone by then."""
        return not self.answered.done() and self.job is not None and self.job.waits

    def settle(self, body: bytes | None) -> None:
        """Here is the answer."""
        if not self.answered.done():
            self.answered.set_result(body)


# --- HTTP ----------------------------------------------------------------------------------------


class _Mismatch(Exception):
    """A client that speaks another protocol."""

    def __init__(self, got: str) -> None:
        super().__init__(got)
        self.said = {"error": "another protocol", "expected": PROTOCOL, "got": got, "header": "Rota-Protocol"}


def _check_protocol(scope: Scope) -> None:
    """A client may say which protocol it speaks; one that does not is taken to speak ours."""
    for name, value in scope["headers"]:
        if name == PROTOCOL_HEADER and value != b"%d" % PROTOCOL:
            raise _Mismatch(value.decode("latin-1"))


async def _body(receive: Receive) -> bytes:
    """The body, up to the limit: what goes beyond it is not kept."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidInput("the client went away in the middle of its request")
        part = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise LimitExceeded("body_bytes_max", BODY_BYTES_MAX, size)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, error: RotaError) -> None:
    headers = []
    if isinstance(error, LockedOut):
        headers.append((b"retry-after", b"%d" % max(1, round(error.data["retry_after_s"]))))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    too_large = error.data.get("limit") == "body_bytes_max"
    status = 413 if too_large else _STATUS.get(type(error), 400)
    await _send(send, status, refuse(None, fault_of(error)), headers)


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = [] if not body else [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*length, *(headers or ())]})
    await send({"type": "http.response.body", "body": body})


class _Endpoint:
    """An ASGI application that a route takes as it is: nothing is made for it that it does not use."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Any]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    """A server that leaves signals to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, or an error of ours."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as problem:
        raise InvalidInput(f"cannot listen on {host} port {port}: {problem}", field="port") from problem
    listener.setblocking(False)
    return listener


def _protocol_of(door: HttpDoor) -> type[asyncio.Protocol]:
    """A connection that gives a client only so long to send its headers, and that can be cut off."""
    slow_s = door._limits.slow_s  # it is this door's own

    class Connection(HttpToolsProtocol):
        _slow: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent
            super().connection_made(transport)
            if self.client is not None:
                door.transports[self.client] = transport
            self._slow = self.loop.call_later(slow_s, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            if self.client is not None:
                door.transports.pop(self.client, None)
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            self._stop()
            self._slow = self.loop.call_later(slow_s, self.transport.abort)
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._stop()
            super().on_headers_complete()

        def _stop(self) -> None:
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None

    return Connection

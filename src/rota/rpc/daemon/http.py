"""HTTP: the methods as `POST /rpc`, the journal as server-sent events, health checks and metrics.

Every request needs an access token, except `/livez` and `/readyz`. `tcp.py` has the listening socket and TLS.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from rota.errors import Forbidden, InvalidInput, LimitExceeded, LockedOut, NotAllowed, RotaError, Unauthenticated
from rota.observe.metrics import Metrics
from rota.rpc.authorization import Principal
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.event_stream import EventStream, Subscriber
from rota.rpc.daemon.pending_calls import PendingCall
from rota.rpc.daemon.tcp import HttpSettings, Listener
from rota.rpc.daemon.transport import DaemonLimits, RequestLog, ResponseBudget, encode_response
from rota.rpc.error_codec import to_error_object
from rota.rpc.handlers import RpcHandlers
from rota.rpc.jsonrpc import BODY_BYTES_MAX, RejectedCall, RpcCall, decode_calls, encode_error
from rota.rpc.methods import PROTOCOL

__all__ = ["HttpServer", "Lockout"]

PROTOCOL_HEADER = b"rota-protocol"
METRICS_UPDATE_S = 5.0  # between two reads of the journal for the metrics
_log = logging.getLogger("rota.daemon")
_STATUS: dict[type[RotaError], int] = {LockedOut: 429, Unauthenticated: 401, Forbidden: 403, LimitExceeded: 429}


class Lockout:
    """Locks out addresses that fail to authenticate repeatedly.

    An address is counted without its port, which changes with every connection. Requests of a locked-out address are
    neither read nor recorded, so that guessing a token is slow and cannot fill the journal.
    """

    def __init__(self, limits: DaemonLimits, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._failures: dict[str, deque[float]] = {}
        self._locked_until: dict[str, float] = {}

    def check(self, address: str) -> None:
        """Raise `LockedOut` if the address is locked out."""
        until = self._locked_until.get(address)
        if until is None:
            return
        left_s = until - self._monotonic()
        if left_s > 0:
            raise LockedOut(
                f"{address} is locked out for another {left_s:.0f} s", address=address, retry_after_s=left_s
            )
        del self._locked_until[address]

    def failed(self, address: str) -> None:
        """Count a failed authentication."""
        now = self._monotonic()
        if address not in self._failures and len(self._failures) >= self._limits.addresses_max:
            self._failures.pop(next(iter(self._failures)))  # the oldest
        times = self._failures.setdefault(address, deque(maxlen=self._limits.failures_max))
        times.append(now)
        if len(times) == self._limits.failures_max and now - times[0] <= self._limits.failures_s:
            del self._failures[address]
            if len(self._locked_until) >= self._limits.addresses_max:
                self._locked_until.pop(next(iter(self._locked_until)))
            self._locked_until[address] = now + self._limits.lockout_s


class HttpServer:
    """The daemon's HTTP transport."""

    def __init__(
        self, settings: HttpSettings, executor: CallExecutor, handlers: RpcHandlers, limits: DaemonLimits
    ) -> None:
        self._executor = executor
        self._handlers = handlers
        self._settings = settings
        self._limits = limits
        self._lockout = Lockout(limits, handlers.kernel.clock.monotonic)
        self._metrics = Metrics(handlers.kernel)
        self._received = 0
        self._ready = False
        self.events = EventStream(executor, handlers, limits)
        self._listener = Listener(settings, limits, self._app())
        self._metrics_task: asyncio.Task[None] | None = None

    # --- opening and closing ---------------------------------------------------------------------

    async def open(self) -> str:
        """Listen, and return the address."""
        address = await self._listener.open()
        self._metrics_task = asyncio.create_task(self._update_metrics())
        self._ready = True
        return address

    async def close(self) -> None:
        """End the event streams, finish pending requests, and stop listening."""
        self._ready = False
        self.events.end()
        await self._listener.close()
        if self._metrics_task is not None:
            self._metrics_task.cancel()
            await asyncio.gather(self._metrics_task, return_exceptions=True)

    async def _update_metrics(self) -> None:
        """Read the journal regularly, so that a request for metrics has little left to read."""
        while True:
            await asyncio.sleep(METRICS_UPDATE_S)
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

    # --- authentication --------------------------------------------------------------------------

    def _authenticate(self, scope: Scope) -> Principal:
        address = scope["client"][0] if scope.get("client") else "?"
        self._lockout.check(address)
        token = ""
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                token = value[7:].decode("latin-1").strip()
        try:
            return self._handlers.tokens.authenticate(token, address)
        except Unauthenticated as error:
            self._lockout.failed(address)
            self._executor.record_denied(Principal(name="unknown", scope="read", peer=address), None, error.message)
            raise

    # --- POST /rpc -------------------------------------------------------------------------------

    async def _rpc(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_protocol(scope)
            principal = self._authenticate(scope)
            async with asyncio.timeout(self._limits.slow_s):
                body = await _body(receive)
        except _ProtocolMismatch as mismatch:
            await _send(send, 426, msgspec.json.encode(mismatch.body))
            return
        except RotaError as error:
            await _send_error(send, error)
            return
        except TimeoutError:
            text = f"the request was incomplete after {self._limits.slow_s:g} s (slow_s)"
            await _send(send, 408, encode_error(None, to_error_object(InvalidInput(text))))
            return
        calls, is_batch = decode_calls(body)
        budget = ResponseBudget(self._limits.answer_bytes_max)
        pending = [self._submit(call, principal, budget) for call in calls]
        bodies = await self._gather(pending, receive)
        if bodies is None:
            return  # the client is gone
        responses = [each for each in bodies if each is not None]
        if not responses:
            await _send(send, 204, b"")
        elif is_batch:
            await _send(send, 200, b"[" + b",".join(responses) + b"]")
        else:
            await _send(send, 200, responses[0])

    def _submit(self, call: RpcCall | RejectedCall, principal: Principal, budget: ResponseBudget) -> _PendingResponse:
        self._received += 1
        log = RequestLog(0, self._received, principal)
        pending = _PendingResponse(asyncio.get_running_loop())
        wanted = call.id is not UNSET
        ident: Any = call.id if wanted else None
        if isinstance(call, RejectedCall):
            log.rejected(call)
            pending.set(encode_error(ident, call.error) if wanted else None)
            return pending
        name = call.method.name

        def reply(result: Any, error: BaseException | None) -> None:
            body = encode_response(ident, result, error, log, name, budget=budget)
            pending.set(body if wanted else None)

        pending.call = self._executor.submit(call.method, call.params, principal, reply)
        return pending

    async def _gather(self, pending: list[_PendingResponse], receive: Receive) -> list[bytes | None] | None:
        """Return the responses, or None if the client disconnected while a call was waiting."""
        if not any(each.waits for each in pending):
            return [await each.response for each in pending]
        gone = asyncio.ensure_future(_disconnected(receive))
        responses = asyncio.gather(*(each.response for each in pending))
        await asyncio.wait((gone, responses), return_when=asyncio.FIRST_COMPLETED)
        if responses.done():
            gone.cancel()
            return responses.result()
        for each in pending:
            if each.call is not None:
                self._executor.withdraw(each.call)
        responses.cancel()
        return None

    # --- GET /events -----------------------------------------------------------------------------

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = self._authenticate(scope)
            subscriber = self.events.subscribe(Request(scope), principal)
        except RotaError as error:
            await _send_error(send, error)
            return
        try:
            await self._stream(subscriber, receive, send)
        except TimeoutError:
            _log.warning("subscriber %s disconnected: it does not read its events", principal.name)
            self._listener.disconnect(scope["client"])
        finally:
            self.events.unsubscribe(subscriber)

    async def _stream(self, subscriber: Subscriber, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            async for chunk in self.events.chunks(subscriber, gone):
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
            await asyncio.to_thread(self._handlers.kernel.journal.cursor)
        except RotaError as error:
            return PlainTextResponse(f"{error.message}\n", 503)
        return PlainTextResponse("ok\n")

    async def _show_metrics(self, request: Request) -> Response:
        if not self._settings.open_metrics:
            try:
                self._authenticate(request.scope)
            except NotAllowed as error:
                return JSONResponse(msgspec.to_builtins(to_error_object(error)), _STATUS[type(error)])
        body = await asyncio.to_thread(self._metrics.exposition)
        return Response(body, media_type=self._metrics.content_type)


# --- a pending response --------------------------------------------------------------------------


class _PendingResponse:
    """A call and its future response."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.response: asyncio.Future[bytes | None] = loop.create_future()
        self.call: PendingCall | None = None

    @property
    def waits(self) -> bool:
        """Whether the call may wait so long that the client disconnects meanwhile."""
        return not self.response.done() and self.call is not None and self.call.waits

    def set(self, body: bytes | None) -> None:
        """Set the response."""
        if not self.response.done():
            self.response.set_result(body)


# --- HTTP ----------------------------------------------------------------------------------------


class _ProtocolMismatch(Exception):
    """The client uses another protocol version."""

    def __init__(self, got: str) -> None:
        super().__init__(got)
        self.body = {"error": "another protocol", "expected": PROTOCOL, "got": got, "header": "Rota-Protocol"}


def _check_protocol(scope: Scope) -> None:
    """Check the protocol header; a client without one is assumed to use this version."""
    for name, value in scope["headers"]:
        if name == PROTOCOL_HEADER and value != b"%d" % PROTOCOL:
            raise _ProtocolMismatch(value.decode("latin-1"))


async def _body(receive: Receive) -> bytes:
    """Read the body, up to its limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidInput("the client disconnected in the middle of its request")
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


async def _send_error(send: Send, error: RotaError) -> None:
    headers = []
    if isinstance(error, LockedOut):
        headers.append((b"retry-after", b"%d" % max(1, round(error.data["retry_after_s"]))))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    too_large = error.data.get("limit") == "body_bytes_max"
    status = 413 if too_large else _STATUS.get(type(error), 400)
    await _send(send, status, encode_error(None, to_error_object(error)), headers)


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = [] if not body else [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*length, *(headers or ())]})
    await send({"type": "http.response.body", "body": body})


class _Endpoint:
    """An ASGI application, which a route calls without creating a request object."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Any]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

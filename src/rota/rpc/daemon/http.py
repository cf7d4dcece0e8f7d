"""TCP: the same methods as `POST /rpc`, the journal as server-sent events, health and metrics.

Whoever calls over TCP has a token; without one only `/livez` and `/readyz` answer. Where it listens, and with which
certificate, is in `tcp.py`.
"""

from __future__ import annotations

import asyncio
import logging
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
from rota.rpc.daemon.exchange import Exchange
from rota.rpc.daemon.feed import Feed, Subscriber
from rota.rpc.daemon.jobs import Job
from rota.rpc.daemon.limits import Limits
from rota.rpc.daemon.lockout import Lockout
from rota.rpc.daemon.requests import Log, Room, bytes_of
from rota.rpc.daemon.tcp import HttpSettings, Listener
from rota.rpc.error_codec import fault_of
from rota.rpc.handlers import Caller, Office
from rota.rpc.jsonrpc import BODY_BYTES_MAX, Call, Refused, calls_of, refuse
from rota.rpc.methods import PROTOCOL

__all__ = ["HttpDoor"]

PROTOCOL_HEADER = b"rota-protocol"
CATCH_UP_S = 5.0  # between two looks of the metrics at the journal
_log = logging.getLogger("rota.daemon")
_STATUS: dict[type[RotaError], int] = {LockedOut: 429, Unauthenticated: 401, Forbidden: 403, LimitExceeded: 429}


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
        self.feed = Feed(exchange, office, limits)
        self._listener = Listener(settings, limits, self._app())
        self._keeping_up: asyncio.Task[None] | None = None

    # --- opening and closing ---------------------------------------------------------------------

    async def open(self) -> str:
        """Listen; the answer is the address."""
        address = await self._listener.open()
        self._keeping_up = asyncio.create_task(self._keep_up())
        self._ready = True
        return address

    async def close(self) -> None:
        """Tell subscribers, answer what is under way, and listen no more."""
        self._ready = False
        self.feed.end()
        await self._listener.close()
        if self._keeping_up is not None:
            self._keeping_up.cancel()
            await asyncio.gather(self._keeping_up, return_exceptions=True)

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
        room = Room(self._limits.answer_bytes_max)
        pending = [self._carry(call, caller, room) for call in calls]
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

    def _carry(self, call: Call | Refused, caller: Caller, room: Room) -> _Pending:
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
            body = bytes_of(ident, result, error, log, name, room=room)
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
            self._listener.cut_off(scope["client"])
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

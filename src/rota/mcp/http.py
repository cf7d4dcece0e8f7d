"""The MCP server over streamable HTTP: many clients, each with the rights of its own access token.

A request is a POST to /mcp and is answered in the same response; the server keeps no sessions, so any request may come
on any connection. Its token is shown to the daemon behind (`upstream.py`), and the daemon decides. The server has a
thread and an event loop of its own: in the daemon's process it never delays the loop that schedules.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import msgspec
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

from rota.clock import SystemClock
from rota.errors import Forbidden, LimitExceeded, LockedOut, RotaError, StoreUnavailable, Unauthenticated
from rota.mcp.callers import Caller
from rota.mcp.callers_by_token import CallersByToken, OpenCaller, bearer_token
from rota.mcp.server import LOST, Context, McpServer
from rota.rpc.daemon.hosts import AllowedHosts
from rota.rpc.daemon.lockout import Lockout
from rota.rpc.daemon.tcp import HttpSettings, bound_socket, check_certificate
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.tokens import token_id_of

__all__ = ["McpHttpServer", "McpLimits"]

PATH = "/mcp"
BACKLOG = 1_024  # connections that are not accepted yet
_CALLER = "rota.caller"  # in the scope of a request
_STATUS: dict[type[RotaError], int] = {
    Unauthenticated: 401,
    Forbidden: 403,
    LockedOut: 429,
    LimitExceeded: 503,
    StoreUnavailable: 503,
}
_log = logging.getLogger("rota.mcp")


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the server over HTTP."""

    connections_max: int = 512
    callers_max: int = 256  # access tokens in use at the same time
    body_bytes_max: int = 1024 * 1024
    grace_s: float = 5.0  # how long pending calls have to end when it stops


class McpHttpServer:
    """Serves clients on a thread of its own, from `start` to `stop`."""

    def __init__(self, settings: HttpSettings, open_caller: OpenCaller, limits: McpLimits | None = None) -> None:
        limits = limits or McpLimits()
        check_certificate(settings)
        self._settings = settings
        self._callers = CallersByToken(open_caller, limits.callers_max)
        lowlevel = McpServer(_caller_of_request).lowlevel
        app = lowlevel.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=limits.body_bytes_max,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # `_Guard` does it
        )
        hosts = AllowedHosts(settings.host, settings.allowed_hosts, is_tls=settings.certificate is not None)
        config = uvicorn.Config(
            _Guard(app, self._callers, hosts),
            log_config=None,
            access_log=False,
            limit_concurrency=limits.connections_max + 1,  # at its own limit uvicorn refuses already
            timeout_graceful_shutdown=int(limits.grace_s),
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
            ws="none",
            lifespan="on",
            server_header=False,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name="rota-mcp", daemon=True)
        self._socket = bound_socket(settings.host, settings.port)

    def start(self) -> str:
        """Begin to serve, and return the address."""
        self._socket.listen(BACKLOG)
        self._thread.start()
        self._server.has_started.result()
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if self._settings.certificate is None else "https"
        address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{PATH}"
        _log.info("serving MCP at %s", address)
        return address

    def stop(self) -> None:
        """Finish pending calls and stop serving."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._callers.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except BaseException as problem:
            if self._server.has_started.done():
                _log.exception("the MCP server has failed")
            else:
                self._server.has_started.set_exception(problem)


class _Server(uvicorn.Server):
    """Says when it serves, and leaves signals to the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started: Future[None] = Future()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.has_started.set_result(None)
        else:
            self.has_started.set_exception(StoreUnavailable("the MCP server could not start; its log says why"))


class _Guard:
    """Refuses requests for other hosts and without a valid token; gives the others their caller."""

    def __init__(self, app: ASGIApp, callers: CallersByToken, hosts: AllowedHosts) -> None:
        self._app = app
        self._callers = callers
        self._hosts = hosts
        self._lockout = Lockout(DaemonLimits(), SystemClock().monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            self._hosts.check(headers.get(b"host"), headers.get(b"origin"))
            token = bearer_token(headers.get(b"authorization", b"").decode("latin-1"))
        except RotaError as problem:
            await _refuse(send, problem)
            return
        with ExitStack() as stack:
            try:
                found: Caller = await asyncio.to_thread(stack.enter_context, self._callers.caller(token))
            except RotaError as problem:
                await _refuse(send, self._counted(problem, token))
                return
            scope[_CALLER] = found
            await self._app(scope, receive, send)
        if scope.get(LOST):
            self._callers.forget(token)

    def _counted(self, problem: RotaError, token: str) -> RotaError:
        """Count a wrong secret; return the error, or that its token's id is locked out."""
        if isinstance(problem, Unauthenticated):
            try:
                self._lockout.failed(token_id_of(token))
            except LockedOut as locked:
                return locked
        return problem


def _caller_of_request(context: Context) -> Caller:
    request: Any = context.request  # over HTTP there is one
    found: Caller = request.scope[_CALLER]
    return found


async def _refuse(send: Send, problem: RotaError) -> None:
    """Answer with an error, as JSON."""
    status = 421 if problem.data.get("header") == "Host" else _STATUS.get(type(problem), 500)
    data = {"code": problem.code, "message": problem.message, **problem.to_rpc_data()}
    body = msgspec.json.encode({"error": data}, enc_hook=str)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:  # noqa: PLR2004  # what the standard requires with it
        headers.append((b"www-authenticate", b'Bearer realm="rota"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""The gate: what every request passes before it reaches a page.

In this order: the Host and Origin headers must be this server's (`rpc/daemon/hosts.py` says why; a web socket must have
an Origin); the request must belong to a session, except for signing in; a web socket must be for a page that the same
session has opened. Then the answer gets its headers.

**Content security policy.** Scripts come from this server or carry the nonce of this answer; styles and connections
come from this server; nothing may frame a page, and forms go nowhere else. Two exceptions are NiceGUI's: `unsafe-eval`,
because Vue compiles its templates in the browser, and inline styles. The toolkit writes its inline scripts without a
nonce, so the gate adds it: it is the only writer of `<script` in a page, since all texts are escaped in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rota.errors import Forbidden
from rota.rpc.daemon.hosts import AllowedHosts
from rota.web.sessions import Sessions, WebSession

__all__ = ["LOGIN", "OPEN_PATHS", "Gate", "policy_header"]

LOGIN = "/login"
OPEN_PATHS = (LOGIN, "/open/", "/static/", "/favicon.ico")  # without a session
SOCKET_PATH = "/_nicegui_ws/"
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none, browsers send forms with Origin: null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def policy_header(nonce: str) -> str:
    """Return the content security policy of one answer."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'nonce-{nonce}' 'unsafe-eval'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


class Gate:
    """Lets requests of sessions through to the pages."""

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions,
        hosts: AllowedHosts,
        owner_of_page: Callable[[str], WebSession | None],
        cookie: str,
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._hosts = hosts
        self._owner_of_page = owner_of_page
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request or web socket."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_socket = scope["type"] == "websocket"
        try:
            self._check_hosts(headers, is_socket=is_socket)
        except Forbidden as problem:
            await self._refuse(scope, receive, send, problem.message)
            return
        session = self._sessions.find(_cookie(headers, self._cookie))
        path = str(scope["path"])
        scope.setdefault("state", {})["session"] = session
        if is_socket:
            await self._socket(scope, receive, send, session, path)
        elif path.startswith(SOCKET_PATH):  # the polling transport, which has no Origin on every request
            await self._refuse(scope, receive, send, "only web sockets are served here")
        elif session is None and not _is_open(path):
            await RedirectResponse(LOGIN, status_code=303)(scope, receive, self._with_headers(send, ""))
        else:
            nonce = secrets.token_urlsafe(16)
            scope["state"]["nonce"] = nonce
            await self._app(scope, receive, self._with_headers(send, nonce))

    def _check_hosts(self, headers: Headers, *, is_socket: bool) -> None:
        host, origin = headers.get("host"), headers.get("origin")
        if host is None or (is_socket and origin is None):
            raise Forbidden("the request has no Host or Origin header", header="Origin")
        self._hosts.check(host.encode("latin-1"), None if origin is None else origin.encode("latin-1"))
        is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_foreign and (is_socket or headers.get("sec-fetch-mode") != "navigate"):  # following a link is fine
            raise Forbidden("requests from other sites are not served", header="Sec-Fetch-Site")

    async def _socket(self, scope: Scope, receive: Receive, send: Send, session: WebSession | None, path: str) -> None:
        """Let a web socket through if its page was opened by the same session."""
        page_id = (parse_qs(scope["query_string"].decode("latin-1")).get("client_id") or [""])[0]
        if session is None or not path.startswith(SOCKET_PATH) or self._owner_of_page(page_id) is not session:
            await self._refuse(scope, receive, send, "this page is not open, or not yours")
            return
        await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, message: str) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 4403, "reason": message[:120]})
            return
        response = PlainTextResponse(f"rota: {message}\n", status_code=403)
        await response(scope, receive, self._with_headers(send, ""))

    @staticmethod
    def _with_headers(send: Send, nonce: str) -> Send:
        """Return a `send` that adds the headers, and the nonce to the scripts of pages."""
        held: list[Message] = []  # the start of a page, until its whole body is there

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers["content-security-policy"] = policy_header(nonce)
                headers.setdefault("cache-control", "no-store")
                message["headers"] = headers.raw
                if nonce and headers.get("content-type", "").startswith("text/html"):
                    held.append({**message, "body": b""})
                    return
            elif held and message["type"] == "http.response.body":
                held[0]["body"] += message.get("body", b"")
                if not message.get("more_body", False):
                    await _send_page(send, held.pop(), nonce)
                return
            await send(message)

        return sending


async def _send_page(send: Send, start: Message, nonce: str) -> None:
    body = start.pop("body").replace(b"<script", f'<script nonce="{nonce}"'.encode())
    headers = MutableHeaders(raw=start["headers"])
    headers["content-length"] = str(len(body))
    await send({**start, "headers": headers.raw})
    await send({"type": "http.response.body", "body": body})


def _cookie(headers: Mapping[str, str], name: str) -> str | None:
    """Return a cookie of a request."""
    try:
        cookies: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return None
    found = cookies.get(name)
    return None if found is None else found.value


def _is_open(path: str) -> bool:
    return any(path == each or (each.endswith("/") and path.startswith(each)) for each in OPEN_PATHS)

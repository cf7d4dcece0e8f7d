"""The web process: NiceGUI behind the gate, one server socket, until a signal.

Each page of `PAGES` becomes a route. A page's elements live in this process; the browser shows them and sends back
events such as clicks, through a web socket. The toolkit finds the page of an event by a name that the event carries;
here an event is also checked to come from the socket of that page, and from a session that has not ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from nicegui import Client, app, core, ui
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rota.errors import StoreUnavailable
from rota.rpc.daemon.hosts import AllowedHosts
from rota.web.access import Opener
from rota.web.gate import LOGIN, Gate
from rota.web.layout import HEAD, draw_page
from rota.web.page_session import PageSession, WebPage
from rota.web.pages import PAGES
from rota.web.sessions import Sessions, WebSession
from rota.web.settings import WebSettings
from rota.web.sign_in import SignIn

__all__ = ["WebServer", "run_server"]

STATIC = Path(__file__).parent / "static"
RESPONSE_S = 15.0  # how long a page may take to be built
RECONNECT_S = 10.0  # how long the elements of a page are kept when its browser is away
BACKLOG = 128
HISTORY_MAX = 50  # messages that are sent again to a browser that was away; beyond, it loads the page again
_log = logging.getLogger("rota.web")


class WebServer:
    """The pages of one store. A process has one: the toolkit's application is global."""

    def __init__(self, settings: WebSettings, open_api: Opener, say: Callable[[str], None]) -> None:
        self.settings = settings
        self._say = say
        self._socket = _listen(settings)
        self.port: int = self._socket.getsockname()[1]
        self.sessions = Sessions(open_api, self._announce)
        self._cookie = f"rota_session_{self.port}"  # browsers send cookies to all ports of a host

    @property
    def url(self) -> str:
        """The address of the first page."""
        scheme = "https" if self.settings.is_tls else "http"
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"{scheme}://{host}:{self.port}"

    def _announce(self, key: str) -> None:
        self._say(f"rota web: open {self.url}/open/{key} (works once)")

    def run(self) -> None:
        """Serve until a signal."""
        config = uvicorn.Config(
            GZipMiddleware(self._application(), minimum_size=2_000),
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="websockets-sansio",
            ws_max_size=1 << 20,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=0,  # open pages are closed at once; their browsers connect again
            ssl_certfile=self.settings.certificate,
            ssl_keyfile=self.settings.key,
        )
        if self.settings.with_link:
            self.sessions.new_link()
        else:
            self._say(f"rota web: {self.url}")
        try:
            uvicorn.Server(config).run(sockets=[self._socket])
        finally:
            self.sessions.close()

    # --- the application -------------------------------------------------------------------------

    def _application(self) -> Any:
        sign_in = SignIn(self.settings, self.sessions, self._cookie)
        outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        outer.router.routes += [
            Route("/open/{key}", sign_in.open_link),
            Route(LOGIN, sign_in.login, methods=["GET", "POST"]),
            Route("/logout", sign_in.logout, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        for page in PAGES:
            self._add_page(page)
        app.config.socket_io_js_transports = ["websocket"]
        app.on_page_exception(_show_failure)
        _guard_events(self._is_open)
        ui.run_with(
            outer,
            title="rota",
            dark=None,
            language="en-US",
            favicon=STATIC / "rota.svg",
            binding_refresh_interval=None,
            reconnect_timeout=RECONNECT_S,
            message_history_length=HISTORY_MAX,
            gzip_middleware_factory=None,
            tailwind=False,
            show_welcome_message=False,
        )
        hosts = AllowedHosts(self.settings.host, self.settings.allowed_hosts, is_tls=self.settings.is_tls)
        return Gate(outer, self.sessions, hosts, _owner_of, self._cookie)

    def _add_page(self, page: WebPage) -> None:
        async def show(request: Request, client: Client) -> None:
            session: WebSession = request.scope["state"]["session"]
            await draw_page(page, PageSession(session, client, request, self.settings.store), PAGES)

        ui.page(page.path, title=f"{page.title} · rota", response_timeout=RESPONSE_S)(show)

    def _is_open(self, page_id: str) -> bool:
        """Return whether the session that opened a page has not ended."""
        session = _owner_of(page_id)
        return session is not None and self.sessions.find(session.session_id) is session


def _owner_of(page_id: str) -> WebSession | None:
    """Return the session that has opened a page, if the page is still open."""
    client = Client.instances.get(page_id)
    session: WebSession | None = None if client is None else client.request.scope["state"]["session"]
    return session


def _show_failure(problem: Exception) -> None:
    """Show that a page could not be built; what went wrong is in the log, and not for every viewer."""
    _log.error("a page could not be built", exc_info=problem)
    ui.add_head_html(HEAD)
    with ui.element("main").classes("page"):
        ui.label("This page could not be shown").classes("page-title").props("role=heading aria-level=1")
        ui.label("The log of `rota web` says why.").classes("problem").props("role=alert")
        ui.link("Overview", "/")


def _guard_events(is_open: Callable[[str], bool]) -> None:
    """Accept an event of a page only from that page's own socket, and while its session lasts."""
    handlers: dict[str, Callable[..., Any]] = core.sio.handlers["/"]
    for name in ("event", "javascript_response", "ack", "log"):

        def guarded(sid: str, message: Any, *, accept: Callable[..., Any] = handlers[name]) -> None:
            page_id = message.get("client_id") if isinstance(message, dict) else None
            if not isinstance(page_id, str) or page_id not in core.sio.rooms(sid):
                _log.warning("an event for a page of another socket was ignored")
            elif is_open(page_id):
                accept(sid, message)
            elif (client := Client.instances.get(page_id)) is not None:
                client.open(LOGIN)

        core.sio.on(name, guarded)


def _listen(settings: WebSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as problem:
        listener.close()
        text = f"cannot listen on {settings.host}:{settings.port}: {problem.strerror}"
        raise StoreUnavailable(text, hint="Choose another port: `rota web --port 0` takes a free one.") from problem
    listener.listen(BACKLOG)  # browsers that come before the pages are ready wait
    return listener


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Return whether a message of the web server is for people: that open pages are closed at the end is not."""
    is_cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not is_cancelled and "graceful shutdown" not in str(record.msg)


def run_server(settings: WebSettings, open_api: Opener, say: Callable[[str], None] = print) -> None:
    """Serve the dashboard until a signal; `open_api` opens the store with a token, or with this process's rights."""
    os.nice(settings.nice)
    sys.setswitchinterval(0.001)  # the loop draws; threads only wait for the store
    logging.getLogger("nicegui").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_worth_saying)
    asyncio.set_event_loop_policy(None)
    WebServer(settings, open_api, say).run()

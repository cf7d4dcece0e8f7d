"""Listening on TCP: the address, TLS, and the limits on slow or oversized requests.

uvicorn implements HTTP. This module configures it and adds what it lacks: a client that does not send its headers in
time is disconnected, and the daemon can disconnect a client that does not read. Except on loopback addresses the daemon
requires TLS, because a token sent in the clear can be read on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rota.errors import InvalidInput
from rota.rpc.daemon.transport import DaemonLimits

__all__ = ["HttpSettings", "Listener"]

KEEP_ALIVE_S = 75  # for an idle connection


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, and the TLS files."""

    host: str = "127.0.0.1"
    port: int = 7682
    certificate: str | None = None  # a PEM file
    key: str | None = None
    open_metrics: bool = False  # /metrics without a token

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("TLS needs both a certificate and its key", field="certificate")
        if self.certificate is None and not _is_loopback(self.host):
            text = f"{self.host} is not a loopback address: without TLS, tokens would be sent in the clear"
            hint = "Give --tls-cert and --tls-key, or listen on 127.0.0.1 and put a proxy with TLS in front."
            raise InvalidInput(text, field="host", hint=hint)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can resolve to any address


class Listener:
    """The listening socket, its server, and the open connections by client address."""

    def __init__(self, settings: HttpSettings, limits: DaemonLimits, app: Any) -> None:
        self._settings = settings
        self._limits = limits
        self._app = app
        self._transports: dict[tuple[str, int], asyncio.Transport] = {}
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """Listen, and return the address."""
        _check_certificate(self._settings)
        bound = _bound(self._settings.host, self._settings.port)
        self._server = server = _Server(self._config())
        self._serving = serving = asyncio.create_task(server.serve([bound]))
        while not server.started:
            if serving.done():
                await serving  # raises its error
                raise InvalidInput("the HTTP server ended while it started", field="host")
            await asyncio.sleep(0.005)
        host, port = bound.getsockname()[:2]
        scheme = "http" if self._settings.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def close(self) -> None:
        """Finish pending requests and stop listening."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    def disconnect(self, client: tuple[str, int]) -> None:
        """Close a client's connection without sending what is left."""
        transport = self._transports.get(client)
        if transport is not None:
            transport.abort()

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._app,
            http=_protocol_of(self._transports, self._limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # any client can write any address into a header
            server_header=False,
            date_header=False,
            limit_concurrency=self._limits.connections_max + 1,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_certfile=self._settings.certificate,
            ssl_keyfile=self._settings.key,
        )


def _check_certificate(settings: HttpSettings) -> None:
    """Raise an error that explains why a certificate or key cannot be used."""
    if settings.certificate is None or settings.key is None:
        return
    for option, path in (("--tls-cert", settings.certificate), ("--tls-key", settings.key)):
        try:
            with open(path, "rb"):  # noqa: PTH123  # only to check that it can be read
                pass
        except OSError as problem:
            raise InvalidInput(f"{option} {path} cannot be read: {problem.strerror}", field="certificate") from problem
    try:
        # an empty password, so that OpenSSL does not prompt for one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate, settings.key, password="")
    except (ssl.SSLError, ValueError) as problem:
        text = f"--tls-cert {settings.certificate} and --tls-key {settings.key} cannot be used together: {problem}"
        hint = "Both must be PEM files; the key must belong to the certificate and have no pass phrase."
        raise InvalidInput(text, field="certificate", hint=hint) from problem


def _bound(host: str, port: int) -> socket.socket:
    """Return a bound socket, or raise `InvalidInput`."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as problem:
        raise InvalidInput(f"cannot listen on {host} port {port}: {problem}", field="port") from problem
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    """A server without signal handlers: the daemon handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _protocol_of(transports: dict[tuple[str, int], asyncio.Transport], limits: DaemonLimits) -> type[asyncio.Protocol]:
    """Return a protocol class that limits the time and the size of a request's URL and headers."""

    class Connection(HttpToolsProtocol):
        _head_timer: asyncio.TimerHandle | None = None
        _in_head = False
        _head_bytes = 0  # of the URL and the complete headers
        _unfinished_bytes = 0  # of a header that has not ended, which the parser does not report
        _counted = False  # the parser reported a part of the head

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent
            super().connection_made(transport)
            if self.client is not None:
                transports[self.client] = transport
            self._head_timer = self.loop.call_later(limits.slow_s, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_timer()
            if self.client is not None:
                transports.pop(self.client, None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._counted = False
            super().data_received(data)
            if self._in_head and not self._counted:
                self._unfinished_bytes += len(data)
                if self._unfinished_bytes > limits.head_bytes_max:
                    self.send_400_response("")

        def on_message_begin(self) -> None:
            self._cancel_timer()
            self._head_timer = self.loop.call_later(limits.slow_s, self.transport.abort)
            self._in_head, self._head_bytes = True, 0
            self._count(0)
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            self._count(len(url))

        def on_header(self, name: bytes, value: bytes) -> None:
            super().on_header(name, value)
            self._count(len(name) + len(value))

        def _count(self, size: int) -> None:
            self._counted, self._unfinished_bytes = True, 0
            self._head_bytes += size
            if self._head_bytes > limits.head_bytes_max:
                raise ValueError("head_bytes_max")  # makes the parser stop

        def on_headers_complete(self) -> None:
            self._cancel_timer()
            self._in_head = False
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            if max(self._head_bytes, self._unfinished_bytes) > limits.head_bytes_max:
                msg = f"the URL and the headers have more than {limits.head_bytes_max:,} bytes (head_bytes_max)"
            super().send_400_response(msg)

        def _cancel_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return Connection

"""Listening on TCP: where, with which certificate, and for how long a client may take to say what it wants.

uvicorn speaks HTTP; here is what it is told, and what it does not do by itself: a client that does not send its headers
is cut off, and so can be one that does not fetch what it is sent. Beyond this machine's own addresses the daemon
listens with TLS only: a token that is sent in the clear is everybody's.
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
from rota.rpc.daemon.limits import Limits

__all__ = ["HttpSettings", "Listener"]

KEEP_ALIVE_S = 75  # an idle connection is kept open


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


class Listener:
    """A socket that listens, the server behind it, and every connection by its client."""

    def __init__(self, settings: HttpSettings, limits: Limits, app: Any) -> None:
        self._settings = settings
        self._limits = limits
        self._app = app
        self._transports: dict[tuple[str, int], asyncio.Transport] = {}
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """Listen; the answer is the address."""
        _check_certificate(self._settings)
        bound = _bound(self._settings.host, self._settings.port)
        self._server = server = _Server(self._config())
        self._serving = serving = asyncio.create_task(server.serve([bound]))
        while not server.started:
            if serving.done():
                await serving  # raises what went wrong
                raise InvalidInput("the daemon could not listen", field="host")
            await asyncio.sleep(0.005)
        host, port = bound.getsockname()[:2]
        scheme = "http" if self._settings.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def close(self) -> None:
        """Answer what is under way, and listen no more."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    def cut_off(self, client: tuple[str, int]) -> None:
        """End a client's connection, whatever it still has to fetch."""
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
            proxy_headers=False,  # an address in a header is whatever somebody wrote there
            server_header=False,
            date_header=False,
            limit_concurrency=self._limits.connections_max + 1,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_certfile=self._settings.certificate,
            ssl_keyfile=self._settings.key,
        )


def _check_certificate(settings: HttpSettings) -> None:
    """Refuse in a sentence what cannot be used."""
    if settings.certificate is None or settings.key is None:
        return
    for option, path in (("--tls-cert", settings.certificate), ("--tls-key", settings.key)):
        try:
            with open(path, "rb"):  # noqa: PTH123  # only whether it can be read
                pass
        except OSError as problem:
            raise InvalidInput(f"{option} {path} cannot be read: {problem.strerror}", field="certificate") from problem
    try:
        # a password, so that nobody is asked for one in the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.certificate, settings.key, password="")
    except (ssl.SSLError, ValueError) as problem:
        text = f"--tls-cert {settings.certificate} and --tls-key {settings.key} cannot be used together: {problem}"
        hint = "Both are PEM files, the key is that of the certificate, and it has no pass phrase."
        raise InvalidInput(text, field="certificate", hint=hint) from problem


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


class _Server(uvicorn.Server):
    """A server that leaves signals to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _protocol_of(transports: dict[tuple[str, int], asyncio.Transport], limits: Limits) -> type[asyncio.Protocol]:
    """A connection whose client has only so long to send its head, and only so much; it can be cut off."""

    class Connection(HttpToolsProtocol):
        _slow: asyncio.TimerHandle | None = None
        _in_head = False
        _head_bytes = 0  # of the address and of the headers that are whole
        _unfinished = 0  # bytes of one header that has not ended: of these the parser says nothing
        _grew = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent
            super().connection_made(transport)
            if self.client is not None:
                transports[self.client] = transport
            self._slow = self.loop.call_later(limits.slow_s, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            if self.client is not None:
                transports.pop(self.client, None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._grew = False
            super().data_received(data)
            if self._in_head and not self._grew:
                self._unfinished += len(data)
                if self._unfinished > limits.head_bytes_max:
                    self.send_400_response("")

        def on_message_begin(self) -> None:
            self._stop()
            self._slow = self.loop.call_later(limits.slow_s, self.transport.abort)
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
            self._grew, self._unfinished = True, 0
            self._head_bytes += size
            if self._head_bytes > limits.head_bytes_max:
                raise ValueError("head_bytes_max")  # the parser stops, and says so

        def on_headers_complete(self) -> None:
            self._stop()
            self._in_head = False
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            if max(self._head_bytes, self._unfinished) > limits.head_bytes_max:
                msg = f"the address and the headers take more than {limits.head_bytes_max:,} bytes (head_bytes_max)"
            super().send_400_response(msg)

        def _stop(self) -> None:
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None

    return Connection

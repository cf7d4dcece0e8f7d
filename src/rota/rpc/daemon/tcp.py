"""Listening on TCP: the address, TLS, and accepting connections.

The daemon accepts connections itself, so that those whose TLS handshake is not complete have a place like all others
and can lose it to a new one. Except on loopback addresses the daemon requires TLS, because a token sent in the clear
can be read on the way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from rota.errors import InvalidInput
from rota.fault_log import FaultLog
from rota.rpc.daemon.connections import Connections
from rota.rpc.daemon.http_protocol import HttpProtocol
from rota.rpc.daemon.transport import DaemonLimits

__all__ = ["HttpSettings", "Listener", "bound_socket", "check_certificate"]

BACKLOG = 4_096  # connections that are not accepted yet
REJECTED_S = 1.0  # how long a rejected client has to read why
REJECTED_MAX = 64  # of them at a time
SEND_BYTES = 256 * 1024  # that the operating system buffers for a connection; by default it may be megabytes
ACCEPT_RETRY_S = 0.1  # after the system could not open another connection
_REJECTION = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
)
_log = logging.getLogger("rota.daemon")


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, and the TLS files."""

    host: str = "127.0.0.1"
    port: int = 7682
    certificate: str | None = None  # a PEM file
    key: str | None = None
    open_metrics: bool = False  # /metrics without a token
    allowed_hosts: tuple[str, ...] = ()  # names by which clients may address the daemon, besides its own

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("TLS needs both a certificate and its key", field="certificate")
        if self.certificate is None and not _is_loopback(self.host):
            text = f"{self.host} is not a loopback address: without TLS, tokens would be sent in the clear"
            hint = "Give --tls-cert and --tls-key, or listen on 127.0.0.1 and put a proxy with TLS in front."
            raise InvalidInput(text, field="host", hint=hint)


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name can resolve to any address


class Listener:
    """The listening socket, and the connections that it accepts."""

    def __init__(
        self,
        settings: HttpSettings,
        connections: Connections,
        make_protocol: Callable[[], HttpProtocol],
        limits: DaemonLimits,
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._make_protocol = make_protocol
        self._limits = limits
        self._socket: socket.socket | None = None
        self.address_for_others: str | None = None  # at which other machines reach it
        self._tls: ssl.SSLContext | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._rejected: deque[socket.socket] = deque()  # connections that read why they are rejected
        self._opening: set[asyncio.Task[None]] = set()  # connections in their TLS handshake

    async def open(self) -> str:
        """Listen, and return the address."""
        self._tls = _tls_context(self._settings)
        self._socket = bound = bound_socket(self._settings.host, self._settings.port)
        bound.listen(BACKLOG)
        self._accepting = asyncio.create_task(self._accept(bound))
        host, port = bound.getsockname()[:2]
        scheme = "http" if self._settings.certificate is None else "https"
        bound_to = ipaddress.ip_address(host)
        if not bound_to.is_loopback:
            names = (*self._settings.allowed_hosts, socket.gethostname() if bound_to.is_unspecified else host)
            self.address_for_others = _url(scheme, names[0], port)
        return _url(scheme, host, port)

    async def close(self) -> None:
        """Stop listening, and return when the pending requests have their responses."""
        if self._accepting is not None and self._socket is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._socket.close()
        for task in list(self._opening):
            task.cancel()
        while self._rejected:
            self._close_rejected()
        self._connections.finish()
        while len(self._connections):
            await asyncio.sleep(0.01)

    async def _accept(self, bound: socket.socket) -> None:
        loop, faults = asyncio.get_running_loop(), FaultLog("rota.daemon", expected=OSError)
        while True:
            try:
                accepted, _ = await loop.sock_accept(bound)
            except OSError as problem:  # too many open files, or the client has already gone
                if not self._connections.make_room():
                    faults.failed("cannot accept a connection", problem, then=f"trying every {ACCEPT_RETRY_S:g} s")
                    await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            faults.worked()
            self._take(accepted)

    def _take(self, accepted: socket.socket) -> None:
        protocol = self._make_protocol()
        if not self._connections.add(protocol):
            self._reject(accepted)
            return
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        protocol.opening = task = asyncio.create_task(self._open(accepted, protocol))
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, protocol, accepted))

    def _reject(self, accepted: socket.socket) -> None:
        limit = self._limits.connections_max
        _log.warning("a connection was rejected: connections_max is %d, and none of them is idle", limit)
        if self._tls is None:
            text = b"connections_max is %d, and none of them is idle\n" % limit
            try:
                accepted.send(_REJECTION % (len(text), text))
                accepted.shutdown(socket.SHUT_WR)
            except OSError as problem:
                _log.debug("the client has already gone: %s", problem)
        self._rejected.append(accepted)  # closed later: with unread data, closing discards what was sent
        if len(self._rejected) > REJECTED_MAX:
            self._rejected.popleft().close()
        else:
            asyncio.get_running_loop().call_later(REJECTED_S, self._close_rejected)

    def _close_rejected(self) -> None:
        if self._rejected:
            self._rejected.popleft().close()

    async def _open(self, accepted: socket.socket, protocol: HttpProtocol) -> None:
        loop = asyncio.get_running_loop()
        timeouts: dict[str, Any] = {} if self._tls is None else {"ssl_handshake_timeout": self._limits.slow_s}
        await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._tls, **timeouts)

    def _opened(self, protocol: HttpProtocol, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None or task.cancelled():  # the client has gone, does not speak TLS, or lost its place
            _log.debug("a connection failed before its first request: %s", problem)
            self._connections.remove(protocol)
            accepted.close()


def _tls_context(settings: HttpSettings) -> ssl.SSLContext | None:
    check_certificate(settings)
    if settings.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.certificate, settings.key)
    return context


def check_certificate(settings: HttpSettings) -> None:
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


def bound_socket(host: str, port: int) -> socket.socket:
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

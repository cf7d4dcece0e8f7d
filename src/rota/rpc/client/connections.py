"""One connection to a daemon, over the unix socket or HTTP(S)."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from typing import Protocol
from urllib.parse import urlsplit

from rota.errors import DaemonUntrusted, InvalidInput, RotaError, StoreUnavailable
from rota.rpc.client.remote_calls import ConnectionLost
from rota.rpc.jsonrpc import decode_result, encode_call
from rota.rpc.methods import METHODS, PROTOCOL
from rota.store.socket_paths import socket_path

__all__ = ["Connection", "HttpConnection", "UnixConnection", "tls_context"]

CHUNK_BYTES = 1 << 16
_HELLO = METHODS["system.hello"]
_TEMPORARY = (429, 503)


class Connection(Protocol):
    """A connection with one request at a time."""

    def request(self, body: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for its response."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class UnixConnection:
    """A connection over the unix socket. Its first request is `system.hello`, with the access token if there is one."""

    def __init__(self, path: str, token: str | None, timeout_s: float) -> None:
        self._rest = b""
        self._timeout_s = timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            with socket_path(path) as address:
                self._socket.connect(address)
            hello = encode_call(0, _HELLO, _HELLO.params(PROTOCOL, "rota", token or ""))
            decode_result(_HELLO, self.request(hello, timeout_s))
        except RotaError:
            self._socket.close()
            raise
        except (OSError, ConnectionLost) as problem:
            self._socket.close()
            raise ConnectionLost(str(problem), sent=False) from problem

    def request(self, body: bytes, timeout_s: float) -> bytes:
        """Send a line and wait for the response line."""
        try:
            if timeout_s != self._timeout_s:
                self._socket.settimeout(timeout_s)
                self._timeout_s = timeout_s
            with contextlib.suppress(BrokenPipeError):  # the daemon may have sent a reason before it closed
                self._socket.sendall(body + b"\n")
            return self._line()
        except OSError as problem:  # a partial line is not executed, but all of it may have arrived
            raise ConnectionLost(str(problem) or "timed out", sent=True) from problem

    def _line(self) -> bytes:
        parts = [self._rest] if self._rest else []
        while True:
            part = self._socket.recv(CHUNK_BYTES)
            if not part:
                raise ConnectionLost("the connection was closed", sent=True)
            line, end, rest = part.partition(b"\n")
            parts.append(line)
            if end:
                self._rest = rest
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class HttpConnection:
    """A kept-alive HTTP or HTTPS connection."""

    def __init__(self, url: str, token: str | None, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._path = parts.path.rstrip("/") + "/rpc"
        self._headers = {"content-type": "application/json", "rota-protocol": str(PROTOCOL)}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        host = parts.hostname or ""
        if tls is not None:
            secure = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=tls)
            self._http: http.client.HTTPConnection = secure
        else:
            self._http = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
        try:
            self._http.connect()
            self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as problem:
            self._http.close()
            raise _connect_error(url, problem) from problem

    def request(self, body: bytes, timeout_s: float) -> bytes:
        """Post a request and read the response."""
        if self._http.sock is None:  # closed, as an idle connection is after a while
            raise ConnectionLost("the connection was closed", sent=False)
        try:
            self._http.sock.settimeout(timeout_s)
            self._http.request("POST", self._path, body, self._headers)
            response = self._http.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as problem:
            self._http.close()
            raise ConnectionLost(str(problem) or type(problem).__name__, sent=True) from problem
        return _body(response.status, content)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


# --- TLS -----------------------------------------------------------------------------------------

_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)  # the peer closed the connection, as it may without TLS
_NAME_MISMATCH = (62, 64)  # OpenSSL: the certificate is for another host name or another address


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the system CAs, or only those in `ca_file`."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as problem:
        hint = "Give a PEM file with the certificate of the CA that signed the daemon's certificate."
        raise InvalidInput(f"ca_file {ca_file} cannot be used: {problem}", field="ca_file", hint=hint) from problem


def _connect_error(url: str, problem: OSError) -> RotaError | ConnectionLost:
    """Return the error: `ConnectionLost` if retrying may help, else why TLS failed."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        text = f"the certificate of {url} is not trusted: {problem.verify_message.rstrip('.')}"
        hint = "Use a host name that is in the daemon's certificate." if problem.verify_code in _NAME_MISMATCH else None
        return DaemonUntrusted(text, hint=hint, address=url)
    if isinstance(problem, ssl.SSLError) and not isinstance(problem, _CLOSED):
        text = f"the TLS handshake with {url} failed: {problem.reason or problem}"
        return StoreUnavailable(
            text, hint="If the daemon does not use TLS, its address begins with `http:`.", address=url
        )
    return ConnectionLost(str(problem), sent=False)


# --- responses -----------------------------------------------------------------------------------


def _body(status: int, body: bytes) -> bytes:
    """Return the JSON-RPC body of a response, or raise an error if it has none."""
    if body.startswith((b'{"id"', b"[")):
        return body
    if status == http.client.UPGRADE_REQUIRED:
        hint = "Install the same version of rota on both sides."
        raise InvalidInput(f"the daemon uses another protocol: {body.decode(errors='replace')}", hint=hint)
    text = f"the daemon returned HTTP status {status}: {body[:200].decode(errors='replace')}"
    if status in _TEMPORARY:
        raise ConnectionLost(text, sent=False)
    raise StoreUnavailable(text, hint="Check that this is the address of a rota daemon.")

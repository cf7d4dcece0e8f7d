"""One connection to a daemon: a line out, a line back; or a request out, a response back."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from typing import Protocol
from urllib.parse import urlsplit

from rota.errors import DaemonUntrusted, InvalidInput, RotaError, StoreUnavailable
from rota.rpc.jsonrpc import encode_call, result_of
from rota.rpc.methods import METHODS, PROTOCOL

__all__ = ["Connection", "HttpConnection", "LineConnection", "Lost", "trusting"]

CHUNK_BYTES = 1 << 16
_HELLO = METHODS["system.hello"]
_TEMPORARY = (429, 503)


class Lost(Exception):  # never leaves this package
    """The connection ended before the answer came."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent  # whether the daemon may have carried it out


class Connection(Protocol):
    """A way to ask and be answered, one question at a time."""

    def ask(self, body: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for its answer."""
        ...

    def close(self) -> None:
        """Ask no more."""
        ...


class LineConnection:
    """The unix socket. The first thing said on it is who speaks which protocol."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._rest = b""
        self._timeout_s = timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(path)
            hello = encode_call(0, _HELLO, {"protocol": PROTOCOL, "client": "rota"})
            result_of(_HELLO, self.ask(hello, timeout_s))
        except RotaError:
            self._socket.close()
            raise
        except (OSError, Lost) as problem:
            self._socket.close()
            raise Lost(str(problem), sent=False) from problem

    def ask(self, body: bytes, timeout_s: float) -> bytes:
        """Send a line and wait for the one that answers it."""
        try:
            if timeout_s != self._timeout_s:
                self._socket.settimeout(timeout_s)
                self._timeout_s = timeout_s
            with contextlib.suppress(BrokenPipeError):  # it may have said why before it hung up
                self._socket.sendall(body + b"\n")
            return self._line()
        except OSError as problem:  # a part of the line may have arrived, and parts are not carried out; all may
            raise Lost(str(problem) or "timed out", sent=True) from problem

    def _line(self) -> bytes:
        parts = [self._rest] if self._rest else []
        while True:
            part = self._socket.recv(CHUNK_BYTES)
            if not part:
                raise Lost("the daemon closed the connection", sent=True)
            line, end, rest = part.partition(b"\n")
            parts.append(line)
            if end:
                self._rest = rest
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()


class HttpConnection:
    """HTTP or HTTPS, kept alive."""

    def __init__(self, url: str, token: str | None, timeout_s: float, trust: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self._path = parts.path.rstrip("/") + "/rpc"
        self._headers = {"content-type": "application/json", "rota-protocol": str(PROTOCOL)}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        host = parts.hostname or ""
        if trust is not None:
            secure = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=trust)
            self._http: http.client.HTTPConnection = secure
        else:
            self._http = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
        try:
            self._http.connect()
            self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as problem:
            self._http.close()
            raise _not_connected(url, problem) from problem

    def ask(self, body: bytes, timeout_s: float) -> bytes:
        """Post a request and read the response."""
        if self._http.sock is None:  # it was closed, as an idle connection is after a while
            raise Lost("the connection was closed", sent=False)
        try:
            self._http.sock.settimeout(timeout_s)
            self._http.request("POST", self._path, body, self._headers)
            response = self._http.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as problem:
            self._http.close()
            raise Lost(str(problem) or type(problem).__name__, sent=True) from problem
        return _body(response.status, answer)

    def close(self) -> None:
        """Ask no more."""
        self._http.close()


# --- trust ---------------------------------------------------------------------------------------

_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)  # the other side went away, as it may without TLS
_NAMES = (62, 64)  # OpenSSL's numbers for a certificate of another host name, or another address


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Whom to believe: those who sign for this machine anyway, or only those in a file."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as problem:
        hint = "It is a PEM file with the certificate of whoever signed the daemon's."
        raise InvalidInput(f"ca_file {ca_file} cannot be used: {problem}", field="ca_file", hint=hint) from problem


def _not_connected(url: str, problem: OSError) -> RotaError | Lost:
    """Trying again helps with a daemon that is away, not with one that is not believed or does not speak TLS."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        text = f"the certificate of {url} is not trusted: {problem.verify_message.rstrip('.')}"
        hint = "Call the daemon by a name that is in its certificate." if problem.verify_code in _NAMES else None
        return DaemonUntrusted(text, hint=hint, address=url)
    if isinstance(problem, ssl.SSLError) and not isinstance(problem, _CLOSED):
        text = f"no TLS could be agreed on with {url}: {problem.reason or problem}"
        return StoreUnavailable(text, hint="Without TLS its address begins with http:.", address=url)
    return Lost(str(problem), sent=False)


# --- answers -------------------------------------------------------------------------------------


def _body(status: int, answer: bytes) -> bytes:
    """The JSON-RPC in a response, or an error for one that has none."""
    if answer.startswith((b'{"id"', b"[")):
        return answer
    if status == http.client.UPGRADE_REQUIRED:
        hint = "Bring both sides to the same version of rota."
        raise InvalidInput(f"the daemon speaks another protocol: {answer.decode(errors='replace')}", hint=hint)
    text = f"the daemon answered {status}: {answer[:200].decode(errors='replace')}"
    if status in _TEMPORARY:
        raise Lost(text, sent=False)
    raise StoreUnavailable(text, hint="Is this the address of a rota daemon?")

"""HTTP/1.1 on one connection: requests are parsed by llhttp and answered one after the other.

A request is checked when its headers are complete, before its body comes: the host, the origin, the access token. The
body of a rejected request is discarded, so a client without a token can make the daemon keep no more than its headers.
What a client sends behind its current request is not parsed until that one has its response, and is not read while the
client does not read its responses.
"""

from __future__ import annotations

import asyncio
import http
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import httptools

from rota.rpc.authorization import Principal
from rota.rpc.daemon.buffers import LARGE_REQUEST_BYTES, LINGER_S, TURN_MAX, Outbox, SharedMemory
from rota.rpc.daemon.connections import Connections
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.jsonrpc import BODY_BYTES_MAX

__all__ = ["JSON", "TEXT", "Handler", "HttpProtocol", "HttpRequest"]

JSON, TEXT = b"application/json", b"text/plain; charset=utf-8"
PARSED_BYTES = 4 * 1024  # parsed at a time, which bounds the small requests that are parsed ahead
DISCARDED_BYTES_MAX = 4 * BODY_BYTES_MAX  # of the body of a rejected request, before its client is disconnected
CONCATENATED_BYTES_MAX = 64 * 1024  # a response up to this size is one message, a larger one is not copied
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}
_log = logging.getLogger("rota.daemon")


_UNKNOWN = Principal(name="unknown", scope="read")


class Refusal(NamedTuple):
    """The response to a request that is not executed."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: bytes = b""


class HttpRequest:
    """One request. Header names are in lower case."""

    __slots__ = ("body_parts", "headers", "keep_alive", "left", "method", "path", "principal", "refusal", "size")

    def __init__(self) -> None:
        self.method = b""
        self.path = b""  # with the query
        self.headers: dict[bytes, bytes] = {}
        self.body_parts: list[bytes] = []
        self.size = 0  # of the body
        self.left: int | None = None  # bytes of the body that are still to come, if the client said how many
        self.keep_alive = True
        self.principal = _UNKNOWN  # the caller, once authenticated
        self.refusal: Refusal | None = None

    def refuse(self, status: int, body: bytes, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """Answer with this instead of executing the request."""
        self.refusal = Refusal(status, body, content_type, headers)
        self.body_parts.clear()


class Handler(Protocol):
    """Answers the requests of all connections."""

    def check(self, connection: HttpProtocol, request: HttpRequest) -> None:
        """Check a request whose headers are complete, and refuse it or set its principal."""
        ...

    def too_large(self, request: HttpRequest) -> None:
        """Refuse a request whose body is larger than `body_bytes_max`."""
        ...

    def handle(self, connection: HttpProtocol, request: HttpRequest) -> None:
        """Answer a complete request, now or later."""
        ...


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, handler: Handler, connections: Connections, memory: SharedMemory, limits: DaemonLimits) -> None:
        self._handler = handler
        self._connections = connections
        self._buffers, self._large = memory.buffers, memory.large
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._request: HttpRequest | None = None  # that is being received
        self._head_bytes = 0  # of its URL and its complete headers
        self._unfinished_bytes = 0  # of a header that has not ended, which the parser does not report
        self._kept = 0  # bytes of it in the budget
        self._parsed: deque[HttpRequest] = deque()  # complete requests that wait for their turn
        self._unparsed: deque[bytes] = deque()  # what was received behind them
        self._current: HttpRequest | None = None  # that is being answered
        self._started = 0  # requests in this turn
        self._starting = False  # in `_start`, which continues with the next request itself
        self._permit: bool | None = None  # to receive a large body: None not needed, False waits for it
        self._reading_paused = False
        self._ending = False  # it closes after the current response
        self._slow_timer: asyncio.TimerHandle | None = None  # disconnects a client that does not end its request
        self._idle_timer: asyncio.TimerHandle | None = None  # disconnects a client without requests
        self._unread_timer: asyncio.TimerHandle | None = None  # disconnects a client that does not read
        self._drained: asyncio.Future[None] | None = None  # a stream waits until its client reads
        self._last_frame: Callable[[], bytes] | None = None  # of a stream whose client is too slow
        self._transport: Any = None
        self._outbox: Outbox
        self._idle_at = self._loop.time()
        self._used = False  # it had a request
        self.on_lost: Callable[[], None] | None = None  # withdraws the current request
        self.waits = False  # the current request waits for something to happen
        self.opening: asyncio.Task[None] | None = None  # its TLS handshake
        self.number = self._connections.next_number()
        self.received = 0  # calls
        self.principal = _UNKNOWN  # of the current request
        self.failures = 0  # wrong access tokens
        self.peer = "?"

    # --- opening and closing ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._transport = transport
        self._outbox = Outbox(transport, self, self._buffers)
        address = transport.get_extra_info("peername")
        self.peer = address[0] if address else "?"
        self._idle_timer = self._loop.call_later(self._limits.slow_s, self._check_idle)
        if self._ending:  # another connection took its place during the TLS handshake
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Withdraw the current request."""
        self._ending = True
        self._connections.remove(self)
        self._buffers.closed(self)
        self._return_permit()
        for timer in (self._slow_timer, self._idle_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._outbox.clear()  # now: the connection and its parser refer to each other
        self._unparsed.clear()
        self._parsed.clear()
        self._request = self._current = None
        lost, self.on_lost = self.on_lost, None
        if lost is not None:
            lost()
        self._wake_stream()

    def eof_received(self) -> bool:
        """The client sends no more. If it waits for something to happen, it has probably gone."""
        if self._current is None or self.waits:
            return False
        self._ending = True
        return True

    def pause_writing(self) -> None:
        """The client does not read: parse nothing more, and drop it after `slow_s`."""
        self._outbox.pause()
        if self._unread_timer is None:
            self._unread_timer = self._loop.call_later(self._limits.slow_s, self.drop, "slow_s")

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        self._outbox.resume()
        if self._outbox.paused:
            return
        self._wake_stream()
        if self._ending and self._current is None:
            self._close()
        elif not self._starting:
            self._next()

    @property
    def idle_since(self) -> float | None:
        """When its last request ended; None while it has one."""
        return None if self._current or self._request or self._outbox.paused else self._idle_at

    def make_room(self) -> None:
        """Close: another connection needs the place."""
        self._ending = True
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def drop(self, limit: str) -> None:
        """Disconnect a client that does not read; a stream ends with a frame that says so."""
        if self._transport.is_closing():
            return
        _log.warning("http connection=%d dropped: the client does not read (%s)", self.number, limit)
        self._ending = True
        self._unparsed.clear()
        self._parsed.clear()
        self._request = None
        self._buffers.release(self)
        if self._last_frame is not None and self._outbox.end(_chunk(self._last_frame()) + _chunk(b"")):
            self._transport.close()  # after what the transport has
            self._loop.call_later(LINGER_S, self._transport.abort)
            self._wake_stream()
        else:
            self._outbox.clear()
            self._transport.abort()

    def finish(self) -> None:
        """Close after the current response."""
        self._ending = True
        if self._current is None and self._transport is not None:
            self._close()

    def _close(self) -> None:
        if not self._outbox.size:
            self._transport.close()
            self._loop.call_later(LINGER_S, self._transport.abort)

    def _check_idle(self) -> None:
        """Close the connection if it had no request for `keep_alive_s`, or never had one."""
        self._idle_timer = None
        since, keep_alive_s = self.idle_since, self._limits.keep_alive_s
        idle_s = 0.0 if since is None else self._loop.time() - since
        if idle_s >= (keep_alive_s if self._used else 0.0) and since is not None:
            self._transport.abort()
        else:
            self._idle_timer = self._loop.call_later(max(keep_alive_s - idle_s, 0.01), self._check_idle)

    def _slow(self) -> None:
        """The client has not sent the rest of its request in time."""
        request = self._request
        _log.warning("http connection=%d disconnected: the client does not end its request (slow_s)", self.number)
        if request is None or request.left is None or request.principal is _UNKNOWN:
            self._transport.abort()
            return
        text = f"the request was incomplete after {self._limits.slow_s:g} s (slow_s)\n"
        request.keep_alive = False
        self._current = request
        self.respond(408, text.encode(), TEXT)

    # --- receiving -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what is received, or keep it until the requests before it have their responses."""
        if self._ending:
            return
        if self._started < TURN_MAX:
            self._started = 0
        if self._unparsed or self._is_busy():
            self._unparsed.append(data)
            self._buffers.take(self, len(data))
            self._pause_reading()
        else:
            self._parse(data)

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _is_busy(self) -> bool:
        """Whether nothing more may be parsed for now."""
        return self._current is not None or self._outbox.paused or self._started >= TURN_MAX or self._permit is False

    def _parse(self, data: bytes) -> None:
        """Parse data in steps and start the requests that are complete; keep what is behind them."""
        at = 0
        while at < len(data):
            if self._ending:
                return
            if self._is_busy():
                self._stop_slow_timer()  # it is the daemon that waits
                self._unparsed.appendleft(data[at:])
                self._buffers.take(self, len(data) - at)
                self._pause_reading()
                return
            left = 0 if self._request is None else self._request.left or 0
            step = data if len(data) <= PARSED_BYTES else data[at : at + max(PARSED_BYTES, left)]
            at += len(step)
            self._unfinished_bytes += len(step)
            try:
                self._parser.feed_data(step)
            except httptools.HttpParserUpgrade:
                self._ending = True  # its request is answered as HTTP/1.1, and nothing behind it is understood
            except httptools.HttpParserError:
                self._refuse_head("Invalid HTTP request received.")
                return
            if self._request is not None and not self._receive_on(self._request):
                return
            self._start()
        self._watch_request()

    def _receive_on(self, request: HttpRequest) -> bool:
        """Check an incomplete request; return whether the rest of it may be received."""
        if request.left is None and self._unfinished_bytes > self._limits.head_bytes_max:
            self._head_bytes = self._unfinished_bytes
            self._refuse_head("")
            return False
        if request.size > DISCARDED_BYTES_MAX:
            request.keep_alive = False
            self._current = request
            self._respond_refusal(request)
            return False
        if self._permit is None and request.size > LARGE_REQUEST_BYTES and request.refusal is None:
            self._permit = self._large.acquire(self, self._permitted)
        return True

    def _watch_request(self) -> None:
        """Limit how long an incomplete request may take, and count what is kept of it."""
        request = self._request
        kept = 0 if request is None or request.refusal is not None else request.size + self._head_bytes
        if kept > self._kept:
            self._buffers.take(self, kept - self._kept)
        elif kept < self._kept:
            self._buffers.give(self, self._kept - kept)
        self._kept = kept
        if request is None or self._permit is False:
            self._stop_slow_timer()
            if self._permit is False:
                self._pause_reading()
        elif self._slow_timer is None:
            self._slow_timer = self._loop.call_later(self._limits.slow_s, self._slow)

    def _stop_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

    def _permitted(self) -> None:
        self._permit = True
        self._next()

    def _return_permit(self) -> None:
        if self._permit:
            self._large.release()
        elif self._permit is False:
            self._large.withdraw(self)
        self._permit = None

    def _refuse_head(self, text: str) -> None:
        if self._head_bytes > self._limits.head_bytes_max:
            text = f"the URL and the headers have more than {self._limits.head_bytes_max:,} bytes (head_bytes_max)"
        self._ending = True
        if self._current is None:
            self._current = HttpRequest()
            self.respond(400, text.encode(), TEXT)

    # --- what the parser reports -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._request = HttpRequest()
        self._head_bytes = self._unfinished_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the URL."""
        self._count(len(url))
        self._receiving.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._count(len(name) + len(value))
        self._receiving.headers[name.lower()] = value

    def _count(self, size: int) -> None:
        self._unfinished_bytes = 0
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes_max:
            raise ValueError("head_bytes_max")  # makes the parser stop

    @property
    def _receiving(self) -> HttpRequest:
        assert self._request is not None  # noqa: S101  # the parser reported its beginning
        return self._request

    def on_headers_complete(self) -> None:
        """The headers are complete: check them before the body comes."""
        request = self._receiving
        request.method = self._parser.get_method()
        request.keep_alive = self._parser.should_keep_alive()
        length = request.headers.get(b"content-length", b"")
        request.left = int(length) if length.isdigit() else 0
        self._handler.check(self, request)
        if request.headers.get(b"expect", b"").lower() == b"100-continue":
            if request.refusal is None:
                self._outbox.send(_CONTINUE)
            else:
                request.keep_alive = False

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        request = self._receiving
        request.size += len(part)
        request.left = max(0, (request.left or 0) - len(part))
        if request.refusal is None:
            request.body_parts.append(part)
            if request.size > BODY_BYTES_MAX:
                self._handler.too_large(request)

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._parsed.append(self._receiving)
        self._request = None
        self._unfinished_bytes = 0
        self._stop_slow_timer()

    # --- answering -------------------------------------------------------------------------------

    def _start(self) -> None:
        """Answer the complete requests, one after the other."""
        if self._starting:
            return
        self._starting = True
        try:
            while self._parsed and not self._is_busy() and not self._transport.is_closing():
                self._current = request = self._parsed.popleft()
                self._used = True
                self._started += 1
                if self._started == TURN_MAX:
                    self._loop.call_soon(self._next_turn)
                self.principal = request.principal
                if request.refusal is not None:
                    self._respond_refusal(request)
                else:
                    self._handler.handle(self, request)
        finally:
            self._starting = False

    def _next_turn(self) -> None:
        self._started = 0
        if not self._transport.is_closing():
            self._next()

    def _next(self) -> None:
        """After a response: start the next request, or parse and read on."""
        self._start()
        while self._unparsed and not self._ending and not self._is_busy():
            data = self._unparsed.popleft()
            self._buffers.give(self, len(data))
            self._parse(data)
        if self._reading_paused and not self._unparsed and not self._ending and not self._is_busy():
            self._reading_paused = False
            self._transport.resume_reading()
            self._watch_request()

    def _respond_refusal(self, request: HttpRequest) -> None:
        assert request.refusal is not None  # noqa: S101  # the caller has checked it
        self.respond(*request.refusal)

    def respond(self, status: int, body: bytes, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """Send the response to the current request, and continue with the next."""
        request = self._current
        if request is None or self._transport.is_closing():
            return
        head = self._head(request, status, headers)
        if body:
            head += b"content-type: %s\r\n" % content_type
        head += b"content-length: %d\r\n\r\n" % len(body)
        if request.method == b"HEAD":
            self._outbox.send(head)
        elif len(body) <= CONCATENATED_BYTES_MAX:
            self._outbox.send(head + body)
        else:
            self._outbox.send(head)
            self._outbox.send(body)
        self._end_current(request)

    def _head(self, request: HttpRequest, status: int, headers: bytes) -> bytes:
        if request.keep_alive and not self._ending:
            return _STATUS_LINES[status] + headers
        return _STATUS_LINES[status] + headers + b"connection: close\r\n"

    def _end_current(self, request: HttpRequest) -> None:
        self._current = None
        self.on_lost, self.waits = None, False
        self._idle_at = self._loop.time()
        if self._permit:
            self._return_permit()
        if self._ending or not request.keep_alive:
            self._ending = True
            self._close()
        elif not self._starting and (self._parsed or self._unparsed or self._reading_paused):
            self._next()

    def reads_responses(self) -> bool:
        """Whether the client reads its responses; the next request is parsed only if it does."""
        return True

    def hold(self, size: int) -> None:
        """Count bytes that are kept for this client."""
        self._buffers.take(self, size)

    def unhold(self, size: int) -> None:
        """Count them no longer."""
        self._buffers.give(self, size)

    # --- streams ---------------------------------------------------------------------------------

    def start_stream(self, headers: bytes, last_frame: Callable[[], bytes]) -> None:
        """Begin a response of unknown length; `last_frame` is what a client gets that is too slow."""
        request = self._current
        if request is not None and not self._transport.is_closing():
            self._last_frame = last_frame
            self._outbox.send(self._head(request, 200, headers + b"transfer-encoding: chunked\r\n") + b"\r\n")

    async def send_part(self, part: bytes) -> bool:
        """Send a part of a stream and wait until the client reads; return whether it is still there."""
        if self._ending and self._transport.is_closing():
            return False
        self._outbox.send(_chunk(part))
        while self._outbox.paused and not self._transport.is_closing():
            self._drained = self._loop.create_future()
            await self._drained
        return not self._transport.is_closing()

    def end_stream(self) -> None:
        """End a stream."""
        request = self._current
        self._last_frame = None
        if request is not None and not self._transport.is_closing():
            self._outbox.send(_chunk(b""))
            self._end_current(request)

    def _wake_stream(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)

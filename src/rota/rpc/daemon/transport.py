"""What both transports share: the daemon's limits, and how a request's response is encoded and logged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from rota.errors import InvalidInput, LimitExceeded, RotaError
from rota.rpc.authorization import Principal
from rota.rpc.error_codec import ErrorObject, to_error_object
from rota.rpc.jsonrpc import BODY_BYTES_MAX, Id, RejectedCall, encode_error, encode_result
from rota.service.log_folder import LOGS_BYTES_MAX, LOGS_MAX

__all__ = ["BatchLimit", "DaemonLimits", "Request", "RequestSource", "ResponseLimit"]

_log = logging.getLogger("rota.daemon")
_MIB = 1024 * 1024


class DaemonLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's limits. An error that one of them causes names it; `rota serve --limit NAME=VALUE` sets one.

    The limits of a request (body, batch, nesting) are in `jsonrpc.py`; those of an entry are in the model.
    """

    connections_max: int = 512  # on each transport
    idle_s: float = 10.0  # a connection without a request for this long may be closed for a new one
    keep_alive_s: float = 75.0  # an HTTP connection without a request is closed after this time
    head_bytes_max: int = 64 * 1024  # of an HTTP request's URL and headers
    pipeline_max: int = 64  # requests of one connection without a response; more are not read until some have one
    large_requests_max: int = 8  # requests of more than `LARGE_REQUEST_BYTES` that are received or executed at a time
    answer_bytes_max: int = 32 * _MIB  # of one response, or of all responses to a batch
    out_bytes_max: int = 2 * BODY_BYTES_MAX  # of responses that one client has not read
    buffer_bytes_max: int = 64 * _MIB  # of responses and unfinished requests of all clients together
    slow_s: float = 30.0  # how long a client may take to send one request, or to read what it was sent
    subscribers_max: int = 128  # at /events
    lag_events_max: int = 10_000  # how far a subscriber may fall behind
    heartbeat_s: float = 15.0  # between two heartbeats at /events
    grace_s: float = 10.0  # for pending calls when the daemon stops
    reads_max: int = 1_024  # reads of one caller that wait for a thread
    explains_max: int = 32  # explanations of one caller that wait for their turn
    logs_max: int = LOGS_MAX  # runs whose output is kept beside the store; the oldest are removed first
    logs_bytes_max: int = LOGS_BYTES_MAX  # of their output together
    failures_max: int = 3  # wrong secrets for one token id, or on one connection
    failures_s: float = 10.0  # within this time
    lockout_s: float = 60.0  # reject further wrong secrets for the token id unchecked for this long
    failures_kept_max: int = 10_000  # token ids whose failures are remembered
    denials_s: float = 60.0  # denied calls of one caller for one reason are one event in this time
    denials_max: int = 1_000  # callers and reasons that are counted apart in this time

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not value > 0:
                raise InvalidInput(f"limit {name} must be more than 0, not {value!r}", field=name)
        if self.buffer_bytes_max < self.answer_bytes_max:
            text = f"limit buffer_bytes_max ({self.buffer_bytes_max:,}) must be at least answer_bytes_max"
            raise InvalidInput(f"{text} ({self.answer_bytes_max:,})", field="buffer_bytes_max")


class ResponseLimit:
    """The bytes that a response may have."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max

    def use(self, size: int) -> None:
        """Raise `LimitExceeded` for a larger response."""
        if size > self._bytes_max:
            raise LimitExceeded("answer_bytes_max", self._bytes_max, size)


class BatchLimit(ResponseLimit):
    """The bytes that all responses to a batch may have. They may be encoded on several threads."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self._used = 0
        self._lock = threading.Lock()

    def use(self, size: int) -> None:
        """Count a response, or raise `LimitExceeded`."""
        with self._lock:
            if self._used + size > self._bytes_max:
                raise LimitExceeded("answer_bytes_max", self._bytes_max, self._used + size)
            self._used += size


class RequestSource(Protocol):
    """The connection that a request came from."""

    number: int
    received: int  # requests so far
    principal: Principal  # of the current request

    def reads_responses(self) -> bool:
        """Whether the client reads its responses, so that it may be sent more of them."""
        ...


class Request:
    """One request: encodes, logs and sends its response. The connection's and its own number make its id in the log."""

    __slots__ = ("_ident", "_limit", "_method", "_number", "_send", "_source")

    def __init__(
        self,
        source: RequestSource,
        ident: Id | UnsetType,
        method: str | None,
        send: Callable[[bytes | None], None],
        limit: ResponseLimit,
    ) -> None:
        self._source = source
        self._ident = ident
        self._method = method
        self._send = send
        self._limit = limit
        self._number = source.received

    @property
    def request_id(self) -> str:
        """The request's id in the log."""
        return f"{self._source.number}-{self._number}"

    def may_run(self) -> bool:
        """Whether a read may run now, or waits until the client reads its responses."""
        return self._source.reads_responses()

    def reply(self, result: Any, error: BaseException | None) -> None:
        """Send the response; a result in bytes is already encoded. A notification gets none."""
        body = result if type(result) is bytes and error is None else self.encode(result, error)
        self._send(None if self._ident is UNSET else body)

    def reject(self, call: RejectedCall) -> None:
        """Send the error for a request that could not be decoded."""
        line = "request=%s method=%s caller=%s outcome=%d"
        _log.info(line, self.request_id, call.method, self._source.principal.name, call.error.code)
        self._send(None if call.id is UNSET else encode_error(call.id, call.error))

    def encode(self, result: Any, error: BaseException | None = None) -> bytes:
        """Encode a result or an error on any thread, and log it; a result over the limit becomes an error."""
        ident: Id = None if self._ident is UNSET else self._ident
        if error is None:
            body = encode_result(ident, result)
            try:
                self._limit.use(len(body))
            except LimitExceeded as too_large:
                error = too_large
            else:
                if _log.isEnabledFor(logging.DEBUG):
                    line = "request=%s method=%s caller=%s outcome=ok"
                    _log.debug(line, self.request_id, self._method, self._source.principal.name)
                return body
        packed = to_error_object(error)
        if isinstance(error, RotaError):
            line = "request=%s method=%s caller=%s outcome=%d %s"
            _log.info(line, self.request_id, self._method, self._source.principal.name, error.code, error.name)
        else:
            line = "request=%s method=%s caller=%s outcome=defect"
            _log.error(line, self.request_id, self._method, self._source.principal.name, exc_info=error)
            packed = ErrorObject(packed.code, packed.message, {"request_id": self.request_id})
        return encode_error(ident, packed)

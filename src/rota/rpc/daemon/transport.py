"""What both transports share: the daemon's limits, the request log, and the encoding of responses."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import msgspec

from rota.errors import LimitExceeded, RotaError
from rota.rpc.authorization import Principal
from rota.rpc.error_codec import ErrorObject, to_error_object
from rota.rpc.jsonrpc import BODY_BYTES_MAX, Id, RejectedCall, encode_error, encode_result

__all__ = ["DaemonLimits", "RequestLog", "ResponseBudget", "encode_response"]

_log = logging.getLogger("rota.daemon")


class DaemonLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's limits. An error that one of them causes names it.

    The limits of a request (body, batch, nesting) are in `jsonrpc.py`; those of an entry are in the model.
    """

    connections_max: int = 512  # on each transport
    head_bytes_max: int = 64 * 1024  # of an HTTP request's URL and headers
    pipeline_max: int = 64  # requests of one connection without a response; more are not read until some have one
    answer_bytes_max: int = 64 * 1024 * 1024  # of one response, or of all responses to a batch
    out_bytes_max: int = 2 * BODY_BYTES_MAX  # of responses that one client has not read
    slow_s: float = 30.0  # how long a client may take to send one request, or to read what it was sent
    subscribers_max: int = 128  # at /events
    lag_events_max: int = 10_000  # how far a subscriber may fall behind
    heartbeat_s: float = 15.0  # between two heartbeats at /events
    grace_s: float = 10.0  # for pending calls when the daemon stops
    failures_max: int = 3  # failed authentications from one address
    failures_s: float = 10.0  # within this time
    lockout_s: float = 60.0  # lock the address out for this long
    addresses_max: int = 10_000  # whose failures are remembered


class RequestLog(NamedTuple):
    """Writes the log lines of one request. The connection and the request's number in it make its id."""

    connection: int
    number: int
    principal: Principal

    @property
    def request_id(self) -> str:
        """The request's id in the log."""
        return f"{self.connection}-{self.number}"

    def succeeded(self, method: str) -> None:
        """Log a successful request, at level debug."""
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("request=%s method=%s caller=%s outcome=ok", self.request_id, method, self.principal.name)

    def failed(self, method: str, error: BaseException) -> None:
        """Log a failed request; a defect with its traceback."""
        if isinstance(error, RotaError):
            line = "request=%s method=%s caller=%s outcome=%d %s"
            _log.info(line, self.request_id, method, self.principal.name, error.code, error.name)
        else:
            line = "request=%s method=%s caller=%s outcome=defect"
            _log.error(line, self.request_id, method, self.principal.name, exc_info=error)

    def rejected(self, call: RejectedCall) -> None:
        """Log a request that could not be decoded."""
        line = "request=%s method=%s caller=%s outcome=%d"
        _log.info(line, self.request_id, call.method, self.principal.name, call.error.code)


class ResponseBudget:
    """The bytes that the response to a request, or all responses to a batch, may have."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0

    def use(self, size: int) -> None:
        """Use part of the budget, or raise `LimitExceeded`."""
        if self._used + size > self._bytes_max:
            raise LimitExceeded("answer_bytes_max", self._bytes_max, self._used + size)
        self._used += size


def encode_response(
    ident: Id, result: Any, error: BaseException | None, log: RequestLog, method: str, *, budget: ResponseBudget
) -> bytes:
    """Encode a result or an error, and log it; a result over the budget becomes an error."""
    if error is None:
        body = encode_result(ident, result)
        try:
            budget.use(len(body))
        except LimitExceeded as too_large:
            error = too_large
        else:
            log.succeeded(method)
            return body
    log.failed(method, error)
    packed = to_error_object(error)
    if not isinstance(error, RotaError):
        packed = ErrorObject(packed.code, packed.message, {"request_id": log.request_id})
    return encode_error(ident, packed)

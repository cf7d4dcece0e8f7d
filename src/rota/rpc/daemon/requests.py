"""What both transports do with a request: give it an id for the log, and turn its outcome into bytes."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from rota.errors import LimitExceeded, RotaError
from rota.rpc.error_codec import Fault, fault_of
from rota.rpc.handlers import Caller
from rota.rpc.jsonrpc import Id, Refused, answer, refuse

__all__ = ["Log", "Room", "bytes_of"]

_log = logging.getLogger("rota.daemon")


class Log(NamedTuple):
    """A request in the log: connection and number make its id."""

    connection: int
    number: int
    caller: Caller

    @property
    def request_id(self) -> str:
        """How people name it."""
        return f"{self.connection}-{self.number}"

    def answered(self, method: str) -> None:
        """It went well."""
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("request=%s method=%s caller=%s outcome=ok", self.request_id, method, self.caller.name)

    def failed(self, method: str, error: BaseException) -> None:
        """It did not; if that is a defect of ours, with all that is known of it."""
        if isinstance(error, RotaError):
            line = "request=%s method=%s caller=%s outcome=%d %s"
            _log.info(line, self.request_id, method, self.caller.name, error.code, error.name)
        else:
            line = "request=%s method=%s caller=%s outcome=defect"
            _log.error(line, self.request_id, method, self.caller.name, exc_info=error)

    def refused(self, refused: Refused) -> None:
        """It was no request that could be carried out."""
        line = "request=%s method=%s caller=%s outcome=%d"
        _log.info(line, self.request_id, refused.method, self.caller.name, refused.error.code)


class Room:
    """How large the answer to a request, or all answers to a batch, may be: what does not fit is refused."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def take(self, size: int) -> None:
        """Take so many bytes, if there are."""
        if self._taken + size > self._most:
            raise LimitExceeded("answer_bytes_max", self._most, self._taken + size)
        self._taken += size


def bytes_of(ident: Id, result: Any, error: BaseException | None, log: Log, method: str, *, room: Room) -> bytes:
    """The bytes of an answer, or of a refusal."""
    if error is None:
        body = answer(ident, result)
        try:
            room.take(len(body))
        except LimitExceeded as too_large:
            error = too_large
        else:
            log.answered(method)
            return body
    log.failed(method, error)
    fault = fault_of(error)
    if not isinstance(error, RotaError):
        fault = Fault(fault.code, fault.message, {"request_id": log.request_id})
    return refuse(ident, fault)

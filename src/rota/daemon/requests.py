"""What both transports do with a request: give it an id for the log, and turn its outcome into bytes."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from rota.errors import LimitExceeded, RotaError
from rota.office import Caller
from rota.wire.envelope import Id, Refused, answer, refuse
from rota.wire.faults import Fault, fault_of

__all__ = ["ANSWER_BYTES_MAX", "Log", "bytes_of"]

ANSWER_BYTES_MAX = 64 * 1024 * 1024  # of one answer: whoever asks for more takes smaller pages

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


def bytes_of(ident: Id, result: Any, error: BaseException | None, log: Log, method: str) -> bytes:
    """The bytes of an answer, or of a refusal."""
    if error is None:
        body = answer(ident, result)
        if len(body) <= ANSWER_BYTES_MAX:
            log.answered(method)
            return body
        error = LimitExceeded("answer_bytes_max", ANSWER_BYTES_MAX, len(body))
    log.failed(method, error)
    fault = fault_of(error)
    if not isinstance(error, RotaError):
        fault = Fault(fault.code, fault.message, {"request_id": log.request_id})
    return refuse(ident, fault)

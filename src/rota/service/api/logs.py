"""The methods for what runs have printed."""

from __future__ import annotations

from typing import Protocol

from rota import errors as e
from rota.model.run_logs import READ_BYTES, LogPart, LogPlace
from rota.service.api.declaration import REFUSED, method, owned

__all__ = ["LogsApi"]

_ENTRY = (e.SchedUnknownId, e.SchedInvalidPayload, e.UnsafePath)


class LogsApi(Protocol):
    """The output of runs."""

    @method("kernel.log.read", scope="read", execution="read", bound=owned("sched_id"), run="view", errors=_ENTRY)
    def read(
        self, sched_id: int, attempt: int | None = None, *, offset: int = 0, limit_bytes: int = READ_BYTES
    ) -> LogPart:
        """Return a part of what an attempt of an entry has printed, by default of the last attempt.

        Offsets count the bytes printed; a negative one counts from the end. If the bytes at the offset were dropped,
        the part begins with the next byte that was kept. `data` is in base64 on the wire.
        """
        ...

    @method(
        "kernel.log.places",
        scope="read",
        execution="read",
        bound=owned("sched_id"),
        run="view",
        result="places",
        errors=_ENTRY,
    )
    def places(self, sched_id: int, attempt: int | None = None) -> list[LogPlace]:
        """Return the hosts that have the log of an attempt, by default of the last one, in order.

        Each host of a store on PostgreSQL keeps what its runs print, and `read` returns what this one has. If the
        daemon of another host listens for other machines, its address is told too. Empty where one host has all logs,
        and if the journal no longer says who claimed the entry.
        """
        ...

    @method(
        "kernel.log.append",
        scope="work",
        execution="read",
        bound=REFUSED,
        run="own",
        result="end",
        errors=(e.StaleClaim, *_ENTRY),
    )
    def append(self, sched_id: int, attempt: int, token: int, offset: int, data: bytes) -> int:
        """Add a piece of what a run has printed to its log, and return how far the log goes now.

        For workers: one writer for each run, under the token of its claim. `offset` counts what the run has printed
        before this piece, so a piece may be sent again. A program that rota runs prints instead; its supervisor sends
        that. Beyond the limit in the agent's settings (`limits.log`) the log keeps the beginning and the end.
        """
        ...

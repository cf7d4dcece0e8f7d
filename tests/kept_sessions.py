"""Sessions on the PostgreSQL server of a test run that are used again by later tests.

A new session costs the server more than most tests do in it: a process, and its copy of the catalogue. So a connection
that a store of a test closes is not ended. `DISCARD ALL` leaves nothing in its session of what the test did, as poolers
have it, and the next store with the same schema and role goes on with it. It bears another name meanwhile, so that
nobody takes it for a session of rota.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus

__all__ = ["connect", "end_sessions"]

ROLES = ("rota writer", "rota reader")
NAME = "kept for the next test"
KEPT_MAX = 8  # of one process

_real_connect: Any = psycopg.Connection.connect.__func__  # type: ignore[attr-defined]  # tests replace it by `connect`
_idle: list[tuple[Any, Any]] = []  # how each was made, and libpq's connection


class _Connection(psycopg.Connection[Any]):
    """A connection whose session is kept when it is closed."""

    made_as: Any = None  # the process and the parameters; None after it was closed

    def close(self) -> None:
        made_as, self.made_as = self.made_as, None
        if made_as is None:
            return
        if _is_at_rest(made_as, self.pgconn):
            _idle.append((made_as, self.pgconn))
        else:
            super().close()

    def __del__(self, *_: Any) -> None:
        if self.made_as is not None:  # else psycopg takes the session that goes on for one that was forgotten
            super().__del__()


def connect(conninfo: str = "", **settings: Any) -> psycopg.Connection[Any]:
    """Connect as psycopg does, with an idle session if there is one that was made in the same way."""
    if settings.get("application_name") not in ROLES:
        made: psycopg.Connection[Any] = _real_connect(psycopg.Connection, conninfo, **settings)
        return made
    wanted = os.getpid(), conninfo, tuple(sorted(settings.items()))
    for number, (made_as, link) in enumerate(_idle):
        if made_as == wanted:
            del _idle[number]
            if _ran(link, "RESET application_name"):
                again = _Connection(link)
                again._autocommit, again.prepare_threshold, again.made_as = True, None, wanted
                return again
            link.finish()
            break
    found: _Connection = _real_connect(_Connection, conninfo, **settings)
    found.made_as = wanted
    return found


def end_sessions() -> None:
    """End the idle sessions of this process."""
    while _idle:
        _, link = _idle.pop()
        link.finish()


def _is_at_rest(made_as: Any, link: Any) -> bool:
    """Whether a session is of this process, and nothing is in progress or left in it."""
    if made_as[0] != os.getpid() or len(_idle) >= KEPT_MAX or link.status != ConnStatus.OK:
        return False
    try:
        if link.pipeline_status != PipelineStatus.OFF:
            link.exit_pipeline_mode()
        link.nonblocking = 0
    except psycopg.Error:  # there are results to be read
        return False
    is_idle = link.transaction_status == TransactionStatus.IDLE
    return is_idle and _ran(link, "DISCARD ALL") and _ran(link, f"SET application_name = '{NAME}'")


def _ran(link: Any, text: str) -> bool:
    return bool(link.exec_(text.encode()).status == ExecStatus.COMMAND_OK)

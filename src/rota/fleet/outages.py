"""Outages: what a supervisor does while the store cannot be reached.

A daemon may be restarted, its machine may be away, a disk may be full. The client of a daemon retries each call for a
short time and then raises `StoreUnavailable`. Nothing is wrong with the run that made the call, so the supervisor waits
and makes the call again, for at most `OUTAGE_S`. It does not wait for a run that is asked to stop anyway.

    claims, reports, heartbeats     their loops never end: they repeat what failed, however long the outage lasts
    calls for one run               wait here; after `OUTAGE_S` the run has an error like any other
    a claim that expired meanwhile  is another worker's: the run is stopped (`fenced`) at its next heartbeat or report

A call whose response was lost may have been executed. It is not repeated here, unless executing it twice has the effect
of once; the client repeats those itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from rota.clock import Clock
from rota.errors import StoreUnavailable

__all__ = ["OUTAGE_S", "RETRY_S", "call_through_outage", "may_be_executed"]

OUTAGE_S = 3_600.0  # how long a call for one run waits for the store
RETRY_S = 1.0  # between two attempts
_log = logging.getLogger("rota.fleet")
T = TypeVar("T")


def may_be_executed(problem: StoreUnavailable) -> bool:
    """Whether the store may have executed the call that failed."""
    return bool(problem.data.get("may_be_executed"))


def call_through_outage(clock: Clock, call: Callable[[], T], gives_up: Callable[[], bool]) -> T:
    """Make a call; while the store cannot be reached, make it again until it succeeds or `gives_up` returns True."""
    give_up_at = clock.monotonic() + OUTAGE_S
    pause = threading.Condition()
    while True:
        try:
            return call()
        except StoreUnavailable as problem:
            is_over = bool(problem.data.get("closed")) or clock.monotonic() >= give_up_at
            if is_over or may_be_executed(problem) or gives_up():
                raise
            _log.warning("waiting for the store: %s", problem)
        with pause:
            clock.wait(pause, RETRY_S)

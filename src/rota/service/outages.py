"""Outages: what a worker does while the store cannot be reached.

A daemon may be restarted, its machine may be away, a disk may be full. The client of a daemon retries each call for a
short time and then raises `StoreUnavailable`. Nothing is wrong with the run that made the call, so the worker (a
supervisor, or one that runs entries of graphs) waits and makes the call again. It says so once.

    claims, reports, heartbeats     their loops never end: they repeat what failed, however long the outage lasts
    calls for one run               wait here, at most `OUTAGE_S`; after that the run has an error like any other
    the first call of a supervisor  waits here, at most `OUTAGE_S`: its daemon may be started after it
    a claim that expired meanwhile  is extended by the first heartbeat, unless another worker that was not cut off has
                                    taken it back: then the run is stopped (`fenced`) at its next heartbeat or report

No call waits for a run, or a worker, that is asked to stop anyway. A call whose response was lost may have been
executed. It is repeated only if executing it twice has the effect of once (`repeats`); the client repeats those that
are always so itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from secrets import token_hex
from typing import TypeVar

from rota.clock import Clock
from rota.errors import StoreUnavailable

__all__ = ["OUTAGE_S", "RETRY_S", "call_through_outage", "may_be_executed", "new_charge_key"]

OUTAGE_S = 3_600.0  # how long a call for one run, or the first one of a supervisor, waits for the store
RETRY_S = 1.0  # between two attempts
_log = logging.getLogger("rota.fleet")
T = TypeVar("T")


def may_be_executed(problem: StoreUnavailable) -> bool:
    """Whether the store may have executed the call that failed."""
    return bool(problem.data.get("may_be_executed"))


def new_charge_key() -> str:
    """Return a key with which a charge may be repeated; keys that users choose do not begin like it."""
    return f"~{token_hex(8)}"


def _say(problem: StoreUnavailable) -> None:
    _log.warning("waiting for the store: %s", problem)


def call_through_outage(
    clock: Clock,
    call: Callable[[], T],
    gives_up: Callable[[], bool],
    *,
    limit_s: float | None = None,
    repeats: bool = False,
    say: Callable[[StoreUnavailable], None] = _say,
) -> T:
    """Make a call; while the store cannot be reached, make it again until it succeeds or `gives_up` returns True.

    It ends in any case after `limit_s`, by default `OUTAGE_S`. A call that may have been executed is made again only
    with `repeats`. `say` is called once, when the wait begins.
    """
    give_up_at = clock.monotonic() + (OUTAGE_S if limit_s is None else limit_s)
    pause, is_waiting = threading.Condition(), False
    while True:
        try:
            return call()
        except StoreUnavailable as problem:
            is_over = bool(problem.data.get("closed")) or clock.monotonic() >= give_up_at
            if is_over or gives_up() or (may_be_executed(problem) and not repeats):
                raise
            if not is_waiting:
                say(problem)
            is_waiting = True
        with pause:
            clock.wait(pause, RETRY_S)

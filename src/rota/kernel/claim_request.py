"""A worker's request for entries, checked once before any transaction begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from rota.errors import SchedInvalidPayload
from rota.model.checks import Checks
from rota.model.work import Worker

__all__ = [
    "CLAIM_MAX",
    "CLAIM_TIMEOUT_S",
    "ClaimOptions",
    "ClaimRequest",
    "check_claim_options",
    "check_worker",
    "make_claim_request",
]

CLAIM_MAX = 1_000  # entries in one claim
CLAIM_TIMEOUT_S = 3600.0  # the default
_queue = Checks("Queue", SchedInvalidPayload)


class ClaimOptions(TypedDict, total=False):
    """The keyword arguments of a claim, all optional."""

    now: float | None  # the caller's time instead of the clock's
    admission_check: bool  # False ignores budgets, and the journal records it
    claim_timeout_s: float
    incarnation: str  # distinguishes processes that use the same worker_id
    kinds: Sequence[str]  # kinds of slot that the worker has


class ClaimRequest(NamedTuple):
    """A worker's request for entries."""

    worker: Worker
    max_n: int = 1
    now: float | None = None  # None: the clock's
    timeout_s: float = CLAIM_TIMEOUT_S
    kinds: tuple[str, ...] = ()  # kinds of slot that the worker has
    check_budgets: bool = True


def make_claim_request(
    *,
    worker_id: str,
    max_n: int = 1,
    now: float | None = None,
    admission_check: bool = True,
    claim_timeout_s: float = CLAIM_TIMEOUT_S,
    incarnation: str = "",
    kinds: Sequence[str] = (),
) -> ClaimRequest:
    """Check a claim's arguments and return the request."""
    if now is not None:
        _queue.instant("now", now)
    check_claim_options(admission_check, claim_timeout_s)
    return ClaimRequest(
        check_worker(worker_id, incarnation),
        min(_queue.whole("max_n", max_n, 1), CLAIM_MAX),
        now,
        claim_timeout_s,
        _check_kinds(kinds) if kinds != () else (),
        admission_check,
    )


def _check_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    _queue.sequence("kinds", kinds)
    return tuple(sorted({_queue.text("kinds", kind) for kind in kinds}))


def check_worker(worker_id: str, incarnation: str) -> Worker:
    """Check a worker's name and incarnation."""
    if incarnation != "":
        _queue.text("incarnation", incarnation)
    return Worker(_queue.text("worker_id", worker_id), incarnation)


def check_claim_options(admission_check: bool, claim_timeout_s: float) -> None:
    """Check the options that every kind of claim has."""
    _queue.flag("admission_check", admission_check)
    _queue.duration("claim_timeout_s", claim_timeout_s)

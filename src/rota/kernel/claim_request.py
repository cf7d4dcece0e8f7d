"""What workers say to the queue: a claim's wishes, how runs ended; checked once, at the door."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Required, TypeAlias, TypedDict

import msgspec

from rota.errors import RotaError, SchedInvalidPayload
from rota.kernel.claims import CLAIM_MAX, CLAIM_TIMEOUT_S, ClaimPass, Terms
from rota.kernel.completion import Ending
from rota.kernel.due_summary import Pulse
from rota.kernel.rows import encode_json
from rota.model.checks import RESULT_BYTES_MAX, Checks
from rota.model.work import EXIT_KINDS, ReadyEntry, Worker

__all__ = [
    "COMPLETE_MAX",
    "Answer",
    "Ask",
    "Asked",
    "Beat",
    "Completion",
    "Pass",
    "Turnover",
    "ask_of",
    "check_terms",
    "endings_of",
    "pair_of",
    "worker_of",
]

COMPLETE_MAX = 1_000  # endings in one complete_many
_queue = Checks("Queue", SchedInvalidPayload)

Pass: TypeAlias = Callable[[ClaimPass, Pulse], list[ReadyEntry]]  # how a claim finds what it takes
Answer: TypeAlias = tuple[str, str] | RotaError  # to an ending: state before and after, or why nothing changed


class Completion(msgspec.Struct, frozen=True):
    """How one run of a batch ended."""

    sched_id: int
    exit_kind: str = "completed"
    token: int | None = None
    result: Any = None
    outcome: str | None = None


class Beat(NamedTuple):
    """The answer to a heartbeat."""

    claim_expires_at: float
    cancel_requested: bool


class Turnover(NamedTuple):
    """What became of the runs that ended, and what to run next."""

    answers: list[Answer]
    entries: list[ReadyEntry]


class Asked(TypedDict, total=False):
    """What a claim may say. Only the worker must be named."""

    worker_id: Required[str]
    max_n: int
    now: float | None  # the caller's own time
    admission_check: bool  # False skips budgets, and is recorded
    claim_timeout_s: float
    incarnation: str  # which life of the worker
    kinds: Sequence[str]  # of slot it has
    find: Pass  # in which order; strict if nothing is said
    same: Hashable  # the name of that order: those who wait and ask the same are not all tried


class Ask(NamedTuple):
    """A claim's wishes, checked."""

    worker: Worker
    most: int
    now: float | None
    timeout_s: float
    kinds: tuple[str, ...]
    budgets_count: bool
    find: Pass
    same: Hashable

    def terms(self, now: float) -> Terms:
        """What a pass at this time goes by."""
        return Terms(self.worker, self.most, now, self.timeout_s, self.kinds, self.budgets_count)


def strictly(claim: ClaimPass, _beat: Pulse) -> list[ReadyEntry]:
    """Strict order: priority, then time, then id."""
    claim.strict()
    return claim.seal()


def ask_of(
    *,
    worker_id: str,
    max_n: int = 1,
    now: float | None = None,
    admission_check: bool = True,
    claim_timeout_s: float = CLAIM_TIMEOUT_S,
    incarnation: str = "",
    kinds: Sequence[str] = (),
    find: Pass = strictly,
    same: Hashable = "strict",
) -> Ask:
    """A claim's wishes, checked."""
    if now is not None:
        _queue.instant("now", now)
    check_terms(admission_check, claim_timeout_s)
    return Ask(
        worker_of(worker_id, incarnation),
        min(_queue.whole("max_n", max_n, 1), CLAIM_MAX),
        now,
        claim_timeout_s,
        _kinds(kinds) if kinds != () else (),
        admission_check,
        find,
        same,
    )


def _kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    _queue.sequence("kinds", kinds)
    return tuple(sorted({_queue.text("kinds", kind) for kind in kinds}))


def pair_of(claim: tuple[int, int]) -> tuple[int, int]:
    """An entry and the token of its claim, checked."""
    try:
        sched_id, token = claim
    except (TypeError, ValueError) as problem:
        raise _queue.refuse("claims", f"must be pairs of sched_id and token, not {claim!r}") from problem
    return _queue.whole("sched_id", sched_id), _queue.whole("token", token)


def worker_of(worker_id: str, incarnation: str) -> Worker:
    """A worker by name and life, checked."""
    if incarnation != "":
        _queue.text("incarnation", incarnation)
    return Worker(_queue.text("worker_id", worker_id), incarnation)


def check_terms(admission_check: bool, claim_timeout_s: float) -> None:
    """Refuse terms that are not what they should be."""
    _queue.flag("admission_check", admission_check)
    _queue.duration("claim_timeout_s", claim_timeout_s)


def endings_of(completions: Sequence[Completion]) -> list[Ending]:
    """What is said about the ends of runs, checked."""
    _queue.sequence("completions", completions)
    if len(completions) > COMPLETE_MAX:
        raise _queue.refuse("completions", f"may be at most {COMPLETE_MAX:,}, not {len(completions):,}")
    return [_ending(each) for each in completions]


def _ending(each: Completion) -> Ending:
    if type(each) is not Completion:
        raise _queue.refuse("completions", f"must be Completions, not {type(each).__name__}")
    _queue.whole("sched_id", each.sched_id)
    _queue.one_of("exit_kind", each.exit_kind, EXIT_KINDS)
    if each.token is not None:
        _queue.whole("token", each.token)
    if each.outcome is not None:
        _queue.text("outcome", each.outcome)
    result = None if each.result is None else encode_json("result", each.result, RESULT_BYTES_MAX)
    return Ending(each.sched_id, each.exit_kind, each.token, result, each.outcome)

"""A worker's turn: the runs it has ended and the entries it wants next, checked once before any transaction begins.

Every claim is a turn. A worker that only claims ends nothing; a supervisor also has the states of its agents follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypedDict

import msgspec

from rota.errors import SchedInvalidPayload
from rota.kernel.rows import json_list
from rota.kernel.run_reports import CompletionAnswer, RunEnd
from rota.model.checks import Checks
from rota.model.work import ReadyEntry, Worker

__all__ = [
    "CLAIM_MAX",
    "CLAIM_TIMEOUT_S",
    "EXCEPT_AGENTS_MAX",
    "ClaimKind",
    "ClaimOptions",
    "TurnRequest",
    "TurnResult",
    "check_claim_options",
    "check_worker",
    "make_turn_request",
]

CLAIM_MAX = 1_000  # entries in one claim
CLAIM_TIMEOUT_S = 3600.0  # the default
EXCEPT_AGENTS_MAX = 1_000  # agents that a claim leaves out
# what claims that find the same entries have in common, beside their policy: the kinds of slot, whether budgets are
# checked, the agents that are left out
ClaimKind: TypeAlias = tuple[tuple[str, ...], bool, tuple[int, ...]]
_queue = Checks("Queue", SchedInvalidPayload)


class ClaimOptions(TypedDict, total=False):
    """The keyword arguments of a claim, all optional."""

    now: float | None  # the caller's time instead of the clock's
    admission_check: bool  # False ignores budgets, and the journal records it
    claim_timeout_s: float
    incarnation: str  # distinguishes processes that use the same worker_id
    kinds: Sequence[str]  # kinds of slot that the worker has
    except_agents: Sequence[int]  # agents that the worker cannot run


class TurnRequest(msgspec.Struct, frozen=True):
    """What a worker asks for in one transaction."""

    worker: Worker
    max_n: int = 1  # entries to claim; 0: none
    now: float | None = None  # None: the clock's
    timeout_s: float = CLAIM_TIMEOUT_S
    kinds: tuple[str, ...] = ()  # kinds of slot that the worker has
    check_budgets: bool = True
    wait_s: float = 0.0  # how long it waits for entries
    run_ends: Sequence[RunEnd] = ()  # runs to end before the claim
    moves_agents: bool = False  # the states of the agents follow: for supervisors
    kinds_text: str = "[]"  # the kinds as statements take them
    except_agents: tuple[int, ...] = ()  # agents that the worker cannot run: their entries are left to others

    @property
    def claim_kind(self) -> ClaimKind:
        """What it has in common with other claims that find the same entries."""
        return self.kinds, self.check_budgets, self.except_agents


class TurnResult(NamedTuple):
    """The answer to each ended run, and the entries claimed next."""

    answers: list[CompletionAnswer]
    entries: list[ReadyEntry]


def make_turn_request(
    *,
    worker_id: str,
    max_n: int = 1,
    wait_s: float = 0.0,
    now: float | None = None,
    admission_check: bool = True,
    claim_timeout_s: float = CLAIM_TIMEOUT_S,
    incarnation: str = "",
    kinds: Sequence[str] = (),
    except_agents: Sequence[int] = (),
    run_ends: Sequence[RunEnd] = (),
    moves_agents: bool = False,
) -> TurnRequest:
    """Check the arguments of a claim and return the request. Only a supervisor may claim nothing."""
    if now is not None:
        _queue.instant("now", now)
    checked_kinds = _check_kinds(kinds) if kinds != () else ()
    agents = _check_agents(except_agents) if except_agents != () else ()
    claim = worker_id, max_n, wait_s, admission_check, claim_timeout_s, incarnation, checked_kinds, agents, moves_agents
    try:
        request = _check_claim(*claim)
    except TypeError:  # an argument that cannot be hashed is wrong: the checks say how
        request = _check_claim.__wrapped__(*claim)
    return msgspec.structs.replace(request, now=now, run_ends=run_ends) if run_ends or now is not None else request


@lru_cache(maxsize=1024, typed=True)  # a worker makes the same claim again and again
def _check_claim(  # noqa: PLR0917  # by position: `typed` looks only at these
    worker_id: str,
    max_n: int,
    wait_s: float,
    admission_check: bool,
    claim_timeout_s: float,
    incarnation: str,
    kinds: tuple[str, ...],
    except_agents: tuple[int, ...],
    moves_agents: bool,
) -> TurnRequest:
    check_claim_options(admission_check, claim_timeout_s)
    return TurnRequest(
        check_worker(worker_id, incarnation),
        min(_queue.whole("max_n", max_n, 0 if moves_agents else 1), CLAIM_MAX),
        timeout_s=claim_timeout_s,
        kinds=kinds,
        check_budgets=admission_check,
        wait_s=_queue.duration("wait_s", wait_s),
        moves_agents=moves_agents,
        kinds_text=json_list(kinds),
        except_agents=except_agents,
    )


def _check_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    _queue.sequence("kinds", kinds)
    return tuple(sorted({_queue.name("kinds", kind) for kind in kinds}))


def _check_agents(pids: Sequence[int]) -> tuple[int, ...]:
    _queue.sequence("except_agents", pids)
    if len(pids) > EXCEPT_AGENTS_MAX:
        raise _queue.refuse("except_agents", f"may have at most {EXCEPT_AGENTS_MAX:,}, not {len(pids):,}")
    return tuple(sorted({_queue.whole("except_agents", pid) for pid in pids}))


def check_worker(worker_id: str, incarnation: str) -> Worker:
    """Check a worker's name and incarnation."""
    if incarnation != "":
        _queue.name("incarnation", incarnation)
    return Worker(_queue.name("worker_id", worker_id), incarnation)


def check_claim_options(admission_check: bool, claim_timeout_s: float) -> None:
    """Check the options that every kind of claim has."""
    _queue.flag("admission_check", admission_check)
    _queue.duration("claim_timeout_s", claim_timeout_s)

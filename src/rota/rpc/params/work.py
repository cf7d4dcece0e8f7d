"""What is said about entries and their runs."""

from __future__ import annotations

from typing import Any, Literal

from rota.kernel import Completion, EntryFilter, RunReport
from rota.kernel.claims import CLAIM_TIMEOUT_S
from rota.model.work import ScheduleSpec
from rota.rpc.params import Params


class EnqueueMany(Params, frozen=True):
    """Entries, all or none."""

    specs: list[ScheduleSpec]


class EnqueueUnique(Params, frozen=True):
    """An entry, and what makes another one the same."""

    spec: ScheduleSpec
    dedupe_by: tuple[str, ...] = ("pid", "trigger")


class Claim(Params, frozen=True):
    """A worker's wishes."""

    worker_id: str
    max_n: int = 1
    now: float | None = None
    admission_check: bool = True
    claim_timeout_s: float = CLAIM_TIMEOUT_S
    incarnation: str = ""
    kinds: tuple[str, ...] = ()
    wait_s: float = 0.0
    policy: str | None = None


class CompleteAndClaim(Claim, frozen=True, kw_only=True):
    """Runs that ended, and the worker's wishes for the next."""

    completions: list[Completion]


class Turn(Claim, frozen=True, kw_only=True):
    """What a supervisor's runs came to, and its wishes for the next; `max_n` of 0 takes nothing."""

    reports: list[RunReport]


class NudgeWorker(Params, frozen=True):
    """A worker whose waiting claim is to come back."""

    worker_id: str
    incarnation: str = ""


class Peek(Params, frozen=True):
    """How many entries to look at, for which kinds of slot, as which worker."""

    max_n: int = 1
    kinds: tuple[str, ...] = ()
    worker_id: str = "peek"


class Explain(Params, frozen=True, kw_only=True):
    """An entry, and the claim that it is asked about."""

    sched_id: int
    worker_id: str = "anybody"
    max_n: int = 1
    policy: str | None = None
    kinds: tuple[str, ...] = ()
    now: float | None = None


class Began(Params, frozen=True, kw_only=True):
    """A run that a runner began."""

    sched_id: int
    token: int
    slot: str
    runner: str
    os_pid: int | None = None


class Checkpointed(Params, frozen=True):
    """Where a run stands."""

    sched_id: int
    token: int
    state: dict[str, Any]


class Rest(Params, frozen=True, kw_only=True):
    """A run that waits for its children, or goes on."""

    sched_id: int
    token: int
    waiting: bool


class SpawnChild(Params, frozen=True):
    """Work for a child, and what its parent lends it."""

    spec: ScheduleSpec
    token: int
    lent: dict[str, int] | None = None


class Quarantine(Params, frozen=True):
    """An agent that keeps failing, and until when it is left alone."""

    pid: int
    failures: int
    until_at: float


class SupervisorMoves(Params, frozen=True):
    """What a supervisor does."""

    worker_id: str
    incarnation: str
    verb: str


class Complete(Params, frozen=True):
    """How a run ended."""

    sched_id: int
    exit_kind: str
    token: int | None = None
    result: Any = None
    outcome: str | None = None


class CompleteMany(Params, frozen=True):
    """How many runs ended."""

    completions: list[Completion]


class Heartbeat(Params, frozen=True):
    """A live claim."""

    sched_id: int
    token: int
    now: float | None = None


class HeartbeatMany(Params, frozen=True):
    """Live claims, as pairs of sched_id and token."""

    claims: list[tuple[int, int]]
    now: float | None = None


class ChargeRun(Params, frozen=True):
    """What a run used, per dimension."""

    sched_id: int
    amounts: dict[str, int]
    token: int | None = None


class PutBack(Params, frozen=True, kw_only=True):
    """A run that goes back into the queue."""

    sched_id: int
    token: int
    verb: Literal["yield", "preempt"] = "yield"
    runnable_at: float | None = None


class EntryId(Params, frozen=True):
    """An entry."""

    sched_id: int


class SetAffinityWait(Params, frozen=True):
    """How long an entry is kept for the worker it would rather have."""

    wait_s: float


class RequestCancel(Params, frozen=True):
    """An entry that is to stop, and who asks."""

    sched_id: int
    by: str | None = None


class Change(Params, frozen=True):
    """Other numbers for a waiting entry."""

    sched_id: int
    priority: int | None = None
    runnable_at: float | None = None
    deadline: float | None = None


class CancelWhere(Params, frozen=True):
    """Which entries to cancel."""

    wanted: EntryFilter
    reason: str | None = None


class RetryWhere(Params, frozen=True):
    """Which entries to run again."""

    wanted: EntryFilter


class ForceClaim(Params, frozen=True, kw_only=True):
    """One entry for one worker, whoever is first."""

    sched_id: int
    worker_id: str
    by: str = "operator"
    admission_check: bool = True
    claim_timeout_s: float = CLAIM_TIMEOUT_S
    incarnation: str = ""
    now: float | None = None


class ListEntries(Params, frozen=True):
    """Which entries, and which page of them."""

    state: str | None = None
    pid: int | None = None
    limit: int = 100
    offset: int = 0
    project_id: str | None = None
    trigger: str | None = None
    exit_kind: str | None = None
    tag: str | None = None


class WaitFor(Params, frozen=True):
    """An entry, and how long to wait for its end."""

    sched_id: int
    wait_s: float


class At(Params, frozen=True):
    """A caller's own time."""

    now: float | None = None


class Stale(Params, frozen=True):
    """How long ago a last heartbeat may be."""

    stale_seconds: float
    now: float | None = None


class TakeOver(Params, frozen=True):
    """A worker that has come back to life, and which life this is."""

    worker_id: str
    incarnation: str

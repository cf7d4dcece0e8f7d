"""Parameters of the methods for entries and their runs."""

from __future__ import annotations

from typing import Any, Literal

from rota.kernel import Completion, EntryFilter, RunReport
from rota.kernel.claim_request import CLAIM_TIMEOUT_S
from rota.model.work import ScheduleSpec
from rota.rpc.params import Params


class EnqueueManyParams(Params, frozen=True):
    """Entries to enqueue: all or none."""

    specs: list[ScheduleSpec]


class EnqueueUniqueParams(Params, frozen=True):
    """An entry, and the fields that make another entry a duplicate."""

    spec: ScheduleSpec
    dedupe_by: tuple[str, ...] = ("pid", "trigger")


class ClaimParams(Params, frozen=True):
    """A worker's claim."""

    worker_id: str
    max_n: int = 1
    now: float | None = None
    admission_check: bool = True
    claim_timeout_s: float = CLAIM_TIMEOUT_S
    incarnation: str = ""
    kinds: tuple[str, ...] = ()
    wait_s: float = 0.0
    policy: str | None = None


class CompleteAndClaimParams(ClaimParams, frozen=True, kw_only=True):
    """The runs that ended, and the claim for the next entries."""

    completions: list[Completion]


class TurnParams(ClaimParams, frozen=True, kw_only=True):
    """The reports of a supervisor's runs, and its next claim; a `max_n` of 0 claims nothing."""

    reports: list[RunReport]


class NudgeParams(Params, frozen=True):
    """The worker whose waiting claim should return."""

    worker_id: str
    incarnation: str = ""


class PeekParams(Params, frozen=True):
    """How many entries to return, for which kinds of slot, as which worker."""

    max_n: int = 1
    kinds: tuple[str, ...] = ()
    worker_id: str = "peek"


class ExplainParams(Params, frozen=True, kw_only=True):
    """An entry, and the claim to explain it for."""

    sched_id: int
    worker_id: str = "any-worker"
    max_n: int = 1
    policy: str | None = None
    kinds: tuple[str, ...] = ()
    now: float | None = None


class RunStartedParams(Params, frozen=True, kw_only=True):
    """A run that a runner started."""

    sched_id: int
    token: int
    slot: str
    runner: str
    os_pid: int | None = None


class CheckpointParams(Params, frozen=True):
    """A run's checkpoint."""

    sched_id: int
    token: int
    state: dict[str, Any]


class RestParams(Params, frozen=True, kw_only=True):
    """A run that waits for its children, or continues."""

    sched_id: int
    token: int
    waiting: bool


class SpawnParams(Params, frozen=True):
    """A child entry, and the budget its parent lends it."""

    spec: ScheduleSpec
    token: int
    lent: dict[str, int] | None = None


class QuarantineParams(Params, frozen=True):
    """An agent that keeps failing, and the end of its pause."""

    pid: int
    failures: int
    until_at: float


class SupervisorMovedParams(Params, frozen=True):
    """A supervisor and its new state."""

    worker_id: str
    incarnation: str
    verb: str


class CompleteParams(Params, frozen=True):
    """How a run ended."""

    sched_id: int
    exit_kind: str
    token: int | None = None
    result: Any = None
    outcome: str | None = None


class CompleteManyParams(Params, frozen=True):
    """How each of many runs ended."""

    completions: list[Completion]


class HeartbeatParams(Params, frozen=True):
    """The claim to extend."""

    sched_id: int
    token: int
    now: float | None = None


class HeartbeatManyParams(Params, frozen=True):
    """The claims to extend, as pairs of sched_id and token."""

    claims: list[tuple[int, int]]
    now: float | None = None


class ChargeRunParams(Params, frozen=True):
    """What a run used, per dimension."""

    sched_id: int
    amounts: dict[str, int]
    token: int | None = None


class PutBackParams(Params, frozen=True, kw_only=True):
    """A run whose entry returns to the queue."""

    sched_id: int
    token: int
    verb: Literal["yield", "preempt"] = "yield"
    runnable_at: float | None = None


class EntryIdParams(Params, frozen=True):
    """An entry."""

    sched_id: int


class SetAffinityWaitParams(Params, frozen=True):
    """How long an entry is reserved for its affinity worker."""

    wait_s: float


class RequestCancelParams(Params, frozen=True):
    """An entry to cancel, and who asks."""

    sched_id: int
    by: str | None = None


class ChangeEntryParams(Params, frozen=True):
    """New values for a queued entry."""

    sched_id: int
    priority: int | None = None
    runnable_at: float | None = None
    deadline: float | None = None


class CancelWhereParams(Params, frozen=True):
    """Which entries to cancel."""

    wanted: EntryFilter
    reason: str | None = None


class RetryWhereParams(Params, frozen=True):
    """Which entries to retry."""

    wanted: EntryFilter


class ForceClaimParams(Params, frozen=True, kw_only=True):
    """One entry to claim for one worker, out of order."""

    sched_id: int
    worker_id: str
    by: str = "operator"
    admission_check: bool = True
    claim_timeout_s: float = CLAIM_TIMEOUT_S
    incarnation: str = ""
    now: float | None = None


class ListEntriesParams(Params, frozen=True):
    """Which entries, and which page of them."""

    state: str | None = None
    pid: int | None = None
    limit: int = 100
    offset: int = 0
    project_id: str | None = None
    trigger: str | None = None
    exit_kind: str | None = None
    tag: str | None = None


class WaitParams(Params, frozen=True):
    """An entry, and how long to wait for its end."""

    sched_id: int
    wait_s: float


class NowParams(Params, frozen=True):
    """The time to use instead of the server's clock."""

    now: float | None = None


class StaleClaimsParams(Params, frozen=True):
    """The age of the last heartbeat from which a claim is taken back."""

    stale_seconds: float
    now: float | None = None


class TakeOverParams(Params, frozen=True):
    """A restarted worker and its present incarnation."""

    worker_id: str
    incarnation: str

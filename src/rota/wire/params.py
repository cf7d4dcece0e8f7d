"""What each method takes, where that is not one of the model's own nouns.

Field names and defaults are those of the kernel's verbs (a test compares them), so a call over the wire reads like a
call in the process.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from rota.kernel import Completion, EntryFilter, RunReport
from rota.kernel.claims import CLAIM_TIMEOUT_S
from rota.kernel.core import LIST_MAX
from rota.kernel.ledger import WARN_AT
from rota.kernel.windows import SHARE_WINDOW_S
from rota.model.budgets import Handle
from rota.model.work import WEIGHT_UNIT, ExitKind, Intent, ProjectConstraint, ScheduleSpec

__all__ = ["Params"]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a method takes."""


class Nothing(Params, frozen=True):
    """No parameters."""


# --- entries -------------------------------------------------------------------------------------


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
    """How many entries to look at, for which kinds of slot."""

    max_n: int = 1
    kinds: tuple[str, ...] = ()


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


# --- agents --------------------------------------------------------------------------------------


class CreateAgent(Params, frozen=True):
    """An agent to be."""

    name: str
    template: str = "callable"
    parent_pid: int | None = None
    metadata: dict[str, Any] | None = None
    project_id: str | None = None
    priority: int = 0
    weight: int = WEIGHT_UNIT
    intent: Intent = Intent.NEUTRAL
    rerunnable: bool = True
    max_concurrent: int | None = None
    unique: bool = False


class Pid(Params, frozen=True):
    """An agent."""

    pid: int


class Name(Params, frozen=True):
    """A name."""

    name: str


class ListAgents(Params, frozen=True):
    """Which agents, and which page of them."""

    state: str | None = None
    project_id: str | None = None
    limit: int = 100
    offset: int = 0


class Transition(Params, frozen=True):
    """Another state for an agent."""

    pid: int
    state: str
    reason: str | None = None
    expect: str | None = None


class UpdateAgent(Params, frozen=True):
    """Other settings for an agent; what is left out stays."""

    pid: int
    priority: int | UnsetType = UNSET
    weight: int | UnsetType = UNSET
    intent: Intent | UnsetType = UNSET
    max_concurrent: int | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class PauseAgent(Params, frozen=True):
    """An agent that gets no more runs, who says so and why."""

    pid: int
    by: str
    reason: str | None = None


class ResumeAgent(Params, frozen=True):
    """An agent whose pause ends, and who says so."""

    pid: int
    by: str


class Terminate(Params, frozen=True):
    """How an agent ends for good."""

    pid: int
    exit_kind: ExitKind
    detail: dict[str, Any] | None = None
    queued: Literal["cancel", "keep"] = "cancel"


class Recover(Params, frozen=True):
    """What becomes of agents that were at work when everything stopped."""

    policy: Literal["mark-suspended", "mark-dead"] = "mark-suspended"
    reason: str = "daemon_restart"


# --- budgets -------------------------------------------------------------------------------------


class CreateLedger(Params, frozen=True):
    """Totals for an agent, per dimension."""

    pid: int
    grants: dict[str, int]
    warn_at: float = WARN_AT


class Amount(Params, frozen=True):
    """An amount of one dimension of an agent's ledger."""

    pid: int
    dim: str
    amount: int


class UpdateGrant(Params, frozen=True):
    """Another total for an agent in one dimension."""

    pid: int
    dim: str
    granted: int


class SetBudget(Params, frozen=True):
    """What a project, or everybody, may use per rolling window; a limit of null lifts it."""

    level: Literal["project", "global"]
    owner: str
    dim: str
    limit: int | None
    window_s: float = SHARE_WINDOW_S


class SetShareWindow(Params, frozen=True):
    """How far back fair_share looks."""

    window_s: float


class CreateContext(Params, frozen=True, kw_only=True):
    """A budget per period, and what it is bound to."""

    bound_to: str
    bound_id: str | int
    budget: int
    period_s: float
    unit: str = "tokens"


class ContextId(Params, frozen=True):
    """A context."""

    context_id: int


class ListPage(Params, frozen=True):
    """Which page."""

    limit: int = 100
    offset: int = 0


class AdjustContext(Params, frozen=True):
    """Other numbers for a context."""

    context_id: int
    budget: int
    period_s: float


class ResolveHandle(Params, frozen=True):
    """A handle to a context, as a pair of slot and generation."""

    handle: Handle


class ChargeContext(Params, frozen=True):
    """Usage of a context outside of any run."""

    context_id: int
    amount: int
    now: float | None = None


class Throttle(Params, frozen=True):
    """A pause that a provider asked for, and the entry that was told."""

    name: str
    retry_after_s: float
    by: int | None = None


# --- projects ------------------------------------------------------------------------------------


class CreateProject(Params, frozen=True):
    """A project to be."""

    project_id: str
    name: str | None = None
    weight: int = WEIGHT_UNIT
    max_concurrent: int | None = None
    metadata: dict[str, Any] | None = None


class ProjectId(Params, frozen=True):
    """A project."""

    project_id: str


class ListProjects(Params, frozen=True):
    """Which projects, and which page of them."""

    status: str | None = None
    limit: int = 100
    offset: int = 0


class UpdateProject(Params, frozen=True):
    """Other settings for a project; what is left out stays."""

    project_id: str
    name: str | UnsetType = UNSET
    weight: int | UnsetType = UNSET
    max_concurrent: int | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class Constrain(Params, frozen=True):
    """A constraint on a project; an empty one releases it."""

    project_id: str
    constraint: ProjectConstraint


class MoveProject(Params, frozen=True):
    """Another status for a project, and who says so."""

    project_id: str
    verb: str
    by: str = "operator"


class PauseFleet(Params, frozen=True):
    """Who pauses everybody, and why."""

    by: str
    reason: str | None = None


class ResumeFleet(Params, frozen=True):
    """Who ends the pause of everybody."""

    by: str


class AddWorkspace(Params, frozen=True):
    """A folder for a project's runs."""

    workspace_id: str
    project_id: str
    path: str
    source: str = "folder"


class WorkspaceId(Params, frozen=True):
    """A workspace."""

    workspace_id: str


# --- events and the daemon itself ----------------------------------------------------------------


class AppendEvent(Params, frozen=True):
    """An event of the caller's own."""

    pid: int | None
    kind: str
    payload: dict[str, Any] | None = None
    causation_id: str | None = None
    correlation_id: str | None = None


class Tail(Params, frozen=True):
    """Events after a cursor; while there are none, wait."""

    since: int = 0
    limit: int = 1_000
    pid: int | None = None
    kinds: tuple[str, ...] = ()
    wait_s: float = 0.0


class RecordFact(Params, frozen=True):
    """A fact about running work, by its kind."""

    kind: str
    payload: dict[str, Any]
    pid: int | None = None


class Remember(Params, frozen=True):
    """A note under a name."""

    name: str
    note: dict[str, Any]


class PausedAgents(Params, frozen=True):
    """Who has paused them."""

    by: str
    limit: int = LIST_MAX


class Hello(Params, frozen=True):
    """Which protocol a client speaks, and who it is."""

    protocol: int
    client: str = ""


class Prune(Params, frozen=True, kw_only=True):
    """How old facts and finished entries may become."""

    events_older_than_s: float
    entries_older_than_s: float


class CreateToken(Params, frozen=True):
    """What a new token may do, in which projects (null: all), and for how long (null: for ever)."""

    name: str
    scope: str
    projects: tuple[str, ...] | None = None
    expires_in_s: float | None = None


class TokenId(Params, frozen=True):
    """A token, by its id."""

    token_id: str

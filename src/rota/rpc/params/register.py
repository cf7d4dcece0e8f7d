"""What is said about all that is kept: agents, budgets, projects, events, and who may talk to the daemon."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from rota.kernel.core import LIST_MAX
from rota.kernel.ledger import WARN_AT
from rota.kernel.usage_windows import SHARE_WINDOW_S
from rota.model.budgets import Handle
from rota.model.work import WEIGHT_UNIT, ExitKind, Intent, ProjectConstraint
from rota.rpc.params import Params

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

"""Parameters of the methods for agents, ledgers, budgets, contexts and projects."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from rota.kernel.ledger import WARN_AT
from rota.kernel.paging import LIST_MAX
from rota.kernel.usage_windows import SHARE_WINDOW_S
from rota.model.budgets import Handle
from rota.model.work import WEIGHT_UNIT, ExitKind, Intent, ProjectConstraint
from rota.rpc.params import Params

# --- agents --------------------------------------------------------------------------------------


class CreateAgentParams(Params, frozen=True):
    """The agent to create."""

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


class PidParams(Params, frozen=True):
    """An agent."""

    pid: int


class ListAgentsParams(Params, frozen=True):
    """Which agents, and which page of them."""

    state: str | None = None
    project_id: str | None = None
    limit: int = 100
    offset: int = 0


class TransitionParams(Params, frozen=True):
    """An agent's new state."""

    pid: int
    state: str
    reason: str | None = None
    expect: str | None = None


class UpdateAgentParams(Params, frozen=True):
    """New settings for an agent; omitted fields stay as they are."""

    pid: int
    priority: int | UnsetType = UNSET
    weight: int | UnsetType = UNSET
    intent: Intent | UnsetType = UNSET
    max_concurrent: int | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class PauseAgentParams(Params, frozen=True):
    """The agent to pause, who asks, and why."""

    pid: int
    by: str
    reason: str | None = None


class ResumeAgentParams(Params, frozen=True):
    """The agent to resume, and who asks."""

    pid: int
    by: str


class PausedAgentsParams(Params, frozen=True):
    """Who paused the agents."""

    by: str
    limit: int = LIST_MAX


class TerminateParams(Params, frozen=True):
    """How an agent ends."""

    pid: int
    exit_kind: ExitKind
    detail: dict[str, Any] | None = None
    queued: Literal["cancel", "keep"] = "cancel"


class RecoverParams(Params, frozen=True):
    """What happens to agents that were running at a crash."""

    policy: Literal["mark-suspended", "mark-dead"] = "mark-suspended"
    reason: str = "daemon_restart"


# --- budgets -------------------------------------------------------------------------------------


class CreateLedgerParams(Params, frozen=True):
    """Grants for an agent, per dimension."""

    pid: int
    grants: dict[str, int]
    warn_at: float = WARN_AT


class AmountParams(Params, frozen=True):
    """An amount in one dimension of an agent's ledger."""

    pid: int
    dim: str
    amount: int


class UpdateGrantParams(Params, frozen=True):
    """A new grant for an agent in one dimension."""

    pid: int
    dim: str
    granted: int


class SetBudgetParams(Params, frozen=True):
    """The budget of a project, or of the whole store, per rolling window; a limit of null removes it."""

    level: Literal["project", "global"]
    owner: str
    dim: str
    limit: int | None
    window_s: float = SHARE_WINDOW_S


class SetShareWindowParams(Params, frozen=True):
    """How far back fair_share looks."""

    window_s: float


class CreateContextParams(Params, frozen=True, kw_only=True):
    """A budget per period, and what it is bound to."""

    bound_to: str
    bound_id: str | int
    budget: int
    period_s: float
    unit: str = "tokens"


class ContextIdParams(Params, frozen=True):
    """A context."""

    context_id: int


class PageParams(Params, frozen=True):
    """Which page."""

    limit: int = 100
    offset: int = 0


class AdjustContextParams(Params, frozen=True):
    """New numbers for a context."""

    context_id: int
    budget: int
    period_s: float


class ResolveHandleParams(Params, frozen=True):
    """A handle of a context, as a pair of slot and generation."""

    handle: Handle


class ChargeContextParams(Params, frozen=True):
    """Usage of a context outside of any run."""

    context_id: int
    amount: int
    now: float | None = None


class ThrottleParams(Params, frozen=True):
    """A pause that a provider asked for, and the entry that met it."""

    name: str
    retry_after_s: float
    by: int | None = None


# --- projects ------------------------------------------------------------------------------------


class CreateProjectParams(Params, frozen=True):
    """The project to create."""

    project_id: str
    name: str | None = None
    weight: int = WEIGHT_UNIT
    max_concurrent: int | None = None
    metadata: dict[str, Any] | None = None


class ProjectIdParams(Params, frozen=True):
    """A project."""

    project_id: str


class ListProjectsParams(Params, frozen=True):
    """Which projects, and which page of them."""

    status: str | None = None
    limit: int = 100
    offset: int = 0


class UpdateProjectParams(Params, frozen=True):
    """New settings for a project; omitted fields stay as they are."""

    project_id: str
    name: str | UnsetType = UNSET
    weight: int | UnsetType = UNSET
    max_concurrent: int | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class ConstrainParams(Params, frozen=True):
    """A constraint on a project; an empty one removes it."""

    project_id: str
    constraint: ProjectConstraint


class MoveProjectParams(Params, frozen=True):
    """A project's new status, and who asks."""

    project_id: str
    verb: str
    by: str = "operator"


class PauseFleetParams(Params, frozen=True):
    """Who pauses the fleet, and why."""

    by: str
    reason: str | None = None


class ResumeFleetParams(Params, frozen=True):
    """Who resumes the fleet."""

    by: str


class AddWorkspaceParams(Params, frozen=True):
    """A folder for a project's runs."""

    workspace_id: str
    project_id: str
    path: str
    source: str = "folder"


class WorkspaceIdParams(Params, frozen=True):
    """A workspace."""

    workspace_id: str

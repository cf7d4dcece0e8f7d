"""Results of the methods for agents, ledgers, budgets, contexts and projects."""

from __future__ import annotations

import msgspec

from rota.kernel.ledger import ChargePreview
from rota.model.budgets import BudgetLine, LedgerLine, SchedulingContext
from rota.model.work import Agent, Project, Workspace
from rota.rpc.results import many_fields

# --- agents, budgets, projects, events -----------------------------------------------------------


class CreateAgentResult(msgspec.Struct, frozen=True):
    """The new agent."""

    pid: int


class AgentListResult(msgspec.Struct, frozen=True):
    """Agents."""

    agents: list[Agent]


class AgentPageResult(msgspec.Struct, frozen=True):
    """A page of agents, and the number of matches."""

    agents: list[Agent]
    total: int


class PidsResult(msgspec.Struct, frozen=True):
    """The agents that were changed."""

    pids: list[int]


class LedgerLinesResult(msgspec.Struct, frozen=True):
    """Ledger lines."""

    entries: list[LedgerLine]


class CheckChargeResult(msgspec.Struct, frozen=True):
    """The effect of a charge."""

    used: int
    would_use: int
    hard_limit: int
    would_exceed: bool


class BudgetsResult(msgspec.Struct, frozen=True):
    """The project budgets and the global budgets."""

    budgets: list[BudgetLine]


class ContextsResult(msgspec.Struct, frozen=True):
    """Contexts."""

    contexts: list[SchedulingContext]


class UntilResult(msgspec.Struct, frozen=True):
    """The end of the pause."""

    until_at: float


class ProjectPageResult(msgspec.Struct, frozen=True):
    """A page of projects, and the number of matches."""

    projects: list[Project]
    total: int


class WorkspacesResult(msgspec.Struct, frozen=True):
    """Workspaces and the runs that hold them."""

    workspaces: list[Workspace]


class PausedByResult(msgspec.Struct, frozen=True):
    """Who paused the fleet; null if it is not paused."""

    paused_by: str | None


class ShareWindowResult(msgspec.Struct, frozen=True):
    """How far back fair_share looks, in seconds."""

    window_s: float


CHECK_CHARGE = many_fields(CheckChargeResult, ChargePreview)

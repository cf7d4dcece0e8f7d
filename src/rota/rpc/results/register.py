"""What is answered about all that is kept: agents, budgets, projects, events, and who may talk to the daemon."""

from __future__ import annotations

from typing import Any

import msgspec

from rota.kernel.ledger import Checked
from rota.kernel.retention import Pruning
from rota.model.budgets import BudgetLine, LedgerLine, SchedulingContext
from rota.model.events import Event
from rota.model.work import Agent, Project, Workspace
from rota.rpc.results import Shape, fields

# --- agents, budgets, projects, events -----------------------------------------------------------


class NewAgent(msgspec.Struct, frozen=True):
    """The new agent."""

    pid: int


class AgentList(msgspec.Struct, frozen=True):
    """Agents."""

    agents: list[Agent]


class AgentPage(msgspec.Struct, frozen=True):
    """A page of agents, and how many match in all."""

    agents: list[Agent]
    total: int


class Pids(msgspec.Struct, frozen=True):
    """The agents concerned."""

    pids: list[int]


class Lines(msgspec.Struct, frozen=True):
    """Ledger lines."""

    entries: list[LedgerLine]


class WouldUse(msgspec.Struct, frozen=True):
    """What a charge would do."""

    used: int
    would_use: int
    hard_limit: int
    would_exceed: bool


class Budgets(msgspec.Struct, frozen=True):
    """Budgets of projects and of everybody."""

    budgets: list[BudgetLine]


class Contexts(msgspec.Struct, frozen=True):
    """Contexts."""

    contexts: list[SchedulingContext]


class Until(msgspec.Struct, frozen=True):
    """Until when."""

    until_at: float


class ProjectPage(msgspec.Struct, frozen=True):
    """A page of projects, and how many match in all."""

    projects: list[Project]
    total: int


class Workspaces(msgspec.Struct, frozen=True):
    """Workspaces and who holds them."""

    workspaces: list[Workspace]


class PausedBy(msgspec.Struct, frozen=True):
    """Who paused everybody; null if nobody did."""

    paused_by: str | None


class ShareWindow(msgspec.Struct, frozen=True):
    """How far back fair_share looks, in seconds."""

    window_s: float


class Appended(msgspec.Struct, frozen=True):
    """The new event."""

    event_id: int


class Note(msgspec.Struct, frozen=True):
    """What is kept under a name; null if nothing is."""

    note: dict[str, Any] | None


class Cursor(msgspec.Struct, frozen=True):
    """The last event."""

    cursor: int


class Events(msgspec.Struct, frozen=True):
    """Events, oldest first, and where to go on."""

    events: list[Event]
    next_cursor: int


EVENTS = Shape(
    Events,
    lambda params, events: Events(events, events[-1].event_id if events else params.since),
    lambda result: result.events,
)
WOULD_USE = fields(WouldUse, Checked)
# --- the daemon itself ---------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True):
    """Who answers, in which versions, and what the caller may do."""

    rota_version: str
    protocol: int
    store: str
    policy: str
    caller: str
    scope: str
    projects: tuple[str, ...] | None = None


class Pruned(msgspec.Struct, frozen=True):
    """What was removed, behind which checkpoint."""

    events: int
    entries: int
    checkpoint_id: int


PRUNED = fields(Pruned, Pruning)


class Checkpoint(msgspec.Struct, frozen=True):
    """The event that a checkpoint is true at."""

    through_id: int


class TokenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    token_id: str
    name: str
    scope: str
    projects: tuple[str, ...] | None = None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class NewToken(msgspec.Struct, frozen=True):
    """A token with its secret, which is shown this once."""

    token: str
    line: TokenLine


class Tokens(msgspec.Struct, frozen=True):
    """Every token, without its secret."""

    tokens: list[TokenLine]

"""The tables of a fleet file: what a fleet is made of.

    store = "rota.db"
    policy = "eevdf"
    slots = 4

    [projects.research]
    weight = 3
    budget = {tokens = 200_000}

    [agents.reader]
    project = "research"
    command = "python read.py"
    triggers = [{cron = "0 9 * * mon-fri", zone = "Europe/Berlin"}]

A structure here is a table of the file, a field is a key, and its description is what the reference page and an
editor show. Relative paths are relative to the file's own folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rota.fleet.config.agent_tables import (
    DIMENSIONS_MAX,
    AgentTable,
    Amount,
    Cap,
    Grant,
    Name,
    RestartTable,
    RunLimitsTable,
    Text,
    TriggerTable,
    Weight,
)
from rota.fleet.config.units import Seconds, schema_of, usually_s
from rota.fleet.log_folder import LOGS_MAX
from rota.model.checks import AMOUNT_MAX
from rota.model.work import WEIGHT_UNIT

__all__ = [
    "AGENTS_MAX",
    "SLOTS_MAX",
    "AgentTable",
    "Fleet",
    "FleetFile",
    "LimitTable",
    "PolicyTable",
    "PreemptionTable",
    "ProjectTable",
    "RationTable",
    "RestartTable",
    "RunLimitsTable",
    "SchedulingTable",
    "TriggerTable",
    "WorktreesTable",
    "schema",
]

AGENTS_MAX = 10_000
PROJECTS_MAX = 1_000
LIMITS_MAX = 1_000
WORKSPACES_MAX = 256  # of one project
SLOTS_MAX = 4_096
PLAIN_SLOT = "any"  # in a table of slots: those that are of no kind

Slots = Annotated[int, Meta(ge=1, le=SLOTS_MAX)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file."""


class PolicyTable(_Table, frozen=True, kw_only=True):
    """A policy with parameters."""

    name: Annotated[str, Meta(description="A registered policy; `rota policy list` shows them.")]
    params: Annotated[dict[str, Any], Meta(description="Its parameters.")] = {}


class PreemptionTable(_Table, frozen=True, kw_only=True):
    """Whether an entry of a higher band may ask a running one for its slot."""

    bands: Annotated[
        tuple[int, ...],
        Meta(description="Where one band of priorities ends and the next begins, rising.", min_length=1, max_length=16),
    ]
    grace_s: Annotated[Seconds, Meta(description="How long the lower one has to checkpoint and yield.")] = usually_s(30)


class SchedulingTable(_Table, frozen=True, kw_only=True):
    """What holds for everybody."""

    rolling_window_hours: Annotated[
        float, Meta(description="The window that budgets count in, and that `fair_share` looks back.", gt=0, le=8784)
    ] = 24.0
    min_task_guarantee: Annotated[
        bool, Meta(description="`fair_share`: a project without a run in the window goes first.")
    ] = True
    affinity_wait_s: Annotated[
        Seconds, Meta(description="How long an entry is kept for the worker it would rather have.")
    ] = usually_s(120)
    budget: Annotated[
        dict[str, Amount],
        Meta(description="What everybody together may use per window, by dimension.", max_length=DIMENSIONS_MAX),
    ] = {}
    preemption: Annotated[PreemptionTable | None, Meta(description="Off unless this table is there.")] = None


class WorktreesTable(_Table, frozen=True, kw_only=True):
    """Workspaces that are worktrees of a git repository."""

    worktrees_of: Annotated[Text, Meta(description="The repository's folder.")]
    count: Annotated[int, Meta(description="How many worktrees.", ge=1, le=WORKSPACES_MAX)] = 1
    branch: Annotated[
        Text, Meta(description="What a new worktree is checked out at, detached: a branch, a tag, a commit.")
    ] = "HEAD"
    folder: Annotated[
        str | None, Meta(description="Where the worktrees are put; `worktrees/PROJECT` if nothing is said.")
    ] = None


class ProjectTable(_Table, frozen=True, kw_only=True):
    """A fair-share account."""

    weight: Annotated[Weight, Meta(description="Its share against the other projects.")] = 1.0
    max_concurrent: Annotated[Cap | None, Meta(description="Runs at once, whatever its share.")] = None
    budget: Annotated[
        dict[str, Amount], Meta(description="What it may use per window, by dimension.", max_length=DIMENSIONS_MAX)
    ] = {}
    workspaces: Annotated[
        tuple[str, ...] | WorktreesTable,
        Meta(description="Folders its runs can have for themselves, or a table of git worktrees."),
    ] = ()

    @property
    def thousandths(self) -> int:
        """The weight as the kernel counts it."""
        return round(self.weight * WEIGHT_UNIT)


class RationTable(_Table, frozen=True, kw_only=True):
    """So many per period."""

    budget: Annotated[int, Meta(description="How many per period.", ge=1, le=AMOUNT_MAX)]
    period_s: Annotated[Seconds, Meta(description="The period; what was used comes back one period later.")] = (
        usually_s(60)
    )


class LimitTable(_Table, frozen=True, kw_only=True):
    """A provider's limit, shared by all agents that draw on its name."""

    requests_per_minute: Annotated[Grant | None, Meta(description="Runs that may begin per minute.")] = None
    tokens_per_minute: Annotated[Grant | None, Meta(description="Tokens per minute.")] = None
    requests: Annotated[RationTable | None, Meta(description="Requests per any period.")] = None
    tokens: Annotated[RationTable | None, Meta(description="Tokens per any period.")] = None

    def __post_init__(self) -> None:
        for unit in ("requests", "tokens"):
            if getattr(self, unit) is not None and getattr(self, f"{unit}_per_minute") is not None:
                raise ValueError(f"says both {unit} and {unit}_per_minute; keep one of them")
        if not self.rations:
            raise ValueError("limits nothing: say requests_per_minute, tokens_per_minute, requests or tokens")

    @property
    def rations(self) -> dict[str, RationTable]:
        """What is limited, by unit."""
        minutes = {"requests": self.requests_per_minute, "tokens": self.tokens_per_minute}
        said = {unit: RationTable(budget=budget) for unit, budget in minutes.items() if budget is not None}
        periods = {"requests": self.requests, "tokens": self.tokens}
        return said | {unit: ration for unit, ration in periods.items() if ration is not None}


class FleetFile(_Table, frozen=True, kw_only=True):
    """A fleet: who runs, on what, on whose budget."""

    name: Annotated[
        Name | None, Meta(description="Tells fleets on one store apart; the file's name if nothing is said.")
    ] = None
    store: Annotated[
        Text,
        Meta(
            description="The file that everything is kept in, or a daemon's address (`unix:/path`, `http://host:port`)."
        ),
    ] = "rota.db"
    policy: Annotated[str | PolicyTable, Meta(description="Who goes next; `rota policy list` shows what there is.")] = (
        "eevdf"
    )
    slots: Annotated[
        Slots | dict[str, Slots],
        Meta(description="How many runs at once, or a table of kinds of slots (`any` is no kind)."),
    ] = 4
    worker_id: Annotated[Name | None, Meta(description="Who claims; the machine's name if nothing is said.")] = None
    logs_max: Annotated[
        int,
        Meta(
            description="Runs whose output is kept in files, in `STORE-logs`; the oldest go first. 0 keeps none.",
            ge=0,
            le=1_000_000,
        ),
    ] = LOGS_MAX
    scheduling: Annotated[SchedulingTable, Meta(description="What holds for everybody.")] = SchedulingTable()
    projects: Annotated[dict[str, ProjectTable], Meta(description="By name.", max_length=PROJECTS_MAX)] = {}
    limits: Annotated[
        dict[str, LimitTable], Meta(description="Providers' limits, by the name agents draw on.", max_length=LIMITS_MAX)
    ] = {}
    agents: Annotated[dict[str, AgentTable], Meta(description="By name.", max_length=AGENTS_MAX)] = {}

    @property
    def policy_name(self) -> str:
        """The policy's name."""
        return self.policy if isinstance(self.policy, str) else self.policy.name

    @property
    def policy_params(self) -> dict[str, Any]:
        """The policy's parameters; the guarantee of `[scheduling]` is `fair_share`'s own, unless it was told there."""
        said = {} if isinstance(self.policy, str) else self.policy.params
        if self.policy_name == "fair_share":
            return {"min_guarantee": self.scheduling.min_task_guarantee, **said}
        return dict(said)

    @property
    def slot_kinds(self) -> tuple[tuple[str, ...], ...]:
        """The kinds of each slot; a slot of no kind has none."""
        if isinstance(self.slots, int):
            return ((),) * self.slots
        return tuple(() if kind == PLAIN_SLOT else (kind,) for kind, count in self.slots.items() for _ in range(count))


class Fleet(FleetFile, frozen=True, kw_only=True):
    """A fleet as read from a file."""

    path: str  # of the file, absolute

    @property
    def folder(self) -> str:
        """Where relative paths begin."""
        return str(Path(self.path).parent)

    @property
    def title(self) -> str:
        """What it is told apart by."""
        return self.name or Path(self.path).stem

    @property
    def store_path(self) -> str:
        """The store's address, with a file's path made absolute."""
        if self.store == ":memory:" or "://" in self.store or self.store.startswith("unix:"):
            return self.store
        return self.at(self.store)

    def at(self, path: str) -> str:
        """A path of the file, made absolute."""
        return os.path.normpath(Path(self.folder, path))


def schema() -> dict[str, Any]:
    """The file as a JSON Schema, for editors that help while one writes."""
    made = msgspec.json.schema(FleetFile, schema_hook=schema_of)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rota fleet file", **made}

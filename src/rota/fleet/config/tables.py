"""The tables of a fleet file.

    store = "rota.db"
    slots = 4

    [projects.research]
    weight = 3
    budget = {tokens = 200_000}

    [agents.reader]
    project = "research"
    command = "python read.py"
    triggers = [{cron = "0 9 * * mon-fri", zone = "Europe/Berlin"}]

Each structure is a table of the file, each field a key. The reference page and editors show a field's description.
Relative paths start at the file's own folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rota.fleet.config.agent_tables import (
    ALERTS_TEXT,
    DIMENSIONS_MAX,
    MONEY,
    AgentTable,
    Amount,
    Cap,
    Grant,
    Name,
    RestartTable,
    RunLimitsTable,
    Share,
    Text,
    TriggerTable,
    Weight,
)
from rota.fleet.config.graph_tables import GraphAgent, GraphTable
from rota.fleet.config.hook_tables import HookAgent, HookTable
from rota.fleet.config.retention_table import RetentionTable
from rota.fleet.config.units import Bytes, Dollars, Seconds, default_bytes, default_seconds, unit_schema
from rota.fleet.config.worktree_tables import WORKSPACES_MAX, WorktreesTable
from rota.model.budgets import ALERTS, ALERTS_MAX
from rota.model.checks import AMOUNT_MAX
from rota.model.cpu import CpuSettings
from rota.model.policy_setting import PolicySetting, ShareBy
from rota.model.prices import PRICES_MAX, ModelPrice
from rota.model.ray import IN_FLIGHT_MAX, LINGER_S, PENDING_S, RayCluster, address_problem
from rota.model.work import WEIGHT_UNIT
from rota.policy.contract import PolicyIsolation
from rota.policy.registry import DEFAULT_NAME, DEFAULT_PARAMS
from rota.service.log_folder import LOGS_BYTES_MAX, LOGS_MAX
from rota.store.addresses import is_mistyped, without_password

__all__ = [
    "AGENTS_MAX",
    "SLOTS_MAX",
    "WORKSPACES_MAX",
    "AgentTable",
    "Fleet",
    "FleetFile",
    "GraphTable",
    "HookTable",
    "LimitTable",
    "PeriodBudgetTable",
    "PolicyTable",
    "PreemptionTable",
    "PriceTable",
    "ProjectTable",
    "RayTable",
    "RestartTable",
    "RetentionTable",
    "RunLimitsTable",
    "SchedulingTable",
    "TriggerTable",
    "WorktreesTable",
    "fleet_schema",
]

AGENTS_MAX = 10_000
PROJECTS_MAX = 1_000
LIMITS_MAX = 1_000
HOOKS_MAX = 100
GRAPHS_MAX = 100
SLOTS_MAX = 4_096
ANY_SLOT = "any"  # in a table of slots: the number of slots without a kind

Slots = Annotated[int, Meta(ge=1, le=SLOTS_MAX)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file."""


class PolicyTable(_Table, frozen=True, kw_only=True):
    """A policy with parameters."""

    name: Annotated[str, Meta(description="A registered policy; `rota policy list` shows them.")]
    params: Annotated[dict[str, Any], Meta(description="Parameters of the policy.")] = {}
    isolation: Annotated[
        PolicyIsolation,
        Meta(
            description="Where a policy of another package runs: on a `thread` of the supervisor, or in a `process` of "
            "its own, whose memory and time are limited and which is replaced when it fails."
        ),
    ] = "thread"


class PreemptionTable(_Table, frozen=True, kw_only=True):
    """Preemption: an entry of a higher priority band may stop a run of a lower one to take its slot."""

    bands: Annotated[
        tuple[int, ...],
        Meta(description="Priorities at which a new band begins, ascending.", min_length=1, max_length=16),
    ]
    grace_s: Annotated[Seconds, Meta(description="Time that the lower run has to checkpoint and yield.")] = (
        default_seconds(30)
    )


class SchedulingTable(_Table, frozen=True, kw_only=True):
    """Settings for all projects."""

    rolling_window_hours: Annotated[
        float,
        Meta(description="Length of the window for budgets and for the usage that `fair_share` counts.", gt=0, le=8784),
    ] = 24.0
    share_by: Annotated[
        ShareBy | None,
        Meta(
            description="What sharing counts, for the whole store: `tokens`, `cost` (cost_micro), `cpu` (seconds of "
            "CPU time), `gpu` (seconds of GPUs, on Ray) or `seconds`. A run that charged nothing of it counts its "
            "expected usage, else its seconds. "
            "Default: the store's; without one, tokens."
        ),
    ] = None
    min_task_guarantee: Annotated[
        bool, Meta(description="`fair_share`: a project without a run in the window goes first.")
    ] = True
    affinity_wait_s: Annotated[
        Seconds, Meta(description="Maximum time for which a ready entry is reserved for its affinity worker.")
    ] = default_seconds(120)
    budget: Annotated[
        dict[str, Amount],
        Meta(
            description="What all projects together may use per window, by dimension. `usd` is in dollars.",
            max_length=DIMENSIONS_MAX,
            **MONEY,
        ),
    ] = {}
    alerts: Annotated[
        tuple[Share, ...], Meta(description=f"{ALERTS_TEXT}, once per window.", max_length=ALERTS_MAX)
    ] = ALERTS
    preemption: Annotated[PreemptionTable | None, Meta(description="Preemption; off without this table.")] = None


class ProjectTable(_Table, frozen=True, kw_only=True):
    """A project: the account of fair shares, caps and budgets."""

    weight: Annotated[Weight, Meta(description="Its share among the projects.")] = 1.0
    max_concurrent: Annotated[
        Cap | None, Meta(description="Maximum number of its runs at a time, whatever its share.")
    ] = None
    budget: Annotated[
        dict[str, Amount],
        Meta(
            description="What it may use per window, by dimension. `usd` is in dollars.",
            max_length=DIMENSIONS_MAX,
            **MONEY,
        ),
    ] = {}
    alerts: Annotated[
        tuple[Share, ...], Meta(description=f"{ALERTS_TEXT}, once per window.", max_length=ALERTS_MAX)
    ] = ALERTS
    cpu: Annotated[
        CpuSettings | None, Meta(description="CPU time and cores of all its runs together: weight, quota, cores.")
    ] = None
    workspaces: Annotated[
        tuple[str, ...] | WorktreesTable,
        Meta(description="Folders that its runs can reserve, or a table of git worktrees."),
    ] = ()

    @property
    def weight_units(self) -> int:
        """The weight in the kernel's integer unit (thousandths)."""
        return round(self.weight * WEIGHT_UNIT)


class PeriodBudgetTable(_Table, frozen=True, kw_only=True):
    """A budget per period."""

    budget: Annotated[int, Meta(description="Amount per period.", ge=1, le=AMOUNT_MAX)]
    period_s: Annotated[Seconds, Meta(description="The period; used amounts are available again one period later.")] = (
        default_seconds(60)
    )


class LimitTable(_Table, frozen=True, kw_only=True):
    """A limit of a provider, shared by all agents that draw on its name."""

    requests_per_minute: Annotated[Grant | None, Meta(description="Runs that may start per minute.")] = None
    tokens_per_minute: Annotated[Grant | None, Meta(description="Tokens per minute.")] = None
    requests: Annotated[PeriodBudgetTable | None, Meta(description="Requests per given period.")] = None
    tokens: Annotated[PeriodBudgetTable | None, Meta(description="Tokens per given period.")] = None
    cpu_ms: Annotated[
        PeriodBudgetTable | None, Meta(description="Milliseconds of measured CPU time per given period.")
    ] = None

    def __post_init__(self) -> None:
        for unit in ("requests", "tokens"):
            if getattr(self, unit) is not None and getattr(self, f"{unit}_per_minute") is not None:
                raise ValueError(f"{unit} and {unit}_per_minute are both set; keep one of them")
        if not self.budgets:
            raise ValueError(
                "no limit is set; expected requests_per_minute, tokens_per_minute, requests, tokens or cpu_ms"
            )

    @property
    def budgets(self) -> dict[str, PeriodBudgetTable]:
        """The budgets per period, by unit."""
        per_minute = {"requests": self.requests_per_minute, "tokens": self.tokens_per_minute}
        given = {unit: PeriodBudgetTable(budget=budget) for unit, budget in per_minute.items() if budget is not None}
        per_period = {"requests": self.requests, "tokens": self.tokens, "cpu_ms": self.cpu_ms}
        return given | {unit: budget for unit, budget in per_period.items() if budget is not None}


class PriceTable(_Table, frozen=True, kw_only=True):
    """What a model's tokens cost, in dollars per million."""

    input_per_million: Annotated[Dollars, Meta(description="Dollars for a million input tokens.")]
    output_per_million: Annotated[Dollars, Meta(description="Dollars for a million output tokens.")]
    cached_input_per_million: Annotated[
        Dollars | None,
        Meta(description="Dollars for a million input tokens read from a cache; default: the price of input."),
    ] = None

    @property
    def price(self) -> ModelPrice:
        """The price as the store has it."""
        cached = self.cached_input_per_million
        return ModelPrice(
            input_micro=int(self.input_per_million),
            output_micro=int(self.output_per_million),
            cached_input_micro=None if cached is None else int(cached),
        )


class RayTable(_Table, frozen=True, kw_only=True):
    """The Ray cluster for agents with `runner = "ray"`."""

    address: Annotated[
        Text | None,
        Meta(
            description="Address of the cluster's head, `host:port`. Default: the variable `RAY_ADDRESS`; without it, "
            "the cluster that runs on this machine, or else a new one for this supervisor."
        ),
    ] = None
    pending_s: Annotated[
        Seconds,
        Meta(
            description="How long other programs on the cluster may keep a task waiting before it is withdrawn and "
            "queued again."
        ),
    ] = default_seconds(PENDING_S)
    in_flight: Annotated[
        int, Meta(description="Maximum number of runs on the cluster at a time.", ge=1, le=SLOTS_MAX)
    ] = IN_FLIGHT_MAX
    linger_s: Annotated[
        Seconds,
        Meta(
            description="How long a task of a short run waits for the next run of its agent, and keeps its resources "
            "meanwhile: that is much cheaper for Ray than another task. 0: it ends with its run."
        ),
    ] = default_seconds(LINGER_S)
    tell_demand: Annotated[
        bool,
        Meta(description="Whether the cluster's autoscaler is told what waits here, so that the cluster can grow."),
    ] = False

    def __post_init__(self) -> None:
        problem = None if self.address is None else address_problem(self.address)
        if problem is not None:
            raise ValueError(f"address {problem}")

    @property
    def cluster(self) -> RayCluster:
        """The cluster as the supervisor's settings have it."""
        return RayCluster(
            address=self.address,
            pending_s=float(self.pending_s),
            in_flight=self.in_flight,
            linger_s=float(self.linger_s),
            tell_demand=self.tell_demand,
        )


class FleetFile(_Table, frozen=True, kw_only=True):
    """A fleet: its store, slots, policy, projects, limits and agents."""

    name: Annotated[
        Name | None,
        Meta(description="The fleet's name, unique among the fleets of a store; default: the file's name."),
    ] = None
    store: Annotated[
        Text,
        Meta(
            description="The database file, `postgresql://user@host/database?schema=rota`, or a daemon's address "
            "(`unix:/path`, `http://host:port`)."
        ),
    ] = "rota.db"
    policy: Annotated[
        str | PolicyTable | None,
        Meta(
            description="The policy that decides which entry runs next, for every supervisor of the store; "
            "`rota policy list` shows them. Default: the store's; without one, projects share by weight, inside a "
            "project the higher priority goes first, and equals share by agent weight."
        ),
    ] = None
    slots: Annotated[
        Slots | dict[str, Slots],
        Meta(description="Number of runs at a time, or a table with a number per kind of slot (`any`: no kind)."),
    ] = 4
    worker_id: Annotated[
        Name | None,
        Meta(
            description="The name of this fleet's worker; a restart under it recovers its entries. "
            "Default: a new name at each start."
        ),
    ] = None
    logs_max: Annotated[
        int,
        Meta(
            description="Number of runs whose output is kept in files, in `STORE-logs`; the oldest are removed first. "
            "0 keeps none.",
            ge=0,
            le=1_000_000,
        ),
    ] = LOGS_MAX
    logs_bytes_max: Annotated[
        Bytes,
        Meta(description="Size of the kept output of all runs together; the oldest is removed first. 0 keeps none."),
    ] = default_bytes(LOGS_BYTES_MAX)
    logs: Annotated[
        Text | None,
        Meta(
            description="A folder for one more copy of what runs print. Default: none; the store has it, and a daemon "
            "keeps it beside its file."
        ),
    ] = None
    dimensions: Annotated[
        tuple[Text, ...],
        Meta(
            description="Dimensions of your own that budgets may name, besides `tokens`, `cost_micro`, `cpu_s`, "
            "`gpu_s`, `wall_s`, `tool_calls` and `fs_w_bytes`; an agent charges them by their names.",
            max_length=DIMENSIONS_MAX,
        ),
    ] = ()
    scheduling: Annotated[SchedulingTable, Meta(description="Settings for all projects.")] = SchedulingTable()
    projects: Annotated[dict[str, ProjectTable], Meta(description="Projects by name.", max_length=PROJECTS_MAX)] = {}
    limits: Annotated[
        dict[str, LimitTable],
        Meta(description="Limits of providers, by the name that agents draw on.", max_length=LIMITS_MAX),
    ] = {}
    prices: Annotated[
        dict[str, PriceTable],
        Meta(
            description="Prices of models, by the name that charges give; a name that ends in `*` fits every model "
            "that begins so.",
            max_length=PRICES_MAX,
        ),
    ] = {}
    agents: Annotated[dict[str, AgentTable], Meta(description="Agents by name.", max_length=AGENTS_MAX)] = {}
    graphs: Annotated[dict[str, GraphTable], Meta(description="Graphs by name.", max_length=GRAPHS_MAX)] = {}
    hooks: Annotated[
        dict[str, HookTable],
        Meta(description="Programs and addresses that are told when something happens, by name.", max_length=HOOKS_MAX),
    ] = {}

    ray: Annotated[
        RayTable, Meta(description='The Ray cluster for agents with `runner = "ray"`. It is connected when one runs.')
    ] = RayTable()
    retention: Annotated[
        RetentionTable | None,
        Meta(description="What the store keeps, for every process. Default: the store's setting stays."),
    ] = None

    @property
    def hook_agents(self) -> dict[str, HookAgent]:
        """The agents of the hooks, by name."""
        return {agent.name: agent for agent in (HookAgent(name, table) for name, table in self.hooks.items())}

    @property
    def policy_name(self) -> str:
        """The policy's name; of a file without one, that of the default."""
        if self.policy is None:
            return DEFAULT_NAME
        return self.policy if isinstance(self.policy, str) else self.policy.name

    @property
    def policy_text(self) -> str:
        """The policy with its parameters, for people."""
        return PolicySetting(name=self.policy_name, params=self.policy_params).sentence()

    @property
    def policy_isolation(self) -> PolicyIsolation:
        """Where a policy of another package runs."""
        return self.policy.isolation if isinstance(self.policy, PolicyTable) else "thread"

    @property
    def policy_params(self) -> dict[str, Any]:
        """The policy's parameters. `fair_share` takes its guarantee from `[scheduling]` unless `params` sets it."""
        if self.policy is None:
            return dict(DEFAULT_PARAMS)
        params = {} if isinstance(self.policy, str) else self.policy.params
        if self.policy_name == "fair_share":
            return {"min_guarantee": self.scheduling.min_task_guarantee, **params}
        return dict(params)

    @property
    def slot_kinds(self) -> tuple[tuple[str, ...], ...]:
        """The kinds of each slot; an empty tuple for a slot without a kind."""
        if isinstance(self.slots, int):
            return ((),) * self.slots
        return tuple(() if kind == ANY_SLOT else (kind,) for kind, count in self.slots.items() for _ in range(count))


class Fleet(FleetFile, frozen=True, kw_only=True):
    """A fleet that was loaded from a file."""

    path: str  # of the file, absolute
    graph_agents: dict[str, GraphAgent] = {}  # the graphs as agents, with their documents

    @property
    def triggered(self) -> dict[str, AgentTable | GraphAgent]:
        """The agents and the graphs by name: what people and triggers enqueue."""
        return {**self.agents, **self.graph_agents}

    @property
    def folder(self) -> str:
        """The folder at which relative paths start."""
        return str(Path(self.path).parent)

    @property
    def title(self) -> str:
        """The fleet's name in the store: `name`, or the file's name without its suffix."""
        return self.name or Path(self.path).stem

    @property
    def author(self) -> str:
        """Who set what this file says, in the settings of the store."""
        return f"fleet {self.title}"

    @property
    def store_path(self) -> str:
        """The store's address; the path of a file is absolute."""
        if self.store == ":memory:" or "://" in self.store or self.store.startswith("unix:") or is_mistyped(self.store):
            return self.store
        return self.resolve(self.store)

    @property
    def shown_store(self) -> str:
        """The store's address for people: without a password."""
        return without_password(self.store_path)

    def resolve(self, path: str) -> str:
        """Return a path of the file as an absolute path."""
        return os.path.normpath(Path(self.folder, path))


def fleet_schema() -> dict[str, Any]:
    """Return the JSON Schema of a fleet file, for editors."""
    schema = msgspec.json.schema(FleetFile, schema_hook=unit_schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "rota fleet file", **schema}

"""The output of `rota run --plan`: expected shares, how long budgets last, the next firings of triggers, warnings.

The plan is computed from the file and, if the store exists, from the usage recorded there; nothing is written. Shares
assume a busy fleet, in which every project has more work than slots. A policy that shares then gives each project the
part of the slots that its weight entitles it to. A project whose cap is lower gets its cap; the rest goes to the other
projects by their weights, until no project is above its cap.

How long a budget lasts follows from how often triggers enqueue the agents that use it, and from their `expected` usage.
Entries that people or other programs enqueue, and triggers on events, are not counted: a budget may end sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from rota.fleet.config.apply import pending_changes
from rota.fleet.config.cpu_plan import CpuRow, cpu_rows
from rota.fleet.config.plan_warnings import find_warnings
from rota.fleet.config.policy_plan import with_policy_of_store
from rota.fleet.config.tables import AgentTable, Fleet
from rota.fleet.trigger_rules import TIMED, firings_after
from rota.kernel.store_policy import StorePolicy
from rota.kernel.usage_windows import ALL_PROJECTS
from rota.model.agent_names import agent_in_project
from rota.model.money import amount_text
from rota.model.policy_setting import PolicyInForce
from rota.model.work import Trigger
from rota.service.api import KernelApi
from rota.service.policy_process import make_policy

__all__ = [
    "AgentRow",
    "BudgetRow",
    "FleetPlan",
    "GraphRow",
    "LimitRow",
    "PriceRow",
    "ProjectRow",
    "TriggerRow",
    "describe_trigger",
    "divide_slots",
    "plan_fleet",
]

FIRINGS_SHOWN = 3  # of one trigger
CRON_SAMPLE = 100  # firings from which the rate of a cron expression is computed
DAYS_FROM_H = 48  # longer durations are shown in days
NO_PROJECT = "–"  # agents without a project share as if they were in one project
SHARE_BY_FLOW = ("eevdf", "wfq")  # by weight among projects, then among the agents of each
SHARE_BY_PROJECT = ("fair_share",)  # by weight among projects; within a project by priority
SHARE_EQUALLY = ("round_robin",)  # the same for every agent


class ProjectRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a project gets."""

    name: str
    weight: float
    agents: int
    share: float | None  # of all slots, when all projects have work; None: the policy orders by priority
    slots: float | None
    max_concurrent: int | None = None


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent gets."""

    name: str
    project: str
    runner: str
    priority: int
    share: float | None  # of all slots
    runs_per_hour: float  # started by triggers
    and_more: bool  # also by events, at a start, or only by people


class GraphRow(msgspec.Struct, frozen=True, kw_only=True):
    """A graph, and what its nodes are."""

    name: str
    project: str
    file: str
    agents: list[str]  # of its nodes, each once
    functions: int  # nodes that are functions
    budget: dict[str, int]  # of one run
    runs_per_hour: float  # started by triggers
    and_more: bool


class TriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """When a trigger fires next."""

    agent: str
    what: str
    next_at: list[float] = []


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A named limit and the agents that draw on it."""

    name: str
    unit: str
    budget: int
    period_s: float
    drawn_by: list[str]


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens of a model cost, in millionths of a dollar."""

    model: str
    input_micro: int
    cached_input_micro: int
    output_micro: int


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """How long a budget lasts."""

    level: Literal["agent", "project", "global"]
    owner: str
    dim: str
    limit: int
    used: int
    window_h: float | None  # None: a total
    use_per_hour: float
    ends_at: float | None  # None: it is not used up at this rate
    told: str  # how long it lasts, in words


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet would do."""

    fleet: str
    file: str
    store: str
    store_exists: bool
    policy: str
    policy_sentence: str
    slots: int
    now: float
    projects: list[ProjectRow]
    agents: list[AgentRow]
    graphs: list[GraphRow]
    budgets: list[BudgetRow]
    limits: list[LimitRow]
    prices: list[PriceRow]
    cpu: list[CpuRow]
    triggers: list[TriggerRow]
    warnings: list[str]
    changes: list[str]  # what applying the file would change in the store


def plan_fleet(
    fleet: Fleet, now: float, api: KernelApi | None = None, stored: StorePolicy | PolicyInForce | None = None
) -> FleetPlan:
    """Return what the fleet would do from now on; with an API, count the usage in the store.

    `stored` is the policy of the store, by which a file without one runs, as its kernel or its daemon says.
    """
    fleet, about_policy = (fleet, []) if stored is None else with_policy_of_store(fleet, stored)
    slots = len(fleet.slot_kinds)
    policy = make_policy(fleet.policy_name, fleet.policy_params, fleet.policy_isolation)
    rates = _RunRates(fleet, now)
    return FleetPlan(
        fleet=fleet.title,
        file=fleet.path,
        store=fleet.shown_store,
        store_exists=api is not None,
        policy=policy.name,
        policy_sentence=policy.sentence,
        slots=slots,
        now=now,
        projects=_project_rows(fleet, slots),
        agents=_agent_rows(fleet, slots, rates),
        graphs=_graph_rows(fleet, rates),
        budgets=_budget_rows(fleet, now, rates, api),
        limits=_limit_rows(fleet),
        prices=_price_rows(fleet),
        cpu=cpu_rows(fleet),
        triggers=_trigger_rows(fleet, now),
        warnings=[*about_policy, *find_warnings(fleet, policy, api)],
        changes=[str(pending.change) for pending in pending_changes(api, fleet)] if api is not None else [],
    )


# --- shares ----------------------------------------------------------------------------------------


def divide_slots(slots: float, weights: Mapping[str, float], caps: Mapping[str, float]) -> dict[str, float]:
    """Divide slots by weight, none above its cap; what a cap leaves goes to the others by their weights."""
    given: dict[str, float] = {}
    uncapped = dict(weights)
    while uncapped:
        total = sum(uncapped.values())
        capped = [name for name, weight in uncapped.items() if slots * weight / total > caps.get(name, slots)]
        if not capped:
            given |= {name: slots * weight / total for name, weight in uncapped.items()}
            break
        for name in capped:
            given[name] = caps[name]
            slots -= caps[name]
            del uncapped[name]
    return given


def _members(fleet: Fleet) -> dict[str, dict[str, AgentTable]]:
    """The agents of each project, also of those without agents."""
    members: dict[str, dict[str, AgentTable]] = {name: {} for name in fleet.projects}
    for name, agent in fleet.agents.items():
        members.setdefault(agent.project or NO_PROJECT, {})[name] = agent
    return members


def _cap(fleet: Fleet, project: str, members: Mapping[str, AgentTable], slots: int) -> float:
    """The maximum number of slots of a project: limited by its own cap and by the caps of its agents."""
    own = fleet.projects[project].max_concurrent if project in fleet.projects else None
    of_agents = sum(slots if agent.max_concurrent is None else agent.max_concurrent for agent in members.values())
    return min(slots, of_agents, slots if own is None else own)


def _project_slots(fleet: Fleet, slots: int) -> dict[str, float] | None:
    """The average number of slots of each project with agents; None if the policy does not share."""
    members = {name: agents for name, agents in _members(fleet).items() if agents}
    caps = {name: _cap(fleet, name, agents, slots) for name, agents in members.items()}
    if fleet.policy_name in SHARE_EQUALLY:
        return divide_slots(slots, {name: len(agents) for name, agents in members.items()}, caps)
    if fleet.policy_name in SHARE_BY_FLOW + SHARE_BY_PROJECT:
        return divide_slots(slots, {name: _weight(fleet, name) for name in members}, caps)
    return None


def _weight(fleet: Fleet, project: str) -> float:
    return fleet.projects[project].weight if project in fleet.projects else 1.0


def _project_rows(fleet: Fleet, slots: int) -> list[ProjectRow]:
    shared = _project_slots(fleet, slots)
    rows = []
    for name, agents in _members(fleet).items():
        given = None if shared is None else shared.get(name, 0.0)
        table = fleet.projects.get(name)
        rows.append(
            ProjectRow(
                name=name,
                weight=_weight(fleet, name),
                agents=len(agents),
                share=None if given is None else given / slots,
                slots=given,
                max_concurrent=None if table is None else table.max_concurrent,
            )
        )
    return rows


def _agent_rows(fleet: Fleet, slots: int, rates: _RunRates) -> list[AgentRow]:
    shared = _project_slots(fleet, slots)
    shares_equally = fleet.policy_name in SHARE_EQUALLY
    rows = []
    for project, agents in _members(fleet).items():
        weights = {name: 1.0 if shares_equally else agent.weight for name, agent in agents.items()}
        caps = {name: float(agent.max_concurrent) for name, agent in agents.items() if agent.max_concurrent is not None}
        is_known = fleet.policy_name not in SHARE_BY_PROJECT or len(agents) == 1
        given = divide_slots(shared.get(project, 0.0), weights, caps) if shared is not None and is_known else {}
        for name, agent in agents.items():
            rate, and_more = rates.of(name)
            rows.append(
                AgentRow(
                    name=name,
                    project=project,
                    runner=agent.settings(fleet.folder).runner,
                    priority=agent.priority,
                    share=given[name] / slots if name in given else None,
                    runs_per_hour=rate,
                    and_more=and_more,
                )
            )
    return rows


def _graph_rows(fleet: Fleet, rates: _RunRates) -> list[GraphRow]:
    rows = []
    for name, agent in fleet.graph_agents.items():
        nodes, (rate, and_more) = agent.document["components"], rates.of(name)
        named = [str(node.get("execution", {}).get("agent") or "") for node in nodes]
        rows.append(
            GraphRow(
                name=name,
                project=agent.project or NO_PROJECT,
                file=agent.table.file,
                agents=sorted({each for each in named if each}),
                functions=named.count(""),
                budget=agent.budgets.get("", {}),
                runs_per_hour=rate,
                and_more=and_more,
            )
        )
    return rows


# --- budgets ---------------------------------------------------------------------------------------


class _RunRates:
    """How often triggers enqueue each agent."""

    def __init__(self, fleet: Fleet, now: float) -> None:
        self._fleet, self._now = fleet, now
        self._cron_rates: dict[tuple[str | None, str], float] = {}

    def of(self, name: str, seen: tuple[str, ...] = ()) -> tuple[float, bool]:
        """Return the runs per hour, and whether there may be more."""
        triggers = [table.trigger for table in self._fleet.triggered[name].triggers]
        rate, and_more = 0.0, not triggers
        for trigger in triggers:
            if trigger.kind == "interval" and trigger.every_s:
                rate += 3600 / trigger.every_s
            elif trigger.kind == "cron":
                rate += self._cron_rate(trigger)
            elif trigger.kind == "after" and trigger.after is not None and trigger.after not in (name, *seen):
                further, more = self.of(trigger.after, (*seen, name))
                rate, and_more = rate + further, and_more or more
            else:
                and_more = True
        return rate, and_more

    def _cron_rate(self, trigger: Trigger) -> float:
        key = trigger.cron, trigger.zone
        if key not in self._cron_rates:
            firings = firings_after(trigger, self._now, CRON_SAMPLE)
            self._cron_rates[key] = len(firings) * 3600 / (firings[-1] - self._now) if firings else 0.0
        return self._cron_rates[key]

    def use_per_hour(self, names: Iterable[str], dim: str) -> float:
        """Return what the triggered runs of some agents use of a dimension, by their expected usage."""
        return sum(self.of(name)[0] * self._fleet.agents[name].expected.get(dim, 0) for name in names)


class _Budget(NamedTuple):
    """A budget of the file."""

    level: Literal["agent", "project", "global"]
    owner: str
    dim: str
    limit: int
    users: tuple[str, ...]  # the agents that are charged to it
    window_h: float | None


def _budget_rows(fleet: Fleet, now: float, rates: _RunRates, api: KernelApi | None) -> list[BudgetRow]:
    used = _used(fleet, api) if api is not None else {}
    return [
        _budget_row(
            budget,
            used.get((budget.level, budget.owner, budget.dim), 0),
            rates.use_per_hour(budget.users, budget.dim),
            now,
        )
        for budget in _budgets(fleet)
    ]


def _budgets(fleet: Fleet) -> Iterator[_Budget]:
    window_h = fleet.scheduling.rolling_window_hours
    for dim, limit in fleet.scheduling.budget.items():
        yield _Budget("global", ALL_PROJECTS, dim, limit, tuple(fleet.agents), window_h)
    for name, project in fleet.projects.items():
        members = tuple(agent for agent, table in fleet.agents.items() if table.project == name)
        for dim, limit in project.budget.items():
            yield _Budget("project", name, dim, limit, members, window_h)
    for name, agent in fleet.agents.items():
        for dim, limit in agent.budget.items():
            yield _Budget("agent", name, dim, limit, (name,), None)


def _used(fleet: Fleet, api: KernelApi) -> dict[tuple[str, str, str], int]:
    used = {(str(line.level), line.owner, line.dim): line.used for line in api.ledger.budgets()}
    for name, table in fleet.agents.items():
        agent = agent_in_project(api.agents.find(name), table.project)
        if agent is not None:
            used |= {("agent", name, line.dim): line.used for line in api.ledger.get(agent.pid)}
    return used


def _budget_row(budget: _Budget, used: int, use_per_hour: float, now: float) -> BudgetRow:
    lasts = use_per_hour == 0 or (budget.window_h is not None and use_per_hour * budget.window_h <= budget.limit)
    left_h = 0.0 if lasts else max(budget.limit - used, 0) / use_per_hour
    return BudgetRow(
        level=budget.level,
        owner=budget.owner,
        dim=budget.dim,
        limit=budget.limit,
        used=used,
        window_h=budget.window_h,
        use_per_hour=use_per_hour,
        ends_at=None if lasts else now + left_h * 3600,
        told=_describe_budget(budget, use_per_hour, left_h, lasts=lasts),
    )


def _describe_budget(budget: _Budget, use_per_hour: float, left_h: float, *, lasts: bool) -> str:
    if use_per_hour == 0:
        return "unknown: no agent with a timed trigger sets its expected usage"
    if lasts:
        return f"lasts: {amount_text(budget.dim, round(use_per_hour * (budget.window_h or 0)))} per window"
    ends = f"ends in {_describe_hours(left_h)}"
    return ends if budget.window_h is None else f"{ends}, then waits for the {budget.window_h:g} h window"


def _describe_hours(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < DAYS_FROM_H else f"{hours / 24:.1f} days"


# --- triggers and limits ---------------------------------------------------------------------------


def describe_trigger(trigger: Trigger) -> str:
    """Return a trigger in a few words."""
    words = {
        "cron": f"cron {trigger.cron} ({trigger.zone})",
        "interval": f"every {trigger.every_s:g} s" if trigger.every_s else "",
        "event": f"event {trigger.event}",
        "start": "on start",
        "after": f"after {trigger.after}",
    }
    return words[trigger.kind]


def _trigger_rows(fleet: Fleet, now: float) -> list[TriggerRow]:
    rows = []
    for name, agent in fleet.triggered.items():
        for table in agent.triggers:
            trigger = table.trigger
            next_at = firings_after(trigger, now, FIRINGS_SHOWN) if trigger.kind in TIMED else []
            rows.append(TriggerRow(agent=name, what=describe_trigger(trigger), next_at=next_at))
    return rows


def _price_rows(fleet: Fleet) -> list[PriceRow]:
    prices = {model: table.price for model, table in fleet.prices.items()}
    return [
        PriceRow(
            model=model,
            input_micro=price.input_micro,
            cached_input_micro=price.input_micro if price.cached_input_micro is None else price.cached_input_micro,
            output_micro=price.output_micro,
        )
        for model, price in prices.items()
    ]


def _limit_rows(fleet: Fleet) -> list[LimitRow]:
    return [
        LimitRow(
            name=name,
            unit=unit,
            budget=budget.budget,
            period_s=float(budget.period_s),
            drawn_by=[agent for agent, table in fleet.agents.items() if name in table.draws_on],
        )
        for name, table in fleet.limits.items()
        for unit, budget in sorted(table.budgets.items())
    ]

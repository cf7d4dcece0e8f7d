"""What a fleet would do, before it does it: who gets what share, which budget ends when, what fires next.

Everything here is arithmetic on the file, and on what was used so far if the store exists; nothing is written. The
numbers are for a fleet that is busy: every project has more work than it gets to run. Then a policy that shares gives
each project its weight's part of the slots; a project whose cap is below its part gets its cap, and what it leaves goes
to the others by their weights, and so on until nobody is above a cap.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rota.fleet.config.apply import difference
from rota.fleet.config.budgets import BudgetRow, Rates, budget_rows
from rota.fleet.config.tables import AgentTable, Fleet
from rota.fleet.config.warnings import warnings
from rota.fleet.trigger_times import TIMED, firings_after
from rota.model.work import Trigger
from rota.policy import registry
from rota.service.api import Registers

__all__ = ["AgentRow", "BudgetRow", "FleetPlan", "LimitRow", "ProjectRow", "TriggerRow", "describe", "parts", "plan"]

NEXT_SHOWN = 3  # firings of one trigger
NO_PROJECT = "–"  # those that are of none share as if they were of one
BY_FLOW = ("eevdf", "wfq")  # share by weight among projects, then among the agents of each
BY_GROUP = ("fair_share",)  # share by weight among projects; inside one by priority
BY_TURN = ("round_robin",)  # the same for every agent


class ProjectRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a project gets."""

    name: str
    weight: float
    agents: int
    share: float | None  # of all slots, when everybody has work; None: the policy goes by priority
    slots: float | None
    max_concurrent: int | None = None


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent gets."""

    name: str
    project: str
    runner: str
    priority: int
    share: float | None  # of all slots
    runs_per_hour: float  # that triggers cause
    and_more: bool  # also by events, a start, or only by hand


class TriggerRow(msgspec.Struct, frozen=True, kw_only=True):
    """When an agent is enqueued next."""

    agent: str
    what: str
    next_at: list[float] = []


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A named limit and who draws on it."""

    name: str
    unit: str
    budget: int
    period_s: float
    drawn_by: list[str]


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
    budgets: list[BudgetRow]
    limits: list[LimitRow]
    triggers: list[TriggerRow]
    warnings: list[str]
    changes: list[str]  # what applying the file would change in the store


def plan(fleet: Fleet, now: float, desk: Registers | None = None) -> FleetPlan:
    """What the fleet would do from now on; with a desk, counting what was used so far."""
    slots = len(fleet.slot_kinds)
    policy = registry.make(fleet.policy_name, **fleet.policy_params)
    rates = Rates(fleet, now)
    return FleetPlan(
        fleet=fleet.title,
        file=fleet.path,
        store=fleet.store_path,
        store_exists=desk is not None,
        policy=policy.name,
        policy_sentence=policy.sentence,
        slots=slots,
        now=now,
        projects=_project_rows(fleet, slots),
        agents=_agent_rows(fleet, slots, rates),
        budgets=budget_rows(fleet, now, rates, desk),
        limits=_limit_rows(fleet),
        triggers=_trigger_rows(fleet, now),
        warnings=warnings(fleet, policy, desk),
        changes=[str(step.change) for step in difference(desk, fleet)] if desk is not None else [],
    )


# --- shares ------------------------------------------------------------------------------------------


def parts(whole: float, weights: Mapping[str, float], caps: Mapping[str, float]) -> dict[str, float]:
    """Share out by weight, nobody above its cap; what a cap leaves goes to the others by their weights."""
    given: dict[str, float] = {}
    open_to = dict(weights)
    while open_to:
        total = sum(open_to.values())
        capped = [name for name, weight in open_to.items() if whole * weight / total > caps.get(name, whole)]
        if not capped:
            given |= {name: whole * weight / total for name, weight in open_to.items()}
            break
        for name in capped:
            given[name] = caps[name]
            whole -= caps[name]
            del open_to[name]
    return given


def _members(fleet: Fleet) -> dict[str, dict[str, AgentTable]]:
    """The agents of each project; a project without any gets nothing."""
    members: dict[str, dict[str, AgentTable]] = {name: {} for name in fleet.projects}
    for name, agent in fleet.agents.items():
        members.setdefault(agent.project or NO_PROJECT, {})[name] = agent
    return members


def _cap(fleet: Fleet, project: str, members: Mapping[str, AgentTable], slots: int) -> float:
    """The most slots a project can have: its own cap, and what its agents can fill."""
    own = fleet.projects[project].max_concurrent if project in fleet.projects else None
    fills = sum(slots if agent.max_concurrent is None else agent.max_concurrent for agent in members.values())
    return min(slots, fills, slots if own is None else own)


def _project_slots(fleet: Fleet, slots: int) -> dict[str, float] | None:
    """How many slots each project has on average; None if the policy does not share."""
    members = {name: agents for name, agents in _members(fleet).items() if agents}
    caps = {name: _cap(fleet, name, agents, slots) for name, agents in members.items()}
    if fleet.policy_name in BY_TURN:
        return parts(slots, {name: len(agents) for name, agents in members.items()}, caps)
    if fleet.policy_name in BY_FLOW + BY_GROUP:
        return parts(slots, {name: _weight(fleet, name) for name in members}, caps)
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


def _agent_rows(fleet: Fleet, slots: int, rates: Rates) -> list[AgentRow]:
    shared = _project_slots(fleet, slots)
    rows = []
    for project, agents in _members(fleet).items():
        weights = {name: 1.0 if fleet.policy_name in BY_TURN else agent.weight for name, agent in agents.items()}
        caps = {name: float(agent.max_concurrent) for name, agent in agents.items() if agent.max_concurrent is not None}
        known = shared is not None and (fleet.policy_name not in BY_GROUP or len(agents) == 1)
        given = parts(shared.get(project, 0.0), weights, caps) if shared is not None and known else {}
        for name, agent in agents.items():
            rate, and_more = rates.of(name)
            rows.append(
                AgentRow(
                    name=name,
                    project=project,
                    runner=agent.plan(fleet.folder).runner,
                    priority=agent.priority,
                    share=given[name] / slots if name in given else None,
                    runs_per_hour=rate,
                    and_more=and_more,
                )
            )
    return rows


# --- triggers and limits --------------------------------------------------------------------------------


def describe(trigger: Trigger) -> str:
    """A trigger in a few words."""
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
    for name, agent in fleet.agents.items():
        for table in agent.triggers:
            made = table.trigger
            next_at = firings_after(made, now, NEXT_SHOWN) if made.kind in TIMED else []
            rows.append(TriggerRow(agent=name, what=describe(made), next_at=next_at))
    return rows


def _limit_rows(fleet: Fleet) -> list[LimitRow]:
    return [
        LimitRow(
            name=name,
            unit=unit,
            budget=ration.budget,
            period_s=float(ration.period_s),
            drawn_by=[agent for agent, table in fleet.agents.items() if name in table.draws_on],
        )
        for name, table in fleet.limits.items()
        for unit, ration in sorted(table.rations.items())
    ]

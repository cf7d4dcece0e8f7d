"""How long the budgets of a fleet last: how often triggers enqueue its agents, at the cost that they expect.

What people and other programs enqueue, and what events fire, cannot be known: a budget may end sooner than said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from rota.fleet.config.tables import Fleet
from rota.fleet.trigger_times import firings_after
from rota.kernel.usage_windows import EVERYBODY
from rota.model.work import Trigger
from rota.service.api import Registers

__all__ = ["BudgetRow", "Rates", "budget_rows"]

COUNTED = 100  # firings by which a cron's rate is judged
HOURS_TOLD_MAX = 48  # beyond, days read better


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """How long a budget lasts."""

    level: Literal["agent", "project", "global"]
    owner: str
    dim: str
    limit: int
    used: int
    window_h: float | None  # None: a total
    use_per_hour: float
    ends_at: float | None  # None: it does not end at this rate
    told: str


class Rates:
    """How often triggers enqueue each agent."""

    def __init__(self, fleet: Fleet, now: float) -> None:
        self._fleet, self._now = fleet, now
        self._crons: dict[tuple[str | None, str], float] = {}

    def of(self, name: str, seen: tuple[str, ...] = ()) -> tuple[float, bool]:
        """Runs per hour, and whether there may be more than these."""
        triggers = [table.trigger for table in self._fleet.agents[name].triggers]
        rate, and_more = 0.0, not triggers
        for trigger in triggers:
            if trigger.kind == "interval" and trigger.every_s:
                rate += 3600 / trigger.every_s
            elif trigger.kind == "cron":
                rate += self._cron(trigger)
            elif trigger.kind == "after" and trigger.after is not None and trigger.after not in (name, *seen):
                further, more = self.of(trigger.after, (*seen, name))
                rate, and_more = rate + further, and_more or more
            else:
                and_more = True
        return rate, and_more

    def _cron(self, trigger: Trigger) -> float:
        key = trigger.cron, trigger.zone
        if key not in self._crons:
            firings = firings_after(trigger, self._now, COUNTED)
            self._crons[key] = len(firings) * 3600 / (firings[-1] - self._now) if firings else 0.0
        return self._crons[key]

    def use_per_hour(self, names: Iterable[str], dim: str) -> float:
        """What the runs of some agents are expected to use of a dimension."""
        return sum(self.of(name)[0] * self._fleet.agents[name].expected.get(dim, 0) for name in names)


class _Budget(NamedTuple):
    """A budget of the file, and what is known about it."""

    level: Literal["agent", "project", "global"]
    owner: str
    dim: str
    limit: int
    names: tuple[str, ...]  # the agents that use it up
    window_h: float | None


def budget_rows(fleet: Fleet, now: float, rates: Rates, desk: Registers | None = None) -> list[BudgetRow]:
    """Every budget of the file and when it ends, from what was used so far."""
    used = _used(fleet, desk) if desk is not None else {}
    return [
        _row(
            budget,
            used.get((budget.level, budget.owner, budget.dim), 0),
            rates.use_per_hour(budget.names, budget.dim),
            now,
        )
        for budget in _budgets(fleet)
    ]


def _budgets(fleet: Fleet) -> Iterator[_Budget]:
    window_h = fleet.scheduling.rolling_window_hours
    for dim, limit in fleet.scheduling.budget.items():
        yield _Budget("global", EVERYBODY, dim, limit, tuple(fleet.agents), window_h)
    for name, project in fleet.projects.items():
        members = tuple(agent for agent, table in fleet.agents.items() if table.project == name)
        for dim, limit in project.budget.items():
            yield _Budget("project", name, dim, limit, members, window_h)
    for name, agent in fleet.agents.items():
        for dim, limit in agent.budget.items():
            yield _Budget("agent", name, dim, limit, (name,), None)


def _used(fleet: Fleet, desk: Registers) -> dict[tuple[str, str, str], int]:
    used = {(str(line.level), line.owner, line.dim): line.used for line in desk.ledger.budgets()}
    for name in fleet.agents:
        for agent in desk.agents.find(name)[:1]:
            used |= {("agent", name, line.dim): line.used for line in desk.ledger.get(agent.pid)}
    return used


def _row(budget: _Budget, used: int, use: float, now: float) -> BudgetRow:
    lasts = use == 0 or (budget.window_h is not None and use * budget.window_h <= budget.limit)
    left_h = 0.0 if lasts else max(budget.limit - used, 0) / use
    return BudgetRow(
        level=budget.level,
        owner=budget.owner,
        dim=budget.dim,
        limit=budget.limit,
        used=used,
        window_h=budget.window_h,
        use_per_hour=use,
        ends_at=None if lasts else now + left_h * 3600,
        told=_told(budget, use, left_h, lasts=lasts),
    )


def _told(budget: _Budget, use: float, left_h: float, *, lasts: bool) -> str:
    if use == 0:
        return "no triggered run says what it is expected to use"
    if lasts:
        return f"lasts: {use * (budget.window_h or 0):,.0f} per window"
    ends = f"ends in {_hours(left_h)}"
    return ends if budget.window_h is None else f"{ends}, then waits for its window of {budget.window_h:g} h"


def _hours(hours: float) -> str:
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < HOURS_TOLD_MAX else f"{hours / 24:.1f} days"

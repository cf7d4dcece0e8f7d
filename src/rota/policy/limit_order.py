"""Which of the runs that wait for a limit is served next: by weight, projects first, then the agents of a project.

A run asks a limit for an amount and waits until that is available. Only the first of the waiting asks is served: if a
smaller one could pass it, a large one might wait for ever. The order is weighted fair queueing (see virtual_time): what
was granted moves a project, and the agent inside it, by the cost divided by the weight, and the ask with the least
virtual finish is first.

    finish    virtual time + cost / weight
    clock     the virtual time, before it, of the project or agent that was served last

A project, or an agent, that begins to wait starts at the later of its own virtual time and the clock of its level: debt
is kept, credit is not.

An ask costs its dominant share of the limit: of 60 requests and 100,000 tokens, one request with 10,000 tokens is a
tenth. Asks of one agent are served in the order in which they came.

**Pace.** A burst of usage returns as a burst, one period later. If all that returns were given out at once, every
waiting run would be served, whatever its weight, and those that ask again a moment later would find nothing. So a limit
that was short is *contended*: what it has is given out evenly, one ask after another, each taking its share of the
period (`pace`). That is the rate at which the limit returns what was used, so nothing is lost, and the runs of a heavy
project are back in time for their next turn. It ends when no other run waits and half of the limit is available.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from rota.policy.virtual_time import charged

__all__ = [
    "COST_UNIT",
    "ROOT",
    "LimitAsk",
    "ShareKey",
    "ShareTime",
    "ask_cost",
    "joined_shares",
    "moved_shares",
    "next_ask",
    "pace",
]

COST_UNIT = 1_000_000  # the cost of an ask for a whole limit

ShareKey: TypeAlias = tuple[str, str]  # ("limit", ""), ("project", its id or ""), ("agent", its pid)
ROOT: ShareKey = ("limit", "")


class ShareTime(NamedTuple):
    """The virtual time of a project or an agent at a limit, and the clock of the level below it.

    For the limit itself the first is the instant from which on the next ask may be served.
    """

    virtual_time: int = 0
    clock: int = 0


class LimitAsk(NamedTuple):
    """What one run waits for."""

    ask_id: int  # in the order of arrival
    project_id: str  # empty: none
    pid: int
    project_weight: int
    agent_weight: int
    cost: int

    @property
    def project(self) -> ShareKey:
        """The key of its project."""
        return "project", self.project_id

    @property
    def agent(self) -> ShareKey:
        """The key of its agent."""
        return "agent", str(self.pid)


_NEW = ShareTime()
Shares: TypeAlias = Mapping[ShareKey, ShareTime]


def ask_cost(parts: Iterable[tuple[int, int]]) -> int:
    """Return the cost of an ask from its (amount, budget) in each unit: the largest share, and at least 1."""
    return max([1, *(-(-amount * COST_UNIT // budget) for amount, budget in parts)])


def pace(parts: Iterable[tuple[int, int, int]]) -> int:
    """Return the part of the period that an ask takes, from its (amount, budget, period) in each unit."""
    return max((-(-amount * period // budget) for amount, budget, period in parts), default=0)


def next_ask(asks: Iterable[LimitAsk], shares: Shares) -> LimitAsk | None:
    """Return the ask to serve next; None if there is none."""
    first: dict[ShareKey, LimitAsk] = {}  # of each agent, then of each project
    for ask in sorted(asks):
        first.setdefault(ask.agent, ask)
    by_project: dict[ShareKey, LimitAsk] = {}
    for ask in sorted(first.values(), key=lambda ask: (_agent_finish(ask, shares), ask.ask_id)):
        by_project.setdefault(ask.project, ask)
    return min(by_project.values(), key=lambda ask: (_project_finish(ask, shares), ask.ask_id), default=None)


def joined_shares(ask: LimitAsk, waiting: Iterable[LimitAsk], shares: Shares) -> dict[ShareKey, ShareTime]:
    """Return the virtual times that change when an ask begins to wait, beside these others."""
    others = [other for other in waiting if other.ask_id != ask.ask_id]
    changed: dict[ShareKey, ShareTime] = {}
    project = shares.get(ask.project, _NEW)
    if all(other.project != ask.project for other in others):
        late = max(project.virtual_time, shares.get(ROOT, _NEW).clock)
        changed[ask.project] = project._replace(virtual_time=late)
    if all(other.agent != ask.agent for other in others):
        changed[ask.agent] = ShareTime(max(shares.get(ask.agent, _NEW).virtual_time, project.clock))
    return changed


def moved_shares(ask: LimitAsk, shares: Shares) -> dict[ShareKey, ShareTime]:
    """Return the virtual times and clocks that change when an ask is served."""
    root, project, agent = (shares.get(share, _NEW) for share in (ROOT, ask.project, ask.agent))
    return {
        ROOT: root._replace(clock=max(root.clock, project.virtual_time)),
        ask.project: ShareTime(_project_finish(ask, shares), max(project.clock, agent.virtual_time)),
        ask.agent: ShareTime(_agent_finish(ask, shares)),
    }


def _project_finish(ask: LimitAsk, shares: Shares) -> int:
    return charged(shares.get(ask.project, _NEW).virtual_time, ask.cost, ask.project_weight)


def _agent_finish(ask: LimitAsk, shares: Shares) -> int:
    return charged(shares.get(ask.agent, _NEW).virtual_time, ask.cost, ask.agent_weight)

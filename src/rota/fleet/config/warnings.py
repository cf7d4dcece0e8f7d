"""What a fleet file says that can be run, and is probably not what was meant. Each warning names its key."""

from __future__ import annotations

from collections.abc import Iterator

from rota.fleet.config.reader import dotted
from rota.fleet.config.steps import every
from rota.fleet.config.tables import AgentTable, Fleet, SchedulingTable
from rota.model.lifecycle import ProjectStatus
from rota.policy.contract import Policy
from rota.service.api import Registers

__all__ = ["OF_EVERY_RUN", "warnings"]

# Facts that any run can lead to: a trigger on one of them may be fired by its own runs, and go on for ever.
OF_EVERY_RUN = (
    "kernel.sched.claimed",
    "kernel.sched.completed",
    "kernel.sched.released",
    "kernel.sched.returned",
    "kernel.run.started",
    "kernel.run.ended",
    "kernel.process.transitioned",
    "kernel.ledger.charged",
)

_OF_PROCESSES = ("cpu_s", "memory", "processes", "open_files")  # limits that only a process can be held to


def warnings(fleet: Fleet, policy: Policy, desk: Registers | None = None) -> list[str]:
    """Every warning about a fleet; with a desk also those about what the store holds."""
    return [
        *_of_scheduling(fleet, policy),
        *_of_projects(fleet, desk),
        *_of_limits(fleet),
        *(told for name, agent in fleet.agents.items() for told in _of_agent(fleet, dotted("agents", name), agent)),
        *_of_loops(fleet),
    ]


def _of_scheduling(fleet: Fleet, policy: Policy) -> Iterator[str]:
    usual, said = SchedulingTable(), fleet.scheduling
    if policy.bound is None:
        yield f"policy: {policy.name} may let unimportant entries wait for ever"
    if said.min_task_guarantee != usual.min_task_guarantee and fleet.policy_name != "fair_share":
        yield f"scheduling.min_task_guarantee: {fleet.policy_name} has no guarantee to switch off; fair_share has"


def _of_projects(fleet: Fleet, desk: Registers | None) -> Iterator[str]:
    slots = len(fleet.slot_kinds)
    known = {each.project_id: each for each in every(desk.projects.list)} if desk is not None else {}
    for name, project in fleet.projects.items():
        key = dotted("projects", name)
        yield from _of_cap(key, project.max_concurrent, slots)
        if not any(agent.project == name for agent in fleet.agents.values()):
            yield f"{key}: has no agents, so its weight counts for nothing"
        there = known.get(name)
        if there is not None and there.status != ProjectStatus.ACTIVE and there.paused_by != "fleet":
            yield f"{key}: is {there.status.lower()} in the store; nothing of it runs until somebody resumes it"


def _of_cap(key: str, cap: int | None, slots: int) -> Iterator[str]:
    if cap == 0:
        yield f"{key}.max_concurrent: is 0, so nothing of it ever runs"
    elif cap is not None and cap > slots:
        yield f"{key}.max_concurrent: is {cap} and there are {slots} slots, so it is never reached"


def _of_limits(fleet: Fleet) -> Iterator[str]:
    drawn = {name for agent in fleet.agents.values() for name in agent.draws_on}
    for name in fleet.limits.keys() - drawn:
        yield f"{dotted('limits', name)}: no agent draws on it"


def _of_agent(fleet: Fleet, key: str, agent: AgentTable) -> Iterator[str]:
    project = fleet.projects.get(agent.project) if agent.project is not None else None
    yield from _of_cap(key, agent.max_concurrent, len(fleet.slot_kinds))
    if not (agent.budget or (project is not None and project.budget) or fleet.scheduling.budget):
        yield f"{key}: has no budget, nor has its project or everybody: nothing limits what it may use"
    if agent.kind is not None and all(agent.kind not in kinds for kinds in fleet.slot_kinds):
        yield f"{key}.kind: there is no slot of kind {agent.kind!r}, so it waits for another worker"
    yield from _of_ask(fleet, key, agent)
    if agent.function is not None and agent.isolation != "process" and agent.runner is None:
        for field in _OF_PROCESSES:
            if getattr(agent.limits, field) is not None:
                yield f"{key}.limits.{field}: a function on a thread cannot be held to it; say isolation = 'process'"
    for name in agent.draws_on:
        if "tokens" in fleet.limits[name].rations and "tokens" not in {*agent.expected, *agent.ceiling}:
            yield f"{key}: draws on {name}'s tokens and says neither expected nor ceiling: none are held back for a run"
    for at, table in enumerate(agent.triggers):
        event = table.event or ""
        heard = [kind for kind in OF_EVERY_RUN if kind == event or (event[-1:] == "*" and kind.startswith(event[:-1]))]
        if heard:
            yield f"{key}.triggers[{at}].event: {event} hears {heard[0]}, which its own runs write: it may not end"


def _of_ask(fleet: Fleet, key: str, agent: AgentTable) -> Iterator[str]:
    """A run that asks for more than a whole budget is never admitted."""
    budgets = {"its own": agent.budget, "everybody's": dict(fleet.scheduling.budget)}
    if agent.project in fleet.projects:
        budgets["its project's"] = fleet.projects[agent.project].budget
    ceiling = dict(agent.ceiling)
    if agent.limits.tokens is not None:
        ceiling["tokens"] = min(agent.limits.tokens, ceiling.get("tokens", agent.limits.tokens))
    for dim in {*agent.expected, *ceiling}:
        ask = ceiling.get(dim, agent.expected.get(dim, 0))
        for whose, budget in budgets.items():
            if dim in budget and ask > budget[dim]:
                yield f"{key}: a run asks for {ask:,} {dim} and {whose} budget is {budget[dim]:,}, so it never runs"


def _of_loops(fleet: Fleet) -> Iterator[str]:
    """Agents that run after one another in a circle, each circle once."""
    followers: dict[str, list[str]] = {}
    for name, agent in fleet.agents.items():
        for table in agent.triggers:
            if table.after is not None:
                followers.setdefault(table.after, []).append(name)
    told: set[frozenset[str]] = set()
    for start in followers:
        circle = _circle(start, followers)
        if circle and frozenset(circle) not in told:
            told.add(frozenset(circle))
            yield f"{dotted('agents', start)}: {' → '.join([*circle, start])} runs for ever once it has begun"


def _circle(start: str, followers: dict[str, list[str]]) -> list[str]:
    """A way from an agent back to itself, if there is one."""
    ways = [[start]]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        for name in followers.get(way[-1], []):
            if name == start:
                return way
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []

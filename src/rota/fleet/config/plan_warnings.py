"""Warnings of `rota run --plan`: what is valid in a fleet file and probably a mistake. Each warning names its key."""

from __future__ import annotations

from collections.abc import Iterator

from rota.fleet.config.apply import PAUSED_BY, all_rows
from rota.fleet.config.cpu_plan import cpu_warnings
from rota.fleet.config.functions import import_problem
from rota.fleet.config.graph_checks import graph_warnings
from rota.fleet.config.ray_plan import ray_warnings
from rota.fleet.config.tables import AgentTable, Fleet, SchedulingTable
from rota.fleet.trigger_rules import matches_kind
from rota.model.lifecycle import ProjectStatus
from rota.model.struct_reader import join_key
from rota.policy.contract import Policy
from rota.service.api import KernelApi
from rota.service.log_folder import LOGS_BYTES_MAX, LOGS_MAX
from rota.store.addresses import is_postgres

__all__ = ["find_warnings"]

# Events that any run may write: a trigger on one of them may be fired by the runs it causes, forever.
WRITTEN_BY_RUNS = (
    "kernel.sched.claimed",
    "kernel.sched.completed",
    "kernel.sched.released",
    "kernel.sched.returned",
    "kernel.run.started",
    "kernel.run.ended",
    "kernel.process.transitioned",
    "kernel.ledger.charged",
)

_PROCESS_LIMITS = ("cpu_s", "memory", "processes", "open_files")  # limits that cannot be enforced on a thread


def find_warnings(fleet: Fleet, policy: Policy, api: KernelApi | None = None) -> list[str]:
    """Return the warnings about a fleet; with an API also those about the store."""
    return [
        *_about_scheduling(fleet, policy),
        *_about_logs(fleet),
        *_about_projects(fleet, api),
        *_about_limits(fleet),
        *(
            warning
            for name, agent in fleet.agents.items()
            for warning in _about_agent(fleet, join_key("agents", name), agent)
        ),
        *(graph_warnings(fleet) if fleet.graph_agents else ()),
        *cpu_warnings(fleet),
        *ray_warnings(fleet),
        *_about_cycles(fleet),
    ]


def _about_scheduling(fleet: Fleet, policy: Policy) -> Iterator[str]:
    guarantee = fleet.scheduling.min_task_guarantee
    if policy.bound is None:
        yield f"policy: {policy.name} has no bound on waiting: entries of low priority may wait forever"
    if guarantee != SchedulingTable().min_task_guarantee and fleet.policy_name != "fair_share":
        yield f"scheduling.min_task_guarantee: only fair_share has a guarantee, and the policy is {fleet.policy_name}"


def _about_logs(fleet: Fleet) -> Iterator[str]:
    is_remote = fleet.store_path.startswith("unix:") or "://" in fleet.store_path
    is_served = is_remote and not is_postgres(fleet.store_path)
    if is_served and fleet.logs is None:  # the daemon keeps the logs, within its own limits
        for key, kept, default in (
            ("logs_max", fleet.logs_max, LOGS_MAX),
            ("logs_bytes_max", int(fleet.logs_bytes_max), LOGS_BYTES_MAX),
        ):
            if kept not in (0, default):
                yield f"{key}: has no effect here, because a daemon keeps the logs: rota serve --limit {key}={kept}"


def _about_projects(fleet: Fleet, api: KernelApi | None) -> Iterator[str]:
    slots = len(fleet.slot_kinds)
    known = {each.project_id: each for each in all_rows(api.projects.list)} if api is not None else {}
    for name, project in fleet.projects.items():
        key = join_key("projects", name)
        yield from _about_cap(key, project.max_concurrent, slots)
        if not any(agent.project == name for agent in fleet.agents.values()):
            yield f"{key}: has no agents, so its weight has no effect"
        if project.workspaces and not any(
            agent.workspace is not None and agent.project == name for agent in fleet.agents.values()
        ):
            yield f"{key}.workspaces: no agent asks for one; set workspace on an agent of the project"
        stored = known.get(name)
        if stored is not None and stored.status != ProjectStatus.ACTIVE and stored.paused_by != PAUSED_BY:
            yield f"{key}: is {stored.status.lower()} in the store, so it runs nothing until it is resumed"


def _about_cap(key: str, cap: int | None, slots: int) -> Iterator[str]:
    if cap == 0:
        yield f"{key}.max_concurrent: is 0, so it runs nothing"
    elif cap is not None and cap > slots:
        yield f"{key}.max_concurrent: is {cap}, more than the {slots} slots, so it has no effect"


def _about_limits(fleet: Fleet) -> Iterator[str]:
    used = {name for agent in fleet.agents.values() for name in agent.draws_on}
    for name in fleet.limits.keys() - used:
        yield f"{join_key('limits', name)}: no agent draws on it"


def _about_agent(fleet: Fleet, key: str, agent: AgentTable) -> Iterator[str]:
    project = fleet.projects.get(agent.project) if agent.project is not None else None
    yield from _about_cap(key, agent.max_concurrent, len(fleet.slot_kinds))
    if not (agent.budget or (project is not None and project.budget) or fleet.scheduling.budget):
        yield f"{key}: its usage is unlimited: neither the agent, its project nor [scheduling] has a budget"
    if agent.kind is not None and all(agent.kind not in kinds for kinds in fleet.slot_kinds):
        yield f"{key}.kind: this fleet has no slot of kind {agent.kind!r}, so it waits for another worker"
    yield from _about_ask(fleet, key, agent)
    if agent.function is not None and agent.isolation != "process" and agent.runner is None:
        for field in _PROCESS_LIMITS:
            if getattr(agent.limits, field) is not None:
                yield f"{key}.limits.{field}: is not enforced for a function on a thread; set isolation = 'process'"
    if agent.function is not None and (problem := import_problem(agent.function, fleet.folder)):
        yield f"{key}.function: {problem}, so its runs will fail"
    for name in agent.draws_on:
        if "tokens" in fleet.limits[name].budgets and "tokens" not in {*agent.expected, *agent.ceiling}:
            yield f"{key}: no tokens of limit {name} are reserved for a run; set tokens in expected or ceiling"
    for at, table in enumerate(agent.triggers):
        written = [kind for kind in WRITTEN_BY_RUNS if matches_kind(table.event or "", kind)]
        if written:
            yield (
                f"{key}.triggers[{at}].event: {table.event} matches {written[0]}, which its own runs write: "
                "it may fire forever"
            )


def _about_ask(fleet: Fleet, key: str, agent: AgentTable) -> Iterator[str]:
    """A run that asks for more than a whole budget is never admitted."""
    budgets = {"its own budget": agent.budget, "the budget of all projects": dict(fleet.scheduling.budget)}
    if agent.project in fleet.projects:
        budgets["its project's budget"] = fleet.projects[agent.project].budget
    ceiling = dict(agent.ceiling)
    if agent.limits.tokens is not None:
        ceiling["tokens"] = min(agent.limits.tokens, ceiling.get("tokens", agent.limits.tokens))
    for dim in {*agent.expected, *ceiling}:
        ask = ceiling.get(dim, agent.expected.get(dim, 0))
        for label, budget in budgets.items():
            if dim in budget and ask > budget[dim]:
                yield f"{key}: a run asks for {ask:,} {dim} and {label} is {budget[dim]:,}, so it never runs"


def _about_cycles(fleet: Fleet) -> Iterator[str]:
    """Agents whose `after` triggers form a cycle; each cycle once."""
    followers: dict[str, list[str]] = {}
    for name, agent in fleet.triggered.items():
        for table in agent.triggers:
            if table.after is not None:
                followers.setdefault(table.after, []).append(name)
    reported: set[frozenset[str]] = set()
    for start in followers:
        cycle = _cycle(start, followers)
        if cycle and frozenset(cycle) not in reported:
            reported.add(frozenset(cycle))
            kind = "agents" if start in fleet.agents else "graphs"
            yield f"{join_key(kind, start)}: {' → '.join([*cycle, start])} runs forever once it has started"


def _cycle(start: str, followers: dict[str, list[str]]) -> list[str]:
    """Return a path from an agent back to itself; empty if there is none."""
    paths = [[start]]
    seen: set[str] = set()
    while paths:
        path = paths.pop()
        for name in followers.get(path[-1], []):
            if name == start:
                return path
            if name not in seen:
                seen.add(name)
                paths.append([*path, name])
    return []

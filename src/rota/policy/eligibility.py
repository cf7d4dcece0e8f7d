"""Whether an entry may run: the only definition of every blocking reason.

`blocking` takes facts and yields a reason for everything that blocks the entry. The kernel reads the first reason
before it claims an entry; the explanation reads all of them. So both always agree. The rules are checked in this order:
the entry itself, its agent, its project, the fleet, then what it needs (budgets, limits, a workspace).

A budget admits a run iff used + reserved + ask ≤ limit, at every level. `reserved` is what live claims hold. The ask of
an entry is its ceiling, else its expected cost, else 0 on its agent's ledger (an agent exactly at its limit still runs)
and 1 on project and global budgets (a project that has used up its budget does not run).

    limit 100, used 60, one live claim that reserves 30:   an ask of 10 fits exactly, an ask of 11 is refused

A limit per period (a context) admits a run iff the available amount, minus what live claims reserve, covers the ask. An
ask above the whole budget is reduced to the budget, so that the entry waits for a full budget and not without end.

The caller gathers the facts; this module reads no clock and no row.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rota.model import reasons
from rota.model.lifecycle import EntryState, ProjectStatus
from rota.model.reasons import BlockingBase

__all__ = [
    "AgentFacts",
    "BudgetFacts",
    "ContextFacts",
    "EntryFacts",
    "Facts",
    "ProjectFacts",
    "WorkspaceFacts",
    "blocking",
]


class EntryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the entry itself."""

    state: str
    hold: str | None = None
    runnable_at: float = 0.0
    deadline: float | None = None
    attempt: int = 0
    waiting_for: tuple[int, ...] = ()  # predecessors that have not completed, if it is held for them


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about its agent."""

    pid: int
    paused_by: str | None = None
    running: int = 0
    max_concurrent: int | None = None


class ProjectFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about its project."""

    project_id: str
    status: str = ProjectStatus.ACTIVE
    paused_by: str | None = None
    scheduling_paused: bool = False  # by a constraint
    running: int = 0
    max_concurrent: int | None = None  # an exclusive constraint makes it 1
    running_of_kind: int = 0
    max_of_kind: int | None = None
    problem: str | None = None  # why its constraint cannot be read


class BudgetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that applies to it, at one level, in one dimension."""

    level: Literal["agent", "project", "global", "graph"]
    owner: str
    dim: str
    used: int
    reserved: int
    ask: int
    limit: int
    frees_at: float | None = None
    node: str = ""  # of a graph run


class ContextFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A context it draws on: a shared limit by name, or its agent's or project's own context."""

    context_id: int
    name: str | None = None  # None: not a shared limit
    available: int
    reserved: int
    ask: int
    budget: int
    covered_at: float | None = None
    throttled_until: float | None = None
    problem: str | None = None  # why its allowance cannot be read


class KeyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Its concurrency key, and how many runs of its project have it."""

    key: str
    running: int
    cap: int


class WorkspaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The claims that hold the workspaces it could use, if it needs one and none is free."""

    workspace: str | None = None
    held_by: tuple[int, ...] = ()
    since_at: float | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides whether one entry may run now."""

    now: float
    entry: EntryFacts
    agent: AgentFacts
    project: ProjectFacts | None = None
    fleet_paused_by: str | None = None
    budgets: tuple[BudgetFacts, ...] = ()
    contexts: tuple[ContextFacts, ...] = ()
    no_workspace: WorkspaceFacts | None = None
    key: KeyFacts | None = None


def blocking(facts: Facts) -> list[BlockingBase]:
    """Return every reason that blocks an entry; the first is the one to report if only one is."""
    found: list[BlockingBase] = []
    _add_of_entry(found, facts.entry, facts.now)
    _add_of_agent(found, facts.agent)
    if facts.project is not None:
        _add_of_project(found, facts.project)
    if facts.key is not None and facts.key.running >= facts.key.cap:
        key = facts.key
        found.append(reasons.CapReached(level="key", owner=key.key, running=key.running, cap=key.cap))
    if facts.fleet_paused_by is not None:
        found.append(reasons.PausedByOperator(level="fleet", owner="*", by=facts.fleet_paused_by))
    found += [_over_budget(each) for each in facts.budgets if each.used + each.reserved + each.ask > each.limit]
    for context in facts.contexts:
        _add_of_context(found, context, facts.now)
    if facts.no_workspace is not None:
        held = facts.no_workspace
        found.append(reasons.WorkspaceTaken(workspace=held.workspace, held_by=held.held_by, since_at=held.since_at))
    return found


def _add_of_entry(found: list[BlockingBase], entry: EntryFacts, now: float) -> None:
    if entry.state != EntryState.QUEUED:
        found.append(reasons.NotQueued(state=entry.state))
        return
    if entry.hold == "after":
        found.append(reasons.AfterPredecessor(waiting_for=entry.waiting_for))
    if entry.runnable_at > now:
        if entry.hold == "backoff":
            found.append(reasons.BackingOff(until_at=entry.runnable_at, attempt=entry.attempt))
        else:
            found.append(reasons.NotYetRunnable(runnable_at=entry.runnable_at))
    if entry.deadline is not None and entry.deadline <= now:
        found.append(reasons.PastDeadline(deadline=entry.deadline))


def _add_of_agent(found: list[BlockingBase], agent: AgentFacts) -> None:
    owner, cap = str(agent.pid), agent.max_concurrent
    if agent.paused_by is not None:
        found.append(reasons.PausedByOperator(level="agent", owner=owner, by=agent.paused_by))
    if cap is not None and agent.running >= cap:
        found.append(reasons.CapReached(level="agent", owner=owner, running=agent.running, cap=cap))


def _add_of_project(found: list[BlockingBase], project: ProjectFacts) -> None:
    owner, cap, kind_cap = project.project_id, project.max_concurrent, project.max_of_kind
    if project.paused_by is not None:
        found.append(reasons.PausedByOperator(level="project", owner=owner, by=project.paused_by))
    elif project.status != ProjectStatus.ACTIVE:
        found.append(reasons.ProjectInactive(project_id=owner, status=project.status))
    if project.problem is not None:
        found.append(reasons.Unreadable(problem=project.problem, level="project", owner=owner))
    elif project.scheduling_paused:
        found.append(reasons.PausedByOperator(level="project", owner=owner, by="constraint"))
    if cap is not None and project.running >= cap:
        found.append(reasons.CapReached(level="project", owner=owner, running=project.running, cap=cap))
    if kind_cap is not None and project.running_of_kind >= kind_cap:
        found.append(reasons.CapReached(level="kind", owner=owner, running=project.running_of_kind, cap=kind_cap))


def _over_budget(budget: BudgetFacts) -> BlockingBase:
    return reasons.OverBudget(
        level=budget.level,
        owner=budget.owner,
        dim=budget.dim,
        used=budget.used,
        reserved=budget.reserved,
        ask=budget.ask,
        limit=budget.limit,
        frees_at=budget.frees_at,
        node=budget.node,
    )


def _add_of_context(found: list[BlockingBase], context: ContextFacts, now: float) -> None:
    if context.problem is not None:
        owner = context.name or str(context.context_id)
        found.append(reasons.Unreadable(problem=context.problem, level="context", owner=owner))
        return
    throttled = context.throttled_until is not None and context.throttled_until > now
    short = context.available - context.reserved < min(context.ask, context.budget)
    if not throttled and not short:
        return
    # if only live claims block it, no refill helps
    until_at = context.covered_at if short and (context.covered_at or 0) > now else None
    if throttled and context.throttled_until is not None:
        until_at = max(until_at or 0.0, context.throttled_until)
    if context.name is not None:
        found.append(reasons.LimitExhausted(name=context.name, until_at=until_at))
    else:
        found.append(reasons.ContextExhausted(context_id=context.context_id, until_at=until_at))

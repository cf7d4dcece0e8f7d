"""What each blocking reason means: the one place that says whether an entry may run.

`blocking` looks at plain facts and yields a reason for everything that stands in the way. The kernel asks it
for the first reason before it hands an entry out, the explanation asks for all of them, and both get the same
answer because it is the same question. Order of the rules: what is true of the entry itself, then of those
above it (agent, project, fleet), then of what it needs (budgets, limits, a workspace).

A budget admits a run iff used + reserved + ask ≤ limit, at every level. `reserved` is what live claims asked
for and have not settled. What an entry asks for is its declared ceiling, else its expected cost, else nothing
on its agent's ledger (an agent exactly at its limit still runs) and one unit on project and global budgets
(a project that has used up its budget does not).

    limit 100, used 60, one live claim that asked for 30:   an ask of 10 fits exactly, an ask of 11 is refused

A limit per period (a context) admits a run iff what is available, less what live claims asked for, covers the
ask. An ask above the whole budget is cut down to it: it waits for a full allowance instead of for ever.

Facts are gathered by whoever asks; nothing here reads a clock or a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from rota.model import reasons
from rota.model.lifecycle import EntryState, ProjectStatus
from rota.model.reasons import Blocking

__all__ = ["AgentFacts", "Allowed", "EntryFacts", "Facts", "ProjectFacts", "Rationed", "WorkspaceFacts", "blocking"]


class EntryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the entry itself says."""

    state: str
    hold: str | None = None
    runnable_at: float = 0.0
    deadline: float | None = None
    attempt: int = 0
    waiting_for: tuple[int, ...] = ()  # predecessors that have not completed, when it is held for them


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that owns it."""

    pid: int
    paused_by: str | None = None
    running: int = 0
    max_concurrent: int | None = None


class ProjectFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The project that pays for it."""

    project_id: str
    status: str = ProjectStatus.ACTIVE
    paused_by: str | None = None
    scheduling_paused: bool = False  # by a constraint
    running: int = 0
    max_concurrent: int | None = None  # an exclusive constraint makes it 1
    running_of_kind: int = 0
    max_of_kind: int | None = None


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """A budget it comes under, at one level, in one dimension."""

    level: Literal["agent", "project", "global"]
    owner: str
    dim: str
    used: int
    reserved: int
    ask: int
    limit: int
    frees_at: float | None = None


class Rationed(msgspec.Struct, frozen=True, kw_only=True):
    """A budget per period it draws on: by name (a shared limit), or as its own or its project's context."""

    context_id: int
    name: str | None = None  # None: not a shared limit
    available: int
    reserved: int
    ask: int
    budget: int
    covered_at: float | None = None
    throttled_until: float | None = None


class WorkspaceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the workspaces it could use, when it needs one and none is free."""

    workspace: str | None = None
    held_by: tuple[int, ...] = ()
    since_at: float | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides whether one entry may run now."""

    now: float
    entry: EntryFacts
    agent: AgentFacts
    project: ProjectFacts | None = None
    fleet_paused_by: str | None = None
    budgets: tuple[Allowed, ...] = ()
    rations: tuple[Rationed, ...] = ()
    no_workspace: WorkspaceFacts | None = None


def blocking(facts: Facts) -> Iterator[Blocking]:
    """Everything that stands in the way of an entry, one reason at a time."""
    yield from _of_entry(facts.entry, facts.now)
    yield from _of_agent(facts.agent)
    if facts.project is not None:
        yield from _of_project(facts.project)
    if facts.fleet_paused_by is not None:
        yield reasons.PausedBy(level="fleet", owner="*", by=facts.fleet_paused_by)
    for budget in facts.budgets:
        if budget.used + budget.reserved + budget.ask > budget.limit:
            yield _over(budget)
    for ration in facts.rations:
        yield from _of_ration(ration, facts.now)
    if facts.no_workspace is not None:
        lack = facts.no_workspace
        yield reasons.WorkspaceTaken(workspace=lack.workspace, held_by=lack.held_by, since_at=lack.since_at)


def _of_entry(entry: EntryFacts, now: float) -> Iterator[Blocking]:
    if entry.state != EntryState.QUEUED:
        yield reasons.NotQueued(state=entry.state)
        return
    if entry.hold == "after":
        yield reasons.AfterPredecessor(waiting_for=entry.waiting_for)
    if entry.runnable_at > now:
        if entry.hold == "backoff":
            yield reasons.BackingOff(until_at=entry.runnable_at, attempt=entry.attempt)
        else:
            yield reasons.NotYetRunnable(runnable_at=entry.runnable_at)
    if entry.deadline is not None and entry.deadline <= now:
        yield reasons.PastDeadline(deadline=entry.deadline)


def _of_agent(agent: AgentFacts) -> Iterator[Blocking]:
    if agent.paused_by is not None:
        yield reasons.PausedBy(level="agent", owner=str(agent.pid), by=agent.paused_by)
    if agent.max_concurrent is not None and agent.running >= agent.max_concurrent:
        yield reasons.CapReached(level="agent", owner=str(agent.pid), running=agent.running, cap=agent.max_concurrent)


def _of_project(project: ProjectFacts) -> Iterator[Blocking]:
    name = project.project_id
    if project.paused_by is not None:
        yield reasons.PausedBy(level="project", owner=name, by=project.paused_by)
    elif project.status != ProjectStatus.ACTIVE:
        yield reasons.ProjectInactive(project_id=name, status=project.status)
    if project.scheduling_paused:
        yield reasons.PausedBy(level="project", owner=name, by="constraint")
    if project.max_concurrent is not None and project.running >= project.max_concurrent:
        yield reasons.CapReached(level="project", owner=name, running=project.running, cap=project.max_concurrent)
    if project.max_of_kind is not None and project.running_of_kind >= project.max_of_kind:
        yield reasons.CapReached(level="kind", owner=name, running=project.running_of_kind, cap=project.max_of_kind)


def _over(budget: Allowed) -> Blocking:
    return reasons.OverBudget(
        level=budget.level,
        owner=budget.owner,
        dim=budget.dim,
        used=budget.used,
        reserved=budget.reserved,
        ask=budget.ask,
        limit=budget.limit,
        frees_at=budget.frees_at,
    )


def _of_ration(ration: Rationed, now: float) -> Iterator[Blocking]:
    throttled = ration.throttled_until is not None and ration.throttled_until > now
    short = ration.available - ration.reserved < min(ration.ask, ration.budget)
    if not throttled and not short:
        return
    # where only live claims stand in the way, no refill lifts it
    until_at = ration.covered_at if short and (ration.covered_at or 0) > now else None
    if throttled and ration.throttled_until is not None:
        until_at = max(until_at or 0.0, ration.throttled_until)
    if ration.name is not None:
        yield reasons.LimitExhausted(name=ration.name, until_at=until_at)
    else:
        yield reasons.ContextDepleted(context_id=ration.context_id, until_at=until_at)

"""Making a store agree with a fleet file, without dropping work that runs.

First the difference is found, by reading alone; then each step of it is taken through the kernel's own verbs. Where
nothing differs, nothing is written, so applying a file twice is applying it once. A step that fails leaves the ones
before it in place, and applying the file again takes the rest.

What a file no longer names is not deleted, because entries and usage belong to it: an agent or a project is paused by
`fleet` and goes on when it is named again; a budget is lifted, a limit revoked. A workspace that is held stays until
the next time. What others made in the same store (by the Python API, by another fleet of another name) is left alone:
agents and projects carry the fleet's name, limits and global budgets are listed in a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rota.errors import Conflict, FleetInvalid, WorkspaceHeld
from rota.fleet.agent_settings import PLAN_KEY
from rota.fleet.config.changes import Change, Changes
from rota.fleet.config.limits import NamedLimits
from rota.fleet.config.reader import dotted
from rota.fleet.config.steps import Note, Step, every, later
from rota.fleet.config.tables import AgentTable, Fleet, ProjectTable
from rota.fleet.config.workspaces import workspace_steps
from rota.kernel.usage_windows import EVERYBODY
from rota.model.budgets import BudgetLine
from rota.model.checks import INTEGER_MAX
from rota.model.lifecycle import AgentState, ProjectStatus
from rota.model.work import Agent, Project
from rota.service.api import Registers

__all__ = ["BY", "FLEET_KEY", "NO_GRANT", "apply", "difference"]

BY = "fleet"  # who pauses what a file no longer names
FLEET_KEY = "fleet"  # of an agent's and a project's metadata: the fleet that names it
GONE = "no longer in the fleet file"
NO_GRANT = INTEGER_MAX  # a ledger's line is never removed, since what was used stays known: it is granted everything
TRIES_MAX = 5  # when another supervisor applies a file at the same time


def apply(desk: Registers, fleet: Fleet) -> Changes:
    """Make the store agree with the file; the answer is what was changed. The caller records it as a fact."""
    made: list[Change] = []
    for _ in range(TRIES_MAX):
        outcomes = [_taken(step) for step in difference(desk, fleet)]
        made += [each for each in outcomes if isinstance(each, Change)]
        conflict = next((each for each in outcomes if isinstance(each, Conflict)), None)
        if conflict is None:
            NamedLimits(desk, fleet).tidy()
            return Changes(tuple(made))
    raise conflict or AssertionError("at least one try is made")


def _taken(step: Step) -> Change | Conflict:
    """What came of a step: its change, or the error that somebody else has made it in the meantime."""
    try:
        step.make()
    except WorkspaceHeld:
        return msgspec.structs.replace(step.change, verb="postponed", note="it is held by a run")
    except Conflict as conflict:
        return conflict
    return step.change


def difference(desk: Registers, fleet: Fleet) -> list[Step]:
    """What has to be done for the store to agree with the file. Nothing is written by asking."""
    projects = {each.project_id: each for each in every(desk.projects.list)}
    agents = _living(desk)
    for name, table in fleet.agents.items():
        _check_project(name, table, agents.get(name))
    steps = [
        *_scheduling_steps(desk, fleet),
        *_project_steps(desk, fleet, projects),
        *NamedLimits(desk, fleet).steps(),
        *_agent_steps(desk, fleet, agents),
    ]
    # a folder may go from one project to another: first let it go
    return sorted(steps, key=lambda step: (step.change.what, step.change.verb) != ("workspace", "removed"))


def _check_project(name: str, table: AgentTable, agent: Agent | None) -> None:
    if agent is not None and agent.project_id != table.project:
        key = f"{dotted('agents', name)}.project"
        raise FleetInvalid(
            f"{key}: the store has agent {name!r} in project {agent.project_id!r} and the file says {table.project!r}",
            field=key,
            hint="What it used was charged to its project, so it stays there: give the agent another name.",
        )


# --- projects --------------------------------------------------------------------------------------


def _project_steps(desk: Registers, fleet: Fleet, known: dict[str, Project]) -> Iterator[Step]:
    lines: dict[str, dict[str, BudgetLine]] = {}
    for line in desk.ledger.budgets():
        lines.setdefault(line.owner, {})[line.dim] = line
    for name, table in fleet.projects.items():
        yield from _one_project(desk, fleet, name, table, known.get(name))
        yield from _budget_steps(desk, fleet, name, table.budget, lines.get(name, {}))
        yield from workspace_steps(desk, fleet, name, table, exists=name in known)
    yield from _global_steps(desk, fleet, lines.get(EVERYBODY, {}))
    for name, project in known.items():
        ours = project.metadata.get(FLEET_KEY) == fleet.title
        if ours and name not in fleet.projects and project.status == ProjectStatus.ACTIVE:
            change = Change(what="project", name=name, verb="paused", note=GONE)
            yield Step(change, later(desk.projects.move, name, "pause", by=BY))


def _one_project(
    desk: Registers, fleet: Fleet, name: str, table: ProjectTable, known: Project | None
) -> Iterator[Step]:
    wanted: dict[str, Any] = {"weight": table.thousandths, "max_concurrent": table.max_concurrent}
    if known is None:
        change = Change(what="project", name=name, verb="created")
        yield Step(change, later(desk.projects.create, name, **wanted, metadata={FLEET_KEY: fleet.title}))
        return
    wanted["metadata"] = {**known.metadata, FLEET_KEY: fleet.title}
    differs = {field: value for field, value in wanted.items() if getattr(known, field) != value}
    if differs:
        fields = {field: [getattr(known, field), value] for field, value in differs.items()}
        change = Change(what="project", name=name, verb="changed", fields=fields)
        yield Step(change, later(desk.projects.update, name, **differs))
    if known.status == ProjectStatus.PAUSED and known.paused_by == BY:
        yield Step(Change(what="project", name=name, verb="resumed"), later(desk.projects.move, name, "resume", by=BY))


def _budget_steps(
    desk: Registers, fleet: Fleet, owner: str, wanted: dict[str, int], known: dict[str, BudgetLine]
) -> Iterator[Step]:
    level: Any = "global" if owner == EVERYBODY else "project"
    window_s = fleet.scheduling.rolling_window_hours * 3600.0
    for dim, limit in wanted.items():
        line = known.get(dim)
        if line is None or (line.limit, line.window_s) != (limit, window_s):
            fields: dict[str, list[Any]] = {}
            if line is not None and line.limit != limit:
                fields["limit"] = [line.limit, limit]
            if line is not None and line.window_s != window_s:
                fields["window_s"] = [line.window_s, window_s]
            verb: Any = "created" if line is None else "changed"
            change = Change(what="budget", name=f"{owner} {dim}", verb=verb, fields=fields)
            yield Step(change, later(desk.ledger.set_budget, level, owner, dim, limit, window_s=window_s))
    for dim in known.keys() - wanted.keys():
        change = Change(what="budget", name=f"{owner} {dim}", verb="removed")
        yield Step(change, later(desk.ledger.set_budget, level, owner, dim, None))


def _scheduling_steps(desk: Registers, fleet: Fleet) -> Iterator[Step]:
    """How far back fair_share looks: before any project is made, which is counted in that window. And for how long
    entries are kept for a worker."""
    before_s, window_s = desk.ledger.share_window(), fleet.scheduling.rolling_window_hours * 3600.0
    if before_s != window_s:
        fields = {"window_s": [before_s, window_s]}
        change = Change(what="scheduling", name="rolling_window_hours", verb="changed", fields=fields)
        yield Step(change, later(desk.ledger.set_share_window, window_s))
    before_s, wait_s = desk.queue.affinity_wait(), float(fleet.scheduling.affinity_wait_s)
    if before_s != wait_s:
        fields = {"wait_s": [before_s, wait_s]}
        change = Change(what="scheduling", name="affinity_wait_s", verb="changed", fields=fields)
        yield Step(change, later(desk.queue.set_affinity_wait, wait_s))


def _global_steps(desk: Registers, fleet: Fleet, known: dict[str, BudgetLine]) -> Iterator[Step]:
    """Everybody's budgets: one that this file never named is somebody else's."""
    wanted = fleet.scheduling.budget
    mine = {*wanted, *Note.of(desk, fleet).budget}
    yield from _budget_steps(desk, fleet, EVERYBODY, wanted, {dim: line for dim, line in known.items() if dim in mine})


# --- agents ----------------------------------------------------------------------------------------


def _living(desk: Registers) -> dict[str, Agent]:
    """The living agents by name, the youngest where several have one."""
    return {each.name: each for each in every(desk.agents.list) if each.state != AgentState.DEAD}


def _agent_steps(desk: Registers, fleet: Fleet, known: dict[str, Agent]) -> Iterator[Step]:
    for name, table in fleet.agents.items():
        agent = known.get(name)
        if agent is None:
            yield Step(Change(what="agent", name=name, verb="created"), later(_create, desk, fleet, name, table))
        else:
            yield from _one_agent(desk, fleet, table, agent)
            yield from _grant_steps(desk, agent.pid, name, table)
    for name, agent in known.items():
        ours = agent.metadata.get(FLEET_KEY) == fleet.title
        if ours and name not in fleet.agents and agent.paused_by is None:
            change = Change(what="agent", name=name, verb="paused", note=GONE)
            yield Step(change, later(desk.agents.pause, agent.pid, BY, GONE))


def _settings(fleet: Fleet, table: AgentTable, metadata: dict[str, Any]) -> dict[str, Any]:
    plan = msgspec.json.decode(msgspec.json.encode(table.plan(fleet.folder)))  # as the store gives it back
    return {
        "priority": table.priority,
        "weight": table.thousandths,
        "intent": table.intent,
        "max_concurrent": table.max_concurrent,
        "metadata": {**metadata, FLEET_KEY: fleet.title, PLAN_KEY: plan},
    }


def _create(desk: Registers, fleet: Fleet, name: str, table: AgentTable) -> None:
    settings = _settings(fleet, table, {})
    runner = str(settings["metadata"][PLAN_KEY].get("runner", "callable"))
    pid = desk.agents.create(name, runner, project_id=table.project, unique=True, **settings)
    for step in _grant_steps(desk, pid, name, table):
        step.make()


def _one_agent(desk: Registers, fleet: Fleet, table: AgentTable, agent: Agent) -> Iterator[Step]:
    wanted = _settings(fleet, table, agent.metadata)
    differs = {field: value for field, value in wanted.items() if getattr(agent, field) != value}
    if differs:
        fields = {field: [getattr(agent, field), value] for field, value in differs.items() if field != "metadata"}
        if "metadata" in differs:
            fields |= _plan_differences(agent.metadata.get(PLAN_KEY) or {}, wanted["metadata"][PLAN_KEY])
        change = Change(what="agent", name=agent.name, verb="changed", fields=fields)
        yield Step(change, later(desk.agents.update, agent.pid, **differs))
    if agent.paused_by == BY:
        yield Step(Change(what="agent", name=agent.name, verb="resumed"), later(desk.agents.resume, agent.pid, BY))


def _plan_differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    keys = sorted(before.keys() | now.keys())
    return {key: [before.get(key), now.get(key)] for key in keys if before.get(key) != now.get(key)}


def _grant_steps(desk: Registers, pid: int, name: str, table: AgentTable) -> Iterator[Step]:
    known = {line.dim: line.granted for line in desk.ledger.get(pid)}
    for dim, granted in table.budget.items():
        if dim not in known:
            change = Change(what="grant", name=f"{name} {dim}", verb="created", fields={"granted": [None, granted]})
            yield Step(change, later(desk.ledger.create, pid, {dim: granted}))
        elif known[dim] != granted:
            change = Change(
                what="grant", name=f"{name} {dim}", verb="changed", fields={"granted": [known[dim], granted]}
            )
            yield Step(change, later(desk.ledger.update_grant, pid, dim, granted))
    for dim in known.keys() - table.budget.keys():
        if known[dim] != NO_GRANT:
            change = Change(what="grant", name=f"{name} {dim}", verb="removed")
            yield Step(change, later(desk.ledger.update_grant, pid, dim, NO_GRANT))

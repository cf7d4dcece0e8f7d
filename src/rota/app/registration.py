"""Registering agents: a program that starts again finds the agents that it registered before.

The agent of a project and name is created once and updated with the settings of the program; it keeps what it has used
of its budget. Nothing is written if nothing changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from rota.app.agent_options import AgentOptions, split_options, thousandths
from rota.errors import InvalidInput, LedgerExists, NotFound, ProjectExists, WorkspaceExists
from rota.fleet.agent_settings import SETTINGS_KEY, AgentSettings
from rota.model.agent_names import agent_in_project, agent_named
from rota.model.ray import RAY, RaySettings
from rota.model.work import WEIGHT_UNIT, Agent
from rota.model.worktrees import WorktreeSettings
from rota.service.api import SchedulerApi

__all__ = ["ensure_agent"]


def ensure_agent(api: SchedulerApi, name: str, runner: str, how: dict[str, Any], settings: AgentOptions) -> Agent:
    """Return the agent of this name in its project, created or updated; write nothing if nothing changes."""
    row, run = split_options(settings)
    if (on_ray := run.pop("ray", None)) is not None:
        run["ray"], runner = RaySettings(executes=cast("Any", runner), **on_ray), RAY
    body = {SETTINGS_KEY: msgspec.to_builtins(AgentSettings(runner=runner, **how, **run))}
    project = settings.get("project")
    if project is None and "project_weight" in settings:
        raise InvalidInput("project_weight is the weight of a project: name it with project=", field="project_weight")
    found = api.agents.find(name)
    agent = agent_in_project(found, project)
    if agent is None and found and project is None:
        agent = agent_named(found, name, near=None)
    if agent is None:
        if project is not None:
            _ensure_project(api, project, settings.get("project_weight"))
        pid = api.agents.create(name, runner, project_id=project, metadata=body, unique=True, **row)
    else:
        pid = agent.pid
        _update_agent(api, agent, row, body)
        if project is not None and "project_weight" in settings:
            _ensure_project(api, project, settings["project_weight"])
    _grant(api, pid, cast("Mapping[str, int]", settings.get("budget") or {}))  # dollars are cost_micro by now
    if project is not None and (worktree := run.get("worktree")) is not None:
        _register_worktree(api, worktree, project, name)
    return api.agents.get(pid)


def _register_worktree(api: SchedulerApi, worktree: WorktreeSettings, project: str, name: str) -> None:
    """Make the worktree of an agent a workspace of its project; those of entries are their supervisors'."""
    workspace_id, path = worktree.workspace_id(project, name), worktree.path(name, 0)
    if worktree.per == "agent" and workspace_id is not None and path is not None:
        with contextlib.suppress(WorkspaceExists):
            api.projects.add_workspace(workspace_id, project, path, source="worktree")


def _update_agent(api: SchedulerApi, agent: Agent, row: dict[str, Any], body: dict[str, Any]) -> None:
    changes = {field: value for field, value in row.items() if getattr(agent, field) != value}
    if agent.metadata.get(SETTINGS_KEY) != body[SETTINGS_KEY]:
        changes["metadata"] = agent.metadata | body
    if changes:
        api.agents.update(agent.pid, **changes)


def _ensure_project(api: SchedulerApi, project_id: str, weight: float | None) -> None:
    """Create the project if it does not exist; a weight that is given becomes its weight."""
    wanted = None if weight is None else thousandths("project_weight", weight)
    try:
        project = api.projects.get(project_id)
    except NotFound:
        with contextlib.suppress(ProjectExists):  # created by another program at the same moment
            api.projects.create(project_id, weight=wanted or WEIGHT_UNIT)
    else:
        if wanted not in (None, project.weight):
            api.projects.update(project_id, weight=wanted)


def _grant(api: SchedulerApi, pid: int, budget: Mapping[str, int]) -> None:
    granted = {line.dim: line.granted for line in api.ledger.get(pid)}
    new = {dim: amount for dim, amount in budget.items() if dim not in granted}
    if new:
        try:
            api.ledger.create(pid, new)
        except LedgerExists:  # created by another program at the same moment
            _grant(api, pid, budget)
            return
    for dim, amount in budget.items():
        if dim in granted and granted[dim] != amount:
            api.ledger.update_grant(pid, dim, amount)

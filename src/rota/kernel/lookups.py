"""Find one agent or project inside a transaction, or raise the error that it does not exist."""

from __future__ import annotations

from rota.errors import InvalidPayload, ProjectInvalid, ProjectUnknown, UnknownPid
from rota.kernel.rows import agent_from_row, project_from_row
from rota.model.checks import Checks
from rota.model.work import Agent, Project
from rota.store import Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import projects as project_sql

__all__ = ["check_project_exists", "find_agent", "find_project", "unknown_project"]

_agent = Checks("Agent", InvalidPayload)
_project = Checks("Project", ProjectInvalid)


def find_agent(tx: Transaction, pid: int) -> Agent:
    """Return an agent; raises `UnknownPid`."""
    rows = tx.run(agent_sql.GET, (_agent.whole("pid", pid),))
    if not rows:
        raise UnknownPid(pid)
    return agent_from_row(rows[0])


def find_project(tx: Transaction, project_id: str) -> Project:
    """Return a project; raises `ProjectUnknown`."""
    _project.text("project_id", project_id)
    rows = tx.run(project_sql.GET, (project_id,))
    if not rows:
        raise unknown_project(project_id)
    return project_from_row(rows[0])


def check_project_exists(tx: Transaction, project_id: str) -> None:
    """Raise `ProjectUnknown` if there is no such project."""
    if not tx.run(project_sql.GET, (project_id,)):
        raise unknown_project(project_id)


def unknown_project(project_id: str) -> ProjectUnknown:
    """Return the error for a project that does not exist."""
    return ProjectUnknown(f"there is no project {project_id!r}", project_id=project_id)

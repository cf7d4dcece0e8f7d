"""Which agent a name means.

A name belongs to a project: the agent `reader` of project `a` and the agent `reader` of project `b` are two agents,
each with its own budget. Programs and fleet files that register an agent give its project, and get the same agent every
time. Where only a name is given, the agent of the caller's own project is meant, else the only agent of that name; if
there are several, the caller has to say which.

The kernel itself lets any number of agents share a name. If several live ones do in one project, the first one that was
created is meant: a later one cannot take its place, with a budget of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from rota.errors import AmbiguousAgent, UnknownAgent
from rota.model.work import Agent

__all__ = ["agent_in_project", "agent_named"]


def agent_in_project(found: Iterable[Agent], project_id: str | None) -> Agent | None:
    """Return the agent of a project (None: of no project) among the live agents of a name; None if it has none."""
    return min((agent for agent in found if agent.project_id == project_id), key=_pid, default=None)


def agent_named(found: Iterable[Agent], name: str, *, near: str | None) -> Agent:
    """Return the agent that a name alone means to a caller of a project, among the live agents of that name.

    Raises `UnknownAgent` if there is none, and `AmbiguousAgent` if the name is only used in several other projects.
    """
    first: dict[str | None, Agent] = {}  # by project
    for agent in sorted(found, key=_pid):
        first.setdefault(agent.project_id, agent)
    if not first:
        raise UnknownAgent(name)
    if near in first:
        return first[near]
    if len(first) > 1:
        raise AmbiguousAgent(name, {agent.pid: agent.project_id for agent in first.values()})
    return next(iter(first.values()))


def _pid(agent: Agent) -> int:
    return agent.pid

"""Who calls, and what that allows.

Scopes form a ladder (see wire/methods): a caller has one rung, and all below it. A caller may be bound to projects:
then it can enqueue into those only, and of everybody else's entries, agents and events it sees that they are there
and how they stand, but not what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rota.errors import Forbidden
from rota.model.events import Event
from rota.model.explanation import Explanation
from rota.model.work import Agent, Project, ReadyEntry, Workspace
from rota.rpc.methods import METHODS, SCOPES, Method, Scope
from rota.rpc.results.register import AgentList, AgentPage, Events, ProjectPage, Workspaces
from rota.rpc.results.work import EntryPage

__all__ = ["BOUND_SCOPES", "Caller", "Owners", "hide", "needed_scope"]

BOUND_SCOPES: tuple[Scope, ...] = ("read", "enqueue")  # those that can be bound to projects
_RUNG = {scope: rung for rung, scope in enumerate(SCOPES)}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody whose identity was established."""

    name: str  # for people and the audit: a token's id, a local user
    scope: Scope
    projects: frozenset[str] | None = None  # None: all
    peer: str = "local"  # where from

    def may(self, scope: Scope) -> bool:
        """Whether its scope covers this one."""
        return _RUNG[self.scope] >= _RUNG[scope]

    def sees(self, project_id: str | None) -> bool:
        """Whether what is in this project is shown to it."""
        return self.projects is None or project_id in self.projects


_DEFAULTS = {
    (method.name, field.name): field.default
    for method in METHODS.values()
    for field in msgspec.structs.fields(method.params)
    if field.name in method.guarded
}


def needed_scope(method: Method, params: Any) -> Scope:
    """The scope that a call needs: the method's own, or operate where a guarded field is used."""
    for field in method.guarded:
        if getattr(params, field) != _DEFAULTS[method.name, field]:
            return "operate" if _RUNG["operate"] > _RUNG[method.scope] else method.scope
    return method.scope


def check(caller: Caller, method: Method, params: Any) -> Scope:
    """The scope a call needs, if the caller has it."""
    scope = method.scope if not method.guarded else needed_scope(method, params)
    if not caller.may(scope):
        more = "" if scope == method.scope else f" with {' or '.join(method.guarded)}"
        raise Forbidden(f"{method.name}{more} needs scope {scope}, and {caller.name} has {caller.scope}", scope=scope)
    return scope


# --- what a caller of one project sees of others -------------------------------------------------


class Owners:
    """Which project an agent belongs to; it never changes, so it is asked once."""

    PIDS_MAX = 100_000  # remembered; beyond that all are forgotten and asked again

    def __init__(self, agent: Any) -> None:
        self._agent = agent  # from a pid to its agent
        self._known: dict[int, str | None] = {}

    def project_of(self, pid: int) -> str | None:
        """The agent's project."""
        if pid not in self._known:
            if len(self._known) >= self.PIDS_MAX:
                self._known.clear()
            self._known[pid] = self._agent(pid).project_id
        return self._known[pid]


def hide(result: Any, caller: Caller, owners: Owners) -> Any:
    """A result with what is in other projects taken out."""
    if isinstance(result, Events):
        return Events([_event(each, caller, owners) for each in result.events], result.next_cursor)
    if isinstance(result, Explanation):  # that it waits, and for what, is everybody's; its story is not
        return result if caller.sees(owners.project_of(result.pid)) else msgspec.structs.replace(result, story=())
    noun = _NOUNS.get(type(result))
    if noun is not None:
        return noun(result, caller)
    listed = _LISTS.get(type(result))
    if listed is None:
        return result
    shown = [_NOUNS[type(each)](each, caller) for each in getattr(result, listed)]
    return msgspec.structs.replace(result, **{listed: shown})


def _entry(entry: ReadyEntry, caller: Caller) -> ReadyEntry:
    if caller.sees(entry.project_id):
        return entry
    return msgspec.structs.replace(entry, payload={}, result=None, key=None, tags=(), token=None, correlation_id=None)


def _agent(agent: Agent, caller: Caller) -> Agent:
    return agent if caller.sees(agent.project_id) else msgspec.structs.replace(agent, metadata={}, exit_detail={})


def _project(project: Project, caller: Caller) -> Project:
    return project if caller.sees(project.project_id) else msgspec.structs.replace(project, metadata={})


def _workspace(workspace: Workspace, caller: Caller) -> Workspace:
    return workspace if caller.sees(workspace.project_id) else msgspec.structs.replace(workspace, path="")


def _event(event: Event, caller: Caller, owners: Owners) -> Event:
    if event.pid is not None and caller.sees(owners.project_of(event.pid)):
        return event
    return msgspec.structs.replace(event, payload={}, causation_id=None, correlation_id=None)


_NOUNS: dict[type, Callable[[Any, Caller], Any]] = {
    ReadyEntry: _entry,
    Agent: _agent,
    Project: _project,
    Workspace: _workspace,
}
_LISTS: dict[type, str] = {
    EntryPage: "entries",
    AgentPage: "agents",
    AgentList: "agents",
    ProjectPage: "projects",
    Workspaces: "workspaces",
}

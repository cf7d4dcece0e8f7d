"""Authorization: the principal behind a call, and what it may do and see.

A principal has one scope, which includes all lower ones (`service/api/declaration.py`). It may be bound to projects:
then it can only enqueue into those, and of the entries, agents and events of other projects it sees the state but not
the contents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rota.errors import Forbidden
from rota.model.events import Event
from rota.model.explanation import Explanation
from rota.model.work import Agent, Project, ReadyEntry, Workspace
from rota.rpc.methods import SCOPES, Method, Scope
from rota.rpc.results import EventsResult

__all__ = ["BOUND_SCOPES", "AgentProjects", "Principal", "authorize", "redact", "required_scope"]

BOUND_SCOPES: tuple[Scope, ...] = ("read", "enqueue")  # the scopes that can be bound to projects
_RANK = {scope: rank for rank, scope in enumerate(SCOPES)}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller."""

    name: str  # in messages and audit events: a token's id or a local user
    scope: Scope
    projects: frozenset[str] | None = None  # None: all
    peer: str = "local"  # the address or process it calls from

    def may(self, scope: Scope) -> bool:
        """Return whether its scope includes this one."""
        return _RANK[self.scope] >= _RANK[scope]

    def sees(self, project_id: str | None) -> bool:
        """Return whether it may see the contents of a project."""
        return self.projects is None or project_id in self.projects


def required_scope(method: Method, params: Any) -> Scope:
    """Return the scope that a call needs: the method's own, or `operate` if it sets one of the `operate_fields`."""
    for field, default in method.operate_defaults.items():
        if getattr(params, field) != default:
            return "operate" if _RANK["operate"] > _RANK[method.scope] else method.scope
    return method.scope


def authorize(principal: Principal, method: Method, params: Any) -> Scope:
    """Return the scope that a call needs, or raise `Forbidden` if the principal does not have it."""
    scope = method.scope if not method.operate_fields else required_scope(method, params)
    if not principal.may(scope):
        fields = "" if scope == method.scope else f" with {' or '.join(method.operate_fields)}"
        raise Forbidden(
            f"{method.name}{fields} needs scope {scope}, but {principal.name} has scope {principal.scope}", scope=scope
        )
    return scope


# --- redaction of other projects -----------------------------------------------------------------


class AgentProjects:
    """A cache of each agent's project, which never changes."""

    PIDS_MAX = 100_000  # cached; at the limit the cache is cleared

    def __init__(self, get_agent: Callable[[int], Agent]) -> None:
        self._get_agent = get_agent
        self._known: dict[int, str | None] = {}

    def project_of(self, pid: int) -> str | None:
        """Return the agent's project."""
        if pid not in self._known:
            if len(self._known) >= self.PIDS_MAX:
                self._known.clear()
            self._known[pid] = self._get_agent(pid).project_id
        return self._known[pid]


def redact(result: Any, principal: Principal, projects: AgentProjects) -> Any:
    """Return a result without the contents of projects that the principal may not see."""
    if isinstance(result, EventsResult):
        return EventsResult([_redact_event(each, principal, projects) for each in result.events], result.next_cursor)
    if isinstance(result, Explanation):  # the reasons are public, the history is not
        return result if principal.sees(projects.project_of(result.pid)) else msgspec.structs.replace(result, story=())
    if type(result) in _REDACTORS or not isinstance(result, msgspec.Struct):
        return _redact_one(result, principal)
    lists = {name: value for name in result.__struct_fields__ if isinstance(value := getattr(result, name), list)}
    redacted = {name: [_redact_one(each, principal) for each in value] for name, value in lists.items()}
    return msgspec.structs.replace(result, **redacted)


def _redact_one(value: Any, principal: Principal) -> Any:
    redactor = _REDACTORS.get(type(value))
    return value if redactor is None else redactor(value, principal)


def _redact_entry(entry: ReadyEntry, principal: Principal) -> ReadyEntry:
    if principal.sees(entry.project_id):
        return entry
    return msgspec.structs.replace(entry, payload={}, result=None, key=None, tags=(), token=None, correlation_id=None)


def _redact_agent(agent: Agent, principal: Principal) -> Agent:
    return agent if principal.sees(agent.project_id) else msgspec.structs.replace(agent, metadata={}, exit_detail={})


def _redact_project(project: Project, principal: Principal) -> Project:
    return project if principal.sees(project.project_id) else msgspec.structs.replace(project, metadata={})


def _redact_workspace(workspace: Workspace, principal: Principal) -> Workspace:
    return workspace if principal.sees(workspace.project_id) else msgspec.structs.replace(workspace, path="")


def _redact_event(event: Event, principal: Principal, projects: AgentProjects) -> Event:
    if event.pid is not None and principal.sees(projects.project_of(event.pid)):
        return event
    return msgspec.structs.replace(event, payload={}, causation_id=None, correlation_id=None)


_REDACTORS: dict[type, Callable[[Any, Principal], Any]] = {
    ReadyEntry: _redact_entry,
    Agent: _redact_agent,
    Project: _redact_project,
    Workspace: _redact_workspace,
}

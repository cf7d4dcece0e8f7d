"""Authorization: the principal behind a call, and what it may do.

A principal has one scope, which includes all lower ones (`service/api/declaration.py`). It may be bound to projects:
then a method must declare what such a caller may do with it, and what belongs to other projects does not exist for it
(`bound_calls.py`). A run that shows its own token is bound to its project; it may also act for its own run, where the
method declares so, and never for another entry, agent or project.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from rota.errors import Forbidden
from rota.model.agent_metadata import hide_env
from rota.model.work import Agent
from rota.rpc.methods import SCOPES, Method, Scope

__all__ = ["BOUND_SCOPES", "Principal", "RunIdentity", "authorize", "for_own_run", "required_scope", "without_env"]

BOUND_SCOPES: tuple[Scope, ...] = ("read", "enqueue")  # the scopes that can be bound to projects
_RANK = {scope: rank for rank, scope in enumerate(SCOPES)}
_FLEET_HINT = "A fleet creates agents and writes notes: at a daemon, `rota run` needs a token of scope operate."
_BOUND_HINT = "Use a token that is not bound to projects; `rota docs rights` lists what each may do."
_RUN_HINT = "A run acts for itself only; `rota docs rights` lists what it may do."


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The run that a run's own token belongs to."""

    sched_id: int
    pid: int
    project_id: str | None
    claim_token: int


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller."""

    name: str  # in messages and audit events: a token's id or a local user
    scope: Scope
    projects: frozenset[str | None] | None = None  # None: all; of a run: its own, which may be none (a set of None)
    peer: str = "local"  # the address or process it calls from
    token_id: str | None = None  # of its access token, if it has a stored one
    digest: str = ""  # the hash of that token's secret, which may be replaced
    expires_at: float | None = None  # when that expires
    run: RunIdentity | None = None  # of a run's own token: only what the method's declaration allows a run

    def may(self, scope: Scope) -> bool:
        """Return whether its scope includes this one."""
        return _RANK[self.scope] >= _RANK[scope]

    @property
    def can_end(self) -> bool:
        """Whether it can lose its rights while it is connected: its token is revoked or expires, or its run ends."""
        return self.token_id is not None or self.run is not None

    @property
    def starts_programs(self) -> bool:
        """Whether it receives the values of agents' variables, which a supervisor needs to start their programs."""
        return self.run is None and self.may("work")

    @classmethod
    def of_run(cls, run: RunIdentity, *, name: str, peer: str) -> Principal:
        """Return the principal of a run's own token: scope work, within the run's project and its own run."""
        return cls(name=name, scope="work", projects=frozenset({run.project_id}), peer=peer, run=run)


def required_scope(method: Method, params: Any) -> Scope:
    """Return the scope that a call needs: the method's own, or `operate` if it sets one of the `operate_fields`."""
    for field, default in method.operate_defaults.items():
        if getattr(params, field) != default:
            return "operate" if _RANK["operate"] > _RANK[method.scope] else method.scope
    return method.scope


def authorize(principal: Principal, method: Method, params: Any) -> Scope:
    """Return the scope that a call needs, or raise `Forbidden` if the principal may not make it."""
    scope = method.scope if not method.operate_fields else required_scope(method, params)
    if not principal.may(scope):
        _refuse_scope(principal, method, scope)
    if principal.projects is not None:  # one comparison for all others
        if principal.run is not None:
            _check_run(principal.run, principal, method, params)
        elif method.bound is None or not method.bound.allowed:
            text = f"{method.name} is refused to tokens that are bound to projects, as {principal.name} is"
            raise Forbidden(text, hint=_BOUND_HINT, scope=scope)
    return scope


def _refuse_scope(principal: Principal, method: Method, scope: Scope) -> NoReturn:
    fields = "" if scope == method.scope else f" with {' or '.join(method.operate_fields)}"
    text = f"{method.name}{fields} needs scope {scope}, but {principal.name} has scope {principal.scope}"
    if scope == "operate" and principal.scope == "work":
        raise Forbidden(text, hint=_FLEET_HINT, scope=scope)
    raise Forbidden(text, scope=scope)


def without_env(result: Any) -> Any:
    """Return a result without the values of agents' variables."""
    if isinstance(result, Agent):
        return msgspec.structs.replace(result, metadata=hide_env(result.metadata))
    agents = getattr(result, "agents", None)
    if agents and isinstance(agents[0], Agent):
        return msgspec.structs.replace(result, agents=[without_env(agent) for agent in agents])
    return result


# --- runs ----------------------------------------------------------------------------------------


def _check_run(run: RunIdentity, principal: Principal, method: Method, params: Any) -> None:
    """Raise `Forbidden` unless the method allows runs, and the call names no run but this one."""
    rule = method.run or "refused"
    if rule == "refused" or (rule == "view" and (method.bound is None or not method.bound.allowed)):
        raise Forbidden(f"{method.name} is refused to runs, as {principal.name} is", hint=_RUN_HINT)
    if rule in ("view", "own_or_child"):  # whether it is a child, `bound_calls.py` reads in the transaction of the call
        return
    for field, own in _identity(run, method, params).items():
        if (given := getattr(params, field)) is not None and given != own:
            raise Forbidden(f"{method.name} of {principal.name} must have {field} {own}, not {given}", hint=_RUN_HINT)
    for spec in _specs(params) if rule == "children" else ():
        if spec.parent_id is not None and spec.parent_id != run.sched_id:
            text = f"{principal.name} may enqueue children of entry {run.sched_id}, not of entry {spec.parent_id}"
            raise Forbidden(text, hint=_RUN_HINT)


def for_own_run(run: RunIdentity, method: Method, params: Any) -> Any:
    """Return the parameters of an authorized call with the run's own identity in place of what was omitted."""
    if method.run not in ("own", "children"):
        return params
    own = _identity(run, method, params)
    given: dict[str, Any] = {name: value for name, value in own.items() if getattr(params, name) is None}
    if method.run == "children":
        if method.takes_struct:
            given["parent_id"] = run.sched_id
        elif hasattr(params, "spec"):
            given["spec"] = msgspec.structs.replace(params.spec, parent_id=run.sched_id)
        else:
            given["specs"] = [msgspec.structs.replace(spec, parent_id=run.sched_id) for spec in params.specs]
    return msgspec.structs.replace(params, **given) if given else params


def _identity(run: RunIdentity, method: Method, params: Any) -> dict[str, int]:
    """Return the parameters of a method that name the run itself, with their values."""
    if method.takes_struct:
        return {}
    own = {"sched_id": run.sched_id, "pid": run.pid, "token": run.claim_token}
    return {name: value for name, value in own.items() if hasattr(params, name)}


def _specs(params: Any) -> list[Any]:
    return params.specs if hasattr(params, "specs") else [getattr(params, "spec", params)]

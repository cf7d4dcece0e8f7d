"""Parse command-line arguments: agents by name, durations, instants, amounts, JSON."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any, Protocol

from rota.errors import AmbiguousAgent, InvalidInput, NotFound
from rota.kernel import EntryFilter
from rota.model import Agent

__all__ = [
    "agent_of",
    "amounts",
    "filter_of",
    "instant",
    "json_object",
    "json_value",
    "pid_of",
    "policy_params",
    "seconds",
]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


class _Agents(Protocol):
    def find(self, name: str) -> list[Agent]: ...
    def get(self, pid: int) -> Agent: ...


class _HasAgents(Protocol):
    @property
    def agents(self) -> _Agents: ...


def pid_of(api: _HasAgents, agent: str) -> int:
    """Return the pid that is given, or the pid of the one live agent with this name."""
    return int(agent) if _is_pid(agent) else agent_of(api, agent).pid


def _is_pid(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def agent_of(api: _HasAgents, agent: str) -> Agent:
    """Return the agent with this pid, or the one live agent with this name."""
    if _is_pid(agent):
        return api.agents.get(int(agent))
    found = api.agents.find(agent)
    if not found:
        raise NotFound(f"no live agent is named {agent!r}", hint="`rota agents` lists them.", agent=agent)
    if len(found) > 1:
        hint = "Give the pid instead of the name."
        raise AmbiguousAgent(agent, {each.pid: each.project_id for each in found}, hint=hint)
    return found[0]


def filter_of(
    api: _HasAgents, ids: list[int] | None, *, agent: str | None, project: str | None, tag: str | None
) -> EntryFilter | None:
    """Return the filter that was given, or None if entries were given by id; exactly one of the two is required."""
    matching = agent is not None or project is not None or tag is not None
    if bool(ids) == matching:
        hint = "Give entry ids, or at least one of --agent, --project and --tag."
        raise InvalidInput("either entry ids or a filter is required, not both", field="ids", hint=hint)
    if ids:
        return None
    return EntryFilter(pid=None if agent is None else pid_of(api, agent), project_id=project, tag=tag)


def seconds(text: str, field: str) -> float:
    """Parse a duration: 90, 90s, 5m, 2h, 1d."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        hint = "For example 90, 90s, 5m, 2h or 1d."
        raise InvalidInput(f"{field} must be a duration, not {text!r}", field=field, hint=hint)
    return float(match[1]) * _UNITS[match[2]]


def instant(text: str, field: str) -> float:
    """Parse an instant: epoch seconds, or a date and time (default zone: this machine's)."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError as problem:
        hint = "For example 2030-01-31T12:00, or epoch seconds."
        raise InvalidInput(f"{field} must be a date and time, not {text!r}", field=field, hint=hint) from problem


def amounts(pairs: list[str], field: str) -> dict[str, int]:
    """Parse amounts by dimension: tokens=500 cost_micro=20."""
    found: dict[str, int] = {}
    for pair in pairs:
        dim, equals, amount = pair.partition("=")
        if not (dim and equals and amount.isascii() and amount.isdecimal()):
            hint = f"For example --{field} tokens=500."
            raise InvalidInput(f"{field} must be a dimension and a whole number, not {pair!r}", field=field, hint=hint)
        found[dim] = int(amount)
    return found


def policy_params(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse parameters of a policy: the value is JSON, and a word that is not JSON is text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name.isidentifier() and equals):
            hint = "For example priority_first=true."
            raise InvalidInput(f"a parameter must be NAME=VALUE, not {pair!r}", field="param", hint=hint)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def json_object(text: str, field: str) -> dict[str, Any]:
    """Parse a JSON object."""
    value = json_value(text, field)
    if not isinstance(value, dict):
        raise InvalidInput(f"{field} must be a JSON object, not {type(value).__name__}", field=field)
    return value


def json_value(text: str, field: str) -> Any:
    """Parse JSON."""
    try:
        return json.loads(text)
    except ValueError as problem:
        hint = f"""Quote it for the shell: --{field} '{{"url": "…"}}'."""
        raise InvalidInput(f"{field} is not JSON: {problem}", field=field, hint=hint) from problem

"""Reading what somebody typed: agents by name, durations, instants, amounts, JSON."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any, Protocol

from rota.errors import InvalidInput, NotFound
from rota.kernel import EntryFilter
from rota.model.work import Agent

__all__ = ["agent_of", "amounts", "filter_of", "instant", "json_object", "pid_of", "seconds"]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


class _Agents(Protocol):
    def find(self, name: str) -> list[Agent]: ...
    def get(self, pid: int) -> Agent: ...


class _HasAgents(Protocol):
    @property
    def agents(self) -> _Agents: ...


def pid_of(desk: _HasAgents, who: str) -> int:
    """The pid of an agent, by itself, or by a name that one living agent has."""
    return int(who) if _is_pid(who) else agent_of(desk, who).pid


def _is_pid(who: str) -> bool:
    return who.isascii() and who.isdecimal()


def agent_of(desk: _HasAgents, who: str) -> Agent:
    """An agent by its pid, or by its name where one living agent has it."""
    if _is_pid(who):
        return desk.agents.get(int(who))
    found = desk.agents.find(who)
    if not found:
        raise NotFound(f"no living agent is called {who!r}", hint="`rota agents` shows who there is.", name=who)
    if len(found) > 1:
        pids = ", ".join(str(agent.pid) for agent in found)
        raise InvalidInput(f"{len(found)} agents are called {who!r}", field="agent", hint=f"Say which: {pids}.")
    return found[0]


def filter_of(
    desk: _HasAgents, ids: list[int] | None, *, agent: str | None, project: str | None, tag: str | None
) -> EntryFilter | None:
    """What matches, where entries are not named by number; one of the two has to be said."""
    matching = agent is not None or project is not None or tag is not None
    if bool(ids) == matching:
        hint = "Give numbers, or some of --agent, --project and --tag."
        raise InvalidInput("entries go by number or by what matches", field="ids", hint=hint)
    if ids:
        return None
    return EntryFilter(pid=None if agent is None else pid_of(desk, agent), project_id=project, tag=tag)


def seconds(text: str, field: str) -> float:
    """A duration: 90, 90s, 5m, 2h, 1d."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        hint = "Say 90, 90s, 5m, 2h or 1d."
        raise InvalidInput(f"{field} must be a duration, not {text!r}", field=field, hint=hint)
    return float(match[1]) * _UNITS[match[2]]


def instant(text: str, field: str) -> float:
    """An instant: epoch seconds, or a date and time (of this machine's zone, where none is named)."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError as problem:
        hint = "Say 2030-01-31T12:00 or epoch seconds."
        raise InvalidInput(f"{field} must be a date and time, not {text!r}", field=field, hint=hint) from problem


def amounts(pairs: list[str], field: str) -> dict[str, int]:
    """Amounts by dimension: tokens=500 cost_micro=20."""
    found: dict[str, int] = {}
    for pair in pairs:
        dim, equals, amount = pair.partition("=")
        if not (dim and equals and amount.isascii() and amount.isdecimal()):
            hint = f"Say --{field} tokens=500."
            raise InvalidInput(f"{field} must be a dimension and a whole number, not {pair!r}", field=field, hint=hint)
        found[dim] = int(amount)
    return found


def json_object(text: str, field: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError as problem:
        hint = f"""Quote it for the shell: --{field} '{{"url": "…"}}'."""
        raise InvalidInput(f"{field} is not JSON: {problem}", field=field, hint=hint) from problem
    if not isinstance(value, dict):
        raise InvalidInput(f"{field} must be a JSON object, not {type(value).__name__}", field=field)
    return value

"""Parse command-line arguments: agents by name, durations, instants, amounts, JSON."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from rota.clock import SystemClock
from rota.errors import AmbiguousAgent, InvalidInput, NotFound
from rota.model import COST_DIM, STATUSES, USD, Agent, micro_of

__all__ = [
    "agent_names",
    "agent_of",
    "amount_of",
    "amounts",
    "host_and_port",
    "instant",
    "json_object",
    "json_value",
    "named_values",
    "pid_of",
    "policy_params",
    "seconds",
    "statuses",
]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


class _Agents(Protocol):
    def find(self, name: str) -> list[Agent]: ...
    def get(self, pid: int) -> Agent: ...
    def names(self, pids: Sequence[int]) -> dict[int, str]: ...


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


def agent_names(api: _HasAgents, pids: Iterable[int]) -> dict[int, str]:
    """Return the names of agents by pid, for a table; one that the caller may not see is left out."""
    return api.agents.names(sorted(set(pids)))


def statuses(given: list[str] | None) -> tuple[str, ...] | None:
    """Parse statuses that are given by several options, or in one with commas; None if none are given."""
    if not given:
        return None
    found = tuple(status.strip() for words in given for status in words.split(","))
    for status in found:
        if status not in STATUSES:
            hint = f"One or several of: {', '.join(STATUSES)}."
            raise InvalidInput(f"there is no status {status!r}", field="status", hint=hint)
    return found


def seconds(text: str, field: str) -> float:
    """Parse a duration: 90, 90s, 5m, 2h, 1d."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        hint = "For example 90, 90s, 5m, 2h or 1d."
        raise InvalidInput(f"{field} must be a duration, not {text!r}", field=field, hint=hint)
    return float(match[1]) * _UNITS[match[2]]


def instant(text: str, field: str, now: float | None = None) -> float:
    """Parse an instant: now, a time from now (+10m, 10m), a date and time of this machine's zone, or epoch seconds."""
    word, from_now = text.strip().lower(), SystemClock().now() if now is None else now
    if word == "now":
        return from_now
    match = _DURATION.fullmatch(word.removeprefix("+"))
    if match is not None and match[2] in _UNITS and (match[2] or word.startswith("+")):
        return from_now + float(match[1]) * _UNITS[match[2]]
    try:
        return float(word)
    except ValueError:
        pass
    try:
        return dt.datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError) as problem:
        hint = "For example now, +10m, 2030-01-31T12:00, or epoch seconds."
        raise InvalidInput(f"{field} must be a date and time, not {text!r}", field=field, hint=hint) from problem


def host_and_port(text: str, field: str) -> tuple[str, int]:
    """Parse HOST:PORT; without a host it is this machine only."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise InvalidInput(f"--{field.replace('_', '-')} must be HOST:PORT, not {text!r}", field=field)
    return host.strip("[]") or "127.0.0.1", int(port)


def amounts(pairs: list[str], field: str) -> dict[str, int]:
    """Parse amounts by dimension: tokens=500 usd=0.02; dollars become cost_micro."""
    found: dict[str, int] = {}
    for pair in pairs:
        dim, equals, amount = pair.partition("=")
        if dim == USD:
            found[COST_DIM] = amount_of(dim, amount, field)[1]
            continue
        if not (dim and equals and amount.isascii() and amount.isdecimal()):
            hint = f"For example --{field} tokens=500."
            raise InvalidInput(f"{field} must be a dimension and a whole number, not {pair!r}", field=field, hint=hint)
        found[dim] = int(amount)
    return found


def amount_of(dim: str, text: str, field: str) -> tuple[str, int]:
    """Parse an amount of a dimension: a whole number, or dollars if the dimension is usd, which is cost_micro then."""
    if dim != USD:
        if not (text.isascii() and text.isdecimal()):
            hint = "For example 5000. Dollars are an amount of usd."
            raise InvalidInput(f"{field} must be a whole number, not {text!r}", field=field, hint=hint)
        return dim, int(text)
    try:
        return COST_DIM, micro_of(text)
    except ValueError as problem:
        raise InvalidInput(f"{field}: {problem}", field=field, hint="For example 0.05.") from problem


def policy_params(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse parameters of a policy: the value is JSON, and a word that is not JSON is text."""
    for pair in pairs:
        name, equals, _ = pair.partition("=")
        if not (name.isidentifier() and equals):
            hint = "For example priority_first=true."
            raise InvalidInput(f"a parameter must be NAME=VALUE, not {pair!r}", field="param", hint=hint)
    return named_values(pairs, "param")


def named_values(pairs: Sequence[str], field: str) -> dict[str, Any]:
    """Parse values by name: the value is JSON, and a word that is not JSON is text."""
    import json

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            hint = f"For example --{field} topic=tides."
            raise InvalidInput(f"{field} must be NAME=VALUE, not {pair!r}", field=field, hint=hint)
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
    import json

    try:
        return json.loads(text)
    except ValueError as problem:
        hint = f"""Quote it for the shell: --{field} '{{"url": "…"}}'."""
        raise InvalidInput(f"{field} is not JSON: {problem}", field=field, hint=hint) from problem

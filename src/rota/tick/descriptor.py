"""What is known about one agent of the tick world, as a value.

A descriptor says how an agent stood when it was asked for; it does not change afterwards. To spawn an
agent, make one and give it to the process table; to change an agent, use the table's verbs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rota.errors import InvalidPayload
from rota.model.checks import Checks
from rota.model.lifecycle import AgentProcessState
from rota.model.work import Intent

__all__ = ["KERNEL_PID", "PRIORITY_MAX", "PRIORITY_MIN", "AgentDescriptor", "clamp_priority"]

KERNEL_PID = 0  # the parent of agents that no agent spawned
PRIORITY_MIN = 0.1
PRIORITY_MAX = 10.0
FLOAT_PLACES = 4  # in the canonical form

_STATES = tuple(AgentProcessState)
_INTENTS = tuple(Intent)
_checks = Checks("AgentDescriptor", InvalidPayload)


def clamp_priority(priority: float) -> float:
    """A finite number, moved to the nearest end of the range where it lies outside."""
    _checks.number("priority", priority)
    return min(PRIORITY_MAX, max(PRIORITY_MIN, float(priority)))


@dataclass(frozen=True, slots=True)
class AgentDescriptor:
    """An agent as it stood at one moment."""

    pid: int = 0  # given by the process table
    agent_id: str = ""  # empty: the table names it after its pid
    parent_pid: int = KERNEL_PID
    state: AgentProcessState = AgentProcessState.CREATED
    priority: float = 1.0
    intent: Intent = Intent.NEUTRAL
    role: str = "ANALYST"
    resource_quota: Mapping[str, float] = field(default_factory=dict)
    birth_tick: int = 0
    exit_tick: int | None = None
    blocked_until_tick: int | None = None
    exit_reason: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _checks.whole("pid", self.pid, 0)
        _checks.whole("parent_pid", self.parent_pid, 0)
        _checks.whole("birth_tick", self.birth_tick)
        _checks.text("role", self.role)
        if self.agent_id != "":
            _checks.text("agent_id", self.agent_id)
        for name, amount in _checks.mapping("resource_quota", self.resource_quota).items():
            _checks.number(f"resource_quota[{name!r}]", amount, 0)
        # frozen for everybody else: a value outside the range, or a plain word, is put right here
        object.__setattr__(self, "priority", clamp_priority(self.priority))
        object.__setattr__(self, "state", AgentProcessState(_checks.one_of("state", self.state, _STATES)))
        object.__setattr__(self, "intent", Intent(_checks.one_of("intent", self.intent, _INTENTS)))

    def to_dict(self) -> dict[str, Any]:
        """The canonical form: plain values, quota by name, floats to four places."""
        quota = {name: _rounded(amount) for name, amount in sorted(self.resource_quota.items())}
        return {
            "pid": self.pid,
            "agent_id": self.agent_id,
            "parent_pid": self.parent_pid,
            "state": self.state.value,
            "priority": _rounded(self.priority),
            "intent": self.intent.value,
            "role": self.role,
            "resource_quota": quota,
            "birth_tick": self.birth_tick,
            "exit_tick": self.exit_tick,
            "blocked_until_tick": self.blocked_until_tick,
            "exit_reason": self.exit_reason,
        }


def _rounded(number: float) -> float:
    return round(float(number), FLOAT_PLACES)

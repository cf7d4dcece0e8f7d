"""How an agent is run: settings stored with the agent, so that any supervisor of the store can run it.

The fleet file or `Rota.agent` writes the settings once into the agent's metadata under `SETTINGS_KEY`. They name the
runner and hold the defaults for the agent's entries. `spec_for` builds an entry from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rota.errors import FleetInvalid
from rota.fleet.runners.usage import UsageReader
from rota.model.checks import Checks
from rota.model.struct_reader import first_problem
from rota.model.work import Agent, Limits, RestartPolicy, ScheduleSpec

__all__ = ["SETTINGS_KEY", "AgentSettings", "settings_of", "spec_for"]

SETTINGS_KEY = "run"  # key in an agent's metadata

_RETRY_ON: Mapping[str, tuple[str, ...]] = {
    "never": (),
    "on_crash": ("crashed",),
    "on_failure": ("crashed", "failed"),
    "always": ("crashed",),  # a failed entry is not retried: the agent is enqueued again instead
}
_checks = Checks("AgentSettings", FleetInvalid)


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How an agent is run, and the defaults for its entries."""

    runner: str = "callable"
    argv: tuple[str, ...] = ()  # command, ndjson: the program and its arguments
    function: str | None = None  # callable: module:name; None: the supervisor has a function of the agent's name
    isolation: Literal["thread", "process"] = "thread"  # callable: a process can be killed
    env: dict[str, str] = {}  # set in addition to the variables that are passed through
    pass_env: tuple[str, ...] = ()  # further variables of the supervisor's environment to pass through
    cwd: str | None = None  # None: the run's workspace, or else the supervisor's working directory
    stdin: Literal["payload", "none"] = "payload"  # command: whether the payload is on standard input as JSON
    payload: dict[str, Any] = {}  # default payload; an entry's own keys override it
    usage: str | dict[str, str] | None = None  # command: a preset's name, or dimension → path in its JSON output
    limits: Limits = Limits()
    restart: RestartPolicy = RestartPolicy()
    stop_grace_s: float = 5.0  # between one step of the stop escalation and the next
    expected: dict[str, int] = {}
    ceiling: dict[str, int] = {}
    draws_on: tuple[str, ...] = ()
    kind: str | None = None
    affinity: str | None = None
    workspace: str | None = None
    workspace_mode: Literal["exclusive", "shared"] | None = None
    max_attempts: int = 3

    def __post_init__(self) -> None:
        _checks.text("runner", self.runner)
        _checks.duration("stop_grace_s", self.stop_grace_s)
        if self.usage is not None:
            UsageReader(self.usage)  # raises FleetInvalid for an unknown preset or an invalid path
        if self.runner in ("command", "ndjson") and not self.argv:
            raise _checks.refuse("argv", f"is required: the program that the {self.runner} runner starts")
        for field in ("env", "pass_env"):
            if self.runner == "callable" and getattr(self, field):
                raise _checks.refuse(
                    field, "is only for programs: a function runs with the environment of the supervisor"
                )


def settings_of(agent: Agent) -> AgentSettings | None:
    """Return the settings stored with an agent; None if it has none."""
    stored = agent.metadata.get(SETTINGS_KEY)
    if stored is None:
        return None
    try:
        return msgspec.convert(stored, AgentSettings, strict=True)
    except msgspec.ValidationError as refusal:
        problem = first_problem(AgentSettings, stored) or refusal
        raise FleetInvalid(f"the settings of agent {agent.pid} ({agent.name}) are invalid: {problem}") from refusal


def spec_for(agent: Agent, settings: AgentSettings | None, payload: Mapping[str, Any], **options: Any) -> ScheduleSpec:
    """Build an entry for an agent: `options` override the agent's settings, which override the defaults."""
    defaults: dict[str, Any] = {"priority": agent.priority}
    merged = dict(payload)
    if settings is not None:
        merged = {**settings.payload, **merged}
        defaults |= {
            "expected": settings.expected,
            "ceiling": _ceiling(settings),
            "draws_on": settings.draws_on,
            "kind": settings.kind,
            "affinity": settings.affinity,
            "workspace": settings.workspace,
            "workspace_mode": settings.workspace_mode,
            "max_attempts": 1 if settings.restart.when == "never" else settings.max_attempts,
            "retry_on": _RETRY_ON[settings.restart.when],
            "backoff": settings.restart.backoff,
        }
    return ScheduleSpec(pid=agent.pid, payload=merged, **(defaults | options))


def _ceiling(settings: AgentSettings) -> dict[str, int]:
    """The ceiling of a run. A limit on tokens is part of it, so that the claim reserves the tokens."""
    limit = settings.limits.tokens
    if limit is None:
        return settings.ceiling
    return {**settings.ceiling, "tokens": min(limit, settings.ceiling.get("tokens", limit))}

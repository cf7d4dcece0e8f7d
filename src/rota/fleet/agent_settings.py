"""How an agent is run: kept with the agent, so that any supervisor of the store can run it.

A plan is written once, by the fleet file or by `Rota.agent`, into the agent's metadata under `PLAN_KEY`. It says which
runner runs the agent and what each of its entries asks for when nothing else is said. `spec_for` makes an entry of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rota.errors import FleetInvalid
from rota.fleet.runners.usage import UsageReader
from rota.model.checks import Checks
from rota.model.work import Agent, Limits, RestartPolicy, ScheduleSpec

__all__ = ["PLAN_KEY", "RunPlan", "plan_of", "spec_for"]

PLAN_KEY = "run"  # of an agent's metadata

_RETRY_ON: Mapping[str, tuple[str, ...]] = {
    "never": (),
    "on_crash": ("crashed",),
    "on_failure": ("crashed", "failed"),
    "always": ("crashed",),  # what failed is not tried again: the agent is
}
_checks = Checks("RunPlan", FleetInvalid)


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How an agent is run, and what its entries ask for by default."""

    runner: str = "callable"
    argv: tuple[str, ...] = ()  # command, ndjson: the program and its arguments
    function: str | None = None  # callable: where it is found, as module:name; None: registered by whoever supervises
    isolation: Literal["thread", "process"] = "thread"  # callable: a process can be killed
    env: dict[str, str] = {}  # on top of what is allowed through
    pass_env: tuple[str, ...] = ()  # further names of our environment that are allowed through
    cwd: str | None = None  # None: its workspace, else where the supervisor stands
    stdin: Literal["payload", "none"] = "payload"  # command: whether the payload is written to it as JSON
    payload: dict[str, Any] = {}  # what an entry is given where it says nothing else
    usage: str | dict[str, str] | None = None  # command: a preset's name, or dimension → path in its JSON output
    limits: Limits = Limits()
    restart: RestartPolicy = RestartPolicy()
    stop_grace_s: float = 5.0  # between one rung of the ladder and the next
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
            UsageReader(self.usage)  # which refuses what it cannot read by
        if self.runner in ("command", "ndjson") and not self.argv:
            raise _checks.refuse("argv", f"must name the program that the {self.runner} runner starts")
        for field in ("env", "pass_env"):
            if self.runner == "callable" and getattr(self, field):
                raise _checks.refuse(field, "goes with programs: a function shares the environment of its process")


def plan_of(agent: Agent) -> RunPlan | None:
    """The plan kept with an agent; None if nobody gave it one."""
    kept = agent.metadata.get(PLAN_KEY)
    if kept is None:
        return None
    try:
        return msgspec.convert(kept, RunPlan, strict=True)
    except msgspec.ValidationError as problem:
        raise FleetInvalid(f"the plan of agent {agent.pid} ({agent.name}) cannot be read: {problem}") from problem


def spec_for(agent: Agent, plan: RunPlan | None, payload: Mapping[str, Any], **said: Any) -> ScheduleSpec:
    """An entry for an agent: what is said here, else what its plan says, else the defaults."""
    wanted: dict[str, Any] = {"priority": agent.priority}
    given = dict(payload)
    if plan is not None:
        given = {**plan.payload, **given}
        wanted |= {
            "expected": plan.expected,
            "ceiling": _ceiling(plan),
            "draws_on": plan.draws_on,
            "kind": plan.kind,
            "affinity": plan.affinity,
            "workspace": plan.workspace,
            "workspace_mode": plan.workspace_mode,
            "max_attempts": 1 if plan.restart.when == "never" else plan.max_attempts,
            "retry_on": _RETRY_ON[plan.restart.when],
            "backoff": plan.restart.backoff,
        }
    return ScheduleSpec(pid=agent.pid, payload=given, **(wanted | said))


def _ceiling(plan: RunPlan) -> dict[str, int]:
    """What a run may use at most: a limit on tokens is a ceiling, so that it is reserved before it is enforced."""
    if plan.limits.tokens is None:
        return plan.ceiling
    return {**plan.ceiling, "tokens": min(plan.limits.tokens, plan.ceiling.get("tokens", plan.limits.tokens))}

"""The entries of an agent: `settings_of` reads how the agent is run, `spec_for` makes an entry with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.errors import FleetInvalid, SchedInvalidPayload
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.agent_settings import AgentSettings, fields_of_key, read_settings
from rota.model.graph_budgets import GraphAccount
from rota.model.graph_runs import RUNNER, new_run_id
from rota.model.work import Agent, ScheduleSpec

__all__ = ["settings_of", "spec_for"]

_RETRY_ON: Mapping[str, tuple[str, ...]] = {
    "never": (),
    "on_crash": ("crashed",),
    "on_failure": ("crashed", "failed"),
    "always": ("crashed",),  # a failed entry is not retried: the agent is enqueued again instead
}


def settings_of(agent: Agent) -> AgentSettings | None:
    """Return the settings stored with an agent, None if it has none; FleetInvalid if they cannot be read."""
    problem = agent.unreadable
    if problem is None:
        try:
            return read_settings(agent.metadata)
        except FleetInvalid as invalid:
            problem, field = invalid.message, invalid.field
    else:
        field = SETTINGS_KEY
    raise FleetInvalid(
        f"the settings of agent {agent.pid} ({agent.name}) cannot be read: {problem}",
        field=field,
        hint="Write them again: apply the fleet file with `rota reload`, or update the agent's metadata.",
        problem=problem,
    )


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
            "concurrency_key": _concurrency_key(settings, merged),
            "concurrency_limit": settings.concurrency_limit,
            "kind": settings.slot_kind,
            "affinity": settings.affinity,
            "workspace": settings.workspace or _worktree_of(agent, settings),
            "workspace_mode": settings.workspace_mode or ("exclusive" if settings.worktree is not None else None),
            "max_attempts": 1 if settings.restart.when == "never" else settings.max_attempts,
            "retry_on": _RETRY_ON[settings.restart.when],
            "backoff": settings.restart.backoff,
        }
    if settings is not None and settings.runner == RUNNER and options.get("correlation_id") is None:
        run_id = new_run_id(agent.name)  # the entry is a run of a graph, in whose budget it counts
        defaults |= {"correlation_id": run_id, "account": GraphAccount(run_id)}
        options.pop("correlation_id", None)
    return ScheduleSpec(pid=agent.pid, payload=merged, **(defaults | options))


def _worktree_of(agent: Agent, settings: AgentSettings) -> str | None:
    """Return the workspace that is the agent's, or its entries', own worktree; None: any of the project."""
    if settings.worktree is None or agent.project_id is None:
        return None
    return settings.worktree.workspace_id(agent.project_id, agent.name)


def _concurrency_key(settings: AgentSettings, payload: Mapping[str, Any]) -> str | None:
    """Fill the agent's concurrency key with fields of the payload; a field that is missing is refused."""
    template = settings.concurrency_key
    if template is None:
        return None
    for field in fields_of_key(template):
        if field not in payload:
            text = f"the payload has no {field!r}, which the agent's concurrency_key {template!r} names"
            raise SchedInvalidPayload(text, field="payload", hint=f"Enqueue it with {field}=….")
    return template.format(**{field: payload[field] for field in fields_of_key(template)})


def _ceiling(settings: AgentSettings) -> dict[str, int]:
    """The ceiling of a run. A limit on tokens is part of it, so that the claim reserves the tokens."""
    limit = settings.limits.tokens
    if limit is None:
        return settings.ceiling
    return {**settings.ceiling, "tokens": min(limit, settings.ceiling.get("tokens", limit))}

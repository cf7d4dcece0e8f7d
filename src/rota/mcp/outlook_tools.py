"""Tools that say why work waits, when it would start, what a run uses, and what is left of a budget."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from rota.errors import InvalidInput
from rota.fleet.run_budgets import remaining_budget as budget_left
from rota.mcp.answers import Outlook, RunMean, outlook_of
from rota.mcp.callers import Caller
from rota.mcp.subjects import Asked, OfAgent, OfProject, SchedId, agent_named, given, own_or_given, spec_of
from rota.mcp.tool import said, tool
from rota.model.money import MICRO
from rota.model.work import Agent, ScheduleSpec

__all__ = ["OUTLOOK_TOOLS", "Left", "own_left"]


class Why(Asked, frozen=True, kw_only=True):
    """The arguments of why."""

    sched_id: SchedId


@tool(uses=("kernel.sched.explain", "kernel.sched.get"))
def why(caller: Caller, asked: Why) -> Outlook:
    """Explain why an entry is not running: what blocks it, what runs first, and what would start it."""
    kind = caller.api.queue.get(asked.sched_id).kind
    return outlook_of(caller.api.explain(asked.sched_id, kinds=() if kind is None else (kind,)))


class WhyAll(Asked, frozen=True, kw_only=True):
    """The arguments of why_all."""

    agent: OfAgent = None
    project: OfProject = None


class CountedReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason, how many entries have it, and one of them."""

    reason: str
    count: int
    example: Annotated[int, said("An entry with this reason: ask `why` about it.")]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why the queued entries wait."""

    waiting: int
    ready: int
    running: int
    reasons: Annotated[tuple[CountedReason, ...], said("Most frequent first; an entry may have several.")]
    is_complete: Annotated[bool, said("False: only the first entries were examined.")]


@tool(uses=("kernel.sched.explain_many",))
def why_all(caller: Caller, asked: WhyAll) -> Waiting:
    """Count why queued entries wait: those of an agent, of a project or of the whole store."""
    pid = None if asked.agent is None else agent_named(caller, asked.agent).pid
    found = caller.api.explain_many(pid=pid, project_id=asked.project or caller.only_project)
    reasons = tuple(
        CountedReason(
            reason="nothing: a worker can claim it" if each.reason is None else each.reason.sentence(),
            count=each.count,
            example=each.sched_id,
        )
        for each in found.reasons
    )
    return Waiting(
        waiting=found.waiting, ready=found.ready, running=found.running, reasons=reasons, is_complete=found.is_whole
    )


class Estimate(Asked, frozen=True, kw_only=True):
    """The arguments of estimate."""

    agent: Annotated[str, said("The agent, by name or pid.")]
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
    priority: Annotated[int | None, said("Higher runs sooner. Default: the agent's.")] = None
    delay_s: Annotated[float, msgspec.Meta(ge=0, description="Start no earlier than this from now.")] = 0.0


class EstimateResult(msgspec.Struct, frozen=True, kw_only=True):
    """When work would start and what a run would use."""

    start: Outlook
    per_run: RunMean


@tool(uses=("kernel.sched.estimate", "kernel.usage.report", "kernel.agent.find"))
def estimate(caller: Caller, asked: Estimate) -> EstimateResult:
    """Estimate when work would start if it were enqueued now, and what a run of the agent uses. Enqueues nothing."""
    agent = agent_named(caller, asked.agent)
    options = given(asked, "delay_s", "priority")
    spec = spec_of(caller, agent, asked.payload, options)
    start = outlook_of(caller.api.estimate(spec))
    return EstimateResult(start=start, per_run=_mean_of(caller, agent, spec))


def _mean_of(caller: Caller, agent: Agent, spec: ScheduleSpec) -> RunMean:
    """Return what the agent's runs have used on average; agents of other projects may have the same name."""
    lines = caller.api.usage.report(("project", "agent"), agent=agent.name).lines
    line = next((line for line in lines if (line.project_id or None) == agent.project_id), None)
    if line is None or not line.runs:
        return RunMean(runs=0, expected=spec.expected, ceiling=spec.ceiling)
    return RunMean(
        runs=line.runs,
        failed=line.failures,
        tokens=line.tokens / line.runs,
        cost_usd=line.cost_micro / line.runs / MICRO,
        wall_s=line.wall_ms / line.runs / 1_000,
        wait_p50_s=line.wait_p50_ms / 1_000,
        expected=spec.expected,
        ceiling=spec.ceiling,
    )


class RemainingBudget(Asked, frozen=True, kw_only=True):
    """The arguments of remaining_budget."""

    agent: Annotated[str | None, said("The agent, by name or pid. Default inside a run: the run itself.")] = None


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of budgets, per dimension; a dimension that is missing has no limit."""

    left: Annotated[dict[str, int], said("cost_micro is 10^-6 dollars.")]
    of: Annotated[str, said("Whose budget it is.")]


@tool(uses=("kernel.ledger.get", "kernel.sched.show"))
def remaining_budget(caller: Caller, asked: RemainingBudget) -> Left:
    """Return what is left of the budget of this run, or of an agent: tokens, cost and other dimensions."""
    if asked.agent is None and caller.run is not None:
        return own_left(caller)
    if asked.agent is None:
        raise InvalidInput("name the agent", field="agent", hint="The tool list_agents lists them.")
    agent = agent_named(caller, asked.agent)
    return Left(left=budget_left(caller.api, agent.pid, {}), of=f"agent {agent.name}")


def own_left(caller: Caller) -> Left:
    """Return what is left of the run's ceiling and of its agent's grants."""
    sched_id = own_or_given(caller, None)
    found = caller.api.show(sched_id)
    used = found.attempts[-1].usage if found.attempts else {}
    left = {dim: amount - used.get(dim, 0) for dim, amount in found.entry.ceiling.items()}
    account = found.entry.account
    return Left(
        left=budget_left(caller.api, found.entry.pid, left, account), of=f"run of entry {sched_id} ({found.agent})"
    )


OUTLOOK_TOOLS = (why, why_all, estimate, remaining_budget)

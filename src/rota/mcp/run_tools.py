"""Tools for an agent that rota runs: they act for the run that calls them, which its own token names."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, TypeAlias

import msgspec

from rota.errors import InvalidInput
from rota.mcp.callers import Caller, RunClaim
from rota.mcp.outlook_tools import Left, own_left
from rota.mcp.subjects import Asked, agent_named, spec_of
from rota.mcp.tool import said, tool
from rota.mcp.work_tools import Wait
from rota.mcp.write_tools import Enqueued, NewWork, entry_options
from rota.model.prices import priced

__all__ = ["RUN_TOOLS"]

Amounts: TypeAlias = Annotated[
    dict[str, int], msgspec.Meta(min_length=1, description="Amounts per dimension: tokens, requests, cost_micro, …")
]


class NewChild(NewWork, frozen=True, kw_only=True):
    """The arguments of enqueue_child."""

    lent: Annotated[dict[str, int], said("The part of this run's budget that the child may use.")] = msgspec.field(
        default_factory=dict
    )


class Nothing(msgspec.Struct, frozen=True):
    """It is done."""


@tool(uses=("kernel.run.spawn", "kernel.run.agent_to_spawn"), writes=True, needs_run=True)
def enqueue_child(caller: Caller, asked: NewChild) -> Enqueued:
    """Enqueue a child of this run and lend it a part of this run's budget; what it does not use comes back.

    The rest returns when this run waits for the child with wait_for_work.
    """
    agent = agent_named(caller, asked.agent)
    spec = spec_of(caller, agent, asked.payload, entry_options(caller, asked))
    sched_id = caller.api.supervision.spawn(spec, _own(caller).token, asked.lent)
    return Enqueued(sched_id=sched_id, agent=agent.name)


class ReportProgress(Asked, frozen=True, kw_only=True):
    """The arguments of report_progress."""

    fraction: Annotated[float, msgspec.Meta(ge=0, le=1, description="How far the work is, from 0 to 1.")]
    text: Annotated[str, said("What it is doing, for people.")] = ""


@tool(uses=("kernel.run.progress",), writes=True, is_idempotent=True, needs_run=True)
def report_progress(caller: Caller, asked: ReportProgress) -> Nothing:
    """Report how far this run is, for the people who watch."""
    caller.api.supervision.progress(*_own(caller), asked.fraction, asked.text)
    return Nothing()


class SaveCheckpoint(Asked, frozen=True, kw_only=True):
    """The arguments of save_checkpoint."""

    state: Annotated[dict[str, Any], said("What the next attempt needs to continue; it replaces the last one.")]


@tool(uses=("kernel.run.checkpoint",), writes=True, is_idempotent=True, needs_run=True)
def save_checkpoint(caller: Caller, asked: SaveCheckpoint) -> Nothing:
    """Save the state of this run, so that the next attempt continues there if this one is interrupted."""
    caller.api.supervision.checkpoint(*_own(caller), asked.state)
    return Nothing()


class Acquire(Asked, frozen=True, kw_only=True):
    """The arguments of acquire."""

    limit: Annotated[str, said("The name of the shared limit.")]
    amounts: Amounts
    wait_s: Wait = 30.0
    key: Annotated[str | None, said("To wait on after a call that was not granted: the key that it returned.")] = None


class AcquireResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit has given."""

    is_granted: Annotated[bool, said("False: it still waits. Call acquire again with the key, or give up with settle.")]
    key: Annotated[str, said("Settle with this key after the call to the provider.")]


@tool(uses=("kernel.run.acquire",), writes=True, needs_run=True)
def acquire(caller: Caller, asked: Acquire) -> AcquireResult:
    """Wait until a shared limit (a provider's requests or tokens per minute) has these amounts, and take them."""
    key = asked.key or secrets.token_hex(8)
    ask, run = caller.api.supervision.acquire, _own(caller)

    def wait(slice_s: float) -> bool:
        return ask(*run, asked.limit, asked.amounts, key=key, wait_s=slice_s).granted_at is not None

    return AcquireResult(is_granted=caller.wait(asked.wait_s, wait), key=key)


class Settle(Asked, frozen=True, kw_only=True):
    """The arguments of settle."""

    key: Annotated[str, said("What acquire has returned.")]
    used: Annotated[dict[str, int], said("What was used; what is missing was used as acquired.")] = msgspec.field(
        default_factory=dict
    )


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of what was acquired."""

    charged: dict[str, int]
    returned: Annotated[dict[str, int], said("To the limit.")]


@tool(uses=("kernel.run.settle",), writes=True, is_idempotent=True, needs_run=True)
def settle(caller: Caller, asked: Settle) -> Settled:
    """Record what was used of what acquire has given; the limit gets the rest back."""
    settled = caller.api.supervision.settle(*_own(caller), asked.key, asked.used)
    return Settled(charged=settled.charged, returned=settled.returned)


class Charge(Asked, frozen=True, kw_only=True):
    """The arguments of charge."""

    amounts: Amounts
    model: Annotated[str | None, said("The model; input_tokens and output_tokens then cost its price.")] = None


@tool(uses=("kernel.sched.charge", "kernel.sched.show"), writes=True, needs_run=True)
def charge(caller: Caller, asked: Charge) -> Left:
    """Record what this run has used, and return what is left. Not for what settle has recorded."""
    run = _own(caller)
    prices = {} if asked.model is None else caller.api.usage.prices()
    amounts = priced(asked.amounts, asked.model, prices).amounts
    caller.api.queue.charge(run.sched_id, amounts, token=run.token, model=asked.model)
    return own_left(caller)


def _own(caller: Caller) -> RunClaim:
    if caller.run is None:  # such a caller is not offered these tools
        raise InvalidInput("this caller is no run", hint="These tools work in programs that rota runs.")
    return caller.run


RUN_TOOLS = (enqueue_child, report_progress, save_checkpoint, acquire, settle, charge)

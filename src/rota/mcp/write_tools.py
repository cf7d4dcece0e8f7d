"""Tools that change the queue, offered only where writing is allowed: enqueue, change, cancel, emit an event."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from rota.errors import InvalidInput
from rota.mcp.answers import EntryLine, line_of
from rota.mcp.callers import Caller
from rota.mcp.subjects import Asked, SchedId, agent_named, given, names_of, spec_of
from rota.mcp.tool import said, tool
from rota.model.work import AFTER_MAX

__all__ = ["WRITE_TOOLS", "Enqueued", "NewWork", "entry_options"]

Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class NewWork(Asked, frozen=True, kw_only=True):
    """The arguments of tools that enqueue. What is not given comes from the agent's settings."""

    agent: Annotated[str, said("The agent that should run, by name or pid; list_agents lists them.")]
    payload: Annotated[dict[str, Any], said("What the run gets, as a JSON object.")] = msgspec.field(
        default_factory=dict
    )
    priority: Annotated[int | None, said("Higher runs sooner.")] = None
    delay_s: Annotated[Seconds, said("Start no earlier than this from now.")] = 0.0
    drop_after_s: Annotated[Seconds | None, said("Drop it if it has not started by then.")] = None
    after: Annotated[
        tuple[int, ...], msgspec.Meta(max_length=AFTER_MAX, description="Entries that must succeed first.")
    ] = ()
    key: Annotated[str | None, said("Idempotency: with a key that was used before, nothing new is enqueued.")] = None
    tags: tuple[str, ...] = ()
    max_attempts: Annotated[int, msgspec.Meta(ge=1)] | None = None
    ceiling: Annotated[dict[str, int] | None, said("The most that a run may use: tokens, cost_micro, …")] = None


class Enqueued(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that was enqueued."""

    sched_id: int
    agent: str


def entry_options(caller: Caller, asked: NewWork) -> dict[str, Any]:
    """Return the options of a new entry that were given."""
    options = given(asked, "priority", "delay_s", "key", "max_attempts", "ceiling")
    options |= {"after": asked.after, "tags": asked.tags}
    if asked.drop_after_s is not None:
        options["deadline"] = caller.api.clock.now() + asked.delay_s + asked.drop_after_s
    return options


@tool(uses=("kernel.sched.enqueue", "kernel.agent.find"), writes=True)
def enqueue(caller: Caller, asked: NewWork) -> Enqueued:
    """Enqueue one run of an agent and return its id. Inside a run, the entry is the run's child.

    Use wait_for_work to wait for its result, and why if it does not start.
    """
    agent = agent_named(caller, asked.agent)
    spec = spec_of(caller, agent, asked.payload, entry_options(caller, asked))
    return Enqueued(sched_id=caller.api.queue.enqueue(spec), agent=agent.name)


class Change(Asked, frozen=True, kw_only=True):
    """The arguments of change."""

    sched_id: SchedId
    priority: Annotated[int | None, said("Higher runs sooner.")] = None
    delay_s: Annotated[Seconds | None, said("Start no earlier than this from now; 0 is at once.")] = None
    drop_after_s: Annotated[Seconds | None, said("Drop it if it has not started this long from now.")] = None
    tags: Annotated[tuple[str, ...] | None, said("All of its tags.")] = None


@tool(uses=("kernel.sched.change",), writes=True, is_idempotent=True)
def change(caller: Caller, asked: Change) -> EntryLine:
    """Change the priority, the earliest start, the deadline or the tags of an entry that has not started."""
    if all(value is None for value in (asked.priority, asked.delay_s, asked.drop_after_s, asked.tags)):
        raise InvalidInput("nothing to change is given", hint="Give priority, delay_s, drop_after_s or tags.")
    now = caller.api.clock.now()
    deadline: float | UnsetType = UNSET if asked.drop_after_s is None else now + asked.drop_after_s
    runnable_at = None if asked.delay_s is None else now + asked.delay_s
    entry = caller.api.queue.change(
        asked.sched_id, priority=asked.priority, runnable_at=runnable_at, deadline=deadline, tags=asked.tags
    )
    return line_of(entry, names_of(caller, [entry]).get(entry.pid, ""))


class Cancel(Asked, frozen=True, kw_only=True):
    """The arguments of cancel."""

    sched_id: SchedId


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of the entry."""

    sched_id: int
    is_cancelled: Annotated[bool, said("False: it runs, and was asked to stop.")]


@tool(uses=("kernel.sched.request_cancel",), writes=True, is_idempotent=True)
def cancel(caller: Caller, asked: Cancel) -> Cancelled:
    """Cancel an entry that has not started; ask one that runs to stop. A run may cancel itself and its children."""
    state = caller.api.queue.request_cancel(asked.sched_id, by="mcp")
    return Cancelled(sched_id=asked.sched_id, is_cancelled=state == "cancelled")


class EmitEvent(Asked, frozen=True, kw_only=True):
    """The arguments of emit_event."""

    kind: Annotated[str, said("The kind of event, such as report.ready; kernel.* is reserved.")]
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
    agent: Annotated[str | None, said("The agent it is about. Inside a run it is always the run's.")] = None


class Emitted(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was appended to the journal."""

    event_id: int


@tool(uses=("kernel.event.append",), writes=True)
def emit_event(caller: Caller, asked: EmitEvent) -> Emitted:
    """Append an event of your own to the journal; triggers and hooks may wait for it."""
    pid = None if asked.agent is None or caller.run is not None else agent_named(caller, asked.agent).pid
    return Emitted(event_id=caller.api.journal.append(pid, asked.kind, asked.payload))


WRITE_TOOLS = (enqueue, change, cancel, emit_event)

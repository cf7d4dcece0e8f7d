"""Spans as rota makes them, and the names that OpenTelemetry's conventions give to what they carry.

An entry of the queue is a message, its agent is the destination, its worker the consumer (semantic conventions for
messaging). The run of an agent is the invocation of an agent, a graph run that of a workflow (conventions for
generative AI). What neither of them names begins with `rota.`.

    enqueue AGENT         PRODUCER   an instant: the entry is in the queue
    wait AGENT            INTERNAL   from ready to claimed
    process AGENT         CONSUMER   from claimed to the end of the claim, with a link to `enqueue`
    invoke_agent AGENT    INTERNAL   from the start of the run to its end: the parent of the agent's own spans
    invoke_workflow GRAPH INTERNAL   a graph run; the entries of its nodes are below it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from rota.kernel.traced_entries import TracedEntry
from rota.model.trace_context import SpanRef

__all__ = [
    "NOTES_MAX",
    "SpanAttributes",
    "SpanKind",
    "SpanNote",
    "SpanRecord",
    "agent_attributes",
    "message_attributes",
    "nanoseconds",
    "usage_attributes",
]

SpanKind: TypeAlias = Literal["internal", "producer", "consumer"]
SpanAttributes: TypeAlias = dict[str, str | int | float | bool]
NOTES_MAX = 64  # events of one span; the later ones are left out

# by dimension of usage: the attribute that says it
_USAGE: Mapping[str, str] = {
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_input_tokens": "gen_ai.usage.cache_read.input_tokens",
}


class SpanNote(msgspec.Struct, frozen=True):
    """An event inside a span."""

    name: str
    at_ns: int
    attributes: SpanAttributes = {}


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A span that has ended; or, at the end of an exported stretch, one that goes on."""

    ref: SpanRef
    parent: str | None = None  # the id of its parent in the same trace
    parent_is_remote: bool = False  # the parent is a span of the caller
    name: str
    kind: SpanKind = "internal"
    start_ns: int
    end_ns: int
    attributes: SpanAttributes = {}
    notes: tuple[SpanNote, ...] = ()
    links: tuple[SpanRef, ...] = ()
    error: str | None = None  # why it failed; None: it did not
    tracestate: str | None = None
    is_open: bool = False


def nanoseconds(at: float) -> int:
    """Return an instant in nanoseconds since the epoch. Microseconds are as exact as a stored instant is."""
    return round(at * 1_000_000) * 1_000


def message_attributes(entry: TracedEntry, operation: str, kind: str | None) -> SpanAttributes:
    """Return what the conventions for messaging say of an entry; `kind` is the type of the operation."""
    found: SpanAttributes = {
        "messaging.system": "rota",
        "messaging.operation.name": operation,
        "messaging.destination.name": entry.agent,
        "messaging.message.id": str(entry.sched_id),
        "rota.priority": entry.priority,
        "rota.trigger": entry.trigger,
    }
    if kind is not None:
        found["messaging.operation.type"] = kind
    if entry.correlation_id is not None:
        found["messaging.message.conversation_id"] = entry.correlation_id
    if entry.project_id is not None:
        found["rota.project"] = entry.project_id
    if (place := entry.graph_node) is not None:
        found |= {"rota.graph.run": place[0], "rota.graph.node": place[1], "rota.graph.epoch": place[2]}
    return found


def agent_attributes(entry: TracedEntry) -> SpanAttributes:
    """Return what the conventions for generative AI say of the run of an agent."""
    found: SpanAttributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": entry.agent,
        "gen_ai.agent.id": str(entry.pid),
        "rota.entry": entry.sched_id,
    }
    if entry.correlation_id is not None:
        found["gen_ai.conversation.id"] = entry.correlation_id
    return found


def usage_attributes(used: Mapping[str, int], model: str | None) -> SpanAttributes:
    """Return what a run has used. The conventions count cached tokens among the input tokens; rota beside them."""
    found: SpanAttributes = {_USAGE.get(dim, f"rota.usage.{dim}"): amount for dim, amount in used.items()}
    if (given := found.pop("rota.usage.input_tokens", None)) is not None:
        found["gen_ai.usage.input_tokens"] = int(given) + used.get("cached_input_tokens", 0)
    if model is not None:
        found["gen_ai.request.model"] = model
    return found

"""Rules on edges: policies that contradict themselves, and policies that may lose messages or cost time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.plan import Edge
from rota.graph.spec import DURABLE_EDGE_CAPACITY, DURABLE_LANE_TYPES, SINGLE_MESSAGE_MODES

__all__ = ["HIGH_QUEUE_DEPTH", "check_edges"]

HIGH_QUEUE_DEPTH = 256  # a channel with this capacity or more gets a latency warning

# Type names that suggest a large payload.
_LARGE = re.compile(r"frame|image|video|blob|tensor|point_?cloud|document|dataset", re.IGNORECASE)


def check_edges(index: GraphIndex) -> Iterator[Diagnostic]:
    """Check every edge by itself, then the edges that share an end."""
    for edge in index.edges:
        yield from _contradictions(edge)
        yield from _risks(index, edge)
        yield from _not_applied(edge)
        yield from _lanes(index, edge)
    yield from _state_writers(index)
    yield from _producer_owned(index)


def _contradictions(edge: Edge) -> Iterator[Diagnostic]:
    name, policy = edge.id, edge.spec.policy
    path = f"edges.{name}.policy"
    if policy.mode in SINGLE_MESSAGE_MODES and policy.overflow in {"drop_newest", "block"}:
        message = f"edge {name}: mode {policy.mode} keeps the newest message and cannot use overflow {policy.overflow}"
        fix = "Use overflow: overwrite, or mode: queue."
        yield Diagnostic.of("invalid_channel_policy", message, f"{path}.overflow", edges=[name], fix=fix)
    if policy.max_inflight > 0 and edge.spec.kind != "async":
        message = f"edge {name}: max_inflight applies to async edges only, and this edge is {edge.spec.kind}"
        fix = "Remove max_inflight, or make the edge async."
        yield Diagnostic.of("invalid_channel_policy", message, f"{path}.max_inflight", edges=[name], fix=fix)
    if policy.copy_policy == "move_only" and policy.readers != "single":
        message = f"edge {name}: copy_policy move_only allows one reader, and readers is {policy.readers}"
        yield Diagnostic.of("invalid_move_only_multireader", message, f"{path}.readers", edges=[name])


def _risks(index: GraphIndex, edge: Edge) -> Iterator[Diagnostic]:
    name, policy = edge.id, edge.spec.policy
    path = f"edges.{name}.policy"
    if policy.overflow == "block" and policy.mode not in SINGLE_MESSAGE_MODES:
        message = f"edge {name}: when its {policy.capacity} places are taken, further messages are refused"
        yield Diagnostic.of("backpressure_risk", message, f"{path}.overflow", edges=[name])
    elif edge.slow_reader_drop_risk:
        message = f"edge {name}: with several readers, overflow {policy.overflow} can drop messages of a slow reader"
        yield Diagnostic.of("backpressure_risk", message, f"{path}.overflow", edges=[name])
    is_default = edge.is_durable and policy.capacity == DURABLE_EDGE_CAPACITY
    if policy.mode not in SINGLE_MESSAGE_MODES and policy.capacity >= HIGH_QUEUE_DEPTH and not is_default:
        message = f"edge {name}: up to {policy.capacity} messages may wait in its channel"
        yield Diagnostic.of("high_queue_depth_latency_risk", message, f"{path}.capacity", edges=[name])
    if policy.copy_policy == "copy" and _is_large(index, edge):
        message = f"edge {name}: {edge.source.component}.{edge.source.port} sends large payloads, and each is copied"
        yield Diagnostic.of("large_payload_copy", message, f"{path}.copy_policy", edges=[name])


def _is_large(index: GraphIndex, edge: Edge) -> bool:
    """Whether the port is marked as large, or the name of its type suggests it."""
    component = index.components.get(edge.source.component)
    descriptor = index.descriptors.get(edge.source.component)
    port = descriptor.output(edge.source.port) if descriptor else None
    if port is not None and (port.large_payload or port.payload_type or port.schema):
        return port.large_payload or bool(_LARGE.search(f"{port.payload_type} {port.schema}"))
    return component is not None and bool(_LARGE.search(component.type.rpartition(".")[2]))


def _not_applied(edge: Edge) -> Iterator[Diagnostic]:
    """Yield an advisory for each field of the policy that has no effect."""
    name, policy = edge.id, edge.spec.policy
    ignored = []
    if not policy.preserve_order:
        ignored.append(("preserve_order", "a channel always keeps the order of its messages"))
    if policy.owner != "runtime":
        ignored.append(("owner", "Python keeps a payload as long as it is referenced"))
    if policy.copy_policy == "loaned_view":
        ignored.append(("copy_policy", "the payload is passed by reference, and the end of the loan is not enforced"))
    for field, reason in ignored:
        message = f"edge {name}: {field} is not applied here: {reason}"
        path = f"edges.{name}.policy.{field}"
        yield Diagnostic.of("advisory_execution_field_ignored", message, path, edges=[name])


def _lanes(index: GraphIndex, edge: Edge) -> Iterator[Diagnostic]:
    """Check the kind of the edge against the lanes at its ends."""
    name, kind = edge.id, edge.spec.kind
    source, target = index.lane_of(edge.source.component), index.lane_of(edge.target.component)
    if source is None or target is None:
        return
    ends = [edge.source.component, edge.target.component]
    same_lane = len({index.components[end].execution.lane for end in ends}) == 1
    if kind == "immediate" and not same_lane and (source.independent or target.independent):
        message = f"edge {name} is immediate and leads from a {source.type} lane to a {target.type} lane"
        yield Diagnostic.of(
            "immediate_edge_crosses_independent_lane", message, f"edges.{name}.kind", components=ends, edges=[name]
        )
    if source.type in DURABLE_LANE_TYPES and kind != "async":
        message = (
            f"edge {name} leaves a {source.type} lane and must be async, not {kind}: an entry ends in a later epoch"
        )
        fix = "Make the edge async."
        yield Diagnostic.of(
            "invalid_channel_policy", message, f"edges.{name}.kind", components=ends, edges=[name], fix=fix
        )


def _state_writers(index: GraphIndex) -> Iterator[Diagnostic]:
    writers = defaultdict(list)
    for edge in index.edges:
        if edge.spec.kind == "state":
            writers[edge.target.component, edge.target.port].append(edge.id)
    for (component, port), ids in writers.items():
        if len(ids) > 1:
            message = f"state edge target has multiple writers: {component}.{port} via {','.join(ids)}"
            path = f"edges.{ids[1]}.to"
            yield Diagnostic.of("multi_state_writer", message, path, components=[component], edges=ids)


def _producer_owned(index: GraphIndex) -> Iterator[Diagnostic]:
    owned = defaultdict(list)
    for edge in index.edges:
        if edge.spec.policy.owner == "producer":
            owned[edge.spec.source].append(edge.id)
    for source, ids in owned.items():
        if len(ids) > 1:
            message = f"source endpoint has multiple producer-owned edges: {source} via {','.join(ids)}"
            fix = "A producer may own the payload on one edge; set owner: runtime on the others."
            path = f"edges.{ids[1]}.policy.owner"
            yield Diagnostic.of("invalid_channel_policy", message, path, edges=ids, fix=fix)

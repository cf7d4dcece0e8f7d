"""Edges: policies that contradict themselves, and policies that will disappoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex, Wire
from rota.graph.spec import EdgePolicy

__all__ = ["HIGH_QUEUE_DEPTH", "check_edges", "slow_reader_drop_risk"]

HIGH_QUEUE_DEPTH = 256  # messages in one queue, from which on their lateness is worth a warning

_KEEPS_ONE = ("latest", "latched", "previous_tick")  # modes that hold the newest message only
_LOSES = ("overwrite", "drop_oldest", "drop_newest", "reject")
_LARGE = re.compile(r"frame|image|video|blob|tensor|point_?cloud|document|dataset", re.IGNORECASE)


def check_edges(index: GraphIndex) -> Iterator[Diagnostic]:
    """Every edge by itself, then those that share an end."""
    for wire in index.wires:
        yield from _contradictions(wire)
        yield from _risks(index, wire)
        yield from _not_applied(wire)
        yield from _lanes(index, wire)
    yield from _state_writers(index)
    yield from _producer_owned(index)


def slow_reader_drop_risk(policy: EdgePolicy) -> bool:
    """Whether one slow reader of several can lose messages."""
    return policy.readers != "single" and policy.mode not in _KEEPS_ONE and policy.overflow in _LOSES


def _contradictions(wire: Wire) -> Iterator[Diagnostic]:
    name, policy = wire.spec.id, wire.spec.policy
    path = f"edges.{name}.policy"
    if policy.mode in _KEEPS_ONE and policy.overflow in {"drop_newest", "block"}:
        message = f"edge {name}: mode {policy.mode} keeps the newest message and cannot use overflow {policy.overflow}"
        fix = "Use overflow: overwrite, or mode: queue."
        yield Diagnostic.of("invalid_channel_policy", message, f"{path}.overflow", edges=[name], fix=fix)
    if policy.max_inflight > 0 and wire.spec.kind != "async":
        message = f"edge {name}: max_inflight is for async edges, and this one is {wire.spec.kind}"
        fix = "Remove max_inflight, or make the edge async."
        yield Diagnostic.of("invalid_channel_policy", message, f"{path}.max_inflight", edges=[name], fix=fix)
    if policy.copy_policy == "move_only" and policy.readers != "single":
        message = f"edge {name}: a message that is moved can have one reader, and readers is {policy.readers}"
        yield Diagnostic.of("invalid_move_only_multireader", message, f"{path}.readers", edges=[name])


def _risks(index: GraphIndex, wire: Wire) -> Iterator[Diagnostic]:
    name, policy = wire.spec.id, wire.spec.policy
    path = f"edges.{name}.policy"
    if policy.overflow == "block" and policy.mode not in _KEEPS_ONE:
        message = f"edge {name}: when its {policy.capacity} places are taken, what is sent is refused"
        yield Diagnostic.of("backpressure_risk", message, f"{path}.overflow", edges=[name])
    elif slow_reader_drop_risk(policy):
        message = f"edge {name}: with several readers, overflow {policy.overflow} can take messages from a slow one"
        yield Diagnostic.of("backpressure_risk", message, f"{path}.overflow", edges=[name])
    if policy.mode not in _KEEPS_ONE and policy.capacity >= HIGH_QUEUE_DEPTH:
        message = f"edge {name}: up to {policy.capacity} messages may wait in it"
        yield Diagnostic.of("high_queue_depth_latency_risk", message, f"{path}.capacity", edges=[name])
    if policy.copy_policy == "copy" and _is_large(index, wire):
        message = f"edge {name}: {wire.source.component}.{wire.source.port} sends large payloads, and each is copied"
        yield Diagnostic.of("large_payload_copy", message, f"{path}.copy_policy", edges=[name])


def _is_large(index: GraphIndex, wire: Wire) -> bool:
    """Whether the payload is large: the port says so, or its type's name does."""
    component = index.components.get(wire.source.component)
    descriptor = index.descriptors.get(wire.source.component)
    port = descriptor.output(wire.source.port) if descriptor else None
    if port is not None and (port.large_payload or port.payload_type or port.schema):
        return port.large_payload or bool(_LARGE.search(f"{port.payload_type} {port.schema}"))
    return component is not None and bool(_LARGE.search(component.type.rpartition(".")[2]))


def _not_applied(wire: Wire) -> Iterator[Diagnostic]:
    """Fields of a channel that are kept and do nothing."""
    name, policy = wire.spec.id, wire.spec.policy
    ignored = []
    if not policy.preserve_order:
        ignored.append(("preserve_order", "a channel always keeps the order of its messages"))
    if policy.owner != "runtime":
        ignored.append(("owner", "Python owns what is sent for as long as anybody holds it"))
    if policy.copy_policy == "loaned_view":
        ignored.append(("copy_policy", "a loan is given by reference, and nothing enforces its end"))
    for field, why in ignored:
        message = f"edge {name}: {field} is not applied here: {why}"
        path = f"edges.{name}.policy.{field}"
        yield Diagnostic.of("advisory_execution_field_ignored", message, path, edges=[name])


def _lanes(index: GraphIndex, wire: Wire) -> Iterator[Diagnostic]:
    """What the lanes at both ends allow."""
    name, kind = wire.spec.id, wire.spec.kind
    source, target = index.lane_of(wire.source.component), index.lane_of(wire.target.component)
    if source is None or target is None:
        return
    ends = [wire.source.component, wire.target.component]
    stays = len({index.components[name].execution.lane for name in ends}) == 1
    if kind == "immediate" and not stays and (source.independent or target.independent):
        message = f"edge {name} is immediate and leads from a {source.type} lane to a {target.type} lane"
        yield Diagnostic.of(
            "immediate_edge_crosses_independent_lane", message, f"edges.{name}.kind", components=ends, edges=[name]
        )
    if source.type == "queue" and kind != "async":
        message = f"edge {name} leaves a queue lane and must be async, not {kind}: an entry ends in a later epoch"
        fix = "Make the edge async."
        yield Diagnostic.of(
            "invalid_channel_policy", message, f"edges.{name}.kind", components=ends, edges=[name], fix=fix
        )


def _state_writers(index: GraphIndex) -> Iterator[Diagnostic]:
    writers = defaultdict(list)
    for wire in index.wires:
        if wire.spec.kind == "state":
            writers[wire.target.component, wire.target.port].append(wire.spec.id)
    for (component, port), edges in writers.items():
        if len(edges) > 1:
            message = f"state edge target has multiple writers: {component}.{port} via {','.join(edges)}"
            path = f"edges.{edges[1]}.to"
            yield Diagnostic.of("multi_state_writer", message, path, components=[component], edges=edges)


def _producer_owned(index: GraphIndex) -> Iterator[Diagnostic]:
    owned = defaultdict(list)
    for wire in index.wires:
        if wire.spec.policy.owner == "producer":
            owned[wire.spec.source].append(wire.spec.id)
    for source, edges in owned.items():
        if len(edges) > 1:
            message = f"source endpoint has multiple producer-owned edges: {source} via {','.join(edges)}"
            fix = "A producer can own what it sends on one edge; let the runtime own the others."
            path = f"edges.{edges[1]}.policy.owner"
            yield Diagnostic.of("invalid_channel_policy", message, path, edges=edges, fix=fix)

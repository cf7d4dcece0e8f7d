"""Ports: what the edges ask for against what the component types offer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex, Wire
from rota.graph.ports import ComponentDescriptor, Port
from rota.graph.spec import BoundaryRole, ComponentSpec

__all__ = ["check_ports"]


def check_ports(index: GraphIndex) -> Iterator[Diagnostic]:
    """Every edge against the ports at its ends, then every component against its edges."""
    for wire in index.wires:
        yield from _wire(index, wire)
    for name, descriptor in index.descriptors.items():
        component = index.components[name]
        yield from _inputs(index, component, descriptor)
        yield from _role(component, descriptor)
        yield from _config(component, descriptor)


def _wire(index: GraphIndex, wire: Wire) -> Iterator[Diagnostic]:
    source, target = index.descriptors.get(wire.source.component), index.descriptors.get(wire.target.component)
    sends = source.output(wire.source.port) if source else None
    takes = target.input(wire.target.port) if target else None
    if source is not None and sends is None and not source.any_ports:
        yield _no_port(wire, "output", wire.source.component, wire.source.port, source.outputs)
    if target is not None and takes is None and not target.any_ports:
        yield _no_port(wire, "input", wire.target.component, wire.target.port, target.inputs)
    if sends is not None and takes is not None:
        yield from _types(wire, sends, takes)


def _no_port(wire: Wire, side: str, component: str, port: str, ports: tuple[Port, ...]) -> Diagnostic:
    message = f"edge {wire.spec.id} references missing {side} port {component}.{port}"
    fix = f"The {side}s of {component} are: {', '.join(each.name for each in ports) or 'none'}."
    path = f"edges.{wire.spec.id}.{'from' if side == 'output' else 'to'}"
    return Diagnostic.of("unknown_port", message, path, components=[component], edges=[wire.spec.id], fix=fix)


def _types(wire: Wire, sends: Port, takes: Port) -> Iterator[Diagnostic]:
    for what, left, right in (
        ("schema", sends.schema, takes.schema),
        ("payload type", sends.payload_type, takes.payload_type),
    ):
        if left and right and left != right:
            message = f"edge {wire.spec.id}: {wire.spec.source} sends {what} {left}, {wire.spec.target} takes {right}"
            ends = [wire.source.component, wire.target.component]
            path = f"edges.{wire.spec.id}"
            yield Diagnostic.of("payload_type_mismatch", message, path, components=ends, edges=[wire.spec.id])


def _inputs(index: GraphIndex, component: ComponentSpec, descriptor: ComponentDescriptor) -> Iterator[Diagnostic]:
    name = component.id
    edges = Counter(wire.target.port for wire in index.into.get(name, ()))
    for port in descriptor.inputs:
        path = f"components.{name}"
        if port.multiplicity == "single" and edges[port.name] > 1:
            message = f"{edges[port.name]} edges lead to {name}.{port.name}, which takes one"
            ids = [wire.spec.id for wire in index.wires_into(name, port.name)]
            yield Diagnostic.of("port_multiplicity_mismatch", message, path, components=[name], edges=ids)
        if edges[port.name] == 0 and port.required:
            message = f"component {name}: required input {port.name} has no incoming edge"
            yield Diagnostic.of("missing_required_input", message, path, components=[name])
        elif edges[port.name] == 0:
            message = f"component {name}: optional input {port.name} has no incoming edge"
            yield Diagnostic.of("optional_input_unconnected", message, path, components=[name])


def _role(component: ComponentSpec, descriptor: ComponentDescriptor) -> Iterator[Diagnostic]:
    asked, offered = component.boundary.role, descriptor.role
    if offered is None or asked == "processing" or _covers(offered, asked):
        return
    message = f"component {component.id}: the file says role {asked}, and {component.type} is {offered}"
    path = f"components.{component.id}.boundary.role"
    yield Diagnostic.of("boundary_role_mismatch", message, path, components=[component.id])


def _covers(offered: BoundaryRole, asked: BoundaryRole) -> bool:
    return offered in (asked, "input_output")


def _config(component: ComponentSpec, descriptor: ComponentDescriptor) -> Iterator[Diagnostic]:
    """Configuration that the type lacks, or does not know."""
    name, known = component.id, descriptor.config_names
    for field in descriptor.config_required:
        if field not in component.config:
            message = f"component {name} missing required config field {field}"
            path = f"components.{name}.config.{field}"
            fix = "Give the field in the component's config."
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)
    for field in component.config:
        if known is not None and field not in known:
            message = f"component {name}: {component.type} takes no config field {field}"
            path = f"components.{name}.config.{field}"
            fix = f"Its fields are: {', '.join(known) or 'none'}."
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)

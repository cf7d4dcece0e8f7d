"""Rules on the structure of a graph: ids, references, ports and configuration; and notes on style.

`check_references` needs only the graph: every id is unique, and everything that is referenced exists. `check_ports`
compares the graph with the descriptors of its component types, if there is a catalogue. `check_style` reports what is
valid but unusual; only `lint` calls it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rota.graph.components import ComponentDescriptor, Port
from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.plan import Edge
from rota.graph.spec import OVER_BUDGET_PORT, SINGLE_MESSAGE_MODES, BoundaryRole, ComponentSpec

__all__ = ["check_ports", "check_references", "check_style"]


# --- ids and references --------------------------------------------------------------------------


def check_references(index: GraphIndex) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each duplicate id, and for each lane, component or type that does not exist."""
    spec = index.spec
    yield from _duplicates("components", (each.id for each in spec.components))
    yield from _duplicates("edges", (each.id for each in spec.edges))
    yield from _duplicates("composite_loops", (each.id for each in spec.composite_loops))
    yield from _lanes(index)
    for edge in index.edges:
        yield from _endpoints(index, edge)
    if index.has_catalogue:
        yield from _component_types(index)


def _duplicates(section: str, ids: Iterable[str]) -> Iterator[Diagnostic]:
    for name, times in Counter(ids).items():
        if times > 1:
            yield Diagnostic.of(
                "duplicate_id",
                f"{section}: duplicate id {name}",
                f"{section}.{name}",
                components=[name] if section == "components" else (),
                edges=[name] if section == "edges" else (),
            )


def _lanes(index: GraphIndex) -> Iterator[Diagnostic]:
    used = set()
    for name, component in index.components.items():
        lane = component.execution.lane
        used.add(lane)
        if lane not in index.spec.lanes:
            message = f"component {name} references missing lane {lane}"
            fix = f"The lanes are: {', '.join(index.spec.lanes) or 'none'}."
            path = f"components.{name}.execution.lane"
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)
    for lane in index.spec.lanes:
        if lane not in used:
            yield Diagnostic.of("diagnostic_note", f"no component runs on the lane {lane}", f"lanes.{lane}")


def _endpoints(index: GraphIndex, edge: Edge) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each end of an edge that is not `component.port`, or whose component does not exist."""
    for key, text, end in (("from", edge.spec.source, edge.source), ("to", edge.spec.target, edge.target)):
        path = f"edges.{edge.id}.{key}"
        if not end.component or not end.port:
            message = f"edge {edge.id}: {key} is {text!r}, which is not component.port"
            fix = "Write the component, a dot and the port, for example source.out."
            yield Diagnostic.of("graph_validation_error", message, path, edges=[edge.id], fix=fix)
        elif end.component not in index.components:
            side = "source" if key == "from" else "target"
            message = f"edge {edge.id} references missing {side} component {end.component}"
            yield Diagnostic.of("unknown_component", message, path, components=[end.component], edges=[edge.id])


def _component_types(index: GraphIndex) -> Iterator[Diagnostic]:
    for name, component in index.components.items():
        if name not in index.descriptors:
            message = f"component {name} type is not registered: {component.type}"
            path = f"components.{name}.type"
            fix = "Load the module that registers the type (`--components MODULE`), or correct the type's name."
            yield Diagnostic.of("unknown_component", message, path, components=[name], fix=fix)


# --- ports, roles and configuration --------------------------------------------------------------


def check_ports(index: GraphIndex) -> Iterator[Diagnostic]:
    """Compare every edge with the ports at its ends, and every component with its descriptor."""
    for edge in index.edges:
        yield from _edge_ports(index, edge)
    for name, descriptor in index.descriptors.items():
        component = index.components[name]
        yield from _inputs(index, component, descriptor)
        yield from _role(component, descriptor)
        yield from _config(component, descriptor)


def _edge_ports(index: GraphIndex, edge: Edge) -> Iterator[Diagnostic]:
    source, target = index.descriptors.get(edge.source.component), index.descriptors.get(edge.target.component)
    output = source.output(edge.source.port) if source else None
    input_port = target.input(edge.target.port) if target else None
    if source is not None and output is None and not source.any_ports and not _is_over_budget(index, edge):
        yield _missing_port(edge, "output", edge.source.component, edge.source.port, source.outputs)
    if target is not None and input_port is None and not (target.any_ports or target.any_inputs):
        yield _missing_port(edge, "input", edge.target.component, edge.target.port, target.inputs)
    if output is not None and input_port is not None and not _is_mapped(index, edge):
        yield from _payload_types(edge, output, input_port)


def _is_over_budget(index: GraphIndex, edge: Edge) -> bool:
    """Whether an edge is where a component publishes that it is over budget; every component has that port."""
    component = index.components[edge.source.component]
    return edge.source.port == OVER_BUDGET_PORT and component.execution.over_budget_edge == edge.id


def _is_mapped(index: GraphIndex, edge: Edge) -> bool:
    """Whether an edge carries lists of what the ports at its ends are declared to send or accept."""
    source, target = index.components[edge.source.component], index.components[edge.target.component]
    return bool(source.execution.map_over) or target.execution.map_over == edge.target.port


def _missing_port(edge: Edge, side: str, component: str, port: str, ports: tuple[Port, ...]) -> Diagnostic:
    message = f"edge {edge.id} references missing {side} port {component}.{port}"
    fix = f"The {side}s of {component} are: {', '.join(each.name for each in ports) or 'none'}."
    path = f"edges.{edge.id}.{'from' if side == 'output' else 'to'}"
    return Diagnostic.of("unknown_port", message, path, components=[component], edges=[edge.id], fix=fix)


def _payload_types(edge: Edge, output: Port, input_port: Port) -> Iterator[Diagnostic]:
    for what, sent, accepted in (
        ("schema", output.schema, input_port.schema),
        ("payload type", output.payload_type, input_port.payload_type),
    ):
        if sent and accepted and sent != accepted:
            spec = edge.spec
            message = f"edge {edge.id}: {spec.source} sends {what} {sent}, {spec.target} accepts {accepted}"
            ends = [edge.source.component, edge.target.component]
            path = f"edges.{edge.id}"
            yield Diagnostic.of("payload_type_mismatch", message, path, components=ends, edges=[edge.id])


def _inputs(index: GraphIndex, component: ComponentSpec, descriptor: ComponentDescriptor) -> Iterator[Diagnostic]:
    name = component.id
    edges = Counter(edge.target.port for edge in index.incoming.get(name, ()))
    for port in descriptor.inputs:
        path = f"components.{name}"
        if port.configurable and port.name in component.config:
            if edges[port.name]:
                message = f"component {name}: both an edge and the config set {port.name}"
                fix = f"Remove {port.name} from the config, or remove the edge."
                yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)
            continue
        if port.multiplicity == "single" and edges[port.name] > 1:
            message = f"{edges[port.name]} edges lead to {name}.{port.name}, which accepts one"
            ids = [edge.id for edge in index.edges_to(name, port.name)]
            yield Diagnostic.of("port_multiplicity_mismatch", message, path, components=[name], edges=ids)
        if edges[port.name] == 0 and port.required:
            message = f"component {name}: required input {port.name} has no incoming edge"
            yield Diagnostic.of("missing_required_input", message, path, components=[name])
        elif edges[port.name] == 0 and port.name not in {source.type for source in component.event_sources}:
            message = f"component {name}: optional input {port.name} has no incoming edge"
            yield Diagnostic.of("optional_input_unconnected", message, path, components=[name])


def _role(component: ComponentSpec, descriptor: ComponentDescriptor) -> Iterator[Diagnostic]:
    role, offered = component.boundary.role, descriptor.role
    if offered is None or role == "processing" or _covers(offered, role):
        return
    message = f"component {component.id}: boundary.role is {role}, but the role of {component.type} is {offered}"
    path = f"components.{component.id}.boundary.role"
    yield Diagnostic.of("boundary_role_mismatch", message, path, components=[component.id])


def _covers(offered: BoundaryRole, role: BoundaryRole) -> bool:
    return offered in (role, "input_output")


def _config(component: ComponentSpec, descriptor: ComponentDescriptor) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each required configuration field that is missing, and for each unknown one."""
    name, known = component.id, descriptor.config_names
    for field in descriptor.config_required:
        if field not in component.config:
            message = f"component {name} missing required config field {field}"
            path = f"components.{name}.config.{field}"
            fix = f"Add {field} to the component's config."
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)
    for field in component.config:
        if known is not None and field not in known:
            message = f"component {name}: {component.type} has no config field {field}"
            path = f"components.{name}.config.{field}"
            fix = f"Its config fields are: {', '.join(known) or 'none'}."
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)


# --- style ---------------------------------------------------------------------------------------


def check_style(index: GraphIndex) -> Iterator[Diagnostic]:
    """Yield notes on a graph without errors."""
    yield from _boundaries(index)
    for name in index.components:
        if len(index.components) > 1 and not index.incoming.get(name) and not index.outgoing.get(name):
            message = f"component {name} is not connected: no edge leads to it or from it"
            yield Diagnostic.of("diagnostic_note", message, f"components.{name}", components=[name])
    for edge in index.edges:
        yield from _edge_style(edge)


def _boundaries(index: GraphIndex) -> Iterator[Diagnostic]:
    if index.spec.graph.kind != "runnable":
        return
    roles = {component.boundary.role for component in index.components.values()}
    for side in ("input", "output"):
        if not roles & {side, "input_output"}:
            message = f"a runnable graph should mark its {side}: no component has boundary.role {side}"
            yield Diagnostic.of("diagnostic_note", message, "graph.kind")


def _edge_style(edge: Edge) -> Iterator[Diagnostic]:
    policy = edge.spec.policy
    path = f"edges.{edge.id}.policy"
    if policy.mode in SINGLE_MESSAGE_MODES and policy.capacity > 1:
        message = f"edge {edge.id}: mode {policy.mode} keeps one message; capacity {policy.capacity} has no effect"
        yield Diagnostic.of("diagnostic_note", message, f"{path}.capacity", edges=[edge.id])
    if edge.spec.kind == "async" and policy.max_inflight == 0:
        message = f"edge {edge.id}: the number of messages in flight is unlimited; max_inflight limits it"
        yield Diagnostic.of("diagnostic_note", message, f"{path}.max_inflight", edges=[edge.id])
    if policy.copy_policy == "loaned_view" and policy.owner != "producer":
        message = f"edge {edge.id}: copy_policy loaned_view without an owner; owner: producer names one"
        yield Diagnostic.of("diagnostic_note", message, f"{path}.owner", edges=[edge.id])

"""The parts of a graph that is being built: its nodes, and how they are connected.

`GraphParts` keeps components and edges as the structs of a graph file, so that a graph built in Python and one read
from a file are the same thing. Everything is checked when it is added; a refusal names the node and the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rota.errors import GraphInvalid
from rota.graph.components import DEFAULT_OUTPUT
from rota.graph.node_ports import NodePort, check_type
from rota.graph.spec import (
    DURABLE_LANE_TYPES,
    FLEET_LANE,
    ID_BYTES_MAX,
    INDEPENDENT_LANE_TYPES,
    ComponentSpec,
    EdgeKind,
    EdgeSpec,
    Endpoint,
    ExecutionSpec,
    GraphSpec,
    LaneSpec,
)
from rota.graph.standard_components import LIST_TYPE
from rota.graph.type_hints import list_hint

__all__ = ["MAIN_LANE", "BuiltNode", "GraphParts", "Output", "checked_json"]

MAIN_LANE = "main"  # of functions that name none


class Output(NamedTuple):
    """One output of a node."""

    node: BuiltNode
    port: str = DEFAULT_OUTPUT
    hint: Any = Any


class BuiltNode:
    """A component of a graph that is being built. Call it to connect its inputs; pass it to other nodes."""

    def __init__(self, parts: GraphParts, node_id: str, ports: Sequence[NodePort] | None) -> None:
        self.id = node_id
        self.parts = parts
        self.is_called = False
        self.is_loaded = False  # from a graph file, which says itself when it runs
        self.output = Output(self)
        self.has_known_ports = ports is not None
        self.ports = tuple(ports or ())

    def __repr__(self) -> str:
        return f"<BuiltNode {self.id} of {self.parts.name}>"

    def __getitem__(self, port: str) -> Output:
        """Return one of several outputs: `node["heat"]`."""
        return Output(self, port)

    def __call__(self, *arguments: Any, **named: Any) -> BuiltNode:
        """Connect the inputs: to outputs of other nodes, to lists of them, or to plain values."""
        if self.is_called:
            raise GraphInvalid(f"node {self.id} already has its inputs", hint="Call a node once; add another node.")
        given = [*self._by_position(arguments), *((self._port_named(name), value) for name, value in named.items())]
        names = [port.name for port, _ in given if not port.many]
        for name in names:
            if names.count(name) > 1:
                raise GraphInvalid(f"node {self.id} is given its input {name} twice")
        self._check_missing({port.name for port, _ in given})
        self.parts.connect(self, given)
        self.is_called = True
        return self

    def _by_position(self, arguments: Sequence[Any]) -> list[tuple[NodePort, Any]]:
        if arguments and not self.has_known_ports:
            text = f"the inputs of node {self.id} are not known in this program: give them by name"
            raise GraphInvalid(text, hint="For example: node(topic=…)")
        places = [port for port in self.ports if port.by_position and not port.many]
        many = next((port for port in self.ports if port.many), None)
        pairs = [*zip(places, arguments, strict=False)]
        for value in arguments[len(places) :]:
            if many is None:
                text = f"node {self.id} takes {len(places)} inputs by position, not {len(arguments)}"
                raise GraphInvalid(text, hint=f"{self._inputs_text()} Several outputs go into one input as a list.")
            pairs.append((many, value))
        return pairs

    def _port_named(self, name: str) -> NodePort:
        port = next((each for each in self.ports if each.name == name and not each.many and not each.any_name), None)
        if port is None and self.has_known_ports and not any(each.any_name for each in self.ports):
            raise GraphInvalid(f"node {self.id} has no input {name}", hint=self._inputs_text())
        return port or NodePort(name)

    def _check_missing(self, given: set[str]) -> None:
        missing = [port.name for port in self.ports if port.required and port.name not in given]
        if missing:
            text = f"node {self.id} is given nothing for its input {', '.join(missing)}"
            raise GraphInvalid(text, hint=f"Name it in the call of the node: {self.id}({missing[0]}=…).")

    def _inputs_text(self) -> str:
        names = [f"*{port.name}" if port.many else port.name for port in self.ports]
        return f"Its inputs: {', '.join(names) or 'none'}."


class GraphParts:
    """The components and edges of a graph that is being built."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lanes: dict[str, LaneSpec] = {}
        self.components: dict[str, ComponentSpec] = {}
        self.edges: dict[str, EdgeSpec] = {}
        self.nodes: dict[str, BuiltNode] = {}
        self._targets: dict[str, set[str]] = {}  # by component: where its edges lead

    def main_lane(self) -> str:
        """Return the lane of functions that name none, and add it if it is the first."""
        self.lanes.setdefault(MAIN_LANE, LaneSpec(type="event_loop"))
        return MAIN_LANE

    def add(
        self,
        component: ComponentSpec,
        ports: Sequence[NodePort] | None,
        hint: Any = Any,
        output: str = DEFAULT_OUTPUT,
    ) -> BuiltNode:
        """Add a component and return its node."""
        name = component.id
        if name in self.components:
            hint_text = "Give one of them another name: g.node(code, name=…)."
            raise GraphInvalid(f"two nodes of graph {self.name} have the name {name}", hint=hint_text)
        if not name or not name.isprintable() or len(name.encode()) > ID_BYTES_MAX:
            raise GraphInvalid(f"{name!r} cannot be the name of a node: use 1 to {ID_BYTES_MAX} printable characters")
        if component.execution.lane not in self.lanes and component.execution.lane != FLEET_LANE:
            lanes = ", ".join(self.lanes) or "none"
            text = f"node {name} is on lane {component.execution.lane}, which graph {self.name} does not have"
            raise GraphInvalid(text, hint=f"Add it first with g.lane(…). Its lanes: {lanes}.")
        self.components[name] = component
        node = self.nodes[name] = BuiltNode(self, name, ports)
        node.output = Output(node, output, hint)
        return node

    def load(self, spec: GraphSpec) -> None:
        """Take over the parts of a graph file."""
        self.lanes = dict(spec.lanes)
        self.components = {component.id: component for component in spec.components}
        for name in self.components:
            node = self.nodes[name] = BuiltNode(self, name, None)
            node.is_called = node.is_loaded = True
        for edge in spec.edges:
            self._put_edge(edge)

    def own(self, value: Any, place: str) -> Output:
        """Return the output that a value stands for; raises if it is no output of this graph."""
        output = value.output if isinstance(value, BuiltNode) else value
        if not isinstance(output, Output):
            text = f"{place} is given {value!r}, which is not a node"
            raise GraphInvalid(text, hint="Pass a node; a loop must be called first.")
        if output.node.parts is not self:
            other = output.node.parts.name
            raise GraphInvalid(f"{place} is given node {output.node.id} of another graph, {other}")
        return output

    # --- connecting ------------------------------------------------------------------------------

    def connect(self, node: BuiltNode, given: Sequence[tuple[NodePort, Any]]) -> None:
        """Connect a node's inputs; plain values become its configuration."""
        outputs: list[tuple[NodePort, Output]] = []
        values: dict[str, Any] = {}
        for port, value in given:
            place = f"input {port.name} of node {node.id}"
            if _is_list_of_outputs(value):
                outputs.append((port, self._listed(node, port, value)))
            elif isinstance(value, BuiltNode | Output):
                outputs.append((port, self._checked(node, port, self.own(value, place))))
            else:
                values[port.name] = self._plain_value(node, port, value, place)
        for port, output in outputs:
            self._check_no_cycle(output.node.id, node.id)
            self.add_edge(output, node.id, port.name)
        component = self.components[node.id]
        self.components[node.id] = msgspec.structs.replace(component, config={**component.config, **values})

    def _checked(self, node: BuiltNode, port: NodePort, output: Output) -> Output:
        if not port.takes_outputs:
            raise GraphInvalid(
                f"{port.name} of node {node.id} is a keyword-only parameter, which is configuration: it takes a plain "
                f"value, not the output of node {output.node.id}",
                hint=f"Remove the * before {port.name} in the function's parameters, or pass a plain value.",
            )
        if output.hint is type(None):
            text = f"node {output.node.id} returns nothing, so node {node.id} would never run"
            raise GraphInvalid(text, hint="Return a value, or correct the annotation of the function.")
        check_type(node.id, port, output.hint, f"the output of node {output.node.id}")
        return output

    def _listed(self, node: BuiltNode, port: NodePort, values: Iterable[Any]) -> Output:
        """Return the output of a node that makes one list of several outputs."""
        place = f"input {port.name} of node {node.id}"
        outputs = [self.own(value, place) for value in values]
        hints = {str(each.hint): each.hint for each in outputs}
        hint = list_hint(next(iter(hints.values()))) if len(hints) == 1 else list
        if port.many:
            raise GraphInvalid(f"{place} takes several outputs by position", hint=f"Write {node.id}(*nodes).")
        checked = self._checked(node, port, Output(node, hint=hint))
        execution = ExecutionSpec(lane=self.main_lane())
        listing = self.add(ComponentSpec(id=f"{node.id}[{port.name}]", type=LIST_TYPE, execution=execution), (), hint)
        listing.is_called = True
        for output in outputs:
            self._check_no_cycle(output.node.id, node.id)
            self.add_edge(output, listing.id, "items")
        return Output(listing, hint=checked.hint)

    @staticmethod
    def _plain_value(node: BuiltNode, port: NodePort, value: Any, place: str) -> Any:
        if port.many or port.is_mapped:
            raise GraphInvalid(f"{place} takes outputs of nodes, not the plain value {value!r}")
        if isinstance(value, list | tuple | dict) and _contains_output(value):
            raise GraphInvalid(f"{place} is given a mixture of nodes and plain values", hint="Use nodes only.")
        if value is not None:
            check_type(node.id, port, type(value), f"the value {value!r}")
        return checked_json(place, value)

    def _check_no_cycle(self, source: str, target: str) -> None:
        """Raise if the source can be reached from the target: the new edge would close a cycle."""
        waiting, seen = [target], {target}
        while waiting:
            at = waiting.pop()
            if at == source:
                raise GraphInvalid(
                    f"node {target} would wait for node {source}, which waits for node {target}: a cycle needs a loop",
                    hint="Use g.loop(first, …, last, until=…, max_iterations=…).",
                )
            waiting += self._targets.get(at, set()) - seen
            seen |= self._targets.get(at, set())

    def add_edge(self, output: Output, target: str, port: str, kind: EdgeKind | None = None) -> None:
        """Add an edge from an output to an input."""
        source = output.node.id
        edge_id = _free_id(f"{source}>{target}.{port}", self.edges)
        kind = kind or self._kind(source, target)
        self._put_edge(EdgeSpec(id=edge_id, kind=kind, source=f"{source}.{output.port}", target=f"{target}.{port}"))

    def _put_edge(self, edge: EdgeSpec) -> None:
        self.edges[edge.id] = edge
        if edge.kind != "delay":  # a delay edge closes a loop
            source, target = Endpoint.parse(edge.source).component, Endpoint.parse(edge.target).component
            self._targets.setdefault(source, set()).add(target)

    def _kind(self, source: str, target: str) -> EdgeKind:
        """Return when the reader sees a message: what leaves a durable lane arrives in a later epoch."""
        types = {end: self.lane_type(end) for end in (source, target)}
        if types[source] in DURABLE_LANE_TYPES or set(types.values()) & set(INDEPENDENT_LANE_TYPES):
            return "async"
        return "immediate"

    def lane_type(self, component_id: str) -> str:
        """Return the type of a component's lane."""
        lane = self.components[component_id].execution.lane
        return self.lanes[lane].type if lane in self.lanes else "fleet"

    def ports_by_component(self) -> dict[str, tuple[str, ...]]:
        """Return the inputs that edges lead to, by component, each once."""
        found: dict[str, dict[str, None]] = {}
        for edge in self.edges.values():
            target = Endpoint.parse(edge.target)
            found.setdefault(target.component, {})[target.port] = None
        return {component: tuple(ports) for component, ports in found.items()}


def checked_json(place: str, value: Any) -> Any:
    """Return a plain value; raises if a graph file cannot contain it."""
    try:
        decoded = msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise GraphInvalid(
            f"{place} is given a value of type {type(value).__name__}, which is neither a node nor JSON: {problem}",
            hint="Make the value in a node, or bind it with functools.partial.",
        ) from problem
    return decoded


def _is_list_of_outputs(value: Any) -> bool:
    is_list = isinstance(value, list | tuple) and not isinstance(value, Output)
    return is_list and bool(value) and all(isinstance(each, BuiltNode | Output) for each in value)


def _contains_output(value: Any) -> bool:
    items: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
    return any(isinstance(each, BuiltNode | Output) for each in items)


def _free_id(wanted: str, taken: Mapping[str, Any]) -> str:
    """Return an edge id that is short enough and not taken."""
    if len(wanted.encode()) > ID_BYTES_MAX - 8:
        wanted = f"edge {len(taken) + 1}"
    number, found = 1, wanted
    while found in taken:
        number += 1
        found = f"{wanted}#{number}"
    return found

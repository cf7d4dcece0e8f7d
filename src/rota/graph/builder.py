"""`Graph`: a graph that is built in Python.

    g = Graph("report")
    plan = g.node(plan_topic)                              # its parameters are inputs of the run
    found = [g.node(researcher, name=f"r{i}")(plan) for i in range(3)]
    draft = g.loop(critic, revise, until=accepted, max_iterations=4)(*found)
    g.output(g.node(write)(draft))

`node` adds a function, an async function, a method, a partial or an agent. Calling a node connects it: each argument is
the output of another node, a list of outputs, or a plain value, which becomes configuration. What does not fit is
refused at that line: an unknown input, a missing one, a type that the annotations rule out, a cycle. The required
parameters of a node that is never called are inputs of the run.

The result is a `GraphSpec`, as of a graph file: `spec` returns it, `to_yaml` writes it, `from_yaml` reads it. A
function is written as `module:name`. One that no other process can import has a type that only this process knows:
such a graph runs here, and `to_yaml` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from rota.errors import GraphInvalid
from rota.graph.agent_components import completed
from rota.graph.compiler import compile_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import DEFAULT_OUTPUT, ComponentType, function_type
from rota.graph.graph_parts import BuiltNode, GraphParts, Output, checked_json
from rota.graph.graph_text import graph_document, graph_to_yaml
from rota.graph.importable_names import called_name, expand_partial, importable_name, why_not_importable
from rota.graph.loader import load_text
from rota.graph.node_ports import NodePort, agent_ports, check_type, function_ports, output_hint
from rota.graph.node_settings import checked_settings, converted, execution_of, mapped_port
from rota.graph.plan import Plan
from rota.graph.run_values import BUILT_IN, INPUT_TYPE, OUTPUT_TYPE
from rota.graph.spec import (
    AGENT_TYPE,
    DURABLE_LANE_TYPES,
    FLEET_LANE,
    LOOP_TYPE,
    ComponentSpec,
    CompositeLoopSpec,
    EventSource,
    ExecutionSpec,
    GraphInfo,
    GraphSpec,
    LaneSpec,
    TriggerPolicy,
)
from rota.graph.standard_components import LoopComponent
from rota.graph.type_hints import list_hint

__all__ = ["RESULT", "AgentLike", "Graph", "Loop"]

RESULT = "result"  # the id of the output that has no name
LOCAL = "local."  # begins the types of functions that only this process has
_NO_DEFAULT: Any = object()


@runtime_checkable
class AgentLike(Protocol):
    """A handle on an agent, as `Rota.agent` and `Rota.find` return it."""

    name: str

    @property
    def project(self) -> str | None:
        """The agent's project, if it is known."""
        ...

    def parameters(self) -> Sequence[Any] | None:
        """Return the parameters that the payload fills; None if the agent is not a function of this program."""
        ...


class _NamedAgent:
    """An agent of which only the name is known."""

    project = None

    def __init__(self, name: str) -> None:
        self.name = name

    def parameters(self) -> None:
        """Return None: nothing is known about it."""


class Loop:
    """A ring of nodes that is being built. Call it with the first value; the result is a node."""

    def __init__(self, node: BuiltNode, members: Sequence[BuiltNode]) -> None:
        self._node = node
        self._members = members

    def __repr__(self) -> str:
        return f"<Loop {self._node.id} of {self._node.parts.name}>"

    def __call__(self, *initial: Any) -> BuiltNode:
        """Connect the loop: one value reaches its first member as it is, several as one list."""
        loop, first, last = self._node, self._members[0], self._members[-1]
        if not initial:
            raise GraphInvalid(f"loop {loop.id} needs a value to begin with", hint="Call it with the output of a node.")
        if first.has_known_ports and not first.ports:
            raise GraphInvalid(f"node {first.id} takes no input, so it cannot begin loop {loop.id}")
        place = first.ports[0] if first.ports else NodePort("value")
        loop(initial=initial[0] if len(initial) == 1 else list(initial))
        if len(initial) == 1:
            check_type(first.id, place, loop.parts.own(initial[0], f"loop {loop.id}").hint, f"the value of {loop.id}")
        if not place.is_mapped:
            check_type(first.id, place, last.output.hint, f"the output of node {last.id}")
        before = Output(loop, "body")
        for member in self._members:
            before = (member(before) if member.has_known_ports else member(value=before)).output
        is_durable = loop.parts.lane_type(last.id) in DURABLE_LANE_TYPES
        loop.parts.add_edge(last.output, loop.id, "result", "async" if is_durable else "delay")
        return loop


class Graph:
    """A graph that is being built."""

    def __init__(
        self, name: str, *, config: Mapping[str, Any] | None = None, budget: Mapping[str, Any] | None = None
    ) -> None:
        """Begin an empty graph. `config` is what components read as `context.config`, `budget` what a run may use."""
        given: dict[str, Any] = {"budget": dict(budget)} if budget else {}
        self._info: GraphInfo = converted(
            f"graph {name}", {"name": name, "config": checked_json("config", dict(config or {})), **given}, GraphInfo
        )
        self._parts = GraphParts(name)
        self._composite_loops: tuple[CompositeLoopSpec, ...] = ()
        self.projects: set[str] = set()  # of its agents, as far as they are known
        self._local: dict[str, tuple[ComponentType, Any]] = {}  # types that only this process has

    @property
    def name(self) -> str:
        """The graph's name."""
        return self._info.name

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self._parts.components)} nodes>"

    def __getitem__(self, name: str) -> BuiltNode:
        """Return a node by its name."""
        nodes = self._parts.nodes
        if name not in nodes:
            raise GraphInvalid(
                f"graph {self.name} has no node {name}", hint=f"Its nodes: {', '.join(nodes) or 'none'}."
            )
        return nodes[name]

    # --- building --------------------------------------------------------------------------------

    def lane(self, name: str, type: str, **settings: Any) -> str:  # noqa: A002  # as the field of a graph file
        """Add a lane, such as `g.lane("pool", "thread_pool", max_threads=4)`; return its name, for `lane=`."""
        if name in self._parts.lanes:
            raise GraphInvalid(f"two lanes of graph {self.name} have the name {name}")
        self._parts.lanes[name] = converted(f"lane {name}", {"type": type, **settings}, LaneSpec)
        return name

    def input(self, name: str, default: Any = _NO_DEFAULT) -> BuiltNode:
        """Add an input of the run, which `run_graph(g, inputs={…})` gives. With a default it may be left out."""
        config = {} if default is _NO_DEFAULT else {"default": checked_json(f"the default of input {name}", default)}
        node = self._parts.add(_input_spec(name, self._parts.main_lane(), config), ())
        node.is_called = True
        return node

    def node(
        self,
        code: Callable[..., Any] | AgentLike,
        *,
        name: str | None = None,
        lane: str | None = None,
        map_over: str | bool = False,
        config: Mapping[str, Any] | None = None,
        execution: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> BuiltNode:
        """Add a function, an async function, a method, a partial or an agent.

        `values` are arguments that are always the same, and so is `config`, for names that are options here. `map_over`
        names the input that receives lists (True: the first): the node runs once for each item, and its output is the
        list of the results. `execution` has further fields of `execution` in a graph file: on_error, max_attempts,
        priority, map_max, budget, on_over_budget, ….
        """
        settings = {**(config or {}), **values}
        if isinstance(code, AgentLike):
            return self._agent_node(code, name or code.name, map_over, settings, {"lane": lane, **(execution or {})})
        if isinstance(code, BuiltNode | Loop) or not callable(code):
            raise GraphInvalid(f"{code!r} is neither a function nor an agent, so it cannot be a node")
        function, fixed = expand_partial(code)
        node_id = name or called_name(function)
        if "<" in node_id:
            raise GraphInvalid("a lambda has no name: give the node one", hint="For example: g.node(code, name=…)")
        component_type = self._type_of(function)
        if component_type.name in self._local and lane in self._parts.lanes:
            self._check_runs_here(node_id, function, self._parts.lanes[lane])
        ports = function_ports(component_type)
        mapped = mapped_port(node_id, ports, map_over)
        settings = checked_settings(node_id, {**fixed, **settings}, component_type)
        given = {"lane": lane or self._parts.main_lane(), "map_over": mapped, **(execution or {})}
        outputs = component_type.descriptor.outputs
        hint = output_hint(component_type)
        return self._parts.add(
            ComponentSpec(
                id=node_id, type=component_type.name, execution=execution_of(node_id, given), config=settings
            ),
            [each.mapped() if each.name == mapped else each for each in ports if each.name not in settings],
            list_hint(hint) if mapped else hint,
            outputs[0].name if len(outputs) == 1 else DEFAULT_OUTPUT,
        )

    def _agent_node(
        self,
        agent: AgentLike,
        node_id: str,
        map_over: str | bool,
        settings: Mapping[str, Any],
        execution: Mapping[str, Any],
    ) -> BuiltNode:
        parameters = agent.parameters()
        if agent.project is not None:
            self.projects.add(agent.project)
        ports = None if parameters is None else agent_ports(agent, parameters)
        if ports is None and map_over is True:
            text = f"the inputs of node {node_id} are not known in this program: name the one that receives lists"
            raise GraphInvalid(text, hint="Give its name as map_over.")
        mapped = str(map_over or "") if ports is None else mapped_port(node_id, ports, map_over)
        given = {**execution, "lane": execution.get("lane") or FLEET_LANE, "map_over": mapped, "agent": agent.name}
        config = checked_json(f"node {node_id}", dict(settings))
        hint = Any if parameters is None else output_hint(agent)
        if ports is not None:
            ports = [each.mapped() if each.name == mapped else each for each in ports if each.name not in settings]
        return self._parts.add(
            ComponentSpec(id=node_id, type=AGENT_TYPE, execution=execution_of(node_id, given), config=config),
            ports,
            list_hint(hint) if mapped else hint,
        )

    def agent(self, agent: str, **options: Any) -> BuiltNode:
        """Add an agent by its name, wherever it is defined; its inputs are given by name. Options as of `node`."""
        return self.node(_NamedAgent(agent), **options)

    def loop(
        self,
        *members: Callable[..., Any] | AgentLike | BuiltNode,
        until: Callable[[Any], Any] | None = None,
        max_iterations: int,
        name: str = "loop",
    ) -> Loop:
        """Add a ring: what the last member returns goes to the first again, until `until` accepts it.

        After `max_iterations` the last value is taken as it is. Every iteration takes an epoch, or longer with agents.
        """
        if not members:
            raise GraphInvalid(f"loop {name} has no members", hint="For example: g.loop(critic, revise, …)")
        if type(max_iterations) is not int or max_iterations < 1:
            raise GraphInvalid(f"max_iterations of loop {name} must be a whole number from 1, not {max_iterations!r}")
        nodes = [each if isinstance(each, BuiltNode) else self.node(each) for each in members]
        for node in nodes:
            self._parts.own(node, f"loop {name}")
            if node.is_called:
                raise GraphInvalid(f"node {node.id} already has its inputs, so it cannot be a member of loop {name}")
        config: dict[str, Any] = {"max_iterations": max_iterations}
        type_name = self._loop_type(name, until, config)
        spec = ComponentSpec(
            id=name,
            type=type_name,
            execution=ExecutionSpec(lane=self._parts.main_lane()),
            trigger_policy=TriggerPolicy(type="any_input", inputs=("initial", "result")),
            config=config,
        )
        ports = (NodePort("initial", required=True),)
        return Loop(self._parts.add(spec, ports, nodes[-1].output.hint), nodes)

    def output(self, node: Any = None, /, **named: Any) -> None:
        """Make a node's output the result of a run. With names, the result is a dictionary of them."""
        wanted = {**({} if node is None else {RESULT: node}), **named}
        if not wanted:
            raise GraphInvalid("output() needs a node", hint="For example: g.output(report)")
        for name, value in wanted.items():
            output = self._parts.own(value, f"output {name}")
            is_taken = name in self._parts.nodes  # a result may be named like the node that it comes from
            spec = ComponentSpec(
                id=f"output {name}" if is_taken else name,
                type=OUTPUT_TYPE,
                execution=ExecutionSpec(lane=self._parts.main_lane()),
                config={"name": name} if is_taken else {},
            )
            self._parts.add(spec, ()).is_called = True
            self._parts.add_edge(output, spec.id, "value")

    # --- types -----------------------------------------------------------------------------------

    def _type_of(self, function: Callable[..., Any]) -> ComponentType:
        """Return the component type of a function; one that cannot be imported is known to this graph only."""
        name = importable_name(function)
        if name is not None:
            return function_type(function, name)
        name = f"{LOCAL}{called_name(function)}"
        while name in self._local and self._local[name][1] != function:
            name += "'"
        if name not in self._local:
            self._local[name] = (function_type(function, name), function)
        return self._local[name][0]

    @staticmethod
    def _check_runs_here(node_id: str, function: Any, lane: LaneSpec) -> None:
        """Raise if a function that only this process has is to run as an entry of the queue."""
        if lane.type in DURABLE_LANE_TYPES:
            text = f"node {node_id} cannot run on a lane of type {lane.type}: {why_not_importable(function)}"
            raise GraphInvalid(
                text, hint="Define it with `def` at the top level of a module, and import it from there."
            )

    def _loop_type(self, name: str, until: Callable[[Any], Any] | None, config: dict[str, Any]) -> str:
        """Return the type of a loop, and add `until` to its configuration if it can be imported."""
        if until is None:
            return LOOP_TYPE
        if not callable(until):
            raise GraphInvalid(f"until of loop {name} is {until!r}, which is not a function")
        if (until_name := importable_name(until)) is not None:
            config["until"] = until_name
            return LOOP_TYPE

        def make(**settings: Any) -> LoopComponent:
            return LoopComponent(until=until, **settings)

        type_name = f"{LOCAL}loop {name}"
        known = function_type(LoopComponent, type_name)
        self._local[type_name] = (msgspec.structs.replace(known, implementation=make), until)
        return type_name

    def registry(self) -> ComponentRegistry:
        """Return a registry with every component type that the graph needs."""
        registry = ComponentRegistry(imports=True)
        for component_type, _ in self._local.values():
            registry.register(component_type)
        return registry

    # --- the result ------------------------------------------------------------------------------

    @property
    def spec(self) -> GraphSpec:
        """The graph as of a graph file."""
        self._add_implicit_inputs()
        parts = self._parts
        ports = parts.ports_by_component()
        components = tuple(
            each if parts.nodes[each.id].is_loaded else _with_trigger(each, ports.get(each.id, ()))
            for each in sorted(parts.components.values(), key=self._is_not_new_input)
        )
        spec = GraphSpec(
            schema_version=2,
            graph=self._info,
            lanes=dict(parts.lanes),
            components=components,
            edges=tuple(parts.edges.values()),
            composite_loops=self._composite_loops,
        )
        return completed(spec)

    def _add_implicit_inputs(self) -> None:
        """Make the required parameters of nodes that were never called inputs of the run."""
        parts = self._parts
        for node in [each for each in parts.nodes.values() if not each.is_called]:
            given = {}
            for port in [each for each in node.ports if each.required]:
                known = parts.components.get(port.name)
                if known is not None and known.type != INPUT_TYPE:
                    raise GraphInvalid(
                        f"node {node.id} was not called, so its parameter {port.name} is an input of the run; but a "
                        "node has this name",
                        hint=f"Call the node: {node.id}({port.name}=…)",
                    )
                given[port.name] = parts.nodes[port.name] if known is not None else self.input(port.name)
            node(**given)

    def _is_not_new_input(self, component: ComponentSpec) -> bool:
        """Return False for inputs that were added here: they come first."""
        return component.type != INPUT_TYPE or self._parts.nodes[component.id].is_loaded

    def plan(self) -> Plan:
        """Check and compile the graph; raises `GraphInvalid` with every problem."""
        return compile_graph(self.spec, self.registry())

    @property
    def is_importable(self) -> bool:
        """Whether another process can run the graph."""
        return not self._local

    def check_importable(self) -> None:
        """Raise if a function of the graph exists in this process only."""
        for _, function in self._local.values():
            raise GraphInvalid(
                f"function {called_name(function)} cannot be used by another process: {why_not_importable(function)}",
                hint="Define it with `def` at the top level of a module, and import it from there.",
            )

    def to_yaml(self) -> str:
        """Return the graph as a graph file; raises if a function cannot be imported."""
        self.check_importable()
        return graph_to_yaml(self.spec)

    def document(self) -> dict[str, Any]:
        """Return the graph as it is stored for a durable run: the contents of `to_yaml`."""
        self.check_importable()
        return graph_document(self.spec)

    @classmethod
    def from_yaml(cls, text: str | bytes) -> Graph:
        """Return the graph of a graph file; more nodes can be added to it."""
        return cls.from_spec(load_text(text))

    @classmethod
    def from_spec(cls, spec: GraphSpec) -> Graph:
        """Return the graph of a `GraphSpec`."""
        graph = cls(spec.graph.name)
        graph._info, graph._composite_loops = spec.graph, spec.composite_loops
        graph._parts.load(spec)
        return graph


def _with_trigger(component: ComponentSpec, ports: tuple[str, ...]) -> ComponentSpec:
    """Return a component that runs when all its inputs have a message; without inputs, once at the start."""
    if component.trigger_policy != TriggerPolicy() or component.execution.agent or component.type in BUILT_IN:
        return component  # `completed` does it for agents, inputs and outputs
    if not ports:
        return msgspec.structs.replace(component, event_sources=(EventSource(type="start"),))
    return msgspec.structs.replace(component, trigger_policy=TriggerPolicy(type="all_inputs", inputs=ports))


def _input_spec(name: str, lane: str, config: dict[str, Any]) -> ComponentSpec:
    return ComponentSpec(id=name, type=INPUT_TYPE, execution=ExecutionSpec(lane=lane), config=config)

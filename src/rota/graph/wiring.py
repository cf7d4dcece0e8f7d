"""From a plan to things that can run: channels, nodes and the steps of an epoch.

Everything that can be decided before the first epoch is decided here, once: which edges a port leads to and which of
them are immediate, which trigger watches which channels, which regions share a wave. What runs afterwards only follows
references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rota.errors import ComponentInvalid
from rota.graph.calling import Unit
from rota.graph.channel_modes import make_channel, make_inbox
from rota.graph.channels import Channel
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import ComponentType
from rota.graph.nodes import Deferred, DeferredList, Node, Outbox, Route
from rota.graph.plan import Edge, Plan, Region
from rota.graph.reports import Reports, words
from rota.graph.spec import ComponentSpec
from rota.graph.timed_triggers import make_trigger, outside_ports

__all__ = ["REMOTE_LANES", "Wiring", "make_instances"]

REMOTE_LANES = ("process_pool", "queue")  # their components are called in other processes
POOL_LANES = ("thread_pool", "process_pool")


def make_instances(plan: Plan, registry: ComponentRegistry) -> dict[str, Any]:
    """An instance of every component that is a class and is called in this process, with its configuration."""
    instances: dict[str, Any] = {}
    for spec in plan.components.values():
        kind = registry.find(spec.type)
        kind.check_config(spec.id, spec.config)
        if kind.kind == "class" and plan.lanes[spec.execution.lane].type not in REMOTE_LANES:
            instances[spec.id] = _make(spec, kind)
    return instances


def _make(spec: ComponentSpec, kind: ComponentType) -> Any:
    try:
        return kind.implementation(**spec.config)
    except Exception as problem:  # __init__ is the component's code and may raise anything
        raise ComponentInvalid(
            f"component {spec.id} of type {spec.type} cannot be made: {words(problem)}", component_id=spec.id
        ) from problem


class Wiring:
    """The channels and nodes of one run."""

    def __init__(self, plan: Plan, registry: ComponentRegistry, instances: Mapping[str, Any], reports: Reports) -> None:
        self.plan = plan
        self._registry = registry
        self._instances = instances
        self._reports = reports
        self._into: dict[str, list[Edge]] = {component_id: [] for component_id in plan.components}
        self._out_of: dict[str, list[Edge]] = {component_id: [] for component_id in plan.components}
        for edge in plan.edges.values():
            self._into[edge.target.component].append(edge)
            self._out_of[edge.source.component].append(edge)
        self.deferred: list[Deferred] = []  # what the epoch publishes for the next boundary
        self.outbox = Outbox(reports)  # what other threads do
        self.kept_back: dict[str, list[Deferred]] = {
            region.id: [] for region in plan.regions.values() if region.kind == "composite_loop"
        }
        self.channels = {edge.id: self._channel(edge) for edge in plan.edges.values()}
        self.inboxes = {
            (spec.id, port): make_inbox(spec.id, port, reports)
            for spec in plan.components.values()
            for port in outside_ports(spec)
        }
        self.nodes = {spec.id: self._node(spec) for spec in plan.components.values()}

    # --- channels --------------------------------------------------------------------------------

    def _channel(self, edge: Edge) -> Channel:
        """An edge's channel; one that feeds a batch has room for the batch."""
        trigger = self.plan.components[edge.target.component].trigger_policy
        size = trigger.batch_size if trigger.type == "batch" else 0
        return make_channel(edge, self._reports, capacity=max(edge.spec.policy.capacity, size))

    def _incoming(self, spec: ComponentSpec) -> list[Channel]:
        edges = [self.channels[edge.id] for edge in self._into[spec.id]]
        return edges + [self.inboxes[spec.id, port] for port in outside_ports(spec)]

    # --- nodes -----------------------------------------------------------------------------------

    def _node(self, spec: ComponentSpec) -> Node:
        kind = self._registry.find(spec.type)
        channels = self._incoming(spec)
        trigger = make_trigger(spec, channels)
        lane = self.plan.lanes[spec.execution.lane]
        unit = Unit(
            spec.id,
            lane.id,
            kind,
            self._instances.get(spec.id),
            [channel.port for channel in channels],
            config=spec.config if kind.kind == "function" else {},
            output_ports=self._output_ports(spec, kind),
            fills=trigger.fills,
            budget_s=(spec.execution.budget_ms or lane.spec.max_callback_ms) / 1000,
            attempts_max=spec.execution.max_attempts if spec.execution.on_error == "retry" else 1,
        )
        self._check_ports(spec, kind, unit)
        return Node(spec, lane, unit, channels=channels, trigger=trigger, routes=self._routes(spec))

    def _output_ports(self, spec: ComponentSpec, kind: ComponentType) -> frozenset[str]:
        declared = {port.name for port in kind.descriptor.outputs}
        named = {edge.source.port for edge in self._out_of[spec.id]} if kind.descriptor.any_ports else set()
        return frozenset(declared | named)

    def _check_ports(self, spec: ComponentSpec, kind: ComponentType, unit: Unit) -> None:
        """A plan may have been compiled without knowing the components: look again."""
        inputs = {port.name for port in kind.descriptor.inputs}
        for port in unit.channel_ports:
            if port not in inputs and not kind.descriptor.any_ports and port not in outside_ports(spec):
                raise _no_port(spec, "input", port, inputs)
        for edge in self._out_of[spec.id]:
            if edge.source.port not in unit.output_ports:
                raise _no_port(spec, "output", edge.source.port, unit.output_ports)

    def _routes(self, spec: ComponentSpec) -> dict[str, Route]:
        ports: dict[str, list[Edge]] = {}
        for edge in self._out_of[spec.id]:
            ports.setdefault(edge.source.port, []).append(edge)
        return {port: self._route(spec, edges) for port, edges in ports.items()}

    def _route(self, spec: ComponentSpec, edges: Sequence[Edge]) -> Route:
        region = self._region(spec.id)
        now = [edge for edge in edges if edge.spec.kind == "immediate" and self._is_inside(edge, region)]
        later = [edge for edge in edges if edge not in now]
        return Route(
            [self.channels[edge.id] for edge in now], [self.channels[edge.id] for edge in later], self._waits_in(spec)
        )

    def _is_inside(self, edge: Edge, region: Region) -> bool:
        """Whether an immediate edge is seen at once: out of a loop it is not."""
        return region.kind == "component" or edge.target.component in region.components

    def _waits_in(self, spec: ComponentSpec) -> DeferredList:
        """Where a component's publications wait that are not seen at once."""
        region = self._region(spec.id)
        if region.kind == "composite_loop":
            return self.kept_back[region.id]
        return self.outbox if self.plan.lanes[spec.execution.lane].independent else self.deferred

    def _region(self, component_id: str) -> Region:
        return self.plan.regions[self.plan.component_region[component_id]]

    # --- steps -----------------------------------------------------------------------------------

    def waves(self, region_order: Sequence[str]) -> list[tuple[Region, ...]]:
        """The regions in order, with neighbours joined that one pool can take in one step."""
        waves: list[tuple[Region, ...]] = []
        for region_id in region_order:
            region = self.plan.regions[region_id]
            if waves and self._joins(region, waves[-1]):
                waves[-1] = (*waves[-1], region)
            else:
                waves.append((region,))
        return waves

    def _joins(self, region: Region, wave: Sequence[Region]) -> bool:
        """Whether a region can share a step with the wave before it: one pool, and none of them waits for another."""
        lanes = {self._pool_of(member) for member in (*wave, region)}
        alone = len(lanes) == 1 and None not in lanes
        return alone and not any(member.id in region.incoming_regions for member in wave)

    def _pool_of(self, region: Region) -> str | None:
        """The pool that executes a region; None when no pool does."""
        lane = self.plan.components[region.components[0]].execution.lane
        return lane if region.kind == "component" and self.plan.lanes[lane].type in POOL_LANES else None


def _no_port(spec: ComponentSpec, side: str, port: str, known: Any) -> ComponentInvalid:
    return ComponentInvalid(
        f"an edge uses the {side} port {port!r} of component {spec.id}, which type {spec.type} does not have",
        hint=f"It has: {', '.join(sorted(known)) or 'none'}.",
        component_id=spec.id,
        port=port,
    )

"""Lookup tables over one graph, for the rules and the compiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rota.graph.agent_components import AGENT_COMPONENT
from rota.graph.components import Catalogue, ComponentDescriptor
from rota.graph.plan import Edge
from rota.graph.spec import DURABLE_LANE_TYPES, ComponentSpec, Endpoint, GraphSpec, LaneSpec

__all__ = ["GraphIndex"]


class GraphIndex:
    """The components and edges of one graph. Of two components with the same id, the first counts.

    An edge may name a component that does not exist; `rules.structure` reports it.
    """

    def __init__(self, spec: GraphSpec, catalogue: Catalogue | None = None) -> None:
        self.spec = spec
        self.has_catalogue = catalogue is not None
        self.components: dict[str, ComponentSpec] = {}
        for component in spec.components:
            self.components.setdefault(component.id, component)
        self.durable = frozenset(name for name in self.components if self._is_durable(name))
        self.edges = [Edge.of(edge, self.durable) for edge in spec.edges]
        self.incoming: dict[str, list[Edge]] = defaultdict(list)  # by target component
        self.outgoing: dict[str, list[Edge]] = defaultdict(list)  # by source component
        self._by_target: dict[Endpoint, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            self.incoming[edge.target.component].append(edge)
            self.outgoing[edge.source.component].append(edge)
            self._by_target[edge.target].append(edge)
        self.descriptors: dict[str, ComponentDescriptor] = dict(self._described(catalogue))

    def _described(self, catalogue: Catalogue | None) -> Iterator[tuple[str, ComponentDescriptor]]:
        """Yield each component id with its descriptor; look each type up only once."""
        if catalogue is None:
            return
        types = {component.type for component in self.components.values() if not component.execution.agent}
        known = {name: catalogue.describe(name) for name in types}
        for component in self.components.values():
            if component.execution.agent:
                yield component.id, AGENT_COMPONENT.descriptor
            elif (descriptor := known[component.type]) is not None:
                yield component.id, descriptor

    def _is_durable(self, component_id: str) -> bool:
        lane = self.lane_of(component_id)
        return lane is not None and lane.type in DURABLE_LANE_TYPES

    def lane_of(self, component_id: str) -> LaneSpec | None:
        """Return the lane of a component, or None if the component or the lane does not exist."""
        component = self.components.get(component_id)
        return self.spec.lanes.get(component.execution.lane) if component else None

    def edges_to(self, component_id: str, port: str) -> Sequence[Edge]:
        """Return the edges that lead to one input port."""
        return self._by_target.get(Endpoint(component_id, port), ())

    def inputs_of(self, component: ComponentSpec) -> tuple[str, ...]:
        """Return the inputs that trigger a component: those of its trigger, else those of its event sources."""
        if ports := component.trigger_policy.ports:
            return ports
        sources = [source for source in component.event_sources if source.type not in {"manual", "timer"}]
        return tuple(dict.fromkeys(port for source in sources for port in source.ports))

"""A graph as the rules and the compiler look at it: everything found by name, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rota.graph.ports import Catalogue, ComponentDescriptor
from rota.graph.spec import ComponentSpec, EdgeSpec, Endpoint, GraphSpec, LaneSpec

__all__ = ["GraphIndex", "Wire"]


class Wire:
    """An edge with its two ends read, whether or not anything is there."""

    __slots__ = ("source", "spec", "target")

    def __init__(self, spec: EdgeSpec) -> None:
        self.spec = spec
        self.source = Endpoint.parse(spec.source)
        self.target = Endpoint.parse(spec.target)

    @property
    def is_immediate(self) -> bool:
        """Whether what is sent is seen in the same epoch."""
        return self.spec.kind == "immediate"


class GraphIndex:
    """One graph. Where an id is used twice, the first one counts; a rule reports the second."""

    def __init__(self, spec: GraphSpec, catalogue: Catalogue | None = None) -> None:
        self.spec = spec
        self.has_catalogue = catalogue is not None
        self.components: dict[str, ComponentSpec] = {}
        for component in spec.components:
            self.components.setdefault(component.id, component)
        self.wires = [Wire(edge) for edge in spec.edges]
        self.into: dict[str, list[Wire]] = defaultdict(list)  # by the component they lead to
        self.out_of: dict[str, list[Wire]] = defaultdict(list)
        self._into_port: dict[Endpoint, list[Wire]] = defaultdict(list)
        for wire in self.wires:
            self.into[wire.target.component].append(wire)
            self.out_of[wire.source.component].append(wire)
            self._into_port[wire.target].append(wire)
        self.descriptors: dict[str, ComponentDescriptor] = dict(self._described(catalogue))

    def _described(self, catalogue: Catalogue | None) -> Iterator[tuple[str, ComponentDescriptor]]:
        """What the catalogue says of each component; each type is asked for once."""
        if catalogue is None:
            return
        types = {component.type for component in self.components.values()}
        known = {name: catalogue.describe(name) for name in types}
        for component in self.components.values():
            if (descriptor := known[component.type]) is not None:
                yield component.id, descriptor

    def lane_of(self, component_id: str) -> LaneSpec | None:
        """The lane a component runs on, where both are there."""
        component = self.components.get(component_id)
        return self.spec.lanes.get(component.execution.lane) if component else None

    def wires_into(self, component_id: str, port: str) -> Sequence[Wire]:
        """The edges that lead to one input."""
        return self._into_port.get(Endpoint(component_id, port), ())

    def inputs_of(self, component: ComponentSpec) -> tuple[str, ...]:
        """The inputs that drive a component: those of its trigger, else those of its message sources."""
        if ports := component.trigger_policy.ports:
            return ports
        sources = [source for source in component.event_sources if source.type == "message"]
        return tuple(dict.fromkeys(port for source in sources for port in source.ports))

"""What a component type offers, as the compiler sees it.

Ports are a property of the component's type, not of the graph file. Whoever registers a type describes it here; the
diagnostics compare what the edges ask for with what is described, and never look at the code behind it.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from rota.graph.spec import BoundaryRole

__all__ = ["Catalogue", "ComponentDescriptor", "Port"]


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A named opening of a component. An empty schema or payload type fits everything."""

    name: str
    schema: str = ""
    payload_type: str = ""
    required: bool = False  # inputs: without an edge the graph is refused
    multiplicity: Literal["single", "multi"] = "single"  # inputs: how many edges may lead here
    large_payload: bool = False  # outputs: frames, blobs, documents; copying them is worth a warning


class ComponentDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """A component type: its name, its ports and whether it stands at the graph's boundary."""

    type: str
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    role: BoundaryRole | None = None  # None may stand anywhere
    any_ports: bool = False  # takes and gives whatever the edges name
    config_names: tuple[str, ...] | None = None  # None takes any configuration
    config_required: tuple[str, ...] = ()

    def input(self, name: str) -> Port | None:
        """The input port of this name."""
        return next((port for port in self.inputs if port.name == name), None)

    def output(self, name: str) -> Port | None:
        """The output port of this name."""
        return next((port for port in self.outputs if port.name == name), None)


class Catalogue(Protocol):
    """Where descriptors are looked up: the component registry, or a dictionary in a test."""

    def describe(self, component_type: str) -> ComponentDescriptor | None:
        """What this type offers, or None when nobody registered it."""
        ...

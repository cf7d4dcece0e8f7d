"""What a graph was compiled to: the nouns that the runtime reads and the tools print.

A plan is made once, by `compiler.compile_graph`, and never changes. It answers three questions.

*What runs as one?* A `Region`: one component, or all components of a cycle of immediate edges together with the loop
that owns them. Every component is in exactly one region.

*In which order?* `region_order` for an epoch; `independent` for each lane that stands outside of it (its own thread, or
stepped by hand) and has an order of its own; `lifecycle_order` for configure and activate, backwards for deactivate.

*How?* `lanes` with every default worked out, and in `capability` what is truly enforced here and what is not.

    sensor → estimator ⇄ controller, controller ┄delay┄> actuator

    regions       sensor · [estimator controller] · actuator
    region_order  sensor, actuator, estimator_controller_loop

The delayed edge orders nothing: what the controller sends is seen by the actuator in the next epoch. Sensor and
actuator both wait for nobody, so both are ready at the start; the loop waits for the sensor.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rota.graph.diagnostics import Diagnostic
from rota.graph.spec import ComponentSpec, CompositeLoopSpec, EdgeSpec, Endpoint, GraphSpec, LaneSpec

__all__ = ["Edge", "Lane", "LaneCapability", "LaneOrder", "Plan", "Region"]


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """What runs as one step of an epoch."""

    id: str  # the loop's id, or the component's
    kind: Literal["component", "composite_loop"]
    components: tuple[str, ...]  # by id
    incoming_regions: tuple[str, ...] = ()  # must be done first; by id
    outgoing_regions: tuple[str, ...] = ()
    loop: CompositeLoopSpec | None = None
    rank: int = 2  # the highest priority rank in it


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge with both ends found."""

    spec: EdgeSpec
    source: Endpoint
    target: Endpoint
    slow_reader_drop_risk: bool = False

    @property
    def id(self) -> str:
        """The edge's id, also its channel's."""
        return self.spec.id


class LaneCapability(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane does here, and what it does not: nothing is promised by silence."""

    id: str
    type: str
    implemented: tuple[str, ...]
    advisory_fields: tuple[str, ...]  # set in the file, not applied here
    applied_fields: tuple[str, ...] = ()  # set in the file and applied by the operating system
    future_extensions: tuple[str, ...] = ()
    unsupported_claims: tuple[str, ...] = ()


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane with its defaults worked out."""

    id: str
    spec: LaneSpec
    components: tuple[str, ...]  # in the order of the file
    workers: int  # threads or processes of its own; 0 runs on the caller's thread
    period_ns: int  # from tick to tick; 0 is no cadence
    tick_budget_ns: int  # what a tick may take before it counts as an overrun
    starvation_epochs: int  # 0 is never
    capability: LaneCapability

    @property
    def type(self) -> str:
        """The lane's type."""
        return self.spec.type

    @property
    def independent(self) -> bool:
        """Whether it stands outside the region order."""
        return self.spec.independent


class LaneOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order of regions inside one independent lane."""

    lane: str
    region_order: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled graph."""

    spec: GraphSpec
    components: dict[str, ComponentSpec]  # in the order of the file
    edges: dict[str, Edge]  # in the order of the file
    lanes: dict[str, Lane]
    regions: dict[str, Region]  # in the order in which cycles were found
    component_region: dict[str, str]
    region_order: tuple[str, ...]
    independent: tuple[LaneOrder, ...] = ()
    lifecycle_order: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()  # warnings, advisories and notes; a plan has no errors

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.spec.graph.name

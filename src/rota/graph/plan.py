"""The plan: the result of compiling a graph, which the runtime executes and the tools print.

`compiler.compile_graph` makes a plan once; a plan never changes. It answers three questions.

*What runs as one step?* A `Region`: one component, or all components of a cycle of immediate edges and the loop that
owns them. Every component is in exactly one region.

*In which order?* `region_order` within an epoch; `independent` within each lane outside the epoch (a lane with its own
thread, or stepped by the host); `lifecycle_order` to configure and activate components, reversed to deactivate them.

*How?* `lanes`, with all defaults filled in; each lane's `capability` lists what it enforces here and what it does not.

    sensor → estimator ⇄ controller, controller ┄delay┄> actuator

    regions       sensor · [estimator controller] · actuator
    region_order  sensor, actuator, estimator_controller_loop

The delay edge does not affect the order: the actuator sees the controller's message in the next epoch. Sensor and
actuator have no predecessors, so both are ready at the start; the loop waits for the sensor.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec

from rota.graph.diagnostics import Diagnostic
from rota.graph.spec import (
    DURABLE_LANE_TYPES,
    LOSSY_OVERFLOWS,
    SINGLE_MESSAGE_MODES,
    ComponentSpec,
    CompositeLoopSpec,
    EdgeSpec,
    Endpoint,
    GraphSpec,
    LaneSpec,
)

__all__ = ["Edge", "IndependentLane", "Lane", "LaneCapability", "Plan", "Region"]


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """The components that run as one step of an epoch."""

    id: str  # the loop's id, or the component's
    kind: Literal["component", "composite_loop"]
    components: tuple[str, ...]  # sorted by id
    incoming_regions: tuple[str, ...] = ()  # run before this region; sorted by id
    outgoing_regions: tuple[str, ...] = ()
    loop: CompositeLoopSpec | None = None
    rank: int = 2  # the highest priority rank of its components


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge with its endpoints parsed."""

    spec: EdgeSpec
    source: Endpoint
    target: Endpoint
    is_durable: bool = False  # an end of it is on a durable lane

    @classmethod
    def of(cls, spec: EdgeSpec, durable: Container[str] = ()) -> Edge:
        """Return the edge of this spec, with all defaults; `durable` are the components on durable lanes.

        The components it names need not exist.
        """
        source, target = Endpoint.parse(spec.source), Endpoint.parse(spec.target)
        is_durable = source.component in durable or target.component in durable
        policy = spec.policy.completed(durable=is_durable)
        spec = spec if policy is spec.policy else msgspec.structs.replace(spec, policy=policy)
        return cls(spec=spec, source=source, target=target, is_durable=is_durable)

    @property
    def id(self) -> str:
        """The id of the edge and of its channel."""
        return self.spec.id

    @property
    def is_immediate(self) -> bool:
        """Whether the receiver sees a message in the epoch in which it was sent."""
        return self.spec.kind == "immediate"

    @property
    def keeps_value(self) -> bool:
        """Whether a message stays readable after it was taken."""
        return self.spec.kind == "state" or self.spec.policy.mode == "latched"

    @property
    def slow_reader_drop_risk(self) -> bool:
        """Whether the slowest of several readers can lose messages."""
        policy = self.spec.policy
        return (
            policy.readers != "single"
            and policy.mode not in SINGLE_MESSAGE_MODES
            and policy.overflow in LOSSY_OVERFLOWS
        )


class LaneCapability(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane implements on this platform, and what it does not."""

    id: str
    type: str
    implemented: tuple[str, ...]
    advisory_fields: tuple[str, ...]  # set or not: would not be applied here
    ignored_fields: tuple[str, ...] = ()  # set in the file and not applied here
    applied_fields: tuple[str, ...] = ()  # set in the file and applied by the operating system
    future_extensions: tuple[str, ...] = ()
    unsupported_claims: tuple[str, ...] = ()


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a plan, with all defaults filled in."""

    id: str
    spec: LaneSpec
    components: tuple[str, ...]  # in file order
    workers: int  # the lane's threads or processes; 0: it runs on the caller's thread
    period_ns: int  # from tick to tick; 0: the lane does not tick
    tick_budget_ns: int  # a longer tick counts as an overrun
    starvation_epochs: int  # 0: never
    capability: LaneCapability

    @property
    def type(self) -> str:
        """The lane's type."""
        return self.spec.type

    @property
    def independent(self) -> bool:
        """Whether the lane runs outside the region order."""
        return self.spec.independent


class IndependentLane(msgspec.Struct, frozen=True, kw_only=True):
    """An independent lane, and the order of its regions."""

    lane: str
    region_order: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled graph."""

    spec: GraphSpec
    components: dict[str, ComponentSpec]  # in file order
    edges: dict[str, Edge]  # in file order
    lanes: dict[str, Lane]
    regions: dict[str, Region]  # in the order in which `regions.find_regions` finds them
    component_region: dict[str, str]
    region_order: tuple[str, ...]
    independent: tuple[IndependentLane, ...] = ()
    lifecycle_order: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()  # warnings, advisories and notes; a plan has no errors

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.spec.graph.name

    @property
    def durable_lane(self) -> Lane | None:
        """The first lane whose invocations become entries of a queue; None if there is none."""
        return next((lane for lane in self.lanes.values() if lane.type in DURABLE_LANE_TYPES), None)

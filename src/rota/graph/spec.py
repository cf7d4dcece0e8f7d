"""The contents of a graph file, as frozen structs.

A graph is *components* joined by *edges*, each component on a *lane*:

    schema_version: 1
    graph: {name: greeting}
    lanes:
      main: {type: event_loop}
    components:
      - {id: source, type: demo.Source, execution: {lane: main}}
      - id: sink
        type: demo.Sink
        trigger_policy: {type: any_input, inputs: [in]}
        execution: {lane: main}
    edges:
      - {id: source_sink, kind: immediate, from: source.out, to: sink.in}

An edge's kind decides *when* the receiver sees a message: `immediate` in the same epoch; `delay`, `state` and `async`
from the next epoch on. A component's lane decides *how* the component is executed once it is ready; it does not change
when messages become visible.

Two schema versions share these structs. `VERSION_2_FIELDS`, `LANE_TYPES` and `ERROR_POLICIES` list what version 2 adds
to version 1. Every rule about a single field (its type, its allowed values, its range, its diagnostic's code) is in the
field's annotation, so the loader, the JSON Schema and the type checker read the same line. Rules that compare several
fields are in `rules`: a graph that loads may still be refused there.

A graph file may also contain subgraphs and templates. The loader expands them: `GraphSpec` is flat, and its `hierarchy`
lists which names came from which subgraph or template instance.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rota.policy.contract import PolicyIsolation

__all__ = [
    "AGENT_TYPE",
    "CONVERGENCES",
    "DURABLE_EDGE_CAPACITY",
    "DURABLE_LANE_TYPES",
    "ERROR_POLICIES",
    "ERROR_POLICIES_V1",
    "EVENT_SOURCES_V1",
    "FLEET_LANE",
    "ID_BYTES_MAX",
    "INDEPENDENT_LANE_TYPES",
    "LANE_TYPES",
    "LANE_TYPES_V1",
    "LOOP_TYPE",
    "LOSSY_OVERFLOWS",
    "MAP_ITEMS_DEFAULT",
    "MAP_ITEMS_MAX",
    "OVER_BUDGET_PORT",
    "PRIORITY_RANKS",
    "SINGLE_MESSAGE_MODES",
    "STRING_BYTES_MAX",
    "VERSION_2_FIELDS",
    "BoundarySpec",
    "Budget",
    "ClockSpec",
    "ComponentSpec",
    "CompositeLoopSpec",
    "EdgePolicy",
    "EdgeSpec",
    "Endpoint",
    "EventSource",
    "ExecutionSpec",
    "GraphInfo",
    "GraphSpec",
    "LanePolicy",
    "LaneSpec",
    "LoopPolicy",
    "Namespace",
    "TriggerPolicy",
]

ID_BYTES_MAX = 128  # graph, lane, component, edge and loop ids, as UTF-8
STRING_BYTES_MAX = 4096  # all other strings, as UTF-8
DURABLE_EDGE_CAPACITY = 1_024  # messages on an edge to or from a durable lane, unless the edge says otherwise
OVER_BUDGET_PORT = "over_budget"  # an output that every component has, for the edge that on_over_budget names
COUNT_MAX = 2**31 - 1  # of counts and of milliseconds: 24 days
MEMORY_BYTES_MAX = 2**50  # of an island
WORKERS_MAX = 1024  # threads or processes of one lane
HZ_MAX = 1_000_000
MAP_ITEMS_DEFAULT = 1_000  # items of one list that a component maps over; a longer list is refused
MAP_ITEMS_MAX = 100_000

Id: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=ID_BYTES_MAX,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        extra={"expected": f"an id of 1 to {ID_BYTES_MAX} printable characters", "printable": True},
    ),
]
Text: TypeAlias = Annotated[str, Meta(max_length=STRING_BYTES_MAX)]
NonNegative: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
NonNegativeNumber: TypeAlias = Annotated[float, Meta(ge=0)]
Workers: TypeAlias = Annotated[int, Meta(ge=0, le=WORKERS_MAX)]
Hertz: TypeAlias = Annotated[float, Meta(ge=0, le=HZ_MAX)]

# By dimension: tokens, usd (dollars), cpu_s, wall_s, tool_calls, …; `budgets` turns it into lines of the ledger
Budget: TypeAlias = dict[Id, NonNegativeNumber]

LaneType: TypeAlias = Literal[
    "event_loop", "fixed_rate", "thread_pool", "isolated_thread", "manual_step", "process_pool", "queue", "fleet"
]
LANE_TYPES_V1: tuple[LaneType, ...] = ("event_loop", "fixed_rate", "thread_pool")
LANE_TYPES: tuple[LaneType, ...] = (*LANE_TYPES_V1, "isolated_thread", "manual_step", "process_pool", "queue", "fleet")
# Their invocations are entries of the durable queue, which end in a later epoch.
DURABLE_LANE_TYPES: tuple[LaneType, ...] = ("queue", "fleet")
FLEET_LANE = "fleet"  # the lane of agents that name none
AGENT_TYPE = "agent"  # the type of a component that is an agent
LOOP_TYPE = "rota.loop"  # the type of a component that is a loop across epochs
# Not part of the region order; they commit at the next epoch boundary.
INDEPENDENT_LANE_TYPES: tuple[LaneType, ...] = ("isolated_thread", "manual_step")

LaneOverflow: TypeAlias = Literal[
    "overwrite", "drop_oldest", "drop_newest", "reject", "reject_new", "fail_fast", "block"
]
OverrunPolicy: TypeAlias = Literal["drop_tick", "skip_next", "catch_up_once"]

PriorityClass: TypeAlias = Literal["high", "normal", "low", "background"]
PRIORITY_RANKS: dict[PriorityClass, int] = {"high": 3, "normal": 2, "low": 1, "background": 0}

ErrorPolicy: TypeAlias = Literal["fail_fast", "continue", "isolate", "retry"]
ERROR_POLICIES_V1: tuple[ErrorPolicy, ...] = ("fail_fast",)
ERROR_POLICIES: tuple[ErrorPolicy, ...] = ("fail_fast", "continue", "isolate", "retry")

TimestampDomain: TypeAlias = Literal["steady", "system", "device", "external"]
EdgeKind: TypeAlias = Literal["immediate", "delay", "state", "async"]
# "": latest; of an edge to or from a durable lane: queue
ChannelMode: TypeAlias = Literal["", "latest", "queue", "ring_buffer", "latched", "barrier", "previous_tick"]
SINGLE_MESSAGE_MODES: tuple[ChannelMode, ...] = ("latest", "latched", "previous_tick")  # they keep only the newest
# "": overwrite; of an edge to or from a durable lane that queues: fail_fast, which back-pressure avoids
EdgeOverflow: TypeAlias = Literal["", "overwrite", "drop_oldest", "drop_newest", "block", "fail_fast", "reject"]
LOSSY_OVERFLOWS: tuple[EdgeOverflow, ...] = ("overwrite", "drop_oldest", "drop_newest", "reject")
CopyPolicy: TypeAlias = Literal["copy", "shared_view", "loaned_view", "move_only"]
BoundaryRole: TypeAlias = Literal["processing", "input", "output", "input_output"]
EventSourceType: TypeAlias = Literal["manual", "message", "timer", "request", "task_ready", "future_ready", "start"]
EVENT_SOURCES_V1: tuple[EventSourceType, ...] = ("manual", "message", "timer", "request", "task_ready", "future_ready")
TriggerType: TypeAlias = Literal[
    "manual",
    "on_event",
    "any_input",
    "all_inputs",
    "time_sync",
    "batch",
    "request",
    "task_ready",
    "watermark",
    "condition",
    "debounce",
    "rate_limit",
]
TriggerCondition: TypeAlias = Literal["", "all_inputs_ready", "any_input_ready", "event_timestamp_present"]
LoopType: TypeAlias = Literal["fixed_point", "transaction", "solver_iteration", "coalesced_event", "async_task"]
CONVERGENCES = ("", "single_pass", "after_first_iteration", "always", "stable_state")
PartialSuccess: TypeAlias = Literal["", "commit_outputs", "discard_outputs", "fail_run"]

# The fields that version 2 adds, by section.
VERSION_2_FIELDS: dict[str, tuple[str, ...]] = {
    "lanes": ("starvation_epochs", "overflow_deadline_ms", "policy"),
    "execution": ("max_attempts", "timeout_ms", "map_over", "map_max", "agent", "budget", "on_over_budget"),
    "graph": ("budget", "island"),
}


class ClockSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The clocks that the graph's timestamps come from."""

    runtime_domain: Literal["steady"] = "steady"
    event_domain: TimestampDomain = "steady"


class GraphIsland(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a graph needs at once to keep its deadlines: it is admitted whole, or refused with what is missing.

    Every component reserves its `budget_ms` (or its lane's `max_callback_ms`) in each period of its lane.
    """

    period_ms: NonNegative = 0  # of lanes that have no period of their own
    deadline_ms: NonNegative = 0  # 0: the period
    criticality: Literal["high", "critical"] = "critical"
    cores: Text = ""  # "0-1"; "": any
    lease: NonNegative = 0  # cores for itself, besides one for each lane with an isolation_intent
    memory_bytes: Annotated[int, Meta(ge=0, le=MEMORY_BYTES_MAX)] = 0
    slots: NonNegative = 0


class GraphInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The name, kind, configuration and clocks of the graph."""

    name: Id
    kind: Literal["runnable", "internal_test"] = "runnable"
    config: dict[str, Any] = {}
    clock: ClockSpec = ClockSpec()
    # version 2
    budget: Budget | None = None  # the most that all components may use together in a run
    island: GraphIsland | None = None  # admitted whole before it runs, and failing closed


class LanePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The registered policy that orders a lane's queue, and its parameters."""

    name: Id
    params: dict[str, Any] = {}
    isolation: PolicyIsolation = "thread"  # of a policy of another package


class LaneSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the components of a lane are executed. 0, "" and "none" mean: not set."""

    type: Annotated[LaneType, Meta(extra={"code": "unsupported_lane_type"})]
    hz: Hertz = 0.0
    priority: Text = ""
    max_callback_ms: NonNegative = 0
    max_threads: Workers = 0  # workers; 0 means one
    queue_capacity: NonNegative = 0  # ready invocations that wait behind the active ones; 0: no limit
    overflow: LaneOverflow = "reject"
    wall_clock_enabled: bool = False
    period_ms: NonNegative = 0  # takes precedence over hz
    tick_budget_ms: NonNegative = 0  # 0: the period
    overrun_policy: OverrunPolicy = "drop_tick"
    thread_name: Text = ""
    # settings for the operating system: any value is accepted, `capabilities` decides which are applied
    cpu_affinity: tuple[int, ...] = ()
    nice_priority: int = 0
    rt_policy: Text = "none"  # only fifo and rr can be applied
    rt_priority: int = 0
    isolation_intent: Text = "none"
    # version 2
    starvation_epochs: NonNegative | None = None  # None: 8 in version 2, 0 (never) in version 1
    overflow_deadline_ms: NonNegative = 0  # how long overflow `block` waits for a free place
    policy: Id | LanePolicy | None = None  # None: order by the four priority classes

    @property
    def independent(self) -> bool:
        """Whether the lane runs outside the region order."""
        return self.type in INDEPENDENT_LANE_TYPES

    @property
    def period_ns(self) -> int:
        """The time from one tick to the next; 0 if neither `period_ms` nor `hz` is set."""
        if self.period_ms > 0:
            return self.period_ms * 1_000_000
        return round(1_000_000_000 / self.hz) if self.hz > 0 else 0


class EventSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event that makes the runtime check a component's trigger."""

    id: Text = ""
    type: EventSourceType = "manual"
    inputs: tuple[Id, ...] = ()
    input: Text = ""  # shorthand for one more input
    period_ms: NonNegative = 0

    @property
    def ports(self) -> tuple[str, ...]:
        """All inputs named by `inputs` and `input`."""
        return (*self.inputs, self.input) if self.input else self.inputs


class TriggerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a component is ready to run."""

    type: TriggerType = "manual"
    inputs: tuple[Id, ...] = ()
    input: Text = ""  # shorthand for one more input
    batch_size: NonNegative = 0
    batch_window_ms: NonNegative = 0
    sync_slop_ms: NonNegative = 0
    min_interval_ms: NonNegative = 0
    max_latency_ms: NonNegative = 0
    watermark_lateness_ms: NonNegative = 0
    debounce_window_ms: NonNegative = 0
    condition: TriggerCondition = ""
    coalesce: bool = False

    @property
    def ports(self) -> tuple[str, ...]:
        """All inputs named by `inputs` and `input`."""
        return (*self.inputs, self.input) if self.input else self.inputs


class ExecutionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lane a component runs on, and how it runs there."""

    lane: Id
    reentrant: bool = False
    priority: PriorityClass = "normal"
    budget_ms: NonNegative = 0
    on_error: Annotated[ErrorPolicy, Meta(extra={"code": "unsupported_error_policy"})] = "fail_fast"
    # version 2
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 3  # used with on_error: retry
    timeout_ms: NonNegative = 0  # a process_pool worker is killed after this time
    map_over: Text = ""  # the input whose messages are lists: the component runs once for each item
    map_max: Annotated[int, Meta(ge=1, le=MAP_ITEMS_MAX)] = MAP_ITEMS_DEFAULT  # used with map_over
    agent: Text = ""  # the agent that the component is: its invocations are entries of this agent
    budget: Budget | None = None  # the most that all of its invocations in a run may use together
    on_over_budget: Annotated[str, Meta(min_length=1, max_length=STRING_BYTES_MAX)] = "fail"  # fail, wait or an edge

    @property
    def over_budget_edge(self) -> str | None:
        """The edge on which the reason is published when the component is over budget, if it names one."""
        return None if self.on_over_budget in ("fail", "wait") else self.on_over_budget

    @property
    def rank(self) -> int:
        """The priority class as a number; higher runs sooner."""
        return PRIORITY_RANKS[self.priority]


class BoundarySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether messages enter or leave the graph at this component."""

    role: BoundaryRole = "processing"
    descriptor: Text = ""


class ComponentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One component of the graph."""

    id: Id
    type: Annotated[str, Meta(min_length=1, max_length=STRING_BYTES_MAX)]
    execution: ExecutionSpec
    event_sources: tuple[EventSource, ...] = (EventSource(),)
    trigger_policy: TriggerPolicy = TriggerPolicy()
    depends_on: tuple[Id, ...] = ()  # started before this component, deactivated after it
    boundary: BoundarySpec = BoundarySpec()
    config: dict[str, Any] = {}


class Endpoint(msgspec.Struct, frozen=True):
    """One end of an edge: a component and one of its ports."""

    component: str
    port: str

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse `component.port`. The last dot separates them: component ids may contain dots, port names do not."""
        component, _, port = text.rpartition(".")
        return cls(component, port)


class EdgePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an edge's channel stores messages until the receiver reads them."""

    mode: ChannelMode = ""
    capacity: Positive = 1
    overflow: EdgeOverflow = ""
    lifespan_ms: NonNegative = 0  # older messages are dropped; 0: never
    deadline_ms: NonNegative = 0  # older messages are delivered and marked as late; 0: never
    max_inflight: NonNegative = 0  # async edges only
    preserve_order: bool = True
    allow_drop: bool = True
    emit_health_events: bool = True
    timestamp_domain: TimestampDomain = "steady"
    copy_policy: CopyPolicy = "copy"
    owner: Literal["producer", "runtime", "consumer"] = "runtime"
    readers: Literal["single", "multi", "multiple"] = "single"

    def completed(self, *, durable: bool) -> EdgePolicy:
        """Return the policy with the defaults of its edge; `durable`: an end of the edge is on a durable lane."""
        mode, overflow, capacity = self.mode, self.overflow, self.capacity
        if not mode:
            mode = "queue" if durable else "latest"
            capacity = DURABLE_EDGE_CAPACITY if durable and capacity == 1 else capacity
        if not overflow:
            overflow = "fail_fast" if durable and mode == "queue" else "overwrite"
        if (mode, overflow, capacity) == (self.mode, self.overflow, self.capacity):
            return self
        return msgspec.structs.replace(self, mode=mode, overflow=overflow, capacity=capacity)


class EdgeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A connection from an output port to an input port."""

    id: Id
    kind: EdgeKind
    source: Annotated[str, Meta(min_length=1, max_length=STRING_BYTES_MAX)] = msgspec.field(name="from")
    target: Annotated[str, Meta(min_length=1, max_length=STRING_BYTES_MAX)] = msgspec.field(name="to")
    policy: Annotated[EdgePolicy, Meta(extra={"code": "invalid_channel_policy"})] = EdgePolicy()


class LoopPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a loop iterates, and what happens to its outputs."""

    type: LoopType
    budget_ms: NonNegative = 0
    max_iterations: NonNegative = 0  # 0 means one
    max_inflight: NonNegative = 0
    drop_policy: Text = ""
    min_interval_ms: NonNegative = 0
    convergence: Text = ""  # one of CONVERGENCES
    residual_threshold: NonNegativeNumber | None = None
    partial_success: PartialSuccess = ""  # "": the default of the loop's type


class CompositeLoopSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A loop: the components of exactly one cycle of immediate edges, and how they iterate."""

    id: Id
    components: Annotated[tuple[Id, ...], Meta(min_length=1)]
    loop_policy: LoopPolicy


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """A subgraph or template instance, and the ids of what it was expanded to."""

    id: str
    template: str = ""  # "" for a subgraph
    expansion: str = "compile_time_namespace"
    components: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    composite_loops: tuple[str, ...] = ()


class GraphSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A complete graph, flat: the input of the compiler."""

    schema_version: Literal[1, 2] = 1
    graph: GraphInfo
    lanes: dict[Id, LaneSpec]
    components: tuple[ComponentSpec, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()
    composite_loops: tuple[CompositeLoopSpec, ...] = ()
    hierarchy: tuple[Namespace, ...] = ()

    def executed_lane(self, name: str) -> LaneSpec:
        """Return a lane as it is executed: that of an island with a rate goes by the clock.

        An island reserves the budget of each component in each period, so its ticks may come no faster.
        """
        lane, island = self.lanes[name], self.graph.island
        if lane.type != "fixed_rate" or island is None or not (lane.period_ns or island.period_ms):
            return lane
        period_ms = lane.period_ms if lane.period_ns else island.period_ms
        return msgspec.structs.replace(lane, wall_clock_enabled=True, period_ms=period_ms)

"""What a graph file says, as frozen structures.

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

The edge's kind says *when* the other side sees a message: `immediate` in the same epoch, `delay`, `state` and `async`
from the next epoch on. The lane says *how* a ready component is executed, never in which order what becomes visible.

Two versions share these structures. Version 1 is the smaller one; what only version 2 may say is listed in
`VERSION_2_FIELDS`, `LANE_TYPES` and `ERROR_POLICIES`. Annotations carry every rule about a single field (its type, its
words, its range), so the loader, the JSON Schema and the type checker read the same line. Rules that look at two things
at once are in `diagnostics`: a structure that has been loaded may still be refused there.

A graph file may also have subgraphs and templates. They are gone once it is loaded: `GraphSpec` is flat, and
`hierarchy` remembers which names came from where.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

__all__ = [
    "CONVERGENCES",
    "ERROR_POLICIES",
    "ERROR_POLICIES_V1",
    "ID_BYTES_MAX",
    "ID_PATTERN",
    "INDEPENDENT_LANE_TYPES",
    "LANE_TYPES",
    "LANE_TYPES_V1",
    "PRIORITY_RANKS",
    "STRING_BYTES_MAX",
    "VERSION_2_FIELDS",
    "BoundarySpec",
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
STRING_BYTES_MAX = 4096  # every other text, as UTF-8
WHOLE_MAX = 2**31 - 1  # of counts and of milliseconds: 24 days
WORKERS_MAX = 1024  # threads or processes of one lane
HZ_MAX = 1_000_000

ID_PATTERN = re.compile(r"^[^\x00-\x1f\x7f]+$")  # anything but control characters

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=ID_BYTES_MAX, pattern=ID_PATTERN.pattern)]
Text: TypeAlias = Annotated[str, Meta(max_length=STRING_BYTES_MAX)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
Number: TypeAlias = Annotated[float, Meta(ge=0)]
Workers: TypeAlias = Annotated[int, Meta(ge=0, le=WORKERS_MAX)]
Hertz: TypeAlias = Annotated[float, Meta(ge=0, le=HZ_MAX)]

LaneType: TypeAlias = Literal[
    "event_loop", "fixed_rate", "thread_pool", "isolated_thread", "manual_step", "process_pool", "queue"
]
LANE_TYPES_V1: tuple[LaneType, ...] = ("event_loop", "fixed_rate", "thread_pool")
LANE_TYPES: tuple[LaneType, ...] = (*LANE_TYPES_V1, "isolated_thread", "manual_step", "process_pool", "queue")
# These stand outside the region order and commit at the next epoch boundary.
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
ChannelMode: TypeAlias = Literal["latest", "queue", "ring_buffer", "latched", "barrier", "previous_tick"]
EdgeOverflow: TypeAlias = Literal["overwrite", "drop_oldest", "drop_newest", "block", "fail_fast", "reject"]
CopyPolicy: TypeAlias = Literal["copy", "shared_view", "loaned_view", "move_only"]
BoundaryRole: TypeAlias = Literal["processing", "input", "output", "input_output"]
EventSourceType: TypeAlias = Literal["manual", "message", "timer", "request", "task_ready", "future_ready"]
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

# Where version 2 says more than version 1: the section, and the fields in it.
VERSION_2_FIELDS: dict[str, tuple[str, ...]] = {
    "lanes": ("starvation_epochs", "overflow_deadline_ms", "policy"),
    "execution": ("max_attempts", "timeout_ms"),
}


class ClockSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which clocks the graph's times belong to."""

    runtime_domain: Literal["steady"] = "steady"
    event_domain: TimestampDomain = "steady"


class GraphInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The graph as a whole."""

    name: Id
    kind: Literal["runnable", "internal_test"] = "runnable"
    config: dict[str, Any] = {}
    clock: ClockSpec = ClockSpec()


class LanePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A registered policy that orders a lane's queue, with its parameters."""

    name: Id
    params: dict[str, Any] = {}


class LaneSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How components are executed. Zero, "" and "none" mean: not asked for."""

    type: LaneType
    hz: Hertz = 0.0
    priority: Text = ""
    max_callback_ms: Whole = 0
    max_threads: Workers = 0  # workers; 0 is one
    queue_capacity: Whole = 0  # ready invocations behind the active ones; 0 admits all of a step
    overflow: LaneOverflow = "reject"
    wall_clock_enabled: bool = False
    period_ms: Whole = 0  # wins over hz
    tick_budget_ms: Whole = 0  # 0 is the period
    overrun_policy: OverrunPolicy = "drop_tick"
    thread_name: Text = ""
    # intents towards the operating system: any value may be kept, `capabilities` says which are applied
    cpu_affinity: tuple[int, ...] = ()
    nice_priority: int = 0
    rt_policy: Text = "none"  # fifo and rr can be applied
    rt_priority: int = 0
    isolation_intent: Text = "none"
    # version 2
    starvation_epochs: Whole | None = None  # None: 8, and 0 (never) in version 1
    overflow_deadline_ms: Whole = 0  # how long `block` waits for room
    policy: Id | LanePolicy | None = None  # None: the four priority classes

    @property
    def independent(self) -> bool:
        """Whether the lane stands outside the region order."""
        return self.type in INDEPENDENT_LANE_TYPES

    @property
    def period_ns(self) -> int:
        """The time from one tick to the next; 0 where none was asked for."""
        if self.period_ms > 0:
            return self.period_ms * 1_000_000
        return round(1_000_000_000 / self.hz) if self.hz > 0 else 0


class EventSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can wake a component."""

    id: Text = ""
    type: EventSourceType = "manual"
    inputs: tuple[Id, ...] = ()
    input: Text = ""  # one more input, for short
    period_ms: Whole = 0

    @property
    def ports(self) -> tuple[str, ...]:
        """Every input it names."""
        return (*self.inputs, self.input) if self.input else self.inputs


class TriggerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a woken component is ready to run."""

    type: TriggerType = "manual"
    inputs: tuple[Id, ...] = ()
    input: Text = ""  # one more input, for short
    batch_size: Whole = 0
    batch_window_ms: Whole = 0
    sync_slop_ms: Whole = 0
    min_interval_ms: Whole = 0
    max_latency_ms: Whole = 0
    watermark_lateness_ms: Whole = 0
    debounce_window_ms: Whole = 0
    condition: TriggerCondition = ""
    coalesce: bool = False

    @property
    def ports(self) -> tuple[str, ...]:
        """Every input it names."""
        return (*self.inputs, self.input) if self.input else self.inputs


class ExecutionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how a component runs."""

    lane: Id
    reentrant: bool = False
    priority: PriorityClass = "normal"
    budget_ms: Whole = 0
    on_error: ErrorPolicy = "fail_fast"
    # version 2
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 3  # with on_error: retry
    timeout_ms: Whole = 0  # after which a process_pool worker is killed

    @property
    def rank(self) -> int:
        """The priority as a number, higher is sooner."""
        return PRIORITY_RANKS[self.priority]


class BoundarySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether messages enter or leave the graph here."""

    role: BoundaryRole = "processing"
    descriptor: Text = ""


class ComponentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One component of the graph."""

    id: Id
    type: Annotated[str, Meta(min_length=1, max_length=STRING_BYTES_MAX)]
    execution: ExecutionSpec
    event_sources: tuple[EventSource, ...] = (EventSource(),)
    trigger_policy: TriggerPolicy = TriggerPolicy()
    depends_on: tuple[Id, ...] = ()  # started before this one, deactivated after it
    boundary: BoundarySpec = BoundarySpec()
    config: dict[str, Any] = {}


class Endpoint(msgspec.Struct, frozen=True):
    """One end of an edge."""

    component: str
    port: str

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Split at the last dot: component ids may have dots, port names have none."""
        component, _, port = text.rpartition(".")
        return cls(component, port)


class EdgePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an edge keeps messages until they are read."""

    mode: ChannelMode = "latest"
    capacity: Positive = 1
    overflow: EdgeOverflow = "overwrite"
    lifespan_ms: Whole = 0  # older messages are dropped
    deadline_ms: Whole = 0  # older messages are delivered and marked
    max_inflight: Whole = 0  # async edges only
    preserve_order: bool = True
    allow_drop: bool = True
    emit_health_events: bool = True
    timestamp_domain: TimestampDomain = "steady"
    copy_policy: CopyPolicy = "copy"
    owner: Literal["producer", "runtime", "consumer"] = "runtime"
    readers: Literal["single", "multi", "multiple"] = "single"


class EdgeSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way for messages from one component's output to another's input."""

    id: Id
    kind: EdgeKind
    source: Annotated[str, Meta(min_length=1, max_length=STRING_BYTES_MAX)] = msgspec.field(name="from")
    target: Annotated[str, Meta(min_length=1, max_length=STRING_BYTES_MAX)] = msgspec.field(name="to")
    policy: EdgePolicy = EdgePolicy()


class LoopPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a loop goes round, and what happens to its outputs."""

    type: LoopType
    budget_ms: Whole = 0
    max_iterations: Whole = 0  # 0 is one
    max_inflight: Whole = 0
    drop_policy: Text = ""
    min_interval_ms: Whole = 0
    convergence: Text = ""  # one of CONVERGENCES
    residual_threshold: Number | None = None
    partial_success: PartialSuccess = ""  # "" is what the loop's type does


class CompositeLoopSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The owner of exactly one cycle of immediate edges."""

    id: Id
    components: Annotated[tuple[Id, ...], Meta(min_length=1)]
    loop_policy: LoopPolicy


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """A subgraph or a template instance, and the names it was expanded to."""

    id: str
    template: str = ""  # "" for a subgraph
    expansion: str = "compile_time_namespace"
    components: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    composite_loops: tuple[str, ...] = ()


class GraphSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole graph, flat: what is compiled and run."""

    schema_version: Literal[1, 2] = 1
    graph: GraphInfo
    lanes: dict[Id, LaneSpec]
    components: tuple[ComponentSpec, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()
    composite_loops: tuple[CompositeLoopSpec, ...] = ()
    hierarchy: tuple[Namespace, ...] = ()

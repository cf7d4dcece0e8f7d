"""From a plan to the objects of a run: channels and nodes (`Wiring`), lanes and the steps of an epoch (`RunLanes`).

Everything that can be decided before the first epoch is decided here, once: which edges a port leads to and which of
them are immediate, which trigger reads which channels, which regions share a wave. Epochs then only follow references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.errors import ComponentInvalid
from rota.graph.agent_components import AGENT_COMPONENT
from rota.graph.back_pressure import holding_back
from rota.graph.budget_gate import BudgetGate
from rota.graph.calling import BoundComponent, CoroutineRunner
from rota.graph.channels import MessageChannel, make_channel, make_inbox
from rota.graph.commit import Committer
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import ComponentType
from rota.graph.invocation import Scope
from rota.graph.lanes.async_wave import AsyncWave
from rota.graph.lanes.capacity import LaneCapacity
from rota.graph.lanes.clusters import LaneRegion
from rota.graph.lanes.independent import IndependentLaneBase, IsolatedThread, ManualLane
from rota.graph.lanes.inline import InlineStep
from rota.graph.lanes.invocation_queue import InvocationQueue
from rota.graph.lanes.order import PolicyOrder
from rota.graph.lanes.pacing import Pacer
from rota.graph.lanes.pool import Pool, PoolStep, PoolWorker, ThreadWorker
from rota.graph.lanes.process_pool import ProcessComponents, ProcessWorker, WorkerProcesses
from rota.graph.lanes.queue_lane import QueueLane, QueueStep
from rota.graph.lanes.worker_settings import WorkerReport
from rota.graph.loops import EpochStep, LoopStep
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import DeferredPublication, DeferredTarget, Node, PublicationOutbox, Route
from rota.graph.plan import Edge, Lane, Plan, Region
from rota.graph.reports import COMPONENT_FAILURES, Reports, error_text
from rota.graph.spec import DURABLE_LANE_TYPES, LOOP_TYPE, OVER_BUDGET_PORT, ComponentSpec, LanePolicy
from rota.graph.stop import WakeSignal
from rota.graph.tasks import TaskLimit
from rota.graph.timed_triggers import event_ports, make_trigger
from rota.graph.triggers import SimulatedTime
from rota.service.policy_process import make_policy

__all__ = ["REMOTE_LANES", "RunLanes", "Wiring", "make_instances", "task_limits"]

REMOTE_LANES = ("process_pool", *DURABLE_LANE_TYPES)  # their components are called in other processes
POOL_LANES = ("thread_pool", "process_pool")
INLINE_LANES = ("event_loop", "fixed_rate")  # their components are called on the run's own thread
RUN_THREAD = " the run's thread"  # not the name of a lane, which begins with another character


def make_instances(plan: Plan, registry: ComponentRegistry) -> dict[str, Any]:
    """Create an instance of each class component that is called in this process, with its configuration."""
    instances: dict[str, Any] = {}
    for spec in plan.components.values():
        component_type = _type_of(spec, registry)
        component_type.check_config(spec.id, spec.config)
        if spec.type == LOOP_TYPE and isinstance(until := spec.config.get("until"), str):
            registry.check_function(until)
        if component_type.kind == "class" and plan.lanes[spec.execution.lane].type not in REMOTE_LANES:
            instances[spec.id] = _make_instance(spec, component_type)
    return instances


def _type_of(spec: ComponentSpec, registry: ComponentRegistry) -> ComponentType:
    return AGENT_COMPONENT if spec.execution.agent else registry.find(spec.type)


def _make_instance(spec: ComponentSpec, component_type: ComponentType) -> Any:
    try:
        return component_type.implementation(**spec.config)
    except COMPONENT_FAILURES as problem:  # __init__ is the component's code
        raise ComponentInvalid(
            f"component {spec.id} of type {spec.type} cannot be created: {error_text(problem)}", component_id=spec.id
        ) from problem


class Wiring:
    """The channels and nodes of one run."""

    def __init__(
        self,
        plan: Plan,
        registry: ComponentRegistry,
        instances: Mapping[str, Any],
        reports: Reports,
        simulated: SimulatedTime | None = None,
        *,
        has_budgets: bool = False,
    ) -> None:
        self._has_budgets = has_budgets
        self.gates: dict[str, BudgetGate] = {}  # by component, of those that a budget holds up before they are ready
        self.checked_at_start: list[Node] = []  # of the others that can charge
        self.plan = plan
        self._simulated = simulated  # the time of timers; None: the run's clock
        self._registry = registry
        self._instances = instances
        self._reports = reports
        self._incoming_edges: dict[str, list[Edge]] = {component_id: [] for component_id in plan.components}
        self._outgoing_edges: dict[str, list[Edge]] = {component_id: [] for component_id in plan.components}
        for edge in plan.edges.values():
            self._incoming_edges[edge.target.component].append(edge)
            self._outgoing_edges[edge.source.component].append(edge)
        self.deferred: list[DeferredPublication] = []  # publications of the epoch that wait for the next boundary
        self.outbox = PublicationOutbox(reports)  # publications of other threads
        self.held_outputs: dict[str, list[DeferredPublication]] = {
            region.id: [] for region in plan.regions.values() if region.kind == "composite_loop"
        }
        self.channels = {edge.id: self._channel(edge) for edge in plan.edges.values()}
        self.inboxes = {
            (spec.id, port): make_inbox(spec.id, port, reports)
            for spec in plan.components.values()
            for port in event_ports(spec)
        }
        self.nodes = {spec.id: self._node(spec) for spec in plan.components.values()}

    # --- channels --------------------------------------------------------------------------------

    def _channel(self, edge: Edge) -> MessageChannel:
        """Return the channel of an edge, with room for a whole batch if it feeds one."""
        trigger = self.plan.components[edge.target.component].trigger_policy
        size = trigger.batch_size if trigger.type == "batch" else 0
        return make_channel(edge, self._reports, capacity=max(edge.spec.policy.capacity, size))

    def _input_channels(self, spec: ComponentSpec) -> list[MessageChannel]:
        edges = [self.channels[edge.id] for edge in self._incoming_edges[spec.id]]
        return edges + [self.inboxes[spec.id, port] for port in event_ports(spec)]

    # --- nodes -----------------------------------------------------------------------------------

    def _node(self, spec: ComponentSpec) -> Node:
        component_type = _type_of(spec, self._registry)
        channels = self._input_channels(spec)
        lane = self.plan.lanes[spec.execution.lane]
        routes = self._routes(spec)
        outgoing = [channel for route in routes.values() for channel in (*route.immediate, *route.deferred)]
        trigger = make_trigger(spec, channels, None if lane.independent else self._simulated)
        if self._has_budgets and _may_be_over_budget(spec, lane, component_type):
            trigger = self.gates[spec.id] = BudgetGate(trigger, waits=spec.execution.on_over_budget == "wait")
        trigger = holding_back(spec.id, trigger, outgoing, self._reports)
        component = BoundComponent(
            spec.id,
            lane.id,
            component_type,
            self._instances.get(spec.id),
            [channel.port for channel in channels],
            config=spec.config if component_type.kind == "function" else {},
            output_ports=self._output_ports(spec, component_type),
            fills_every_input=trigger.fills_every_input,
            budget_s=(spec.execution.budget_ms or lane.spec.max_callback_ms) / 1000,
            attempts_max=spec.execution.max_attempts if spec.execution.on_error == "retry" else 1,
        )
        self._check_ports(spec, component_type, component)
        node = Node(spec, lane, component, channels=channels, trigger=trigger, routes=routes)
        named = [edge for edge in self._outgoing_edges[spec.id] if edge.id == spec.execution.over_budget_edge]
        node.over_budget_route = self._route(spec, named) if named else None
        if self._has_budgets and spec.id not in self.gates and _can_charge(spec, component_type):
            self.checked_at_start.append(node)
        return node

    def _output_ports(self, spec: ComponentSpec, component_type: ComponentType) -> frozenset[str]:
        declared = {port.name for port in component_type.descriptor.outputs}
        named = (
            {edge.source.port for edge in self._outgoing_edges[spec.id]}
            if component_type.descriptor.any_ports
            else set()
        )
        return frozenset(declared | named)

    def _check_ports(self, spec: ComponentSpec, component_type: ComponentType, component: BoundComponent) -> None:
        """Check the ports again: the plan may have been compiled without the components."""
        inputs = {port.name for port in component_type.descriptor.inputs}
        for port in component.channel_ports:
            descriptor = component_type.descriptor
            is_open = descriptor.any_ports or descriptor.any_inputs
            if port not in inputs and not is_open and port not in event_ports(spec):
                raise _no_port(spec, "input", port, inputs)
        for edge in self._outgoing_edges[spec.id]:
            if edge.source.port == OVER_BUDGET_PORT and edge.id == spec.execution.over_budget_edge:
                continue
            if edge.source.port not in component.output_ports:
                raise _no_port(spec, "output", edge.source.port, component.output_ports)

    def _routes(self, spec: ComponentSpec) -> dict[str, Route]:
        ports: dict[str, list[Edge]] = {}
        for edge in self._outgoing_edges[spec.id]:
            ports.setdefault(edge.source.port, []).append(edge)
        return {port: self._route(spec, edges) for port, edges in ports.items()}

    def _route(self, spec: ComponentSpec, edges: Sequence[Edge]) -> Route:
        immediate: list[MessageChannel] = []
        deferred: list[MessageChannel] = []
        for edge in edges:
            (immediate if self._is_visible_at_once(edge) else deferred).append(self.channels[edge.id])
        return Route(immediate, deferred, self._deferred_target(spec))

    def _is_visible_at_once(self, edge: Edge) -> bool:
        """Return whether the reader sees a message once it is committed: immediate edges, but not out of loops."""
        is_in_loop = self._region(edge.source.component).kind == "composite_loop"
        return edge.is_immediate and (not is_in_loop or self.is_inside_region(edge))

    def is_inside_region(self, edge: Edge) -> bool:
        """Return whether both ends of an edge are in the same region."""
        region_of = self.plan.component_region
        return region_of[edge.source.component] == region_of[edge.target.component]

    def outgoing(self, component_id: str) -> Sequence[Edge]:
        """Return the edges that leave a component."""
        return self._outgoing_edges[component_id]

    def _deferred_target(self, spec: ComponentSpec) -> DeferredTarget:
        """Return where a component's deferred publications wait."""
        region = self._region(spec.id)
        if region.kind == "composite_loop":
            return self.held_outputs[region.id]
        return self.outbox if self.plan.lanes[spec.execution.lane].independent else self.deferred

    def _region(self, component_id: str) -> Region:
        return self.plan.regions[self.plan.component_region[component_id]]

    # --- steps -----------------------------------------------------------------------------------

    def waves(self, region_order: Sequence[str]) -> list[tuple[Region, ...]]:
        """Return the regions in order; neighbours that one pool can execute in one step are joined."""
        waves: list[list[Region]] = []
        place, ids = "", set[str]()  # of the last wave
        for region_id in region_order:
            region = self.plan.regions[region_id]
            here = self._place_of(region)
            if here and here == place and ids.isdisjoint(region.incoming_regions):
                waves[-1].append(region)
                ids.add(region.id)
            else:
                waves.append([region])
                place, ids = here, {region.id}
        return [part for wave in waves for part in self._overlapping(wave)]

    def _place_of(self, region: Region) -> str:
        """Return where a region is executed, if neighbours there may share a step: a pool, or the run's thread."""
        lane = self.plan.components[region.components[0]].execution.lane
        kind = self.plan.lanes[lane].type
        if region.kind != "component":
            return ""
        if kind in (*POOL_LANES, *DURABLE_LANE_TYPES):
            return lane
        return RUN_THREAD if kind in INLINE_LANES else ""

    def _overlapping(self, wave: Sequence[Region]) -> list[tuple[Region, ...]]:
        """Return a wave of the run's thread from its first to its last async component; the others one by one."""
        if self._place_of(wave[0]) != RUN_THREAD:
            return [tuple(wave)]
        found = [at for at, region in enumerate(wave) if self.is_async(region.components[0])]
        first, last = (found[0], found[-1]) if found else (0, 0)
        singles_before, singles_after = wave[:first], wave[last + 1 :]
        together = tuple(wave[first : last + 1])
        return [*((each,) for each in singles_before), together, *((each,) for each in singles_after)]

    def is_async(self, component_id: str) -> bool:
        """Whether a component is an async function, or a class with an async `execute`."""
        return self.nodes[component_id].component.type.is_async


def _may_be_over_budget(spec: ComponentSpec, lane: Lane, component_type: ComponentType) -> bool:
    """Whether a budget can hold up a component before it starts; entries that wait do so in the queue."""
    waits = spec.execution.on_over_budget == "wait"
    return not waits if lane.type in DURABLE_LANE_TYPES else waits and _can_charge(spec, component_type)


def _can_charge(spec: ComponentSpec, component_type: ComponentType) -> bool:
    """Whether a component that is called in this process can use a budget."""
    return "context" in component_type.injected and not spec.type.startswith("rota.")


def _no_port(spec: ComponentSpec, side: str, port: str, known: Any) -> ComponentInvalid:
    return ComponentInvalid(
        f"an edge uses the {side} port {port!r} of component {spec.id}, which type {spec.type} does not have",
        hint=f"Its {side} ports: {', '.join(sorted(known)) or 'none'}.",
        component_id=spec.id,
        port=port,
    )


def task_limits(plan: Plan) -> dict[str, TaskLimit]:
    """Return for each component of an async_task loop how many background tasks the loop may have in flight."""
    limits: dict[str, TaskLimit] = {}
    for region in plan.regions.values():
        policy = region.loop.loop_policy if region.loop else None
        if policy is not None and policy.type == "async_task" and policy.max_inflight:
            limits.update(dict.fromkeys(region.components, TaskLimit(policy.max_inflight, policy.drop_policy)))
    return limits


class RunLanes:
    """The lanes of one run and the steps of its epochs."""

    def __init__(
        self,
        wiring: Wiring,
        committer: Committer,
        scope: Scope,
        wake_signal: WakeSignal,
        meters: Mapping[str, LaneMeter],
        *,
        run_id: str,
    ) -> None:
        self._wiring = wiring
        self._plan = wiring.plan
        self._committer = committer
        self._scope = scope
        self._wake_signal = wake_signal
        self._meters = meters
        self.coroutines = CoroutineRunner()  # of the run's own thread
        self.pools: dict[str, Pool] = {}
        self.remotes: dict[str, ProcessComponents] = {}
        self.isolated: dict[str, IsolatedThread] = {}
        self.manual: dict[str, ManualLane] = {}
        self.pacers: list[Pacer] = []
        self.queue: QueueLane | None = None
        self.loops: list[LoopStep] = []
        lanes = [lane for lane in self._plan.lanes.values() if lane.type == "process_pool" and lane.components]
        self._processes = WorkerProcesses(sum(lane.workers for lane in lanes))
        for lane in self._plan.lanes.values():
            self._make_lane(lane, run_id)
        self.steps: list[EpochStep] = [self._step(wave) for wave in wiring.waves(self._plan.region_order)]
        for order in self._plan.independent:
            self._assign_regions(self.independent[order.lane], order.region_order)

    @property
    def independent(self) -> dict[str, IndependentLaneBase]:
        """The lanes outside the region order."""
        return {**self.isolated, **self.manual}

    def worker_reports(self) -> list[WorkerReport]:
        """Return the reports of all workers of all lanes."""
        reports = [report for pool in self.pools.values() for report in pool.worker_reports]
        return reports + [lane.worker_report for lane in self.isolated.values() if lane.worker_report is not None]

    # --- lanes -----------------------------------------------------------------------------------

    def _make_lane(self, lane: Lane, run_id: str) -> None:
        if lane.type == "thread_pool":
            clock = self._committer.clock
            self.pools[lane.id] = self._pool(lane, lambda worker_id: ThreadWorker(lane, worker_id, clock))
        elif lane.type == "process_pool":
            self._make_process_pool(lane)
        elif lane.type == "isolated_thread":
            self.isolated[lane.id] = IsolatedThread(*self._queued(lane), **self._shared())
        elif lane.type == "manual_step":
            self.manual[lane.id] = ManualLane(*self._queued(lane), **self._shared())
        elif lane.type == "fixed_rate":
            recorder, wall_clock = self._committer.recorder, lane.spec.wall_clock_enabled
            self.pacers.append(Pacer(lane, self._meters[lane.id], recorder, wall_clock=wall_clock))
        elif lane.type in DURABLE_LANE_TYPES and self.queue is None:
            self.queue = QueueLane(run_id, self._committer, self._scope, self._wake_signal, self._meters)

    def _make_process_pool(self, lane: Lane) -> None:
        committer = self._committer
        config = self._plan.spec.graph.config
        remote = ProcessComponents(lane, self._processes, config, committer.stop_token, committer.reports)
        self.remotes[lane.id] = remote
        self.pools[lane.id] = self._pool(lane, lambda worker_id: ProcessWorker(lane, worker_id, remote), is_remote=True)

    def _queued(self, lane: Lane) -> tuple[Lane, InvocationQueue, LaneCapacity, LaneMeter]:
        """Return the parts that every lane with a queue needs."""
        meter, reports = self._meters[lane.id], self._committer.reports
        # a pool is drained in every step, so no invocation waits for a whole epoch
        starvation_epochs = lane.starvation_epochs if lane.independent else 0
        queue = InvocationQueue(lane.id, self._policy_order(lane), starvation_epochs, reports)
        return lane, queue, LaneCapacity(lane, meter, reports), meter

    def _policy_order(self, lane: Lane) -> PolicyOrder | None:
        named = lane.spec.policy
        if named is None:
            return None
        wanted = named if isinstance(named, LanePolicy) else LanePolicy(name=named)
        policy = make_policy(wanted.name, wanted.params, wanted.isolation)
        return PolicyOrder(policy, lane.id, self._committer.clock)

    def _pool(self, lane: Lane, make_worker: Callable[[int], PoolWorker], *, is_remote: bool = False) -> Pool:
        return Pool(*self._queued(lane), committer=self._committer, make_worker=make_worker, is_remote=is_remote)

    # --- steps -----------------------------------------------------------------------------------

    def _step(self, wave: Sequence[Region]) -> EpochStep:
        nodes = [self._wiring.nodes[component_id] for region in wave for component_id in region.components]
        if wave[0].kind == "composite_loop":
            return self._loop(wave[0], nodes, self._wiring.deferred, self.coroutines)
        if nodes[0].lane.id in self.pools:
            return PoolStep(nodes, self.pools[nodes[0].lane.id], self._scope)
        if nodes[0].lane.type in DURABLE_LANE_TYPES and self.queue is not None:
            return QueueStep(nodes, self.queue, self._committer)
        if len(nodes) > 1:
            return AsyncWave(nodes, self._committer, self._scope, self.coroutines)
        return self._component_step(nodes[0], self.coroutines)

    def _component_step(self, node: Node, coroutines: CoroutineRunner) -> EpochStep:
        if node.lane.id in self.pools:
            return PoolStep((node,), self.pools[node.lane.id], self._scope)
        if node.lane.type in DURABLE_LANE_TYPES and self.queue is not None:
            return QueueStep((node,), self.queue, self._committer)
        if node.reentrant and node.component.type.is_async:
            return AsyncWave((node,), self._committer, self._scope, coroutines)
        return InlineStep(node, self._committer, self._scope, coroutines, self._meters[node.lane.id])

    def _loop(
        self, region: Region, nodes: Sequence[Node], deferred: DeferredTarget, coroutines: CoroutineRunner
    ) -> LoopStep:
        assert region.loop is not None  # noqa: S101  # a region of kind composite_loop has one
        loop = LoopStep(
            region,
            region.loop.loop_policy,
            [self._component_step(node, coroutines) for node in nodes],
            inner_edges=[self._inner_edges(node) for node in nodes],
            held_outputs=self._wiring.held_outputs[region.id],
            deferred=deferred,
            committer=self._committer,
        )
        self.loops.append(loop)
        return loop

    def _inner_edges(self, node: Node) -> list[MessageChannel]:
        """Return the channels of the immediate edges from a member of a loop to its members."""
        edges = [edge for edge in self._wiring.outgoing(node.id) if edge.is_immediate]
        return [self._wiring.channels[edge.id] for edge in edges if self._wiring.is_inside_region(edge)]

    def _assign_regions(self, lane: IndependentLaneBase, region_order: Sequence[str]) -> None:
        """Assign regions to an independent lane; only edges inside the lane order them."""
        regions: dict[str, LaneRegion] = {}
        for position, region_id in enumerate(region_order):
            region = self._plan.regions[region_id]
            nodes = [self._wiring.nodes[component_id] for component_id in region.components]
            is_loop = region.kind == "composite_loop"
            loop = self._loop(region, nodes, self._wiring.outbox, lane.coroutines) if is_loop else None
            regions[region_id] = LaneRegion(position, nodes, loop)
            for predecessor in region.incoming_regions:
                if predecessor in regions:
                    regions[region_id].add_predecessor(regions[predecessor])
        lane.assign_regions(tuple(regions.values()))

    def _shared(self) -> dict[str, Any]:
        """Return the keyword arguments that every independent lane needs."""
        return {"committer": self._committer, "scope": self._scope, "wake_signal": self._wake_signal}

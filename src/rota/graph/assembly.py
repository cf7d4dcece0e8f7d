"""The lanes of a run, and the steps of its epoch, put together from a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.graph.calling import Coroutines
from rota.graph.execution import Settlement
from rota.graph.invocation import Scope
from rota.graph.lanes.admission import Admission
from rota.graph.lanes.clusters import LaneRegion
from rota.graph.lanes.independent import IndependentLane
from rota.graph.lanes.inline import InlineStep
from rota.graph.lanes.isolated import IsolatedThread
from rota.graph.lanes.manual import ManualLane
from rota.graph.lanes.pacing import Pacer
from rota.graph.lanes.policy_order import PolicyOrder
from rota.graph.lanes.pool import Pool, PoolStep, Site, ThreadSite
from rota.graph.lanes.process_site import ProcessRemote, ProcessSite
from rota.graph.lanes.queue import LaneQueue
from rota.graph.lanes.queue_lane import QueueLane, QueueStep
from rota.graph.lanes.threads import WorkerReport
from rota.graph.loops import LoopStep, Step
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import DeferredList, Node
from rota.graph.plan import Lane, Plan, Region
from rota.graph.spec import LanePolicy
from rota.graph.stop import Bell
from rota.graph.tasks import TaskLimit
from rota.graph.wiring import Wiring
from rota.policy import registry as policies

__all__ = ["Lanes", "task_limits"]


def task_limits(plan: Plan) -> dict[str, TaskLimit]:
    """By component: how many background tasks its loop may have under way."""
    limits: dict[str, TaskLimit] = {}
    for region in plan.regions.values():
        policy = region.loop.loop_policy if region.loop else None
        if policy is not None and policy.type == "async_task" and policy.max_inflight:
            limits.update(dict.fromkeys(region.components, TaskLimit(policy.max_inflight, policy.drop_policy)))
    return limits


class Lanes:
    """Everything that executes, by lane."""

    def __init__(
        self,
        wiring: Wiring,
        settlement: Settlement,
        scope: Scope,
        bell: Bell,
        meters: Mapping[str, LaneMeter],
        *,
        run_id: str,
    ) -> None:
        self._wiring = wiring
        self._plan = wiring.plan
        self._settlement = settlement
        self._scope = scope
        self._bell = bell
        self._meters = meters
        self.coroutines = Coroutines()  # of the run's own thread
        self.pools: dict[str, Pool] = {}
        self.remotes: dict[str, ProcessRemote] = {}
        self.isolated: dict[str, IsolatedThread] = {}
        self.manual: dict[str, ManualLane] = {}
        self.pacers: list[Pacer] = []
        self.queue: QueueLane | None = None
        self.loops: list[LoopStep] = []
        for lane in self._plan.lanes.values():
            self._make(lane, run_id)
        self.steps: list[Step] = [self._step(wave) for wave in wiring.waves(self._plan.region_order)]
        for order in self._plan.independent:
            self._occupy(self.independent[order.lane], order.region_order)

    @property
    def independent(self) -> dict[str, IndependentLane]:
        """The lanes outside the region order."""
        return {**self.isolated, **self.manual}

    def worker_reports(self) -> list[WorkerReport]:
        """Every worker of every lane."""
        reports = [report for pool in self.pools.values() for report in pool.worker_reports]
        return reports + [lane.worker_report for lane in self.isolated.values() if lane.worker_report is not None]

    # --- lanes -----------------------------------------------------------------------------------

    def _make(self, lane: Lane, run_id: str) -> None:
        if lane.type == "thread_pool":
            clock = self._settlement.clock
            self.pools[lane.id] = self._pool(lane, lambda worker_id: ThreadSite(lane, worker_id, clock))
        elif lane.type == "process_pool":
            self._make_process_pool(lane)
        elif lane.type == "isolated_thread":
            self.isolated[lane.id] = IsolatedThread(*self._queued(lane), **self._shared())
        elif lane.type == "manual_step":
            self.manual[lane.id] = ManualLane(*self._queued(lane), **self._shared())
        elif lane.type == "fixed_rate":
            recorder, wall_clock = self._settlement.recorder, lane.spec.wall_clock_enabled
            self.pacers.append(Pacer(lane, self._meters[lane.id], recorder, wall_clock=wall_clock))
        elif lane.type == "queue" and self.queue is None:
            self.queue = QueueLane(run_id, self._settlement, self._scope, self._bell, self._meters)

    def _make_process_pool(self, lane: Lane) -> None:
        settlement = self._settlement
        remote = ProcessRemote(lane, self._plan.spec.graph.config, settlement.stop_token, settlement.reports)
        self.remotes[lane.id] = remote
        self.pools[lane.id] = self._pool(lane, lambda worker_id: ProcessSite(lane, worker_id, remote), is_remote=True)

    def _queued(self, lane: Lane) -> tuple[Lane, LaneQueue, Admission, LaneMeter]:
        """What every lane with a queue is made of."""
        meter, reports = self._meters[lane.id], self._settlement.reports
        # a pool is drained in every step: nobody can be passed over for an epoch
        starvation_epochs = lane.starvation_epochs if lane.independent else 0
        queue = LaneQueue(lane.id, self._policy_order(lane), starvation_epochs, reports)
        return lane, queue, Admission(lane, meter, reports), meter

    def _policy_order(self, lane: Lane) -> PolicyOrder | None:
        named = lane.spec.policy
        if named is None:
            return None
        wanted = named if isinstance(named, LanePolicy) else LanePolicy(name=named)
        return PolicyOrder(policies.make(wanted.name, **wanted.params), lane.id, self._settlement.clock)

    def _pool(self, lane: Lane, make_site: Callable[[int], Site], *, is_remote: bool = False) -> Pool:
        return Pool(*self._queued(lane), settlement=self._settlement, make_site=make_site, is_remote=is_remote)

    # --- steps -----------------------------------------------------------------------------------

    def _step(self, wave: Sequence[Region]) -> Step:
        nodes = [self._wiring.nodes[component_id] for region in wave for component_id in region.components]
        if wave[0].kind == "composite_loop":
            return self._loop(wave[0], nodes, self._wiring.deferred, self.coroutines)
        if nodes[0].lane.id in self.pools:
            return PoolStep(nodes, self.pools[nodes[0].lane.id], self._scope)
        return self._component_step(nodes[0], self.coroutines)

    def _component_step(self, node: Node, coroutines: Coroutines) -> Step:
        if node.lane.id in self.pools:
            return PoolStep((node,), self.pools[node.lane.id], self._scope)
        if node.lane.type == "queue" and self.queue is not None:
            return QueueStep(node, self.queue, self._settlement)
        return InlineStep(node, self._settlement, self._scope, coroutines, self._meters[node.lane.id])

    def _loop(self, region: Region, nodes: Sequence[Node], deferred: DeferredList, coroutines: Coroutines) -> LoopStep:
        assert region.loop is not None  # noqa: S101  # a region of this kind has one
        inner = [
            self._wiring.channels[edge.id]
            for edge in self._plan.edges.values()
            if edge.spec.kind == "immediate"
            and edge.source.component in region.components
            and edge.target.component in region.components
        ]
        loop = LoopStep(
            region,
            region.loop.loop_policy,
            [self._component_step(node, coroutines) for node in nodes],
            inner_edges=inner,
            kept_back=self._wiring.kept_back[region.id],
            deferred=deferred,
            settlement=self._settlement,
        )
        self.loops.append(loop)
        return loop

    def _occupy(self, lane: IndependentLane, region_order: Sequence[str]) -> None:
        """Put regions on a lane outside the region order; only edges inside the lane join them."""
        regions: dict[str, LaneRegion] = {}
        for at, region_id in enumerate(region_order):
            region = self._plan.regions[region_id]
            nodes = [self._wiring.nodes[component_id] for component_id in region.components]
            is_loop = region.kind == "composite_loop"
            loop = self._loop(region, nodes, self._wiring.outbox, lane.coroutines) if is_loop else None
            regions[region_id] = LaneRegion(at, nodes, loop)
            for each in region.incoming_regions:
                if each in regions:
                    regions[region_id].follow(regions[each])
        lane.occupy(tuple(regions.values()))

    def _shared(self) -> dict[str, Any]:
        """What every independent lane is given."""
        return {"settlement": self._settlement, "scope": self._scope, "bell": self._bell}

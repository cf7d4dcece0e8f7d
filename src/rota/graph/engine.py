"""One run of a graph, epoch by epoch.

    before the first   workers start; components are configured and activated in lifecycle order
    an epoch           shared values, then new configuration, then what was published for this epoch becomes visible;
                       the regions run in compiled order, and each commits before the next one looks
    after the last     lanes finish what was admitted; components are deactivated in reverse order; workers end

The engine knows no bound and no reason to stop: `run` does. It belongs to one thread, except for `deliver`, which any
thread may call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from rota.errors import InvalidInput
from rota.graph.assembly import Lanes, task_limits
from rota.graph.channels import Channel, ChannelFull
from rota.graph.checkpoint import put_back, read_checkpoint, take_checkpoint
from rota.graph.component_registry import ComponentRegistry
from rota.graph.execution import Settlement
from rota.graph.lanes.durable import DurableRun, DurableRuns
from rota.graph.lanes.independent import IndependentLane
from rota.graph.lifecycle import Lifecycle
from rota.graph.messages import Origin
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Deferred
from rota.graph.plan import Plan
from rota.graph.reconfiguration import Reconfiguration
from rota.graph.reports import Reports, RunStopped, words
from rota.graph.run_options import RuntimeRunnerOptions
from rota.graph.scope import RunScope
from rota.graph.state import SharedState
from rota.graph.stop import Bell
from rota.graph.tasks import TaskExecutor
from rota.graph.timed_triggers import outside_ports
from rota.graph.tracing import Recorder
from rota.graph.wiring import REMOTE_LANES, Wiring

__all__ = ["Engine"]


class Engine:
    """A graph that runs."""

    def __init__(
        self,
        plan: Plan,
        registry: ComponentRegistry,
        instances: Mapping[str, Any],
        options: RuntimeRunnerOptions,
        run_id: str,
    ) -> None:
        self.plan = plan
        self.options = options
        self.run_id = run_id
        self.clock = clock = options.clock
        self.began_at_s = clock.monotonic()
        self.bell = Bell(clock)
        self.reports = Reports(run_id)
        self.recorder = Recorder(run_id, self.began_at_s, options.trace_rows_max) if options.trace else None
        self.meters = {lane_id: LaneMeter() for lane_id in plan.lanes}
        self.wiring = Wiring(plan, registry, instances, self.reports)
        self.shared = SharedState()
        self.tasks = self._make_tasks()
        self.settlement = Settlement(
            clock, options.stop_token, self.reports, recorder=self.recorder, state=self.shared, meters=self.meters
        )
        scope = RunScope(clock, plan.spec.graph.config, options.stop_token, self.shared, self.tasks)
        self.lanes = Lanes(self.wiring, self.settlement, scope, self.bell, self.meters, run_id=run_id)
        self._durable = self._durable_runs()
        self._run: DurableRun | None = None  # once it was taken
        nodes = self.wiring.nodes
        self.lifecycle = Lifecycle(
            [nodes[name] for name in plan.lifecycle_order], self.lanes.remotes, self.reports, self.lanes.coroutines
        )
        remote = frozenset(lane.id for lane in plan.lanes.values() if lane.type in REMOTE_LANES)
        self.reconfiguration = Reconfiguration(nodes, remote, self.reports)
        self.epoch_id = 0  # of the last epoch that began
        self._epoch_is_over = False
        self.executed = 0
        self._owners = self._find_owners()
        own = [channel for channel in self.wiring.channels.values() if channel not in self._owners]
        self._mind_epochs = [channel for channel in own if channel.minds_epochs]

    def _durable_runs(self) -> DurableRuns | None:
        """What keeps the run, if it has a queue lane and so must be kept."""
        if self.lanes.queue is not None and self.options.durable is None:
            lane = next(lane.id for lane in self.plan.lanes.values() if lane.type == "queue")
            raise InvalidInput(
                f"lane {lane} is of type queue, and no durable queue was given",
                field="durable",
                hint="Give one in RuntimeRunnerOptions(durable=DurableRuns(kernel)); on the command line, --store.",
            )
        return self.options.durable if self.lanes.queue is not None else None

    def _make_tasks(self) -> TaskExecutor:
        return TaskExecutor(
            self.options.task_executor,
            self.clock,
            self.reports,
            self.deliver,
            listeners={spec.id: outside_ports(spec) for spec in self.plan.components.values()},
            limits=task_limits(self.plan),
        )

    def _find_owners(self) -> dict[Channel, IndependentLane]:
        """The channels that belong to a lane outside the region order."""
        independent = self.lanes.independent
        return {
            channel: independent[node.lane.id]
            for node in self.wiring.nodes.values()
            if node.lane.id in independent
            for channel in node.channels
        }

    # --- before the first epoch ------------------------------------------------------------------

    def open(self) -> bool:
        """Start workers and components; False when something failed, which is then recorded."""
        self.options.stop_token.subscribe(self.bell.ring)
        for remote in self.lanes.remotes.values():
            remote.open()
        try:
            for pool in self.lanes.pools.values():
                pool.start()
            for lane in self.lanes.isolated.values():
                lane.start()
            restore = self._resume()
        except Exception as problem:  # a worker that does not start, a checkpoint that cannot be read
            self.reports.error("activate", "run_start", words(problem))
            return False
        if not self.lifecycle.start({**restore, **self.options.restore}):
            return False
        for lane in self.lanes.isolated.values():
            lane.release()
        return True

    def _resume(self) -> Mapping[str, Any]:
        """Go on where an earlier process of this run was; returns the snapshots of its components."""
        if self.lanes.queue is None or self._durable is None:
            return {}
        if self.lanes.independent:
            message = "independent lanes and their components are not part of a checkpoint"
            self.reports.health("independent_lane_not_durable", message)
        self._run = run = self._durable.take(self.run_id, self.plan.name)
        if run.checkpoint is None:
            self.lanes.queue.open(run, ())
            return {}
        checkpoint = read_checkpoint(run.checkpoint)
        put_back(self.wiring, checkpoint, self.clock.monotonic())
        self.shared.restore(checkpoint.state)
        self.epoch_id = checkpoint.next_epoch_id - 1
        self.lanes.queue.open(run, checkpoint.pending)
        return checkpoint.snapshots

    # --- an epoch --------------------------------------------------------------------------------

    def run_epoch(self) -> int:
        """Run the next epoch; returns how many invocations there were. Raises RunStopped after a fatal error."""
        self.epoch_id += 1
        epoch_id = self.reports.epoch_id = self.epoch_id
        began_at_s = self.clock.monotonic()
        if self.recorder is not None:
            self.recorder.begin("scheduler_iteration", began_at_s, epoch_id)
        for pacer in self.lanes.pacers:
            pacer.begin(began_at_s, epoch_id)
        executed, self._epoch_is_over = 0, False
        try:
            self._cross_boundary(epoch_id)
            for step in self.lanes.steps:
                executed += step.run(epoch_id, epoch_id)
            self._epoch_is_over = True
        finally:
            self.executed += executed
            self._end_epoch(epoch_id, began_at_s)
        return executed

    def _end_epoch(self, epoch_id: int, began_at_s: float) -> None:
        now_s = self.clock.monotonic()
        for pacer in self.lanes.pacers:
            pacer.end(now_s, epoch_id)
        if self.recorder is not None:
            self.recorder.end("scheduler_iteration", began_at_s, now_s, epoch_id)
            self.recorder.trim()

    def _cross_boundary(self, epoch_id: int) -> None:
        """Everything that was published for this epoch becomes visible."""
        self.shared.commit()
        self.reconfiguration.apply()
        if self.lanes.queue is not None:
            self.lanes.queue.cross_boundary()
        self._commit_deferred(epoch_id)
        for channel in self._mind_epochs:
            channel.next_epoch()
        for lane in self.lanes.independent.values():
            lane.cross_boundary(epoch_id)
        self._remember(epoch_id)

    def _commit_deferred(self, epoch_id: int) -> None:
        waiting = [*self.wiring.deferred, *self.wiring.outbox.take()]
        self.wiring.deferred.clear()
        now_s = self.clock.monotonic() if self.recorder is not None else 0.0
        try:
            for each in waiting:
                self._commit(each)
                if self.recorder is not None:
                    self.recorder.committed(each.channel.id, each.channel.offered, each.origin, now_s, epoch_id)
        except ChannelFull as problem:
            self.reports.error("runtime", "channel_overflow", str(problem))
            raise RunStopped from problem

    def _commit(self, deferred: Deferred) -> None:
        owner = self._owners.get(deferred.channel)
        if owner is None:
            deferred.channel.commit(deferred.payload, deferred.origin, deferred.timestamp_ms)
        else:
            owner.deliver(deferred)

    def write_down(self) -> None:
        """At the end of a durable run: when it is started again it goes on behind its last epoch.

        An epoch that was not finished is not written down: it will be repeated.
        """
        if self._epoch_is_over and self.reports.failure is None:
            self.shared.commit()
            with contextlib.suppress(RunStopped):  # recorded
                self._remember(self.epoch_id + 1)

    def _remember(self, next_epoch_id: int) -> None:
        """Write down where the run stands, if somebody keeps it."""
        lane, run = self.lanes.queue, self._run
        if lane is None or run is None:
            return
        try:
            # a component on an independent lane may be at work this very moment
            nodes = [node for node in self.wiring.nodes.values() if not node.lane.independent]
            snapshots = {node.id: self.lifecycle.snapshot(node) for node in nodes}
            kept = {name: state for name, state in snapshots.items() if state is not None}
            values = self.shared.values()
            data = take_checkpoint(
                self.wiring,
                next_epoch_id,
                lane.pending(),
                at_s=self.clock.monotonic(),
                state=values,
                snapshots=kept,
            )
            run.commit(next_epoch_id, data)
        except Exception as problem:  # a value that is not JSON, a component's snapshot, the store
            self.reports.error("runtime", "checkpoint_failed", words(problem))
            raise RunStopped from problem

    # --- from outside ----------------------------------------------------------------------------

    def deliver(self, component_id: str, port: str, payload: Any, /) -> None:
        """Put something into a component's inbox at the next boundary; any thread may."""
        origin = Origin(self.epoch_id, self.clock.monotonic())
        self.wiring.outbox.append(Deferred(self.wiring.inboxes[component_id, port], payload, origin, None))
        self.bell.ring()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way that could make a component ready."""
        # Whoever works elsewhere is asked first: it hands in its result before it calls itself idle.
        busy = any(not lane.is_idle for lane in self.lanes.isolated.values())
        busy = busy or self.tasks.outstanding > 0 or self._entries_under_way
        return not busy and not self.wiring.deferred and not self.wiring.outbox

    @property
    def has_arrivals(self) -> bool:
        """Whether something waits for the next boundary."""
        if self.wiring.deferred or self.wiring.outbox:
            return True
        return self.lanes.queue is not None and self.lanes.queue.has_news()

    @property
    def _entries_under_way(self) -> bool:
        return self.lanes.queue is not None and self.lanes.queue.outstanding > 0

    # --- after the last epoch ---------------------------------------------------------------------

    def close(self) -> None:
        """End everything that was started, whatever state it is in; an interrupt in between ends the rest too."""
        lanes, ended_well = self.lanes, not self.options.stop_token.is_set and self.reports.failure is None
        with contextlib.ExitStack() as last_first:
            last_first.callback(self.options.stop_token.unsubscribe, self.bell.ring)
            last_first.callback(lanes.coroutines.close)
            if lanes.queue is not None:
                last_first.callback(lanes.queue.close)
            for remote in lanes.remotes.values():
                last_first.callback(remote.close)
            for pool in lanes.pools.values():
                last_first.callback(pool.stop)
            last_first.callback(self.lifecycle.end)
            last_first.callback(self.tasks.close)
            for manual in lanes.manual.values():
                last_first.callback(manual.close)
            for isolated in lanes.isolated.values():
                last_first.callback(isolated.stop, last_look=ended_well)

"""One run of a graph, epoch by epoch.

    before the first   workers start; components are configured and activated in lifecycle order
    an epoch           shared values, new configuration and what was published for this epoch become visible, in this
                       order; then the regions run in compiled order, and each commits before the next one starts
    after the last     lanes finish accepted work; components are deactivated in reverse order; workers end

The engine has no bounds and no stop conditions: `run` has. One thread uses it; only `deliver` may be called from any
thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from rota.errors import InvalidInput
from rota.graph.channels import ChannelFull, MessageChannel
from rota.graph.checkpoint import decode_checkpoint, encode_checkpoint, restore_checkpoint
from rota.graph.commit import Committer
from rota.graph.component_registry import ComponentRegistry
from rota.graph.lanes.durable import DurableRun, DurableRuns
from rota.graph.lanes.independent import IndependentLaneBase
from rota.graph.lifecycle import Lifecycle, Reconfiguration
from rota.graph.messages import Origin
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import DeferredPublication
from rota.graph.plan import Plan
from rota.graph.reports import Reports, RunStopped, error_text
from rota.graph.run_options import RuntimeRunnerOptions
from rota.graph.scope import RunScope, SharedState
from rota.graph.stop import WakeSignal
from rota.graph.tasks import TaskExecutor
from rota.graph.timed_triggers import event_ports
from rota.graph.tracing import TraceRecorder
from rota.graph.wiring import REMOTE_LANES, RunLanes, Wiring, task_limits

__all__ = ["GraphEngine"]


class GraphEngine:
    """A running graph."""

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
        self.wake_signal = WakeSignal(clock)
        self.reports = Reports(run_id)
        self.recorder = TraceRecorder(run_id, self.began_at_s, options.trace_rows_max) if options.trace else None
        self.meters = {lane_id: LaneMeter() for lane_id in plan.lanes}
        self.wiring = Wiring(plan, registry, instances, self.reports)
        self.shared = SharedState()
        self.tasks = self._make_tasks()
        self.committer = Committer(
            clock, options.stop_token, self.reports, recorder=self.recorder, state=self.shared, meters=self.meters
        )
        scope = RunScope(clock, plan.spec.graph.config, options.stop_token, self.shared, self.tasks)
        self.lanes = RunLanes(self.wiring, self.committer, scope, self.wake_signal, self.meters, run_id=run_id)
        self._durable = self._durable_runs()
        self._run: DurableRun | None = None  # set when the run is acquired
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
        unowned = [channel for channel in self.wiring.channels.values() if channel not in self._owners]
        self._epoch_channels = [channel for channel in unowned if channel.acts_at_epoch_begin]

    def _durable_runs(self) -> DurableRuns | None:
        """Return what stores the run, if it has a queue lane; raises if it has one and no store was given."""
        if self.lanes.queue is not None and self.options.durable is None:
            lane = next(lane.id for lane in self.plan.lanes.values() if lane.type == "queue")
            raise InvalidInput(
                f"lane {lane} is of type queue, but no durable queue was given",
                field="durable",
                hint="Pass RuntimeRunnerOptions(durable=DurableRuns(kernel)); on the command line, --store rota.db.",
            )
        return self.options.durable if self.lanes.queue is not None else None

    def _make_tasks(self) -> TaskExecutor:
        return TaskExecutor(
            self.options.task_executor,
            self.clock,
            self.reports,
            self.deliver,
            listeners={spec.id: event_ports(spec) for spec in self.plan.components.values()},
            limits=task_limits(self.plan),
        )

    def _find_owners(self) -> dict[MessageChannel, IndependentLaneBase]:
        """Return the channels that belong to an independent lane, with that lane."""
        independent = self.lanes.independent
        return {
            channel: independent[node.lane.id]
            for node in self.wiring.nodes.values()
            if node.lane.id in independent
            for channel in node.channels
        }

    # --- before the first epoch ------------------------------------------------------------------

    def open(self) -> bool:
        """Start workers and components; False if something failed, which is then recorded."""
        self.options.stop_token.subscribe(self.wake_signal.notify)
        for remote in self.lanes.remotes.values():
            remote.open()
        try:
            for pool in self.lanes.pools.values():
                pool.start()
            for lane in self.lanes.isolated.values():
                lane.start()
            restore = self._resume()
        except Exception as problem:  # a worker that does not start, a checkpoint that cannot be read
            self.reports.error("activate", "run_start", error_text(problem))
            return False
        if not self.lifecycle.start({**restore, **self.options.restore}):
            return False
        for lane in self.lanes.isolated.values():
            lane.release()
        return True

    def _resume(self) -> Mapping[str, Any]:
        """Continue from an earlier process's checkpoint, if there is one; return the snapshots of its components."""
        if self.lanes.queue is None or self._durable is None:
            return {}
        if self.lanes.independent:
            message = "checkpoints do not include independent lanes and their components"
            self.reports.health("independent_lane_not_durable", message)
        self._run = run = self._durable.acquire(self.run_id, self.plan.name)
        if run.checkpoint is None:
            self.lanes.queue.open(run, ())
            return {}
        checkpoint = decode_checkpoint(run.checkpoint)
        restore_checkpoint(self.wiring, checkpoint, self.clock.monotonic())
        self.shared.restore(checkpoint.state)
        self.epoch_id = checkpoint.next_epoch_id - 1
        self.lanes.queue.open(run, checkpoint.pending)
        return checkpoint.snapshots

    # --- an epoch --------------------------------------------------------------------------------

    def run_epoch(self) -> int:
        """Run the next epoch; return the number of invocations. Raises RunStopped after a fatal error."""
        self.epoch_id += 1
        epoch_id = self.reports.epoch_id = self.epoch_id
        began_at_s = self.clock.monotonic()
        if self.recorder is not None:
            self.recorder.begin("scheduler_iteration", began_at_s, epoch_id)
        for pacer in self.lanes.pacers:
            pacer.begin(began_at_s, epoch_id)
        executed, self._epoch_is_over = 0, False
        try:
            self._begin_epoch(epoch_id)
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

    def _begin_epoch(self, epoch_id: int) -> None:
        """Make everything visible that was published for this epoch, and write a checkpoint."""
        self.shared.commit()
        self.reconfiguration.apply()
        if self.lanes.queue is not None:
            self.lanes.queue.commit_ended()
        self._commit_deferred(epoch_id)
        for channel in self._epoch_channels:
            channel.begin_epoch()
        for lane in self.lanes.independent.values():
            lane.begin_epoch(epoch_id)
        self._write_checkpoint(epoch_id)

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

    def _commit(self, deferred: DeferredPublication) -> None:
        owner = self._owners.get(deferred.channel)
        if owner is None:
            deferred.channel.commit(deferred.payload, deferred.origin, deferred.timestamp_ms)
        else:
            owner.deliver(deferred)

    def write_final_checkpoint(self) -> None:
        """Write a checkpoint at the end of a durable run, so that it resumes after its last epoch.

        Nothing is written if the last epoch did not finish: it will be repeated.
        """
        if self._epoch_is_over and self.reports.failure is None:
            self.shared.commit()
            with contextlib.suppress(RunStopped):  # the failure is recorded
                self._write_checkpoint(self.epoch_id + 1)

    def _write_checkpoint(self, next_epoch_id: int) -> None:
        """Write a checkpoint, if the run is durable."""
        lane, run = self.lanes.queue, self._run
        if lane is None or run is None:
            return
        try:
            # a component on an independent lane may be running now
            nodes = [node for node in self.wiring.nodes.values() if not node.lane.independent]
            snapshots = {node.id: self.lifecycle.snapshot(node) for node in nodes}
            present = {name: state for name, state in snapshots.items() if state is not None}
            values = self.shared.values()
            data = encode_checkpoint(
                self.wiring,
                next_epoch_id,
                lane.pending(),
                at_s=self.clock.monotonic(),
                state=values,
                snapshots=present,
            )
            run.commit(next_epoch_id, data)
        except Exception as problem:  # a value that is not JSON, a failing snapshot(), the store
            self.reports.error("runtime", "checkpoint_failed", error_text(problem))
            raise RunStopped from problem

    # --- from outside ----------------------------------------------------------------------------

    def deliver(self, component_id: str, port: str, payload: Any, /) -> None:
        """Put a payload into a component's inbox at the next epoch boundary; any thread may call this."""
        origin = Origin(self.epoch_id, self.clock.monotonic())
        self.wiring.outbox.append(DeferredPublication(self.wiring.inboxes[component_id, port], payload, origin, None))
        self.wake_signal.notify()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight that could make a component ready."""
        # Workers are checked before the queues: a worker delivers its result before it becomes idle.
        busy = any(not lane.is_idle for lane in self.lanes.isolated.values())
        busy = busy or self.tasks.outstanding > 0 or self._has_entries_in_flight
        return not busy and not self.wiring.deferred and not self.wiring.outbox

    @property
    def has_arrivals(self) -> bool:
        """Whether something waits for the next epoch boundary."""
        if self.wiring.deferred or self.wiring.outbox:
            return True
        return self.lanes.queue is not None and self.lanes.queue.has_ended_entries()

    @property
    def _has_entries_in_flight(self) -> bool:
        return self.lanes.queue is not None and self.lanes.queue.outstanding > 0

    # --- after the last epoch ---------------------------------------------------------------------

    def close(self) -> None:
        """End everything that was started, whatever its state; an interrupt in between does not skip the rest."""
        lanes, ended_well = self.lanes, not self.options.stop_token.is_set and self.reports.failure is None
        with contextlib.ExitStack() as cleanup:  # runs in reverse order
            cleanup.callback(self.options.stop_token.unsubscribe, self.wake_signal.notify)
            cleanup.callback(lanes.coroutines.close)
            if lanes.queue is not None:
                cleanup.callback(lanes.queue.close)
            for remote in lanes.remotes.values():
                cleanup.callback(remote.close)
            for pool in lanes.pools.values():
                cleanup.callback(pool.stop)
            cleanup.callback(self.lifecycle.end)
            cleanup.callback(self.tasks.close)
            for manual in lanes.manual.values():
                cleanup.callback(manual.close)
            for isolated in lanes.isolated.values():
                cleanup.callback(isolated.stop, accept_pending=ended_well)

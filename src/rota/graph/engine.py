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
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rota.errors import InvalidInput, LimitExceeded
from rota.graph.accounts import MemoryAccount, RunAccount, StoreAccount
from rota.graph.budgets import lines_of
from rota.graph.channels import ChannelFull, MessageChannel
from rota.graph.checkpoint import decode_checkpoint, encode_checkpoint, restore_checkpoint
from rota.graph.commit import Committer
from rota.graph.component_registry import ComponentRegistry
from rota.graph.epoch_due import EpochDue
from rota.graph.lanes.durable import DurableRun, DurableRuns, is_interruption
from rota.graph.lanes.independent import IndependentLaneBase
from rota.graph.lifecycle import Lifecycle, Reconfiguration
from rota.graph.messages import Origin
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import DeferredPublication
from rota.graph.plan import Plan
from rota.graph.reports import COMPONENT_FAILURES, HealthEvent, Reports, RunStopped, error_text
from rota.graph.run_budgets import RunBudgets
from rota.graph.run_options import RuntimeRunnerOptions
from rota.graph.run_values import check_inputs, input_value
from rota.graph.scope import RunScope, SharedState
from rota.graph.stop import WakeSignal
from rota.graph.tasks import TaskExecutor
from rota.graph.timed_triggers import event_ports
from rota.graph.tracing import TraceRecorder
from rota.graph.triggers import SimulatedTime
from rota.graph.wiring import REMOTE_LANES, RunLanes, Wiring, task_limits

__all__ = ["GraphEngine"]

WAITS_NAMED_MAX = 5  # nodes that are named in what a run waits for


def _goes_by_steps(plan: Plan, options: RuntimeRunnerOptions) -> bool:
    """Return whether the time of timers is simulated: the run has a number of epochs and nothing that waits."""
    waits = options.duration_ms is not None or options.run_until_idle or options.durable is not None
    return not waits and not any(lane.period_ns and lane.spec.wall_clock_enabled for lane in plan.lanes.values())


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
        check_inputs(plan.components, options.inputs)
        self.plan = plan
        self.options = options
        self.run_id = run_id
        self.clock = clock = options.clock
        self.began_at_s = clock.monotonic()
        self.wake_signal = WakeSignal(clock)
        self.reports = Reports(run_id)
        self.recorder = TraceRecorder(run_id, self.began_at_s, options.trace_rows_max) if options.trace else None
        if self.recorder is not None:
            self.reports.on_health = self._trace_health
        self.meters = {lane_id: LaneMeter() for lane_id in plan.lanes}
        self._simulated = SimulatedTime() if _goes_by_steps(plan, options) else None
        given = options.account
        has_budgets = bool(lines_of(plan.spec) or (given is not None and (given.lines or given.outer_lines)))
        self.wiring = Wiring(plan, registry, instances, self.reports, self._simulated, has_budgets=has_budgets)
        self.shared = SharedState()
        self.tasks = self._make_tasks()
        self.committer = Committer(
            clock, options.stop_token, self.reports, recorder=self.recorder, state=self.shared, meters=self.meters
        )
        self.committer.fails_closed = options.fails_closed
        self.account = self._make_account()
        scope = RunScope(
            clock, plan.spec.graph.config, options.stop_token, self.shared, self.tasks, account=self.account
        )
        self.lanes = RunLanes(self.wiring, self.committer, scope, self.wake_signal, self.meters, run_id=run_id)
        wiring = self.wiring
        parts = (wiring.nodes, wiring.gates, wiring.checked_at_start)
        self._budgets = RunBudgets(self.account, *parts, self.committer, run_id, has_budgets=has_budgets)
        if self.lanes.queue is not None:
            self.lanes.queue.budgets = self._budgets
        self._durable = self._durable_runs()
        self._run: DurableRun | None = None  # set when the run is acquired
        self._earlier: Mapping[str, tuple[int, int]] = {}  # how often components succeeded and failed before a resume
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
        self._epoch_due = EpochDue(self.wiring, self.lanes)

    def _durable_runs(self) -> DurableRuns | None:
        """Return what stores the run, if it has a durable lane; raises if it has one and no store was given."""
        lane = self.plan.durable_lane
        if self.lanes.queue is None or lane is None:
            return None
        if self.options.durable is None:
            raise InvalidInput(
                f"lane {lane.id} is of type {lane.type}, but no durable queue was given",
                field="durable",
                hint="Pass RuntimeRunnerOptions(durable=DurableRuns(kernel)); on the command line, --store rota.db.",
            )
        return self.options.durable

    def _make_account(self) -> RunAccount:
        """Return where the components count what they use: at the coordinator, in the store or in this process."""
        options, budgets = self.options, lines_of(self.plan.spec)
        if options.account is not None:
            return options.account
        if options.durable is not None and self.plan.durable_lane is not None:
            stop = options.stop_token
            return StoreAccount(
                options.durable.api, self.run_id, budgets, self.reports.health, is_stopping=lambda: stop.is_set
            )
        return MemoryAccount(self.run_id, budgets, self.reports.health)

    def _make_tasks(self) -> TaskExecutor:
        return TaskExecutor(
            self.options.task_executor,
            self.clock,
            self.reports,
            self.deliver,
            wake=self.wake_signal.notify,
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
        if self._run is None or self._run.checkpoint is None:
            self._send_start()
        for lane in self.lanes.isolated.values():
            lane.release()
        return True

    def _send_start(self) -> None:
        """Tell the components that wait for the start of the run that it begins; a resumed run has begun before."""
        for component_id, port in self.wiring.inboxes:
            if port == "start":
                value = input_value(self.plan.components[component_id], self.options.inputs)
                self.deliver(component_id, port, value)

    def _resume(self) -> Mapping[str, Any]:
        """Continue from an earlier process's checkpoint, if there is one; return the snapshots of its components."""
        if self.lanes.queue is None or self._durable is None:
            return {}
        if self.lanes.independent:
            message = "checkpoints do not include independent lanes and their components"
            self.reports.health("independent_lane_not_durable", message)
        self._run = run = self._durable.acquire(self.run_id, self.plan.name)
        self._budgets.open()
        if run.checkpoint is None:
            self.lanes.queue.open(run, ())
            return {}
        checkpoint = decode_checkpoint(run.checkpoint)
        restore_checkpoint(self.wiring, self.lanes.loops, checkpoint, self.clock.monotonic(), self.clock.now())
        self.shared.restore(checkpoint.state)
        self._earlier = checkpoint.counts
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
        if self._simulated is not None:
            self._simulated.advance()
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
        self._budgets.begin_epoch(epoch_id)
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

    def write_final_checkpoint(self, *, is_waiting: bool = False) -> None:
        """Write a checkpoint at the end of a durable run, so that it resumes after its last epoch.

        Nothing is written if the last epoch did not finish: it will be repeated.
        """
        if self._epoch_is_over and self.reports.failure is None:
            self.shared.commit()
            with contextlib.suppress(RunStopped):  # the failure is recorded
                self._write_checkpoint(self.epoch_id + 1, self._waits_text() if is_waiting else None)

    def _waits_text(self) -> str:
        """Return what the run waits for, for people."""
        counts = Counter(each.component_id for each in self.lanes.queue.pending()) if self.lanes.queue else {}
        asks = {each.component_id: each.ask for each in self.lanes.queue.pending()} if self.lanes.queue else {}
        named = [f"{name} ({count})" if count > 1 else name for name, count in sorted(counts.items())]
        more = f" and {len(named) - WAITS_NAMED_MAX} more nodes" if len(named) > WAITS_NAMED_MAX else ""
        ends = f"the end of {', '.join(named[:WAITS_NAMED_MAX])}{more}" if named else ""
        return "; ".join(filter(None, (ends, *self._budgets.waits(asks))))

    def _write_checkpoint(self, next_epoch_id: int, waits: str | None = None) -> None:
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
                self.lanes.loops,
                next_epoch_id,
                lane.pending(),
                at_s=self.clock.monotonic(),
                state=values,
                snapshots=present,
                counts=self._counts(),
                waits_since=None if waits is None else self.clock.now(),
            )
            run.commit(next_epoch_id, data, waits)
        except LimitExceeded as problem:  # of the kernel, or of a request to a daemon
            advice = "publish references to large values, or run the supervisor on the store itself, not at a daemon"
            text = f"the checkpoint of the run is too large: {problem.message}; {advice}"
            self.reports.error("runtime", "checkpoint_too_large", text)
            raise RunStopped from problem
        except COMPONENT_FAILURES as problem:  # a value that is not JSON, a failing snapshot(), the store
            code = "checkpoint_interrupted" if is_interruption(problem) else "checkpoint_failed"
            self.reports.error("runtime", code, error_text(problem))
            raise RunStopped from problem

    def _counts(self) -> dict[str, tuple[int, int]]:
        """Return how often each component that has run succeeded and failed, since the run began."""
        found: dict[str, tuple[int, int]] = {}
        for node in self.wiring.nodes.values():
            completed, failed = self._earlier.get(node.id, (0, 0))
            if any(counts := (completed + node.completed, failed + node.failed)):
                found[node.id] = counts
        return found

    def _trace_health(self, event: HealthEvent) -> None:
        """Write a health event to the trace; any thread may report one."""
        if self.recorder is not None:
            self.recorder.instant(
                "health_event",
                self.clock.monotonic(),
                event.epoch_id,
                component_id=event.component_id,
                channel_id=event.channel_id,
                lane=event.lane,
                attributes={"kind": event.kind, "reason": event.message},
            )

    # --- from outside ----------------------------------------------------------------------------

    def deliver(self, component_id: str, port: str, payload: Any, /) -> None:
        """Put a payload into a component's inbox at the next epoch boundary; any thread may call this."""
        origin = Origin(self.epoch_id, self.clock.monotonic())
        self.wiring.outbox.append(DeferredPublication(self.wiring.inboxes[component_id, port], payload, origin, None))
        self.wake_signal.notify()

    def due_in_s(self, *, manual: bool = True, timers: bool = True) -> float:
        """Return after how many seconds an epoch can execute something: 0 now, `math.inf` only after an arrival.

        `manual=False` leaves out components that run in every epoch, `timers=False` leaves out timers.
        """
        if self.has_arrivals or self.reconfiguration.is_waiting:
            return 0.0
        now_s = self.clock.monotonic()
        return max(0.0, self._epoch_due.at_s(now_s, manual=manual, timers=timers) - now_s)

    @property
    def activity(self) -> int:
        """A number that changes when an epoch publishes or enqueues something."""
        channels = (*self.wiring.channels.values(), *self.wiring.inboxes.values())
        enqueued = sum(each.epoch_id for each in self.lanes.queue.pending()) if self.lanes.queue is not None else 0
        return sum(channel.offered for channel in channels) + len(self.wiring.deferred) + enqueued

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight that could make a component ready."""
        # Workers are checked before the queues: a worker delivers its result before it becomes idle.
        return not self.has_work_outside and not self.wiring.deferred and not self.wiring.outbox

    @property
    def has_work_outside(self) -> bool:
        """Whether threads, background tasks or entries of this run are in flight."""
        busy = any(not lane.is_idle for lane in self.lanes.isolated.values())
        return busy or self.tasks.outstanding > 0 or self.entries_outstanding > 0

    @property
    def has_arrivals(self) -> bool:
        """Whether something waits for the next epoch boundary."""
        return bool(self.wiring.deferred) or self.has_arrivals_from_outside

    @property
    def has_arrivals_from_outside(self) -> bool:
        """Whether something that did not come from the last epoch waits for the next epoch boundary."""
        if self.wiring.outbox:
            return True
        return self.lanes.queue is not None and self.lanes.queue.has_ended_entries()

    @property
    def waits_for_entries(self) -> bool:
        """Whether entries are all that this run waits for, besides a time."""
        busy = any(not lane.is_idle for lane in self.lanes.isolated.values()) or self.tasks.outstanding > 0
        return self.entries_outstanding > 0 and not busy

    @property
    def waits_for_budget(self) -> bool:
        """Whether a component of this process has something to do, and waits until a budget is raised."""
        return self._budgets.is_waiting

    @property
    def awaited(self) -> tuple[int, ...]:
        """The entries of which the first to end lets the run go on."""
        return self.lanes.queue.awaited() if self.lanes.queue is not None else ()

    @property
    def entries_outstanding(self) -> int:
        """The number of entries that this run waits for."""
        return self.lanes.queue.outstanding if self.lanes.queue is not None else 0

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

"""Lanes outside the region order: isolated_thread, on a thread of its own, and manual_step, stepped by the host.

An independent lane is a small graph of its own. Its components see each other's immediate publications immediately;
publications to other lanes wait in the outbox for the next epoch boundary, and those from other lanes are committed
there. At each epoch boundary (with a cadence: at each tick of its own; manual_step: at each step) a new iteration of
the lane begins, in which each manual component runs once.

Ready invocations are queued round by round (see `clusters`) and executed one at a time, in the order of the lane's
queue. Unlike a pool's, this queue outlives an epoch: a slow lane falls behind, independent components compete by
priority, and aging rescues an invocation that is always passed over (see `invocation_queue`).

The run's thread and the lane's thread share this object. Channels, triggers and the queue are used only under the
lane's lock; components are called without it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from rota.errors import GraphRunFailed
from rota.graph.calling import CoroutineRunner, execute
from rota.graph.channels import ChannelFull, MessageChannel
from rota.graph.commit import Committer
from rota.graph.invocation import Invocation, Scope
from rota.graph.lanes.capacity import BlockedInvocations, LaneCapacity
from rota.graph.lanes.clusters import LaneRegion, Rounds
from rota.graph.lanes.invocation_queue import InvocationQueue
from rota.graph.lanes.order import QueuedInvocation
from rota.graph.lanes.pacing import Pacer
from rota.graph.lanes.worker_settings import WorkerReport, apply_worker_settings, worker_name
from rota.graph.loops import LoopStep
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import DeferredPublication, Node
from rota.graph.plan import Lane
from rota.graph.reports import RunStopped, error_text
from rota.graph.stop import WakeSignal

__all__ = ["IndependentLaneBase", "IsolatedThread", "ManualLane"]


class IndependentLaneBase:
    """What both kinds share: queueing ready invocations, and executing them one by one."""

    def __init__(
        self,
        lane: Lane,
        queue: InvocationQueue,
        lane_capacity: LaneCapacity,
        meter: LaneMeter,
        *,
        committer: Committer,
        scope: Scope,
        wake_signal: WakeSignal,
    ) -> None:
        self.lane = lane
        self.meter = meter
        self.committer = committer
        self.lock = threading.Condition()
        self.coroutines = CoroutineRunner()
        self._regions: tuple[LaneRegion, ...] = ()
        self._region_of: dict[str, LaneRegion] = {}  # by component
        self._epoch_channels: list[MessageChannel] = []
        self._rounds = Rounds()
        self._queue = queue
        self._lane_capacity = lane_capacity
        self._held = BlockedInvocations(lane_capacity, meter)
        self._scope = scope
        self._wake_signal = wake_signal
        self._next_number = itertools.count(1).__next__
        self._arrivals: deque[DeferredPublication] = deque()  # arrived while a loop was using the channels
        self._epoch_began = False  # while a loop was using the channels
        self._loop_is_running = False
        self._active = 0
        self.epoch_id = 0
        self.iteration_id = 0
        self.executed = 0

    def assign_regions(self, regions: Sequence[LaneRegion]) -> None:
        """Set the lane's regions, in their compiled order."""
        nodes = [node for region in regions for node in region.nodes]
        self._regions = tuple(regions)
        self._region_of = {node.id: region for region in regions for node in region.nodes}
        self._epoch_channels = [channel for node in nodes for channel in node.channels if channel.acts_at_epoch_begin]

    # --- at an epoch boundary, on the run's thread --------------------------------------------------

    def deliver(self, deferred: DeferredPublication) -> None:
        """Commit a message to a channel of the lane."""
        with self.lock:
            if self._loop_is_running:
                self._arrivals.append(deferred)
            else:
                self._commit(deferred)

    def begin_epoch(self, epoch_id: int) -> None:
        """Begin a new epoch."""
        with self.lock:
            self.epoch_id = epoch_id
            if self._loop_is_running:
                self._epoch_began = True
            else:
                self._begin_channel_epoch()
            self._on_epoch_begin()

    def _begin_channel_epoch(self) -> None:
        for channel in self._epoch_channels:
            channel.begin_epoch()

    def _on_epoch_begin(self) -> None:
        """Do what a new epoch requires on this kind of lane."""

    def begin_iteration(self) -> None:
        """Begin a new iteration: every component may run again. The caller holds the lock."""
        self.iteration_id += 1
        for region in self._regions:
            if region.may_be_ready:
                self._rounds.mark_pending(region.cluster)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be visited or executed."""
        with self.lock:
            return not (self._has_work or self._active)

    @property
    def _has_work(self) -> bool:
        """Whether there is something to visit or to execute; the caller holds the lock."""
        return bool(self._rounds) or len(self._queue) > 0

    def _commit(self, deferred: DeferredPublication) -> None:
        try:
            deferred.channel.commit(deferred.payload, deferred.origin, deferred.timestamp_ms)
        except ChannelFull as problem:
            self.committer.reports.error("runtime", "channel_overflow", str(problem), lane=self.lane.id)
        self._rounds.mark_pending(self._region_of[deferred.channel.component_id].cluster)

    # --- executing, on the lane's thread ----------------------------------------------------------

    def run_next(self, *, accept: bool = True) -> bool:
        """Execute the next invocation; False if there is none. With `accept=False` only queued invocations count."""
        with self.lock:
            if accept:
                self._accept_ready()
            item = self._queue.take(self.epoch_id)
            self._active = int(item is not None)
            self.meter.starvation_guard_count = self._queue.starvation_guards
            self.meter.active_count = max(self.meter.active_count, self._active)
        try:
            if item is not None:
                self._execute(item)
        finally:
            with self.lock:
                self._active = 0
            self._wake_signal.notify()  # something was published, or the lane became idle
        return item is not None

    def _execute(self, item: QueuedInvocation) -> None:
        region = self._region_of[item.node.id]
        if region.loop is not None:
            self._execute_loop(item, region, region.loop)
            return
        invocation = Invocation(item.node.component, self._scope, item.inputs, item.epoch_id, item.number)
        item.invocation = invocation
        interrupt: BaseException | None = None
        try:
            execute(item.node.component, invocation, self.coroutines)
        except BaseException as problem:  # Ctrl-C on a host's thread, or SystemExit of a component
            interrupt = problem
            invocation.end(problem)
        with self.lock:
            may_continue = self.committer.commit(item.node, invocation)
            self._finish(item, region, 1)
        if interrupt is not None:
            self.handle_interrupt(interrupt)
        if not may_continue:
            raise RunStopped

    def handle_interrupt(self, interrupt: BaseException) -> None:
        """Handle an interrupt after it was committed as a failure: here, raise it in the host's thread."""
        raise interrupt

    def _execute_loop(self, item: QueuedInvocation, region: LaneRegion, loop: LoopStep) -> None:
        """Run a loop. Its members publish to each other meanwhile, so no other thread may use the channels."""
        with self.lock:
            self._loop_is_running = True
        executed, item.started_at_s = 0, self.committer.clock.monotonic()
        try:
            executed = loop.run(item.epoch_id, self.iteration_id)
        finally:
            item.ended_at_s = self.committer.clock.monotonic()
            with self.lock:
                self._loop_is_running = False
                while self._arrivals:
                    self._commit(self._arrivals.popleft())
                if self._epoch_began:
                    self._epoch_began = False
                    self._begin_channel_epoch()
                self._finish(item, region, executed)

    def _finish(self, item: QueuedInvocation, region: LaneRegion, executed: int) -> None:
        self._queue.done(item)
        self.executed += executed
        waiting, rejected = self._held.next(item.node, self.committer)
        if waiting is not None:
            self._queue.add(waiting)
        region.in_flight -= 1 + rejected
        if not region.in_flight:
            self._rounds.done(region)

    def reject_waiting(self) -> None:
        """Reject everything that still waits: it will not be executed."""
        with self.lock:
            for item in self._queue.drain():
                self._lane_capacity.reject(item.node, 1, "the run ended before it was executed")
            self._held.reject_all()
        self.coroutines.close()

    # --- queueing ready invocations -----------------------------------------------------------------

    def _accept_ready(self) -> None:
        """Move ready invocations from the channels into the queue, region by region, as far as rounds allow."""
        now_s = self.committer.clock.monotonic()
        while (region := self._rounds.next_to_visit()) is not None:
            if region.loop is None:
                self._accept_component(region, region.lead, now_s)
            elif region.may_be_ready:
                self._add(region, self._item(region.lead, ()))
            if not region.in_flight:
                self._rounds.done(region)
        waiting = len(self._queue)
        self.meter.queue_depth = max(self.meter.queue_depth, waiting - 1)
        self.meter.in_flight_count = max(self.meter.in_flight_count, waiting)

    def _accept_component(self, region: LaneRegion, node: Node, now_s: float) -> None:
        if node.is_isolated:
            return
        ready = node.trigger.collect(now_s, self.iteration_id)
        if not ready and node.holds_messages:
            self.committer.record_suppression(node, self.epoch_id)
        accepted = self._lane_capacity.accept(node, ready)
        for inputs in accepted.now:
            self._add(region, self._item(node, inputs))
        held = [self._item(node, inputs) for inputs in accepted.held]
        self._held.add(held, now_s)
        region.in_flight += len(held)

    def _item(self, node: Node, inputs: Inputs) -> QueuedInvocation:
        return QueuedInvocation(node, inputs, self.epoch_id, self._next_number())

    def _add(self, region: LaneRegion, item: QueuedInvocation) -> None:
        region.in_flight += 1
        self._queue.add(item)


class IsolatedThread(IndependentLaneBase):
    """The isolated_thread lane: an independent lane with a thread of its own.

    Without a cadence the thread waits until an epoch boundary brings it messages. With one it ticks at its own period,
    independently of the rest of the graph; messages that arrive between two ticks wait for the next. The lane's overrun
    policy handles a late tick (see `pacing`).
    """

    worker_report: WorkerReport | None = None
    _thread: threading.Thread | None = None
    _released = False
    _closing = False
    _accept_pending = False

    def start(self) -> None:
        """Start the thread and wait until it is ready."""
        if not self.lane.components:
            return
        self.meter.worker_count = 1
        self._thread = threading.Thread(target=self._run, name=worker_name(self.lane, 0), daemon=True)
        self._thread.start()
        with self.lock:
            self.lock.wait_for(lambda: self.worker_report is not None)

    def release(self) -> None:
        """Let the thread begin: its components are active."""
        with self.lock:
            self._released = True
            self.lock.notify_all()

    def stop(self, *, accept_pending: bool) -> None:
        """Let the thread finish its queued invocations, then end it and wait for that.

        With `accept_pending` it first also executes what was committed but not yet queued.
        """
        with self.lock:
            self._accept_pending = accept_pending and not self.lane.period_ns  # with a cadence only ticks accept
            self._closing = True
            self.lock.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.reject_waiting()

    def handle_interrupt(self, interrupt: BaseException) -> None:
        """Do nothing more: on the lane's own thread, a component that raises SystemExit has failed like any other."""

    def _on_epoch_begin(self) -> None:
        if not self.lane.period_ns:  # with a cadence, an iteration is a tick
            self.begin_iteration()
            self.lock.notify_all()

    def _run(self) -> None:
        report = apply_worker_settings(self.lane, 0)
        with self.lock:
            self.worker_report = report
            self.lock.notify_all()
            self.lock.wait_for(lambda: self._released or self._closing)
        try:
            if self.lane.period_ns:
                self._run_ticks()
            else:
                self._run_on_events()
            while self.run_next(accept=self._accept_pending):  # queued invocations are executed even after a stop
                pass
        except RunStopped:
            pass  # the failure is recorded, and the run checks for it
        except BaseException as problem:  # a loop member's SystemExit would otherwise go unnoticed
            self.committer.reports.error("runtime", "lane_died", error_text(problem), lane=self.lane.id)
        finally:
            self.coroutines.close()

    def _run_on_events(self) -> None:
        while self._wait_for_work():
            self.run_next()

    def _wait_for_work(self) -> bool:
        """Wait until there is something to visit or to execute; False if the run is over."""
        with self.lock:
            self.lock.wait_for(lambda: self._closing or self._has_work)
            return not self._closing

    def _run_ticks(self) -> None:
        clock, recorder = self.committer.clock, self.committer.recorder
        pacer = Pacer(self.lane, self.meter, recorder, wall_clock=True)
        while self._wait_for_tick(pacer):
            epoch_id = self.epoch_id
            pacer.begin(clock.monotonic(), epoch_id)
            with self.lock:
                self.begin_iteration()
            while not self._closing and self.run_next():
                pass
            pacer.end(clock.monotonic(), epoch_id)

    def _wait_for_tick(self, pacer: Pacer) -> bool:
        """Wait until the next tick is due; False if the run is over."""
        clock = self.committer.clock
        began_at_s = clock.monotonic()
        with self.lock:
            while not self._closing and (due_in_s := pacer.due_in_s(clock.monotonic())) > 0:
                clock.wait(self.lock, due_in_s)
        self.meter.blocked_s += clock.monotonic() - began_at_s
        return not self._closing


class ManualLane(IndependentLaneBase):
    """The manual_step lane: the host decides when its components run, and they run on the host's thread.

    It is for work that must happen in a certain place: on the thread of a user interface, or step by step in a test. A
    step is an iteration of the lane. A host with little time executes a few invocations per step; the others wait by
    priority, and aging limits their wait (see `invocation_queue`).
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._step_lock = threading.Lock()
        self._stepping_thread: int | None = None  # the thread that is in `step`
        self._is_closed = False

    def step(self, invocations_max: int | None = None) -> int:
        """Execute what is ready, up to `invocations_max`; return the number of invocations."""
        if self._stepping_thread == threading.get_ident():
            raise GraphRunFailed(
                f"a component on lane {self.lane.id} stepped its own lane",
                hint="Call runner.step(lane) from the host only, never from a component.",
            )
        with self._step_lock:
            self._stepping_thread = threading.get_ident()
            try:
                return 0 if self._is_closed else self._step(invocations_max)
            finally:
                self._stepping_thread = None
                self.coroutines.close()  # the next step may come from another thread

    def close(self) -> None:
        """Wait for the current step, then reject what still waits: the run is over."""
        with self._step_lock:
            self._is_closed = True
            self.reject_waiting()

    def _step(self, invocations_max: int | None) -> int:
        taken, executed_before = 0, self.executed
        with self.lock:
            self.begin_iteration()
        self.meter.tick_count += 1
        with contextlib.suppress(RunStopped):  # the failure is recorded, and the run checks for it
            while (invocations_max is None or taken < invocations_max) and self.run_next():
                taken += 1
        return self.executed - executed_before

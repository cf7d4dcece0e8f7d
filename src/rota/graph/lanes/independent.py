"""Lanes outside the region order: isolated_thread, on a thread of its own, and manual_step, stepped by the host.

An independent lane is a small graph of its own. Its components see each other's immediate publications at once; what
goes to other lanes waits in the outbox for the next boundary of the epoch, and what comes from them is committed there.
At each boundary (with a cadence: at each tick of its own) its components have a *turn*: manual ones run once in it.

What is ready is taken in round by round (see `clusters`) into the lane's queue and executed one at a time, in the order
of the queue. Unlike a pool's, this queue outlives an epoch: a slow lane falls behind, components that do not depend on
one another compete by priority, and whoever is always passed over is rescued by aging (see `queue`).

Two threads meet here, the run's own and the lane's. Channels, triggers and the queue are touched under the lane's lock
only; components are called without it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence

from rota.graph.calling import Coroutines, perform
from rota.graph.channels import Channel, ChannelFull
from rota.graph.execution import Settlement
from rota.graph.invocation import Invocation, Scope
from rota.graph.lanes.admission import Admission
from rota.graph.lanes.clusters import LaneRegion, Rounds
from rota.graph.lanes.held_back import HeldBack
from rota.graph.lanes.order import Item
from rota.graph.lanes.queue import LaneQueue
from rota.graph.loops import LoopStep
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Deferred, Node
from rota.graph.plan import Lane
from rota.graph.reports import RunStopped
from rota.graph.stop import Bell

__all__ = ["IndependentLane"]


class IndependentLane:
    """What both kinds share: taking in work, and executing it one by one."""

    def __init__(
        self,
        lane: Lane,
        queue: LaneQueue,
        admission: Admission,
        meter: LaneMeter,
        *,
        settlement: Settlement,
        scope: Scope,
        bell: Bell,
    ) -> None:
        self.lane = lane
        self.meter = meter
        self.settlement = settlement
        self.lock = threading.Condition()
        self.coroutines = Coroutines()
        self._regions: tuple[LaneRegion, ...] = ()
        self._region_of: dict[str, LaneRegion] = {}  # by component
        self._mind_epochs: list[Channel] = []
        self._rounds = Rounds()
        self._queue = queue
        self._admission = admission
        self._held = HeldBack(admission, meter)
        self._scope = scope
        self._bell = bell
        self._next_number = itertools.count(1).__next__
        self._arrivals: deque[Deferred] = deque()  # came while a loop had the channels to itself
        self._boundary_was_crossed = False  # meanwhile
        self._loop_is_running = False
        self._active = 0
        self.epoch_id = 0
        self.turn = 0
        self.executed = 0

    def occupy(self, regions: Sequence[LaneRegion]) -> None:
        """Take these regions, in their compiled order."""
        nodes = [node for region in regions for node in region.nodes]
        self._regions = tuple(regions)
        self._region_of = {node.id: region for region in regions for node in region.nodes}
        self._mind_epochs = [channel for node in nodes for channel in node.channels if channel.minds_epochs]

    # --- at the boundary of an epoch, on the run's thread -----------------------------------------

    def deliver(self, deferred: Deferred) -> None:
        """Commit a message to a channel of the lane."""
        with self.lock:
            if self._loop_is_running:
                self._arrivals.append(deferred)
            else:
                self._commit(deferred)

    def cross_boundary(self, epoch_id: int) -> None:
        """A new epoch begins."""
        with self.lock:
            self.epoch_id = epoch_id
            if self._loop_is_running:
                self._boundary_was_crossed = True
            else:
                self._next_epoch()
            self._at_boundary()

    def _next_epoch(self) -> None:
        for channel in self._mind_epochs:
            channel.next_epoch()

    def _at_boundary(self) -> None:
        """What a new epoch means for this kind of lane."""

    def begin_turn(self) -> None:
        """Every component may run again; the caller holds the lock."""
        self.turn += 1
        for region in self._regions:
            if region.may_be_ready:
                self._rounds.note(region.cluster)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be executed or looked at."""
        with self.lock:
            return not (self._has_news or self._active)

    @property
    def _has_news(self) -> bool:
        """Whether there is something to look at or to execute; the caller holds the lock."""
        return bool(self._rounds) or len(self._queue) > 0

    def _commit(self, deferred: Deferred) -> None:
        try:
            deferred.channel.commit(deferred.payload, deferred.origin, deferred.timestamp_ms)
        except ChannelFull as problem:
            self.settlement.reports.error("runtime", "channel_overflow", str(problem), lane=self.lane.id)
        self._rounds.note(self._region_of[deferred.channel.component_id].cluster)

    # --- executing, on the lane's thread ----------------------------------------------------------

    def run_next(self, *, look: bool = True) -> bool:
        """Execute the next invocation; False when there is none. Without a look only what was admitted counts."""
        with self.lock:
            if look:
                self._take_in()
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
            self._bell.ring()  # something was published, or the lane fell idle
        return item is not None

    def _execute(self, item: Item) -> None:
        region = self._region_of[item.node.id]
        if region.loop is not None:
            self._execute_loop(item, region, region.loop)
            return
        invocation = Invocation(item.node.unit, self._scope, item.inputs, item.epoch_id, item.number)
        item.invocation = invocation
        interrupt: BaseException | None = None
        try:
            perform(item.node.unit, invocation, self.coroutines)
        except BaseException as problem:  # Ctrl-C on a host's thread, or a component that exits
            interrupt = problem
            invocation.end(problem)
        with self.lock:
            goes_on = self.settlement.settle(item.node, invocation)
            self._finish(item, region, 1)
        if interrupt is not None:
            self.pass_on(interrupt)
        if not goes_on:
            raise RunStopped

    def pass_on(self, interrupt: BaseException) -> None:
        """What an interrupt means on this kind of lane, after it was settled as a failure."""
        raise interrupt

    def _execute_loop(self, item: Item, region: LaneRegion, loop: LoopStep) -> None:
        """Members of a loop publish to each other as they go, so meanwhile nobody else touches the channels."""
        with self.lock:
            self._loop_is_running = True
        executed, item.started_at_s = 0, self.settlement.clock.monotonic()
        try:
            executed = loop.run(item.epoch_id, self.turn)
        finally:
            item.ended_at_s = self.settlement.clock.monotonic()
            with self.lock:
                self._loop_is_running = False
                while self._arrivals:
                    self._commit(self._arrivals.popleft())
                if self._boundary_was_crossed:
                    self._boundary_was_crossed = False
                    self._next_epoch()
                self._finish(item, region, executed)

    def _finish(self, item: Item, region: LaneRegion, executed: int) -> None:
        self._queue.done(item)
        self.executed += executed
        waiting, rejected = self._held.next(item.node, self.settlement)
        if waiting is not None:
            self._queue.add(waiting)
        region.under_way -= 1 + rejected
        if not region.under_way:
            self._rounds.done(region)

    def give_up(self) -> None:
        """Throw out what still waits: nobody will execute it."""
        with self.lock:
            for item in self._queue.drain():
                self._admission.reject(item.node, 1, "the run ended before its turn came")
            self._held.give_up()
        self.coroutines.close()

    # --- taking in what is ready ------------------------------------------------------------------

    def _take_in(self) -> None:
        """Move ready invocations from the channels into the queue, region by region, as far as rounds allow."""
        now_s = self.settlement.clock.monotonic()
        while (region := self._rounds.next_to_visit()) is not None:
            if region.loop is None:
                self._take_in_component(region, region.lead, now_s)
            elif region.may_be_ready:
                self._add(region, self._item(region.lead, ()))
            if not region.under_way:
                self._rounds.done(region)
        waiting = len(self._queue)
        self.meter.queue_depth = max(self.meter.queue_depth, waiting - 1)
        self.meter.in_flight_count = max(self.meter.in_flight_count, waiting)

    def _take_in_component(self, region: LaneRegion, node: Node, now_s: float) -> None:
        if node.is_isolated:
            return
        admitted = self._admission.admit(node, node.trigger.collect(now_s, self.turn))
        for inputs in admitted.now:
            self._add(region, self._item(node, inputs))
        held = [self._item(node, inputs) for inputs in admitted.held]
        self._held.fill(held, now_s)
        region.under_way += len(held)

    def _item(self, node: Node, inputs: Inputs) -> Item:
        return Item(node, inputs, self.epoch_id, self._next_number())

    def _add(self, region: LaneRegion, item: Item) -> None:
        region.under_way += 1
        self._queue.add(item)

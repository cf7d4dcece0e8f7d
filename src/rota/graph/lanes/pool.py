"""The thread_pool lane, and what it shares with process_pool: persistent workers over one bounded queue.

A step of a pool is a *wave*: all regions that stand next to each other in the compiled order, are on this lane and do
not depend on one another. Their ready invocations are admitted component by component, executed by the workers in the
order of the lane's queue, and settled by the scheduler's thread in the order of admission once all of them are done.
Nothing downstream runs before that barrier, so a pool changes how long an epoch takes and never what it commits.

    source → (left, right) → sink, left and right on a pool: one wave of two components, overlapping if it can

A worker meets the lock once per invocation: it hands in the last one and takes the next in one go. Where nothing has to
be decided any more after the wave began (the four classes, reentrant components only, nobody held back) the order is
made once and laid out in a line from which workers take without a lock: with one, four workers with little to do would
mostly wait for each other. Workers start with the run, sleep between waves and end with the run. A stop does not touch
what was admitted: it is drained.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol

from rota.clock import Clock
from rota.errors import RotaError
from rota.graph.calling import Coroutines, perform
from rota.graph.execution import Settlement
from rota.graph.invocation import Invocation, Scope
from rota.graph.lanes.admission import Admission
from rota.graph.lanes.held_back import HeldBack
from rota.graph.lanes.order import Item
from rota.graph.lanes.queue import LaneQueue
from rota.graph.lanes.threads import WorkerReport, settle_in, worker_name
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node
from rota.graph.plan import Lane
from rota.graph.reports import RunStopped

__all__ = ["Pool", "PoolStep", "Site", "ThreadSite"]


class Site(Protocol):
    """Where one worker executes invocations."""

    def open(self) -> WorkerReport:
        """Get ready, on the worker's own thread; raises when this worker can never work."""
        ...

    def perform(self, item: Item, /) -> None:
        """Execute an invocation to its end, however it ends."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class ThreadSite:
    """A worker that executes on its own thread."""

    def __init__(self, lane: Lane, worker_id: int, clock: Clock) -> None:
        self._lane = lane
        self._worker_id = worker_id
        self._clock = clock
        self._coroutines = Coroutines()

    def open(self) -> WorkerReport:
        """Apply what the lane asks of the operating system."""
        return settle_in(self._lane, self._worker_id)

    def perform(self, item: Item, /) -> None:
        """Call the component."""
        if item.invocation is not None:
            perform(item.node.unit, item.invocation, self._coroutines)
            return
        item.started_at_s = self._clock.monotonic()
        try:
            item.returned = item.node.unit.call(item.inputs, None)
        finally:
            item.ended_at_s = self._clock.monotonic()

    def close(self) -> None:
        """End the worker's event loop, if it had one."""
        self._coroutines.close()


class Pool:
    """The workers of one lane, and the queue they share."""

    def __init__(
        self,
        lane: Lane,
        queue: LaneQueue,
        admission: Admission,
        meter: LaneMeter,
        *,
        settlement: Settlement,
        make_site: Callable[[int], Site],
        is_remote: bool = False,
    ) -> None:
        self.lane = lane
        self.admission = admission
        self.meter = meter
        self.settlement = settlement
        self.is_remote = is_remote  # its sites send invocations somewhere else
        self.worker_reports: list[WorkerReport] = []
        self._make_site = make_site
        self._queue = queue
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # there is something to take, or the run is over
        self._changed = threading.Condition(self._lock)  # a worker is ready, or everything admitted is done
        self._threads: list[threading.Thread] = []
        self._held = HeldBack(admission, meter)
        self._line: deque[Item] = deque()  # a wave in its final order; taking from it is one step, so it needs no lock
        self._outstanding = 0  # in the queue, held back or taken from it, and not done
        self._active = self._sleeping = self._opened = 0
        self._closing = False
        self._epoch_id = 0
        self.next_number = itertools.count(1).__next__
        self._failure: Exception | None = None  # why a worker could not start

    # --- the scheduler's side --------------------------------------------------------------------

    def start(self) -> None:
        """Start the workers and wait until each is ready; raises when one cannot be."""
        for worker_id in range(self.lane.workers if self.lane.components else 0):
            name = worker_name(self.lane, worker_id)
            thread = threading.Thread(target=self._run_worker, args=(worker_id,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        with self._lock:
            self._changed.wait_for(lambda: self._opened == len(self._threads))
            self.meter.worker_count = self._opened
        self.worker_reports.sort(key=lambda report: report.worker_id)
        if self._failure is not None:
            raise self._failure

    def run_wave(self, items: Sequence[Item], held: Sequence[Item], epoch_id: int) -> None:
        """Execute these, and those held back as room appears; returns when the last of them is done."""
        meter = self.meter
        meter.queue_depth = max(meter.queue_depth, len(items) - self.lane.workers)
        meter.in_flight_count = max(meter.in_flight_count, len(items))
        with self._lock:
            if not held and self._queue.is_plain and all(item.node.reentrant for item in items):
                self._line.extend(sorted(items, key=_minus_rank))  # a stable sort: numbers rise already
                self._work.notify(len(items))
            else:
                self._fill_queue(items, held, epoch_id)
                self._work.notify(self._queue.visible)
            self._changed.wait_for(self._is_over)

    def _fill_queue(self, items: Sequence[Item], held: Sequence[Item], epoch_id: int) -> None:
        self._epoch_id = epoch_id
        self._outstanding = len(items) + len(held)
        self._held.fill(held, self.settlement.clock.monotonic())
        for item in items:
            self._queue.add(item)

    def _is_over(self) -> bool:
        return not (self._active or self._line or self._outstanding)

    def stop(self) -> None:
        """Let the workers finish what was admitted, then end them and wait for that."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    # --- the workers' side -----------------------------------------------------------------------

    def _run_worker(self, worker_id: int) -> None:
        site = self._make_site(worker_id)
        item: Item | None = None
        if self._open(site):
            while (item := self._next(item)) is not None:
                item.worker_id = worker_id
                try:
                    site.perform(item)
                except BaseException as problem:  # SystemExit of a component must not end the worker
                    item.problem = problem
        site.close()

    def _open(self, site: Site) -> bool:
        report = None
        try:
            report = site.open()
        except Exception as problem:  # told to whoever started the pool
            self._failure = problem
        with self._lock:
            self._opened += 1
            if report is not None:
                self.worker_reports.append(report)
            self._changed.notify_all()
        return report is not None

    def _next(self, done: Item | None) -> Item | None:
        """Hand in the last invocation and take the next; None when the run is over."""
        if done is not None and self._line:
            with contextlib.suppress(IndexError):  # somebody else took the last one
                return self._line.popleft()
        with self._lock:
            if done is not None:
                self._hand_in(done)
            while (item := self._take()) is None:
                if self._closing:
                    return None
                self._sleeping += 1
                self._work.wait()
                self._sleeping -= 1
            self._active += 1
            self.meter.active_count = max(self.meter.active_count, self._active)
            if self._sleeping and self._queue.visible:
                self._work.notify()  # each worker wakes the next, as long as there is work
            return item

    def _take(self) -> Item | None:
        try:
            return self._line.popleft()
        except IndexError:
            return self._queue.take(self._epoch_id) if self._outstanding else None

    def _hand_in(self, item: Item) -> None:
        self._active -= 1
        if self._outstanding:  # a wave is either in the line or in the queue
            self._outstanding -= 1
            self._queue.done(item)
            if self._held:
                self._let_in(item.node)
        if self._is_over():
            self._changed.notify_all()

    def _let_in(self, node: Node) -> None:
        """A place is free for an invocation that was held back, unless it has waited too long."""
        item, rejected = self._held.next(node, self.settlement)
        if item is not None:
            self._queue.add(item)
        self._outstanding -= rejected


def _minus_rank(item: Item) -> int:
    return -item.node.rank


_number = attrgetter("number")


class PoolStep:
    """A wave: independent components next to each other in the compiled order, on one pool."""

    def __init__(self, nodes: Sequence[Node], pool: Pool, scope: Scope) -> None:
        self.nodes = tuple(nodes)
        self._pool = pool
        self._scope = scope
        self._clock = pool.settlement.clock

    def run(self, epoch_id: int, turn: int) -> int:
        """Execute every admitted invocation of the wave; returns how many there were."""
        began_at_s = self._clock.monotonic()
        items: list[Item] = []
        held: list[Item] = []
        for node in self.nodes:
            if not node.is_isolated:
                ready = node.trigger.collect(began_at_s, turn)
                admitted = self._pool.admission.admit(node, ready)
                items += [self._item(node, inputs, epoch_id) for inputs in admitted.now]
                held += [self._item(node, inputs, epoch_id) for inputs in admitted.held]
        if items:
            self._pool.run_wave(items, held, epoch_id)
            items += [item for item in held if not item.is_rejected]
            items.sort(key=_number)
            self._settle(items, epoch_id, began_at_s)
        return len(items)

    def _item(self, node: Node, inputs: Inputs, epoch_id: int) -> Item:
        number = self._pool.next_number()
        if node.is_plain and not self._pool.is_remote:
            return Item(node, inputs, epoch_id, number)
        return Item(node, inputs, epoch_id, number, Invocation(node.unit, self._scope, inputs, epoch_id, number))

    def _settle(self, performed: Sequence[Item], epoch_id: int, began_at_s: float) -> None:
        self._trace(performed, epoch_id, began_at_s)
        goes_on = True
        for item in performed:
            goes_on = self._settle_one(item) and goes_on
        if not goes_on:
            raise RunStopped

    def _settle_one(self, item: Item) -> bool:
        settlement, node, invocation = self._pool.settlement, item.node, item.invocation
        if invocation is None and item.problem is None:
            node.last_epoch_id = item.epoch_id
            self._pool.meter.last_callback_s = item.ended_at_s - item.started_at_s
            try:
                settlement.settle_plain(
                    node, item.inputs, item.epoch_id, item.started_at_s, item.ended_at_s, item.returned, item.worker_id
                )
            except RotaError as problem:  # a payload that cannot be copied
                item.problem = problem
            else:
                return True
        if invocation is None:
            invocation = Invocation(node.unit, self._scope, item.inputs, item.epoch_id, item.number)
            invocation.attempt, invocation.started_at_s = 1, item.started_at_s
        if item.problem is not None:
            invocation.end(item.problem)
        invocation.worker_id = item.worker_id
        return settlement.settle(node, invocation)

    def _trace(self, performed: Sequence[Item], epoch_id: int, began_at_s: float) -> None:
        recorder = self._pool.settlement.recorder
        if recorder is not None:
            workers = sorted({item.worker_id for item in performed})
            recorder.span(
                "thread_pool_batch",
                began_at_s,
                self._clock.monotonic(),
                epoch_id,
                lane=self._pool.lane.id,
                attributes={"worker_ids": ",".join(map(str, workers)), "invocations": str(len(performed))},
            )

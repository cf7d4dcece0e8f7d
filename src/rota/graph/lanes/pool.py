"""The thread_pool lane, and what process_pool shares with it: persistent workers with one bounded queue.

A step of a pool is a *wave*: all regions that are neighbours in the compiled order, are on this lane and do not depend
on each other. Their ready invocations are accepted component by component, executed by the workers in the order of the
lane's queue, and committed by the run's thread in the order of acceptance when all of them are done. Nothing downstream
runs before that barrier, so a pool changes how long an epoch takes, but not what it commits.

    source → (left, right) → sink, left and right on a pool: one wave of two components, which may overlap

A worker takes the lock once per invocation: it completes the last one and takes the next. If nothing is left to decide
after the wave began (default order, reentrant components only, nothing held), the wave is sorted once into a deque from
which workers take without the lock; otherwise four workers with short invocations would mostly wait for each other.
Workers start with the run, sleep between waves and end with the run. A stop does not affect accepted invocations: they
are drained.
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
from rota.graph.calling import CoroutineRunner, execute
from rota.graph.commit import Committer
from rota.graph.fan_out import collect_ready, publish_lists
from rota.graph.invocation import Invocation, Scope
from rota.graph.lanes.capacity import BlockedInvocations, LaneCapacity
from rota.graph.lanes.invocation_queue import InvocationQueue
from rota.graph.lanes.order import QueuedInvocation
from rota.graph.lanes.worker_settings import WorkerReport, apply_worker_settings, worker_name
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node
from rota.graph.plan import Lane
from rota.graph.reports import RunStopped

__all__ = ["Pool", "PoolStep", "PoolWorker", "ThreadWorker"]


class PoolWorker(Protocol):
    """Executes the invocations of one worker thread."""

    def open(self) -> WorkerReport:
        """Prepare, on the worker's own thread; raises if this worker cannot work."""
        ...

    def execute(self, item: QueuedInvocation, /) -> None:
        """Execute an invocation to its end, whether it succeeds or fails."""
        ...

    def close(self) -> None:
        """Release everything: the run is over."""
        ...


class ThreadWorker:
    """A worker that executes on its own thread."""

    def __init__(self, lane: Lane, worker_id: int, clock: Clock) -> None:
        self._lane = lane
        self._worker_id = worker_id
        self._clock = clock
        self._coroutines = CoroutineRunner()

    def open(self) -> WorkerReport:
        """Apply the lane's operating-system settings."""
        return apply_worker_settings(self._lane, self._worker_id)

    def execute(self, item: QueuedInvocation, /) -> None:
        """Call the component."""
        if item.invocation is not None:
            execute(item.node.component, item.invocation, self._coroutines)
            return
        item.started_at_s = self._clock.monotonic()
        try:
            item.returned = item.node.component.call(item.inputs, None)
        finally:
            item.ended_at_s = self._clock.monotonic()

    def close(self) -> None:
        """Close the worker's event loop, if it has one."""
        self._coroutines.close()


class Pool:
    """The workers of one lane and the queue they share."""

    def __init__(
        self,
        lane: Lane,
        queue: InvocationQueue,
        lane_capacity: LaneCapacity,
        meter: LaneMeter,
        *,
        committer: Committer,
        make_worker: Callable[[int], PoolWorker],
        is_remote: bool = False,
    ) -> None:
        self.lane = lane
        self.lane_capacity = lane_capacity
        self.meter = meter
        self.committer = committer
        self.is_remote = is_remote  # its workers send invocations to other processes
        self.worker_reports: list[WorkerReport] = []
        self._make_worker = make_worker
        self._queue = queue
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # there is work, or the run is over
        self._changed = threading.Condition(self._lock)  # a worker is ready, or the wave is done
        self._threads: list[threading.Thread] = []
        self._held = BlockedInvocations(lane_capacity, meter)
        self._ordered: deque[QueuedInvocation] = deque()  # a sorted wave; popleft is atomic, so it needs no lock
        self._outstanding = 0  # queued, held or executing
        self._active = self._sleeping = self._started_count = 0
        self._closing = False
        self._epoch_id = 0
        self.next_number = itertools.count(1).__next__
        self._failure: Exception | None = None  # why a worker did not start

    # --- called by the run's thread ----------------------------------------------------------------

    def start(self) -> None:
        """Start the workers and wait until each is ready; raises if one cannot start."""
        for worker_id in range(self.lane.workers if self.lane.components else 0):
            name = worker_name(self.lane, worker_id)
            thread = threading.Thread(target=self._run_worker, args=(worker_id,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        with self._lock:
            self._changed.wait_for(lambda: self._started_count == len(self._threads))
            self.meter.worker_count = self._started_count
        self.worker_reports.sort(key=lambda report: report.worker_id)
        if self._failure is not None:
            raise self._failure

    def run_wave(self, items: Sequence[QueuedInvocation], held: Sequence[QueuedInvocation], epoch_id: int) -> None:
        """Execute these invocations, and the held ones as others finish; return when the last one is done."""
        meter = self.meter
        meter.queue_depth = max(meter.queue_depth, len(items) - self.lane.workers)
        meter.in_flight_count = max(meter.in_flight_count, len(items))
        with self._lock:
            if not held and self._queue.is_plain and all(item.node.reentrant for item in items):
                self._ordered.extend(sorted(items, key=_by_priority))  # a stable sort keeps the order of numbers
                self._work.notify(len(items))
            else:
                self._fill_queue(items, held, epoch_id)
                self._work.notify(self._queue.visible)
            self._changed.wait_for(self._is_over)

    def _fill_queue(self, items: Sequence[QueuedInvocation], held: Sequence[QueuedInvocation], epoch_id: int) -> None:
        self._epoch_id = epoch_id
        self._outstanding = len(items) + len(held)
        self._held.add(held, self.committer.clock.monotonic())
        for item in items:
            self._queue.add(item)

    def _is_over(self) -> bool:
        return not (self._active or self._ordered or self._outstanding)

    def stop(self) -> None:
        """Let the workers finish accepted invocations, then end them and wait for that."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    # --- called by the workers ---------------------------------------------------------------------

    def _run_worker(self, worker_id: int) -> None:
        worker = self._make_worker(worker_id)
        item: QueuedInvocation | None = None
        if self._open(worker):
            while (item := self._next(item)) is not None:
                item.worker_id = worker_id
                try:
                    worker.execute(item)
                except BaseException as problem:  # a component's SystemExit must not end the worker
                    item.problem = problem
        worker.close()

    def _open(self, worker: PoolWorker) -> bool:
        report = None
        try:
            report = worker.open()
        except Exception as problem:  # raised by `start`
            self._failure = problem
        with self._lock:
            self._started_count += 1
            if report is not None:
                self.worker_reports.append(report)
            self._changed.notify_all()
        return report is not None

    def _next(self, done: QueuedInvocation | None) -> QueuedInvocation | None:
        """Complete the last invocation and take the next one; None if the run is over."""
        if done is not None and self._ordered:
            with contextlib.suppress(IndexError):  # another worker took the last one
                return self._ordered.popleft()
        with self._lock:
            if done is not None:
                self._complete(done)
            while (item := self._take()) is None:
                if self._closing:
                    return None
                self._sleeping += 1
                self._work.wait()
                self._sleeping -= 1
            self._active += 1
            self.meter.active_count = max(self.meter.active_count, self._active)
            if self._sleeping and self._queue.visible:
                self._work.notify()  # each worker wakes the next while there is work
            return item

    def _take(self) -> QueuedInvocation | None:
        try:
            return self._ordered.popleft()
        except IndexError:
            return self._queue.take(self._epoch_id) if self._outstanding else None

    def _complete(self, item: QueuedInvocation) -> None:
        self._active -= 1
        if self._outstanding:  # the wave is in the queue, not in the deque
            self._outstanding -= 1
            self._queue.done(item)
            if self._held:
                self._queue_held(item.node)
        if self._is_over():
            self._changed.notify_all()

    def _queue_held(self, node: Node) -> None:
        """Queue a held invocation in the place that became free, unless it has waited too long."""
        item, rejected = self._held.next(node, self.committer)
        if item is not None:
            self._queue.add(item)
        self._outstanding -= rejected


def _by_priority(item: QueuedInvocation) -> int:
    return -item.node.rank


_number = attrgetter("number")


class PoolStep:
    """A wave: independent components that are neighbours in the compiled order, on one pool."""

    def __init__(self, nodes: Sequence[Node], pool: Pool, scope: Scope) -> None:
        self.nodes = tuple(nodes)
        self._pool = pool
        self._scope = scope
        self._clock = pool.committer.clock

    def run(self, epoch_id: int, iteration_id: int) -> int:
        """Execute every accepted invocation of the wave; return the number of invocations."""
        began_at_s = self._clock.monotonic()
        items: list[QueuedInvocation] = []
        held: list[QueuedInvocation] = []
        for node in self.nodes:
            if not node.is_isolated:
                ready = collect_ready(node, self._pool.committer, epoch_id, iteration_id)
                accepted = self._pool.lane_capacity.accept(node, ready)
                items += [self._item(node, inputs, epoch_id) for inputs in accepted.now]
                held += [self._item(node, inputs, epoch_id) for inputs in accepted.held]
        if items:
            self._pool.run_wave(items, held, epoch_id)
            items += [item for item in held if not item.is_rejected]
            items.sort(key=_number)
            self._commit_all(items, epoch_id, began_at_s)
        return len(items)

    def _item(self, node: Node, inputs: Inputs, epoch_id: int) -> QueuedInvocation:
        number = self._pool.next_number()
        if node.is_plain and not self._pool.is_remote:
            return QueuedInvocation(node, inputs, epoch_id, number)
        return QueuedInvocation(
            node, inputs, epoch_id, number, Invocation(node.component, self._scope, inputs, epoch_id, number)
        )

    def _commit_all(self, executed: Sequence[QueuedInvocation], epoch_id: int, began_at_s: float) -> None:
        self._trace(executed, epoch_id, began_at_s)
        may_continue = True
        for item in executed:
            may_continue = self._commit_one(item) and may_continue
        for node in self.nodes:
            if node.map_over is not None:
                items = [item.inputs for item in executed if item.node is node]
                may_continue = publish_lists(node, items, self._pool.committer, epoch_id) and may_continue
        if not may_continue:
            raise RunStopped

    def _commit_one(self, item: QueuedInvocation) -> bool:
        committer, node, invocation = self._pool.committer, item.node, item.invocation
        if invocation is None and item.problem is None:
            node.last_epoch_id = item.epoch_id
            self._pool.meter.last_callback_s = item.ended_at_s - item.started_at_s
            try:
                committer.commit_plain(
                    node, item.inputs, item.epoch_id, item.started_at_s, item.ended_at_s, item.returned, item.worker_id
                )
            except RotaError as problem:  # a payload that cannot be copied
                item.problem = problem
            else:
                return True
        if invocation is None:
            invocation = Invocation(node.component, self._scope, item.inputs, item.epoch_id, item.number)
            invocation.attempt, invocation.started_at_s = 1, item.started_at_s
        if item.problem is not None:
            invocation.end(item.problem)
        invocation.worker_id = item.worker_id
        return committer.commit(node, invocation)

    def _trace(self, executed: Sequence[QueuedInvocation], epoch_id: int, began_at_s: float) -> None:
        recorder = self._pool.committer.recorder
        if recorder is not None:
            workers = sorted({item.worker_id for item in executed})
            recorder.span(
                "thread_pool_batch",
                began_at_s,
                self._clock.monotonic(),
                epoch_id,
                lane=self._pool.lane.id,
                attributes={"worker_ids": ",".join(map(str, workers)), "invocations": str(len(executed))},
            )

"""Runs a plan: how long, until when, and what may be done to a run from outside.

    runner = RuntimeRunner(plan, registry, RuntimeRunnerOptions(steps=100, trace=True))
    result = runner.run()
    print(result.scheduler_stop_reason, result.metric("runtime.scheduler.completed_count", lane="main"))

`run` executes epochs until a bound is reached. Before each epoch it checks, in this order: a fatal error, a stop
request, the duration, the number of steps. Then it waits until every wall-clock lane is due; a stop ends this wait too.
An epoch that began is always finished.

A run with a duration, or until idle, sleeps while no epoch could execute anything: until a timer or a waiting message
is due, a publication or the end of an entry arrives, or a bound is reached. A run by steps runs every step at once.

A host that does other things in between drives the run itself:

    with RuntimeRunner(plan, registry) as runner:
        runner.send("asker", "hello")  # before, between and during epochs
        runner.step()                  # one epoch, now: the host sets the pace
        runner.step("ui")              # what is ready on a manual_step lane, on this thread
    result = runner.result

Other threads may call `stop`, `send`, `update_config` and `step(lane)` during a run.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rota.errors import ComponentUnknown, GraphRunFailed, LaneUnknown
from rota.graph.accounts import RunAccount
from rota.graph.component_registry import ComponentRegistry
from rota.graph.engine import GraphEngine
from rota.graph.executing import executing_components
from rota.graph.plan import Plan
from rota.graph.reports import RunStopped
from rota.graph.results import RuntimeRunnerResult, make_result
from rota.graph.run_options import RuntimeRunnerOptions, SchedulerStopReason
from rota.graph.wiring import make_instances

__all__ = ["RuntimeRunner"]


class _LastEpoch:
    """The last epoch of `run`, and how many there were."""

    def __init__(self) -> None:
        self.count = 0
        self.count_alone = 0  # since something arrived from outside
        self.executed = 0
        self.published = False


ALREADY_RUNNING_HINT = "Call finish() first, or create another runner."


class RuntimeRunner:
    """Runs a compiled graph. The instances of its components live as long as the runner."""

    def __init__(self, plan: Plan, registry: ComponentRegistry, options: RuntimeRunnerOptions | None = None) -> None:
        self.plan = plan
        self.options = options or RuntimeRunnerOptions()
        self._registry = registry
        self._instances = make_instances(plan, registry)
        self._engine: GraphEngine | None = None
        self._ending: GraphEngine | None = None  # while `finish` waits for it
        self._stop_reason = SchedulerStopReason.NOT_STARTED
        self._first_epoch_id = 0
        self._is_running = False  # a thread is in `run`
        self._due_in_s = math.inf
        self.awaits: tuple[int, ...] = ()  # entries that a run which ended with `WAITING` waits for
        self._lock = threading.Lock()  # for starting and finishing
        self._epoch_lock = threading.Lock()  # held during an epoch
        self.result = RuntimeRunnerResult(graph_name=plan.name, run_id="")

    # --- the whole run ---------------------------------------------------------------------------

    def run(self) -> RuntimeRunnerResult:
        """Run until a bound is reached, everything is idle, a stop is requested or something fails.

        Starts the run if the host has not, and always finishes it.
        """
        if self._engine is None:
            self.start()
        engine = self._require_engine()
        with self._lock:
            if self._is_running:
                raise GraphRunFailed("this runner is already running", hint=ALREADY_RUNNING_HINT)
            self._is_running = True
        try:
            self._run_epochs(engine)
        finally:
            self._is_running = False
            self.finish()
        return self.result

    def start(self) -> None:
        """Start workers and components. The result records a failure; the run then ends before its first epoch."""
        with self._lock:
            if self._engine is not None:
                raise GraphRunFailed("this runner is already running", hint=ALREADY_RUNNING_HINT)
            run_id = self.options.run_id or uuid.uuid4().hex
            self._stop_reason = SchedulerStopReason.NOT_STARTED
            self._engine = GraphEngine(self.plan, self._registry, self._instances, self.options, run_id)
        try:
            if not self._engine.open():
                self._stop_reason = SchedulerStopReason.ERROR
        except BaseException:  # an interrupt: clean up what was started
            self.finish()
            raise
        self._first_epoch_id = self._engine.epoch_id

    def finish(self) -> RuntimeRunnerResult:
        """End the run: drain lanes, deactivate components, join workers. A second call changes nothing."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            self._ending, is_waiting = engine, self._stop_reason is SchedulerStopReason.WAITING
            try:
                engine.write_final_checkpoint(is_waiting=is_waiting)
                self.awaits = engine.awaited if is_waiting else ()
            finally:
                if not is_waiting:
                    self._report_outstanding(engine)
                engine.close()
                self._ending = None
            epochs = engine.epoch_id - self._first_epoch_id
            self.result = make_result(engine, self._final_stop_reason(engine, epochs), epochs)
        return self.result

    def _report_outstanding(self, engine: GraphEngine) -> None:
        count = engine.entries_outstanding
        if count:
            message = f"{count:,} entries of run {engine.run_id} have not ended; start it again to use their results"
            engine.reports.health("entries_outstanding", message)

    def _final_stop_reason(self, engine: GraphEngine, epochs: int) -> SchedulerStopReason:
        if engine.reports.failure is not None:
            return SchedulerStopReason.ERROR
        if self._stop_reason is not SchedulerStopReason.NOT_STARTED or not epochs:
            return self._stop_reason
        # a host that finishes between two steps decided itself how many there are
        return SchedulerStopReason.STOP_REQUESTED if self.options.stop_token.is_set else SchedulerStopReason.TICK_BOUND

    def __enter__(self) -> RuntimeRunner:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()

    @property
    def due_in_s(self) -> float | None:
        """After how many seconds a run that ended with `WAITING` can go on, whatever its entries do; None: never."""
        return None if self._due_in_s == math.inf else max(0.0, self._due_in_s)

    # --- epochs ----------------------------------------------------------------------------------

    def _run_epochs(self, engine: GraphEngine) -> None:
        last = _LastEpoch()
        while self._stop_reason is SchedulerStopReason.NOT_STARTED:
            bound = self._bound(engine, last)
            if bound is not None:
                self._stop_reason = bound
                return
            if not self._wait_for_tick(engine) or not self._wait_until_due(engine, last):
                continue  # a stop was requested, the duration is over, or the run is idle
            before = self._activity(engine)
            last.executed = self._epoch(engine)
            last.published = before != self._activity(engine)
            last.count += 1
            last.count_alone += 1

    def _activity(self, engine: GraphEngine) -> int:
        """Return a number that changes with every publication; 0 if no run until idle has to know it."""
        return engine.activity if self.options.run_until_idle and engine.has_work_outside else 0

    def _epoch(self, engine: GraphEngine) -> int:
        """Run one epoch; a fatal error ends the run. Epochs neither overlap nor nest."""
        if not self._epoch_lock.acquire(blocking=False):
            raise GraphRunFailed(
                "an epoch of this run is already in progress",
                hint="Call step() from one thread only, and never from a component.",
            )
        try:
            executed = engine.run_epoch()
        except RunStopped:
            executed = -1
        finally:
            self._epoch_lock.release()
        if engine.reports.failure is not None:  # in this epoch, or on an independent lane
            self._stop_reason = SchedulerStopReason.ERROR
        if self.options.on_epoch is not None:
            self.options.on_epoch(engine.epoch_id)
        return executed

    def _bound(self, engine: GraphEngine, last: _LastEpoch) -> SchedulerStopReason | None:
        """Return why no further epoch begins; None if one does."""
        if engine.reports.failure is not None:
            return SchedulerStopReason.ERROR
        if self.options.stop_token.is_set:
            return SchedulerStopReason.STOP_REQUESTED
        if self._time_left_s(engine) <= 0:
            return SchedulerStopReason.DURATION_BOUND
        options = self.options
        steps, steps_max = (last.count_alone if options.steps is None else last.count), options.steps_max
        return SchedulerStopReason.TICK_BOUND if steps_max is not None and steps >= steps_max else None

    def _time_left_s(self, engine: GraphEngine) -> float:
        if self.options.duration_ms is None:
            return math.inf
        return engine.began_at_s + self.options.duration_ms / 1000 - engine.clock.monotonic()

    def _wait_for_tick(self, engine: GraphEngine) -> bool:
        """Wait until every wall-clock lane is due; False if the run should check its bounds instead."""
        while True:
            seen_count, now_s = engine.wake_signal.count, engine.clock.monotonic()
            due_in_s = max((pacer.due_in_s(now_s) for pacer in engine.lanes.pacers), default=0.0)
            if due_in_s <= 0:
                return True
            if self.options.stop_token.is_set or engine.reports.failure is not None or self._time_left_s(engine) <= 0:
                return False
            engine.wake_signal.wait(seen_count, min(due_in_s, self._time_left_s(engine)))
            slept_s = engine.clock.monotonic() - now_s
            for pacer in engine.lanes.pacers:
                pacer.meter.blocked_s += slept_s

    def _wait_until_due(self, engine: GraphEngine, last: _LastEpoch) -> bool:
        """Sleep until an epoch can execute something; False if the run should check its bounds instead."""
        options = self.options
        if not last.count or not (options.run_until_idle or options.duration_ms is not None):
            return True
        while True:
            seen_count = engine.wake_signal.count
            if self._must_stop(engine):
                return False
            # read before the arrivals: work elsewhere delivers its result before it counts as done
            is_idle = engine.is_idle
            # until idle, components that run in every epoch do so only while that has an effect
            manual = not options.run_until_idle or (last.executed > 0 and (last.published or is_idle))
            due_in_s = engine.due_in_s(manual=manual)
            if due_in_s <= 0:
                break
            if options.run_until_idle and is_idle and engine.due_in_s(manual=False, timers=False) == math.inf:
                if last.executed:
                    return True  # one more epoch shows that nothing is ready
                waits = engine.waits_for_budget
                self._stop_reason = SchedulerStopReason.WAITING if waits else SchedulerStopReason.IDLE
                return False
            if options.returns_when_waiting and (engine.waits_for_entries or engine.waits_for_budget):
                self._stop_reason = SchedulerStopReason.WAITING
                self._due_in_s = min(due_in_s, self._time_left_s(engine))
                return False
            engine.wake_signal.wait(seen_count, min(due_in_s, self._time_left_s(engine)))
        if engine.has_arrivals_from_outside:
            last.count_alone = 0
        return True

    def _must_stop(self, engine: GraphEngine) -> bool:
        stopping = self.options.stop_token.is_set or engine.reports.failure is not None
        return stopping or self._time_left_s(engine) <= 0

    # --- from outside ----------------------------------------------------------------------------

    def step(self, lane: str | None = None, *, invocations_max: int | None = None) -> int:
        """Run one epoch, or what is ready on a manual_step lane; return the number of invocations."""
        engine = self._require_engine()
        if lane is not None:
            manual = engine.lanes.manual.get(lane)
            if manual is None:
                raise LaneUnknown(f"lane {lane!r} is not a manual_step lane of this graph", lane=lane)
            return manual.step(invocations_max)
        bound = self._must_stop(engine) or self._stop_reason is SchedulerStopReason.ERROR
        return 0 if bound else max(0, self._epoch(engine))

    @property
    def account(self) -> RunAccount:
        """Where the components of this run count what they use."""
        return self._require_engine().account

    def stop(self, reason: str = "stop requested") -> None:
        """Ask the run to stop at its next check."""
        self.options.stop_token.request(reason)

    def executing_components(self) -> tuple[str, ...]:
        """Return the components that this process is executing now, for a host that waits for a stop."""
        engine = self._engine or self._ending
        return () if engine is None else executing_components(engine.wiring.nodes, engine.tasks)

    def send(self, component_id: str, payload: Any, *, port: str = "request") -> None:
        """Put a request (or a task_ready or future_ready event) into a component's inbox."""
        engine = self._require_engine()
        if (component_id, port) not in engine.wiring.inboxes:
            raise ComponentUnknown(
                f"component {component_id!r} has no event source of type {port}",
                hint=f"Add `event_sources: [{{type: {port}}}]` to the component.",
                component_id=component_id,
            )
        engine.deliver(component_id, port, payload)

    def node_counts(self) -> dict[str, tuple[int, int]]:
        """Return how often each component has succeeded and failed so far in this run, or in the last one."""
        engine = self._engine
        if engine is not None:
            return {node.id: (node.completed, node.failed) for node in engine.wiring.nodes.values()}
        counts = {"runtime.component.completed_count": 0, "runtime.component.error_count": 1}
        found = {name: [0, 0] for name in self.plan.components}
        for metric in self.result.runtime_metrics:
            if metric.name in counts:
                found[metric.component_id][counts[metric.name]] = int(metric.value)
        return {name: (completed, failed) for name, (completed, failed) in found.items()}

    def update_config(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the configuration of components when the next epoch begins: all of it or none."""
        engine = self._require_engine()
        engine.reconfiguration.request(changes)
        engine.wake_signal.notify()

    def _require_engine(self) -> GraphEngine:
        engine = self._engine
        if engine is None:
            raise GraphRunFailed("this runner is not running", hint="Call this between start() and finish().")
        return engine

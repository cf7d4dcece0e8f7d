"""Runs a plan: how long, until when, and what may be done to a run from outside.

    runner = RuntimeRunner(plan, registry, RuntimeRunnerOptions(steps=100, trace=True))
    result = runner.run()
    print(result.scheduler_stop_reason, result.metric("runtime.scheduler.completed_count", lane="main"))

`run` executes epochs until a bound is reached. Before each epoch it checks, in this order: a fatal error, a stop
request, the duration, the number of steps. Then it waits until every wall-clock lane is due; a stop ends this wait too.
An epoch that began is always finished.

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
from rota.graph.component_registry import ComponentRegistry
from rota.graph.engine import GraphEngine
from rota.graph.plan import Plan
from rota.graph.reports import RunStopped
from rota.graph.results import RuntimeRunnerResult, make_result
from rota.graph.run_options import RuntimeRunnerOptions, SchedulerStopReason
from rota.graph.wiring import make_instances

__all__ = ["RuntimeRunner"]

ALREADY_RUNNING_HINT = "Call finish() first, or create another runner."


class RuntimeRunner:
    """Runs a compiled graph. The instances of its components live as long as the runner."""

    def __init__(self, plan: Plan, registry: ComponentRegistry, options: RuntimeRunnerOptions | None = None) -> None:
        self.plan = plan
        self.options = options or RuntimeRunnerOptions()
        self._registry = registry
        self._instances = make_instances(plan, registry)
        self._engine: GraphEngine | None = None
        self._stop_reason = SchedulerStopReason.NOT_STARTED
        self._first_epoch_id = 0
        self._is_running = False  # a thread is in `run`
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
            try:
                engine.write_final_checkpoint()
            finally:
                engine.close()
            epochs = engine.epoch_id - self._first_epoch_id
            self.result = make_result(engine, self._final_stop_reason(engine, epochs), epochs)
        return self.result

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

    # --- epochs ----------------------------------------------------------------------------------

    def _run_epochs(self, engine: GraphEngine) -> None:
        options, epochs = self.options, 0
        while self._stop_reason is SchedulerStopReason.NOT_STARTED:
            bound = self._bound(engine, epochs)
            if bound is not None:
                self._stop_reason = bound
                return
            if not self._wait_for_tick(engine):
                continue  # a stop was requested, or the duration is over
            executed = self._epoch(engine)
            epochs += 1
            if executed == 0 and options.run_until_idle and not self._wait_for_arrivals(engine):
                self._stop_reason = SchedulerStopReason.IDLE

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

    def _bound(self, engine: GraphEngine, epochs: int) -> SchedulerStopReason | None:
        """Return why no further epoch begins; None if one does."""
        if engine.reports.failure is not None:
            return SchedulerStopReason.ERROR
        if self.options.stop_token.is_set:
            return SchedulerStopReason.STOP_REQUESTED
        if self._time_left_s(engine) <= 0:
            return SchedulerStopReason.DURATION_BOUND
        steps_max = self.options.steps_max
        return SchedulerStopReason.TICK_BOUND if steps_max is not None and epochs >= steps_max else None

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

    def _wait_for_arrivals(self, engine: GraphEngine) -> bool:
        """Wait while work is in flight elsewhere; False if there is none and nothing arrived."""
        while True:
            seen_count = engine.wake_signal.count
            if self._must_stop(engine) or engine.has_arrivals:
                return True
            if engine.is_idle:
                return engine.has_arrivals
            engine.wake_signal.wait(seen_count, self._time_left_s(engine))

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

    def stop(self, reason: str = "stop requested") -> None:
        """Ask the run to stop at its next check."""
        self.options.stop_token.request(reason)

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

    def update_config(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the configuration of components when the next epoch begins: all of it or none."""
        self._require_engine().reconfiguration.request(changes)

    def _require_engine(self) -> GraphEngine:
        engine = self._engine
        if engine is None:
            raise GraphRunFailed("this runner is not running", hint="Call this between start() and finish().")
        return engine

"""Running a plan: how long, until when, and what may be done to a run from outside.

    runner = RuntimeRunner(plan, registry, RuntimeRunnerOptions(steps=100, trace=True))
    result = runner.run()
    print(result.scheduler_stop_reason, result.metric("runtime.scheduler.completed_count", lane="main"))

`run` goes through epochs until one of its bounds is met. Before each epoch it looks, in this order: was a stop
requested, is the time over, are there steps left; then it sleeps until every wall-clock lane is due, and a stop ends
that sleep too. An epoch that began is always finished.

A host that wants to do other things in between drives the run itself:

    with RuntimeRunner(plan, registry) as runner:
        runner.send("asker", "hello")  # before, between and during epochs
        runner.step()                  # one epoch, now: a host keeps its own pace
        runner.step("ui")              # what is ready on a manual_step lane, on this thread
    result = runner.result

Other threads may call `stop`, `send`, `update_config` and `step(lane)` while a run is under way.
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
from rota.graph.engine import Engine
from rota.graph.plan import Plan
from rota.graph.reports import RunStopped
from rota.graph.results import make_result
from rota.graph.run_options import RuntimeRunnerOptions, RuntimeRunnerResult, SchedulerStopReason
from rota.graph.wiring import make_instances

__all__ = ["RuntimeRunner"]


class RuntimeRunner:
    """Runs a compiled graph. The instances of its components live as long as the runner."""

    def __init__(self, plan: Plan, registry: ComponentRegistry, options: RuntimeRunnerOptions | None = None) -> None:
        self.plan = plan
        self.options = options or RuntimeRunnerOptions()
        self._registry = registry
        self._instances = make_instances(plan, registry)
        self._engine: Engine | None = None
        self._stop_reason = SchedulerStopReason.NOT_STARTED
        self._first_epoch_id = 0
        self._is_going = False  # in `run`, on some thread
        self._lock = threading.Lock()  # around starting and finishing
        self._one_epoch = threading.Lock()  # held while an epoch is under way
        self.result = RuntimeRunnerResult(graph_name=plan.name, run_id="")

    # --- the whole run ---------------------------------------------------------------------------

    def run(self) -> RuntimeRunnerResult:
        """Run until a bound is met, everything is idle, somebody asks to stop or something fails.

        Starts first, unless the host has, and finishes in any case.
        """
        if self._engine is None:
            self.start()
        engine = self._running()
        with self._lock:
            if self._is_going:
                raise GraphRunFailed("this runner is running already", hint="Finish it, or make another one.")
            self._is_going = True
        try:
            self._run_epochs(engine)
        finally:
            self._is_going = False
            self.finish()
        return self.result

    def start(self) -> None:
        """Start workers and components. What fails is in the result; the run is then over before its first epoch."""
        with self._lock:
            if self._engine is not None:
                raise GraphRunFailed("this runner is running already", hint="Finish it, or make another one.")
            run_id = self.options.run_id or uuid.uuid4().hex
            self._stop_reason = SchedulerStopReason.NOT_STARTED
            self._engine = Engine(self.plan, self._registry, self._instances, self.options, run_id)
        try:
            if not self._engine.open():
                self._stop_reason = SchedulerStopReason.ERROR
        except BaseException:  # an interrupt: end what was started
            self.finish()
            raise
        self._first_epoch_id = self._engine.epoch_id

    def finish(self) -> RuntimeRunnerResult:
        """End the run: drain, deactivate, join. Finishing twice changes nothing."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            try:
                engine.write_down()
            finally:
                engine.close()
            epochs = engine.epoch_id - self._first_epoch_id
            self.result = make_result(engine, self._why_it_ended(engine, epochs), epochs)
        return self.result

    def _why_it_ended(self, engine: Engine, epochs: int) -> SchedulerStopReason:
        if engine.reports.failure is not None:
            return SchedulerStopReason.ERROR
        if self._stop_reason is not SchedulerStopReason.NOT_STARTED or not epochs:
            return self._stop_reason
        # a host that stops stepping has met a bound of its own
        return SchedulerStopReason.STOP_REQUESTED if self.options.stop_token.is_set else SchedulerStopReason.TICK_BOUND

    def __enter__(self) -> RuntimeRunner:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()

    # --- epochs ----------------------------------------------------------------------------------

    def _run_epochs(self, engine: Engine) -> None:
        options, epochs = self.options, 0
        while self._stop_reason is SchedulerStopReason.NOT_STARTED:
            bound = self._bound(engine, epochs)
            if bound is not None:
                self._stop_reason = bound
                return
            if not self._wait_for_tick(engine):
                continue  # a stop was requested, or the time is over
            executed = self._epoch(engine)
            epochs += 1
            if executed == 0 and options.run_until_idle and not self._wait_for_arrivals(engine):
                self._stop_reason = SchedulerStopReason.IDLE

    def _epoch(self, engine: Engine) -> int:
        """One epoch; a fatal error ends the run. Epochs neither overlap nor nest."""
        if not self._one_epoch.acquire(blocking=False):
            raise GraphRunFailed(
                "an epoch of this run is under way already",
                hint="One thread steps a run, and no component does.",
            )
        try:
            executed = engine.run_epoch()
        except RunStopped:
            executed = -1
        finally:
            self._one_epoch.release()
        if engine.reports.failure is not None:  # here, or on a lane of its own
            self._stop_reason = SchedulerStopReason.ERROR
        if self.options.on_epoch is not None:
            self.options.on_epoch(engine.epoch_id)
        return executed

    def _bound(self, engine: Engine, epochs: int) -> SchedulerStopReason | None:
        """Why no further epoch begins; None when one does."""
        if engine.reports.failure is not None:
            return SchedulerStopReason.ERROR
        if self.options.stop_token.is_set:
            return SchedulerStopReason.STOP_REQUESTED
        if self._time_left_s(engine) <= 0:
            return SchedulerStopReason.DURATION_BOUND
        steps_max = self.options.steps_max
        return SchedulerStopReason.TICK_BOUND if steps_max is not None and epochs >= steps_max else None

    def _time_left_s(self, engine: Engine) -> float:
        if self.options.duration_ms is None:
            return math.inf
        return engine.began_at_s + self.options.duration_ms / 1000 - engine.clock.monotonic()

    def _wait_for_tick(self, engine: Engine) -> bool:
        """Sleep until every wall-clock lane is due; False when the run should look at its bounds instead."""
        while True:
            rings, now_s = engine.bell.rings, engine.clock.monotonic()
            due_in_s = max((pacer.due_in_s(now_s) for pacer in engine.lanes.pacers), default=0.0)
            if due_in_s <= 0:
                return True
            if self.options.stop_token.is_set or engine.reports.failure is not None or self._time_left_s(engine) <= 0:
                return False
            engine.bell.nap(rings, min(due_in_s, self._time_left_s(engine)))
            slept_s = engine.clock.monotonic() - now_s
            for pacer in engine.lanes.pacers:
                pacer.meter.blocked_s += slept_s

    def _wait_for_arrivals(self, engine: Engine) -> bool:
        """Sleep while work is under way elsewhere; False when there is none, and nothing arrived."""
        while True:
            rings = engine.bell.rings
            if self._bound_but_steps(engine) or engine.has_arrivals:
                return True
            if engine.is_quiet:
                return engine.has_arrivals
            engine.bell.nap(rings, self._time_left_s(engine))

    def _bound_but_steps(self, engine: Engine) -> bool:
        stopping = self.options.stop_token.is_set or engine.reports.failure is not None
        return stopping or self._time_left_s(engine) <= 0

    # --- from outside ----------------------------------------------------------------------------

    def step(self, lane: str | None = None, *, invocations_max: int | None = None) -> int:
        """Run one epoch, or what is ready on a manual_step lane; returns how many invocations there were."""
        engine = self._running()
        if lane is not None:
            manual = engine.lanes.manual.get(lane)
            if manual is None:
                raise LaneUnknown(f"lane {lane!r} cannot be stepped by hand", lane=lane)
            return manual.step(invocations_max)
        bound = self._bound_but_steps(engine) or self._stop_reason is SchedulerStopReason.ERROR
        return 0 if bound else max(0, self._epoch(engine))

    def stop(self, reason: str = "stop requested") -> None:
        """Ask the run to stop at its next look."""
        self.options.stop_token.request(reason)

    def send(self, component_id: str, payload: Any, *, port: str = "request") -> None:
        """Put a request (or a task_ready, future_ready event) into a component's inbox."""
        engine = self._running()
        if (component_id, port) not in engine.wiring.inboxes:
            raise ComponentUnknown(
                f"component {component_id!r} does not listen to {port}",
                hint=f"Give it an event source of type {port}.",
                component_id=component_id,
            )
        engine.deliver(component_id, port, payload)

    def update_config(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the configuration of components when the next epoch begins: all of it or none of it."""
        self._running().reconfiguration.ask(changes)

    def _running(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise GraphRunFailed("this runner is not running", hint="Call it between start and finish.")
        return engine

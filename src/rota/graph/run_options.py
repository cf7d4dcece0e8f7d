"""What a run is asked for, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from rota.clock import Clock, SystemClock
from rota.errors import GraphRunFailed, InvalidInput
from rota.graph.lanes.durable import DurableRuns
from rota.graph.lanes.threads import WorkerReport
from rota.graph.loops import LoopOutcome
from rota.graph.metrics import METRIC_SCHEMA_VERSION, Metric
from rota.graph.reports import HealthEvent, RunError
from rota.graph.stop import StopToken
from rota.graph.tasks import TaskExecutorConfig
from rota.graph.tracing import ROWS_MAX, Trace
from rota.model.checks import Checks

__all__ = ["IDLE_STEPS_MAX", "RuntimeRunnerOptions", "RuntimeRunnerResult", "SchedulerStopReason"]

IDLE_STEPS_MAX = 1_000  # epochs of a run that ends when idle, where no number of steps was given

_checks = Checks("RuntimeRunnerOptions", InvalidInput)


class SchedulerStopReason(StrEnum):
    """Why a run ended."""

    NOT_STARTED = "not_started"
    TICK_BOUND = "tick_bound"
    DURATION_BOUND = "duration_bound"
    IDLE = "idle"
    STOP_REQUESTED = "stop_requested"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class RuntimeRunnerOptions:
    """How long to run, on which clock, and what to remember.

    Without `steps` and without `duration_ms` one epoch is run, or with `run_until_idle` at most `IDLE_STEPS_MAX`.
    """

    steps: int | None = None
    duration_ms: float | None = None
    run_until_idle: bool = False
    stop_token: StopToken = field(default_factory=StopToken)
    clock: Clock = field(default_factory=SystemClock)
    trace: bool = False
    trace_rows_max: int = ROWS_MAX
    run_id: str | None = None  # None: a new one; give the same one to resume a run with a queue lane
    restore: Mapping[str, Any] = field(default_factory=dict)  # by component: what its snapshot() returned
    task_executor: TaskExecutorConfig = field(default_factory=TaskExecutorConfig)
    durable: DurableRuns | None = None  # where queue lanes put their entries and the run is kept
    on_epoch: Callable[[int], None] | None = None  # called after each epoch, on the run's thread

    def __post_init__(self) -> None:
        if self.steps is not None:
            _checks.whole("steps", self.steps, 0)
        if self.duration_ms is not None:
            _checks.duration("duration_ms", self.duration_ms)
        _checks.whole("trace_rows_max", self.trace_rows_max, 1)

    @property
    def steps_max(self) -> int | None:
        """The most epochs there may be; None is no bound."""
        if self.steps is not None:
            return self.steps
        if self.run_until_idle:
            return IDLE_STEPS_MAX
        return None if self.duration_ms is not None else 1


class RuntimeRunnerResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    graph_name: str
    run_id: str
    scheduler_stop_reason: SchedulerStopReason = SchedulerStopReason.NOT_STARTED
    epochs: int = 0
    executed: int = 0  # invocations
    component_count: int = 0
    ticked_components: int = 0  # components that ran at least once
    runtime_errors: tuple[RunError, ...] = ()
    error_count: int = 0  # also those that are not kept
    health_events: tuple[HealthEvent, ...] = ()
    health_event_count: int = 0
    runtime_metrics: tuple[Metric, ...] = ()
    totals: Mapping[str, int] = {}  # channel_*_count, loop_*_count, publications
    loops: tuple[LoopOutcome, ...] = ()  # the last outcome of each loop
    workers: tuple[WorkerReport, ...] = ()
    snapshots: Mapping[str, Any] = {}
    trace: Trace | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing failed, at any time."""
        return self.error_count == 0 and self.scheduler_stop_reason != SchedulerStopReason.ERROR

    @property
    def errors(self) -> tuple[str, ...]:
        """Each failure as a sentence."""
        return tuple(str(error) for error in self.runtime_errors)

    def metric(self, name: str, *, lane: str = "", component_id: str = "", channel_id: str = "") -> float:
        """One value; raises KeyError when there is none."""
        for metric in self.runtime_metrics:
            if (metric.name, metric.lane, metric.component_id, metric.channel_id) == (
                name,
                lane,
                component_id,
                channel_id,
            ):
                return metric.value
        raise KeyError(name)

    def raise_if_failed(self) -> None:
        """Raise when a failure ended the run."""
        if self.scheduler_stop_reason == SchedulerStopReason.ERROR:
            fatal = next((error for error in self.runtime_errors if error.fatal), None)
            raise GraphRunFailed(
                f"graph {self.graph_name} failed in epoch {self.epochs}: {fatal or 'unknown'}",
                hint="The result's runtime_errors have the details.",
                graph=self.graph_name,
            )

    def summary(self) -> dict[str, Any]:
        """The result as plain values, for tools."""
        return {
            "ok": self.ok,
            "errors": list(self.errors),
            "runtime_errors": msgspec.to_builtins(self.runtime_errors),
            "graph_name": self.graph_name,
            "run_id": self.run_id,
            "component_count": self.component_count,
            "tick_calls": self.epochs,
            "executed": self.executed,
            "ticked_components": self.ticked_components,
            "stop_reason": self.scheduler_stop_reason.value,
            **self.totals,
            "health_events": msgspec.to_builtins(self.health_events),
            "workers": msgspec.to_builtins(self.workers),
            "metric_schema_version": METRIC_SCHEMA_VERSION,
            "metrics": msgspec.to_builtins(self.runtime_metrics),
        }

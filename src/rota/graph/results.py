"""The result of a run: its outcome, and its counters as metrics and totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rota.errors import GraphRunFailed
from rota.graph.channels import MessageChannel
from rota.graph.engine import GraphEngine
from rota.graph.lanes.worker_settings import WorkerReport
from rota.graph.loops import LoopOutcome, LoopStep
from rota.graph.metrics import METRIC_SCHEMA_VERSION, Metric
from rota.graph.nodes import Node
from rota.graph.reports import HealthEvent, RunError
from rota.graph.run_options import SchedulerStopReason
from rota.graph.spec import PRIORITY_RANKS
from rota.graph.tracing import RunTrace

__all__ = ["RuntimeRunnerResult", "make_result"]


class RuntimeRunnerResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    graph_name: str
    run_id: str
    scheduler_stop_reason: SchedulerStopReason = SchedulerStopReason.NOT_STARTED
    epochs: int = 0
    executed: int = 0  # invocations
    component_count: int = 0
    ticked_components: tuple[str, ...] = ()  # components that ran at least once, in file order
    runtime_errors: tuple[RunError, ...] = ()
    error_count: int = 0  # including those over the limit on `runtime_errors`
    health_events: tuple[HealthEvent, ...] = ()
    health_event_count: int = 0
    runtime_metrics: tuple[Metric, ...] = ()
    totals: Mapping[str, int] = {}  # channel_*_count, loop_*_count, publications
    loops: tuple[LoopOutcome, ...] = ()  # the last outcome of each loop
    workers: tuple[WorkerReport, ...] = ()
    snapshots: Mapping[str, Any] = {}
    trace: RunTrace | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing failed at any time."""
        return self.error_count == 0 and self.scheduler_stop_reason != SchedulerStopReason.ERROR

    @property
    def errors(self) -> tuple[str, ...]:
        """Each failure as one sentence."""
        return tuple(str(error) for error in self.runtime_errors)

    def metric(self, name: str, *, lane: str = "", component_id: str = "", channel_id: str = "") -> float:
        """Return one metric's value; raises KeyError if there is none."""
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
        """Raise if a failure ended the run."""
        if self.scheduler_stop_reason == SchedulerStopReason.ERROR:
            fatal = next((error for error in self.runtime_errors if error.fatal), None)
            raise GraphRunFailed(
                f"graph {self.graph_name} failed in epoch {self.epochs}: {fatal or 'unknown'}",
                hint="See `runtime_errors` of the result for details.",
                graph=self.graph_name,
            )

    def summary(self) -> dict[str, Any]:
        """Return the result as plain values, for tools."""
        return {
            "ok": self.ok,
            "errors": list(self.errors),
            "runtime_errors": msgspec.to_builtins(self.runtime_errors),
            "graph_name": self.graph_name,
            "run_id": self.run_id,
            "component_count": self.component_count,
            "epochs": self.epochs,
            "executed": self.executed,
            "tick_calls": self.executed,  # calls of components, not epochs
            "ticked_components": list(self.ticked_components),
            "stop_reason": self.scheduler_stop_reason.value,
            **self.totals,
            "health_event_count": self.health_event_count,
            "health_events": msgspec.to_builtins(self.health_events),
            "workers": msgspec.to_builtins(self.workers),
            "metric_schema_version": METRIC_SCHEMA_VERSION,
            "metrics": msgspec.to_builtins(self.runtime_metrics),
        }


_CHANNEL_COUNTS = {
    "drop_count": "drops",
    "overwrite_count": "overwrites",
    "reject_count": "rejects",
    "stale_drop_count": "stale_drops",
    "deadline_miss_count": "deadline_misses",
    "health_event_count": "health_events",
    "payload_copy_count": "payload_copies",
    "committed_count": "committed",
}
_ASYNC_COUNTS = {
    "accepted_count": "committed",
    "rejected_count": "rejects",
    "dropped_count": "drops",
    "overwrite_count": "overwrites",
    "max_in_flight_count": "max_depth",
}
_LOOP_COUNTS = {
    "run_count": "runs",
    "iteration_count": "iterations",
    "converged_count": "converged",
    "budget_overrun_count": "budget_overruns",
    "cancelled_count": "cancelled",
    "discarded_count": "discarded",
}
_NODE_COUNTS = {
    "execute_count": "executed",
    "retry_count": "retries",
    "completed_count": "completed",
    "error_count": "failed",
    "cancellation_requested_count": "cancellations_requested",
    "cancellation_observed_count": "cancellations_observed",
    "timeout_budget_exceeded_count": "budgets_exceeded",
}


def make_result(engine: GraphEngine, stop_reason: SchedulerStopReason, epochs: int) -> RuntimeRunnerResult:
    """Return the result of a run that has ended."""
    nodes, reports = engine.wiring.nodes.values(), engine.reports
    return RuntimeRunnerResult(
        graph_name=engine.plan.name,
        run_id=engine.run_id,
        scheduler_stop_reason=stop_reason,
        epochs=epochs,
        executed=engine.executed + sum(lane.executed for lane in engine.lanes.independent.values()),
        component_count=len(nodes),
        ticked_components=tuple(node.id for node in nodes if node.executed),
        runtime_errors=tuple(reports.errors),
        error_count=reports.error_count,
        health_events=tuple(reports.health_events),
        health_event_count=reports.health_count,
        runtime_metrics=tuple(_metrics(engine)),
        totals=_totals(engine),
        loops=tuple(loop.outcome for loop in engine.lanes.loops if loop.outcome is not None),
        workers=tuple(engine.lanes.worker_reports()),
        snapshots=dict(engine.lifecycle.snapshots),
        trace=engine.recorder.trace if engine.recorder is not None else None,
    )


def _channels(engine: GraphEngine) -> list[MessageChannel]:
    return [*engine.wiring.channels.values(), *engine.wiring.inboxes.values()]


def _totals(engine: GraphEngine) -> dict[str, int]:
    channels, loops = _channels(engine), engine.lanes.loops
    totals = {f"channel_{name}": _sum(channels, field) for name, field in _CHANNEL_COUNTS.items()}
    totals |= {f"loop_{name}": _sum(loops, field) for name, field in _LOOP_COUNTS.items()}
    waiting = len(engine.wiring.deferred) + len(engine.wiring.outbox)
    discarded = sum(loop.discarded for loop in loops)
    offered = sum(channel.offered_here for channel in channels)
    committed = totals.pop("channel_committed_count")
    return {
        **totals,
        "channel_max_depth": max((channel.max_depth for channel in channels), default=0),
        "staged_publication_count": offered + waiting + discarded,
        "committed_publication_count": committed,
    }


def _sum(counted: Sequence[MessageChannel] | Sequence[LoopStep], field: str) -> int:
    return sum(getattr(each, field) for each in counted)


def _metrics(engine: GraphEngine) -> Iterator[Metric]:
    yield from _lane_metrics(engine)
    for node in engine.wiring.nodes.values():
        yield from _node_metrics(node)
        yield from _trigger_metrics(node)
    for channel in _channels(engine):
        for name, field in _CHANNEL_COUNTS.items():
            yield Metric(name=f"runtime.channel.{name}", value=getattr(channel, field), channel_id=channel.id)
        yield Metric(name="runtime.channel.max_depth", value=channel.max_depth, channel_id=channel.id)
    for loop in engine.lanes.loops:
        yield from _loop_metrics(loop)
    yield from _publication_metrics(engine)
    yield from _async_metrics(engine)
    yield from _health_metrics(engine)
    yield from _task_metrics(engine)


def _lane_metrics(engine: GraphEngine) -> Iterator[Metric]:
    """Yield all twenty metrics of every lane; only lanes with a pace of their own tick."""
    for lane in engine.plan.lanes.values():
        meter = engine.meters[lane.id]
        completed = [0] * len(PRIORITY_RANKS)
        for component_id in lane.components:
            node = engine.wiring.nodes[component_id]
            completed[node.rank] += node.completed
        yield from meter.metrics(lane.id, completed)


def _node_metrics(node: Node) -> Iterator[Metric]:
    values = {name: getattr(node, field) for name, field in _NODE_COUNTS.items()}
    values["busy_duration_ms"] = node.busy_s * 1000
    for name, value in values.items():
        yield Metric(name=f"runtime.component.{name}", value=value, component_id=node.id, lane=node.lane.id)


def _trigger_metrics(node: Node) -> Iterator[Metric]:
    """Yield how often a trigger was ready and how often it was not although messages waited, and what its kind does."""
    counts = {"ready_count": node.executed + node.rejected, "suppressed_count": node.suppressions}
    for name, value in (counts | node.trigger.counts()).items():
        yield Metric(name=f"runtime.trigger.{name}", value=value, component_id=node.id, lane=node.lane.id)


def _publication_metrics(engine: GraphEngine) -> Iterator[Metric]:
    """Yield how many publications there were: in all, and by what they wait for."""
    totals, kinds = _totals(engine), Counter[str]()
    for edge in engine.plan.edges.values():
        kinds[edge.spec.kind] += engine.wiring.channels[edge.id].offered_here
    counts = {
        "staged": totals["staged_publication_count"],
        "committed": totals["committed_publication_count"],
        "delayed": kinds["delay"],
        "state": kinds["state"],
        "async": kinds["async"],
        "composite_discarded": sum(loop.discarded for loop in engine.lanes.loops),
        "outbox_rejected": engine.wiring.outbox.rejected,
    }
    for name, value in counts.items():
        yield Metric(name=f"runtime.publication.{name}", value=value)


def _async_metrics(engine: GraphEngine) -> Iterator[Metric]:
    """Yield what happened to the messages of each async edge."""
    for edge in engine.plan.edges.values():
        if edge.spec.kind == "async":
            channel = engine.wiring.channels[edge.id]
            for name, field in _ASYNC_COUNTS.items():
                yield Metric(name=f"runtime.async.{name}", value=getattr(channel, field), channel_id=channel.id)
            yield Metric(name="runtime.async.in_flight_count", value=len(channel), channel_id=channel.id)


def _health_metrics(engine: GraphEngine) -> Iterator[Metric]:
    kept, count = len(engine.reports.health_events), engine.reports.health_count
    yield Metric(name="runtime.health.event_count", value=kept)
    yield Metric(name="runtime.health.dropped_count", value=count - kept)


def _loop_metrics(loop: LoopStep) -> Iterator[Metric]:
    for name, field in _LOOP_COUNTS.items():
        yield Metric(name=f"runtime.loop.{name}", value=getattr(loop, field), tags={"loop_id": loop.id})


def _task_metrics(engine: GraphEngine) -> Iterator[Metric]:
    tasks = engine.tasks
    counts = {
        "completed_count": tasks.completed,
        "failed_count": tasks.failed,
        "rejected_count": tasks.rejected,
        "budget_exceeded_count": tasks.budgets_exceeded,
    }
    for name, value in counts.items():
        yield Metric(name=f"runtime.task.{name}", value=value)

"""From the counters of a run to its metrics and totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rota.graph.channels import Channel
from rota.graph.engine import Engine
from rota.graph.loops import LoopStep
from rota.graph.metrics import Metric
from rota.graph.nodes import Node
from rota.graph.run_options import RuntimeRunnerResult, SchedulerStopReason
from rota.graph.spec import PRIORITY_RANKS

__all__ = ["make_result"]

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


def make_result(engine: Engine, stop_reason: SchedulerStopReason, epochs: int) -> RuntimeRunnerResult:
    """What a run came to."""
    nodes, reports = engine.wiring.nodes.values(), engine.reports
    return RuntimeRunnerResult(
        graph_name=engine.plan.name,
        run_id=engine.run_id,
        scheduler_stop_reason=stop_reason,
        epochs=epochs,
        executed=engine.executed + sum(lane.executed for lane in engine.lanes.independent.values()),
        component_count=len(nodes),
        ticked_components=sum(node.executed > 0 for node in nodes),
        runtime_errors=tuple(reports.errors),
        error_count=reports.error_count,
        health_events=tuple(reports.health_events),
        health_event_count=reports.health_count,
        runtime_metrics=tuple(_metrics(engine, epochs)),
        totals=_totals(engine),
        loops=tuple(loop.outcome for loop in engine.lanes.loops if loop.outcome is not None),
        workers=tuple(engine.lanes.worker_reports()),
        snapshots=dict(engine.lifecycle.snapshots),
        trace=engine.recorder.trace if engine.recorder is not None else None,
    )


def _channels(engine: Engine) -> list[Channel]:
    return [*engine.wiring.channels.values(), *engine.wiring.inboxes.values()]


def _totals(engine: Engine) -> dict[str, int]:
    channels, loops = _channels(engine), engine.lanes.loops
    totals = {f"channel_{name}": _sum(channels, field) for name, field in _CHANNEL_COUNTS.items()}
    totals |= {f"loop_{name}": _sum(loops, field) for name, field in _LOOP_COUNTS.items()}
    waiting = len(engine.wiring.deferred) + len(engine.wiring.outbox)
    discarded = sum(loop.discarded for loop in loops)
    offered = sum(channel.offers for channel in channels)
    committed = totals.pop("channel_committed_count")
    return {
        **totals,
        "channel_max_depth": max((channel.max_depth for channel in channels), default=0),
        "staged_publication_count": offered + waiting + discarded,
        "committed_publication_count": committed,
    }


def _sum(things: Sequence[Channel] | Sequence[LoopStep], field: str) -> int:
    return sum(getattr(thing, field) for thing in things)


def _metrics(engine: Engine, epochs: int) -> Iterator[Metric]:
    yield from _lane_metrics(engine, epochs)
    for node in engine.wiring.nodes.values():
        yield from _node_metrics(node)
    for channel in _channels(engine):
        for name, field in _CHANNEL_COUNTS.items():
            yield Metric(name=f"runtime.channel.{name}", value=getattr(channel, field), channel_id=channel.id)
        yield Metric(name="runtime.channel.max_depth", value=channel.max_depth, channel_id=channel.id)
    for loop in engine.lanes.loops:
        yield from _loop_metrics(loop)
    yield from _task_metrics(engine)


def _lane_metrics(engine: Engine, epochs: int) -> Iterator[Metric]:
    """All twenty of every lane; a lane in the region order without a cadence ticks once an epoch."""
    for lane in engine.plan.lanes.values():
        meter = engine.meters[lane.id]
        if not lane.independent and lane.type != "fixed_rate":
            meter.tick_count = epochs
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


def _loop_metrics(loop: LoopStep) -> Iterator[Metric]:
    for name, field in _LOOP_COUNTS.items():
        yield Metric(name=f"runtime.loop.{name}", value=getattr(loop, field), tags={"loop_id": loop.id})


def _task_metrics(engine: Engine) -> Iterator[Metric]:
    tasks = engine.tasks
    counts = {
        "completed_count": tasks.completed,
        "failed_count": tasks.failed,
        "rejected_count": tasks.rejected,
        "budget_exceeded_count": tasks.budgets_exceeded,
    }
    for name, value in counts.items():
        yield Metric(name=f"runtime.task.{name}", value=value)

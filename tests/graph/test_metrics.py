"""All twenty scheduler metrics, for every lane, under their names."""

from __future__ import annotations

from typing import Any

import pytest

from rota.clock import ManualClock
from rota.graph.components import component
from rota.graph.metrics import SCHEDULER_METRICS
from rota.graph.results import RuntimeRunnerResult
from tests.graph.parts import Count, add, burst, note
from tests.graph.worlds import make_runner, node, run, wire

NAMES = {
    "tick_count",
    "completed_count",
    "tick_overrun_count",
    "skipped_tick_count",
    "max_lateness_ms",
    "queue_depth",
    "queue_capacity",
    "worker_count",
    "last_callback_duration_ms",
    "blocked_duration_ms",
    "tick_jitter_ms",
    "active_count",
    "in_flight_count",
    "rejected_count",
    "priority_high_count",
    "priority_normal_count",
    "priority_low_count",
    "priority_background_count",
    "low_priority_rejected_count",
    "starvation_guard_count",
}
LANES: dict[str, Any] = {
    "loop": {"type": "event_loop"},
    "rate": {"type": "fixed_rate", "period_ms": 10},
    "pool": {"type": "thread_pool", "max_threads": 2, "queue_capacity": 7},
    "own": {"type": "isolated_thread"},
    "ui": {"type": "manual_step"},
}


def values(result: RuntimeRunnerResult, lane: str) -> dict[str, float]:
    return {
        metric.name.removeprefix("runtime.scheduler."): metric.value
        for metric in result.runtime_metrics
        if metric.lane == lane and metric.name.startswith("runtime.scheduler.")
    }


def test_the_names_are_exactly_these_twenty() -> None:
    assert len(SCHEDULER_METRICS) == 20
    assert set(SCHEDULER_METRICS) == {f"runtime.scheduler.{name}" for name in NAMES}


def test_every_lane_reports_all_of_them_in_the_same_order() -> None:
    nodes = [node(Count, lane, lane=lane) for lane in LANES]
    with make_runner(nodes, lanes=LANES) as runner:
        runner.step()
        runner.step("ui")
    for lane in LANES:
        assert tuple(values(runner.result, lane)) == tuple(
            name.removeprefix("runtime.scheduler.") for name in SCHEDULER_METRICS
        )


def test_an_event_loop_counts_by_class_and_has_neither_workers_nor_a_queue() -> None:
    nodes = [
        node(Count, "a", priority="high"),
        node(Count, "b"),
        node(Count, "c"),
        node(Count, "d", priority="low"),
        node(Count, "e", priority="background"),
    ]
    seen = values(run(nodes, steps=3), "main")
    assert (seen["tick_count"], seen["completed_count"]) == (3, 15)
    assert [seen[f"priority_{word}_count"] for word in ("high", "normal", "low", "background")] == [3, 6, 3, 3]
    for name in ("queue_depth", "queue_capacity", "worker_count", "active_count", "in_flight_count", "rejected_count"):
        assert seen[name] == 0


def test_the_last_callback_is_the_one_that_ended_last() -> None:
    clock = ManualClock()

    @component("metrics.slow")
    def slow(*, seconds: float) -> None:
        clock.advance(seconds)

    nodes = [node(slow, "a", config={"seconds": 0.5}), node(slow, "b", config={"seconds": 0.25})]
    seen = values(run(nodes, clock=clock), "main")
    assert seen["last_callback_duration_ms"] == 250


def test_components_channels_and_publications_are_counted_too() -> None:
    nodes = [node(burst, config={"size": 4}), node(add, on="any_input"), node(note, on="any_input")]
    wires = [
        wire("parts.burst.out > parts.add.value", mode="queue", capacity=3, overflow="drop_newest"),
        wire("parts.add.out > parts.note.value"),
    ]
    result = run(nodes, wires, steps=2)
    count = result.metric
    assert count("runtime.component.completed_count", component_id="parts.add", lane="main") == 6
    assert count("runtime.channel.drop_count", channel_id="parts.burst>parts.add") == 2
    assert count("runtime.channel.max_depth", channel_id="parts.burst>parts.add") == 3
    assert count("runtime.channel.overwrite_count", channel_id="parts.add>parts.note") == 4
    assert result.totals["channel_drop_count"] == 2
    assert result.totals["channel_overwrite_count"] == 4  # which is not a drop
    assert (result.totals["staged_publication_count"], result.totals["committed_publication_count"]) == (14, 12)


def test_publications_for_an_epoch_that_never_ran_are_not_committed() -> None:
    nodes = [node(Count), node(note, on="any_input")]
    result = run(nodes, [wire("parts.count.out > parts.note.value", "delay")], steps=3)
    assert (result.totals["staged_publication_count"], result.totals["committed_publication_count"]) == (3, 2)


def test_a_missing_metric_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        run([node(Count)]).metric("runtime.scheduler.no_such_count", lane="main")

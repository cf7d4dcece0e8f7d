"""All twenty scheduler metrics, for every lane, under their names."""

from __future__ import annotations

from typing import Any

import pytest

from rota.clock import ManualClock
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.metrics import SCHEDULER_METRICS
from rota.graph.results import RuntimeRunnerResult
from tests.graph.parts import Count, add, burst, note, note_many
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


@component("metrics.few")
class Few:
    """Publishes in its first run only."""

    def __init__(self) -> None:
        self.runs = 0

    def execute(self) -> int | None:
        self.runs += 1
        return 1 if self.runs == 1 else None


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
    assert (seen["tick_count"], seen["completed_count"]) == (0, 15)  # ticks are those of lanes with a pace
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


class TestTriggers:
    """What triggers do is counted: how often they were ready, and what they kept back, merged or dropped."""

    def counts(self, result: RuntimeRunnerResult, component_id: str = "t", lane: str = "main") -> dict[str, float]:
        prefix = "runtime.trigger."
        found = [each for each in result.runtime_metrics if each.name.startswith(prefix)]
        mine = [each for each in found if (each.component_id, each.lane) == (component_id, lane)]
        return {each.name.removeprefix(prefix): each.value for each in mine}

    @pytest.mark.parametrize("kind", ["event_loop", "thread_pool"])
    def test_ready_and_suppressed(self, kind: str) -> None:
        nodes = [node(Count, "a"), node(Few, "b"), node(note_many, "t", on="all_inputs", lane="x")]
        wires = [wire("a.out > t.values", id="a", mode="queue", capacity=9), wire("b.out > t.values", id="b")]
        lanes = {"main": {"type": "event_loop"}, "x": {"type": kind}}
        result = run(nodes, wires, lanes=lanes, steps=3, trace=True)
        assert self.counts(result, lane="x") == {"ready_count": 1, "suppressed_count": 2}
        assert self.counts(result, "a") == {"ready_count": 3, "suppressed_count": 0}
        assert result.trace is not None
        (first, _) = [event for event in result.trace.events() if event.name == "trigger_suppressed"]
        assert (first.component_id, first.lane, first.epoch_id) == ("t", "x", 2)
        assert first.attributes == {"trigger": "all_inputs", "waiting": "1"}

    def test_on_a_lane_of_its_own(self) -> None:
        nodes = [node(Count, "a"), node(Few, "b"), node(note_many, "t", on="all_inputs", lane="ui")]
        wires = [wire("a.out > t.values", "delay", id="a"), wire("b.out > t.values", "delay", id="b")]
        lanes = {"main": {"type": "event_loop"}, "ui": {"type": "manual_step"}}
        with make_runner(nodes, wires, lanes=lanes) as runner:
            for _ in range(3):
                runner.step()
                runner.step("ui")
        assert self.counts(runner.result, lane="ui") == {"ready_count": 1, "suppressed_count": 1}

    @pytest.mark.parametrize(
        ("trigger", "name", "value"),
        [
            ({"type": "debounce"}, "coalesced_count", 2),
            ({"type": "any_input", "coalesce": True}, "coalesced_count", 2),
            ({"type": "rate_limit", "min_interval_ms": 60_000}, "rate_limit_suppressed_count", 1),
            ({"type": "batch", "batch_size": 2}, "batch_flush_count", 1),
            ({"type": "any_input", "max_latency_ms": 5}, "timeout_drop_count", 3),
        ],
    )
    def test_what_each_kind_does(self, trigger: dict[str, Any], name: str, value: int) -> None:
        clock = ManualClock()

        @component("metrics.slow_burst", outputs=("out",))
        def slow_burst(context: GraphContext) -> None:
            for number in range(3):
                context.publish("out", number)

        @component("metrics.wait")
        def wait(value: int = 0) -> None:
            clock.advance(1)

        nodes = [
            node(slow_burst, "b"),
            node(wait, "w", on="any_input"),
            node(note_many, "t", on={**trigger, "inputs": ["values"]}, priority="low"),
        ]
        wires = [wire("b.out > t.values", mode="queue", capacity=9), wire("b.out > w.value")]
        counts = self.counts(run(nodes, wires, steps=1, clock=clock))
        assert counts[name] == value

    def test_late_and_unaligned_messages(self) -> None:
        @component("metrics.stamped", outputs=("out",))
        def stamped(context: GraphContext) -> None:
            for stamp in (100, 10, 200):
                context.publish("out", stamp, timestamp_ms=stamp)

        nodes = [node(stamped, "s"), node(note, "t", on={"type": "watermark", "inputs": ["value"]})]
        result = run(nodes, [wire("s.out > t.value", mode="queue", capacity=9)])
        assert self.counts(result)["late_drop_count"] == 1

    def test_rejected_invocations_were_ready(self) -> None:
        lanes = {"main": {"type": "thread_pool", "queue_capacity": 1}}
        nodes = [node(burst, "b", config={"size": 5}), node(note, "t", on="any_input")]
        result = run(nodes, [wire("b.out > t.value", mode="queue", capacity=9)], lanes=lanes)
        assert self.counts(result) == {"ready_count": 5, "suppressed_count": 0}


def test_publications_by_kind_async_edges_and_health() -> None:
    nodes = [node(burst, config={"size": 3}), *(node(note, name, on="any_input") for name in "abcd")]
    wires = [
        wire("parts.burst.out > a.value", mode="queue", capacity=9),
        wire("parts.burst.out > b.value", "delay", mode="queue", capacity=9),
        wire("parts.burst.out > c.value", "state"),
        wire("parts.burst.out > d.value", "async", mode="queue", capacity=9, max_inflight=2, overflow="drop_oldest"),
    ]
    result = run(nodes, wires, steps=2)
    kinds = ("staged", "committed", "delayed", "state", "async", "composite_discarded")
    assert [result.metric(f"runtime.publication.{kind}") for kind in kinds] == [24, 15, 3, 3, 3, 0]
    names = ("accepted", "rejected", "dropped", "overwrite", "max_in_flight", "in_flight")
    counts = [result.metric(f"runtime.async.{name}_count", channel_id="parts.burst>d") for name in names]
    assert counts == [3, 0, 1, 0, 2, 0]
    assert result.metric("runtime.health.event_count") == 1
    assert result.metric("runtime.health.dropped_count") == 0


def test_a_missing_metric_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        run([node(Count)]).metric("runtime.scheduler.no_such_count", lane="main")

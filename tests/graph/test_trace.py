"""The trace: every event under its name, in a fixed order, and in the formats other tools read."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.graph.components import component
from rota.graph.results import RuntimeRunnerResult
from rota.graph.tracing import LOOP_EVENTS, TRACE_EVENTS, TraceEvent
from rota.observe.graph_trace import to_chrome, to_ndjson
from tests.graph.parts import Count, add, burst, note
from tests.graph.worlds import make_runner, names, node, run, wire

SEVENTEEN = {
    "scheduler_iteration_begin",
    "scheduler_iteration",
    "scheduler_iteration_end",
    "component_execute_begin",
    "component_execute",
    "component_execute_end",
    "component_cancellation_requested",
    "component_cancellation_observed",
    "component_timeout_budget_exceeded",
    "thread_pool_batch",
    "fixed_rate_tick_begin",
    "fixed_rate_tick",
    "fixed_rate_tick_end",
    "fixed_rate_overrun",
    "fixed_rate_skipped_tick",
    "loop_cancellation_requested",
    "loop_cancellation_observed",
}


def pipeline(**options: Any) -> RuntimeRunnerResult:
    nodes = [node(Count, "a"), node(add, "b", on="any_input"), node(note, "c", on="any_input")]
    return run(nodes, [wire("a.out > b.value"), wire("b.out > c.value")], trace=True, **options)


def events(result: RuntimeRunnerResult) -> list[TraceEvent]:
    assert result.trace is not None
    return list(result.trace.events())


def test_the_seventeen_names_of_the_seed_and_those_of_publications_loops_triggers_and_health() -> None:
    more = {"publication_staged", "publication_committed", "trigger_suppressed", "health_event", *LOOP_EVENTS}
    assert set(TRACE_EVENTS) == SEVENTEEN | more
    assert len(TRACE_EVENTS) == 17 + 4 + len(LOOP_EVENTS)


class TestLoops:
    def trace(self, **policy: Any) -> list[TraceEvent]:
        @component("trace.grow")
        def grow(value: int = 0) -> int:
            return value + 1

        nodes = [node(grow, "a"), node(add, "b", on="any_input"), node(note, on="any_input")]
        wires = [wire("a.out > b.value"), wire("b.out > a.value"), wire("b.out > parts.note.value", id="out")]
        loop = {"id": "loop", "components": ["a", "b"], "loop_policy": {"type": "solver_iteration", **policy}}
        found = events(run(nodes, wires, loops=[loop], trace=True))
        return [event for event in found if event.name in LOOP_EVENTS]

    def test_each_iteration_has_its_events(self) -> None:
        found = self.trace(max_iterations=2, partial_success="commit_outputs")
        assert [event.name for event in found] == [
            *("loop_iteration_begin", "loop_iteration", "loop_iteration_end") * 2,
            "loop_max_iterations_hit",
        ]
        assert {(event.component_id, event.lane, event.epoch_id) for event in found} == {("loop", "main", 1)}
        assert found[4].attributes == {"iteration": "2", "policy": "solver_iteration"}
        assert found[-1].attributes == {"reason": "max_iterations", "iterations": "2"}

    def test_how_it_ended_and_what_was_discarded(self) -> None:
        assert [event.name for event in self.trace(convergence="always")][-1] == "loop_converged"
        *_, ended, discarded = self.trace(max_iterations=1)
        assert (ended.name, discarded.name) == ("loop_max_iterations_hit", "loop_output_discarded")
        assert discarded.attributes == {"reason": "max_iterations", "count": "1"}


def test_health_events_are_in_the_trace_where_they_happened() -> None:
    nodes = [node(burst, config={"size": 3}), node(note, on="any_input")]
    wires = [wire("parts.burst.out > parts.note.value", mode="queue", capacity=2, overflow="drop_newest")]
    result = run(nodes, wires, trace=True)
    (event,) = [each for each in events(result) if each.name == "health_event"]
    assert (event.component_id, event.channel_id, event.epoch_id) == ("parts.note", "parts.burst>parts.note", 1)
    assert event.attributes["kind"] == "channel_drop"
    assert "already waiting" in event.attributes["reason"]
    assert names(result).index("health_event") < names(result).index("scheduler_iteration")


def test_one_epoch_of_a_three_stage_pipeline_is_sixteen_events_in_a_fixed_order() -> None:
    executed = ["component_execute_begin", "component_execute", "component_execute_end"]
    published = ["publication_staged", "publication_committed"]
    assert names(pipeline(steps=1)) == [
        "scheduler_iteration_begin",
        *executed,
        *published,
        *executed,
        *published,
        *executed,
        "scheduler_iteration",
        "scheduler_iteration_end",
    ]


def test_the_same_run_gives_the_same_events() -> None:
    def told() -> list[TraceEvent]:
        return events(pipeline(steps=3, clock=ManualClock(), run_id="same"))

    assert told() == told()


def test_an_event_has_all_its_fields() -> None:
    event = next(
        each for each in events(pipeline(run_id="r")) if each.name == "component_execute" and each.component_id == "b"
    )
    plain = json.loads(next(iter(to_ndjson([event]))))
    assert set(plain) == {
        "name",
        "trace_id",
        "phase",
        "component_id",
        "channel_id",
        "lane",
        "worker_id",
        "epoch_id",
        "transaction_id",
        "correlation_id",
        "causation_id",
        "start_offset_ns",
        "duration_ns",
        "attributes",
    }
    assert (event.trace_id, event.lane, event.epoch_id, event.worker_id) == ("r", "main", 1, None)
    assert (event.correlation_id, event.causation_id) == ("a>b#1", "a>b#1")


def test_a_publication_is_staged_in_one_epoch_and_committed_at_the_boundary_of_the_next() -> None:
    nodes = [node(Count, "a"), node(note, "b", on="any_input")]
    result = run(nodes, [wire("a.out > b.value", "delay")], trace=True, steps=2)
    told = [
        (event.name, event.epoch_id, event.transaction_id)
        for event in events(result)
        if event.name.startswith("publication")
    ]
    assert told == [
        ("publication_staged", 1, ""),
        ("publication_committed", 2, "2/boundary"),
        ("publication_staged", 2, ""),
    ]


def test_durations_are_measured_by_the_runs_clock_from_its_beginning() -> None:
    clock = ManualClock()
    clock.advance(100)

    @component("trace.slow")
    def slow() -> None:
        clock.advance(0.25)

    result = run([node(slow)], trace=True, clock=clock, steps=2)
    spans = [
        (event.start_offset_ns, event.duration_ns) for event in events(result) if event.name == "component_execute"
    ]
    assert spans == [(0, 250_000_000), (250_000_000, 250_000_000)]


def test_a_failed_execution_is_traced_with_its_error_and_every_attribute_is_text() -> None:
    @component("trace.broken")
    def broken() -> None:
        raise ValueError("no")

    result = run([node(broken, on_error="retry", max_attempts=2)], trace=True)
    event = next(each for each in events(result) if each.name == "component_execute")
    assert event.attributes == {"error": "ValueError: no", "attempts": "2"}


def test_a_budget_that_was_exceeded_is_traced_on_both_paths() -> None:
    clock = ManualClock()

    @component("trace.plain")
    def plain() -> int:
        clock.advance(0.02)
        return 1

    @component("trace.long")
    def long(context: Any) -> int:
        clock.advance(0.02)
        return 1

    for thing in (plain, long):
        result = run([node(thing, budget_ms=10)], trace=True, clock=clock)
        (event,) = [each for each in events(result) if each.name == "component_timeout_budget_exceeded"]
        assert event.attributes == {"budget_ms": "10", "duration_ms": "20.000"}


def test_the_lanes_longest_callback_is_a_budget_where_the_component_has_none() -> None:
    clock = ManualClock()

    @component("trace.slow")
    def slow() -> None:
        clock.advance(0.02)

    lanes = {"main": {"type": "event_loop", "max_callback_ms": 10}}
    result = run([node(slow, "a"), node(slow, "b", budget_ms=30)], lanes=lanes, clock=clock)
    exceeded = "runtime.component.timeout_budget_exceeded_count"
    assert [result.metric(exceeded, component_id=name, lane="main") for name in "ab"] == [1, 0]


def test_only_the_latest_rows_are_kept_and_the_others_are_counted() -> None:
    result = pipeline(steps=100, trace_rows_max=50)
    assert result.trace is not None
    assert len(result.trace.rows) == 50
    assert result.trace.rows_dropped == 450
    assert events(result)[-1].epoch_id == 100


def test_without_the_option_nothing_is_recorded() -> None:
    assert run([node(Count)]).trace is None


class TestChrome:
    def trace(self) -> dict[str, Any]:
        barrier = threading.Barrier(2)

        @component("trace.meet")
        def meet(value: int) -> int:
            barrier.wait(30)
            return value

        nodes = [
            node(burst, config={"size": 2}),
            node(meet, on="any_input", lane="pool", reentrant=True),
            node(note, on="any_input"),
        ]
        wires = [
            wire("parts.burst.out > trace.meet.value", mode="queue", capacity=9),
            wire("trace.meet.out > parts.note.value", mode="queue", capacity=9),
        ]
        lanes = {"main": {"type": "event_loop"}, "pool": {"type": "thread_pool", "max_threads": 2}}
        return to_chrome(events(run(nodes, wires, lanes=lanes, trace=True)))

    def test_there_is_one_track_per_worker(self) -> None:
        rows = self.trace()["traceEvents"]
        tracks = {row["tid"]: row["args"]["name"] for row in rows if row["name"] == "thread_name"}
        assert sorted(tracks.values()) == ["main", "pool", "pool worker 0", "pool worker 1", "scheduler"]
        on_workers = {tracks[row["tid"]] for row in rows if row["ph"] == "X" and row["name"] == "trace.meet"}
        assert on_workers == {"pool worker 0", "pool worker 1"}

    def test_spans_have_microseconds_and_lie_inside_their_epoch(self) -> None:
        rows = self.trace()["traceEvents"]
        (epoch,) = [row for row in rows if row["name"] == "scheduler_iteration"]
        for row in rows:
            if row["ph"] == "X":
                assert epoch["ts"] <= row["ts"] + 0.001
                assert row["ts"] + row["dur"] <= epoch["ts"] + epoch["dur"] + 0.001

    def test_a_message_is_an_arrow_from_its_publisher_to_its_reader(self) -> None:
        rows = self.trace()["traceEvents"]
        begins = {row["id"]: row["args"]["message_id"] for row in rows if row["ph"] == "s"}
        ends = {row["id"]: row["args"]["message_id"] for row in rows if row["ph"] == "f"}
        assert begins == ends
        assert len(begins) == 4

    def test_it_is_json_that_a_viewer_can_open(self) -> None:
        trace = json.loads(json.dumps(self.trace()))
        assert set(trace) == {"displayTimeUnit", "traceEvents"}
        for row in trace["traceEvents"]:
            assert {"name", "ph", "pid", "tid"} <= set(row)
            assert row["ph"] == "M" or row["ts"] >= 0

    def test_instants_are_on_their_track(self) -> None:
        clock = ManualClock()

        @component("trace.slow")
        def slow() -> None:
            clock.advance(0.02)

        rows = to_chrome(events(run([node(slow, budget_ms=1)], trace=True, clock=clock)))["traceEvents"]
        assert [row["name"] for row in rows if row["ph"] == "i"] == ["component_timeout_budget_exceeded"]

    def test_an_empty_trace_is_a_valid_file(self) -> None:
        assert [row["ph"] for row in to_chrome([])["traceEvents"]] == ["M", "M", "M"]


def test_ndjson_has_one_line_per_event() -> None:
    told = events(pipeline())
    lines = list(to_ndjson(told))
    assert len(lines) == 16
    assert [json.loads(line)["name"] for line in lines] == [event.name for event in told]
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize("kind", ["isolated_thread", "manual_step"])
def test_independent_lanes_write_to_the_same_trace(kind: str) -> None:
    lanes = {"main": {"type": "event_loop"}, "x": {"type": kind}}
    with make_runner([node(Count, lane="x")], lanes=lanes, trace=True) as runner:
        runner.step()
        if kind == "manual_step":
            runner.step("x")
    assert "component_execute" in names(runner.result)

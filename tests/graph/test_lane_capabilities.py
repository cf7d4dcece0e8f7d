"""The features of the lane types. Each feature in `capabilities.IMPLEMENTED` has a test of its name, here or in the
tests of that lane type; a feature of several lane types is tested on each of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.graph.capabilities import IMPLEMENTED
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import SchedulerStopReason
from rota.graph.spec import DURABLE_LANE_TYPES
from rota.graph.stop import StopToken
from rota.graph.tracing import TraceEvent
from tests.graph.parts import burst
from tests.graph.process_parts import pass_on, twice, until_cancelled
from tests.graph.worlds import make_runner, node, wire


def for_lanes_with(word: str) -> pytest.MarkDecorator:
    """Run a test for every lane type with this feature, except durable lanes, which have their own tests."""
    kinds = [kind for kind, words in IMPLEMENTED.items() if word in words and kind not in DURABLE_LANE_TYPES]
    return pytest.mark.parametrize("kind", kinds)


class Lane:
    """A small graph with some components on a lane `x` of one type."""

    def __init__(self, kind: str, nodes: list[Any], wires: list[Any], **more: Any) -> None:
        fields, options = more.pop("fields", {}), more
        lanes = {"main": {"type": "event_loop"}, "x": {"type": kind, **fields}}
        self.kind = kind
        self.token: StopToken = options.setdefault("stop_token", StopToken())
        self.runner: RuntimeRunner = make_runner(nodes, wires, lanes=lanes, trace=True, **options)

    def run(self, epochs: int = 1) -> RuntimeRunnerResult:
        """Run this order_of epochs; in each, the lane executes everything that is ready."""
        with self.runner:
            for _ in range(epochs):
                self.runner.step()
                self.catch_up()
        return self.runner.result

    def catch_up(self) -> None:
        engine = self.runner._require_engine()
        if self.kind == "manual_step":
            self.runner.step("x")
        while self.kind == "isolated_thread":
            count = engine.wake_signal.count
            if engine.lanes.isolated["x"].is_idle or engine.reports.failure:
                break
            engine.wake_signal.wait(count)


def executions(result: RuntimeRunnerResult, lane: str = "x") -> list[TraceEvent]:
    """Return the executions on a lane, sorted by start time."""
    assert result.trace is not None
    found = [each for each in result.trace.events() if each.name == "component_execute" and each.lane == lane]
    return sorted(found, key=lambda event: event.start_offset_ns)


def order(result: RuntimeRunnerResult) -> list[str]:
    return [event.component_id for event in executions(result)]


@for_lanes_with("deterministic_region_order")
def test_deterministic_region_order(kind: str) -> None:
    """a runs before b before c, independent of their priorities and their order in the file."""

    def once() -> list[str]:
        nodes = [
            node(pass_on, "c", lane="x", on="any_input", priority="high"),
            node(pass_on, "a", lane="x", config={"start": 1}, priority="low"),
            node(pass_on, "b", lane="x", on="any_input"),
        ]
        return order(Lane(kind, nodes, [wire("a.out > b.value"), wire("b.out > c.value")]).run(epochs=2))

    assert once() == ["a", "b", "c", "a", "b", "c"]


@for_lanes_with("bounded_runner_stop_checks")
def test_bounded_runner_stop_checks(kind: str) -> None:
    token = StopToken()

    def stop_after_two(epoch_id: int) -> None:
        if epoch_id == 2:
            token.request()

    nodes = [node(pass_on, "a", lane="x", config={"start": 1})]
    lane = Lane(kind, nodes, [], stop_token=token, steps=1_000_000, on_epoch=stop_after_two)
    result = lane.runner.run()
    assert (result.epochs, result.scheduler_stop_reason) == (2, SchedulerStopReason.STOP_REQUESTED)


@for_lanes_with("runtime_owned_publication_commit")
def test_runtime_owned_publication_commit(kind: str) -> None:
    """Publications inside execute are committed after it, and nothing downstream runs before that."""
    nodes = [node(twice, "a", lane="x"), node(pass_on, "b", lane="x", on="any_input", reentrant=True)]
    result = Lane(kind, nodes, [wire("a.out > b.value", mode="queue", capacity=9)]).run()
    first, *later = executions(result)
    assert [event.component_id for event in later] == ["b", "b"]
    assert all(event.start_offset_ns >= first.start_offset_ns + first.duration_ns for event in later)
    assert [event.causation_id for event in later] == ["a>b#1", "a>b#2"]


@for_lanes_with("runtime_priority_ordering")
def test_runtime_priority_ordering(kind: str) -> None:
    classes = ("background", "normal", "high", "low")
    nodes = [node(pass_on, word, lane="x", config={"start": 1}, priority=word) for word in classes]
    assert order(Lane(kind, nodes, []).run()) == ["high", "normal", "low", "background"]


@for_lanes_with("cooperative_cancellation")
def test_cooperative_cancellation(kind: str) -> None:
    lane = Lane(kind, [node(until_cancelled, "a", lane="x")], [])
    lane.runner.start()
    lane.token.request()  # before the component checks the token: it must see the request, and is not interrupted
    lane.runner._epoch(lane.runner._require_engine())
    lane.catch_up()
    result = lane.runner.finish()
    counts = [
        result.metric(f"runtime.component.cancellation_{what}_count", component_id="a", lane="x")
        for what in ("requested", "observed")
    ]
    assert counts == [1, 1]
    assert result.trace is not None
    seen = [event.name for event in result.trace.events() if event.name.startswith("component_cancellation")]
    assert seen == ["component_cancellation_requested", "component_cancellation_observed"]


@for_lanes_with("timeout_budget_observation")
def test_timeout_budget_observation(kind: str) -> None:
    result = Lane(kind, [node(until_cancelled, "a", lane="x", budget_ms=5)], []).run()
    assert result.ok  # it was observed, not enforced
    assert result.metric("runtime.component.timeout_budget_exceeded_count", component_id="a", lane="x") == 1
    assert result.trace is not None
    assert "component_timeout_budget_exceeded" in [event.name for event in result.trace.events()]


def fed(kind: str, thing: Callable[..., Any], size: int, **more: Any) -> Lane:
    """A component on the lane that receives `size` numbers in one epoch."""
    execution = more.pop("execution", {})
    edge = "async" if kind in ("isolated_thread", "manual_step") else "immediate"
    nodes = [node(burst, config={"size": size}), node(thing, "work", lane="x", on="any_input", **execution)]
    return Lane(kind, nodes, [wire("parts.burst.out > work.value", edge, mode="queue", capacity=99)], **more)


def epochs_until_seen(kind: str) -> int:
    """An independent lane sees in the second epoch what was published in the first."""
    return 2 if kind in ("isolated_thread", "manual_step") else 1


@for_lanes_with("bounded_priority_queue")
def test_bounded_priority_queue(kind: str) -> None:
    result = fed(kind, pass_on, 6, fields={"queue_capacity": 2}).run(epochs_until_seen(kind))
    assert len(order(result)) == 3
    assert result.metric("runtime.scheduler.rejected_count", lane="x") == 3
    assert result.metric("runtime.scheduler.queue_capacity", lane="x") == 2
    assert result.metric("runtime.scheduler.queue_depth", lane="x") == 2


def order_of(kind: str, classes: dict[str, dict[str, Any]], **more: Any) -> list[str]:
    """Run one component per name, all ready at the same time on a lane with one worker."""
    nodes = [node(pass_on, name, lane="x", config={"start": 1}, **fields) for name, fields in classes.items()]
    return order(Lane(kind, nodes, [], **more).run())


@for_lanes_with("priority_queue")
def test_priority_queue(kind: str) -> None:
    classes: dict[str, Any] = {"low": {"priority": "low"}, "first": {}, "second": {}, "high": {"priority": "high"}}
    assert order_of(kind, classes) == ["high", "first", "second", "low"]


@for_lanes_with("policy_ordered_queue")
def test_policy_ordered_queue(kind: str) -> None:
    classes: dict[str, Any] = {
        "slack": {"budget_ms": 900_000},
        "free": {"priority": "high"},
        "due": {"budget_ms": 100_000},
    }
    assert order_of(kind, classes, fields={"policy": "edf"}) == ["due", "slack", "free"]


@for_lanes_with("blocking_overflow_deadline")
def test_blocking_overflow_deadline(kind: str) -> None:
    fields = {"queue_capacity": 1, "overflow": "block", "overflow_deadline_ms": 3_600_000}
    result = fed(kind, pass_on, 6, fields=fields).run(epochs_until_seen(kind))
    assert len(order(result)) == 6  # each one waited until there was room
    assert result.metric("runtime.scheduler.rejected_count", lane="x") == 0


@for_lanes_with("persistent_worker_lifecycle")
def test_persistent_worker_lifecycle(kind: str) -> None:
    result = fed(kind, pass_on, 4, fields={"max_threads": 2}, execution={"reentrant": True}).run(epochs=3)
    assert len(result.workers) == 2
    assert {event.worker_id for event in executions(result)} <= {0, 1}
    assert len(executions(result)) == 12


@for_lanes_with("worker_id_trace")
def test_worker_id_trace(kind: str) -> None:
    result = fed(kind, pass_on, 2).run()
    assert [event.worker_id for event in executions(result)] == [0, 0]
    assert result.trace is not None
    (batch,) = [event for event in result.trace.events() if event.name == "thread_pool_batch"]
    assert batch.attributes["worker_ids"] == "0"


def _test_names() -> Iterator[str]:
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for found in ast.walk(ast.parse(path.read_text())):
            if isinstance(found, ast.FunctionDef):
                yield found.name


def test_every_feature_is_the_name_of_a_test() -> None:
    features = {f"test_{word}" for words in IMPLEMENTED.values() for word in words}
    assert features <= set(_test_names())

"""Fan-out over lists: one invocation per item, one list of results in order, on every lane."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rota.errors import GraphInvalid
from rota.graph import Graph, RuntimeRunner, RuntimeRunnerOptions, RuntimeRunnerResult, component
from rota.graph.run_values import outputs_of
from tests.graph import report_parts as parts

PATIENCE_S = 30.0


def run(graph: Graph, **inputs: Any) -> tuple[Any, RuntimeRunnerResult]:
    plan = graph.plan()
    result = RuntimeRunner(plan, graph.registry(), RuntimeRunnerOptions(run_until_idle=True, inputs=inputs)).run()
    return outputs_of(plan.components, result.snapshots).get("result"), result


def mapped(code: Any, **options: Any) -> Graph:
    """numbers → code, for each → result."""
    graph = Graph("mapped")
    lane = options.pop("lane_type", None)
    if lane is not None:
        graph.lane("own", lane, max_threads=3)
        options["lane"] = "own"
    graph.output(graph.node(code, name="each", map_over=True, **options)(graph.input("items")))
    return graph


@pytest.mark.parametrize("lane", ["event_loop", "thread_pool", "process_pool", "fixed_rate"])
def test_every_item_is_an_invocation_and_the_results_are_one_list_in_order(lane: str) -> None:
    for items in ([3, 1, 2], []):
        found, result = run(mapped(parts.double, lane_type=lane), items=items)
        assert found == [2 * item for item in items]
        assert result.metric("runtime.component.completed_count", lane="own", component_id="each") == len(items)


def test_other_inputs_are_the_same_for_every_item() -> None:
    graph = Graph("shared")
    node = graph.node(parts.answer, map_over="which", words=2)
    graph.output(node(graph.node(parts.plan_topic), which=graph.input("places")))
    assert run(graph, topic="owls", places=[2, 0])[0] == ["future of", "past of"]


def test_items_of_async_functions_overlap() -> None:
    inside, most = 0, 0

    async def slow(item: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(10_000):
            if most < 3:
                await asyncio.sleep(0)
        inside -= 1
        return item

    assert run(mapped(slow), items=[1, 2, 3])[0] == [1, 2, 3]
    assert most == 3


def test_items_on_a_pool_run_at_the_same_time() -> None:
    together = threading.Barrier(3)

    def meet(item: int) -> int:
        together.wait(PATIENCE_S)
        return item

    assert run(mapped(meet, lane_type="thread_pool"), items=[1, 2, 3])[0] == [1, 2, 3]


def test_a_list_over_the_limit_is_refused_with_numbers() -> None:
    found, result = run(mapped(parts.double, execution={"map_max": 3}), items=[1, 2, 3])
    assert (found, result.ok) == ([2, 4, 6], True)
    found, result = run(mapped(parts.double, execution={"map_max": 3}), items=[1, 2, 3, 4])
    assert found is None
    assert "map_max of component each is 3 and 4 was requested" in result.errors[0]


def test_what_is_not_a_list_is_a_failure_of_the_component() -> None:
    _, result = run(mapped(parts.double), items="abc")
    assert "component each maps over number, which must be a list, not str" in result.errors[0]


class TestFailures:
    @staticmethod
    def breaks(item: int) -> int | None:
        if item == 2:
            raise ValueError("two")
        return None if item == 3 else item

    def test_fail_fast_ends_the_run(self) -> None:
        found, result = run(mapped(self.breaks), items=[1, 2])
        assert (found, result.ok) == (None, False)
        assert "two" in result.errors[0]

    def test_continue_leaves_none_in_the_place_of_an_item(self) -> None:
        found, result = run(mapped(self.breaks, execution={"on_error": "continue"}), items=[1, 2, 3, 4])
        assert found == [1, None, None, 4]
        assert result.error_count == 1

    def test_isolate_removes_the_component_with_its_list(self) -> None:
        found, result = run(mapped(self.breaks, execution={"on_error": "isolate"}), items=[1, 2, 4])
        assert found is None
        assert result.error_count == 1

    def test_retry_repeats_only_the_item_that_failed(self) -> None:
        calls: list[int] = []

        def sometimes(item: int) -> int:
            calls.append(item)
            if item == 2 and calls.count(2) < 3:
                raise ValueError("not yet")
            return item

        found, _ = run(mapped(sometimes, execution={"on_error": "retry", "max_attempts": 3}), items=[1, 2, 3])
        assert found == [1, 2, 3]
        assert calls == [1, 2, 2, 2, 3]


@component("test.Two", outputs=("left", "right"))
def two_outputs(value: int) -> dict[str, int]:
    """Return a value on each of two outputs."""
    return {"left": value, "right": value}


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"type": "isolated_thread"}, "which a lane of type isolated_thread cannot do"),
    ({"type": "thread_pool", "queue_capacity": 2}, "but its lane does not accept all items"),
]


@pytest.mark.parametrize(("lane", "text"), REFUSALS)
def test_lanes_that_cannot_hold_a_list_are_refused(lane: dict[str, Any], text: str) -> None:
    graph = Graph("refused")
    graph.lane("own", **lane)
    graph.output(graph.node(parts.double, name="each", lane="own", map_over=True)(graph.input("items")))
    with pytest.raises(GraphInvalid) as refused:
        graph.plan()
    assert f"component each maps over number, {text}" in refused.value.message


def test_a_component_with_two_outputs_cannot_map() -> None:
    graph = Graph("refused")
    graph.output(graph.node(two_outputs, name="each", map_over=True)(graph.input("items"))["left"])
    with pytest.raises(GraphInvalid, match="which needs a component with exactly one output"):
        graph.plan()

"""Fan-out over lists of agents: an item that is tried again, or a run that is resumed, loses no result of the others.

The results of a list are committed together, because the coordinator may go on in another process after each wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.graph.test_fleet_lane import INPUT, OUTPUT, FleetWorld, agent_node, document

ITEMS = [1, 2, 3, 4]


def failing_twice(calls: list[int]) -> Callable[[int], int]:
    """An agent that notes its calls, and fails for the item 2 until the third call."""

    def work(item: int) -> int:
        calls.append(item)
        if item == 2 and calls.count(2) < 3:
            raise ValueError("not yet")
        return item * 10

    return work


def mapped(call: Callable[..., Any], **execution: Any) -> tuple[FleetWorld, dict[str, Any]]:
    """items → each (an agent), for each item → result."""
    world = FleetWorld({"worker": call}, {"worker": {"max_attempts": 1}})
    node = agent_node("each", "worker", map_over="item", **execution)
    return world, document([INPUT, node, OUTPUT], ["topic.out > each.item", "each.out > result.value"])


@pytest.mark.parametrize("slots", [1, 3])
def test_an_item_that_is_tried_again_loses_no_other_result(slots: int) -> None:
    calls: list[int] = []
    world, graph = mapped(failing_twice(calls), on_error="retry", max_attempts=3)
    run = world.run(graph, slots=slots, topic=ITEMS)
    assert (run.status, run.result) == ("succeeded", {"result": [10, 20, 30, 40]})
    assert sorted(calls) == [1, 2, 2, 2, 3, 4]


def test_an_item_that_fails_for_good_is_none_in_its_place() -> None:
    world, graph = mapped(failing_twice([]), on_error="continue")
    assert world.run(graph, topic=ITEMS).result == {"result": [10, None, 30, 40]}


@pytest.mark.parametrize("on_error", ["continue", "fail_fast"])
def test_a_resumed_run_repeats_only_the_items_that_were_cancelled(on_error: str) -> None:
    calls: list[int] = []

    def work(item: int) -> int:
        calls.append(item)
        if calls == [1, 2]:
            world.api.graphs.cancel("r1")
        return item * 10

    world, graph = mapped(work, on_error=on_error)
    assert world.run(graph, topic=ITEMS).status == "cancelled"
    assert calls == [1, 2]
    world.api.graphs.resume("r1")
    world.supervise()
    run = world.api.graphs.show("r1").run
    assert (run.status, run.result) == ("succeeded", {"result": [10, 20, 30, 40]})
    assert calls.count(1) == 1
    assert sorted(set(calls)) == ITEMS

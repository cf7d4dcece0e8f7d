"""Async components that are ready in the same epoch overlap on one event loop; commits keep the compiled order."""

from __future__ import annotations

import asyncio
from typing import Any

from rota.graph import Graph, RuntimeRunner, RuntimeRunnerOptions, RuntimeRunnerResult
from rota.graph.run_values import outputs_of
from tests.graph import report_parts as parts

TURNS_MAX = 10_000  # of the event loop, before a coroutine gives up


class Meeting:
    """Coroutines that wait for each other: alone, none of them ends."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.log: list[str] = []

    async def meet(self, name: str) -> str:
        self.log.append(f"{name} begins")
        for _ in range(TURNS_MAX):
            if len([line for line in self.log if line.endswith("begins")]) >= self.expected:
                break
            await asyncio.sleep(0)
        else:
            raise AssertionError(f"{name} waits alone")
        self.log.append(f"{name} ends")
        return name


def run(graph: Graph, **options: Any) -> tuple[dict[str, Any], RuntimeRunnerResult]:
    plan = graph.plan()
    result = RuntimeRunner(plan, graph.registry(), RuntimeRunnerOptions(run_until_idle=True, **options)).run()
    return outputs_of(plan.components, result.snapshots), result


def test_independent_async_components_overlap_and_commit_in_order() -> None:
    meeting = Meeting(3)
    graph = Graph("overlap")
    nodes = [graph.node(meeting.meet, name=name)(name) for name in ("a", "b", "c")]
    graph.output(graph.node(parts.join)(*nodes))
    found, result = run(graph, trace=True)
    assert found == {"result": ["a", "b", "c"]}
    assert meeting.log[:3] == ["a begins", "b begins", "c begins"]
    assert result.trace is not None
    committed = [event.channel_id for event in result.trace.events() if event.name == "publication_committed"]
    assert [edge for edge in committed if edge.endswith("join.parts")] == [f"{name}>join.parts" for name in "abc"]


def test_an_ordinary_component_between_them_does_not_keep_them_apart() -> None:
    meeting = Meeting(2)
    graph = Graph("between")
    first = graph.node(meeting.meet, name="a")("a")
    between = graph.node(parts.double)(4)
    second = graph.node(meeting.meet, name="b")("b")
    graph.output(graph.node(parts.join)(first, between, second))
    assert run(graph)[0] == {"result": ["a", 8, "b"]}


def test_components_that_depend_on_each_other_run_one_after_the_other() -> None:
    meeting = Meeting(1)
    graph = Graph("chain")
    graph.output(graph.node(meeting.meet, name="b")(graph.node(meeting.meet, name="a")("x")))
    assert run(graph)[0] == {"result": "x"}
    assert meeting.log == ["x begins", "x ends", "x begins", "x ends"]


def test_a_failure_ends_the_run_after_the_others_were_committed() -> None:
    async def breaks(name: str) -> str:
        await asyncio.sleep(0)
        raise ValueError(name)

    meeting = Meeting(1)
    graph = Graph("failure")
    graph.node(breaks)("no")
    graph.output(graph.node(meeting.meet, name="b")("b"))
    _, result = run(graph)
    assert not result.ok
    assert "ValueError: no" in result.errors[0]
    assert result.metric("runtime.component.completed_count", lane="main", component_id="b") == 1


def test_retries_of_one_component_do_not_hold_up_the_others() -> None:
    calls: list[str] = []

    async def sometimes(name: str) -> str:
        calls.append(name)
        await asyncio.sleep(0)
        if len(calls) < 4:
            raise ValueError(name)
        return name

    graph = Graph("retries")
    first = graph.node(sometimes, name="a", execution={"on_error": "retry", "max_attempts": 4})("a")
    second = graph.node(sometimes, name="b", execution={"on_error": "retry", "max_attempts": 4})("b")
    graph.output(graph.node(parts.join)(first, second))
    assert run(graph)[0] == {"result": ["a", "b"]}


def test_a_host_that_waits_for_a_stop_is_told_which_coroutines_run() -> None:
    seen: list[tuple[str, ...]] = []

    async def looks(name: str) -> str:
        await asyncio.sleep(0)
        seen.append(runner.executing_components())
        return name

    graph = Graph("executing")
    graph.output(graph.node(parts.join)(*(graph.node(looks, name=name)(name) for name in "ab")))
    runner = RuntimeRunner(graph.plan(), graph.registry(), RuntimeRunnerOptions(run_until_idle=True))
    assert runner.run().ok
    assert seen == [("a", "b"), ("b",)]

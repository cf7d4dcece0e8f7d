"""Which components a run is executing: what a stop that waits can name, on every lane and in every phase."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.run import RuntimeRunner
from rota.graph.stop import StopToken
from tests.graph.worlds import make_runner, node, wire

LAST_S = 30.0  # real time; it only ends a test that hangs
entered, leave = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    entered.clear()
    leave.clear()
    yield
    leave.set()


def wait() -> None:
    entered.set()
    assert leave.wait(LAST_S)


@component("executing.plain")
def plain(value: int = 0) -> None:
    wait()


@component("executing.general", outputs=())
def general(context: GraphContext, value: int = 0) -> None:
    wait()


@component("executing.starts")
class Starts:
    def activate(self) -> None:
        wait()

    def execute(self) -> None:
        """Nothing."""


@component("executing.ends")
class Ends:
    def deactivate(self) -> None:
        wait()

    def execute(self) -> None:
        """Nothing."""


@component("executing.submits")
def submits(context: GraphContext) -> None:
    context.submit(wait)
    assert entered.wait(LAST_S)  # a task that has not started is dropped at the end


@component("executing.quick")
def quick(value: int = 0) -> int:
    return 1


def named_while_it_waits(runner: RuntimeRunner) -> tuple[str, ...]:
    thread = threading.Thread(target=runner.run)
    thread.start()
    assert entered.wait(LAST_S)
    named = runner.executing_components()
    leave.set()
    thread.join(LAST_S)
    assert runner.executing_components() == ()
    return named


@pytest.mark.parametrize("thing", [plain, general])
@pytest.mark.parametrize("kind", ["event_loop", "fixed_rate", "thread_pool", "isolated_thread"])
def test_a_component_on_any_lane(kind: str, thing: Any) -> None:
    nodes = [node(quick), node(thing, "slow", lane="it")]
    runner = make_runner(nodes, lanes={"main": {"type": "event_loop"}, "it": {"type": kind}}, steps=2)
    assert named_while_it_waits(runner) == ("slow",)


@pytest.mark.parametrize("thing", [Starts, Ends])
def test_a_hook(thing: Any) -> None:
    assert named_while_it_waits(make_runner([node(quick), node(thing, "slow")])) == ("slow",)


def test_a_background_task() -> None:
    nodes = [node(submits, "slow", sources=[{"type": "manual"}, {"type": "task_ready"}])]
    assert named_while_it_waits(make_runner(nodes)) == ("slow",)


def test_async_components_that_overlap() -> None:
    @component("executing.overlaps")
    async def overlaps() -> None:
        entered.set()
        await asyncio.to_thread(leave.wait, LAST_S)

    @component("executing.overlaps_shortly")
    async def overlaps_shortly() -> None:
        """Ends before the other one."""

    nodes = [node(overlaps_shortly, "a"), node(overlaps, "slow"), node(overlaps_shortly, "z")]
    runner = make_runner(nodes)
    thread = threading.Thread(target=runner.run)
    thread.start()
    assert entered.wait(LAST_S)
    while runner.executing_components() != ("slow",):
        assert thread.is_alive()
    leave.set()
    thread.join(LAST_S)


def test_a_member_of_a_loop() -> None:
    @component("executing.member")
    def member(value: int = 0) -> int:
        wait()
        return value

    nodes = [node(member, "slow"), node(quick, "b", on="any_input")]
    wires = [wire("b.out > slow.value"), wire("slow.out > b.value")]
    loops = [{"id": "l", "components": ["b", "slow"], "loop_policy": {"type": "fixed_point"}}]
    assert named_while_it_waits(make_runner(nodes, wires, loops=loops)) == ("slow",)


def test_a_component_of_another_run_is_not_named() -> None:
    token = StopToken()
    other = make_runner([node(plain, "slow")], stop_token=token)
    other.start()
    assert named_while_it_waits(make_runner([node(plain, "slow")])) == ("slow",)
    assert other.executing_components() == ()
    other.finish()

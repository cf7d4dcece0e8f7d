"""Compiling, wiring and running cost the same per component, however large the graph is.

Costs are counted, not timed: the lines that Python executes, and the comparisons of component ids that C code makes for
it, such as a search in a tuple. `./dev bench graph` measures the times of graphs with 16,000 and 100,000 components.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import pytest

from rota.graph.capabilities import Platform
from rota.graph.compiler import compile_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions
from rota.graph.spec import (
    ComponentSpec,
    CompositeLoopSpec,
    EdgeSpec,
    ExecutionSpec,
    GraphInfo,
    GraphSpec,
    LaneSpec,
    LaneType,
    LoopPolicy,
    TriggerPolicy,
)

SMALL, LARGE = 40, 160
GROWTH_MAX = 1.1  # of the cost per component, for a graph four times as large
PLATFORM = Platform(name="test")


class Cost:
    """Counts what happens in a block."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Cost:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self.count += event == "line"
        return self._trace


class CountedId(str):
    """An id that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedId.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@component("linear.step")
def step(*values: int) -> int:
    return 1


class Shape(NamedTuple):
    """The edges of a graph, and the members of its loops."""

    links: list[tuple[int, int]]
    loops: Sequence[Sequence[int]] = ()


def chain(size: int) -> Shape:
    return Shape([(at, at + 1) for at in range(size - 1)])


def ring(size: int) -> Shape:
    return Shape([(at, (at + 1) % size) for at in range(size)], [list(range(size))])


def many_loops(size: int) -> Shape:
    firsts = range(0, size, 2)
    return Shape([link for at in firsts for link in ((at, at + 1), (at + 1, at))], [[at, at + 1] for at in firsts])


def fan_out(size: int) -> Shape:
    return Shape([(0, at) for at in range(1, size)])


def fan_in(size: int) -> Shape:
    return Shape([(at, size - 1) for at in range(size - 1)])


def alone(_size: int) -> Shape:
    return Shape([])


def graph(shape: Shape, size: int, lane: LaneType, convergence: str) -> GraphSpec:
    names = [CountedId(f"c{at:05}") for at in range(size)]
    driven = {target for _, target in shape.links} - {members[0] for members in shape.loops}
    triggers = {True: TriggerPolicy(type="all_inputs", inputs=("values",)), False: TriggerPolicy()}
    policy = LoopPolicy(type="fixed_point", max_iterations=2, convergence=convergence)
    return GraphSpec(
        schema_version=2,
        graph=GraphInfo(name="linear"),
        lanes={"main": LaneSpec(type=lane)},
        components=tuple(
            ComponentSpec(
                id=name,
                type="linear.step",
                execution=ExecutionSpec(lane="main"),
                trigger_policy=triggers[at in driven],
            )
            for at, name in enumerate(names)
        ),
        edges=tuple(
            EdgeSpec(id=f"e{at}", kind="immediate", source=f"{names[source]}.out", target=f"{names[target]}.values")
            for at, (source, target) in enumerate(shape.links)
        ),
        composite_loops=tuple(
            CompositeLoopSpec(id=f"l{at}", components=tuple(names[each] for each in members), loop_policy=policy)
            for at, members in enumerate(shape.loops)
        ),
    )


def cost_per_component(
    shape: Callable[[int], Shape], size: int, lane: LaneType, convergence: str
) -> tuple[float, float]:
    """Return the executed lines and the compared ids per component."""
    spec = graph(shape(size), size, lane, convergence)
    registry = ComponentRegistry([step])
    CountedId.compared = 0
    with Cost() as cost:
        plan = compile_graph(spec, registry, PLATFORM)
        result = RuntimeRunner(plan, registry, RuntimeRunnerOptions(steps=2)).run()
    assert result.ok, result.errors
    assert result.executed >= size
    return cost.count / size, CountedId.compared / size


@pytest.mark.parametrize(
    ("shape", "lane", "convergence"),
    [
        (chain, "event_loop", ""),
        (ring, "event_loop", "stable_state"),
        (many_loops, "event_loop", ""),
        (fan_out, "event_loop", ""),
        (fan_in, "event_loop", ""),
        (alone, "thread_pool", ""),
        (alone, "isolated_thread", ""),
        (fan_in, "isolated_thread", ""),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_cost_per_component_does_not_grow(
    shape: Callable[[int], Shape], lane: LaneType, convergence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rota.graph.compiler._field_problems", lambda _spec: ())  # in C, and for plain strings only
    small, large = (cost_per_component(shape, size, lane, convergence) for size in (SMALL, LARGE))
    assert large[0] <= small[0] * GROWTH_MAX
    assert large[1] <= small[1] * GROWTH_MAX + 1

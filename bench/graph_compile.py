"""Compile and run large graphs and small ones: the cost per component must not grow with the size of the graph."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from bench.harness import Arena, Case, Measured
from rota.graph.capabilities import Platform
from rota.graph.compiler import compile_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions
from rota.graph.spec import (
    PRIORITY_RANKS,
    ComponentSpec,
    CompositeLoopSpec,
    EdgeSpec,
    ExecutionSpec,
    GraphInfo,
    GraphSpec,
    LaneSpec,
    LoopPolicy,
    TriggerPolicy,
)

SEED = 20_261_115
LARGE = 4096
SMALL = 256
PLAIN = 1_000
PLATFORM = Platform(name="bench")


def cases() -> Iterator[Case]:
    yield Case(
        "compile-4096",
        LARGE,
        "us",
        "per component of a graph of 256 components, 512 edges",
        _arena,
        goal=0.7,
    )
    yield _linear("chain-100000", 100_000, chain)
    yield _linear("ring-16000", 16_000, ring)


def _linear(name: str, size: int, shape: Callable[[int], GraphSpec]) -> Case:
    """Return the comparison of a graph with one of 1,000 components: within twice the cost per component."""
    baseline = "per component of a graph of 1,000: compile, run two epochs"
    return Case(name, size, "us", baseline, partial(_linear_arena, shape, size), goal=0.5, rounds=3)


def _linear_arena(shape: Callable[[int], GraphSpec], size: int) -> Arena:
    return Arena(
        rota=partial(_whole_run, shape(size)),
        base=partial(_whole_run, shape(PLAIN)),
        verify=lambda ours, theirs: bool(ours >= 2 * size and theirs >= 2 * PLAIN),
    )


def _whole_run(spec: GraphSpec) -> Measured:
    """Return the microseconds per component from the specification to the result, and the number of invocations."""
    registry = ComponentRegistry([step])
    started = time.perf_counter()
    plan = compile_graph(spec, registry, PLATFORM)
    result = RuntimeRunner(plan, registry, RuntimeRunnerOptions(steps=2)).run()
    seconds = time.perf_counter() - started
    result.raise_if_failed()
    return Measured(seconds * 1e6 / len(spec.components), result.executed)


def _arena() -> Arena:
    large, small = layered(LARGE), layered(SMALL)
    return Arena(
        rota=partial(_per_component, large, 1),
        base=partial(_per_component, small, LARGE // SMALL),
        verify=lambda ours, theirs: bool(ours == LARGE and theirs == SMALL),
    )


def _per_component(spec: GraphSpec, times: int) -> Measured:
    """Return the microseconds per component, and the number of regions (one per component)."""
    started = time.perf_counter()
    for _ in range(times):
        plan = compile_graph(spec, platform=PLATFORM)
    seconds = time.perf_counter() - started
    return Measured(seconds * 1e6 / (len(spec.components) * times), len(plan.region_order))


@component("bench.linear")
def step(value: int = 0) -> int:
    return value


def chain(components: int) -> GraphSpec:
    """Return one component after the other."""
    return _linked(f"chain-{components}", components, [(at, at + 1) for at in range(components - 1)])


def ring(components: int) -> GraphSpec:
    """Return a chain whose last component publishes to the first: one loop."""
    links = [(at, (at + 1) % components) for at in range(components)]
    loop = CompositeLoopSpec(
        id="loop",
        components=tuple(_id(at) for at in range(components)),
        loop_policy=LoopPolicy(type="fixed_point", max_iterations=1),
    )
    return msgspec.structs.replace(_linked(f"ring-{components}", components, links), composite_loops=(loop,))


def _linked(name: str, components: int, links: Sequence[tuple[int, int]]) -> GraphSpec:
    driven = TriggerPolicy(type="any_input", inputs=("value",))
    return GraphSpec(
        graph=GraphInfo(name=name),
        lanes={"main": LaneSpec(type="event_loop")},
        components=tuple(
            ComponentSpec(
                id=_id(at),
                type="bench.linear",
                execution=ExecutionSpec(lane="main"),
                trigger_policy=driven if at else TriggerPolicy(),
            )
            for at in range(components)
        ),
        edges=tuple(
            EdgeSpec(id=f"e{source}", kind="immediate", source=f"{_id(source)}.out", target=f"{_id(target)}.value")
            for source, target in links
        ),
    )


def _id(at: int) -> str:
    return f"c{at:06}"  # a loop runs its members in the order of their ids


def layered(components: int) -> GraphSpec:
    """Return an acyclic graph: each component except the first two has edges from two random earlier ones."""
    rng = random.Random(SEED)
    fed = [(node, rng.sample(range(max(0, node - 64), node), 2)) for node in range(2, components)]
    fed += [(1, [0, 0]), (0, [])]
    edges = [
        EdgeSpec(id=f"e{node}_{port}", kind="immediate", source=f"c{source}.out", target=f"c{node}.in{port}")
        for node, sources in fed
        for port, source in enumerate(sources)
    ]
    # two more, so that there are two edges per component; delay edges do not close a cycle
    last = f"c{components - 1}.out"
    edges += [EdgeSpec(id=f"back{at}", kind="delay", source=last, target=f"c0.back{at}") for at in range(2)]
    return GraphSpec(
        graph=GraphInfo(name=f"layered-{components}"),
        lanes={"main": LaneSpec(type="event_loop")},
        components=tuple(_component(node) for node in range(components)),
        edges=tuple(edges),
    )


def _component(node: int) -> ComponentSpec:
    priorities = tuple(PRIORITY_RANKS)
    driven = TriggerPolicy(type="all_inputs", inputs=("in0", "in1")) if node else TriggerPolicy()
    execution = ExecutionSpec(lane="main", priority=priorities[node % len(priorities)])
    return ComponentSpec(id=f"c{node}", type="bench.Part", execution=execution, trigger_policy=driven)

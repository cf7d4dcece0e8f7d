"""Compile one large graph and many small ones: the cost per component must not grow with the size of the graph."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

from bench.harness import Arena, Case, Measured
from rota.graph.capabilities import Platform
from rota.graph.compiler import compile_graph
from rota.graph.spec import (
    PRIORITY_RANKS,
    ComponentSpec,
    EdgeSpec,
    ExecutionSpec,
    GraphInfo,
    GraphSpec,
    LaneSpec,
    TriggerPolicy,
)

SEED = 20_261_115
LARGE = 4096
SMALL = 256
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

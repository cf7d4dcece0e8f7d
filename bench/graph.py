"""What it costs to run a graph: per invocation, beside dask, beside bare calls and beside a thread pool.

One operation is one invocation. A graph is compiled and started once; a round runs it several times from its source to
its sink. dask is given the same graph as its own dictionary and runs it with its synchronous scheduler. Bare calls are
what is left when nobody schedules: the same functions in topological order, values in a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from bench.harness import Arena, Case
from rota.graph import (
    ComponentRegistry,
    GraphContext,
    RuntimeRunner,
    RuntimeRunnerOptions,
    compile_graph,
    component,
    load_mapping,
)

PIPELINE = 1_000  # components
PIPELINE_RUNS = 10
DIAMOND = 64  # components between source and sink
DIAMOND_RUNS = 100
POOL_INVOCATIONS = 5_000
WORKERS = 4

PIPELINE_OPS = PIPELINE * PIPELINE_RUNS
DIAMOND_OPS = (DIAMOND + 2) * DIAMOND_RUNS
DASK = "dask, synchronous scheduler, the same graph"
BARE = "bare calls in topological order"
AT_MOST_15X = 0.067  # of the rate of bare calls


def cases() -> Iterator[Case]:
    yield _case("pipeline-1000", PIPELINE, PIPELINE_OPS, DASK, partial(_dask_arena, Pipeline), goal=3)
    yield _case("diamond-64", DIAMOND, DIAMOND_OPS, DASK, partial(_dask_arena, Diamond), goal=3)
    yield _case("pipeline-1000-bare", PIPELINE, PIPELINE_OPS, BARE, partial(_bare_arena, Pipeline), goal=AT_MOST_15X)
    yield _case("diamond-64-bare", DIAMOND, DIAMOND_OPS, BARE, partial(_bare_arena, Diamond), goal=AT_MOST_15X)
    yield _case("pool-4", POOL_INVOCATIONS, POOL_INVOCATIONS, "ThreadPoolExecutor, 4 workers", _pool_arena, goal=1.5)
    yield _case("trace-on", PIPELINE, PIPELINE_OPS, "trace off, the same pipeline", _trace_arena, goal=0.65)


def _case(name: str, n: int, ops: int, baseline: str, arena: Callable[[], Arena], *, goal: float) -> Case:
    return Case(name, n, "ops/s", baseline, arena, ops=ops, goal=goal)


# --- the functions -------------------------------------------------------------------------------


@component("bench.source")
def source() -> int:
    return 1


@component("bench.step")
def step(value: int) -> int:
    return value + 1


@component("bench.total")
def total(*values: int) -> int:
    return sum(values)


# --- the graphs ----------------------------------------------------------------------------------


class Shape:
    """A graph in three forms: for rota, for dask and for bare calls."""

    runs = 1
    steps: list[tuple[str, Callable[..., int], tuple[str, ...]]]  # name, function, whom it listens to

    def start(self, *, trace: bool = False) -> Running:
        """rota, compiled and started."""
        return Running(self, trace=trace)

    def dask(self) -> list[int]:
        """dask, as often as a round asks for."""
        from dask.local import get_sync  # noqa: PLC0415  # only the bench group has it

        graph = {name: (function, *sources) for name, function, sources in self.steps}
        last = self.steps[-1][0]
        return [get_sync(graph, last) for _ in range(self.runs)]

    def bare(self) -> list[int]:
        """Nobody schedules."""
        results = []
        for _ in range(self.runs):
            values: dict[str, int] = {}
            for name, function, sources in self.steps:
                values[name] = function(*[values[each] for each in sources])
            results.append(values[self.steps[-1][0]])
        return results


class Pipeline(Shape):
    """One after the other."""

    runs = PIPELINE_RUNS

    def __init__(self) -> None:
        self.steps = [("s0", source, ())]
        self.steps += [(f"s{at}", step, (f"s{at - 1}",)) for at in range(1, PIPELINE)]


class Diamond(Shape):
    """One to many to one."""

    runs = DIAMOND_RUNS

    def __init__(self) -> None:
        middle = [f"m{at}" for at in range(DIAMOND)]
        self.steps = [("s", source, ()), *((name, step, ("s",)) for name in middle), ("t", total, tuple(middle))]


class Running:
    """A graph that was started; a round runs some epochs of it."""

    def __init__(self, shape: Shape, *, trace: bool) -> None:
        self.results: list[int] = []
        self._runs = shape.runs

        @component("bench.sink")
        def sink(value: int) -> None:
            self.results.append(value)

        registry = ComponentRegistry([source, step, total, sink])
        plan = compile_graph(load_mapping(_document(shape, registry)), registry)
        self.runner = RuntimeRunner(plan, registry, RuntimeRunnerOptions(trace=trace))
        self.runner.start()

    def run(self) -> list[int]:
        """As many epochs as a round asks for; the answer is what the sink saw."""
        self.results.clear()
        for _ in range(self._runs):
            self.runner.step()
        return list(self.results)

    def close(self) -> None:
        """End the run; raises if it failed."""
        self.runner.finish().raise_if_failed()


def _document(shape: Shape, registry: ComponentRegistry) -> dict[str, Any]:
    names = {registry.find(kind).implementation: kind for kind in registry.names()}
    port = {step: "value", total: "values"}
    components = [_component(name, names[function], port.get(function)) for name, function, _ in shape.steps]
    edges = [
        _edge(f"{each}.out", f"{name}.{port[function]}") for name, function, sources in shape.steps for each in sources
    ]
    last = shape.steps[-1][0]
    return {
        "schema_version": 1,
        "graph": {"name": "bench", "kind": "internal_test"},
        "lanes": {"main": {"type": "event_loop"}},
        "components": [*components, _component("sink", "bench.sink", "value")],
        "edges": [*edges, _edge(f"{last}.out", "sink.value")],
    }


def _component(name: str, kind: str, port: str | None) -> dict[str, Any]:
    trigger = {"type": "all_inputs", "inputs": [port]} if port == "values" else {"type": "any_input", "inputs": [port]}
    return {
        "id": name,
        "type": kind,
        "execution": {"lane": "main"},
        **({"trigger_policy": trigger} if port else {}),
    }


def _edge(start: str, end: str) -> dict[str, Any]:
    return {"id": f"{start}>{end}", "kind": "immediate", "from": start, "to": end}


# --- the arenas ----------------------------------------------------------------------------------


def _dask_arena(make: Callable[[], Shape]) -> Arena:
    shape = make()
    running = shape.start()
    return Arena(rota=running.run, base=shape.dask, close=running.close)


def _bare_arena(make: Callable[[], Shape]) -> Arena:
    shape = make()
    running = shape.start()
    return Arena(rota=running.run, base=shape.bare, close=running.close)


def _trace_arena() -> Arena:
    on, off = Pipeline().start(trace=True), Pipeline().start()

    def before(_round: int) -> None:
        trace = on.runner._require_engine().recorder  # a long trace costs memory, not time
        assert trace is not None
        trace.rows.clear()

    def close() -> None:
        on.close()
        off.close()

    return Arena(rota=on.run, base=off.run, before=before, close=close)


def _pool_arena() -> Arena:
    seen: list[int] = []

    @component("bench.burst", outputs=("out",))
    def burst(context: GraphContext) -> None:
        for number in range(POOL_INVOCATIONS):
            context.publish("out", number)

    @component("bench.empty")
    def empty(value: int) -> None:
        seen.append(value)

    document = {
        "schema_version": 1,
        "graph": {"name": "bench", "kind": "internal_test"},
        "lanes": {"main": {"type": "event_loop"}, "pool": {"type": "thread_pool", "max_threads": WORKERS}},
        "components": [
            {"id": "burst", "type": "bench.burst", "execution": {"lane": "main"}},
            {
                "id": "work",
                "type": "bench.empty",
                "execution": {"lane": "pool", "reentrant": True},
                "trigger_policy": {"type": "any_input", "inputs": ["value"]},
            },
        ],
        "edges": [
            {**_edge("burst.out", "work.value"), "policy": {"mode": "queue", "capacity": POOL_INVOCATIONS}},
        ],
    }
    registry = ComponentRegistry([burst, empty])
    runner = RuntimeRunner(compile_graph(load_mapping(document), registry), registry)
    runner.start()
    executor = ThreadPoolExecutor(WORKERS)

    def rota() -> list[int]:
        seen.clear()
        runner.step()
        return sorted(seen)

    def base() -> list[int]:
        seen.clear()
        for future in [executor.submit(empty, number) for number in range(POOL_INVOCATIONS)]:
            future.result()
        return sorted(seen)

    def close() -> None:
        executor.shutdown()
        runner.finish().raise_if_failed()

    return Arena(rota=rota, base=base, close=close)

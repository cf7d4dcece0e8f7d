"""A graph that is valid on all of them gives the same final sequence per port on event loop, thread pool, process pool,
queue and fleet: where a component runs, and in which order its entries end, changes nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rota import store
from rota.fleet.graph_workers import graph_supervisor
from rota.graph.compiler import compile_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.lanes.durable import DurableRuns
from rota.graph.loader import load_mapping
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions
from rota.kernel import Kernel
from rota.service.dispatcher import Dispatcher
from tests.graph.sequence_parts import VALUES, Hear, combine, source

LANES = ("thread_pool", "queue", "fleet")
PATIENCE_S = 60.0
REGISTRY = ComponentRegistry([source, combine, Hear])
_numbers = itertools.count()


class Desk:
    """A store in memory, an agent that is the function of the components, and a supervisor for both."""

    def __init__(self) -> None:
        self.api = Dispatcher(Kernel(store.open(":memory:")))
        function = {"function": "tests.graph.sequence_parts:combine"}
        self.api.agents.create("combine", metadata={"run": function})
        self._supervisor = graph_supervisor(self.api, REGISTRY, ["sequences"], slots=3)
        self._thread = threading.Thread(target=self._supervisor.run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._supervisor.drain()
        self._thread.join(PATIENCE_S)
        self.api.close()


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    found = Desk()
    yield found
    found.close()


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """A random acyclic graph: by component, the earlier ones that it reads from; 0 is the source."""
    count = draw(st.integers(1, 5))
    return [draw(st.lists(st.integers(0, at), min_size=1, max_size=3, unique=True)) for at in range(count)]


def document(parts: list[list[int]], lane: str) -> dict[str, Any]:
    """The graph with its components on a lane."""
    main, moved = {"lane": "main"}, {"agent": "combine"} if lane == "fleet" else {"lane": "tried"}
    kind = {} if lane == "fleet" else {"type": "sequence.combine"}
    start = {"id": "n0", "type": "sequence.source", "execution": main, "event_sources": [{"type": "start"}]}
    components: list[dict[str, Any]] = [start]
    edges: list[dict[str, Any]] = []
    for at, sources in enumerate(parts, start=1):
        ports = [f"v{number}" for number in range(len(sources))]
        trigger = {"type": "all_inputs", "inputs": ports}
        part = {"id": f"n{at}", "execution": moved, "config": {"salt": at}, "trigger_policy": trigger, **kind}
        hear = {"id": f"hear{at}", "type": "sequence.hear", "execution": main}
        components += [part, {**hear, "trigger_policy": {"type": "any_input", "inputs": ["value"]}}]
        edges += [_edge(f"n{read}.out", f"n{at}.{port}") for read, port in zip(sources, ports, strict=True)]
        edges.append(_edge(f"n{at}.out", f"hear{at}.value"))
    lanes: dict[str, Any] = {"main": {"type": "event_loop"}}
    if lane != "fleet":
        lanes["tried"] = {"type": lane, **({"max_threads": 2} if lane.endswith("pool") else {})}
    graph = {"name": "sequences", "kind": "internal_test"}
    return {"schema_version": 2, "graph": graph, "lanes": lanes, "components": components, "edges": edges}


def _edge(start: str, end: str) -> dict[str, Any]:
    policy = {"mode": "queue", "capacity": 2 * VALUES, "overflow": "fail_fast"}
    return {"id": f"{start}>{end}", "kind": "async", "from": start, "to": end, "policy": policy}


def heard(parts: list[list[int]], lane: str, desk: Desk) -> dict[str, list[int]]:
    """What every component published, in order."""
    plan = compile_graph(load_mapping(document(parts, lane)), REGISTRY)
    options = RuntimeRunnerOptions(
        run_until_idle=True, durable=DurableRuns(desk.api), run_id=f"r{next(_numbers)}", steps=1_000
    )
    result = RuntimeRunner(plan, REGISTRY, options).run()
    assert result.ok, result.errors
    return {name: values for name, values in result.snapshots.items() if name.startswith("hear")}


@pytest.mark.parametrize("lane", LANES)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=graphs())
def test_every_lane_gives_the_sequences_of_the_event_loop(lane: str, parts: list[list[int]], desk: Desk) -> None:
    expected = heard(parts, "event_loop", desk)
    assert heard(parts, lane, desk) == expected
    assert len(expected["hear1"]) == VALUES


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=graphs())
def test_worker_processes_give_the_sequences_of_the_event_loop(parts: list[list[int]], desk: Desk) -> None:
    assert heard(parts, "process_pool", desk) == heard(parts, "event_loop", desk)


def test_the_property_compares_real_sequences(desk: Desk) -> None:
    parts = [[0], [0, 1], [2, 1, 0]]
    assert heard(parts, "fleet", desk) == heard(parts, "event_loop", desk)
    assert len(set(heard(parts, "event_loop", desk)["hear3"])) == VALUES

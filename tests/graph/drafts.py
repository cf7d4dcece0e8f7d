"""Short forms for the graph files that tests need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from rota.graph.capabilities import Platform
from rota.graph.compiler import CheckResult, check
from rota.graph.components import ComponentDescriptor
from rota.graph.diagnostics import Diagnostic
from rota.graph.loader import load_mapping

# A platform that allows nothing, and one that allows everything.
BARE = Platform(name="bare")
FULL = Platform(name="full", cpus=(0, 1, 2, 3), thread_names=True, nice=True, nice_below_zero=True, realtime=True)


class DictCatalogue(dict[str, ComponentDescriptor]):
    """A catalogue in a dictionary."""

    def describe(self, component_type: str) -> ComponentDescriptor | None:
        return self.get(component_type)


def draft(
    components: Iterable[str | Mapping[str, Any]] = (),
    edges: Iterable[str | Mapping[str, Any]] = (),
    *,
    lanes: Mapping[str, Any] | None = None,
    loops: Mapping[str, Iterable[str]] | None = None,
    version: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """A graph file as a dictionary. A component is an id, or a mapping with one; an edge is "a.out -> b.in".

    A component with incoming edges gets the trigger any_input on these inputs, unless it has its own trigger.
    """
    wires = [_edge(edge, at) for at, edge in enumerate(edges)]
    inputs: dict[str, dict[str, None]] = defaultdict(dict)
    for wire in wires:
        name, _, port = str(wire["to"]).rpartition(".")
        inputs[name][port] = None
    return {
        "schema_version": version,
        "graph": {"name": "draft"},
        "lanes": dict(lanes or {"main": {"type": "event_loop"}}),
        "components": [_component(each, inputs) for each in components],
        "edges": wires,
        "composite_loops": [
            {"id": name, "components": list(members), "loop_policy": {"type": "fixed_point", "max_iterations": 3}}
            for name, members in (loops or {}).items()
        ],
        **more,
    }


def _edge(edge: str | Mapping[str, Any], at: int) -> dict[str, Any]:
    """ "a.out -> b.in" is immediate; "a.out ~> b.in" is a delay edge."""
    if not isinstance(edge, str):
        return {"id": f"e{at}", "kind": "immediate", **edge}
    kind, arrow = ("immediate", "->") if "->" in edge else ("delay", "~>")
    source, target = (end.strip() for end in edge.split(arrow))
    return {"id": f"e{at}", "kind": kind, "from": source, "to": target}


def _component(component: str | Mapping[str, Any], inputs: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    given: dict[str, Any] = {"id": component} if isinstance(component, str) else dict(component)
    lane = given.pop("lane", "main")
    execution = {"lane": lane, **given.pop("execution", {})}
    driven = {}
    if given["id"] in inputs:
        driven["trigger_policy"] = {"type": "any_input", "inputs": list(inputs[given["id"]])}
    return {"type": "test.Part", "execution": execution, **driven, **given}


def checked(
    document: Mapping[str, Any], catalogue: DictCatalogue | None = None, platform: Platform = BARE
) -> CheckResult:
    return check(load_mapping(document), catalogue, platform)


def found(document: Mapping[str, Any], catalogue: DictCatalogue | None = None, platform: Platform = BARE) -> list[str]:
    """Return the codes of all diagnostics."""
    return [each.code for each in checked(document, catalogue, platform).diagnostics]


def only(document: Mapping[str, Any], catalogue: DictCatalogue | None = None, platform: Platform = BARE) -> Diagnostic:
    """Return the only diagnostic."""
    diagnostics = checked(document, catalogue, platform).diagnostics
    assert len(diagnostics) == 1, [each.sentence() for each in diagnostics]
    return diagnostics[0]


def corpus() -> list[dict[str, Any]]:
    """Return a few valid files that together use most fields."""
    pair = draft(
        ["a", {"id": "b", "depends_on": ["a"], "config": {"deep": {"er": [1, {"x": None}]}}}], ["a.out -> b.in"]
    )
    loop = draft(["a", "b", "c"], ["a.out -> b.in", "b.out -> a.in", "b.far ~> c.in"], loops={"ab": ["a", "b"]})
    lanes = draft(
        [
            {"id": "a", "lane": "pool", "execution": {"reentrant": True, "on_error": "retry", "max_attempts": 2}},
            {
                "id": "b",
                "lane": "own",
                "event_sources": [{"type": "timer", "period_ms": 5}],
                "trigger_policy": {"type": "on_event"},
            },
        ],
        [
            {
                "from": "a.out",
                "to": "b.in",
                "kind": "async",
                "policy": {"mode": "queue", "capacity": 4, "max_inflight": 2},
            }
        ],
        lanes={
            "pool": {
                "type": "thread_pool",
                "max_threads": 2,
                "policy": {"name": "eevdf", "params": {}},
                "rt_policy": "fifo",
            },
            "own": {"type": "isolated_thread", "hz": 50, "cpu_affinity": [0], "starvation_epochs": 2},
        },
        version=2,
    )
    parts = draft(
        subgraphs=[{"id": "cell", "components": pair["components"], "edges": pair["edges"]}],
        templates=[
            {
                "id": "t",
                "parameters": ["n"],
                "components": [{"id": "x", "type": "k{{n}}", "execution": {"lane": "main", "budget_ms": "{{n}}"}}],
                "edges": [],
            }
        ],
        template_instances=[{"id": "one", "template": "t", "parameters": {"n": 3}}],
    )
    return [pair, loop, lanes, parts]

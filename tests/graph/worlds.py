"""Helpers to build and run small graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rota.graph.capabilities import Platform
from rota.graph.compiler import compile_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component_type
from rota.graph.loader import load_mapping
from rota.graph.plan import Plan
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions

DRIVEN_BY_INPUTS = (
    "any_input",
    "all_inputs",
    "time_sync",
    "batch",
    "watermark",
    "condition",
    "debounce",
    "rate_limit",
)
EVENT_LOOP = {"main": {"type": "event_loop"}}


def node(
    thing: Callable[..., Any],
    name: str | None = None,
    *,
    on: str | Mapping[str, Any] | None = None,
    sources: Sequence[Mapping[str, Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    after: Sequence[str] = (),
    lane: str = "main",
    **execution: Any,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A component of a graph: its implementation, and its entry in the file."""
    kind = component_type(thing)
    assert kind is not None, f"{thing} is not a component"
    entry: dict[str, Any] = {
        "id": name or kind.name,
        "type": kind.name,
        "execution": {"lane": lane, **execution},
        "config": dict(config or {}),
        "depends_on": list(after),
    }
    if on is not None:
        entry["trigger_policy"] = {"type": on} if isinstance(on, str) else dict(on)
    if sources is not None:
        entry["event_sources"] = [dict(source) for source in sources]
    return thing, entry


def wire(text: str, kind: str = "immediate", **policy: Any) -> dict[str, Any]:
    """An edge from "a.out > b.value"; its id is "a>b"."""
    source, target = (end.strip() for end in text.split(">"))
    name = f"{source.rpartition('.')[0]}>{target.rpartition('.')[0]}"
    return {"id": policy.pop("id", name), "kind": kind, "from": source, "to": target, "policy": policy}


def compile_world(
    nodes: Iterable[tuple[Callable[..., Any], dict[str, Any]]],
    wires: Iterable[Mapping[str, Any]] = (),
    *,
    lanes: Mapping[str, Any] | None = None,
    loops: Sequence[Mapping[str, Any]] = (),
    version: int = 2,
    platform: Platform | None = None,
    config: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] | None = None,
) -> tuple[Plan, ComponentRegistry]:
    """A plan, and the registry that knows its components."""
    nodes, wires = list(nodes), list(wires)
    for _, entry in nodes:
        _list_inputs(entry, wires)
    registry = ComponentRegistry(thing for thing, _ in nodes)
    document = {
        "schema_version": version,
        "graph": {
            "name": "world",
            "kind": "internal_test",
            "config": dict(config or {}),
            **({"budget": dict(budget)} if budget else {}),
        },
        "lanes": dict(lanes or EVENT_LOOP),
        "components": [entry for _, entry in nodes],
        "edges": wires,
        "composite_loops": list(loops),
    }
    return compile_graph(load_mapping(document), registry, platform), registry


def _list_inputs(entry: dict[str, Any], wires: Iterable[Mapping[str, Any]]) -> None:
    """List all connected inputs in a trigger that is driven by inputs and names none."""
    trigger = entry.get("trigger_policy", {})
    if trigger.get("type") in DRIVEN_BY_INPUTS and "inputs" not in trigger:
        ends = [str(edge["to"]).rpartition(".") for edge in wires]
        trigger["inputs"] = list(dict.fromkeys(port for name, _, port in ends if name == entry["id"]))


def make_runner(
    nodes: Iterable[tuple[Callable[..., Any], dict[str, Any]]],
    wires: Iterable[Mapping[str, Any]] = (),
    *,
    lanes: Mapping[str, Any] | None = None,
    loops: Sequence[Mapping[str, Any]] = (),
    version: int = 2,
    platform: Platform | None = None,
    graph_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> RuntimeRunner:
    """A runner for a small graph."""
    plan, registry = compile_world(
        nodes, wires, lanes=lanes, loops=loops, version=version, platform=platform, config=graph_config
    )
    return RuntimeRunner(plan, registry, RuntimeRunnerOptions(**options))


def run(
    nodes: Iterable[tuple[Callable[..., Any], dict[str, Any]]], wires: Iterable[Mapping[str, Any]] = (), **more: Any
) -> RuntimeRunnerResult:
    """Run a small graph to its end."""
    return make_runner(nodes, wires, **more).run()


def names(result: RuntimeRunnerResult, *wanted: str) -> list[str]:
    """The names of a run's trace events in order; all of them, or those that begin with one of these words."""
    assert result.trace is not None
    return [event.name for event in result.trace.events() if not wanted or event.name.startswith(wanted)]


def executed(result: RuntimeRunnerResult) -> list[str]:
    """Which components were executed, in the order of their commits."""
    assert result.trace is not None
    return [event.component_id for event in result.trace.events() if event.name == "component_execute"]

"""Starting graph runs: reads a graph, decides where its run lives, starts it (see `graph_runs`)."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from rota.app.graph_runs import EPOCHS_MAX, GraphRunHandle, LocalGraphRun, StoredGraphRun, Worker
from rota.app.jobs import StoreLink
from rota.errors import InvalidInput
from rota.graph import GraphSpec, RuntimeRunner, RuntimeRunnerOptions, StopToken, compile_graph, load, load_mapping
from rota.graph.budgets import amounts_of
from rota.graph.builder import Graph
from rota.graph.lanes.durable import DurableRuns
from rota.graph.run_values import check_inputs
from rota.graph.spec import DURABLE_LANE_TYPES
from rota.service.dispatcher import Dispatcher

__all__ = ["AnyGraph", "read_graph", "start_graph"]

AnyGraph: TypeAlias = Graph | GraphSpec | Mapping[str, Any] | str | os.PathLike[str]


def read_graph(given: AnyGraph) -> Graph:
    """Return the graph that was given: as a `Graph`, as the path of a graph file, or as a graph file's contents."""
    if isinstance(given, Graph):
        return given
    if isinstance(given, GraphSpec):
        return Graph.from_spec(given)
    if isinstance(given, Mapping):
        return Graph.from_spec(load_mapping(given))
    if isinstance(given, str) and ("\n" in given or given.lstrip().startswith("{")):
        return Graph.from_yaml(given)
    return Graph.from_spec(load(Path(given)))


def _project_of(graph: Graph) -> str | None:
    """Return the project of a run: that of its agents. Entries of a run reach the agents of its project only."""
    if len(graph.projects) > 1:
        names = ", ".join(sorted(graph.projects))
        text = f"the agents of graph {graph.name} are in several projects: {names}"
        raise InvalidInput(text, field="project", hint="Name the project of the run: run_graph(…, project=…).")
    return next(iter(graph.projects), None)


def _with_budget(spec: GraphSpec, budget: Mapping[str, int]) -> GraphSpec:
    """Return the graph with the budget of a run, which replaces its own in the dimensions that it names."""
    amounts = {**amounts_of(spec.graph.budget), **budget}
    info = msgspec.structs.replace(spec.graph, budget={dim: float(amount) for dim, amount in amounts.items()} or None)
    return msgspec.structs.replace(spec, graph=info)


def start_graph(
    link: StoreLink,
    given: AnyGraph,
    inputs: Mapping[str, Any],
    *,
    run_id: str | None,
    project: str | None,
    budget: Mapping[str, int] | None,
    worker: Worker,
) -> GraphRunHandle:
    """Start a run and return a handle on it."""
    graph = read_graph(given)
    spec = graph.spec
    check_inputs({component.id: component for component in spec.components}, inputs)
    if project is None:
        project = _project_of(graph)
    is_durable = any(spec.lanes[each.execution.lane].type in DURABLE_LANE_TYPES for each in spec.components)
    if is_durable and graph.is_importable:
        document = graph.document()
        return StoredGraphRun(link, link.api.graphs.start(document, dict(inputs), run_id, project, budget), worker)
    if is_durable and not isinstance(link.api, Dispatcher):
        graph.check_importable()  # raises: a daemon's supervisors cannot call a function of this process
    if project is not None and not is_durable:
        text = f"graph {graph.name} runs in this program, where project has no effect"
        hint = "It applies to graphs with agents."
        raise InvalidInput(text, field="project", hint=hint)
    run_id = run_id or uuid.uuid4().hex
    registry = graph.registry()
    plan = compile_graph(_with_budget(spec, budget or {}), registry)
    durable = DurableRuns(link.api, project_id=project) if is_durable else None
    run = None if durable is None else durable.take(run_id, graph.name)
    stop = StopToken()
    options = RuntimeRunnerOptions(
        steps=EPOCHS_MAX,
        run_until_idle=True,
        run_id=run_id,
        inputs=dict(inputs),
        stop_token=stop,
        durable=None if run is None else DurableRuns(link.api, taken=run, is_stopping=lambda: stop.is_set),
    )
    runner = RuntimeRunner(plan, registry, options)
    if run is None:
        return LocalGraphRun(runner, run_id, contextlib.nullcontext)
    return LocalGraphRun(runner, run_id, worker, (link, run))

"""Rules on components that map over a list (`map_over`): there must be one list, and room for all its items."""

from __future__ import annotations

from collections.abc import Iterator

from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.spec import ComponentSpec

__all__ = ["check_mapping"]


def check_mapping(index: GraphIndex) -> Iterator[Diagnostic]:
    """Check every component with `map_over`."""
    for component in index.components.values():
        if component.execution.map_over:
            for problem, fix in _problems(index, component):
                message = f"component {component.id} maps over {component.execution.map_over}, {problem}"
                path = f"components.{component.id}.execution.map_over"
                code = "graph_validation_error"
                yield Diagnostic.of(code, message, path, components=[component.id], fix=fix)


def _problems(index: GraphIndex, component: ComponentSpec) -> Iterator[tuple[str, str]]:
    """Yield each problem with its fix."""
    port, lane = component.execution.map_over, index.lane_of(component.id)
    edges = len(index.edges_to(component.id, port))
    if edges != 1:
        yield f"to which {edges} edges lead", "Let exactly one edge lead to this input."
    if lane is not None and lane.independent:
        yield (
            f"which a lane of type {lane.type} cannot do",
            "Use another lane: the items of a list belong to one epoch.",
        )
    if lane is not None and lane.queue_capacity and lane.type in ("thread_pool", "process_pool"):
        yield "but its lane does not accept all items", "Set queue_capacity: 0 on the lane."
    descriptor = index.descriptors.get(component.id)
    if descriptor is not None and (len(descriptor.outputs) != 1 or descriptor.any_ports):
        yield "which needs a component with exactly one output", "Return one value for each item."
    if component.trigger_policy.type in ("batch", "watermark", "time_sync"):
        yield f"which the trigger {component.trigger_policy.type} cannot do", "Use the trigger all_inputs or any_input."

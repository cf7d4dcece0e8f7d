"""Names: each used once, and nothing named that is not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex, Wire

__all__ = ["check_names"]


def check_names(index: GraphIndex) -> Iterator[Diagnostic]:
    """Every name that is used twice or leads nowhere."""
    spec = index.spec
    yield from _twice("components", (each.id for each in spec.components))
    yield from _twice("edges", (each.id for each in spec.edges))
    yield from _twice("composite_loops", (each.id for each in spec.composite_loops))
    yield from _lanes(index)
    for wire in index.wires:
        yield from _ends(index, wire)
    if index.has_catalogue:
        yield from _types(index)


def _twice(section: str, ids: Iterable[str]) -> Iterator[Diagnostic]:
    for name, times in Counter(ids).items():
        if times > 1:
            yield Diagnostic.of(
                "duplicate_id",
                f"{section} has the id {name} twice",
                f"{section}.{name}",
                components=[name] if section == "components" else (),
                edges=[name] if section == "edges" else (),
            )


def _lanes(index: GraphIndex) -> Iterator[Diagnostic]:
    used = set()
    for name, component in index.components.items():
        lane = component.execution.lane
        used.add(lane)
        if lane not in index.spec.lanes:
            message = f"component {name} references missing lane {lane}"
            fix = f"The lanes are: {', '.join(index.spec.lanes) or 'none'}."
            path = f"components.{name}.execution.lane"
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)
    for lane in index.spec.lanes:
        if lane not in used:
            yield Diagnostic.of("diagnostic_note", f"no component runs on the lane {lane}", f"lanes.{lane}")


def _ends(index: GraphIndex, wire: Wire) -> Iterator[Diagnostic]:
    """Both ends of an edge: `component.port`, and the component is there."""
    name = wire.spec.id
    for word, text, end in (("from", wire.spec.source, wire.source), ("to", wire.spec.target, wire.target)):
        path = f"edges.{name}.{word}"
        if not end.component or not end.port:
            message = f"edge {name}: {word} is {text!r}, which is not component.port"
            fix = "Write the component, a dot and the port, such as source.out."
            yield Diagnostic.of("graph_validation_error", message, path, edges=[name], fix=fix)
        elif end.component not in index.components:
            side = "source" if word == "from" else "target"
            message = f"edge {name} references missing {side} component {end.component}"
            yield Diagnostic.of("unknown_component", message, path, components=[end.component], edges=[name])


def _types(index: GraphIndex) -> Iterator[Diagnostic]:
    for name, component in index.components.items():
        if name not in index.descriptors:
            message = f"component {name} type is not registered: {component.type}"
            path = f"components.{name}.type"
            fix = "Load the module that registers the type, or correct its name."
            yield Diagnostic.of("unknown_component", message, path, components=[name], fix=fix)

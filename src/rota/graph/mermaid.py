"""A plan as a Mermaid flowchart: regions as boxes, lanes as colours, kinds of edges as kinds of lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from rota.graph.plan import Edge, Plan

__all__ = ["COLOURS", "printable", "to_mermaid"]

_ARROWS = {"immediate": "-->", "delay": "-.->", "state": "==>", "async": "--o"}
# Fill colours for lanes, in the order of the file; more lanes than colours begin again.
COLOURS = ("#dbeafe", "#dcfce7", "#fef9c3", "#fae8ff", "#ffedd5", "#e0e7ff", "#f1f5f9", "#ffe4e6")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff]")
_SIGNS = {sign: f"#{ord(sign)};" for sign in '#&"<>`\\'}


def to_mermaid(plan: Plan) -> str:
    """The plan as text that Mermaid draws."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    names = {component: f"c{at}" for at, component in enumerate(plan.components)}
    yield "flowchart LR"
    home = {name: part.id for part in plan.spec.hierarchy for name in part.components}
    members: dict[str, list[str]] = defaultdict(list)
    for name in plan.components:
        members[home.get(name, "")].append(name)
    for part, components in members.items():
        yield from _part(plan, names, part, components)
    for edge in plan.edges.values():
        yield f"  {_edge(edge, names)}"
    yield from _lanes(plan, names)


def _part(plan: Plan, names: dict[str, str], part: str, components: list[str]) -> Iterator[str]:
    """The components of the top level or of one subgraph; those of a loop that lies in it whole stand in a box."""
    indent = "  "
    if part:
        yield f"  subgraph s_{names[components[0]]}[{_quoted('Subgraph: ' + part)}]"
        indent = "    "
    inside = set(components)
    boxed: set[str] = set()
    for region in plan.regions.values():
        if region.loop is not None and set(region.components) <= inside:
            yield f"{indent}subgraph r_{names[region.components[0]]}[{_quoted('Loop: ' + region.id)}]"
            for name in region.components:
                yield f"{indent}  {_node(plan, names, name)}"
            yield f"{indent}end"
            boxed |= set(region.components)
    for name in components:
        if name not in boxed:
            yield f"{indent}{_node(plan, names, name)}"
    if part:
        yield "  end"


def _node(plan: Plan, names: dict[str, str], component: str) -> str:
    spec = plan.components[component]
    text = _quoted(component, spec.execution.lane)
    at_boundary = spec.boundary.role != "processing"
    return f"{names[component]}([{text}])" if at_boundary else f"{names[component]}[{text}]"


def _edge(edge: Edge, names: dict[str, str]) -> str:
    label = edge.target.port if edge.spec.kind == "immediate" else f"{edge.spec.kind}: {edge.target.port}"
    arrow = _ARROWS[edge.spec.kind]
    return f"{names[edge.source.component]} {arrow}|{_quoted(label)}| {names[edge.target.component]}"


def _lanes(plan: Plan, names: dict[str, str]) -> Iterator[str]:
    for at, lane in enumerate(plan.lanes.values()):
        if lane.components:
            members = ",".join(names[component] for component in lane.components)
            yield f"  classDef lane{at} fill:{COLOURS[at % len(COLOURS)]},stroke:#334155,color:#0f172a"
            yield f"  class {members} lane{at}"


def printable(text: str) -> str:
    """The text as a drawing can show it: the names of types and ports may hold control characters."""
    return _CONTROL.sub("\ufffd", text)


def _quoted(*lines: str) -> str:
    """Lines of text in which nothing can be read as Mermaid's own signs."""
    return '"' + "<br/>".join("".join(_SIGNS.get(sign, sign) for sign in printable(line)) for line in lines) + '"'

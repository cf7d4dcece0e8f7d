"""Draw a plan as a Mermaid flowchart: loops as boxes, lanes as colours, edge kinds as line styles.

Of a run, the colours are the states of its nodes instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from rota.graph.plan import Edge, Plan
from rota.model.graph_runs import NodeState
from rota.svg import printable

__all__ = ["COLOURS", "STATE_COLOURS", "to_mermaid"]

_ARROWS = {"immediate": "-->", "delay": "-.->", "state": "==>", "async": "--o"}
# Fill colours of the lanes, in file order; they repeat if there are more lanes than colours.
COLOURS = ("#dbeafe", "#dcfce7", "#fef9c3", "#fae8ff", "#ffedd5", "#e0e7ff", "#f1f5f9", "#ffe4e6")
STATE_COLOURS: Mapping[NodeState, str] = {
    "pending": "#f1f5f9",
    "waiting": "#fef9c3",
    "ready": "#dbeafe",
    "running": "#93c5fd",
    "succeeded": "#bbf7d0",
    "failed": "#fca5a5",
    "cancelled": "#d6d3d1",
}
_ESCAPES = {char: f"#{ord(char)};" for char in '#&"<>`\\'}


def to_mermaid(plan: Plan, states: Mapping[str, NodeState] | None = None) -> str:
    """Return the plan as Mermaid text; with the `states` of the nodes of a run, in their colours."""
    return "\n".join(_lines(plan, states)) + "\n"


def _lines(plan: Plan, states: Mapping[str, NodeState] | None) -> Iterator[str]:
    names = {component: f"c{at}" for at, component in enumerate(plan.components)}
    yield "flowchart LR"
    home = {name: part.id for part in plan.spec.hierarchy for name in part.components}
    members: dict[str, list[str]] = defaultdict(list)
    for name in plan.components:
        members[home.get(name, "")].append(name)
    for part, components in members.items():
        yield from _part(plan, names, part, components, states)
    for edge in plan.edges.values():
        yield f"  {_edge(edge, names)}"
    yield from _lanes(plan, names) if states is None else _states(names, states)


def _part(
    plan: Plan, names: dict[str, str], part: str, components: list[str], states: Mapping[str, NodeState] | None
) -> Iterator[str]:
    """Yield the components of the top level or of one subgraph; a loop that is entirely inside it gets a box."""
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
                yield f"{indent}  {_node(plan, names, name, states)}"
            yield f"{indent}end"
            boxed |= set(region.components)
    for name in components:
        if name not in boxed:
            yield f"{indent}{_node(plan, names, name, states)}"
    if part:
        yield "  end"


def _node(plan: Plan, names: dict[str, str], component: str, states: Mapping[str, NodeState] | None) -> str:
    spec = plan.components[component]
    text = _quoted(component, spec.execution.lane if states is None else states.get(component, "pending"))
    at_boundary = spec.boundary.role != "processing"
    return f"{names[component]}([{text}])" if at_boundary else f"{names[component]}[{text}]"


def _edge(edge: Edge, names: dict[str, str]) -> str:
    label = edge.target.port if edge.is_immediate else f"{edge.spec.kind}: {edge.target.port}"
    arrow = _ARROWS[edge.spec.kind]
    return f"{names[edge.source.component]} {arrow}|{_quoted(label)}| {names[edge.target.component]}"


def _lanes(plan: Plan, names: dict[str, str]) -> Iterator[str]:
    for at, lane in enumerate(plan.lanes.values()):
        if lane.components:
            members = ",".join(names[component] for component in lane.components)
            yield f"  classDef lane{at} fill:{COLOURS[at % len(COLOURS)]},stroke:#334155,color:#0f172a"
            yield f"  class {members} lane{at}"


def _states(names: dict[str, str], states: Mapping[str, NodeState]) -> Iterator[str]:
    for state, colour in STATE_COLOURS.items():
        if members := [short for name, short in names.items() if states.get(name, "pending") == state]:
            yield f"  classDef {state} fill:{colour},stroke:#334155,color:#0f172a"
            yield f"  class {','.join(members)} {state}"


def _quoted(*lines: str) -> str:
    """Return a quoted label with these lines, in which Mermaid's special characters are escaped."""
    return '"' + "<br/>".join("".join(_ESCAPES.get(char, char) for char in printable(line)) for line in lines) + '"'

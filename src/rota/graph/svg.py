"""Draw a plan as an SVG document.

Each box is a component, coloured by lane and numbered with the position of its region in the epoch. A frame around
boxes is a composite loop. Lines are edges: solid for immediate edges, dashed for edges that deliver in a later epoch.
Of a run, boxes have the colours of their nodes' states instead of those of lanes. On a page, boxes lead to entries.

*Layout.* Columns run from left to right, and the components of a region stand below each other. A region is one column
to the right of its predecessors, so an epoch reads from left to right. A region without immediate edges that receives
messages of an earlier epoch stands to the right of the sender. Within a column, regions are sorted by the average
height of their predecessors, which avoids most crossing lines; ties keep the region order, so that a plan always gives
the same drawing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.graph.mermaid import COLOURS, STATE_COLOURS
from rota.graph.plan import Edge, Plan, Region
from rota.model.graph_runs import NodeState
from rota.svg import INK, document, element, link, picture, text

__all__ = ["Box", "Layout", "place_boxes", "to_svg"]

BOX_WIDTH, BOX_HEIGHT = 168, 46
GAP_ACROSS, GAP_DOWN = 92, 22
LOOP_MARGIN, LOOP_TITLE = 12, 18
MARGIN, TOP = 28, 64
TEXT_SHOWN = 22  # characters in a box; its tooltip has the full text
LOOP_TEXT_SHOWN = 32  # characters in the title of a loop, which uses a smaller font
LEGEND_ROW = 20
BACKWARDS_DIP = 60  # how far an edge to an earlier column bends below its boxes
_DASHES = {"immediate": "", "delay": "7 4", "state": "2 3", "async": "10 3 2 3"}
_ARROW_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>'
)


def to_svg(plan: Plan, states: Mapping[str, NodeState] | None = None, *, links: Mapping[str, str] | None = None) -> str:
    """Return the plan as an SVG document; with the `states` of the nodes of a run, in their colours.

    With `links`, by component, it is a part of a page instead of a document: `picture`.
    """
    layout = place_boxes(plan)
    colours = _lane_legend(plan) if states is None else [(state, STATE_COLOURS[state]) for state in STATE_COLOURS]
    legend = LEGEND_ROW * (max(len(colours), len(_DASHES)) + 1)
    top = layout.height + BACKWARDS_DIP / 2
    parts = [
        _ARROW_TIP,
        *_loops(plan, layout),
        *_edges(plan, layout),
        *_components(plan, layout, states, links or {}),
        *_legend(colours, top),
    ]
    width, height = max(layout.width, 560), top + legend + MARGIN
    if links is not None:
        return picture(width, height, f"The graph {plan.name}", parts)
    return document(width, height, plan.name, parts, margin=MARGIN)


def _loops(plan: Plan, layout: Layout) -> Iterator[str]:
    for name, box in layout.loops.items():
        loop = plan.regions[name].loop
        kind = loop.loop_policy.type if loop else ""
        yield _rect(box, rx=10, fill="none", stroke="#94a3b8", stroke_dasharray="4 3")
        yield text(box.x + 10, box.y + LOOP_TITLE - 3, _short(f"↻ {name} · {kind}", LOOP_TEXT_SHOWN), class_="small")


def _edges(plan: Plan, layout: Layout) -> Iterator[str]:
    for edge in plan.edges.values():
        source, target = layout.components[edge.source.component], layout.components[edge.target.component]
        yield _line(_curve(source, target), edge.spec.kind, marker_end="url(#tip)", tip=_edge_text(edge))


def _curve(source: Box, target: Box) -> str:
    """Return the path of an edge: to a later column straight, within a column at the side, backwards from below."""
    right, left, y1, y2 = source.x + source.width, target.x, source.middle, target.middle
    if left > right:
        bend = (left - right) / 2
        return f"M{right:g} {y1:g} C{right + bend:g} {y1:g} {left - bend:g} {y2:g} {left:g} {y2:g}"
    if source.x == target.x:
        side, bulge = (right, 34) if y2 >= y1 else (left, -34)
        y1, y2 = (y1 - 10, y2 + 10) if source == target else (y1, y2)
        return f"M{side:g} {y1:g} C{side + bulge:g} {y1:g} {side + bulge:g} {y2:g} {side:g} {y2:g}"
    x1, x2 = source.x + source.width / 2, target.x + target.width / 2
    y1, y2 = source.y + source.height, target.y + target.height
    below = max(y1, y2) + BACKWARDS_DIP
    return f"M{x1:g} {y1:g} C{x1:g} {below:g} {x2:g} {below:g} {x2:g} {y2:g}"


def _edge_text(edge: Edge) -> str:
    policy = edge.spec.policy
    return f"{edge.id}: {edge.spec.source} → {edge.spec.target}, {edge.spec.kind}, {policy.mode} of {policy.capacity}"


def _components(
    plan: Plan, layout: Layout, states: Mapping[str, NodeState] | None, links: Mapping[str, str]
) -> Iterator[str]:
    position = {name: str(at) for at, name in enumerate(plan.region_order, 1)}
    colour = {lane: COLOURS[at % len(COLOURS)] for at, lane in enumerate(plan.lanes)}
    for name, spec in plan.components.items():
        box, lane = layout.components[name], spec.execution.lane
        radius = 22 if spec.boundary.role != "processing" else 8
        state = None if states is None else states.get(name, "pending")
        fill = colour[lane] if state is None else STATE_COLOURS[state]
        tip = f"{name} ({spec.type}) on {lane}" + (f": {state}" if state else "")
        number = position.get(plan.component_region[name], "–")  # an independent lane is not part of the epoch
        parts = (
            _rect(box, rx=radius, fill=fill, stroke=INK, tip=tip),
            text(box.x + 12, box.y + 20, _short(name)),
            text(box.x + 12, box.y + 35, _short(state or spec.type), class_="small"),
            text(box.x + box.width - 10, box.y + 18, number, class_="small", text_anchor="end"),
        )
        yield from (link(links[name], parts, tip),) if name in links else parts


def _lane_legend(plan: Plan) -> list[tuple[str, str]]:
    """Return what is said about each lane, and its colour."""
    return [
        (
            f"{_short(lane.id)} · {lane.type}" + (f" · {lane.workers} workers" if lane.workers else ""),
            COLOURS[at % len(COLOURS)],
        )
        for at, lane in enumerate(plan.lanes.values())
    ]


def _legend(colours: Sequence[tuple[str, str]], top: float) -> Iterator[str]:
    for at, (words, colour) in enumerate(colours):
        y = top + LEGEND_ROW * (at + 1)
        yield _rect(Box(MARGIN, y - 11, 16, 13), rx=3, fill=colour, stroke=INK)
        yield text(MARGIN + 24, y, words, class_="small")
    for at, kind in enumerate(_DASHES):
        y = top + LEGEND_ROW * (at + 1)
        yield _line(f"M330 {y - 4:g} H374", kind)
        yield text(384, y, kind, class_="small")


def _rect(box: Box, **attributes: Any) -> str:
    return element("rect", x=box.x, y=box.y, width=box.width, height=box.height, **attributes)


def _line(path: str, kind: str, **attributes: Any) -> str:
    dashes = {"stroke_dasharray": dash} if (dash := _DASHES[kind]) else {}
    return element("path", class_="line", d=path, **dashes, **attributes)


def _short(words: str, limit: int = TEXT_SHOWN) -> str:
    return words if len(words) <= limit else words[: limit - 1] + "…"


# --- layout --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The y coordinate of its centre."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Layout:
    """The boxes and the size of a drawing."""

    components: dict[str, Box]
    loops: dict[str, Box]  # by region id
    width: float
    height: float


def place_boxes(plan: Plan) -> Layout:
    """Return the position of every component and loop."""
    order = [*plan.region_order, *(name for each in plan.independent for name in each.region_order)]
    columns: dict[int, list[str]] = defaultdict(list)
    for name, column in _columns(plan, order).items():
        columns[column].append(name)
    components: dict[str, Box] = {}
    loops: dict[str, Box] = {}
    height = float(TOP)
    for column in sorted(columns):
        x = MARGIN + column * (BOX_WIDTH + GAP_ACROSS)
        y = float(TOP)
        for name in sorted(columns[column], key=lambda region: _average_height(plan, region, components)):
            y = _place_region(plan.regions[name], x, y, components, loops) + GAP_DOWN
        height = max(height, y)
    width = MARGIN * 2 + (max(columns, default=0) + 1) * (BOX_WIDTH + GAP_ACROSS) - GAP_ACROSS
    return Layout(components, loops, width, height)


def _columns(plan: Plan, order: list[str]) -> dict[str, int]:
    """Return the column of each region, in region order."""
    column_of: dict[str, int] = {}
    for name in order:
        region = plan.regions[name]
        column_of[name] = 1 + max((column_of[before] for before in region.incoming_regions), default=-1)
    senders = _senders(plan)
    for name in order:
        region = plan.regions[name]
        if not region.incoming_regions and not region.outgoing_regions and name in senders:
            column_of[name] = 1 + max(column_of[sender] for sender in senders[name])
    return column_of


def _senders(plan: Plan) -> dict[str, set[str]]:
    """Return, for each region, the other regions that send to it on deferred edges."""
    senders: dict[str, set[str]] = defaultdict(set)
    for edge in plan.edges.values():
        source, target = plan.component_region[edge.source.component], plan.component_region[edge.target.component]
        if not edge.is_immediate and source != target:
            senders[target].add(source)
    return senders


def _average_height(plan: Plan, region: str, placed: dict[str, Box]) -> float:
    """Return the average y coordinate of the components of all predecessors, which are placed already."""
    heights = [
        placed[component].middle
        for before in plan.regions[region].incoming_regions
        for component in plan.regions[before].components
    ]
    return sum(heights) / len(heights) if heights else 0.0


def _place_region(region: Region, x: float, y: float, components: dict[str, Box], loops: dict[str, Box]) -> float:
    """Add the boxes of a region at (x, y), and return the y coordinate of its lower end."""
    top = y
    if region.loop is not None:
        y += LOOP_MARGIN + LOOP_TITLE
    for component in region.components:
        components[component] = Box(x, y, BOX_WIDTH, BOX_HEIGHT)
        y += BOX_HEIGHT + GAP_DOWN
    y -= GAP_DOWN
    if region.loop is None:
        return y
    y += LOOP_MARGIN
    loops[region.id] = Box(x - LOOP_MARGIN, top, BOX_WIDTH + 2 * LOOP_MARGIN, y - top)
    return y

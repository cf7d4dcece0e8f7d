"""A plan as an SVG drawing that stands by itself: no script, no font to load, nothing fetched.

Boxes are components, coloured by lane and numbered by their region's place in the epoch. A frame is a composite loop.
Lines are edges: plain ones are seen in the same epoch, broken ones in a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from rota.graph.layout import LOOP_TITLE, MARGIN, Box, Layout, place
from rota.graph.mermaid import COLOURS, printable
from rota.graph.plan import Edge, Plan

__all__ = ["to_svg"]

TEXT_SHOWN = 22  # characters in a box; the whole text is in its tooltip
LOOP_TEXT_SHOWN = 32  # characters above a loop, in the smaller type
LEGEND_ROW = 20
BACKWARDS_DIP = 60  # how far below its boxes an edge to an earlier layer is pulled
_DASHES = {"immediate": "", "delay": "7 4", "state": "2 3", "async": "10 3 2 3"}
_INK = "#334155"
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#0f172a}.small{font-size:10px;fill:#475569}"
    ".title{font-size:16px;font-weight:600}.loop{fill:none;stroke:#94a3b8;stroke-dasharray:4 3}"
    f".edge{{fill:none;stroke:{_INK};stroke-width:1.4}}"
)
_ARROW_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0 L8 4 L0 8 z" fill="{_INK}"/></marker></defs>'
)


def to_svg(plan: Plan) -> str:
    """The plan as an SVG document."""
    layout = place(plan)
    legend = LEGEND_ROW * (max(len(plan.lanes), len(_DASHES)) + 1)
    top = layout.height + BACKWARDS_DIP / 2
    width, height = max(layout.width, 560), top + legend + MARGIN
    return "\n".join(
        [
            _opening(width, height),
            f"<title>{_text(plan.name)}</title>",
            f"<style>{_STYLE}</style>",
            _ARROW_TIP,
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text class="title" x="{MARGIN}" y="34">{_text(plan.name)}</text>',
            *_loops(plan, layout),
            *_edges(plan, layout),
            *_components(plan, layout),
            *_legend(plan, top),
            "</svg>\n",
        ]
    )


def _opening(width: float, height: float) -> str:
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'


def _loops(plan: Plan, layout: Layout) -> Iterator[str]:
    for name, box in layout.loops.items():
        loop = plan.regions[name].loop
        kind = loop.loop_policy.type if loop else ""
        yield f'<rect class="loop" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="10"/>'
        yield (
            f'<text class="small" x="{box.x + 10:g}" y="{box.y + LOOP_TITLE - 3:g}">'
            f"{_text(_short(f'↻ {name} · {kind}', LOOP_TEXT_SHOWN))}</text>"
        )


def _edges(plan: Plan, layout: Layout) -> Iterator[str]:
    for edge in plan.edges.values():
        source, target = layout.components[edge.source.component], layout.components[edge.target.component]
        dashes = f' stroke-dasharray="{dash}"' if (dash := _DASHES[edge.spec.kind]) else ""
        yield (
            f'<path class="edge" d="{_curve(source, target)}"{dashes} marker-end="url(#tip)">'
            f"<title>{_text(_edge_words(edge))}</title></path>"
        )


def _curve(source: Box, target: Box) -> str:
    """Forwards from side to side; inside a column down on the right and up on the left; backwards round below."""
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


def _edge_words(edge: Edge) -> str:
    policy = edge.spec.policy
    return f"{edge.id}: {edge.spec.source} → {edge.spec.target}, {edge.spec.kind}, {policy.mode} of {policy.capacity}"


def _components(plan: Plan, layout: Layout) -> Iterator[str]:
    turn = {name: str(at) for at, name in enumerate(plan.region_order, 1)}
    colour = {lane: COLOURS[at % len(COLOURS)] for at, lane in enumerate(plan.lanes)}
    for name, spec in plan.components.items():
        box = layout.components[name]
        radius = 22 if spec.boundary.role != "processing" else 8
        lane = spec.execution.lane
        yield f"<g><title>{_text(f'{name} ({spec.type}) on {lane}')}</title>"
        yield (
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="{radius}" '
            f'fill="{colour[lane]}" stroke="{_INK}"/>'
        )
        yield f'<text x="{box.x + 12:g}" y="{box.y + 20:g}">{_text(_short(name))}</text>'
        yield f'<text class="small" x="{box.x + 12:g}" y="{box.y + 35:g}">{_text(_short(spec.type))}</text>'
        number = turn.get(plan.component_region[name], "–")  # an independent lane has no place in the epoch
        yield f'<text class="small" text-anchor="end" x="{box.x + box.width - 10:g}" y="{box.y + 18:g}">{number}</text>'
        yield "</g>"


def _legend(plan: Plan, top: float) -> Iterator[str]:
    for at, lane in enumerate(plan.lanes.values()):
        y = top + LEGEND_ROW * (at + 1)
        words = f"{_short(lane.id)} · {lane.type}" + (f" · {lane.workers} workers" if lane.workers else "")
        yield (
            f'<rect x="{MARGIN}" y="{y - 11:g}" width="16" height="13" rx="3" '
            f'fill="{COLOURS[at % len(COLOURS)]}" stroke="{_INK}"/>'
        )
        yield f'<text class="small" x="{MARGIN + 24}" y="{y:g}">{_text(words)}</text>'
    for at, (kind, dash) in enumerate(_DASHES.items()):
        y = top + LEGEND_ROW * (at + 1)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        yield f'<path class="edge" d="M330 {y - 4:g} H374"{dashes}/>'
        yield f'<text class="small" x="384" y="{y:g}">{kind}</text>'


def _short(text: str, most: int = TEXT_SHOWN) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(text: str) -> str:
    return escape(printable(text))

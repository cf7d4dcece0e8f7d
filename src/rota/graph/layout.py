"""Where the boxes of a drawing stand: layers from left to right, a region's components on top of each other.

A region stands one layer to the right of everything it waits for, so an epoch reads from left to right. A region that
waits for nobody and only receives what was sent in an earlier epoch stands to the right of its sender. Inside a layer,
regions are ordered by the average height of what leads to them, which keeps most lines from crossing; ties keep the
region order, so the same plan always gives the same drawing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from rota.graph.plan import Plan, Region

__all__ = ["Box", "Layout", "place"]

BOX_WIDTH, BOX_HEIGHT = 168, 46
GAP_ACROSS, GAP_DOWN = 92, 22
LOOP_MARGIN, LOOP_TITLE = 12, 18
MARGIN, TOP = 28, 64


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The height of its centre."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Layout:
    """Every box of a drawing, and its size."""

    components: dict[str, Box]
    loops: dict[str, Box]  # by region id
    width: float
    height: float


def place(plan: Plan) -> Layout:
    """Where everything in a plan stands."""
    order = [*plan.region_order, *(name for each in plan.independent for name in each.region_order)]
    columns: dict[int, list[str]] = defaultdict(list)
    for name, layer in _layers(plan, order).items():
        columns[layer].append(name)
    components: dict[str, Box] = {}
    loops: dict[str, Box] = {}
    height = float(TOP)
    for layer in sorted(columns):
        x = MARGIN + layer * (BOX_WIDTH + GAP_ACROSS)
        y = float(TOP)
        for name in sorted(columns[layer], key=lambda region: _pull(plan, region, components)):
            y = _stand(plan.regions[name], x, y, components, loops) + GAP_DOWN
        height = max(height, y)
    width = MARGIN * 2 + (max(columns, default=0) + 1) * (BOX_WIDTH + GAP_ACROSS) - GAP_ACROSS
    return Layout(components, loops, width, height)


def _layers(plan: Plan, order: list[str]) -> dict[str, int]:
    """The layer of each region, in the order of the epoch."""
    layers: dict[str, int] = {}
    for name in order:
        region = plan.regions[name]
        layers[name] = 1 + max((layers[before] for before in region.incoming_regions), default=-1)
    senders = _senders(plan)
    for name in order:
        region = plan.regions[name]
        if not region.incoming_regions and not region.outgoing_regions and name in senders:
            layers[name] = 1 + max(layers[sender] for sender in senders[name])
    return layers


def _senders(plan: Plan) -> dict[str, set[str]]:
    """For each region the others that send to it for a later epoch."""
    senders: dict[str, set[str]] = defaultdict(set)
    for edge in plan.edges.values():
        source, target = plan.component_region[edge.source.component], plan.component_region[edge.target.component]
        if edge.spec.kind != "immediate" and source != target:
            senders[target].add(source)
    return senders


def _pull(plan: Plan, region: str, placed: dict[str, Box]) -> float:
    """The average height of the components, already placed, that regions before this one are made of."""
    heights = [
        placed[component].middle
        for before in plan.regions[region].incoming_regions
        for component in plan.regions[before].components
    ]
    return sum(heights) / len(heights) if heights else 0.0


def _stand(region: Region, x: float, y: float, components: dict[str, Box], loops: dict[str, Box]) -> float:
    """Put a region's boxes into the drawing; the answer is where it ends."""
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

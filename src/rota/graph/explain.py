"""Why a plan is as it is: the place of every region, and the diagnostics by what they are about."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rota.graph.compiler import Checked
from rota.graph.diagnostics import CATEGORIES
from rota.graph.plan import Plan, Region
from rota.graph.spec import PRIORITY_RANKS

__all__ = ["RegionStory", "explain_lines", "region_stories"]

_CLASS = {rank: name for name, rank in PRIORITY_RANKS.items()}
_HEADINGS = {
    "graph_structure": "Structure",
    "scheduler": "Lanes and execution",
    "channel": "Channels",
    "payload": "Payloads",
    "trigger": "Triggers",
}


class RegionStory(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one region, and why it is there."""

    region: str
    lane: str  # "" for those of the epoch; an independent lane's own order otherwise
    place: int  # from 1, in the epoch or in its lane
    because: str


def region_stories(plan: Plan) -> tuple[RegionStory, ...]:
    """Every region in the order it runs in."""
    orders = [("", plan.region_order), *((each.lane, each.region_order) for each in plan.independent)]
    return tuple(
        RegionStory(region=name, lane=lane, place=place, because=_because(plan.regions[name]))
        for lane, order in orders
        for place, name in enumerate(order, 1)
    )


def _because(region: Region) -> str:
    waits = f"after {', '.join(region.incoming_regions)}" if region.incoming_regions else "waits for nobody"
    parts = [waits, f"priority {_CLASS[region.rank]}"]
    if region.loop is not None:
        rounds = max(1, region.loop.loop_policy.max_iterations)
        often = "one iteration" if rounds == 1 else f"up to {rounds} iterations"
        parts.append(f"loop of {', '.join(region.components)}, {region.loop.loop_policy.type}, {often}")
    return "; ".join(parts)


def explain_lines(checked: Checked) -> Iterator[str]:
    """The explanation for people, line by line."""
    if checked.plan is not None:
        yield f"An epoch of {checked.plan.name}:"
        for story in region_stories(checked.plan):
            where = f" [{story.lane}]" if story.lane else ""
            yield f"  {story.place:>3}.{where} {story.region}: {story.because}"
        yield from _deferred(checked.plan)
    for category in CATEGORIES:
        found = [each for each in checked.diagnostics if each.category == category]
        if found:
            yield ""
            yield f"{_HEADINGS[category]}:"
        for each in found:
            yield f"  {each.sentence()}"
            yield f"    → {each.suggested_fix}"


def _deferred(plan: Plan) -> Iterator[str]:
    later = [edge for edge in plan.edges.values() if edge.spec.kind != "immediate"]
    if later:
        yield ""
        yield "Seen from the next epoch on:"
        yield from (f"  {edge.id}: {edge.spec.source} → {edge.spec.target} ({edge.spec.kind})" for edge in later)

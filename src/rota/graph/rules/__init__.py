"""The rules that a graph must follow. Each check reads the graph's index and yields diagnostics.

structure   ids, references, ports and configuration of components; notes on style, for `lint` only
lanes       lanes, execution and loops: schema versions, and fields that have no effect
edges       contradictions and risks of edge policies
triggers    whether each component can become ready
mapping     components that map over a list
budgets     what components and runs may use, and what happens over budget
"""

from __future__ import annotations

from collections.abc import Iterator

from rota.graph.capabilities import Platform
from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.rules.budgets import check_budgets
from rota.graph.rules.edges import check_edges
from rota.graph.rules.lanes import check_lanes
from rota.graph.rules.mapping import check_mapping
from rota.graph.rules.structure import check_ports, check_references
from rota.graph.rules.triggers import check_triggers

__all__ = ["check_rules"]


def check_rules(index: GraphIndex, platform: Platform) -> Iterator[Diagnostic]:
    """Yield the diagnostics of all rules, in a fixed order."""
    yield from check_references(index)
    yield from check_lanes(index, platform)
    yield from check_edges(index)
    yield from check_triggers(index)
    yield from check_ports(index)
    yield from check_budgets(index)
    yield from check_mapping(index)

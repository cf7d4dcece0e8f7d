"""The rules a graph must keep, one file for each thing they are about; each reads the index and yields diagnostics."""

from __future__ import annotations

from collections.abc import Iterator

from rota.graph.capabilities import Platform
from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.rules.edges import check_edges
from rota.graph.rules.lanes import check_lanes
from rota.graph.rules.names import check_names
from rota.graph.rules.ports import check_ports
from rota.graph.rules.triggers import check_triggers

__all__ = ["check_rules"]


def check_rules(index: GraphIndex, platform: Platform) -> Iterator[Diagnostic]:
    """Everything the rules find, in a fixed order."""
    yield from check_names(index)
    yield from check_lanes(index, platform)
    yield from check_edges(index)
    yield from check_triggers(index)
    yield from check_ports(index)

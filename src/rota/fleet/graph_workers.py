"""Supervisors for graphs whose components no other process can import.

The entries of such a graph have the kind `graph:NAME`. A supervisor that was given the components of the graph has
slots of this kind, and is in everything else a supervisor like any other: it also runs entries of the graph's agents.

    graph_supervisor(Dispatcher(kernel), registry, ["research"]).run(until_idle=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.fleet.supervisor import Supervisor, SupervisorSettings
from rota.graph.component_registry import ComponentRegistry
from rota.graph.lanes.fleet_lane import entry_kind
from rota.service.api import SchedulerApi

__all__ = ["graph_supervisor"]


def graph_supervisor(
    api: SchedulerApi, registry: ComponentRegistry, graphs: Sequence[str], *, slots: int = 1, **settings: Any
) -> Supervisor:
    """Return a supervisor with slots for the entries of these graphs; `settings` are those of a supervisor."""
    kinds = {entry_kind(graph): slots for graph in graphs}
    return Supervisor(api, SupervisorSettings(slots=kinds, **settings), components=registry)

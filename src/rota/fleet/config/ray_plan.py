"""Warnings of `rota run --plan` about runs on Ray: what the cluster that is named does not have.

The plan connects to a cluster only if an address is given, in the file or in `RAY_ADDRESS`; it never starts one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from rota.errors import RotaError
from rota.fleet.config.tables import Fleet
from rota.fleet.on_ray.driver_link import DriverLink
from rota.fleet.on_ray.room import ClusterNode, lack
from rota.fleet.runners.resources import RunnerResources
from rota.model.ray import RAY
from rota.model.struct_reader import join_key

__all__ = ["look_at_cluster", "ray_warnings"]


def ray_warnings(fleet: Fleet) -> Iterator[str]:
    """Return what keeps the agents that run on Ray from running."""
    agents = {name: table for name, table in fleet.agents.items() if table.runner == RAY}
    if not agents:
        return
    if find_spec("ray") is None:
        names = ", ".join(agents)
        yield f"ray: Ray is not installed here, and {names} cannot run without it: pip install 'rota[ray]'"
        return
    address = fleet.ray.address or os.environ.get("RAY_ADDRESS")
    if not address:
        return  # what a cluster of this machine has is known when it runs
    found = look_at_cluster(address)
    if isinstance(found, str):
        yield f"ray.address: {found}"
        return
    for name, table in agents.items():
        settings = table.settings(fleet.folder).ray
        missing = None if settings is None else lack(settings.shape, found)
        if missing is not None:
            field = "node" if missing[0] == "node_missing" else "resources"
            yield f"{join_key('agents', name)}.{field}: {missing[1]}, so its runs wait"


def look_at_cluster(address: str) -> Sequence[ClusterNode] | str:
    """Return the nodes of a cluster, or why it cannot be reached."""
    with RunnerResources() as resources:
        try:
            link = DriverLink(resources, address)
        except RotaError as problem:
            return problem.message
        try:
            for event in link.events():
                match event:
                    case ["failed", str() as told]:
                        return told
                    case ["view", list() as nodes]:
                        return [ClusterNode(*each) for each in nodes]
                    case _:
                        continue
        finally:
            link.release()
    return f"the Ray cluster at {address} does not answer"

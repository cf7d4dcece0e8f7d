"""What fits on a cluster now: pure arithmetic over what its nodes report and what this supervisor has submitted.

    free = what the nodes that are up have − what others use − what our runs need

Others are the other programs on the cluster: what the nodes report as used, less what our own runs use. The reports lag
behind by some tenths of a second, so the smallest of the last `SAMPLES` counts.

An entry that was claimed and does not fit is *held*: its need is set aside, and only what fits into the rest is claimed
meanwhile. So a large run gets its turn although small ones keep arriving, and what does not compete with it goes on.
While nothing is held, one entry of any shape may be claimed even if it does not fit: otherwise the policy would never
see the large ones. Fragmentation is left to Ray: a task of two CPUs waits there until one node has both free.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from rota.model.ray import RayShape, amounts_text
from rota.model.value_types import closest
from rota.model.workers import PlacementCode

__all__ = ["ClusterNode", "Room", "lack"]

SAMPLES = 3  # reports of the cluster that are remembered
TOLERANCE = 1e-6  # of sums of fractions
Amounts = Mapping[str, float]


class ClusterNode(NamedTuple):
    """A node of the cluster that is up."""

    id: str
    name: str
    address: str
    total: dict[str, float]
    available: dict[str, float]

    def is_named(self, name: str) -> bool:
        """Whether this is the node that an agent's settings name."""
        return name in (self.name, self.address, self.id)


def lack(shape: RayShape, nodes: Collection[ClusterNode]) -> tuple[PlacementCode, str] | None:
    """Return why no node could ever run this shape, as a code and a sentence; None if one could."""
    fitting = [node for node in nodes if shape.node is None or node.is_named(shape.node)]
    if not fitting:
        names = ", ".join(sorted(node.name for node in nodes)) or "none"
        return "node_missing", f"the cluster has no node {shape.node!r}; its nodes: {names}"
    needs = shape.needs
    if any(_covers(node.total, needs) for node in fitting):
        return None
    for name, amount in needs.items():
        most = max(node.total.get(name, 0.0) for node in fitting)
        if most < amount:
            return "resource_missing", _missing_text(name, amount, most, fitting)
    return "resource_missing", f"no node of the cluster has {shape.sentence()} together"


def _missing_text(name: str, amount: float, most: float, nodes: Collection[ClusterNode]) -> str:
    known = {each for node in nodes for each in node.total if not each.startswith("node:")}
    if most:
        return f"it needs {name} {amount:,.10g}, and no node of the cluster has more than {most:,.10g}"
    similar = closest(name, known) or next((each for each in known if each.lower() == name.lower()), None)
    has = amounts_text({each: sum(node.total.get(each, 0.0) for node in nodes) for each in known})
    hint = f"; did you mean {similar}?" if similar else ""
    return f"no node of the cluster has the resource {name}; it has {has}{hint}"


class Room:
    """The resources of a cluster as one supervisor sees them. Not safe for threads by itself."""

    def __init__(self) -> None:
        self.nodes: tuple[ClusterNode, ...] = ()
        self._ours: dict[str, float] = {}  # needs of our runs that are submitted
        self._others: deque[dict[str, float]] = deque(maxlen=SAMPLES)

    def see(self, nodes: Iterable[ClusterNode]) -> None:
        """Take a report of the cluster."""
        self.nodes = tuple(nodes)
        total, available = self._total(), _sum(node.available for node in self.nodes)
        others = {name: amount - available.get(name, 0.0) - self._ours.get(name, 0.0) for name, amount in total.items()}
        self._others.append({name: max(0.0, amount) for name, amount in others.items()})

    def forget(self) -> None:
        """The cluster is gone."""
        self.nodes = ()
        self._ours.clear()
        self._others.clear()

    def take(self, shape: RayShape) -> None:
        """A run of this shape is submitted."""
        for name, amount in shape.resources:
            self._ours[name] = self._ours.get(name, 0.0) + amount

    def give(self, shape: RayShape) -> None:
        """A run of this shape has ended."""
        for name, amount in shape.resources:
            left = self._ours.get(name, 0.0) - amount
            self._ours[name] = left if left > TOLERANCE else 0.0

    def free(self, held: Collection[RayShape] = ()) -> dict[str, float]:
        """Return what is free, less what is set aside for entries that wait."""
        total = self._total()
        aside = _sum(shape.needs for shape in held)
        return {
            name: amount - self._used_by_others(name) - self._ours.get(name, 0.0) - aside.get(name, 0.0)
            for name, amount in total.items()
        }

    def fits(self, shape: RayShape) -> bool:
        """Whether a run of this shape fits now."""
        return bool(self.nodes) and _covers(self.free(), shape.needs)

    def keeps_waiting(self, shape: RayShape) -> bool:
        """Whether a submitted run of this shape waits for other programs, and not for its own process to start.

        It waits if more is used than our runs need, or if no node has so much in use that the run could be there.
        """
        needs = shape.needs
        if any(self._used_by_others(name) > TOLERANCE for name in needs):
            return True
        used = (
            {name: node.total.get(name, 0.0) - node.available.get(name, 0.0) for name in needs} for node in self.nodes
        )
        return not any(_covers(each, needs) for each in used)

    def claimable(
        self, shapes: Collection[RayShape], held: Collection[RayShape], most: int
    ) -> tuple[list[RayShape], int]:
        """Return the shapes to claim now and how many entries: any mix of that many fits."""
        possible = [shape for shape in shapes if lack(shape, self.nodes) is None]
        free = self.free(held)
        fitting = [shape for shape in possible if _covers(free, shape.needs)]
        if not held and len(fitting) < len(possible):
            return possible, min(most, 1)  # it may be one that is held then
        return fitting, min(most, _times(free, fitting))

    def _used_by_others(self, name: str) -> float:
        return min((sample.get(name, 0.0) for sample in self._others), default=0.0)

    def _total(self) -> dict[str, float]:
        return _sum(node.total for node in self.nodes)


def _times(free: Amounts, shapes: Collection[RayShape]) -> int:
    """Return how often the largest needs of some shapes, taken together, fit."""
    largest: dict[str, float] = {}
    for shape in shapes:
        for name, amount in shape.resources:
            largest[name] = max(largest.get(name, 0.0), amount)
    if not shapes:
        return 0
    counts = [(free.get(name, 0.0) + TOLERANCE) / amount for name, amount in largest.items()]
    return math.floor(min(counts, default=math.inf)) if counts else 2**31


def _covers(amounts: Amounts, needs: Amounts) -> bool:
    return all(amounts.get(name, 0.0) + TOLERANCE >= amount for name, amount in needs.items())


def _sum(parts: Iterable[Amounts]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total

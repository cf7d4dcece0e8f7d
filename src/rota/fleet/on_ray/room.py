"""What fits on which node now: pure arithmetic over what the nodes report and what this supervisor has submitted.

    free on a node = what it has − what others use there − what our runs there need

Others are the other programs on the cluster: what a node reports as used, less what our own runs use. The reports lag
behind by some tenths of a second, so the smallest of the last `SAMPLES` counts.

A run is submitted for one node: the one that it fills best, so that large runs find whole nodes free. Left to Ray, runs
of one CPU spread over all nodes, and a run of two CPUs waits inside Ray while small ones that were submitted later
start: the shares of projects would follow the sizes of their runs.

Whenever something fits, the policy chooses among all shapes, one entry at a time, and not only among those that fit:
otherwise it would never see the large ones. An entry that was claimed and does not fit is *held*: its need is set aside
on the node where it will fit first. So a large run gets its turn although small ones keep arriving, and what fits
beside it goes on. On each node at most one held run waits: a long queue of large ones must not keep everything else
from resources that they do not use yet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from rota.model.ray import RayShape, amounts_text
from rota.model.value_types import closest
from rota.model.workers import PlacementCode

__all__ = ["ClusterNode", "Room", "lack"]

SAMPLES = 3  # reports of the cluster that are remembered
TOLERANCE = 1e-6  # of sums of fractions
UNLIMITED = 2**31  # runs that need nothing
Amounts: TypeAlias = Mapping[str, float]
FreeByNode: TypeAlias = dict[str, dict[str, float]]


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
    fitting = [node for node in nodes if _may_be_on(shape, node)]
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
        self._free: FreeByNode = {}
        self._ours: dict[str, dict[str, float]] = {}  # needs of our runs that are submitted, by node
        self._others: dict[str, deque[dict[str, float]]] = {}  # what others use there, in the last reports

    def see(self, nodes: Iterable[ClusterNode]) -> None:
        """Take a report of the cluster."""
        self.nodes = tuple(nodes)
        before, self._others = self._others, {}
        for node in self.nodes:
            ours = self._ours.get(node.id, {})
            samples = self._others[node.id] = before.get(node.id) or deque(maxlen=SAMPLES)
            samples.append(
                {
                    name: max(0.0, amount - node.available.get(name, 0.0) - ours.get(name, 0.0))
                    for name, amount in node.total.items()
                }
            )
        self._free = {
            node.id: {
                name: amount - self._used_by_others(node.id, name) - self._ours.get(node.id, {}).get(name, 0.0)
                for name, amount in node.total.items()
            }
            for node in self.nodes
        }

    def forget(self) -> None:
        """The cluster is gone."""
        self.nodes = ()
        self._free, self._ours, self._others = {}, {}, {}

    def take(self, shape: RayShape, node_id: str) -> None:
        """A run of this shape is submitted for a node."""
        self._change(shape, node_id, 1)

    def give(self, shape: RayShape, node_id: str) -> None:
        """A run of this shape has ended."""
        self._change(shape, node_id, -1)

    def _change(self, shape: RayShape, node_id: str, sign: int) -> None:
        ours, free = self._ours.setdefault(node_id, {}), self._free.get(node_id)
        for name, amount in shape.resources:
            left = ours.get(name, 0.0) + sign * amount
            ours[name] = 0.0 if abs(left) < TOLERANCE else left
            if free is not None:
                free[name] = free.get(name, 0.0) - sign * amount

    def places(self, held: Sequence[RayShape]) -> list[str | None]:
        """Return the node on which each run that is held can start now; None for those that wait."""
        return self._plan(held)[0]

    def keeps_waiting(self, shape: RayShape, node_id: str) -> bool:
        """Whether a run that is submitted for a node waits for other programs, not for its own process to start.

        It waits if the node has less in use than the run needs, or if others use what it needs and nothing is left.
        """
        node = next((node for node in self.nodes if node.id == node_id), None)
        if node is None:
            return False  # Ray reports that it is gone
        return any(
            node.total.get(name, 0.0) - available + TOLERANCE < amount
            or (available + TOLERANCE < amount and self._used_by_others(node_id, name) > TOLERANCE)
            for name, amount in shape.resources
            for available in [node.available.get(name, 0.0)]
        )

    def is_kept_by_others(self, shape: RayShape) -> bool:
        """Whether a run of this shape would not fit even if all of our runs had ended."""
        return not any(self._fits_beside_others(shape, node) for node in self.nodes if _may_be_on(shape, node))

    def claimable(
        self, shapes: Collection[RayShape], held: Sequence[RayShape], most: int
    ) -> tuple[list[RayShape], int]:
        """Return the shapes to claim now and how many entries: any mix of that many fits."""
        _, free, waited_for = self._plan(held)
        possible = [shape for shape in shapes if lack(shape, self.nodes) is None]
        fitting = [shape for shape in possible if self._best_node(shape, free) is not None]
        others = [
            shape
            for shape in possible
            if shape not in fitting
            and (fitting or self.is_kept_by_others(shape))
            and any(node.id not in waited_for for node in self._able(shape))
        ]
        if others:
            return [*fitting, *others], min(most, 1)  # it may be one that is held then
        return fitting, min(most, self._times(fitting, free))

    def _plan(self, held: Sequence[RayShape]) -> tuple[list[str | None], FreeByNode, set[str]]:
        """Place what is held, in order.

        Return the node of each, what is free then, less what is set aside, and the nodes where something is.
        """
        free = dict(self._free)
        places, waited_for = [], set[str]()
        for shape in held:
            node_id = self._best_node(shape, free)
            places.append(node_id)
            if node_id is None:
                node_id = self._soonest_node(shape, free, waited_for)
                if node_id is None:
                    continue  # no node can have it any more
                waited_for.add(node_id)
            needs = shape.needs
            free[node_id] = {name: amount - needs.get(name, 0.0) for name, amount in free[node_id].items()}
        return places, free, waited_for

    def _best_node(self, shape: RayShape, free: FreeByNode) -> str | None:
        """Return the node that a run fills best; one without GPUs if the run needs none."""
        needs = shape.needs
        fitting = [node for node in self.nodes if _may_be_on(shape, node) and _covers(free[node.id], needs)]
        scarce = ("GPU", "CPU") if "GPU" in needs else ("CPU",)
        return min(
            (
                ("GPU" in node.total and "GPU" not in needs, [free[node.id].get(name, 0.0) for name in scarce], node.id)
                for node in fitting
            ),
            default=(False, [], None),
        )[2]

    def _able(self, shape: RayShape) -> list[ClusterNode]:
        """Return the nodes that have enough for a run, if nothing else were there."""
        return [node for node in self.nodes if _may_be_on(shape, node) and _covers(node.total, shape.needs)]

    def _soonest_node(self, shape: RayShape, free: FreeByNode, waited_for: Collection[str]) -> str | None:
        """Return the node on which a run will fit first.

        It is one that no earlier run waits for, where others leave room, and where the least is missing.
        """
        needs = shape.needs
        return min(
            (
                (
                    node.id in waited_for,
                    not self._fits_beside_others(shape, node),
                    sum(max(0.0, amount - free[node.id].get(name, 0.0)) / amount for name, amount in needs.items()),
                    node.id,
                )
                for node in self._able(shape)
            ),
            default=(False, False, 0.0, None),
        )[3]

    def _times(self, shapes: Collection[RayShape], free: FreeByNode) -> int:
        """Return how many runs fit, whichever of these shapes they have."""
        if not shapes:
            return 0
        largest: dict[str, float] = {}
        for shape in shapes:
            for name, amount in shape.resources:
                largest[name] = max(largest.get(name, 0.0), amount)
        if not largest:
            return UNLIMITED
        shared = [node for node in self.nodes if all(_may_be_on(shape, node) for shape in shapes)]
        counts = [
            min((free[node.id].get(name, 0.0) + TOLERANCE) / amount for name, amount in largest.items())
            for node in shared
        ]
        return max(1, sum(math.floor(max(0.0, count)) for count in counts))  # each shape alone fits

    def _fits_beside_others(self, shape: RayShape, node: ClusterNode) -> bool:
        return all(
            node.total.get(name, 0.0) - self._used_by_others(node.id, name) + TOLERANCE >= amount
            for name, amount in shape.resources
        )

    def _used_by_others(self, node_id: str, name: str) -> float:
        return min((sample.get(name, 0.0) for sample in self._others.get(node_id, ())), default=0.0)


def _may_be_on(shape: RayShape, node: ClusterNode) -> bool:
    """Whether a run of this shape may be on a node, as far as its name goes."""
    return shape.node is None or node.is_named(shape.node)


def _covers(amounts: Amounts, needs: Amounts) -> bool:
    return all(amounts.get(name, 0.0) + TOLERANCE >= amount for name, amount in needs.items())

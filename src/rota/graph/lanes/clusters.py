"""Rounds: how an independent lane goes through its components in order without waiting for all of them.

Components that are joined by immediate edges inside the lane form a *cluster*. A cluster is a small graph with an order
of its own, and it goes through it in rounds, as the whole graph goes through epochs: in a round each region is visited
once, after everything before it in the cluster is done, and what is ready there is taken in. What arrives for a region
that was visited already is for the next round. So a source that never rests cannot keep the components behind it from
their turn, and a component never runs in the middle of a round that its inputs are still part of.

    a → b → c and, without an edge to them, d          two clusters: {a b c} and {d}
    round of the first: a, then b, then c              d has as many rounds in the meantime as its priority gives it

Between clusters there is no order but that of the lane's queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from rota.graph.loops import LoopStep
from rota.graph.nodes import Node

__all__ = ["Cluster", "LaneRegion", "Rounds"]


class LaneRegion:
    """One region of an independent lane."""

    def __init__(self, at: int, nodes: Sequence[Node], loop: LoopStep | None) -> None:
        self.at = at  # its place in the order of the lane
        self.nodes = tuple(nodes)
        self.loop = loop
        self.lead = max(nodes, key=lambda node: node.rank)  # stands for the region in the queue
        self.before = 0  # how many regions of its cluster lead here
        self.after: list[LaneRegion] = []
        self.cluster = Cluster(self)
        self.waits_for = 0  # regions, in this round
        self.under_way = 0  # invocations, in this round

    @property
    def may_be_ready(self) -> bool:
        """Whether a look at it is worth while."""
        return any(node.trigger.may_be_ready for node in self.nodes)

    def follow(self, earlier: LaneRegion) -> None:
        """An edge leads here from an earlier region of the lane: both belong to one cluster."""
        self.before += 1
        earlier.after.append(self)
        if earlier.cluster is not self.cluster:
            earlier.cluster.absorb(self.cluster)


class Cluster:
    """Regions joined by edges, and the round they are in."""

    def __init__(self, first: LaneRegion) -> None:
        self.regions = [first]
        self.remaining = 0  # regions that are not done; 0 between rounds

    def absorb(self, other: Cluster) -> None:
        """Become one with another cluster."""
        self.regions += other.regions
        for region in other.regions:
            region.cluster = self

    @property
    def may_be_ready(self) -> bool:
        """Whether a round is worth while."""
        return any(region.may_be_ready for region in self.regions)


class Rounds:
    """The rounds of all clusters of a lane. It does not lock: its lane does."""

    def __init__(self) -> None:
        self._news: dict[Cluster, None] = {}  # clusters for which something came, in order
        self._to_visit: list[tuple[int, LaneRegion]] = []  # a heap, by place; no two places are equal

    def __bool__(self) -> bool:
        return bool(self._news or self._to_visit)

    def note(self, cluster: Cluster) -> None:
        """Something may have become ready in a cluster."""
        self._news[cluster] = None

    def next_to_visit(self) -> LaneRegion | None:
        """The next region that may be looked at, once; begins rounds where one is due."""
        for cluster in [cluster for cluster in self._news if not cluster.remaining]:
            del self._news[cluster]
            self._begin(cluster)
        return heappop(self._to_visit)[1] if self._to_visit else None

    def _begin(self, cluster: Cluster) -> None:
        cluster.remaining = len(cluster.regions)
        for region in cluster.regions:
            region.waits_for = region.before
            if not region.before:
                heappush(self._to_visit, (region.at, region))

    def done(self, region: LaneRegion) -> None:
        """A region was visited and nothing of it is under way: those behind it may be visited."""
        region.cluster.remaining -= 1
        for later in region.after:
            later.waits_for -= 1
            if not later.waits_for:
                heappush(self._to_visit, (later.at, later))

"""Clusters and rounds: how an independent lane runs its components in order without waiting for all of them.

Components that are joined by immediate edges inside the lane form a *cluster*. A cluster has its own order and runs in
rounds, as the whole graph runs in epochs: in a round each region is visited once, after all its predecessors in the
cluster are done, and its ready invocations are queued. What arrives for a region that was already visited waits for the
next round. So a source that is always ready cannot starve the components behind it, and a component never runs in the
middle of a round that is still producing its inputs.

    a → b → c and, without an edge to them, d          two clusters: {a b c} and {d}
    a round of the first: a, then b, then c            d runs as many rounds meanwhile as its priority gives it

Between clusters there is no order except that of the lane's queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from rota.graph.loops import LoopStep
from rota.graph.nodes import Node

__all__ = ["Cluster", "LaneRegion", "Rounds"]


class LaneRegion:
    """One region of an independent lane."""

    def __init__(self, position: int, nodes: Sequence[Node], loop: LoopStep | None) -> None:
        self.position = position  # in the order of the lane
        self.nodes = tuple(nodes)
        self.loop = loop
        self.lead = max(nodes, key=lambda node: node.rank)  # represents the region in the queue
        self.predecessors = 0  # number of regions of its cluster with an edge to this one
        self.successors: list[LaneRegion] = []
        self.cluster = Cluster(self)
        self.predecessors_left = 0  # predecessors that are not done in this round
        self.in_flight = 0  # invocations of this round

    @property
    def may_be_ready(self) -> bool:
        """Whether a visit can find something ready."""
        return any(node.trigger.may_be_ready for node in self.nodes)

    def add_predecessor(self, earlier: LaneRegion) -> None:
        """Add an edge from an earlier region of the lane: both belong to one cluster."""
        self.predecessors += 1
        earlier.successors.append(self)
        if earlier.cluster is not self.cluster:
            large, small = sorted((earlier.cluster, self.cluster), key=lambda each: -len(each.regions))
            large.merge(small)  # a region moves at most log2(regions) times


class Cluster:
    """Regions joined by edges, and the state of their current round."""

    def __init__(self, first: LaneRegion) -> None:
        self.regions = [first]
        self.remaining = 0  # regions not done in this round; 0 between rounds

    def merge(self, other: Cluster) -> None:
        """Take over the regions of another cluster."""
        self.regions += other.regions
        for region in other.regions:
            region.cluster = self

    @property
    def may_be_ready(self) -> bool:
        """Whether a round can find something ready."""
        return any(region.may_be_ready for region in self.regions)


class Rounds:
    """The rounds of all clusters of a lane. It has no lock: the lane's lock protects it."""

    def __init__(self) -> None:
        self._pending: dict[Cluster, None] = {}  # clusters that may have ready invocations, between rounds
        self._pending_after: set[Cluster] = set()  # the same, during a round
        self._to_visit: list[tuple[int, LaneRegion]] = []  # a heap by position; positions are unique

    def __bool__(self) -> bool:
        return bool(self._pending or self._pending_after or self._to_visit)

    def mark_pending(self, cluster: Cluster) -> None:
        """Record that something may have become ready in a cluster."""
        if cluster.remaining:
            self._pending_after.add(cluster)
        else:
            self._pending[cluster] = None

    def next_to_visit(self) -> LaneRegion | None:
        """Return the next region to visit, once per round; begin a round where one is pending."""
        while self._pending:
            self._begin(self._pending.popitem()[0])
        return heappop(self._to_visit)[1] if self._to_visit else None

    def _begin(self, cluster: Cluster) -> None:
        cluster.remaining = len(cluster.regions)
        for region in cluster.regions:
            region.predecessors_left = region.predecessors
            if not region.predecessors:
                heappush(self._to_visit, (region.position, region))

    def done(self, region: LaneRegion) -> None:
        """Record that a region was visited and has nothing in flight: its successors may be visited."""
        cluster = region.cluster
        cluster.remaining -= 1
        if not cluster.remaining and cluster in self._pending_after:
            self._pending_after.remove(cluster)
            self._pending[cluster] = None
        for later in region.successors:
            later.predecessors_left -= 1
            if not later.predecessors_left:
                heappush(self._to_visit, (later.position, later))

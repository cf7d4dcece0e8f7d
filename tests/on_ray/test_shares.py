"""Shares on a simulated cluster of two nodes: the real store, policy and room; only the nodes and time are made up."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Literal

import pytest

from rota import Rota
from rota.fleet.on_ray.held_usage import HeldUsage
from rota.fleet.on_ray.room import ClusterNode, Room
from rota.kernel.run_reports import RunReport
from rota.model.ray import RayShape, kind_of, shape_of
from rota.model.work import ReadyEntry
from rota.model.workers import ONLY_KINDS

ON_A_NODE = 2.0  # CPUs, or GPUs
PLENTY = {"CPU": 100.0}  # unless CPUs are what is scarce
TIME_S = 60.0


class SimulatedCluster:
    """Two nodes, on which a submitted run starts at once: nothing is submitted that does not fit."""

    def __init__(self, rota: Rota, scarce: str, seconds: dict[int, float], shapes: list[RayShape]) -> None:
        self.used: Counter[int] = Counter()  # thousandths of seconds of the scarce resource, by agent
        self._scarce = scarce
        self._rota, self._seconds, self._shapes = rota, seconds, shapes
        self._room, self._usage = Room(), HeldUsage()
        self._free = {"a": ON_A_NODE, "b": ON_A_NODE}
        self._held: list[tuple[ReadyEntry, RayShape]] = []
        self._running: list[tuple[float, int, ReadyEntry, RayShape, str]] = []
        self._now = 0.0

    def run(self) -> None:
        """Run until `TIME_S`, with a report of the nodes every second."""
        report_at = 0.0
        while self._now < TIME_S:
            if not self._running or report_at < self._running[0][0]:
                self._now, report_at = report_at, report_at + 1.0
                self._room.see(
                    ClusterNode(node, node, "", PLENTY | {self._scarce: ON_A_NODE}, PLENTY | {self._scarce: free})
                    for node, free in self._free.items()
                )
                self._turn([])
            else:
                self._turn([self._end_first()])

    def _end_first(self) -> RunReport:
        self._now, _, entry, shape, node = heapq.heappop(self._running)
        amount, wall_ms = shape.needs[self._scarce], round(self._seconds[entry.pid] * 1000)
        self._free[node] += amount
        self._room.give(shape, node)
        self.used[entry.pid] += round(amount * wall_ms)
        assert entry.token is not None
        usage = self._usage.of(entry.pid, shape, wall_ms)
        return RunReport(sched_id=entry.sched_id, token=entry.token, usage=usage, wall_ms=wall_ms)

    def _turn(self, reports: list[RunReport]) -> None:
        self._submit()
        while True:
            shapes, count = self._room.claimable(self._shapes, [shape for _, shape in self._held], 100)
            if not reports and not count:
                return
            entries = self._rota.api.turn(reports, "w", count, kinds=(ONLY_KINDS, *map(kind_of, shapes))).entries
            reports = []
            for entry in entries:
                shape = shape_of(entry.kind)
                assert shape is not None
                self._held.append((entry, shape))
            self._submit()
            # as the supervisor's own slots do, which find nothing: that must not cost what a project is owed
            assert not self._rota.api.turn([], "local", 1).entries
            if not entries:
                return

    def _submit(self) -> None:
        held, self._held = self._held, []
        for (entry, shape), node in zip(held, self._room.places([shape for _, shape in held]), strict=True):
            if node is None:
                self._held.append((entry, shape))
                continue
            self._room.take(shape, node)
            self._free[node] -= shape.needs[self._scarce]
            assert self._free[node] >= 0
            ends_at = self._now + self._seconds[entry.pid]
            heapq.heappush(self._running, (ends_at, entry.sched_id, entry, shape, node))


@pytest.mark.parametrize("scarce", ["CPU", "GPU"])
@pytest.mark.parametrize("seconds", [(0.9, 1.3), (1.7, 1.1), (2.0, 2.0), (0.5, 3.0)])
def test_two_projects_share_what_is_scarce_three_to_one_whatever_the_sizes(
    scarce: Literal["CPU", "GPU"], seconds: tuple[float, float]
) -> None:
    with Rota(":memory:", share_by="cpu" if scarce == "CPU" else "gpu") as rota:
        heavy = rota.agent("heavy", runner="ray", project="three", project_weight=3.0, resources={scarce: 2})
        light = rota.agent("light", runner="ray", project="one", project_weight=1.0, resources={scarce: 1})
        agents = heavy(print), light(print)
        for agent in agents:
            agent.enqueue_many([{}] * 400)
        shapes = [shape for agent in agents if (shape := shape_of(agent.enqueue().entry().kind)) is not None]
        cluster = SimulatedCluster(
            rota, scarce, dict(zip([agent.pid for agent in agents], seconds, strict=True)), shapes
        )
        cluster.run()
        total = sum(cluster.used.values())
        assert cluster.used[agents[0].pid] / total == pytest.approx(0.75, abs=0.02)
        assert total > 0.8 * 1000 * TIME_S * 2 * ON_A_NODE  # the nodes are busy

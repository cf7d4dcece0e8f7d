"""Threads that block and wake beside hogs: a ring neither robs a hog nor is robbed, and a heavy waker comes in time.

In a ring exactly one thread has work at any moment: it works for a while, wakes the next one and blocks, in this order
or the other. Beside a hog there are always two competitors of equal weight: the fluid ideal of the hog is a half.

On several cores, where the threads of a ring wait on different ones, rings may get less than their share. But a hog
gets its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal

import pytest

from rota.cores import CoresEngine
from rota.cores.accounts import LatencyClass
from rota.cores.events import Block, CoreTick, Decision, Idle, Preempt, Reschedule, RunEntity, Wake
from tests.cores.harness import MS, EngineHarness

Order = Literal["wake first", "block first"]
Groups = Literal["none", "one", "one each"]


class Ring:
    """One core with a hog and a ring, driven to the instant."""

    def __init__(self, count: int, work_ns: int, order: Order, latency: LatencyClass, groups: Groups) -> None:
        self.engine = CoresEngine(cores=1)
        names: dict[Groups, list[str | None]] = {
            "none": [None] * count,
            "one": ["ring"] * count,
            "one each": [f"thread {number}" for number in range(count)],
        }
        for name in {name for name in names[groups] if name is not None}:
            self.engine.add_group(name)
        self.members = [self.engine.spawn(latency_class=latency, group=name) for name in names[groups]]
        self.hog = self.engine.spawn()
        self.work_ns = self.remaining_ns = work_ns
        self.order = order
        self.turn = 0
        self.now = 0
        self.until = 0
        self.send(Wake(self.members[0]))
        self.send(Wake(self.hog))

    def send(self, event: Wake | Block | CoreTick) -> None:
        decisions: list[Decision] = list(self.engine.step(event, self.now))
        for decision in decisions:
            if isinstance(decision, RunEntity):
                self.until = decision.until_ns
        for decision in decisions:
            if isinstance(decision, Reschedule):
                self.send(CoreTick(0))

    def run(self, until: int) -> float:
        """Return the share of the hog."""
        while self.now < until:
            active = self.members[self.turn]
            runs = self.engine.running(0) == active
            ends = min(self.until, self.now + self.remaining_ns) if runs else self.until
            if runs:
                self.remaining_ns -= ends - self.now
            self.now = ends
            if runs and not self.remaining_ns:
                self._pass_on(active)
            else:
                self.send(CoreTick(0))
        self.engine.check_invariants()
        return self.engine.account(self.hog, self.now).runtime_ns / self.now

    def _pass_on(self, active: int) -> None:
        self.turn = (self.turn + 1) % len(self.members)
        self.remaining_ns = self.work_ns
        following = self.members[self.turn]
        if self.order == "block first":
            self.send(Block(active))
            self.send(Wake(following))
        else:
            self.engine.step(Wake(following), self.now)  # it blocks before the core answers the reschedule
            self.send(Block(active))


@pytest.mark.parametrize("latency", ["normal", "sensitive"])
@pytest.mark.parametrize("order", ["wake first", "block first"])
@pytest.mark.parametrize(("count", "work_us"), [(2, 100), (10, 1_000), (3, 2_900)])
@pytest.mark.parametrize("groups", ["none", "one", "one each"])
def test_a_ring_neither_robs_a_hog_nor_is_robbed(
    count: int, work_us: int, order: Order, latency: LatencyClass, groups: Groups
) -> None:
    share = Ring(count, work_us * 1_000, order, latency, groups).run(2_000 * MS)
    assert 0.45 < share < 0.55, f"the hog got {share:.1%} for 50 %"


class Rings:
    """Several cores with hogs and rings of two threads, driven to the instant."""

    def __init__(self, cores: int, hogs: int, rings: int, work_ns: int, order: Order, *, in_groups: bool) -> None:
        self.engine = CoresEngine(cores=cores)
        self.work_ns = work_ns
        self.order = order
        self.now = 0
        self.hogs = [self.engine.spawn() for _ in range(hogs)]
        self.partner: dict[int, int] = {}  # of each thread of a ring
        self.remaining_ns: dict[int, int] = {}
        self.running: list[int | None] = [None] * cores
        self.started_at = [0] * cores
        self.slices = [0] * cores  # begun on each core: an end of an earlier one is void
        self.ends: list[tuple[int, int, int, int | None]] = []  # instant, order, core, slice; no slice: a reschedule
        self.order_of_ends = itertools.count()
        for hog in self.hogs:
            self.apply(self.engine.step(Wake(hog), 0))
        for number in range(rings):
            names = [f"{number}a", f"{number}b"] if in_groups else [None, None]
            for name in filter(None, names):
                self.engine.add_group(name)
            one, other = (self.engine.spawn(group=name) for name in names)
            self.partner |= {one: other, other: one}
            self.remaining_ns |= {one: work_ns, other: work_ns}
            self.apply(self.engine.step(Wake(one), 0))

    def apply(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Reschedule):
                heappush(self.ends, (self.now, next(self.order_of_ends), decision.core, None))
            elif isinstance(decision, RunEntity):
                core, entity = decision.core, decision.entity
                self.running[core], self.started_at[core] = entity, self.now
                self.slices[core] += 1
                ends_at = min(decision.until_ns, self.now + self.remaining_ns.get(entity, decision.until_ns))
                heappush(self.ends, (ends_at, next(self.order_of_ends), core, self.slices[core]))
            elif isinstance(decision, Preempt | Idle):
                self.running[decision.core] = None
                self.slices[decision.core] += 1

    def run(self, until: int) -> list[float]:
        """Return the shares of the hogs, in cores."""
        while self.ends[0][0] < until:
            self.now, _, core, number = heappop(self.ends)
            if number is not None and number != self.slices[core]:
                continue
            entity = self.running[core]
            if entity in self.partner:
                self.remaining_ns[entity] -= self.now - self.started_at[core]
                self.started_at[core] = self.now
            if number is not None and entity in self.partner and not self.remaining_ns[entity]:
                self.pass_on(entity)
            else:
                self.apply(self.engine.step(CoreTick(core), self.now))
        self.engine.check_invariants()
        return [self.engine.account(hog, self.now).runtime_ns / self.now for hog in self.hogs]

    def pass_on(self, entity: int) -> None:
        following = self.partner[entity]
        self.remaining_ns[entity] = self.work_ns
        events: list[Wake | Block] = [Wake(following), Block(entity)]
        for event in events if self.order == "wake first" else reversed(events):
            self.apply(self.engine.step(event, self.now))


@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("order", ["wake first", "block first"])
@pytest.mark.parametrize("mix", [(4, 5, 3, 100), (4, 2, 9, 1_000), (2, 1, 3, 2_900)])
def test_rings_on_several_cores_rob_no_hog(mix: tuple[int, int, int, int], order: Order, in_groups: bool) -> None:
    cores, hogs, rings, work_us = mix
    shares = Rings(cores, hogs, rings, work_us * 1_000, order, in_groups=in_groups).run(1_000 * MS)
    ideal = cores / (hogs + rings)
    assert min(shares) > ideal - 0.05, f"the hogs got {shares} for {ideal:.3f}"


def test_a_heavy_waker_preempts_a_light_hog_by_its_virtual_deadline() -> None:
    """Both have the same slice length: the weight alone makes the heavy one due sooner."""
    harness = EngineHarness()
    hog = harness.one(weight=100)
    heavy = harness.one(weight=10_000, awake=False)
    harness.until(MS)
    assert harness.running() == [hog]
    harness.send(Wake(heavy))
    assert harness.running() == [heavy]
    assert harness.decided(Preempt) == [Preempt(0, hog)]


def test_a_light_waker_does_not_preempt_a_heavy_hog() -> None:
    harness = EngineHarness()
    hog = harness.one(weight=10_000)
    light = harness.one(weight=100, awake=False)
    harness.until(MS)
    harness.send(Wake(light))
    assert harness.running() == [hog]

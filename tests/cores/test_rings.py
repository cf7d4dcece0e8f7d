"""Threads that block and wake beside hogs: a ring neither robs a hog nor is robbed, and a heavy waker comes in time.

In a ring exactly one thread has work at any moment: it works for a while, wakes the next one and blocks, in this order
or the other. Beside a hog there are always two competitors of equal weight: the fluid ideal of the hog is a half.

On several cores the threads of a ring wait on different ones. Each ring counts as one competitor there too, and hogs
and rings get their parts of all cores, because a thread keeps its lag to the common time (`rota.cores.common_time`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Literal

import pytest

from rota.cores import CoresEngine
from rota.cores.accounts import LatencyClass
from rota.cores.events import Block, CoreTick, Decision, Idle, Preempt, Reschedule, RunEntity, Wake
from tests.cores.harness import MS, EngineHarness

Order = Literal["wake first", "block first"]
Groups = Literal["none", "one", "one each"]


class Rings:
    """Several cores with hogs and rings of threads, driven to the instant."""

    def __init__(
        self,
        cores: int,
        hogs: int,
        rings: int,
        work_ns: int,
        order: Order,
        *,
        size: int = 2,
        latency: LatencyClass = "normal",
        groups: Groups = "none",
        masks: Sequence[int] = (),
    ) -> None:
        """With `masks`, they are those of the hogs and then the one of every thread."""
        self.engine = CoresEngine(cores=cores)
        self.work_ns = work_ns
        self.order = order
        self.now = 0
        self.mask = masks[hogs] if masks else 0
        self.hogs = [self.engine.spawn(core_mask=masks[number] if masks else 0) for number in range(hogs)]
        self.following: dict[int, int] = {}  # the next one of each thread of a ring
        self.remaining_ns: dict[int, int] = {}
        self.running: list[int | None] = [None] * cores
        self.started_at = [0] * cores
        self.slices = [0] * cores  # begun on each core: an end of an earlier one is void
        self.ends: list[tuple[int, int, int, int | None]] = []  # instant, order, core, slice; no slice: a reschedule
        self.order_of_ends = itertools.count()
        for number in range(rings):
            threads = [self._spawn(f"ring {number}", each, latency, groups) for each in range(size)]
            self.following |= dict(zip(threads, threads[1:] + threads[:1], strict=True))
            self.remaining_ns |= dict.fromkeys(threads, work_ns)
            self.apply(self.engine.step(Wake(threads[0]), 0))
        for hog in self.hogs:
            self.apply(self.engine.step(Wake(hog), 0))

    def _spawn(self, ring: str, number: int, latency: LatencyClass, groups: Groups) -> int:
        name = {"none": None, "one": ring, "one each": f"{ring}, thread {number}"}[groups]
        if name is not None and (groups == "one each" or not number):
            self.engine.add_group(name)
        return self.engine.spawn(latency_class=latency, group=name, core_mask=self.mask)

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
            if entity in self.following:
                self.remaining_ns[entity] -= self.now - self.started_at[core]
                self.started_at[core] = self.now
            if number is not None and entity in self.following and not self.remaining_ns[entity]:
                self.pass_on(entity)
            else:
                self.apply(self.engine.step(CoreTick(core), self.now))
        self.engine.check_invariants()
        return [self.engine.account(hog, self.now).runtime_ns / self.now for hog in self.hogs]

    def pass_on(self, entity: int) -> None:
        self.remaining_ns[entity] = self.work_ns
        events: list[Wake | Block] = [Wake(self.following[entity]), Block(entity)]
        for event in events if self.order == "wake first" else reversed(events):
            self.apply(self.engine.step(event, self.now))


@pytest.mark.parametrize(
    ("order", "latency"),
    [
        ("wake first", "normal"),
        ("block first", "sensitive"),
        pytest.param("wake first", "sensitive", marks=pytest.mark.soak),
        pytest.param("block first", "normal", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize(("count", "work_us"), [(2, 100), (10, 1_000), (3, 2_900)])
@pytest.mark.parametrize("groups", ["none", "one", "one each"])
def test_a_ring_neither_robs_a_hog_nor_is_robbed(
    count: int, work_us: int, order: Order, latency: LatencyClass, groups: Groups
) -> None:
    rings = Rings(1, 1, 1, work_us * 1_000, order, size=count, latency=latency, groups=groups)
    (share,) = rings.run(2_000 * MS)
    assert 0.45 < share < 0.55, f"the hog got {share:.1%} for 50 %"


MIXES = (  # cores, hogs, rings, work in microseconds, threads of a ring
    (2, 2, 1, 100, 2),
    (2, 2, 1, 2_900, 2),
    (2, 1, 3, 100, 3),
    (2, 1, 3, 2_900, 2),
    (3, 2, 3, 1_000, 2),
    (4, 4, 1, 100, 2),
    (4, 2, 9, 1_000, 2),
    (4, 5, 3, 100, 2),
    (6, 5, 4, 300, 10),
)
ORDERS: tuple[Order, ...] = ("wake first", "block first")
GROUPS: tuple[Groups, ...] = ("none", "one", "one each")


def ways() -> Iterator[Any]:
    """Every mix with all groups in both orders; two thirds of these, in turns, are run by ./dev soak only."""
    for at, mix in enumerate(MIXES):
        for number, way in enumerate(itertools.product(GROUPS, ORDERS)):
            is_short = (at + number) % 3 == 0
            yield pytest.param(mix, *way, marks=() if is_short else pytest.mark.soak)


@pytest.mark.parametrize(("mix", "groups", "order"), list(ways()))
def test_rings_on_several_cores_get_their_shares_and_rob_no_hog(
    mix: tuple[int, int, int, int, int], order: Order, groups: Groups
) -> None:
    cores, hogs, rings, work_us, size = mix
    world = Rings(cores, hogs, rings, work_us * 1_000, order, size=size, groups=groups)
    shares, ideal = world.run(1_000 * MS), cores / (hogs + rings)
    assert shares == pytest.approx([ideal] * hogs, abs=0.05), f"the hogs got {shares} for {ideal:.3f}"
    got = sum(world.engine.account(thread, world.now).runtime_ns for thread in world.following) / world.now / rings
    assert got > ideal - 0.05, f"the rings got {got:.3f} for {ideal:.3f}"


@pytest.mark.parametrize("ring_cores", [0b01, 0b11])
@pytest.mark.parametrize("order", ["wake first", "block first"])
@pytest.mark.parametrize("work_us", [100, 2_900])
def test_a_core_that_is_crowded_by_its_own_does_not_give_credit_to_a_ring_on_another(
    work_us: int, order: Order, ring_cores: int
) -> None:
    """Ten hogs may only use core 1: its time passes slowly. The ring beside the only hog of core 0 is owed a half."""
    masks = [0b01, *[0b10] * 10]
    world = Rings(2, len(masks), 1, work_us * 1_000, order, masks=[*masks, ring_cores])
    assert world.run(1_000 * MS)[0] == pytest.approx(0.5, abs=0.05)


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

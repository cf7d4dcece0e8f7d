"""The engine for cores beside the least it could do, beside itself on fewer cores, and beside SimPy.

**step**: one cycle of a busy machine with 16 cores, on which each entity has a context: the entity that runs on a core
blocks, the next one is chosen, and a sleeping one wakes. Half of the entities sleep at any moment. The baseline is the
bare work of the same size: two pushes and two pops on one heap of as many tuples, without cores, weights, budgets and
accounts.

**cores**: the same cycle for 4,096 entities, on 16 and 256 cores beside 2. Every entity runs equally often, and no
slice ends by its length or by a budget, so that only the number of cores differs. Nothing in a step may depend on it.

**sim**: a whole simulation (the driver's event queue, the threads and the engine) beside SimPy processes that only time
out. One event is here one that is sent to the engine, there a timeout.

**worst-step**: 100,000 entities wait on four cores, all paid by one context. A core goes offline and comes back, the
context is revoked, the policy service is lost. The figure is the longest step in milliseconds of CPU time, timers that
continue the work included; a round counts only if no step moved or released more entities than its limit.

A round counts only if every cycle ran exactly one entity on the core that became free, and the invariants of the engine
hold (one owner for every runnable entity, sums, grants, every nanosecond paid once).
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

from bench.harness import ROUNDS, Arena, Case, Measured
from rota.cores import CoresEngine, Handle, SchedulingContext
from rota.cores.events import (
    Block,
    CoreOffline,
    CoreOnline,
    CoreTick,
    Event,
    Migrate,
    Revoke,
    RunEntity,
    ServiceLost,
    TimerDue,
    Wake,
)
from rota.cores.placement import MOVES_MAX
from rota.cores.telemetry import EngineTrace
from rota.sim.build import build_simulation
from rota.sim.scenario import Scenario, ThreadSpec

MS = 1_000_000
SEED = 20_260_505
CYCLES = 20_000  # in one round
DELAY_MAX_NS = 100_000  # between two cycles: on 16 cores a turn lasts 0.8 ms on average
CORES_DELAY_MAX_NS = 20_000  # on 256 cores a turn lasts 2.6 ms, within a slice and within a budget
SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000}
CORES_ENTITIES = 4_096
STEP_ENTITIES = 100_000
SIM_THREADS = 10_000
SIM_CORES = 32
SIM_EVENTS = 60_000


def cases() -> Iterator[Case]:
    for name, n in SIZES.items():
        arena = partial(_step_arena, n)
        yield Case(f"step-{name}", n, "ops/s", "heapq: 2 push + 2 pop of tuples", arena, ops=CYCLES, goal=0.25)
    yield Case("step-1m", 1_000_000, "ops/s", "", partial(_figure_arena, 1_000_000), ops=CYCLES, rounds=3)
    for cores in (16, 256):
        arena = partial(_cores_arena, cores)
        yield Case(f"cores-{cores}", CORES_ENTITIES, "ops/s", "the same on 2 cores", arena, ops=CYCLES, goal=0.7)
    yield Case("worst-step", STEP_ENTITIES, "ms", "", _worst_step_arena, rounds=1)
    yield Case(
        "sim",
        SIM_THREADS,
        "ops/s",
        f"SimPy: timeouts of {SIM_THREADS:,} processes",
        _sim_arena,
        goal=0.7,
        rounds=ROUNDS,
    )


# --- steps -----------------------------------------------------------------------------------------


class World:
    """A busy machine: each core runs an entity, half of the others wait, the rest sleep."""

    def __init__(
        self,
        entities: int,
        cores: int,
        *,
        contexts: bool = True,
        trace: EngineTrace | None = None,
        delay_max_ns: int = DELAY_MAX_NS,
    ) -> None:
        chance = random.Random(SEED)
        self.engine = engine = CoresEngine(cores=cores, trace=trace)
        spawned = [engine.spawn(weight=chance.randint(1, 10) * 1000) for _ in range(entities)]
        for entity in spawned if contexts else ():
            spec = SchedulingContext(context_id=entity, budget=5 * MS, period=20 * MS)
            engine.bind(engine.admit(spec), entity)
        awake, self.asleep = spawned[: entities // 2], spawned[entities // 2 :]
        for entity in awake:
            engine.step(Wake(entity), 0)
        for core in range(cores):
            engine.step(CoreTick(core), 0)
        self.running = [engine.running(core) or 0 for core in range(cores)]
        self.now = 0
        self.plan = [
            (cycle % cores, chance.randrange(len(self.asleep)), chance.randint(1, delay_max_ns))
            for cycle in range(CYCLES)
        ]

    def cycles(self) -> int:
        """Block who runs, and wake one who sleeps, core after core; the answer is how many were started."""
        engine, running, asleep, now, started = self.engine, self.running, self.asleep, self.now, 0
        step, timers = engine.step, engine.timers
        for core, sleeper, delay in self.plan:
            now += delay
            if (due := timers.next_at) is not None and due <= now:
                step(TimerDue(), now)
            entity = running[core]
            for decision in step(Block(entity), now):
                if type(decision) is RunEntity:
                    running[core] = decision.entity
                    started += 1
            woken, asleep[sleeper] = asleep[sleeper], entity
            step(Wake(woken), now)
        self.now = now
        return started

    def is_sound(self, started: Any) -> bool:
        """Whether every cycle started an entity, and the invariants of the engine hold."""
        return bool(started == CYCLES) and _is_sound(self.engine)


def _is_sound(engine: CoresEngine) -> bool:
    try:
        engine.check_invariants()
    except AssertionError as problem:
        print(problem)
        return False
    return True


def _step_arena(entities: int) -> Arena:
    world = World(entities, 16)
    chance = random.Random(SEED)
    heap = [(chance.randrange(10**9), key) for key in range(entities)]
    heapify(heap)
    steps = [chance.randrange(10**9) for _ in range(CYCLES)]
    world.cycles()  # contexts have pending refills by now, and each entity a place in virtual time

    def base() -> int:
        for later in steps:
            at, key = heappop(heap)
            heappush(heap, (at + later, key))
            at, key = heappop(heap)
            heappush(heap, (at + later, key))
        return len(heap)

    return Arena(rota=world.cycles, base=base, verify=lambda ours, size: world.is_sound(ours) and size == entities)


def _figure_arena(entities: int) -> Arena:
    world = World(entities, 16)
    return Arena(rota=world.cycles, verify=lambda ours, _: world.is_sound(ours))


def _cores_arena(cores: int) -> Arena:
    many, few = (World(CORES_ENTITIES, count, delay_max_ns=CORES_DELAY_MAX_NS) for count in (cores, 2))
    for world in (many, few):
        world.cycles()
    return Arena(
        rota=many.cycles, base=few.cycles, verify=lambda ours, theirs: many.is_sound(ours) and few.is_sound(theirs)
    )


def _crowd() -> tuple[CoresEngine, Handle]:
    """Four cores full of waiting entities, all paid by one context."""
    engine = CoresEngine(cores=4)
    handle = engine.admit(SchedulingContext(context_id=1, budget=50 * MS, period=100 * MS))
    for _ in range(STEP_ENTITIES):
        entity = engine.spawn()
        engine.bind(handle, entity)
        engine.step(Wake(entity), 0)
    for core in range(4):
        engine.step(CoreTick(core), 0)
    return engine, handle


def _worst_step_arena() -> Arena:
    def rota() -> Measured:
        engine, handle = _crowd()
        events: tuple[Event, ...] = (CoreOffline(2), CoreOnline(2), Revoke(handle), ServiceLost("stalled"))
        longest_s, most = 0.0, 0
        gc.disable()  # a collection looks at every object of the process, which is not a cost of the step
        for now, event in enumerate(events, start=1):
            pending: Event | None = event
            while pending is not None:
                started = time.process_time()
                decisions = engine.step(pending, now * MS)
                longest_s = max(longest_s, time.process_time() - started)
                most = max(most, sum(isinstance(one, Migrate) for one in decisions))
                due = engine.timers.next_at
                pending = TimerDue() if due is not None and due <= now * MS else None
        gc.enable()
        print(f"worst-step: at most {most} entities moved in one step, limit {MOVES_MAX}")
        return Measured(longest_s * 1_000, (most, engine))

    return Arena(rota=rota, verify=lambda ours, _: ours[0] <= MOVES_MAX and _is_sound(ours[1]))


# --- the simulation --------------------------------------------------------------------------------


def _sim_arena() -> Arena:
    """Both sides run until so many events have happened; a rate is events by the time they took."""
    import simpy  # noqa: PLC0415  # of the dependency group bench: listing the cases works without it

    sleepers = ThreadSpec(name="s", kind="sleeper", count=SIM_THREADS, work_us=(50, 250), sleep_us=(1_000, 60_000))
    simulation = build_simulation(Scenario(cores=SIM_CORES, duration_ms=1, thread=(sleepers,)), observe=False)
    environment = simpy.Environment()
    happened = [0]

    def process(chance: random.Random) -> Any:
        while True:
            yield environment.timeout(chance.randint(1_000, 60_000))
            happened[0] += 1

    for number in range(SIM_THREADS):
        environment.process(process(random.Random(number)))

    def rota() -> Measured:
        return _rate(lambda: simulation.events, lambda step: simulation.run(simulation.now + step * MS))

    def theirs() -> Measured:
        return _rate(lambda: happened[0], lambda step: environment.run(until=environment.now + step * 1_000))

    rota()
    return Arena(rota=rota, base=theirs, verify=lambda *_: _is_sound(simulation.engine))


def _rate(count: Callable[[], int], advance: Callable[[int], None]) -> Measured:
    before, started = count(), time.perf_counter()
    while count() - before < SIM_EVENTS:
        advance(5)
    seconds = time.perf_counter() - started
    return Measured((count() - before) / seconds)


# --- where the time goes -----------------------------------------------------------------------------


def attribute() -> None:
    """Print where the time of a cycle goes, beside the same workload without an engine and with tracing on."""
    entities = 10_000
    print(f"one cycle (block, choose, wake) of {entities:,} entities on 16 cores, median of 5 rounds\n")
    bare = _us_per_cycle(_without_engine(entities))
    plain = World(entities, 16, contexts=False)
    world = World(entities, 16)
    traced = World(entities, 16, trace=EngineTrace())
    rows = {
        "the same loop without an engine": bare,
        "engine, best effort, no trace": _us_per_cycle(plain.cycles),
        "engine, contexts, no trace": _us_per_cycle(world.cycles),
        "engine, contexts, tracing": _us_per_cycle(traced.cycles),
    }
    for name, us in rows.items():
        print(f"  {name:34} {us:8.2f} us   {us / bare:6.1f} x")
    written = traced.engine.counters
    print(f"  trace: {written.trace_bytes / max(1, written.picks):,.0f} bytes a cycle\n")
    _print_evidence(world)
    _print_profile(world)


def _us_per_cycle(side: Callable[[], Any]) -> float:
    rounds = []
    side()
    for _ in range(5):
        started = time.perf_counter()
        side()
        rounds.append((time.perf_counter() - started) * 1e6 / CYCLES)
    return sorted(rounds)[2]


def _without_engine(entities: int) -> Callable[[], int]:
    """The driver's own part: events are made, and another entity runs next without any decision."""
    world = World(entities, 16)
    both = [*world.running, *world.asleep]

    def cycles() -> int:
        now, running, asleep = 0, world.running, world.asleep
        for core, sleeper, delay in world.plan:
            now += delay
            entity = running[core]
            for decision in (RunEntity(core, both[sleeper % len(both)], now), Block(entity)):
                if type(decision) is RunEntity:
                    running[core] = decision.entity
            woken, asleep[sleeper] = asleep[sleeper], entity
            Wake(woken)
        return now

    return cycles


def _print_evidence(world: World) -> None:
    counted = world.engine.counters.as_dict()
    picks = max(1, counted["picks"])
    print("counters, per pick")
    for name, count in counted.items():
        if count:
            print(f"  {name:34} {count / picks:8.3f}")
    print()


def _print_profile(world: World) -> None:
    """Own time by file, as the profiler sees it: it weighs calls more than they cost, so only the order counts."""
    profile = cProfile.Profile()
    profile.runcall(world.cycles)
    by_file: dict[str, float] = {}
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # not in its stub
    for (file, _, name), (_, _, own, _, _) in stats.items():
        where = Path(file).stem if file.endswith(".py") else name.strip("<>")
        by_file[where] = by_file.get(where, 0.0) + own
    total = sum(by_file.values())
    print("own time by file, as the profiler sees it")
    for where, own in sorted(by_file.items(), key=lambda one: -one[1])[:12]:
        print(f"  {where:34} {own / total:8.1%}")

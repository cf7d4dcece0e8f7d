"""Invariants of the whole engine, on random runs: no sequence of events, valid or not, breaks them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from rota.cores import Capacity, CoresEngine, CpuIsolationLease, Handle, IslandPlan, RealtimeIsland, SchedulingContext
from rota.cores.events import (
    Acknowledge,
    Arrange,
    Block,
    CallEntity,
    CloseSession,
    CoreOffline,
    CoreOnline,
    CoreTick,
    Decision,
    Event,
    ExitEntity,
    ExitGroup,
    Kill,
    ReleaseLease,
    Reply,
    Reschedule,
    Revoke,
    RevokeLease,
    Reweigh,
    ServiceBack,
    ServiceLost,
    StopIsland,
    TimerDue,
    UseRule,
    Wake,
)
from rota.cores.queues import Queues
from rota.cores.records import Entity
from rota.cores.runqueue import RULES
from rota.cores.telemetry import LABELS, EngineTrace
from rota.errors import RotaError
from rota.model.budgets import CRITICALITIES, Criticality
from rota.sim.build import build_simulation
from tests.cores.random_scenarios import random_scenario

MS = 1_000_000
STORIES = int(os.environ.get("ROTA_CPU_STORIES", "5000" if os.environ.get("ROTA_SOAK") else "90"))
BATCH = 15


class RandomRun:
    """A driver that sends random events, mostly valid ones."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.rng = random.Random(seed)
        self.cores = self.rng.choice([1, 2, 3, 4])
        capacity = Capacity(memory_bytes=100, slots=2, devices=frozenset(("camera",)))
        self.engine = CoresEngine(cores=self.cores, rule=self.rng.choice(RULES), capacity=capacity, **options)
        self.groups = [f"group{number}" for number in range(self.rng.randint(0, 3))]
        for name in self.groups:
            self.engine.add_group(name, weight=self.rng.choice([500, 1000, 4000]))
        self.entities: list[int] = []
        self.handles: dict[int, Handle] = {}
        self.leases: list[Handle] = []
        self.log: list[object] = []
        self.requests: set[int] = set()
        self.killed: list[int] = []
        self.now = 0
        self.numbers = 0
        for _ in range(self.rng.randint(1, 8)):
            self.spawn()

    def send(self, *steps: int) -> None:
        verbs: list[tuple[int, Callable[[], None]]] = [
            (30, lambda: self.step(Wake(self.entity()))),
            (20, lambda: self.step(Block(self.running()))),
            (15, lambda: self.step(CoreTick(self.core()))),
            (6, lambda: self.step(CallEntity(self.running(), self.entity()))),
            (6, lambda: self.step(Reply(self.running()))),
            (3, lambda: self.end(self.entity())),
            (3, self.spawn),
            (5, self.admit),
            (6, lambda: self.apply(self.engine.bind(self.handle(), self.entity()))),
            (1, lambda: self.apply(self.engine.unbind(self.entity()))),
            (2, lambda: self.apply(self.engine.bind_group(self.handle(), self.group()))),
            (1, lambda: self.apply(self.engine.bind_path(self.handle(), self.entity()))),
            (2, lambda: self.step(Revoke(self.handle()))),
            (1, lambda: self.step(Acknowledge(self.handle()))),
            (2, self.adjust),
            (2, lambda: self.apply(self.engine.set_mask(self.entity(), self.rng.randrange(1 << self.cores)))),
            (1, lambda: self.step(CoreOffline(self.core()))),
            (2, lambda: self.step(CoreOnline(self.core()))),
            (2, self.lease),
            (1, lambda: self.step(RevokeLease(self.rng.choice(self.leases)))),
            (1, lambda: self.step(ReleaseLease(self.rng.choice(self.leases)))),
            (1, lambda: self.step(CloseSession(self.group()))),
            (1, lambda: self.exit_group(self.group())),
            (2, self.island),
            (1, lambda: self.step(StopIsland(self.rng.randint(1, 3)))),
            (1, lambda: self.step(ServiceLost(self.rng.choice(["raised", "stalled", "nonsense", "stale"])))),
            (1, lambda: self.step(ServiceBack(self.engine.policy_updates.epoch + self.rng.randint(0, 1)))),
            (1, lambda: self.step(UseRule(self.rng.choice(["eevdf", "wfq"]), self.epoch()))),
            (2, lambda: self.step(Reweigh(self.entity(), self.rng.choice([0, 500, 3000]), "batch", self.epoch()))),
            (1, lambda: self.step(Arrange(self.core(), tuple(self.entities[:3]), self.epoch()))),
            (1, lambda: self.engine.reweigh_group(self.group(), self.rng.choice([500, 9000]))),
        ]
        for _ in range(*steps):
            self.now += self.rng.choice([0, 0, 1_000, 200_000, MS, 3 * MS, 5 * MS])
            self.catch_up()
            (verb,) = self.rng.choices([verb for _, verb in verbs], [weight for weight, _ in verbs])
            try:
                verb()
            except (RotaError, IndexError) as refused:  # a refusal, or there was nothing to choose from
                self.log.append(type(refused).__name__)
            self.engine.check_invariants()

    # --- a driver's duties -----------------------------------------------------------------------

    def step(self, event: Event) -> None:
        self.log.append((self.now, event))
        self.apply(self.engine.step(event, self.now))

    def apply(self, decisions: Any) -> None:
        for decision in decisions:
            self.log.append(decision)
            if isinstance(decision, Reschedule):
                self.requests.add(decision.core)
            elif isinstance(decision, Kill):
                self.killed.append(decision.entity)

    def catch_up(self) -> None:
        """Answer timers and reschedules, mostly in time."""
        timers = 0
        while (at := self.engine.timers.next_at) is not None and at <= self.now and self.rng.random() < 0.95:
            self.step(TimerDue())
            timers += 1
            assert timers < 200, "a timer is due again and again"
        for core in sorted(self.requests):
            if self.rng.random() < 0.8:
                self.requests.discard(core)
                self.step(CoreTick(core))
        for entity in self.killed:
            self.end(entity)
        self.killed.clear()

    def end(self, entity: int) -> None:
        if entity in self.entities:
            self.entities.remove(entity)
        self.step(ExitEntity(entity))

    def exit_group(self, name: str) -> None:
        self.groups.remove(name)
        self.step(ExitGroup(name))
        self.entities = [one for one in self.entities if self.exists(one)]

    # --- random choices -------------------------------------------------------------------------

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def entity(self) -> int:
        return self.rng.choice([*self.entities, 999]) if self.rng.random() < 0.05 else self.rng.choice(self.entities)

    def running(self) -> int:
        return self.rng.choice([one for core in range(self.cores) if (one := self.engine.running(core)) is not None])

    def exists(self, entity: int) -> bool:
        try:
            self.engine.entity(entity)
        except RotaError:
            return False
        return True

    def core(self) -> int:
        return self.rng.randrange(self.cores)

    def group(self) -> str:
        return self.rng.choice(self.groups)

    def handle(self) -> Handle:
        return self.rng.choice(list(self.handles.values()))  # some of them are stale

    def epoch(self) -> int:
        return self.engine.policy_updates.epoch - self.rng.choice([0, 0, 1])

    def spawn(self) -> None:
        self.entities.append(
            self.engine.spawn(
                weight=self.rng.choice([500, 1000, 2000, 10_000]),
                latency_class=self.rng.choice(["sensitive", "normal", "batch"]),
                group=self.rng.choice([*self.groups, None, None]),
                core_mask=self.rng.choice([0, 0, 0, self.rng.randrange(1, 1 << self.cores)]),
                needs_context=self.rng.random() < 0.05,
            )
        )

    def spec(self, wanted: Criticality | None = None) -> SchedulingContext:
        budget = self.rng.randint(1, 10) * MS
        criticality: Criticality = self.rng.choice(CRITICALITIES) if wanted is None else wanted
        reserved = criticality in ("high", "critical")
        return SchedulingContext(
            context_id=self.number(),
            budget=budget,
            period=budget * self.rng.randint(2, 10),
            criticality=criticality,
            core_mask=1 << self.core() if reserved else self.rng.choice([0, self.rng.randrange(1 << self.cores)]),
            overrun=self.rng.choice(["throttle", "demote", "notify", "kill"]),
            timeout_endpoint=self.rng.choice([None, 9]),
        )

    def admit(self) -> None:
        spec = self.spec()
        self.handles[spec.context_id] = self.engine.admit(spec)

    def adjust(self) -> None:
        budget = self.rng.randint(1, 10) * MS
        self.engine.adjust(self.handle(), budget=budget, period=budget * self.rng.randint(1, 9))

    def lease(self) -> None:
        wanted = CpuIsolationLease(
            lease_id=self.number(),
            owner=self.group(),
            cores=(self.core(),),
            accounting_target=self.rng.choice(list(self.handles)),
            revocation_latency_max=2 * MS,
            revoke_endpoint=3,
            on_service_loss=self.rng.choice(["keep", "revoke"]),
        )
        handle, decisions = self.engine.grant_lease(wanted)
        self.leases.append(handle)
        self.apply(decisions)

    def island(self) -> None:
        contexts = tuple(self.spec("high") for _ in range(self.rng.randint(1, 2)))
        island = RealtimeIsland(
            island_id=self.rng.randint(1, 3),
            name="island",
            slots=1,
            overrun=self.rng.choice(["stop", "degrade"]),
            shutdown=self.rng.choice(["drain", "immediate"]),
        )
        handles, decisions = self.engine.admit_island(IslandPlan(island=island, contexts=contexts))
        self.apply(decisions)
        self.apply(self.engine.start_island(island.island_id))
        self.handles |= handles


@pytest.mark.parametrize("batch", range(-(-STORIES // BATCH)))
def test_the_invariants_hold_after_any_sequence_of_events(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        try:
            RandomRun(seed).send(250)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}: {problem}") from problem


@pytest.mark.parametrize("seed", range(8))
def test_no_decision_reads_a_diagnostic_counter(seed: int) -> None:
    """The diagnostic counters are overwritten after every step; the engine decides as before."""
    plain, spoilt = RandomRun(seed), RandomRun(seed)
    rng = random.Random(seed)
    diagnostic = [name for name, label in LABELS.items() if label == "diagnostic"]
    for _ in range(150):
        plain.send(1)
        spoilt.send(1)
        for name in diagnostic:
            setattr(spoilt.engine.counters, name, rng.randint(-(10**12), 10**12))
    assert plain.log == spoilt.log


@pytest.mark.parametrize("seed", range(8))
def test_the_fast_path_decides_the_same_as_the_slow_path(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def decisions() -> list[tuple[int, Decision]]:
        scenario = random_scenario(seed)
        simulation = build_simulation(scenario, observe=False)
        decided: list[tuple[int, Decision]] = []
        step = simulation.engine.step

        def noting(event: Event, now: int) -> Any:
            answer = step(event, now)
            decided.extend((now, decision) for decision in answer)
            return answer

        simulation.engine.step = noting  # type: ignore[method-assign]  # listening in
        simulation.run(40 * MS)
        return decided

    def never_plain(_queues: Queues, entity: Entity) -> None:
        entity.on_fast_path = False

    short = decisions()
    monkeypatch.setattr(Queues, "_update_fast_path", never_plain)
    assert decisions() == short
    assert len(short) > 20


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_changes_nothing_and_holds_the_latest(seed: int) -> None:
    plain, traced = RandomRun(seed), RandomRun(seed, trace=(trace := EngineTrace(bytes_max=4_000)))
    plain.send(200)
    traced.send(200)
    assert plain.log == traced.log
    kept = trace.lines()
    assert 0 < sum(map(len, kept)) <= 4_000
    assert traced.engine.counters.trace_bytes > 4_000
    assert plain.engine.counters.trace_bytes == 0
    assert b"Tick" in b"".join(kept)

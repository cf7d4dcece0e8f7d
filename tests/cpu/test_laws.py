"""Laws of the whole engine, on random stories: whatever is told, however wrongly, nothing breaks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from rota.cores import Capacity, CpuIsolationLease, Handle, IslandPlan, Machine, RealtimeIsland, SchedulingContext
from rota.cores.events import (
    Acknowledge,
    Arrange,
    Block,
    Call,
    CloseSession,
    CoreOffline,
    CoreOnline,
    Decision,
    Event,
    Exit,
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
    Tick,
    Timer,
    UseRule,
    Wake,
)
from rota.cores.evidence import LABELS
from rota.cores.queues import Queues
from rota.cores.records import Entity
from rota.cores.runqueue import RULES
from rota.cores.trace import Trace
from rota.errors import RotaError
from rota.model.budgets import CRITICALITIES, Criticality
from rota.sim.build import build
from tests.cpu.worlds import random_scenario

MS = 1_000_000
STORIES = int(os.environ.get("ROTA_CPU_STORIES", "5000" if os.environ.get("ROTA_SOAK") else "150"))
BATCH = 15


class Story:
    """A driver that says whatever comes to its mind, mostly sense, sometimes not."""

    def __init__(self, seed: int, **options: Any) -> None:
        self.chance = random.Random(seed)
        self.cores = self.chance.choice([1, 2, 3, 4])
        capacity = Capacity(memory_bytes=100, slots=2, devices=frozenset(("camera",)))
        self.machine = Machine(cores=self.cores, rule=self.chance.choice(RULES), capacity=capacity, **options)
        self.groups = [f"group{number}" for number in range(self.chance.randint(0, 3))]
        for name in self.groups:
            self.machine.add_group(name, weight=self.chance.choice([500, 1000, 4000]))
        self.entities: list[int] = []
        self.handles: dict[int, Handle] = {}
        self.leases: list[Handle] = []
        self.log: list[object] = []
        self.asked: set[int] = set()
        self.doomed: list[int] = []
        self.now = 0
        self.numbers = 0
        for _ in range(self.chance.randint(1, 8)):
            self.spawn()

    def tell(self, *steps: int) -> None:
        verbs: list[tuple[int, Callable[[], None]]] = [
            (30, lambda: self.step(Wake(self.entity()))),
            (20, lambda: self.step(Block(self.running()))),
            (15, lambda: self.step(Tick(self.core()))),
            (6, lambda: self.step(Call(self.running(), self.entity()))),
            (6, lambda: self.step(Reply(self.running()))),
            (3, lambda: self.end(self.entity())),
            (3, self.spawn),
            (5, self.admit),
            (6, lambda: self.obey(self.machine.bind(self.handle(), self.entity()))),
            (1, lambda: self.obey(self.machine.unbind(self.entity()))),
            (2, lambda: self.obey(self.machine.bind_group(self.handle(), self.group()))),
            (1, lambda: self.machine.bind_path(self.handle(), self.entity())),
            (2, lambda: self.step(Revoke(self.handle()))),
            (1, lambda: self.step(Acknowledge(self.handle()))),
            (2, self.adjust),
            (2, lambda: self.obey(self.machine.set_mask(self.entity(), self.chance.randrange(1 << self.cores)))),
            (1, lambda: self.step(CoreOffline(self.core()))),
            (2, lambda: self.step(CoreOnline(self.core()))),
            (2, self.lease),
            (1, lambda: self.step(RevokeLease(self.chance.choice(self.leases)))),
            (1, lambda: self.step(ReleaseLease(self.chance.choice(self.leases)))),
            (1, lambda: self.step(CloseSession(self.group()))),
            (1, lambda: self.exit_group(self.group())),
            (2, self.island),
            (1, lambda: self.step(StopIsland(self.chance.randint(1, 3)))),
            (1, lambda: self.step(ServiceLost(self.chance.choice(["raised", "stalled", "nonsense", "stale"])))),
            (1, lambda: self.step(ServiceBack(self.machine.orders.epoch + self.chance.randint(0, 1)))),
            (1, lambda: self.step(UseRule(self.chance.choice(RULES), self.epoch()))),
            (2, lambda: self.step(Reweigh(self.entity(), self.chance.choice([0, 500, 3000]), "batch", self.epoch()))),
            (1, lambda: self.step(Arrange(self.core(), tuple(self.entities[:3]), self.epoch()))),
            (1, lambda: self.machine.reweigh_group(self.group(), self.chance.choice([500, 9000]))),
        ]
        for _ in range(*steps):
            self.now += self.chance.choice([0, 0, 1_000, 200_000, MS, 3 * MS, 5 * MS])
            self.catch_up()
            (verb,) = self.chance.choices([verb for _, verb in verbs], [weight for weight, _ in verbs])
            try:
                verb()
            except (RotaError, IndexError) as refused:  # a refusal, or there was nobody to choose
                self.log.append(type(refused).__name__)
            self.machine.audit()

    # --- a driver's duties -----------------------------------------------------------------------

    def step(self, event: Event) -> None:
        self.log.append((self.now, event))
        self.obey(self.machine.step(event, self.now))

    def obey(self, decisions: Any) -> None:
        for decision in decisions:
            self.log.append(decision)
            if isinstance(decision, Reschedule):
                self.asked.add(decision.core)
            elif isinstance(decision, Kill):
                self.doomed.append(decision.entity)

    def catch_up(self) -> None:
        """Timers and requests are answered, mostly in time."""
        timers = 0
        while (at := self.machine.next_timer_at) is not None and at <= self.now and self.chance.random() < 0.95:
            self.step(Timer())
            timers += 1
            assert timers < 200, "a timer is due again and again"
        for core in sorted(self.asked):
            if self.chance.random() < 0.8:
                self.asked.discard(core)
                self.step(Tick(core))
        for entity in self.doomed:
            self.end(entity)
        self.doomed.clear()

    def end(self, entity: int) -> None:
        if entity in self.entities:
            self.entities.remove(entity)
        self.step(Exit(entity))

    def exit_group(self, name: str) -> None:
        self.groups.remove(name)
        self.step(ExitGroup(name))
        self.entities = [one for one in self.entities if self.exists(one)]

    # --- whom, which, what -----------------------------------------------------------------------

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def entity(self) -> int:
        return (
            self.chance.choice([*self.entities, 999])
            if self.chance.random() < 0.05
            else self.chance.choice(self.entities)
        )

    def running(self) -> int:
        return self.chance.choice(
            [one for core in range(self.cores) if (one := self.machine.running(core)) is not None]
        )

    def exists(self, entity: int) -> bool:
        try:
            self.machine.entity(entity)
        except RotaError:
            return False
        return True

    def core(self) -> int:
        return self.chance.randrange(self.cores)

    def group(self) -> str:
        return self.chance.choice(self.groups)

    def handle(self) -> Handle:
        return self.chance.choice(list(self.handles.values()))  # some of them are stale

    def epoch(self) -> int:
        return self.machine.orders.epoch - self.chance.choice([0, 0, 1])

    def spawn(self) -> None:
        self.entities.append(
            self.machine.spawn(
                weight=self.chance.choice([500, 1000, 2000, 10_000]),
                latency_class=self.chance.choice(["sensitive", "normal", "batch"]),
                group=self.chance.choice([*self.groups, None, None]),
                core_mask=self.chance.choice([0, 0, 0, self.chance.randrange(1, 1 << self.cores)]),
                needs_context=self.chance.random() < 0.05,
            )
        )

    def spec(self, wanted: Criticality | None = None) -> SchedulingContext:
        budget = self.chance.randint(1, 10) * MS
        criticality: Criticality = self.chance.choice(CRITICALITIES) if wanted is None else wanted
        reserved = criticality in ("high", "critical")
        return SchedulingContext(
            context_id=self.number(),
            budget=budget,
            period=budget * self.chance.randint(2, 10),
            criticality=criticality,
            core_mask=1 << self.core() if reserved else self.chance.choice([0, self.chance.randrange(1 << self.cores)]),
            overrun=self.chance.choice(["throttle", "demote", "notify", "kill"]),
            timeout_endpoint=self.chance.choice([None, 9]),
        )

    def admit(self) -> None:
        spec = self.spec()
        self.handles[spec.context_id] = self.machine.admit(spec)

    def adjust(self) -> None:
        budget = self.chance.randint(1, 10) * MS
        self.machine.adjust(self.handle(), budget=budget, period=budget * self.chance.randint(1, 9))

    def lease(self) -> None:
        wanted = CpuIsolationLease(
            lease_id=self.number(),
            owner=self.group(),
            cores=(self.core(),),
            accounting_target=self.chance.choice(list(self.handles)),
            revocation_latency_max=2 * MS,
            revoke_endpoint=3,
            on_service_loss=self.chance.choice(["keep", "revoke"]),
        )
        handle, decisions = self.machine.grant_lease(wanted)
        self.leases.append(handle)
        self.obey(decisions)

    def island(self) -> None:
        contexts = tuple(self.spec("high") for _ in range(self.chance.randint(1, 2)))
        island = RealtimeIsland(
            island_id=self.chance.randint(1, 3),
            name="island",
            slots=1,
            overrun=self.chance.choice(["stop", "degrade"]),
            shutdown=self.chance.choice(["drain", "immediate"]),
        )
        handles, decisions = self.machine.admit_island(IslandPlan(island=island, contexts=contexts))
        self.obey(decisions)
        self.machine.start_island(island.island_id)
        self.handles |= handles


@pytest.mark.parametrize("batch", range(-(-STORIES // BATCH)))
def test_whatever_is_told_the_engine_stays_sound(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        try:
            Story(seed).tell(250)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed}: {problem}") from problem


@pytest.mark.parametrize("seed", range(8))
def test_no_decision_reads_a_diagnostic_counter(seed: int) -> None:
    """The diagnostic counters are set to nonsense after every step; the engine decides as before."""
    plain, spoilt = Story(seed), Story(seed)
    chance = random.Random(seed)
    diagnostic = [name for name, label in LABELS.items() if label == "diagnostic"]
    for _ in range(150):
        plain.tell(1)
        spoilt.tell(1)
        for name in diagnostic:
            setattr(spoilt.machine.evidence, name, chance.randint(-(10**12), 10**12))
    assert plain.log == spoilt.log


@pytest.mark.parametrize("seed", range(8))
def test_the_short_way_through_a_core_decides_what_the_long_one_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decisions() -> list[tuple[int, Decision]]:
        scenario = random_scenario(seed)
        simulation = build(scenario, observe=False)
        said: list[tuple[int, Decision]] = []
        step = simulation.machine.step

        def noting(event: Event, now: int) -> Any:
            answer = step(event, now)
            said.extend((now, decision) for decision in answer)
            return answer

        simulation.machine.step = noting  # type: ignore[method-assign]  # listening in
        simulation.run(40 * MS)
        return said

    def never_plain(_queues: Queues, entity: Entity) -> None:
        entity.is_plain = False

    short = decisions()
    monkeypatch.setattr(Queues, "_note_way", never_plain)
    assert decisions() == short
    assert len(short) > 20


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_changes_nothing_and_holds_the_latest(seed: int) -> None:
    plain, traced = Story(seed), Story(seed, trace=(trace := Trace(bytes_max=4_000)))
    plain.tell(200)
    traced.tell(200)
    assert plain.log == traced.log
    kept = trace.lines()
    assert 0 < sum(map(len, kept)) <= 4_000
    assert traced.machine.evidence.trace_bytes > 4_000
    assert plain.machine.evidence.trace_bytes == 0
    assert b"Tick" in b"".join(kept)

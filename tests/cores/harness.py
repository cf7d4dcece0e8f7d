"""An engine with a driver that applies every decision immediately, and a clock that the test moves.

`send` gives the engine an event and answers reschedule requests. `until` moves time on and sends ticks and timers when
they are due. The invariants are checked after every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rota.cores import CoresEngine, Handle, SchedulingContext
from rota.cores.events import Block, CoreTick, Decision, Event, Idle, Preempt, Reschedule, RunEntity, TimerDue, Wake

MS = 1_000_000
D = TypeVar("D", bound=Decision)


class EngineHarness:
    def __init__(self, cores: int = 1, **options: Any) -> None:
        self.engine = CoresEngine(cores=cores, **options)
        self.now = 0
        self.log: list[tuple[int, Decision]] = []
        self._until: dict[int, int] = {}  # by core: when its slice ends
        self._contexts = 0

    # --- driving ---------------------------------------------------------------------------------

    def send(self, event: Event) -> list[Decision]:
        """Send one event now, and handle the reschedules that follow."""
        return self.apply(self.engine.step(event, self.now))

    def apply(self, decisions: Sequence[Decision]) -> list[Decision]:
        decided = list(decisions)
        self.engine.check_invariants()
        for decision in decisions:
            self.log.append((self.now, decision))
            if isinstance(decision, RunEntity):
                self._until[decision.core] = decision.until_ns
            elif isinstance(decision, Preempt | Idle):
                self._until.pop(decision.core, None)
        for decision in decisions:
            if isinstance(decision, Reschedule):
                decided += self.send(CoreTick(decision.core))
        return decided

    def until(self, at_ns: int) -> None:
        """Move time on."""
        while (due := self._next_due()) is not None and due[0] <= at_ns:
            self.now, core = due
            if core is None:
                self.send(TimerDue())
            else:
                del self._until[core]
                self.send(CoreTick(core))
        self.now = at_ns

    def _next_due(self) -> tuple[int, int | None] | None:
        ticks: list[tuple[int, int | None]] = [(at, core) for core, at in self._until.items()]
        timer_at = self.engine.timers.next_at
        if timer_at is not None:
            ticks.append((max(timer_at, self.now), None))
        return min(ticks, key=lambda one: (one[0], -1 if one[1] is None else one[1]), default=None)

    # --- shorthand -------------------------------------------------------------------------------

    def spawn(self, count: int = 1, *, awake: bool = True, **options: Any) -> list[int]:
        entities = [self.engine.spawn(**options) for _ in range(count)]
        if awake:
            for entity in entities:
                self.send(Wake(entity))
        return entities

    def one(self, *, awake: bool = True, **options: Any) -> int:
        return self.spawn(1, awake=awake, **options)[0]

    def block(self, entity: int) -> list[Decision]:
        core = self.engine.entity(entity).core
        self._until.pop(core, None)
        return self.send(Block(entity))

    def context(self, budget_ms: float, period_ms: float, **options: Any) -> Handle:
        return self.engine.admit(self.spec(budget_ms, period_ms, **options))

    def spec(self, budget_ms: float, period_ms: float, **options: Any) -> SchedulingContext:
        self._contexts += 1
        budget, period = int(budget_ms * MS), int(period_ms * MS)
        return SchedulingContext(context_id=self._contexts, budget=budget, period=period, **options)

    def bind(self, handle: Handle, entity: int) -> None:
        self.apply(self.engine.bind(handle, entity))

    def runtime(self, entity: int) -> int:
        return self.engine.account(entity, self.now).runtime_ns

    def shares(self, *entities: int) -> list[float]:
        """The runtime of each entity, as a part of their total."""
        ran = [self.runtime(entity) for entity in entities]
        return [one / sum(ran) for one in ran]

    def decided(self, kind: type[D]) -> list[D]:
        return [decision for _, decision in self.log if isinstance(decision, kind)]

    def running(self) -> list[int | None]:
        return [self.engine.running(core) for core in range(self.engine.core_count)]

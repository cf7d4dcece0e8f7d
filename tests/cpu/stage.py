"""A stage for stories: an engine with a driver that does at once what it is told, and a clock that moves by hand.

`tell` gives the engine an event; requests to look again are answered at once. `until` moves time on, sending
ticks and timers when they are due. After every step the engine is audited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rota.cores import Handle, Machine, SchedulingContext
from rota.cores.events import Block, Decision, Event, Idle, Preempt, Reschedule, Run, Tick, Timer, Wake

MS = 1_000_000
D = TypeVar("D", bound=Decision)


class Stage:
    def __init__(self, cores: int = 1, **options: Any) -> None:
        self.machine = Machine(cores=cores, **options)
        self.now = 0
        self.log: list[tuple[int, Decision]] = []
        self._until: dict[int, int] = {}  # by core: when its turn ends
        self._contexts = 0

    # --- telling ---------------------------------------------------------------------------------

    def tell(self, event: Event) -> list[Decision]:
        """One event, now, and whatever follows from it at once."""
        return self.obey(self.machine.step(event, self.now))

    def obey(self, decisions: Sequence[Decision]) -> list[Decision]:
        said = list(decisions)
        self.machine.audit()
        for decision in decisions:
            self.log.append((self.now, decision))
            if isinstance(decision, Run):
                self._until[decision.core] = decision.until_ns
            elif isinstance(decision, Preempt | Idle):
                self._until.pop(decision.core, None)
        for decision in decisions:
            if isinstance(decision, Reschedule):
                said += self.tell(Tick(decision.core))
        return said

    def until(self, at_ns: int) -> None:
        """Let time pass."""
        while (due := self._next_due()) is not None and due[0] <= at_ns:
            self.now, core = due
            if core is None:
                self.tell(Timer())
            else:
                del self._until[core]
                self.tell(Tick(core))
        self.now = at_ns

    def _next_due(self) -> tuple[int, int | None] | None:
        ticks: list[tuple[int, int | None]] = [(at, core) for core, at in self._until.items()]
        timer_at = self.machine.next_timer_at
        if timer_at is not None:
            ticks.append((max(timer_at, self.now), None))
        return min(ticks, key=lambda one: (one[0], -1 if one[1] is None else one[1]), default=None)

    # --- shorthand -------------------------------------------------------------------------------

    def spawn(self, count: int = 1, *, awake: bool = True, **options: Any) -> list[int]:
        entities = [self.machine.spawn(**options) for _ in range(count)]
        if awake:
            for entity in entities:
                self.tell(Wake(entity))
        return entities

    def one(self, *, awake: bool = True, **options: Any) -> int:
        return self.spawn(1, awake=awake, **options)[0]

    def block(self, entity: int) -> list[Decision]:
        core = self.machine.entity(entity).core
        self._until.pop(core, None)
        return self.tell(Block(entity))

    def context(self, budget_ms: float, period_ms: float, **options: Any) -> Handle:
        return self.machine.admit(self.spec(budget_ms, period_ms, **options))

    def spec(self, budget_ms: float, period_ms: float, **options: Any) -> SchedulingContext:
        self._contexts += 1
        budget, period = int(budget_ms * MS), int(period_ms * MS)
        return SchedulingContext(context_id=self._contexts, budget=budget, period=period, **options)

    def bind(self, handle: Handle, entity: int) -> None:
        self.obey(self.machine.bind(handle, entity))

    def runtime(self, entity: int) -> int:
        return self.machine.account(entity, self.now).runtime_ns

    def shares(self, *entities: int) -> list[float]:
        """What each has run, as a part of all they have run together."""
        ran = [self.runtime(entity) for entity in entities]
        return [one / sum(ran) for one in ran]

    def said(self, kind: type[D]) -> list[D]:
        return [decision for _, decision in self.log if isinstance(decision, kind)]

    def running(self) -> list[int | None]:
        return [self.machine.running(core) for core in range(self.machine.core_count)]

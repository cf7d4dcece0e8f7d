"""One step touches a bounded number of entities, whatever happens; timers continue, and the final state is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rota.cores import CoresEngine, CpuIsolationLease, Handle, SchedulingContext
from rota.cores.core_scheduler import RELEASES_MAX
from rota.cores.events import (
    CoreOffline,
    CoreOnline,
    CoreTick,
    Decision,
    Event,
    Migrate,
    Revoke,
    RunEntity,
    ServiceLost,
    TimerDue,
    Wake,
)
from rota.cores.placement import MOVES_MAX
from tests.cores.harness import MS

COUNT = 600  # entities, on four cores: many more than one step may touch


class Crowd:
    """Four cores full of waiting entities, all paid by one context."""

    def __init__(self, *, paid: bool = True) -> None:
        self.engine = engine = CoresEngine(cores=4)
        engine.add_group("many")
        self.handle: Handle = engine.admit(SchedulingContext(context_id=1, budget=50 * MS, period=100 * MS))
        self.entities = [engine.spawn(group="many" if number % 3 == 0 else None) for number in range(COUNT)]
        self.changed = 0  # entities that changed their core or their payer in the last step
        for entity in self.entities:
            if paid:
                engine.bind(self.handle, entity)
            engine.step(Wake(entity), 0)
        for core in range(4):
            engine.step(CoreTick(core), 0)

    def state(self) -> dict[int, tuple[int, int | None]]:
        seen = {one: self.engine.entity(one) for one in self.entities}
        return {one: (view.core, view.paying) for one, view in seen.items()}

    def steps(self, event: Event) -> list[Sequence[Decision]]:
        """Send an event, then timers until none is due; return the decisions of each step."""
        decided = [self._step(event)]
        while self.engine.timers.next_at is not None and self.engine.timers.next_at <= MS:
            decided.append(self._step(TimerDue()))
        return decided

    def _step(self, event: Event) -> Sequence[Decision]:
        before = self.state()
        decided = self.engine.step(event, MS)
        self.engine.check_invariants()
        after = self.state()
        changed = sum(before[one] != after[one] for one in self.entities)
        assert changed <= max(MOVES_MAX, RELEASES_MAX) + 4, f"{changed} entities in one step"
        return decided


def test_a_core_that_goes_offline_is_emptied_step_by_step_and_picks_nothing() -> None:
    crowd = Crowd()
    decided = crowd.steps(CoreOffline(2))
    assert len(decided) > 2
    assert crowd.engine.running(2) is None
    assert crowd.engine.step(CoreTick(2), MS) == ()  # also before the last one has left
    moves = [one for step in decided for one in step if isinstance(one, Migrate)]
    assert all(one.target != 2 for one in moves)
    assert all(core != 2 for core, _ in crowd.state().values())


def test_from_the_first_step_on_nothing_is_picked_for_a_core_that_is_gone() -> None:
    crowd = Crowd()
    crowd.engine.step(CoreOffline(2), MS)
    for _ in range(3):
        for core in range(4):
            decided = crowd.engine.step(CoreTick(core), 4 * MS)
            assert not any(isinstance(one, RunEntity) and one.core == 2 for one in decided)
    crowd.engine.check_invariants()


def test_a_revoked_context_is_left_step_by_step_and_pays_for_nothing_more() -> None:
    crowd = Crowd()
    used = crowd.engine.context(1).budget - crowd.engine.context(1).remaining
    decided = crowd.steps(Revoke(crowd.handle))
    assert len(decided) > 2
    for core in range(4):
        crowd.engine.step(CoreTick(core), 4 * MS)
    crowd.engine.check_invariants()
    assert {paying for _, paying in crowd.state().values()} == {None}
    assert used == 0


def test_entities_that_were_not_reached_yet_get_nothing_from_a_revoked_context() -> None:
    crowd = Crowd()
    crowd.engine.step(Revoke(crowd.handle), MS)
    for now in range(4, 40, 3):  # picked before the timers have come to them
        for core in range(4):
            crowd.engine.step(CoreTick(core), now * MS)
        crowd.engine.check_invariants()
    assert crowd.engine.best_effort_ns > 30 * MS


@pytest.mark.parametrize("event", [ServiceLost("stalled"), CoreOnline(0)])
def test_other_events_touch_no_entity(event: Event) -> None:
    crowd = Crowd()
    before = crowd.state()
    crowd.steps(event)
    assert crowd.state() == before


def test_a_lease_empties_its_core_step_by_step_and_others_are_not_picked_there() -> None:
    crowd = Crowd(paid=False)
    engine = crowd.engine
    lease = CpuIsolationLease(lease_id=1, owner="many", cores=(3,), accounting_target=1, revocation_latency_max=10 * MS)
    _, first = engine.grant_lease(lease)
    assert sum(isinstance(one, Migrate) for one in first) <= MOVES_MAX + 1
    _, members = engine.group("many")
    for now in range(1, 60, 3):
        for core in range(4):
            engine.step(CoreTick(core), now * MS)
        assert engine.running(3) in members
    while engine.timers.next_at is not None and engine.timers.next_at <= 60 * MS:
        engine.step(TimerDue(), 60 * MS)
    engine.check_invariants()
    outside = [one for one in crowd.entities if one not in members]
    assert all(engine.entity(one).core != 3 for one in outside)


def test_displaced_entities_return_step_by_step() -> None:
    engine = CoresEngine(cores=2)
    pinned = [engine.spawn(core_mask=0b10) for _ in range(300)]
    for one in pinned:
        engine.step(Wake(one), 0)
    steps: list[Callable[[], Sequence[Decision]]] = [
        lambda: engine.step(CoreOffline(1), MS),
        lambda: engine.step(CoreOnline(1), MS),
    ]
    for begin in steps:
        decided = begin()
        while engine.timers.next_at is not None and engine.timers.next_at <= MS:
            assert sum(isinstance(one, Migrate) for one in decided) <= MOVES_MAX
            decided = engine.step(TimerDue(), MS)
        engine.check_invariants()
    assert all(engine.entity(one).core == 1 for one in pinned)

"""Per-core ownership: one queue per runnable entity, bounded requests, bounded stealing, bounded removal, masks."""

from __future__ import annotations

import pytest

from rota.cores import CoresEngine
from rota.cores.events import (
    Block,
    CoreOffline,
    CoreOnline,
    CoreTick,
    ExitEntity,
    ExitGroup,
    Idle,
    Migrate,
    More,
    Preempt,
    Reschedule,
    RunEntity,
    Steal,
    Wake,
)
from rota.cores.placement import STEAL_LOOKS_MAX, STEAL_TRIES_MAX
from rota.cores.queues import LAG_SLICES_MAX
from rota.cores.removal import EXITS_MAX
from rota.errors import ContextInvalid, EntityIllegalTransition, EntityUnknown, InvalidInput, Refused
from tests.cores.harness import MS, EngineHarness

# --- waking --------------------------------------------------------------------------------------


def test_a_wake_for_another_core_requests_a_reschedule_and_changes_nothing_there() -> None:
    engine = CoresEngine(cores=2)
    worker = engine.spawn(core_mask=0b10)
    assert engine.step(Wake(worker), 0) == [Reschedule(1)]
    assert engine.running(1) is None
    assert list(engine.step(CoreTick(1), 5)) == [RunEntity(1, worker, 5 + 3 * MS)]


def test_a_core_has_at_most_one_pending_reschedule() -> None:
    engine = CoresEngine(cores=1)
    workers = [engine.spawn() for _ in range(5)]
    decided = [decision for worker in workers for decision in engine.step(Wake(worker), 0)]
    assert decided == [Reschedule(0)]
    assert engine.counters.reschedules_merged == 4
    engine.step(CoreTick(0), 0)
    urgent = engine.spawn(latency_class="sensitive")
    assert engine.step(Wake(urgent), MS) == (Reschedule(0),)


def test_wakes_at_the_same_instant_go_to_different_idle_cores() -> None:
    engine = CoresEngine(cores=3)
    workers = [engine.spawn() for _ in range(3)]
    asked = [decision for worker in workers for decision in engine.step(Wake(worker), 0)]
    assert {decision.core for decision in asked if isinstance(decision, Reschedule)} == {0, 1, 2}


def test_a_shorter_slice_preempts_a_longer_one_and_an_equal_one_waits() -> None:
    harness = EngineHarness()
    long = harness.one(latency_class="batch")
    harness.until(2 * MS)
    equal = harness.one(latency_class="batch")
    assert harness.running() == [long]
    short = harness.one(latency_class="sensitive")
    assert harness.running() == [short]
    assert Preempt(0, long) in harness.decided(Preempt)
    assert harness.engine.account(equal).last_start_ns is None


# --- moving --------------------------------------------------------------------------------------


def test_an_idle_core_steals_the_most_overdue_entity() -> None:
    harness = EngineHarness(cores=2)
    stay, leave = harness.one(core_mask=0b01), harness.one(core_mask=0b10)
    late, early = harness.one(core_mask=0b11, awake=False), harness.one(core_mask=0b11, awake=False)
    for one in (late, early):
        harness.apply(harness.engine.set_mask(one, 0b01))
        harness.send(Wake(one))
        harness.apply(harness.engine.set_mask(one, 0b11))
    harness.until(1 * MS)
    decided = harness.block(leave)
    assert decided == [Steal(late, 0, 1), RunEntity(1, late, 4 * MS)]
    assert harness.running() == [stay, late]
    assert harness.engine.entity(early).core == 0


def test_stealing_looks_into_a_bounded_number_of_queues_and_entities() -> None:
    """A hundred cores with queues full of entities that may not move: the idle core stops after a few looks."""
    engine = CoresEngine(cores=100)
    for core in range(99):
        for _ in range(20):
            engine.step(Wake(engine.spawn(core_mask=1 << core)), 0)
    alone = engine.spawn(core_mask=1 << 99)
    engine.step(Wake(alone), 0)
    for core in range(100):
        engine.step(CoreTick(core), 0)
    tried = engine.counters.steals_tried
    assert engine.step(Block(alone), MS) == [Idle(99)]
    assert engine.counters.steals_tried - tried == 2 * STEAL_TRIES_MAX  # for the normal band, then the background
    assert STEAL_LOOKS_MAX < 20


def test_a_moved_entity_takes_at_most_a_few_slices_of_lag_along() -> None:
    """Two cores balance entities of unequal weights again and again, as they come and go."""
    harness = EngineHarness(cores=2)
    crowd = [harness.one(weight=weight, core_mask=0b01) for weight in (500, 1000, 1500, 2000, 2500, 3000, 700)]
    harness.one(weight=1000, core_mask=0b10)
    harness.until(10 * MS)
    for one in crowd:
        harness.engine.set_mask(one, 0)
    for gone in crowd[:3]:
        harness.until(harness.now + 30 * MS)
        for one in crowd:
            assert abs(harness.engine.entity(one, harness.now).lag_ns) <= (LAG_SLICES_MAX + 1) * 3 * MS
        crowd.remove(gone)
        harness.send(ExitEntity(gone))
    assert len(harness.decided(Migrate)) >= 3


def test_loads_are_balanced_when_slices_end() -> None:
    harness = EngineHarness(cores=2)
    crowd = harness.spawn(5, core_mask=0b01)
    lonely = harness.one(core_mask=0b10)
    for one in crowd:
        harness.apply(harness.engine.set_mask(one, 0))
    harness.until(60 * MS)
    cores = [harness.engine.entity(one).core for one in (*crowd, lonely)]
    assert sorted(cores.count(core) for core in (0, 1)) == [3, 3]
    assert harness.decided(Migrate)


def test_waking_stealing_and_balancing_respect_the_mask() -> None:
    harness = EngineHarness(cores=3)
    pinned = harness.spawn(4, core_mask=0b001)
    harness.until(50 * MS)
    assert {harness.engine.entity(one).core for one in pinned} == {0}
    assert harness.running()[1:] == [None, None]


def test_a_changed_mask_moves_waiting_and_running_entities() -> None:
    harness = EngineHarness(cores=2)
    runs, waits = harness.spawn(2, core_mask=0b01)
    harness.until(1 * MS)
    harness.apply(harness.engine.set_mask(waits, 0b10))
    assert harness.running() == [runs, waits]
    harness.apply(harness.engine.set_mask(runs, 0b10))
    harness.until(10 * MS)
    assert {harness.engine.entity(one).core for one in (runs, waits)} == {1}
    assert harness.running()[0] is None


# --- cores that go away --------------------------------------------------------------------------


def test_a_core_that_was_offline_asks_to_choose_again_whatever_it_had_asked_before() -> None:
    """It asked, went offline before the driver's tick, and came back: it used to count as having asked for ever."""
    engine = CoresEngine(cores=2)
    engine.step(Wake(engine.spawn(core_mask=0b01)), 0)
    engine.step(CoreTick(0), 0)
    pinned = engine.spawn(core_mask=0b10)
    assert engine.step(Wake(pinned), 0) == [Reschedule(1)]
    engine.step(CoreOffline(1), 0)
    assert engine.step(CoreTick(1), 0) == ()
    assert Reschedule(1) in engine.step(CoreOnline(1), MS)
    assert engine.step(CoreTick(1), MS) == [RunEntity(1, pinned, 4 * MS)]


def test_an_offline_core_gives_its_entities_to_the_others() -> None:
    harness = EngineHarness(cores=2)
    workers = harness.spawn(4)
    harness.until(1 * MS)
    decided = harness.send(CoreOffline(1))
    assert any(isinstance(one, Preempt) and one.core == 1 for one in decided)
    harness.until(40 * MS)
    assert {harness.engine.entity(one).core for one in workers} == {0}
    assert all(harness.runtime(one) > 5 * MS for one in workers)
    harness.send(CoreOnline(1))
    harness.until(80 * MS)
    assert {harness.engine.entity(one).core for one in workers} == {0, 1}


def test_an_entity_without_an_allowed_core_is_put_on_any_and_returned_later() -> None:
    harness = EngineHarness(cores=2)
    pinned = harness.one(core_mask=0b10)
    harness.send(CoreOffline(1))
    assert harness.running() == [pinned, None]
    assert harness.engine.counters.affinity_broken == 1
    harness.send(CoreOnline(1))
    harness.until(10 * MS)
    assert harness.running() == [None, pinned]


def test_the_last_core_stays() -> None:
    harness = EngineHarness(cores=2)
    harness.send(CoreOffline(0))
    with pytest.raises(Refused, match="last core"):
        harness.send(CoreOffline(1))


# --- ending --------------------------------------------------------------------------------------


def test_ending_an_entity_costs_the_same_in_any_state_and_for_any_number() -> None:
    """Running, waiting, sleeping: ending looks at no other entity. A counter counts the looks."""
    for crowd in (10, 1_000):
        engine = CoresEngine(cores=1)
        entities = [engine.spawn() for _ in range(crowd)]
        for entity in entities:
            engine.step(Wake(entity), 0)
        engine.step(CoreTick(0), 0)
        asleep = engine.spawn()
        looks = engine.counters.looks
        for entity in (asleep, entities[0], entities[5]):
            engine.step(ExitEntity(entity), MS)
        assert engine.counters.looks - looks <= 1
        engine.check_invariants()


def test_a_group_ends_a_bounded_number_at_a_time() -> None:
    harness = EngineHarness(cores=2)
    harness.engine.add_group("crowd")
    members = harness.spawn(150, group="crowd")
    other = harness.one()
    decided = harness.engine.step(ExitGroup("crowd"), harness.now)
    assert decided[-1] == More(ExitGroup("crowd"))
    gone = [one for one in members if not _exists(harness, one)]
    assert len(gone) == EXITS_MAX
    harness.apply(decided)
    while any(isinstance(one, More) for one in harness.send(ExitGroup("crowd"))):
        assert any(_exists(harness, one) for one in members)
    assert not any(_exists(harness, one) for one in members)
    harness.until(10 * MS)
    assert harness.runtime(other) > 9 * MS
    with pytest.raises(EntityUnknown, match="group 'crowd' does not exist"):
        harness.send(ExitGroup("crowd"))


def _exists(harness: EngineHarness, entity: int) -> bool:
    try:
        harness.engine.entity(entity)
    except EntityUnknown:
        return False
    return True


# --- bad input -----------------------------------------------------------------------------------


def test_an_invalid_event_is_refused_by_name_and_nothing_changes() -> None:
    harness = EngineHarness()
    worker = harness.one()
    with pytest.raises(EntityIllegalTransition, match=f"entity {worker} is running and cannot wake"):
        harness.send(Wake(worker))
    harness.until(1 * MS)
    harness.block(worker)
    with pytest.raises(EntityIllegalTransition, match="is sleeping and cannot block"):
        harness.send(Block(worker))
    with pytest.raises(EntityUnknown, match="entity 99 does not exist"):
        harness.send(Wake(99))
    with pytest.raises(EntityUnknown, match="core 7 does not exist"):
        harness.send(CoreTick(7))
    with pytest.raises(InvalidInput, match="time went back"):
        harness.engine.step(Wake(worker), 0)
    with pytest.raises(InvalidInput, match="is not an event"):
        harness.engine.step("wake", harness.now)  # type: ignore[arg-type]  # what a careless driver may do
    harness.engine.check_invariants()
    assert harness.runtime(worker) == 1 * MS


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": True}, "weight"),
        ({"latency_class": "urgent"}, "latency_class"),
        ({"slice_ns": 1}, "slice_ns"),
        ({"core_mask": 0b100}, "core_mask"),
        ({"core_mask": -1}, "core_mask"),
    ],
)
def test_an_invalid_entity_is_refused(options: dict[str, object], field: str) -> None:
    engine = CoresEngine(cores=2)
    with pytest.raises(ContextInvalid, match=field):
        engine.spawn(**options)  # type: ignore[arg-type]  # the point of the test
    assert engine.spawn() == 1  # no entity number was used


@pytest.mark.parametrize("options", [{"cores": 0}, {"cores": 5000}, {"cores": 1, "rule": "lottery"}])
def test_an_invalid_engine_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ContextInvalid):
        CoresEngine(**options)  # type: ignore[arg-type]  # the point of the test


def test_memory_does_not_grow_with_ended_entities() -> None:
    harness = EngineHarness(cores=2)
    harness.engine.add_group("family")
    stays = harness.one(group="family")
    for _ in range(200):
        gone = harness.one(group="family")
        harness.send(ExitEntity(gone))
    assert len(harness.engine._queues._index_table.items) <= 2 + 2  # two entities, and the group's node on each core
    assert harness.engine.entity(stays).group == "family"

"""Per-core ownership: one owner for every runnable, bounded requests, bounded stealing, bounded endings, masks."""

from __future__ import annotations

import pytest

from rota.cores import Machine
from rota.cores.endings import EXITS_MAX
from rota.cores.events import (
    Block,
    CoreOffline,
    CoreOnline,
    Decision,
    Event,
    Exit,
    ExitGroup,
    Idle,
    Migrate,
    More,
    Preempt,
    Reschedule,
    Run,
    Steal,
    Tick,
    Wake,
)
from rota.cores.placement import STEAL_LOOKS_MAX, STEAL_TRIES_MAX
from rota.errors import ContextInvalid, EntityIllegalTransition, EntityUnknown, InvalidInput, Refused
from tests.cpu.stage import MS, Stage

# --- waking --------------------------------------------------------------------------------------


def test_a_wake_for_another_core_asks_it_to_look_and_changes_nothing_there() -> None:
    machine = Machine(cores=2)
    worker = machine.spawn(core_mask=0b10)
    assert machine.step(Wake(worker), 0) == [Reschedule(1)]
    assert machine.running(1) is None
    assert list(machine.step(Tick(1), 5)) == [Run(1, worker, 5 + 3 * MS)]


def test_a_core_is_asked_at_most_once_until_it_has_looked() -> None:
    machine = Machine(cores=1)
    workers = [machine.spawn() for _ in range(5)]
    said = [decision for worker in workers for decision in machine.step(Wake(worker), 0)]
    assert said == [Reschedule(0)]
    assert machine.evidence.reschedules_merged == 4
    machine.step(Tick(0), 0)
    urgent = machine.spawn(latency_class="sensitive")
    assert machine.step(Wake(urgent), MS) == (Reschedule(0),)


def test_wakes_at_the_same_instant_go_to_different_idle_cores() -> None:
    machine = Machine(cores=3)
    workers = [machine.spawn() for _ in range(3)]
    asked = [decision for worker in workers for decision in machine.step(Wake(worker), 0)]
    assert {decision.core for decision in asked if isinstance(decision, Reschedule)} == {0, 1, 2}


def test_a_short_turn_does_not_wait_for_the_end_of_a_long_one_and_an_equal_one_does() -> None:
    stage = Stage()
    long = stage.one(latency_class="batch")
    stage.until(2 * MS)
    equal = stage.one(latency_class="batch")
    assert stage.running() == [long]
    short = stage.one(latency_class="sensitive")
    assert stage.running() == [short]
    assert Preempt(0, long) in stage.said(Preempt)
    assert stage.machine.account(equal).last_start_ns is None


# --- moving --------------------------------------------------------------------------------------


def test_a_core_with_nothing_to_do_steals_whoever_is_most_overdue() -> None:
    stage = Stage(cores=2)
    stay, leave = stage.one(core_mask=0b01), stage.one(core_mask=0b10)
    late, early = stage.one(core_mask=0b11, awake=False), stage.one(core_mask=0b11, awake=False)
    for one in (late, early):
        stage.obey(stage.machine.set_mask(one, 0b01))
        stage.tell(Wake(one))
        stage.obey(stage.machine.set_mask(one, 0b11))
    stage.until(1 * MS)
    said = stage.block(leave)
    assert said == [Steal(late, 0, 1), Run(1, late, 4 * MS)]
    assert stage.running() == [stay, late]
    assert stage.machine.entity(early).core == 0


def test_stealing_looks_into_a_bounded_number_of_queues_and_entities() -> None:
    """A hundred cores with queues full of work that may not be moved: the thief gives up after a few looks."""
    machine = Machine(cores=100)
    for core in range(99):
        for _ in range(20):
            machine.step(Wake(machine.spawn(core_mask=1 << core)), 0)
    alone = machine.spawn(core_mask=1 << 99)
    machine.step(Wake(alone), 0)
    for core in range(100):
        machine.step(Tick(core), 0)
    tried = machine.evidence.steals_tried
    assert machine.step(Block(alone), MS) == [Idle(99)]
    assert machine.evidence.steals_tried - tried == STEAL_TRIES_MAX
    assert STEAL_LOOKS_MAX < 20


class Watched(Stage):
    """Notes what everybody was owed before each step, and compares for whoever moves."""

    moves = 0

    def tell(self, event: Event) -> list[Decision]:
        before = {one: self.machine.entity(one, self.now).lag_ns for one in self.watched}
        decisions = self.machine.step(event, self.now)
        for decision in decisions:
            if isinstance(decision, Migrate):
                self.moves += 1
                after = self.machine.entity(decision.entity, self.now).lag_ns
                assert abs(after - before[decision.entity]) <= 1  # a lag is rounded to whole nanoseconds
        return self.obey(decisions)

    watched: tuple[int, ...] = ()


def test_whoever_moves_keeps_its_lag() -> None:
    """Two cores share out a crowd of unequal weights again and again, as their members come and go."""
    stage = Watched(cores=2)
    crowd = [stage.one(weight=weight, core_mask=0b01) for weight in (500, 1000, 1500, 2000, 2500, 3000, 700)]
    stage.one(weight=1000, core_mask=0b10)
    stage.until(10 * MS)
    for one in crowd:
        stage.machine.set_mask(one, 0)
    stage.watched = tuple(crowd)
    stage.until(60 * MS)
    for one in crowd[:3]:
        stage.tell(Exit(one))
        stage.watched = tuple(other for other in stage.watched if other != one)
        stage.until(stage.now + 30 * MS)
    assert stage.moves >= 3


def test_loads_are_evened_out_when_turns_end() -> None:
    stage = Stage(cores=2)
    crowd = stage.spawn(5, core_mask=0b01)
    lonely = stage.one(core_mask=0b10)
    for one in crowd:
        stage.obey(stage.machine.set_mask(one, 0))
    stage.until(60 * MS)
    cores = [stage.machine.entity(one).core for one in (*crowd, lonely)]
    assert sorted(cores.count(core) for core in (0, 1)) == [3, 3]
    assert stage.said(Migrate)


def test_a_mask_is_kept_by_waking_stealing_and_evening_out() -> None:
    stage = Stage(cores=3)
    pinned = stage.spawn(4, core_mask=0b001)
    stage.until(50 * MS)
    assert {stage.machine.entity(one).core for one in pinned} == {0}
    assert stage.running()[1:] == [None, None]


def test_a_mask_that_changes_moves_whoever_waits_or_runs() -> None:
    stage = Stage(cores=2)
    runs, waits = stage.spawn(2, core_mask=0b01)
    stage.until(1 * MS)
    stage.obey(stage.machine.set_mask(waits, 0b10))
    assert stage.running() == [runs, waits]
    stage.obey(stage.machine.set_mask(runs, 0b10))
    stage.until(10 * MS)
    assert {stage.machine.entity(one).core for one in (runs, waits)} == {1}
    assert stage.running()[0] is None


# --- cores that go away --------------------------------------------------------------------------


def test_a_core_that_goes_away_gives_its_work_to_the_others() -> None:
    stage = Stage(cores=2)
    workers = stage.spawn(4)
    stage.until(1 * MS)
    said = stage.tell(CoreOffline(1))
    assert any(isinstance(one, Preempt) and one.core == 1 for one in said)
    stage.until(40 * MS)
    assert {stage.machine.entity(one).core for one in workers} == {0}
    assert all(stage.runtime(one) > 5 * MS for one in workers)
    stage.tell(CoreOnline(1))
    stage.until(80 * MS)
    assert {stage.machine.entity(one).core for one in workers} == {0, 1}


def test_whoever_may_run_on_no_core_is_put_on_any_and_brought_home_later() -> None:
    stage = Stage(cores=2)
    pinned = stage.one(core_mask=0b10)
    stage.tell(CoreOffline(1))
    assert stage.running() == [pinned, None]
    assert stage.machine.evidence.affinity_broken == 1
    stage.tell(CoreOnline(1))
    stage.until(10 * MS)
    assert stage.running() == [None, pinned]


def test_the_last_core_stays() -> None:
    stage = Stage(cores=2)
    stage.tell(CoreOffline(0))
    with pytest.raises(Refused, match="last core"):
        stage.tell(CoreOffline(1))


# --- ending --------------------------------------------------------------------------------------


def test_ending_costs_the_same_whatever_the_entity_does_and_however_many_there_are() -> None:
    """Runs, waits, sleeps: ending looks at no other entity. The looks are counted by the evidence."""
    for crowd in (10, 1_000):
        machine = Machine(cores=1)
        entities = [machine.spawn() for _ in range(crowd)]
        for entity in entities:
            machine.step(Wake(entity), 0)
        machine.step(Tick(0), 0)
        asleep = machine.spawn()
        looks = machine.evidence.looks
        for entity in (asleep, entities[0], entities[5]):
            machine.step(Exit(entity), MS)
        assert machine.evidence.looks - looks <= 1
        machine.audit()


def test_a_group_ends_a_bounded_number_at_a_time() -> None:
    stage = Stage(cores=2)
    stage.machine.add_group("crowd")
    members = stage.spawn(150, group="crowd")
    other = stage.one()
    said = stage.machine.step(ExitGroup("crowd"), stage.now)
    assert said[-1] == More(ExitGroup("crowd"))
    gone = [one for one in members if not _exists(stage, one)]
    assert len(gone) == EXITS_MAX
    stage.obey(said)
    while any(isinstance(one, More) for one in stage.tell(ExitGroup("crowd"))):
        assert any(_exists(stage, one) for one in members)
    assert not any(_exists(stage, one) for one in members)
    stage.until(10 * MS)
    assert stage.runtime(other) > 9 * MS
    with pytest.raises(EntityUnknown, match="no group 'crowd'"):
        stage.tell(ExitGroup("crowd"))


def _exists(stage: Stage, entity: int) -> bool:
    try:
        stage.machine.entity(entity)
    except EntityUnknown:
        return False
    return True


# --- bad input -----------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_by_name_and_nothing_changes() -> None:
    stage = Stage()
    worker = stage.one()
    with pytest.raises(EntityIllegalTransition, match=f"entity {worker} is running and cannot wake"):
        stage.tell(Wake(worker))
    stage.until(1 * MS)
    stage.block(worker)
    with pytest.raises(EntityIllegalTransition, match="is sleeping and cannot block"):
        stage.tell(Block(worker))
    with pytest.raises(EntityUnknown, match="no entity 99"):
        stage.tell(Wake(99))
    with pytest.raises(EntityUnknown, match="no core 7"):
        stage.tell(Tick(7))
    with pytest.raises(InvalidInput, match="time went back"):
        stage.machine.step(Wake(worker), 0)
    with pytest.raises(InvalidInput, match="is no event"):
        stage.machine.step("wake", stage.now)  # type: ignore[arg-type]  # what a careless driver may do
    stage.machine.audit()
    assert stage.runtime(worker) == 1 * MS


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
def test_an_entity_that_cannot_be_is_refused(options: dict[str, object], field: str) -> None:
    machine = Machine(cores=2)
    with pytest.raises(ContextInvalid, match=field):
        machine.spawn(**options)  # type: ignore[arg-type]  # the point of the test
    assert machine.spawn() == 1  # no number was used up


@pytest.mark.parametrize("options", [{"cores": 0}, {"cores": 5000}, {"cores": 1, "rule": "lottery"}])
def test_an_engine_that_cannot_be_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ContextInvalid):
        Machine(**options)  # type: ignore[arg-type]  # the point of the test


def test_what_is_kept_does_not_grow_with_those_who_are_gone() -> None:
    stage = Stage(cores=2)
    stage.machine.add_group("family")
    stays = stage.one(group="family")
    for _ in range(200):
        gone = stage.one(group="family")
        stage.tell(Exit(gone))
    assert len(stage.machine._queues._seats.holders) <= 2 + 2  # two entities, and the group's node on each core
    assert stage.machine.entity(stays).group == "family"

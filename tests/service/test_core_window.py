"""Any policy on a core: shown a bounded window at a slow boundary, believed in nothing."""

from __future__ import annotations

import pytest

from rota.clock import ManualClock
from rota.cores import Machine, SchedulingContext
from rota.cores.events import Tick, Wake
from rota.cores.orders import FRONT_MAX
from rota.model.events import Fact, PolicyFellBack
from rota.model.reasons import Because
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.policy import registry
from rota.policy.contract import Policy, Rank
from rota.service.admission import Admission
from rota.service.core_policy import BAND_STEP, CoreWindow
from rota.service.policy_guard import Leash
from rota.service.policy_link import Steward

MS = 1_000_000


class Room:
    """An engine, its steward, and a window for one policy."""

    def __init__(self, policy: Policy, cores: int = 1) -> None:
        self.record: list[Fact] = []
        self.machine = Machine(cores=cores)
        admission = Admission(self.machine, self.record.append)
        self.steward = Steward(self.machine, admission, self.record.append)
        self.window = CoreWindow(self.machine, policy, Leash(ManualClock()), self.steward.failed)
        self.now = 0

    def awake(self, count: int = 1, **options: int | str) -> list[int]:
        entities = [self.machine.spawn(**options) for _ in range(count)]  # type: ignore[arg-type]  # as they come
        for entity in entities:
            self.machine.step(Wake(entity), self.now)
        return entities

    def served(self, turns: int) -> list[int | None]:
        """Who has the next turns of core 0."""
        order = []
        for _ in range(turns):
            self.machine.step(Tick(0), self.now)
            order.append(self.machine.running(0))
            self.now += 100 * MS
        return order


def with_priority(room: Room, priority: int) -> int:
    (entity,) = room.awake()
    spec = SchedulingContext(context_id=entity, budget=90 * MS, period=100 * MS, priority=priority)
    room.machine.bind(room.machine.admit(spec), entity)
    return entity


@pytest.mark.parametrize("name", registry.names())
def test_every_policy_arranges_a_core_and_the_engine_stays_sound(name: str) -> None:
    room = Room(registry.make(name))
    everybody = room.awake(5)
    room.window.arrange(0, room.now)
    room.machine.audit()
    assert set(room.served(5)) <= set(everybody)
    assert room.record == []


def test_strict_lets_the_highest_priority_go_first_and_then_the_engines_own_rule_goes_on() -> None:
    room = Room(registry.make("strict"))
    low, high, middle = (with_priority(room, priority) for priority in (1, 9, 5))
    room.window.arrange(0, room.now)
    assert room.served(3) == [high, middle, low]
    assert set(room.served(3)) == {low, middle, high}


def test_edf_goes_by_the_deadlines_of_the_contexts_that_pay() -> None:
    room = Room(registry.make("edf"))
    entities = room.awake(3)
    for entity, deadline in zip(entities, (30 * MS, 10 * MS, 20 * MS), strict=True):
        spec = SchedulingContext(context_id=entity, budget=5 * MS, period=50 * MS, relative_deadline=deadline)
        room.machine.bind(room.machine.admit(spec), entity)
    room.window.arrange(0, room.now)
    assert room.served(3) == [entities[1], entities[2], entities[0]]


def test_a_snapshot_of_a_core_says_what_the_table_says() -> None:
    room = Room(registry.make("strict"))
    room.machine.add_group("web", weight=3000)
    (lone,) = room.awake(weight=2000)
    room.machine.step(Tick(0), 0)
    (member,) = room.awake(group="web")
    room.now = 4 * MS
    room.machine.step(Tick(0), room.now)  # the turn of the first has ended, the member runs
    snapshot = room.window.snapshot(0, room.now)
    (candidate,) = snapshot.candidates
    assert (candidate.id, candidate.owner, candidate.group) == (lone, lone, None)
    assert (candidate.priority, candidate.deadline, candidate.cost) == (BAND_STEP, None, 3 * MS)
    assert (snapshot.owners[lone].weight, snapshot.owners[lone].usage) == (2000, 4 * MS)
    assert snapshot.now == 4 * MS
    for room.now in (8 * MS, 12 * MS):  # the heavier group has a second turn
        room.machine.step(Tick(0), room.now)
    snapshot = room.window.snapshot(0, room.now)
    assert (snapshot.candidates[0].id, snapshot.candidates[0].group) == (member, "web")
    assert (snapshot.groups["web"].weight, snapshot.groups["web"].usage) == (3000, 8 * MS)


def test_no_more_are_shown_than_an_order_may_name() -> None:
    room = Room(registry.make("strict"))
    room.awake(FRONT_MAX + 10)
    snapshot = room.window.snapshot(0, room.now)
    assert len(snapshot.candidates) == len(snapshot.slots) == FRONT_MAX
    room.window.arrange(0, room.now)
    room.machine.audit()


def test_a_core_where_nobody_waits_is_not_asked_about() -> None:
    room = Room(foreign(pytest.fail))  # type: ignore[arg-type]  # it must not be called at all
    assert list(room.window.arrange(0, room.now)) == []


# --- failing ---------------------------------------------------------------------------------------


def foreign(rank: Rank) -> Policy:
    return Policy(name="foreign", rank=rank, sentence="somebody else's")


def raises(_snapshot: Snapshot) -> Decisions:
    raise ValueError("no idea")


def names_a_stranger(_snapshot: Snapshot) -> Decisions:
    return (Decision(999, 0, Because("foreign", "because")),)


def names_one_twice(snapshot: Snapshot) -> Decisions:
    first = snapshot.candidates[0].id
    return tuple(Decision(first, turn, Because("foreign", "because")) for turn in (0, 1))


def says_nonsense(_snapshot: Snapshot) -> Decisions:
    return "whatever"  # type: ignore[return-value]  # that is the point


@pytest.mark.parametrize(
    ("rank", "failure"),
    [(raises, "raised"), (names_a_stranger, "nonsense"), (names_one_twice, "nonsense"), (says_nonsense, "nonsense")],
)
def test_a_policy_that_fails_costs_order_and_nothing_else(rank: Rank, failure: str) -> None:
    room = Room(foreign(rank))
    everybody = room.awake(3)
    room.now = MS
    room.window.arrange(0, room.now)
    (fact,) = room.record
    assert isinstance(fact, PolicyFellBack)
    assert fact.failure == failure
    assert room.machine.evidence.fallbacks == 1
    assert sorted(one or 0 for one in room.served(3)) == everybody  # by round robin
    assert list(room.window.arrange(0, room.now)) == []  # not asked again until the service is restored
    room.machine.audit()

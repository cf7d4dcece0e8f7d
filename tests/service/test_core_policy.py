"""Any policy on a core: it ranks a bounded snapshot at a slow boundary, and its picks are checked."""

from __future__ import annotations

import pytest

from rota.clock import ManualClock
from rota.cores import CoresEngine, SchedulingContext
from rota.cores.events import CoreTick, Wake
from rota.cores.policy_updates import FRONT_MAX
from rota.model.events import EventData, PolicyFellBack
from rota.model.reasons import PickReason
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.policy import registry
from rota.policy.contract import Policy, Rank
from rota.service.admission import Admission
from rota.service.core_policy import BAND_STEP, CorePolicy
from rota.service.policy_guard import PolicyGuard
from rota.service.policy_link import PolicyLink

MS = 1_000_000


class Setup:
    """An engine, its policy link, and one policy applied to its cores."""

    def __init__(self, policy: Policy, cores: int = 1) -> None:
        self.record: list[EventData] = []
        self.engine = CoresEngine(cores=cores)
        admission = Admission(self.engine, self.record.append)
        self.link = PolicyLink(self.engine, admission, self.record.append)
        self.core_policy = CorePolicy(self.engine, policy, PolicyGuard(ManualClock()), self.link.service_failed)
        self.now = 0

    def awake(self, count: int = 1, **options: int | str) -> list[int]:
        entities = [self.engine.spawn(**options) for _ in range(count)]  # type: ignore[arg-type]  # as they come
        for entity in entities:
            self.engine.step(Wake(entity), self.now)
        return entities

    def served(self, slices: int) -> list[int | None]:
        """The entities that get the next slices of core 0."""
        order = []
        for _ in range(slices):
            self.engine.step(CoreTick(0), self.now)
            order.append(self.engine.running(0))
            self.now += 100 * MS
        return order


def with_priority(setup: Setup, priority: int) -> int:
    (entity,) = setup.awake()
    spec = SchedulingContext(context_id=entity, budget=90 * MS, period=100 * MS, priority=priority)
    setup.engine.bind(setup.engine.admit(spec), entity)
    return entity


@pytest.mark.parametrize("name", registry.names())
def test_every_policy_arranges_a_core_and_the_invariants_hold(name: str) -> None:
    setup = Setup(registry.make(name))
    entities = setup.awake(5)
    setup.core_policy.arrange(0, setup.now)
    setup.engine.check_invariants()
    assert set(setup.served(5)) <= set(entities)
    assert setup.record == []


def test_strict_runs_the_highest_priority_first_and_then_the_engines_own_rule_applies() -> None:
    setup = Setup(registry.make("strict"))
    low, high, middle = (with_priority(setup, priority) for priority in (1, 9, 5))
    setup.core_policy.arrange(0, setup.now)
    assert setup.served(3) == [high, middle, low]
    assert set(setup.served(3)) == {low, middle, high}


def test_edf_orders_by_the_deadlines_of_the_paying_contexts() -> None:
    setup = Setup(registry.make("edf"))
    entities = setup.awake(3)
    for entity, deadline in zip(entities, (30 * MS, 10 * MS, 20 * MS), strict=True):
        spec = SchedulingContext(context_id=entity, budget=5 * MS, period=50 * MS, relative_deadline=deadline)
        setup.engine.bind(setup.engine.admit(spec), entity)
    setup.core_policy.arrange(0, setup.now)
    assert setup.served(3) == [entities[1], entities[2], entities[0]]


def test_a_snapshot_of_a_core_has_the_documented_values() -> None:
    setup = Setup(registry.make("strict"))
    setup.engine.add_group("web", weight=3000)
    (lone,) = setup.awake(weight=2000)
    setup.engine.step(CoreTick(0), 0)
    (member,) = setup.awake(group="web")
    setup.now = 4 * MS
    setup.engine.step(CoreTick(0), setup.now)  # the slice of the first has ended, the member runs
    snapshot = setup.core_policy.snapshot(0, setup.now)
    (candidate,) = snapshot.candidates
    assert (candidate.id, candidate.owner, candidate.group) == (lone, lone, None)
    assert (candidate.priority, candidate.deadline, candidate.cost) == (BAND_STEP, None, 3 * MS)
    assert (snapshot.owners[lone].weight, snapshot.owners[lone].usage) == (2000, 4 * MS)
    assert snapshot.now == 4 * MS
    for setup.now in (8 * MS, 12 * MS):  # the heavier group gets a second slice
        setup.engine.step(CoreTick(0), setup.now)
    snapshot = setup.core_policy.snapshot(0, setup.now)
    assert (snapshot.candidates[0].id, snapshot.candidates[0].group) == (member, "web")
    assert (snapshot.groups["web"].weight, snapshot.groups["web"].usage) == (3000, 8 * MS)


def test_a_snapshot_has_at_most_as_many_entities_as_an_update_may_name() -> None:
    setup = Setup(registry.make("strict"))
    setup.awake(FRONT_MAX + 10)
    snapshot = setup.core_policy.snapshot(0, setup.now)
    assert len(snapshot.candidates) == len(snapshot.slots) == FRONT_MAX
    setup.core_policy.arrange(0, setup.now)
    setup.engine.check_invariants()


def test_the_policy_is_not_called_for_a_core_without_waiting_entities() -> None:
    setup = Setup(foreign(pytest.fail))  # type: ignore[arg-type]  # it must not be called at all
    assert list(setup.core_policy.arrange(0, setup.now)) == []


# --- failing ---------------------------------------------------------------------------------------


def foreign(rank: Rank) -> Policy:
    return Policy(name="foreign", rank=rank, sentence="a foreign policy")


def raises(_snapshot: Snapshot) -> Decisions:
    raise ValueError("no idea")


def names_a_stranger(_snapshot: Snapshot) -> Decisions:
    return (Decision(999, 0, PickReason("foreign", "because")),)


def names_one_twice(snapshot: Snapshot) -> Decisions:
    first = snapshot.candidates[0].id
    return tuple(Decision(first, turn, PickReason("foreign", "because")) for turn in (0, 1))


def says_nonsense(_snapshot: Snapshot) -> Decisions:
    return "whatever"  # type: ignore[return-value]  # that is the point


@pytest.mark.parametrize(
    ("rank", "failure"),
    [(raises, "raised"), (names_a_stranger, "nonsense"), (names_one_twice, "nonsense"), (says_nonsense, "nonsense")],
)
def test_a_failed_policy_causes_a_fallback_and_nothing_else(rank: Rank, failure: str) -> None:
    setup = Setup(foreign(rank))
    entities = setup.awake(3)
    setup.now = MS
    setup.core_policy.arrange(0, setup.now)
    (fact,) = setup.record
    assert isinstance(fact, PolicyFellBack)
    assert fact.failure == failure
    assert setup.engine.counters.fallbacks == 1
    assert sorted(one or 0 for one in setup.served(3)) == entities  # by round robin
    assert list(setup.core_policy.arrange(0, setup.now)) == []  # not called again until the service is restored
    setup.engine.check_invariants()

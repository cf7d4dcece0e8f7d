"""Entities on the cores that they may use, whatever cores go and come back: none waits where it may not run, for good.

Each of these worlds was found by random events (`test_laws.py`), and made small.
"""

from __future__ import annotations

from collections.abc import Sequence

from rota.cores import CoresEngine, CpuIsolationLease, SchedulingContext
from rota.cores.events import (
    CallEntity,
    CoreOffline,
    CoreOnline,
    CoreTick,
    Decision,
    Event,
    Migrate,
    Reply,
    TimerDue,
    Wake,
)
from rota.cores.placement import MOVES_MAX
from tests.cores.harness import MS, EngineHarness


def cores_of(harness: EngineHarness, entities: Sequence[int]) -> set[int]:
    return {harness.engine.entity(one).core for one in entities}


def lease(engine: CoresEngine, core: int) -> Sequence[Decision]:
    """The group "owner" leases a core."""
    engine.admit(SchedulingContext(context_id=50, budget=10 * MS, period=100 * MS))
    wanted = CpuIsolationLease(
        lease_id=1, owner="owner", cores=(core,), accounting_target=50, revocation_latency_max=5 * MS
    )
    return engine.grant_lease(wanted)[1]


def test_what_waits_on_a_leased_core_that_goes_offline_goes_elsewhere() -> None:
    harness = EngineHarness(cores=3)
    harness.engine.add_group("owner")
    members = harness.spawn(4, group="owner", core_mask=0b110)
    harness.apply(lease(harness.engine, 2))
    harness.until(40 * MS)
    assert 2 in cores_of(harness, members)
    harness.send(CoreOffline(2))
    assert cores_of(harness, members) == {1}
    harness.send(CoreOnline(2))
    harness.until(80 * MS)
    assert 2 in cores_of(harness, members)


def test_who_waits_outside_its_mask_returns_although_another_core_came_back_first() -> None:
    harness = EngineHarness(cores=3)
    pinned = harness.spawn(3, core_mask=0b010)
    harness.send(CoreOffline(1))
    harness.send(CoreOffline(2))
    assert cores_of(harness, pinned) == {0}
    harness.send(CoreOnline(2))
    harness.until(20 * MS)
    assert cores_of(harness, pinned) == {0}  # it is allowed no more than core 0
    harness.send(CoreOnline(1))
    assert sum(harness.engine.entity(one).core == 1 for one in pinned) >= 2  # who runs leaves after its slice
    harness.until(40 * MS)
    assert cores_of(harness, pinned) == {1}


def test_one_that_returns_is_found_behind_many_that_cannot() -> None:
    engine = CoresEngine(cores=3)
    stuck = [engine.spawn(core_mask=0b010) for _ in range(3 * MOVES_MAX)]
    free = engine.spawn(core_mask=0b100)
    for one in (*stuck, free):
        engine.step(Wake(one), 0)
    events: list[Event] = [CoreOffline(1), CoreOffline(2), CoreOnline(2)]
    for event in events:
        decided = engine.step(event, MS)
        while engine.timers.next_at is not None and engine.timers.next_at <= MS:
            assert sum(isinstance(one, Migrate) for one in decided) <= MOVES_MAX
            decided = engine.step(TimerDue(), MS)
        engine.check_invariants()
    assert engine.entity(free).core == 2
    assert {engine.entity(one).core for one in stuck} == {0}


def test_one_that_answers_a_call_is_not_moved_by_its_own_share() -> None:
    """Its own share, which was outside its mask, is not in use: it has the caller's."""
    harness = EngineHarness(cores=2)
    (server,) = harness.spawn(1, core_mask=0b01)
    (caller,) = harness.spawn(1, core_mask=0b10)
    harness.send(CoreOffline(0))  # the server waits on core 1 now
    harness.until(10 * MS)
    while harness.engine.running(1) != server:
        harness.until(harness.now + MS)
    harness.block(server)
    while harness.engine.running(1) != caller:
        harness.until(harness.now + MS)
    harness.send(CallEntity(caller, server))
    (rival,) = harness.spawn(1, core_mask=0b10)
    while harness.engine.running(1) != rival:
        harness.until(harness.now + MS)
    decided = harness.send(CoreOnline(0))
    assert not [one for one in decided if isinstance(one, Migrate) and one.entity == server]
    harness.until(harness.now + 40 * MS)
    assert harness.engine.entity(server).state == "running"  # on core 0, by the caller's share


def test_a_lease_brings_no_caller_of_another_group() -> None:
    """A member that answers a call runs on the share of its caller, which has no right to the core."""
    harness = EngineHarness(cores=2)
    harness.engine.add_group("owner")
    (caller,) = harness.spawn(1, core_mask=0b01)
    harness.spawn(1)  # it keeps the other core busy
    (member,) = harness.spawn(1, group="owner", awake=False)
    harness.send(CallEntity(caller, member))
    (rival,) = harness.spawn(1, core_mask=0b01)
    while harness.engine.running(0) != rival:
        harness.until(harness.now + MS)
    harness.apply(harness.engine.set_mask(caller, 0))
    decided = harness.apply(lease(harness.engine, 1))
    assert not [one for one in decided if isinstance(one, Migrate) and one.entity == caller]
    assert harness.engine.entity(caller).core == 0


def test_members_that_wait_behind_a_running_one_leave_a_leased_core() -> None:
    harness = EngineHarness(cores=2)
    harness.engine.add_group("owner")
    harness.engine.add_group("others")
    harness.spawn(5, core_mask=0b01)
    members = harness.spawn(5, group="others", core_mask=0b10)
    for one in members:
        harness.apply(harness.engine.set_mask(one, 0))
    running = harness.engine.running(1)
    assert cores_of(harness, members) == {1}
    lease(harness.engine, 1)
    harness.engine.check_invariants()  # before the core has chosen again
    assert running in members
    assert cores_of(harness, [one for one in members if one != running]) == {0}
    harness.engine.step(CoreTick(1), harness.now)
    assert cores_of(harness, members) == {0}


def test_one_that_is_outside_its_mask_after_a_call_returns() -> None:
    """Its core went away while a server with another mask ran on its share: after the reply it goes on there."""
    harness = EngineHarness(cores=2)
    (caller,) = harness.spawn(1, core_mask=0b01)
    (server,) = harness.spawn(1, core_mask=0b10, awake=False)
    harness.send(CallEntity(caller, server))
    harness.until(harness.now + 10 * MS)
    assert harness.engine.running(1) == server
    harness.send(CoreOffline(0))
    harness.send(Reply(server))
    harness.spawn(2)
    while harness.engine.running(1) in (caller, server):
        harness.until(harness.now + MS)
    harness.send(CoreOnline(0))
    assert harness.engine.entity(caller).core == 0

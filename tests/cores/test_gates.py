"""The validation gates for contexts, leases and islands, one test per gate and under its name.

Detailed behaviour is tested in `test_contexts`, `test_leases` and `test_islands`. Here each gate is one short story, so
that a reader of the requirements finds it. `tests/service/test_core_grants.py` has the gates of the joined path.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from rota.cores import Capacity, CpuIsolationLease, Handle, IslandPlan, RealtimeIsland, SchedulingContext
from rota.cores.events import (
    CallEntity,
    CloseSession,
    CoreOffline,
    CoreTick,
    ExitGroup,
    IslandStateChanged,
    LateActivation,
    LeaseEnded,
    PostTimeout,
    ReleaseLease,
    Reply,
    Revoke,
    RevokeLease,
    Wake,
)
from rota.errors import ContextInvalid, ContextRefused, IslandRefused, StaleHandle
from tests.cores.harness import MS, EngineHarness


def leased(cores: int = 3, **options: Any) -> tuple[EngineHarness, Handle, Handle]:
    """An engine where the group "owner" leases the last core; the handles of its paying context and its lease."""
    harness = EngineHarness(cores=cores)
    harness.engine.add_group("owner")
    paying = harness.context(90, 100)
    fields: dict[str, Any] = {"lease_id": 1, "owner": "owner", "cores": (cores - 1,), "accounting_target": 1}
    wanted = CpuIsolationLease(**{**fields, "revocation_latency_max": 5 * MS, **options})
    handle, decisions = harness.engine.grant_lease(wanted)
    harness.apply(decisions)
    return harness, paying, handle


def island(harness: EngineHarness, *, start: bool = True, **options: Any) -> int:
    """An island of one critical context of 2 ms in 10, and an entity bound to it."""
    spec = harness.spec(2, 10, criticality="critical", core_mask=1)
    noun = RealtimeIsland(island_id=1, name="voice", contexts=(spec.context_id,), **options)
    handles, decisions = harness.engine.admit_island(IslandPlan(island=noun, contexts=(spec,)))
    harness.apply(decisions)
    worker = harness.one(awake=False)
    harness.bind(handles[spec.context_id], worker)
    if start:
        harness.apply(harness.engine.start_island(1))
    return worker


# --- contexts ------------------------------------------------------------------------------------


def test_context_admission_rejection() -> None:
    harness = EngineHarness(cores=1)
    with pytest.raises(ContextRefused, match="990,000 needed, 950,000 available"):
        harness.context(9.9, 10, criticality="high", core_mask=1)


def test_context_budget_depletion() -> None:
    harness = EngineHarness()
    worker = harness.one(awake=False)
    harness.bind(harness.context(2, 10), worker)
    harness.send(Wake(worker))
    harness.until(9 * MS)
    assert (harness.runtime(worker), harness.engine.context(1).state) == (2 * MS, "depleted")


def test_context_replenishment() -> None:
    harness = EngineHarness()
    worker = harness.one(awake=False)
    harness.bind(harness.context(2, 10), worker)
    harness.send(Wake(worker))
    harness.until(100 * MS)
    assert harness.runtime(worker) == 20 * MS


def test_context_donation_and_return() -> None:
    harness = EngineHarness()
    caller, server = harness.one(awake=False), harness.one(awake=False)
    harness.bind(harness.context(50, 100), caller)
    harness.send(Wake(caller))
    harness.send(CallEntity(caller, server))
    harness.until(2 * MS)
    assert harness.engine.running(0) == server
    harness.send(Reply(server))
    assert harness.engine.running(0) == caller
    assert harness.engine.entity(server).paying is None
    harness.block(caller)
    assert harness.engine.context(1).remaining == 48 * MS  # the caller paid for the server's work


def test_context_timeout_notification() -> None:
    harness = EngineHarness()
    worker = harness.one(awake=False)
    harness.bind(harness.context(2, 10, timeout_endpoint=7), worker)
    harness.send(Wake(worker))
    harness.until(5 * MS)
    assert harness.decided(PostTimeout) == [PostTimeout(7, 1, worker, 1)]


def test_stale_handles_after_revocation() -> None:
    harness, paying, lease = leased()
    harness.send(Revoke(paying))
    for event in (Revoke(paying), ReleaseLease(lease), RevokeLease(lease)):
        with pytest.raises(StaleHandle):
            harness.send(event)
    with pytest.raises(StaleHandle):
        harness.engine.bind(paying, harness.one())


# --- leases --------------------------------------------------------------------------------------


def test_lease_revocation() -> None:
    harness, _, lease = leased()
    harness.send(RevokeLease(lease))
    harness.until(5 * MS)
    assert harness.decided(LeaseEnded) == [LeaseEnded(1, (2,))]


def test_lease_owner_exits() -> None:
    harness, _, _ = leased()
    harness.spawn(2, group="owner")
    harness.send(ExitGroup("owner"))
    assert harness.decided(LeaseEnded) == [LeaseEnded(1, (2,))]


def test_lease_session_closes() -> None:
    harness, _, _ = leased()
    harness.send(CloseSession("owner"))
    assert harness.decided(LeaseEnded) == [LeaseEnded(1, (2,))]


def test_lease_accounting_target_is_revoked() -> None:
    """A lease that no context pays for would be a core for free."""
    harness, paying, _ = leased()
    harness.send(Revoke(paying))
    assert harness.decided(LeaseEnded) == [LeaseEnded(1, (2,))]


def test_lease_housekeeping_fallback() -> None:
    harness, _, _ = leased(cores=2)
    worker = harness.one()
    harness.send(CoreOffline(0))
    assert harness.decided(LeaseEnded) == [LeaseEnded(1, (1,))]
    harness.until(3 * MS)
    assert harness.running() == [None, worker]


# --- islands -------------------------------------------------------------------------------------


def test_island_preallocation_and_no_allocation_on_admitted_paths() -> None:
    harness = EngineHarness(capacity=Capacity(memory_bytes=100))
    worker = island(harness, memory_bytes=100)
    engine = harness.engine

    def activate(count: int) -> None:
        for _ in range(count):
            harness.apply(engine.step(Wake(worker), harness.now))
            harness.now += MS
            harness.block(worker)
            harness.now += 9 * MS
            harness.log.clear()

    activate(200)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    activate(500)
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    inside = [one for one in after.compare_to(before, "filename") if "/rota/cores/" in one.traceback[0].filename]
    assert sum(one.size_diff for one in inside) < 2_000  # some integers grew, and no container


def test_island_deadline_miss_telemetry() -> None:
    harness = EngineHarness()
    worker = island(harness)
    harness.engine.step(Wake(worker), 0)
    harness.now = 11 * MS  # the driver was late: the deadline of 10 ms has passed
    harness.engine.step(CoreTick(0), harness.now)
    harness.now = 12 * MS
    harness.block(worker)
    assert harness.decided(LateActivation) == [LateActivation(worker, 1, 2 * MS)]
    assert harness.engine.misses(1) == [(12 * MS, 2 * MS)]


def test_island_fail_closed_overrun() -> None:
    harness = EngineHarness()
    worker = island(harness)
    harness.send(Wake(worker))
    harness.until(50 * MS)
    assert [one.state for one in harness.decided(IslandStateChanged)] == ["overrun", "stopped"]
    assert harness.runtime(worker) == 2 * MS


def test_island_overrun_is_seen_when_the_activation_blocks_before_the_tick() -> None:
    """The driver's tick comes too late: the activation used 3 of its 2 ms and has blocked already."""
    harness = EngineHarness()
    worker = island(harness)
    harness.send(Wake(worker))
    harness.now = 3 * MS
    harness.block(worker)
    harness.until(4 * MS)
    assert harness.engine.island(1).state == "stopped"


def test_island_activation_that_uses_exactly_its_budget_is_no_overrun() -> None:
    harness = EngineHarness()
    worker = island(harness)
    harness.send(Wake(worker))
    harness.now = 2 * MS
    harness.block(worker)
    harness.until(4 * MS)
    assert harness.engine.island(1).state == "running"


@pytest.mark.parametrize("overrun", ["stop", "degrade"])
@pytest.mark.parametrize("by", ["entity", "group"])
def test_island_that_was_never_started_does_not_run(overrun: str, by: str) -> None:
    harness = EngineHarness()
    bystander = harness.one()
    spec = harness.spec(2, 10, criticality="critical", core_mask=1)
    noun = RealtimeIsland(island_id=1, name="voice", contexts=(1,), overrun=overrun)  # type: ignore[arg-type]
    handles, decisions = harness.engine.admit_island(IslandPlan(island=noun, contexts=(spec,)))
    harness.apply(decisions)
    harness.engine.add_group("voice")
    worker = harness.one(awake=False, group="voice" if by == "group" else None)
    if by == "group":
        harness.apply(harness.engine.bind_group(handles[1], "voice"))
    else:
        harness.bind(handles[1], worker)
    harness.send(Wake(worker))
    harness.until(30 * MS)
    assert (harness.runtime(worker), harness.runtime(bystander)) == (0, 30 * MS)
    harness.apply(harness.engine.start_island(1))
    harness.until(31 * MS)
    assert harness.runtime(worker) == 1 * MS


def test_island_that_failed_stops_the_members_of_its_group_too() -> None:
    harness = EngineHarness()
    spec = harness.spec(2, 10, criticality="critical", core_mask=1)
    noun = RealtimeIsland(island_id=1, name="voice", contexts=(1,))
    handles, decisions = harness.engine.admit_island(IslandPlan(island=noun, contexts=(spec,)))
    harness.apply(decisions)
    harness.engine.add_group("voice")
    worker = harness.one(awake=False, group="voice")
    harness.apply(harness.engine.bind_group(handles[1], "voice"))
    harness.apply(harness.engine.start_island(1))
    harness.send(Wake(worker))
    harness.until(50 * MS)
    assert (harness.engine.island(1).state, harness.runtime(worker)) == ("stopped", 2 * MS)


# --- the door ------------------------------------------------------------------------------------

INVALID: dict[str, tuple[type, dict[str, Any], str]] = {
    "negative memory": (RealtimeIsland, {"memory_bytes": -1}, "RealtimeIsland.memory_bytes must lie from 0"),
    "negative slots": (RealtimeIsland, {"slots": -1}, "RealtimeIsland.slots must lie from 0"),
    "negative tokens": (RealtimeIsland, {"tokens": -5}, "RealtimeIsland.tokens must lie from 0"),
    "repeated contexts": (RealtimeIsland, {"contexts": (1, 1)}, "RealtimeIsland.contexts names 1 twice"),
    "repeated devices": (RealtimeIsland, {"devices": ("a", "a")}, "RealtimeIsland.devices names 'a' twice"),
    "unknown shutdown": (RealtimeIsland, {"shutdown": "now"}, "RealtimeIsland.shutdown must be one of"),
    "mask -1": (SchedulingContext, {"core_mask": -1}, "SchedulingContext.core_mask must lie from 0"),
    "unknown band": (SchedulingContext, {"criticality": "huge"}, "SchedulingContext.criticality must be one of"),
    "unknown overrun": (SchedulingContext, {"overrun": "explode"}, "SchedulingContext.overrun must be one of"),
    "negative endpoint": (SchedulingContext, {"timeout_endpoint": -1}, "SchedulingContext.timeout_endpoint must lie"),
    "repeated cores": (CpuIsolationLease, {"cores": (1, 1)}, "CpuIsolationLease.cores names 1 twice"),
    "negative core": (CpuIsolationLease, {"cores": (-1,)}, "CpuIsolationLease.cores must lie from 0"),
    "housekeeping -1": (CpuIsolationLease, {"housekeeping": (-1,)}, "CpuIsolationLease.cores must lie from 0"),
    "repeated consumers": (CpuIsolationLease, {"consumers": (4, 4)}, "CpuIsolationLease.consumers names 4 twice"),
    "unknown mode": (CpuIsolationLease, {"mode": "mine"}, "CpuIsolationLease.mode must be one of"),
    "negative capacity": (Capacity, {"memory_bytes": -1}, "Capacity.memory_bytes must lie from 0"),
}
REQUIRED: dict[type, dict[str, Any]] = {
    RealtimeIsland: {"island_id": 1, "name": "voice"},
    SchedulingContext: {"context_id": 1, "budget": 1, "period": 10},
    CpuIsolationLease: {"lease_id": 1, "owner": "owner", "cores": (1,)},
    Capacity: {},
}


@pytest.mark.parametrize("case", INVALID)
def test_every_field_is_validated_at_the_door(case: str) -> None:
    noun, fields, sentence = INVALID[case]
    with pytest.raises(ContextInvalid) as refused:
        noun(**{**REQUIRED[noun], **fields})
    assert refused.value.message.startswith(sentence)


def test_an_island_names_only_contexts_and_leases_of_its_plan() -> None:
    spec = SchedulingContext(context_id=1, budget=1, period=10, criticality="high", core_mask=1)
    with pytest.raises(ContextInvalid, match="has no context 9, which the island names"):
        IslandPlan(island=RealtimeIsland(island_id=1, name="voice", contexts=(1, 9)), contexts=(spec,))
    with pytest.raises(ContextInvalid, match="has no lease 3, which the island names"):
        IslandPlan(island=RealtimeIsland(island_id=1, name="voice", contexts=(1,), leases=(3,)), contexts=(spec,))
    with pytest.raises(ContextInvalid, match="at least one"):
        IslandPlan(island=RealtimeIsland(island_id=1, name="voice"), contexts=())


def test_a_limit_names_only_existing_cores() -> None:
    harness = EngineHarness(cores=2)
    with pytest.raises(ContextInvalid, match="names a core beyond the last one, 1"):
        harness.context(1, 10, core_mask=0b100)


def test_an_island_does_not_reserve_memory_that_another_returned_as_a_negative_amount() -> None:
    harness = EngineHarness(capacity=Capacity(memory_bytes=100))
    with pytest.raises(IslandRefused, match="memory in bytes: 101 needed, 100 available"):
        island(harness, memory_bytes=101)

"""Realtime islands: admitted or refused as a whole, misses reported, failing closed, sized at admission."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from rota.cores import Capacity, CoresEngine, CpuIsolationLease, Handle, IslandPlan, RealtimeIsland, SchedulingContext
from rota.cores.events import (
    Block,
    CallEntity,
    CoreOffline,
    CoreOnline,
    CoreTick,
    IslandStateChanged,
    LateActivation,
    LeaseEnded,
    Revoke,
    StopIsland,
    Wake,
)
from rota.cores.islands import MISSES_KEPT
from rota.errors import (
    ContextExists,
    ContextUnknown,
    Forbidden,
    IslandIllegalTransition,
    IslandRefused,
    IslandUnknown,
    StaleHandle,
)
from rota.sim.build import build_simulation
from rota.sim.scenario import parse_scenario
from tests.cores.harness import MS, EngineHarness

CAPACITY = Capacity(memory_bytes=1000, slots=4, tokens=500, devices=frozenset(("microphone", "speaker")))


def a_stage(cores: int = 2) -> EngineHarness:
    return EngineHarness(cores=cores, capacity=CAPACITY)


def context(number: int, budget_ms: float, period_ms: float, core: int = 0, **options: Any) -> SchedulingContext:
    fields: dict[str, Any] = {"criticality": "critical", "core_mask": 1 << core}
    return SchedulingContext(
        context_id=number, budget=int(budget_ms * MS), period=int(period_ms * MS), **{**fields, **options}
    )


def plan(*contexts: SchedulingContext, leases: tuple[CpuIsolationLease, ...] = (), **options: Any) -> IslandPlan:
    fields: dict[str, Any] = {"island_id": 1, "name": "voice"}
    island = RealtimeIsland(contexts=tuple(one.context_id for one in contexts), **{**fields, **options})
    return IslandPlan(island=island, contexts=contexts, leases=leases)


def admitted(harness: EngineHarness, proposed: IslandPlan) -> dict[int, Handle]:
    handles, decisions = harness.engine.admit_island(proposed)
    harness.apply(decisions)
    harness.apply(harness.engine.start_island(proposed.island.island_id))
    return handles


def missing(harness: EngineHarness, proposed: IslandPlan) -> list[str]:
    with pytest.raises(IslandRefused) as refused:
        harness.engine.admit_island(proposed)
    found = refused.value.data["missing"]
    assert isinstance(found, list)
    return found


# --- admission -----------------------------------------------------------------------------------


def test_an_island_that_fits_is_admitted_with_its_evidence() -> None:
    harness = a_stage()
    proposed = plan(context(1, 3, 10), context(2, 2, 20), memory_bytes=600, slots=2, tokens=100, devices=("speaker",))
    handles = admitted(harness, proposed)
    assert set(handles) == {1, 2}
    island = harness.engine.island(1)
    assert island.state == "running"
    assert island.evidence["core 0 utilisation ppm"] == 400_000
    assert island.evidence["core 0 utilisation limit ppm"] == 950_000
    assert island.evidence["memory asked"] == 600
    assert island.evidence["memory free"] == 1000


def test_a_refusal_gives_every_shortage_in_numbers() -> None:
    harness = a_stage()
    proposed = plan(
        context(1, 8, 10),
        context(2, 3, 10),
        memory_bytes=2000,
        slots=9,
        tokens=501,
        devices=("microphone", "camera"),
    )
    assert missing(harness, proposed) == [
        "memory in bytes: 2,000 needed, 1,000 available",
        "slots: 9 needed, 4 available",
        "tokens: 501 needed, 500 available",
        "device camera: 1 needed, 0 available",
        "utilisation of core 0 in ppm: 1,100,000 needed, 950,000 available",
    ]
    island = harness.engine.island(1)
    assert island.state == "refused"
    assert island.evidence["core 0 utilisation ppm"] == 1_100_000


def test_a_refusal_leaves_nothing_of_the_island_behind() -> None:
    harness = a_stage()
    missing(harness, plan(context(1, 5, 10), context(2, 5, 10)))
    with pytest.raises(ContextUnknown):
        harness.engine.context(1)
    admitted(harness, plan(context(1, 9, 10)))  # all of the core is still free


def test_deadlines_that_cannot_be_met_together_are_refused() -> None:
    harness = a_stage()
    tight = plan(context(1, 3, 20, relative_deadline=4 * MS), context(2, 3, 20, relative_deadline=5 * MS))
    assert missing(harness, tight) == [
        "time of core 0 for critical deadlines in ns: 6,000,000 needed, 5,000,000 available"
    ]
    admitted(harness, plan(context(1, 3, 20, relative_deadline=4 * MS), context(2, 3, 20, relative_deadline=6 * MS)))


def test_a_resource_of_an_island_is_unavailable_until_it_stops() -> None:
    harness = a_stage()
    admitted(harness, plan(context(1, 1, 10), memory_bytes=700, devices=("speaker",)))
    second = plan(context(2, 1, 10), island_id=2, name="second", memory_bytes=400, devices=("speaker",))
    assert missing(harness, second) == [
        "memory in bytes: 400 needed, 300 available",
        "device speaker: 1 needed, 0 available",
    ]
    harness.send(StopIsland(1))
    admitted(harness, second)


def test_two_islands_never_share_an_endpoint() -> None:
    harness = a_stage()
    admitted(harness, plan(context(1, 1, 10, timeout_endpoint=7), endpoints=(8,)))
    assert missing(harness, plan(context(2, 1, 10, timeout_endpoint=8), island_id=2, endpoints=(7, 9))) == [
        "endpoint 7, used by another island: 1 needed, 0 available",
        "endpoint 8, used by another island: 1 needed, 0 available",
    ]
    harness.send(StopIsland(1))
    admitted(harness, plan(context(2, 1, 10, timeout_endpoint=8), island_id=2, endpoints=(7, 9)))


def test_the_contexts_of_an_island_must_be_reservations() -> None:
    harness = a_stage()
    assert missing(harness, plan(context(1, 1, 10, criticality="normal"))) == [
        "band of context 1: high or critical: 1 needed, 0 available"
    ]


def test_an_island_with_conflicting_leases_is_refused_as_a_whole() -> None:
    """Each lease alone would be granted; together they leave no core, and nothing of the island remains."""
    harness = a_stage(cores=2)
    harness.engine.add_group("owner")
    harness.context(10, 100)  # context 1, which pays
    leases = tuple(
        CpuIsolationLease(
            lease_id=core, owner="owner", cores=(core,), accounting_target=1, revocation_latency_max=5 * MS
        )
        for core in (0, 1)
    )
    (reason,) = missing(harness, plan(context(5, 1, 10), leases=leases))
    assert "no core would be left for other entities" in reason
    with pytest.raises(ContextUnknown):
        harness.engine.context(5)
    workers = harness.spawn(2)
    harness.until(5 * MS)
    assert sorted(one for one in harness.running() if one) == workers


@pytest.mark.parametrize(
    ("pinned", "housekeeping", "reason"),
    [(0b110, (), "entity 1 can only run there"), (0, (2,), "housekeeping cores 2 would not be left")],
)
def test_an_island_whose_leases_together_take_what_must_stay_is_refused_as_a_whole(
    pinned: int, housekeeping: tuple[int, ...], reason: str
) -> None:
    """Cores 1 and 2 are all that an entity may use, or one lease keeps the core of the other for housekeeping."""
    harness = a_stage(cores=4)
    harness.engine.add_group("owner")
    harness.one(core_mask=pinned)
    leases = tuple(
        CpuIsolationLease(
            lease_id=core,
            owner="owner",
            cores=(core,),
            accounting_target=core,
            revocation_latency_max=5 * MS,
            housekeeping=housekeeping if core == 1 else (),
        )
        for core in (1, 2)
    )
    assert missing(harness, plan(context(1, 1, 10, core=1), context(2, 1, 10, core=2), leases=leases)) == [reason]
    with pytest.raises(ContextUnknown):
        harness.engine.context(1)


def test_an_island_grants_and_ends_its_leases() -> None:
    harness = a_stage(cores=2)
    harness.engine.add_group("owner")
    harness.context(10, 100)
    wanted = CpuIsolationLease(
        lease_id=1, owner="owner", cores=(1,), accounting_target=1, revocation_latency_max=5 * MS
    )
    admitted(harness, plan(context(5, 1, 10), leases=(wanted,), shutdown="immediate"))
    harness.send(StopIsland(1))
    assert harness.decided(LeaseEnded) == [LeaseEnded(1, (1,))]


def test_an_island_is_admitted_once_and_known_by_its_number() -> None:
    harness = a_stage()
    admitted(harness, plan(context(1, 1, 10)))
    with pytest.raises(ContextExists, match="island 1"):
        harness.engine.admit_island(plan(context(2, 1, 10)))
    with pytest.raises(IslandUnknown, match="island 7 does not exist"):
        harness.engine.island(7)
    with pytest.raises(IslandIllegalTransition, match="is running and cannot start"):
        harness.engine.start_island(1)


def test_a_handle_of_an_island_can_bind_and_nothing_more() -> None:
    harness = a_stage()
    handles = admitted(harness, plan(context(1, 1, 10)))
    harness.bind(handles[1], harness.one(awake=False))
    with pytest.raises(Forbidden):
        harness.send(Revoke(handles[1]))
    with pytest.raises(Forbidden):
        harness.engine.adjust(handles[1], budget=2 * MS, period=10 * MS)


# --- running -------------------------------------------------------------------------------------


AUDIO = """
cores = 1
duration_ms = 2000
[[context]]
name = "mix"
budget_us = 3000
period_us = 10000
deadline_us = 4000
criticality = "critical"
cores = [0]
[[island]]
name = "audio"
contexts = ["mix"]
[[thread]]
name = "mixer"
kind = "periodic"
context = "mix"
work_us = 3000
every_us = 10000
[[thread]]
name = "crowd"
kind = "hog"
count = 8
weight = 100
"""


def test_no_activation_is_late_and_none_overruns_while_the_assumptions_hold() -> None:
    """Each activation uses exactly its budget, beside many hogs."""
    simulation = build_simulation(parse_scenario(AUDIO))
    simulation.check = CoresEngine.check_invariants
    simulation.run(2_000 * MS)
    mixer = next(thread for thread in simulation.threads.values() if thread.name == "mixer")
    assert len(mixer.responses) == 200
    assert max(mixer.responses) <= 4 * MS
    assert simulation.engine.misses(1) == []
    assert simulation.engine.island(1).state == "running"
    assert simulation.decisions["IslandMoved"] == 0


def test_one_activation_of_a_microsecond_too_much_is_an_overrun() -> None:
    simulation = build_simulation(parse_scenario(AUDIO.replace("work_us = 3000", "work_us = 3001")))
    simulation.run(2_000 * MS)
    assert simulation.engine.island(1).state == "stopped"
    assert simulation.decisions["IslandMoved"] == 2


def late_activation(engine: CoresEngine, worker: int, now: int) -> int:
    """The driver sends the wake 4 ms late; the activation then works for 2 ms. Return when it ended."""
    engine.step(Wake(worker), now)
    engine.step(CoreTick(0), now + 4 * MS)
    engine.step(Block(worker), now + 6 * MS)
    return now + 6 * MS


def test_a_missed_deadline_is_reported_and_kept() -> None:
    harness = a_stage(cores=1)
    handles = admitted(harness, plan(context(1, 3, 50, relative_deadline=5 * MS)))
    worker = harness.engine.spawn()
    harness.engine.bind(handles[1], worker)
    harness.engine.step(Wake(worker), 0)
    harness.engine.step(CoreTick(0), 4 * MS)
    assert harness.engine.step(Block(worker), 6 * MS)[0] == LateActivation(worker, 1, 1 * MS)
    assert harness.engine.misses(1) == [(6 * MS, 1 * MS)]
    assert harness.engine.counters.misses == 1


def test_the_latest_misses_are_kept_and_the_rest_is_counted() -> None:
    harness = a_stage(cores=1)
    handles = admitted(harness, plan(context(1, 3, 50, relative_deadline=5 * MS)))
    worker, now = harness.engine.spawn(), 0
    harness.engine.bind(handles[1], worker)
    for _ in range(MISSES_KEPT + 36):
        now = late_activation(harness.engine, worker, now + 50 * MS)
    assert len(harness.engine.misses(1)) == MISSES_KEPT
    assert harness.engine.counters.misses == MISSES_KEPT + 36
    instants = [at for at, _ in harness.engine.misses(1)]
    assert instants == sorted(instants)
    assert instants[-1] == now


# --- failing closed ------------------------------------------------------------------------------


def test_an_overrun_stops_all_of_the_island() -> None:
    harness = a_stage()
    handles = admitted(harness, plan(context(1, 2, 10), context(2, 2, 10)))
    broken, sound = harness.spawn(2, awake=False)
    harness.bind(handles[1], broken)
    harness.bind(handles[2], sound)
    bystander = harness.one()
    harness.send(Wake(broken))
    harness.until(5 * MS)  # it continues after its two milliseconds
    moved = harness.decided(IslandStateChanged)
    assert [one.state for one in moved] == ["overrun", "stopped"]
    assert moved[0].reason == "context 1 used more than its budget"
    assert harness.engine.island(1).state == "stopped"
    harness.send(Wake(sound))
    harness.until(100 * MS)
    assert harness.runtime(broken) == 2 * MS
    assert harness.runtime(sound) == 0
    assert harness.runtime(bystander) > 95 * MS
    with pytest.raises(StaleHandle):
        harness.engine.bind(handles[2], sound)


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("how", ["start", "stop", "revoke"])
def test_who_waits_for_an_island_to_start_waits_no_longer_than_that(how: str, answers: bool) -> None:
    """Also if it answers a call meanwhile: then it is the share of its caller that waits."""
    harness = EngineHarness()
    island = RealtimeIsland(island_id=1, name="i", contexts=(1,), overrun="degrade", shutdown="immediate")
    plan = IslandPlan(island=island, contexts=(harness.spec(1, 10, criticality="high", core_mask=1),))
    handles, decided = harness.engine.admit_island(plan)
    harness.apply(decided)
    bound = harness.one(awake=False)
    if answers:
        harness.send(CallEntity(harness.one(), bound))
    harness.bind(handles[1], bound)
    if not answers:
        harness.send(Wake(bound))
    harness.until(100 * MS)
    assert harness.runtime(bound) == 0
    if how == "start":
        harness.apply(harness.engine.start_island(1))
    else:
        harness.send(StopIsland(1) if how == "stop" else Revoke(harness.engine._contexts.get(1).handle))
    harness.until(200 * MS)
    assert harness.runtime(bound) >= (9 * MS if how == "start" and not answers else 99 * MS)


def test_a_degraded_island_continues_without_reservations() -> None:
    harness = a_stage(cores=1)
    handles = admitted(harness, plan(context(1, 2, 10), overrun="degrade"))
    worker = harness.one(awake=False)
    harness.bind(handles[1], worker)
    rival = harness.one()
    harness.send(Wake(worker))
    harness.until(102 * MS)
    assert harness.engine.island(1).state == "stopped"
    assert abs(harness.runtime(worker) - harness.runtime(rival)) <= 6 * MS


def test_an_island_with_a_reservation_on_an_offline_core_stops() -> None:
    harness = a_stage()
    admitted(harness, plan(context(1, 2, 10, core=1)))
    harness.send(CoreOffline(1))
    assert harness.engine.island(1).state == "stopped"
    assert harness.decided(IslandStateChanged)[0].reason == "a core it was promised time on is gone"


def test_a_core_whose_island_was_running_when_it_went_offline_is_used_again() -> None:
    """The island's entity gets another payer there, which requests a reschedule that no tick of the core answers."""
    harness = a_stage()
    handles = admitted(harness, plan(context(1, 2, 10, core=1), overrun="degrade"))
    worker = harness.one(core_mask=0b10, awake=False)
    harness.apply(harness.engine.bind(handles[1], worker))
    harness.send(Wake(worker))
    harness.send(CoreOffline(1))
    harness.send(CoreOnline(1))
    harness.until(10 * MS)
    assert harness.running()[1] == worker


# --- shutting down -------------------------------------------------------------------------------


def test_drain_lets_an_activation_in_progress_finish() -> None:
    harness = a_stage()
    handles = admitted(harness, plan(context(1, 5, 10), context(2, 1, 10), shutdown="drain"))
    worker, idle = harness.spawn(2, awake=False)
    harness.bind(handles[1], worker)
    harness.bind(handles[2], idle)
    harness.send(Wake(worker))
    harness.until(1 * MS)
    harness.send(StopIsland(1))
    assert harness.engine.entity(worker).paying == 1
    with pytest.raises(ContextUnknown):
        harness.engine.context(2)  # no entity was active on it
    harness.until(3 * MS)
    harness.block(worker)
    harness.until(4 * MS)
    with pytest.raises(ContextUnknown):
        harness.engine.context(1)
    harness.send(Wake(worker))
    harness.until(20 * MS)
    assert harness.runtime(worker) == 3 * MS


def test_immediate_shutdown_revokes_every_context() -> None:
    harness = a_stage()
    handles = admitted(harness, plan(context(1, 5, 10), shutdown="immediate"))
    worker = harness.one(awake=False)
    harness.bind(handles[1], worker)
    harness.send(Wake(worker))
    harness.until(1 * MS)
    harness.send(StopIsland(1))
    harness.until(20 * MS)
    assert harness.runtime(worker) == 1 * MS


# --- sized at admission --------------------------------------------------------------------------


def test_an_island_that_runs_takes_no_more_memory_than_when_it_began() -> None:
    harness = a_stage(cores=1)
    engine = harness.engine
    handles = admitted(harness, plan(context(1, 2, 10)))
    worker = engine.spawn()
    engine.bind(handles[1], worker)

    def activate(count: int) -> None:
        for _ in range(count):
            for decision in engine.step(Wake(worker), harness.now):
                del decision
                engine.step(CoreTick(0), harness.now)
            harness.now += 1 * MS
            engine.step(Block(worker), harness.now)
            harness.now += 9 * MS

    activate(2_000)  # every container has its final size by now
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    activate(5_000)
    gc.collect()
    grown = [
        one
        for one in tracemalloc.take_snapshot().compare_to(before, "filename")
        if "/rota/cores/" in one.traceback[0].filename or "/rota/policy/" in one.traceback[0].filename
    ]
    tracemalloc.stop()
    assert sum(one.size_diff for one in grown) < 2_000  # some integers grew, and no container
    assert engine.counters.misses == 0

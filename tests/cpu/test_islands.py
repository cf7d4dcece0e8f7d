"""Realtime islands: admitted whole or refused whole, misses told, failing closed, sized at admission."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from rota.cores import Capacity, CpuIsolationLease, Handle, IslandPlan, Machine, RealtimeIsland, SchedulingContext
from rota.cores.events import (
    Block,
    CoreOffline,
    DeadlineMissed,
    IslandMoved,
    LeaseEnded,
    Revoke,
    StopIsland,
    Tick,
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
from rota.sim.build import build
from rota.sim.scenario import parse
from tests.cpu.stage import MS, Stage

CAPACITY = Capacity(memory_bytes=1000, slots=4, tokens=500, devices=frozenset(("microphone", "speaker")))


def a_stage(cores: int = 2) -> Stage:
    return Stage(cores=cores, capacity=CAPACITY)


def context(number: int, budget_ms: float, period_ms: float, core: int = 0, **options: Any) -> SchedulingContext:
    fields: dict[str, Any] = {"criticality": "critical", "core_mask": 1 << core}
    return SchedulingContext(
        context_id=number, budget=int(budget_ms * MS), period=int(period_ms * MS), **{**fields, **options}
    )


def plan(*contexts: SchedulingContext, leases: tuple[CpuIsolationLease, ...] = (), **options: Any) -> IslandPlan:
    fields: dict[str, Any] = {"island_id": 1, "name": "voice"}
    island = RealtimeIsland(contexts=tuple(one.context_id for one in contexts), **{**fields, **options})
    return IslandPlan(island=island, contexts=contexts, leases=leases)


def admitted(stage: Stage, proposed: IslandPlan) -> dict[int, Handle]:
    handles, decisions = stage.machine.admit_island(proposed)
    stage.obey(decisions)
    stage.machine.start_island(proposed.island.island_id)
    return handles


def missing(stage: Stage, proposed: IslandPlan) -> list[str]:
    with pytest.raises(IslandRefused) as refused:
        stage.machine.admit_island(proposed)
    found = refused.value.data["missing"]
    assert isinstance(found, list)
    return found


# --- admission -----------------------------------------------------------------------------------


def test_an_island_that_fits_is_admitted_with_its_evidence() -> None:
    stage = a_stage()
    proposed = plan(context(1, 3, 10), context(2, 2, 20), memory_bytes=600, slots=2, tokens=100, devices=("speaker",))
    handles = admitted(stage, proposed)
    assert set(handles) == {1, 2}
    island = stage.machine.island(1)
    assert island.state == "running"
    assert island.evidence["core 0 utilisation ppm"] == 400_000
    assert island.evidence["core 0 utilisation limit ppm"] == 950_000
    assert island.evidence["memory asked"] == 600
    assert island.evidence["memory free"] == 1000


def test_a_refusal_gives_every_shortfall_in_numbers() -> None:
    stage = a_stage()
    proposed = plan(
        context(1, 8, 10),
        context(2, 3, 10),
        memory_bytes=2000,
        slots=9,
        tokens=501,
        devices=("microphone", "camera"),
    )
    assert missing(stage, proposed) == [
        "memory in bytes: 2,000 needed, 1,000 available",
        "slots: 9 needed, 4 available",
        "tokens: 501 needed, 500 available",
        "device camera: 1 needed, 0 available",
        "utilisation of core 0 in ppm: 1,100,000 needed, 950,000 available",
    ]
    island = stage.machine.island(1)
    assert island.state == "refused"
    assert island.evidence["core 0 utilisation ppm"] == 1_100_000


def test_a_refusal_leaves_nothing_of_the_island_behind() -> None:
    stage = a_stage()
    missing(stage, plan(context(1, 5, 10), context(2, 5, 10)))
    with pytest.raises(ContextUnknown):
        stage.machine.context(1)
    admitted(stage, plan(context(1, 9, 10)))  # all of the core is still free


def test_deadlines_that_cannot_be_met_together_are_refused() -> None:
    stage = a_stage()
    tight = plan(context(1, 3, 20, relative_deadline=4 * MS), context(2, 3, 20, relative_deadline=5 * MS))
    assert missing(stage, tight) == [
        "time of core 0 for critical deadlines in ns: 6,000,000 needed, 5,000,000 available"
    ]
    admitted(stage, plan(context(1, 3, 20, relative_deadline=4 * MS), context(2, 3, 20, relative_deadline=6 * MS)))


def test_what_one_island_holds_another_cannot_have_until_it_stops() -> None:
    stage = a_stage()
    admitted(stage, plan(context(1, 1, 10), memory_bytes=700, devices=("speaker",)))
    second = plan(context(2, 1, 10), island_id=2, name="second", memory_bytes=400, devices=("speaker",))
    assert missing(stage, second) == [
        "memory in bytes: 400 needed, 300 available",
        "device speaker: 1 needed, 0 available",
    ]
    stage.tell(StopIsland(1))
    admitted(stage, second)


def test_notices_of_two_islands_never_come_to_the_same_endpoint() -> None:
    stage = a_stage()
    admitted(stage, plan(context(1, 1, 10, timeout_endpoint=7), endpoints=(8,)))
    assert missing(stage, plan(context(2, 1, 10, timeout_endpoint=8), island_id=2, endpoints=(7, 9))) == [
        "endpoint 7, which another island has: 1 needed, 0 available",
        "endpoint 8, which another island has: 1 needed, 0 available",
    ]
    stage.tell(StopIsland(1))
    admitted(stage, plan(context(2, 1, 10, timeout_endpoint=8), island_id=2, endpoints=(7, 9)))


def test_the_contexts_of_an_island_are_promises() -> None:
    stage = a_stage()
    assert missing(stage, plan(context(1, 1, 10, criticality="normal"))) == [
        "band of context 1: high or critical: 1 needed, 0 available"
    ]


def test_an_island_whose_leases_stand_in_each_others_way_is_rolled_back() -> None:
    """Each lease alone would be granted; together they leave nothing, and nothing of the island stays."""
    stage = a_stage(cores=2)
    stage.machine.add_group("owner")
    stage.context(10, 100)  # number 1, to pay
    leases = tuple(
        CpuIsolationLease(
            lease_id=core, owner="owner", cores=(core,), accounting_target=1, revocation_latency_max=5 * MS
        )
        for core in (0, 1)
    )
    (reason,) = missing(stage, plan(context(5, 1, 10), leases=leases))
    assert "no core would be left for everybody else" in reason
    with pytest.raises(ContextUnknown):
        stage.machine.context(5)
    workers = stage.spawn(2)
    stage.until(5 * MS)
    assert sorted(one for one in stage.running() if one) == workers


def test_an_island_takes_its_leases_along() -> None:
    stage = a_stage(cores=2)
    stage.machine.add_group("owner")
    stage.context(10, 100)
    wanted = CpuIsolationLease(
        lease_id=1, owner="owner", cores=(1,), accounting_target=1, revocation_latency_max=5 * MS
    )
    admitted(stage, plan(context(5, 1, 10), leases=(wanted,), shutdown="immediate"))
    stage.tell(StopIsland(1))
    assert stage.said(LeaseEnded) == [LeaseEnded(1, (1,))]


def test_an_island_is_admitted_once_and_known_by_its_number() -> None:
    stage = a_stage()
    admitted(stage, plan(context(1, 1, 10)))
    with pytest.raises(ContextExists, match="island 1"):
        stage.machine.admit_island(plan(context(2, 1, 10)))
    with pytest.raises(IslandUnknown, match="no island 7"):
        stage.machine.island(7)
    with pytest.raises(IslandIllegalTransition, match="is running and cannot start"):
        stage.machine.start_island(1)


def test_whoever_uses_an_island_can_bind_its_contexts_and_nothing_more() -> None:
    stage = a_stage()
    handles = admitted(stage, plan(context(1, 1, 10)))
    stage.bind(handles[1], stage.one(awake=False))
    with pytest.raises(Forbidden):
        stage.tell(Revoke(handles[1]))
    with pytest.raises(Forbidden):
        stage.machine.adjust(handles[1], budget=2 * MS, period=10 * MS)


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
    """Each activation uses exactly its budget, beside a crowd that wants everything."""
    simulation = build(parse(AUDIO))
    simulation.check = Machine.audit
    simulation.run(2_000 * MS)
    mixer = next(thread for thread in simulation.threads.values() if thread.name == "mixer")
    assert len(mixer.responses) == 200
    assert max(mixer.responses) <= 4 * MS
    assert simulation.machine.misses(1) == []
    assert simulation.machine.island(1).state == "running"
    assert simulation.decisions["IslandMoved"] == 0


def test_one_activation_of_a_microsecond_too_much_is_an_overrun() -> None:
    simulation = build(parse(AUDIO.replace("work_us = 3000", "work_us = 3001")))
    simulation.run(2_000 * MS)
    assert simulation.machine.island(1).state == "stopped"
    assert simulation.decisions["IslandMoved"] == 2


def late_activation(machine: Machine, worker: int, now: int) -> int:
    """The driver hears of the wake 4 ms late; the activation then works for 2 ms. The answer is when it ended."""
    machine.step(Wake(worker), now)
    machine.step(Tick(0), now + 4 * MS)
    machine.step(Block(worker), now + 6 * MS)
    return now + 6 * MS


def test_a_missed_deadline_is_told_and_kept() -> None:
    stage = a_stage(cores=1)
    handles = admitted(stage, plan(context(1, 3, 50, relative_deadline=5 * MS)))
    worker = stage.machine.spawn()
    stage.machine.bind(handles[1], worker)
    stage.machine.step(Wake(worker), 0)
    stage.machine.step(Tick(0), 4 * MS)
    assert stage.machine.step(Block(worker), 6 * MS)[0] == DeadlineMissed(worker, 1, 1 * MS)
    assert stage.machine.misses(1) == [(6 * MS, 1 * MS)]
    assert stage.machine.evidence.misses == 1


def test_the_latest_misses_are_kept_and_the_rest_is_counted() -> None:
    stage = a_stage(cores=1)
    handles = admitted(stage, plan(context(1, 3, 50, relative_deadline=5 * MS)))
    worker, now = stage.machine.spawn(), 0
    stage.machine.bind(handles[1], worker)
    for _ in range(MISSES_KEPT + 36):
        now = late_activation(stage.machine, worker, now + 50 * MS)
    assert len(stage.machine.misses(1)) == MISSES_KEPT
    assert stage.machine.evidence.misses == MISSES_KEPT + 36
    instants = [at for at, _ in stage.machine.misses(1)]
    assert instants == sorted(instants)
    assert instants[-1] == now


# --- failing closed ------------------------------------------------------------------------------


def test_an_overrun_stops_all_of_the_island() -> None:
    stage = a_stage()
    handles = admitted(stage, plan(context(1, 2, 10), context(2, 2, 10)))
    broken, sound = stage.spawn(2, awake=False)
    stage.bind(handles[1], broken)
    stage.bind(handles[2], sound)
    bystander = stage.one()
    stage.tell(Wake(broken))
    stage.until(5 * MS)  # it would run on after its two milliseconds
    moved = stage.said(IslandMoved)
    assert [one.state for one in moved] == ["overrun", "stopped"]
    assert moved[0].reason == "context 1 used more than its budget"
    assert stage.machine.island(1).state == "stopped"
    stage.tell(Wake(sound))
    stage.until(100 * MS)
    assert stage.runtime(broken) == 2 * MS
    assert stage.runtime(sound) == 0
    assert stage.runtime(bystander) > 95 * MS
    with pytest.raises(StaleHandle):
        stage.machine.bind(handles[2], sound)


def test_a_degraded_island_goes_on_without_promises() -> None:
    stage = a_stage(cores=1)
    handles = admitted(stage, plan(context(1, 2, 10), overrun="degrade"))
    worker = stage.one(awake=False)
    stage.bind(handles[1], worker)
    rival = stage.one()
    stage.tell(Wake(worker))
    stage.until(102 * MS)
    assert stage.machine.island(1).state == "stopped"
    assert abs(stage.runtime(worker) - stage.runtime(rival)) <= 6 * MS


def test_an_island_that_loses_a_core_it_was_promised_fails_closed() -> None:
    stage = a_stage()
    admitted(stage, plan(context(1, 2, 10, core=1)))
    stage.tell(CoreOffline(1))
    assert stage.machine.island(1).state == "stopped"
    assert stage.said(IslandMoved)[0].reason == "a core it was promised time on is gone"


# --- shutting down -------------------------------------------------------------------------------


def test_drain_lets_an_activation_under_way_finish() -> None:
    stage = a_stage()
    handles = admitted(stage, plan(context(1, 5, 10), context(2, 1, 10), shutdown="drain"))
    worker, idle = stage.spawn(2, awake=False)
    stage.bind(handles[1], worker)
    stage.bind(handles[2], idle)
    stage.tell(Wake(worker))
    stage.until(1 * MS)
    stage.tell(StopIsland(1))
    assert stage.machine.entity(worker).paying == 1
    with pytest.raises(ContextUnknown):
        stage.machine.context(2)  # nobody was active on it
    stage.until(3 * MS)
    stage.block(worker)
    stage.until(4 * MS)
    with pytest.raises(ContextUnknown):
        stage.machine.context(1)
    stage.tell(Wake(worker))
    stage.until(20 * MS)
    assert stage.runtime(worker) == 3 * MS


def test_immediate_takes_everything_back_at_once() -> None:
    stage = a_stage()
    handles = admitted(stage, plan(context(1, 5, 10), shutdown="immediate"))
    worker = stage.one(awake=False)
    stage.bind(handles[1], worker)
    stage.tell(Wake(worker))
    stage.until(1 * MS)
    stage.tell(StopIsland(1))
    stage.until(20 * MS)
    assert stage.runtime(worker) == 1 * MS


# --- sized at admission --------------------------------------------------------------------------


def test_an_island_that_runs_takes_no_more_memory_than_when_it_began() -> None:
    stage = a_stage(cores=1)
    machine = stage.machine
    handles = admitted(stage, plan(context(1, 2, 10)))
    worker = machine.spawn()
    machine.bind(handles[1], worker)

    def activate(count: int) -> None:
        for _ in range(count):
            for decision in machine.step(Wake(worker), stage.now):
                del decision
                machine.step(Tick(0), stage.now)
            stage.now += 1 * MS
            machine.step(Block(worker), stage.now)
            stage.now += 9 * MS

    activate(2_000)  # everything has its size by now
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    activate(5_000)
    gc.collect()
    grown = [
        one
        for one in tracemalloc.take_snapshot().compare_to(before, "filename")
        if "/rota/cpu/" in one.traceback[0].filename or "/rota/policy/" in one.traceback[0].filename
    ]
    tracemalloc.stop()
    assert sum(one.size_diff for one in grown) < 2_000  # numbers that grew a digit, and no container
    assert machine.evidence.misses == 0

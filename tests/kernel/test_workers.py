"""The register of workers: who is there, who has vanished, and what the clock does to that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import LimitExceeded, SchedInvalidPayload
from rota.kernel import KernelState
from rota.kernel import workers as kernel_workers
from rota.kernel.turn import EXCEPT_AGENTS_MAX
from rota.model.events import WorkerLost
from rota.model.workers import WORKER_ALIVE_S, WORKER_REFRESH_S, SlotPool, WorkerInfo
from rota.store import Statement
from tests.kernel.world import START, World


def register(world: World, worker_id: str = "box", incarnation: str = "one", **changed: Any) -> None:
    settings: dict[str, Any] = {
        "kind": "supervisor",
        "host": "rack-1",
        "os_pid": 77,
        "pools": [SlotPool(worker_id, 4), SlotPool(f"{worker_id}/gpu", 1, ("gpu",))],
        "version": "1.0",
    }
    world.kernel.workers.register(worker_id, incarnation, **(settings | changed))


def names(world: World, *, lost: bool = False) -> list[tuple[str, str]]:
    return [(worker.worker_id, worker.incarnation) for worker in world.kernel.workers.list(lost=lost)]


def lost_facts(world: World) -> list[WorkerLost]:
    return [fact for fact in world.facts() if isinstance(fact, WorkerLost)]


def test_a_registered_worker_is_listed_with_what_it_runs(world: World, pid: int) -> None:
    register(world)
    world.put(pid)
    world.put(pid, kind="gpu")
    world.take(worker_id="box", incarnation="one")
    world.take(worker_id="box/gpu", incarnation="one", kinds=("gpu",))
    world.clock.advance(5)
    (worker,) = world.kernel.workers.list()
    assert worker == WorkerInfo(
        worker_id="box",
        incarnation="one",
        kind="supervisor",
        host="rack-1",
        os_pid=77,
        slots=5,
        kinds=("gpu",),
        started_at=START,
        seen_at=START,
        running=2,
        pools=(SlotPool("box", 4, (), 1), SlotPool("box/gpu", 1, ("gpu",), 1)),
        version="1.0",
    )


def test_a_renewal_moves_seen_at_and_writes_no_event(world: World) -> None:
    register(world)
    cursor = world.journal.cursor()
    world.clock.advance(WORKER_REFRESH_S)
    register(world, draining=True)
    (worker,) = world.kernel.workers.list()
    assert (worker.started_at, worker.seen_at, worker.draining) == (START, START + WORKER_REFRESH_S, True)
    assert world.events(cursor) == []


def test_one_that_leaves_is_gone_and_not_lost(world: World) -> None:
    register(world)
    world.kernel.workers.leave("box", "one")
    world.kernel.workers.leave("box", "one")
    world.clock.advance(2 * WORKER_ALIVE_S)
    world.queue.upkeep()
    assert names(world, lost=True) == []
    assert lost_facts(world) == []


def test_a_supervisor_replaces_the_earlier_process_of_its_id_and_entry_workers_share_one(world: World) -> None:
    register(world, incarnation="one")
    register(world, incarnation="two", replaces=True)
    assert names(world) == [("box", "two")]
    world.kernel.workers.leave("box", "one")  # the old process ends late
    register(world, "graph-worker", "a", kind="entry_worker")
    register(world, "graph-worker", "b", kind="entry_worker")
    assert names(world) == [("box", "two"), ("graph-worker", "a"), ("graph-worker", "b")]
    world.kernel.workers.leave("graph-worker", "a")
    assert names(world) == [("box", "two"), ("graph-worker", "b")]


def test_a_caller_that_only_claims_is_known_by_its_claims(world: World, pid: int) -> None:
    world.put(pid)
    entry = world.take_one(worker_id="plain", claim_timeout_s=100)
    world.clock.advance(90)
    (worker,) = world.kernel.workers.list()
    assert (worker.worker_id, worker.kind, worker.running, worker.slots) == ("plain", "unregistered", 1, 0)
    assert (worker.started_at, worker.seen_at) == (START, START)
    world.clock.advance(10)
    assert names(world) == []  # the claim has expired, although nothing has taken it back yet
    assert world.state(entry.sched_id) == "dispatched"


# --- one that vanishes ---------------------------------------------------------------------------


def test_alive_until_it_was_not_seen_for_too_long(world: World) -> None:
    register(world)
    world.clock.advance(WORKER_ALIVE_S - 1)
    assert names(world) == [("box", "one")]
    world.clock.advance(1)
    assert names(world) == []
    assert names(world, lost=True) == [("box", "one")]


def test_one_that_holds_a_live_claim_is_alive_however_long_ago_it_was_seen(world: World, pid: int) -> None:
    register(world)
    world.put(pid)
    world.take(worker_id="box/gpu", incarnation="one", kinds=("gpu",), claim_timeout_s=1_000)
    world.clock.advance(999)
    world.queue.upkeep()
    assert names(world) == [("box", "one")]


def test_a_lost_worker_is_recorded_once_with_the_entries_that_went_back(world: World, pid: int) -> None:
    register(world)
    for _ in range(3):
        world.put(pid)
    world.take(2, worker_id="box", incarnation="one", claim_timeout_s=20)
    world.take(1, worker_id="box/gpu", incarnation="one", kinds=("gpu",), claim_timeout_s=WORKER_ALIVE_S)
    world.clock.advance(20)
    world.queue.upkeep()  # two claims expire before the worker counts as lost
    assert lost_facts(world) == []
    world.clock.advance(WORKER_ALIVE_S - 20)
    register(world, "other", "x")  # any worker that renews looks; the claim is still to be taken back
    assert lost_facts(world) == []
    world.queue.upkeep()
    world.queue.upkeep()
    register(world, "other", "x")
    assert lost_facts(world) == [WorkerLost(worker_id="box", host="rack-1", entries=3, incarnation="one")]
    assert names(world, lost=True) == [("other", "x")]


def test_entries_that_went_back_before_it_was_seen_again_do_not_count(world: World, pid: int) -> None:
    register(world)
    world.put(pid)
    world.take(worker_id="box", incarnation="one", claim_timeout_s=10)
    world.clock.advance(10)
    world.queue.upkeep()
    register(world)  # it was only slow
    world.clock.advance(WORKER_ALIVE_S)
    world.queue.upkeep()
    assert [fact.entries for fact in lost_facts(world)] == [0]


def test_a_claim_by_another_worker_finds_the_lost_one_when_it_takes_its_claims_back(world: World, pid: int) -> None:
    register(world)
    sched_id = world.put(pid)
    world.take(worker_id="box", incarnation="one", claim_timeout_s=WORKER_ALIVE_S)
    world.clock.advance(WORKER_ALIVE_S)
    assert world.take(worker_id="other") == []  # it backs off first
    assert world.state(sched_id) == "queued:backoff"
    assert [fact.entries for fact in lost_facts(world)] == [1]


def test_several_processes_record_a_lost_worker_once(tmp_path: Path) -> None:
    clock = ManualClock(START)
    first = World(str(tmp_path / "rota.db"), clock)
    second = World(str(tmp_path / "rota.db"), clock)
    register(first)
    clock.advance(WORKER_ALIVE_S)
    for world in (second, first, second):
        world.queue.upkeep()
        register(world, "other", "x")
    assert len(lost_facts(first)) == 1
    first.close()
    second.close()


def test_a_lost_worker_that_was_only_asleep_registers_again(world: World) -> None:
    register(world)
    world.clock.advance(WORKER_ALIVE_S)
    world.queue.upkeep()
    register(world)
    assert names(world) == [("box", "one")]
    assert len(lost_facts(world)) == 1


def test_upkeep_says_when_the_next_worker_would_be_lost(world: World) -> None:
    assert world.queue.upkeep() is None
    register(world)
    world.clock.advance(10)
    assert world.queue.upkeep() == START + WORKER_ALIVE_S


# --- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by_s", [7_200.0, -900.0])
def test_a_jump_of_the_clock_neither_kills_nor_revives_a_worker(world: World, by_s: float) -> None:
    register(world, "alive")
    register(world, "dead")
    world.clock.advance(30)
    register(world, "alive")
    world.clock.advance(30)
    world.clock.jump(by_s)
    assert names(world) == [("alive", "one")]  # a read, before any write has seen the jump
    world.queue.upkeep()
    assert names(world) == [("alive", "one")]
    assert [fact.worker_id for fact in lost_facts(world)] == ["dead"]
    (alive,) = world.kernel.workers.list()
    assert (alive.started_at, alive.seen_at) == (START + by_s, START + 30 + by_s)
    world.clock.advance(30)
    assert names(world) == []


def test_after_a_reboot_the_workers_of_before_are_lost(tmp_path: Path) -> None:
    clock = ManualClock(START)
    before = World(str(tmp_path / "rota.db"), clock)
    register(before)
    before.close()
    clock.reboot(START + 600)
    after = World(str(tmp_path / "rota.db"), clock)
    assert names(after) == []
    assert len(lost_facts(after)) == 1
    after.close()


# --- limits, and the state -----------------------------------------------------------------------


def test_the_register_is_no_part_of_the_state(world: World, pid: int) -> None:
    world.put(pid)
    register(world)
    world.kernel.retention.checkpoint()
    world.clock.advance(WORKER_ALIVE_S)
    world.queue.upkeep()
    tables, journal = world.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables == journal
    assert world.kernel.check() == []


def test_a_damaged_row_harms_only_itself(world: World) -> None:
    register(world)
    register(world, "other")
    damage = Statement("test", "Made for a test.", "UPDATE workers SET pools = '{' WHERE worker_id = 'box'")
    world.store.write(lambda tx: tx.run(damage))
    assert [(worker.worker_id, worker.slots) for worker in world.kernel.workers.list()] == [("box", 0), ("other", 5)]
    register(world)
    assert [worker.slots for worker in world.kernel.workers.list()] == [5, 5]


def test_the_number_of_workers_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_workers, "WORKERS_MAX", 2)
    register(world, "a")
    register(world, "b")
    register(world, "b")
    with pytest.raises(LimitExceeded):
        register(world, "c")
    assert names(world) == [("a", "one"), ("b", "one")]


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "boss"},
        {"kind": "unregistered"},
        {"host": ""},
        {"host": "a\nb"},
        {"os_pid": -1},
        {"os_pid": True},
        {"pools": [SlotPool("box", -1)]},
        {"pools": [SlotPool("box", 1, ("",))]},
        {"pools": ["box"]},
        {"pools": [SlotPool("box", 1)] * 65},
        {"pools": [SlotPool("box", 1, except_agents=tuple(range(EXCEPT_AGENTS_MAX + 1)))]},
        {"pools": [SlotPool("box", 1, except_agents=("coder",))]},  # type: ignore[arg-type]
        {"draining": 1},
    ],
)
def test_what_is_refused(world: World, bad: dict[str, Any]) -> None:
    with pytest.raises(SchedInvalidPayload):
        register(world, **bad)
    assert names(world, lost=True) == []


def test_the_daemon_looks_and_writes_only_if_one_is_lost(world: World) -> None:
    world.kernel.workers.remove_lost()
    register(world)
    before = world.everything()
    world.clock.advance(WORKER_ALIVE_S - 1)
    world.kernel.workers.remove_lost()
    assert world.everything() == before
    world.clock.advance(1)
    world.kernel.workers.remove_lost()
    assert [fact.worker_id for fact in lost_facts(world)] == ["box"]

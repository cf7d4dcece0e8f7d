"""Several kernels on one file, in one process and in two: they wake each other and see each other's changes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from tests.kernel.blocked_entries import CHANGES
from tests.kernel.world import START, World
from tests.store.world import PATIENCE_S, Caller, WatchedParking
from tests.stores import address_of

# --- several kernels -----------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[World, World]]:
    """Two kernels on one file, each with a store of its own: to the file they are two processes."""
    clock = ManualClock(START)
    here, there = World(str(tmp_path / "rota.db"), clock), World(str(tmp_path / "rota.db"), clock)
    yield here, there
    here.close()
    there.close()


FOREIGN = ("enqueue", "agent cap", "project cap", "workspace", "grant", "refund", "unpause agent", "unpause fleet")


@pytest.mark.parametrize("change", [*FOREIGN, "predecessor", "retry", "limit revoked", "put back"])
@pytest.mark.parametrize("policy", ["strict", "eevdf", "fair_share"])
def test_a_waiter_is_woken_by_another_kernel_on_its_file(pair: tuple[World, World], policy: str, change: str) -> None:
    here, there = pair
    wake = CHANGES[change](there)
    waiter = here.waiter(Dispatcher(here.kernel, policy))
    wake()
    assert len(waiter.outcome()) == 1


def test_what_another_kernel_enqueues_for_later_wakes_a_waiter_when_it_is_due(pair: tuple[World, World]) -> None:
    here, there = pair
    waiter = here.waiter()
    sched_id = there.put(there.agent(), runnable_at=START + 20)
    here.clock.until_parked(2)  # it was woken and knows when to look again
    here.clock.advance(20)
    here.pass_time_until_done(waiter)
    assert waiter.outcome() == [sched_id]


def test_waiters_of_two_kernels_share_the_work_and_nothing_is_given_twice(pair: tuple[World, World]) -> None:
    here, there = pair
    waiters = [world.waiter() for world in (here, there, here, there)]
    ids = here.queue.enqueue_many([ScheduleSpec(here.agent())] * 4)
    assert sorted(sched_id for waiter in waiters for sched_id in waiter.outcome()) == ids


def test_a_caller_that_waits_for_an_entry_is_woken_by_another_kernel(pair: tuple[World, World]) -> None:
    here, there = pair
    sched_id = here.put(here.agent())
    waiter = Caller(lambda: here.queue.wait(sched_id, 100.0))
    here.clock.until_parked()
    there.take_one()
    there.queue.complete(sched_id, "completed", result={"from": "there"})
    assert waiter.outcome().result == {"from": "there"}


def test_two_kernels_over_one_store_obey_each_other_at_once(world: World) -> None:
    other = Kernel(world.store)
    pid = world.agent()
    for _ in range(3):
        world.put(pid)
    assert len(world.take(1)) == 1
    other.projects.pause_fleet("anna")
    assert world.take(1) == []
    other.projects.resume_fleet("anna")
    assert len(world.take(1)) == 1
    other.agents.update(pid, max_concurrent=2)
    assert world.take(1) == []


def test_two_kernels_on_one_file_obey_each_other_at_once(pair: tuple[World, World]) -> None:
    here, there = pair
    pid = here.agent()
    for _ in range(4):
        here.put(pid)
    assert len(here.take(1)) == 1
    there.projects.pause_fleet("anna")
    assert here.take(1) == []
    there.projects.resume_fleet("anna")
    assert len(here.take(1)) == 1
    there.agents.update(pid, max_concurrent=2)
    assert here.take(1) == []
    there.agents.update(pid, max_concurrent=None)
    there.ledger.create(pid, {"tokens": 1})
    there.ledger.charge(pid, "tokens", 2)
    assert here.take(1) == []


# --- two processes -------------------------------------------------------------------------------


def _worker(path: str, end: Any) -> None:
    """A process that waits for one entry, reports that it waits, runs it and reports its payload."""
    kernel = Kernel(store.open(path))
    writer: Any = kernel.store  # to see when it is parked there
    writer._parked.requests = WatchedParking()
    caller = Caller(lambda: Dispatcher(kernel, "eevdf").claim("other process", wait_s=PATIENCE_S))
    writer._parked.requests.until(1)
    end.send("parked")
    (entry,) = caller.outcome()
    kernel.queue.complete(entry.sched_id, "completed", token=entry.token, result=entry.payload)
    end.send(entry.sched_id)
    kernel.store.close()


def test_a_waiter_in_another_process_is_woken_and_its_result_wakes_this_one(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    kernel = Kernel(store.open(path))
    pid = kernel.agents.create("agent")
    spawn = multiprocessing.get_context("spawn")
    pipe, end = spawn.Pipe()
    process = spawn.Process(target=_worker, args=(address_of(path), end), daemon=True)
    process.start()
    try:
        assert pipe.poll(PATIENCE_S)
        assert pipe.recv() == "parked"
        sched_id = kernel.queue.enqueue(ScheduleSpec(pid, payload={"n": 7}))
        assert kernel.queue.wait(sched_id, PATIENCE_S).result == {"n": 7}
        assert pipe.poll(PATIENCE_S)
        assert pipe.recv() == sched_id
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
        kernel.store.close()

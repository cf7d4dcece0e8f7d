"""An agent cached as alive is not looked up again, but its termination by any process is noticed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from rota import store
from rota.errors import SchedInvalidPayload, UnknownPid
from rota.kernel import Kernel, RunReport, ScheduleSpec, environment
from rota.kernel.environment import KernelCache
from rota.service import Dispatcher
from rota.store import Transaction


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "rota.db")


@pytest.fixture
def kernel(path: str) -> Iterator[Kernel]:
    made = Kernel(store.open(path))
    yield made
    made.store.close()


def refused(kernel: Kernel, pid: int) -> None:
    with pytest.raises(SchedInvalidPayload, match="is dead"):
        kernel.queue.enqueue(ScheduleSpec(pid))
    with pytest.raises(SchedInvalidPayload, match="is dead"):
        kernel.queue.enqueue_many([ScheduleSpec(pid)])


def test_an_agent_terminated_here_is_refused_immediately(kernel: Kernel) -> None:
    pid = kernel.agents.create("a")
    kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.terminate(pid, "completed")
    refused(kernel, pid)


def test_an_agent_terminated_by_another_kernel_on_the_store_is_refused(kernel: Kernel) -> None:
    pid = kernel.agents.create("a")
    kernel.queue.enqueue(ScheduleSpec(pid))
    Kernel(kernel.store).terminate(pid, "completed")
    refused(kernel, pid)


def test_an_agent_terminated_by_another_store_on_the_file_is_refused(kernel: Kernel, path: str) -> None:
    pid = kernel.agents.create("a")
    kernel.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid)])
    other = Kernel(store.open(path))
    other.terminate(pid, "completed")
    refused(kernel, pid)
    other.store.close()


@pytest.mark.only_on("file", reason="another program writes to the file")
def test_an_agent_terminated_by_a_foreign_program_is_refused(kernel: Kernel, path: str) -> None:
    pid = kernel.agents.create("a")
    kernel.queue.enqueue(ScheduleSpec(pid))
    with contextlib.closing(apsw.Connection(path)) as foreign:  # not sqlite3: two libraries drop each other's locks
        foreign.execute("UPDATE agent_processes SET state = 'DEAD' WHERE pid = ?", (pid,))
    refused(kernel, pid)


def test_a_one_shot_agent_is_refused_after_its_run(kernel: Kernel) -> None:
    pid = kernel.agents.create("a", rerunnable=False)
    kernel.queue.enqueue(ScheduleSpec(pid))
    (entry,) = Dispatcher(kernel).turn([], worker_id="w").entries
    kernel.queue.enqueue(ScheduleSpec(pid))
    assert entry.token is not None
    Dispatcher(kernel).turn([RunReport(sched_id=entry.sched_id, token=entry.token)], worker_id="w", max_n=0)
    refused(kernel, pid)


def test_an_agent_whose_creation_was_rolled_back_is_unknown(path: str) -> None:
    joint = store.open_joined(path)
    inside = Kernel(joint)

    def make_and_fail(pids: list[int]) -> None:
        pids.append(inside.agents.create("a"))
        inside.queue.enqueue(ScheduleSpec(pids[0]))
        raise ZeroDivisionError

    pids: list[int] = []
    write = joint.posted_write(lambda: make_and_fail(pids), lambda: None)
    assert joint.try_run([write])
    assert isinstance(write.error, ZeroDivisionError)
    with pytest.raises(UnknownPid):
        inside.queue.enqueue(ScheduleSpec(pids[0]))
    joint.close()


def test_the_number_of_cached_agents_is_limited(kernel: Kernel) -> None:
    cache = KernelCache()
    pids = [kernel.agents.create("a") for _ in range(3)]

    def work(tx: Transaction) -> list[set[int]]:
        return [set(cache.agents(tx, wanted)) for wanted in (pids[:2], pids[2:], pids[:1])]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "OWNERS_MAX", 2)
        assert kernel.store.write(work) == [set(pids[:2]), {pids[2]}, {pids[0], pids[2]}]

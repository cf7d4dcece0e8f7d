"""An agent that is known to live is not looked up again; whatever may have ended it is heard of all the same."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import store
from rota.errors import SchedInvalidPayload, UnknownPid
from rota.kernel import Kernel, RunReport, ScheduleSpec
from rota.kernel.core import LIVING_MAX, Memo
from rota.store import Transaction
from rota.store.joined import JointStore
from rota.store.sqlite import SqliteStore


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


def test_one_that_was_ended_here_is_refused_at_once(kernel: Kernel) -> None:
    pid = kernel.agents.create("a")
    kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.terminate(pid, "completed")
    refused(kernel, pid)


def test_one_that_another_kernel_on_the_same_store_has_ended_is_refused(kernel: Kernel) -> None:
    pid = kernel.agents.create("a")
    kernel.queue.enqueue(ScheduleSpec(pid))
    Kernel(kernel.store).terminate(pid, "completed")
    refused(kernel, pid)


def test_one_that_another_store_on_the_same_file_has_ended_is_refused(kernel: Kernel, path: str) -> None:
    pid = kernel.agents.create("a")
    kernel.queue.enqueue_many([ScheduleSpec(pid), ScheduleSpec(pid)])
    other = Kernel(store.open(path))
    other.terminate(pid, "completed")
    refused(kernel, pid)
    other.store.close()


def test_one_that_a_program_which_is_not_ours_has_ended_is_refused(kernel: Kernel, path: str) -> None:
    pid = kernel.agents.create("a")
    kernel.queue.enqueue(ScheduleSpec(pid))
    with contextlib.closing(sqlite3.connect(path)) as foreign:
        foreign.execute("UPDATE agent_processes SET state = 'DEAD' WHERE pid = ?", (pid,))
        foreign.commit()
    refused(kernel, pid)


def test_one_that_ends_with_its_only_run_is_refused(kernel: Kernel) -> None:
    pid = kernel.agents.create("a", rerunnable=False)
    kernel.queue.enqueue(ScheduleSpec(pid))
    (entry,) = kernel.supervision.turn([], worker_id="w").entries
    kernel.queue.enqueue(ScheduleSpec(pid))
    assert entry.token is not None
    kernel.supervision.turn([RunReport(sched_id=entry.sched_id, token=entry.token)], worker_id="w", max_n=0)
    refused(kernel, pid)


def test_one_whose_making_was_undone_is_unknown(path: str) -> None:
    joint = JointStore(SqliteStore(path))
    inside = Kernel(joint)

    def make_and_fail(pids: list[int]) -> None:
        pids.append(inside.agents.create("a"))
        inside.queue.enqueue(ScheduleSpec(pids[0]))
        raise ZeroDivisionError

    pids: list[int] = []
    errand = joint.errand(lambda: make_and_fail(pids), lambda: None)
    assert joint.run([errand])
    assert isinstance(errand.error, ZeroDivisionError)
    with pytest.raises(UnknownPid):
        inside.queue.enqueue(ScheduleSpec(pids[0]))
    joint.close()


def test_no_more_than_so_many_are_remembered(kernel: Kernel) -> None:
    memo = Memo()

    def work(tx: Transaction) -> tuple[int, int]:
        memo.keep_living(tx, dict.fromkeys(range(LIVING_MAX)))
        at_the_limit = len(memo.living(tx))
        memo.keep_living(tx, {-1: None})
        return at_the_limit, len(memo.living(tx))

    memo.living(kernel.store.write(lambda tx: tx))
    assert kernel.store.write(work) == (LIVING_MAX, 1)

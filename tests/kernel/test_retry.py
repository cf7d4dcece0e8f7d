"""`retry` of one entry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedIllegalTransition, SchedUnknownId
from rota.kernel import Kernel, ScheduleSpec


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
    yield made
    made.store.close()


def test_one_that_backs_off_runs_at_once_under_its_own_id(kernel: Kernel) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a")))
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(sched_id, "crashed", token=run.token)
    assert kernel.queue.claim(worker_id="w") == []
    assert kernel.queue.retry(sched_id) == sched_id
    assert [entry.sched_id for entry in kernel.queue.claim(worker_id="w")] == [sched_id]


def test_one_that_ended_badly_runs_again_under_a_new_id(kernel: Kernel) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a"), 3, payload={"x": 1}, tags=("t",)))
    kernel.queue.cancel(sched_id)
    again = kernel.queue.get(kernel.queue.retry(sched_id))
    assert (again.sched_id, again.priority, again.payload, again.tags) == (sched_id + 1, 3, {"x": 1}, ("t",))
    assert kernel.queue.get(sched_id).state == "cancelled"


def test_one_that_waits_runs_or_ended_well_is_refused_and_nothing_changes(kernel: Kernel) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a")))
    cursor = kernel.journal.cursor()
    with pytest.raises(SchedIllegalTransition):
        kernel.queue.retry(sched_id)
    assert kernel.journal.cursor() == cursor
    (run,) = kernel.queue.claim(worker_id="w")
    with pytest.raises(SchedIllegalTransition):
        kernel.queue.retry(sched_id)
    kernel.queue.complete(sched_id, "completed", token=run.token)
    with pytest.raises(SchedIllegalTransition):
        kernel.queue.retry(sched_id)
    with pytest.raises(SchedUnknownId):
        kernel.queue.retry(99)

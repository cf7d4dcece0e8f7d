"""The kernel keeps what each attempt failed with, and knows which outcomes are never retried."""

from __future__ import annotations

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.rows import ERRORS_MAX
from rota.model.retries import NOT_RETRIED, why_not_retried
from rota.model.work import Backoff, ExitKind, ReadyEntry

BOTH: tuple[ExitKind, ...] = ("crashed", "failed")
AT_ONCE = Backoff(base_s=0)


def attempt(kernel: Kernel, exit_kind: str, result: object = None, outcome: str | None = None) -> ReadyEntry:
    (entry,) = kernel.queue.claim(worker_id="w", claim_timeout_s=10)
    kernel.queue.complete(entry.sched_id, exit_kind, token=entry.token, result=result, outcome=outcome)
    return kernel.queue.get(entry.sched_id)


def test_a_worker_that_reports_an_error_finds_it_in_the_entry() -> None:
    clock = ManualClock(100.0)
    kernel = Kernel(store.open(":memory:", clock=clock))
    pid = kernel.agents.create("a")
    spec = ScheduleSpec(pid, retry_on=BOTH, backoff=AT_ONCE, max_attempts=5, tags=("kept",))
    kernel.queue.enqueue(spec)
    attempt(kernel, "failed", {"error": "ValueError: " + "x" * 5_000})
    clock.advance(1)
    attempt(kernel, "crashed", outcome="lost")
    kernel.queue.claim(worker_id="w", claim_timeout_s=10)
    clock.advance(11)
    kernel.queue.upkeep()  # the claim has expired
    entry = attempt(kernel, "completed", "fine")
    assert [(each.attempt, each.error[:13], each.at) for each in entry.errors] == [
        (1, "ValueError: x", 100.0), (2, "lost", 101.0), (3, "claim_expired", 112.0),
    ]  # fmt: skip
    assert len(entry.errors[0].error) == 1_000
    assert (entry.tags, entry.result, why_not_retried(entry)) == (("kept",), "fine", None)


def test_the_errors_of_the_last_attempts_are_kept() -> None:
    kernel = Kernel(store.open(":memory:"))
    kernel.queue.enqueue(
        ScheduleSpec(kernel.agents.create("a"), retry_on=BOTH, backoff=AT_ONCE, max_attempts=ERRORS_MAX + 5)
    )
    for _ in range(ERRORS_MAX + 2):
        entry = attempt(kernel, "failed")
    assert [each.attempt for each in entry.errors] == list(range(3, ERRORS_MAX + 3))


@pytest.mark.parametrize("outcome", NOT_RETRIED)
def test_an_outcome_that_would_repeat_is_final_and_says_why(outcome: str) -> None:
    kernel = Kernel(store.open(":memory:"))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a"), retry_on=BOTH, max_attempts=3))
    entry = attempt(kernel, "failed", outcome=outcome)
    assert (entry.status, why_not_retried(entry)) == ("failed", NOT_RETRIED[outcome])


def test_the_kernel_itself_retries_crashes_only() -> None:
    kernel = Kernel(store.open(":memory:"))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a"), backoff=AT_ONCE))
    assert attempt(kernel, "crashed").status == "ready"
    entry = attempt(kernel, "failed")
    assert (entry.status, why_not_retried(entry)) == ("failed", "it is not retried when it has failed")


def test_unfinished_entries_are_grouped_by_what_they_wait_for() -> None:
    clock = ManualClock(100.0)
    kernel = Kernel(store.open(":memory:", clock=clock))
    one, two = kernel.agents.create("one"), kernel.agents.create("two")
    first = kernel.queue.enqueue(ScheduleSpec(one))
    kernel.queue.claim(worker_id="w", claim_timeout_s=60)
    kernel.queue.enqueue_many([ScheduleSpec(one), ScheduleSpec(one), ScheduleSpec(one, kind="gpu")])
    kernel.queue.enqueue_many(
        [ScheduleSpec(two, delay_s=20), ScheduleSpec(two, delay_s=10), ScheduleSpec(two, after=(first,))]
    )
    kernel.queue.cancel(kernel.queue.enqueue(ScheduleSpec(two)))
    groups = [
        (each.pid, each.state, each.hold, each.kind, each.count, each.sched_id, each.runnable_at, each.worker_id)
        for each in kernel.queue.unfinished()
    ]
    assert groups == [
        (one, "dispatched", None, None, 1, 1, 0.0, "w"),
        (one, "queued", None, None, 2, 2, 0.0, None),
        (one, "queued", None, "gpu", 1, 4, 0.0, None),
        (two, "queued", "time", None, 2, 5, 110.0, None),
        (two, "queued", "after", None, 1, 7, 0.0, None),
    ]
    assert kernel.queue.unfinished()[0].claim_expires_at == 160.0
    assert len(kernel.queue.unfinished(limit=2)) == 2

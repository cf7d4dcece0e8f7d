"""Jobs: status, waiting, results of many, errors of every attempt, progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rota import Rota
from rota.errors import RunFailed, WaitTimeout
from rota.model.work import Backoff, RestartPolicy
from rota.testing import InMemoryRota

PATIENCE_S = 30.0
AT_ONCE = RestartPolicy(backoff=Backoff(base_s=0))


@contextmanager
def supervised(rota: Rota, slots: int = 2) -> Iterator[None]:
    """A supervisor on another thread."""
    running = threading.Thread(target=lambda: rota.run(slots), daemon=True)
    running.start()
    try:
        yield
    finally:
        while running.is_alive():  # it may not have begun
            rota.stop()
            running.join(0.01)


def test_a_job_is_waited_for_behind_every_door(anywhere: Rota) -> None:
    gates = {name: threading.Event() for name in ("first", "second", "third")}

    @anywhere.agent
    def opens(name: str) -> str:
        assert gates[name].wait(PATIENCE_S)
        return name

    jobs = opens.map(gates)
    with pytest.raises(WaitTimeout, match="3 of the jobs have not ended after 0 s"):
        anywhere.gather(*jobs, wait_s=0)
    with supervised(anywhere, slots=3):
        order = []
        completed = anywhere.as_completed(jobs, wait_s=PATIENCE_S)
        for name in ("second", "third", "first"):
            gates[name].set()
            order.append(next(completed).result())
        assert order == ["second", "third", "first"]
        assert next(completed, None) is None
    assert anywhere.gather(*jobs, wait_s=PATIENCE_S) == ["first", "second", "third"]
    assert jobs[0].wait().exit_kind == "completed"
    assert anywhere.job(jobs[0].sched_id).result() == "first"


def test_gather_raises_the_first_error_or_returns_all_of_them(rota: InMemoryRota) -> None:
    @rota.agent(max_attempts=1)
    def odd(number: int) -> int:
        if number % 2 == 0:
            raise ValueError(f"{number} is even")
        return number

    jobs = odd.map([1, 2, 3, 4])
    rota.run_until_idle()
    with pytest.raises(RunFailed, match="2 is even"):
        rota.gather(*jobs)
    results = rota.gather(*jobs, return_exceptions=True)
    assert [type(each).__name__ for each in results] == ["int", "RunFailed", "int", "RunFailed"]


def test_the_status_of_a_job_is_one_word(rota: InMemoryRota) -> None:
    seen: list[str] = []
    jobs: dict[str, Any] = {}

    @rota.agent(max_attempts=1)
    def work(how: str = "") -> None:
        seen.append(jobs["live"].status if how == "live" else "")
        if how == "fails":
            raise ValueError

    jobs |= {
        "ready": work.enqueue(),
        "waiting": work.enqueue(delay=100),
        "cancelled": work.enqueue(delay=100),
        "expired": work.enqueue(delay=100, deadline=rota.clock.now() + 101),
        "live": work.enqueue("live"),
        "failed": work.enqueue("fails"),
    }
    assert (jobs["ready"].status, jobs["waiting"].status) == ("ready", "waiting")
    jobs["cancelled"].cancel()
    summary = rota.run_until_idle()
    assert "running" in seen
    assert (summary.completed, summary.failed) == (2, 1)
    rota.advance(1000)
    summary = rota.run_until_idle()
    assert (summary.completed, summary.expired, summary.ok) == (1, 1, False)
    found = {name: job.status for name, job in jobs.items()}
    assert found == {
        "ready": "succeeded", "waiting": "succeeded", "cancelled": "cancelled", "expired": "expired",
        "live": "succeeded", "failed": "failed",
    }  # fmt: skip


def test_the_error_of_every_attempt_is_kept_behind_every_door(anywhere: Rota) -> None:
    @anywhere.agent(restart=AT_ONCE, max_attempts=4)
    def flaky(ctx: Any) -> str:
        if ctx.attempt < 3:
            raise ValueError(f"attempt {ctx.attempt}")
        return "at last"

    @anywhere.agent(restart=AT_ONCE, max_attempts=2)
    def broken(ctx: Any) -> None:
        raise KeyError(ctx.attempt)

    jobs = [flaky.enqueue(), broken.enqueue()]
    summary = anywhere.run(until_idle=True)
    assert (summary.runs, summary.completed, summary.failed) == (5, 1, 1)
    assert [(each.attempt, each.error) for each in jobs[0].errors()] == [
        (1, "ValueError: attempt 1"),
        (2, "ValueError: attempt 2"),
    ]
    assert [(each.attempt, each.error) for each in jobs[1].errors()] == [(1, "KeyError: 1"), (2, "KeyError: 2")]
    with pytest.raises(RunFailed, match=r"after 2 attempts: KeyError: 2 \(not retried: it was attempt 2 of 2\)"):
        jobs[1].result()


def test_a_copy_of_a_failed_entry_begins_without_its_errors(rota: InMemoryRota) -> None:
    @rota.agent(max_attempts=2)
    def broken() -> None:
        raise ValueError

    job = broken.enqueue(tags="kept")
    rota.run_until_idle()
    assert len(job.errors()) == 2
    copy = rota.job(rota.api.queue.retry(job.sched_id))
    assert (copy.errors(), copy.entry().tags, copy.status) == ([], ("kept",), "ready")


def test_progress_is_seen_while_the_run_lasts_behind_every_door(anywhere: Rota) -> None:
    go = threading.Event()
    begun = threading.Event()

    @anywhere.agent
    def reads(ctx: Any) -> None:
        ctx.progress(0.4, "reading")
        begun.set()
        assert go.wait(PATIENCE_S)

    job = reads.enqueue()
    assert job.progress() is None
    with supervised(anywhere):
        assert begun.wait(PATIENCE_S)
        assert job.progress() == (0.4, "reading")
        go.set()
        job.wait(PATIENCE_S)
    assert job.progress() == (0.4, "reading")
    (fact,) = anywhere.api.journal.tail(kinds=("kernel.run.progressed",))
    assert fact.payload == {"sched_id": job.sched_id, "attempt": 1, "fraction": 0.4, "text": "reading"}

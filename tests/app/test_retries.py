"""Python agents retry what they raise; some errors are final, and a run that is not retried says why."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import InvalidInput, RunFailed
from rota.model.work import RestartPolicy
from rota.service.explanation import explain
from rota.testing import InMemoryRota


class SoldOut(Exception):
    """An error of a program."""


class GoneForGood(SoldOut):
    """A special case of it."""


def test_an_exception_is_retried_by_default_with_a_pause(rota: InMemoryRota) -> None:
    starts: list[float] = []

    @rota.agent
    def flaky(ctx: Any) -> int:
        starts.append(rota.clock.now())
        if ctx.attempt < 3:
            raise ValueError
        return int(ctx.attempt)

    job = flaky.enqueue()
    assert rota.run_until_idle().completed == 1
    assert job.result() == 3
    assert starts[0] < starts[1] < starts[2] <= starts[0] + 3  # back-off: up to 1 s, then up to 2 s


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_errors_that_an_agent_declares_as_final_are_not_retried(rota: InMemoryRota, isolation: Any) -> None:
    buys = rota.agent("buys", isolation=isolation, non_retryable=(SoldOut, "LookupError"))(buy)
    jobs = {name: buys.enqueue(name) for name in ("SoldOut", "GoneForGood", "KeyError", "ValueError")}
    rota.run_until_idle()
    attempts = {name: (job.entry().attempt, job.entry().outcome) for name, job in jobs.items()}
    assert attempts == {
        "SoldOut": (1, "not_retryable"), "GoneForGood": (1, "not_retryable"), "KeyError": (1, "not_retryable"),
        "ValueError": (3, None),
    }  # fmt: skip
    with pytest.raises(RunFailed, match="not retried: its agent declares this error as non_retryable"):
        jobs["SoldOut"].result()


def buy(name: str) -> None:
    raise {"SoldOut": SoldOut, "GoneForGood": GoneForGood, "KeyError": KeyError, "ValueError": ValueError}[name]


def test_a_final_error_does_not_count_towards_a_quarantine(rota: InMemoryRota) -> None:
    @rota.agent(non_retryable=[ValueError], restart=RestartPolicy(quarantine_after=2))
    def picky(number: int) -> int:
        if number < 9:
            raise ValueError
        return number

    jobs = picky.map(range(10))
    summary = rota.run_until_idle()
    assert (summary.failed, summary.completed) == (9, 1)
    assert jobs[-1].result() == 9


def test_why_tells_the_error_of_each_attempt_and_why_there_is_no_other(rota: InMemoryRota) -> None:
    @rota.agent(max_attempts=2)
    def broken(ctx: Any) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    job = broken.enqueue()
    rota.run_until_idle()
    words = [step.words for step in explain(rota.api, job.sched_id).story]  # type: ignore[arg-type]  # embedded
    assert "run 1 ended: failed: ValueError: attempt 1" in words
    assert "run 2 ended: failed: ValueError: attempt 2" in words
    assert "ended: failed; not retried: it was attempt 2 of 2" in words


@pytest.mark.parametrize(("returned", "outcome"), [(object(), "result_not_json"), ("x" * 300_000, "result_too_large")])
def test_a_result_that_cannot_be_stored_is_not_computed_again(rota: InMemoryRota, returned: Any, outcome: str) -> None:
    @rota.agent
    def returns() -> Any:
        return returned

    job = returns.enqueue()
    assert rota.run_until_idle().runs == 1
    assert job.entry().outcome == outcome


def test_a_program_that_fails_is_retried_too_unless_it_is_told_otherwise(rota: InMemoryRota) -> None:
    twice = rota.command("twice", ["false"], max_attempts=2)
    once = rota.command("once", ["false"], restart=RestartPolicy(when="on_crash"))
    jobs = [twice.enqueue(), once.enqueue()]
    rota.run_until_idle()
    assert [job.entry().attempt for job in jobs] == [2, 1]
    with pytest.raises(RunFailed, match="not retried: it is not retried when it has failed"):
        jobs[1].result()


def test_what_is_no_error_cannot_be_declared_as_final(rota: InMemoryRota) -> None:
    with pytest.raises(InvalidInput, match="non_retryable has types of errors or their names, not 7"):
        rota.agent(non_retryable=[7])(buy)  # type: ignore[list-item]  # that is what is tested
    with pytest.raises(InvalidInput, match="non_retryable is only for functions"):
        rota.command("program", ["true"], non_retryable=[ValueError])

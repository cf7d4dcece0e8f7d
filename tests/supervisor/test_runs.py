"""A supervisor over functions: slots, reports, limits, stops, children. Real threads, and a clock moved by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rota import Rota
from rota.clock import ManualClock
from rota.errors import RunFailed, UnknownAgent
from rota.kernel import ScheduleSpec
from rota.model.work import Backoff, Limits, RestartPolicy
from tests.supervisor.crew import START, Crew


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew()
    yield made
    made.close()


# --- the usual ---------------------------------------------------------------------------------------


def test_what_a_function_returns_is_its_jobs_result(crew: Crew) -> None:
    @crew.rota.agent()
    def double(number: int) -> int:
        return 2 * number

    jobs = double.enqueue_many([{"number": number} for number in range(20)])
    assert crew.rota.run(slots=4, until_idle=True) == 20
    assert [job.result() for job in jobs] == [2 * number for number in range(20)]


def test_an_async_function_is_an_agent_too(crew: Crew) -> None:
    @crew.rota.agent()
    async def read(ctx: Any, url: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"read": url, "attempt": ctx.attempt}

    job = read.enqueue(url="a page")
    crew.rota.run(until_idle=True)
    assert job.result() == {"read": "a page", "attempt": 1}


def test_what_was_kept_of_a_terminated_agent_does_not_run_on_a_supervisor_that_knew_it(crew: Crew) -> None:
    began: list[int] = []

    @crew.rota.agent()
    def worker(number: int) -> None:
        began.append(number)

    @crew.rota.agent()
    def patient(ctx: Any) -> None:
        crew.until(lambda: ctx.cancelled)

    running = crew.run_in_background()
    crew.ended(worker.enqueue(number=1))
    later = worker.enqueue(number=2, options={"runnable_at": crew.clock.now() + 1e6})
    crew.rota.kernel.terminate(worker.pid, "completed", queued="keep")
    for _ in range(2):  # whoever acts on the second request has heard all that was recorded before the first
        asked = patient.enqueue()
        crew.until(lambda asked=asked: asked.entry().state == "dispatched")  # type: ignore[misc]  # mypy knows no such lambda
        asked.cancel(by="anna")
        crew.ended(asked)
    crew.clock.advance(1e6)
    crew.ended(later)
    crew.stop(running)
    assert (later.entry().exit_kind, later.entry().outcome) == ("cancelled", "owner_dead")
    assert began == [1]


def test_work_for_an_agent_that_nobody_knows_is_refused_by_name(crew: Crew) -> None:
    caught: list[UnknownAgent] = []

    @crew.rota.agent()
    def parent(ctx: Any) -> None:
        try:
            ctx.spawn("nobody")
        except UnknownAgent as unknown:
            caught.append(unknown)

    parent.enqueue()
    crew.rota.run(until_idle=True)
    assert [unknown.agent for unknown in caught] == ["nobody"]


def test_a_failed_run_raises_where_its_result_is_asked_for(crew: Crew) -> None:
    @crew.rota.agent(restart=RestartPolicy(when="never"))
    def broken() -> None:
        raise RuntimeError("no network")

    job = broken.enqueue()
    crew.rota.run(until_idle=True)
    with pytest.raises(RunFailed, match="no network") as caught:
        job.result()
    assert caught.value.data["exit_kind"] == "failed"


def test_as_many_run_at_once_as_there_are_slots_and_never_more(crew: Crew) -> None:
    together = threading.Barrier(3)
    most = [0, 0]
    guard = threading.Lock()

    @crew.rota.agent()
    def busy() -> None:
        with guard:
            most[0] += 1
            most[1] = max(most)
        together.wait(timeout=20)
        with guard:
            most[0] -= 1

    busy.enqueue_many([{} for _ in range(9)])
    assert crew.rota.run(slots=3, until_idle=True) == 9
    assert most == [0, 3]


def test_a_slot_is_refilled_at_once_by_what_its_run_enqueued(crew: Crew) -> None:
    @crew.rota.agent()
    def countdown(left: int) -> None:
        if left:
            crew.rota.find("countdown").enqueue(left=left - 1)

    countdown.enqueue(left=30)
    assert crew.rota.run(until_idle=True) == 31


def test_an_agent_is_running_while_it_runs_and_ready_afterwards(crew: Crew) -> None:
    seen: list[str] = []

    @crew.rota.agent()
    def look() -> None:
        seen.append(crew.rota.desk.agents.get(look.pid).state)

    look.enqueue()
    crew.rota.run(until_idle=True)
    assert (seen, crew.rota.desk.agents.get(look.pid).state) == (["RUNNING"], "READY")


def test_a_function_of_the_same_name_is_the_same_agent_and_nothing_is_written_twice(crew: Crew) -> None:
    def work() -> None: ...

    pid = crew.rota.agent(priority=3, budget={"tokens": 5})(work).pid
    cursor = crew.rota.desk.journal.cursor()
    assert crew.rota.agent(priority=3, budget={"tokens": 5})(work).pid == pid
    assert crew.rota.desk.journal.cursor() == cursor
    crew.rota.agent(priority=4, budget={"tokens": 6})(work)
    assert crew.rota.desk.agents.get(pid).priority == 4
    assert [line.granted for line in crew.rota.desk.ledger.get(pid)] == [6]


def test_entries_of_an_agent_that_died_meanwhile_end_as_cancelled(crew: Crew) -> None:
    @crew.rota.agent()
    def work() -> None: ...

    job = work.enqueue()
    crew.rota.kernel.terminate(work.pid, "completed", queued="keep")
    crew.rota.run(until_idle=True)
    assert (job.entry().exit_kind, job.entry().outcome) == ("cancelled", "owner_dead")


def test_an_entry_that_nobody_here_can_run_is_left_for_others(crew: Crew) -> None:
    pid = crew.rota.desk.agents.create("stranger")
    sched_id = crew.rota.desk.queue.enqueue(ScheduleSpec(pid))
    crew.rota.run(until_idle=True)
    entry = crew.rota.desk.queue.get(sched_id)
    assert (entry.state, entry.hold, entry.attempt) == ("queued", "time", 0)


# --- budgets -------------------------------------------------------------------------------------------


def test_a_run_past_its_ceiling_is_stopped_and_not_tried_again(crew: Crew) -> None:
    attempts: list[int] = []

    @crew.rota.agent(limits=Limits(tokens=100))
    def greedy(ctx: Any) -> None:
        attempts.append(ctx.attempt)
        while True:
            ctx.charge(tokens=60)
            ctx.raise_if_cancelled()

    job = greedy.enqueue()
    crew.rota.run(until_idle=True)
    entry = job.entry()
    assert (entry.exit_kind, entry.outcome, attempts) == ("failed", "over_budget", [1])


def test_what_is_left_is_told_and_counts_down(crew: Crew) -> None:
    left: list[Any] = []

    @crew.rota.agent(budget={"tokens": 1_000}, limits=Limits(tokens=100))
    def careful(ctx: Any) -> None:
        left.extend([ctx.remaining(), ctx.charge(tokens=30), ctx.remaining()])

    careful.enqueue()
    crew.rota.run(until_idle=True)
    assert left == [{"tokens": 100}, {"tokens": 70}, {"tokens": 70}]


def test_an_agent_over_its_grant_is_stopped(crew: Crew) -> None:
    @crew.rota.agent(budget={"tokens": 50}, restart=RestartPolicy(when="never"))
    def greedy(ctx: Any) -> None:
        ctx.charge(tokens=51)
        ctx.raise_if_cancelled()

    job = greedy.enqueue()
    crew.rota.run(until_idle=True)
    assert job.entry().outcome == "over_budget"


# --- stopping --------------------------------------------------------------------------------------------


def test_a_cancelled_run_hears_of_it_and_ends_as_cancelled_with_what_it_has(crew: Crew) -> None:
    begun = threading.Event()

    @crew.rota.agent()
    def patient(ctx: Any) -> None:
        ctx.checkpoint(page=7)
        begun.set()
        crew.until(lambda: ctx.cancelled)
        ctx.raise_if_cancelled()

    job = patient.enqueue()
    running = crew.run_in_background()
    assert begun.wait(20)
    job.cancel(by="anna")
    entry = crew.ended(job)
    assert (entry.exit_kind, entry.outcome) == ("cancelled", "cancelled")
    assert entry.result["partial"] == {"page": 7}
    (fact,) = crew.facts("kernel.run.ended")
    assert fact["stopped_by"] == "message"
    crew.stop(running)


def test_a_run_that_takes_longer_than_it_may_is_timed_out(crew: Crew) -> None:
    begun = threading.Event()

    @crew.rota.agent(limits=Limits(wall_s=30), restart=RestartPolicy(when="never"))
    def slow(ctx: Any) -> None:
        begun.set()
        crew.until(lambda: ctx.cancelled)
        ctx.raise_if_cancelled()

    job = slow.enqueue()
    running = crew.run_in_background()
    assert begun.wait(20)
    crew.clock.advance(31)
    entry = crew.ended(job)
    assert (entry.exit_kind, entry.outcome) == ("failed", "timed_out")
    crew.stop(running)


def test_a_run_that_yields_comes_back_later_with_its_checkpoint_and_no_attempt_counted(crew: Crew) -> None:
    seen: list[Any] = []

    @crew.rota.agent()
    def stepwise(ctx: Any) -> str:
        seen.append((ctx.attempt, ctx.saved))
        if ctx.saved is None:
            ctx.checkpoint(step=1)
            ctx.yield_back(after_s=60)
        return "done"

    job = stepwise.enqueue()
    crew.rota.run(until_idle=True)
    assert job.entry().runnable_at == START + 60
    crew.clock.advance(60)
    crew.rota.run(until_idle=True)
    assert job.result() == "done"
    assert seen == [(1, None), (1, {"step": 1})]


def test_draining_lets_runs_end_and_takes_nothing_more(crew: Crew) -> None:
    begun, go = threading.Event(), threading.Event()

    @crew.rota.agent()
    def work() -> str:
        begun.set()
        assert go.wait(20)
        return "done"

    first, second = work.enqueue(), work.enqueue()
    running = crew.run_in_background()
    assert begun.wait(20)
    crew.rota.stop()
    go.set()
    running.join(20)
    assert not running.is_alive()
    assert first.result() == "done"
    assert second.entry().state == "queued"


@pytest.mark.parametrize("affinity", [None, "box"])
def test_a_higher_band_asks_the_lowest_run_to_give_way(crew: Crew, affinity: str | None) -> None:
    begun = threading.Event()
    order: list[str] = []

    @crew.rota.agent(priority=1)
    def background(ctx: Any) -> str:
        if ctx.saved is None:
            ctx.checkpoint(half=True)
            begun.set()
            crew.until(lambda: ctx.cancelled)
            ctx.yield_back()
        order.append("background")
        return "finished"

    @crew.rota.agent(priority=100)
    def urgent() -> None:
        order.append("urgent")

    slow = background.enqueue()
    running = crew.run_in_background(preemption_marks=(50,), worker_id="box")
    assert begun.wait(20)
    fast = urgent.enqueue(options={"affinity": affinity})
    assert crew.ended(fast).exit_kind == "completed"
    assert crew.ended(slow).result == "finished"
    assert order == ["urgent", "background"]
    assert slow.entry().attempt == 1
    crew.stop(running)


# --- failing -------------------------------------------------------------------------------------------


def test_an_agent_that_keeps_failing_is_left_alone_for_a_while(crew: Crew) -> None:
    mended = threading.Event()

    @crew.rota.agent(
        restart=RestartPolicy(when="on_failure", quarantine_after=2, quarantine_s=600, backoff=Backoff(base_s=0))
    )
    def flaky() -> str:
        if not mended.is_set():
            raise RuntimeError("not today")
        return "at last"

    job = flaky.enqueue()
    crew.rota.run(until_idle=True)
    assert crew.rota.desk.agents.get(flaky.pid).paused_by == "quarantine"
    mended.set()
    crew.rota.run(until_idle=True)
    assert job.entry().state == "queued"
    running = crew.run_in_background()
    crew.clock.until_parked(2)
    crew.clock.advance(601)
    assert crew.ended(job).result == "at last"
    crew.stop(running)


def test_an_agent_that_always_runs_is_started_again_each_time_it_ends(crew: Crew) -> None:
    runs: list[int] = []

    @crew.rota.agent(restart=RestartPolicy(when="always"))
    def forever(ctx: Any) -> None:
        runs.append(ctx.sched_id)
        if len(runs) == 5:
            crew.rota.stop()

    forever.enqueue()
    crew.rota.run()
    assert len(set(runs)) == 5


# --- children ------------------------------------------------------------------------------------------


def test_a_parent_that_waits_gives_up_its_slot_so_one_slot_is_enough(crew: Crew) -> None:
    states: list[str] = []

    @crew.rota.agent()
    def child(number: int) -> int:
        states.append(crew.rota.desk.agents.get(parent.pid).state)
        return number * number

    @crew.rota.agent()
    def parent(ctx: Any) -> int:
        children = [ctx.spawn("child", number=number) for number in range(5)]
        return sum(entry.result for entry in ctx.wait(children))

    job = parent.enqueue()
    crew.rota.run(slots=1, until_idle=True)
    assert job.result() == 0 + 1 + 4 + 9 + 16
    assert states == ["WAITING"] * 5


def test_parents_of_parents_do_not_lock_each_other_up(crew: Crew) -> None:
    @crew.rota.agent()
    def tree(ctx: Any, depth: int) -> int:
        if depth == 0:
            return 1
        return sum(entry.result for entry in ctx.wait([ctx.spawn("tree", depth=depth - 1) for _ in range(3)]))

    job = tree.enqueue(depth=3)
    crew.rota.run(slots=2, until_idle=True)
    assert job.result() == 27


def test_a_child_inherits_priority_and_is_lent_budget_and_what_is_left_returns(crew: Crew) -> None:
    left: list[Any] = []

    @crew.rota.agent()
    def child(ctx: Any) -> None:
        left.append(ctx.remaining())
        ctx.charge(tokens=10)

    @crew.rota.agent(limits=Limits(tokens=100))
    def parent(ctx: Any) -> int:
        lent = ctx.spawn("child", lent={"tokens": 40})
        left.append(ctx.remaining())
        ctx.wait([lent])
        left.append(ctx.remaining())
        return int(lent.sched_id)

    job = parent.enqueue(priority=7)
    crew.rota.run(slots=2, until_idle=True)
    assert {"tokens": 40} in left
    assert left[-1] == {"tokens": 90}
    assert crew.rota.desk.queue.get(job.result()).priority == 7


def test_a_throttled_provider_pauses_exactly_those_who_draw_on_it(crew: Crew) -> None:
    crew.rota.desk.contexts.create(bound_to="name", bound_id="acme", budget=100, period_s=60, unit="requests")
    ran: list[str] = []

    @crew.rota.agent(draws_on=["acme"])
    def caller(ctx: Any) -> None:
        ran.append("caller")
        ctx.throttled(retry_after_s=30)

    @crew.rota.agent()
    def other() -> None:
        ran.append("other")

    caller.enqueue_many([{}, {}])
    other.enqueue_many([{}, {}])
    crew.rota.run(until_idle=True)
    assert sorted(ran) == ["caller", "other", "other"]
    crew.clock.advance(31)
    crew.rota.run(until_idle=True)
    assert ran.count("caller") == 2


def test_two_programs_on_one_store_share_the_work(tmp_path: Any) -> None:
    clock = ManualClock(START)
    with Rota(tmp_path / "rota.db", clock=clock) as one, Rota(tmp_path / "rota.db", clock=clock) as two:
        for rota in (one, two):

            @rota.agent()
            def work(number: int) -> int:
                return number

        jobs = one.find("work").enqueue_many([{"number": number} for number in range(50)])
        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda rota=rota: counts.append(rota.run(slots=2, until_idle=True)))
            for rota in (one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(counts) == 50
        assert [job.result() for job in jobs] == list(range(50))

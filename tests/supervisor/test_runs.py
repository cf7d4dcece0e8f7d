"""A supervisor with functions: slots, reports, limits, stops, children. Real threads and a manual clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rota import Rota
from rota.clock import ManualClock
from rota.errors import RunFailed, UnknownAgent
from rota.fleet import IdleRule
from rota.kernel import ScheduleSpec
from rota.model.cpu import CPU_KEY
from rota.model.work import Backoff, Limits, RestartPolicy
from tests.supervisor.world import PATIENCE_S, START, World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


# --- basics ------------------------------------------------------------------------------------------


def test_what_a_function_returns_is_its_jobs_result(world: World) -> None:
    @world.rota.agent()
    def double(number: int) -> int:
        return 2 * number

    jobs = double.enqueue_many([{"number": number} for number in range(20)])
    assert world.rota.run(slots=4, until_idle=True).runs == 20
    assert [job.result() for job in jobs] == [2 * number for number in range(20)]


def test_an_async_function_is_an_agent_too(world: World) -> None:
    @world.rota.agent()
    async def read(ctx: Any, url: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"read": url, "attempt": ctx.attempt}

    job = read.enqueue(url="a page")
    world.rota.run(until_idle=True)
    assert job.result() == {"read": "a page", "attempt": 1}


def test_a_kept_entry_of_a_terminated_agent_does_not_run_where_the_agent_is_cached(world: World) -> None:
    began: list[int] = []

    @world.rota.agent()
    def worker(number: int) -> None:
        began.append(number)

    @world.rota.agent()
    def patient(ctx: Any) -> None:
        world.until(lambda: ctx.cancelled)

    running = world.run_in_background()
    world.ended(worker.enqueue(number=1))
    later = worker.enqueue(number=2, options={"runnable_at": world.clock.now() + 1e6})
    world.rota.kernel.terminate(worker.pid, "completed", queued="keep")
    for _ in range(2):  # a background thread that handles the second request has read all events before the first
        asked = patient.enqueue()
        world.until(lambda asked=asked: asked.entry().state == "dispatched")  # type: ignore[misc]  # mypy knows no such lambda
        asked.cancel(by="anna")
        world.ended(asked)
    world.clock.advance(1e6)
    world.ended(later)
    world.stop(running)
    assert (later.entry().exit_kind, later.entry().outcome) == ("cancelled", "owner_dead")
    assert began == [1]


def test_spawning_an_unknown_agent_is_refused_by_name(world: World) -> None:
    caught: list[UnknownAgent] = []

    @world.rota.agent()
    def parent(ctx: Any) -> None:
        try:
            ctx.spawn("missing")
        except UnknownAgent as unknown:
            caught.append(unknown)

    parent.enqueue()
    world.rota.run(until_idle=True)
    assert [unknown.agent for unknown in caught] == ["missing"]


def test_the_result_of_a_failed_run_raises(world: World) -> None:
    @world.rota.agent(restart=RestartPolicy(when="never"))
    def broken() -> None:
        raise RuntimeError("no network")

    job = broken.enqueue()
    world.rota.run(until_idle=True)
    with pytest.raises(RunFailed, match="no network") as caught:
        job.result()
    assert caught.value.data["exit_kind"] == "failed"


def test_as_many_runs_as_slots_and_never_more(world: World) -> None:
    together = threading.Barrier(3)
    most = [0, 0]
    guard = threading.Lock()

    @world.rota.agent()
    def busy() -> None:
        with guard:
            most[0] += 1
            most[1] = max(most)
        together.wait(timeout=20)
        with guard:
            most[0] -= 1

    busy.enqueue_many([{} for _ in range(9)])
    assert world.rota.run(slots=3, until_idle=True).runs == 9
    assert most == [0, 3]


def test_runs_that_wait_for_each_other_run_at_the_same_time_also_after_quick_ones(world: World) -> None:
    together = threading.Barrier(4)

    @world.rota.agent()
    def quick() -> None:
        """Ends before another thread has begun."""

    @world.rota.agent()
    def meet() -> int:
        return together.wait(PATIENCE_S)

    for _ in range(5):
        quick.enqueue_many([{}] * 20)
        meet.enqueue_many([{}] * 4)
    assert world.rota.run(slots=4, until_idle=True).runs == 5 * 24
    assert {entry.exit_kind for entry in world.rota.api.queue.list(limit=500)[0]} == {"completed"}


def test_a_slot_is_refilled_immediately_by_what_its_run_enqueued(world: World) -> None:
    @world.rota.agent()
    def countdown(left: int) -> None:
        if left:
            world.rota.find("countdown").enqueue(left=left - 1)

    countdown.enqueue(left=30)
    assert world.rota.run(until_idle=True).runs == 31


def test_an_agent_is_running_while_it_runs_and_ready_afterwards(world: World) -> None:
    seen: list[str] = []

    @world.rota.agent()
    def look() -> None:
        seen.append(world.rota.api.agents.get(look.pid).state)

    look.enqueue()
    world.rota.run(until_idle=True)
    assert (seen, world.rota.api.agents.get(look.pid).state) == (["RUNNING"], "READY")


def test_a_function_of_the_same_name_is_the_same_agent_and_nothing_is_written_twice(world: World) -> None:
    def work() -> None: ...

    pid = world.rota.agent(priority=3, budget={"tokens": 5})(work).pid
    cursor = world.rota.api.journal.cursor()
    assert world.rota.agent(priority=3, budget={"tokens": 5})(work).pid == pid
    assert world.rota.api.journal.cursor() == cursor
    world.rota.agent(priority=4, budget={"tokens": 6})(work)
    assert world.rota.api.agents.get(pid).priority == 4
    assert [line.granted for line in world.rota.api.ledger.get(pid)] == [6]


def test_entries_of_a_terminated_agent_end_as_cancelled(world: World) -> None:
    @world.rota.agent()
    def work() -> None: ...

    job = work.enqueue()
    world.rota.kernel.terminate(work.pid, "completed", queued="keep")
    world.rota.run(until_idle=True)
    assert (job.entry().exit_kind, job.entry().outcome) == ("cancelled", "owner_dead")


def test_an_entry_that_cannot_run_here_is_left_for_other_workers(world: World) -> None:
    pid = world.rota.api.agents.create("unregistered")
    sched_id = world.rota.api.queue.enqueue(ScheduleSpec(pid))
    world.rota.run(until_idle=True)
    entry = world.rota.api.queue.get(sched_id)
    assert (entry.state, entry.hold, entry.attempt) == ("queued", None, 0)


# --- budgets -------------------------------------------------------------------------------------------


def test_a_run_over_its_ceiling_is_stopped_and_not_retried(world: World) -> None:
    attempts: list[int] = []

    @world.rota.agent(limits=Limits(tokens=100))
    def greedy(ctx: Any) -> None:
        attempts.append(ctx.attempt)
        while True:
            ctx.charge(tokens=60)
            ctx.raise_if_cancelled()

    job = greedy.enqueue()
    world.rota.run(until_idle=True)
    entry = job.entry()
    assert (entry.exit_kind, entry.outcome, attempts) == ("failed", "over_budget", [1])


def test_the_remaining_budget_counts_down(world: World) -> None:
    left: list[Any] = []

    @world.rota.agent(budget={"tokens": 1_000}, limits=Limits(tokens=100))
    def careful(ctx: Any) -> None:
        left.extend([ctx.remaining(), ctx.charge(tokens=30), ctx.remaining()])

    careful.enqueue()
    world.rota.run(until_idle=True)
    assert left == [{"tokens": 100}, {"tokens": 70}, {"tokens": 70}]


def test_an_agent_over_its_grant_is_stopped(world: World) -> None:
    @world.rota.agent(budget={"tokens": 50}, restart=RestartPolicy(when="never"))
    def greedy(ctx: Any) -> None:
        ctx.charge(tokens=51)
        ctx.raise_if_cancelled()

    job = greedy.enqueue()
    world.rota.run(until_idle=True)
    assert job.entry().outcome == "over_budget"


# --- stopping --------------------------------------------------------------------------------------------


def test_a_cancelled_run_is_told_and_ends_as_cancelled_with_its_partial_result(world: World) -> None:
    begun = threading.Event()

    @world.rota.agent()
    def patient(ctx: Any) -> None:
        ctx.checkpoint(page=7)
        begun.set()
        world.until(lambda: ctx.cancelled)
        ctx.raise_if_cancelled()

    job = patient.enqueue()
    running = world.run_in_background()
    assert begun.wait(20)
    job.cancel(by="anna")
    entry = world.ended(job)
    assert (entry.exit_kind, entry.outcome) == ("cancelled", "cancelled")
    assert entry.result["partial"] == {"page": 7}
    (fact,) = world.facts("kernel.run.ended")
    assert fact["stopped_by"] == "message"
    world.stop(running)


def test_a_run_over_its_wall_limit_is_timed_out(world: World) -> None:
    begun = threading.Event()

    @world.rota.agent(limits=Limits(wall_s=30), restart=RestartPolicy(when="never"))
    def slow(ctx: Any) -> None:
        begun.set()
        world.until(lambda: ctx.cancelled)
        ctx.raise_if_cancelled()

    job = slow.enqueue()
    running = world.run_in_background()
    assert begun.wait(20)
    world.clock.advance(31)
    entry = world.ended(job)
    assert (entry.exit_kind, entry.outcome) == ("failed", "timed_out")
    world.stop(running)


def test_a_run_that_yields_runs_again_later_with_its_checkpoint_and_no_attempt_counted(world: World) -> None:
    seen: list[Any] = []

    @world.rota.agent()
    def stepwise(ctx: Any) -> str:
        seen.append((ctx.attempt, ctx.saved))
        if ctx.saved is None:
            ctx.checkpoint(step=1)
            ctx.yield_back(after_s=60)
        return "done"

    job = stepwise.enqueue()
    world.rota.run(until_idle=True, horizon_s=59)
    assert job.entry().runnable_at == START + 60
    world.clock.advance(60)
    world.rota.run(until_idle=True)
    assert job.result() == "done"
    assert seen == [(1, None), (1, {"step": 1})]


def test_draining_lets_runs_end_and_claims_nothing_more(world: World) -> None:
    begun, go = threading.Event(), threading.Event()

    @world.rota.agent()
    def work() -> str:
        begun.set()
        assert go.wait(20)
        return "done"

    first, second = work.enqueue(), work.enqueue()
    running = world.run_in_background()
    assert begun.wait(20)
    world.rota.stop()
    go.set()
    running.join(20)
    assert not running.is_alive()
    assert first.result() == "done"
    assert second.entry().state == "queued"


@pytest.mark.parametrize("affinity", [None, "box"])
def test_an_entry_of_a_higher_band_preempts_the_lowest_run(world: World, affinity: str | None) -> None:
    begun = threading.Event()
    order: list[str] = []

    @world.rota.agent(priority=1)
    def background(ctx: Any) -> str:
        if ctx.saved is None:
            ctx.checkpoint(half=True)
            begun.set()
            world.until(lambda: ctx.cancelled)
            ctx.yield_back()
        order.append("background")
        return "finished"

    @world.rota.agent(priority=100)
    def urgent() -> None:
        order.append("urgent")

    slow = background.enqueue()
    running = world.run_in_background(preemption_thresholds=(50,), worker_id="box")
    assert begun.wait(20)
    fast = urgent.enqueue(options={"affinity": affinity})
    assert world.ended(fast).exit_kind == "completed"
    assert world.ended(slow).result == "finished"
    assert order == ["urgent", "background"]
    assert slow.entry().attempt == 1
    world.stop(running)


# --- failing -------------------------------------------------------------------------------------------


def test_an_agent_that_keeps_failing_is_quarantined(world: World) -> None:
    mended = threading.Event()

    @world.rota.agent(
        restart=RestartPolicy(when="on_failure", quarantine_after=2, quarantine_s=600, backoff=Backoff(base_s=0))
    )
    def flaky() -> str:
        if not mended.is_set():
            raise RuntimeError("not today")
        return "at last"

    job = flaky.enqueue()
    world.rota.run(until_idle=True)
    assert world.rota.api.agents.get(flaky.pid).paused_by == "quarantine"
    mended.set()
    world.rota.run(until_idle=True)
    assert job.entry().state == "queued"
    running = world.run_in_background()
    world.clock.until_parked(2)
    world.clock.advance(601)
    assert world.ended(job).result == "at last"
    world.stop(running)


def test_an_agent_with_restart_always_is_enqueued_again_after_each_run(world: World) -> None:
    runs: list[int] = []

    @world.rota.agent(restart=RestartPolicy(when="always"))
    def forever(ctx: Any) -> None:
        runs.append(ctx.sched_id)
        if len(runs) == 5:
            world.rota.stop()

    forever.enqueue()
    world.rota.run()
    assert len(set(runs)) == 5


def test_a_run_whose_entry_another_worker_has_does_not_restart_its_agent(world: World) -> None:
    """The other worker does, at the end of its run: each lost claim would double the runs of the agent."""
    queue = world.rota.api.queue

    @world.rota.agent(restart=RestartPolicy(when="always", backoff=Backoff(base_s=0.0)))
    def forever() -> None:
        world.rota.stop()
        world.clock.advance(61.0)  # past its claim
        queue.claim(worker_id="other")

    job = forever.enqueue()
    world.rota.run()
    assert job.entry().worker_id == "other"
    assert [entry.sched_id for entry in queue.list()[0]] == [job.sched_id]


# --- children ------------------------------------------------------------------------------------------


def test_a_parent_that_waits_releases_its_slot_so_one_slot_is_enough(world: World) -> None:
    states: list[str] = []

    @world.rota.agent()
    def child(number: int) -> int:
        states.append(world.rota.api.agents.get(parent.pid).state)
        return number * number

    @world.rota.agent()
    def parent(ctx: Any) -> int:
        children = [ctx.spawn("child", number=number) for number in range(5)]
        return sum(entry.result for entry in ctx.wait(children))

    job = parent.enqueue()
    world.rota.run(slots=1, until_idle=True)
    assert job.result() == 0 + 1 + 4 + 9 + 16
    assert states == ["WAITING"] * 5


def test_nested_parents_do_not_deadlock(world: World) -> None:
    @world.rota.agent()
    def tree(ctx: Any, depth: int) -> int:
        if depth == 0:
            return 1
        return sum(entry.result for entry in ctx.wait([ctx.spawn("tree", depth=depth - 1) for _ in range(3)]))

    job = tree.enqueue(depth=3)
    world.rota.run(slots=2, until_idle=True)
    assert job.result() == 27


def test_a_child_inherits_priority_and_borrows_budget_and_the_rest_returns(world: World) -> None:
    left: list[Any] = []

    @world.rota.agent()
    def child(ctx: Any) -> None:
        left.append(ctx.remaining())
        ctx.charge(tokens=10)

    @world.rota.agent(limits=Limits(tokens=100))
    def parent(ctx: Any) -> int:
        lent = ctx.spawn("child", lent={"tokens": 40})
        left.append(ctx.remaining())
        ctx.wait([lent])
        left.append(ctx.remaining())
        return int(lent.sched_id)

    job = parent.enqueue(priority=7)
    world.rota.run(slots=2, until_idle=True)
    assert {"tokens": 40} in left
    assert left[-1] == {"tokens": 90}
    assert world.rota.api.queue.get(job.result()).priority == 7


def test_a_throttled_provider_pauses_only_the_agents_that_draw_on_it(world: World) -> None:
    world.rota.api.contexts.create(bound_to="name", bound_id="acme", budget=100, period_s=60, unit="requests")
    ran: list[str] = []

    @world.rota.agent(draws_on=["acme"])
    def caller(ctx: Any) -> None:
        ran.append("caller")
        ctx.throttled(retry_after_s=30)

    @world.rota.agent()
    def other() -> None:
        ran.append("other")

    caller.enqueue_many([{}, {}])
    other.enqueue_many([{}, {}])
    passed: list[float] = []

    def pass_time(seconds: float) -> None:
        if not passed:
            assert sorted(ran) == ["caller", "other", "other"]
        passed.append(seconds)
        world.clock.advance(seconds)

    world.rota.supervisor().run(until_idle=IdleRule(pass_time=pass_time))
    assert ran.count("caller") == 2
    assert 30 <= sum(passed) <= 31


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
            threading.Thread(target=lambda rota=rota: counts.append(rota.run(slots=2, until_idle=True).runs))
            for rota in (one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(counts) == 50
        assert [job.result() for job in jobs] == list(range(50))


def test_agents_of_a_project_with_invalid_cpu_settings_run_when_it_was_corrected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of projects were once stored unchecked. The agents stayed in quarantine until they were written."""
    projects, agents = world.rota.api.projects, world.rota.api.agents
    monkeypatch.setattr("rota.kernel.projects.read_cpu", lambda stored: stored)
    for name in ("night", "day"):
        projects.create(name, metadata={CPU_KEY: {"quota": "much"}})
    monkeypatch.undo()

    @world.rota.agent(project="night")
    def owl() -> None: ...

    @world.rota.agent(project="day")
    def lark() -> None: ...

    job, other = owl.enqueue(), lark.enqueue()
    running = world.run_in_background()
    world.until(lambda: len(world.facts("kernel.run.quarantined")) == 2)
    reasons = sorted(fact["reason"].partition(":")[0] for fact in world.facts("kernel.run.quarantined"))
    assert reasons == ["project day", "project night"]  # not the settings of the agents
    projects.update("night", name="Night")
    assert agents.get(owl.pid).paused_by is not None
    projects.update("night", metadata={CPU_KEY: {"weight": 2.0}})
    assert world.ended(job).exit_kind == "completed"
    assert (other.entry().state, agents.get(lark.pid).paused_by is None) == ("queued", False)
    world.stop(running)

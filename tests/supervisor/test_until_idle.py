"""`until_idle`: what a supervisor waits for, what it leaves, and how it says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rota import Rota
from rota.clock import ManualClock
from rota.errors import InvalidInput, SchemaMismatch, StoreUnavailable
from rota.fleet import heartbeats, slot_loop
from rota.fleet.supervised_cores import SupervisedCores
from rota.fleet.supervisor import Supervisor, SupervisorSettings, told_drain
from rota.host.thread_settings import allowed_cores
from rota.kernel import ScheduleSpec
from rota.model.cpu import CpuSettings
from rota.model.work import Backoff, RestartPolicy
from rota.service import outages
from rota.service.core_grants import grant, this_host
from rota.store import Statement
from rota.testing import InMemoryRota
from tests.daemon.harness import serving

PATIENCE_S = 30.0
QUICK = RestartPolicy(backoff=Backoff(base_s=0.05))


def test_retries_and_delays_within_the_horizon_are_waited_for_in_real_time() -> None:
    with Rota() as rota:

        @rota.agent(restart=QUICK)
        def flaky(ctx: Any) -> None:
            if ctx.attempt < 3:
                raise ValueError

        @rota.agent
        def work() -> None: ...

        flaky.enqueue()
        work.enqueue(delay=0.2)
        later = work.enqueue(delay=90)
        summary = rota.run(until_idle=True)
        assert (summary.runs, summary.completed, summary.failed, summary.ok) == (4, 2, 0, True)
        (left,) = summary.waiting
        assert (left.kind, left.sched_id, left.until_at) == ("delayed", later.sched_id, later.entry().runnable_at)
        assert str(summary) == "4 runs ended: 2 completed; 1 still waiting"


def test_a_limit_is_waited_for_and_a_longer_horizon_reaches_further(rota: InMemoryRota) -> None:
    rota.api.contexts.create(bound_to="name", bound_id="acme", budget=1, period_s=60, unit="requests")
    starts: list[float] = []

    @rota.agent(draws_on=["acme"])
    def caller() -> None:
        starts.append(rota.clock.now())

    caller.map([{}, {}, {}])
    late = caller.enqueue(delay=600)
    summary = rota.run_until_idle(horizon_s=300)
    assert (summary.completed, [each.kind for each in summary.waiting]) == (3, ["delayed"])
    assert starts[1] - starts[0] >= 59
    assert starts[2] - starts[1] >= 59
    assert rota.run_until_idle(horizon_s="10m").completed == 1
    assert late.status == "succeeded"


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="a lease needs two cores")
def test_an_entry_whose_cores_were_refused_says_so_and_not_that_its_time_has_not_come() -> None:
    with Rota() as rota:

        @rota.agent
        def holder() -> None: ...

        waiter = rota.command("waiter", ["true"], cpu=CpuSettings(lease=1))
        held = holder.enqueue()
        (claim,) = rota.api.queue.claim(worker_id="elsewhere", max_n=1, claim_timeout_s=3_600)
        assert claim.token is not None
        grant(rota.api, this_host(), claim.sched_id, claim.token, CpuSettings(lease=1))
        waiter.enqueue()
        (left,) = (one for one in rota.run(until_idle=True, horizon_s=0.5).waiting if one.agent == "waiter")
        assert left.kind == "delayed"
        assert left.why.startswith("the cores that it asks for are refused: ")
        assert f"is leased by entry {held.sched_id} (holder)" in left.why
        rota.api.queue.change(left.sched_id, runnable_at=rota.api.clock.now() + 600)
        rota.kernel.store.write(lambda tx: tx.run(Statement("t", "Spoil it.", "UPDATE core_grants SET body = '{'")))
        (left,) = (one for one in rota.run(until_idle=True, horizon_s=0).waiting if one.agent == "waiter")
        assert left.why == "its time has not come"  # and nothing fails


def test_what_cannot_run_is_named_and_not_waited_for(rota: InMemoryRota) -> None:
    @rota.agent(budget={"tokens": 5})
    def spender(ctx: Any) -> None:
        ctx.charge(tokens=6)

    @rota.agent(kind="gpu")
    def needs_gpu() -> None: ...

    @rota.agent
    def paused() -> None: ...

    @rota.agent(max_attempts=1)
    def fails() -> None:
        raise ValueError

    spender.map([{}, {}])
    needs_gpu.enqueue()
    paused.enqueue()
    paused.pause(by="me")
    rota.api.queue.enqueue(ScheduleSpec(rota.api.agents.create("elsewhere")))
    paused.enqueue(after=fails.enqueue(), options={"on_failed": "hold"})
    summary = rota.run_until_idle()
    assert not summary.ok
    found = {(each.agent, each.kind): each.why for each in summary.waiting}
    assert set(found) == {
        ("spender", "blocked"), ("needs_gpu", "blocked"), ("paused", "blocked"), ("elsewhere", "blocked"),
    }  # fmt: skip
    assert "over 5" in found["spender", "blocked"]
    assert "no slot of kind 'gpu'" in found["needs_gpu", "blocked"]
    assert found["elsewhere", "blocked"] == "its agent has no function in this program"
    assert {each.why for each in summary.waiting if each.agent == "paused"} == {
        "agent 3 was paused by me", "it runs after other entries, none of which can run"
    }  # fmt: skip


def test_a_quarantined_agent_is_no_success(rota: InMemoryRota) -> None:
    @rota.agent(restart=RestartPolicy(quarantine_after=2, quarantine_s=600))
    def broken() -> None:
        raise ValueError

    broken.enqueue()
    summary = rota.run_until_idle()
    (left,) = summary.waiting
    assert (summary.failed, left.kind, summary.ok) == (0, "quarantined", False)
    assert left.until_at is not None
    assert left.until_at > rota.clock.now() + 500
    rota.advance(601)
    assert rota.run_until_idle().failed == 1


def test_entries_of_a_dead_worker_are_recovered_and_those_of_a_live_one_left(rota: InMemoryRota) -> None:
    ran: list[int] = []

    @rota.agent(restart=RestartPolicy(backoff=Backoff(base_s=0)))
    def work(number: int) -> None:
        ran.append(number)

    work.map([1, 2])
    claims = rota.api.claim("dead", 1, claim_timeout_s=20), rota.api.claim("alive", 1, claim_timeout_s=20)
    (alive,) = claims[1]
    summaries: list[Any] = []
    running = threading.Thread(target=lambda: summaries.append(rota.run(until_idle=True)), daemon=True)
    running.start()
    for _ in range(1_000):
        rota.clock.advance(1)
        rota.api.queue.heartbeat(alive.sched_id, alive.token or 0)
        running.join(0.01)
        if not running.is_alive():
            break
    assert ran == [1]
    (summary,) = summaries
    assert [(each.kind, each.sched_id) for each in summary.waiting] == [("running", alive.sched_id)]
    assert summary.ok


def test_slots_of_several_kinds_end_together(rota: InMemoryRota) -> None:
    order: list[str] = []

    @rota.agent(kind="gpu")
    def trains(ctx: Any) -> None:
        order.append("trains")
        ctx.spawn("reports")

    @rota.agent(kind="cpu")
    def reports() -> None:
        order.append("reports")

    trains.enqueue()
    assert rota.run_until_idle({"cpu": 1, "gpu": 1}).completed == 2
    assert order == ["trains", "reports"]


# --- a store that cannot be used ----------------------------------------------------------------------


def test_a_lost_daemon_is_an_error_and_not_an_empty_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "OUTAGE_S", 0.0)  # how long a supervisor waits for it
    with serving(tmp_path / "rota.db") as served:
        rota = Rota(served.unix)

        @rota.agent
        def work() -> None: ...

        work.enqueue()
    rota.api._calls.retry_s = 0.0  # type: ignore[attr-defined]  # a client waits for a daemon that restarts
    with pytest.raises(StoreUnavailable):
        rota.run(until_idle=True)


def test_a_store_that_fails_to_take_a_result_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slot_loop, "RETRY_S", 0.0)
    with Rota() as rota:

        @rota.agent
        def work() -> None:
            monkeypatch.setattr(rota.api, "turn", full)

        turns: list[int] = []

        def full(reports: Any, *_arguments: Any, **_more: Any) -> Any:
            turns.append(len(reports))
            raise StoreUnavailable("the disk is full")

        job = work.enqueue()
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            rota.run(until_idle=True)
        assert turns == [1] * slot_loop.REPORT_TRIES
        assert len([record for record in caplog.records if "cannot report or claim" in record.getMessage()]) == 1
        monkeypatch.undo()
        assert job.entry().state == "dispatched"  # recovered when its claim expires


def test_a_supervisor_that_is_killed_ends_although_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slot_loop, "RETRY_S", 0.0)
    with Rota() as rota:
        supervisor = Supervisor(rota.api, SupervisorSettings(slots=1), functions=rota._functions)

        def away(*_arguments: Any, **_more: Any) -> Any:
            raise StoreUnavailable("the server is away")

        @rota.agent
        def work() -> None:
            monkeypatch.setattr(rota.api, "turn", away)
            supervisor.kill()

        job = work.enqueue()
        supervisor.run()
        assert f"ending without reporting runs (#{job.sched_id})" in caplog.text
        monkeypatch.undo()
        assert job.entry().state == "dispatched"  # recovered when its claim expires


def test_a_supervisor_that_drains_ends_although_a_newer_rota_has_migrated_its_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store takes nothing more from this process, however long it waits."""
    with Rota() as rota:
        supervisor = Supervisor(rota.api, SupervisorSettings(slots=1), functions=rota._functions)

        def shut_out(*_arguments: Any, **_more: Any) -> Any:
            raise SchemaMismatch("schema_version is 9999 now")

        @rota.agent
        def work() -> None:
            monkeypatch.setattr(rota.api, "turn", shut_out)
            supervisor.drain()

        job = work.enqueue()
        supervisor.run()
        assert f"ending without reporting runs (#{job.sched_id})" in caplog.text
        monkeypatch.undo()
        assert job.entry().state == "dispatched"  # recovered when its claim expires


@pytest.mark.parametrize("problem", [StoreUnavailable("the disk is full"), ValueError("a defect")])
def test_a_fault_of_the_background_thread_is_said_once(
    problem: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "RETRY_S", 0.0)
    tries, tried = [0], threading.Event()

    def full(*_arguments: Any) -> int:
        tries[0] += 1
        if tries[0] == 5:
            tried.set()
        raise problem

    with Rota() as rota:
        wait = rota.api.journal.wait

        @rota.agent
        def work() -> None:
            monkeypatch.setattr(rota.api.journal, "wait", full)
            rota.api.agents.create("another")  # an event ends the wait before
            assert tried.wait(PATIENCE_S)
            monkeypatch.setattr(rota.api.journal, "wait", wait)

        work.enqueue()
        assert rota.run(until_idle=True).completed == 1
    what = problem if isinstance(problem, StoreUnavailable) else "unexpected error"
    assert caplog.messages == [f"background thread: {what}; trying every 0 s"]


def test_a_defect_of_the_slot_loop_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slot_loop, "RETRY_S", 0.0)
    with Rota() as rota:
        turn, tries = rota.api.turn, [0]

        def defective(*arguments: Any, **more: Any) -> Any:
            tries[0] += 1
            if tries[0] <= 5:
                raise ValueError("a defect")
            return turn(*arguments, **more)

        monkeypatch.setattr(rota.api, "turn", defective)

        @rota.agent
        def work() -> None: ...

        work.enqueue()
        assert rota.run(until_idle=True).completed == 1
    assert caplog.messages == ["slot loop: unexpected error; trying every 0 s"]
    assert caplog.text.count("ValueError: a defect") == 1


@pytest.mark.parametrize("problem", [InvalidInput("it cannot be read"), ValueError("it cannot be read")])
def test_a_background_task_that_keeps_failing_is_reported_once(
    problem: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "READ_PAUSE_S", 0.0)
    tries, tried = [0], threading.Event()

    def fail(_self: SupervisedCores) -> None:
        tries[0] += 1
        if tries[0] == 5:
            tried.set()
        raise problem

    monkeypatch.setattr(SupervisedCores, "due_in_s", lambda _self: 0.0)
    monkeypatch.setattr(SupervisedCores, "on_due", fail)
    with Rota() as rota:

        @rota.agent
        def work() -> None:
            assert tried.wait(PATIENCE_S)

        work.enqueue()
        assert rota.run(until_idle=True).completed == 1
    assert len([record for record in caplog.records if "background task" in record.getMessage()]) == 1


FULL_DISK = """
import os, resource, sys
from rota import Rota
from rota.errors import StoreUnavailable
from rota.fleet import heartbeats, slot_loop

slot_loop.RETRY_S = 0.0
store = sys.argv[1]
rota = Rota(store)

@rota.agent
def work(ctx):
    if sys.argv[2] == "full":  # no file of this process grows any more, as on a full disk
        size = os.stat(store + "-wal").st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    return "x" * 10_000

if sys.argv[2] == "full":
    work.enqueue()
try:
    summary = rota.run(until_idle=True, worker_id="box")
    print("summary", summary.completed, summary.failed)
except StoreUnavailable as problem:
    print("unavailable", problem)
"""


def test_a_full_disk_is_an_error_and_the_entry_is_completed_when_there_is_room(tmp_path: Path) -> None:
    def run(disk: str) -> str:
        argv = [sys.executable, "-c", FULL_DISK, str(tmp_path / "rota.db"), disk]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return done.stdout + done.stderr

    printed = run("full")
    assert printed.startswith("unavailable nothing was written: ")
    assert "Free disk space" in printed
    assert "Traceback" not in printed
    assert run("free") == "summary 1 0\n"


# --- Ctrl-C ---------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from rota import Rota

rota = Rota(sys.argv[1])

@rota.agent
def slow(ctx):
    print("begun", flush=True)
    sys.stdin.readline()
    return "finished"

job = slow.enqueue()
slow.enqueue()
summary = rota.run()
print("summary", summary.completed, job.result(), flush=True)
"""


def test_ctrl_c_lets_the_current_runs_end_and_says_so_in_one_line(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "rota.db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline() == "begun\n"
    os.kill(child.pid, signal.SIGINT)
    assert child.stderr.readline() == "waiting for 1 run (slow #1); Ctrl-C again stops it\n"
    child.stdin.write("\n")
    child.stdin.flush()
    out, errors = child.communicate(timeout=PATIENCE_S)
    assert (out, errors, child.returncode) == ("summary 1 finished\n", "", 0)


FIVE = "coder #1, coder #2, coder #3, coder #4, coder #5"


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "stopping: nothing is running"),
        (2, "waiting for 2 runs (coder #1, coder #2); Ctrl-C again stops them"),
        (5, f"waiting for 5 runs ({FIVE}); Ctrl-C again stops them"),
        (12, f"waiting for 12 runs ({FIVE} and 7 more); Ctrl-C again stops them"),
    ],
)
def test_the_runs_that_are_waited_for_are_named(count: int, told: str) -> None:
    names = [f"coder #{number}" for number in range(1, count + 1)]
    assert told_drain(names, by_signal=True) == told
    assert "Ctrl-C" not in told_drain(names, by_signal=False)


def test_a_manual_clock_is_never_waited_for_by_a_summary() -> None:
    with Rota(clock=ManualClock(1_000.0)) as rota:

        @rota.agent
        def work() -> None: ...

        work.enqueue(delay=61)
        assert rota.run(until_idle=True).waiting[0].kind == "delayed"

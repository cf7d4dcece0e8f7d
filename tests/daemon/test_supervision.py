"""A supervisor that runs entries through a daemon: the same code as over a file."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rota import Rota
from rota.app import Job
from rota.cli.connection import open_api
from rota.errors import NotEnabled, RunFailed
from rota.kernel import RunReport, ScheduleSpec
from rota.model.work import Limits, RestartPolicy
from tests.daemon.harness import Served

PATIENCE_S = 30.0


@pytest.fixture
def rota(served: Served) -> Any:
    with Rota(served.unix) as made:
        yield made


def test_functions_run_through_a_daemon_and_their_agents_move(rota: Rota) -> None:
    states: list[str] = []

    @rota.agent(budget={"tokens": 100})
    def double(ctx: Any, number: int) -> int:
        states.append(rota.api.agents.get(double.pid).state)
        ctx.charge(tokens=2)
        ctx.checkpoint(number=number)
        return 2 * number

    jobs = double.enqueue_many([{"number": number} for number in range(10)])
    assert rota.run(slots=3, until_idle=True).runs == 10
    assert [job.result() for job in jobs] == [2 * number for number in range(10)]
    assert set(states) == {"RUNNING"}
    assert rota.api.agents.get(double.pid).state == "READY"
    assert [line.used for line in rota.api.ledger.get(double.pid)] == [20]


def test_an_entry_waits_for_its_busy_affinity_supervisor(rota: Rota) -> None:
    gates = {name: threading.Event() for name in ("first", "second", "wanted", "last")}
    begun = {name: threading.Event() for name in gates}

    @rota.agent()
    def work(name: str) -> None:
        begun[name].set()
        assert gates[name].wait(PATIENCE_S)

    supervisors = [rota.supervisor(1, worker_id=name) for name in ("box", "other")]
    threads = [threading.Thread(target=each.run) for each in supervisors]
    for thread in threads:
        thread.start()
    plain = {name: work.enqueue(name=name) for name in ("first", "second")}
    assert all(begun[name].wait(PATIENCE_S) for name in plain)
    held_by = {rota.api.queue.get(job.sched_id).worker_id: name for name, job in plain.items()}
    assert set(held_by) == {"box", "other"}
    wanted, last = work.enqueue(name="wanted", options={"affinity": "box"}), work.enqueue(name="last", priority=-1)
    gates[held_by["other"]].set()
    assert begun["last"].wait(PATIENCE_S)  # the other one is free first, and goes past it
    assert rota.api.queue.get(wanted.sched_id).hold == "worker"
    gates[held_by["box"]].set()
    assert begun["wanted"].wait(PATIENCE_S)
    assert rota.api.queue.get(wanted.sched_id).worker_id == "box"
    for gate in gates.values():
        gate.set()
    last.result(PATIENCE_S)
    for supervisor, thread in zip(supervisors, threads, strict=True):
        supervisor.drain()
        thread.join(PATIENCE_S)


def test_a_waiting_supervisor_is_woken_by_an_entry_and_nudged_by_the_end_of_a_run(rota: Rota) -> None:
    begun, go = threading.Event(), threading.Event()

    @rota.agent()
    def work(name: str) -> str:
        begun.set()
        assert name == "quick" or go.wait(PATIENCE_S)
        return name

    supervisor = rota.supervisor(2)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    slow = work.enqueue(name="slow")
    assert begun.wait(PATIENCE_S)
    assert work.enqueue(name="quick").result(PATIENCE_S) == "quick"  # on the other slot
    go.set()
    assert slow.result(PATIENCE_S) == "slow"  # its end nudged the shift, which was parked for the free slot
    supervisor.drain()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_request_to_cancel_reaches_a_run_over_the_daemon(rota: Rota) -> None:
    begun = threading.Event()

    @rota.agent(restart=RestartPolicy(when="never"))
    def patient(ctx: Any) -> None:
        begun.set()
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        ctx.raise_if_cancelled()

    supervisor = rota.supervisor(1)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    job = patient.enqueue()
    assert begun.wait(PATIENCE_S)
    job.cancel(by="anna")
    with pytest.raises(RunFailed):
        job.result(PATIENCE_S)
    assert job.entry().exit_kind == "cancelled"
    supervisor.drain()
    thread.join(PATIENCE_S)


def test_children_and_lent_budgets_work_over_the_daemon(rota: Rota) -> None:
    @rota.agent()
    def child(ctx: Any, number: int) -> int:
        ctx.charge(tokens=5)
        return number

    @rota.agent(limits=Limits(tokens=100))
    def parent(ctx: Any) -> list[int]:
        children = [ctx.spawn("child", lent={"tokens": 20}, number=number) for number in range(2)]
        total = sum(entry.result for entry in ctx.wait(children))
        return [total, ctx.remaining()["tokens"]]

    job = parent.enqueue()
    rota.run(slots=1, until_idle=True)
    assert job.result() == [1, 90]


def test_a_nudge_before_the_claim_waits_is_not_lost(served: Served) -> None:
    with served.client() as client:
        client.queue.nudge("worker", "1")
        assert client.claim("worker", wait_s=PATIENCE_S, incarnation="1") == []
        client.queue.nudge("worker", "1")
        assert client.turn([], "worker", wait_s=PATIENCE_S, incarnation="1").entries == []


def test_a_turn_completes_runs_before_it_waits(served: Served) -> None:
    with served.client() as client, served.client() as other:
        pid = client.agents.create("agent")
        sched_id = client.queue.enqueue(ScheduleSpec(pid))
        (entry,) = client.turn([], "worker").entries
        report = RunReport(sched_id=sched_id, token=entry.token or 0, result="done")
        waiting = threading.Thread(target=lambda: client.turn([report], "worker", wait_s=PATIENCE_S))
        waiting.start()
        assert other.queue.wait(sched_id, PATIENCE_S).result == "done"
        other.queue.nudge("worker")
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert other.agents.get(pid).state == "READY"


def test_explain_through_the_daemon(served: Served) -> None:
    with open_api(served.unix) as api:
        pid = api.agents.create("agent")
        api.agents.pause(pid, "anna")
        sched_id = api.queue.enqueue(ScheduleSpec(pid))
        (reason,) = api.explain(sched_id).blocking
        assert "anna" in reason.sentence()
        assert api.explain(sched_id).cursor == api.journal.cursor()


def test_the_kernel_is_not_available_through_a_daemon(rota: Rota) -> None:
    with pytest.raises(NotEnabled):
        _ = rota.kernel
    assert Job(rota._link, 1).sched_id == 1

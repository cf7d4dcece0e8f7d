"""Runs on a real cluster of two nodes: functions and programs, messages, stops, deaths, places, the cluster's end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from rota import Rota
from rota.model.events import RunEnded, RunStarted
from tests.on_ray import functions
from tests.on_ray.conftest import WAIT_S, World, running, wait_until, why_not
from tests.on_ray.shared_cluster import TestCluster, own_cluster

pytestmark = pytest.mark.timeout(600)


def test_a_function_streams_its_log_charges_checkpoint_progress_and_result(world: World) -> None:
    def work(ctx: Any, x: int) -> dict[str, Any]:
        print("working on", x)
        left = ctx.charge(tokens=7)
        ctx.checkpoint(at=x)
        ctx.progress(0.5, "half")
        return {"x": x, "left": left, "attempt": ctx.attempt, "key": ctx.key}

    agent = world.agent("worker", work, budget={"tokens": 100})
    job = agent.enqueue(x=3)
    result = job.result(WAIT_S)
    entry = world.rota.api.queue.get(job.sched_id)
    assert result == {"x": 3, "left": {"tokens": 93}, "attempt": 1, "key": result["key"]}
    assert result["key"].startswith(f"{job.sched_id}:1:")
    assert world.rota.api.ledger.get(agent.pid)[0].used == 7
    assert b"working on 3" in world.rota.api.logs.read(job.sched_id).data
    ended = [each for each in world.events(RunEnded) if each["sched_id"] == job.sched_id]
    assert [each["node"] in ("head", "second") for each in ended] == [True]
    assert entry.exit_kind == "completed"


def test_programs_run_by_command_and_ndjson_on_the_node_that_is_named(world: World) -> None:
    code = "import os, sys; print('attempt', os.environ['ROTA_ATTEMPT'], sys.stdin.read())"
    command = world.rota.command("program", [sys.executable, "-c", code], runner="ray", node="second")
    talk = (
        "from rota.agent import run\n"
        "@run\n"
        "def main(run):\n"
        "    run.charge(tokens=2)\n"
        "    return {'got': run.payload['y']}\n"
    )
    ndjson = world.rota.command("talker", [sys.executable, "-c", talk], ndjson=True, runner="ray", node="second")
    jobs = command.enqueue(x=1), ndjson.enqueue(y=5)
    assert jobs[0].result(WAIT_S) == {"exit_code": 0, "output_tail": 'attempt 1 {"x":1}\n'}
    started = [each for each in world.events(RunStarted) if each["sched_id"] == jobs[0].sched_id]
    assert [each["node"] for each in started] == ["second"]
    assert started[0]["os_pid"] > 0


def test_a_message_a_cancel_and_force_stop_a_run(world: World) -> None:
    asked, forced = world.path(), world.path()
    polite = world.agent("polite", functions.until_stopped, max_attempts=1)
    deaf = world.agent("deaf", functions.deaf, max_attempts=1, stop_grace_s=0.5)
    jobs = polite.enqueue(file=str(asked)), deaf.enqueue(file=str(forced))
    started: Callable[[], set[int]] = lambda: {each["sched_id"] for each in world.events(RunStarted)}  # noqa: E731
    wait_until(lambda: {job.sched_id for job in jobs} <= started())
    for job in jobs:
        world.rota.api.queue.request_cancel(job.sched_id)
    entries = [world.rota.api.queue.wait(job.sched_id, WAIT_S) for job in jobs]
    assert [entry.exit_kind for entry in entries] == ["cancelled", "cancelled"]
    assert entries[0].result["partial"] == {"stopped": "cancelled"}
    ended = {each["sched_id"]: each["stopped_by"] for each in world.events(RunEnded) if each.get("stopped_by")}
    assert [ended[job.sched_id] for job in jobs] == ["message", "KILL"]


def test_short_runs_share_a_task_and_each_has_its_own_log_and_result(cluster: TestCluster, tmp_path: Path) -> None:
    with Rota(tmp_path / "short.db") as rota, running(rota, cluster, linger_s=60.0):

        def task_of(x: int) -> tuple[int, str]:
            import ray  # noqa: PLC0415  # on the node

            print("this is run", x)
            return x, str(ray.get_runtime_context().get_task_id())

        agent = rota.agent("short", runner="ray", node="second")(task_of)
        jobs = [(x, agent.enqueue(x=x)) for x in range(5)]
        found = [job.result(WAIT_S) for _, job in jobs]
        assert [x for x, _ in found] == [0, 1, 2, 3, 4]
        assert len({task for _, task in found}) <= 2  # as many as run at a time
        assert [rota.api.logs.read(job.sched_id).data for _, job in jobs] == [b"this is run %d\n" % x for x, _ in jobs]
        # a run of another shape gets the CPUs of tasks that wait, at once
        large = rota.agent("large", runner="ray", node="second", resources={"CPU": 2})(functions.busy)
        large.enqueue(seconds=0.0).result(WAIT_S)


def test_the_run_after_one_that_was_cancelled_is_not_hit(cluster: TestCluster, tmp_path: Path) -> None:
    with Rota(tmp_path / "cancelled.db") as rota, running(rota, cluster, linger_s=60.0):
        agent = rota.agent("either", runner="ray", max_attempts=1, stop_grace_s=0.1, node="second")
        either = agent(functions.until_interrupted)
        for number in range(3):
            file = tmp_path / f"begun-{number}"
            deaf, after = either.enqueue(file=str(file)), either.enqueue()
            wait_until(file.exists)
            rota.api.queue.request_cancel(deaf.sched_id)
            assert rota.api.queue.wait(deaf.sched_id, WAIT_S).exit_kind == "cancelled"
            assert after.result(WAIT_S) == "not interrupted"


def test_force_is_repeated_because_ray_ignores_it_while_it_works_on_a_cancel(world: World) -> None:
    """A sleeping function does not notice the cancel, and the force that follows at once is lost."""
    agent = world.agent("deaf", functions.until_interrupted, max_attempts=1, stop_grace_s=0.0)
    file = world.path()
    job = agent.enqueue(file=str(file))
    wait_until(file.exists)
    world.rota.api.queue.request_cancel(job.sched_id)
    assert world.rota.api.queue.wait(job.sched_id, WAIT_S).exit_kind == "cancelled"


def test_without_lingering_every_run_has_a_task(cluster: TestCluster, tmp_path: Path) -> None:
    with Rota(tmp_path / "apart.db") as rota, running(rota, cluster, linger_s=0.0):

        def own_task() -> str:
            import ray  # noqa: PLC0415  # on the node

            return str(ray.get_runtime_context().get_task_id())

        agent = rota.agent("apart", runner="ray")(own_task)
        assert len({agent.enqueue().result(WAIT_S) for _ in range(3)}) == 3


def test_a_process_that_dies_is_a_crash_and_is_retried(world: World) -> None:
    agent = world.agent("mortal", functions.die_once)
    job = agent.enqueue(marker=str(world.path()))
    assert job.result(WAIT_S) == "alive"
    ended = [each for each in world.events(RunEnded) if each["sched_id"] == job.sched_id]
    assert [(each["exit_kind"], each.get("outcome")) for each in ended] == [
        ("crashed", "worker_died"),
        ("completed", None),
    ]


def test_a_missing_resource_a_missing_node_and_a_function_that_cannot_be_sent(world: World) -> None:
    lock = threading.Lock()
    gpu = world.agent("gpu", functions.busy, resources={"gpu": 1})
    nowhere = world.agent("nowhere", functions.busy, node="fourth")

    def locked() -> bool:
        return lock.locked()

    unsendable = world.agent("unsendable", locked, max_attempts=1)
    jobs = gpu.enqueue(seconds=0), nowhere.enqueue(seconds=0)
    entry = world.rota.api.queue.wait(unsendable.enqueue().sched_id, WAIT_S)
    assert entry.outcome == "unpicklable"
    assert "agent 'unsendable' cannot run on Ray: its function cannot be pickled" in entry.result["error"]

    def why(sched_id: int) -> Any:
        return why_not(world.rota, sched_id)

    wait_until(lambda: all(getattr(why(job.sched_id), "problem", None) for job in jobs))
    found = [why(job.sched_id) for job in jobs]
    assert [each.problem for each in found] == ["resource_missing", "node_missing"]
    assert "no node of the cluster has the resource gpu" in found[0].sentence()
    assert "did you mean GPU?" in found[0].sentence()
    assert found[1].sentence().startswith("the cluster has no node 'fourth'; its nodes: head, second")
    for job in jobs:
        world.rota.api.queue.cancel(job.sched_id)


def test_what_other_programs_keep_waiting_is_withdrawn_and_says_so(
    world: World, cluster: TestCluster, tmp_path: Path
) -> None:
    with Rota(tmp_path / "other.db") as other, running(other, cluster):  # it holds one CPU of each node
        jobs = [
            other.agent(f"on-{node}", runner="ray", node=node)(functions.until_stopped).enqueue(file=str(world.path()))
            for node in ("head", "second")
        ]
        wait_until(lambda: len(other.api.journal.tail(0, 100, kinds=(RunStarted.kind,))) == len(jobs))
        with Rota(tmp_path / "ours.db") as ours, running(ours, cluster, pending_s=1.0):
            agent = ours.agent("large", runner="ray", resources={"CPU": 2})(functions.busy)
            job = agent.enqueue(seconds=0.0)
            wait_until(lambda: getattr(why_not(ours, job.sched_id), "problem", None) == "withdrawn")
            for each in jobs:
                other.api.queue.request_cancel(each.sched_id)
            job.result(WAIT_S)
            assert ours.api.queue.get(job.sched_id).attempt == 1  # a withdrawal counts none


@pytest.mark.soak
@pytest.mark.parametrize(("scarce", "seconds_used"), [("CPU", 160), ("GPU", 80)])
def test_shares_of_what_is_scarce_follow_the_weights_whatever_the_sizes(
    cluster: TestCluster, tmp_path: Path, scarce: Literal["CPU", "GPU"], seconds_used: int
) -> None:
    dimension: Literal["cpu", "gpu"] = "cpu" if scarce == "CPU" else "gpu"
    with Rota(tmp_path / "shares.db", share_by=dimension) as rota:
        heavy = rota.agent("heavy", runner="ray", project="three", project_weight=3.0, resources={scarce: 2})
        light = rota.agent("light", runner="ray", project="one", project_weight=1.0, resources={scarce: 1})
        agents = heavy(functions.busy), light(functions.busy)
        for agent, seconds in zip(agents, (0.9, 1.3), strict=True):
            agent.enqueue_many([{"seconds": seconds}] * 400)
        used = {agent.pid: 0 for agent in agents}
        with running(rota, cluster):

            def measure() -> float:
                events = rota.api.journal.tail(0, 1_000, kinds=(RunEnded.kind,))
                for agent in agents:
                    used[agent.pid] = sum(
                        each.payload.get("usage", {}).get(f"{dimension}_s", 0)
                        for each in events
                        if each.pid == agent.pid
                    )
                return sum(used.values())

            wait_until(lambda: measure() >= seconds_used)
        share = used[agents[0].pid] / sum(used.values())
        assert share == pytest.approx(0.75, abs=0.02)


def test_a_node_dies_and_its_run_is_retried_on_the_other(world: World, cluster: TestCluster) -> None:
    first = world.path()

    def long(ctx: Any, file: str) -> str:
        here = Path(file)
        if ctx.attempt == 1:
            here.write_text("started")
            time.sleep(3_600)
        return f"attempt {ctx.attempt}"

    cluster.do("add third")
    agent = world.agent("long", long, resources={"CPU": 0, "doomed": 1})
    jobs = [agent.enqueue(file=str(first)) for _ in range(2)]  # one on each of two nodes
    started: Callable[[], dict[int, str]] = lambda: {  # noqa: E731
        each["sched_id"]: each["node"] for each in world.events(RunStarted)
    }
    wait_until(lambda: {job.sched_id for job in jobs} <= started().keys())
    (victim,) = [job for job in jobs if started()[job.sched_id] == "third"]
    (survivor,) = [job for job in jobs if job is not victim]
    cluster.do("kill third")
    wait_until(lambda: any(each.get("outcome") == "node_died" for each in world.events(RunEnded)))
    world.rota.api.queue.request_cancel(survivor.sched_id)
    assert victim.result(WAIT_S) == "attempt 2"
    ended = [each for each in world.events(RunEnded) if each["sched_id"] == victim.sched_id]
    assert [(each["exit_kind"], each.get("node")) for each in ended] == [("crashed", None), ("completed", "head")]


def test_the_cluster_goes_away_and_returns(tmp_path: Path) -> None:
    begun, other = tmp_path / "begun", tmp_path / "other"

    def patient(ctx: Any, file: str) -> int:
        with Path(file).open("a") as lines:  # one line for each time that it runs
            lines.write(f"{ctx.key}\n")
        while ctx.attempt == 1:
            time.sleep(0.1)
        return int(ctx.attempt)

    with own_cluster() as cluster, Rota(tmp_path / "rota.db") as rota, running(rota, cluster):
        agent = rota.agent("patient", runner="ray")(patient)
        jobs = [agent.enqueue(file=str(file)) for file in (begun, other)]
        wait_until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in (begun, other)))
        cluster.do("kill all")

        def ends() -> list[tuple[int, str]]:
            events = rota.api.journal.tail(0, 100, kinds=(RunEnded.kind,))
            return [(event.payload["sched_id"], event.payload["exit_kind"]) for event in events]

        wait_until(lambda: len(ends()) == len(jobs))
        cluster.do("restart")
        assert [job.result(WAIT_S) for job in jobs] == [2, 2]
        for job, file in zip(jobs, (begun, other), strict=True):
            assert [kind for sched_id, kind in ends() if sched_id == job.sched_id] == ["crashed", "completed"]
            keys = file.read_text().split()
            assert len(keys) == len(set(keys)) == 2  # once in each claim

"""What an agent keeps when it runs on a cluster: progress, checkpoints, budgets, its environment; GPUs, graphs, fleets.

Each test uses the real cluster of the test run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rota import Graph, Rota
from rota.fleet.config.loader import load_fleet
from rota.fleet.config.ray_plan import look_at_cluster, ray_warnings
from rota.fleet.fleet_run import FleetRun
from rota.model.events import RunEnded, RunStarted
from rota.model.ray import RayCluster
from rota.model.work import ScheduleSpec
from tests.daemon.harness import serving
from tests.on_ray import functions
from tests.on_ray.conftest import WAIT_S, World, running, supervised, wait_until
from tests.on_ray.shared_cluster import TestCluster
from tests.short_folders import SHORT

pytestmark = pytest.mark.timeout(600)


def test_progress_and_the_checkpoint_of_an_attempt_that_failed(world: World) -> None:
    seen = world.path()

    def work(ctx: Any, seen: str) -> dict[str, Any]:
        if ctx.attempt == 1:
            ctx.checkpoint(page=7)
            raise ValueError("once")
        ctx.progress(0.5, "half")
        while not Path(seen).exists():
            ctx.wait_for_stop(0.05)
        return {"saved": ctx.saved}

    job = world.agent("pages", work, max_attempts=2).enqueue(seen=str(seen))
    wait_until(lambda: job.progress() is not None)
    progress = job.progress()
    assert progress is not None
    assert (progress.fraction, progress.text) == (0.5, "half")
    seen.touch()
    assert job.result(WAIT_S) == {"saved": {"page": 7}}


def test_a_run_that_is_over_its_budget_stops(world: World) -> None:
    def spend(ctx: Any) -> None:
        while True:
            ctx.charge(tokens=4)
            ctx.raise_if_stopped()

    agent = world.agent("spender", spend, budget={"tokens": 10}, max_attempts=1)
    entry = world.rota.api.queue.wait(agent.enqueue().sched_id, WAIT_S)
    assert (entry.exit_kind, entry.outcome) == ("failed", "over_budget")
    assert world.rota.api.ledger.get(agent.pid)[0].used == 12  # one charge past it, as on one machine


def test_a_gpu_and_an_environment_of_the_runs_own(world: World) -> None:
    def environment() -> list[str | None]:
        return [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "ROTA_TEST_COLOUR")]

    runtime_env = {"env_vars": {"ROTA_TEST_COLOUR": "green"}}
    needs = {"GPU": 1, "left": 1}
    agent = world.agent("gpu-user", environment, resources=needs, runtime_env=runtime_env, budget={"gpu_s": 1_000})
    device, colour = agent.enqueue().result(WAIT_S)
    assert (device in ("0", "1"), colour) == (True, "green")  # one of the two of the node, and no other
    (ended,) = [each for each in world.events(RunEnded) if each.get("usage", {}).get("gpu_s")]
    assert ended["node"] == "second"  # the one that has `left`
    broken = world.agent("broken", environment, runtime_env={"working_dir": "/does/not/exist"}, max_attempts=1)
    entry = world.rota.api.queue.wait(broken.enqueue().sched_id, WAIT_S)
    assert (entry.exit_kind, entry.outcome) == ("failed", "spawn_failed")
    assert "/does/not/exist" in entry.result["error"]


def test_cpu_settings_of_its_project_are_refused_and_the_run_says_so(world: World) -> None:
    seen = world.path()

    def work(ctx: Any, seen: str) -> None:
        while not Path(seen).exists():
            ctx.wait_for_stop(0.05)

    world.rota.project("held", cpu={"weight": 3, "lease": 1})
    job = world.agent("held", work, project="held").enqueue(seen=str(seen))
    wait_until(lambda: any(each["sched_id"] == job.sched_id for each in world.events(RunStarted)))
    seen.touch()
    job.result(WAIT_S)
    (began,) = [each for each in world.events(RunStarted) if each["sched_id"] == job.sched_id]
    why = "refused: Ray gives the run the resources that it asks for, on any node"
    assert began["advisories"] == [f"cpu weight = 3 is {why}", f"cpu lease = 1 is {why}"]


def test_entries_that_were_queued_before_their_agent_moved(world: World) -> None:
    def where() -> str:
        return "done"

    there, back = world.rota.agent("there")(where), world.agent("back", where)
    for agent in (there, back):
        agent.pause()
    jobs = there.enqueue(), back.enqueue()
    there, back = world.agent("there", where), world.rota.agent("back")(where)
    for agent in (there, back):
        agent.resume()
    assert [job.result(WAIT_S) for job in jobs] == ["done", "done"]
    nodes = {each["sched_id"]: each.get("node") for each in world.events(RunEnded)}
    assert nodes[jobs[0].sched_id] in ("head", "second")
    assert nodes[jobs[1].sched_id] is None


def test_agents_of_a_graph_run_on_the_cluster(world: World) -> None:
    def square(number: int) -> int:
        return number * number

    agent = world.agent("square", square)
    graph = Graph("squares")

    def numbers(count: int) -> list[int]:
        return list(range(count))

    graph.output(graph.node(agent, map_over="number")(graph.node(numbers)))
    run = world.rota.run_graph(graph, inputs={"count": 3})
    assert run.result(wait_s=WAIT_S) == [0, 1, 4]
    ended = [each for each in world.events(RunEnded) if each.get("node") in ("head", "second")]
    assert len(ended) >= 3


def test_the_autoscaler_is_told_what_waits_only_if_it_is_wanted(
    world: World, cluster: TestCluster, tmp_path: Path
) -> None:
    assert world.agent("demand", functions.told_demand).enqueue(wanted=0).result(WAIT_S) == []
    with Rota(tmp_path / "rota.db") as rota, running(rota, cluster, tell_demand=True):
        demand = rota.agent("demand", runner="ray")(functions.told_demand)
        demand.enqueue(wanted=0).result(WAIT_S)  # it is connected
        waiting = rota.agent("waiting", runner="ray", resources={"GPU": 8})(functions.busy)
        waiting.enqueue_many([{"seconds": 0}] * 3)
        told = demand.enqueue(wanted=4).result(WAIT_S)
    assert sorted(told, key=len) == [{"CPU": 1.0}, *[{"CPU": 1.0, "GPU": 8.0}] * 3]
    assert world.agent("demand", functions.told_demand).enqueue(wanted=0).result(WAIT_S) == []  # it has left


FLEET = """
[ray]
address = "{address}"

[agents.hello]
command = ["{python}", "-c", "print('hello from', __import__('os').environ['ROTA_AGENT'])"]
runner = "ray"

[agents.large]
command = "true"
runner = "ray"
resources = {{CPU = 64}}

[agents.odd]
command = "true"
runner = "ray"
resources = {{Gpu = 1}}
"""


def test_a_fleet_file_under_a_daemon_and_its_plan(cluster: TestCluster, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.format(address=cluster.address, python=sys.executable))
    fleet = load_fleet(path)
    large, odd = ray_warnings(fleet)
    assert large == (
        "agents.large.resources: it needs CPU 64, and no node of the cluster has more than 2, so its runs wait"
    )
    assert odd.startswith("agents.odd.resources: no node of the cluster has the resource Gpu; it has CPU 4, GPU 4")
    assert odd.endswith("did you mean GPU?, so its runs wait")
    with serving(tmp_path / "rota.db") as daemon, daemon.client() as client:
        run = FleetRun(client, fleet)
        thread = threading.Thread(target=run.run)
        thread.start()
        try:
            (agent,) = client.agents.find("hello")
            entry = client.queue.wait(client.queue.enqueue(ScheduleSpec(agent.pid)), WAIT_S)
        finally:
            run.supervisor.drain()
            thread.join()
        assert entry.exit_kind == "completed"
        assert entry.result["output_tail"] == "hello from hello\n"


def test_a_cluster_of_another_version_is_named(
    cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\n"
        "other = sys.modules['ray._version'] = types.ModuleType('ray._version')\n"
        "other.version, other.commit = '1.2.3', ''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = look_at_cluster(cluster.address)
    assert isinstance(found, str)
    assert found.startswith(f"the Ray cluster at {cluster.address} has another version: Version mismatch")
    assert "1.2.3" in found


@pytest.mark.soak
def test_a_local_cluster_is_started_where_none_is_named_and_ends_with_the_supervisor(
    cluster: TestCluster,  # noqa: ARG001  # for its network
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(prefix="rl", dir=SHORT, ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("HOME", folder)
        monkeypatch.setenv("RAY_TMPDIR", folder)
        with Rota(Path(folder, "rota.db")) as rota, supervised(rota, RayCluster()):
            job = rota.agent("local", runner="ray")(functions.busy).enqueue(seconds=0)
            assert job.result(WAIT_S) is None
            assert _processes_of(folder)
        wait_until(lambda: not _processes_of(folder))


def _processes_of(folder: str) -> list[str]:
    """The commands that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return [each for each in found if folder in each]

"""A daemon that is not there: workers of graphs wait for it, spawned children are not doubled, fleets start before it.

What a supervisor does while its daemon is away is in test_poison.py.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rota import Rota, store
from rota.errors import StoreUnavailable
from rota.fleet import slot_loop
from rota.fleet.graph_workers import graph_supervisor
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.lanes.durable import DurableRuns
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions
from rota.kernel import Kernel, ScheduleSpec
from rota.model.work import ReadyEntry
from rota.rpc import connect
from rota.rpc.client.remote_calls import CallKeys, is_retry_safe
from rota.rpc.methods import METHODS
from rota.service import outages
from tests.adversity.poison_world import Background, until
from tests.daemon.harness import PATIENCE_S, Served, serving
from tests.graph.durable_worlds import ASYNC, LANES, DurableWorld, count_work_note
from tests.graph.parts import add
from tests.graph.worlds import compile_world, node, wire

ENTRIES = 5


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (outages, slot_loop):
        monkeypatch.setattr(module, "RETRY_S", 0.01)


# --- workers of graphs ---------------------------------------------------------------------------


def world_with_entries() -> DurableWorld:
    world = count_work_note()
    world.runner(steps=ENTRIES).run()
    assert len(world.entries("queued")) == ENTRIES
    return world


def test_a_supervisor_of_graphs_waits_for_its_daemon(tmp_path: Path) -> None:
    world, path = world_with_entries(), str(tmp_path / "rota.db")
    world.kernel.store.backup(path)
    address = Served(path, http=False)
    address.stop()
    with connect(address.unix, timeout_s=5.0, retry_s=0.0) as client:
        supervisor = graph_supervisor(client, world.registry, ["world"])
        thread = threading.Thread(target=supervisor.run, daemon=True)
        thread.start()
        for _ in range(2):  # it is away, back, away and back
            with serving(path, http=False) as served:
                kernel = served.daemon.handlers.kernel
                until(lambda: kernel.queue.counts().get("completed", 0) >= ENTRIES)  # noqa: B023  # within the loop
                assert thread.is_alive()
        assert thread.is_alive()
        supervisor.drain()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_component_that_charges_waits_for_the_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a run that its own process executes, as `rota graph run` does; what it used is counted once."""
    path, is_charging, is_away = str(tmp_path / "rota.db"), threading.Event(), threading.Event()

    @component("outage.spend")
    def spend(context: GraphContext) -> int:
        is_charging.set()
        assert is_away.wait(PATIENCE_S)
        context.charge(tokens=3)
        return context.remaining()["tokens"]

    nodes = [node(spend, "spend"), node(add, "far", on="any_input", lane="far")]
    plan, registry = compile_world(nodes, [wire("spend.out > far.value", **ASYNC)], lanes=LANES, budget={"tokens": 10})
    address = Served(path, http=False)
    with connect(address.unix, timeout_s=5.0, retry_s=0.0) as client, ThreadPoolExecutor(1) as pool:
        options = RuntimeRunnerOptions(durable=DurableRuns(client), run_id="r1")
        running = pool.submit(RuntimeRunner(plan, registry, options).run)
        assert is_charging.wait(PATIENCE_S)
        address.stop()
        is_away.set()
        until(lambda: "waiting for the store" in caplog.text or running.done())
        with serving(path, http=False) as served:
            assert running.result(PATIENCE_S).errors == ()
            (line,) = served.daemon.handlers.kernel.ledger.graph_budgets("r1")
            assert line.used == 3


def test_a_charge_of_a_component_whose_response_was_lost_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run that its own process executes: the charge was counted the first time, and was not the second time."""
    calls: list[str] = []

    @component("outage.use")
    def use(context: GraphContext) -> int:
        context.charge(tokens=3)
        return context.charge(tokens=4)["tokens"]

    nodes = [node(use, "use"), node(add, "far", on="any_input", lane="far")]
    plan, registry = compile_world(nodes, [wire("use.out > far.value", **ASYNC)], lanes=LANES, budget={"tokens": 10})
    with serving(str(tmp_path / "rota.db"), http=False) as served, connect(served.unix) as client:
        charge = client.ledger.charge_graph

        def lose(run_id: str, amounts: dict[str, int], **options: Any) -> Any:
            calls.append(options["key"])
            found = charge(run_id, amounts, **options) if len(calls) != 3 else None
            if len(calls) in (1, 3):
                raise StoreUnavailable("the response was lost", may_be_executed=True)
            return found

        monkeypatch.setattr(client.ledger, "charge_graph", lose)
        options = RuntimeRunnerOptions(durable=DurableRuns(client), run_id="r1")
        assert RuntimeRunner(plan, registry, options).run().errors == ()
        (line,) = client.ledger.graph_budgets("r1")
    assert line.used == 7
    assert (calls[0], calls[2]) == (calls[1], calls[3])
    assert len(set(calls)) == 2


def test_a_client_repeats_the_charge_of_a_graph_run() -> None:
    charge = METHODS["kernel.ledger.charge_graph"]
    bare = charge.params("r1", {"tokens": 1})
    assert not is_retry_safe(charge, bare)
    assert is_retry_safe(charge, CallKeys().add_to_params(charge, bare))


# --- children ------------------------------------------------------------------------------------


def test_a_child_whose_response_was_lost_is_spawned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(str(tmp_path / "rota.db"), http=False) as served, Rota(served.unix) as remote:
        spawn = remote.api.supervision.spawn
        calls: list[str | None] = []

        def lose(spec: ScheduleSpec, *args: Any) -> int:
            calls.append(spec.key)
            found = spawn(spec, *args) if len(calls) % 3 != 2 else 0  # every second of three calls is not executed
            if len(calls) % 3:
                raise StoreUnavailable("the response was lost", may_be_executed=True)
            return found

        monkeypatch.setattr(remote.api.supervision, "spawn", lose)

        @remote.agent()
        def child(number: int) -> int:
            return number

        @remote.agent(budget={"tokens": 100})
        def parent(ctx: Any) -> list[int]:
            children = [ctx.spawn("child", lent={"tokens": 10}, number=number) for number in range(3)]
            return [entry.result for entry in ctx.wait(children)]

        job = parent.enqueue(options={"ceiling": {"tokens": 100}})
        remote.run(until_idle=True)
        assert job.entry().result == [0, 1, 2]
        assert len(calls) == 9
        assert len(set(calls)) == 3
        entries: list[ReadyEntry] = remote.api.queue.list()[0]
        assert len(entries) == 4
        lent = [event for event in remote.api.journal.tail(0, 10_000) if event.kind == "kernel.budget.lent"]
        assert len(lent) == 3


def test_a_client_repeats_a_spawn_that_has_a_key() -> None:
    spawn = METHODS["kernel.run.spawn"]
    bare = spawn.params(ScheduleSpec(1, parent_id=1), 7, {"tokens": 1})
    keyed = CallKeys().add_to_params(spawn, bare)
    assert not is_retry_safe(spawn, bare)
    assert is_retry_safe(spawn, keyed)
    assert (keyed.token, keyed.lent) == (7, {"tokens": 1})


# --- the start of a fleet --------------------------------------------------------------------------


def test_a_supervisor_that_is_started_before_its_daemon_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "rota.db")
    with serving(path, http=False) as served, Rota(served.unix) as remote:

        @remote.agent()
        def hello() -> str:
            return "hello"

        job, address, functions = hello.enqueue(), served.unix, remote._functions
    with Rota() as rota, connect(address, timeout_s=5.0, retry_s=0.0) as client:
        own = rota.api
        rota._link.use(client)
        rota._functions = functions
        running = Background(rota.supervisor(1))
        until(lambda: "waiting for the store" in caplog.text)
        assert running.is_running
        with serving(path, http=False) as served:
            until(lambda: served.daemon.handlers.kernel.queue.get(job.sched_id).state == "completed")
            running.stop()
        rota._link.use(own)
    assert caplog.text.count("waiting for the store") == 1


def test_a_fleet_that_is_started_before_its_daemon_says_so_and_runs_when_it_is_there(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    with serving(path, http=False) as served:
        address = served.unix
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(f'store = "{address}"\n[agents.hello]\ncommand = ["true"]\n')
    command = [sys.executable, "-m", "rota", "run", str(fleet), "--until-idle", "--plain"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert f"{address} cannot be reached" in said
            assert "waiting for it, for at most 60 min; Ctrl-C ends it" in said
            with serving(path, http=False):
                assert process.wait(PATIENCE_S) == 0, process.stderr.read()
        finally:
            process.kill()
    kernel = Kernel(store.open(path))
    assert [agent.name for agent in kernel.agents.find("hello")] == ["hello"]
    kernel.store.close()

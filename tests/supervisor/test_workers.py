"""Workers register, drain, leave; one that is killed is lost, once. Embedded, at a daemon, and in a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import Rota, store
from rota.clock import ManualClock, SystemClock
from rota.errors import Forbidden, StoreUnavailable
from rota.fleet.agent_settings import SETTINGS_KEY, AgentSettings
from rota.fleet.graph_workers import graph_supervisor
from rota.fleet.supervisor import CLAIM_TIMEOUT_S, HEARTBEAT_S, STOP_LOGGER, Supervisor, SupervisorSettings
from rota.graph.component_registry import ComponentRegistry
from rota.kernel import Kernel, ScheduleSpec
from rota.model.events import SupervisorChanged
from rota.model.workers import WORKER_ALIVE_S, WORKER_REFRESH_S, SlotPool, WorkerInfo
from rota.rpc import connect
from rota.service.dispatcher import Dispatcher
from tests.daemon.harness import make_token, serving
from tests.host.support import until
from tests.supervisor.world import PATIENCE_S, World


def worker_of(world: World) -> WorkerInfo | None:
    found = world.rota.api.workers.list()
    return found[0] if found else None


def test_a_supervisor_registers_renews_drains_and_leaves() -> None:
    world = World()
    released, log = threading.Event(), []

    @world.rota.agent()
    def patient() -> None:
        log.append("began")
        assert released.wait(PATIENCE_S)

    patient.enqueue()
    running = world.run_in_background(slots={"any": 2, "gpu": 1}, worker_id="box")
    world.until(lambda: bool(log))
    worker = worker_of(world)
    assert worker is not None
    assert (worker.worker_id, worker.kind, worker.host) == ("box", "supervisor", socket.gethostname())
    assert (worker.os_pid, worker.slots, worker.kinds) == (os.getpid(), 3, ("gpu",))
    assert (worker.running, worker.draining) == (1, False)
    assert {(pool.worker_id, pool.slots) for pool in worker.pools} == {("box", 2), ("box/gpu", 1)}
    seen_at = worker.seen_at
    cursor = world.rota.api.journal.cursor()
    world.clock.until_parked(2)
    world.clock.advance(WORKER_REFRESH_S)
    world.until(lambda: (worker_of(world) or worker).seen_at > seen_at)
    assert world.rota.api.journal.cursor() == cursor  # no event
    world.rota.stop()
    world.until(lambda: bool((worker_of(world) or worker).draining))
    released.set()
    world.stop(running)
    assert world.rota.api.workers.list(lost=True) == []
    assert world.facts("kernel.worker.lost") == []
    world.close()


def test_a_supervisor_at_a_daemon_registers_there(tmp_path: Path) -> None:
    with serving(str(tmp_path / "rota.db")) as served, served.client() as client:
        client.enqueue(ScheduleSpec(client.create_agent("ghost", "callable")))
        supervisor = Supervisor(client, SupervisorSettings(slots=3, worker_id="remote"))
        running = threading.Thread(target=supervisor.run, daemon=True)
        running.start()
        started = client.journal.follow(0, wait_s=PATIENCE_S)
        assert any(event.kind == SupervisorChanged.kind for event in started)
        (worker,) = client.workers.list()
        assert (worker.worker_id, worker.slots, worker.incarnation) == ("remote", 3, supervisor.incarnation)
        supervisor.drain()
        running.join(PATIENCE_S)
        assert client.workers.list(lost=True) == []


def test_a_supervisor_of_graphs_registers_with_its_kinds() -> None:
    kernel = Kernel(store.open(":memory:"))
    supervisor = graph_supervisor(Dispatcher(kernel), ComponentRegistry(), ["a", "b"], worker_id="g")
    running = threading.Thread(target=supervisor.run, daemon=True)
    running.start()
    started = kernel.journal.follow(0, wait_s=PATIENCE_S)
    assert any(event.kind == SupervisorChanged.kind for event in started)
    (found,) = kernel.workers.list()
    assert (found.worker_id, found.kind, found.slots, found.kinds) == ("g", "supervisor", 2, ("graph:a", "graph:b"))
    supervisor.drain()
    running.join(PATIENCE_S)
    assert kernel.workers.list(lost=True) == []
    kernel.store.close()


PROGRAM = """
import sys, threading
from rota import Rota
rota = Rota(sys.argv[1])

@rota.agent(max_attempts=5)
def stuck():
    print("running", flush=True)
    threading.Event().wait()

stuck.enqueue()
rota.run(worker_id="box", echo=True)
"""


def test_a_worker_that_is_killed_is_lost_once(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    with subprocess.Popen([sys.executable, "-c", PROGRAM, path], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        program.send_signal(signal.SIGKILL)
    clock = SystemClock()
    with Rota(path) as rota:
        (worker,) = rota.api.workers.list()
        assert (worker.worker_id, worker.os_pid, worker.running) == ("box", program.pid, 1)
    later = ManualClock(clock.now() + WORKER_ALIVE_S + 10)  # to this clock, the time between has passed
    kernels = [Kernel(store.open(path, clock=later)) for _ in range(2)]
    for kernel in kernels * 2:
        kernel.queue.upkeep()
    (lost,) = kernels[0].journal.tail(kinds=("kernel.worker.lost",))
    assert lost.payload["worker_id"] == "box"
    assert (lost.payload["host"], lost.payload["entries"]) == (socket.gethostname(), 1)
    assert kernels[0].workers.list(lost=True) == []
    for kernel in kernels:
        kernel.store.close()


def test_the_claim_of_a_run_that_is_prepared_for_long_is_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may be away just after a claim, and what the run needs cannot be read."""
    world = World()
    preparing, prepares = threading.Event(), threading.Event()

    @world.rota.agent()
    def work() -> None: ...

    job = work.enqueue()
    supervisor = world.rota.supervisor(2)
    prepare = supervisor._claimed._assignment

    def held(*args: Any) -> Any:
        preparing.set()
        assert prepares.wait(PATIENCE_S)
        return prepare(*args)

    monkeypatch.setattr(supervisor._claimed, "_assignment", held)
    running = threading.Thread(target=supervisor.run, daemon=True)
    running.start()
    assert preparing.wait(PATIENCE_S)
    claimed_at = world.clock.now()
    world.until(lambda: (job.entry().claim_expires_at or 0) > claimed_at + 2 * CLAIM_TIMEOUT_S)
    prepares.set()
    assert world.ended(job).attempt == 1
    supervisor.drain()
    running.join(PATIENCE_S)
    assert not running.is_alive()
    world.close()


SUSPENDED_PROGRAM = """
import sys
from rota import Rota
rota = Rota(sys.argv[1])
rota.command("stuck", ["sh", "-c", "while [ ! -e $0 ]; do sleep 0.05; done", sys.argv[2]], max_attempts=5).enqueue()
rota.run(worker_id="box", slots=2, claim_timeout_s=1, heartbeat_s=0.3)
"""


@pytest.mark.parametrize("at", ["file", "daemon"])
def test_a_supervisor_that_was_stopped_for_longer_than_its_claim_lasts_keeps_its_run(tmp_path: Path, at: str) -> None:
    """It has a free slot, so a claim of it waits; when it goes on, the claim and the heartbeat are both due at once."""
    path, gate = str(tmp_path / "rota.db"), tmp_path / "gate"
    with ExitStack() as stack:
        daemon = None if at == "file" else stack.enter_context(serving(path, http=False))
        kernel = Kernel(store.open(path)) if daemon is None else daemon.daemon.handlers.kernel
        address = path if daemon is None else daemon.unix
        program = stack.enter_context(subprocess.Popen([sys.executable, "-c", SUSPENDED_PROGRAM, address, str(gate)]))
        stack.callback(program.kill)
        clock, queue = SystemClock(), kernel.queue
        until(lambda: bool(kernel.journal.tail(kinds=("kernel.run.started",))))
        (entry,) = queue.list(state="dispatched")[0]
        for _ in range(3):
            program.send_signal(signal.SIGSTOP)
            until(lambda: (queue.get(entry.sched_id).claim_expires_at or 0) < clock.now() - 0.2)
            program.send_signal(signal.SIGCONT)
            until(lambda: (queue.get(entry.sched_id).claim_expires_at or 0) > clock.now())
        gate.touch()
        until(lambda: queue.get(entry.sched_id).state == "completed")
        ended = queue.get(entry.sched_id)
        assert (ended.exit_kind, ended.attempt) == ("completed", 1)
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_S) == 0
        if daemon is None:
            kernel.store.close()


def test_a_restart_under_the_same_id_replaces_the_killed_one_and_none_is_lost(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    kernel = Kernel(store.open(path))
    kernel.workers.register("box", "old", kind="supervisor", host="h", os_pid=1, pools=[SlotPool("box", 1)])
    supervisor = Supervisor(Dispatcher(kernel), SupervisorSettings(worker_id="box"))
    supervisor.run(until_idle=True)
    assert kernel.workers.list(lost=True) == []
    assert kernel.journal.tail(kinds=("kernel.worker.lost",)) == []
    kernel.store.close()


def test_what_is_due_is_done_while_every_slot_is_busy() -> None:
    world = World()
    began, released = threading.Event(), threading.Event()

    @world.rota.agent()
    def patient() -> None:
        began.set()
        assert released.wait(PATIENCE_S)

    @world.rota.agent()
    def other() -> None: ...

    lost = other.enqueue()
    assert len(world.rota.api.claim("dead", 1, claim_timeout_s=2)) == 1
    late = other.enqueue(deadline=timedelta(seconds=2))
    busy = patient.enqueue(priority=1)
    running = world.run_in_background(slots=1, heartbeat_s=1)
    assert began.wait(PATIENCE_S)
    world.until(lambda: lost.entry().state == "queued")
    world.until(lambda: late.entry().state == "expired")
    assert busy.entry().state == "dispatched"
    released.set()
    world.ended(lost)
    world.stop(running)
    world.close()


def test_heartbeats_that_could_not_be_written_are_sent_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    began, released = threading.Event(), threading.Event()
    tried_at: list[float] = []
    send = world.rota.api.queue.heartbeat_many

    def unavailable_for_writes(*args: Any) -> Any:
        tried_at.append(world.clock.monotonic())
        if len(tried_at) < 4:
            raise StoreUnavailable("the disk is full")
        return send(*args)

    @world.rota.agent()
    def patient() -> None:
        began.set()
        assert released.wait(PATIENCE_S)

    busy = patient.enqueue()
    monkeypatch.setattr(world.rota.api.queue, "heartbeat_many", unavailable_for_writes)
    running = world.run_in_background(slots=1)
    assert began.wait(PATIENCE_S)
    world.until(lambda: len(tried_at) == 5)
    assert tried_at[3] - tried_at[0] < HEARTBEAT_S <= tried_at[4] - tried_at[3]
    released.set()
    assert world.ended(busy).attempt == 1
    world.stop(running)
    world.close()


class SlowTask:
    """A background task that takes long, as triggers do for many events."""

    kinds = ()

    def __init__(self) -> None:
        self.began, self.released = threading.Event(), threading.Event()

    def on_events(self, _events: Any) -> None:
        self.began.set()
        assert self.released.wait(PATIENCE_S)

    def due_in_s(self) -> float | None:
        return None

    def on_due(self) -> None: ...


def test_claims_are_extended_and_the_registration_is_renewed_while_a_background_task_takes_long() -> None:
    world, task = World(), SlowTask()
    began, released = threading.Event(), threading.Event()

    @world.rota.agent()
    def patient() -> None:
        began.set()
        assert released.wait(PATIENCE_S)

    busy = patient.enqueue()
    supervisor = world.rota.supervisor(1)
    supervisor.add_background_task(task)
    running = threading.Thread(target=supervisor.run, daemon=True)
    running.start()
    assert began.wait(PATIENCE_S)
    assert task.began.wait(PATIENCE_S)
    started_at = world.clock.now()
    world.until(lambda: (busy.entry().claim_expires_at or 0) > started_at + 2 * CLAIM_TIMEOUT_S)
    world.until(lambda: (worker_of(world) or pytest.fail("it is not known")).seen_at > started_at + CLAIM_TIMEOUT_S)
    task.released.set()
    released.set()
    assert world.ended(busy).attempt == 1
    supervisor.drain()
    running.join(PATIENCE_S)
    assert not running.is_alive()
    world.close()


@pytest.mark.parametrize("bound", [False, True])
def test_workers_are_for_workers_and_operators(tmp_path: Path, bound: bool) -> None:
    with serving(str(tmp_path / "rota.db")) as served, served.client() as local:
        local.projects.create("lab")
        limits: dict[str, Any] = {"projects": ("lab",)} if bound else {}
        with connect(served.url, token=make_token(served.path, "read", **limits)) as client:
            if bound:
                with pytest.raises(Forbidden):
                    client.workers.list()
            else:
                assert client.workers.list() == []
            with pytest.raises(Forbidden):
                client.workers.leave("box", "one")


def test_a_run_that_is_still_prepared_is_named_and_stopped(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A second Ctrl-C just after a claim: the run must not go on after it, as one that nobody knew of."""
    kernel = Kernel(store.open(":memory:"))
    api = Dispatcher(kernel)
    settings = msgspec.to_builtins(AgentSettings(runner="command", argv=("sleep", "600")))
    pid = kernel.agents.create("sleeper", metadata={SETTINGS_KEY: settings})
    supervisor = Supervisor(api, SupervisorSettings(slots=1, worker_id="box"))
    preparing, prepares = threading.Event(), threading.Event()
    prepare = supervisor._claimed._assignment

    def held(*args: Any) -> Any:
        preparing.set()
        assert prepares.wait(PATIENCE_S)
        return prepare(*args)

    monkeypatch.setattr(supervisor._claimed, "_assignment", held)
    running = threading.Thread(target=supervisor.run, daemon=True)
    running.start()
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    assert preparing.wait(PATIENCE_S)
    for _ in range(2):
        supervisor._stop_on_signal(signal.SIGINT)
    assert [record.getMessage() for record in caplog.records if record.name == STOP_LOGGER] == [
        f"waiting for 1 run (#{sched_id}); Ctrl-C again stops it",
        f"stopping 1 run (#{sched_id}); its entry is queued again",
    ]
    prepares.set()
    running.join(PATIENCE_S)
    assert not running.is_alive()
    assert kernel.queue.get(sched_id).status == "ready"
    kernel.store.close()

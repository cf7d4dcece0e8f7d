"""Entries of queue lanes: a supervisor calls their components."""

from __future__ import annotations

import threading
from typing import Any

from rota.fleet.graph_workers import graph_supervisor
from rota.fleet.supervisor import Supervisor, SupervisorSettings
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.model.checks import RESULT_BYTES_MAX
from tests.graph.durable_worlds import DurableWorld, count_work_note
from tests.graph.parts import log
from tests.graph.test_fleet_lane import another_worker

TEST_TIMEOUT_S = 30.0  # real time; it only ends a test that hangs


def ran(work: Any, registry: ComponentRegistry | None = None) -> DurableWorld:
    """A graph whose one entry has been run."""
    world = count_work_note(work)
    world.runner(steps=1).run()
    assert world.supervisor(registry).run(until_idle=True).runs == 1
    return world


def test_a_component_that_fails_fails_its_entry_with_its_message() -> None:
    @component("test.broken")
    def broken(value: int) -> int:
        raise ValueError(f"no {value}")

    (entry,) = ran(broken).entries()
    assert (entry.exit_kind, entry.result) == ("failed", {"error": "component work failed: ValueError: no 1"})


def test_a_component_that_cannot_be_imported_here_is_left_to_another_worker() -> None:
    @component("not_here:double")
    def double(value: int) -> int:
        return 2 * value

    world = count_work_note(double)
    world.runner(steps=1).run()
    another_worker(world.kernel)
    Supervisor(world.api, SupervisorSettings()).run(until_idle=True)
    (entry,) = world.entries()
    assert (entry.status, entry.attempt) == ("ready", 0)
    world.kernel.workers.leave("beta", "i")
    assert world.work() == 1


def test_a_failing_lifecycle_method_fails_the_entry() -> None:
    @component("test.hooked")
    class Hooked:
        def execute(self, value: int) -> int:
            return value

        def deactivate(self) -> None:
            raise RuntimeError("door stuck")

    (entry,) = ran(Hooked).entries()
    assert (entry.exit_kind, entry.result) == ("failed", {"error": "RuntimeError: door stuck"})


def test_a_component_that_exits_fails_its_entry_and_the_worker_continues() -> None:
    @component("test.leaves")
    def leaves(value: int) -> int:
        raise SystemExit(3)

    (entry,) = ran(leaves).entries()
    assert (entry.exit_kind, entry.result) == ("failed", {"error": "component work failed: SystemExit: 3"})


def test_a_worker_without_the_component_fails_the_entry_with_a_reason() -> None:
    @component("test.known")
    def known(value: int) -> int:
        return value

    (entry,) = ran(known, ComponentRegistry()).entries()
    assert entry.exit_kind == "failed"
    assert "test.known" in entry.result["error"]


def test_a_result_that_is_too_large_fails_the_entry() -> None:
    @component("test.large")
    def large(value: int) -> Any:
        return "x" * RESULT_BYTES_MAX

    (entry,) = ran(large).entries()
    assert entry.exit_kind == "failed"
    assert "the maximum result size is 262,144" in entry.result["error"]


def test_a_supervisor_without_the_graph_leaves_its_entries() -> None:
    world = count_work_note()
    world.runner(steps=1).run()
    assert graph_supervisor(world.api, world.registry, ["elsewhere"]).run(until_idle=True).runs == 0
    assert world.work() == 1


def test_a_cancelled_entry_stops_its_component() -> None:
    began = threading.Event()

    @component("test.patient")
    def patient(value: int, *, context: GraphContext) -> None:
        began.set()
        while not context.cancel_requested():
            threading.Event().wait(0.001)
        log.append("gave up")

    world = count_work_note(patient)
    world.runner(steps=1).run()
    supervisor = world.supervisor()
    running = threading.Thread(target=supervisor.run, daemon=True)
    running.start()
    assert began.wait(TEST_TIMEOUT_S)
    world.kernel.queue.request_cancel(1)
    ended = world.api.queue.wait(1, TEST_TIMEOUT_S)
    supervisor.drain()
    running.join(TEST_TIMEOUT_S)
    assert (ended.exit_kind, log) == ("cancelled", ["gave up"])

"""Workers of the queue lane: they run entries of graphs, send heartbeats, and cancel when they must."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import RotaError
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.entry_worker import EntryWorker
from rota.graph.invocation import GraphContext
from rota.graph.stop import StopToken
from rota.kernel import Kernel
from rota.kernel.runs import HeartbeatReply
from rota.model.checks import RESULT_BYTES_MAX
from rota.service.dispatcher import Dispatcher
from tests.graph.durable_worlds import DurableWorld, count_work_note
from tests.graph.parts import log

TEST_TIMEOUT_S = 30.0  # real time; it only ends a test that hangs


class SchedulerApi(Dispatcher):
    """A dispatcher that reports each heartbeat of its worker."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.heard = threading.Event()
        self._beat = kernel.queue.heartbeat
        kernel.queue.heartbeat = self._heartbeat  # type: ignore[method-assign]  # the real one, and a signal

    def _heartbeat(self, sched_id: int, token: int, now: float | None = None) -> HeartbeatReply:
        try:
            return self._beat(sched_id, token, now)
        finally:
            self.heard.set()


class Patient:
    """A graph whose component works until it is cancelled; a worker runs it on its own thread."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.clock = ManualClock()
        self.stop = StopToken()

        @component("test.patient")
        def patient(value: int, *, context: GraphContext) -> None:
            self.began.set()
            while not context.cancel_requested():
                threading.Event().wait(0.001)
            log.append("gave up")

        self.world = count_work_note(patient)
        self.world.runner(steps=1).run()
        self.api = SchedulerApi(self.world.kernel)
        worker = EntryWorker(self.api, self.world.registry, ["world"], clock=self.clock)
        self.thread = threading.Thread(target=worker.serve, args=(self.stop,), daemon=True)
        self.thread.start()
        assert self.began.wait(TEST_TIMEOUT_S)

    def beat(self) -> None:
        """Make a heartbeat due, and wait for it."""
        self.clock.until_parked()
        self.api.heard.clear()
        self.clock.advance(15.0)
        assert self.api.heard.wait(TEST_TIMEOUT_S)

    def end(self) -> None:
        self.stop.request()
        self.thread.join(TEST_TIMEOUT_S)
        assert not self.thread.is_alive()


def test_a_worker_extends_the_claim_of_the_entry_it_runs() -> None:
    patient = Patient()
    (entry,) = patient.world.entries()
    patient.beat()
    (later,) = patient.world.entries()
    assert entry.claim_expires_at is not None
    assert later.claim_expires_at is not None
    assert later.claim_expires_at > entry.claim_expires_at
    patient.world.kernel.queue.request_cancel(1)
    patient.beat()
    patient.end()


def test_a_cancel_request_reaches_the_component_at_the_next_heartbeat() -> None:
    patient = Patient()
    patient.world.kernel.queue.request_cancel(1)
    patient.beat()
    ended = patient.world.api.queue.wait(1, TEST_TIMEOUT_S)
    assert (ended.exit_kind, ended.result) == ("cancelled", {"error": "the entry was cancelled"})
    patient.end()
    assert log == ["gave up"]


def test_a_lost_claim_cancels_the_component_and_its_result_is_refused() -> None:
    patient = Patient()
    assert patient.world.kernel.queue.gc_dispatched(0, now=1e10) == 1
    patient.beat()
    patient.end()
    (entry,) = patient.world.entries()
    assert (log, entry.state, entry.hold) == (["gave up"], "queued", "backoff")


def test_a_worker_that_is_asked_to_stop_finishes_its_entry() -> None:
    patient = Patient()
    patient.world.runner(steps=1).run()  # one more entry, which the worker does not start
    patient.stop.request()
    patient.world.kernel.queue.request_cancel(1)  # the only thing that ends the component
    patient.beat()
    patient.end()
    assert log == ["gave up"]
    assert [each.state for each in patient.world.entries()] == ["completed", "queued"]


def ran(work: Any, registry: ComponentRegistry | None = None) -> DurableWorld:
    """A graph whose one entry has been run."""
    world = count_work_note(work)
    world.runner(steps=1).run()
    assert world.worker(registry).run_ready() == 1
    return world


def test_a_component_that_fails_fails_its_entry_with_its_message() -> None:
    @component("test.broken")
    def broken(value: int) -> int:
        raise ValueError(f"no {value}")

    (entry,) = ran(broken).entries()
    assert (entry.exit_kind, entry.result) == ("failed", {"error": "component work failed: ValueError: no 1"})


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
    assert (entry.exit_kind, entry.result) == ("failed", {"error": "SystemExit: 3"})


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


def test_a_worker_runs_at_most_max_entries() -> None:
    world = count_work_note()
    world.runner(steps=3).run()
    assert world.work(most=2) == 2
    assert [entry.state for entry in world.entries()] == ["completed", "completed", "queued"]
    assert world.work(most=0) == 0


def test_a_worker_serves_only_the_graphs_it_was_given() -> None:
    world = count_work_note()
    world.runner(steps=1).run()
    assert EntryWorker(world.api, world.registry, ["elsewhere"]).run_ready() == 0
    assert world.work() == 1


def test_an_api_that_fails_ends_the_worker_with_its_error() -> None:
    world = count_work_note()
    world.kernel.store.close()
    with pytest.raises(RotaError):
        world.worker().serve(StopToken())

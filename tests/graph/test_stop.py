"""Stopping: at the next check, in order, and without deadlocks.

The seeded test builds a random graph over all kinds of lanes of this process, lets it run, and asks it to stop at a
random moment, while threads are switched as often as Python can. It must end every time, with every component
deactivated and no thread left behind. ROTA_GRAPH_STOP_ROUNDS sets how often (50 by default).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rota.clock import ManualClock, SystemClock
from rota.errors import GraphRunFailed, LaneUnknown
from rota.graph.components import component
from rota.graph.invocation import GraphContext, Invocation
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import SchedulerStopReason
from rota.graph.stop import StopToken, WakeSignal
from tests.graph.durable_worlds import count_work_note
from tests.graph.parts import Count, log
from tests.graph.random_worlds import Life, RandomWorld
from tests.graph.worlds import make_runner, node, run, wire

ROUNDS = int(os.environ.get("ROTA_GRAPH_STOP_ROUNDS", "1000" if os.environ.get("ROTA_SOAK") else "50"))
TEST_TIMEOUT_S = 60.0  # real time; it only ends a test that hangs


class TestStopToken:
    def test_it_is_set_once_and_keeps_the_first_reason(self) -> None:
        token = StopToken()
        token.request("first")
        token.request("second")
        assert (token.is_set, token.reason) == (True, "first")

    def test_a_subscriber_is_called_even_if_it_subscribes_late(self) -> None:
        token, called = StopToken(), []
        token.subscribe(lambda: called.append("early"))
        token.request()
        token.subscribe(lambda: called.append("late"))
        assert called == ["early", "late"]

    def test_an_unsubscribed_callback_is_not_called(self) -> None:
        token, called = StopToken(), []

        def wake() -> None:
            called.append(1)

        token.subscribe(wake)
        token.unsubscribe(wake)
        token.request()
        assert called == []

    def test_a_notification_since_the_last_check_ends_the_wait(self) -> None:
        wake_signal = WakeSignal(ManualClock())  # a wait on this clock would never end
        count = wake_signal.count
        wake_signal.notify()
        wake_signal.wait(count)
        assert wake_signal.count == count + 1

    def test_a_wait_without_a_notification_ends_after_a_moment(self) -> None:
        wake_signal = WakeSignal(SystemClock())
        wake_signal.wait(wake_signal.count)
        assert wake_signal.count == 0


class TestStopping:
    def test_no_new_epoch_begins_and_the_current_one_is_finished(self) -> None:
        token = StopToken()

        @component("stop.first")
        def first() -> int:
            log.append("first")
            token.request()
            return 1

        @component("stop.second")
        def second(value: int) -> None:
            log.append("second")

        nodes = [node(first), node(second, on="any_input")]
        result = run(nodes, [wire("stop.first.out > stop.second.value")], stop_token=token, steps=10)
        assert log == ["first", "second"]
        assert (result.epochs, result.scheduler_stop_reason) == (1, SchedulerStopReason.STOP_REQUESTED)

    def test_all_started_components_are_deactivated_in_reverse_order(self) -> None:
        token = StopToken()

        def living(name: str) -> Any:
            class Living:
                def deactivate(self) -> None:
                    log.append(name)

                def execute(self) -> None:
                    token.request()

            return component(f"stop.{name}")(Living)

        run([node(living(name), name) for name in "abc"], stop_token=token, steps=10)
        assert log == ["c", "b", "a"]

    def test_stop_requested_and_cancel_requested_read_the_same_token(self) -> None:
        token = StopToken()

        @component("stop.look", outputs=())
        def look(invocation: Invocation, context: GraphContext) -> None:
            log.append((invocation.stop_requested, invocation.cancel_requested(), context.cancel_requested()))
            token.request()
            log.append((invocation.stop_requested, invocation.cancel_requested(), context.cancel_requested()))

        run([node(look)], stop_token=token)
        assert log == [(False, False, False), (True, True, True)]

    def test_a_spent_budget_cancels_the_invocation_and_not_the_run(self) -> None:
        clock = ManualClock()

        @component("stop.slow", outputs=())
        def slow(invocation: Invocation) -> None:
            log.append((invocation.cancel_requested(), invocation.stop_requested))
            clock.advance(0.02)
            log.append((invocation.cancel_requested(), invocation.stop_requested))

        result = run([node(slow, budget_ms=10)], clock=clock, steps=2)
        assert log == 2 * [(False, False), (True, False)]
        assert result.scheduler_stop_reason == SchedulerStopReason.TICK_BOUND

    def test_a_cancellation_counts_as_requested_even_if_the_component_does_not_check(self) -> None:
        token = StopToken()

        @component("stop.blind")
        def blind() -> None:
            token.request()

        result = run([node(blind)], stop_token=token)
        counts = [
            result.metric(f"runtime.component.cancellation_{what}_count", component_id="stop.blind", lane="main")
            for what in ("requested", "observed")
        ]
        assert counts == [1, 0]

    def test_a_signal_handler_may_request_it(self) -> None:
        token, asleep = StopToken(), threading.Event()
        before = signal.signal(signal.SIGUSR1, lambda *_: token.request("signal"))
        lanes = {"main": {"type": "fixed_rate", "period_ms": 1_000_000, "wall_clock_enabled": True}}
        runner = make_runner([node(Count)], lanes=lanes, stop_token=token, steps=10, on_epoch=lambda _: asleep.set())

        def interrupt() -> None:
            asleep.wait(TEST_TIMEOUT_S)
            os.kill(os.getpid(), signal.SIGUSR1)

        helper = threading.Thread(target=interrupt)
        helper.start()
        try:
            result = runner.run()
        finally:
            helper.join(TEST_TIMEOUT_S)
            signal.signal(signal.SIGUSR1, before)
        assert (result.epochs, token.reason) == (1, "signal")


# --- at any moment -------------------------------------------------------------------------------


@pytest.fixture
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def stopped_at_random(seed: int, *, processes: bool = False) -> RuntimeRunnerResult:
    """Run a random graph, ask it to stop at a random moment, and check that nothing is left of it."""
    before = set(threading.enumerate())
    life, token, moment = Life(), StopToken(), random.Random(-seed - 1)
    epochs, reached = moment.randint(0, 6), threading.Event()

    def note_epoch(epoch_id: int) -> None:
        if epoch_id >= epochs:
            reached.set()

    world = RandomWorld(seed, life, processes=processes)
    runner = world.runner(stop_token=token, steps=100_000, on_epoch=note_epoch)
    results: list[RuntimeRunnerResult] = []
    thread = threading.Thread(target=lambda: results.append(runner.run()), name=f"run-{seed}")
    thread.start()
    while epochs and not reached.wait(0.001) and thread.is_alive():
        step_by_hand(runner)
    for _ in range(moment.randint(0, 3)):
        step_by_hand(runner)
    token.request()
    thread.join(TEST_TIMEOUT_S)
    if thread.is_alive():
        faulthandler.dump_traceback()
        raise AssertionError(f"seed {seed}: the run did not come to its end")
    assert life.active == 0, f"seed {seed}: a component was not deactivated"
    assert set(threading.enumerate()) <= before, f"seed {seed}: a thread was left behind"
    return results[0]


def step_by_hand(runner: RuntimeRunner) -> None:
    """Step like a host that does not know whether the lane exists or the run is over."""
    with contextlib.suppress(LaneUnknown, GraphRunFailed):
        runner.step("ui", invocations_max=2)


@pytest.mark.usefixtures("_switch_often")
def test_a_stop_at_any_moment_never_deadlocks() -> None:
    reasons = {stopped_at_random(seed).scheduler_stop_reason for seed in range(ROUNDS)}
    assert SchedulerStopReason.STOP_REQUESTED in reasons


def stopped_with_entries_under_way(seed: int) -> SchedulerStopReason:
    """Run a graph with a queue lane and two workers, and ask it to stop at a random moment."""
    chance, enough = random.Random(seed), threading.Event()
    before = set(threading.enumerate())
    world, token, moment = count_work_note(), StopToken(), chance.randint(0, 12)

    def stop_in_time(epoch_id: int) -> None:
        if epoch_id >= moment:
            token.request()

    runner = world.runner(stop_token=token, steps=100_000, on_epoch=stop_in_time)

    def work() -> None:
        while not enough.is_set():
            world.work(most=3)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    thread.join(TEST_TIMEOUT_S)
    enough.set()
    for worker in workers:
        worker.join(TEST_TIMEOUT_S)
    world.kernel.store.close()
    assert not thread.is_alive(), f"seed {seed}: the run did not come to its end"
    assert set(threading.enumerate()) <= before, f"seed {seed}: a thread was left behind"
    assert runner.result.ok, runner.result.errors
    return runner.result.scheduler_stop_reason


@pytest.mark.usefixtures("_switch_often")
def test_a_stop_with_entries_in_the_durable_queue_never_deadlocks() -> None:
    reasons = {stopped_with_entries_under_way(seed) for seed in range(ROUNDS // 5)}
    assert reasons == {SchedulerStopReason.STOP_REQUESTED}


def test_a_stop_with_worker_processes_never_deadlocks() -> None:
    results = [stopped_at_random(seed, processes=True) for seed in range(1 + ROUNDS // 50)]
    assert SchedulerStopReason.STOP_REQUESTED in {result.scheduler_stop_reason for result in results}
    assert all(any(worker.lane == "process" for worker in result.workers) for result in results)

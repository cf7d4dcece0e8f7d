"""The isolated_thread lane: a thread of its own, with or without a cadence of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rota.clock import ManualClock
from rota.graph.channels import make_inbox
from rota.graph.components import component
from rota.graph.invocation import GraphContext, Invocation
from rota.graph.messages import Origin
from rota.graph.nodes import DeferredPublication, PublicationOutbox
from rota.graph.reports import Reports
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import SchedulerStopReason
from rota.graph.stop import StopToken
from tests.graph.parts import Count, add, burst, log, note
from tests.graph.worlds import make_runner, node, run, wire

TEST_TIMEOUT_S = 30.0  # real time; it only ends a test that hangs

OWN = {"main": {"type": "event_loop"}, "own": {"type": "isolated_thread"}}


def settle(runner: RuntimeRunner, done: Callable[[], bool]) -> None:
    """Run epochs until something has happened on another thread."""
    engine = runner._require_engine()
    for _ in range(1000):
        count = engine.wake_signal.count
        if done():
            return
        runner.step()
        if not done():
            engine.wake_signal.wait(count)
    raise AssertionError("it never happened")


@component
def ask(request: int) -> int:
    """Publishes a request of the host."""
    return request


class TestIsolatedThread:
    def test_dedicated_thread(self) -> None:
        threads: set[str] = set()

        @component
        def work(value: int) -> None:
            threads.add(threading.current_thread().name)

        nodes = [node(Count), node(work, on="any_input", lane="own")]
        wires = [wire("parts.count.out > work.value", "async", mode="queue", capacity=99)]
        result = run(nodes, wires, lanes=OWN, steps=5)
        assert result.ok
        assert threads == {"own-0"}
        assert result.metric("runtime.component.completed_count", component_id="work", lane="own") == 4
        assert result.metric("runtime.scheduler.worker_count", lane="own") == 1

    def test_what_it_publishes_is_committed_at_the_next_boundary(self) -> None:
        nodes = [
            node(ask, on="request", sources=[{"type": "request"}]),
            node(add, on="any_input", lane="own", config={"amount": 100}),
            node(note, on="any_input"),
        ]
        wires = [
            wire("ask.out > parts.add.value", "async", mode="queue", capacity=9),
            wire("parts.add.out > parts.note.value", "async", mode="queue", capacity=9),
        ]
        runner = make_runner(nodes, wires, lanes=OWN, run_until_idle=True)
        runner.start()
        for number in range(3):
            runner.send("ask", number)
        result = runner.run()
        assert log == [100, 101, 102]
        assert result.scheduler_stop_reason == SchedulerStopReason.IDLE

    def test_components_of_one_lane_see_each_other_immediately(self) -> None:
        nodes = [
            node(Count, lane="own"),
            node(add, "first", on="any_input", lane="own"),
            node(add, "second", on="any_input", lane="own"),
            node(note, on="any_input", lane="own"),
        ]
        wires = [
            wire("parts.count.out > first.value"),
            wire("first.out > second.value"),
            wire("second.out > parts.note.value"),
        ]
        runner = make_runner(nodes, wires, lanes=OWN)
        with runner:
            settle(runner, lambda: len(log) >= 2)
        assert log[:2] == [3, 4]

    def test_until_idle_waits_for_work_on_another_thread(self) -> None:
        gate = threading.Event()

        @component
        def slow(value: int) -> int:
            gate.wait(TEST_TIMEOUT_S)
            return value

        nodes = [
            node(ask, on="request", sources=[{"type": "request"}]),
            node(slow, on="any_input", lane="own"),
            node(note, on="any_input"),
        ]
        wires = [wire("ask.out > slow.value", "async"), wire("slow.out > parts.note.value", "async")]
        runner = make_runner(nodes, wires, lanes=OWN, run_until_idle=True)
        runner.start()
        runner.send("ask", 7)
        threading.Timer(0.0, gate.set).start()
        runner.run()
        assert log == [7]

    def test_an_error_on_its_thread_ends_the_run(self) -> None:
        failed = threading.Event()

        @component
        def work(value: int) -> None:
            failed.set()
            raise ValueError("on my own")

        nodes = [node(Count), node(work, on="any_input", lane="own")]
        result = run(nodes, [wire("parts.count.out > work.value", "async")], lanes=OWN, steps=1_000_000)
        assert failed.is_set()
        assert result.scheduler_stop_reason == SchedulerStopReason.ERROR
        assert result.runtime_errors[0].lane == "own"

    def test_accepted_invocations_are_executed_before_the_thread_ends(self) -> None:
        begun, gate = threading.Event(), threading.Event()
        seen: list[int] = []

        @component
        def work(value: int) -> None:
            begun.set()
            gate.wait(TEST_TIMEOUT_S)
            seen.append(value)

        nodes = [node(burst, config={"size": 4}), node(work, on="any_input", lane="own")]
        wires = [wire("parts.burst.out > work.value", "async", mode="queue", capacity=9)]
        with make_runner(nodes, wires, lanes=OWN) as runner:
            runner.step()
            runner.step()
            assert begun.wait(TEST_TIMEOUT_S)
            threading.Timer(0.0, gate.set).start()
        assert seen[:4] == [0, 1, 2, 3]

    def test_a_loop_can_run_on_it(self) -> None:
        @component
        def grow(value: int = 0, back: int = 0) -> int:
            return max(value, back) + 1

        @component(outputs=("back", "done"))
        def judge(value: int, context: GraphContext) -> None:
            context.publish("back", value)
            context.publish("done", value)
            if value >= 5:
                context.report_converged()

        nodes = [
            node(ask, on="request", sources=[{"type": "request"}]),
            node(grow, on={"type": "any_input", "inputs": ["value", "back"]}, lane="own"),
            node(judge, on="any_input", lane="own"),
            node(note, on="any_input"),
        ]
        wires = [
            wire("ask.out > grow.value", "async"),
            wire("grow.out > judge.value"),
            wire("judge.back > grow.back", id="back"),
            wire("judge.done > parts.note.value", "async"),
        ]
        loops = [
            {"id": "loop", "components": ["grow", "judge"], "loop_policy": {"type": "fixed_point", "max_iterations": 9}}
        ]
        runner = make_runner(nodes, wires, lanes=OWN, loops=loops)
        with runner:
            runner.send("ask", 1)
            settle(runner, lambda: bool(log))
        assert log[0] == 5
        assert runner.result.loops[0].reason == "component_report"

    def test_its_queue_is_bounded_like_that_of_a_pool(self) -> None:
        begun, gate = threading.Event(), threading.Event()
        seen: list[int] = []

        @component
        def work(value: int) -> None:
            begun.set()
            gate.wait(TEST_TIMEOUT_S)
            seen.append(value)

        lanes = {**OWN, "own": {"type": "isolated_thread", "queue_capacity": 2, "overflow": "drop_oldest"}}
        nodes = [node(burst, config={"size": 6}), node(work, on="any_input", lane="own")]
        wires = [wire("parts.burst.out > work.value", "async", mode="queue", capacity=9)]
        runner = make_runner(nodes, wires, lanes=lanes)
        with runner:
            runner.step()
            runner.step()
            assert begun.wait(TEST_TIMEOUT_S)
            threading.Timer(0.0, gate.set).start()
        assert seen[:3] == [3, 4, 5]
        assert runner.result.metric("runtime.scheduler.rejected_count", lane="own") >= 3

    def test_it_begins_when_its_components_are_active_and_not_before(self) -> None:
        @component
        class Living:
            def activate(self) -> None:
                log.append("activate")

            def execute(self) -> None:
                log.append("execute")

        for fields in ({}, {"period_ms": 1}):
            log.clear()
            lanes = {**OWN, "own": {"type": "isolated_thread", **fields}}
            runner = make_runner([node(Living, lane="own")], lanes=lanes)
            with runner:
                settle(runner, lambda: len(log) > 1)
            assert log[:2] == ["activate", "execute"]

    def test_a_component_that_exits_fails_and_the_thread_continues(self) -> None:
        @component
        def leave(value: int) -> None:
            if value == 0:
                raise SystemExit(3)
            log.append(value)

        nodes = [node(burst, config={"size": 3}), node(leave, on="any_input", lane="own", on_error="continue")]
        wires = [wire("parts.burst.out > leave.value", "async", mode="queue", capacity=9)]
        result = run(nodes, wires, lanes=OWN, steps=2)
        assert log == [1, 2]
        assert "SystemExit" in result.errors[0]

    def test_an_exit_inside_a_loop_is_a_failure_of_its_component(self) -> None:
        @component
        def leave(value: int = 0) -> int:
            raise SystemExit(3)

        nodes = [node(leave, "a", lane="own"), node(add, "b", on="any_input", lane="own")]
        wires = [wire("a.out > b.value"), wire("b.out > a.value", id="back")]
        loops = [{"id": "loop", "components": ["a", "b"], "loop_policy": {"type": "fixed_point"}}]
        result = run(nodes, wires, lanes=OWN, loops=loops, steps=1_000_000)
        assert result.errors == ("component a failed to execute: SystemExit: 3",)
        assert (result.runtime_errors[0].code, result.runtime_errors[0].lane) == ("component_execute", "own")

    def test_a_full_lane_may_end_the_run(self) -> None:
        lanes = {**OWN, "own": {"type": "isolated_thread", "queue_capacity": 1, "overflow": "fail_fast"}}
        nodes = [node(burst, config={"size": 9}), node(note, on="any_input", lane="own")]
        wires = [wire("parts.burst.out > parts.note.value", "async", mode="queue", capacity=99)]
        result = run(nodes, wires, lanes=lanes, steps=1_000_000)
        assert result.runtime_errors[0].code == "lane_overflow"

    def test_a_full_channel_of_the_lane_may_end_the_run(self) -> None:
        nodes = [node(burst, config={"size": 9}), node(note, on="any_input", lane="own")]
        edge = wire("parts.burst.out > parts.note.value", "async", mode="queue", capacity=3, overflow="fail_fast")
        result = run(nodes, [edge], lanes=OWN, steps=1_000_000)
        assert result.runtime_errors[0].code == "channel_overflow"


class TestIndependentCadence:
    def test_independent_fixed_rate(self) -> None:
        """Two lanes tick at their own rates, independently of the epochs of the graph."""
        clock = ManualClock()
        ticked = threading.Semaphore(0)
        began: dict[str, list[float]] = {"fast": [], "slow": []}

        @component
        def work(invocation: Invocation) -> None:
            began[invocation.component_id].append(round(clock.monotonic(), 6))
            ticked.release()

        lanes = {
            "main": {"type": "event_loop"},
            "a": {"type": "isolated_thread", "period_ms": 10},
            "b": {"type": "isolated_thread", "period_ms": 30},
        }
        runner = make_runner([node(work, "fast", lane="a"), node(work, "slow", lane="b")], lanes=lanes, clock=clock)
        runner.start()
        for expected in (2, 1, 1, 2, 1, 1):
            for _ in range(expected):
                assert ticked.acquire(timeout=TEST_TIMEOUT_S)
            clock.until_parked(2)
            clock.advance(0.01)
        for _ in range(2):
            assert ticked.acquire(timeout=TEST_TIMEOUT_S)
        result = runner.finish()
        assert began == {"fast": [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06], "slow": [0.0, 0.03, 0.06]}
        assert result.metric("runtime.scheduler.tick_count", lane="a") == 7

    def test_its_overruns_and_skipped_ticks_are_counted_and_traced(self) -> None:
        clock = ManualClock()
        ticked = threading.Semaphore(0)

        @component
        def work() -> None:
            clock.advance(0.025)
            ticked.release()

        lanes = {"main": {"type": "event_loop"}, "own": {"type": "isolated_thread", "period_ms": 10}}
        runner = make_runner([node(work, lane="own")], lanes=lanes, clock=clock, trace=True)
        runner.start()
        assert ticked.acquire(timeout=TEST_TIMEOUT_S)
        clock.until_parked()
        result = runner.finish()
        assert result.metric("runtime.scheduler.tick_overrun_count", lane="own") == 1
        assert result.metric("runtime.scheduler.skipped_tick_count", lane="own") == 1
        assert result.trace is not None
        seen = [event.name for event in result.trace.events() if event.name.startswith("fixed_rate")]
        assert seen == [
            "fixed_rate_tick_begin",
            "fixed_rate_tick",
            "fixed_rate_tick_end",
            "fixed_rate_overrun",
            "fixed_rate_skipped_tick",
        ]

    def test_a_stop_ends_its_sleep(self) -> None:
        clock, token = ManualClock(), StopToken()
        lanes = {"main": {"type": "event_loop"}, "own": {"type": "isolated_thread", "period_ms": 1_000_000}}
        runner = make_runner([node(Count, lane="own")], lanes=lanes, clock=clock, stop_token=token, steps=5)
        result = runner.run()
        assert result.epochs == 5


def test_the_outbox_is_bounded() -> None:
    reports = Reports("run")
    outbox = PublicationOutbox(reports, capacity=3)
    inbox = make_inbox("a", "request", reports)
    for number in range(5):
        outbox.append(DeferredPublication(inbox, number, Origin(1, 0.0), None))
    assert [each.payload for each in outbox] == [0, 1, 2]
    assert (outbox.rejected, [event.kind for event in reports.health_events]) == (2, ["outbox_reject"])
    assert len(outbox.take()) == 3
    assert len(outbox) == 0


def test_messages_that_arrive_during_a_loop_wait_until_it_ends() -> None:
    inside, go_on = threading.Event(), threading.Event()

    @component
    def slow(value: int = 0, back: int = 0, before: int = 0) -> int:
        inside.set()
        go_on.wait(TEST_TIMEOUT_S)
        log.append((value, before))
        return value

    @component(outputs=("back",))
    def echo(value: int) -> int:
        return value

    nodes = [
        node(ask, on="request", sources=[{"type": "request"}]),
        node(slow, on={"type": "any_input", "inputs": ["value", "back"]}, lane="own"),
        node(echo, on="any_input", lane="own"),
        node(Count),
    ]
    wires = [
        wire("ask.out > slow.value", "async", mode="queue", capacity=9),
        wire("parts.count.out > slow.before", "delay", mode="previous_tick", id="before"),
        wire("slow.out > echo.value"),
        wire("echo.back > slow.back", id="back"),
    ]
    loops = [{"id": "loop", "components": ["echo", "slow"], "loop_policy": {"type": "fixed_point"}}]
    runner = make_runner(nodes, wires, lanes=OWN, loops=loops)
    with runner:
        runner.send("ask", 1)
        runner.step()
        runner.step()
        assert inside.wait(TEST_TIMEOUT_S)
        runner.send("ask", 2)
        runner.step()
        runner.step()  # delivers 2 and begins an epoch while the loop is running
        go_on.set()
        settle(runner, lambda: any(value == 2 for value, _ in log))
    assert log[0][0] == 1

"""What happens to a component that fails: fail_fast, continue, isolate, retry."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import GraphRunFailed
from rota.graph.components import component
from rota.graph.invocation import GraphContext, Invocation
from rota.graph.reports import ERRORS_MAX, HEALTH_EVENTS_MAX, ReportedFailure, Reports, RunError, error_text
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run_options import SchedulerStopReason
from rota.graph.stop import StopToken
from tests.graph.durable_worlds import count_work_note
from tests.graph.parts import Count, add, burst, log, note
from tests.graph.worlds import make_runner, run, wire
from tests.graph.worlds import node as node_

LANES = {"main": {"type": "event_loop"}, "pool": {"type": "thread_pool", "max_threads": 2}}
ON = pytest.mark.parametrize("lane", ["main", "pool"])


@component("errors.odd")
def odd(value: int) -> int:
    """Refuses odd numbers."""
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


def go(lane: str, on_error: str, steps: int = 4, thing: Any = odd, **execution: Any) -> RuntimeRunnerResult:
    nodes = [
        node_(Count),
        node_(thing, "work", on="any_input", lane=lane, on_error=on_error, **execution),
        node_(note, on="any_input"),
    ]
    wires = [wire("parts.count.out > work.value"), wire("work.out > parts.note.value")]
    return run(nodes, wires, lanes=LANES, steps=steps, trace=True)


@ON
class TestPolicies:
    def test_fail_fast_ends_the_run(self, lane: str) -> None:
        result = go(lane, "fail_fast")
        assert (result.epochs, result.scheduler_stop_reason) == (1, SchedulerStopReason.ERROR)
        assert result.errors == ("component work failed to execute: ValueError: 1 is odd",)
        assert result.runtime_errors[0].fatal

    def test_continue_records_the_error_and_continues(self, lane: str) -> None:
        result = go(lane, "continue")
        assert log == [2, 4]
        assert (result.epochs, result.ok, result.error_count) == (4, False, 2)
        assert not any(error.fatal for error in result.runtime_errors)
        assert result.metric("runtime.component.error_count", component_id="work", lane=lane) == 2

    def test_isolate_removes_the_component_from_the_run(self, lane: str) -> None:
        result = go(lane, "isolate")
        assert log == []
        assert (result.epochs, result.error_count) == (4, 1)
        assert result.metric("runtime.component.execute_count", component_id="work", lane=lane) == 1
        assert result.metric("runtime.channel.drop_count", channel_id="parts.count>work") == 3
        assert [event.kind for event in result.health_events] == ["component_isolated"]

    def test_retry_tries_again_immediately(self, lane: str) -> None:
        @component("errors.third_time")
        def third_time(value: int, invocation: Invocation) -> int:
            if invocation.attempt < 3:
                raise OSError("not yet")
            return value

        result = go(lane, "retry", thing=third_time, max_attempts=3)
        assert (log, result.ok) == ([1, 2, 3, 4], True)
        assert result.metric("runtime.component.retry_count", component_id="work", lane=lane) == 8

    def test_a_stop_check_by_the_runtime_does_not_count_as_observed(self, lane: str) -> None:
        token = StopToken()

        @component("test.stops")
        def stops() -> None:
            token.request()
            raise ValueError("and fails")

        nodes = [node_(stops, "a", lane=lane, on_error="retry", max_attempts=3)]
        result = run(nodes, lanes=LANES, stop_token=token)
        assert result.metric("runtime.component.retry_count", component_id="a", lane=lane) == 0
        assert result.metric("runtime.component.cancellation_observed_count", component_id="a", lane=lane) == 0
        assert result.metric("runtime.component.cancellation_requested_count", component_id="a", lane=lane) == 1

    def test_retry_ends_the_run_when_all_attempts_failed(self, lane: str) -> None:
        result = go(lane, "retry", max_attempts=2)
        assert (result.epochs, result.scheduler_stop_reason) == (1, SchedulerStopReason.ERROR)
        assert result.trace is not None
        attributes = [event.attributes for event in result.trace.events() if event.component_id == "work"]
        assert {"error": "ValueError: 1 is odd", "attempts": "2"} in attributes

    def test_publications_of_a_failed_attempt_are_discarded(self, lane: str) -> None:
        @component("errors.careless", outputs=("out",))
        def careless(value: int, context: GraphContext) -> None:
            context.publish("out", f"attempt {context.invocation.attempt}")
            if context.invocation.attempt == 1:
                raise OSError("once more")

        go(lane, "retry", thing=careless, steps=1)
        assert log == ["attempt 2"]


@component("errors.leaves")
def leaves(value: int) -> int:
    sys.exit(value)


@component("errors.leaves_async")
async def leaves_async(value: int) -> int:
    sys.exit(value)


@component("errors.cancelled")
async def cancelled(value: int) -> int:
    raise asyncio.CancelledError("by itself")


@component("errors.leaves_with_context", outputs=())
def leaves_with_context(value: int, context: GraphContext) -> None:
    sys.exit(value)


class TestExit:
    """sys.exit in a component is a failure of the component, on every lane and path; Ctrl-C is not."""

    @ON
    @pytest.mark.parametrize("thing", [leaves, leaves_async, leaves_with_context])
    def test_it_is_a_failure(self, lane: str, thing: Any) -> None:
        nodes = [node_(Count), node_(thing, "work", on="any_input", lane=lane, on_error="continue")]
        result = run(nodes, [wire("parts.count.out > work.value")], lanes=LANES, steps=2)
        assert result.errors == tuple(f"component work failed to execute: SystemExit: {code}" for code in (1, 2))
        assert (result.epochs, result.scheduler_stop_reason) == (2, SchedulerStopReason.TICK_BOUND)

    def test_it_can_be_retried(self) -> None:
        @component("errors.second_time")
        def second_time(value: int, invocation: Invocation) -> int:
            if invocation.attempt == 1:
                sys.exit(1)
            return value

        go("main", "retry", thing=second_time, steps=1)
        assert log == [1]

    def test_it_ends_the_iteration_of_a_loop(self) -> None:
        @component("errors.start")
        def start(value: int = 0) -> int:
            return value + 1

        nodes = [node_(leaves, "b", on="any_input"), node_(start, "a")]
        wires = [wire("a.out > b.value"), wire("b.out > a.value", id="back")]
        loops = [{"id": "loop", "components": ["a", "b"], "loop_policy": {"type": "fixed_point"}}]
        result = run(nodes, wires, loops=loops)
        assert result.errors == ("component b failed to execute: SystemExit: 1",)
        assert result.loops[0].reason == "component_error"

    def test_on_a_lane_that_the_host_steps(self) -> None:
        lanes = {"main": {"type": "event_loop"}, "ui": {"type": "manual_step"}}
        nodes = [node_(Count), node_(leaves, "work", on="any_input", lane="ui", on_error="continue")]
        with make_runner(nodes, [wire("parts.count.out > work.value", "delay")], lanes=lanes) as runner:
            runner.step()
            runner.step()
            assert runner.step("ui") == 1
        assert runner.result.errors == ("component work failed to execute: SystemExit: 1",)

    def test_a_coroutine_that_cancels_itself_has_failed(self) -> None:
        assert go("main", "continue", thing=cancelled, steps=1).errors == (
            "component work failed to execute: CancelledError: by itself",
        )

    def test_an_interrupt_is_not_a_failure_of_the_component(self) -> None:
        @component("errors.interrupted")
        def interrupted() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run([node_(interrupted)])


class TestTexts:
    def test_a_failure_of_the_run_names_its_phase_and_whom_it_concerns(self) -> None:
        lanes = {"main": {"type": "thread_pool", "queue_capacity": 1, "overflow": "fail_fast"}}
        nodes = [node_(burst, config={"size": 5}), node_(note, "n", on="any_input")]
        result = run(nodes, [wire("parts.burst.out > n.value", mode="queue", capacity=9)], lanes=lanes)
        assert result.errors == (
            "runtime: component n: 5 invocations are ready, but lane main accepts 2 (overflow: fail_fast)",
        )

    def test_a_failed_entry_reads_like_any_failure(self) -> None:
        world = count_work_note(odd, on_error="continue")
        world.runner(steps=1).run()
        world.work(1)
        assert world.runner(steps=1).run().errors == ("component work failed to execute: ValueError: 1 is odd",)

    def test_nothing_is_said_twice(self) -> None:
        error = RunError(
            phase="runtime", code="loop_not_converged", message="loop l did not converge", component_id="l"
        )
        assert str(error) == "runtime: loop l did not converge"
        assert error_text(ReportedFailure("ValueError: no")) == "ValueError: no"
        assert error_text(GraphRunFailed("component a: ValueError: no")) == "component a: ValueError: no"


def test_after_a_stop_nothing_is_retried() -> None:
    token = StopToken()

    @component("errors.stopping")
    def stopping(invocation: Invocation) -> None:
        log.append(invocation.attempt)
        token.request()
        raise OSError("no")

    run([node_(stopping, on_error="retry", max_attempts=9)], stop_token=token)
    assert log == [1]


@ON
def test_a_failed_callback_has_a_duration_too(lane: str) -> None:
    clock = ManualClock()

    @component("errors.slow")
    def slow() -> None:
        clock.advance(0.5)
        raise ValueError("late")

    result = run([node_(slow, lane=lane, on_error="continue")], lanes=LANES, clock=clock)
    assert result.metric("runtime.scheduler.last_callback_duration_ms", lane=lane) == 500


def test_one_failing_component_does_not_affect_the_others() -> None:
    nodes = [
        node_(Count),
        node_(odd, "bad", on="any_input", on_error="isolate"),
        node_(add, "good", on="any_input"),
        node_(note, on="any_input"),
    ]
    wires = [
        wire("parts.count.out > bad.value"),
        wire("parts.count.out > good.value"),
        wire("good.out > parts.note.value"),
    ]
    run(nodes, wires, steps=3)
    assert log == [2, 3, 4]


def test_an_error_without_a_readable_message_does_not_fail_the_run() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @component("errors.mute")
    def mute() -> None:
        raise Mute

    result = run([node_(mute, on_error="continue")])
    assert "could not be read" in result.errors[0]


def test_records_are_bounded_and_all_are_counted() -> None:
    reports = Reports("run")
    for number in range(ERRORS_MAX + 5):
        reports.error("execute", "component_execute", f"error {number}" + "x" * 5000, fatal=False)
    for number in range(HEALTH_EVENTS_MAX + 5):
        reports.health("kind", f"event {number}")
    assert (len(reports.errors), reports.error_count) == (ERRORS_MAX, ERRORS_MAX + 5)
    assert (len(reports.health_events), reports.health_count) == (HEALTH_EVENTS_MAX, HEALTH_EVENTS_MAX + 5)
    assert len(reports.errors[0].message) <= 2_000
    assert reports.failure is None


def test_the_first_fatal_error_is_the_one_that_ended_the_run() -> None:
    reports = Reports("run")
    first = reports.error("execute", "component_execute", "first")
    reports.error("execute", "component_execute", "second")
    assert reports.failure is first


@ON
def test_a_component_without_outputs_that_returns_a_value_fails(lane: str) -> None:
    @component("errors.sink")
    def sink(value: int) -> None:
        return value  # type: ignore[return-value]

    nodes = [node_(Count), node_(sink, "sink", on="any_input", lane=lane)]
    result = run(nodes, [wire("parts.count.out > sink.value")], lanes=LANES)
    assert "has no output, but returned a value of type int" in result.errors[0]


@ON
@pytest.mark.parametrize("plain", [True, False])
def test_a_payload_that_cannot_be_copied_fails_its_publisher(lane: str, plain: bool) -> None:
    @component("errors.locks")
    def locks() -> Any:
        return threading.Lock()

    @component("errors.long_locks")
    def long_locks(context: GraphContext) -> Any:
        return threading.Lock()

    thing = locks if plain else long_locks
    nodes = [node_(thing, "locks", lane=lane, reentrant=True), node_(note, on="any_input")]
    result = run(nodes, [wire("locks.out > parts.note.value")], lanes=LANES)
    assert "a lock cannot be copied" in result.errors[0]
    assert result.runtime_errors[0].component_id == "locks"


@pytest.mark.parametrize("plain", [True, False])
def test_invocations_that_wait_for_an_isolated_component_are_not_executed(plain: bool) -> None:
    @component("errors.first")
    def first(value: int) -> None:
        log.append(value)
        raise ValueError("no")

    @component("errors.long_first")
    def long_first(value: int, context: GraphContext) -> None:
        first(value)

    nodes = [node_(burst), node_(first if plain else long_first, "bad", on="any_input", on_error="isolate")]
    result = run(nodes, [wire("parts.burst.out > bad.value", mode="queue", capacity=9)])
    assert log == [0]
    assert result.executed == 2  # the burst and one


def test_a_component_may_ask_for_its_messages_and_what_caused_it() -> None:
    @component("errors.curious", outputs=())
    def curious(invocation: Invocation, left: int = 0, right: int = 0) -> None:
        told = [message.payload for message in (*invocation.messages("left"), *invocation.messages("right"))]
        log.append((told, invocation.causation_id, invocation.lane))

    nodes = [node_(Count), node_(curious, "curious", on={"type": "batch", "inputs": ["left"], "batch_size": 2})]
    wires = [wire("parts.count.out > curious.left", mode="queue", capacity=9)]
    run(nodes, wires, steps=2)
    run([node_(curious, "alone")])
    assert log == [([1, 2], "parts.count>curious#2", "main"), ([], "", "main")]

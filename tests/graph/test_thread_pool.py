"""The thread_pool lane: persistent workers, overlap, serialisation, capacity, order, stop and drain."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.graph.components import component
from rota.graph.invocation import GraphContext, Invocation
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run_options import SchedulerStopReason
from rota.graph.stop import StopToken
from tests.graph.parts import Count, burst, log, note
from tests.graph.worlds import executed, make_runner, node, run, wire

TEST_TIMEOUT_S = 30.0  # real time; it only ends a test that hangs


def pool(**fields: Any) -> dict[str, Any]:
    return {"main": {"type": "event_loop"}, "pool": {"type": "thread_pool", **fields}}


class Meeting:
    """Counts concurrent calls; `together` of them wait for each other."""

    def __init__(self, together: int = 1) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.barrier = threading.Barrier(together)

    def attend(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.barrier.wait(TEST_TIMEOUT_S)
        with self.lock:
            self.inside -= 1


def fan_out(thing: Any, size: int, *, lanes: dict[str, Any], steps: int = 1, **execution: Any) -> RuntimeRunnerResult:
    """`size` messages at once for a component on the pool."""
    nodes = [node(burst, config={"size": size}), node(thing, "work", on="any_input", lane="pool", **execution)]
    wires = [wire("parts.burst.out > work.value", mode="queue", capacity=100)]
    return run(nodes, wires, lanes=lanes, steps=steps, trace=True)


class TestWorkers:
    def test_thread_pool_lane_executes_reentrant_invocations_concurrently(self) -> None:
        meeting = Meeting(together=3)

        @component
        def work(value: int) -> None:
            meeting.attend()

        result = fan_out(work, 6, lanes=pool(max_threads=3), reentrant=True)
        assert result.ok
        assert meeting.most == 3  # they overlapped, never more than the lane has threads
        assert result.metric("runtime.scheduler.active_count", lane="pool") == 3
        assert result.metric("runtime.scheduler.worker_count", lane="pool") == 3

    def test_thread_pool_workers_persist_across_multiple_runtime_steps(self) -> None:
        threads: Counter[int] = Counter()

        @component
        def work(value: int) -> None:
            threads[threading.get_ident()] += 1

        result = fan_out(work, 8, lanes=pool(max_threads=2), steps=20, reentrant=True)
        assert threads.total() == 160
        assert len(threads) <= 2
        assert len(result.workers) == 2

    def test_thread_pool_lane_serializes_non_reentrant_invocations(self) -> None:
        meeting = Meeting()
        order: list[int] = []

        @component
        def work(value: int) -> None:
            meeting.attend()
            order.append(value)

        result = fan_out(work, 20, lanes=pool(max_threads=4))
        assert result.ok
        assert meeting.most == 1
        assert order == list(range(20))

    def test_independent_components_of_one_wave_overlap(self) -> None:
        meeting = Meeting(together=3)

        @component
        def work(value: int) -> None:
            meeting.attend()

        nodes = [node(Count), *(node(work, name, on="any_input", lane="pool") for name in "abc")]
        wires = [wire(f"parts.count.out > {name}.value") for name in "abc"]
        result = run(nodes, wires, lanes=pool(max_threads=3), trace=True)
        assert result.ok
        assert meeting.most == 3
        assert executed(result) == ["parts.count", "a", "b", "c"]  # committed in the order of acceptance

    def test_downstream_waits_until_the_pool_has_drained_and_committed(self) -> None:
        release = threading.Event()

        @component
        def slow(value: int) -> int:
            if value < 3:
                release.wait(TEST_TIMEOUT_S)
            else:
                release.set()
            log.append(f"worked {value}")
            return value

        nodes = [
            node(burst, config={"size": 4}),
            node(slow, on="any_input", lane="pool", reentrant=True),
            node(note, on="any_input"),
        ]
        wires = [
            wire("parts.burst.out > slow.value", mode="queue", capacity=9),
            wire("slow.out > parts.note.value", mode="queue", capacity=9),
        ]
        assert run(nodes, wires, lanes=pool(max_threads=4)).ok
        assert log[4:] == [0, 1, 2, 3]  # committed in the order of acceptance, whichever finished first
        assert all(str(each).startswith("worked") for each in log[:4])

    def test_zero_threads_mean_one(self) -> None:
        result = run([node(Count, lane="pool")], lanes=pool())
        assert result.metric("runtime.scheduler.worker_count", lane="pool") == 1

    def test_workers_are_named_after_the_lane_and_cut_to_what_the_system_keeps(self) -> None:
        names: list[str] = []

        @component
        def work() -> None:
            names.append(threading.current_thread().name)

        run([node(work, lane="pool")], lanes=pool(thread_name="a-very-long-thread-name"))
        assert names == ["a-very-long-t-0"]


class TestCapacity:
    def admitted(self, size: int, **fields: Any) -> tuple[list[int], RuntimeRunnerResult]:
        seen: list[int] = []

        @component
        def work(value: int) -> None:
            seen.append(value)

        execution = {"priority": fields.pop("priority", "normal"), "reentrant": fields.pop("reentrant", False)}
        result = fan_out(work, size, lanes=pool(**fields), **execution)
        return sorted(seen), result

    def test_without_a_queue_capacity_everything_ready_is_accepted(self) -> None:
        seen, result = self.admitted(3, max_threads=3)
        assert seen == [0, 1, 2]
        assert result.metric("runtime.scheduler.rejected_count", lane="pool") == 0

    @pytest.mark.parametrize("overflow", ["drop_newest", "reject", "block"])
    def test_thread_pool_lane_queue_capacity_rejects_newest_when_full(self, overflow: str) -> None:
        seen, result = self.admitted(5, queue_capacity=2, overflow=overflow)
        assert seen == [0, 1, 2]
        assert result.metric("runtime.scheduler.rejected_count", lane="pool") == 2
        event = result.health_events[0]
        assert (event.kind, event.component_id, event.lane) == ("scheduler_reject", "work", "pool")

    def test_thread_pool_lane_reject_new_keeps_oldest_admission_when_full(self) -> None:
        assert self.admitted(4, queue_capacity=1, overflow="reject_new")[0] == [0, 1]

    @pytest.mark.parametrize("overflow", ["drop_oldest", "overwrite"])
    def test_thread_pool_lane_queue_capacity_drops_oldest_when_configured(self, overflow: str) -> None:
        assert self.admitted(5, queue_capacity=2, overflow=overflow)[0] == [2, 3, 4]

    def test_a_reentrant_component_may_use_every_worker_and_the_queue(self) -> None:
        assert self.admitted(9, max_threads=3, queue_capacity=2, reentrant=True)[0] == [0, 1, 2, 3, 4]

    def test_fail_fast_stops_the_run_with_an_error(self) -> None:
        seen, result = self.admitted(5, queue_capacity=2, overflow="fail_fast")
        assert (seen, result.scheduler_stop_reason) == ([], SchedulerStopReason.ERROR)
        assert result.runtime_errors[0].code == "lane_overflow"

    @pytest.mark.parametrize(("priority", "low"), [("high", 0), ("normal", 0), ("low", 3), ("background", 3)])
    def test_rejected_low_and_background_work_is_counted_on_its_own(self, priority: str, low: int) -> None:
        _, result = self.admitted(5, queue_capacity=1, priority=priority)
        assert result.metric("runtime.scheduler.rejected_count", lane="pool") == 3
        assert result.metric("runtime.scheduler.low_priority_rejected_count", lane="pool") == low

    def test_pool_metrics_are_the_highest_values_of_the_run(self) -> None:
        _, result = self.admitted(7, max_threads=2, queue_capacity=3, reentrant=True)
        values = {
            name: result.metric(f"runtime.scheduler.{name}", lane="pool")
            for name in ("queue_capacity", "queue_depth", "in_flight_count", "completed_count", "rejected_count")
        }
        assert values == {
            "queue_capacity": 3,
            "queue_depth": 3,
            "in_flight_count": 5,
            "completed_count": 5,
            "rejected_count": 2,
        }


class TestBlockingOverflow:
    def blocked(self, clock: ManualClock, seconds_each: float) -> tuple[list[int], RuntimeRunnerResult]:
        seen: list[int] = []

        @component
        def work(value: int) -> None:
            seen.append(value)
            clock.advance(seconds_each)

        nodes = [node(burst, config={"size": 5}), node(work, on="any_input", lane="pool")]
        wires = [wire("parts.burst.out > work.value", mode="queue", capacity=9)]
        lanes = pool(queue_capacity=1, overflow="block", overflow_deadline_ms=1000)
        return seen, run(nodes, wires, lanes=lanes, clock=clock)

    def test_blocking_overflow_deadline(self) -> None:
        seen, result = self.blocked(ManualClock(), seconds_each=0.1)
        assert seen == [0, 1, 2, 3, 4]  # each was accepted in time
        assert result.metric("runtime.scheduler.rejected_count", lane="pool") == 0
        assert result.metric("runtime.scheduler.blocked_duration_ms", lane="pool") == pytest.approx(300)

    def test_invocations_without_room_before_the_deadline_are_rejected(self) -> None:
        seen, result = self.blocked(ManualClock(), seconds_each=0.6)
        assert seen == [0, 1, 2]
        assert result.metric("runtime.scheduler.rejected_count", lane="pool") == 2
        assert "overflow deadline" in result.health_events[0].message


class TestOrder:
    def started(self, policy: Any = None, **execution: dict[str, Any]) -> list[str]:
        """The order in which one worker starts the waiting components, one for each name."""
        started: list[str] = []

        @component
        def work(invocation: Invocation) -> None:
            started.append(invocation.component_id)

        nodes = [node(work, name, lane="pool", **fields) for name, fields in execution.items()]
        assert run(nodes, lanes=pool(policy=policy) if policy else pool()).ok
        return started

    def test_the_queue_orders_by_class_then_by_enqueue_order(self) -> None:
        order = self.started(
            b={"priority": "background"}, n={"priority": "normal"}, h={"priority": "high"}, m={}, l={"priority": "low"}
        )
        assert order == ["h", "n", "m", "l", "b"]

    def test_any_registered_policy_may_order_the_queue(self) -> None:
        classes: dict[str, dict[str, Any]] = {"slack": {"budget_ms": 900}, "due": {"budget_ms": 100}, "free": {}}
        assert self.started("edf", **classes) == ["due", "slack", "free"]


class TestErrors:
    def test_thread_pool_execute_status_failure_keeps_structured_runtime_error(self) -> None:
        @component
        def work(value: int) -> None:
            raise ValueError(f"value {value} is odd")

        result = fan_out(work, 1, lanes=pool(max_threads=2))
        assert result.scheduler_stop_reason == SchedulerStopReason.ERROR
        error = result.runtime_errors[0]
        assert (error.phase, error.code, error.component_id, error.lane) == (
            "execute",
            "component_execute",
            "work",
            "pool",
        )
        assert error.message == "ValueError: value 0 is odd"
        assert error.trace_id == result.run_id
        assert result.errors == ("component work failed to execute: ValueError: value 0 is odd",)

    def test_a_component_that_exits_fails_like_any_other_and_the_worker_continues(self) -> None:
        @component
        def work(value: int) -> None:
            if value == 0:
                raise SystemExit(3)
            log.append(value)

        result = fan_out(work, 3, lanes=pool(), on_error="continue")
        assert log == [1, 2]
        assert "SystemExit" in result.errors[0]

    def test_publish_stages_also_on_a_worker(self) -> None:
        @component(outputs=("out",))
        def work(value: int, context: GraphContext) -> None:
            context.publish("out", value)
            log.append("staged")

        nodes = [node(Count), node(work, on="any_input", lane="pool"), node(note, on="any_input")]
        run(nodes, [wire("parts.count.out > work.value"), wire("work.out > parts.note.value")], lanes=pool())
        assert log == ["staged", 1]


class TestStop:
    def test_thread_pool_stop_while_queue_non_empty_drains_admitted_work(self) -> None:
        token = StopToken()
        begun, seen = threading.Event(), []

        @component
        def work(value: int, invocation: Invocation) -> None:
            begun.set()
            while value == 0 and not invocation.cancel_requested():
                pass
            seen.append(value)

        nodes = [node(burst, config={"size": 6}), node(work, on="any_input", lane="pool")]
        wires = [wire("parts.burst.out > work.value", mode="queue", capacity=9)]
        runner = make_runner(nodes, wires, lanes=pool(max_threads=2), steps=1000, stop_token=token)
        results: list[RuntimeRunnerResult] = []
        thread = threading.Thread(target=lambda: results.append(runner.run()))
        thread.start()
        assert begun.wait(TEST_TIMEOUT_S)
        token.request("enough")
        thread.join(TEST_TIMEOUT_S)
        assert not thread.is_alive()
        assert seen == [0, 1, 2, 3, 4, 5]
        assert (results[0].epochs, results[0].scheduler_stop_reason) == (1, SchedulerStopReason.STOP_REQUESTED)

    def test_no_thread_outlives_the_run(self) -> None:
        before = set(threading.enumerate())
        fan_out(note, 5, lanes=pool(max_threads=4), steps=3, reentrant=True)
        assert set(threading.enumerate()) <= before


class TestTrace:
    def test_component_execute_has_the_worker_and_the_batch_has_all_of_them(self) -> None:
        meeting = Meeting(together=2)

        @component
        def work(value: int) -> None:
            meeting.attend()

        result = fan_out(work, 2, lanes=pool(max_threads=2), reentrant=True)
        assert result.trace is not None
        events = list(result.trace.events())
        assert {event.worker_id for event in events if event.component_id == "work"} == {0, 1}
        batch = next(event for event in events if event.name == "thread_pool_batch")
        assert (batch.lane, batch.attributes["worker_ids"], batch.attributes["invocations"]) == ("pool", "0,1", "2")

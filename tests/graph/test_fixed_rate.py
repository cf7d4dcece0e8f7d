"""The fixed_rate lane: simulated ticks, wall-clock cadence, overruns and the three overrun policies."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.clock import ManualClock
from rota.graph.components import component
from rota.graph.lanes.pacing import Pacer
from rota.graph.metrics import LaneMeter
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run_options import SchedulerStopReason
from rota.graph.stop import StopToken
from tests.graph.parts import Count, log
from tests.graph.worlds import compile_world, make_runner, names, node, run

TEST_TIMEOUT_S = 30.0  # real time; it only ends a test that hangs


def rate(**fields: Any) -> dict[str, Any]:
    return {"main": {"type": "fixed_rate", **fields}}


def pacer(**fields: Any) -> tuple[Pacer, LaneMeter]:
    plan, _ = compile_world([node(Count)], lanes=rate(wall_clock_enabled=True, **fields))
    meter = LaneMeter()
    return Pacer(plan.lanes["main"], meter, None, wall_clock=True), meter


class Metronome:
    """A run on its own thread, moved by a manual clock."""

    def __init__(self, *, durations_s: list[float] | None = None, steps: int = 100, **fields: Any) -> None:
        self.clock = ManualClock()
        self.token = StopToken()
        self.began: list[float] = []
        self.ticked = threading.Semaphore(0)
        durations = iter(durations_s or [])

        @component
        def work() -> None:
            self.began.append(round(self.clock.monotonic(), 6))
            self.clock.advance(next(durations, 0.0))
            self.ticked.release()

        runner = make_runner(
            [node(work)],
            lanes=rate(wall_clock_enabled=True, **fields),
            steps=steps,
            clock=self.clock,
            stop_token=self.token,
            trace=True,
        )
        self.results: list[RuntimeRunnerResult] = []
        self.thread = threading.Thread(target=lambda: self.results.append(runner.run()))
        self.thread.start()

    def advance(self, *seconds: float) -> Metronome:
        for each in seconds:
            self.until_asleep()
            self.clock.advance(each)
        return self

    def until_asleep(self) -> None:
        assert self.ticked.acquire(timeout=TEST_TIMEOUT_S)  # the tick that the last advance made due is over
        self.clock.until_parked()

    def end(self) -> RuntimeRunnerResult:
        self.thread.join(TEST_TIMEOUT_S)
        assert not self.thread.is_alive()
        return self.results[0]


class TestSimulated:
    def test_each_epoch_is_a_tick_without_sleeping(self) -> None:
        clock = ManualClock()  # a wait on this clock would never end
        result = run([node(Count)], lanes=rate(period_ms=10), steps=5, clock=clock)
        assert result.metric("runtime.scheduler.tick_count", lane="main") == 5
        assert clock.monotonic() == 0

    def test_a_tick_over_its_budget_is_an_overrun(self) -> None:
        clock = ManualClock()
        seconds = iter([0.004, 0.025, 0.010])

        @component
        def work() -> None:
            clock.advance(next(seconds))

        result = run([node(work)], lanes=rate(period_ms=10), steps=3, clock=clock, trace=True)
        assert result.metric("runtime.scheduler.tick_overrun_count", lane="main") == 1
        assert result.metric("runtime.scheduler.tick_jitter_ms", lane="main") == pytest.approx(15)
        assert result.metric("runtime.scheduler.max_lateness_ms", lane="main") == pytest.approx(15)
        assert result.metric("runtime.scheduler.skipped_tick_count", lane="main") == 0
        assert names(result, "fixed_rate_overrun") == ["fixed_rate_overrun"]

    def test_a_tick_budget_overrides_the_period(self) -> None:
        clock = ManualClock()

        @component
        def work() -> None:
            clock.advance(0.005)

        lanes = rate(period_ms=10, tick_budget_ms=4)
        assert (
            run([node(work)], lanes=lanes, steps=3, clock=clock).metric(
                "runtime.scheduler.tick_overrun_count", lane="main"
            )
            == 3
        )

    def test_hz_gives_the_period_where_none_is_given(self) -> None:
        plan, _ = compile_world([node(Count)], lanes=rate(hz=50))
        assert plan.lanes["main"].period_ns == 20_000_000

    def test_pool_values_are_zero(self) -> None:
        result = run([node(Count, priority="high")], lanes=rate(period_ms=10), steps=3)
        for name in ("worker_count", "queue_depth", "queue_capacity", "active_count", "in_flight_count"):
            assert result.metric(f"runtime.scheduler.{name}", lane="main") == 0
        assert result.metric("runtime.scheduler.priority_high_count", lane="main") == 3

    def test_the_trace_has_both_ends_of_every_tick(self) -> None:
        result = run([node(Count)], lanes=rate(period_ms=10), steps=1, trace=True)
        assert names(result) == [
            "scheduler_iteration_begin",
            "fixed_rate_tick_begin",
            "component_execute_begin",
            "component_execute",
            "component_execute_end",
            "fixed_rate_tick",
            "fixed_rate_tick_end",
            "scheduler_iteration",
            "scheduler_iteration_end",
        ]


class TestWallClock:
    def test_opt_in_wall_clock_cadence(self) -> None:
        metronome = Metronome(period_ms=10, steps=4).advance(0.01, 0.01, 0.01)
        result = metronome.end()
        assert metronome.began == [0.0, 0.01, 0.02, 0.03]
        assert result.metric("runtime.scheduler.blocked_duration_ms", lane="main") == pytest.approx(30)

    def test_it_sleeps_only_for_the_rest_of_the_period(self) -> None:
        metronome = Metronome(period_ms=10, steps=3, durations_s=[0.004, 0.009]).advance(0.006, 0.001)
        metronome.end()
        assert metronome.began == [0.0, 0.01, 0.02]

    def test_a_stop_ends_the_sleep_immediately(self) -> None:
        metronome = Metronome(period_ms=1_000_000)
        metronome.until_asleep()
        metronome.token.request()
        result = metronome.end()
        assert (result.epochs, result.scheduler_stop_reason) == (1, SchedulerStopReason.STOP_REQUESTED)
        assert metronome.clock.monotonic() == 0

    def test_the_end_of_the_duration_ends_the_sleep(self) -> None:
        clock = ManualClock()
        runner = make_runner(
            [node(Count)], lanes=rate(wall_clock_enabled=True, period_ms=1000), clock=clock, duration_ms=300
        )
        results: list[RuntimeRunnerResult] = []
        thread = threading.Thread(target=lambda: results.append(runner.run()))
        thread.start()
        clock.until_parked()
        clock.advance(0.3)
        thread.join(TEST_TIMEOUT_S)
        assert results[0].scheduler_stop_reason == SchedulerStopReason.DURATION_BOUND

    @pytest.mark.parametrize(
        ("policy", "next_s", "skipped"), [("drop_tick", 0.033, 1), ("skip_next", 0.023, 2), ("catch_up_once", 0.023, 1)]
    )
    def test_a_late_tick_moves_the_next_as_the_policy_says(self, policy: str, next_s: float, skipped: int) -> None:
        metronome = Metronome(period_ms=10, steps=2, durations_s=[0.023], overrun_policy=policy)
        if policy == "drop_tick":
            metronome.advance(0.01)
        result = metronome.end()
        assert metronome.began == [0.0, next_s]
        assert result.metric("runtime.scheduler.skipped_tick_count", lane="main") == skipped
        assert result.metric("runtime.scheduler.max_lateness_ms", lane="main") == pytest.approx(13)
        assert names(result, "fixed_rate_overrun", "fixed_rate_skipped") == [
            "fixed_rate_overrun",
            "fixed_rate_skipped_tick",
        ]

    def test_two_wall_clock_lanes_run_at_the_rate_of_the_slower_one(self) -> None:
        clock = ManualClock()

        @component
        def work() -> None:
            log.append(round(clock.monotonic(), 6))

        lanes = {
            name: {"type": "fixed_rate", "wall_clock_enabled": True, "period_ms": period}
            for name, period in (("fast", 10), ("slow", 30))
        }
        nodes = [node(work, "a", lane="fast"), node(work, "b", lane="slow")]
        runner = make_runner(nodes, lanes=lanes, clock=clock, steps=2)
        thread = threading.Thread(target=runner.run)
        thread.start()
        clock.until_parked()
        clock.advance(0.03)
        thread.join(TEST_TIMEOUT_S)
        assert log == [0.0, 0.0, 0.03, 0.03]


class TestPacing:
    def test_the_worked_example(self) -> None:
        for policy, due_in_s in (("drop_tick", 0.010), ("skip_next", 0.0), ("catch_up_once", 0.0)):
            pace, meter = pacer(period_ms=10, overrun_policy=policy)
            pace.begin(0.0, 1)
            pace.end(0.023, 1)
            assert pace.due_in_s(0.023) == pytest.approx(due_in_s)
            assert meter.max_lateness_s == pytest.approx(0.013)

    def test_after_catching_up_once_the_cadence_continues_from_there(self) -> None:
        pace, _ = pacer(period_ms=10, overrun_policy="catch_up_once")
        pace.begin(0.0, 1)
        pace.end(0.023, 1)
        pace.begin(0.023, 2)
        pace.end(0.024, 2)
        assert pace.due_in_s(0.024) == pytest.approx(0.009)

    @given(
        policy=st.sampled_from(["drop_tick", "skip_next", "catch_up_once"]),
        durations_ms=st.lists(st.integers(0, 45), min_size=1, max_size=30),
    )
    def test_the_next_tick_always_follows_the_overrun_policy(self, policy: str, durations_ms: list[int]) -> None:
        pace, meter = pacer(period_ms=10, overrun_policy=policy)
        now_ms, scheduled_ms, skipped = 0, 0, 0
        for duration_ms in durations_ms:
            pace.begin(now_ms / 1000, 1)
            finished_ms, nominal_ms = now_ms + duration_ms, scheduled_ms + 10
            pace.end(finished_ms / 1000, 1)
            late_ms = max(0, finished_ms - nominal_ms)
            following = {"drop_tick": finished_ms + 10, "skip_next": nominal_ms + 10, "catch_up_once": finished_ms}
            scheduled_ms = following[policy] if late_ms else nominal_ms
            skipped += late_ms // 10 + (policy == "skip_next" and late_ms > 0)
            assert pace.due_in_s(finished_ms / 1000) == pytest.approx(max(0, scheduled_ms - finished_ms) / 1000)
            now_ms = max(finished_ms, scheduled_ms)
        assert meter.skipped_tick_count == skipped
        assert meter.tick_overrun_count == sum(duration > 10 for duration in durations_ms)

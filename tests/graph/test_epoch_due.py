"""A run sleeps while no epoch could execute anything and waits for what is still out; timers by steps or by a clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.run_options import SchedulerStopReason
from tests.graph.durable_worlds import DurableWorld, count_work_note
from tests.graph.parts import Count, add, burst, join, log, note, note_many
from tests.graph.worlds import make_runner, node, run, wire

DURATION = SchedulerStopReason.DURATION_BOUND
LAST_S = 30.0  # real time; it only ends a test that hangs


class LeapingClock(ManualClock):
    """A clock on which every wait with a timeout ends at once, at the time of its end."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        assert timeout_s is not None, "nothing would end this wait"
        self.waits += 1
        self.advance(timeout_s)
        return False


def timer(period_ms: int) -> dict[str, Any]:
    return {"on": "on_event", "sources": [{"type": "timer", "period_ms": period_ms}]}


def ticks_of(name: str, clock: ManualClock | None = None) -> Any:
    @component(f"due.{name}")
    def tick() -> None:
        log.append((name, round(clock.monotonic() * 1000)) if clock else name)

    return tick


@component("due.answer")
def answer(request: str) -> None:
    log.append(request)


class TestSleeping:
    def test_a_timer_has_one_epoch_for_each_tick(self) -> None:
        clock = LeapingClock()
        result = run([node(ticks_of("a", clock), **timer(100))], clock=clock, duration_ms=950)
        assert log == [("a", at) for at in range(0, 1_000, 100)]
        assert (result.epochs, result.scheduler_stop_reason) == (10, DURATION)

    def test_timers_with_different_periods_have_an_epoch_when_one_is_due(self) -> None:
        clock = LeapingClock()
        nodes = [node(ticks_of("a", clock), **timer(40)), node(ticks_of("b", clock), **timer(100))]
        result = run(nodes, clock=clock, duration_ms=200)
        assert log == [("a", 0), ("b", 0), ("a", 40), ("a", 80), ("b", 100), ("a", 120), ("a", 160)]
        assert result.epochs == 6

    def test_nothing_to_do_is_one_epoch(self) -> None:
        clock = LeapingClock()
        result = run([node(answer, on="request")], clock=clock, duration_ms=60_000)
        assert (result.epochs, result.scheduler_stop_reason, clock.monotonic()) == (1, DURATION, 60.0)

    def test_a_request_ends_the_sleep(self) -> None:
        @component("due.last")
        def last(request: str) -> None:
            log.append(request)
            runner.stop()

        runner = make_runner([node(last, on="request")], duration_ms=LAST_S * 1_000)
        runner.start()
        thread = threading.Thread(target=runner.run)
        thread.start()
        runner.send("due.last", "hello")
        thread.join(LAST_S)
        assert log == ["hello"]
        assert runner.result.epochs <= 2  # an empty one, if the request came after the first

    def test_a_new_configuration_ends_the_sleep(self) -> None:
        applied = threading.Event()

        @component("due.configured")
        class Configured:
            def __init__(self, *, number: int = 0) -> None:
                self.number = number

            def reconfigure(self, *, number: int) -> None:
                log.append(number)
                applied.set()

            def execute(self, request: str) -> None:
                """It waits for requests."""

        runner = make_runner([node(Configured, "c", on="request")], duration_ms=LAST_S * 1_000)
        runner.start()
        thread = threading.Thread(target=runner.run)
        thread.start()
        runner.update_config({"c": {"number": 7}})
        assert applied.wait(LAST_S)
        runner.stop()
        thread.join(LAST_S)
        assert log == [7]

    def test_a_batch_is_sent_when_its_window_ends(self) -> None:
        clock = LeapingClock()
        nodes = [
            node(burst, "b", **timer(10_000), config={"size": 2}),
            node(note_many, on={"type": "batch", "batch_size": 9, "batch_window_ms": 250}),
        ]
        result = run(
            nodes, [wire("b.out > parts.note_many.values", mode="queue", capacity=9)], clock=clock, duration_ms=1_000
        )
        assert log == [((0, 1),)]
        assert result.epochs == 2

    @pytest.mark.parametrize("until_idle", [False, True])
    def test_messages_over_a_rate_follow_one_by_one(self, until_idle: bool) -> None:
        clock = LeapingClock()
        nodes = [
            node(burst, "b", **timer(10_000)),
            node(note, on={"type": "rate_limit", "min_interval_ms": 100}),
        ]
        wires = [wire("b.out > parts.note.value", mode="queue", capacity=9)]
        bound: dict[str, Any] = {"run_until_idle": True} if until_idle else {"duration_ms": 1_000}
        result = run(nodes, wires, clock=clock, **bound)
        assert log == [0, 1, 2]  # until idle: what waits for its time is not left behind
        assert result.epochs == 3 + until_idle  # the last one shows that nothing is ready

    def test_a_rate_on_a_component_of_every_epoch(self) -> None:
        clock = LeapingClock()
        limited = node(ticks_of("a", clock), on={"type": "manual", "min_interval_ms": 100})
        assert run([limited], clock=clock, duration_ms=300).epochs == 3
        assert [at for _, at in log] == [0, 100, 200]

    def test_a_loop_with_an_interval(self) -> None:
        clock = LeapingClock()

        @component("due.left", outputs=("out",))
        def left(context: GraphContext, value: int = 0) -> None:
            log.append(round(clock.monotonic() * 1000))
            context.publish("out", value)

        nodes = [node(left, "left"), node(add, "right", on="any_input")]
        loop = {
            "id": "l",
            "components": ["left", "right"],
            "loop_policy": {"type": "fixed_point", "max_iterations": 1, "min_interval_ms": 50},
        }
        result = run(
            nodes,
            [wire("left.out > right.value"), wire("right.out > left.value")],
            loops=[loop],
            clock=clock,
            duration_ms=200,
        )
        assert log == [0, 50, 100, 150]
        assert result.epochs == 4

    def test_a_hidden_message_of_the_last_epoch_is_shown(self) -> None:
        clock = LeapingClock()
        nodes = [node(Count, **timer(10_000)), node(note, on="any_input")]
        result = run(
            nodes, [wire("parts.count.out > parts.note.value", mode="previous_tick")], clock=clock, duration_ms=100
        )
        assert (log, result.epochs) == ([1], 2)

    def test_an_isolated_component_keeps_nothing_awake(self) -> None:
        clock = LeapingClock()

        @component("due.fails")
        def fails() -> None:
            raise ValueError

        result = run([node(fails, on_error="isolate")], clock=clock, duration_ms=1_000)
        assert (result.epochs, clock.monotonic()) == (1, 1.0)

    def test_a_timer_on_a_thread_of_its_own_without_a_cadence(self) -> None:
        clock = LeapingClock()
        lanes = {"main": {"type": "event_loop"}, "own": {"type": "isolated_thread"}}
        nodes = [node(ticks_of("a"), lane="own", **timer(100))]
        result = run(nodes, lanes=lanes, clock=clock, duration_ms=450)
        assert 1 <= len(log) <= 5
        assert result.epochs <= 6

    def test_steps_are_never_slept_through(self) -> None:
        clock = LeapingClock()
        result = run([node(answer, on="request")], clock=clock, steps=5)
        assert (result.epochs, clock.waits) == (5, 0)


class SixSeconds:
    """A durable run until idle, whose only entry is out for six seconds of the run's clock."""

    def __init__(self, source: Any, **how: Any) -> None:
        nodes = [
            node(source, "source", **how),
            node(add, "work", on="any_input", lane="far"),
            node(note, on="any_input"),
        ]
        wires = [wire("source.out > work.value"), wire("work.out > parts.note.value", "async")]
        self.world = DurableWorld(nodes, wires)
        self.clock = ManualClock()
        self.epochs: list[int] = []
        self.runner = self.world.runner(run_until_idle=True, clock=self.clock, on_epoch=self.epochs.append)
        self.thread = threading.Thread(target=self.runner.run)
        self.thread.start()
        for _ in range(120):
            self.clock.until_parked()
            self.clock.advance(0.05)
        self.clock.until_parked()
        self.epochs_before = len(self.epochs)
        assert self.world.work(1) == 1

    def settle(self) -> None:
        """Let time pass until the run has ended."""
        while self.thread.is_alive():
            self.clock.advance(0.05)
            self.thread.join(0.001)


class TestUntilIdle:
    def test_it_waits_for_an_entry_and_runs_no_epoch_meanwhile(self) -> None:
        @component("due.one")
        def one(start: Any = None) -> int:
            return 1

        run = SixSeconds(one, on="on_event", sources=[{"type": "start"}])
        run.settle()
        assert log == [2]
        assert run.epochs_before == 1
        assert run.runner.result.epochs <= 4  # one for the result, one that shows that nothing is ready
        assert run.runner.result.scheduler_stop_reason == SchedulerStopReason.IDLE

    def test_a_component_of_every_epoch_that_publishes_nothing_does_not_keep_it_busy(self) -> None:
        @component("due.once")
        class Once:
            def __init__(self) -> None:
                self.runs = 0

            def execute(self) -> int | None:
                self.runs += 1
                return 1 if self.runs == 1 else None

        run = SixSeconds(Once)
        assert run.epochs_before <= 3
        while not log:
            run.clock.advance(0.05)
            run.thread.join(0.001)
        run.runner.stop()
        run.settle()
        assert log == [2]

    def test_a_timer_ticks_while_an_entry_is_out_and_does_not_keep_the_run(self) -> None:
        run = SixSeconds(Count, **timer(4_000))
        while not run.world.entries("queued"):  # the second tick, at 4 s
            run.thread.join(0.001)
        assert run.world.work(1) == 1
        run.settle()
        assert log[:2] == [2, 3]
        assert run.runner.result.scheduler_stop_reason == SchedulerStopReason.IDLE

    def test_a_run_that_ends_before_its_entries_says_so(self) -> None:
        world = count_work_note()
        (event,) = world.runner(steps=2).run().health_events
        assert event.kind == "entries_outstanding"
        assert event.message.startswith("2 entries of run r1 have not ended")
        world.work()
        kinds = [each.kind for each in world.runner(steps=1).run().health_events]
        assert kinds == ["entries_outstanding"]  # of the third


EPOCHS_MAX = 500  # ends a test that spins: on a clock that only waits move, it would never end


class TestFullEdges:
    """A durable edge is full, and what would make room for more is a time or an entry."""

    @staticmethod
    def run(nodes: list[Any], wires: list[Any], duration_ms: int) -> tuple[Any, list[int], Any]:
        """Run them on a clock that leaps; return the result, when its epochs were in ms, and their world."""
        clock, world, epochs = LeapingClock(), DurableWorld(nodes, wires), []
        result = world.runner(
            clock=clock,
            duration_ms=duration_ms,
            steps=EPOCHS_MAX,
            on_epoch=lambda _: epochs.append(round(clock.monotonic() * 1000)),
        ).run()
        return result, epochs, world

    def test_before_a_reader_with_a_rate_the_run_sleeps_until_the_rate_allows_more(self) -> None:
        nodes = [
            node(Count, "source", **timer(125)),
            node(add, "work", on={"type": "rate_limit", "min_interval_ms": 1_000}, lane="far"),
        ]
        result, epochs, world = self.run(nodes, [wire("source.out > work.value", mode="queue", capacity=1)], 3_500)
        assert result.scheduler_stop_reason == DURATION
        assert len(world.entries()) == 4  # at 0, 1, 2 and 3 s
        # one value is taken and one waits; the timer is held back once, and no epoch follows before the rate allows one
        assert epochs == [0, 125, 250, 1_000, 1_000, 1_125, 2_000, 2_000, 2_125, 3_000, 3_000, 3_125]
        assert [event.kind for event in result.health_events].count("backpressure") == 4

    def test_a_source_of_every_epoch_is_held_back_too(self) -> None:
        nodes = [
            node(Count, "source"),
            node(add, "work", on={"type": "rate_limit", "min_interval_ms": 1_000}, lane="far"),
        ]
        result, epochs, world = self.run(nodes, [wire("source.out > work.value", mode="queue", capacity=1)], 2_500)
        assert result.scheduler_stop_reason == DURATION
        assert len(world.entries()) == 3
        assert epochs == [0] * 3 + [1_000] * 3 + [2_000] * 3  # one for a value, one for room, one that finds none

    def test_a_batch_that_is_due_runs_no_epochs_while_an_entry_is_out(self) -> None:
        nodes = [
            node(Count, "source", **timer(1_000)),
            node(join, "work", on={"type": "batch", "batch_size": 9, "batch_window_ms": 100}, lane="far"),
            node(note, on="any_input"),
        ]
        wires = [
            wire("source.out > work.values", mode="queue", capacity=9),
            wire("work.out > parts.note.value", "async", mode="queue", capacity=1),
        ]
        result, epochs, world = self.run(nodes, wires, 3_500)
        assert result.scheduler_stop_reason == DURATION
        assert len(world.entries()) == 1
        assert epochs == [0, 100, 1_000, 2_000, 3_000]


class TestTimersBySteps:
    @pytest.mark.parametrize("period_ms", [1, 86_400_000])
    def test_a_timer_ticks_in_every_step(self, period_ms: int) -> None:
        result = run([node(ticks_of("a"), **timer(period_ms))], steps=5)
        assert (log, result.epochs) == (["a"] * 5, 5)

    def test_timers_keep_their_ratio_whatever_the_clock_does(self) -> None:
        clock = ManualClock()
        nodes = [node(ticks_of("a"), **timer(10)), node(ticks_of("b"), **timer(25))]
        with make_runner(nodes, clock=clock) as runner:
            seen = []
            for _ in range(7):
                clock.advance(123.4)
                runner.step()
                seen.append("".join(log))
                log.clear()
        assert seen == ["ab", "a", "a", "b", "a", "a", "ab"]

    @pytest.mark.parametrize("kind", ["thread_pool", "fixed_rate"])
    def test_other_lanes_of_the_region_order_do_the_same(self, kind: str) -> None:
        run([node(ticks_of("a"), **timer(50))], lanes={"main": {"type": kind}}, steps=3)
        assert log == ["a"] * 3

    def test_a_timer_whose_component_was_removed_does_not_hold_up_the_others(self) -> None:
        @component("due.broken")
        def broken() -> None:
            raise ValueError

        nodes = [node(broken, **timer(10), on_error="isolate"), node(ticks_of("b"), **timer(25))]
        run(nodes, steps=4)
        assert log == ["b"] * 3  # epoch 2 was for the removed one's tick at 10 ms

    def test_with_a_wall_clock_lane_timers_go_by_the_clock(self) -> None:
        clock = LeapingClock()
        lanes = {
            "main": {"type": "event_loop"},
            "rate": {"type": "fixed_rate", "period_ms": 10, "wall_clock_enabled": True},
        }
        nodes = [node(Count, lane="rate"), node(ticks_of("a", clock), **timer(25))]
        run(nodes, lanes=lanes, clock=clock, steps=6)
        assert [at for _, at in log] == [0, 30, 50]

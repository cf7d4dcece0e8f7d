"""The manual_step lane: the host decides when it runs, on the host's thread."""

from __future__ import annotations

import threading

import pytest

from rota.clock import ManualClock
from rota.graph.components import component
from rota.graph.invocation import Invocation
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import SchedulerStopReason
from rota.graph.stop import StopToken
from tests.graph.parts import Count, burst, log, note
from tests.graph.worlds import make_runner, node, wire

TEST_TIMEOUT_S = 30.0  # real time; it only ends a test that hangs

UI = {"main": {"type": "event_loop"}, "ui": {"type": "manual_step"}}


class TestManualStep:
    def test_host_stepping(self) -> None:
        threads: set[int] = set()

        @component
        def show(value: int) -> None:
            threads.add(threading.get_ident())
            log.append(value)

        nodes = [node(Count), node(show, on="any_input", lane="ui")]
        wires = [wire("parts.count.out > show.value", "async", mode="queue", capacity=9)]
        with make_runner(nodes, wires, lanes=UI) as runner:
            runner.step()
            assert runner.step("ui") == 0  # publications are visible from the next epoch boundary on
            runner.step()
            assert log == []
            assert runner.step("ui") == 1
            assert log == [1]
            runner.step()
            runner.step()
            assert runner.step("ui", invocations_max=1) == 1
            assert runner.step("ui") == 1
        assert log == [1, 2, 3]
        assert threads == {threading.get_ident()}
        assert runner.result.metric("runtime.scheduler.tick_count", lane="ui") == 4

    def test_a_manual_component_runs_once_for_each_step(self) -> None:
        with make_runner([node(Count, lane="ui")], lanes=UI) as runner:
            assert [runner.step("ui") for _ in range(3)] == [1, 1, 1]

    def test_what_it_publishes_reaches_the_graph_at_the_next_boundary(self) -> None:
        nodes = [node(Count, lane="ui"), node(note, on="any_input")]
        with make_runner(nodes, [wire("parts.count.out > parts.note.value", "async")], lanes=UI) as runner:
            runner.step("ui")
            assert log == []
            runner.step()
        assert log == [1]

    def test_it_can_be_stepped_during_a_run_on_another_thread(self) -> None:
        token = StopToken()
        nodes = [node(Count), node(note, on="any_input", lane="ui")]
        wires = [wire("parts.count.out > parts.note.value", "async", mode="queue", capacity=9)]
        started = threading.Event()
        runner = make_runner(
            nodes, wires, lanes=UI, steps=10_000_000, stop_token=token, on_epoch=lambda _: started.set()
        )
        thread = threading.Thread(target=runner.run)
        thread.start()
        assert started.wait(TEST_TIMEOUT_S)
        while not log:
            runner.step("ui")
        token.request()
        thread.join(TEST_TIMEOUT_S)
        assert not thread.is_alive()
        assert log[0] >= 1

    def test_an_error_in_a_step_ends_the_run(self) -> None:
        @component
        def broken() -> None:
            raise ValueError("on the host's thread")

        with make_runner([node(broken, lane="ui")], lanes=UI) as runner:
            assert runner.step("ui") == 1
            assert runner.step() == 0
        assert runner.result.scheduler_stop_reason == SchedulerStopReason.ERROR

    def test_an_interrupt_is_raised_in_the_host(self) -> None:
        @component
        def interrupted() -> None:
            raise KeyboardInterrupt

        with make_runner([node(interrupted, lane="ui", on_error="continue")], lanes=UI) as runner:
            with pytest.raises(KeyboardInterrupt):
                runner.step("ui")
            assert runner.step() == 0
        assert "KeyboardInterrupt" in runner.result.errors[0]

    def test_a_component_may_not_step_its_own_lane(self) -> None:
        runners: list[RuntimeRunner] = []

        @component
        def nested() -> None:
            runners[0].step("ui")

        runners.append(make_runner([node(nested, lane="ui")], lanes=UI))
        with runners[0] as runner:
            runner.step("ui")
        assert "stepped its own lane" in runners[0].result.errors[0]

    def test_the_end_of_the_run_waits_for_the_current_step(self) -> None:
        begun, gate = threading.Event(), threading.Event()

        @component
        class Slow:
            def execute(self) -> None:
                begun.set()
                gate.wait(TEST_TIMEOUT_S)
                log.append("executed")

            def deactivate(self) -> None:
                log.append("deactivated")

        runner = make_runner([node(Slow, lane="ui")], lanes=UI)
        runner.start()
        host = threading.Thread(target=lambda: runner.step("ui"))
        host.start()
        assert begun.wait(TEST_TIMEOUT_S)
        threading.Timer(0.0, gate.set).start()
        runner.finish()
        host.join(TEST_TIMEOUT_S)
        assert log == ["executed", "deactivated"]

    def test_low_priority_work_is_rescued_by_aging(self) -> None:
        """A host with time for one invocation an epoch, and an urgent one in every epoch."""
        order: list[str] = []

        @component
        def work(value: int, invocation: Invocation) -> None:
            order.append(invocation.component_id)

        lanes = {**UI, "ui": {"type": "manual_step", "starvation_epochs": 3}}
        nodes = [
            node(Count),
            node(work, "urgent", on="any_input", lane="ui", priority="high", reentrant=True),
            node(work, "idle", on="any_input", lane="ui", priority="background", reentrant=True),
        ]
        wires = [
            wire("parts.count.out > urgent.value", "async", mode="queue", capacity=99),
            wire("parts.count.out > idle.value", "async", mode="queue", capacity=99),
        ]
        with make_runner(nodes, wires, lanes=lanes) as runner:
            for _ in range(6):
                runner.step()
                runner.step("ui", invocations_max=1)
        assert order == ["urgent", "urgent", "urgent", "idle", "urgent"]
        assert runner.result.metric("runtime.scheduler.starvation_guard_count", lane="ui") == 1

    def test_in_version_1_there_is_no_aging(self) -> None:
        lanes = {**UI, "ui": {"type": "manual_step", "starvation_epochs": 0}}
        nodes = [
            node(Count),
            node(note, "urgent", on="any_input", lane="ui", priority="high", reentrant=True),
            node(note, "idle", on="any_input", lane="ui", priority="background", reentrant=True),
        ]
        wires = [
            wire(f"parts.count.out > {name}.value", "async", mode="queue", capacity=99) for name in ("urgent", "idle")
        ]
        with make_runner(nodes, wires, lanes=lanes) as runner:
            for _ in range(30):
                runner.step()
                runner.step("ui", invocations_max=1)
        assert runner.result.metric("runtime.scheduler.starvation_guard_count", lane="ui") == 0
        assert runner.result.metric("runtime.component.completed_count", component_id="idle", lane="ui") == 0

    def test_a_source_that_is_always_ready_does_not_starve_the_components_behind_it(self) -> None:
        """The source is ready again in every step; the lane has time for one invocation in each."""
        order: list[str] = []

        @component
        def work(invocation: Invocation, value: int = 0) -> int:
            order.append(invocation.component_id)
            return value

        nodes = [
            node(work, "source", lane="ui", priority="high"),
            node(work, "then", on="any_input", lane="ui", priority="low"),
            node(work, "last", on="any_input", lane="ui", priority="low"),
        ]
        wires = [wire("source.out > then.value"), wire("then.out > last.value")]
        with make_runner(nodes, wires, lanes=UI) as runner:
            for _ in range(6):
                runner.step("ui", invocations_max=1)
        assert order == 2 * ["source", "then", "last"]

    def test_a_message_for_a_component_already_visited_waits_for_the_next_round(self) -> None:
        order: list[str] = []

        @component
        def work(invocation: Invocation, value: int = 0) -> int:
            order.append(f"{invocation.component_id}{value}")
            return value

        nodes = [
            node(Count),
            node(work, "a", on="any_input", lane="ui"),
            node(work, "b", on="any_input", lane="ui"),
        ]
        wires = [
            wire("parts.count.out > a.value", "async", mode="queue", capacity=9),
            wire("a.out > b.value", mode="queue", capacity=9),
        ]
        with make_runner(nodes, wires, lanes=UI) as runner:
            runner.step()
            runner.step()
            runner.step("ui", invocations_max=1)
            runner.step()
            runner.step("ui")
        assert order == ["a1", "b1", "a2", "b2"]

    def test_dependencies_inside_the_lane_come_before_priority(self) -> None:
        order: list[str] = []

        @component
        def work(value: int, invocation: Invocation) -> int:
            order.append(f"{invocation.component_id}{value}")
            return value

        nodes = [
            node(burst, config={"size": 2}),
            node(work, "first", on="any_input", lane="ui", priority="low"),
            node(work, "then", on="any_input", lane="ui", priority="high"),
        ]
        wires = [
            wire("parts.burst.out > first.value", "async", mode="queue", capacity=9),
            wire("first.out > then.value", mode="queue", capacity=9),
        ]
        with make_runner(nodes, wires, lanes=UI) as runner:
            runner.step()
            runner.step()
            runner.step("ui")
        assert order == ["first0", "first1", "then0", "then1"]

    def test_invocations_that_were_never_stepped_are_reported_as_rejected(self) -> None:
        nodes = [node(burst, config={"size": 3}), node(note, on="any_input", lane="ui", reentrant=True)]
        wires = [wire("parts.burst.out > parts.note.value", "async", mode="queue", capacity=9)]
        with make_runner(nodes, wires, lanes=UI) as runner:
            runner.step()
            runner.step()
            runner.step("ui", invocations_max=1)
        result = runner.result
        assert log == [0]
        assert result.metric("runtime.scheduler.rejected_count", lane="ui") == 2
        assert any("the run ended" in event.message for event in result.health_events)

    @pytest.mark.parametrize(
        ("overflow", "kept"), [("reject", [0, 1, 2]), ("drop_oldest", [3, 4, 5]), ("drop_newest", [0, 1, 2])]
    )
    def test_its_queue_overflows_as_configured(self, overflow: str, kept: list[int]) -> None:
        lanes = {**UI, "ui": {"type": "manual_step", "queue_capacity": 2, "overflow": overflow}}
        nodes = [node(burst, config={"size": 6}), node(note, on="any_input", lane="ui")]
        wires = [wire("parts.burst.out > parts.note.value", "async", mode="queue", capacity=9)]
        with make_runner(nodes, wires, lanes=lanes) as runner:
            runner.step()
            runner.step()
            runner.step("ui")
        assert log == kept

    def test_blocking_overflow_holds_invocations_until_there_is_room_or_the_deadline(self) -> None:
        clock = ManualClock()
        lanes = {
            **UI,
            "ui": {"type": "manual_step", "queue_capacity": 1, "overflow": "block", "overflow_deadline_ms": 1000},
        }
        nodes = [node(burst, config={"size": 6}), node(note, on="any_input", lane="ui")]
        wires = [wire("parts.burst.out > parts.note.value", "async", mode="queue", capacity=9)]
        with make_runner(nodes, wires, lanes=lanes, clock=clock) as runner:
            runner.step()
            runner.step()
            runner.step("ui", invocations_max=3)
            assert log == [0, 1, 2]
            clock.advance(1.5)  # 3 and 4 were accepted by now, 5 was not
            runner.step("ui")
        assert log == [0, 1, 2, 3, 4]
        assert runner.result.metric("runtime.scheduler.rejected_count", lane="ui") == 1


def test_a_result_counts_what_independent_lanes_executed() -> None:
    result: RuntimeRunnerResult
    with make_runner([node(Count, lane="ui")], lanes=UI) as runner:
        runner.step("ui")
        runner.step("ui")
    result = runner.result
    assert result.executed == 2
    assert result.metric("runtime.scheduler.priority_normal_count", lane="ui") == 2


def test_two_sources_that_meet_in_one_component_share_their_rounds() -> None:
    """a → c ← b: c waits in each round for both, whichever is slower."""
    order: list[str] = []

    @component
    def work(invocation: Invocation, *values: int) -> int:
        order.append(invocation.component_id)
        return 1

    nodes = [
        node(work, "a", lane="ui"),
        node(work, "b", lane="ui", priority="low"),
        node(work, "c", on="any_input", lane="ui", priority="high"),
    ]
    wires = [wire("a.out > c.values"), wire("b.out > c.values")]
    with make_runner(nodes, wires, lanes=UI) as runner:
        for _ in range(8):
            runner.step("ui", invocations_max=1)
    assert order == 2 * ["a", "b", "c", "c"]


def test_an_isolated_component_is_skipped() -> None:
    @component
    def broken(value: int) -> int:
        raise ValueError("no")

    nodes = [node(Count, lane="ui"), node(broken, on="any_input", lane="ui", on_error="isolate")]
    with make_runner(nodes, [wire("parts.count.out > broken.value")], lanes=UI) as runner:
        assert [runner.step("ui") for _ in range(3)] == [2, 1, 1]


def test_after_a_stop_held_invocations_are_rejected() -> None:
    token = StopToken()

    @component
    def stopping(value: int) -> None:
        log.append(value)
        token.request()

    fields = {"queue_capacity": 1, "overflow": "block", "overflow_deadline_ms": 1000}
    lanes = {**UI, "ui": {"type": "manual_step", **fields}}
    nodes = [node(burst, config={"size": 5}), node(stopping, on="any_input", lane="ui")]
    wires = [wire("parts.burst.out > stopping.value", "async", mode="queue", capacity=9)]
    with make_runner(nodes, wires, lanes=lanes, stop_token=token) as runner:
        runner.step()
        runner.step()
        runner.step("ui")
    assert log == [0, 1]
    assert runner.result.metric("runtime.scheduler.rejected_count", lane="ui") == 3

"""A run with a queue lane survives its process: it resumes at its last committed epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.clock import ManualClock
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import SchedulerStopReason
from rota.model.events import GraphRunCommitted, GraphRunTaken
from tests.graph.durable_worlds import ASYNC, LANES, DurableWorld, count_work_note
from tests.graph.parts import Count, add, burst, log, note, note_many
from tests.graph.worlds import node, wire


class Crash(BaseException):
    """The process dies here."""


class TestResuming:
    def test_resume_after_restart(self) -> None:
        """Epochs 1 to 3 are committed; the process dies in epoch 4, after one of its two entries was enqueued."""
        seen: list[int] = []
        alive = [True]

        @component("test.source")
        class Source:
            def __init__(self) -> None:
                self.count = 0

            def snapshot(self) -> int:
                return self.count

            def restore(self, state: int) -> None:
                self.count = state

            def execute(self) -> int:
                self.count += 1
                seen.append(self.count)
                return self.count

        @component("test.dies")
        def dies(value: int) -> None:
            if value == 4 and alive[0]:
                raise Crash

        nodes = [
            node(Source, "source"),
            node(add, "work", on="any_input", lane="far", config={"amount": 100}),
            node(dies, "dies", on="any_input"),
            node(note, on="any_input"),
        ]
        wires = [
            wire("source.out > work.value", **ASYNC),
            wire("source.out > dies.value", **ASYNC),
            wire("work.out > parts.note.value", "async", **ASYNC),
        ]
        world = DurableWorld(nodes, wires)
        first = world.runner()
        first.start()
        for _ in range(3):
            first.step()
            world.work()
        with pytest.raises(Crash):
            first.step()
        first.finish()
        assert log == [101, 102, 103]
        alive[0] = False

        second = world.runner()
        with second:
            second.step()
            world.work()
            second.step()
        assert seen == [1, 2, 3, 4, 4, 5]  # the epoch in flight was repeated, from the state it began with
        keys = [f"graph/r1/{epoch}/work/0" for epoch in (1, 2, 3, 4, 5)]
        assert world.entry_keys() == keys  # and nothing was enqueued twice
        assert log == [101, 102, 103, 103, 104]
        assert second.result.epochs == 2

    def test_a_run_that_ended_well_resumes_after_its_last_epoch(self) -> None:
        world = count_work_note()
        world.runner(steps=2).run()
        world.work()
        result = world.runner(steps=1).run()
        assert world.entry_keys() == [f"graph/r1/{epoch}/work/0" for epoch in (1, 2, 3)]
        assert log == [2, 3]
        assert result.epochs == 1

    def test_entries_that_ended_between_two_processes_are_committed(self) -> None:
        world = count_work_note()
        with world.runner() as runner:
            runner.step()
        world.work()
        world.runner(steps=1).run()
        assert log[0] == 2

    def test_all_channels_and_shared_values_are_restored(self) -> None:
        @component("test.writer", outputs=())
        def writer(context: GraphContext) -> None:
            log.append(dict(context.state))
            context.set_state("epoch", context.epoch_id)

        @component("test.slow")
        def never(left: int, right: int) -> None:
            log.append((left, right))

        nodes = [
            node(Count, "source"),
            node(add, "work", on="any_input", lane="far"),
            node(writer, "writer"),
            node(never, "never", on="all_inputs"),
        ]
        wires = [
            wire("source.out > work.value", **ASYNC),
            wire("source.out > never.left", id="left", **ASYNC),
            wire("work.out > never.right", "async", **ASYNC),
        ]
        world = DurableWorld(nodes, wires)
        world.runner(steps=2).run()
        assert log == [{}, {"epoch": 1}]
        world.work()
        log.clear()
        world.runner(steps=2).run()
        assert log[:3] == [{"epoch": 2}, (1, 2), (2, 3)]

    def test_a_payload_in_any_channel_that_is_not_json_ends_the_run(self) -> None:
        @component("test.object")
        def give_object() -> Any:
            return {1, 2}

        nodes = [
            node(give_object, "odd"),
            node(add, "work", on="any_input", lane="far"),
            node(note, "never", on="any_input"),
            node(Count, "source"),
        ]
        wires = [
            wire("odd.out > never.value", "delay"),
            wire("source.out > work.value", **ASYNC),
        ]
        result = DurableWorld(nodes, wires).runner(steps=3).run()
        assert result.runtime_errors[0].code == "checkpoint_failed"
        assert "edge odd>never" in result.errors[0]

    def test_a_run_id_of_another_graph_is_refused(self) -> None:
        world = count_work_note()
        world.kernel.graphs.take("r2", "elsewhere", world.kernel.agents.create("other"))
        result = world.runner("r2", steps=1).run()
        assert "'r2' is a run of graph elsewhere, not of world" in result.errors[0]

    @pytest.mark.parametrize("garbage", ["", "{", "[]", '{"version": 1}'])
    def test_a_checkpoint_that_cannot_be_read_is_a_typed_failure(self, garbage: str) -> None:
        world = count_work_note()
        world.runner(steps=1).run()
        world.rewrite_checkpoint("", garbage)
        result = world.runner(steps=1).run()
        assert "checkpoint cannot be read" in result.errors[0]

    def test_a_checkpoint_of_another_version_is_refused(self) -> None:
        world = count_work_note()
        world.runner(steps=1).run()
        world.rewrite_checkpoint('"version":1', '"version":2')
        assert "its format version is 2, but this rota reads version 1" in world.runner(steps=1).run().errors[0]

    def test_a_component_that_left_the_queue_lane_with_an_entry_in_flight_is_refused(self) -> None:
        world = count_work_note()
        world.runner(steps=1).run()
        world.rewrite_checkpoint('"component_id":"work"', '"component_id":"gone"')
        assert "gone is not on a durable lane" in world.runner(steps=1).run().errors[0]

    def test_a_message_keeps_its_age_on_the_clock_of_the_new_process(self) -> None:
        nodes = [
            node(Count, "source"),
            node(add, "work", on="any_input", lane="far"),
            node(note_many, "late", on={"type": "batch", "batch_window_ms": 10_000}),
        ]
        wires = [wire("source.out > work.value", **ASYNC), wire("source.out > late.values", **ASYNC)]
        world = DurableWorld(nodes, wires)
        early, rebooted = ManualClock(), ManualClock()
        early.advance(1_000_000)
        world.runner(steps=1, clock=early).run()  # the message is new
        with world.runner(clock=rebooted) as runner:
            rebooted.advance(9)
            runner.step()
            assert log == []
            rebooted.advance(1)
            runner.step()
        assert log == [((1, 1, 2),)]  # a new source counts from one

    def test_a_graph_that_has_changed_is_refused(self) -> None:
        world = count_work_note()
        world.runner(steps=1).run()
        world.rewrite_checkpoint("source>work", "source>gone")
        assert "the graph has changed" in world.runner(steps=1).run().errors[0]

    def test_an_isolated_component_stays_isolated(self) -> None:
        @component("test.fails")
        def fails() -> None:
            log.append("failed")
            raise ValueError("no")

        nodes = [
            node(Count, "source"),
            node(add, "work", on="any_input", lane="far"),
            node(fails, "fails", on_error="isolate"),
        ]
        world = DurableWorld(nodes, [wire("source.out > work.value", **ASYNC)])
        for _ in range(3):  # a new process for every epoch
            world.runner(steps=1).run()
        assert log == ["failed"]

    def test_a_watermark_restores_its_held_messages(self) -> None:
        @component("test.stamped", outputs=("out",))
        class Stamped:
            def __init__(self) -> None:
                self.stamps = [30, 10, 20, 50]

            def execute(self, context: GraphContext) -> None:
                stamp = self.stamps.pop(0)
                context.publish("out", stamp, timestamp_ms=stamp)

            def snapshot(self) -> list[int]:
                return list(self.stamps)

            def restore(self, state: list[int]) -> None:
                self.stamps = list(state)

        nodes = [
            node(Count, "source"),
            node(add, "work", on="any_input", lane="far"),
            node(Stamped, "stamped"),
            node(note, "late", on={"type": "watermark", "watermark_lateness_ms": 25}),
        ]
        wires = [wire("source.out > work.value", **ASYNC), wire("stamped.out > late.value", **ASYNC)]
        world = DurableWorld(nodes, wires)
        for _ in range(4):  # a new process for every epoch
            world.runner(steps=1).run()
        assert log == [10, 20]


class TestTimes:
    """A coordinator returns to the queue whenever its run waits: timers and rates go on in the process after it."""

    @staticmethod
    def limited() -> DurableWorld:
        """Three values → work (in the queue), at most one per second."""
        nodes = [
            node(burst, "source", on="on_event", sources=[{"type": "timer", "period_ms": 3_600_000}]),
            node(add, "work", on={"type": "rate_limit", "min_interval_ms": 1_000}, lane="far"),
        ]
        return DurableWorld(nodes, [wire("source.out > work.value", mode="queue", capacity=9)])

    def test_the_time_in_which_a_run_waits_counts(self) -> None:
        world, clock = self.limited(), ManualClock()
        seen = []
        for passed_s in (0.0, 0.0, 0.25, 0.75, 0.5):
            clock.advance(passed_s)
            runner = world.runner(run_until_idle=True, returns_when_waiting=True, clock=clock)
            assert runner.run().scheduler_stop_reason is SchedulerStopReason.WAITING
            seen.append((len(world.entries()), runner.due_in_s))
        assert seen == [(1, 1.0), (1, 1.0), (1, 0.75), (2, 1.0), (2, 0.5)]

    def test_the_time_after_a_crash_does_not_count(self) -> None:
        world, clock = self.limited(), ManualClock()
        world.runner(steps=1, clock=clock).run()
        clock.advance(60.0)
        runner = world.runner(run_until_idle=True, returns_when_waiting=True, clock=clock)
        runner.run()
        assert (len(world.entries()), runner.due_in_s) == (1, 1.0)

    def test_a_loop_keeps_its_interval_in_the_next_process(self) -> None:
        clock, seen = ManualClock(), []

        @component("resume.left")
        def left(value: int = 0) -> int:
            seen.append(clock.monotonic())
            return value

        nodes = [node(left, "left"), node(add, "right", on="any_input"), node(add, "work", on="any_input", lane="far")]
        wires = [
            wire("left.out > right.value"),
            wire("right.out > left.value"),
            wire("right.out > work.value", **ASYNC),
        ]
        policy = {"type": "fixed_point", "max_iterations": 1, "min_interval_ms": 1_000}
        world = DurableWorld(nodes, wires, loops=[{"id": "l", "components": ["left", "right"], "loop_policy": policy}])
        for passed_s in (0.0, 0.0, 0.25, 0.75, 0.5):
            clock.advance(passed_s)
            world.runner(run_until_idle=True, returns_when_waiting=True, clock=clock).run()
        assert seen == [0.0, 1.0]


def test_independent_lanes_in_a_durable_run_are_reported() -> None:
    lanes = {**LANES, "ui": {"type": "manual_step"}}
    nodes = [node(Count, "source"), node(add, "work", on="any_input", lane="far"), node(Count, "beside", lane="ui")]
    world = DurableWorld(nodes, [wire("source.out > work.value", **ASYNC)], lanes)
    result = world.runner(steps=1).run()
    assert "independent_lane_not_durable" in [event.kind for event in result.health_events]


class TestFencing:
    def test_a_process_that_lost_the_run_can_no_longer_write(self) -> None:
        world = count_work_note()
        with world.runner() as first:
            first.step()
            with world.runner() as second:
                second.step()
                assert first.step() == 0
        assert first.result.runtime_errors[0].code == "checkpoint_interrupted"
        assert "run r1 was taken by another process" in first.result.errors[0]
        assert second.result.ok
        assert world.entry_keys() == ["graph/r1/1/work/0"]  # both ran epoch 1, and it has one entry

    def test_taking_and_committing_a_run_append_events(self) -> None:
        world = count_work_note()
        world.runner(steps=2).run()
        world.runner(steps=1).run()
        told = [
            (event.kind, event.payload["next_epoch_id"])
            for event in world.kernel.journal.tail()
            if event.kind.startswith("kernel.graph.")
        ]
        taken, committed = GraphRunTaken.kind, GraphRunCommitted.kind
        first = [(taken, 1), (committed, 1), (committed, 2), (committed, 3)]
        assert told == [*first, (taken, 3), (committed, 3), (committed, 4)]

    def test_a_run_id_that_is_too_long_is_refused(self) -> None:
        result = count_work_note().runner("x" * 65, steps=1).run()
        assert result.scheduler_stop_reason == SchedulerStopReason.ERROR
        assert "GraphRun.run_id" in result.errors[0]


class Mortal:
    """source → work (in the queue) → keep, in processes that end in different ways."""

    def __init__(self) -> None:
        self.dies = False
        self.kept: list[int] = []
        world = self

        @component("mortal.source")
        class Source:
            count = 0

            def execute(self) -> int:
                self.count += 1
                return self.count

            def snapshot(self) -> int:
                return self.count

            def restore(self, count: int) -> None:
                self.count = count

        @component("mortal.gate")
        def gate(value: int) -> None:
            if self.dies:
                raise Crash

        @component("mortal.keep")
        class Keep:
            def __init__(self) -> None:
                self.values: list[int] = []

            def execute(self, value: int) -> None:
                self.values.append(value)
                world.kept = self.values

            def snapshot(self) -> list[int]:
                return list(self.values)

            def restore(self, values: list[int]) -> None:
                self.values = list(values)

        nodes = [
            node(Source, "source"),
            node(add, "work", on="any_input", lane="far", config={"amount": 100}),
            node(gate, "gate", on="any_input", priority="background"),
            node(Keep, "keep", on="any_input"),
        ]
        wires = [
            wire("source.out > work.value", **ASYNC),
            wire("source.out > gate.value", **ASYNC),
            wire("work.out > keep.value", "async", **ASYNC),
        ]
        self.world = DurableWorld(nodes, wires)
        self.runner = self._started()

    def _started(self) -> RuntimeRunner:
        runner = self.world.runner()
        runner.start()
        return runner

    def step(self) -> None:
        self.runner.step()

    def work(self) -> None:
        self.world.work(most=1)

    def be_killed_between_epochs(self) -> None:
        self.runner = self._started()  # without a clean end

    def be_killed_in_an_epoch(self) -> None:
        self.dies = True
        with pytest.raises(Crash):
            self.runner.step()
        self.dies = False
        self.runner = self._started()

    def end_well(self) -> None:
        assert self.runner.finish().ok
        self.runner = self._started()


DEEDS = (Mortal.step, Mortal.work, Mortal.be_killed_between_epochs, Mortal.be_killed_in_an_epoch, Mortal.end_well)


@given(st.lists(st.sampled_from(DEEDS), max_size=30))
def test_a_run_commits_the_same_values_however_its_processes_end(deeds: list[Callable[..., None]]) -> None:
    mortal = Mortal()
    for deed in (*deeds, Mortal.step):
        deed(mortal)
    asked = len(mortal.world.entries())
    mortal.world.work()
    mortal.step()
    assert mortal.runner.finish().ok
    assert mortal.kept == [100 + value for value in range(1, asked + 1)]
    assert len(mortal.world.entries()) == asked + 1  # the last epoch asked for one more
    mortal.world.kernel.store.close()

"""A run: epochs, what is visible when, bounds, lifecycle, shared values, configuration."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import ComponentInvalid, ComponentUnknown, GraphRunFailed, InvalidInput, LaneUnknown
from rota.graph.compiler import compile_graph
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.invocation import GraphContext, Invocation
from rota.graph.loader import load_mapping
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import IDLE_STEPS_MAX, RuntimeRunnerOptions, SchedulerStopReason
from rota.graph.stop import StopToken
from tests.graph.parts import Count, add, burst, join, log, note, note_many
from tests.graph.worlds import executed, make_runner, node, run, wire


class TestVisibility:
    def test_an_immediate_message_is_seen_in_the_same_epoch(self) -> None:
        nodes = [node(Count), node(note, on="any_input")]
        assert run(nodes, [wire("parts.count.out > parts.note.value")], steps=2).ok
        assert log == [1, 2]

    @pytest.mark.parametrize("kind", ["delay", "state", "async"])
    def test_a_delayed_message_is_seen_in_the_next_epoch(self, kind: str) -> None:
        nodes = [node(Count), node(note, on="any_input")]
        wires = [wire("parts.count.out > parts.note.value", kind)]
        assert run(nodes, wires, steps=1).ok
        assert log == []
        assert run(nodes, wires, steps=3).ok
        assert log == [1, 2]

    def test_previous_tick_makes_an_immediate_edge_wait(self) -> None:
        nodes = [node(Count), node(note, on="any_input")]
        run(nodes, [wire("parts.count.out > parts.note.value", mode="previous_tick")], steps=3)
        assert log == [1, 2]

    def test_a_state_edge_is_read_again_and_again(self) -> None:
        @component
        class Once:
            done = False

            def execute(self) -> int | None:
                self.done, before = True, self.done
                return None if before else 5

        nodes = [node(Once), node(Count), node(note_many, on="all_inputs")]
        wires = [
            wire("parts.count.out > parts.note_many.values"),
            wire("Once.out > parts.note_many.values", "state"),
        ]
        run(nodes, wires, steps=4)
        assert log == [(2, 5), (3, 5), (4, 5)]

    def test_publish_stages_without_recursive_downstream_execute(self) -> None:
        @component(outputs=("out",))
        def outer(context: GraphContext) -> None:
            log.append("before")
            context.publish("out", 1)
            log.append("after")

        nodes = [node(outer), node(note, on="any_input")]
        assert run(nodes, [wire("outer.out > parts.note.value")]).ok
        assert log == ["before", "after", 1]

    def test_publications_of_a_failed_invocation_are_discarded(self) -> None:
        @component(outputs=("out",))
        def half(context: GraphContext) -> None:
            context.publish("out", 1)
            raise ValueError("half way")

        nodes = [node(half, on_error="continue"), node(note, on="any_input")]
        result = run(nodes, [wire("half.out > parts.note.value")], steps=2)
        assert log == []
        assert result.totals["staged_publication_count"] == 0

    def test_a_commit_that_would_partly_fail_commits_nothing(self) -> None:
        nodes = [node(burst), node(note, "tight", on="any_input"), node(note, "wide", on="any_input")]
        wires = [
            wire("parts.burst.out > wide.value", mode="queue", capacity=9),
            wire("parts.burst.out > tight.value", mode="queue", capacity=2, overflow="fail_fast"),
        ]
        result = run(nodes, wires)
        assert result.scheduler_stop_reason == SchedulerStopReason.ERROR
        assert [error.code for error in result.runtime_errors] == ["channel_overflow"]
        assert (log, result.totals["committed_publication_count"]) == ([], 0)

    def test_a_full_channel_at_the_boundary_ends_the_run(self) -> None:
        nodes = [node(burst), node(note, on="any_input")]
        wires = [wire("parts.burst.out > parts.note.value", "delay", mode="queue", capacity=2, overflow="fail_fast")]
        result = run(nodes, wires, steps=3)
        assert (result.epochs, result.runtime_errors[0].code) == (2, "channel_overflow")

    def test_a_payload_is_copied_for_each_edge_unless_it_is_shared(self) -> None:
        payload: list[int] = []

        @component
        def source() -> list[int]:
            return payload

        nodes = [node(source), node(note, "copied", on="any_input"), node(note, "shared", on="any_input")]
        wires = [
            wire("source.out > copied.value"),
            wire("source.out > shared.value", copy_policy="shared_view"),
        ]
        run(nodes, wires)
        assert [each is payload for each in log] == [False, True]

    def test_causation_and_correlation_travel_with_messages(self) -> None:
        @component
        def tell(value: int, invocation: Invocation) -> int:
            log.append((invocation.causation_id, invocation.correlation_id))
            return value

        nodes = [node(Count), node(tell, "first", on="any_input"), node(tell, "second", on="any_input")]
        run(nodes, [wire("parts.count.out > first.value"), wire("first.out > second.value")], steps=2)
        assert log == [
            ("parts.count>first#1", "parts.count>first#1"),
            ("first>second#1", "parts.count>first#1"),
            ("parts.count>first#2", "parts.count>first#2"),
            ("first>second#2", "parts.count>first#2"),
        ]


class TestOrder:
    def test_independent_regions_run_by_priority_and_low_ones_are_not_starved(self) -> None:
        nodes = [
            node(Count, "idle", priority="background"),
            node(Count, "slow", priority="low"),
            node(Count, "plain"),
            node(Count, "urgent", priority="high"),
        ]
        result = run(nodes, steps=2, trace=True)
        assert executed(result) == 2 * ["urgent", "plain", "slow", "idle"]

    def test_priority_does_not_bypass_an_edge(self) -> None:
        nodes = [node(Count, "low", priority="low"), node(note, "high", on="any_input", priority="high")]
        result = run(nodes, [wire("low.out > high.value")], trace=True)
        assert executed(result) == ["low", "high"]

    def test_equal_priority_keeps_the_order_of_the_file(self) -> None:
        nodes = [node(Count, name) for name in ("c", "a", "b")]
        assert executed(run(nodes, trace=True)) == ["c", "a", "b"]


class TestBounds:
    def test_without_any_bound_one_epoch_is_run(self) -> None:
        result = run([node(Count)])
        assert (result.epochs, result.scheduler_stop_reason) == (1, SchedulerStopReason.TICK_BOUND)

    def test_no_steps_at_all(self) -> None:
        result = run([node(Count)], steps=0)
        assert (result.epochs, result.executed, result.ok) == (0, 0, True)

    def test_a_duration_ends_the_run(self) -> None:
        clock = ManualClock()

        @component
        def take_time() -> None:
            clock.advance(0.030)

        result = run([node(take_time)], clock=clock, duration_ms=100)
        assert (result.epochs, result.scheduler_stop_reason) == (4, SchedulerStopReason.DURATION_BOUND)

    def test_until_idle_ends_when_an_epoch_executed_nothing(self) -> None:
        @component
        class Few:
            left = 3

            def execute(self, value: int = 0) -> int | None:
                self.left -= 1
                return 1 if self.left > 0 else None

        nodes = [node(Few, on="on_event", sources=[{"type": "request"}, {"type": "message", "input": "value"}])]
        runner = make_runner(nodes, [wire("Few.out > Few.value", "delay")], run_until_idle=True)
        runner.start()
        runner.send("Few", "go")
        result = runner.run()
        assert (result.executed, result.epochs) == (3, 4)
        assert result.scheduler_stop_reason == SchedulerStopReason.IDLE

    def test_until_idle_has_its_own_bound(self) -> None:
        result = run([node(Count)], run_until_idle=True)
        assert (result.epochs, result.scheduler_stop_reason) == (IDLE_STEPS_MAX, SchedulerStopReason.TICK_BOUND)

    def test_until_idle_follows_a_chain_of_delays_to_its_end(self) -> None:
        @component
        class Once:
            def execute(self, request: str) -> int:
                return 1

        nodes = [
            node(Once, on="request", sources=[{"type": "request"}]),
            node(add, "a", on="any_input"),
            node(add, "b", on="any_input"),
            node(note, on="any_input"),
        ]
        wires = [
            wire("Once.out > a.value", "delay"),
            wire("a.out > b.value", "delay"),
            wire("b.out > parts.note.value", "delay"),
        ]
        runner = make_runner(nodes, wires, run_until_idle=True)
        runner.start()
        runner.send("Once", "go")
        result = runner.run()
        assert log == [3]
        assert (result.epochs, result.scheduler_stop_reason) == (5, SchedulerStopReason.IDLE)

    @pytest.mark.parametrize("bad", [{"steps": -1}, {"steps": 1.5}, {"duration_ms": -3}, {"trace_rows_max": 0}])
    def test_invalid_options_are_refused(self, bad: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            RuntimeRunnerOptions(**bad)

    def test_a_runner_that_never_ran_has_the_reason_not_started(self) -> None:
        assert make_runner([node(Count)]).result.scheduler_stop_reason == SchedulerStopReason.NOT_STARTED


class TestSharedState:
    def test_a_value_is_visible_to_all_components_from_the_next_epoch_on(self) -> None:
        @component(outputs=())
        def writer(context: GraphContext) -> None:
            context.set_state("epoch", context.epoch_id)

        @component(outputs=())
        def reader(context: GraphContext) -> None:
            log.append(dict(context.state))

        run([node(writer), node(reader)], steps=3)
        assert log == [{}, {"epoch": 1}, {"epoch": 2}]

    def test_a_failed_invocation_changes_nothing(self) -> None:
        @component(outputs=())
        def writer(context: GraphContext) -> None:
            context.set_state("key", 1)
            raise ValueError("no")

        @component(outputs=())
        def reader(context: GraphContext) -> None:
            log.append(dict(context.state))

        run([node(writer, on_error="continue"), node(reader)], steps=2)
        assert log == [{}, {}]


class TestConfiguration:
    def test_the_graphs_own_configuration_is_in_the_context(self) -> None:
        @component(outputs=())
        def look(context: GraphContext) -> None:
            log.append(context.config["mode"])

        run([node(look)], graph_config={"mode": "fast"})
        assert log == ["fast"]

    def test_a_change_applies_when_the_next_epoch_begins(self) -> None:
        @component
        def say(*, word: str) -> None:
            log.append(word)

        with make_runner([node(say, config={"word": "old"})]) as runner:
            runner.step()
            runner.update_config({"say": {"word": "new"}})
            runner.step()
        assert log == ["old", "new"]

    def test_one_bad_change_refuses_all_of_them_and_stops_the_run(self) -> None:
        @component
        def say(*, word: str) -> None:
            log.append(word)

        nodes = [node(say, "a", config={"word": "a"}), node(say, "b", config={"word": "b"})]
        with make_runner(nodes) as runner:
            runner.update_config({"a": {"word": "new"}, "b": {"wort": "new"}})
            runner.step()
            assert log == []
        error = runner.result.runtime_errors[0]
        assert (error.phase, error.code) == ("validate", "config_rejected")
        assert runner.result.scheduler_stop_reason == SchedulerStopReason.ERROR

    def test_when_applying_fails_those_already_applied_are_rolled_back(self) -> None:
        @component
        class Dial:
            def __init__(self, *, value: int) -> None:
                self.value = value

            def reconfigure(self, *, value: int) -> None:
                if value < 0:
                    raise ValueError("below zero")
                self.value = value

            def execute(self) -> None:
                pass

        nodes = [node(Dial, "a", config={"value": 1}), node(Dial, "b", config={"value": 2})]
        with make_runner(nodes) as runner:
            runner.update_config({"a": {"value": 7}, "b": {"value": -1}})
            runner.step()
            assert [runner._instances[name].value for name in ("a", "b")] == [1, 2]
        assert not runner.result.ok

    def test_a_roll_back_that_fails_is_recorded_too(self) -> None:
        @component
        class Ratchet:
            def __init__(self, *, value: int) -> None:
                self.value = value

            def reconfigure(self, *, value: int) -> None:
                if value < self.value:
                    raise ValueError("only up")
                self.value = value

            def execute(self) -> None:
                pass

        nodes = [node(Ratchet, "a", config={"value": 1}), node(Ratchet, "b", config={"value": 5})]
        with make_runner(nodes) as runner:
            runner.update_config({"a": {"value": 7}, "b": {"value": 2}})
            runner.step()
        assert [error.code for error in runner.result.runtime_errors] == ["config_rollback", "config_rejected"]

    def test_a_class_may_refuse_before_anything_is_applied(self) -> None:
        @component
        class Dial:
            def __init__(self, *, value: int) -> None:
                self.value = value

            def validate_config(self, *, value: int) -> None:
                if value > 9:
                    raise ValueError("too much")

            def reconfigure(self, *, value: int) -> None:
                self.value = value

            def execute(self) -> None:
                pass

        with make_runner([node(Dial, config={"value": 1})]) as runner:
            runner.update_config({"Dial": {"value": 10}})
            runner.step()
            assert runner._instances["Dial"].value == 1

    def test_a_change_that_is_not_possible_is_refused_immediately(self) -> None:
        with make_runner([node(Count)]) as runner:
            with pytest.raises(ComponentInvalid, match="reconfigure"):
                runner.update_config({"parts.count": {"start": 3}})
            with pytest.raises(ComponentUnknown, match="unknown"):
                runner.update_config({"unknown": {}})


class TestHostDriven:
    def test_a_host_runs_epoch_by_epoch(self) -> None:
        nodes = [node(Count), node(note, on="any_input")]
        with make_runner(nodes, [wire("parts.count.out > parts.note.value")]) as runner:
            assert runner.step() == 2
            assert log == [1]
            runner.step()
        assert log == [1, 2]
        assert runner.result.epochs == 2

    def test_requests_from_outside_wake_a_component_at_the_next_boundary(self) -> None:
        @component
        def answer(request: str) -> None:
            log.append(request.upper())

        with make_runner([node(answer, on="request", sources=[{"type": "request"}])]) as runner:
            assert runner.step() == 0
            runner.send("answer", "a")
            runner.send("answer", "b")
            assert runner.step() == 2
            with pytest.raises(ComponentUnknown, match="has no event source of type request"):
                runner.send("unknown", 1)
        assert log == ["A", "B"]

    def test_events_on_listed_inputs_run_their_components_and_arrive_as_single_payloads(self) -> None:
        @component("bounded.check")
        def check(request: int) -> int:
            return request * 10

        @component("bounded.work")
        def work(ready: int) -> int:
            return ready + 1

        nodes = [
            node(Count),
            node(
                check,
                on={"type": "request", "inputs": ["request"]},
                sources=[{"type": "request", "inputs": ["request"]}],
            ),
            node(
                work,
                on={"type": "task_ready", "inputs": ["ready"]},
                sources=[{"type": "task_ready", "inputs": ["ready"]}],
            ),
            node(note, on="any_input"),
        ]
        wires = [
            wire("parts.count.out > bounded.check.request", mode="queue", capacity=8),
            wire("bounded.check.out > bounded.work.ready", "async", mode="queue", capacity=4, max_inflight=2),
            wire("bounded.work.out > parts.note.value", mode="queue", capacity=4),
        ]
        with make_runner(nodes, wires, version=1) as runner:
            runner.step()
            runner.send("bounded.check", 7)  # the same port, from outside
            runner.step()
            runner.step()
        assert log == [11, 21, 71]

    def test_only_a_manual_lane_can_be_stepped(self) -> None:
        with make_runner([node(Count)]) as runner, pytest.raises(LaneUnknown, match="main"):
            runner.step("main")

    def test_host_calls_outside_of_a_run_are_refused(self) -> None:
        runner = make_runner([node(Count)])
        for call in (runner.step, lambda: runner.send("a", 1), lambda: runner.update_config({})):
            with pytest.raises(GraphRunFailed, match="not running"):
                call()

    def test_a_runner_runs_once_at_a_time(self) -> None:
        runners: list[RuntimeRunner] = []

        def once_more(_epoch_id: int) -> None:
            for again in (runners[0].run, runners[0].start):
                with pytest.raises(GraphRunFailed, match="already running"):
                    again()

        runners.append(make_runner([node(Count)], on_epoch=once_more))
        assert runners[0].run().ok

    def test_a_component_that_steps_its_own_run_fails(self) -> None:
        @component("test.nests")
        def nests() -> None:
            runner.step()

        runner = make_runner([node(nests)])
        assert "an epoch of this run is already in progress" in runner.run().errors[0]

    def test_a_second_thread_that_steps_is_refused(self) -> None:
        in_epoch, refused = threading.Event(), threading.Event()

        @component("test.waits")
        def waits() -> None:
            in_epoch.set()
            assert refused.wait(30)

        with make_runner([node(waits)]) as runner:
            thread = threading.Thread(target=runner.step)
            thread.start()
            assert in_epoch.wait(30)
            with pytest.raises(GraphRunFailed, match="already in progress"):
                runner.step()
            refused.set()
            thread.join(30)
        assert (runner.result.ok, runner.result.epochs) == (True, 1)

    def test_a_host_may_start_send_and_then_run(self) -> None:
        @component
        def answer(request: str) -> None:
            log.append(request)

        with make_runner([node(answer, on="request", sources=[{"type": "request"}])], run_until_idle=True) as runner:
            runner.send("answer", "first")
            assert runner.run().scheduler_stop_reason == SchedulerStopReason.IDLE
        assert log == ["first"]

    def test_each_epoch_is_reported_to_on_epoch(self) -> None:
        seen: list[int] = []
        run([node(Count)], steps=3, on_epoch=seen.append)
        assert seen == [1, 2, 3]


class TestContextAfterItsInvocation:
    def test_it_is_refused(self) -> None:
        kept: list[GraphContext] = []

        @component
        def keep(context: GraphContext) -> None:
            kept.append(context)

        run([node(keep)])
        with pytest.raises(ComponentInvalid, match="after its invocation had ended"):
            kept[0].publish("out", 1)


def test_the_result_as_plain_values_has_the_shape_tools_expect() -> None:
    nodes = [node(Count), node(note, on="any_input")]
    summary = run(nodes, [wire("parts.count.out > parts.note.value")], steps=2).summary()
    assert summary["ok"] is True
    assert summary["graph_name"] == "world"
    assert (summary["epochs"], summary["executed"], summary["component_count"]) == (2, 4, 2)
    assert summary["tick_calls"] == 4  # calls of components
    assert summary["ticked_components"] == ["parts.count", "parts.note"]
    assert summary["stop_reason"] == "tick_bound"
    assert (summary["staged_publication_count"], summary["committed_publication_count"]) == (2, 2)
    assert {"errors", "runtime_errors", "metrics", "metric_schema_version", "channel_drop_count"} <= set(summary)
    assert summary["metrics"][0].keys() == {"name", "value", "component_id", "lane", "channel_id", "tags"}


def test_the_plain_path_and_the_general_path_do_the_same() -> None:
    """A component that asks for `context` takes the general path; both must commit, count and trace alike."""

    @component("parts.long_add")
    def long_add(value: int, context: GraphContext, *, amount: int = 1) -> int:
        return value + amount

    def observe(middle: Any) -> tuple[Any, ...]:
        log.clear()
        nodes = [node(Count), node(middle, "middle", on="any_input", budget_ms=1), node(note, on="any_input")]
        wires = [wire("parts.count.out > middle.value"), wire("middle.out > parts.note.value", "delay")]
        result = run(nodes, wires, steps=3, trace=True, clock=ManualClock())
        assert result.trace is not None
        events = [
            (each.name, each.component_id, each.channel_id, each.causation_id, each.attributes)
            for each in result.trace.events()
        ]
        return list(log), events, result.runtime_metrics

    assert observe(add) == observe(long_add)


def test_a_stop_before_the_first_epoch_runs_nothing() -> None:
    token = StopToken()
    token.request()
    result = run([node(join)], stop_token=token, steps=5)
    assert (result.epochs, result.scheduler_stop_reason) == (0, SchedulerStopReason.STOP_REQUESTED)


@pytest.mark.parametrize(
    ("start", "end"), [("parts.count.out", "parts.note.nope"), ("parts.count.nope", "parts.note.value")]
)
def test_a_plan_that_was_compiled_without_knowing_the_components_is_checked_again(start: str, end: str) -> None:
    document = {
        "schema_version": 1,
        "graph": {"name": "blind", "kind": "internal_test"},
        "lanes": {"main": {"type": "event_loop"}},
        "components": [node(Count)[1], node(note, on={"type": "any_input", "inputs": [end.rpartition(".")[2]]})[1]],
        "edges": [{"id": "e", "kind": "immediate", "from": start, "to": end}],
    }
    runner = RuntimeRunner(compile_graph(load_mapping(document)), ComponentRegistry([Count, note]))
    with pytest.raises(ComponentInvalid, match="port 'nope'"):
        runner.run()

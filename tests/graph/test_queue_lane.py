"""The queue lane: invocations as entries of the durable queue."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rota.errors import ComponentInvalid, ComponentUnknown, InvalidInput
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.entry_runs import run_entry
from rota.graph.invocation import GraphContext
from rota.graph.lanes.durable import DurableRuns, _outcome
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions, SchedulerStopReason
from rota.kernel import graph_run_progress
from rota.model.checks import PAYLOAD_BYTES_MAX
from rota.model.events import EntriesEnqueued
from tests.graph.durable_worlds import ASYNC, DurableWorld, count_work_note
from tests.graph.parts import add, burst, log, note
from tests.graph.worlds import names, node, wire


class TestEntries:
    def test_durable_entries(self) -> None:
        world = count_work_note()
        with world.runner() as runner:
            runner.step()
            assert log == []
            assert world.work() == 1
            runner.step()
        assert log == [2]
        assert runner.result.ok

    def test_runtime_owned_publication_commit(self) -> None:
        """The run commits an entry's publications at the epoch boundary after the entry has ended."""
        world = count_work_note()
        with world.runner() as runner:
            runner.step()
            world.work()
            edge = runner._require_engine().wiring.channels["work>parts.note"]
            assert edge.offered_here == 0
            runner.step()
            assert edge.committed == 1

    def test_timeout_budget_observation(self) -> None:
        """The worker measures an entry's duration, and it counts against the component's budget."""
        world = count_work_note(budget_ms=5)
        with world.runner(trace=True) as runner:
            for _ in range(2):
                runner.step()
            for duration_s in (0.25, 0.001):
                world.finish(world.claim(), {"published": [], "duration_s": duration_s})
            runner.step()
        metrics = {"component_id": "work", "lane": "far"}
        assert runner.result.metric("runtime.component.timeout_budget_exceeded_count", **metrics) == 1
        assert runner.result.metric("runtime.component.busy_duration_ms", **metrics) == pytest.approx(251)
        assert names(runner.result, "component_timeout") == ["component_timeout_budget_exceeded"]

    def test_the_epoch_does_not_wait_for_its_entries(self) -> None:
        world = count_work_note()
        with world.runner() as runner:
            for _ in range(5):
                runner.step()
            assert len(world.entries("queued")) == 5
            assert log == []
        assert runner.result.metric("runtime.scheduler.in_flight_count", lane="far") == 5

    def test_an_entry_carries_everything_needed_to_run_it_elsewhere(self) -> None:
        world = count_work_note(priority="high")
        with world.runner() as runner:
            runner.step()
        (entry,) = world.entries()
        payload = entry.payload
        assert (payload["run"], payload["epoch"], payload["invocation"]) == ("r1", 1, "r1/1/work/0")
        assert (payload["component"], payload["type"], payload["config"]) == ("work", "parts.add", {})
        assert (entry.key, entry.kind, entry.trigger) == ("graph/r1/1/work/0", "graph:world", "graph")
        assert entry.correlation_id == "r1"

    @pytest.mark.parametrize(("word", "priority"), [("high", 1), ("normal", 0), ("low", -1), ("background", -2)])
    def test_a_class_is_a_priority_around_the_default_of_the_queue(self, word: str, priority: int) -> None:
        world = count_work_note(priority=word)
        world.runner(steps=1).run()
        assert [entry.priority for entry in world.entries()] == [priority]

    def test_runtime_priority_ordering(self) -> None:
        """Workers claim entries by class, then in the order in which they became ready."""
        classes = ("background", "normal", "high", "low")
        nodes = [node(burst, "source", config={"size": 2})]
        nodes += [node(add, name, on="any_input", lane="far", priority=name) for name in classes]
        world = DurableWorld(nodes, [wire(f"source.out > {name}.value", **ASYNC) for name in classes])
        world.runner(steps=1).run()
        taken = [world.claim().payload["invocation"] for _ in range(8)]
        assert taken == [f"r1/1/{name}/{at}" for name in ("high", "normal", "low", "background") for at in (0, 1)]

    def test_entries_belong_to_the_agent_of_the_graph(self) -> None:
        world = count_work_note()
        world.runner("r1", steps=1).run()
        world.runner("r2", steps=1).run()
        (agent,) = world.kernel.agents.find("world")
        assert agent.template == "graph"
        assert {entry.pid for entry in world.entries()} == {agent.pid}

    def test_entries_belong_to_the_agent_that_is_named(self) -> None:
        world = count_work_note()
        pid = world.kernel.agents.create("payer")
        options = RuntimeRunnerOptions(durable=DurableRuns(world.kernel, pid), steps=1)
        RuntimeRunner(world.plan, world.registry, options).run()
        assert [entry.pid for entry in world.entries()] == [pid]

    def test_a_worker_without_the_kind_cannot_claim_entries_of_graphs(self) -> None:
        world = count_work_note()
        world.runner(steps=1).run()
        assert world.api.claim("plain") == []
        assert world.claim().payload["component"] == "work"

    def test_all_invocations_of_a_step_are_one_commit(self) -> None:
        nodes = [node(burst, "source", config={"size": 5}), node(add, "work", on="any_input", lane="far")]
        world = DurableWorld(nodes, [wire("source.out > work.value", **ASYNC)])
        world.runner(steps=1).run()
        facts = [event.payload for event in world.kernel.journal.tail() if event.kind == EntriesEnqueued.kind]
        assert [fact.get("count", 1) for fact in facts] == [5]
        assert [entry.payload["inputs"][0]["payload"] for entry in world.entries()] == [0, 1, 2, 3, 4]

    def test_results_are_committed_in_the_order_of_the_entries(self) -> None:
        world = count_work_note()
        with world.runner() as runner:
            for _ in range(3):
                runner.step()
            taken = [world.claim() for _ in range(3)]
            for at in (2, 0, 1):
                world.finish(taken[at], run_entry(world.registry, taken[at].payload))
            runner.step()
        assert log == [2, 3, 4]

    def test_until_idle_waits_for_entries_to_end(self) -> None:
        @component("test.ask")
        def ask(request: int) -> int:
            return request

        nodes = [
            node(ask, "source", on="request", sources=[{"type": "request"}]),
            node(add, "work", on="any_input", lane="far"),
            node(note, on="any_input"),
        ]
        wires = [wire("source.out > work.value", **ASYNC), wire("work.out > parts.note.value", "async", **ASYNC)]
        world = DurableWorld(nodes, wires)
        runner = world.runner(run_until_idle=True)
        runner.start()
        runner.send("source", 5)
        supervisor = world.supervisor()
        worker = threading.Thread(target=supervisor.run)
        worker.start()
        result = runner.run()
        supervisor.drain()
        worker.join(30)
        assert (log, result.scheduler_stop_reason) == ([6], SchedulerStopReason.IDLE)

    def test_causation_is_kept_through_the_queue(self) -> None:
        world = count_work_note()
        with world.runner(trace=True) as runner:
            runner.step()
            world.work()
            runner.step()
        assert runner.result.trace is not None
        noted = [event for event in runner.result.trace.events() if event.component_id == "parts.note"]
        assert noted[0].causation_id == "work>parts.note#1"
        assert noted[0].correlation_id == "source>work#1"

    def test_a_class_with_lifecycle_methods_and_an_async_function_run_as_entries(self) -> None:
        @component("test.Living")
        class Living:
            def activate(self) -> None:
                log.append("activate")

            def deactivate(self) -> None:
                log.append("deactivate")

            async def execute(self, value: int, context: GraphContext) -> int:
                return value * 10

        world = count_work_note(Living)
        with world.runner() as runner:
            runner.step()
            world.work()
            runner.step()
        assert log == ["activate", "deactivate", 10]

    def test_without_a_queue_the_error_says_what_to_pass(self) -> None:
        world = count_work_note()
        with pytest.raises(InvalidInput, match="no durable queue was given"):
            RuntimeRunner(world.plan, world.registry).run()


class TestFailures:
    def failing(self, **execution: Any) -> DurableWorld:
        @component("test.broken")
        def broken(value: int) -> int:
            raise ValueError(f"no {value}")

        return count_work_note(broken, **execution)

    def test_a_failed_entry_ends_the_run(self) -> None:
        world = self.failing()
        with world.runner() as runner:
            runner.step()
            world.work()
            runner.step()
        assert runner.result.scheduler_stop_reason == SchedulerStopReason.ERROR
        assert "ValueError: no 1" in runner.result.errors[0]

    def test_a_failed_entry_is_recorded_and_the_run_continues(self) -> None:
        world = self.failing(on_error="continue")
        with world.runner() as runner:
            for _ in range(3):
                runner.step()
                world.work()
        assert runner.result.scheduler_stop_reason == SchedulerStopReason.TICK_BOUND
        assert runner.result.error_count == 2

    def test_a_retry_is_an_entry_of_its_own(self) -> None:
        world = self.failing(on_error="retry", max_attempts=3)
        with world.runner() as runner:
            runner.step()
            for _ in range(3):
                world.work(most=1)
                runner.step()
        mine = [key for key in world.entry_keys() if key.startswith("graph/r1/1/")]
        assert mine == ["graph/r1/1/work/0", "graph/r1/1/work/0~2", "graph/r1/1/work/0~3"]

    def test_a_payload_that_is_not_json_fails_the_invocation(self) -> None:
        @component("test.set")
        def give_set() -> Any:
            return {1, 2}

        world = count_work_note(source=give_set, on_error="continue")
        with world.runner() as runner:
            runner.step()
        assert "cannot be stored as JSON" in runner.result.errors[0]
        assert world.entries() == []

    def test_a_result_that_is_not_json_fails_the_entry(self) -> None:
        @component("test.odd")
        def odd(value: int) -> Any:
            return (1, 2)

        world = count_work_note(odd)
        with world.runner() as runner:
            runner.step()
            with pytest.raises(ComponentInvalid, match="changes when it is read back"):
                run_entry(world.registry, world.claim().payload)

    def test_a_result_that_is_not_a_list_of_publications_is_a_failure(self) -> None:
        world = count_work_note()
        with world.runner() as runner:
            runner.step()
            world.finish(world.claim(), {"anything": 1})
            runner.step()
        assert "a result that has no publications" in runner.result.errors[0]

    def test_an_entry_of_an_unknown_type_is_a_typed_error(self) -> None:
        world = count_work_note()
        with world.runner() as runner:
            runner.step()
        with pytest.raises(ComponentUnknown):
            run_entry(ComponentRegistry(), world.claim().payload)

    def test_a_cancelled_entry_is_a_failure_with_that_reason(self) -> None:
        world = count_work_note()
        with world.runner() as runner:
            runner.step()
            world.kernel.queue.cancel(world.entries()[0].sched_id)
            runner.step()
        assert "entry 1 ended without a result: cancelled" in runner.result.errors[0]

    def test_an_entry_that_a_run_waits_for_is_not_pruned(self) -> None:
        world = count_work_note()
        with world.runner() as runner:
            for _ in range(2):
                runner.step()
            world.finish(world.claim(), {"published": [], "duration_s": 0})
            world.kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0)
            runner.step()
        assert runner.result.errors == ()

    def test_an_entry_that_is_gone_is_a_failure_with_that_reason(self) -> None:
        assert "was pruned before the run saw how it ended" in str(_outcome(None).error)

    def test_a_payload_that_is_too_large_for_the_queue_fails_the_invocation(self) -> None:
        @component("test.large")
        def large() -> Any:
            return "x" * (PAYLOAD_BYTES_MAX + 1)

        world = count_work_note(source=large, on_error="continue")
        with world.runner() as runner:
            runner.step()
        assert "the maximum is 262,144" in runner.result.errors[0]
        assert world.entries() == []

    def test_one_invocation_that_cannot_be_enqueued_does_not_block_the_others(self) -> None:
        @component("test.mixed", outputs=("out",))
        def mixed(context: GraphContext) -> None:
            for payload in (1, {2}, 3):
                context.publish("out", payload)

        world = count_work_note(source=mixed, on_error="continue")
        with world.runner() as runner:
            runner.step()
        assert runner.result.error_count == 1
        assert [entry.payload["inputs"][0]["payload"] for entry in world.entries()] == [1, 3]

    def test_a_checkpoint_that_is_too_large_ends_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(graph_run_progress, "CHECKPOINT_BYTES_MAX", 10)
        result = count_work_note().runner(steps=3).run()
        assert result.runtime_errors[0].code == "checkpoint_too_large"
        assert "CHECKPOINT_BYTES_MAX is 10" in result.errors[0]
        assert log == []

    def test_a_queue_that_cannot_be_reached_ends_the_run_and_loses_nothing(self) -> None:
        world = count_work_note(on_error="continue")
        with world.runner() as runner:
            runner.step()
            world.kernel.store.close()
            assert runner.step() == 0
        assert [error.code for error in runner.result.runtime_errors] == ["queue_unavailable"]
        assert runner.result.scheduler_stop_reason == SchedulerStopReason.ERROR


class TestEdges:
    """Edges to and from a durable lane: nothing is overwritten, nothing is enqueued that could not be held."""

    def fan(self, size: int, **policy: Any) -> DurableWorld:
        """A burst of numbers → work (in the queue) → note; only the edge behind the queue has a policy."""
        nodes = [
            node(burst, "source", config={"size": size}),
            node(add, "work", on="any_input", lane="far"),
            node(note, on="any_input"),
        ]
        return DurableWorld(
            nodes, [wire("source.out > work.value"), wire("work.out > parts.note.value", "async", **policy)]
        )

    def test_every_finished_entry_reaches_the_reader(self) -> None:
        world = self.fan(5)
        with world.runner() as runner:
            runner.step()
            world.work()
            runner.step()
        assert log == [1, 2, 3, 4, 5]
        assert runner.result.ok

    def test_with_latest_what_is_replaced_is_counted_and_reported(self) -> None:
        world = self.fan(5, mode="latest")
        with world.runner() as runner:
            runner.step()
            world.work()
            runner.step()
        assert log == [5]
        assert runner.result.metric("runtime.channel.overwrite_count", channel_id="work>parts.note") == 4
        assert [event.kind for event in runner.result.health_events].count("channel_overwrite") == 4

    def test_no_entry_is_enqueued_whose_result_could_not_be_held(self) -> None:
        world = self.fan(5, mode="queue", capacity=2)
        with world.runner() as runner:
            for _ in range(2):
                runner.step()
                assert len(world.entries("queued")) == 2
            world.work()
            runner.step()
            assert len(world.entries("queued")) == 2
        held = [event for event in runner.result.health_events if event.kind == "backpressure"]
        assert "edge work>parts.note is full (2 messages)" in held[0].message
        assert runner.result.ok
        assert log == [1, 2]

    def test_results_keep_the_order_of_the_invocations(self) -> None:
        """An entry that ends before an earlier one waits for it; with preserve_order: false it does not."""
        for preserve_order, expected in ((True, [[], [1, 2]]), (False, [[2], [2, 1]])):
            log.clear()
            world = self.fan(2, preserve_order=preserve_order)
            seen = []
            with world.runner() as runner:
                runner.step()
                first, second = world.claim(), world.claim()
                for entry in (second, first):
                    world.run_by_hand(entry)
                    runner.step()
                    seen.append([value for value in log if value in (1, 2)][:2])
            assert seen == expected

    def test_results_without_room_wait_in_the_queue_and_keep_their_order(self) -> None:
        """Each entry publishes two messages; the edge holds three, so the second entry waits for the reader."""

        @component("test.twice", outputs=("out",))
        def twice(value: int, context: GraphContext) -> None:
            context.publish("out", value)
            context.publish("out", value + 100)

        nodes = [
            node(burst, "source", config={"size": 2}),
            node(twice, "work", on="any_input", lane="far"),
            node(note, on="any_input"),
        ]
        edge = wire("work.out > parts.note.value", "async", mode="queue", capacity=3)
        world = DurableWorld(nodes, [wire("source.out > work.value"), edge])
        with world.runner() as runner:
            runner.step()
            world.work()
            runner.step()
            assert log == [0, 100]
            assert runner._require_engine().has_arrivals
            runner.step()
        assert log == [0, 100, 1, 101]
        assert runner.result.ok

"""Background tasks and futures: work beside the graph whose end is an event."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import InvalidInput
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.run_options import SchedulerStopReason
from rota.graph.tasks import TaskExecutorConfig, TaskResult
from tests.graph.parts import log
from tests.graph.worlds import make_runner, node, run


class TestBackgroundTasks:
    def test_a_task_runs_beside_the_graph_and_its_result_arrives_as_an_event(self) -> None:
        @component(outputs=())
        class Asker:
            def execute(self, context: GraphContext, task_ready: TaskResult | None = None) -> None:
                if task_ready is None:
                    context.submit(pow, 2, 5)
                else:
                    log.append((task_ready.value, task_ready.error))

        sources = [{"type": "task_ready"}, {"type": "request"}]
        nodes = [node(Asker, on="on_event", sources=sources)]
        runner = make_runner(nodes, run_until_idle=True)
        runner.start()
        runner.send("Asker", "go")
        result = runner.run()
        assert log == [(32, None)]
        assert result.metric("runtime.task.completed_count") == 1

    def test_a_failed_task_is_a_result_with_its_error(self) -> None:
        @component(outputs=())
        def asker(context: GraphContext, task_ready: TaskResult | None = None) -> None:
            if task_ready is None:
                context.submit(int, "x")
            else:
                log.append(task_ready.error)

        runner = make_runner([node(asker, on="on_event", sources=[{"type": "task_ready"}, {"type": "request"}])])
        with runner:
            runner.send("asker", "go")
            runner.step()
            engine = runner._require_engine()
            while not engine.has_arrivals:
                engine.wake_signal.wait(engine.wake_signal.count)
            runner.step()
        assert "invalid literal" in log[0]

    def test_a_task_over_its_budget_is_delivered_and_counted(self) -> None:
        clock = ManualClock()

        @component(outputs=())
        def asker(context: GraphContext, task_ready: TaskResult | None = None) -> None:
            if task_ready is None:
                context.submit(clock.advance, 2.0)
            else:
                log.append(task_ready.over_budget)

        nodes = [node(asker, on="on_event", sources=[{"type": "task_ready"}, {"type": "request"}])]
        config = TaskExecutorConfig(task_budget=timedelta(seconds=1))
        runner = make_runner(nodes, run_until_idle=True, clock=clock, task_executor=config)
        runner.start()
        runner.send("asker", "go")
        result = runner.run()
        assert log == [True]
        assert result.metric("runtime.task.budget_exceeded_count") == 1

    def test_a_watched_future_arrives_when_it_is_done(self) -> None:
        future: Future[int] = Future()

        @component(outputs=())
        def watcher(context: GraphContext, future_ready: Any = None) -> None:
            if future_ready is None:
                context.watch(future)
            else:
                log.append(future_ready.result())

        nodes = [node(watcher, on="on_event", sources=[{"type": "future_ready"}, {"type": "request"}])]
        runner = make_runner(nodes, run_until_idle=True)
        runner.start()
        runner.send("watcher", "go")
        threading.Timer(0.0, future.set_result, (7,)).start()
        runner.run()
        assert log == [7]

    @pytest.mark.parametrize("kind", ["task", "future"])
    def test_a_run_that_handles_a_result_before_it_counts_as_delivered_still_becomes_idle(self, kind: str) -> None:
        clock, handled = ManualClock(), threading.Event()
        future: Future[int] = Future()

        @component(outputs=())
        def asker(context: GraphContext, task_ready: Any = None, future_ready: Any = None) -> None:
            if task_ready is not None or future_ready is not None:
                handled.set()
            elif kind == "task":
                context.submit(pow, 2, 5)
            else:
                context.watch(future)
                threading.Timer(0.0, future.set_result, (7,)).start()

        sources = [{"type": each} for each in ("task_ready", "future_ready", "request")]
        runner = make_runner([node(asker, on="on_event", sources=sources)], run_until_idle=True, clock=clock)
        runner.start()
        tasks = runner._require_engine().tasks
        deliver = tasks._deliver

        def deliver_then_pause(component_id: str, port: str, payload: Any, /) -> None:
            deliver(component_id, port, payload)
            handled.wait(30)
            clock.until_parked()  # the run has handled the result, and waits for work that it still sees in flight

        tasks._deliver = deliver_then_pause
        runner.send("asker", "go")
        assert runner.run().scheduler_stop_reason is SchedulerStopReason.IDLE

    def test_a_component_without_the_event_source_may_not_submit(self) -> None:
        @component(outputs=())
        def deaf(context: GraphContext) -> None:
            context.submit(print)

        assert "has no event source of type task_ready" in run([node(deaf)]).errors[0]

    def test_too_many_waiting_tasks_are_refused_with_the_limit_in_the_error(self) -> None:
        gate = threading.Event()

        @component(outputs=())
        def flood(context: GraphContext, task_ready: TaskResult | None = None) -> None:
            try:
                for _ in range(10):
                    context.submit(gate.wait, 10)
            finally:
                gate.set()

        nodes = [node(flood, on="on_event", sources=[{"type": "manual"}, {"type": "task_ready"}])]
        result = run(nodes, task_executor=TaskExecutorConfig(max_threads=1, queue_capacity=2))
        assert "queue_capacity is 2" in result.errors[0]

    @pytest.mark.parametrize("bad", [{"max_threads": 0}, {"queue_capacity": 0}, {"task_budget": timedelta(-1)}])
    def test_an_invalid_executor_configuration_is_refused(self, bad: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            TaskExecutorConfig(**bad)

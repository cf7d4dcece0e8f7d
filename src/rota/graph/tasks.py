"""Background work of components: `context.submit`, and `context.watch` for futures.

A task runs on one of a few threads beside the graph. When it has ended, its `TaskResult` is put into the component's
inbox at the next epoch boundary, on the port `task_ready`; the component continues then, and no epoch waits for it. A
watched future arrives on `future_ready` in the same way.

Everything is bounded: threads, waiting tasks and, for the members of an `async_task` loop, tasks in flight. A task's
budget is not enforced: the result of a task that took longer is delivered and marked.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from rota.clock import Clock
from rota.errors import ComponentInvalid, InvalidInput, LimitExceeded
from rota.graph.reports import Reports, error_text
from rota.model.checks import Checks

__all__ = ["TaskExecutor", "TaskExecutorConfig", "TaskLimit", "TaskResult"]

_checks = Checks("TaskExecutorConfig", InvalidInput)


class TaskExecutorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on a run's background work."""

    max_threads: int = 2
    queue_capacity: int = 256  # tasks that may wait for a thread
    task_budget: timedelta = timedelta(0)  # 0: no budget

    def __post_init__(self) -> None:
        _checks.whole("max_threads", self.max_threads, 1, 1_000)
        _checks.whole("queue_capacity", self.queue_capacity, 1, 1_000_000)
        _checks.duration("task_budget", self.task_budget.total_seconds())


class TaskResult(msgspec.Struct, frozen=True):
    """The result of a task."""

    task_id: int
    value: Any = None
    error: str | None = None
    duration_ms: float = 0.0
    over_budget: bool = False


class TaskLimit:
    """The maximum number of tasks that a loop's components may have in flight, and what happens to one more."""

    def __init__(self, max_in_flight: int, drop_policy: str) -> None:
        self.max_in_flight = max_in_flight
        self.drop_policy = drop_policy
        self.in_flight = 0


class Deliver(Protocol):
    """Puts a payload into a component's inbox at the next epoch boundary."""

    def __call__(self, component_id: str, port: str, payload: Any, /) -> None: ...


class _Task:
    __slots__ = ("arguments", "component_id", "function", "limit", "task_id")

    def __init__(
        self,
        task_id: int,
        component_id: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        limit: TaskLimit | None,
    ) -> None:
        self.task_id = task_id
        self.component_id = component_id
        self.function = function
        self.arguments = arguments
        self.limit = limit


class TaskExecutor:
    """Runs the background tasks of one run. A thread starts when a task needs it."""

    def __init__(
        self,
        config: TaskExecutorConfig,
        clock: Clock,
        reports: Reports,
        deliver: Deliver,
        *,
        wake: Callable[[], None],
        listeners: Mapping[str, tuple[str, ...]],
        limits: Mapping[str, TaskLimit],
    ) -> None:
        self._config = config
        self._clock = clock
        self._reports = reports
        self._deliver = deliver
        self._wake = wake  # the run: it may have handled a result before that counted as delivered, and wait for this
        self._listeners = listeners  # by component: the inbox ports it has
        self._limits = limits  # by component
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[_Task] = deque()
        self._threads: list[threading.Thread] = []
        self._in_flight = self._last_id = 0
        self._closing = False
        self.completed = self.failed = self.rejected = self.budgets_exceeded = 0

    @property
    def outstanding(self) -> int:
        """The number of tasks and watched futures that were not delivered yet."""
        with self._lock:
            return self._in_flight

    def submit(self, component_id: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> int | None:
        """Accept a task and return its id; None if the component's loop has its maximum in flight."""
        self._check_listener(component_id, "task_ready")
        with self._lock:
            limit = self._limits.get(component_id)
            if limit is not None and limit.in_flight >= limit.max_in_flight:
                self._reject_task(component_id, limit)
                return None
            if len(self._waiting) >= self._config.queue_capacity:
                waiting = len(self._waiting)
                raise LimitExceeded("TaskExecutorConfig.queue_capacity", self._config.queue_capacity, waiting + 1)
            self._last_id += 1
            self._waiting.append(_Task(self._last_id, component_id, function, arguments, limit))
            self._count_start(limit)
            self._start_thread()
            self._changed.notify()
            return self._last_id

    def watch(self, component_id: str, future: Any) -> None:
        """Deliver a future when it is done."""
        self._check_listener(component_id, "future_ready")
        with self._lock:
            self._in_flight += 1

        def done(finished: Any) -> None:
            self._deliver(component_id, "future_ready", finished)
            with self._lock:
                self._in_flight -= 1
            self._wake()

        future.add_done_callback(done)

    def close(self) -> None:
        """Accept no more tasks, drop those that have not started, and wait for the others."""
        with self._lock:
            self._closing = True
            self.rejected += len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _check_listener(self, component_id: str, port: str) -> None:
        if port not in self._listeners.get(component_id, ()):
            raise ComponentInvalid(
                f"component {component_id} has no event source of type {port}, so the result could not be delivered",
                hint=f"Add `event_sources: [{{type: {port}}}]` to the component.",
                component_id=component_id,
            )

    def _reject_task(self, component_id: str, limit: TaskLimit) -> None:
        self.rejected += 1
        message = f"component {component_id}: its loop already has {limit.max_in_flight} tasks in flight (max_inflight)"
        if limit.drop_policy == "fail_fast":
            raise ComponentInvalid(message, hint="Raise max_inflight of the loop, or submit fewer tasks.")
        self._reports.health("task_reject", message, component_id=component_id)

    def _count_start(self, limit: TaskLimit | None) -> None:
        self._in_flight += 1
        if limit is not None:
            limit.in_flight += 1

    def _start_thread(self) -> None:
        """Start one more thread if all are busy and the limit allows it."""
        if len(self._threads) < min(self._config.max_threads, self._in_flight):
            thread = threading.Thread(target=self._work, name=f"rota-task-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            result = self._run(task)
            self._deliver(task.component_id, "task_ready", result)
            with self._lock:
                self._in_flight -= 1
                self.completed += result.error is None
                self.failed += result.error is not None
                self.budgets_exceeded += result.over_budget
                if task.limit is not None:
                    task.limit.in_flight -= 1
            self._wake()

    def _next(self) -> _Task | None:
        with self._lock:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _run(self, task: _Task) -> TaskResult:
        began_at_s = self._clock.monotonic()
        value, error = None, None
        try:
            value = task.function(*task.arguments)
        except BaseException as problem:  # a task's SystemExit must not end the thread
            error = error_text(problem)
        duration_s = self._clock.monotonic() - began_at_s
        budget_s = self._config.task_budget.total_seconds()
        return TaskResult(task.task_id, value, error, duration_s * 1000, bool(budget_s) and duration_s > budget_s)

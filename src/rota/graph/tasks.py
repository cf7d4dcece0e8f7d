"""Work that components leave to the background: `context.submit`, and `context.watch` for futures of others.

A task runs on one of a few threads beside the graph. When it is over its `TaskResult` is put into the component's inbox
at the next boundary of an epoch, on the port `task_ready`; so the component goes on when the task is done, and no epoch
waits for it. A future that a component watches arrives on `future_ready` in the same way.

Everything is bounded: threads, tasks that wait, and, for the members of an `async_task` loop, tasks under way. A
task's budget is observed, not enforced: a task that took longer is delivered and marked.
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
from rota.graph.reports import Reports, words
from rota.model.checks import Checks

__all__ = ["TaskExecutor", "TaskExecutorConfig", "TaskLimit", "TaskResult"]

_checks = Checks("TaskExecutorConfig", InvalidInput)


class TaskExecutorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How much background work a run may have."""

    max_threads: int = 2
    queue_capacity: int = 256  # tasks that wait for a thread
    task_budget: timedelta = timedelta(0)  # 0 is none

    def __post_init__(self) -> None:
        _checks.whole("max_threads", self.max_threads, 1, 1_000)
        _checks.whole("queue_capacity", self.queue_capacity, 1, 1_000_000)
        _checks.duration("task_budget", self.task_budget.total_seconds())


class TaskResult(msgspec.Struct, frozen=True):
    """How a task ended."""

    task_id: int
    value: Any = None
    error: str | None = None
    duration_ms: float = 0.0
    over_budget: bool = False


class TaskLimit:
    """How many tasks some components may have under way together, and what happens to one more."""

    def __init__(self, most: int, drop_policy: str) -> None:
        self.most = most
        self.drop_policy = drop_policy
        self.under_way = 0


class Deliver(Protocol):
    """Puts something into a component's inbox at the next boundary."""

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
    """Runs the background tasks of one run. Threads start when the first task comes."""

    def __init__(
        self,
        config: TaskExecutorConfig,
        clock: Clock,
        reports: Reports,
        deliver: Deliver,
        *,
        listeners: Mapping[str, tuple[str, ...]],
        limits: Mapping[str, TaskLimit],
    ) -> None:
        self._config = config
        self._clock = clock
        self._reports = reports
        self._deliver = deliver
        self._listeners = listeners  # by component: the inbox ports it has
        self._limits = limits  # by component
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[_Task] = deque()
        self._threads: list[threading.Thread] = []
        self._under_way = self._last_id = 0
        self._closing = False
        self.completed = self.failed = self.rejected = self.budgets_exceeded = 0

    @property
    def outstanding(self) -> int:
        """Tasks and watched futures that have not been delivered yet."""
        with self._lock:
            return self._under_way

    def submit(self, component_id: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> int | None:
        """Take in a task; None when the component's loop has as many under way as it may."""
        self._check_listener(component_id, "task_ready")
        with self._lock:
            limit = self._limits.get(component_id)
            if limit is not None and limit.under_way >= limit.most:
                self._turn_away(component_id, limit)
                return None
            if len(self._waiting) >= self._config.queue_capacity:
                waiting = len(self._waiting)
                raise LimitExceeded("TaskExecutorConfig.queue_capacity", self._config.queue_capacity, waiting + 1)
            self._last_id += 1
            self._waiting.append(_Task(self._last_id, component_id, function, arguments, limit))
            self._note_start(limit)
            self._start_thread()
            self._changed.notify()
            return self._last_id

    def watch(self, component_id: str, future: Any) -> None:
        """Deliver a future when it is done."""
        self._check_listener(component_id, "future_ready")
        with self._lock:
            self._under_way += 1

        def done(finished: Any) -> None:
            self._deliver(component_id, "future_ready", finished)
            with self._lock:
                self._under_way -= 1

        future.add_done_callback(done)

    def close(self) -> None:
        """Take no more, forget what has not begun, and wait for what has."""
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
                f"component {component_id} waits for a {port} event that it does not listen to",
                hint=f"Give it an event source of type {port}.",
                component_id=component_id,
            )

    def _turn_away(self, component_id: str, limit: TaskLimit) -> None:
        self.rejected += 1
        message = f"component {component_id} has {limit.most} tasks of its loop under way already"
        if limit.drop_policy == "fail_fast":
            raise ComponentInvalid(message, hint="Raise max_inflight of the loop, or submit less.")
        self._reports.health("task_reject", message, component_id=component_id)

    def _note_start(self, limit: TaskLimit | None) -> None:
        self._under_way += 1
        if limit is not None:
            limit.under_way += 1

    def _start_thread(self) -> None:
        """One more thread, if all are busy and there may be more."""
        if len(self._threads) < min(self._config.max_threads, self._under_way):
            thread = threading.Thread(target=self._work, name=f"rota-task-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            result = self._run(task)
            self._deliver(task.component_id, "task_ready", result)
            with self._lock:
                self._under_way -= 1
                self.completed += result.error is None
                self.failed += result.error is not None
                self.budgets_exceeded += result.over_budget
                if task.limit is not None:
                    task.limit.under_way -= 1

    def _next(self) -> _Task | None:
        with self._lock:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _run(self, task: _Task) -> TaskResult:
        began_at_s = self._clock.monotonic()
        value, error = None, None
        try:
            value = task.function(*task.arguments)
        except BaseException as problem:  # SystemExit of a task must not end the thread
            error = words(problem)
        duration_s = self._clock.monotonic() - began_at_s
        budget_s = self._config.task_budget.total_seconds()
        return TaskResult(task.task_id, value, error, duration_s * 1000, bool(budget_s) and duration_s > budget_s)

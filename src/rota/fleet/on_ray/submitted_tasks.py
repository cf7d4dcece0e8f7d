"""The tasks of a driver, and which run each of them executes.

To submit a task takes Ray ten times the CPU time of a message. So a task whose run has ended does not end with it: it
waits for another run of the same *form* (the same agent, function, node and resources) and executes that, too.

    submitted ──▶ executes a run ──▶ waits ──▶ executes another run ──▶ waits ──▶ … ──▶ is told to end

It waits for at most `linger_s`, and keeps its resources meanwhile. It ends at once when a task of another form is
submitted for its node, which may need them. A task that was cancelled gets no other run: the cancellation may arrive
late, and would hit the wrong one. Nothing here waits or calls Ray, and all methods may be called by several threads.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["SubmittedTasks", "Task"]


class Task:
    """A task on the cluster."""

    __slots__ = ("form", "is_cancelled", "needs", "node", "number", "reference", "run", "waits_since")

    def __init__(self, number: int, form: bytes, needs: Mapping[str, float]) -> None:
        self.number = number
        self.form = form  # what its runs have in common
        self.needs = needs  # the resources that it has
        self.run: str | None = None  # None: it waits, or was told to end
        self.reference: Any = None  # Ray's; None: it is not submitted yet
        self.node = ""  # where it is; known when its first run has ended
        self.is_cancelled = False
        self.waits_since = 0.0


class SubmittedTasks:
    """The tasks that have not ended."""

    def __init__(self, linger_s: float) -> None:
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._by_run: dict[str, Task] = {}
        self._waiting: dict[int, Task] = {}  # those without a run, by number; the first has waited for the longest

    @property
    def are_kept(self) -> bool:
        """Whether tasks wait for other runs at all."""
        return self._linger_s > 0

    def place(self, run: str, form: bytes, node: str, needs: Mapping[str, float]) -> tuple[Task, Sequence[Task]]:
        """Return the task for a run, which is a new one if it has no reference, and the tasks that must end for it."""
        with self._lock:
            same = [task for task in self._waiting.values() if task.form == form]
            task = same[-1] if same else Task(next(self._numbers), form, needs)
            over: Sequence[Task] = ()
            if same:
                del self._waiting[task.number]
            else:
                over = [other for other in self._waiting.values() if other.node == node]
                for other in over:
                    del self._waiting[other.number]
            task.run = run
            self._by_run[run] = task
        return task, over

    def answered(self, run: str, node: str, now: float) -> tuple[bool, Task | None]:
        """A run has ended, and its task waits for another; return whether it was known, and a task that must end."""
        with self._lock:
            task = self._by_run.pop(run, None)
            if task is None:
                return False, None
            task.run, task.node, task.waits_since = None, node, now
            if task.is_cancelled:
                return True, task
            self._waiting[task.number] = task
        return True, None

    def ended(self, task: Task) -> str | None:
        """A task has ended; return the run that it executed."""
        with self._lock:
            run, task.run = task.run, None
            self._waiting.pop(task.number, None)
            if run is not None:
                del self._by_run[run]
        return run

    def cancel(self, run: str) -> Task | None:
        """Return the task of a run, which gets no other one."""
        with self._lock:
            task = self._by_run.get(run)
            if task is not None:
                task.is_cancelled = True
        return task

    def overdue(self, now: float) -> Sequence[Task]:
        """Return the tasks that have waited for long enough: they must end."""
        with self._lock:
            over = [task for task in self._waiting.values() if now - task.waits_since >= self._linger_s]
            for task in over:
                del self._waiting[task.number]
        return over

    def waiting_resources(self) -> Mapping[str, Mapping[str, float]]:
        """Return the resources of the tasks that wait, by node: they can be used as if they were free."""
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        with self._lock:
            for task in self._waiting.values():
                found[task.node].update(task.needs)
        return found

"""`Rota`: the one object a user holds.

    rota = Rota("rota.db")

    @rota.agent()
    def summarise(run, url):
        return {"summary": f"read {url}"}

    job = summarise.enqueue(url="…", priority=5)
    rota.run()
    job.result()

Runs are at least once: a run that dies is run again, so an agent that must not act twice uses
(run.sched_id, run.attempt, run.token) as its idempotency key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rota import store
from rota.clock import Clock
from rota.kernel import Completion, Kernel
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.runtime.runners import CallableRunner
from rota.service.desk import Desk
from rota.service.dispatcher import Dispatcher

__all__ = ["AgentHandle", "Job", "Rota"]


class Job:
    """An entry, from the point of view of whoever enqueued it."""

    def __init__(self, desk: Desk, sched_id: int) -> None:
        self._desk = desk
        self.sched_id = sched_id

    def entry(self) -> ReadyEntry:
        """The entry as it stands."""
        return self._desk.get(self.sched_id)

    def result(self, wait_s: float = 0.0) -> Any:
        """What the run returned, once it has ended; `WaitTimeout` if it has not within this time."""
        return self._desk.wait(self.sched_id, wait_s).result


class AgentHandle:
    """A function that has become an agent. Calling it still calls the function."""

    def __init__(self, desk: Desk, pid: int, function: Callable[..., Any]) -> None:
        self._desk = desk
        self.pid = pid
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here and now, without the queue."""
        return self._function(*args, **kwargs)

    def enqueue(self, *, priority: int = 0, **payload: Any) -> Job:
        """Ask for one run with this payload."""
        return Job(self._desk, self._desk.enqueue(ScheduleSpec(self.pid, priority, payload=payload)))


class Rota:
    """Agents, their queue, and the running of them, over one store."""

    def __init__(self, address: str | os.PathLike[str] = ":memory:", *, clock: Clock | None = None) -> None:
        self._store = store.open(os.fspath(address), clock=clock)
        self.kernel = Kernel(self._store)
        self.desk: Desk = Dispatcher(self.kernel)
        self._functions: dict[int, Callable[..., Any]] = {}

    def agent(self, name: str | None = None) -> Callable[[Callable[..., Any]], AgentHandle]:
        """Turn a function into an agent."""

        def register(function: Callable[..., Any]) -> AgentHandle:
            pid = self.desk.create_agent(name or function.__name__, "callable")
            self._functions[pid] = function
            return AgentHandle(self.desk, pid, function)

        return register

    def run(self, *, worker_id: str = "rota-0") -> int:
        """Run what is ready, in order, until nothing is; the answer is how many were run."""
        runner = CallableRunner(self._functions)
        count = 0
        entries = self.desk.claim(worker_id)
        while entries:
            ended = []
            for entry in entries:
                outcome = runner.run(entry)
                ended.append(Completion(entry.sched_id, outcome.exit_kind, entry.token, outcome.result))
                count += 1
            entries = self.desk.complete_and_claim(ended, worker_id).entries
        return count

    def close(self) -> None:
        """Release the store."""
        self._store.close()

    def __enter__(self) -> Rota:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

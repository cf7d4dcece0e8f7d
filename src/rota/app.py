"""`Rota`: the one object a user holds.

    rota = Rota("rota.db")

    @rota.agent(project="research", weight=3, budget={"tokens": 200_000})
    def summarise(ctx, url: str):
        ctx.charge(tokens=1234)
        return {"summary": f"read {url}"}

    job = summarise.enqueue(url="…", priority=5)
    rota.run(slots=4)            # elsewhere: job.result(wait_s=60)

Runs are at least once: a run that dies is run again, so an agent that must not act twice uses
(ctx.sched_id, ctx.attempt, ctx.token) as its idempotency key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from rota import store
from rota.clock import Clock
from rota.errors import NotFound, RunFailed
from rota.kernel import Kernel
from rota.model.work import WEIGHT_UNIT, Agent, Limits, Project, ReadyEntry, RestartPolicy
from rota.policy.contract import Policy
from rota.runtime.plans import PLAN_KEY, RunPlan, plan_of, spec_for
from rota.runtime.supervisor import Settings, Supervisor
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
        return self._desk.queue.get(self.sched_id)

    def result(self, wait_s: float = 0.0) -> Any:
        """What the run returned, once it has ended; `WaitTimeout` if it has not, `RunFailed` if it did not go well."""
        entry = self._desk.queue.wait(self.sched_id, wait_s)
        if entry.exit_kind != "completed":
            raise _failed(entry)
        return entry.result

    def cancel(self, by: str = "user") -> str:
        """Ask for its end: at once while it waits, else as soon as its run can be stopped. The state it is in now."""
        return self._desk.queue.request_cancel(self.sched_id, by=by)


def _failed(entry: ReadyEntry) -> RunFailed:
    how = entry.outcome or entry.exit_kind or entry.state
    text = f"entry {entry.sched_id} ended {how} after {entry.attempt} attempt{'s' if entry.attempt != 1 else ''}"
    if isinstance(entry.result, dict) and isinstance(entry.result.get("error"), str):
        text += f": {entry.result['error']}"
    return RunFailed(
        text,
        sched_id=entry.sched_id,
        state=entry.state,
        exit_kind=entry.exit_kind,
        outcome=entry.outcome,
        result=entry.result,
    )


class AgentHandle:
    """An agent, from the point of view of whoever gives it work. A function's handle can still be called."""

    def __init__(self, desk: Desk, agent: Agent, function: Callable[..., Any] | None = None) -> None:
        self._desk = desk
        self._agent = agent
        self._plan = plan_of(agent)
        self._function = function
        self.pid = agent.pid
        self.name = agent.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here and now, without the queue."""
        if self._function is None:
            raise NotFound(f"agent {self.name} is not a function of this program", pid=self.pid)
        return self._function(*args, **kwargs)

    def enqueue(self, *, options: Mapping[str, Any] | None = None, priority: int | None = None, **payload: Any) -> Job:
        """Ask for one run with this payload. `options` are further fields of a `ScheduleSpec`."""
        said = dict(options or {}) | ({} if priority is None else {"priority": priority})
        return Job(self._desk, self._desk.queue.enqueue(spec_for(self._agent, self._plan, payload, **said)))

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]], **said: Any) -> list[Job]:
        """Ask for many runs: all or none."""
        specs = [spec_for(self._agent, self._plan, payload, **said) for payload in payloads]
        return [Job(self._desk, sched_id) for sched_id in self._desk.queue.enqueue_many(specs)]


class Rota:
    """Agents, their queue, and the running of them, over one store."""

    def __init__(
        self,
        address: str | os.PathLike[str] = ":memory:",
        *,
        policy: Policy | str = "strict",
        clock: Clock | None = None,
    ) -> None:
        self.kernel = Kernel(store.open(os.fspath(address), clock=clock))
        self.desk: Desk = Dispatcher(self.kernel, policy)
        self._functions: dict[str, Callable[..., Any]] = {}
        self._supervisor: Supervisor | None = None

    # --- who there is ------------------------------------------------------------------------------

    def project(
        self,
        project_id: str,
        *,
        weight: float = 1.0,
        max_concurrent: int | None = None,
        budget: Mapping[str, int] | None = None,
    ) -> Project:
        """Make a project, or let it be like this; its budget is per rolling day."""
        thousandths = round(weight * WEIGHT_UNIT)
        try:
            self.desk.projects.get(project_id)
        except NotFound:
            project = self.desk.projects.create(project_id, weight=thousandths, max_concurrent=max_concurrent)
        else:
            project = self.desk.projects.update(project_id, weight=thousandths, max_concurrent=max_concurrent)
        for dim, amount in (budget or {}).items():
            self.desk.ledger.set_budget("project", project_id, dim, amount)
        return project

    def agent(
        self,
        name: str | None = None,
        *,
        project: str | None = None,
        weight: float = 1.0,
        priority: int = 0,
        budget: Mapping[str, int] | None = None,
        isolation: Literal["thread", "process"] = "thread",
        limits: Limits | None = None,
        restart: RestartPolicy | None = None,
        expected: Mapping[str, int] | None = None,
        draws_on: Iterable[str] = (),
        max_concurrent: int | None = None,
        **more: Any,
    ) -> Callable[[Callable[..., Any]], AgentHandle]:
        """Turn a function, sync or async, into an agent. Its budget is a total; `more` are fields of a `RunPlan`.

        An agent keeps its name over restarts: a function of the same name is the same agent, with these settings.
        """
        plan = RunPlan(
            isolation=isolation,
            limits=limits or Limits(),
            restart=restart or RestartPolicy(),
            expected=dict(expected or {}),
            draws_on=tuple(draws_on),
            **more,
        )
        settings = {"priority": priority, "weight": round(weight * WEIGHT_UNIT), "max_concurrent": max_concurrent}

        def register(function: Callable[..., Any]) -> AgentHandle:
            called = name or function.__name__
            agent = self._agent(called, project, plan, settings)
            self._grant(agent.pid, budget or {})
            self._functions[called] = function
            return AgentHandle(self.desk, agent, function)

        return register

    def find(self, name: str) -> AgentHandle:
        """An agent by its name, wherever it was made."""
        return AgentHandle(self.desk, self._find(name), self._functions.get(name))

    def _find(self, name: str) -> Agent:
        found = self.desk.agents.find(name)
        if not found:
            raise NotFound(f"there is no agent named {name!r}", hint="Make it with @rota.agent, or in the fleet file.")
        return found[0]

    def _agent(self, name: str, project: str | None, plan: RunPlan, settings: dict[str, Any]) -> Agent:
        """The agent of this name, made or brought up to date; nothing is written if it is already so."""
        body = {PLAN_KEY: msgspec.to_builtins(plan)}
        found = self.desk.agents.find(name)
        if not found or (project is not None and found[0].project_id != project):
            if project is not None:
                self._have_project(project)
            pid = self.desk.agents.create(name, "callable", project_id=project, metadata=body, **settings)
            return self.desk.agents.get(pid)
        agent = found[0]
        changes = {field: value for field, value in settings.items() if getattr(agent, field) != value}
        if agent.metadata.get(PLAN_KEY) != body[PLAN_KEY]:
            changes["metadata"] = agent.metadata | body
        return self.desk.agents.update(agent.pid, **changes) if changes else agent

    def _have_project(self, project_id: str) -> None:
        try:
            self.desk.projects.get(project_id)
        except NotFound:
            self.desk.projects.create(project_id)

    def _grant(self, pid: int, budget: Mapping[str, int]) -> None:
        granted = {line.dim: line.granted for line in self.desk.ledger.get(pid)}
        fresh = {dim: amount for dim, amount in budget.items() if dim not in granted}
        if fresh:
            self.desk.ledger.create(pid, fresh)
        for dim, amount in budget.items():
            if dim in granted and granted[dim] != amount:
                self.desk.ledger.update_grant(pid, dim, amount)

    # --- running -----------------------------------------------------------------------------------

    def run(
        self,
        slots: int | dict[str, int] = 1,
        *,
        until_idle: bool = False,
        handles_signals: bool = False,
        **settings: Any,
    ) -> int:
        """Run what the queue says until `stop`, or until there is nothing to do; how many runs have ended.

        `settings` are further fields of `Settings`: worker_id, claim_timeout_s, heartbeat_s, drain_s, logs.
        """
        self._supervisor = self.supervisor(slots, **settings)
        return self._supervisor.run(until_idle=until_idle, handles_signals=handles_signals)

    def supervisor(self, slots: int | dict[str, int] = 1, **settings: Any) -> Supervisor:
        """A supervisor of this store that knows this program's functions."""
        return Supervisor(self.desk, Settings(slots=slots, **settings), functions=self._functions)

    def stop(self) -> None:
        """Let `run`, on another thread, come to its end: what runs may finish, nothing new begins."""
        if self._supervisor is not None:
            self._supervisor.drain()

    def close(self) -> None:
        """Release the store."""
        self.desk.close()

    def __enter__(self) -> Rota:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from rota import store
from rota.clock import Clock
from rota.errors import NotEnabled, NotFound, RunFailed, UnknownAgent
from rota.fleet.agent_settings import PLAN_KEY, RunPlan, plan_of, spec_for
from rota.fleet.supervisor import Settings, Supervisor
from rota.host.fork_server import here
from rota.kernel import Kernel
from rota.model.work import WEIGHT_UNIT, Agent, Limits, Project, ReadyEntry, RestartPolicy
from rota.policy.contract import Policy
from rota.rpc.client import connect, is_remote
from rota.service.api import Desk
from rota.service.dispatcher import Dispatcher

__all__ = ["AgentHandle", "AgentSettings", "Job", "Rota"]


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


class AgentSettings(TypedDict, total=False):
    """What can be said of an agent when it is made."""

    project: str | None  # made if it is not there
    weight: float  # its share against the other agents of its project
    priority: int
    max_concurrent: int | None
    intent: str
    budget: Mapping[str, int]  # in all, by dimension
    # how it is run: fields of `RunPlan`
    isolation: Literal["thread", "process"]
    limits: Limits
    restart: RestartPolicy
    expected: Mapping[str, int]
    ceiling: Mapping[str, int]
    draws_on: Sequence[str]
    kind: str | None
    affinity: str | None
    workspace: str | None
    workspace_mode: Literal["exclusive", "shared"] | None
    max_attempts: int
    stop_grace_s: float
    env: Mapping[str, str]
    pass_env: Sequence[str]
    cwd: str | None
    stdin: Literal["payload", "none"]
    usage: str | Mapping[str, str] | None


_OWN = ("priority", "max_concurrent", "intent")
_ELSEWHERE = ("project", "weight", "budget")


def _split(settings: AgentSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said of the agent itself, and how it is run."""
    said: dict[str, Any] = dict(settings)
    own = {field: said[field] for field in _OWN if field in said}
    own["weight"] = round(said.get("weight", 1.0) * WEIGHT_UNIT)
    plan = {field: value for field, value in said.items() if field not in (*_OWN, *_ELSEWHERE)}
    for field in ("draws_on", "pass_env"):
        if field in plan:
            plan[field] = tuple(plan[field])
    return own, plan


class AgentHandle:
    """An agent, from the point of view of whoever gives it work. A function's handle can still be called."""

    def __init__(self, desk: Desk, agent: Agent, function: Callable[..., Any] | None = None) -> None:
        self._desk = desk
        self._agent = agent
        self._plan = plan_of(agent)
        self._function = function
        self.pid = agent.pid
        self.name = agent.name
        if function is not None:
            functools.update_wrapper(self, function)  # so that a worker process finds the function behind the handle

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
        token: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """Over a file, or over a daemon at `unix:/path` or `http(s)://host:port`, whose policy is then its own.

        `token` and `ca_file` are for a daemon over TCP (docs/daemon.md).
        """
        # a worker process loads the main program again to find its functions: that must touch nothing
        where = ":memory:" if here.is_nursery else os.fspath(address)
        self.desk: Desk
        if is_remote(where):
            self.desk = connect(where, token=token, ca_file=ca_file, clock=clock)
        else:
            self.desk = Dispatcher(Kernel(store.open(where, clock=clock)), policy)
        self._functions: dict[str, Callable[..., Any]] = {}
        self._supervisor: Supervisor | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel, where it is in this process."""
        if not isinstance(self.desk, Dispatcher):
            raise NotEnabled("the kernel is the daemon's", hint="Ask the desk: it has the same parts.")
        return self.desk.kernel

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
        self, name: str | None = None, **settings: Unpack[AgentSettings]
    ) -> Callable[[Callable[..., Any]], AgentHandle]:
        """Turn a function, sync or async, into an agent.

        An agent keeps its name over restarts: a function of the same name is the same agent, with these settings.
        """

        def register(function: Callable[..., Any]) -> AgentHandle:
            called = name or function.__name__
            self._functions[called] = function
            return AgentHandle(self.desk, self._have_agent(called, "callable", {}, settings), function)

        return register

    def command(
        self, name: str, argv: Sequence[str], *, ndjson: bool = False, **settings: Unpack[AgentSettings]
    ) -> AgentHandle:
        """Make an agent of a program: any program, or one that speaks ndjson (see docs/agents.md)."""
        runner = "ndjson" if ndjson else "command"
        return AgentHandle(self.desk, self._have_agent(name, runner, {"argv": tuple(argv)}, settings))

    def find(self, name: str) -> AgentHandle:
        """An agent by its name, wherever it was made."""
        return AgentHandle(self.desk, self._find(name), self._functions.get(name))

    def _find(self, name: str) -> Agent:
        found = self.desk.agents.find(name)
        if not found:
            raise UnknownAgent(name)
        return found[0]

    def _have_agent(self, name: str, runner: str, how: dict[str, Any], settings: AgentSettings) -> Agent:
        """The agent of this name, made or brought up to date; nothing is written if it is already so."""
        own, plan = _split(settings)
        body = {PLAN_KEY: msgspec.to_builtins(RunPlan(runner=runner, **how, **plan))}
        project = settings.get("project")
        found = self.desk.agents.find(name)
        if not found or (project is not None and found[0].project_id != project):
            if project is not None:
                self._have_project(project)
            pid = self.desk.agents.create(name, runner, project_id=project, metadata=body, **own)
        else:
            pid = found[0].pid
            self._bring_up_to_date(found[0], own, body)
        self._grant(pid, settings.get("budget") or {})
        return self.desk.agents.get(pid)

    def _bring_up_to_date(self, agent: Agent, own: dict[str, Any], body: dict[str, Any]) -> None:
        changes = {field: value for field, value in own.items() if getattr(agent, field) != value}
        if agent.metadata.get(PLAN_KEY) != body[PLAN_KEY]:
            changes["metadata"] = agent.metadata | body
        if changes:
            self.desk.agents.update(agent.pid, **changes)

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

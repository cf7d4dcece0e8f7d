"""`Rota`: agents, their queue and their supervisor in one object.

    rota = Rota("rota.db")

    @rota.agent(project="research", weight=3, budget={"tokens": 200_000})
    def summarise(ctx, url: str):
        ctx.charge(tokens=1234)
        return {"summary": f"read {url}"}

    job = summarise.enqueue(url="…", priority=5)
    rota.run(slots=4)            # elsewhere: job.result(wait_s=60)

Entries run at least once: an entry whose run dies is retried. An agent whose effects must not be repeated uses
(ctx.sched_id, ctx.attempt, ctx.token) as its idempotency key.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from rota import store
from rota.clock import Clock
from rota.errors import LedgerExists, NotEnabled, NotFound, ProjectExists, RunFailed, UnknownAgent
from rota.fleet.agent_settings import SETTINGS_KEY, AgentSettings, settings_of, spec_for
from rota.fleet.supervisor import Supervisor, SupervisorSettings
from rota.host.main_module import this_process
from rota.kernel import Kernel
from rota.model.agent_names import agent_in_project, agent_named
from rota.model.work import WEIGHT_UNIT, Agent, Limits, Project, ReadyEntry, RestartPolicy
from rota.policy.contract import Policy, PolicyIsolation
from rota.rpc.client.connect import connect, is_remote
from rota.rpc.daemon.runtime_dir import daemon_address
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher

__all__ = ["AgentHandle", "AgentOptions", "Job", "Rota"]


class Job:
    """A handle on an entry, for the code that enqueued it."""

    def __init__(self, api: SchedulerApi, sched_id: int) -> None:
        self._api = api
        self.sched_id = sched_id

    def entry(self) -> ReadyEntry:
        """Return the entry."""
        return self._api.queue.get(self.sched_id)

    def result(self, wait_s: float = 0.0) -> Any:
        """Wait up to `wait_s` for the run's result; raise `WaitTimeout`, or `RunFailed` if the run failed."""
        entry = self._api.queue.wait(self.sched_id, wait_s)
        if entry.exit_kind != "completed":
            raise _failed(entry)
        return entry.result

    def cancel(self, by: str = "user") -> str:
        """Cancel a queued entry, or ask its run to stop; return the entry's state."""
        return self._api.queue.request_cancel(self.sched_id, by=by)


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


class AgentOptions(TypedDict, total=False):
    """The settings of a new agent."""

    project: str | None  # created if it does not exist
    weight: float  # its share relative to the other agents of its project
    priority: int
    max_concurrent: int | None
    intent: str
    budget: Mapping[str, int]  # in total, per dimension
    # how it runs: fields of `AgentSettings`
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


_ROW_FIELDS = ("priority", "max_concurrent", "intent")
_OTHER_FIELDS = ("project", "weight", "budget")  # not passed on as they are


def _split(settings: AgentOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the options into fields of the agent's row and fields of `AgentSettings`."""
    given: dict[str, Any] = dict(settings)
    row = {field: given[field] for field in _ROW_FIELDS if field in given}
    row["weight"] = round(given.get("weight", 1.0) * WEIGHT_UNIT)
    run = {field: value for field, value in given.items() if field not in (*_ROW_FIELDS, *_OTHER_FIELDS)}
    for field in ("draws_on", "pass_env"):
        if field in run:
            run[field] = tuple(run[field])
    return row, run


class AgentHandle:
    """A handle on an agent, to enqueue entries for it. A function's handle can also be called."""

    def __init__(self, api: SchedulerApi, agent: Agent, function: Callable[..., Any] | None = None) -> None:
        self._api = api
        self._agent = agent
        self._settings = settings_of(agent)
        self._function = function
        self.pid = agent.pid
        self.name = agent.name
        if function is not None:
            functools.update_wrapper(self, function)  # a worker process finds the function through the handle

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly, without the queue."""
        if self._function is None:
            raise NotFound(f"agent {self.name} is not a function in this program", pid=self.pid)
        return self._function(*args, **kwargs)

    def enqueue(self, *, options: Mapping[str, Any] | None = None, priority: int | None = None, **payload: Any) -> Job:
        """Enqueue an entry with this payload. `options` are further fields of a `ScheduleSpec`."""
        fields = dict(options or {}) | ({} if priority is None else {"priority": priority})
        return Job(self._api, self._api.queue.enqueue(spec_for(self._agent, self._settings, payload, **fields)))

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]], **fields: Any) -> list[Job]:
        """Enqueue an entry for each payload: all or none. `fields` are further fields of a `ScheduleSpec`."""
        specs = [spec_for(self._agent, self._settings, payload, **fields) for payload in payloads]
        return [Job(self._api, sched_id) for sched_id in self._api.queue.enqueue_many(specs)]


class Rota:
    """Agents, their queue and their supervisor, over one store."""

    def __init__(
        self,
        address: str | os.PathLike[str] = ":memory:",
        *,
        policy: Policy | str = "strict",
        policy_isolation: PolicyIsolation = "thread",
        clock: Clock | None = None,
        token: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """Open a file, or connect to a daemon at `unix:/path` or `http(s)://host:port`.

        A daemon has its own policy. With `policy_isolation="process"` a policy of another package runs in a process of
        its own, which is limited and replaced when it fails (docs/caveats.md). `token` and `ca_file` are for a daemon
        over HTTP (docs/daemon.md).
        """
        # a worker process imports the main program to find its functions: then no store may be opened
        where = ":memory:" if this_process.is_loading else os.fspath(address)
        self.api: SchedulerApi
        if is_remote(where):
            self.api = connect(where, token=token, ca_file=ca_file, clock=clock)
        else:
            api = Dispatcher(Kernel(store.open(where, clock=clock)), policy, policy_isolation=policy_isolation)
            api.find_daemon = functools.partial(daemon_address, where)
            self.api = api
        self._functions: dict[str, Callable[..., Any]] = {}
        self._supervisor: Supervisor | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel, if it is in this process."""
        if not isinstance(self.api, Dispatcher):
            text = "the kernel is in the daemon's process"
            raise NotEnabled(text, hint="Use `Rota.api`, which has the same parts (queue, agents, ledger, …).")
        return self.api.kernel

    # --- agents and projects -----------------------------------------------------------------------

    def project(
        self,
        project_id: str,
        *,
        weight: float = 1.0,
        max_concurrent: int | None = None,
        budget: Mapping[str, int] | None = None,
    ) -> Project:
        """Create or update a project; its budget is per rolling day."""
        thousandths = round(weight * WEIGHT_UNIT)
        try:
            self.api.projects.get(project_id)
        except NotFound:
            project = self.api.projects.create(project_id, weight=thousandths, max_concurrent=max_concurrent)
        else:
            project = self.api.projects.update(project_id, weight=thousandths, max_concurrent=max_concurrent)
        for dim, amount in (budget or {}).items():
            self.api.ledger.set_budget("project", project_id, dim, amount)
        return project

    def agent(
        self, name: str | None = None, **settings: Unpack[AgentOptions]
    ) -> Callable[[Callable[..., Any]], AgentHandle]:
        """Make a function, sync or async, an agent.

        After a restart, a function of the same name and project is the same agent, updated with these settings: it
        keeps what it has used of its budget, and a changed budget changes its limit.
        """

        def register(function: Callable[..., Any]) -> AgentHandle:
            agent_name = name or function.__name__
            self._functions[agent_name] = function
            return AgentHandle(self.api, self._ensure_agent(agent_name, "callable", {}, settings), function)

        return register

    def command(
        self, name: str, argv: Sequence[str], *, ndjson: bool = False, **settings: Unpack[AgentOptions]
    ) -> AgentHandle:
        """Make a program an agent: any program, or one that uses the ndjson protocol (docs/agents.md)."""
        runner = "ndjson" if ndjson else "command"
        return AgentHandle(self.api, self._ensure_agent(name, runner, {"argv": tuple(argv)}, settings))

    def find(self, name: str, *, project: str | None = None) -> AgentHandle:
        """Return an agent by its project and name, whichever program created it.

        Without a project it is the agent of no project, else the only agent of that name in any project.
        """
        found = self.api.agents.find(name)
        agent = agent_named(found, name, near=None) if project is None else agent_in_project(found, project)
        if agent is None:
            raise UnknownAgent(name, project)
        return AgentHandle(self.api, agent, self._functions.get(name))

    def _ensure_agent(self, name: str, runner: str, how: dict[str, Any], settings: AgentOptions) -> Agent:
        """Return the agent of this name in its project, created or updated; write nothing if nothing changes."""
        row, run = _split(settings)
        body = {SETTINGS_KEY: msgspec.to_builtins(AgentSettings(runner=runner, **how, **run))}
        project = settings.get("project")
        found = self.api.agents.find(name)
        agent = agent_in_project(found, project)
        if agent is None and found and project is None:
            agent = agent_named(found, name, near=None)
        if agent is None:
            if project is not None:
                self._ensure_project(project)
            pid = self.api.agents.create(name, runner, project_id=project, metadata=body, unique=True, **row)
        else:
            pid = agent.pid
            self._update_agent(agent, row, body)
        self._grant(pid, settings.get("budget") or {})
        return self.api.agents.get(pid)

    def _update_agent(self, agent: Agent, row: dict[str, Any], body: dict[str, Any]) -> None:
        changes = {field: value for field, value in row.items() if getattr(agent, field) != value}
        if agent.metadata.get(SETTINGS_KEY) != body[SETTINGS_KEY]:
            changes["metadata"] = agent.metadata | body
        if changes:
            self.api.agents.update(agent.pid, **changes)

    def _ensure_project(self, project_id: str) -> None:
        try:
            self.api.projects.get(project_id)
        except NotFound:
            with contextlib.suppress(ProjectExists):  # created by another program at the same moment
                self.api.projects.create(project_id)

    def _grant(self, pid: int, budget: Mapping[str, int]) -> None:
        granted = {line.dim: line.granted for line in self.api.ledger.get(pid)}
        new = {dim: amount for dim, amount in budget.items() if dim not in granted}
        if new:
            try:
                self.api.ledger.create(pid, new)
            except LedgerExists:  # created by another program at the same moment
                self._grant(pid, budget)
                return
        for dim, amount in budget.items():
            if dim in granted and granted[dim] != amount:
                self.api.ledger.update_grant(pid, dim, amount)

    # --- running -----------------------------------------------------------------------------------

    def run(
        self,
        slots: int | dict[str, int] = 1,
        *,
        until_idle: bool = False,
        handles_signals: bool = False,
        **settings: Any,
    ) -> int:
        """Run entries until `stop`, or until nothing is left to run; return the number of runs that ended.

        `settings` are further fields of `SupervisorSettings`: worker_id, claim_timeout_s, heartbeat_s, drain_s, logs.
        """
        self._supervisor = self.supervisor(slots, **settings)
        return self._supervisor.run(until_idle=until_idle, handles_signals=handles_signals)

    def supervisor(self, slots: int | dict[str, int] = 1, **settings: Any) -> Supervisor:
        """Return a supervisor of this store, with this program's functions."""
        return Supervisor(self.api, SupervisorSettings(slots=slots, **settings), functions=self._functions)

    def stop(self) -> None:
        """Drain: `run`, on another thread, returns after the current runs; no new ones start."""
        if self._supervisor is not None:
            self._supervisor.drain()

    def close(self) -> None:
        """Close the store or the connection."""
        self.api.close()

    def __enter__(self) -> Rota:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""`Rota`: the object that a Python program works with."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack, overload

import msgspec

from rota import store
from rota.app.agent_handle import AgentHandle
from rota.app.agent_options import AgentOptions, cpu_of, thousandths, with_known_dims
from rota.app.async_run import on_own_thread
from rota.app.graph_methods import GraphMethods
from rota.app.jobs import Job, StoreLink, aas_completed, agather, as_completed, gather
from rota.app.limits import Limit, ensure_limit
from rota.app.moments import Duration, Moment, seconds_of, timestamp_of
from rota.app.registration import ensure_agent
from rota.app.schedules import Schedules, trigger_of
from rota.clock import Clock
from rota.errors import NotEnabled, NotFound, UnknownAgent
from rota.fleet.idle import HORIZON_S, IdleRule
from rota.fleet.run_summary import RunSummary
from rota.fleet.supervisor import Supervisor, SupervisorSettings
from rota.host.main_module import this_process
from rota.kernel import Kernel
from rota.model.agent_names import agent_in_project, agent_named
from rota.model.cpu import CPU_KEY, CpuSettings
from rota.model.policy_setting import ShareBy
from rota.model.usage import UsageKey, UsageReport
from rota.model.work import DIMENSIONS, Agent, Project
from rota.policy.contract import Policy, PolicyIsolation
from rota.rpc.client.connect import connect, is_remote
from rota.rpc.program_access import give_programs_access
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher
from rota.service.opinions import give_opinion

__all__ = ["Rota"]


class Rota(GraphMethods):
    """Agents, their queue and their supervisor, over one store."""

    def __init__(
        self,
        address: str | os.PathLike[str] = ":memory:",
        *,
        policy: Policy | str | None = None,
        policy_params: Mapping[str, Any] | None = None,
        policy_isolation: PolicyIsolation = "thread",
        share_by: ShareBy | None = None,
        dimensions: Collection[str] = (),
        clock: Clock | None = None,
        token: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """Open a file, or connect to a daemon at `unix:/path` or `http(s)://host:port`.

        Without `policy` projects share by weight; inside a project the higher priority goes first, and equals share by
        agent weight. A policy that is named here is recorded as the policy of the store, as is `share_by`: what sharing
        counts. A store that has another one refuses it (`rota policy set` changes it). A policy object is used by this
        program only. With `policy_isolation="process"` a policy of another package runs in a process of its own, which
        is limited and replaced when it fails (docs/caveats.md). `dimensions` are dimensions of your own that budgets
        may name. `token` and `ca_file` are for a daemon over HTTP (docs/daemon.md).
        """
        self._dimensions = frozenset((*DIMENSIONS, *dimensions))
        # a worker process imports the main program to find its functions: then no store may be opened
        where = ":memory:" if this_process.is_loading else os.fspath(address)
        api: SchedulerApi
        if is_remote(where):
            api = connect(where, token=token, ca_file=ca_file, clock=clock)
        else:
            own = None if isinstance(policy, str) else policy
            kernel = Kernel(store.open_joined(where, clock=clock))
            api = dispatcher = Dispatcher(kernel, own, policy_isolation=policy_isolation)
            give_programs_access(dispatcher, where)
        try:
            give_opinion(api, policy, policy_params, policy_isolation, share_by, by=f"Rota(…) in {_program()}")
        except BaseException:
            api.close()
            raise
        self._link = StoreLink(api)
        self._functions: dict[tuple[str | None, str], Callable[..., Any]] = {}  # by project and name of their agents
        self._registered: list[tuple[AgentHandle, Callable[[], Agent]]] = []  # handles, and how to register each again
        self._schedules = Schedules()
        self._supervisor: Supervisor | None = None
        self._running = 0  # calls of `run` and `arun` in progress

    @property
    def api(self) -> SchedulerApi:
        """The scheduler API: of this process, or of the daemon."""
        return self._link.api

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
        budget: Mapping[str, float] | None = None,
        cpu: CpuSettings | Mapping[str, Any] | None = None,
    ) -> Project:
        """Create or update a project; its budget is per rolling day, `usd` in dollars; `cpu` is for all its runs."""
        wanted: dict[str, Any] = {"weight": thousandths("weight", weight), "max_concurrent": max_concurrent}
        amounts = with_known_dims(self._dimensions, {"budget": budget or {}})["budget"]
        settings = cpu_of(cpu)
        stored = {} if settings is None else {CPU_KEY: msgspec.to_builtins(settings)}
        try:
            known = self.api.projects.get(project_id)
        except NotFound:
            project = self.api.projects.create(project_id, **wanted, metadata=stored)
        else:
            metadata = {key: value for key, value in known.metadata.items() if key != CPU_KEY} | stored
            project = self.api.projects.update(project_id, **wanted, metadata=metadata)
        for dim, amount in amounts.items():
            self.api.ledger.set_budget("project", project_id, dim, amount)
        return project

    def limit(
        self, name: str, *, requests_per_minute: int | None = None, tokens_per_minute: int | None = None
    ) -> Limit:
        """Create or update a limit that all who name it share: `draws_on=("openai",)`, `ctx.acquire("openai", …)`.

        The same call again changes nothing. Without amounts it returns the limit that exists.
        """
        return ensure_limit(self.api, name, requests=requests_per_minute, tokens=tokens_per_minute)

    @overload
    def agent(self, name: Callable[..., Any], /) -> AgentHandle: ...

    @overload
    def agent(
        self, name: str | None = None, **settings: Unpack[AgentOptions]
    ) -> Callable[[Callable[..., Any]], AgentHandle]: ...

    def agent(
        self, name: str | Callable[..., Any] | None = None, **settings: Unpack[AgentOptions]
    ) -> AgentHandle | Callable[[Callable[..., Any]], AgentHandle]:
        """Make a function, sync or async, an agent: `@rota.agent`, or `@rota.agent(project="research")`.

        A run that raises is retried up to `max_attempts` times, with a growing pause, unless the error is among
        `non_retryable`. `every` and `cron` enqueue the agent by themselves while a supervisor runs.

        After a restart, a function of the same name and project is the same agent, updated with these settings: it
        keeps what it has used of its budget, and a changed budget changes its limit.
        """
        if callable(name):
            return self._register_function(name.__name__, name, settings)
        return lambda function: self._register_function(name or function.__name__, function, settings)

    def _register_function(self, name: str, function: Callable[..., Any], settings: AgentOptions) -> AgentHandle:
        trigger = trigger_of(settings, function)
        handle = self._register(name, "callable", {}, settings, function)
        self._functions[handle.agent.project_id, name] = function
        self._schedules.add(name, settings.get("project"), trigger)
        return handle

    def _register(
        self,
        name: str,
        runner: str,
        how: dict[str, Any],
        settings: AgentOptions,
        function: Callable[..., Any] | None = None,
    ) -> AgentHandle:
        def register() -> Agent:
            checked: Any = with_known_dims(self._dimensions, settings)
            return ensure_agent(self.api, name, runner, how, checked)

        handle = AgentHandle(self._link, register(), function)
        self._registered.append((handle, register))
        return handle

    def _own_agents(self) -> list[AgentHandle]:
        """The agents whose functions this program has registered."""
        return [handle for handle, _ in self._registered if (handle.agent.project_id, handle.name) in self._functions]

    def _work_on(self, api: SchedulerApi) -> Callable[[], None]:
        """Use another store from now on, with the same agents; return a function that undoes it."""
        before, agents = self.api, [(handle, handle.agent) for handle, _ in self._registered]

        def undo() -> None:
            self._link.use(before)
            for handle, agent in agents:
                handle.bind(agent)

        self._link.use(api)
        for handle, register in self._registered:
            handle.bind(register())
        return undo

    def command(
        self, name: str, argv: Sequence[str], *, ndjson: bool = False, **settings: Unpack[AgentOptions]
    ) -> AgentHandle:
        """Make a program an agent: any program, or one that uses the ndjson protocol (docs/agents.md)."""
        trigger = trigger_of(settings, None)
        handle = self._register(name, "ndjson" if ndjson else "command", {"argv": tuple(argv)}, settings)
        self._schedules.add(name, settings.get("project"), trigger)
        return handle

    def find(self, name: str, *, project: str | None = None) -> AgentHandle:
        """Return an agent by its project and name, whichever program created it.

        Without a project it is the agent of no project, else the only agent of that name in any project.
        """
        found = self.api.agents.find(name)
        agent = agent_named(found, name, near=None) if project is None else agent_in_project(found, project)
        if agent is None:
            raise UnknownAgent(name, project)
        return AgentHandle(self._link, agent, self._functions.get((agent.project_id, name)))

    def pause(
        self,
        agent: AgentHandle | str | None = None,
        *,
        project: str | None = None,
        by: str = "user",
        reason: str | None = None,
    ) -> None:
        """Start no more runs: of an agent, of a project or, without either, at all. Runs in progress continue."""
        if agent is not None:
            self._handle(agent, project).pause(by, reason)
        elif project is not None:
            self.api.projects.move(project, "pause", by=by)
        else:
            self.api.projects.pause_fleet(by, reason)

    def resume(self, agent: AgentHandle | str | None = None, *, project: str | None = None, by: str = "user") -> None:
        """Lift the pause of an agent, of a project or, without either, of everything."""
        if agent is not None:
            self._handle(agent, project).resume(by)
        elif project is not None:
            self.api.projects.move(project, "resume", by=by)
        else:
            self.api.projects.resume_fleet(by)

    def _handle(self, agent: AgentHandle | str, project: str | None) -> AgentHandle:
        return agent if isinstance(agent, AgentHandle) else self.find(agent, project=project)

    # --- jobs --------------------------------------------------------------------------------------

    def job(self, sched_id: int) -> Job:
        """Return a handle on an entry, whichever program enqueued it."""
        return Job(self._link, self.api.queue.get(sched_id).sched_id)

    def gather(self, *jobs: Job, wait_s: Duration | None = None, return_exceptions: bool = False) -> list[Any]:
        """Wait for all jobs and return their results in order.

        Raises the error of the first job that failed, once all have ended; with `return_exceptions` the errors are in
        the list. `WaitTimeout` after `wait_s`.
        """
        return gather(self._link, jobs, wait_s, return_exceptions=return_exceptions)

    def as_completed(self, jobs: Iterable[Job], wait_s: Duration | None = None) -> Iterator[Job]:
        """Yield jobs as they end, in any way; `WaitTimeout` after `wait_s`."""
        return as_completed(self._link, jobs, wait_s)

    async def agather(self, *jobs: Job, wait_s: Duration | None = None, return_exceptions: bool = False) -> list[Any]:
        """Do the same as `gather`, for coroutines."""
        return await agather(jobs, wait_s, return_exceptions=return_exceptions)

    def aas_completed(self, jobs: Iterable[Job], wait_s: Duration | None = None) -> AsyncIterator[Job]:
        """Do the same as `as_completed`, for coroutines: `async for job in rota.aas_completed(jobs)`."""
        return aas_completed(jobs, wait_s)

    # --- usage -------------------------------------------------------------------------------------

    def usage(
        self,
        *by: UsageKey,
        since: Moment | None = None,
        until: Moment | None = None,
        project: str | None = None,
        agent: str | None = None,
    ) -> UsageReport:
        """Return runs, failures, tokens, cost, CPU time and waits: `rota.usage("agent", "day")`. By project, if none.

        The days are in UTC: `since` and `until` name the first and the last one.
        """
        now = self.api.clock.now()
        since_at = None if since is None else timestamp_of("since", since, now)
        until_at = None if until is None else timestamp_of("until", until, now)
        return self.api.usage.report(by or ("project",), since_at, until_at, project_id=project, agent=agent)

    # --- events ------------------------------------------------------------------------------------

    def emit(
        self, kind: str, payload: Mapping[str, Any] | None = None, *, agent: AgentHandle | str | None = None
    ) -> int:
        """Append an event of your own to the journal, which triggers and hooks may wait for; return its id.

        `rota.emit("deploy.finished", {"version": 7})`. Kinds that begin with kernel. are reserved. An event about an
        agent fires the triggers of its project; an event about none fires those of all.
        """
        pid = None if agent is None else self._handle(agent, None).pid
        return self.api.journal.append(pid, kind, dict(payload or {}))

    # --- running -----------------------------------------------------------------------------------

    def run(
        self,
        slots: int | dict[str, int] = 1,
        *,
        until_idle: bool = False,
        horizon_s: Duration = HORIZON_S,
        handles_signals: bool | None = None,
        **settings: Any,
    ) -> RunSummary:
        """Run entries until `stop` or Ctrl-C; with `until_idle`, until nothing is left to wait for.

        `until_idle` waits for retries and limits, and for delayed entries that are due within `horizon_s`. The summary
        says what completed and failed, and what still waits. A store that cannot be used raises.

        On the main thread, Ctrl-C and SIGTERM let the current runs end; a second one stops them (`handles_signals`).
        `settings` are further fields of `SupervisorSettings`: worker_id, claim_timeout_s, heartbeat_s, drain_s, logs,
        logs_max, logs_bytes_max, echo. The output of runs is kept beside the store's file, and also in the folder
        `logs`, if it is given.
        """
        if handles_signals is None:
            handles_signals = threading.current_thread() is threading.main_thread()
        self._supervisor = self.supervisor(slots, **settings)
        self._running += 1
        try:
            return self._supervisor.run(until_idle=_idle_rule(until_idle, horizon_s), handles_signals=handles_signals)
        finally:
            self._running -= 1

    async def arun(
        self,
        slots: int | dict[str, int] = 1,
        *,
        until_idle: bool = False,
        horizon_s: Duration = HORIZON_S,
        **settings: Any,
    ) -> RunSummary:
        """Do the same as `run`, beside a coroutine. If that is cancelled, the current runs end first."""
        supervisor = await asyncio.to_thread(partial(self.supervisor, slots, **settings))
        self._supervisor = supervisor
        rule = _idle_rule(until_idle, horizon_s)
        self._running += 1
        try:
            return await on_own_thread(partial(supervisor.run, until_idle=rule), supervisor.drain)
        finally:
            self._running -= 1

    def supervisor(self, slots: int | dict[str, int] = 1, **settings: Any) -> Supervisor:
        """Return a supervisor of this store, with this program's functions and schedules."""
        merged: dict[str, Any] = {"echo": True, **settings}
        supervisor = Supervisor(self.api, SupervisorSettings(slots=slots, **merged), functions=self._functions)
        self._schedules.start(self.api)
        supervisor.add_background_task(self._schedules)
        return supervisor

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

    async def aclose(self) -> None:
        """Do the same as `close`, for coroutines."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Rota:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _idle_rule(until_idle: bool, horizon_s: Duration) -> IdleRule | bool:
    return IdleRule(seconds_of("horizon_s", horizon_s)) if until_idle else False


def _program() -> str:
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "an interpreter"

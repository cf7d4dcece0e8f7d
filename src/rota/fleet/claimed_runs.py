"""From a claimed entry to its run: what the run needs is read, its log is opened, and its runner executes it.

What is wrong with one entry or agent ends in a report of that entry, or in the quarantine of that agent, and never ends
the supervisor. An agent that cannot run here is left to other workers: its function is registered in another program,
its runner is not installed on this machine, or what its function or its graph calls cannot be imported here while
another worker runs that may have it. Its first entry is returned at once, and later claims leave its entries out
(`left_out`).

Agents and their settings are read once and remembered until the journal says that they have changed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rota.errors import FleetInvalid, NotFound, RotaError, StoreUnavailable
from rota.fleet.agent_settings import AgentSettings, settings_of
from rota.fleet.live_run import LiveRun
from rota.fleet.log_shipping import LogShipping
from rota.fleet.on_ray.supervised_ray import SupervisedRay
from rota.fleet.run_budgets import remaining_budget
from rota.fleet.run_cpu import RunCpu, agent_owner, project_owner, run_cpu
from rota.fleet.run_logs import BoundedLog, LogFileCopy
from rota.fleet.run_traces import RunTraces
from rota.fleet.runners import registry
from rota.fleet.runners.contract import (
    NOT_FOUND,
    Assignment,
    RegisteredFunctions,
    RunAccess,
    Runner,
    RunOutcome,
    another_may_run,
    registered_function,
)
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.slot_loop import PreparedRun, RunKey, SlotLoop, run_key
from rota.fleet.supervised_cores import SupervisedCores
from rota.fleet.worktrees.supervised import SupervisedWorktrees
from rota.host.cpu_groups import CpuOwner
from rota.host.thread_settings import usable_cores
from rota.host.watchdog import Watchdog
from rota.kernel.run_reports import RunReport
from rota.kernel.turn import EXCEPT_AGENTS_MAX
from rota.kernel.workers import LACKS_MAX
from rota.model.checks import NOTE_CHARS_MAX
from rota.model.graph_runs import RUNNER as GRAPH
from rota.model.ray import RAY
from rota.model.work import Agent, ReadyEntry
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher
from rota.service.log_files import LoggedRun
from rota.service.log_folder import LogFolder
from rota.service.outages import call_through_outage

__all__ = ["ClaimedRuns", "KeptLogs"]

UNRUNNABLE_RETRY_S = 1.0  # delay before an entry that cannot run here, and is not left out, may be claimed again
ERROR_CHARS_MAX = 4_000  # of a runner's error, in a result
OWN_FOLDER_ID = "0"  # in place of the store's id, in the folder of `logs`: its store may be at a daemon
_ACCESS_VARIABLES = frozenset({"ROTA_STORE", "ROTA_ACCESS_TOKEN", "ROTA_ACCESS_TOKEN_FILE"})
T = TypeVar("T")
_NO_FUNCTION = "function here: "  # begins what is told of an agent whose function cannot be imported here
_log = logging.getLogger("rota.fleet")


class _Elsewhere(NamedTuple):
    """An agent that cannot run here, and what is missing."""

    agent: Agent
    missing: str
    is_function: bool  # it may be registered later


class KeptLogs(NamedTuple):
    """How much output of runs a supervisor keeps, and where it keeps one more copy."""

    folder: str | None
    runs_max: int  # 0 keeps none
    bytes_max: int


class ClaimedRuns:
    """Makes runs of the entries that a supervisor has claimed."""

    def __init__(
        self,
        api: SchedulerApi,
        resources: RunnerResources,
        functions: RegisteredFunctions,
        *,
        watchdog: Watchdog,
        worktrees: SupervisedWorktrees,
        cores: SupervisedCores,
        ray: SupervisedRay,
        kept_logs: KeptLogs,
        live_among: Callable[[Collection[int]], set[int]],
        slots: Callable[[], int],
        is_draining: Callable[[], bool],
        on_cannot_run: Callable[[], None],
    ) -> None:
        self._elsewhere: dict[int, _Elsewhere] = {}  # by pid
        self._warned: set[int] = set()  # of them, those that a warning has named
        self._on_cannot_run = on_cannot_run  # called when one was found
        self._api = api
        self._resources = resources
        self._functions = functions
        self._watchdog = watchdog
        self._worktrees = worktrees
        self._cores = cores
        self._ray = ray
        self._traces = RunTraces(api, os.environ)
        self._kept_logs = kept_logs
        self._log_folder = self._bounded_log_folder(live_among)
        self._shipping = None if isinstance(api, Dispatcher) else LogShipping(api)
        self._slots = slots  # how many there are now
        self._is_draining = is_draining
        self._runners: dict[str, Runner] = {}
        self._agents: dict[int, tuple[Agent, AgentSettings | None, RunCpu | None]] = {}  # a cache, by pid
        self._lock = threading.Lock()  # guards what the threads of runs share above

    def prepare(self, loop: SlotLoop, entry: ReadyEntry, slot: str) -> PreparedRun | RunReport | None:
        """Return a run for a claimed entry; a report if it cannot run; None if the store stays out of reach."""
        try:
            agent, settings, _ = self.wait_out(lambda: self._agent(entry.pid))
            if agent.state != "DEAD" and _needs_registered(settings) and not self._has_function(agent):
                delay_s = self._leave_to_others(agent, "function in this program", is_function=True)
                return self._unprepared(entry, back="yield", back_after_s=delay_s)
            assignment = self.wait_out(lambda: self._assignment(entry, slot))
            log = self.wait_out(lambda: self._open_log(assignment))
        except FleetInvalid as problem:
            self._quarantine(entry.pid, problem)
            return self._unprepared(entry, back="yield", back_after_s=UNRUNNABLE_RETRY_S)
        except StoreUnavailable as problem:
            _log.warning("gave up entry %s, which returns when its claim expires: %s", entry.sched_id, problem)
            return None
        except RotaError as problem:
            _log.warning("entry %s cannot run: %s", entry.sched_id, problem)
            outcome = "not_found" if isinstance(problem, NotFound) else "runner_failed"
            return self._unprepared(entry, exit_kind="failed", outcome=outcome, result={"error": problem.message})
        slot_hold = _SlotHold(loop, run_key(entry))
        run = LiveRun(self._api, assignment, self._watchdog, log, slot_hold)
        return PreparedRun(run, partial(self._execute, run, loop))

    def _assignment(self, entry: ReadyEntry, slot: str) -> Assignment:
        """Read what a run needs."""
        agent, settings, cpu = self._agent(entry.pid)
        is_program = settings is not None and settings.executes != "callable"  # a function asks when it needs to know
        return Assignment(
            entry=entry,
            agent=agent,
            settings=settings or AgentSettings(),
            slot=slot,
            workspace=self._workspace_path(entry, agent, settings),
            remaining=remaining_budget(self._api, entry.pid, entry.ceiling, entry.account) if is_program else {},
            checkpoint=entry.result if isinstance(entry.result, dict) else None,
            access=self._access(entry, settings) if is_program and settings is not None else None,
            cpu=cpu,
            trace=self._traces.variables(entry),
        )

    def _access(self, entry: ReadyEntry, settings: AgentSettings) -> RunAccess | None:
        """Return how a program reaches the daemon; None if there is none, or its settings name a store or a token."""
        variables = self._api.program_variables()
        if not variables or not _ACCESS_VARIABLES.isdisjoint(settings.env):
            return None
        if settings.ray is not None and not variables.get("ROTA_STORE", "").startswith("http"):
            return None  # a node does not reach a socket of this machine
        assert entry.token is not None  # noqa: S101  # it was claimed
        access_token = self._api.supervision.access_token(entry.sched_id, entry.token)
        return RunAccess(variables=variables, access_token=access_token)

    def wait_out(self, call: Callable[[], T]) -> T:
        """Call this; while the store cannot be reached, wait and try again, unless the supervisor drains."""
        return call_through_outage(self._api.clock, call, self._is_draining)

    @staticmethod
    def _unprepared(entry: ReadyEntry, **ended: Any) -> RunReport:
        assert entry.token is not None  # noqa: S101  # it was claimed
        return RunReport(sched_id=entry.sched_id, token=entry.token, **ended)

    def _quarantine(self, pid: int, problem: FleetInvalid) -> None:
        """Pause an agent that no supervisor can run until its settings change."""
        _log.warning("agent %s is quarantined until its settings are corrected: %s", pid, problem.message)
        reason = str(problem.data.get("problem", problem.message))
        try:
            self.wait_out(lambda: self._api.supervision.quarantine(pid, reason=reason[:NOTE_CHARS_MAX]))
        except RotaError as refusal:
            _log.warning("cannot quarantine agent %s: %s", pid, refusal)

    def _execute(self, run: LiveRun, loop: SlotLoop) -> RunOutcome | None:
        """Execute a run on its own thread, or start it on a cluster (None). Any error becomes its outcome."""
        agent, name = run.assignment.agent, run.assignment.settings.runner
        if agent.state == "DEAD":
            return RunOutcome(exit_kind="cancelled", outcome="owner_dead")
        if name == RAY:
            self._ray.execute(run, loop)
            return None
        return self._ray.execute_here(run, loop, partial(self._execute_here, run, name))

    def _execute_here(self, run: LiveRun, name: str) -> RunOutcome:
        agent = run.assignment.agent
        try:
            runner = self._runner(name)
        except FleetInvalid as problem:  # it is not installed here, or not as a whole
            return RunOutcome(yield_after_s=self._leave_to_others(agent, f"runner here: {problem.message}"))
        try:
            outcome = self._worktrees.execute(
                run, partial(self._cores.execute, run, lambda: runner.run(run.assignment, run))
            )
            return self._left_to_others(run, outcome) if outcome.outcome == NOT_FOUND else outcome
        except BaseException as problem:
            _log.exception("the %s runner failed on entry %s", name, run.entry.sched_id)
            error = str(problem).encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]
            return RunOutcome(exit_kind="crashed", outcome="runner_failed", result={"error": error})

    # --- agents that cannot run here -------------------------------------------------------------

    def _leave_to_others(self, agent: Agent, missing: str, *, is_function: bool = False) -> float:
        """Leave an agent out of later claims; return the delay of the entry that was claimed."""
        with self._lock:
            is_known = agent.pid in self._warned
            self._elsewhere[agent.pid] = _Elsewhere(agent, missing, is_function)
            self._warned.add(agent.pid)
        if not is_known:
            told = "agent %s (%s) has no %s; its entries are left to workers that have it"
            _log.warning(told, agent.pid, agent.name, missing)
        self._on_cannot_run()
        return 0.0 if agent.pid in self.left_out() else UNRUNNABLE_RETRY_S

    def _left_to_others(self, run: LiveRun, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome of a run that could not import what it calls: if another worker may have it, it waits."""
        entry, settings = run.entry, run.assignment.settings
        waits = outcome.yield_after_s is not None  # its runner has found such a worker
        if not waits and settings.function is None and settings.runner != GRAPH:
            return outcome  # a function of a program, which only that program has
        if not waits and not self.wait_out(lambda: another_may_run(self._api, entry)):
            return outcome
        error = outcome.result["error"] if isinstance(outcome.result, dict) else "it cannot be imported"
        return RunOutcome(yield_after_s=self._leave_to_others(run.assignment.agent, f"{_NO_FUNCTION}{error}"))

    def lacks(self) -> dict[int, str]:
        """Return what cannot be imported here, by pid: for the first few agents that were left to others for that."""
        found = {pid: text for pid, text in self.cannot_run().items() if text.startswith(_NO_FUNCTION)}
        told = {pid: text.removeprefix(_NO_FUNCTION)[:NOTE_CHARS_MAX] for pid, text in found.items()}
        return {pid: told[pid] for pid in list(told)[:LACKS_MAX]}

    def look_again(self, pid: int) -> None:
        """Claim entries of a graph again, because a run began or ended: another one may call other functions."""
        with self._lock:
            self._elsewhere.pop(pid, None)

    def cannot_run(self) -> Mapping[int, str]:
        """Return what is missing for the agents that were left to others, by pid, as far as that is still so."""
        if not self._elsewhere:
            return {}
        with self._lock:
            for agent in [one.agent for one in self._elsewhere.values() if one.is_function]:
                if self._has_function(agent):
                    del self._elsewhere[agent.pid]  # it was registered meanwhile
            return {pid: one.missing for pid, one in sorted(self._elsewhere.items())}

    def _has_function(self, agent: Agent) -> bool:
        return registered_function(self._functions, agent) is not None

    def left_out(self) -> tuple[int, ...]:
        """Return the agents whose entries a claim leaves out: those that cannot run here, or the first of very many."""
        return tuple(self.cannot_run())[:EXCEPT_AGENTS_MAX]

    def _runner(self, name: str) -> Runner:
        with self._lock:
            if name not in self._runners:
                self._runners[name] = registry.make(name, self._resources, self._functions, self._slots())
            return self._runners[name]

    def _agent(self, pid: int) -> tuple[Agent, AgentSettings | None, RunCpu | None]:
        with self._lock:
            cached = self._agents.get(pid)
        if cached is None:
            agent = self._api.agents.get(pid)
            settings = settings_of(agent)
            project = None if agent.project_id is None else self._api.projects.get(agent.project_id)
            cached = agent, settings, run_cpu(agent, settings, project, usable_cores())
            with self._lock:
                self._agents[pid] = cached
        return cached

    def _workspace_path(self, entry: ReadyEntry, agent: Agent, settings: AgentSettings | None) -> str | None:
        if entry.workspace is None:
            return None
        own = self._worktrees.path_for(entry, agent, None if settings is None else settings.worktree)
        return own or self._api.projects.workspace(entry.workspace).path

    def _open_log(self, assignment: Assignment) -> BoundedLog:
        """Return the log of a run, with its copies: beside the store or at the daemon, and in a configured folder."""
        entry, log_bytes = assignment.entry, assignment.settings.limits.log_bytes
        log = BoundedLog(log_bytes)
        if not self._kept_logs.runs_max or not self._kept_logs.bytes_max:
            return log
        if isinstance(self._api, Dispatcher) and (beside := self._api.logs.folder) is not None:
            # now, and not when it prints: the store may be away then
            log.copies.append(LogFileCopy(beside, self._api.logs.logged_run(entry), log_bytes))
        if self._shipping is not None:
            log.copies.append(self._shipping.copy_of(log, entry))
        if self._log_folder is not None:
            run = LoggedRun(entry.sched_id, entry.attempt, entry.token or 0, OWN_FOLDER_ID)
            log.copies.append(LogFileCopy(self._log_folder, run, log_bytes))
        return log

    def _bounded_log_folder(self, live_among: Callable[[Collection[int]], set[int]]) -> LogFolder | None:
        """Return the configured folder, if there is one; set the maxima of the one beside the store."""
        folder, *maxima = self._kept_logs
        if isinstance(self._api, Dispatcher):
            self._api.logs.set_maxima(*maxima)
        return None if folder is None else LogFolder(Path(folder), live_among, *maxima)

    def forget_agent(self, pid: int) -> None:
        """Remove an agent from the cache: it was changed."""
        with self._lock:
            self._agents.pop(pid, None)
            self._elsewhere.pop(pid, None)
        self._apply_cpu(f"agent:{pid}", lambda: self._agent_owner(pid))

    def forget_project(self, project_id: str) -> None:
        """Remove the agents of a project from the cache: it was changed."""
        with self._lock:
            for pid in [pid for pid, (agent, *_) in self._agents.items() if agent.project_id == project_id]:
                del self._agents[pid]
        self._apply_cpu(f"project:{project_id}", lambda: project_owner(self._api.projects.get(project_id)))

    def _agent_owner(self, pid: int) -> CpuOwner:
        agent = self._api.agents.get(pid)
        return agent_owner(agent, settings_of(agent))

    def _apply_cpu(self, key: str, read: Callable[[], CpuOwner]) -> None:
        """Apply changed `cpu` settings to the groups of runs that go on."""
        try:
            self._resources.cpu_changed(key, read)
        except RotaError as problem:
            _log.warning("changed cpu settings of %s apply from its next run on: %s", key, problem)

    def deliver_logs(self) -> None:
        """Send the rest of the logs to the daemon; no run is left."""
        if self._shipping is not None:
            self._shipping.close()

    def close(self) -> None:
        """Close the runners."""
        for runner in self._runners.values():
            runner.close()


def _needs_registered(settings: AgentSettings | None) -> bool:
    """Whether an agent runs only where its program has registered a function under its name."""
    return settings is None or (settings.executes == "callable" and settings.function is None)


class _SlotHold:
    """A run's hold on a slot of its loop."""

    def __init__(self, loop: SlotLoop, key: RunKey) -> None:
        self._loop, self._key = loop, key

    def release(self) -> None:
        self._loop.release_slot(self._key)

    def reacquire(self) -> None:
        self._loop.reacquire_slot(self._key)

"""The supervisor: claims entries and runs them.

It owns nothing durable. The queue holds what should run, a claim marks what runs, and an agent's settings are stored
with the agent. So a supervisor can be killed at any moment and the next one continues: claims without heartbeats expire
and are recovered, and the reaper kills commands that lost their supervisor.

It has two kinds of threads. Each *slot loop* (slot_loop.py) keeps a set of equal slots busy. The *heartbeat thread*
(heartbeats.py) extends all claims, follows the journal for requests to cancel a run and for changed agents, and runs
the background tasks. An idle supervisor writes nothing and wakes a few times a minute.

    SIGTERM, Ctrl-C     drain: claim nothing more, let the runs end; after `drain_s` ask them to stop
    a second signal     kill everything now; the entries of the killed runs are queued again
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import msgspec

from rota.errors import RotaError
from rota.fleet.agent_settings import AgentSettings, settings_of
from rota.fleet.heartbeats import BackgroundTask, Heartbeats
from rota.fleet.live_run import LiveRun, remaining_budget
from rota.fleet.preemption import Preemptible, Preemption
from rota.fleet.restarts import Restarts
from rota.fleet.run_logs import LOGS_MAX, BoundedLog, LogFolder
from rota.fleet.runners import registry
from rota.fleet.runners.contract import Assignment, Runner, RunOutcome
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.slot_loop import SlotLoop
from rota.host.watchdog import Watchdog
from rota.kernel.run_reports import RunReport
from rota.model.events import Event, ProcessTerminated, ProcessUpdated
from rota.model.work import Agent, ReadyEntry
from rota.service.api import SchedulerApi

__all__ = ["CLAIM_TIMEOUT_S", "HEARTBEAT_S", "Supervisor", "SupervisorSettings"]

CLAIM_TIMEOUT_S = 60.0
HEARTBEAT_S = 15.0
DRAIN_S = 30.0
UNRUNNABLE_RETRY_S = 1.0  # delay before an entry that cannot run here may be claimed again

_log = logging.getLogger("rota.fleet")


class SupervisorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a supervisor works."""

    slots: int | dict[str, int] = 1  # a number, or a number per kind of slot
    worker_id: str | None = None  # None: a new id; with the id of an earlier process it takes over its claims
    claim_timeout_s: float = CLAIM_TIMEOUT_S
    heartbeat_s: float = HEARTBEAT_S
    drain_s: float = DRAIN_S
    preemption_thresholds: tuple[int, ...] = ()  # between priority bands; empty: no preemption
    preemption_grace_s: float | None = None  # None: the agent's `stop_grace_s`
    logs: str | None = None  # folder for the output of programs; None: only its end is kept, in the result
    logs_max: int = LOGS_MAX  # maximum number of log files; the oldest are removed first


class Supervisor:
    """Runs the entries of the queue until it is stopped or, with `until_idle`, until there is nothing to do."""

    def __init__(
        self,
        api: SchedulerApi,
        settings: SupervisorSettings | None = None,
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.settings = settings or SupervisorSettings()
        self.incarnation = uuid.uuid4().hex
        self.worker_id = self.settings.worker_id or f"{socket.gethostname()}-{os.getpid()}-{self.incarnation[:8]}"
        self.resources = RunnerResources(api.clock)
        self.ended_runs = 0
        self._api = api
        self._functions = functions or {}
        self._watchdog = Watchdog(api.clock, "rota-watchdog")
        self._runners: dict[str, Runner] = {}
        self._agents: dict[int, tuple[Agent, AgentSettings | None]] = {}  # a cache, by pid
        self._unrunnable: set[int] = set()  # agents that cannot run here, for one warning each
        self._restarts = Restarts(api, self._watchdog)
        self._logs = self._log_folder()
        self._tasks: list[BackgroundTask] = [_ChangedAgents(self.forget_agent)]
        self._lock = threading.Lock()  # guards what the threads share above
        self._is_draining = False
        self.slot_loops = [self._slot_loop(kinds, slots) for kinds, slots in _pools(self.settings.slots)]
        if self.settings.preemption_thresholds:
            for loop in self.slot_loops:
                self.add_background_task(self._preemption(loop))

    # --- start and stop --------------------------------------------------------------------------

    def add_background_task(self, task: BackgroundTask) -> None:
        """Run a task on the heartbeat thread. Call this before `run`."""
        self._tasks.append(task)

    def run(self, *, until_idle: bool = False, handles_signals: bool = False) -> int:
        """Run entries; return the number of runs that have ended."""
        self._start()
        heartbeats = Heartbeats(self._api, self.settings.heartbeat_s, lambda: self.runs, self._tasks)
        heartbeats.start()
        try:
            with self._signals() if handles_signals else nullcontext():
                self._serve(until_idle=until_idle)
        finally:
            self._close(heartbeats)
        return self.ended_runs

    def drain(self) -> None:
        """Claim nothing more and let the runs end; ask those that run for longer than `drain_s` to stop."""
        with self._lock:
            if self._is_draining:
                return
            self._is_draining = True
        _log.info("draining: waiting for %s runs", len(self.runs))
        for loop in self.slot_loops:
            loop.stop_claiming()
        try:
            self._api.supervision.moved(self.worker_id, self.incarnation, "draining")
        except RotaError as problem:  # drain even if that cannot be recorded
            _log.warning("cannot record that this supervisor is draining: %s", problem)
        self._watchdog.watch(self.settings.drain_s, lambda: self._stop_all("draining"))

    def resize(self, slots: int | dict[str, int]) -> None:
        """Change the number of slots; the kinds of slots stay as they were at the start."""
        wanted = dict(_pools(slots))
        for loop in self.slot_loops:
            loop.resize(wanted.get(loop.kinds, 0))

    def kill(self) -> None:
        """Kill all runs now; their entries are queued again."""
        self.drain()
        for run in self.runs:
            run.kill("draining")

    @property
    def runs(self) -> list[LiveRun]:
        """The runs in progress."""
        return [run for loop in self.slot_loops for run in loop.runs]

    def _start(self) -> None:
        if self.settings.worker_id is not None and (count := self._take_over()):
            self._api.supervision.moved(self.worker_id, self.incarnation, "took_over")
            _log.info("recovered %s entries from the previous process", count)
        self._api.supervision.recover()
        self._api.supervision.moved(self.worker_id, self.incarnation, "started")
        self._restarts.resume_quarantined()

    def _take_over(self) -> int:
        return sum(self._api.queue.take_over(loop.worker_id, self.incarnation) for loop in self.slot_loops)

    def _serve(self, *, until_idle: bool) -> None:
        """Run each slot loop on its own thread; the first on the calling thread, where signals arrive."""
        first, *others = self.slot_loops
        threads = [threading.Thread(target=partial(loop.serve, until_idle=until_idle), daemon=True) for loop in others]
        for thread in threads:
            thread.start()
        first.serve(until_idle=until_idle)
        for thread in threads:
            thread.join()

    def _close(self, heartbeats: Heartbeats) -> None:
        heartbeats.close(lambda: self._api.supervision.moved(self.worker_id, self.incarnation, "stopped"))
        self._watchdog.close()
        for runner in self._runners.values():
            runner.close()
        self.resources.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Drain at the first signal, kill everything at the second."""

        def act(_number: int, _frame: object) -> None:
            # on another thread: this one may hold a lock that draining needs
            threading.Thread(target=self.kill if self._is_draining else self.drain, daemon=True).start()

        before = {number: signal.signal(number, act) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop_all(self, reason: str) -> None:
        for run in self.runs:
            run.stop(reason)

    # --- runs ------------------------------------------------------------------------------------

    def _slot_loop(self, kinds: tuple[str, ...], slots: int) -> SlotLoop:
        name = self.worker_id if not kinds else f"{self.worker_id}/{kinds[0]}"
        return SlotLoop(
            self._api,
            name,
            self.incarnation,
            slots,
            kinds=kinds,
            claim_timeout_s=self.settings.claim_timeout_s,
            prepare=self._prepare,
            before_report=self._before_report,
            after_report=self._after_report,
        )

    def _preemption(self, loop: SlotLoop) -> Preemption:
        def preempt(sched_id: int) -> None:
            if run := loop.find_run(sched_id):
                run.stop("preempted", self.settings.preemption_grace_s)

        return Preemption(
            self.settings.preemption_thresholds,
            peek=lambda limit: self._api.queue.peek(limit, kinds=loop.kinds, worker_id=loop.worker_id),
            running=lambda: [
                Preemptible(run.entry.sched_id, run.entry.priority, run.started_at)
                for run in loop.runs
                if run.stop_reason is None
            ],
            free=lambda: loop.free,
            preempt=preempt,
        )

    def _prepare(self, loop: SlotLoop, entry: ReadyEntry, slot: str) -> tuple[LiveRun, Callable[[], RunOutcome]]:
        """Return a run for a claimed entry, and the function that executes it."""
        agent, settings = self._agent(entry.pid)
        is_program = settings is not None and settings.runner != "callable"  # a function asks when it needs to know
        assignment = Assignment(
            entry=entry,
            agent=agent,
            settings=settings or AgentSettings(),
            slot=slot,
            workspace=self._workspace_path(entry),
            remaining=remaining_budget(self._api, entry.pid, entry.ceiling) if is_program else {},
            checkpoint=entry.result if isinstance(entry.result, dict) else None,
        )
        log, slot_hold = self._open_log(assignment), _SlotHold(loop, entry.sched_id)
        run = LiveRun(self._api, assignment, self._watchdog, log, slot_hold)
        return run, partial(self._execute, run, has_settings=settings is not None)

    def _execute(self, run: LiveRun, *, has_settings: bool) -> RunOutcome:
        """Execute a run on its own thread. Any error becomes its outcome."""
        agent, runner = run.assignment.agent, run.assignment.settings.runner
        if agent.state == "DEAD":
            return RunOutcome(exit_kind="cancelled", outcome="owner_dead")
        if not has_settings and agent.name not in self._functions:
            return self._leave_to_others(agent)
        try:
            return self._runner(runner).run(run.assignment, run)
        except BaseException as problem:
            _log.exception("the %s runner failed on entry %s", runner, run.entry.sched_id)
            return RunOutcome(exit_kind="crashed", outcome="runner_failed", result={"error": str(problem)})

    def _leave_to_others(self, agent: Agent) -> RunOutcome:
        """Queue an entry again that this supervisor cannot run: another one may have the function."""
        with self._lock:
            if agent.pid not in self._unrunnable:
                self._unrunnable.add(agent.pid)
                _log.warning(
                    "agent %s (%s) has no settings and no function here: its entries stay queued for other workers",
                    agent.pid,
                    agent.name,
                )
        return RunOutcome(yield_after_s=UNRUNNABLE_RETRY_S)

    def _runner(self, name: str) -> Runner:
        with self._lock:
            if name not in self._runners:
                slots = sum(loop.slots for loop in self.slot_loops)
                self._runners[name] = registry.make(name, self.resources, self._functions, slots)
            return self._runners[name]

    def _agent(self, pid: int) -> tuple[Agent, AgentSettings | None]:
        with self._lock:
            cached = self._agents.get(pid)
        if cached is None:
            agent = self._api.agents.get(pid)
            cached = agent, settings_of(agent)
            with self._lock:
                self._agents[pid] = cached
        return cached

    def _workspace_path(self, entry: ReadyEntry) -> str | None:
        return None if entry.workspace is None else self._api.projects.workspace(entry.workspace).path

    def _open_log(self, assignment: Assignment) -> BoundedLog:
        path = None
        if self._logs is not None and assignment.settings.runner != "callable":
            path = self._logs.path_for(assignment.entry.sched_id, assignment.entry.attempt)
        return BoundedLog(assignment.settings.limits.log_bytes, path)

    def _log_folder(self) -> LogFolder | None:
        if self.settings.logs is None:
            return None
        return LogFolder(self.settings.logs, self.settings.logs_max, lambda: [run.entry.sched_id for run in self.runs])

    def _before_report(self, run: LiveRun, report: RunReport) -> None:
        self._update_agent(self._restarts.before_report, run, report)

    def _after_report(self, run: LiveRun, report: RunReport) -> None:
        self.ended_runs += 1
        self._update_agent(self._restarts.after_report, run, report)

    def _update_agent(self, act: Callable[[LiveRun, RunReport], None], run: LiveRun, report: RunReport) -> None:
        try:
            act(run, report)
        except RotaError as problem:
            _log.warning("cannot quarantine or restart agent %s after its run: %s", run.entry.pid, problem)

    def forget_agent(self, pid: int) -> None:
        """Remove an agent from the cache: it was changed."""
        with self._lock:
            self._agents.pop(pid, None)


class _ChangedAgents:
    """A background task: forget a cached agent that was changed or has ended."""

    kinds = (ProcessUpdated.kind, ProcessTerminated.kind)

    def __init__(self, forget: Callable[[int], None]) -> None:
        self._forget = forget

    def on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind in self.kinds and event.pid is not None:
                self._forget(event.pid)

    def next_at(self) -> float | None:
        return None

    def on_due(self, _now: float) -> None:
        """Never due by time."""


class _SlotHold:
    """A run's hold on a slot of its loop."""

    def __init__(self, loop: SlotLoop, sched_id: int) -> None:
        self._loop, self._sched_id = loop, sched_id

    def release(self) -> None:
        self._loop.release_slot(self._sched_id)

    def reacquire(self) -> None:
        self._loop.reacquire_slot(self._sched_id)


def _pools(slots: int | dict[str, int]) -> list[tuple[tuple[str, ...], int]]:
    """The slot loops to run, as (kinds, slots): one for slots of any kind, or one for each kind."""
    if isinstance(slots, int):
        return [((), slots)]
    return [((kind,) if kind != "any" else (), count) for kind, count in slots.items() if count > 0]

"""The supervisor: agents really run.

It owns nothing durable. What should run is in the queue, what runs is a claim, and how an agent is run is kept with the
agent; so a supervisor can be killed at any moment, and the next one goes on: claims that nobody holds on to expire and
are taken back, and commands that lost their supervisor are ended by the minder.

Two kinds of threads. Each *shift* (see shift.py) keeps a set of equal slots busy. The *watch* holds on to the claims
(a heartbeat for all of them at once), listens to the journal for what concerns its runs (a request to cancel) and its
agents (a changed plan), and does what falls due. An idle supervisor writes nothing and wakes a few times a minute.

    SIGTERM, Ctrl-C     drain: take nothing more, let the runs end; after `drain_s` they are asked to stop
    a second one        end everything now; what was under way goes back into the queue
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
from rota.fleet.agent_settings import RunPlan, plan_of
from rota.fleet.heartbeats import Duty, Watch
from rota.fleet.live_run import LiveRun, left_of
from rota.fleet.log import BoundedLog
from rota.fleet.log_folder import LOGS_MAX, LogFolder
from rota.fleet.preemption import Preemption, Running
from rota.fleet.restarts import Restarts
from rota.fleet.runners import registry
from rota.fleet.runners.contract import Assignment, Outcome, Runner
from rota.fleet.runners.resources import Workshop
from rota.fleet.slot_loop import Shift
from rota.host.watchdog import Watchdog
from rota.kernel.supervision import RunReport
from rota.model.events import Event, ProcessTerminated, ProcessUpdated
from rota.model.work import Agent, ReadyEntry
from rota.service.api import Desk

__all__ = ["CLAIM_TIMEOUT_S", "HEARTBEAT_S", "Settings", "Supervisor"]

CLAIM_TIMEOUT_S = 60.0
HEARTBEAT_S = 15.0
DRAIN_S = 30.0
STRANGER_RETRY_S = 1.0  # how long an entry that cannot be run here is left for others

_log = logging.getLogger("rota.runtime")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a supervisor works."""

    slots: int | dict[str, int] = 1  # a number, or by kind of slot
    worker_id: str | None = None  # None: one of its own; the same name again takes over what an earlier life held
    claim_timeout_s: float = CLAIM_TIMEOUT_S
    heartbeat_s: float = HEARTBEAT_S
    drain_s: float = DRAIN_S
    preemption_marks: tuple[int, ...] = ()  # between bands of priority; empty: nobody is preempted
    preemption_grace_s: float | None = None  # None: as for every stop
    logs: str | None = None  # the folder that output is kept in; None keeps only its end, with the result
    logs_max: int = LOGS_MAX  # runs whose output is kept there; the oldest go first


class Supervisor:
    """Runs what the queue says, until it is stopped or, if asked, until there is nothing to do."""

    def __init__(
        self, desk: Desk, settings: Settings | None = None, *, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.incarnation = uuid.uuid4().hex
        self.worker_id = self.settings.worker_id or f"{socket.gethostname()}-{os.getpid()}-{self.incarnation[:8]}"
        self.workshop = Workshop(desk.clock)
        self.count = 0  # runs that have ended
        self._desk = desk
        self._functions = functions or {}
        self._watchdog = Watchdog(desk.clock, "rota-watchdog")
        self._runners: dict[str, Runner] = {}
        self._agents: dict[int, tuple[Agent, RunPlan | None]] = {}
        self._strangers: set[int] = set()  # agents that cannot be run here, said once
        self._restarts = Restarts(desk, self._watchdog)
        self._logs = self._log_folder()
        self._duties: list[Duty] = [_ChangedAgents(self.forget)]
        self._lock = threading.Lock()  # of what the threads share above
        self._is_draining = False
        self.shifts = [self._shift(kinds, slots) for kinds, slots in _pools(self.settings.slots)]
        if self.settings.preemption_marks:
            for shift in self.shifts:
                self.add_duty(self._preemption(shift))

    # --- life ------------------------------------------------------------------------------------

    def add_duty(self, duty: Duty) -> None:
        """Have something done beside the runs, from the start on."""
        self._duties.append(duty)

    def run(self, *, until_idle: bool = False, handles_signals: bool = False) -> int:
        """Run entries; the answer is how many runs have ended."""
        self._start()
        watch = Watch(self._desk, self.settings.heartbeat_s, lambda: self.runs, self._duties)
        watch.start()
        try:
            with self._signals() if handles_signals else nullcontext():
                self._serve(until_idle=until_idle)
        finally:
            self._end(watch)
        return self.count

    def drain(self) -> None:
        """Take nothing more and let the runs end; those that have not after `drain_s` are asked to stop."""
        with self._lock:
            if self._is_draining:
                return
            self._is_draining = True
        _log.info("draining: %s runs are under way", len(self.runs))
        for shift in self.shifts:
            shift.take_nothing_more()
        try:
            self._desk.supervision.moved(self.worker_id, self.incarnation, "draining")
        except RotaError as problem:  # it drains whether or not that can be written down
            _log.warning("that it drains could not be recorded: %s", problem)
        self._watchdog.watch(self.settings.drain_s, lambda: self._stop_all("draining"))

    def resize(self, slots: int | dict[str, int]) -> None:
        """Have another number of slots; kinds of slots stay as they were at the start."""
        wanted = dict(_pools(slots))
        for shift in self.shifts:
            shift.resize(wanted.get(shift.kinds, 0))

    def kill(self) -> None:
        """End everything now; what was under way goes back into the queue."""
        self.drain()
        for run in self.runs:
            run.kill("draining")

    @property
    def runs(self) -> list[LiveRun]:
        """What runs now."""
        return [run for shift in self.shifts for run in shift.runs]

    def _start(self) -> None:
        if self.settings.worker_id is not None and (taken := self._take_over()):
            self._desk.supervision.moved(self.worker_id, self.incarnation, "took_over")
            _log.info("took back %s entries of an earlier life", taken)
        self._desk.supervision.recover()
        self._desk.supervision.moved(self.worker_id, self.incarnation, "started")
        self._restarts.resume_quarantined()

    def _take_over(self) -> int:
        return sum(self._desk.queue.take_over(shift.worker_id, self.incarnation) for shift in self.shifts)

    def _serve(self, *, until_idle: bool) -> None:
        """Each shift on its thread; the first on this one, so that a signal finds somebody to interrupt."""
        first, *others = self.shifts
        threads = [
            threading.Thread(target=partial(shift.serve, until_idle=until_idle), daemon=True) for shift in others
        ]
        for thread in threads:
            thread.start()
        first.serve(until_idle=until_idle)
        for thread in threads:
            thread.join()

    def _end(self, watch: Watch) -> None:
        watch.close(lambda: self._desk.supervision.moved(self.worker_id, self.incarnation, "stopped"))
        self._watchdog.close()
        for runner in self._runners.values():
            runner.close()
        self.workshop.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Drain at the first signal, end everything at the second."""

        def act(_number: int, _frame: object) -> None:
            # not on this thread, which may hold what draining needs
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

    def _shift(self, kinds: tuple[str, ...], slots: int) -> Shift:
        name = self.worker_id if not kinds else f"{self.worker_id}/{kinds[0]}"
        return Shift(
            self._desk,
            name,
            self.incarnation,
            slots,
            kinds=kinds,
            claim_timeout_s=self.settings.claim_timeout_s,
            begin=self._begin,
            ended=self._ended,
            settled=self._settled,
        )

    def _preemption(self, shift: Shift) -> Preemption:
        def preempt(sched_id: int) -> None:
            if run := shift.run_of(sched_id):
                run.stop("preempted", self.settings.preemption_grace_s)

        return Preemption(
            self.settings.preemption_marks,
            peek=lambda most: self._desk.queue.peek(most, kinds=shift.kinds, worker_id=shift.worker_id),
            running=lambda: [
                Running(run.entry.sched_id, run.entry.priority, run.started_at)
                for run in shift.runs
                if run.stop_reason is None
            ],
            free=lambda: shift.free,
            preempt=preempt,
        )

    def _begin(self, shift: Shift, entry: ReadyEntry, slot: str) -> tuple[LiveRun, Callable[[], Outcome]]:
        agent, plan = self._agent(entry.pid)
        is_program = plan is not None and plan.runner != "callable"  # a function asks when it wants to know
        work = Assignment(
            entry=entry,
            agent=agent,
            plan=plan or RunPlan(),
            slot=slot,
            workspace=self._folder(entry),
            remaining=left_of(self._desk, entry.pid, entry.ceiling) if is_program else {},
            checkpoint=entry.result if isinstance(entry.result, dict) else None,
        )
        run = LiveRun(self._desk, work, self._watchdog, self._open_log(work), _Seat(shift, entry.sched_id))
        return run, partial(self._work, run, has_plan=plan is not None)

    def _work(self, run: LiveRun, *, has_plan: bool) -> Outcome:
        """Run it, on the run's own thread. Whatever goes wrong is its outcome."""
        agent = run.work.agent
        if agent.state == "DEAD":
            return Outcome(exit_kind="cancelled", outcome="owner_dead")
        if not has_plan and agent.name not in self._functions:
            return self._leave_to_others(agent)
        try:
            return self._runner(run.work.plan.runner).run(run.work, run)
        except BaseException as problem:
            _log.exception("the %s runner failed on entry %s", run.work.plan.runner, run.entry.sched_id)
            return Outcome(exit_kind="crashed", outcome="runner_failed", result={"error": str(problem)})

    def _leave_to_others(self, agent: Agent) -> Outcome:
        """Nobody said here how to run this agent: another supervisor may know."""
        with self._lock:
            if agent.pid not in self._strangers:
                self._strangers.add(agent.pid)
                _log.warning("agent %s (%s) has no plan and no function here: left to others", agent.pid, agent.name)
        return Outcome(back_in_s=STRANGER_RETRY_S)

    def _runner(self, name: str) -> Runner:
        with self._lock:
            if name not in self._runners:
                slots = sum(shift.slots for shift in self.shifts)
                self._runners[name] = registry.make(name, self.workshop, self._functions, slots)
            return self._runners[name]

    def _agent(self, pid: int) -> tuple[Agent, RunPlan | None]:
        with self._lock:
            known = self._agents.get(pid)
        if known is None:
            agent = self._desk.agents.get(pid)
            known = agent, plan_of(agent)
            with self._lock:
                self._agents[pid] = known
        return known

    def _folder(self, entry: ReadyEntry) -> str | None:
        return None if entry.workspace is None else self._desk.projects.workspace(entry.workspace).path

    def _open_log(self, work: Assignment) -> BoundedLog:
        path = None
        if self._logs is not None and work.plan.runner != "callable":
            path = self._logs.path_for(work.entry.sched_id, work.entry.attempt)
        return BoundedLog(work.plan.limits.log_bytes, path)

    def _log_folder(self) -> LogFolder | None:
        if self.settings.logs is None:
            return None
        return LogFolder(self.settings.logs, self.settings.logs_max, lambda: [run.entry.sched_id for run in self.runs])

    def _ended(self, run: LiveRun, report: RunReport) -> None:
        self._see_to(run, report, self._restarts.before_report)

    def _settled(self, run: LiveRun, report: RunReport) -> None:
        self.count += 1
        self._see_to(run, report, self._restarts.after_report)

    def _see_to(self, run: LiveRun, report: RunReport, act: Callable[[LiveRun, RunReport], None]) -> None:
        try:
            act(run, report)
        except RotaError as problem:
            _log.warning("agent %s could not be seen to after its run: %s", run.entry.pid, problem)

    def forget(self, pid: int) -> None:
        """An agent was changed: look at it again when its next run begins."""
        with self._lock:
            self._agents.pop(pid, None)


class _ChangedAgents:
    """A duty: what is remembered of an agent is forgotten when it was changed or has ended."""

    kinds = (ProcessUpdated.kind, ProcessTerminated.kind)

    def __init__(self, forget: Callable[[int], None]) -> None:
        self._forget = forget

    def hear(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind in self.kinds and event.pid is not None:
                self._forget(event.pid)

    def next_at(self) -> float | None:
        return None

    def due(self, _now: float) -> None:
        """Nothing falls due by time."""


class _Seat:
    """A run's place in its shift."""

    def __init__(self, shift: Shift, sched_id: int) -> None:
        self._shift, self._sched_id = shift, sched_id

    def leave(self) -> None:
        self._shift.leave(self._sched_id)

    def take_again(self) -> None:
        self._shift.take_again(self._sched_id)


def _pools(slots: int | dict[str, int]) -> list[tuple[tuple[str, ...], int]]:
    """The shifts: one for slots of no kind, or one for each kind."""
    if isinstance(slots, int):
        return [((), slots)]
    return [((kind,) if kind != "any" else (), count) for kind, count in slots.items() if count > 0]

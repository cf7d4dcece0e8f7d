"""The supervisor: claims entries and runs them.

It owns nothing durable. The queue holds what should run, a claim marks what runs, and an agent's settings are stored
with the agent. So a supervisor can be killed at any moment and the next one continues: claims without heartbeats expire
and are recovered, and the reaper kills commands that lost their supervisor.

It has three kinds of threads. Each *slot loop* (slot_loop.py) keeps a set of equal slots busy. The *heartbeat thread*
extends all claims. The *background thread* (both in heartbeats.py) follows the journal for requests to cancel a run and
for changed agents, and runs the background tasks. An idle supervisor wakes a few times a minute and writes one row each
time, its registration.

What belongs to one entry or agent never ends a supervisor. An agent whose settings cannot be read, or whose runner is
not installed here, is quarantined until its settings are written again, and its entry returns to the queue. While the
store cannot be reached, everything waits and goes on afterwards (service/outages.py).

    SIGTERM, Ctrl-C     drain: claim nothing more, let the runs end; after `drain_s` ask them to stop
    a second signal     kill everything now; the entries of the killed runs are queued again. If the store is away, end
                        without it after some tries: they are recovered when their claims expire

With `until_idle` it ends when nothing is left to wait for (idle.py). The first slot loop decides that; the others run
until it stops them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rota.errors import FleetInvalid, InvalidInput, RotaError, StoreReplaced
from rota.fleet.agent_settings import settings_of
from rota.fleet.claimed_runs import ClaimedRuns, KeptLogs
from rota.fleet.config.tables import SLOTS_MAX
from rota.fleet.graph_tidy import GraphTidy
from rota.fleet.heartbeats import BackgroundTask, Heartbeats
from rota.fleet.hook_loop import HookLoop
from rota.fleet.hook_rules import HOOK_KIND
from rota.fleet.idle import IdleCheck, IdleRule
from rota.fleet.live_run import LiveRun
from rota.fleet.on_ray.ray_loop import RayLoop
from rota.fleet.on_ray.supervised_ray import SupervisedRay
from rota.fleet.preemption import Preemptible, Preemption
from rota.fleet.restarts import Restarts
from rota.fleet.run_advisories import RunAdvisories
from rota.fleet.run_summary import RunSummary
from rota.fleet.runners import registry
from rota.fleet.runners.contract import RegisteredFunctions
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.signals import acting_on
from rota.fleet.slot_loop import SlotLoop
from rota.fleet.supervised_cores import SupervisedCores
from rota.fleet.worktrees.supervised import SupervisedWorktrees
from rota.host.watchdog import Watchdog
from rota.kernel.agents import QUARANTINED_FOR
from rota.kernel.run_reports import RunReport
from rota.model.events import Event, GraphRunEnded, GraphRunStarted, ProcessTerminated, ProcessUpdated, ProjectUpdated
from rota.model.ray import RAY, RayCluster
from rota.model.workers import SlotPool
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher
from rota.service.log_folder import LOGS_BYTES_MAX, LOGS_MAX
from rota.service.retention_thread import RetentionThread
from rota.service.worker_registration import WorkerRegistration
from rota.store.author import acting_as, keeping_author

if TYPE_CHECKING:
    from rota.graph.component_registry import ComponentRegistry

__all__ = ["CLAIM_TIMEOUT_S", "HEARTBEAT_S", "STOP_LOGGER", "Supervisor", "SupervisorSettings", "told_drain"]

CLAIM_TIMEOUT_S = 60.0
HEARTBEAT_S = 15.0
DRAIN_S = 30.0
_VERBS = {  # where the message differs from the event
    "took_over": "took over",
    "draining": "drains",
    "drained": "has drained",
}

STOP_LOGGER = "rota.fleet.stop"  # what it says when it is asked to stop; also shown above the live view
RUNS_NAMED_MAX = 5  # runs that are named when a supervisor stops claiming
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger("rota.fleet")
_stop_log = logging.getLogger(STOP_LOGGER)


class SupervisorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a supervisor works."""

    slots: int | dict[str, int] = 1  # a number, or a number per kind of slot
    worker_id: str | None = None  # None: a new id; with the id of an earlier process it takes over its claims
    claim_timeout_s: float = CLAIM_TIMEOUT_S
    heartbeat_s: float = HEARTBEAT_S
    drain_s: float = DRAIN_S
    preemption_thresholds: tuple[int, ...] = ()  # between priority bands; empty: no preemption
    preemption_grace_s: float | None = None  # None: the agent's `stop_grace_s`
    logs: str | None = None  # folder for one more copy of the output of runs, besides the one that the store keeps
    logs_max: int = LOGS_MAX  # runs whose output is kept, beside the store's file and in `logs`; 0 keeps none
    logs_bytes_max: int = LOGS_BYTES_MAX  # bytes of them together; the oldest are removed first
    echo: bool = False  # also write what functions print to standard output, besides the run's log
    ray: RayCluster = RayCluster()  # where agents with the runner `ray` run

    def __post_init__(self) -> None:
        check_slots(self.slots)


class Supervisor:
    """Runs the entries of the queue until it is stopped or, with `until_idle`, until there is nothing to do."""

    def __init__(
        self,
        api: SchedulerApi,
        settings: SupervisorSettings | None = None,
        *,
        functions: RegisteredFunctions | None = None,
        components: ComponentRegistry | None = None,
    ) -> None:
        """`components` are those of graphs that no other process can import."""
        self.settings = settings or SupervisorSettings()
        self.incarnation = uuid.uuid4().hex
        self.worker_id = self.settings.worker_id or f"{socket.gethostname()}-{os.getpid()}-{self.incarnation[:8]}"
        self.resources = RunnerResources(api.clock, echo=self.settings.echo, api=api, components=components)
        self.worktrees = SupervisedWorktrees(api, self.resources)
        self._advisories = RunAdvisories()
        self.ended_runs = 0
        self._api = api
        self._functions: RegisteredFunctions = {} if functions is None else functions  # the caller may add some later
        self._watchdog = Watchdog(api.clock, "rota-watchdog")
        self._restarts = Restarts(api, self._watchdog)
        self._cores = SupervisedCores(api, self.resources)
        self._ray = SupervisedRay(
            api,
            self.settings.ray,
            self.resources,
            self._functions,
            make_loop=self._ray_loop,
            on_problems=self._renew_registration,
        )
        self._claimed = ClaimedRuns(
            api,
            self.resources,
            self._functions,
            watchdog=self._watchdog,
            worktrees=self.worktrees,
            cores=self._cores,
            ray=self._ray,
            kept_logs=KeptLogs(self.settings.logs, self.settings.logs_max, self.settings.logs_bytes_max),
            live_among=self._live_among,
            slots=lambda: sum(loop.slots for loop in self.slot_loops),
            is_draining=lambda: self._is_draining,
            on_cannot_run=self._renew_registration,
        )
        self._tasks: list[BackgroundTask] = [
            _ChangedAgents(self._claimed.forget_agent, self._claimed.forget_project, self._claimed.look_again),
            self.worktrees,
            self._cores,
            self._ray,
            GraphTidy(api),
        ]
        self._lock = threading.Lock()  # guards `_is_draining`
        self._is_draining = False
        self._replaced: StoreReplaced | None = None  # the store's file is no longer at its path
        self.slot_loops = [self._slot_loop(kinds, slots) for kinds, slots in _pools(self.settings.slots)]
        self._hook_loop: HookLoop | None = None
        self._hook_thread: threading.Thread | None = None
        self._registration = WorkerRegistration(api, self.worker_id, self.incarnation, "supervisor", self._slot_pools)
        if self.settings.preemption_thresholds:
            for loop in self.slot_loops:
                self.add_background_task(self._preemption(loop))

    # --- start and stop --------------------------------------------------------------------------

    def add_background_task(self, task: BackgroundTask) -> None:
        """Run a task on the background thread. Call this before `run`."""
        self._tasks.append(task)

    def serve_hooks(self, pids: Callable[[], Sequence[int]]) -> HookLoop:
        """Deliver the entries of these agents, which are hooks, in slots of their own. Call this before `run`."""
        self._hook_loop = HookLoop(
            self._api, f"{self.worker_id}/{HOOK_KIND}", self.incarnation, pids, **self._loop_options()
        )
        return self._hook_loop

    def run(self, *, until_idle: bool | IdleRule = False, handles_signals: bool = False) -> RunSummary:
        """Run entries until `drain`, or with `until_idle` until nothing is left to wait for; return what was done."""
        with acting_as(f"worker:{self.worker_id}"), self._held_worker_id():
            return self._run(until_idle=until_idle, handles_signals=handles_signals)

    def _run(self, *, until_idle: bool | IdleRule, handles_signals: bool) -> RunSummary:
        # first: it reads the journal from now on, and who sees this supervisor in the register may ask for a reload
        heartbeats = self._claimed.wait_out(self._make_heartbeats)
        self._start()
        rule = IdleRule() if until_idle is True else until_idle or None
        expired = self._expired() if rule is not None else 0
        heartbeats.start()
        retention = RetentionThread(self._api.kernel) if isinstance(self._api, Dispatcher) else None
        if retention is not None:  # a daemon does it for the supervisors that it serves
            retention.start()
        check = None if rule is None else self._idle_check(rule)
        on_idle = None if check is None else partial(self._on_idle, check, heartbeats)
        try:
            with acting_on(STOP_SIGNALS, self._stop_on_signal) if handles_signals else nullcontext():
                self._serve(on_idle)
                self._deliver_last(heartbeats)
        finally:
            if retention is not None:
                retention.close()
            self._stop_hooks()
            self._close(heartbeats)
        if self._replaced is not None:
            raise self._replaced
        return self._summary(check, self._expired() - expired if rule is not None else 0)

    def _held_worker_id(self) -> AbstractContextManager[None]:
        """Hold the id over all hosts of the store: who starts under it takes over the claims of an earlier process."""
        if self.settings.worker_id is None or not isinstance(self._api, Dispatcher):
            return nullcontext()
        self._claimed.wait_out(self._api.journal.cursor)  # its server may be started after it
        return self._api.kernel.store.hold_worker_id(self.worker_id)

    def _summary(self, check: IdleCheck | None, expired: int) -> RunSummary:
        loops = [loop for loop in self._loops if loop is not self._hook_loop]
        ended = sum((loop.ended for loop in loops), start=Counter[str]())
        return RunSummary(
            runs=self.ended_runs,
            completed=ended["completed"],
            failed=ended["failed"] + ended["crashed"],
            last_failed=next((loop.last_failed for loop in loops if loop.last_failed is not None), None),
            cancelled=ended["cancelled"],
            expired=max(0, expired),
            waiting=() if check is None else check.waiting,
            advisories=self._advisories.found(),
        )

    def _expired(self) -> int:
        return self._api.queue.counts(by="status").get("expired", 0)

    def _idle_check(self, rule: IdleRule) -> IdleCheck:
        return IdleCheck(
            self._api,
            rule,
            workers=[loop.worker_id for loop in self._loops],
            kinds={*(kind for loop in self._loops for kind in loop.kinds), *self._ray.slot_kinds},
            cannot_run=self._claimed.cannot_run,
        )

    def _on_idle(self, check: IdleCheck, heartbeats: Heartbeats) -> bool:
        """Decide whether the first slot loop, which has nothing to do, goes on; wait before it does."""
        if not self.is_stopping:
            heartbeats.catch_up()  # triggers may have something to enqueue
        return check.goes_on(lambda: any(loop.is_busy for loop in self._loops), lambda: self.is_stopping)

    @property
    def is_stopping(self) -> bool:
        """Whether it claims nothing more: it drains, or its store is gone."""
        return self._is_draining or self._replaced is not None

    def _make_heartbeats(self) -> Heartbeats:
        heartbeat_s, tasks = self.settings.heartbeat_s, self._tasks
        on_replaced, registration = self._end_without_store, self._registration
        return Heartbeats(
            self._api,
            heartbeat_s,
            lambda: self.runs,
            tasks,
            registration=registration,
            preparing=lambda: [claim for loop in self._loops for claim in loop.preparing],
            on_replaced=on_replaced,
        )

    def drain(self, *, level: int = logging.INFO) -> None:
        """Claim nothing more and let the runs end; ask those that run for longer than `drain_s` to stop."""
        with self._lock:
            if self._is_draining:
                return
            self._is_draining = True
        for loop in self.slot_loops:
            loop.stop_claiming()
        self._ray.stop_claiming()
        _stop_log.log(level, "%s", told_drain(self._run_names(), by_signal=level > logging.INFO))
        self._record("draining")
        self._registration.drain()
        self._watchdog.watch(self.settings.drain_s, lambda: self._stop_all(lambda run: run.stop("draining")))

    def _end_without_store(self, problem: StoreReplaced) -> bool:
        """End this supervisor, which can neither report nor claim; a daemon ends itself instead, and comes back."""
        if not isinstance(self._api, Dispatcher):
            return False
        if self._replaced is None:
            self._replaced = problem
            _log.error("stopping: %s", problem.message)
            for loop in self._loops:
                loop.stop_claiming()
        self._stop_all(lambda run: run.kill("fenced"))
        return True

    def resize(self, slots: int | dict[str, int]) -> None:
        """Change the number of slots; the kinds of slots stay as they were at the start."""
        check_slots(slots)
        wanted = dict(_pools(slots))
        for loop in self.slot_loops:
            loop.resize(wanted.get(loop.kinds, 0))

    def kill(self) -> None:
        """Kill all runs now; their entries are queued again."""
        if self._hook_loop is not None:
            # first: else it could begin to tell that all runs have ended
            self._hook_loop.stop_claiming(stop_new=lambda run: run.kill("draining"))
        self.drain()
        self._stop_all(lambda run: run.kill("draining"))
        for loop in self._loops:
            loop.end_at_once()

    @property
    def runs(self) -> list[LiveRun]:
        """The runs in progress."""
        return [run for loop in self._loops for run in loop.runs]

    @property
    def _loops(self) -> list[SlotLoop]:
        """All slot loops, also the one for hooks, which goes on while the others drain."""
        others = (self._hook_loop, self._ray.loop)
        return [*self.slot_loops, *(loop for loop in others if loop is not None)]

    def _start(self) -> None:
        self._claimed.wait_out(self._api.journal.cursor)  # its daemon may be started after it
        if self.settings.worker_id is not None and (count := self._take_over()):
            self._record("took_over")
            _log.info("recovered %s entries from the previous process", count)
        self._api.supervision.recover()
        self._ray.find_shapes()
        self._registration.start()
        self._record("started")
        self._restarts.resume_quarantined()
        self._resume_repaired()

    def _resume_repaired(self) -> None:
        """Resume agents that were quarantined for their settings, if those can be read now, as after an upgrade."""
        for agent in self._api.agents.paused(QUARANTINED_FOR, prefix=True):
            try:
                settings = settings_of(agent)
            except FleetInvalid:
                continue
            if settings is None or settings.runner in (*registry.names(), RAY):
                self._api.agents.resume(agent.pid, "settings")

    def _take_over(self) -> int:
        return sum(self._api.queue.take_over(loop.worker_id, self.incarnation) for loop in self._loops)

    def _serve(self, on_idle: Callable[[], bool] | None) -> None:
        """Run each slot loop on its own thread; the first on the calling thread, where signals arrive."""
        if self._hook_loop is not None:
            self._hook_thread = threading.Thread(target=keeping_author(self._hook_loop.serve), daemon=True)
            self._hook_thread.start()
        self._ray.serve()
        first, *others = self.slot_loops
        threads = [threading.Thread(target=keeping_author(loop.serve), daemon=True) for loop in others]
        for thread in threads:
            thread.start()
        try:
            first.serve(on_idle)
        finally:
            for loop in others if on_idle is not None else ():
                loop.stop_claiming()
            if on_idle is not None:
                self._ray.stop_claiming()
        for thread in threads:
            thread.join()
        self._ray.join()

    def _deliver_last(self, heartbeats: Heartbeats) -> None:
        """All runs have ended: record that, and let hooks tell of it before this supervisor stops."""
        if self._replaced is not None:
            return
        self._record("drained")
        if self._hook_loop is not None:
            try:
                heartbeats.catch_up()
            except RotaError as problem:
                _log.warning("hooks are not told that this supervisor has drained: %s", problem)

    def _stop_hooks(self) -> None:
        """Wait for deliveries in progress; what fails now is delivered by the next supervisor."""
        if self._hook_loop is not None and self._hook_thread is not None:
            self._hook_loop.finish()
            self._hook_thread.join()

    def _close(self, heartbeats: Heartbeats) -> None:
        self.worktrees.close()
        self._cores.close()
        self._ray.close()
        heartbeats.close(partial(self._record, "stopped"))
        self._claimed.deliver_logs()
        self._registration.leave()
        self._watchdog.close()
        self._claimed.close()
        self.resources.close()

    def _record(self, verb: Literal["took_over", "started", "draining", "drained", "stopped"]) -> None:
        try:
            self._api.supervision.moved(self.worker_id, self.incarnation, verb)
        except RotaError as problem:  # go on even if that cannot be recorded
            _log.warning("cannot record in the journal that this supervisor %s: %s", _VERBS.get(verb, verb), problem)

    def _stop_on_signal(self, _signal: int) -> None:
        """Drain at the first signal, kill everything at the second."""
        if not self._is_draining:
            self.drain(level=logging.WARNING)
            return
        if names := self._run_names():
            queued = "its entry is" if len(names) == 1 else "their entries are"
            _stop_log.warning("stopping %s; %s queued again", _named(names), queued)
        self.kill()

    def _stop_all(self, stop: Callable[[LiveRun], object]) -> None:
        for loop in self._loops:
            loop.stop_runs(stop)

    def _run_names(self) -> list[str]:
        """The agent and entry of each run; of one that is still prepared, the entry."""
        names = [f"{run.assignment.agent.name} #{run.entry.sched_id}" for run in self.runs]
        return names + [f"#{sched_id}" for loop in self._loops for sched_id, _ in loop.preparing]

    def _slot_pools(self) -> list[SlotPool]:
        pools = [SlotPool(loop.worker_id, loop.slots, loop.kinds) for loop in self.slot_loops]
        left_out, lacks, on_ray = self._claimed.left_out(), self._claimed.lacks(), self._ray.pool
        found = pools if on_ray is None else [*pools, on_ray]
        return [msgspec.structs.replace(pool, except_agents=left_out, lacks=lacks) for pool in found]

    def _renew_registration(self) -> None:
        self._registration.renew()

    # --- runs ------------------------------------------------------------------------------------

    def _slot_loop(self, kinds: tuple[str, ...], slots: int) -> SlotLoop:
        name = self.worker_id if not kinds else f"{self.worker_id}/{kinds[0]}"
        return SlotLoop(
            self._api,
            name,
            self.incarnation,
            slots,
            kinds=kinds,
            **self._loop_options(),
        )

    def _ray_loop(self, slots: int) -> RayLoop:
        return RayLoop(self._api, f"{self.worker_id}/{RAY}", self.incarnation, slots, **self._loop_options())

    def _loop_options(self) -> dict[str, Any]:
        return {
            "claim_timeout_s": self.settings.claim_timeout_s,
            "except_agents": self._claimed.left_out,
            "prepare": self._claimed.prepare,
            "before_report": self._before_report,
            "after_report": self._after_report,
        }

    def _preemption(self, loop: SlotLoop) -> Preemption:
        def preempt(sched_id: int) -> None:
            if run := loop.find_run(sched_id):
                run.stop("preempted", self.settings.preemption_grace_s)

        return Preemption(
            self.settings.preemption_thresholds,
            peek=lambda limit: self._api.queue.peek(
                limit, kinds=loop.kinds, worker_id=loop.worker_id, except_agents=self._claimed.left_out()
            ),
            running=lambda: [
                Preemptible(run.entry.sched_id, run.entry.priority, run.started_at)
                for run in loop.runs
                if run.stop_reason is None
            ],
            free=lambda: loop.free,
            preempt=preempt,
        )

    def _live_among(self, sched_ids: Collection[int]) -> set[int]:
        return {run.entry.sched_id for run in self.runs}.intersection(sched_ids)

    def _before_report(self, run: LiveRun, report: RunReport) -> None:
        self._update_agent(self._restarts.before_report, run, report)

    def _after_report(self, run: LiveRun, report: RunReport | None) -> None:
        # deliveries are not what it was asked to run, and a run that gave its slot back has not ended
        has_ended = report is None or report.back != "yield"
        self.ended_runs += run.assignment.settings.kind != HOOK_KIND and has_ended
        self.worktrees.ended(run)
        if report is None:
            return  # another worker has the entry, and does the rest at its end
        self._advisories.add(run.assignment.agent.name, run.entry.sched_id, report.result)
        self._update_agent(
            lambda *ended: self._claimed.wait_out(partial(self._restarts.after_report, *ended)), run, report
        )

    def _update_agent(self, act: Callable[[LiveRun, RunReport], None], run: LiveRun, report: RunReport) -> None:
        try:
            act(run, report)
        except RotaError as problem:
            _log.warning("cannot quarantine or restart agent %s after its run: %s", run.entry.pid, problem)


class _ChangedAgents:
    """A background task: forget a cached agent that was changed or has ended, or whose project was changed.

    A graph that was left to other workers is claimed again when one of its runs begins or ends.
    """

    kinds = (
        ProcessUpdated.kind,
        ProcessTerminated.kind,
        ProjectUpdated.kind,
        GraphRunStarted.kind,
        GraphRunEnded.kind,
    )

    def __init__(
        self, forget: Callable[[int], None], forget_project: Callable[[str], None], look_again: Callable[[int], None]
    ) -> None:
        self._forget = forget
        self._forget_project = forget_project
        self._look_again = look_again

    def on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == ProjectUpdated.kind:
                self._forget_project(str(event.payload.get("project_id")))
            elif event.kind in (GraphRunStarted.kind, GraphRunEnded.kind) and event.pid is not None:
                self._look_again(event.pid)
            elif event.kind in self.kinds and event.pid is not None:
                self._forget(event.pid)

    def due_in_s(self) -> float | None:
        return None

    def on_due(self) -> None:
        """Never due by time."""


def check_slots(slots: Any) -> None:
    """Refuse a number of slots with which nothing could run."""
    counts = slots.values() if isinstance(slots, dict) else (slots,)
    if not counts or any(type(count) is not int or not 1 <= count <= SLOTS_MAX for count in counts):
        text = f"slots must be a whole number from 1 to {SLOTS_MAX:,}, or such a number per kind of slot, not {slots!r}"
        raise InvalidInput(text, field="slots", hint="For example slots=4, or slots={'gpu': 1, 'any': 4}.")


def told_drain(names: Sequence[str], *, by_signal: bool) -> str:
    """Return what a supervisor that claims nothing more waits for: these runs."""
    if not names:
        return "stopping: nothing is running"
    told = f"waiting for {_named(names)}"
    return f"{told}; Ctrl-C again stops {'it' if len(names) == 1 else 'them'}" if by_signal else told


def _named(names: Sequence[str]) -> str:
    """Return how many runs there are, and which."""
    more = f" and {len(names) - RUNS_NAMED_MAX:,} more" if len(names) > RUNS_NAMED_MAX else ""
    return f"{len(names):,} run{'' if len(names) == 1 else 's'} ({', '.join(names[:RUNS_NAMED_MAX])}{more})"


def _pools(slots: int | dict[str, int]) -> list[tuple[tuple[str, ...], int]]:
    """The slot loops to run, as (kinds, slots): one for slots of any kind, or one for each kind."""
    if isinstance(slots, int):
        return [((), slots)]
    return [((kind,) if kind != "any" else (), count) for kind, count in slots.items() if count > 0]

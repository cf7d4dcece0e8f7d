"""The live driver of the cores engine: it runs real processes on real cores, in time slices.

The engine (`rota.cores`) decides which entity runs on which core until when; this driver carries that out. The reaper
starts every command in a session of its own. The driver pins a command to its core and continues it when it may run,
stops it when it may not, and leaves a sleeping command alone until its CPU clock moves (see `cores_process`). One
thread, the caller's, does everything in a loop:

    collect the commands that ended
    check the sleeping commands        one whose clock moved has woken
    check the running commands         end slices, and detect commands that sleep
    fire the engine's timers           budgets are refilled
    wait                               for the next of these instants, or for a command to end

Time is wall time: a command is charged for as long as it had the core, because that is how long the others waited.

**When the driver dies**, no command stays stopped: the reaper notices and continues every session.

**Accuracy.** The wait that ends a slice may be late on a busy machine; the overrun is charged. Sleeping is noticed at
the next check. Shares and budgets are exact for commands that always want to run, and approximate for those that sleep
often for very short times.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from rota.clock import AwakeClock, Clock
from rota.cores import CoresEngine, CpuIsolationLease, Handle, SchedulingContext
from rota.cores.accounts import SLICE_MAX_NS, SLICE_MIN_NS
from rota.cores.events import (
    Block,
    CoreTick,
    Decision,
    Event,
    ExitGroup,
    Kill,
    Preempt,
    Reschedule,
    RunEntity,
    TimerDue,
    Wake,
)
from rota.cores.telemetry import EngineTrace
from rota.errors import ContextExists, ContextInvalid, EntityUnknown
from rota.fleet.cores_process import SlicedProcess
from rota.host import command as host_command
from rota.host.cgroup_files import GroupLimits
from rota.host.cgroups import Cgroups, ControlGroup
from rota.host.command import Command
from rota.host.process_cpu import process_cpu_ns
from rota.host.reaper_client import ReaperClient
from rota.host.session import Session
from rota.host.thread_settings import check_cores
from rota.model.budgets import OverrunPolicy
from rota.model.checks import Checks
from rota.model.work import WEIGHT_UNIT

__all__ = ["CpuDriver", "DriverOverhead", "DriverReport", "ProcessReport"]

MS = 1_000_000
ASLEEP_DIVISOR = 20  # a command whose clock moved by less than 1/20 of the time may be asleep
AWAKE_NS = 50_000  # a sleeping command whose clock moved by this much has woken
GRACE_S = 2.0
REVOCATION_NS = 50 * MS

_checks = Checks("CpuDriver", ContextInvalid)


class DriverOverhead(msgspec.Struct):
    """Where the driver's own time went. Diagnostic: no decision reads it."""

    scheduling_ns: int = 0
    clocks_ns: int = 0
    signals_ns: int = 0
    logging_ns: int = 0  # only with a trace
    lock_wait_ns: int = 0


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one command."""

    name: str
    cpu_ns: int  # CPU time by its own clock
    turn_ns: int  # time for which it had a core
    share_ppm: int  # part of the CPU time of all commands
    switches: int
    preemptions: int
    advisories: tuple[str, ...]


class DriverReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a driver."""

    wall_ns: int
    processes: tuple[ProcessReport, ...]
    driver_cpu_ns: int
    driver_ppm: int  # part of one core
    spent: DriverOverhead
    backend: str  # of control groups; none: stopped by signals


class CpuDriver:
    """Runs commands in time slices on some cores. As a context manager it ends the commands that still run."""

    def __init__(
        self,
        *,
        cores: Iterable[int],
        slice_ns: int = 10 * MS,
        clock: Clock | None = None,
        cgroups: Cgroups | None = None,
        trace: EngineTrace | None = None,
    ) -> None:
        self._cores = sorted(check_cores(cores))  # the host core behind each engine core
        self._slice_ns = _checks.whole("slice_ns", slice_ns, SLICE_MIN_NS, SLICE_MAX_NS)
        self._clock = clock or AwakeClock()  # a suspended command uses no CPU time
        self._cgroups = cgroups
        self._trace = trace
        self._freezes = cgroups is not None and cgroups.support["freeze"].works
        self._began_s = self._clock.monotonic()
        self._ran_from: tuple[int, int] | None = (
            None  # the instant of the first `run`, and the driver's own CPU time then
        )
        self.engine = CoresEngine(cores=len(self._cores))
        self.spent = DriverOverhead()
        self.notices: deque[Decision] = deque(maxlen=10_000)  # timeouts, migrations and other decisions, the latest
        self._by_entity: dict[int, SlicedProcess] = {}
        self._by_name: dict[str, SlicedProcess] = {}
        self._asleep: dict[int, SlicedProcess] = {}
        self._running: dict[int, tuple[SlicedProcess, int]] = {}  # by core: the running command, and until when
        self._reschedules: deque[int] = deque()  # cores with a pending reschedule
        self._last_id = 0  # last id of a context or lease
        self._done: list[ProcessReport] = []
        self._lock = threading.Condition()
        self._exits: deque[tuple[Session, host_command.SessionExit]] = deque()  # filled by the reaper client's thread
        self._stop_requested = False
        self._reaper = ReaperClient(on_loss="continue", clock=self._clock, on_exit=self._on_exit)

    # --- setting up ------------------------------------------------------------------------------

    def launch(
        self, name: str, command: Command, *, weight: int = WEIGHT_UNIT, group_limits: GroupLimits | None = None
    ) -> int:
        """Start a command, to run in time slices; return its entity."""
        _checks.text("name", name)
        if name in self._by_name:
            raise ContextExists(f"command {name!r} already exists", command=name)
        self.engine.add_group(name, weight=weight, latency_class="batch")
        entity = self.engine.spawn(group=name, slice_ns=self._slice_ns)
        group = self._cgroups.create(group_limits) if self._cgroups is not None else None
        try:
            plain = msgspec.structs.replace(command, scheduling=None)
            session = self._reaper.spawn(plain, tag=entity, group=group, stdout=1, stderr=2)
        except BaseException:
            self._step(ExitGroup(name))
            _remove(group)
            raise
        process = SlicedProcess(name, entity, session, group, freezes=self._freezes)
        self._by_entity[entity] = self._by_name[name] = process
        process.pause()
        if command.scheduling is not None:
            process.set_scheduling(command.scheduling)
        self._step(Wake(entity))
        return entity

    def limit(
        self, name: str, *, budget_ns: int, period_ns: int, overrun: OverrunPolicy = "throttle", endpoint: int = 0
    ) -> Handle:
        """Limit a command to a budget per period."""
        context = SchedulingContext(
            context_id=self._next_id(),
            budget=budget_ns,
            period=period_ns,
            overrun=overrun,
            timeout_endpoint=endpoint,
            bound_id=name,
        )
        handle = self.engine.admit(context)
        self._apply(self.engine.bind(handle, self._find(name).entity))
        return handle

    def lease(self, name: str, cores: Iterable[int]) -> Handle:
        """Give host cores to one command exclusively. The command must have a limit, which pays for the lease."""
        wanted = tuple(map(self._engine_core, cores))
        paying = self.engine.entity(self._find(name).entity).paying
        handle, decisions = self.engine.grant_lease(
            CpuIsolationLease(
                lease_id=self._next_id(),
                owner=name,
                cores=wanted,
                accounting_target=paying,
                revocation_latency_max=REVOCATION_NS,
            )
        )
        self._apply(decisions)
        return handle

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _engine_core(self, core: int) -> int:
        """Return the engine's number of a host core."""
        if core not in self._cores:
            driven = ", ".join(map(str, self._cores))
            raise EntityUnknown(f"core {core} is not driven; driven cores: {driven}", core=core)
        return self._cores.index(core)

    def _find(self, name: str) -> SlicedProcess:
        process = self._by_name.get(name)
        if process is None:
            known = ", ".join(self._by_name) or "none"
            raise EntityUnknown(f"command {name!r} does not exist or has ended; running: {known}", command=name)
        return process

    # --- running ---------------------------------------------------------------------------------

    def run(self, duration_s: float | None = None) -> None:
        """Run the commands until all have ended, the duration is over, or `stop` is called."""
        if self._ran_from is None:
            self._ran_from = self._now(), process_cpu_ns(os.getpid())
        until_ns = None if duration_s is None else self._now() + round(duration_s * 1e9)
        while self._by_entity and not self._stop_requested:
            now = self._now()
            if until_ns is not None and now >= until_ns:
                return
            self._collect_exits()
            self._check_sleepers()
            self._check_cores()
            self._fire_timers()
            self._wait(until_ns)

    def stop(self) -> None:
        """Make `run` return. Any thread may call this."""
        with self._lock:
            self._stop_requested = True
            self._lock.notify_all()

    def close(self) -> None:
        """End the commands that still run: terminate, wait a little, kill."""
        for process in list(self._by_entity.values()):
            process.release()
            process.session.terminate(GRACE_S)
        self._collect_exits()
        self._reaper.close()

    def __enter__(self) -> CpuDriver:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def report(self) -> DriverReport:
        """Return what each command used so far, and the driver's overhead since the first `run`."""
        own_now_ns = process_cpu_ns(os.getpid())
        began_ns, own_ns = self._ran_from or (self._now(), own_now_ns)
        wall_ns = max(1, self._now() - began_ns)
        rows = [*self._done, *(self._row(process) for process in self._by_entity.values())]
        used_ns = max(1, sum(row.cpu_ns for row in rows))
        return DriverReport(
            wall_ns=wall_ns,
            processes=tuple(
                msgspec.structs.replace(row, share_ppm=row.cpu_ns * 1_000_000 // used_ns)
                for row in sorted(rows, key=lambda one: one.name)
            ),
            driver_cpu_ns=own_now_ns - own_ns,
            driver_ppm=(own_now_ns - own_ns) * 1_000_000 // wall_ns,
            spent=self.spent,
            backend="none" if self._cgroups is None else self._cgroups.backend,
        )

    # --- the loop --------------------------------------------------------------------------------

    def _now(self) -> int:
        return round((self._clock.monotonic() - self._began_s) * 1e9)

    def _collect_exits(self) -> None:
        while self._exits:
            session, ended = self._exits.popleft()
            process = self._by_entity.pop(session.tag, None)
            if process is None:
                continue  # its launch failed, and the caller of `launch` got the error
            del self._by_name[process.name]
            self._asleep.pop(process.entity, None)
            self._running = {core: end for core, end in self._running.items() if end[0] is not process}
            process.seen_cpu_ns = round((ended.cpu_user_s + ended.cpu_system_s) * 1e9)
            self._done.append(self._row(process, ended=True))
            self._step(ExitGroup(process.name))
            _remove(process.group)

    def _check_sleepers(self) -> None:
        for process in list(self._asleep.values()):
            now = self._now()
            moved_ns = process.clock_moved_ns(now)
            self.spent.clocks_ns += self._now() - now
            if moved_ns >= AWAKE_NS:
                del self._asleep[process.entity]
                self._pause(process)
                self._step(Wake(process.entity))

    def _check_cores(self) -> None:
        """End the slices that are over, and those of commands that fell asleep."""
        for core, (process, until_ns) in list(self._running.items()):
            now = self._now()
            if self._is_asleep(process, now):
                self._running.pop(core, None)
                self._asleep[process.entity] = process
                self._step(Block(process.entity))
            elif now >= until_ns:
                self._step(CoreTick(core))
        while self._reschedules:
            self._step(CoreTick(self._reschedules.popleft()))

    def _is_asleep(self, process: SlicedProcess, now: int) -> bool:
        elapsed_ns = now - process.seen_at_ns
        if elapsed_ns < self._slice_ns // 2:
            return False
        moved_ns = process.read_clock(now)
        process.is_steady = moved_ns * 2 > elapsed_ns
        sleeps = moved_ns * ASLEEP_DIVISOR < elapsed_ns and not process.is_runnable()
        self.spent.clocks_ns += self._now() - now
        return sleeps

    def _fire_timers(self) -> None:
        while (at := self.engine.next_timer_at) is not None and at <= self._now():
            self._step(TimerDue())
        while self._reschedules:
            self._step(CoreTick(self._reschedules.popleft()))

    def _wait(self, until_ns: int | None) -> None:
        """Wait for the next instant at which something is due, or for a command to end."""
        now = self._now()
        instants = [until for _, until in self._running.values()]
        must_check = self._asleep or any(not process.is_steady for process, _ in self._running.values())
        instants += [now + self._slice_ns // 2] if must_check else []
        instants += [at for at in (self.engine.next_timer_at, until_ns) if at is not None]
        wait_s = max(0, min(instants) - now) / 1e9 if instants else None
        with self._lock:
            self.spent.lock_wait_ns += self._now() - now
            if self._by_entity and not self._exits and not self._stop_requested and wait_s != 0:
                self._clock.wait(self._lock, wait_s)

    def _on_exit(self, session: Session, ended: host_command.SessionExit) -> None:
        """Record that a command ended. Called on the reaper client's thread."""
        with self._lock:
            self._exits.append((session, ended))
            self._lock.notify_all()

    # --- the engine ------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        now = self._now()
        decisions = self.engine.step(event, now)
        decided = self._now()
        self.spent.scheduling_ns += decided - now
        if self._trace is not None:
            written = self._trace.write(now, event, decisions)
            self.engine.counters.trace_bytes += written
            self.spent.logging_ns += self._now() - decided
        self._apply(decisions)

    def _apply(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, RunEntity):
                self._resume(decision)
            elif isinstance(decision, Preempt):
                self._running.pop(decision.core, None)
                self._pause(self._by_entity[decision.entity])
            elif isinstance(decision, Reschedule):
                self._reschedules.append(decision.core)
            elif isinstance(decision, Kill):
                self._by_entity[decision.entity].session.kill()
            else:
                self.notices.append(decision)

    def _resume(self, run: RunEntity) -> None:
        process, now = self._by_entity[run.entity], self._now()
        if self._running.get(run.core, (None, 0))[0] is not process:
            process.read_clock(now)
        self._running[run.core] = process, run.until_ns
        process.resume(self._cores[run.core])
        self.spent.signals_ns += self._now() - now

    def _pause(self, process: SlicedProcess) -> None:
        now = self._now()
        process.pause()
        self.spent.signals_ns += self._now() - now

    def _row(self, process: SlicedProcess, *, ended: bool = False) -> ProcessReport:
        now = self._now()
        account = self.engine.account(process.entity, now)
        if not ended:
            process.read_clock(now)
        return ProcessReport(
            name=process.name,
            cpu_ns=process.seen_cpu_ns,
            turn_ns=account.runtime_ns,
            share_ppm=0,
            switches=account.context_switches,
            preemptions=account.preemptions,
            advisories=tuple(dict.fromkeys(map(str, process.advisories))),
        )


def _remove(group: ControlGroup | None) -> None:
    if group is not None:
        group.remove()

"""The live driver: real processes on real cores, in the turns that the engine for cores decides.

The engine (`rota.cores`) says who runs on which core until when; this carries it out. Every command is started by the
minder in a session of its own. Whoever may run is put on its core and continued, everybody else who would run is
stopped, and whoever sleeps is left alone until its clock moves (see `sliced`). One thread, the caller's, does it all:

    hear which commands have ended
    look at those who sleep            has a clock moved? then it has woken
    look at those who run              a turn is over, or they have gone to sleep
    let the engine's timers fire       a budget comes back
    wait                               for the next of these instants, or for an end

Time is the wall's: a turn is charged for as long as the core was its, which is what the others had to wait.

**When the driver dies** nobody stays stopped: the minder hears it and continues every session.

What is exact and what is not: turns are ended by a wait that may be late, by as much as the machine is busy; that much
is debt, and charged. Sleeping is noticed at the next look. The shares and budgets of commands that always want to run
are held; of those that sleep often in very short pieces, approximately.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from rota.clock import Clock, SystemClock
from rota.cores import CpuIsolationLease, Handle, Machine, SchedulingContext
from rota.cores.accounts import SLICE_MAX_NS, SLICE_MIN_NS
from rota.cores.events import (
    Block,
    Decision,
    Event,
    ExitGroup,
    Kill,
    Preempt,
    Reschedule,
    Run,
    Tick,
    Timer,
    Wake,
)
from rota.cores.trace import Trace
from rota.errors import ContextExists, ContextInvalid, EntityUnknown
from rota.fleet.cores_process import Sliced
from rota.fleet.cores_report import DriverReport, ProcessReport, Spent
from rota.host import command as host_command
from rota.host.affinity import check_cores
from rota.host.cgroup_files import GroupLimits
from rota.host.cgroups import Cgroups, Group
from rota.host.command import Command
from rota.host.cpu_clocks import process_cpu_ns
from rota.host.reaper_client import Minder
from rota.host.session import Session
from rota.model.budgets import OverrunPolicy
from rota.model.checks import Checks
from rota.model.work import WEIGHT_UNIT

__all__ = ["CpuDriver"]

MS = 1_000_000
SLEEPS_BELOW = 20  # a clock that moved by less than a twentieth of the time: does it sleep?
WOKE_NS = 50_000  # a clock that moved by so much: it has woken
GRACE_S = 2.0
REVOCATION_NS = 50 * MS

_checks = Checks("CpuDriver", ContextInvalid)


class CpuDriver:
    """Runs commands in turns on some cores. Use it as a context: leaving it ends what still runs."""

    def __init__(
        self,
        *,
        cores: Iterable[int],
        slice_ns: int = 10 * MS,
        clock: Clock | None = None,
        cgroups: Cgroups | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._cores = sorted(check_cores(cores))  # the machine's core behind each of the engine's
        self._slice_ns = _checks.whole("slice_ns", slice_ns, SLICE_MIN_NS, SLICE_MAX_NS)
        self._clock = clock or SystemClock()
        self._cgroups = cgroups
        self._trace = trace
        self._freezes = cgroups is not None and cgroups.support["freeze"].works
        self._began_s = self._clock.monotonic()
        self._ran_from: tuple[int, int] | None = None  # when `run` was called first, and our own clock then
        self.machine = Machine(cores=len(self._cores))
        self.spent = Spent()
        self.notices: deque[Decision] = deque(maxlen=10_000)  # timeouts, migrations and the like, the latest
        self._by_entity: dict[int, Sliced] = {}
        self._by_name: dict[str, Sliced] = {}
        self._asleep: dict[int, Sliced] = {}
        self._ends: dict[int, tuple[Sliced, int]] = {}  # by core: who runs, and until when
        self._asked: deque[int] = deque()  # cores that are to look again
        self._numbers = 0  # of contexts and leases
        self._done: list[ProcessReport] = []
        self._lock = threading.Condition()
        self._exited: deque[tuple[Session, host_command.Exit]] = deque()  # told by the minder's thread
        self._is_stopping = False
        self._minder = Minder(on_loss="continue", clock=self._clock, on_exit=self._note_exit)

    # --- setting up ------------------------------------------------------------------------------

    def launch(
        self, name: str, command: Command, *, weight: int = WEIGHT_UNIT, group_limits: GroupLimits | None = None
    ) -> int:
        """Start a command, to be run in turns; the answer is its entity."""
        _checks.text("name", name)
        if name in self._by_name:
            raise ContextExists(f"there is a command {name!r} already", name=name)
        self.machine.add_group(name, weight=weight, latency_class="batch")
        entity = self.machine.spawn(group=name, slice_ns=self._slice_ns)
        group = self._cgroups.make(group_limits) if self._cgroups is not None else None
        try:
            plain = msgspec.structs.replace(command, scheduling=None)
            session = self._minder.spawn(plain, tag=entity, group=group, stdout=1, stderr=2)
        except BaseException:
            self._step(ExitGroup(name))
            _remove(group)
            raise
        process = Sliced(name, entity, session, group, freezes=self._freezes)
        self._by_entity[entity] = self._by_name[name] = process
        process.stand_still()
        if command.scheduling is not None:
            process.ask_kernel(command.scheduling)
        self._step(Wake(entity))
        return entity

    def limit(
        self, name: str, *, budget_ns: int, period_ns: int, overrun: OverrunPolicy = "throttle", endpoint: int = 0
    ) -> Handle:
        """Limit a command to a budget per period."""
        context = SchedulingContext(
            context_id=self._number(),
            budget=budget_ns,
            period=period_ns,
            overrun=overrun,
            timeout_endpoint=endpoint,
            bound_id=name,
        )
        handle = self.machine.admit(context)
        self._obey(self.machine.bind(handle, self._find(name).entity))
        return handle

    def lease(self, name: str, cores: Iterable[int]) -> Handle:
        """Give cores of the machine to one command alone. It must have a limit, which is what pays."""
        wanted = tuple(map(self._engine_core, cores))
        paying = self.machine.entity(self._find(name).entity).paying
        handle, decisions = self.machine.grant_lease(
            CpuIsolationLease(
                lease_id=self._number(),
                owner=name,
                cores=wanted,
                accounting_target=paying,
                revocation_latency_max=REVOCATION_NS,
            )
        )
        self._obey(decisions)
        return handle

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _engine_core(self, core: int) -> int:
        """The engine's number of a core of the machine."""
        if core not in self._cores:
            ours = ", ".join(map(str, self._cores))
            raise EntityUnknown(f"core {core} is not one that is driven; these are: {ours}", core=core)
        return self._cores.index(core)

    def _find(self, name: str) -> Sliced:
        process = self._by_name.get(name)
        if process is None:
            known = ", ".join(self._by_name) or "none"
            raise EntityUnknown(f"there is no command {name!r}, or no longer; there are: {known}", name=name)
        return process

    # --- running ---------------------------------------------------------------------------------

    def run(self, duration_s: float | None = None) -> None:
        """Run everybody in turns until all have ended, the time is over, or `stop` was called."""
        if self._ran_from is None:
            self._ran_from = self._now(), process_cpu_ns(os.getpid())
        until_ns = None if duration_s is None else self._now() + round(duration_s * 1e9)
        while self._by_entity and not self._is_stopping:
            now = self._now()
            if until_ns is not None and now >= until_ns:
                return
            self._hear_exits()
            self._look_at_sleepers()
            self._look_at_cores()
            self._fire_timers()
            self._rest(until_ns)

    def stop(self) -> None:
        """Let `run` come back. Any thread may call this."""
        with self._lock:
            self._is_stopping = True
            self._lock.notify_all()

    def close(self) -> None:
        """End what still runs: ask, wait a little, kill."""
        for process in list(self._by_entity.values()):
            process.let_alone()
            process.session.terminate(GRACE_S)
        self._hear_exits()
        self._minder.close()

    def __enter__(self) -> CpuDriver:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def report(self) -> DriverReport:
        """What everybody had so far, and what the driver cost since it runs."""
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

    # --- one round -------------------------------------------------------------------------------

    def _now(self) -> int:
        return round((self._clock.monotonic() - self._began_s) * 1e9)

    def _hear_exits(self) -> None:
        while self._exited:
            session, ended = self._exited.popleft()
            process = self._by_entity.pop(session.tag, None)
            if process is None:
                continue  # it was refused, and whoever launched it was told
            del self._by_name[process.name]
            self._asleep.pop(process.entity, None)
            self._ends = {core: end for core, end in self._ends.items() if end[0] is not process}
            process.seen_cpu_ns = round((ended.cpu_user_s + ended.cpu_system_s) * 1e9)
            self._done.append(self._row(process, ended=True))
            self._step(ExitGroup(process.name))
            _remove(process.group)

    def _look_at_sleepers(self) -> None:
        for process in list(self._asleep.values()):
            now = self._now()
            moved_ns = process.moved_since(now)
            self.spent.clocks_ns += self._now() - now
            if moved_ns >= WOKE_NS:
                del self._asleep[process.entity]
                self._hold(process)
                self._step(Wake(process.entity))

    def _look_at_cores(self) -> None:
        """End the turns that are over, and those of whoever has gone to sleep."""
        for core, (process, until_ns) in list(self._ends.items()):
            now = self._now()
            if self._has_gone_to_sleep(process, now):
                self._ends.pop(core, None)
                self._asleep[process.entity] = process
                self._step(Block(process.entity))
            elif now >= until_ns:
                self._step(Tick(core))
        while self._asked:
            self._step(Tick(self._asked.popleft()))

    def _has_gone_to_sleep(self, process: Sliced, now: int) -> bool:
        elapsed_ns = now - process.seen_at_ns
        if elapsed_ns < self._slice_ns // 2:
            return False
        moved_ns = process.look(now)
        process.is_steady = moved_ns * 2 > elapsed_ns
        sleeps = moved_ns * SLEEPS_BELOW < elapsed_ns and not process.could_run()
        self.spent.clocks_ns += self._now() - now
        return sleeps

    def _fire_timers(self) -> None:
        while (at := self.machine.next_timer_at) is not None and at <= self._now():
            self._step(Timer())
        while self._asked:
            self._step(Tick(self._asked.popleft()))

    def _rest(self, until_ns: int | None) -> None:
        """Wait for the next instant at which something is due, or until a command has ended."""
        now = self._now()
        instants = [until for _, until in self._ends.values()]
        sleepy = self._asleep or any(not process.is_steady for process, _ in self._ends.values())
        instants += [now + self._slice_ns // 2] if sleepy else []
        instants += [at for at in (self.machine.next_timer_at, until_ns) if at is not None]
        wait_s = max(0, min(instants) - now) / 1e9 if instants else None
        with self._lock:
            self.spent.lock_wait_ns += self._now() - now
            if self._by_entity and not self._exited and not self._is_stopping and wait_s != 0:
                self._clock.wait(self._lock, wait_s)

    def _note_exit(self, session: Session, ended: host_command.Exit) -> None:
        """A command has ended; told on the minder's thread."""
        with self._lock:
            self._exited.append((session, ended))
            self._lock.notify_all()

    # --- the engine ------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        now = self._now()
        decisions = self.machine.step(event, now)
        decided = self._now()
        self.spent.scheduling_ns += decided - now
        if self._trace is not None:
            written = self._trace.note(now, type(event).__name__, event, decisions)
            self.machine.evidence.trace_bytes += written
            self.spent.logging_ns += self._now() - decided
        self._obey(decisions)

    def _obey(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Run):
                self._let_go(decision)
            elif isinstance(decision, Preempt):
                self._ends.pop(decision.core, None)
                self._hold(self._by_entity[decision.entity])
            elif isinstance(decision, Reschedule):
                self._asked.append(decision.core)
            elif isinstance(decision, Kill):
                self._by_entity[decision.entity].session.kill()
            else:
                self.notices.append(decision)

    def _let_go(self, run: Run) -> None:
        process, now = self._by_entity[run.entity], self._now()
        if self._ends.get(run.core, (None, 0))[0] is not process:
            process.look(now)
        self._ends[run.core] = process, run.until_ns
        process.go(self._cores[run.core])
        self.spent.signals_ns += self._now() - now

    def _hold(self, process: Sliced) -> None:
        now = self._now()
        process.stand_still()
        self.spent.signals_ns += self._now() - now

    def _row(self, process: Sliced, *, ended: bool = False) -> ProcessReport:
        now = self._now()
        account = self.machine.account(process.entity, now)
        if not ended:
            process.look(now)
        return ProcessReport(
            name=process.name,
            cpu_ns=process.seen_cpu_ns,
            turn_ns=account.runtime_ns,
            share_ppm=0,
            switches=account.context_switches,
            preemptions=account.preemptions,
            advisories=tuple(dict.fromkeys(map(str, process.advisories))),
        )


def _remove(group: Group | None) -> None:
    if group is not None:
        group.remove()

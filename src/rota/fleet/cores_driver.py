"""Commands on real cores under `cpu` settings, without a store: what `rota cpu run` does.

It takes the same path as a fleet. The admission is the one of `service/core_grants.py`, with this process in place of a
store; control groups do the work (host/cpu_groups.py), so CPU time is shared by the operating system on all cores, for
whole trees of processes, and idle time goes to those who want it. Where no group can be made, weights become niceness
and quotas signals, and every report says so. So the driver itself has nothing to do but to wait for commands to end.

**Lifetimes.** `on_loss` says what becomes of the commands when this process is killed:

    kill        they end: the reaper kills them; if it is killed too, the guard does
    continue    they go on in their control groups, which still limit them; refused where only signals would

If only the reaper is killed, this process can no longer see its commands. It ends those that are in control groups,
also with `continue`; without groups, and with `continue`, they go on unobserved.

A command is never stopped except for a quota by signals, and then the guard watches it (host/quota_signals.py).
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Literal

import msgspec

from rota.clock import AwakeClock
from rota.errors import CommandInvalid, ContextExists, ContextInvalid, NotFound
from rota.fleet.run_cpu import NO_GROUPS, unscheduled, without_scheduling
from rota.host.capabilities import allowed_policies
from rota.host.cgroup_files import Feature, GroupLimits
from rota.host.cgroups import Backend, Cgroups, ControlGroup, FeatureSupport
from rota.host.command import Command, SessionExit
from rota.host.confinement import Confinement
from rota.host.cpu_enforcement import CpuState, cpu_states, denied_policies
from rota.host.cpu_groups import CpuGroups, CpuOwner, niceness, run_scheduling
from rota.host.process_cpu import process_cpu_ns, tree_cpu_ns
from rota.host.quota_signals import Guard, QuotaSignals
from rota.host.reaper_client import ReaperClient
from rota.host.session import Session
from rota.host.thread_settings import usable_cores
from rota.model.checks import Checks
from rota.model.core_grants import NO_STORE, CoreAsk, CoreGrant, CoreHost
from rota.model.cpu import CpuSettings, core_list
from rota.model.events import EventData
from rota.service.core_admission import Asker, decide

__all__ = ["CpuDriver", "DriverReport", "OnLoss", "ProcessReport"]

GRACE_S = 2.0  # between SIGTERM and SIGKILL

OnLoss = Literal["kill", "continue"]
_checks = Checks("CpuDriver", ContextInvalid)


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one command."""

    name: str
    cpu_ns: int  # CPU time of all its processes
    share_ppm: int  # part of the CPU time of all commands
    exit_code: int | None = None  # None: it runs, or a signal ended it
    signal: int | None = None
    ended_by: Literal["itself", "driver"] | None = None  # None: it runs
    cores: str = ""  # that it may use
    settings: tuple[CpuState, ...] = ()  # what each setting amounts to
    advisories: tuple[str, ...] = ()


class DriverReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a driver."""

    wall_ns: int
    processes: tuple[ProcessReport, ...]
    driver_cpu_ns: int  # of this process and the reaper
    driver_ppm: int  # part of one core
    backend: Backend  # of control groups; none: niceness and signals


class _Running:
    """A command that runs."""

    def __init__(
        self, name: str, cpu: CpuSettings, grant: CoreGrant, session: Session, group: ControlGroup | None
    ) -> None:
        self.name = name
        self.cpu = cpu
        self.grant = grant
        self.session = session
        self.group = group
        told = without_scheduling(session.advisories)
        self.advisories = [*map(str, told), *map(str, group.advisories if group else ())]
        self.missing: dict[str, str] = {}  # settings that the kernel did not take, with the reason

    def cpu_ns(self) -> int:
        """CPU time so far: of its group, or of its processes if some have left that."""
        in_group = 0 if self.group is None else round(self.group.cpu_s() * 1e9)
        return max(in_group, self._session_cpu_ns())

    def _session_cpu_ns(self) -> int:
        ended = self.session.exit
        if ended is not None:
            return round((ended.cpu_user_s + ended.cpu_system_s) * 1e9)
        with suppress(NotFound):
            return tree_cpu_ns(self.session.pid)
        return 0


class CpuDriver:
    """Runs commands under `cpu` settings on some cores. As a context manager it ends the commands that still run."""

    def __init__(
        self,
        *,
        cores: Iterable[int] | None = None,
        on_loss: OnLoss = "kill",
        use_groups: bool = True,
    ) -> None:
        self._confinement = Confinement()
        self.cores = self._known(self._confinement.usable if cores is None else frozenset(cores))
        self._clock = AwakeClock()
        self._on_loss: OnLoss = on_loss
        self._host = CoreHost(key=NO_STORE, name="this machine", cores=tuple(sorted(self.cores)))
        self._cgroups = Cgroups() if use_groups else Cgroups(versions=())
        self._groups = CpuGroups(self._cgroups)
        self._guard = Guard(on_loss)
        self._quotas: QuotaSignals | None = None
        self._running: dict[str, _Running] = {}
        self._done: list[ProcessReport] = []
        self._started = 0
        self._changed = threading.Condition()
        self._exits: deque[str] = deque()  # names, filled by the reaper client's thread
        self._stop_requested = False
        self._is_closing = False
        self._ran_from: tuple[float, int] | None = None  # the first `run`: when, and the driver's own CPU time then
        self._reaper = ReaperClient(on_loss=on_loss, clock=self._clock, on_exit=self._on_exit)

    def _known(self, cores: frozenset[int]) -> frozenset[int]:
        usable = self._confinement.usable
        if unknown := cores - usable:
            text = f"cores {core_list(unknown)} cannot be used; usable cores: {core_list(usable)}"
            raise CommandInvalid(text, field="cores")
        if not cores:
            raise CommandInvalid("cores must not be empty", field="cores")
        return cores

    @property
    def support(self) -> dict[Feature, FeatureSupport]:
        """What control groups do here."""
        return dict(self._cgroups.support if self._groups.works else NO_GROUPS)

    # --- starting --------------------------------------------------------------------------------

    def launch(
        self, name: str, command: Command, cpu: CpuSettings | None = None, *, heaviest: float = 1.0, output: int = 2
    ) -> None:
        """Start a command. `heaviest` is the largest weight of all: without groups it has niceness 0."""
        cpu = cpu or CpuSettings()
        _checks.text("name", name)
        if name in self._running:
            raise ContextExists(f"command {name!r} already exists", command=name)
        allowed = self._known(cpu.core_set or self.cores)
        self._check_loss(name, cpu)
        grant = self._grant(name, cpu)
        cores = frozenset(grant.leased) or allowed
        group = self._enter(name, cpu, cores)
        weight = 1.0 if self.support["weight"].works else (cpu.weight or 1.0) / heaviest
        placed = msgspec.structs.replace(
            command,
            scheduling=run_scheduling(cpu, nice=niceness(weight)),
            cores=cores if grant.leased else self._confinement.open_of(allowed),
        )
        try:
            session = self._reaper.spawn(placed, tag=name, group=group, stdout=output, stderr=output)
        except BaseException:
            if group is not None:
                self._groups.leave(group)
            raise
        self._guard.add(session.pid)
        running = _Running(name, cpu, grant, session, group)
        running.missing = dict(self._missing(running, on_all_cores=placed.cores == usable_cores()))
        self._running[name] = running
        self._hold(running)

    def _check_loss(self, name: str, cpu: CpuSettings) -> None:
        if self._on_loss == "continue" and cpu.quota is not None and not self.support["quota"].works:
            raise CommandInvalid(
                f"the quota of {name!r} would end with this process: no control group enforces it "
                f"({self._cgroups.support['quota'].why_not})",
                field="on_loss",
                hint="Use --on-loss kill.",
            )

    def _grant(self, name: str, cpu: CpuSettings) -> CoreGrant:
        """Ask for what the command needs of the cores; raises the refusal, with its numbers."""
        self._started += 1
        number, record = self._started, list[EventData]()
        live = [one.grant for one in self._running.values()]
        asker = Asker(number, number, number, name, None, self._clock.now())
        return decide(self._host, live, CoreAsk(cpu=cpu), asker, record)

    def _enter(self, name: str, cpu: CpuSettings, cores: frozenset[int]) -> ControlGroup | None:
        if not self._groups.works:
            return None
        narrower = cores if cores != self._confinement.usable and self.support["cores"].works else None
        return self._groups.enter((_owner(name, cpu),), GroupLimits(cores=narrower))

    def _missing(self, running: _Running, *, on_all_cores: bool) -> Iterator[tuple[str, str]]:
        """What is not in force of the settings of a command that has started, with the reason."""
        cpu, group = running.cpu, running.group
        if group is not None:
            yield from self._groups.not_in_force((_owner(running.name, cpu),)).get(running.name, {}).items()
            yield from ((each.what, each.why) for each in group.advisories)

        def denied() -> dict[str, str]:
            in_group = group is not None and not self._cgroups.gives_realtime
            return denied_policies(allowed_policies(), in_group=in_group, on_all_cores=on_all_cores)

        yield from unscheduled(cpu, self.support, running.session.advisories, denied).items()

    def _hold(self, running: _Running) -> None:
        quota = running.cpu.budget
        if quota is not None and not self.support["quota"].works:
            if self._quotas is None:
                self._quotas = QuotaSignals(self._clock, cores=len(self.cores), needs_guard=False)
            self._quotas.hold(running.session, {running.name: quota})
        if running.grant.leased:
            self._confinement.hold(running.session.pid, frozenset(running.grant.leased))
            self._confine()
        else:
            self._confinement.started(running.session.pid, running.cpu.core_set or self.cores)

    def _confine(self) -> None:
        """Keep this process, the reaper and the other commands off the leased cores."""
        leased = {core for one in self._running.values() for core in one.grant.leased}
        self._confinement.set_open(self._confinement.usable - leased)

    # --- running ---------------------------------------------------------------------------------

    def run(self, duration_s: float | None = None) -> None:
        """Wait until all commands have ended, the duration is over, or `stop` is called."""
        if self._ran_from is None:
            self._ran_from = self._clock.monotonic(), self._own_cpu_ns()
        until = None if duration_s is None else self._clock.monotonic() + duration_s
        while self._running and not self._stop_requested:
            left_s = None if until is None else until - self._clock.monotonic()
            if left_s is not None and left_s <= 0:
                return
            with self._changed:
                if not self._exits and not self._stop_requested:
                    self._clock.wait(self._changed, left_s)
            self._collect_exits()

    def stop(self) -> None:
        """Make `run` return. Any thread may call this."""
        with self._changed:
            self._stop_requested = True
            self._changed.notify_all()

    def end_commands(self) -> None:
        """End the commands that still run: terminate all, wait a little, kill."""
        self._collect_exits()
        self._is_closing = True
        for running in self._running.values():
            if self._quotas is not None:
                self._quotas.release(running.session)
            running.session.signal(signal.SIGTERM)
        until = self._clock.monotonic() + GRACE_S
        for running in list(self._running.values()):
            running.session.terminate(max(0.0, until - self._clock.monotonic()))
            self._end(running.name)  # now: `_on_exit` may be called only later

    def close(self) -> None:
        """End the commands that still run, and remove what was made for them."""
        self.end_commands()
        self._reaper.close()
        if self._quotas is not None:
            self._quotas.close()
        self._guard.close()
        self._groups.close()
        self._confinement.set_open(self._confinement.usable)

    def __enter__(self) -> CpuDriver:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def report(self) -> DriverReport:
        """Return what each command used so far, and what the driver itself used since the first `run`."""
        own_ns = self._own_cpu_ns()
        began_at, own_before_ns = self._ran_from or (self._clock.monotonic(), own_ns)
        wall_ns = max(1, round((self._clock.monotonic() - began_at) * 1e9))
        rows = [*self._done, *map(self._row, self._running.values())]
        used_ns = max(1, sum(row.cpu_ns for row in rows))
        return DriverReport(
            wall_ns=wall_ns,
            processes=tuple(
                msgspec.structs.replace(row, share_ppm=row.cpu_ns * 1_000_000 // used_ns)
                for row in sorted(rows, key=lambda one: one.name)
            ),
            driver_cpu_ns=own_ns - own_before_ns,
            driver_ppm=(own_ns - own_before_ns) * 1_000_000 // wall_ns,
            backend=self._cgroups.backend,
        )

    def _own_cpu_ns(self) -> int:
        with suppress(NotFound):
            return process_cpu_ns(os.getpid()) + process_cpu_ns(self._reaper.pid)
        return process_cpu_ns(os.getpid())

    # --- exits -----------------------------------------------------------------------------------

    def _on_exit(self, session: Session, _ended: SessionExit) -> None:
        """Record that a command ended. Called on the reaper client's thread."""
        with self._changed:
            self._exits.append(str(session.tag))
            self._changed.notify_all()

    def _collect_exits(self) -> None:
        while self._exits:
            self._end(self._exits.popleft())

    def _end(self, name: str) -> None:
        """Remove what was made for a command that has ended, once."""
        running = self._running.pop(name, None)
        if running is None:  # done already; or its launch failed, and the caller of `launch` got the error
            return
        self._done.append(self._row(running))
        if self._quotas is not None:
            self._quotas.release(running.session)
        self._guard.remove(running.session.pid)
        if running.group is not None:
            self._groups.leave(running.group)
        self._confinement.end(running.session.pid)
        self._confine()

    def _row(self, running: _Running) -> ProcessReport:
        ended = running.session.exit
        by: Literal["itself", "driver"] | None = None
        if ended is not None:
            by = "driver" if self._is_closing else "itself"
        lost = []
        if ended is not None and ended.lost:
            goes_on = self._on_loss == "continue" and running.group is None
            lost = [
                "the reaper was killed, and the command goes on unobserved"
                if goes_on
                else "the reaper was killed, and the command with it"
            ]
        return ProcessReport(
            name=running.name,
            cpu_ns=running.cpu_ns(),
            share_ppm=0,
            exit_code=None if ended is None else ended.code,
            signal=None if ended is None else ended.signal,
            ended_by=by,
            cores=core_list(frozenset(running.grant.leased) or running.cpu.core_set or self.cores),
            settings=tuple(
                cpu_states(running.cpu, self.support, usable=self._confinement.usable, missing=running.missing)
            ),
            advisories=(*running.advisories, *lost),
        )


def _owner(name: str, cpu: CpuSettings) -> CpuOwner:
    """A command as the owner of a group; its cores are those of the group of its run."""
    return CpuOwner(name, name, msgspec.structs.replace(cpu, cores=None, lease=None))

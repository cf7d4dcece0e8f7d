"""The cores that runs lease: a supervisor asks for them before a run, and keeps everything else off them.

The grant is a row of the store that ends with the run's claim (service/core_grants.py), so two supervisors cannot lease
one core. A run that is refused goes back to the queue and is tried again; the journal says what was missing, and
`rota why` repeats it. The background thread learns from the journal which cores are leased on this host, by any
supervisor of the store, and confines what runs here to the others (host/confinement.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import msgspec

from rota.errors import Refused, RotaError, StaleClaim
from rota.fault_log import FaultLog
from rota.fleet.live_run import LiveRun
from rota.fleet.run_cpu import RunCpu, where_of
from rota.fleet.runners.contract import RunOutcome
from rota.fleet.runners.resources import RunnerResources
from rota.host.cpu_groups import CpuOwner
from rota.model.core_grants import CoreGrant, CoreHost
from rota.model.cpu import CpuSettings, core_list
from rota.model.events import CoresGranted, CoresReturned, Event
from rota.model.retries import CORES_NEVER_GRANTED
from rota.service.api import SchedulerApi
from rota.service.core_grants import grant, needs_grant, open_cores, refused_delay_s, release, this_host

__all__ = ["SupervisedCores"]

CHECK_S = 5.0  # how often leases are read while there are some: one may end with a claim that expires
TOLD_MAX = 1_000  # entries whose last refusal is remembered
_log = logging.getLogger("rota.fleet")


class SupervisedCores:
    """The leases of one supervisor's runs; a background task of it."""

    kinds = (CoresGranted.kind, CoresReturned.kind)

    def __init__(self, api: SchedulerApi, resources: RunnerResources) -> None:
        self._api = api
        self._resources = resources
        self._lock = threading.Lock()
        self._host: CoreHost | None = None
        self._check_at = 0.0
        self._has_no_core = False  # other supervisors have leased all that this process may use
        self._faults = FaultLog("rota.fleet")
        self._told: dict[int, str] = {}  # why entries wait, by entry

    def execute(self, run: LiveRun, execute: Callable[[], RunOutcome]) -> RunOutcome:
        """Execute a run with the cores that it is granted; if it is refused, it goes back to the queue.

        If no host could grant what it asks for, it fails.
        """
        cpu, entry = run.assignment.cpu, run.entry
        asked = None if cpu is None else self._asked(run, cpu)
        if cpu is None or asked is None or not cpu.has_cores:
            return execute()  # its runner refuses settings without a core
        if not needs_grant(asked):
            return self._execute(run, cpu, None, execute)
        host = self._here()
        cpu = msgspec.structs.replace(cpu, confinement=self._resources.confinement)
        run.assignment = msgspec.structs.replace(run.assignment, cpu=cpu)
        try:
            granted = grant(self._api, host, entry.sched_id, run.token, asked)
        except Refused as refusal:
            if refusal.data.get("never"):
                return RunOutcome(exit_kind="failed", outcome=CORES_NEVER_GRANTED, result={"error": refusal.message})
            self._tell(run, refusal.message)
            return RunOutcome(yield_after_s=refused_delay_s(self._api.clock.now() - entry.created_at))
        self._told.pop(entry.sched_id, None)
        return self._execute(run, cpu, granted, execute)

    def _execute(
        self, run: LiveRun, cpu: RunCpu, granted: CoreGrant | None, execute: Callable[[], RunOutcome]
    ) -> RunOutcome:
        """Execute a run with what it was granted, and ask again when its settings are changed meanwhile."""
        held = _HeldCores(self, run, cpu, granted)
        try:
            if granted is not None and granted.leased:
                self._confine()
                held.cpu = cpu = msgspec.structs.replace(cpu, leased=frozenset(granted.leased))
                run.assignment = msgspec.structs.replace(run.assignment, cpu=cpu)
            self._resources.watch_cpu(held.change, frozenset(owner.key for owner in cpu.owners))
            return execute()
        finally:
            self._resources.forget_cpu(held.change)
            held.end()

    def _asked(self, run: LiveRun, cpu: RunCpu) -> CpuSettings | None:
        """Return what the run asks for: a core that it would not be held to would only be idle."""
        settings, groups = run.assignment.settings, self._resources
        where = where_of(settings.executes, settings.isolation)
        holds = where == "process" and groups.cpu_groups.works and groups.cgroups.support["cores"].works
        return cpu.asked(where, holds_processes=holds)

    def _tell(self, run: LiveRun, problem: str) -> None:
        """Say once why a run waits."""
        if self._told.get(run.entry.sched_id) != problem:
            _log.warning("%s #%s waits for cores: %s", run.assignment.agent.name, run.entry.sched_id, problem)
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told[run.entry.sched_id] = problem

    def ask_again(self, run: LiveRun, cpu: RunCpu, *, has_grant: bool) -> bool:
        """Have a run in progress granted its changed settings, which apply to it; returns whether it has a grant.

        The grant says where it may run, so that no other run leases the only core that it has left.
        """
        entry, asked = run.entry, self._asked(run, cpu)
        try:
            if asked is None or not needs_grant(asked):
                if has_grant:
                    release(self._api, entry.sched_id, run.token)
                return False
            granted = grant(self._api, self._here(), entry.sched_id, run.token, asked, runs=True)
        except StaleClaim:
            return has_grant
        except RotaError as problem:
            told = "the changed cpu settings of %s #%s apply without a grant: %s"
            _log.warning(told, run.assignment.agent.name, entry.sched_id, problem.message)
            return has_grant
        if asked.cores is not None and not set(granted.allowed) & {*granted.leased, *granted.open_cores}:
            told = "%s #%s is kept off cores %s until a run that has leased them returns one; it runs on %s"
            elsewhere = core_list(frozenset(granted.open_cores))
            _log.warning(told, run.assignment.agent.name, entry.sched_id, asked.cores, elsewhere)
        return True

    def release(self, run: LiveRun) -> None:
        """Return what a run was granted."""
        try:
            release(self._api, run.entry.sched_id, run.token)
        except RotaError as problem:  # it ends with the claim
            _log.warning("the cores of entry %s are returned when its claim ends: %s", run.entry.sched_id, problem)
        self._refresh()

    def _here(self) -> CoreHost:
        with self._lock:
            if self._host is None:
                self._host = this_host()
            return self._host

    def _refresh(self) -> None:
        self._check_at = self._api.clock.monotonic() + CHECK_S
        try:
            self._confine()
        except RotaError as problem:
            self._faults.failed("cannot read which cores are leased", problem)
        else:
            self._faults.worked()

    def _confine(self) -> None:
        opened = open_cores(self._api, self._here())
        self._resources.set_open(opened)
        if not opened and not self._has_no_core:
            told = "are leased by other runs: what runs here shares them"
            cores = core_list(self._resources.confinement.usable)
            _log.warning("cores %s, which are all that this supervisor may use, %s", cores, told)
        self._has_no_core = not opened

    # --- background ------------------------------------------------------------------------------

    def on_events(self, events: Sequence[Event]) -> None:
        """Confine what runs here, or let it go, after a lease began or ended."""
        leased = any(event.kind == CoresGranted.kind and event.payload.get("leased") for event in events)
        if leased or (self._resources.is_confined and any(event.kind == CoresReturned.kind for event in events)):
            self._refresh()

    def due_in_s(self) -> float | None:
        """While cores are leased, now and then."""
        return max(0.0, self._check_at - self._api.clock.monotonic()) if self._resources.is_confined else None

    def on_due(self) -> None:
        """Read which cores are leased."""
        self._refresh()

    def close(self) -> None:
        """Use all cores again: this process may go on after its supervisor."""
        if self._resources.is_confined:
            self._resources.set_open(self._resources.confinement.usable)


class _HeldCores:
    """What one run in progress was granted."""

    def __init__(self, cores: SupervisedCores, run: LiveRun, cpu: RunCpu, granted: CoreGrant | None) -> None:
        self.cpu = cpu
        self._cores = cores
        self._run = run
        self._has_grant = granted is not None
        self._has_ended = False
        self._lock = threading.Lock()  # nothing is granted after the end

    def change(self, owner: CpuOwner | None) -> None:
        """The settings of its project or its agent were changed; None: leases have, which its grant does not say."""
        if owner is None:
            return
        with self._lock:
            before, after = self.cpu, self.cpu.changed(owner)
            self.cpu = after
            if after.own != before.own and after.has_cores and not self._has_ended:
                self._has_grant = self._cores.ask_again(self._run, after, has_grant=self._has_grant)

    def end(self) -> None:
        """The run has ended."""
        with self._lock:
            self._has_ended = True
            if self._has_grant:
                self._cores.release(self._run)

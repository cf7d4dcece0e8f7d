"""What the runners of one supervisor share: the clock, the reaper process, the machine's control groups.

Each is created on first use, so that a fleet of plain functions starts no process. What a supervisor that was killed
left behind ends first: its processes, then the groups that they were in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from rota.clock import AwakeClock, Clock, SystemClock
from rota.host.cgroups import Cgroups
from rota.host.confinement import Confinement
from rota.host.cpu_groups import CpuGroups, CpuOwner
from rota.host.lineage import kill_orphans
from rota.host.quota_signals import QuotaSignals
from rota.host.reaper_client import ReaperClient
from rota.host.thread_settings import allowed_cores

if TYPE_CHECKING:
    from rota.graph.component_registry import ComponentRegistry
    from rota.service.api import SchedulerApi

__all__ = ["RunnerResources"]

_OnCpuChange: TypeAlias = "Callable[[CpuOwner | None], None]"
_log = logging.getLogger("rota.fleet")


class RunnerResources:
    """Shared by the runners of one supervisor. A context manager; closing it kills every command."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        echo: bool = False,
        api: SchedulerApi | None = None,
        components: ComponentRegistry | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.api = api  # of the supervisor; None where a runner is used alone
        self.components = components  # of graphs, besides those that can be imported
        self.echo = echo  # whether what functions print is also written to standard output
        self._lock = threading.Lock()
        self._reaper: ReaperClient | None = None
        self._cgroups: Cgroups | None = None
        self._cpu_groups: CpuGroups | None = None
        self._quotas: QuotaSignals | None = None
        self._confinement: Confinement | None = None
        self._on_cpu_change: dict[_OnCpuChange, frozenset[str]] = {}  # of runs, with keys of their owners

    @property
    def reaper(self) -> ReaperClient:
        """The reaper that starts every command. A lost one is replaced."""
        with self._lock:
            if self._reaper is None or self._reaper.is_lost:
                if self._reaper is None and (orphans := kill_orphans()):
                    _log.warning("killed %s orphaned processes of a supervisor that crashed", len(orphans))
                self._reaper = ReaperClient(clock=self.clock)
            return self._reaper

    @property
    def cgroups(self) -> Cgroups:
        """The control groups that this machine supports."""
        with self._lock:
            if self._cgroups is None:
                self._cgroups = Cgroups()
            return self._cgroups

    @property
    def cpu_groups(self) -> CpuGroups:
        """The control groups of projects, agents and runs with `cpu` settings."""
        _ = self.reaper  # orphans of an earlier process end before their groups are removed
        cgroups, opened = self.cgroups, self.confinement.open_cores
        with self._lock:
            if self._cpu_groups is None:
                self._cpu_groups = CpuGroups(cgroups, opened)
            return self._cpu_groups

    def cpu_changed(self, key: str, read: Callable[[], CpuOwner]) -> None:
        """Apply the settings of a project or an agent that was changed to what runs; they are read if it runs."""
        groups, quotas, owner = self._cpu_groups, self._quotas, cache(read)
        if groups is not None and groups.has(key):
            groups.change(owner())
        if quotas is not None and quotas.has(key):
            quotas.change(key, owner().cpu.budget)
        for change, keys in list(self._on_cpu_change.items()):
            if key in keys:
                change(owner())

    def set_open(self, cores: Iterable[int]) -> None:
        """Leases have begun or ended: confine everything but their owners to these cores."""
        groups, confinement = self._cpu_groups, self.confinement
        before, wanted = confinement.open_cores, frozenset(cores)
        if groups is not None:  # first: no process gets a core that its group does not have
            groups.set_open(wanted & confinement.usable or confinement.usable)
        confinement.set_open(wanted)
        if confinement.open_cores != before:
            for change in list(self._on_cpu_change):
                change(None)

    def watch_cpu(self, change: _OnCpuChange, keys: frozenset[str]) -> None:
        """A run has started: call this when the settings of one of these owners, or leases (None), have changed."""
        self._on_cpu_change[change] = keys

    def forget_cpu(self, change: _OnCpuChange) -> None:
        """The run has ended."""
        self._on_cpu_change.pop(change, None)

    @property
    def quotas(self) -> QuotaSignals:
        """Quotas by signals, where no control group enforces them."""
        with self._lock:
            if self._quotas is None:
                self._quotas = QuotaSignals(AwakeClock(), cores=len(allowed_cores()))  # CPU time is real time
            return self._quotas

    @property
    def confinement(self) -> Confinement:
        """The cores that this process and what it starts may use, besides those that runs have leased."""
        with self._lock:
            if self._confinement is None:
                self._confinement = Confinement()
            return self._confinement

    @property
    def is_confined(self) -> bool:
        """Whether this process is kept off some cores now."""
        confinement = self._confinement
        return confinement is not None and confinement.open_cores != confinement.usable

    def close(self) -> None:
        """Kill every command that runs, and end the reaper."""
        with self._lock:
            reaper, self._reaper = self._reaper, None
            quotas, self._quotas = self._quotas, None
        if reaper is not None:
            reaper.close()
        if quotas is not None:
            quotas.close()
        if self._cgroups is not None:
            self._cgroups.close()

    def __enter__(self) -> RunnerResources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""What a run with `cpu` settings holds from its start to its end: a control group, signalled quotas, leased cores."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from rota.errors import HostError
from rota.fleet.run_cpu import NO_GROUPS, RunCpu, unscheduled, without_scheduling
from rota.fleet.runners.contract import Assignment, RunChannel
from rota.fleet.runners.resources import RunnerResources
from rota.host.advisory import Advisory
from rota.host.capabilities import allowed_policies
from rota.host.cgroups import ControlGroup
from rota.host.cpu_enforcement import Where
from rota.host.cpu_groups import CpuOwner, run_scheduling
from rota.host.session import Session

__all__ = ["CpuHold"]


class CpuHold:
    """Applies the settings of one run. The caller reports its session's start, and ends it in any case.

    What is enforced is said when that is known: for a program once it has started, with what the kernel refused it; for
    a function in a worker process before, from what this machine allows. It is said again when it changes.
    """

    def __init__(
        self,
        resources: RunnerResources,
        assignment: Assignment,
        cpu: RunCpu,
        advisories: list[str],
        *,
        where: Where = "program",
        use_groups: bool = True,
    ) -> None:
        cpu.check_cores()  # a control group would only ignore cores that are not there
        self._resources = resources
        self._cpu = cpu
        self._where = where
        self._advisories = advisories
        self.group = self._enter(assignment) if use_groups and resources.cpu_groups.works else None
        self._support = NO_GROUPS if self.group is None else resources.cgroups.support
        self.enforced: list[str] = []  # in words
        self._not_enforced: list[str] = []  # those of the advisories that are about these settings
        self._refused: Sequence[Advisory] = ()  # by the kernel, when it started
        self._channel: RunChannel | None = None  # is told of changes
        self._is_changed = False  # before there was one
        self._lock = threading.Lock()  # guards what a change writes
        # never a niceness for a worker process: it might not be allowed to take it back for the next run
        self.scheduling = cpu.scheduling(self._support) if where == "program" else run_scheduling(cpu.own)
        self.cores = cpu.affinity()
        self._quotas = cpu.signalled_quotas(self._support) if where == "program" else {}
        self._session: Session | None = None
        if where == "process":
            self._report()
            self._watch()

    def _enter(self, assignment: Assignment) -> ControlGroup | None:
        """Create the group of the run below those of its project and its agent; None if that fails."""
        groups, limits = self._resources.cpu_groups, self._cpu.limits(assignment.settings.limits)
        try:
            return groups.enter(self._cpu.owners, limits, str(assignment.entry.sched_id))
        except HostError as problem:
            self._advisories.append(problem.message)
            return None

    def started(self, session: Session) -> list[Advisory]:
        """The session runs. Return its advisories that are not about these settings."""
        if self._quotas:
            self._resources.quotas.hold(session, self._quotas)
        self._session = session
        self._watch()
        confinement, allowed = self._cpu.confinement, self._cpu.allowed
        if confinement is not None and self._cpu.leased is not None:
            confinement.hold(session.pid, self._cpu.leased)
        elif confinement is not None and allowed is not None:
            confinement.started(session.pid, allowed)
        self._refused = session.advisories
        with self._lock:
            self._report()
        return without_scheduling(session.advisories)

    def report_changes(self, channel: RunChannel) -> None:
        """Tell the supervisor, which knows how the run started, whenever what is enforced has changed."""
        with self._lock:
            self._channel = channel
            if self._is_changed:
                channel.settings_changed(advisories=self._advisories, enforced=self.enforced)

    def _watch(self) -> None:
        self._resources.watch_cpu(self._change, frozenset(owner.key for owner in self._cpu.owners))

    def _change(self, owner: CpuOwner | None) -> None:
        """The settings of its project or its agent were changed; None: leases have begun or ended."""
        with self._lock:
            if owner is not None:
                self._apply(owner)
            if not self._report():
                return
            self._is_changed = True
            if self._channel is not None:
                self._channel.settings_changed(advisories=self._advisories, enforced=self.enforced)

    def _apply(self, owner: CpuOwner) -> None:
        """Move its processes to the cores that they may use from now on."""
        before = self._cpu
        if not self._support["weight"].works:  # its niceness stays
            began = next(each for each in before.owners if each.key == owner.key)
            cpu = msgspec.structs.replace(owner.cpu, weight=began.cpu.weight)
            owner = owner._replace(cpu=cpu, weight=began.weight)
        after = msgspec.structs.replace(before.changed(owner), confinement=self._resources.confinement)
        self._cpu, session = after, self._session
        if session is None or session.exit is not None or after.leased is not None or not after.has_cores:
            return
        if after.allowed != before.allowed:
            cores = after.usable if after.allowed is None else after.allowed
            self._resources.confinement.started(session.pid, cores)

    def _report(self) -> bool:
        """Say what is enforced and what is not; returns whether that is not what was said before."""
        cpu, support = self._cpu, self._support
        missing = {} if self.group is None else self._resources.cpu_groups.not_in_force(cpu.owners)
        not_scheduled = unscheduled(cpu.own, support, self._refused, self._denied)
        not_in_force = {owner.key: {**missing.get(owner.key, {}), **not_scheduled} for owner in cpu.owners}
        denied = self._denied() if self._where == "process" else {}  # a program has tried
        states = list(cpu.states(support, self._where, not_in_force=not_in_force, denied=denied))
        not_enforced = [told for told, state in states if state != "enforced"]
        not_enforced += cpu.leased_by_others()
        enforced = [told for told, state in states if state == "enforced"]
        if (not_enforced, enforced) == (self._not_enforced, self.enforced):
            return False
        others = [each for each in self._advisories if each not in self._not_enforced]
        self._advisories[:] = [*others, *not_enforced]
        self._not_enforced, self.enforced = not_enforced, enforced
        return True

    def _denied(self) -> dict[str, str]:
        gives_realtime = self._resources.cgroups.gives_realtime
        return self._cpu.denied(self._support, allowed_policies(), gives_realtime=gives_realtime)

    def end(self, session: Session | None = None) -> None:
        """The session has ended, or was never started."""
        self._resources.forget_cpu(self._change)
        if session is not None and self._quotas:
            self._resources.quotas.release(session)
        if session is not None and self._cpu.confinement is not None:
            self._cpu.confinement.end(session.pid)
        if self.group is not None:
            self._resources.cpu_groups.leave(self.group)

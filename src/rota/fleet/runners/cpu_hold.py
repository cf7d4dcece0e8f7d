"""What a run with `cpu` settings holds from its start to its end: a control group, signalled quotas, leased cores."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rota.errors import HostError
from rota.fleet.run_cpu import NO_GROUPS, RunCpu, unscheduled, without_scheduling
from rota.fleet.runners.contract import Assignment
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
    a function in a worker process before, from what this machine allows.
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
        # never a niceness for a worker process: it might not be allowed to take it back for the next run
        self.scheduling = cpu.scheduling(self._support) if where == "program" else run_scheduling(cpu.own)
        self.cores = cpu.affinity(self._support)
        self._quotas = cpu.signalled_quotas(self._support) if where == "program" else {}
        self._session: Session | None = None
        if where == "process":
            self._report(self._denied())

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
        self._resources.watch_cpu(self._change, frozenset(owner.key for owner in self._cpu.owners))
        confinement, allowed = self._cpu.confinement, self._cpu.allowed
        if confinement is not None and self._cpu.leased is not None:
            confinement.hold(session.pid, self._cpu.leased)
        elif confinement is not None and allowed is not None:
            confinement.started(session.pid, allowed)
        self._report({}, session.advisories)
        return without_scheduling(session.advisories)

    def _change(self, owner: CpuOwner) -> None:
        """The settings of its project or its agent were changed: its processes may use other cores from now on."""
        before = self._cpu
        owners = tuple(owner if each.key == owner.key else each for each in before.owners)
        self._cpu = after = msgspec.structs.replace(before, owners=owners)
        session = self._session
        if session is None or session.exit is not None or after.leased is not None or not after.has_cores:
            return
        if after.allowed != before.allowed:
            cores = after.usable if after.allowed is None else after.allowed
            self._resources.confinement.started(session.pid, cores)

    def _report(self, denied: dict[str, str], refused: Iterable[Advisory] = ()) -> None:
        """Say what is enforced and what is not."""
        cpu, support = self._cpu, self._support
        missing = {} if self.group is None else self._resources.cpu_groups.not_in_force(cpu.owners)
        not_scheduled = unscheduled(cpu.own, support, refused, self._denied)
        not_in_force = {owner.key: {**missing.get(owner.key, {}), **not_scheduled} for owner in cpu.owners}
        states = list(cpu.states(support, self._where, not_in_force=not_in_force, denied=denied))
        self._advisories += [told for told, state in states if state != "enforced"]
        self.enforced += [told for told, state in states if state == "enforced"]
        self._advisories += cpu.leased_by_others(support)

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

"""What a run with `cpu` settings holds from its start to its end: a control group, signalled quotas, leased cores."""

from __future__ import annotations

from rota.errors import HostError
from rota.fleet.run_cpu import NO_GROUPS, RunCpu
from rota.fleet.runners.contract import Assignment
from rota.fleet.runners.resources import RunnerResources
from rota.host.cgroups import ControlGroup
from rota.host.cpu_groups import Where
from rota.host.session import Session

__all__ = ["CpuHold"]


class CpuHold:
    """Applies the settings of one run. The caller reports its session's start, and ends it in any case."""

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
        self.group = self._enter(assignment, advisories) if use_groups and resources.cpu_groups.works else None
        support = NO_GROUPS if self.group is None else resources.cgroups.support
        missing = {} if self.group is None else resources.cpu_groups.not_in_force(cpu.owners)
        states = list(cpu.states(support, where, not_in_force=missing))
        advisories += [told for told, state in states if state != "enforced"]
        self.enforced = [told for told, state in states if state == "enforced"]  # in words
        self.scheduling = cpu.scheduling(support)
        self.cores = cpu.affinity(support)
        advisories += cpu.leased_by_others(support)
        self._quotas = cpu.signalled_quotas(support) if where == "program" else {}

    def _enter(self, assignment: Assignment, advisories: list[str]) -> ControlGroup | None:
        """Create the group of the run below those of its project and its agent; None if that fails."""
        groups, limits = self._resources.cpu_groups, self._cpu.limits(assignment.settings.limits)
        try:
            return groups.enter(self._cpu.owners, limits, str(assignment.entry.sched_id))
        except HostError as problem:
            advisories.append(problem.message)
            return None

    def started(self, session: Session) -> None:
        """The session runs."""
        if self._quotas:
            self._resources.quotas.hold(session, self._quotas)
        confinement, allowed = self._cpu.confinement, self._cpu.allowed
        if confinement is not None and self._cpu.leased is not None:
            confinement.hold(session.pid, self._cpu.leased)
        elif confinement is not None and allowed is not None:
            confinement.started(session.pid, allowed)

    def end(self, session: Session | None = None) -> None:
        """The session has ended, or was never started."""
        if session is not None and self._quotas:
            self._resources.quotas.release(session)
        if session is not None and self._cpu.confinement is not None:
            self._cpu.confinement.end(session.pid)
        if self.group is not None:
            self._resources.cpu_groups.leave(self.group)

"""The CPU time and cores of one run: what its project and its agent say, and what it takes to apply it.

All decisions here are pure; the runners act on them (`runners/program.py`, `runners/callable.py`), with the groups of
`host/cpu_groups.py`. What is not enforced as it reads becomes an advisory of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from rota.errors import CommandInvalid, FleetInvalid, InvalidInput
from rota.host.advisory import Advisory
from rota.host.cgroup_files import FEATURES, Feature, GroupLimits
from rota.host.cgroups import FeatureSupport
from rota.host.confinement import Confinement
from rota.host.cpu_enforcement import NOT_HELD, Where, cpu_states, denied_policies
from rota.host.cpu_groups import CpuOwner, niceness, run_scheduling
from rota.host.thread_settings import Scheduling
from rota.model.agent_settings import AgentSettings
from rota.model.cpu import CPU_KEY, CpuQuota, CpuSettings, core_list, parse_cores, parse_quota, read_cpu
from rota.model.ray import RAY
from rota.model.work import WEIGHT_UNIT, Agent, Limits, Project

__all__ = [
    "NO_GROUPS",
    "RunCpu",
    "agent_owner",
    "project_owner",
    "run_cpu",
    "unscheduled",
    "where_of",
    "without_scheduling",
]

_ON_THREADS = ("graph", "hook")  # runners whose runs are on threads of the supervisor

NO_GROUPS: Mapping[Feature, FeatureSupport] = {
    feature: FeatureSupport(feature, None, "none is used here") for feature in FEATURES
}


class RunCpu(msgspec.Struct, frozen=True, kw_only=True):
    """What a run with `cpu` settings may use."""

    owners: tuple[CpuOwner, ...]  # its project and its agent, as far as they have settings
    usable: frozenset[int]  # the cores of this machine
    own: CpuSettings  # what the run asks for: the agent's settings, else the project's
    leased: frozenset[int] | None = None  # the cores that it has for itself
    confinement: Confinement | None = None  # keeps everything else off them

    def limits(self, limits: Limits) -> GroupLimits:
        """Return the limits of the run's own control group."""
        return GroupLimits(memory_bytes=limits.memory_bytes, processes=limits.processes, cores=self.leased)

    def scheduling(self, support: Mapping[Feature, FeatureSupport]) -> Scheduling | None:
        """Return what each process asks the operating system for; without groups also the niceness of its weight."""
        nice = 0 if support["weight"].works else niceness(self._weight())
        return run_scheduling(self.own, nice=nice)

    def affinity(self) -> frozenset[int] | None:
        """Return the cores that its first process starts on: it is moved into its group only a moment later."""
        allowed = self.allowed
        if self.leased is not None or allowed is None or self.confinement is None:
            return self.leased or allowed
        return self.confinement.open_of(allowed)

    def leased_by_others(self) -> Iterator[str]:
        """Say where it runs if all its cores are leased by other runs."""
        if self._is_elsewhere and self.allowed is not None and self.confinement is not None:
            cores, elsewhere = core_list(self.allowed), core_list(self.confinement.open_cores)
            yield f"cores {cores} are leased by other runs: it runs on {elsewhere} until they are returned"

    @property
    def _is_elsewhere(self) -> bool:
        if self.leased is not None or not self.allowed or self.confinement is None:
            return False
        return not self.allowed & self.confinement.open_cores

    @property
    def allowed(self) -> frozenset[int] | None:
        """The cores of this machine that both its project and its agent allow; None: any."""
        sets = [owner.cpu.core_set for owner in self.owners if owner.cpu.core_set is not None]
        return self.usable.intersection(*sets) if sets else None

    def asked(self, where: Where, *, holds_processes: bool) -> CpuSettings | None:
        """Return what a run asks the admission for, None for nothing: only what it would then be held to.

        `holds_processes` says whether control groups hold worker processes to cores.
        """
        if where in NOT_HELD:
            return None
        if where == "process" and not holds_processes:
            return msgspec.structs.replace(self.own, cores=None, lease=None)
        return self.own

    def changed(self, owner: CpuOwner) -> RunCpu:
        """Return what it may use after the settings of its project or its agent were changed.

        What is for each run (lease, class, realtime) stays as it began, and so do the cores if it has leased some.
        """
        stays = ("lease", "class_", "realtime") if self.leased is None else ("lease", "class_", "realtime", "cores")
        owners = tuple(_changed(each, owner, stays) if each.key == owner.key else each for each in self.owners)
        cpu_of = {each.key.partition(":")[0]: each.cpu for each in owners}
        merged = _merged(cpu_of.get("agent", CpuSettings()), cpu_of.get("project", CpuSettings()))
        cores, lease = merged.cores, self.own.lease
        if self.leased is not None:  # it has these, whatever it may lease from now on
            cores, lease = core_list(self.leased), len(self.leased)
        elif cores is not None and self.own.leased_cores > len(parse_cores(cores)):
            lease = None
        quota = _limiting(merged.quota, cores)
        own = msgspec.structs.replace(self.own, weight=merged.weight, quota=quota, cores=cores, lease=lease)
        return msgspec.structs.replace(self, owners=owners, own=own)

    @property
    def has_cores(self) -> bool:
        """Whether there is a core that it may use."""
        return self.allowed is None or bool(self.allowed)

    def check_cores(self) -> None:
        """Raise CommandInvalid if there is no core that it may use."""
        if self.has_cores:
            return
        named = [f"{owner.label} names cores {owner.cpu.cores}" for owner in self.owners if owner.cpu.cores]
        usable = f"usable cores: {core_list(self.usable)}"
        text = f"there is no core that it may use: {', '.join(named)}; {usable}"
        raise CommandInvalid(text, hint="Correct `cores` and run `rota reload`, then retry the entry.", field="cores")

    def signalled_quotas(self, support: Mapping[Feature, FeatureSupport]) -> dict[str, CpuQuota | None]:
        """Return the quotas that no group enforces, by their owners; None: a reload may give it one."""
        return {} if support["quota"].works else {owner.key: owner.cpu.budget for owner in self.owners}

    def denied(
        self, support: Mapping[Feature, FeatureSupport], granted: Collection[str], *, gives_realtime: bool
    ) -> dict[str, str]:
        """Return which scheduling policies its processes will not get, with the reason."""
        in_group = support["weight"].works and not gives_realtime
        narrowed = self.leased is not None or (self.allowed is not None and self.allowed != self.usable)
        return denied_policies(granted, in_group=in_group, on_all_cores=not narrowed)

    def states(
        self,
        support: Mapping[Feature, FeatureSupport],
        where: Where,
        *,
        not_in_force: Mapping[str, Mapping[str, str]] | None = None,
        denied: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[str, str]]:
        """Say what each setting amounts to, in words, and which of the three states that is.

        `not_in_force` says why the kernel did not take settings of its owners, by their keys, and `denied` why it will
        not get scheduling policies.
        """
        within = self.usable
        for owner in self.owners:
            own = _in_force(owner.cpu, self.owners[-1].cpu) if owner is not self.owners[-1] else owner.cpu
            missing = (not_in_force or {}).get(owner.key)
            for state in cpu_states(
                own,
                support,
                where,
                usable=self.usable,
                within=within,
                denied=denied,
                missing=missing,
                policy=self.own.policy,
            ):
                if state.setting == "cores" and self._is_elsewhere and state.state != "refused":
                    continue  # `leased_by_others` says where
                yield (f"{owner.label}: {state}" if len(self.owners) > 1 else str(state)), state.state
            within &= owner.cpu.core_set or within

    def _weight(self) -> float:
        weight = 1.0
        for owner in self.owners:
            weight *= owner.cpu.weight or owner.weight
        return weight


def run_cpu(
    agent: Agent, settings: AgentSettings | None, project: Project | None, usable: frozenset[int]
) -> RunCpu | None:
    """Return what a run of an agent may use of the usable cores; None if neither it nor its project says anything."""
    agents = None if settings is None else settings.cpu
    projects = None if project is None else _project_cpu(project)
    if agents is None and projects is None:
        return None
    owners = []
    if project is not None and projects is not None:
        owners.append(project_owner(project))
    if agents is not None:
        owners.append(agent_owner(agent, settings))
    own = _merged(agents or CpuSettings(), projects or CpuSettings())
    return RunCpu(owners=tuple(owners), usable=usable, own=own)


def _changed(began: CpuOwner, owner: CpuOwner, stays: tuple[str, ...]) -> CpuOwner:
    """Return the changed settings of an owner, with those that stay as the run began."""
    kept = {field: getattr(began.cpu, field) for field in stays}
    return owner._replace(cpu=msgspec.structs.replace(owner.cpu, **kept))


def _in_force(projects: CpuSettings, agents: CpuSettings) -> CpuSettings:
    """Return the settings of a project without those for each run of which its agent has its own."""
    fields = ("lease", "class_", "realtime")
    return msgspec.structs.replace(projects, **{field: None for field in fields if getattr(agents, field) is not None})


def where_of(runner: str, isolation: str | None) -> Where:
    """Return where a runner executes the runs of an agent; runners of other packages start programs."""
    if runner == RAY:
        return "cluster"
    if runner in _ON_THREADS:
        return "thread"
    if runner != "callable":
        return "program"
    return "process" if isolation == "process" else "thread"


def project_owner(project: Project) -> CpuOwner:
    """Return a project as the owner of a control group."""
    cpu = _project_cpu(project) or CpuSettings()
    return CpuOwner(f"project:{project.project_id}", project.project_id, cpu, project.weight / WEIGHT_UNIT)


def _project_cpu(project: Project) -> CpuSettings | None:
    """Return the settings of a project; FleetInvalid, which names it, if they were stored before they were checked."""
    try:
        return read_cpu(project.metadata.get(CPU_KEY))
    except InvalidInput as problem:
        hint = f"Correct `cpu` of project {project.project_id}; its agents run then."
        text = f"project {project.project_id}: {problem.message}"
        raise FleetInvalid(text, hint=hint, field=CPU_KEY) from problem


def agent_owner(agent: Agent, settings: AgentSettings | None) -> CpuOwner:
    """Return an agent as the owner of a control group."""
    cpu = (None if settings is None else settings.cpu) or CpuSettings()
    return CpuOwner(f"agent:{agent.pid}", agent.name, cpu, agent.weight / WEIGHT_UNIT)


def unscheduled(
    cpu: CpuSettings,
    support: Mapping[Feature, FeatureSupport],
    refused: Iterable[Advisory],
    denied: Callable[[], Mapping[str, str]],
) -> dict[str, str]:
    """Return which settings are not in force because the kernel refused a process its scheduling, with the reason.

    Of a policy that is known to be denied (`denied_policies`) that is the reason, and not the kernel's, a number.
    """
    found: dict[str, str] = {}
    for each in refused:
        if each.what != "scheduling":
            continue
        if cpu.policy is not None:
            found["realtime"] = denied().get(cpu.policy.policy, each.why)
            continue
        if cpu.latency_class != "normal":
            found["class"] = each.why
        if not support["weight"].works:  # it is niceness
            found["weight"] = each.why
    return found


def without_scheduling(advisories: Iterable[Advisory]) -> list[Advisory]:
    """Leave out those that `unscheduled` turns into states of settings, perhaps with another reason."""
    return [each for each in advisories if each.what != "scheduling"]


def _merged(agents: CpuSettings, projects: CpuSettings) -> CpuSettings:
    """What a run asks for: as the agent says, else as its project says, whose weight and quota are for all its runs.

    It may use the cores that both allow. A quota that is more than these have limits nothing.
    """
    cores = agents.cores or projects.cores
    if agents.core_set is not None and projects.core_set is not None:
        cores = core_list(agents.core_set & projects.core_set) or cores
    return CpuSettings(
        weight=agents.weight,
        quota=_limiting(agents.quota, cores),
        cores=cores,
        lease=projects.lease if agents.lease is None else agents.lease,
        class_=projects.class_ if agents.class_ is None else agents.class_,
        realtime=projects.realtime if agents.realtime is None else agents.realtime,
    )


def _limiting(quota: str | None, cores: str | None) -> str | None:
    """Return a quota, None if it is more than these cores have."""
    if quota is None or cores is None or parse_quota(quota).cores <= len(parse_cores(cores)):
        return quota
    return None

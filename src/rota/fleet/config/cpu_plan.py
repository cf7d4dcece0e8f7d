"""What the `cpu` settings of a fleet file amount to on this machine: enforced, cooperative or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from rota.fleet.config.tables import AgentTable, Fleet
from rota.host.capabilities import allowed_policies
from rota.host.cgroups import Cgroups
from rota.host.cpu_groups import Where, cpu_states, denied_policies, why_never_leased
from rota.host.thread_settings import usable_cores
from rota.lazy import late
from rota.model.core_grants import CoreAsk
from rota.model.cpu import CpuSettings, RealtimeRequest, core_list
from rota.model.struct_reader import join_key

if TYPE_CHECKING:
    from rota.service import core_admission as admission
else:
    admission = late("rota.service.core_admission")  # it loads the engine, for reservations only

__all__ = ["CpuRow", "cpu_rows", "cpu_warnings"]


class CpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a project or an agent."""

    owner: str  # "project research", "agent coder"
    setting: str
    value: str
    state: str  # enforced, cooperative, refused
    how: str


def cpu_rows(fleet: Fleet) -> list[CpuRow]:
    """Return what each setting amounts to. Control groups are tried only if the file has such settings."""
    found = [*_settings(fleet), *_leases_of_projects(fleet)]
    if not found:
        return []
    cgroups, usable = Cgroups(prepare=False), usable_cores()
    return [
        CpuRow(owner=f"{what} {name}", setting=each.setting, value=each.value, state=each.state, how=each.how)
        for what, name, cpu, where, within, policy in found
        for each in cpu_states(
            cpu,
            cgroups.support,
            where,
            usable=usable,
            within=within,
            denied=_denied(cpu, cgroups, usable, within),
            policy=policy,
        )
    ]


def _denied(
    cpu: CpuSettings, cgroups: Cgroups, usable: frozenset[int], within: frozenset[int] | None
) -> dict[str, str]:
    """The scheduling policies that its runs will not get."""
    in_group = cgroups.support["weight"].works and not cgroups.gives_realtime
    choice = usable.intersection(*(cores for cores in (within, cpu.core_set) if cores is not None))
    return denied_policies(allowed_policies(), in_group=in_group, on_all_cores=choice == usable and not cpu.lease)


def cpu_warnings(fleet: Fleet) -> Iterator[str]:
    """Warn of settings that this machine cannot keep at all."""
    usable = usable_cores()
    for what, name, cpu, where, within, _ in _settings(fleet):
        key = f"{join_key(f'{what}s', name)}.cpu"
        if where == "thread":
            yield f"{key}: is not enforced for a function on a thread; set isolation = 'process'"
            continue
        if cpu.core_set is not None and (missing := cpu.core_set - usable):
            yield f"{key}.cores: this machine has no core {core_list(missing)}; usable cores: {core_list(usable)}"
        if cpu.core_set is not None and within is not None and not cpu.core_set & within:
            yield f"{key}.cores: its project allows cores {core_list(within)} only, so its runs will fail"
        elif why := why_never_leased(cpu, usable, within):
            yield f"{key}.lease: {why}, so it never runs"
        never = admission.why_never(CoreAsk(cpu=CpuSettings(realtime=cpu.realtime))) if _reserves(cpu) else None
        if never is not None:
            most = ", ".join(never.data.get("missing", ())[:1])
            yield f"{key}.realtime: no core can reserve {cpu.realtime} ({most}), so its runs will fail"
    for _, name, *_ in _leases_of_projects(fleet):
        key = join_key("agents", name)
        yield f"{key}: the lease of its project is not granted to a function on a thread; set isolation = 'process'"


class _Setting(NamedTuple):
    """The settings of a project or an agent, and where they apply."""

    what: Literal["project", "agent"]
    name: str
    cpu: CpuSettings
    where: Where = "program"
    within: frozenset[int] | None = None  # the cores that the project of an agent names
    policy: RealtimeRequest | None = None  # the realtime policy of its runs; None: that of the settings


def _leases_of_projects(fleet: Fleet) -> Iterator[_Setting]:
    """The leases that functions on threads would have from their projects."""
    for name, agent in fleet.agents.items():
        owner = None if agent.project is None else fleet.projects.get(agent.project)
        has_own = agent.cpu is not None and agent.cpu.lease is not None
        if (
            _where(agent) == "thread"
            and not has_own
            and owner is not None
            and owner.cpu is not None
            and owner.cpu.lease
        ):
            yield _Setting("agent", name, CpuSettings(lease=owner.cpu.lease), "thread")


def _settings(fleet: Fleet) -> Iterator[_Setting]:
    """The settings of projects and agents."""
    for name, project in fleet.projects.items():
        if project.cpu is not None:
            yield _Setting("project", name, project.cpu)
    for name, agent in fleet.agents.items():
        if agent.cpu is not None:
            owner = None if agent.project is None else fleet.projects.get(agent.project)
            above = CpuSettings() if owner is None or owner.cpu is None else owner.cpu
            yield _Setting("agent", name, agent.cpu, _where(agent), above.core_set, agent.cpu.policy or above.policy)


def _reserves(cpu: CpuSettings) -> bool:
    return cpu.policy is not None and cpu.policy.policy == "deadline"


def _where(agent: AgentTable) -> Where:
    if agent.function is None or agent.runner is not None:
        return "program"
    return "process" if agent.isolation == "process" else "thread"

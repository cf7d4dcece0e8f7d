"""What the `cpu` settings of a fleet file amount to on this machine: enforced, cooperative or refused."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rota.fleet.config.tables import AgentTable, Fleet
from rota.host.capabilities import allowed_policies
from rota.host.cgroups import Cgroups
from rota.host.cpu_groups import Where, cpu_states
from rota.host.thread_settings import allowed_cores
from rota.model.cpu import CpuSettings, core_list
from rota.model.struct_reader import join_key

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
    found = list(_settings(fleet))
    if not found:
        return []
    support, granted = Cgroups(prepare=False).support, allowed_policies()
    return [
        CpuRow(owner=f"{what} {name}", setting=each.setting, value=each.value, state=each.state, how=each.how)
        for what, name, cpu, where in found
        for each in cpu_states(cpu, support, where, granted=granted)
    ]


def cpu_warnings(fleet: Fleet) -> Iterator[str]:
    """Warn of settings that this machine cannot keep at all."""
    for what, name, cpu, where in _settings(fleet):
        key = f"{join_key(f'{what}s', name)}.cpu"
        if where == "thread":
            yield f"{key}: is not enforced for a function on a thread; set isolation = 'process'"
            continue
        usable = allowed_cores()
        if cpu.core_set is not None and (missing := cpu.core_set - usable):
            yield f"{key}.cores: this machine has no core {core_list(missing)}; usable cores: {core_list(usable)}"
        if cpu.lease >= len(usable):
            yield f"{key}.lease: {cpu.lease} of {len(usable)} cores: one stays for everything else, so it never runs"


def _settings(fleet: Fleet) -> Iterator[tuple[str, str, CpuSettings, Where]]:
    for name, project in fleet.projects.items():
        if project.cpu is not None:
            yield "project", name, project.cpu, "program"
    for name, agent in fleet.agents.items():
        if agent.cpu is not None:
            yield "agent", name, agent.cpu, _where(agent)


def _where(agent: AgentTable) -> Where:
    if agent.function is None or agent.runner is not None:
        return "program"
    return "process" if agent.isolation == "process" else "thread"

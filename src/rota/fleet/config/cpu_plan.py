"""What `cpu` settings and islands of a fleet file amount to on this machine: enforced, cooperative or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from rota import graph
from rota.errors import IslandRefused, Refused
from rota.fleet.config.tables import Fleet
from rota.fleet.run_cpu import where_of
from rota.host.capabilities import allowed_policies
from rota.host.cgroups import Cgroups
from rota.host.cpu_enforcement import Where, cpu_states, denied_policies, why_never_leased
from rota.host.thread_settings import usable_cores
from rota.lazy import late
from rota.model.core_grants import CoreAsk
from rota.model.cpu import CpuSettings, RealtimeRequest, core_list
from rota.model.struct_reader import join_key
from rota.service.core_grants import this_host

if TYPE_CHECKING:
    from rota.service import core_admission as admission
else:
    admission = late("rota.service.core_admission")  # it loads the engine, for reservations only

__all__ = ["CpuRow", "cpu_rows", "cpu_warnings"]


_NOT_ENFORCED: Mapping[Where, str] = {
    "thread": "a function on a thread; set isolation = 'process'",
    "cluster": "runs on Ray; say what a run needs in `resources`",
}


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
    cgroups, usable = Cgroups(prepare=False), usable_cores()
    return [
        CpuRow(owner=f"{what} {name}", setting=each.setting, value=each.value, state=each.state, how=each.how)
        for what, name, cpu, where, within, _, policy in found
        for each in cpu_states(
            cpu,
            cgroups.support,
            where,
            usable=usable,
            within=within,
            denied=_denied(cpu, cgroups, usable, within),
            missing=_never_in_force(cpu),
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


def _never_in_force(cpu: CpuSettings) -> dict[str, str]:
    """The reservation, if no host can grant it, with the reason."""
    why = _why_never_reserved(cpu)
    return {"realtime": f"no core can reserve it ({why})"} if why else {}


def cpu_warnings(fleet: Fleet) -> Iterator[str]:
    """Warn of settings that this machine cannot keep at all."""
    usable = usable_cores()
    for what, name, cpu, where, within, project, _ in _settings(fleet):
        key = f"{join_key(f'{what}s', name)}.cpu"
        if where in _NOT_ENFORCED:
            whose = "" if project is None else f"that of project {project} "
            yield f"{key}: {whose}is not enforced for {_NOT_ENFORCED[where]}"
            continue
        has_no_core = cpu.core_set is not None and not cpu.core_set & usable
        if cpu.core_set is not None and (missing := cpu.core_set - usable):
            text = f"{key}.cores: this machine has no core {core_list(missing)}; usable cores: {core_list(usable)}"
            yield f"{text}, so its runs will fail here" if has_no_core else text
        if cpu.budget is not None and cpu.budget.cores > len(usable):
            yield f"{key}.quota: {cpu.quota} is {cpu.budget.cores:g} cores, and it can use {len(usable)} here: no limit"
        if cpu.core_set is not None and within is not None and not cpu.core_set & within:
            yield f"{key}.cores: its project allows cores {core_list(within)} only, so its runs will fail"
        elif not has_no_core and (why := why_never_leased(cpu, usable, within)):
            yield f"{key}.lease: {why}, so it never runs on {this_host().name}: it waits for another host"
        if never := _why_never_reserved(cpu):
            yield f"{key}.realtime: no core can reserve {cpu.realtime} ({never}), so its runs will fail"
    for name, agent in fleet.graph_agents.items():
        if (agent.document.get("graph") or {}).get("island") is not None:
            yield from _about_island(join_key("graphs", name), agent.document)


def _about_island(key: str, document: Mapping[str, Any]) -> Iterator[str]:
    """Warn of a graph that this machine would not admit with nothing else to do."""
    plan = graph.compile_graph(graph.read_stored(document).spec)
    try:
        ask = graph.island_ask(plan)
        admission.decide(this_host(), (), ask, admission.Asker(1, 1, 1, plan.name, None, 0.0), [])
    except IslandRefused as refusal:
        yield f"{key}.file: {'; '.join(refusal.data['missing'])}, so it is not admitted as an island here"
    except Refused as refusal:
        yield f"{key}.file: {refusal.message}, so it is not admitted as an island here"


class _Setting(NamedTuple):
    """The settings of a project or an agent, and where they apply."""

    what: Literal["project", "agent"]
    name: str
    cpu: CpuSettings
    where: Where = "program"
    within: frozenset[int] | None = None  # the cores that the project of an agent names
    project: str | None = None  # whose settings they are, if they are not the agent's
    policy: RealtimeRequest | None = None  # the realtime policy of its runs; None: that of the settings


def _settings(fleet: Fleet) -> Iterator[_Setting]:
    """The settings of projects and agents."""
    for name, project in fleet.projects.items():
        if project.cpu is not None:
            yield _Setting("project", name, project.cpu)
    for name, agent in fleet.agents.items():
        owner = None if agent.project is None else fleet.projects.get(agent.project)
        above = CpuSettings() if owner is None or owner.cpu is None else owner.cpu
        where = where_of(agent.selected_runner, agent.isolation)
        if above != CpuSettings() and where in _NOT_ENFORCED:
            yield _Setting("agent", name, above, where, project=agent.project)
        if agent.cpu is not None:
            policy = agent.cpu.policy or above.policy
            yield _Setting("agent", name, agent.cpu, where, above.core_set, policy=policy)


def _why_never_reserved(cpu: CpuSettings) -> str:
    """Say why no host can reserve the time that `realtime` asks for; empty if one can, or if it asks for none."""
    if cpu.policy is None or cpu.policy.policy != "deadline":
        return ""
    never = admission.why_never(CoreAsk(cpu=CpuSettings(realtime=cpu.realtime)))
    return "" if never is None else ", ".join(never.data.get("missing", ())[:1])

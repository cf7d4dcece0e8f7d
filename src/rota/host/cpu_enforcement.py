"""What `cpu` settings amount to on this machine, in words: enforced, cooperative or refused, each with the reason.

The plan of a fleet file, `rota doctor`, `rota cpu run` and the record of each run say the same, because all ask here.
`cpu_groups` and the runners apply the settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import msgspec

from rota.host.cgroup_files import Feature
from rota.host.cgroups import FeatureSupport
from rota.model.cpu import CpuSettings, RealtimeRequest, core_list

__all__ = ["NOT_HELD", "CpuState", "Where", "cpu_states", "denied_policies", "why_never_leased"]

POLICIES = ("batch", "slice", "fifo", "rr", "deadline")  # that a class or a realtime setting asks for

# a command; a function in a worker process; on a thread of the supervisor; on a node of a cluster
Where = Literal["program", "process", "thread", "cluster"]


class CpuState(msgspec.Struct, frozen=True):
    """What one setting amounts to on this machine."""

    setting: str
    value: str
    state: Literal["enforced", "cooperative", "refused"]
    how: str

    def __str__(self) -> str:
        return f"cpu {self.setting} = {self.value} is {self.state}: {self.how}"


_COOPERATIVE = {
    "weight": "as the niceness of each process",
    "quota": "its processes are stopped and continued by signals, which a program of the same user can undo",
    "cores": "as the affinity of each process, which a program may change",
    "lease": "by affinity, which a program may change",
}


NOT_HELD: Mapping[Where, str] = {  # where this machine's settings hold no run
    "thread": "the function shares the supervisor's process; isolation = 'process'",
    "cluster": "Ray gives the run the resources that it asks for, on any node",
}


def cpu_states(
    cpu: CpuSettings,
    support: Mapping[Feature, FeatureSupport],
    where: Where = "program",
    *,
    usable: frozenset[int],
    within: frozenset[int] | None = None,
    denied: Mapping[str, str] | None = None,
    missing: Mapping[str, str] | None = None,
    policy: RealtimeRequest | None = None,
) -> list[CpuState]:
    """Return what each setting amounts to. Cores of which only some can be used are two entries.

    `usable` are the cores of this machine, and `within` those that the project of an agent allows. `denied` are the
    scheduling policies that it will not get (`denied_policies`), and `missing` the settings that the kernel did not
    take, each with the reason. `policy` is the realtime policy of the run (default: that of the settings).
    """
    choice = usable if within is None else usable & within
    denied, missing, policy = denied or {}, missing or {}, policy or cpu.policy
    is_realtime = policy is not None and policy.policy not in denied and "realtime" not in missing
    states: list[CpuState] = []
    for name, given in msgspec.to_builtins(cpu).items():
        if name == "lease" and not given:
            continue  # it only says that the lease of the project is not for its runs
        value = f"{given:g}" if isinstance(given, float) else str(given)
        if where in NOT_HELD:
            states.append(CpuState(name, value, "refused", NOT_HELD[where]))
        elif name in missing:
            states.append(_state_of_missing(name, value, missing[name], where))
        elif policy is not None and (why := _why_not_beside(name, support, where, is_realtime=is_realtime)):
            states.append(CpuState(name, value, "refused", why))
        elif name in {"class", "realtime"}:
            states.append(_state_of_policy(name, value, denied))
        elif name == "cores":
            states += _states_of_cores(cpu.core_set or choice, choice, support, where)
        elif name == "lease" and (why := why_never_leased(cpu, usable, within)):
            states.append(CpuState(name, value, "refused", why))
        else:
            states.append(_state(name, value, support, where))
    return states


def _why_not_beside(
    name: str, support: Mapping[Feature, FeatureSupport], where: Where, *, is_realtime: bool
) -> str | None:
    """Say why a setting has no effect beside `realtime`, which is in force or was refused; None if it has."""
    if name == "class":
        return "realtime is asked for in its place"
    if name == "weight" and is_realtime:
        return "the kernel runs realtime processes before all shares"
    if name == "weight" and not support["weight"].works:
        return "realtime is asked for in place of niceness"
    if name == "quota" and is_realtime and (support["quota"].works or where != "program"):
        return "the kernel holds no realtime process to the quota of a control group"
    return None


def _state_of_missing(name: str, value: str, why: str, where: Where) -> CpuState:
    """What a setting amounts to that the kernel did not take. Affinity is tried in any case."""
    if name == "cores" and where == "program":
        return CpuState(name, value, "cooperative", f"{_COOPERATIVE[name]}; {why}")
    return CpuState(name, value, "refused", why)


def _states_of_cores(
    asked: frozenset[int], choice: frozenset[int], support: Mapping[Feature, FeatureSupport], where: Where
) -> Iterator[CpuState]:
    if asked & choice:
        yield _state("cores", core_list(asked & choice), support, where)
    if asked - choice:
        how = f"it can use cores {core_list(choice)} here" if choice else "it can use no core here"
        yield CpuState("cores", core_list(asked - choice), "refused", how)


def why_never_leased(cpu: CpuSettings, usable: frozenset[int], within: frozenset[int] | None = None) -> str:
    """Say why this machine can never grant a lease, whatever else runs on it; empty if it can."""
    choice = usable.intersection(*(cores for cores in (within, cpu.core_set) if cores is not None))
    wanted = cpu.leased_cores
    if wanted >= len(usable):
        return f"{wanted} of {len(usable)} cores: one stays for everything else"
    return f"{wanted} asked, and it can use {len(choice)} of the cores here" if wanted > len(choice) else ""


def _state(name: str, value: str, support: Mapping[Feature, FeatureSupport], where: Where) -> CpuState:
    feature: Feature = "cores" if name in {"cores", "lease"} else "quota" if name == "quota" else "weight"
    found = support[feature]
    if found.works:
        return CpuState(name, value, "enforced", f"by control groups, version {found.version}")
    if where == "process":
        return CpuState(name, value, "refused", f"no control group enforces it ({found.why_not})")
    return CpuState(name, value, "cooperative", f"{_COOPERATIVE[name]}; no control group enforces it")


def denied_policies(granted: Collection[str], *, in_group: bool, on_all_cores: bool) -> dict[str, str]:
    """Return which scheduling policies a process will not get, with the reason.

    `granted` are those that this machine allows to this user outside of groups (capabilities.py), and `in_group` says
    whether the process is in a group without CPU time for fifo and rr (`Cgroups.gives_realtime`).
    """
    why = "this machine does not allow it to this user; root, CAP_SYS_NICE or a raised limit may be needed"
    denied = {name: why for name in POLICIES if name not in granted}
    if in_group:
        why = "the kernel gives groups of version 1 no CPU time for it (cpu.rt_runtime_us is 0)"
        denied = {"fifo": why, "rr": why, **denied}
    if not on_all_cores:
        denied = {"deadline": "the kernel allows it only to a process that may use all cores", **denied}
    return denied


def _state_of_policy(name: str, value: str, denied: Mapping[str, str]) -> CpuState:
    policy = {"batch": "batch", "sensitive": "slice"}.get(value, value.partition(":")[0])
    if policy in denied:
        return CpuState(name, value, "refused", denied[policy])
    return CpuState(name, value, "enforced", "by the operating system, for each process")

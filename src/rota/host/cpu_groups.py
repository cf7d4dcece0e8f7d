"""The `cpu` settings on real processes: a control group for each project, agent and run; niceness where there is none.

The operating system shares the cores. rota only says how, in a tree of control groups:

    rota-812-1-research        the project: weight, quota, cores of all its runs together
      rota-812-2-coder         the agent: the same, for all its runs
        rota-812-3             one run, with everything that it starts; leased cores

A weight compares siblings, so a project with twenty runs gets no more than one with a single run, and CPU time that one
leaves goes to the others. A level that says nothing has no group. Groups are made when a run needs them and removed
with the last run; those of a process that was killed are removed by the reaper, or at the next start (cgroups.py).

Without control groups the settings are approximated for each process, which is less, and `cpu_states` says so:

    setting    with control groups            without
    weight     enforced, in total             niceness of each process; it leaves no core idle
    quota      enforced, in total             stopped and continued by signals (quota_signals.py)
    cores      enforced                       affinity, which a program may change
    class      a hint for the length of time slices, for each process
    realtime   the operating system grants it or refuses it, for each process
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from rota.host.cgroup_files import WEIGHT_MAX, WEIGHT_NORMAL, Feature, GroupLimits, Limit
from rota.host.cgroups import Cgroups, ControlGroup, FeatureSupport
from rota.host.thread_settings import NICE_MAX, NICE_MIN, Scheduling, usable_cores
from rota.model.cpu import CpuSettings, core_list

__all__ = [
    "CPU_FEATURES",
    "CpuGroups",
    "CpuOwner",
    "CpuState",
    "Where",
    "cpu_states",
    "group_limits",
    "niceness",
    "run_scheduling",
    "why_never_leased",
]

CPU_FEATURES: tuple[Limit, ...] = ("weight", "quota", "cores")
NICE_STEP = 1.25  # one level of niceness is worth this factor, in the operating system's table
SENSITIVE_NS, BATCH_NS = 750_000, 12_000_000  # the time slices that a class asks for
_FOR_AN_OWNER: tuple[Feature, ...] = ("weight",)
_FOR_A_RUN: tuple[Feature, ...] = ("weight", "freeze", "kill", "cpu_usage")

Where = Literal["program", "process", "thread"]  # a command; a function in a worker process; on the supervisor's thread


class CpuOwner(NamedTuple):
    """A project or an agent with `cpu` settings."""

    key: str  # of its group
    label: str
    cpu: CpuSettings
    weight: float = 1.0  # if the settings name none


def group_limits(cpu: CpuSettings, weight: float, within: frozenset[int]) -> GroupLimits:
    """Return the settings in the units of control groups; of its cores those `within` the level above."""
    quota, cores = cpu.budget, cpu.core_set
    return GroupLimits(
        weight=min(max(round((cpu.weight or weight) * WEIGHT_NORMAL), 1), WEIGHT_MAX),
        quota_us=None if quota is None else quota.budget_us,
        period_us=100_000 if quota is None else quota.period_us,
        cores=None if cores is None else cores & within,
    )


def niceness(weight: float) -> int:
    """Return the niceness that comes closest to a weight: 0 for weight one, less for more."""
    return min(max(-round(math.log(weight) / math.log(NICE_STEP)), NICE_MIN), NICE_MAX)


def run_scheduling(cpu: CpuSettings, *, nice: int = 0) -> Scheduling | None:
    """Return what each process of a run asks the operating system for; None: nothing."""
    realtime = cpu.policy
    if realtime is not None and realtime.policy == "deadline":
        times = {"runtime_ns": realtime.budget_ns, "deadline_ns": realtime.period_ns, "period_ns": realtime.period_ns}
        return Scheduling(policy="deadline", **times)
    if realtime is not None:
        return Scheduling(policy=realtime.policy, priority=realtime.priority)
    if cpu.class_ == "batch":
        return Scheduling(policy="batch", nice=nice, slice_ns=BATCH_NS)
    if cpu.class_ == "sensitive":
        return Scheduling(nice=nice, slice_ns=SENSITIVE_NS)
    return Scheduling(nice=nice) if nice else None


# --- what is enforced --------------------------------------------------------------------------------


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


def cpu_states(
    cpu: CpuSettings,
    support: Mapping[Feature, FeatureSupport],
    where: Where = "program",
    *,
    usable: frozenset[int],
    within: frozenset[int] | None = None,
    granted: Collection[str] = ("batch", "slice", "fifo", "rr", "deadline"),
) -> list[CpuState]:
    """Return what each setting amounts to. Cores of which only some can be used are two entries.

    `usable` are the cores of this machine, `within` those that the project of an agent allows, and `granted` the
    scheduling policies that this machine allows.
    """
    choice = usable if within is None else usable & within
    states: list[CpuState] = []
    for name, given in msgspec.to_builtins(cpu).items():
        if name == "lease" and not given:
            continue  # it only says that the lease of the project is not for its runs
        value = f"{given:g}" if isinstance(given, float) else str(given)
        if where == "thread":
            how = "the function shares the supervisor's process; isolation = 'process'"
            states.append(CpuState(name, value, "refused", how))
        elif name in {"class", "realtime"}:
            states.append(_state_of_policy(name, value, granted))
        elif name == "cores":
            states += _states_of_cores(cpu.core_set or choice, choice, support, where)
        elif name == "lease" and (why := why_never_leased(cpu, usable, within)):
            states.append(CpuState(name, value, "refused", why))
        else:
            states.append(_state(name, value, support, where))
    return states


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


def _state_of_policy(name: str, value: str, granted: Collection[str]) -> CpuState:
    policy = {"batch": "batch", "sensitive": "slice"}.get(value, value.partition(":")[0])
    if policy != "normal" and policy not in granted:
        return CpuState(name, value, "refused", "this machine does not allow it to this user")
    return CpuState(name, value, "enforced", "by the operating system, for each process")


# --- groups ------------------------------------------------------------------------------------------


class _Shared:
    """The group of an owner, and how many runs or groups are in it."""

    def __init__(self, group: ControlGroup) -> None:
        self.group = group
        self.users = 0


class CpuGroups:
    """The groups of one process. Any thread may use them."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._usable = usable_cores()
        self._lock = threading.Lock()
        self._shared: dict[tuple[str, ...], _Shared] = {}  # by the keys from the top
        self._paths: dict[str, tuple[str, ...]] = {}  # of runs, by the name of their group

    @property
    def works(self) -> bool:
        """Whether this machine can limit CPU time by control groups."""
        return any(self._cgroups.support[feature].works for feature in CPU_FEATURES)

    def enter(self, owners: Sequence[CpuOwner], limits: GroupLimits, label: str = "") -> ControlGroup:
        """Create the group of one run below those of its owners, the outermost first."""
        path = tuple(owner.key for owner in owners)
        with self._lock:
            parent: ControlGroup | None = None
            depth, within = 0, self._usable
            try:
                for owner in owners:
                    at_level = group_limits(owner.cpu, owner.weight, within)
                    parent = self._share(path[: depth + 1], owner.label, at_level, parent)
                    depth, within = depth + 1, at_level.cores or within
                group = self._cgroups.create(limits, parent=parent, features=_FOR_A_RUN, label=label)
            except BaseException:
                self._leave(path[:depth])
                raise
            self._paths[group.name] = path
            return group

    def leave(self, group: ControlGroup) -> None:
        """Remove the group of a run that has ended, with whatever is left in it, and the groups that it was last in."""
        with self._lock:
            path = self._paths.pop(group.name, ())
            self._cgroups.discard(group)
            self._leave(path)

    def close(self) -> None:
        """Remove what could not be removed before."""
        self._cgroups.close()

    def _share(
        self, path: tuple[str, ...], label: str, limits: GroupLimits, parent: ControlGroup | None
    ) -> ControlGroup:
        shared = self._shared.get(path)
        if shared is None:
            group = self._cgroups.create(limits, parent=parent, features=_FOR_AN_OWNER, label=label)
            try:
                group.hold_groups()
            except BaseException:
                group.remove()
                raise
            shared = self._shared[path] = _Shared(group)
        elif shared.group.limits != limits:  # its settings have changed
            shared.group.set(limits)
        shared.users += 1
        return shared.group

    def _leave(self, path: tuple[str, ...]) -> None:
        for depth in range(len(path), 0, -1):
            shared = self._shared[path[:depth]]
            shared.users -= 1
            if not shared.users:
                del self._shared[path[:depth]]
                self._cgroups.discard(shared.group)

    def advisories(self, owners: Sequence[CpuOwner]) -> Iterator[str]:
        """What the groups of these owners do not enforce."""
        with self._lock:
            for depth in range(1, len(owners) + 1):
                shared = self._shared.get(tuple(owner.key for owner in owners[:depth]))
                if shared is not None:
                    yield from (f"cpu {advisory}" for advisory in shared.group.advisories)

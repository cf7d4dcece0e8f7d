"""The `cpu` settings on real processes: a control group for each project, agent and run; niceness where there is none.

The operating system shares the cores. rota only says how, in a tree of control groups:

    rota-812-1-research        the project: weight, quota, cores of all its runs together
      rota-812-2-coder         the agent: the same, for all its runs
        rota-812-3             one run, with everything that it starts; leased cores

A weight compares siblings, so a project with twenty runs gets no more than one with a single run, and CPU time that one
leaves goes to the others. A level that says nothing has no group. Groups are made when a run needs them and removed
with the last run; those of a process that was killed are removed by the reaper, or at the next start (cgroups.py).

A group never has more than the one above it: version 1 refuses such a quota, and such cores, and refuses to lower those
of a group while one below it has more. So each group gets what fits into the one above (`fitted`), and a change is made
in two steps, which no kernel refuses: from the top down each group gets whichever is more of before and after, and then
from the bottom up what it is to have.

    project 80 → 40 of 100 ms, agent asks 60       project 80, agent 60        agent 40, project 40
    project 40 → 80 of 100 ms                      project 80, agent 60        agent 60, project 80

A group whose cores are all leased gets the open cores of the group above until one is returned. A run keeps the cores
that it has leased, so the groups above it have them too. A group that has open cores besides leased ones has both:
affinity keeps its processes off the leased ones (confinement.py).

Without control groups the settings are approximated for each process, which is less, and `cpu_enforcement.py` says so:

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
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from rota.host.cgroup_files import QUOTA_US_MIN, WEIGHT_MAX, WEIGHT_NORMAL, Feature, GroupLimits, Limit
from rota.host.cgroups import Cgroups, ControlGroup
from rota.host.thread_settings import NICE_MAX, NICE_MIN, Scheduling, usable_cores
from rota.model.cpu import CpuSettings

__all__ = [
    "CPU_FEATURES",
    "CpuGroups",
    "CpuOwner",
    "group_limits",
    "niceness",
    "run_scheduling",
]

CPU_FEATURES: tuple[Limit, ...] = ("weight", "quota", "cores")
PERIOD_US = 100_000  # of a group without a quota
NICE_STEP = 1.25  # one level of niceness is worth this factor, in the operating system's table
SENSITIVE_NS, BATCH_NS = 750_000, 12_000_000  # the time slices that a class asks for
_FOR_AN_OWNER: tuple[Feature, ...] = ("weight", "cores")  # its settings may get any of them while runs are in progress
_FOR_A_RUN: tuple[Feature, ...] = ("weight", "freeze", "kill", "cpu_usage")


class CpuOwner(NamedTuple):
    """A project or an agent with `cpu` settings."""

    key: str  # of its group
    label: str
    cpu: CpuSettings
    weight: float = 1.0  # if the settings name none


def group_limits(cpu: CpuSettings, weight: float) -> GroupLimits:
    """Return the settings in the units of control groups."""
    quota = cpu.budget
    return GroupLimits(
        weight=min(max(round((cpu.weight or weight) * WEIGHT_NORMAL), 1), WEIGHT_MAX),
        quota_us=None if quota is None else quota.budget_us,
        period_us=PERIOD_US if quota is None else quota.period_us,
        cores=cpu.core_set,
    )


class CpuRoom(NamedTuple):
    """What the groups above leave to a group."""

    cores: frozenset[int]
    quota_us: int | None = None  # None: unlimited
    period_us: int = PERIOD_US

    def below(self, limits: GroupLimits) -> CpuRoom:
        """What a group with these limits leaves to those below it."""
        cores = self.cores if limits.cores is None else limits.cores
        if limits.quota_us is None:
            return self._replace(cores=cores)
        return CpuRoom(cores, limits.quota_us, limits.period_us)


def fitted(asked: GroupLimits, room: CpuRoom) -> GroupLimits:
    """Return as much of some limits as there is room for. Of cores that are not there at all nothing remains."""
    cores = None if asked.cores is None else asked.cores & room.cores or None
    quota_us, period_us = asked.quota_us, asked.period_us
    if quota_us is not None and room.quota_us is not None and not _is_less(quota_us, period_us, room):
        quota_us = room.quota_us * period_us // room.period_us
        if quota_us < QUOTA_US_MIN:
            quota_us, period_us = room.quota_us, room.period_us
    return msgspec.structs.replace(asked, cores=cores, quota_us=quota_us, period_us=period_us)


def _is_less(quota_us: int, period_us: int, room: CpuRoom) -> bool:
    return room.quota_us is None or quota_us * room.period_us < room.quota_us * period_us


def widest(before: GroupLimits, after: GroupLimits) -> GroupLimits:
    """Return limits that have the cores of both, and the larger quota of the two."""
    cores = None if before.cores is None or after.cores is None else before.cores | after.cores
    quota = after
    if before.quota_us is None or (
        after.quota_us is not None and before.quota_us * after.period_us > after.quota_us * before.period_us
    ):
        quota = before
    return msgspec.structs.replace(after, cores=cores, quota_us=quota.quota_us, period_us=quota.period_us)


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


# --- groups ------------------------------------------------------------------------------------------


class _Node:
    """A group in the tree: of a project or an agent, with the number of runs in it, or of a run."""

    def __init__(self, group: ControlGroup, asked: GroupLimits, above: _Node | None, leased: frozenset[int]) -> None:
        self.group = group
        self.asked = asked
        self.above = above
        self.leased = leased  # cores of runs in it
        self.below: dict[str, _Node] = {}  # by the names of their groups
        self.users = 0
        if above is not None:
            above.below[group.name] = self

    def leave(self) -> None:
        """It is removed: forget it above."""
        if self.above is not None:
            self.above.below.pop(self.group.name, None)


class CpuGroups:
    """The groups of one process. Any thread may use them."""

    def __init__(self, cgroups: Cgroups, open_cores: frozenset[int] | None = None) -> None:
        self._cgroups = cgroups
        self._usable = usable_cores()
        self._open = self._usable if open_cores is None else open_cores  # that no run has leased
        self._lock = threading.Lock()
        self._shared: dict[tuple[str, ...], _Node] = {}  # by the keys from the top
        self._runs: dict[str, tuple[tuple[str, ...], _Node]] = {}  # by the name of their group

    @property
    def works(self) -> bool:
        """Whether this machine can limit CPU time by control groups."""
        return any(self._cgroups.support[feature].works for feature in CPU_FEATURES)

    def enter(self, owners: Sequence[CpuOwner], limits: GroupLimits, label: str = "") -> ControlGroup:
        """Create the group of one run below those of its owners, the outermost first. Its own cores are leased."""
        path, leased = _path(owners), limits.cores or frozenset()
        with self._lock:
            above: _Node | None = None
            depth = 0
            try:
                for owner in owners:
                    above = self._share(path[: depth + 1], owner, above, leased)
                    depth += 1
                run = self._create(limits, above, _FOR_A_RUN, label, leased)
            except BaseException:
                self._leave(path[:depth])
                raise
            self._runs[run.group.name] = path, run
            return run.group

    def leave(self, group: ControlGroup) -> None:
        """Remove the group of a run that has ended, with whatever is left in it, and the groups that it was last in."""
        with self._lock:
            path, run = self._runs.pop(group.name, ((), None))
            if run is not None:
                run.leave()
            self._cgroups.discard(group)
            self._leave(path)

    def set_open(self, cores: frozenset[int]) -> None:
        """Leases have begun or ended: no run has leased these cores."""
        with self._lock:
            self._open = cores
            for path, node in self._shared.items():
                if len(path) == 1:
                    self._set(node)

    def change(self, owner: CpuOwner) -> None:
        """The settings of a project or an agent have changed: apply them to its groups, and to what runs in them."""
        with self._lock:
            for path, node in self._shared.items():
                if path[-1] == owner.key:
                    self._change(node, owner)

    def has(self, key: str) -> bool:
        """Whether a project or an agent has a group now."""
        with self._lock:
            return any(path[-1] == key for path in self._shared)

    def close(self) -> None:
        """Remove what could not be removed before."""
        self._cgroups.close()

    def _create(
        self,
        asked: GroupLimits,
        above: _Node | None,
        features: tuple[Feature, ...],
        label: str,
        leased: frozenset[int],
    ) -> _Node:
        parent = None if above is None else above.group
        limits = self._fitted(asked, self._room(above), leased)
        group = self._cgroups.create(limits, parent=parent, features=features, label=label)
        return _Node(group, asked, above, leased)

    def _share(self, path: tuple[str, ...], owner: CpuOwner, above: _Node | None, leased: frozenset[int]) -> _Node:
        node = self._shared.get(path)
        if node is None:
            node = self._create(group_limits(owner.cpu, owner.weight), above, _FOR_AN_OWNER, owner.label, leased)
            try:
                node.group.hold_groups()
            except BaseException:
                node.leave()
                node.group.remove()
                raise
            self._shared[path] = node
        else:
            self._change(node, owner, leased)
        node.users += 1
        return node

    def _change(self, node: _Node, owner: CpuOwner, leased: frozenset[int] = frozenset()) -> None:
        asked = group_limits(owner.cpu, owner.weight)
        if asked == node.asked and leased <= node.leased:
            return
        node.asked, node.leased = asked, node.leased | leased
        self._set(node)

    def _set(self, node: _Node) -> None:
        """Give a group, and those below it, what they are to have now."""
        steps = list(self._limits_below(node, self._room(node.above)))
        for one, limits in steps:
            one.group.set(widest(one.group.limits, limits))
        for one, limits in reversed(steps):
            one.group.set(limits)

    def _limits_below(self, node: _Node, room: CpuRoom) -> Iterator[tuple[_Node, GroupLimits]]:
        """The limits of a group and of all below it, each after those above it."""
        limits = self._fitted(node.asked, room, node.leased)
        if limits.cores is None and node.group.can_limit("cores") and room.cores != self._usable:
            limits = msgspec.structs.replace(limits, cores=room.cores)  # version 1 would keep those it began with
        yield node, limits
        for one in node.below.values():
            yield from self._limits_below(one, room.below(limits))

    def _fitted(self, asked: GroupLimits, room: CpuRoom, leased: frozenset[int]) -> GroupLimits:
        """Return as much of some limits as there is room for, with an open core for the runs that have leased none."""
        limits = fitted(asked, room)
        if limits.cores is None or asked.weight is None:  # a run, whose cores are leased, has no weight
            return limits
        cores = limits.cores if limits.cores & self._open else room.cores & self._open
        return msgspec.structs.replace(limits, cores=(cores | leased & room.cores) or limits.cores)

    def _room(self, above: _Node | None) -> CpuRoom:
        if above is None:
            return CpuRoom(self._usable)
        return self._room(above.above).below(above.group.limits)

    def _leave(self, path: tuple[str, ...]) -> None:
        for depth in range(len(path), 0, -1):
            node = self._shared[path[:depth]]
            node.users -= 1
            node.leased = frozenset[int]().union(*(each.leased for each in node.below.values()))
            if not node.users:
                del self._shared[path[:depth]]
                node.leave()
                self._cgroups.discard(node.group)

    def not_in_force(self, owners: Sequence[CpuOwner]) -> dict[str, dict[str, str]]:
        """Return why settings of these owners are not in force, by owner and setting."""
        with self._lock:
            nodes = ((owner, self._shared.get(_path(owners[: depth + 1]))) for depth, owner in enumerate(owners))
            return {
                owner.key: {each.what: each.reason for each in node.group.advisories}
                for owner, node in nodes
                if node is not None and node.group.advisories
            }


def _path(owners: Sequence[CpuOwner]) -> tuple[str, ...]:
    return tuple(owner.key for owner in owners)

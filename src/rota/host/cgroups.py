"""Control groups: limits for a whole session, and freezing or killing it with one write.

A *feature* is what rota needs; the hierarchy and the file that provide it depend on the version. `FILES_BY_VERSION` in
cgroup_files.py knows the files of each version; everything here is the same for both. Each feature is detected
separately, because a machine may offer quota in one hierarchy and freezing in another, and it is detected by *trying*:
a group is created, the file of the feature is written with a harmless value, and the group is removed. So
`FeatureSupport` reports what works, not what exists.

    feature      version 2              version 1                     limits or does
    quota        cpu.max                cpu.cfs_quota_us, …period_us  CPU time per period, in total
    weight       cpu.weight             cpu.shares                    share of CPU time under contention
    cores        cpuset.cpus            cpuset.cpus                   the cores that it may use
    memory       memory.max             memory.limit_in_bytes         memory, in total; the kernel kills beyond it
    processes    pids.max               pids.max                      processes and threads, in total
    freeze       cgroup.freeze          freezer.state                 stop and continue, without their cooperation
    kill         cgroup.kill            freeze, kill each, thaw       kill all, also those that left the session
    cpu_usage    cpu.stat               cpuacct.usage                 CPU time, in total, including exited processes

If version 2 can freeze and kill, it is preferred for that even on a hybrid machine: there a frozen group can be killed
immediately, in version 1 only when it thaws. A limit that is not available is reported as an `Advisory`; freezing or
killing a group where that is not available raises `HostUnsupported`.

A group holds one session, or other groups (`create(parent=…)`): a weight then compares it with its siblings, and its
limits apply to everything below it. It has a folder in each hierarchy that it needs; where only its parent has one, its
session joins that.

A group that holds a session holds no second one. The reaper joins the group for a moment to start the command in it
(see spawning.py); a group that already has processes could be frozen, killed or out of memory at that moment, and the
reaper with it. For the same reason `freeze` and `kill` wait until a session that is being started in the group runs.
Where CPU time is limited, here or above, the reaper stays outside, because it could be throttled with the others: it
moves the command into the group right after the start.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import select
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from rota.errors import Conflict, HostError, HostUnsupported, RotaError
from rota.host.advisory import Advisory, explain_errno
from rota.host.cgroup_files import (
    FEATURES,
    FILES_BY_VERSION,
    LIMITS,
    CgroupFiles,
    Feature,
    FileWrite,
    GroupLimits,
    Limit,
    write,
)
from rota.host.cgroup_mounts import (
    V1,
    V2,
    Hierarchy,
    child_controllers,
    enable_controllers,
    enable_for_children,
    hierarchies,
)
from rota.host.command import GroupCleanup, GroupJoin
from rota.host.session import Session

__all__ = ["Backend", "Cgroups", "ControlGroup", "FeatureSupport", "GroupUsage"]

EXIT_WAIT_S = 5.0  # at the end, for a process that was killed: one that waits for a disk may take longer
FREEZE_CHECKS_MAX = 10_000  # of a version 1 group that is freezing; each check is a system call

GROUPS = "rota-*-*"  # the names of all groups
LABEL_CHARS_MAX = 40
CPU_CONTROLLERS = frozenset({"cpu", "cpuset"})
CPU_LIMITS: frozenset[Limit] = frozenset({"quota", "weight", "cores"})
FOR_A_SESSION: tuple[Feature, ...] = ("quota", "weight", "memory", "processes", "freeze", "kill", "cpu_usage")

_serial = itertools.count(1)  # of all groups of this process
# why version 1 refuses a limit that it takes in another group
_NOT_IN_THE_TREE: Mapping[tuple[Limit, int], str] = {
    ("quota", errno.EINVAL): "the group above it has less, or one below it has more [EINVAL]",
    ("cores", errno.EACCES): "the group above it has other cores [EACCES]",
    ("cores", errno.EBUSY): "a group below it has other cores [EBUSY]",
}
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.]+", re.ASCII)

Backend: TypeAlias = Literal["v2", "v1", "hybrid", "none"]


class FeatureSupport(msgspec.Struct, frozen=True):
    """Whether a feature works on this machine: the version of control groups that provides it, or why not."""

    feature: Feature
    version: int | None
    why_not: str = ""

    @property
    def works(self) -> bool:
        """Whether it was tried and works."""
        return self.version is not None


class Cgroups:
    """The control groups of this machine that this process may use."""

    def __init__(self, *, versions: Collection[int] = (V1, V2), prepare: bool = True) -> None:
        """Detect what works. `prepare` may enable controllers in our own group (version 2); see cgroup_mounts.py."""
        self._obstacle: str | None = None
        self._lock = threading.Lock()
        self._left: list[ControlGroup] = []  # that could not be removed yet, the innermost first
        found = [hierarchy for hierarchy in hierarchies() if hierarchy.version in versions]
        self._hierarchies = tuple(self._prepared(hierarchy) if prepare else hierarchy for hierarchy in found)
        self._reaper_groups: dict[int, dict[str, Path]] = {}  # the groups of a reaper, by its pid
        self._providers: dict[Feature, Hierarchy] = {}
        self.support: Mapping[Feature, FeatureSupport] = {feature: self._find(feature) for feature in FEATURES}
        self._remove_stale()

    @property
    def backend(self) -> Backend:
        """Which version of control groups provides the features that work."""
        versions = {support.version for support in self.support.values() if support.version is not None}
        names: dict[frozenset[int], Backend] = {frozenset({2}): "v2", frozenset({1}): "v1", frozenset({1, 2}): "hybrid"}
        return names.get(frozenset(versions), "none")

    @property
    def gives_realtime(self) -> bool:
        """Whether the policies fifo and rr are possible in a group that limits CPU time: version 1 may give it none."""
        cpu = self._providers.get("weight") or self._providers.get("quota")
        return cpu is None or not (cpu.base / "cpu.rt_runtime_us").exists()  # 0 in a new group

    def create(
        self,
        limits: GroupLimits | None = None,
        *,
        parent: ControlGroup | None = None,
        features: Collection[Feature] = FOR_A_SESSION,
        label: str = "",
    ) -> ControlGroup:
        """Create an empty group with these limits; its `advisories` list those that are not in force.

        It has what its limits and `features` need. `label` is added to its name, for people who look at the machine.
        """
        limits = limits or GroupLimits()
        needed = {*features, *(limit for limit in LIMITS if limits.value_of(limit) is not None)}
        made = {self._providers[feature].name for feature in needed if feature in self._providers}
        providers = {
            feature: found
            for feature, found in self._providers.items()
            # limits of CPU time may be set later, as far as that takes no further folder
            if feature in needed or (feature in CPU_LIMITS and found.name in made)
        }
        while True:
            name = f"rota-{os.getpid()}-{next(_serial)}{_in_a_name(label)}"
            group = ControlGroup(name, self.support, providers, self._groups_of, parent)
            if group.make_folders():
                group.set(limits)
                return group

    def discard(self, group: ControlGroup) -> None:
        """Remove a group. What still runs in it is killed, and then it is removed with the next one or by `close`."""
        with self._lock:
            if not group.remove():
                with suppress(RotaError, OSError):
                    if group.members():
                        group.kill()
                self._left.append(group)
            self._remove_left()

    def close(self) -> None:
        """Remove the discarded groups whose processes had not exited yet."""
        with self._lock:
            self._remove_left()
            for group in self._left:
                with suppress(OSError):
                    _wait_for_exits(group.members())
            self._remove_left()

    def _remove_left(self) -> None:
        self._left = [group for group in self._left if not group.remove()]

    def _groups_of(self, reaper_pid: int) -> dict[str, Path]:
        """The folders of the groups of a reaper, by hierarchy. A reaper is never moved, so they are read once."""
        if reaper_pid not in self._reaper_groups:
            self._reaper_groups = {
                reaper_pid: {hierarchy.name: hierarchy.own_group for hierarchy in hierarchies(reaper_pid)}
            }
        return self._reaper_groups[reaper_pid]

    # --- detection -------------------------------------------------------------------------------

    def _prepared(self, hierarchy: Hierarchy) -> Hierarchy:
        if hierarchy.version != V2:
            return hierarchy
        hierarchy, self._obstacle = enable_controllers(hierarchy)
        return hierarchy

    def _find(self, feature: Feature) -> FeatureSupport:
        """Try a feature in every hierarchy that could have it, version 2 first."""
        problems = []
        for hierarchy in sorted(self._hierarchies, key=lambda hierarchy: -hierarchy.version):
            problem = _try(FILES_BY_VERSION[hierarchy.version], feature, hierarchy)
            if problem is None:
                self._providers[feature] = hierarchy
                return FeatureSupport(feature, hierarchy.version)
            problems.append(problem)
        why = next((problem for problem in problems if problem), "no control group of this machine offers it")
        return FeatureSupport(feature, None, self._obstacle if self._obstacle and feature in LIMITS else why)

    def _remove_stale(self) -> None:
        """Remove the empty groups of processes that have exited."""
        for hierarchy in self._hierarchies:
            for folder in hierarchy.base.glob(GROUPS):
                owner = folder.name.split("-")[1]
                if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
                    _remove_with_children(folder)


def _try(files: CgroupFiles, feature: Feature, hierarchy: Hierarchy) -> str | None:
    """Return why a feature does not work in a hierarchy: "" if the hierarchy is not for it, None if it works."""
    controller = files.controllers[feature]
    if controller is not None and controller not in hierarchy.controllers:
        return ""
    if controller is not None and hierarchy.version == V2 and controller not in child_controllers(hierarchy.base):
        return f"{hierarchy.base} does not enable {controller} for its child groups"
    probe = hierarchy.base / f"rota-{os.getpid()}-{next(_serial)}"
    try:
        probe.mkdir()
    except OSError as problem:
        return f"no group can be created in {hierarchy.base}: {problem.strerror}"
    try:
        files.probe(feature, probe)
        # moving a process into or out of a group needs write access to our own group too
        os.close(os.open(hierarchy.own_group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
    except OSError as problem:
        return f"{problem.filename or probe} cannot be used: {problem.strerror}"
    finally:
        _remove(probe)
    return None


# --- a group -------------------------------------------------------------------------------------------


class GroupUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a group has used so far, including exited processes; None if the machine does not report it."""

    cpu_ns: int | None = None
    memory_bytes_max: int | None = None
    oom_kills: int | None = None


class ControlGroup:
    """A control group for one session or for other groups. `Cgroups.discard` removes it at the end."""

    def __init__(
        self,
        name: str,
        support: Mapping[Feature, FeatureSupport],
        providers: Mapping[Feature, Hierarchy],
        groups_of: Callable[[int], Mapping[str, Path]],
        parent: ControlGroup | None = None,
    ) -> None:
        self.name = name
        self._parent = parent
        self._groups_of = groups_of
        self._session: Session | None = None
        self.limits = GroupLimits()  # as last requested
        self.advisories: tuple[Advisory, ...] = ()  # requested limits that are not in force
        self._support = support
        above = {} if parent is None else parent.places
        self._hierarchies = {hierarchy.name: hierarchy for hierarchy in providers.values()}
        self._own = {
            hierarchy.name: above.get(hierarchy.name, hierarchy.base) / name for hierarchy in self._hierarchies.values()
        }
        self.places: Mapping[str, Path] = {**above, **self._own}  # where its session is, by hierarchy
        self._folders = {feature: self._own[hierarchy.name] for feature, hierarchy in providers.items()}

    @property
    def folders(self) -> list[Path]:
        """Its folders, one in each hierarchy."""
        return list(self._own.values())

    def make_folders(self) -> bool:
        """Create its folders; False if an earlier process with our pid left one of that name."""
        try:
            for name, folder in self._own.items():
                folder.mkdir()
                FILES_BY_VERSION[self._hierarchies[name].version].copy_from_parent(folder)
        except FileExistsError:
            self.remove()
            return False
        except OSError as problem:
            self.remove()
            raise HostError(
                f"control group {self.name} cannot be created: {problem.strerror}", group=self.name
            ) from problem
        return True

    def hold_groups(self) -> None:
        """Prepare it to hold other groups instead of a session (version 2: enable the controllers for them)."""
        for name, folder in self._own.items():
            if self._hierarchies[name].version == V2 and (controllers := child_controllers(folder.parent)):
                problem = enable_for_children(folder, controllers)
                if problem is not None:
                    raise HostError(problem, group=self.name)

    def set(self, limits: GroupLimits) -> tuple[Advisory, ...]:
        """Set its limits, also while processes run in it. Return advisories for limits that are not in force."""
        before, self.limits = self.limits, limits
        missing = {advisory.what for advisory in self.advisories}  # the kernel may take them now
        changed = [name for name in LIMITS if limits.value_of(name) != before.value_of(name) or name in missing]
        self.advisories = tuple(advisory for limit in changed for advisory in self._set_limit(limit, before))
        return self.advisories

    def can_limit(self, limit: Limit) -> bool:
        """Whether it has the folder for a limit."""
        return limit in self._folders

    def enforces(self, limit: Limit) -> bool:
        """Whether a limit was requested and is in force."""
        missing = {advisory.what for advisory in self.advisories}
        return self.limits.value_of(limit) is not None and limit not in missing

    def freeze(self) -> None:
        """Freeze all its processes. It takes effect a moment later, when `is_frozen` returns True."""
        self._wait_until_reaper_has_left()
        self._write("freeze", self._files("freeze").frozen(True))

    def thaw(self) -> None:
        """Continue its processes."""
        self._write("freeze", self._files("freeze").frozen(False))

    def is_frozen(self) -> bool:
        """Whether all its processes are frozen."""
        return self._files("freeze").is_frozen(self._folder("freeze"))

    def kill(self) -> None:
        """Kill all its processes, also those that have left the session."""
        self._wait_until_reaper_has_left()
        kill = self._files("kill").kill(self._folder("kill"))
        if kill is not None:
            self._write("kill", kill)
        else:
            self._kill_each()

    def members(self) -> list[int]:
        """Its processes."""
        return [int(pid) for pid in (self.folders[0] / "cgroup.procs").read_text().split()] if self._hierarchies else []

    def usage(self) -> GroupUsage:
        """What it has used so far."""
        cpu_ns = memory_bytes_max = oom_kills = None
        if "cpu_usage" in self._folders:
            cpu_ns = self._files("cpu_usage").cpu_ns(self._folders["cpu_usage"])
        if "memory" in self._folders:
            memory_bytes_max, oom_kills = self._files("memory").memory(self._folders["memory"])
        return GroupUsage(cpu_ns=cpu_ns, memory_bytes_max=memory_bytes_max, oom_kills=oom_kills)

    def cpu_s(self) -> float:
        """CPU time that it has used, also by processes that were never waited for; 0 if that cannot be read."""
        with suppress(OSError):
            return (self.usage().cpu_ns or 0) / 1e9
        return 0.0

    def remove(self) -> bool:
        """Remove it; False while it still has processes."""
        removed = [_remove(folder) for folder in self.folders]  # try all of them, even if the first fails
        return all(removed)

    def join(self, reaper_pid: int) -> GroupJoin:
        """Return how the reaper joins the group and returns, and how it cleans up if the client dies."""
        if self.members():
            raise Conflict(f"control group {self.name} already has a session", hint="Create a group for each session.")
        if "freeze" in self._folders and self.is_frozen():
            raise Conflict(
                f"control group {self.name} is frozen", hint="Thaw it first: a process that joins it would freeze too."
            )
        reaper_groups, procs = self._groups_of(reaper_pid), "cgroup.procs"
        moved = self._cpu_places() if self._limits_cpu() else {}
        join = [
            (f"{folder}/{procs}", f"{reaper_groups[name]}/{procs}")
            for name, folder in self.places.items()
            if name not in moved
        ]
        enforced = frozenset(limit for limit in LIMITS if self.enforces(limit))
        return GroupJoin(join, self._cleanup(), enforced, [f"{folder}/{procs}" for folder in moved.values()])

    def visit(self, reaper_pid: int) -> list[tuple[str, str]]:
        """Return how a process of the reaper joins the group for a while and returns: (file to join, to return)."""
        home, procs = self._groups_of(reaper_pid), "cgroup.procs"
        return [(f"{folder}/{procs}", f"{home[name]}/{procs}") for name, folder in self.places.items()]

    def assign(self, session: Session) -> None:
        """Record the session that is being started in it."""
        self._session = session

    def _wait_until_reaper_has_left(self) -> None:
        if self._session is not None:
            with suppress(RotaError):  # if the start failed or the reaper is lost, the group is empty
                self._session.wait_started()

    def _set_limit(self, limit: Limit, before: GroupLimits) -> Iterator[Advisory]:
        asked = str(self.limits.value_of(limit) or "none")
        if limit not in self._folders:
            if self.limits.value_of(limit) is not None:
                yield Advisory(limit, self._support[limit].why_not or "the group was created without it", asked)
            return
        try:
            self._write_limit(limit, self.limits)
        except OSError as problem:
            with suppress(OSError):
                self._write_limit(limit, before)  # what was in force before stays
            number = problem.errno or 0
            why = _NOT_IN_THE_TREE.get((limit, number)) or explain_errno(number)
            yield Advisory(limit, why, asked, self._in_force(limit))

    def _write_limit(self, limit: Limit, limits: GroupLimits) -> None:
        folder = self._folders[limit]
        if limit == "cores" and limits.cores is None:
            self._files(limit).copy_from_parent(folder)
        for file_write in self._files(limit).limit(limit, limits):
            write(folder, file_write)

    def _in_force(self, limit: Limit) -> str:
        try:
            return self._files(limit).in_force(limit, self._folders[limit])
        except OSError:
            return ""

    def _files(self, feature: Feature) -> CgroupFiles:
        support = self._support[feature]
        if support.version is None:
            raise HostUnsupported(f"no control group on this machine can {feature}: {support.why_not}")
        return FILES_BY_VERSION[support.version]

    def _folder(self, feature: Feature) -> Path:
        return self._folders[feature]

    def _write(self, feature: Feature, file_write: FileWrite) -> None:
        try:
            write(self._folder(feature), file_write)
        except OSError as problem:
            raise HostError(
                f"control group {self.name} cannot {feature}: {problem.strerror}", group=self.name
            ) from problem

    def _kill_each(self) -> None:
        """Kill each process: freeze the group first so that none can fork, then thaw it so that they die."""
        self.freeze()
        for _check in range(FREEZE_CHECKS_MAX):
            if self.is_frozen():
                break
        try:
            for pid in (self._folder("kill") / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGKILL)
        finally:
            self.thaw()

    def _limits_cpu(self) -> bool:
        limits = self.limits
        own = limits.weight is not None or limits.quota_us is not None or limits.cores is not None
        return own or (self._parent is not None and self._parent._limits_cpu())

    def _cpu_places(self) -> dict[str, Path]:
        """Where it and its parents limit CPU time, by hierarchy."""
        own = {
            hierarchy.name: self._own[hierarchy.name]
            for hierarchy in self._hierarchies.values()
            if hierarchy.controllers & CPU_CONTROLLERS
        }
        return own if self._parent is None else {**self._parent._cpu_places(), **own}

    def _with_parents(self) -> Iterator[Path]:
        yield from self.folders
        if self._parent is not None:
            yield from self._parent._with_parents()

    def _cleanup(self) -> GroupCleanup:
        cleanup: GroupCleanup = {"remove": [str(folder) for folder in self._with_parents()]}
        if "freeze" in self._folders:
            thaw = self._files("freeze").frozen(False)
            cleanup["thaw"] = [(str(self._folder("freeze") / thaw.file), thaw.text)]
        if "kill" in self._folders and (kill := self._files("kill").kill(self._folder("kill"))) is not None:
            cleanup["kill"] = [(str(self._folder("kill") / kill.file), kill.text)]
        return cleanup


def _in_a_name(label: str) -> str:
    text = _NOT_IN_A_NAME.sub("_", label)[:LABEL_CHARS_MAX]
    return f"-{text}" if text else ""


def _wait_for_exits(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            try:
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.poll(EXIT_WAIT_S * 1_000)
            finally:
                os.close(pidfd)


def _remove_with_children(folder: Path) -> None:
    for child in folder.glob(GROUPS):
        _remove_with_children(child)
    _remove(folder)


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

"""Control groups: limits on a whole session, and stopping or killing it at one stroke.

A *feature* is what rota wants; which file of which tree gives it differs by version. `DIALECTS` says, for each
version, what to write where; everything else here is the same for both. Each feature is found by itself, because a
machine may give quota in one tree and freezing in another, and is found by *trying*: a group is made, the feature's
file is written with a harmless value, and the group is removed. So what `Support` says is what works, not what
exists.

    feature      version 2              version 1                     limits or does
    quota        cpu.max                cpu.cfs_quota_us, …period_us  processor time per period, all together
    weight       cpu.weight             cpu.shares                    share when processors are short
    memory       memory.max             memory.limit_in_bytes         memory, all together; the kernel kills beyond
    processes    pids.max               pids.max                      processes and threads, all together
    freeze       cgroup.freeze          freezer.state                 stop and go on, whatever the processes do
    kill         cgroup.kill            freeze, kill each, thaw       end all, also those that left the session
    cpu_usage    cpu.stat               cpuacct.usage                 processor time, all together, dead ones too

Where a tree of version 2 can freeze and kill, it is preferred for that even on a hybrid machine: there a frozen group
dies at once, while in version 1 it dies only when it thaws. What is missing is reported as an `Advisory`; freezing or
killing by a group that cannot raises `HostUnsupported`.

One group holds one session: the minder steps into the group to start the command there (see spawning.py), and a group
that already holds something might be frozen, killed or out of memory in that moment, and the minder with it. For the
same reason freezing or killing waits until a session that is being started there runs.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from rota.errors import Conflict, HostError, HostUnsupported, RotaError
from rota.host.advisory import Advisory, reason
from rota.host.cgroup_files import (
    DIALECTS,
    FEATURES,
    LIMITS,
    Dialect,
    Feature,
    GroupLimits,
    Limit,
    Write,
    write,
)
from rota.host.cgroup_mounts import V1, V2, Tree, enable_controllers, handed_down, trees
from rota.host.command import AtEnd, Joining
from rota.host.session import Session

__all__ = ["Backend", "Cgroups", "Group", "GroupUsage", "Support"]

FREEZE_LOOKS_MAX = 10_000  # at a group of version 1 that is freezing; each look is a call of the kernel

_serial = itertools.count(1)  # of all groups of this process

Backend: TypeAlias = Literal["v2", "v1", "hybrid", "none"]


class Support(msgspec.Struct, frozen=True):
    """Whether a feature works here, and by which version of control groups, or why not."""

    feature: Feature
    version: int | None
    why_not: str = ""

    @property
    def works(self) -> bool:
        """Whether it was tried and did."""
        return self.version is not None


class Cgroups:
    """The control groups of this machine, as far as we may use them."""

    def __init__(self, *, versions: Collection[int] = (V1, V2), prepare: bool = True) -> None:
        """Find out what works. `prepare` may hand controllers down in our own group (version 2); see hierarchies."""
        self._obstacle: str | None = None
        found = [tree for tree in trees() if tree.version in versions]
        self._trees = tuple(self._prepared(tree) if prepare else tree for tree in found)
        self._minder_homes: dict[int, dict[str, Path]] = {}  # where a minder is at home, by its pid
        self._homes: dict[Feature, Tree] = {}
        self.support: Mapping[Feature, Support] = {feature: self._find(feature) for feature in FEATURES}
        self._remove_stale()

    @property
    def backend(self) -> Backend:
        """Which version of control groups gives what works here."""
        versions = {support.version for support in self.support.values() if support.version is not None}
        names: dict[frozenset[int], Backend] = {frozenset({2}): "v2", frozenset({1}): "v1", frozenset({1, 2}): "hybrid"}
        return names.get(frozenset(versions), "none")

    def make(self, limits: GroupLimits | None = None) -> Group:
        """A new, empty group with these limits; what of them is not in force is in its `advisories`."""
        while True:
            group = Group(f"rota-{os.getpid()}-{next(_serial)}", self.support, self._homes, self._home_of)
            if group.create():
                group.set(limits or GroupLimits())
                return group

    def _home_of(self, minder_pid: int) -> dict[str, Path]:
        """The folders of the group that a minder is in, by tree; a minder is never moved, so it is read once."""
        if minder_pid not in self._minder_homes:
            self._minder_homes = {minder_pid: {tree.name: tree.home for tree in trees(minder_pid)}}
        return self._minder_homes[minder_pid]

    # --- finding out -----------------------------------------------------------------------------

    def _prepared(self, tree: Tree) -> Tree:
        if tree.version != V2:
            return tree
        tree, self._obstacle = enable_controllers(tree)
        return tree

    def _find(self, feature: Feature) -> Support:
        """Try a feature in every tree that could have it, version 2 first."""
        problems = []
        for tree in sorted(self._trees, key=lambda tree: -tree.version):
            problem = _try(DIALECTS[tree.version], feature, tree)
            if problem is None:
                self._homes[feature] = tree
                return Support(feature, tree.version)
            problems.append(problem)
        why = next((problem for problem in problems if problem), "this machine has no control groups for it")
        return Support(feature, None, self._obstacle if self._obstacle and feature in LIMITS else why)

    def _remove_stale(self) -> None:
        """Remove empty groups of processes that are gone."""
        for tree in self._trees:
            for folder in tree.base.glob("rota-*-*"):
                owner = folder.name.split("-")[1]
                if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
                    _remove(folder)


def _try(dialect: Dialect, feature: Feature, tree: Tree) -> str | None:
    """What stands in the way of a feature in a tree; "" when the tree is not for it, None when it works."""
    controller = dialect.controllers[feature]
    if controller is not None and controller not in tree.controllers:
        return ""
    if controller is not None and tree.version == V2 and controller not in handed_down(tree.base):
        return f"{tree.base} does not hand down {controller}"
    probe = tree.base / f"rota-{os.getpid()}-{next(_serial)}"
    try:
        probe.mkdir()
    except OSError as problem:
        return f"no group can be made in {tree.base}: {problem.strerror}"
    try:
        dialect.probe(feature, probe)
        # to move somebody in or out takes the right to write where we are ourselves
        os.close(os.open(tree.home / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
    except OSError as problem:
        return f"{problem.filename or probe} cannot be used: {problem.strerror}"
    finally:
        _remove(probe)
    return None


# --- a group -------------------------------------------------------------------------------------------


class GroupUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a group has used so far, the dead included; None where the machine does not tell."""

    cpu_ns: int | None = None
    memory_bytes_max: int | None = None
    oom_kills: int | None = None


class Group:
    """A control group for one session. Made by `Cgroups.make`; removed by its maker when the session has ended."""

    def __init__(
        self,
        name: str,
        support: Mapping[Feature, Support],
        homes: Mapping[Feature, Tree],
        home_of: Callable[[int], Mapping[str, Path]],
    ) -> None:
        self.name = name
        self._home_of = home_of
        self._session: Session | None = None
        self.limits = GroupLimits()  # what was asked for last
        self.advisories: tuple[Advisory, ...] = ()  # what was asked and is not in force
        self._support = support
        self._trees = {tree.name: tree for tree in homes.values()}
        self._folders = {feature: tree.base / name for feature, tree in homes.items()}

    @property
    def folders(self) -> list[Path]:
        """Its folders, one in each tree."""
        return [tree.base / self.name for tree in self._trees.values()]

    def create(self) -> bool:
        """Make its folders; False when a process that had our pid before us left one of that name."""
        try:
            for folder in self.folders:
                folder.mkdir()
        except FileExistsError:
            self.remove()
            return False
        except OSError as problem:
            self.remove()
            raise HostError(f"group {self.name} cannot be made: {problem.strerror}", group=self.name) from problem
        return True

    def set(self, limits: GroupLimits) -> tuple[Advisory, ...]:
        """Put limits into force, also while something runs in it. What is not in force is the answer."""
        before, self.limits = self.limits, limits
        wanted = [limit for limit in LIMITS if limits.asked(limit) is not None or before.asked(limit) is not None]
        self.advisories = tuple(advisory for limit in wanted for advisory in self._put_into_force(limit))
        return self.advisories

    def holds(self, limit: Limit) -> bool:
        """Whether a limit was asked for and is in force."""
        missing = {advisory.what for advisory in self.advisories}
        return self.limits.asked(limit) is not None and limit not in missing

    def freeze(self) -> None:
        """Let everything in it stand still. It does when `is_frozen` says so, a moment later."""
        self._wait_until_the_minder_has_left()
        self._do("freeze", self._dialect("freeze").frozen(True))

    def thaw(self) -> None:
        """Let it go on."""
        self._do("freeze", self._dialect("freeze").frozen(False))

    def is_frozen(self) -> bool:
        """Whether everything in it stands still."""
        return self._dialect("freeze").is_frozen(self._folder("freeze"))

    def kill(self) -> None:
        """Kill everything in it, also what has left the session."""
        self._wait_until_the_minder_has_left()
        word = self._dialect("kill").kill(self._folder("kill"))
        if word is not None:
            self._do("kill", word)
        else:
            self._kill_each()

    def members(self) -> list[int]:
        """The processes in it."""
        return [int(pid) for pid in (self.folders[0] / "cgroup.procs").read_text().split()] if self._trees else []

    def usage(self) -> GroupUsage:
        """What it has used so far."""
        cpu_ns = memory_bytes_max = oom_kills = None
        if "cpu_usage" in self._folders:
            cpu_ns = self._dialect("cpu_usage").cpu_ns(self._folders["cpu_usage"])
        if "memory" in self._folders:
            memory_bytes_max, oom_kills = self._dialect("memory").memory(self._folders["memory"])
        return GroupUsage(cpu_ns=cpu_ns, memory_bytes_max=memory_bytes_max, oom_kills=oom_kills)

    def remove(self) -> bool:
        """Remove it; False while something still lives in it."""
        removed = [_remove(folder) for folder in self.folders]  # all of them, whatever becomes of the first
        return all(removed)

    def joining(self, minder_pid: int) -> Joining:
        """How the minder gets into the group and home again, and what it must do when it is left alone."""
        if self.members():
            raise Conflict(f"group {self.name} holds a session already", hint="Make a group for each session.")
        if "freeze" in self._folders and self.is_frozen():
            raise Conflict(f"group {self.name} is frozen", hint="Thaw it first: who joins it stands still.")
        homes, procs = self._home_of(minder_pid), "cgroup.procs"
        join = [(f"{tree.base}/{self.name}/{procs}", f"{homes[name]}/{procs}") for name, tree in self._trees.items()]
        return Joining(join, self._at_end(), frozenset(limit for limit in LIMITS if self.holds(limit)))

    def take(self, session: Session) -> None:
        """This session is being started in it."""
        self._session = session

    # --- by itself -------------------------------------------------------------------------------

    def _wait_until_the_minder_has_left(self) -> None:
        if self._session is not None:
            with suppress(RotaError):  # if it was refused, or the minder is lost, nobody is in there
                self._session.started()

    def _put_into_force(self, limit: Limit) -> Iterator[Advisory]:
        asked = str(self.limits.asked(limit) or "none")
        if limit not in self._folders:
            yield Advisory(limit, self._support[limit].why_not, asked)
            return
        try:
            for word in self._dialect(limit).limit(limit, self.limits):
                write(self._folders[limit], word)
        except OSError as problem:
            yield Advisory(limit, reason(problem.errno or 0), asked)

    def _dialect(self, feature: Feature) -> Dialect:
        support = self._support[feature]
        if support.version is None:
            raise HostUnsupported(f"no control group here can {feature}: {support.why_not}")
        return DIALECTS[support.version]

    def _folder(self, feature: Feature) -> Path:
        return self._folders[feature]

    def _do(self, feature: Feature, word: Write) -> None:
        try:
            write(self._folder(feature), word)
        except OSError as problem:
            raise HostError(f"group {self.name} cannot {feature}: {problem.strerror}", group=self.name) from problem

    def _kill_each(self) -> None:
        """Without one stroke for all: make them stand still so that none can fork away, kill each, let them die."""
        self.freeze()
        for _look in range(FREEZE_LOOKS_MAX):
            if self.is_frozen():
                break
        try:
            for pid in (self._folder("kill") / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(int(pid), signal.SIGKILL)
        finally:
            self.thaw()

    def _at_end(self) -> AtEnd:
        at_end: AtEnd = {"remove": [str(folder) for folder in self.folders]}
        if "freeze" in self._folders:
            thaw = self._dialect("freeze").frozen(False)
            at_end["thaw"] = [(str(self._folder("freeze") / thaw.file), thaw.text)]
        if "kill" in self._folders and (kill := self._dialect("kill").kill(self._folder("kill"))) is not None:
            at_end["kill"] = [(str(self._folder("kill") / kill.file), kill.text)]
        return at_end


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

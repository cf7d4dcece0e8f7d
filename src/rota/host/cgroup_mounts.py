"""Where the control group hierarchies of this machine are mounted, and which groups a process is in.

Linux has two kinds. *Version 2* is one hierarchy for everything; a controller (cpu, cpuset, memory, pids) works in a
group only if the parent group enables it for its children (`cgroup.subtree_control`), and a group that does so may
contain no processes itself, except the root. *Version 1* is one hierarchy per controller, each with its own files. Many
machines are *hybrid*: controllers in version 1 hierarchies, beside a version 2 hierarchy that can only freeze and kill.

`/proc/PID/cgroup` lists the group of a process in each hierarchy as a path; `/proc/self/mountinfo` lists where the
hierarchies are mounted. In a container the path may begin above the mounted part; the root of the mount is removed
from its front:

    mountinfo   /docker/f00  mounted at  /sys/fs/cgroup          a process in /docker/f00/work is
    cgroup      0::/docker/f00/work                               at /sys/fs/cgroup/work
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rota.host.lineage import descendants_of

__all__ = [
    "OWN_LEAF",
    "V1",
    "V2",
    "Hierarchy",
    "child_controllers",
    "enable_controllers",
    "enable_for_children",
    "hierarchies",
]

V1, V2 = 1, 2

OWN_LEAF = "rota-self"  # we move into this child group so that our group may enable controllers for its children
CONTROLLERS = frozenset({"cpu", "cpuacct", "cpuset", "memory", "pids", "freezer"})  # version 1 hierarchies that we use
WANTED = frozenset({"cpu", "cpuset", "memory", "pids"})  # version 2 controllers that we enable


class Hierarchy(msgspec.Struct, frozen=True):
    """One hierarchy, and the group in it that a process belongs to."""

    version: int  # 1 or 2
    name: str  # version 1: its controllers as in /proc/PID/cgroup; version 2: "unified"
    controllers: frozenset[str]  # version 1: those of the hierarchy; version 2: those available to our group
    own_group: Path  # the folder of our own group

    @property
    def base(self) -> Path:
        """The folder in which new groups are created: our original group, also after we moved into its leaf."""
        return _base(self.own_group)


def _base(own_group: Path) -> Path:
    return own_group.parent if own_group.name == OWN_LEAF else own_group


def hierarchies(pid: int | None = None, *, proc: Path = Path("/proc")) -> tuple[Hierarchy, ...]:
    """The hierarchies that we use, with the groups of a process (None: this process)."""
    process = proc / ("self" if pid is None else str(pid))
    try:
        memberships = (process / "cgroup").read_text().splitlines()
        mounts = list(_mounts((proc / "self" / "mountinfo").read_text()))
    except OSError:
        return ()  # no /proc, or a kernel without control groups
    found = (_hierarchy(line, mounts) for line in memberships)
    return tuple(hierarchy for hierarchy in found if hierarchy is not None)


class _Mount(msgspec.Struct, frozen=True):
    version: int
    controllers: frozenset[str]
    root: str
    folder: Path


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        front, _, back = line.partition(" - ")
        kind, _source, options = back.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            root, folder = front.split(" ")[3:5]
            yield _Mount(
                V2 if kind == "cgroup2" else V1, frozenset(options.split(",")), _unescape(root), Path(_unescape(folder))
            )


def _unescape(text: str) -> str:
    """Decode mountinfo, which writes blanks and the like as three octal digits."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in text else text


def _hierarchy(membership: str, mounts: list[_Mount]) -> Hierarchy | None:
    number, names, path = membership.split(":", 2)
    version = V2 if number == "0" and not names else V1
    wanted = frozenset(names.split(","))
    for mount in mounts:
        if mount.version == version and (version == V2 or wanted & mount.controllers & CONTROLLERS):
            own_group = mount.folder / _inside(path, mount.root)
            return (
                Hierarchy(V1, names, wanted, own_group)
                if version == V1
                else Hierarchy(V2, "unified", _available_controllers(_base(own_group)), own_group)
            )
    return None


def _inside(path: str, root: str) -> str:
    """The path of a group relative to the root of a mount."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path.lstrip("/")


def _available_controllers(folder: Path) -> frozenset[str]:
    return _words(folder / "cgroup.controllers")


def _words(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text().split())
    except OSError:
        return frozenset()


# --- version 2: enabling controllers for child groups -------------------------------------------------


def enable_controllers(hierarchy: Hierarchy) -> tuple[Hierarchy, str | None]:
    """Enable cpu, cpuset, memory and pids for the groups that we create. Return the hierarchy and the obstacle, if any.

    A group that contains processes cannot enable controllers for its children. If our group contains only this process
    and its descendants, all of them move into a leaf of it. Other processes are never moved.
    """
    folder = hierarchy.base
    missing = (hierarchy.controllers & WANTED) - child_controllers(folder)
    if not missing or enable_for_children(folder, missing) is None:
        return hierarchy, None
    ours = {os.getpid(), *descendants_of(os.getpid())}
    members = {int(pid) for pid in _words(folder / "cgroup.procs")}
    if not members <= ours:
        return hierarchy, f"{folder} contains other processes: start rota in its own delegated control group"
    problem = _move_into_leaf(folder, members)
    if problem is None:
        hierarchy = msgspec.structs.replace(hierarchy, own_group=folder / OWN_LEAF)
        problem = enable_for_children(folder, missing)
    return hierarchy, problem


def child_controllers(folder: Path) -> frozenset[str]:
    """The controllers that are enabled for the children of a group."""
    return _words(folder / "cgroup.subtree_control")


def enable_for_children(folder: Path, controllers: frozenset[str]) -> str | None:
    """Enable controllers for the children of a group. Return the obstacle, if any."""
    try:
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(controllers)))
    except OSError as problem:
        return f"{folder} cannot enable {', '.join(sorted(controllers))} for its child groups: {problem.strerror}"
    return None


def _move_into_leaf(folder: Path, members: set[int]) -> str | None:
    """Move the processes of a group into its leaf. Return the obstacle, if any."""
    leaf = folder / OWN_LEAF
    try:
        leaf.mkdir(exist_ok=True)
        for pid in members:
            (leaf / "cgroup.procs").write_text(str(pid))
    except OSError as problem:
        return f"{leaf} cannot be used: {problem.strerror}"
    return None

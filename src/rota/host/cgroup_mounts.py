"""Where control groups are on this machine, and where we stand in them.

Linux has two kinds. *Version 2* is one tree for everything; a controller (cpu, memory, pids) works in a group only if
the group's parent hands it down (`cgroup.subtree_control`), and, except at the root, a group that hands down may hold
no processes of its own. *Version 1* is one tree per controller, each with its own files. Many machines are *hybrid*:
the controllers in version 1 trees, and a version 2 tree beside them that can only freeze and kill.

`/proc/PID/cgroup` says which group a process is in, as a path inside each tree; `/proc/self/mountinfo` says where the
trees can be seen. In a container the path may begin above what is mounted; the mount's own root is cut off its front:

    mountinfo   /docker/f00  mounted at  /sys/fs/cgroup          a process in /docker/f00/work is
    cgroup      0::/docker/f00/work                               at /sys/fs/cgroup/work
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rota.host.lineage import descendants_of

__all__ = ["OWN_LEAF", "V1", "V2", "Tree", "enable_controllers", "handed_down", "trees"]

V1, V2 = 1, 2

OWN_LEAF = "rota-self"  # where we step aside to, so that the group we were in may hand controllers down
CONTROLLERS = frozenset({"cpu", "cpuacct", "memory", "pids", "freezer"})  # trees of version 1 that matter
WANTED = frozenset({"cpu", "memory", "pids"})  # of what version 2 can hand down


class Tree(msgspec.Struct, frozen=True):
    """One tree of groups, and the group in it that a process is in."""

    version: int  # 1 or 2
    name: str  # of version 1: its controllers, as /proc/PID/cgroup writes them; of version 2: "unified"
    controllers: frozenset[str]  # of version 1: what the tree is for; of version 2: what our group may hand down
    home: Path  # the folder of our own group

    @property
    def base(self) -> Path:
        """The folder in which new groups are made: the one we were in, also when we have stepped aside."""
        return _base(self.home)


def _base(home: Path) -> Path:
    return home.parent if home.name == OWN_LEAF else home


def trees(pid: int | None = None, *, proc: Path = Path("/proc")) -> tuple[Tree, ...]:
    """The trees that matter here, as a process (None: we ourselves) stands in them."""
    who = proc / ("self" if pid is None else str(pid))
    try:
        memberships = (who / "cgroup").read_text().splitlines()
        mounts = list(_mounts((proc / "self" / "mountinfo").read_text()))
    except OSError:
        return ()  # no /proc, or a kernel without control groups
    found = (_tree(line, mounts) for line in memberships)
    return tuple(tree for tree in found if tree is not None)


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
                V2 if kind == "cgroup2" else V1, frozenset(options.split(",")), _plain(root), Path(_plain(folder))
            )


def _plain(text: str) -> str:
    """Blanks and the like stand in mountinfo as three octal digits."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in text else text


def _tree(membership: str, mounts: list[_Mount]) -> Tree | None:
    number, names, path = membership.split(":", 2)
    version = V2 if number == "0" and not names else V1
    wanted = frozenset(names.split(","))
    for mount in mounts:
        if mount.version == version and (version == V2 or wanted & mount.controllers & CONTROLLERS):
            home = mount.folder / _inside(path, mount.root)
            return (
                Tree(V1, names, wanted, home) if version == V1 else Tree(V2, "unified", _handed_to(_base(home)), home)
            )
    return None


def _inside(path: str, root: str) -> str:
    """A group's path as seen from a mount whose root is some group."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path.lstrip("/")


def _handed_to(folder: Path) -> frozenset[str]:
    return _words(folder / "cgroup.controllers")


def _words(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text().split())
    except OSError:
        return frozenset()


# --- version 2: handing controllers down --------------------------------------------------------------


def enable_controllers(tree: Tree) -> tuple[Tree, str | None]:
    """Let the groups that we make have cpu, memory and pids: the tree as it is then, and what stood in the way.

    If our own group holds only us and our children, we all step aside into a leaf of it, for a group with processes
    hands nothing down. With others in it we leave everything as it is: they are not ours to move.
    """
    folder = tree.base
    missing = (tree.controllers & WANTED) - handed_down(folder)
    if not missing or _hand_down(folder, missing) is None:
        return tree, None
    ours = {os.getpid(), *descendants_of(os.getpid())}
    members = {int(pid) for pid in _words(folder / "cgroup.procs")}
    if not members <= ours:
        return tree, f"{folder} holds others too: start rota in a delegated group of its own"
    problem = _step_aside(folder, members)
    if problem is None:
        tree = msgspec.structs.replace(tree, home=folder / OWN_LEAF)
        problem = _hand_down(folder, missing)
    return tree, problem


def handed_down(folder: Path) -> frozenset[str]:
    """The controllers that the groups in a folder have."""
    return _words(folder / "cgroup.subtree_control")


def _hand_down(folder: Path, controllers: frozenset[str]) -> str | None:
    """Hand controllers down; what stood in the way."""
    try:
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(controllers)))
    except OSError as problem:
        return f"{folder} cannot hand down {', '.join(sorted(controllers))}: {problem.strerror}"
    return None


def _step_aside(folder: Path, members: set[int]) -> str | None:
    """Move everybody in a group into a leaf of it; what stood in the way."""
    leaf = folder / OWN_LEAF
    try:
        leaf.mkdir(exist_ok=True)
        for pid in members:
            (leaf / "cgroup.procs").write_text(str(pid))
    except OSError as problem:
        return f"{leaf} cannot be used: {problem.strerror}"
    return None

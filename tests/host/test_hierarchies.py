"""Where control groups are, read from texts of machines that are not this one, and handing controllers down."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rota.host.cgroup_mounts import OWN_LEAF, Tree, enable_controllers, trees

PURE_V2 = "30 23 0:26 / {sys} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "31 23 0:27 / {sys}/unified rw - cgroup2 cgroup2 rw\n"
    "32 23 0:28 / {sys}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 23 0:29 / {sys}/memory rw - cgroup cgroup rw,memory\n"
    "34 23 0:30 / {sys}/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "35 23 0:31 / /proc rw - proc proc rw\n"
)
CONTAINER = "40 23 0:26 /docker/f00 {sys} ro - cgroup2 cgroup rw\n"


def machine(tmp_path: Path, mountinfo: str, cgroup: str) -> tuple[Path, Path]:
    """The two files of a machine's /proc, and the folder where its groups would be."""
    proc, sys = tmp_path / "proc", tmp_path / "sys fs"
    (proc / "self").mkdir(parents=True)
    sys.mkdir()
    (proc / "self" / "mountinfo").write_text(mountinfo.format(sys=str(sys).replace(" ", "\\040")))
    (proc / "self" / "cgroup").write_text(cgroup)
    return proc, sys


def test_a_machine_of_version_2(tmp_path: Path) -> None:
    proc, sys = machine(tmp_path, PURE_V2, "0::/user.slice/session.scope\n")
    home = sys / "user.slice" / "session.scope"
    home.mkdir(parents=True)
    (home / "cgroup.controllers").write_text("cpu io memory pids\n")
    assert trees(proc=proc) == (Tree(2, "unified", frozenset({"cpu", "io", "memory", "pids"}), home),)


def test_a_hybrid_machine(tmp_path: Path) -> None:
    cgroup = "9:name=systemd:/\n5:memory:/jobs/7\n4:cpu,cpuacct:/\n3:net_cls:/\n0::/\n"
    proc, sys = machine(tmp_path, HYBRID, cgroup)
    found = {tree.name: (tree.version, tree.home) for tree in trees(proc=proc)}
    assert found == {
        "memory": (1, sys / "memory" / "jobs" / "7"),
        "cpu,cpuacct": (1, sys / "cpu,cpuacct"),
        "unified": (2, sys / "unified"),
    }


@pytest.mark.parametrize(("path", "inside"), [("/docker/f00/work", "work"), ("/docker/f00", "."), ("/", ".")])
def test_a_container_sees_its_groups_from_its_own_root(tmp_path: Path, path: str, inside: str) -> None:
    proc, sys = machine(tmp_path, CONTAINER, f"0::{path}\n")
    (tree,) = trees(proc=proc)
    assert tree.home == sys / inside


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert trees(proc=tmp_path) == ()


def test_who_has_stepped_aside_makes_groups_beside_itself(tmp_path: Path) -> None:
    proc, sys = machine(tmp_path, PURE_V2, f"0::/rota/{OWN_LEAF}\n")
    (sys / "rota").mkdir()
    (sys / "rota" / "cgroup.controllers").write_text("cpu\n")
    (tree,) = trees(proc=proc)
    assert (tree.base, tree.controllers) == (sys / "rota", frozenset({"cpu"}))


def test_what_is_handed_down_already_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    tree = Tree(2, "unified", frozenset({"cpu", "memory", "pids", "io"}), tmp_path)
    assert enable_controllers(tree) == (tree, None)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory pids\n"


def test_others_in_our_group_are_not_moved(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    (tmp_path / "cgroup.subtree_control").mkdir()  # stands for the kernel's refusal
    tree = Tree(2, "unified", frozenset({"cpu"}), tmp_path)
    same, obstacle = enable_controllers(tree)
    assert same == tree
    assert obstacle is not None
    assert "delegated" in obstacle
    assert not (tmp_path / OWN_LEAF).exists()


def test_what_the_kernel_refuses_also_when_we_have_stepped_aside_is_said(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "cgroup.subtree_control").mkdir()  # stands for the kernel's refusal
    _tree, obstacle = enable_controllers(Tree(2, "unified", frozenset({"cpu"}), tmp_path))
    assert obstacle == f"{tmp_path} cannot hand down cpu: Is a directory"
    assert (tmp_path / OWN_LEAF / "cgroup.procs").read_text() == str(os.getpid())

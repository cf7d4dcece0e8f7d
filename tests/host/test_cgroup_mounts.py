"""Finding control group hierarchies in the /proc files of various machines, and enabling controllers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rota.host.cgroup_mounts import OWN_LEAF, Hierarchy, enable_controllers, hierarchies

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
    """Write the two /proc files of a machine. Return its /proc and the folder of its groups."""
    proc, sys = tmp_path / "proc", tmp_path / "sys fs"
    (proc / "self").mkdir(parents=True)
    sys.mkdir()
    (proc / "self" / "mountinfo").write_text(mountinfo.format(sys=str(sys).replace(" ", "\\040")))
    (proc / "self" / "cgroup").write_text(cgroup)
    return proc, sys


def test_a_machine_of_version_2(tmp_path: Path) -> None:
    proc, sys = machine(tmp_path, PURE_V2, "0::/user.slice/session.scope\n")
    own_group = sys / "user.slice" / "session.scope"
    own_group.mkdir(parents=True)
    (own_group / "cgroup.controllers").write_text("cpu io memory pids\n")
    assert hierarchies(proc=proc) == (Hierarchy(2, "unified", frozenset({"cpu", "io", "memory", "pids"}), own_group),)


def test_a_hybrid_machine(tmp_path: Path) -> None:
    cgroup = "9:name=systemd:/\n5:memory:/jobs/7\n4:cpu,cpuacct:/\n3:net_cls:/\n0::/\n"
    proc, sys = machine(tmp_path, HYBRID, cgroup)
    found = {hierarchy.name: (hierarchy.version, hierarchy.own_group) for hierarchy in hierarchies(proc=proc)}
    assert found == {
        "memory": (1, sys / "memory" / "jobs" / "7"),
        "cpu,cpuacct": (1, sys / "cpu,cpuacct"),
        "unified": (2, sys / "unified"),
    }


@pytest.mark.parametrize(("path", "inside"), [("/docker/f00/work", "work"), ("/docker/f00", "."), ("/", ".")])
def test_a_container_sees_its_groups_from_its_own_root(tmp_path: Path, path: str, inside: str) -> None:
    proc, sys = machine(tmp_path, CONTAINER, f"0::{path}\n")
    (hierarchy,) = hierarchies(proc=proc)
    assert hierarchy.own_group == sys / inside


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert hierarchies(proc=tmp_path) == ()


def test_a_process_that_moved_into_the_leaf_creates_groups_beside_it(tmp_path: Path) -> None:
    proc, sys = machine(tmp_path, PURE_V2, f"0::/rota/{OWN_LEAF}\n")
    (sys / "rota").mkdir()
    (sys / "rota" / "cgroup.controllers").write_text("cpu\n")
    (hierarchy,) = hierarchies(proc=proc)
    assert (hierarchy.base, hierarchy.controllers) == (sys / "rota", frozenset({"cpu"}))


def test_controllers_that_are_enabled_already_are_not_written_again(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    hierarchy = Hierarchy(2, "unified", frozenset({"cpu", "memory", "pids", "io"}), tmp_path)
    assert enable_controllers(hierarchy) == (hierarchy, None)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory pids\n"


def test_other_processes_in_our_group_are_not_moved(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    (tmp_path / "cgroup.subtree_control").mkdir()  # makes the write fail, as a refusal of the kernel would
    hierarchy = Hierarchy(2, "unified", frozenset({"cpu"}), tmp_path)
    same, obstacle = enable_controllers(hierarchy)
    assert same == hierarchy
    assert obstacle is not None
    assert "delegated" in obstacle
    assert not (tmp_path / OWN_LEAF).exists()


def test_a_refusal_of_the_kernel_after_moving_into_the_leaf_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "cgroup.subtree_control").mkdir()  # makes the write fail, as a refusal of the kernel would
    _hierarchy, obstacle = enable_controllers(Hierarchy(2, "unified", frozenset({"cpu"}), tmp_path))
    assert obstacle == f"{tmp_path} cannot enable cpu for its child groups: Is a directory"
    assert (tmp_path / OWN_LEAF / "cgroup.procs").read_text() == str(os.getpid())

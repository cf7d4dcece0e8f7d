"""Which files to write in a control group: the two versions do the same things through different files.

The classes return what to write (`FileWrite`) and leave the writing to the caller, so both versions can be tested on a
machine that has only one of them. Only `CgroupFiles.probe` writes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from rota.errors import CommandInvalid
from rota.host.cgroup_mounts import V1, V2
from rota.model.budgets import CORES_MAX
from rota.model.checks import Checks
from rota.model.cpu import core_list

__all__ = [
    "FEATURES",
    "FILES_BY_VERSION",
    "LIMITS",
    "CgroupFiles",
    "Feature",
    "FileWrite",
    "GroupLimits",
    "Limit",
    "write",
]

Limit: TypeAlias = Literal["quota", "weight", "cores", "memory", "processes"]
Feature: TypeAlias = Literal["quota", "weight", "cores", "memory", "processes", "freeze", "kill", "cpu_usage"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
FEATURES: tuple[Feature, ...] = get_args(Feature)

WEIGHT_NORMAL, WEIGHT_MAX = 100, 10_000  # in units of version 2
SHARES_NORMAL, SHARES_MIN = 1024, 2  # in units of version 1
QUOTA_US_MIN = 1_000  # the kernel's minimum
PERIOD_US_MIN, PERIOD_US_MAX = 1_000, 1_000_000
UNLIMITED = -1  # in version 1

_checks = Checks("GroupLimits", CommandInvalid)


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a group, for all its processes together; None is unlimited."""

    quota_us: int | None = None  # CPU time in each period; more than the period allows more than one core
    period_us: int = 100_000
    weight: int | None = None  # default 100; twice the weight is twice the share
    cores: frozenset[int] | None = None  # default: those of the parent group
    memory_bytes: int | None = None
    processes: int | None = None  # threads count too

    def __post_init__(self) -> None:
        _checks.whole("period_us", self.period_us, PERIOD_US_MIN, PERIOD_US_MAX)
        for field, minimum in (("quota_us", QUOTA_US_MIN), ("memory_bytes", 1), ("processes", 1)):
            if getattr(self, field) is not None:
                _checks.whole(field, getattr(self, field), minimum)
        if self.weight is not None:
            _checks.whole("weight", self.weight, 1, WEIGHT_MAX)
        if self.cores is not None and not self.cores:
            raise _checks.refuse("cores", "must name at least one core")
        for core in self.cores or ():
            _checks.whole("cores", core, 0, CORES_MAX - 1)

    def value_of(self, limit: Limit) -> int | str | None:
        """Return the value of one limit; cores as a list of ranges, a quota with its period."""
        if limit == "cores":
            return None if self.cores is None else core_list(self.cores)
        if limit == "quota":
            return None if self.quota_us is None else _quota_text(self.quota_us, self.period_us)
        value: int | None = getattr(self, {"memory": "memory_bytes"}.get(limit, limit))
        return value


def _quota_text(quota_us: int, period_us: int) -> str:
    return f"{quota_us / 1_000:g}ms/{period_us / 1_000:g}ms"


class FileWrite(NamedTuple):
    """Text to write to one file of a group."""

    file: str
    text: str
    required: bool = True  # False: skip a file that does not exist (a machine without swap has no swap limit)


class CgroupFiles:
    """The files of one version. See the table in cgroups.py."""

    version: int
    controllers: Mapping[Feature, str | None]  # the controller that a feature needs; None: no controller
    copied_from_parent: Sequence[str] = ()  # files of a new group that the kernel leaves empty

    def limit(self, limit: Limit, limits: GroupLimits) -> list[FileWrite]:
        """Set one limit, or remove it."""
        raise NotImplementedError

    def in_force(self, limit: Limit, folder: Path) -> str:
        """Return the quota or the cores that the kernel reports; empty for other limits, and if there is none."""
        raise NotImplementedError

    def frozen(self, frozen: bool) -> FileWrite:
        """Freeze or thaw the group."""
        raise NotImplementedError

    def is_frozen(self, folder: Path) -> bool:
        """Whether every process in the group is frozen."""
        raise NotImplementedError

    def kill(self, folder: Path) -> FileWrite | None:
        """Kill the whole group with one write; None if each process must be killed separately."""
        raise NotImplementedError

    def cpu_ns(self, folder: Path) -> int:
        """CPU time used."""
        raise NotImplementedError

    def memory(self, folder: Path) -> tuple[int, int]:
        """The peak memory usage, and how many processes the kernel killed for lack of memory."""
        raise NotImplementedError

    def copy_from_parent(self, folder: Path) -> None:
        """Give a group the cores of its parent, where the kernel does not do so itself. No process can join before."""
        for file in self.copied_from_parent:
            inherited = folder.parent / file
            if inherited.exists():
                write(folder, FileWrite(file, inherited.read_text()))

    def probe(self, feature: Feature, folder: Path) -> None:
        """Try a feature on an empty group, where it has no effect. Raises OSError if it does not work."""
        if feature in LIMITS:
            self.copy_from_parent(folder)
            for removal in self.limit(feature, GroupLimits()):
                write(folder, removal)
        elif feature == "freeze":
            write(folder, self.frozen(False))
        elif feature == "kill":
            write(folder, self.kill(folder) or self.frozen(False))
        else:
            self.cpu_ns(folder)


def write(folder: Path, file_write: FileWrite) -> None:
    """Perform one write in the folder of a group."""
    try:
        fd = os.open(folder / file_write.file, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if file_write.required:
            raise
        return
    try:
        os.write(fd, file_write.text.encode())
    finally:
        os.close(fd)


def _fields(file: Path) -> dict[str, int]:
    """Parse a file of lines such as `usage_usec 1234`."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}  # noqa: PLR2004  # name and number


class _V2(CgroupFiles):
    version = V2
    controllers = {  # noqa: RUF012  # a constant
        "quota": "cpu",
        "weight": "cpu",
        "cores": "cpuset",
        "memory": "memory",
        "processes": "pids",
        "freeze": None,
        "kill": None,
        "cpu_usage": None,
    }

    def limit(self, limit: Limit, limits: GroupLimits) -> list[FileWrite]:
        asked = limits.value_of(limit)
        text = "max" if asked is None else str(asked)
        if limit == "quota":
            return [FileWrite("cpu.max", f"{'max' if asked is None else limits.quota_us} {limits.period_us}")]
        if limit == "weight":
            return [FileWrite("cpu.weight", str(asked or WEIGHT_NORMAL))]
        if limit == "cores":
            return [FileWrite("cpuset.cpus", str(asked or "\n"))]
        if limit == "processes":
            return [FileWrite("pids.max", text)]
        # no swap: otherwise the group would continue to grow there
        return [
            FileWrite("memory.max", text),
            FileWrite("memory.swap.max", text if asked is None else "0", required=False),
        ]

    def in_force(self, limit: Limit, folder: Path) -> str:
        if limit == "cores":
            return (folder / "cpuset.cpus.effective").read_text().strip()
        quota, period = (folder / "cpu.max").read_text().split() if limit == "quota" else ("max", "")
        return "" if quota == "max" else _quota_text(int(quota), int(period))

    def frozen(self, frozen: bool) -> FileWrite:
        return FileWrite("cgroup.freeze", "1" if frozen else "0")

    def is_frozen(self, folder: Path) -> bool:
        return _fields(folder / "cgroup.events").get("frozen") == 1

    def kill(self, folder: Path) -> FileWrite | None:
        return FileWrite("cgroup.kill", "1") if (folder / "cgroup.kill").exists() else None  # since Linux 5.14

    def cpu_ns(self, folder: Path) -> int:
        return _fields(folder / "cpu.stat")["usage_usec"] * 1_000

    def memory(self, folder: Path) -> tuple[int, int]:
        return int((folder / "memory.peak").read_text()), _fields(folder / "memory.events").get("oom_kill", 0)


class _V1(CgroupFiles):
    version = V1
    copied_from_parent = ("cpuset.mems", "cpuset.cpus")
    controllers = {  # noqa: RUF012  # a constant
        "quota": "cpu",
        "weight": "cpu",
        "cores": "cpuset",
        "memory": "memory",
        "processes": "pids",
        "freeze": "freezer",
        "kill": "freezer",
        "cpu_usage": "cpuacct",
    }

    def limit(self, limit: Limit, limits: GroupLimits) -> list[FileWrite]:
        asked = limits.value_of(limit)
        text = str(UNLIMITED if asked is None else asked)
        if limit == "quota":
            # first none: a new period with the old quota may be more than the group above has, or less than those below
            unlimited = FileWrite("cpu.cfs_quota_us", str(UNLIMITED))
            writes = [unlimited, FileWrite("cpu.cfs_period_us", str(limits.period_us))]
            return writes if asked is None else [*writes, FileWrite("cpu.cfs_quota_us", str(limits.quota_us))]
        if limit == "weight":
            shares = (limits.weight or WEIGHT_NORMAL) * SHARES_NORMAL // WEIGHT_NORMAL
            return [FileWrite("cpu.shares", str(max(shares, SHARES_MIN)))]
        if limit == "cores":
            return [] if asked is None else [FileWrite("cpuset.cpus", text)]  # see copied_from_parent
        if limit == "processes":
            return [FileWrite("pids.max", "max" if asked is None else text)]
        # the limit with swap may never be below the limit without, so it is raised first and lowered last
        writes = [
            FileWrite("memory.limit_in_bytes", text),
            FileWrite("memory.memsw.limit_in_bytes", text, required=False),
        ]
        return writes if asked is not None else writes[::-1]

    def in_force(self, limit: Limit, folder: Path) -> str:
        if limit == "cores":
            return (folder / "cpuset.cpus").read_text().strip()
        quota_us = int((folder / "cpu.cfs_quota_us").read_text()) if limit == "quota" else UNLIMITED
        return "" if quota_us < 0 else _quota_text(quota_us, int((folder / "cpu.cfs_period_us").read_text()))

    def frozen(self, frozen: bool) -> FileWrite:
        return FileWrite("freezer.state", "FROZEN" if frozen else "THAWED")

    def is_frozen(self, folder: Path) -> bool:
        return (folder / "freezer.state").read_text().strip() == "FROZEN"

    def kill(self, folder: Path) -> None:  # noqa: ARG002  # only version 2 uses it
        return None

    def cpu_ns(self, folder: Path) -> int:
        return int((folder / "cpuacct.usage").read_text())

    def memory(self, folder: Path) -> tuple[int, int]:
        kills = _fields(folder / "memory.oom_control").get("oom_kill", 0)
        return int((folder / "memory.max_usage_in_bytes").read_text()), kills


FILES_BY_VERSION: Mapping[int, CgroupFiles] = {V1: _V1(), V2: _V2()}

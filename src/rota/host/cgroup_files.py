"""What to write where: the two versions of control groups say the same things in different files.

Nothing here touches a file except `Dialect.probe`, so the words can be read and tested without a machine that has
both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from rota.errors import CommandInvalid
from rota.host.cgroup_mounts import V1, V2
from rota.model.checks import Checks

__all__ = ["DIALECTS", "FEATURES", "LIMITS", "Dialect", "Feature", "GroupLimits", "Limit", "Write", "write"]

Limit: TypeAlias = Literal["quota", "weight", "memory", "processes"]
Feature: TypeAlias = Literal["quota", "weight", "memory", "processes", "freeze", "kill", "cpu_usage"]
LIMITS: tuple[Limit, ...] = get_args(Limit)
FEATURES: tuple[Feature, ...] = get_args(Feature)

WEIGHT_NORMAL, WEIGHT_MAX = 100, 10_000  # as version 2 counts
SHARES_NORMAL, SHARES_MIN = 1024, 2  # as version 1 counts
QUOTA_US_MIN = 1_000  # what the kernel takes
PERIOD_US_MIN, PERIOD_US_MAX = 1_000, 1_000_000
UNLIMITED = -1  # in version 1

_checks = Checks("GroupLimits", CommandInvalid)


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a group may take, all its processes together; None is not limited here."""

    quota_us: int | None = None  # processor time in each period; more than the period is more than one core
    period_us: int = 100_000
    weight: int | None = None  # 100 is normal; twice the weight, twice the share
    memory_bytes: int | None = None
    processes: int | None = None  # threads count too

    def __post_init__(self) -> None:
        _checks.whole("period_us", self.period_us, PERIOD_US_MIN, PERIOD_US_MAX)
        for field, least in (("quota_us", QUOTA_US_MIN), ("memory_bytes", 1), ("processes", 1)):
            if getattr(self, field) is not None:
                _checks.whole(field, getattr(self, field), least)
        if self.weight is not None:
            _checks.whole("weight", self.weight, 1, WEIGHT_MAX)

    def asked(self, limit: Limit) -> int | None:
        """The value of one limit."""
        value: int | None = getattr(self, {"quota": "quota_us", "memory": "memory_bytes"}.get(limit, limit))
        return value


class Write(NamedTuple):
    """One word to write into one file of a group."""

    file: str
    text: str
    needed: bool = True  # a machine without swap has no file for it, and needs none


class Dialect:
    """How one version says everything. See the table in cgroups.py."""

    version: int
    controllers: Mapping[Feature, str | None]  # what a tree must have for it; None: nothing
    usage_file: str

    def limit(self, limit: Limit, limits: GroupLimits) -> list[Write]:
        """Put one limit into force, or lift it."""
        raise NotImplementedError

    def frozen(self, frozen: bool) -> Write:
        """Freeze or thaw."""
        raise NotImplementedError

    def is_frozen(self, folder: Path) -> bool:
        """Whether every process in it stands still."""
        raise NotImplementedError

    def kill(self, folder: Path) -> Write | None:
        """Kill all at one stroke; None where each must be killed by itself."""
        raise NotImplementedError

    def cpu_ns(self, folder: Path) -> int:
        """Processor time used."""
        raise NotImplementedError

    def memory(self, folder: Path) -> tuple[int, int]:
        """The most memory ever used, and how often the kernel killed for the want of it."""
        raise NotImplementedError

    def probe(self, feature: Feature, folder: Path) -> None:
        """Try a feature on an empty group, where it can do no harm. OSError says that it does not work."""
        if feature in LIMITS:
            for lifted in self.limit(feature, GroupLimits()):
                write(folder, lifted)
        elif feature == "freeze":
            write(folder, self.frozen(False))
        elif feature == "kill":
            write(folder, self.kill(folder) or self.frozen(False))
        else:
            self.cpu_ns(folder)


def write(folder: Path, word: Write) -> None:
    """Write one word into a group's file."""
    try:
        fd = os.open(folder / word.file, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if word.needed:
            raise
        return
    try:
        os.write(fd, word.text.encode())
    finally:
        os.close(fd)


def _fields(file: Path) -> dict[str, int]:
    """A file of lines such as `usage_usec 1234`."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}  # noqa: PLR2004  # name and number


class _V2(Dialect):
    version = V2
    controllers = {  # noqa: RUF012  # a constant
        "quota": "cpu",
        "weight": "cpu",
        "memory": "memory",
        "processes": "pids",
        "freeze": None,
        "kill": None,
        "cpu_usage": None,
    }

    def limit(self, limit: Limit, limits: GroupLimits) -> list[Write]:
        asked = limits.asked(limit)
        text = "max" if asked is None else str(asked)
        if limit == "quota":
            return [Write("cpu.max", f"{text} {limits.period_us}")]
        if limit == "weight":
            return [Write("cpu.weight", str(asked or WEIGHT_NORMAL))]
        if limit == "processes":
            return [Write("pids.max", text)]
        # without swap, or a group would go on growing there
        return [Write("memory.max", text), Write("memory.swap.max", text if asked is None else "0", needed=False)]

    def frozen(self, frozen: bool) -> Write:
        return Write("cgroup.freeze", "1" if frozen else "0")

    def is_frozen(self, folder: Path) -> bool:
        return _fields(folder / "cgroup.events").get("frozen") == 1

    def kill(self, folder: Path) -> Write | None:
        return Write("cgroup.kill", "1") if (folder / "cgroup.kill").exists() else None  # since Linux 5.14

    def cpu_ns(self, folder: Path) -> int:
        return _fields(folder / "cpu.stat")["usage_usec"] * 1_000

    def memory(self, folder: Path) -> tuple[int, int]:
        return int((folder / "memory.peak").read_text()), _fields(folder / "memory.events").get("oom_kill", 0)


class _V1(Dialect):
    version = V1
    controllers = {  # noqa: RUF012  # a constant
        "quota": "cpu",
        "weight": "cpu",
        "memory": "memory",
        "processes": "pids",
        "freeze": "freezer",
        "kill": "freezer",
        "cpu_usage": "cpuacct",
    }

    def limit(self, limit: Limit, limits: GroupLimits) -> list[Write]:
        asked = limits.asked(limit)
        text = str(UNLIMITED if asked is None else asked)
        if limit == "quota":
            return [Write("cpu.cfs_period_us", str(limits.period_us)), Write("cpu.cfs_quota_us", text)]
        if limit == "weight":
            shares = (asked or WEIGHT_NORMAL) * SHARES_NORMAL // WEIGHT_NORMAL
            return [Write("cpu.shares", str(max(shares, SHARES_MIN)))]
        if limit == "processes":
            return [Write("pids.max", "max" if asked is None else text)]
        # memory with swap may never be below memory alone, so it is lifted first and lowered last
        words = [Write("memory.limit_in_bytes", text), Write("memory.memsw.limit_in_bytes", text, needed=False)]
        return words if asked is not None else words[::-1]

    def frozen(self, frozen: bool) -> Write:
        return Write("freezer.state", "FROZEN" if frozen else "THAWED")

    def is_frozen(self, folder: Path) -> bool:
        return (folder / "freezer.state").read_text().strip() == "FROZEN"

    def kill(self, folder: Path) -> None:  # noqa: ARG002  # the other version looks there
        return None

    def cpu_ns(self, folder: Path) -> int:
        return int((folder / "cpuacct.usage").read_text())

    def memory(self, folder: Path) -> tuple[int, int]:
        kills = _fields(folder / "memory.oom_control").get("oom_kill", 0)
        return int((folder / "memory.max_usage_in_bytes").read_text()), kills


DIALECTS: Mapping[int, Dialect] = {V1: _V1(), V2: _V2()}

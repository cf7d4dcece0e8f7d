"""How much CPU time the runs of an agent or a project get, and on which cores: the `cpu` settings.

The fleet file, `Rota.agent`, `rota cpu run` and islands use the same settings:

    cpu = { weight = 3, quota = "20ms/100ms", cores = "0-1", lease = 1, class = "batch", realtime = "deadline:2/10" }

    weight    its share of busy cores, compared with its siblings; idle time goes to those who want it
    quota     CPU time per period, in total; more than the period is more than one core
    cores     the cores that it may use
    lease     the number of cores that each of its runs has for itself, out of `cores`
    class     how soon it runs after a wait: sensitive in short time slices, batch in long ones; its share is the same
    realtime  a scheduling policy of the operating system: fifo:PRIORITY, rr:PRIORITY or deadline:BUDGET/PERIOD in ms

Settings of a project apply to all its runs together, those of an agent to all runs of the agent together; lease, class
and realtime apply to each run. What is enforced depends on the machine (`host/cpu_enforcement.py` says what).
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from rota.decoding import convert
from rota.errors import FleetInvalid, InvalidInput
from rota.model.budgets import CORES_MAX
from rota.model.checks import Checks
from rota.model.struct_reader import first_problem

__all__ = [
    "CPU_KEY",
    "CPU_WEIGHT_MAX",
    "CPU_WEIGHT_MIN",
    "CpuClass",
    "CpuQuota",
    "CpuSettings",
    "RealtimeRequest",
    "core_list",
    "parse_cores",
    "parse_quota",
    "parse_realtime",
    "read_cpu",
]

CPU_KEY = "cpu"  # key in a project's metadata
CPU_WEIGHT_MIN, CPU_WEIGHT_MAX = 0.01, 100  # what control groups of both versions can express
QUOTA_US_MIN = 1_000  # the minimum of the operating system, for the budget and for the period
PERIOD_US_MAX = 1_000_000
REALTIME_PRIORITY_MAX = 99
DEADLINE_NS_MIN = 1_024  # the minimum of the operating system for the budget of a deadline task
DEADLINE_PERIOD_NS_MAX = 4_000_000_000

CpuClass = Literal["batch", "normal", "sensitive"]
_UNIT_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s)?", re.ASCII)
_CORES = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_checks = Checks("CpuSettings", FleetInvalid)


class CpuQuota(NamedTuple):
    """CPU time per period."""

    budget_us: int
    period_us: int

    @property
    def cores(self) -> float:
        """How many cores it is worth."""
        return self.budget_us / self.period_us


class RealtimeRequest(NamedTuple):
    """A scheduling policy of the operating system: a priority for fifo and rr, times for deadline."""

    policy: Literal["fifo", "rr", "deadline"]
    priority: int = 0
    budget_ns: int = 0
    period_ns: int = 0


class CpuSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"class_": "class"},
):
    """CPU time and cores of an agent's or a project's runs. Checked when it is created."""

    weight: Annotated[
        float | None,
        Meta(description="Its share of busy cores among its siblings. Default: the `weight` of the agent or project."),
    ] = None
    quota: Annotated[
        str | None,
        Meta(description="CPU time per period, in total: `20ms/100ms`; `150ms/100ms` is one core and a half."),
    ] = None
    cores: Annotated[str | None, Meta(description="The cores that it may use: `0-1,3`. Default: all.")] = None
    lease: Annotated[
        int | None,
        Meta(
            description="How many cores each of its runs has for itself, out of `cores`; granted or refused. Default: "
            "that of the project, or 0."
        ),
    ] = None
    class_: Annotated[
        CpuClass | None,
        Meta(
            description="The length of its time slices: short ones run sooner, the share is the same. Default: that of "
            "the project, or `normal`."
        ),
    ] = None
    realtime: Annotated[
        str | None,
        Meta(description="A policy of the operating system: `fifo:10`, `rr:10`, or `deadline:2/10` in milliseconds."),
    ] = None

    def __post_init__(self) -> None:
        if self.weight is not None:
            _checks.number("weight", self.weight, CPU_WEIGHT_MIN, CPU_WEIGHT_MAX)
        _checks.one_of("class", self.latency_class, get_args(CpuClass))
        _checks.whole("lease", self.leased_cores, 0, CORES_MAX - 1)
        quota, cores, _ = self.budget, self.core_set, self.policy
        if cores is not None and self.leased_cores > len(cores):
            raise _checks.refuse("lease", f"({self.lease}) is more than the cores that it may use ({self.cores})")
        if quota is not None and cores is not None and quota.cores > len(cores):
            raise _checks.refuse("quota", f"({self.quota}) is more than its cores have ({self.cores})")

    @property
    def leased_cores(self) -> int:
        """How many cores a run leases."""
        return 0 if self.lease is None else self.lease

    @property
    def latency_class(self) -> CpuClass:
        """The class of a run."""
        return "normal" if self.class_ is None else self.class_

    @property
    def budget(self) -> CpuQuota | None:
        """The quota, None without one."""
        return None if self.quota is None else parse_quota(self.quota)

    @property
    def core_set(self) -> frozenset[int] | None:
        """The cores, None without a restriction."""
        return None if self.cores is None else parse_cores(self.cores)

    @property
    def policy(self) -> RealtimeRequest | None:
        """The scheduling policy, None without one."""
        return None if self.realtime is None else parse_realtime(self.realtime)


def parse_quota(text: str, field: str = "quota") -> CpuQuota:
    """Parse CPU time per period, such as "20ms/100ms"; numbers without a unit are milliseconds."""
    budget, slash, period = _checks.text(field, text).partition("/")
    if not slash:
        raise _checks.refuse(field, f"must be CPU time per period, such as 20ms/100ms, not {text!r}")
    budget_us, period_us = (_duration_ns(field, part) // 1_000 for part in (budget, period))
    if not QUOTA_US_MIN <= period_us <= PERIOD_US_MAX:
        raise _checks.refuse(field, f"must have a period from 1ms to 1s, not {period.strip()}")
    if budget_us < QUOTA_US_MIN:
        raise _checks.refuse(field, f"must be at least 1ms per period, not {budget.strip()}")
    if budget_us > CORES_MAX * period_us:
        raise _checks.refuse(field, f"must be at most {CORES_MAX:,} cores, not {text!r}")
    return CpuQuota(budget_us, period_us)


def parse_cores(text: str, field: str = "cores") -> frozenset[int]:
    """Parse a list of cores, such as "0-1,3"."""
    found: set[int] = set()
    for part in _checks.text(field, text).split(","):
        match = _CORES.fullmatch(part.strip())
        if match is None:
            raise _checks.refuse(field, f"must be numbers and ranges, such as 0-1,3, not {text!r}")
        low, high = (_checks.whole(field, int(end), 0, CORES_MAX - 1) for end in (match[1], match[2] or match[1]))
        if high < low:
            raise _checks.refuse(field, f"has the range {part.strip()}, which ends before it begins")
        found.update(range(low, high + 1))
    return frozenset(found)


def parse_realtime(text: str, field: str = "realtime") -> RealtimeRequest:
    """Parse a scheduling policy: "fifo:10", "rr:10", or "deadline:2/10" (2 ms in every 10 ms)."""
    policy, colon, value = _checks.text(field, text).partition(":")
    if policy in {"fifo", "rr"} and colon and value.isdecimal() and value.isascii():
        priority = _checks.whole(field, int(value), 1, REALTIME_PRIORITY_MAX)
        return RealtimeRequest("fifo" if policy == "fifo" else "rr", priority)
    budget, slash, period = value.partition("/")
    if policy != "deadline" or not slash:
        raise _checks.refuse(field, f"must be fifo:PRIORITY, rr:PRIORITY or deadline:BUDGET/PERIOD, not {text!r}")
    budget_ns, period_ns = _duration_ns(field, budget), _duration_ns(field, period)
    if not DEADLINE_NS_MIN <= budget_ns <= period_ns <= DEADLINE_PERIOD_NS_MAX:
        raise _checks.refuse(field, f"must have a budget from 2us up to its period, which is at most 4s, not {value!r}")
    return RealtimeRequest("deadline", 0, budget_ns, period_ns)


def _duration_ns(field: str, text: str) -> int:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise _checks.refuse(field, f"must have times such as 20ms, 500us or 1s, not {text.strip()!r}")
    amount = float(match[1]) * _UNIT_NS[match[2] or "ms"]
    if not math.isfinite(amount):
        raise _checks.refuse(field, f"has a time that is too long: {text.strip()}")
    return round(amount)


def core_list(cores: frozenset[int] | set[int]) -> str:
    """Write cores as a list of ranges: "0-1,3"."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1][1:] = [core]
        else:
            parts.append([core])
    return ",".join("-".join(map(str, part)) for part in parts)


def read_cpu(stored: Any) -> CpuSettings | None:
    """Return settings that were stored as JSON, None without any; FleetInvalid, with the field, if invalid."""
    if stored is None:
        return None
    try:
        return convert(stored, CpuSettings, strict=True)
    except msgspec.ValidationError as refusal:
        if isinstance(refusal.__cause__, InvalidInput):
            raise refusal.__cause__ from None
        problem = first_problem(CpuSettings, stored)
        raise FleetInvalid(
            f"CpuSettings.{problem}" if problem else f"CpuSettings: {refusal}",
            field=problem.path if problem is not None else CPU_KEY,
        ) from refusal

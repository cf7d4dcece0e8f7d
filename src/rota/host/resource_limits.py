"""Limits that the kernel enforces on each process (setrlimit): of a command, and of one call in a worker.

Limits are those of `model.work.Limits`. The host enforces four of them; wall time, tokens and the length of the log
are enforced by the supervisor of the run.

    field          enforced by                          without a control group
    cpu_s          each process: SIGXCPU, then KILL     the same
    open_files     each process                         the same
    memory_bytes   the control group, in total          each process: RLIMIT_DATA, its writable memory
    processes      the control group, in total          RLIMIT_NPROC: counts all processes of the user; not for root

RLIMIT_DATA, not RLIMIT_AS: language runtimes (node, Go, Java) reserve hundreds of gigabytes of address space that they
never write to, and would not start.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rota.model.work import Limits

__all__ = ["ResourceLimit", "in_group", "limited", "resource_limits"]

CPU_GRACE_S = 1  # between SIGXCPU, which a program may handle, and SIGKILL


class ResourceLimit(NamedTuple):
    """One limit of the kernel."""

    name: str  # the field
    resource: int
    soft: int
    hard: int
    inherited: bool  # whether it can be set before the start; see spawning.py


def resource_limits(limits: Limits, enforced: frozenset[str] = frozenset()) -> list[ResourceLimit]:
    """The limits to set on a process, without those that a control group enforces."""
    wanted: list[ResourceLimit] = []
    if limits.cpu_s is not None:
        soft_s = math.ceil(limits.cpu_s)
        wanted.append(ResourceLimit("cpu_s", resource.RLIMIT_CPU, soft_s, soft_s + CPU_GRACE_S, True))
    if limits.open_files is not None:
        wanted.append(ResourceLimit("open_files", resource.RLIMIT_NOFILE, limits.open_files, limits.open_files, True))
    if limits.memory_bytes is not None and "memory" not in enforced:
        wanted.append(
            ResourceLimit("memory_bytes", resource.RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes, True)
        )
    if limits.processes is not None and "processes" not in enforced:
        wanted.append(ResourceLimit("processes", resource.RLIMIT_NPROC, limits.processes, limits.processes, False))
    return [_within_own(limit) for limit in wanted]


def _within_own(limit: ResourceLimit) -> ResourceLimit:
    """Cap a limit at our own hard limit, which children inherit: the kernel would reject a higher one."""
    ours = resource.getrlimit(limit.resource)[1]
    if ours == resource.RLIM_INFINITY:
        return limit
    return limit._replace(soft=min(limit.soft, ours), hard=min(limit.hard, ours))


@contextmanager
def in_group(files: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Join a control group while a function runs, by (file to join, file to return); its children stay in the group."""
    joined: list[str] = []
    try:
        for join, leave in files:
            Path(join).write_text("0")  # 0 stands for the writing process
            joined.append(leave)
        yield
    finally:
        for leave in joined:
            Path(leave).write_text("0")


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Limit this process while a function runs.

    These are soft limits, because the worker serves other calls afterwards: a function could raise them again.
    """
    wanted = {limit.resource: limit.soft for limit in resource_limits(limits)}
    if limits.cpu_s is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        wanted[resource.RLIMIT_CPU] = int(used.ru_utime + used.ru_stime + limits.cpu_s) + 1
    before = {which: resource.getrlimit(which) for which in wanted}
    try:
        for which, soft in wanted.items():
            hard = before[which][1]
            resource.setrlimit(which, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
        yield
    finally:
        for which, limit in before.items():
            resource.setrlimit(which, limit)

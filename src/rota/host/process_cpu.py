"""The cores a process may run on, and the CPU time it has used.

Linux keeps the allowed cores per thread, and a new thread inherits those of its creator. So `pin` sets them thread by
thread and repeats until it finds no new thread: a thread created meanwhile may have inherited the old cores. The kernel
applies the requested cores that it allows (a cpuset may forbid some), and refuses if none is left.

Linux keeps a clock for every process that advances only while the process runs. Reading it is one system call (half a
microsecond; the text files in /proc cost fifty times that and count in hundredths of a second). The id of the clock is
computed from the pid: the inverted bits of the pid, shifted left by three, plus 2 for "CPU time as the scheduler counts
it". The pid of a process that is not reaped yet is still valid, and its clock stands still. So the CPU time of a
`Session` can be read until its exit is reported; the exit contains the total.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from rota.errors import CommandInvalid, HostUnsupported, NotFound
from rota.host.advisory import Advisory
from rota.host.lineage import descendants_of

__all__ = [
    "affinity_advisories",
    "allowed_cores",
    "check_cores",
    "pin",
    "process_cpu_ns",
    "threads_of",
    "tree_cpu_ns",
]

PIN_ROUNDS_MAX = 100  # for a process that creates threads faster than we pin them
_SCHEDULER_TIME = 2  # the kind of clock, in its id


# --- cores -------------------------------------------------------------------------------------------


def _require_affinity() -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise HostUnsupported("this system cannot restrict a process to cores")


def allowed_cores(pid: int = 0) -> frozenset[int]:
    """The cores that a process may run on; 0 is the calling thread."""
    _require_affinity()
    try:
        return frozenset(os.sched_getaffinity(pid))
    except ProcessLookupError as gone:
        raise _no_process(pid) from gone


def check_cores(cores: Iterable[int]) -> frozenset[int]:
    """Check requested cores: at least one, and at least one that this process may use itself."""
    asked = frozenset(cores)
    if not asked:
        raise CommandInvalid("cores must not be empty", field="cores")
    usable = allowed_cores()
    if not asked & usable:
        raise CommandInvalid(f"cores {_list(asked)} cannot be used; usable cores: {_list(usable)}", field="cores")
    return asked


def pin(pid: int, cores: Iterable[int]) -> tuple[Advisory, ...]:
    """Restrict all threads of a process to these cores. Return advisories for what is not in force."""
    asked = check_cores(cores)
    pinned: set[int] = set()
    for _round in range(PIN_ROUNDS_MAX):
        new = [thread for thread in threads_of(pid) if thread not in pinned]
        if not new:
            return affinity_advisories(asked, allowed_cores(pid))
        for thread in new:
            _pin_thread(thread, asked)
        pinned.update(new)
    return (Advisory("cores", "the process creates threads faster than they can be pinned", _list(asked)),)


def affinity_advisories(asked: frozenset[int], in_force: frozenset[int]) -> tuple[Advisory, ...]:
    """The advisories for a process that has other cores than requested."""
    if in_force == asked:
        return ()
    return (Advisory("cores", "the system does not allow the others", _list(asked), _list(in_force)),)


def threads_of(pid: int) -> Iterator[int]:
    """The threads of a process."""
    try:
        return iter([int(thread.name) for thread in Path(f"/proc/{pid or os.getpid()}/task").iterdir()])
    except FileNotFoundError as gone:
        raise _no_process(pid) from gone


def _pin_thread(thread: int, cores: frozenset[int]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:
        return  # it has exited
    except OSError as refused:
        raise CommandInvalid(f"thread {thread} cannot be pinned to cores {_list(cores)}", field="cores") from refused


def _no_process(pid: int) -> NotFound:
    return NotFound(f"no process has pid {pid}", hint="It has exited.", pid=pid)


def _list(cores: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(cores)))


# --- CPU time ----------------------------------------------------------------------------------------


def _clock_id(pid: int) -> int:
    if sys.platform != "linux":
        raise HostUnsupported("this system has no CPU clock per process")
    return (~pid << 3) | _SCHEDULER_TIME


def process_cpu_ns(pid: int) -> int:
    """CPU time used by all threads of a process. Its children have their own clocks."""
    try:
        return time.clock_gettime_ns(_clock_id(pid))
    except OSError as gone:
        raise _no_process(pid) from gone


def tree_cpu_ns(pid: int) -> int:
    """CPU time used by a process and its living descendants."""
    used_ns = process_cpu_ns(pid)
    for child in descendants_of(pid):
        try:
            used_ns += process_cpu_ns(child)
        except NotFound:
            continue
    return used_ns

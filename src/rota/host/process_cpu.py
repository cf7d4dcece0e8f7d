"""CPU time that a process has used, and whether it wants more.

Linux keeps a clock for every process that advances only while the process runs. Reading it is one system call (half a
microsecond; the text files in /proc cost fifty times that and count in hundredths of a second). The id of the clock is
computed from the pid: the inverted bits of the pid, shifted left by three, plus 2 for "CPU time as the scheduler counts
it". The pid of a process that is not reaped yet is still valid, and its clock stands still. So the CPU time of a
`Session` can be read until its exit is reported; the exit contains the total.
"""

from __future__ import annotations

import resource
import sys
import time
from contextlib import suppress

from rota.errors import HostUnsupported, NotFound
from rota.host.lineage import descendants_of, ended_children_cpu_s, thread_states

__all__ = ["is_runnable", "own_cpu_s", "process_cpu_ns", "thread_cpu_s", "tree_cpu_ns"]

_SCHEDULER_TIME = 2  # the kind of clock, in its id
_WANTS_CPU = frozenset("RDT")  # runnable, waits for the disk, was stopped


def _clock_id(pid: int) -> int:
    if sys.platform != "linux":
        raise HostUnsupported("this system has no CPU clock per process")
    return (~pid << 3) | _SCHEDULER_TIME


def process_cpu_ns(pid: int) -> int:
    """CPU time used by all threads of a process. Its children have their own clocks."""
    try:
        return time.clock_gettime_ns(_clock_id(pid))
    except OSError as gone:
        raise NotFound(f"no process has pid {pid}", hint="It has exited.", pid=pid) from gone


def thread_cpu_s() -> float:
    """CPU time used by the calling thread."""
    return time.thread_time()


def own_cpu_s() -> float:
    """CPU time used by this process, all its threads, and the children that it has waited for."""
    used = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def tree_cpu_ns(pid: int) -> int:
    """CPU time used by a process and its descendants: those that live, and those that were waited for.

    The kernel counts the latter in hundredths of a second.
    """
    used_ns = _family_cpu_ns(pid)
    for child in descendants_of(pid):  # parents first: one that ends meanwhile is not counted twice
        with suppress(NotFound):
            used_ns += _family_cpu_ns(child)
    return used_ns


def _family_cpu_ns(pid: int) -> int:
    return round(ended_children_cpu_s(pid) * 1e9) + process_cpu_ns(pid)


def is_runnable(pid: int) -> bool:
    """Whether any thread of a process or of its descendants is runnable, waits for the disk, or was stopped."""
    return any(state in _WANTS_CPU for process in (pid, *descendants_of(pid)) for state in thread_states(process))

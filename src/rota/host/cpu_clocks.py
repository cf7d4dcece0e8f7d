"""How much processor time a process has used, to the nanosecond.

Linux keeps a clock for every process that runs only while the process does. Reading it is one call (half a
microsecond; the text files in /proc cost fifty times that and count in hundredths of a second). The clock's number is
made from the pid: all bits of the pid turned over, three places to the left, and 2 for "processor time as the
scheduler counts it".

The number of a process that was not waited for yet is still its own, and its clock stands still. So a `Session` may
be read until its exit has been told; after that the exit itself says what was used.
"""

from __future__ import annotations

import sys
import time

from rota.errors import HostUnsupported, NotFound
from rota.host.lineage import descendants_of

__all__ = ["clock_id", "process_cpu_ns", "tree_cpu_ns"]

_PER_PROCESS_SCHEDULER_TIME = 2


def clock_id(pid: int) -> int:
    """The number of a process's own clock, for `time.clock_gettime_ns`."""
    if sys.platform != "linux":
        raise HostUnsupported("this system has no clock per process")
    return (~pid << 3) | _PER_PROCESS_SCHEDULER_TIME


def process_cpu_ns(pid: int) -> int:
    """Processor time that a process, all its threads, has used. Children have their own clocks."""
    try:
        return time.clock_gettime_ns(clock_id(pid))
    except OSError as gone:
        raise NotFound(f"no process has pid {pid}", hint="It has ended.", pid=pid) from gone


def tree_cpu_ns(pid: int) -> int:
    """Processor time of a process and its living descendants: those that have ended are not in it."""
    used_ns = process_cpu_ns(pid)
    for child in descendants_of(pid):
        try:
            used_ns += process_cpu_ns(child)
        except NotFound:
            continue
    return used_ns

"""The few calls of the kernel that Python does not offer, by ctypes.

The minder imports this, so it imports almost nothing. Every call raises OSError with the kernel's own errno, and
where the kernel or the machine does not know the call at all, ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

__all__ = [
    "SchedAttr",
    "become_subreaper",
    "knows_subreapers",
    "sched_getattr",
    "sched_setattr",
    "signal_descriptor",
]

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
SIGSET_BYTES = 128  # sigset_t of every C library on Linux: room for 1024 signals
RESET_ON_FORK = 0x01  # sched_attr.flags: children start as SCHED_OTHER

# (sched_setattr, sched_getattr) by machine: a C library offers names for them only since a short time
_SCHED_ATTR_CALLS = {
    "x86_64": (314, 315),
    "aarch64": (274, 275),
    "riscv64": (274, 275),
    "loongarch64": (274, 275),
    "armv7l": (380, 381),
    "i686": (351, 352),
    "ppc64le": (355, 356),
    "s390x": (345, 346),
}


class SchedAttr(ctypes.Structure):
    """struct sched_attr, as of its first published size: what every kernel since 3.14 takes."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def become_subreaper() -> None:
    """From now on, descendants whose parents die become our children."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    _checked(_libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0))


def knows_subreapers() -> bool:
    """Whether a process can become one."""
    answer = ctypes.c_int()
    return sys.platform == "linux" and int(_libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)) == 0


def signal_descriptor(number: int) -> int:
    """A descriptor that is readable while this signal is pending; it must be blocked. Reading never waits."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    wanted = ctypes.create_string_buffer(SIGSET_BYTES)
    _libc.sigemptyset(wanted)
    _checked(_libc.sigaddset(wanted, number))
    return _checked(_libc.signalfd(-1, wanted, os.O_NONBLOCK | os.O_CLOEXEC))


def _sched_attr_call(which: int) -> int:
    numbers = _SCHED_ATTR_CALLS.get(os.uname().machine) if sys.platform == "linux" else None
    if numbers is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return numbers[which]


def sched_setattr(pid: int, attributes: SchedAttr) -> None:
    """Give a process (its main thread; 0 is the calling thread) its scheduling policy and parameters."""
    attributes.size = ctypes.sizeof(SchedAttr)
    _checked(_libc.syscall(_sched_attr_call(0), pid, ctypes.byref(attributes), 0))


def sched_getattr(pid: int) -> SchedAttr:
    """The scheduling policy and parameters in force."""
    attributes = SchedAttr()
    _checked(_libc.syscall(_sched_attr_call(1), pid, ctypes.byref(attributes), ctypes.sizeof(SchedAttr), 0))
    return attributes

"""System calls that the Python standard library does not offer, through ctypes.

Every function raises OSError with the kernel's errno; ENOSYS means that the platform or the machine has no such call.
The reaper imports this module, so it imports very little itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

__all__ = [
    "SchedAttr",
    "become_subreaper",
    "sched_getattr",
    "sched_setattr",
    "signal_descriptor",
    "supports_subreapers",
]

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
SIGSET_BYTES = 128  # the size of sigset_t on Linux: 1024 signals
RESET_ON_FORK = 0x01  # sched_attr.flags: children start as SCHED_OTHER

# (sched_setattr, sched_getattr) by machine: only recent C libraries have functions for them
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
    """struct sched_attr in its first published size, which every kernel since 3.14 accepts."""

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
    """Make this process the new parent of every descendant whose own parent exits."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    _checked(_libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0))


def supports_subreapers() -> bool:
    """Whether a process can become a subreaper on this system."""
    current = ctypes.c_int()
    return sys.platform == "linux" and int(_libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(current), 0, 0, 0)) == 0


def signal_descriptor(number: int) -> int:
    """Return a non-blocking descriptor that is readable while this (blocked) signal is pending."""
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    signals = ctypes.create_string_buffer(SIGSET_BYTES)
    _libc.sigemptyset(signals)
    _checked(_libc.sigaddset(signals, number))
    return _checked(_libc.signalfd(-1, signals, os.O_NONBLOCK | os.O_CLOEXEC))


def _sched_attr_call(index: int) -> int:
    numbers = _SCHED_ATTR_CALLS.get(os.uname().machine) if sys.platform == "linux" else None
    if numbers is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return numbers[index]


def sched_setattr(pid: int, attributes: SchedAttr) -> None:
    """Set the scheduling policy and parameters of a thread; a pid is its main thread, 0 the calling thread."""
    attributes.size = ctypes.sizeof(SchedAttr)
    _checked(_libc.syscall(_sched_attr_call(0), pid, ctypes.byref(attributes), 0))


def sched_getattr(pid: int) -> SchedAttr:
    """Return the scheduling policy and parameters of a thread."""
    attributes = SchedAttr()
    _checked(_libc.syscall(_sched_attr_call(1), pid, ctypes.byref(attributes), ctypes.sizeof(SchedAttr), 0))
    return attributes

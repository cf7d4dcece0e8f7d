"""Which cores a process may run on.

Linux keeps this per thread, and a new thread inherits it from the one that made it. So a process is pinned thread by
thread, again until a look finds no thread that was not pinned: one that was made meanwhile may have inherited the old
cores. The kernel takes the part of the cores that it allows (a cpuset may forbid some) and refuses when none is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rota.errors import CommandInvalid, HostUnsupported, NotFound
from rota.host.advisory import Advisory

__all__ = ["advise", "allowed_cores", "check_cores", "pin", "threads_of"]

PIN_LOOKS_MAX = 100  # at a process that makes threads faster than we pin them


def _needed() -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise HostUnsupported("this system does not let a process choose its cores")


def allowed_cores(pid: int = 0) -> frozenset[int]:
    """The cores that a process may run on; 0 is the calling thread."""
    _needed()
    try:
        return frozenset(os.sched_getaffinity(pid))
    except ProcessLookupError as gone:
        raise _gone(pid) from gone


def check_cores(cores: Iterable[int]) -> frozenset[int]:
    """Cores as asked for: at least one, each a number of a core that we may use ourselves."""
    asked = frozenset(cores)
    if not asked:
        raise CommandInvalid("cores must not be empty: nothing can run on no core", field="cores")
    usable = allowed_cores()
    if not asked & usable:
        raise CommandInvalid(f"none of the cores {_list(asked)} can be used; {_list(usable)} can", field="cores")
    return asked


def pin(pid: int, cores: Iterable[int]) -> tuple[Advisory, ...]:
    """Let a process, all its threads, run on these cores only. What is not in force is the answer."""
    asked = check_cores(cores)
    pinned: set[int] = set()
    for _look in range(PIN_LOOKS_MAX):
        new = [thread for thread in threads_of(pid) if thread not in pinned]
        if not new:
            return advise(asked, allowed_cores(pid))
        for thread in new:
            _pin_thread(thread, asked)
        pinned.update(new)
    return (Advisory("cores", "the process makes threads faster than they can be pinned", _list(asked)),)


def advise(asked: frozenset[int], in_force: frozenset[int]) -> tuple[Advisory, ...]:
    """What to say when a process has other cores than were asked for."""
    if in_force == asked:
        return ()
    return (Advisory("cores", "the system does not allow the others", _list(asked), _list(in_force)),)


def threads_of(pid: int) -> Iterator[int]:
    """The threads of a process."""
    try:
        return iter([int(thread.name) for thread in Path(f"/proc/{pid or os.getpid()}/task").iterdir()])
    except FileNotFoundError as gone:
        raise _gone(pid) from gone


def _pin_thread(thread: int, cores: frozenset[int]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:
        return  # it has ended
    except OSError as refused:
        raise CommandInvalid(f"thread {thread} cannot be put on cores {_list(cores)}", field="cores") from refused


def _gone(pid: int) -> NotFound:
    return NotFound(f"no process has pid {pid}", hint="It has ended.", pid=pid)


def _list(cores: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(cores)))

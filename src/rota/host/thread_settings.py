"""Settings that Linux keeps for each thread: its name, its cores, its nice value and its scheduling policy.

A thread sets its own with `ThreadSettings`: `apply_settings` sets what is requested and returns what was refused,
`read_settings` reads what is in force. For a process, `pin` sets the cores thread by thread, and reports differences as
an `Advisory`. A new thread inherits the cores of its creator, so `pin` repeats until it finds no new thread: one
created meanwhile may have inherited the old cores. The kernel applies the requested cores that it allows (a cpuset may
forbid some), and refuses if none is left.

The scheduling policies:

    other      shared by weight (nice); slice_ns requests shorter or longer time slices (Linux 6.12)
    batch      as other, but a process that wakes up does not preempt others
    idle       only CPU time that no other process wants
    fifo, rr   before all of the above, by priority 1 to 99; rr alternates between equal priorities
    deadline   runtime_ns in every period_ns, finished by deadline_ns; the kernel admits it or refuses

The last three need a privilege that ordinary users do not have, and deadline also free CPU capacity. Without it the
process continues as before. None of this is a hard real-time guarantee: the kernel reserves 5% of each second for other
processes (sched_rt_runtime_us), and hardware can cause pauses.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from rota.errors import CommandInvalid, HostUnsupported, NotFound
from rota.host.advisory import Advisory, explain_errno
from rota.host.syscalls import RESET_ON_FORK, SchedAttr, sched_getattr, sched_setattr
from rota.model.checks import Checks
from rota.model.cpu import core_list

__all__ = [
    "NICE_MAX",
    "NICE_MIN",
    "PRIORITY_MAX",
    "THREAD_NAME_CHARS_MAX",
    "Scheduling",
    "SchedulingPolicy",
    "ThreadSettings",
    "affinity_advisories",
    "allowed_cores",
    "apply_settings",
    "check_cores",
    "confined_from",
    "pin",
    "pin_thread",
    "read_scheduling",
    "read_settings",
    "sched_attributes",
    "set_scheduling",
    "set_thread_name",
    "threads_of",
    "usable_cores",
]

SchedulingPolicy = Literal["other", "fifo", "rr", "batch", "idle", "deadline"]
POLICIES: dict[SchedulingPolicy, int] = {"other": 0, "fifo": 1, "rr": 2, "batch": 3, "idle": 5, "deadline": 6}
_NAMES = {number: name for name, number in POLICIES.items()}
NICE_MIN, NICE_MAX = -20, 19
PRIORITY_MAX = 99
PIN_ROUNDS_MAX = 100  # for a process that creates threads faster than we pin them
THREAD_NAME_CHARS_MAX = 15  # the kernel cuts a longer name

_checks = Checks("Scheduling", CommandInvalid)


# --- the calling thread ------------------------------------------------------------------------------


class ThreadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one thread, requested or in force. None: not requested, or unknown."""

    name: str | None = None
    cores: tuple[int, ...] | None = None
    nice: int | None = None
    scheduling: Scheduling | None = None


def apply_settings(wanted: ThreadSettings) -> dict[str, str]:
    """Set the requested settings of the calling thread. Return each setting that was refused, with the reason."""
    thread = threading.get_native_id()
    setters: dict[str, Callable[[Any], None]] = {
        "name": set_thread_name,
        "cores": lambda cores: os.sched_setaffinity(thread, cores),
        "nice": lambda nice: os.setpriority(os.PRIO_PROCESS, thread, nice),  # keeps the policy
        "scheduling": lambda scheduling: set_scheduling(thread, scheduling),
    }
    refused: dict[str, str] = {}
    for field, set_value in setters.items():
        value = getattr(wanted, field)
        if value is None:
            continue
        try:
            set_value(value)
        except OSError as problem:
            refused[field] = problem.strerror or str(problem)
    return refused


def read_settings() -> ThreadSettings:
    """Return the settings in force for the calling thread. Only the name is known on systems other than Linux."""
    name = _thread_name()
    if sys.platform != "linux":
        return ThreadSettings(name=name)
    thread = threading.get_native_id()
    return ThreadSettings(
        name=name,
        cores=tuple(sorted(allowed_cores(thread))),
        nice=os.getpriority(os.PRIO_PROCESS, thread),  # sched_getattr does not return it for fifo and rr
        scheduling=_known_scheduling(thread),
    )


def _known_scheduling(thread: int) -> Scheduling | None:
    try:
        return read_scheduling(thread)
    except HostUnsupported:  # a policy that rota does not know
        return None


def set_thread_name(name: str) -> None:
    """Set the name that the kernel knows for the calling thread. Raises OSError where it cannot be set."""
    _name_file().write_text(name)


def _thread_name() -> str:
    try:
        return _name_file().read_text().rstrip("\n")
    except OSError:  # no /proc here
        return threading.current_thread().name


def _name_file() -> Path:
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm")


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


class _Own:
    """The cores of this process before it confined itself: others may still be started there (confinement.py)."""

    confined_from: frozenset[int] = frozenset()


_own = _Own()


def confined_from(cores: frozenset[int]) -> None:
    """Remember the cores that this process may use although it is about to confine itself to fewer."""
    _own.confined_from = cores


def usable_cores() -> frozenset[int]:
    """The cores that this process may start others on; all of the machine where a process cannot be restricted."""
    try:
        return allowed_cores() | _own.confined_from
    except HostUnsupported:
        return frozenset(range(os.cpu_count() or 1))


def check_cores(cores: Iterable[int]) -> frozenset[int]:
    """Check requested cores: at least one, and at least one that this process may use itself."""
    asked, usable = frozenset(cores), usable_cores()
    if not asked:
        raise CommandInvalid("cores must not be empty", field="cores")
    if not asked & usable:
        text = f"cores {core_list(asked)} cannot be used; usable cores: {core_list(usable)}"
        raise CommandInvalid(text, field="cores")
    return asked


def pin(pid: int, cores: Iterable[int], *, but: Collection[frozenset[int]] = ()) -> tuple[Advisory, ...]:
    """Restrict all threads of a process to these cores. Return advisories for what is not in force.

    `but` are sets of cores: threads that have one of these keep it.
    """
    asked = check_cores(cores)
    pinned: set[int] = set()
    for _round in range(PIN_ROUNDS_MAX):
        new = [thread for thread in threads_of(pid) if thread not in pinned]
        if not new:
            return affinity_advisories(asked, allowed_cores(pid))
        for thread in new:
            if not but or not _has_one_of(thread, but):
                pin_thread(thread, asked)
        pinned.update(new)
    return (Advisory("cores", "the process creates threads faster than they can be pinned", core_list(asked)),)


def affinity_advisories(asked: frozenset[int], in_force: frozenset[int]) -> tuple[Advisory, ...]:
    """The advisories for a process that has other cores than requested."""
    if in_force == asked:
        return ()
    return (Advisory("cores", "the system does not allow the others", core_list(asked), core_list(in_force)),)


def threads_of(pid: int) -> Iterator[int]:
    """The threads of a process."""
    try:
        return iter([int(thread.name) for thread in Path(f"/proc/{pid or os.getpid()}/task").iterdir()])
    except FileNotFoundError as gone:
        raise _no_process(pid) from gone


def _has_one_of(thread: int, sets: Collection[frozenset[int]]) -> bool:
    try:
        return allowed_cores(thread) in sets
    except NotFound:  # it has ended
        return True


def pin_thread(thread: int, cores: frozenset[int]) -> None:
    """Restrict one thread to these cores."""
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:
        return  # it has exited
    except OSError as refused:
        raise CommandInvalid(
            f"thread {thread} cannot be pinned to cores {core_list(cores)}", field="cores"
        ) from refused


def _no_process(pid: int) -> NotFound:
    return NotFound(f"no process has pid {pid}", hint="It has exited.", pid=pid)


# --- scheduling policies ---------------------------------------------------------------------------


class Scheduling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requested scheduling of a process."""

    policy: SchedulingPolicy = "other"
    nice: int = 0  # other and batch: from -20 (largest share) to 19 (smallest)
    priority: int = 0  # fifo and rr: from 1 to 99, higher is sooner
    slice_ns: int = 0  # other and batch: requested time slice; 0: the kernel decides
    runtime_ns: int = 0  # deadline: CPU time …
    deadline_ns: int = 0  # … within this time …
    period_ns: int = 0  # … in each period

    def __post_init__(self) -> None:
        _checks.one_of("policy", self.policy, get_args(SchedulingPolicy))
        _checks.whole("nice", self.nice, NICE_MIN, NICE_MAX)
        for field in ("slice_ns", "runtime_ns", "deadline_ns", "period_ns"):
            _checks.whole(field, getattr(self, field), 0)
        realtime = self.policy in {"fifo", "rr"}
        _checks.whole("priority", self.priority, 1 if realtime else 0, PRIORITY_MAX if realtime else 0)
        if self.policy == "deadline" and not 0 < self.runtime_ns <= self.deadline_ns <= self.period_ns:
            raise _checks.refuse("runtime_ns", "must be above 0, and runtime_ns <= deadline_ns <= period_ns")
        if self.policy != "deadline" and (self.runtime_ns or self.deadline_ns or self.period_ns):
            raise _checks.refuse("runtime_ns", f"applies to policy deadline only, not to {self.policy}")

    def __str__(self) -> str:
        """The policy and the fields that differ from their defaults."""
        rest = {name: getattr(self, name) for name in self.__struct_fields__[1:]}
        return " ".join([self.policy, *(f"{name}={value}" for name, value in rest.items() if value)])


def sched_attributes(wanted: Scheduling) -> dict[str, int]:
    """The fields of struct sched_attr for this scheduling."""
    return {
        "policy": POLICIES[wanted.policy],
        # a deadline process may fork only if its children start with policy other
        "flags": RESET_ON_FORK if wanted.policy == "deadline" else 0,
        "nice": wanted.nice,
        "priority": wanted.priority,
        "runtime_ns": wanted.runtime_ns or wanted.slice_ns,
        "deadline_ns": wanted.deadline_ns,
        "period_ns": wanted.period_ns,
    }


def set_scheduling(thread: int, wanted: Scheduling) -> None:
    """Set the scheduling of one thread; 0 is the calling thread. Raises OSError if the system refuses."""
    sched_setattr(thread, SchedAttr(**sched_attributes(wanted)))


def read_scheduling(pid: int = 0) -> Scheduling:
    """Return the scheduling in force for a process; 0 is the calling thread."""
    try:
        found = sched_getattr(pid)
    except ProcessLookupError as gone:
        raise NotFound(f"no process has pid {pid}", hint="It has exited.", pid=pid) from gone
    except OSError as problem:
        raise HostUnsupported(f"scheduling cannot be read: {explain_errno(problem.errno or 0)}") from problem
    return _scheduling(found)


def _scheduling(found: SchedAttr) -> Scheduling:
    policy = _NAMES.get(found.policy)
    if policy is None:
        raise HostUnsupported(f"the process has scheduling policy number {found.policy}, which rota does not support")
    fields: dict[str, Any] = {"policy": policy, "nice": found.nice, "priority": found.priority}
    if policy == "deadline":
        fields |= {name: getattr(found, name) for name in ("runtime_ns", "deadline_ns", "period_ns")}
    elif policy in {"other", "batch"}:
        fields["slice_ns"] = found.runtime_ns
    return Scheduling(**fields)

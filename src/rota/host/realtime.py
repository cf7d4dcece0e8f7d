"""Scheduling policies of the Linux kernel for a process: request one, read the one in force, report differences.

    other      shared by weight (nice); slice_ns requests shorter or longer time slices (Linux 6.12)
    batch      as other, but a process that wakes up does not preempt others
    idle       only CPU time that no other process wants
    fifo, rr   before all of the above, by priority 1 to 99; rr alternates between equal priorities
    deadline   runtime_ns in every period_ns, finished by deadline_ns; the kernel admits it or refuses

The last three need a privilege that ordinary users do not have, and deadline also free CPU capacity. Without it the
process continues as before and an `Advisory` reports it. None of this is a hard real-time guarantee: the kernel
reserves 5% of each second for other processes (sched_rt_runtime_us), and hardware can cause pauses.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from rota.errors import CommandInvalid, HostUnsupported, NotFound
from rota.host.advisory import Advisory, explain_errno
from rota.host.process_cpu import threads_of
from rota.host.syscalls import RESET_ON_FORK, SchedAttr, sched_getattr, sched_setattr
from rota.model.checks import Checks

__all__ = [
    "Scheduling",
    "SchedulingPolicy",
    "apply_scheduling",
    "read_scheduling",
    "sched_attributes",
    "scheduling_advisories",
]

SchedulingPolicy = Literal["other", "fifo", "rr", "batch", "idle", "deadline"]
POLICIES: dict[SchedulingPolicy, int] = {"other": 0, "fifo": 1, "rr": 2, "batch": 3, "idle": 5, "deadline": 6}
_NAMES = {number: name for name, number in POLICIES.items()}
NICE_MIN, NICE_MAX = -20, 19
PRIORITY_MAX = 99

_checks = Checks("Scheduling", CommandInvalid)


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


def apply_scheduling(pid: int, wanted: Scheduling) -> tuple[Advisory, ...]:
    """Set the scheduling of every thread of a process. Return advisories for what is not in force."""
    for thread in threads_of(pid):
        try:
            sched_setattr(thread, SchedAttr(**sched_attributes(wanted)))
        except ProcessLookupError:
            continue  # this thread has exited
        except OSError as refused:
            return (Advisory("scheduling", explain_errno(refused.errno or 0), str(wanted), str(read_scheduling(pid))),)
    return scheduling_advisories(wanted, read_scheduling(pid))


def scheduling_advisories(wanted: Scheduling, in_force: Scheduling) -> tuple[Advisory, ...]:
    """The advisories for a process whose scheduling differs from the requested one."""
    # a slice is a hint: the kernel rounds it, and old kernels ignore it
    same_slice = msgspec.structs.replace(in_force, slice_ns=wanted.slice_ns)
    if wanted.slice_ns and wanted.slice_ns != in_force.slice_ns:
        return (Advisory("slice_ns", "the kernel chose another time slice", str(wanted), str(in_force)),)
    if same_slice == wanted:
        return ()
    return (Advisory("scheduling", "the kernel keeps another setting", str(wanted), str(in_force)),)

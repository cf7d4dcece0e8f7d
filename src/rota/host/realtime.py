"""The kernel's own scheduling policies for a process: what was asked, what is in force, and what is missing.

    other      shared by weight (nice); slice_ns asks for shorter or longer turns (Linux 6.12)
    batch      as other, but waking up does not interrupt anybody
    idle       only what nobody else wants
    fifo, rr   before all of the above, by priority 1 to 99; rr takes turns among equals
    deadline   runtime_ns in every period_ns, done by deadline_ns; the kernel admits it or refuses

The last three need a right that ordinary users do not have, and deadline also room on the processors. Without it the
process goes on as it was and an `Advisory` says so: asking never crashes. None of this is a hard-realtime promise:
the kernel keeps 5% of each second for the others (sched_rt_runtime_us), and hardware has its own pauses.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from rota.errors import CommandInvalid, HostUnsupported, NotFound
from rota.host.advisory import Advisory, reason
from rota.host.affinity import threads_of
from rota.host.syscalls import RESET_ON_FORK, SchedAttr, sched_getattr, sched_setattr
from rota.model.checks import Checks

__all__ = ["POLICIES", "Policy", "Scheduling", "advise", "apply", "attributes", "read"]

Policy = Literal["other", "fifo", "rr", "batch", "idle", "deadline"]
POLICIES: dict[Policy, int] = {"other": 0, "fifo": 1, "rr": 2, "batch": 3, "idle": 5, "deadline": 6}
_NAMES = {number: name for name, number in POLICIES.items()}
NICE_MIN, NICE_MAX = -20, 19
PRIORITY_MAX = 99

_checks = Checks("Scheduling", CommandInvalid)


class Scheduling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the kernel is to schedule a process."""

    policy: Policy = "other"
    nice: int = 0  # other and batch: from -20 (most) to 19 (least)
    priority: int = 0  # fifo and rr: from 1 to 99, higher is sooner
    slice_ns: int = 0  # other and batch: the wished length of a turn; 0 leaves it to the kernel
    runtime_ns: int = 0  # deadline: this much …
    deadline_ns: int = 0  # … done by then …
    period_ns: int = 0  # … in each period

    def __post_init__(self) -> None:
        _checks.one_of("policy", self.policy, get_args(Policy))
        _checks.whole("nice", self.nice, NICE_MIN, NICE_MAX)
        for field in ("slice_ns", "runtime_ns", "deadline_ns", "period_ns"):
            _checks.whole(field, getattr(self, field), 0)
        realtime = self.policy in {"fifo", "rr"}
        _checks.whole("priority", self.priority, 1 if realtime else 0, PRIORITY_MAX if realtime else 0)
        if self.policy == "deadline" and not 0 < self.runtime_ns <= self.deadline_ns <= self.period_ns:
            raise _checks.refuse("runtime_ns", "must be above 0, and not above deadline_ns, nor that above period_ns")
        if self.policy != "deadline" and (self.runtime_ns or self.deadline_ns or self.period_ns):
            raise _checks.refuse("runtime_ns", f"belongs to policy deadline, not to {self.policy}")

    def __str__(self) -> str:
        """The policy and what is not at its default."""
        rest = {name: getattr(self, name) for name in self.__struct_fields__[1:]}
        return " ".join([self.policy, *(f"{name}={value}" for name, value in rest.items() if value)])


def attributes(wanted: Scheduling) -> dict[str, int]:
    """The fields of struct sched_attr that ask for this."""
    return {
        "policy": POLICIES[wanted.policy],
        # a deadline process may not fork unless its children start as ordinary ones
        "flags": RESET_ON_FORK if wanted.policy == "deadline" else 0,
        "nice": wanted.nice,
        "priority": wanted.priority,
        "runtime_ns": wanted.runtime_ns or wanted.slice_ns,
        "deadline_ns": wanted.deadline_ns,
        "period_ns": wanted.period_ns,
    }


def read(pid: int = 0) -> Scheduling:
    """What is in force for a process; 0 is the calling thread."""
    try:
        found = sched_getattr(pid)
    except ProcessLookupError as gone:
        raise NotFound(f"no process has pid {pid}", hint="It has ended.", pid=pid) from gone
    except OSError as problem:
        raise HostUnsupported(f"scheduling cannot be read: {reason(problem.errno or 0)}") from problem
    return _scheduling(found)


def _scheduling(found: SchedAttr) -> Scheduling:
    policy = _NAMES.get(found.policy)
    if policy is None:
        raise HostUnsupported(f"the process has scheduling policy number {found.policy}, which rota does not know")
    fields: dict[str, Any] = {"policy": policy, "nice": found.nice, "priority": found.priority}
    if policy == "deadline":
        fields |= {name: getattr(found, name) for name in ("runtime_ns", "deadline_ns", "period_ns")}
    elif policy in {"other", "batch"}:
        fields["slice_ns"] = found.runtime_ns
    return Scheduling(**fields)


def apply(pid: int, wanted: Scheduling) -> tuple[Advisory, ...]:
    """Ask for this for every thread of a process. What is not in force is the answer."""
    for thread in threads_of(pid):
        try:
            sched_setattr(thread, SchedAttr(**attributes(wanted)))
        except ProcessLookupError:
            continue  # this thread has ended
        except OSError as refused:
            return (Advisory("scheduling", reason(refused.errno or 0), str(wanted), str(read(pid))),)
    return advise(wanted, read(pid))


def advise(wanted: Scheduling, in_force: Scheduling) -> tuple[Advisory, ...]:
    """What to say when a process is scheduled in another way than was asked for."""
    # a slice is a wish: the kernel rounds it, and an old one ignores it
    same_slice = msgspec.structs.replace(in_force, slice_ns=wanted.slice_ns)
    if wanted.slice_ns and wanted.slice_ns != in_force.slice_ns:
        return (Advisory("slice_ns", "the kernel chose another", str(wanted), str(in_force)),)
    if same_slice == wanted:
        return ()
    return (Advisory("scheduling", "the kernel keeps another", str(wanted), str(in_force)),)

"""One command under the live driver: continue it, stop it, and read its CPU clock.

A command is kept off its core from outside: it is stopped and continued by signals to its process group (which it can
see, and which other programs of the user may undo) or by the freezer of a control group (which it cannot see). Its
`advisories` say which of the two is used.

**Is it asleep?** A process does not announce that it waits. The driver checks how far its clock has moved and, if that
is hardly at all, whether any of its threads is runnable. A sleeping command is left alone, so that it can wake; a moved
clock means that it has. Until the next check it has then run without permission: to that extent its slices are
cooperative.

The clock of a process covers its threads. A command that starts children (a shell) is counted together with them, by
its control group if it has one, else by adding up the live processes.
"""

from __future__ import annotations

import signal

from msgspec.structs import replace

from rota.errors import CommandInvalid, HostError, NotFound
from rota.host.advisory import Advisory
from rota.host.cgroups import ControlGroup
from rota.host.lineage import children_of, descendants_of
from rota.host.process_cpu import is_runnable, process_cpu_ns, tree_cpu_ns
from rota.host.session import Session
from rota.host.thread_settings import Scheduling, apply_scheduling, pin

__all__ = ["CHILDREN_CHECK_NS", "SlicedProcess"]

CHILDREN_CHECK_NS = 100_000_000  # how often the driver checks for children


class SlicedProcess:
    """One command that runs in time slices."""

    def __init__(self, name: str, entity: int, session: Session, group: ControlGroup | None, *, freezes: bool) -> None:
        self.name = name
        self.entity = entity
        self.session = session
        self.group = group
        self.core: int | None = None  # where it was last pinned
        self.is_stopped = False
        self.is_steady = False  # it used most of its last slice: no check needed before the next one ends
        self.seen_cpu_ns = 0  # its clock at the last reading
        self.seen_at_ns = 0  # the instant of that reading
        self._freezes = freezes
        self._has_children = False
        self._children_at_ns = -CHILDREN_CHECK_NS
        self._affinity_advisories: tuple[Advisory, ...] = ()
        self._scheduling_advisories: tuple[Advisory, ...] = ()

    @property
    def advisories(self) -> tuple[Advisory, ...]:
        """What was requested and is not in force, or only with the cooperation of the process."""
        group = self.group.advisories if self.group is not None else ()
        stopping = () if self._freezes else (_COOPERATIVE,)
        return (
            *self.session.advisories,
            *self._scheduling_advisories,
            *group,
            *self._affinity_advisories,
            *stopping,
        )

    def resume(self, core: int) -> None:
        """Let it run on a host core."""
        if self.core != core:
            self._pin(core)
        if self.is_stopped:
            self.is_stopped = False
            if self._freezes and self.group is not None:
                self.group.thaw()
            else:
                self.session.signal(signal.SIGCONT)

    def pause(self) -> None:
        """Keep it off every core until `resume`."""
        if not self.is_stopped:
            self.is_stopped = True
            if self._freezes and self.group is not None:
                self.group.freeze()
            else:
                self.session.signal(signal.SIGSTOP)

    def set_scheduling(self, wanted: Scheduling) -> None:
        """Apply a kernel scheduling policy while the process is stopped: a running `fifo` process is hard to stop."""
        try:
            refused = apply_scheduling(self.session.pid, wanted)
        except NotFound:
            refused = (Advisory("scheduling", "the process ended before it was applied", str(wanted)),)
        except HostError as problem:
            refused = (Advisory("scheduling", problem.message, str(wanted)),)
        cooperative = "its time slices are cooperative"
        self._scheduling_advisories = tuple(replace(one, why=f"{one.why}; {cooperative}") for one in refused)

    def release(self) -> None:
        """Continue it for good, as if there were no driver."""
        if self.is_stopped and self.core is not None:
            self.resume(self.core)

    def read_clock(self, now: int) -> int:
        """Read its clock and return how far it moved since the last reading."""
        cpu_ns = self._cpu_ns(now)
        moved_ns = max(0, cpu_ns - self.seen_cpu_ns)  # the sum may fall when children end
        self.seen_cpu_ns, self.seen_at_ns = cpu_ns, now
        return moved_ns

    def clock_moved_ns(self, now: int) -> int:
        """How far its clock moved since the last reading, without a new reading: small movements add up."""
        return max(0, self._cpu_ns(now) - self.seen_cpu_ns)

    def is_runnable(self) -> bool:
        """Whether any of its threads, or of its children's, is runnable or waits for the disk."""
        return is_runnable(self.session.pid)

    def _cpu_ns(self, now: int) -> int:
        if now - self._children_at_ns >= CHILDREN_CHECK_NS:
            self._children_at_ns = now
            self._has_children = self._has_children or bool(children_of(self.session.pid))
        try:
            return self._tree_cpu_ns() if self._has_children else process_cpu_ns(self.session.pid)
        except NotFound:
            return self.seen_cpu_ns  # it has ended; its exit is about to be collected

    def _tree_cpu_ns(self) -> int:
        in_group = self.group.usage().cpu_ns if self.group is not None else None
        return tree_cpu_ns(self.session.pid) if in_group is None else in_group

    def _pin(self, core: int) -> None:
        self.core = core
        try:
            self._affinity_advisories = pin(self.session.pid, (core,))
            for child in descendants_of(self.session.pid):
                pin(child, (core,))
        except NotFound:
            return  # it has ended; its exit is about to be collected
        except (HostError, CommandInvalid) as refused:  # the kernel does not pin a `deadline` process to one core
            self._affinity_advisories = (
                Advisory("cores", f"{refused.message}; its placement is cooperative", str(core)),
            )


_COOPERATIVE = Advisory("stopping", "it is stopped by signals, which a program of the same user can undo", "freezer")

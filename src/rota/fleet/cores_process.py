"""A real process as the engine for cores sees it: let it go, let it stand still, see what it has used.

A process is kept off its core from outside: it is stopped and continued, by signals to its process group (which it
can see, and which anybody may undo) or by the freezer of a control group (which it cannot). Which of the two is in
force is told in `advisories`.

**Is it asleep?** Nobody tells us when a process waits for something. Two things are looked at: how far its clock has
moved, and, if that is hardly at all, whether any of its threads could run. A process that sleeps is left alone, so
that it can wake; when its clock has moved it has. Until the next look it has then run without being asked: that much
is cooperative.

The clock of a process counts its threads. A command that starts others (a shell) is counted with them, by the control
group where there is one, else by adding up whoever lives.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from rota.errors import CommandInvalid, HostError, NotFound
from rota.host.advisory import Advisory
from rota.host.affinity import pin
from rota.host.cgroups import Group
from rota.host.cpu_clocks import process_cpu_ns, tree_cpu_ns
from rota.host.lineage import children_of, descendants_of
from rota.host.realtime import Scheduling, apply
from rota.host.session import Session

__all__ = ["CHILDREN_LOOK_NS", "Sliced"]

CHILDREN_LOOK_NS = 100_000_000  # how often it is looked whether a process has children


class Sliced:
    """One command that is run in turns."""

    def __init__(self, name: str, entity: int, session: Session, group: Group | None, *, freezes: bool) -> None:
        self.name = name
        self.entity = entity
        self.session = session
        self.group = group
        self.core: int | None = None  # where it was put last
        self.is_stopped = False
        self.is_steady = False  # it used most of its last turn: no need to look before the next one ends
        self.seen_cpu_ns = 0  # its clock when it was looked at last
        self.seen_at_ns = 0  # and when that was
        self._freezes = freezes
        self._has_children = False
        self._children_at_ns = -CHILDREN_LOOK_NS
        self._placing: tuple[Advisory, ...] = ()
        self._scheduling: tuple[Advisory, ...] = ()

    @property
    def advisories(self) -> tuple[Advisory, ...]:
        """What was asked and is not in force, or only as long as the process plays along."""
        of_group = self.group.advisories if self.group is not None else ()
        stopping = () if self._freezes else (_COOPERATIVE,)
        return (*self.session.advisories, *self._scheduling, *of_group, *self._placing, *stopping)

    def go(self, core: int) -> None:
        """Let it run on a core of the machine."""
        if self.core != core:
            self._put(core)
        if self.is_stopped:
            self.is_stopped = False
            if self._freezes and self.group is not None:
                self.group.thaw()
            else:
                self.session.signal(signal.SIGCONT)

    def stand_still(self) -> None:
        """Keep it off every core until it may go."""
        if not self.is_stopped:
            self.is_stopped = True
            if self._freezes and self.group is not None:
                self.group.freeze()
            else:
                self.session.signal(signal.SIGSTOP)

    def ask_kernel(self, wanted: Scheduling) -> None:
        """Ask for a policy of the kernel's while it stands still: under `fifo` it might not let us stop it in time."""
        try:
            refused = apply(self.session.pid, wanted)
        except NotFound:
            refused = (Advisory("scheduling", "it ended before it could be asked for", str(wanted)),)
        except HostError as problem:
            refused = (Advisory("scheduling", problem.message, str(wanted)),)
        cooperative = "its turns are cooperative"
        self._scheduling = tuple(replace(one, why=f"{one.why}; {cooperative}") for one in refused)

    def let_alone(self) -> None:
        """Nobody holds it any more: it goes on as if there were no driver."""
        if self.is_stopped and self.core is not None:
            self.go(self.core)

    def look(self, now: int) -> int:
        """How far its clock has moved since the last look."""
        cpu_ns = self._cpu_ns(now)
        moved_ns = max(0, cpu_ns - self.seen_cpu_ns)  # of a family whose children end, the sum may fall
        self.seen_cpu_ns, self.seen_at_ns = cpu_ns, now
        return moved_ns

    def moved_since(self, now: int) -> int:
        """The same, without counting it as a look: small movements add up."""
        return max(0, self._cpu_ns(now) - self.seen_cpu_ns)

    def could_run(self) -> bool:
        """Whether any thread of it, or of its children, is able to run or waits for the disk."""
        pid = self.session.pid
        return any(state in "RD" for one in (pid, *descendants_of(pid)) for state in _states(one))

    def _cpu_ns(self, now: int) -> int:
        if now - self._children_at_ns >= CHILDREN_LOOK_NS:
            self._children_at_ns = now
            self._has_children = self._has_children or bool(children_of(self.session.pid))
        try:
            return self._family_cpu_ns() if self._has_children else process_cpu_ns(self.session.pid)
        except NotFound:
            return self.seen_cpu_ns  # it has ended, and the report of it is on its way

    def _family_cpu_ns(self) -> int:
        in_group = self.group.usage().cpu_ns if self.group is not None else None
        return tree_cpu_ns(self.session.pid) if in_group is None else in_group

    def _put(self, core: int) -> None:
        self.core = core
        try:
            self._placing = pin(self.session.pid, (core,))
            for child in descendants_of(self.session.pid):
                pin(child, (core,))
        except NotFound:
            return  # it has ended, and the report of it is on its way
        except (HostError, CommandInvalid) as refused:  # the kernel leaves nobody under `deadline` to one core
            self._placing = (Advisory("cores", f"{refused.message}; where it runs is cooperative", str(core)),)


_COOPERATIVE = Advisory("stopping", "it is stopped by signals: a program of the same user may undo that", "freezer")


def _states(pid: int) -> Iterator[str]:
    """What each thread of a process does: R runs or could, D waits for the disk, S sleeps, T is stopped."""
    try:
        threads = list((Path("/proc") / str(pid) / "task").iterdir())
    except OSError:
        return
    for thread in threads:
        try:
            text = (thread / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        yield text.rpartition(")")[2].split()[0]

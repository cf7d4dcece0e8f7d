"""What this machine offers, found by trying: one frozen structure for whoever must choose or explain.

Nothing lasts: scheduling policies are tried on a thread that then ends, control groups on a group that is then
removed.
"""

from __future__ import annotations

import os
import platform
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from rota.errors import RotaError
from rota.host.advisory import reason
from rota.host.affinity import allowed_cores
from rota.host.cgroups import Backend, Cgroups, Support
from rota.host.cpu_clocks import process_cpu_ns
from rota.host.realtime import Scheduling, attributes
from rota.host.session import TO_THE_GROUP
from rota.host.syscalls import SchedAttr, knows_subreapers, sched_getattr, sched_setattr

__all__ = ["Capabilities", "Offer", "detect"]

_MS = 1_000_000  # nanoseconds


class Offer(msgspec.Struct, frozen=True):
    """One thing that a machine may offer, what it is for, and why it does not."""

    name: str
    for_what: str
    why_not: str = ""  # empty: it works

    @property
    def works(self) -> bool:
        """Whether it was tried and did."""
        return not self.why_not


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine offers to this process."""

    system: str
    kernel: str
    machine: str
    cores: tuple[int, ...]  # that we may run on
    offers: tuple[Offer, ...]
    cgroup_backend: Backend
    cgroups: tuple[Support, ...]

    def offer(self, name: str) -> Offer:
        """One of the offers."""
        return next(offer for offer in self.offers if offer.name == name)

    @property
    def can_mind(self) -> bool:
        """Whether commands can be started and minded here."""
        return self.offer("minder").works


def detect() -> Capabilities:
    """Try everything. Takes some milliseconds."""
    groups = Cgroups(prepare=False)
    return Capabilities(
        system=platform.system(),
        kernel=platform.release(),
        machine=platform.machine(),
        cores=_cores(),
        offers=tuple(_offers()),
        cgroup_backend=groups.backend,
        cgroups=tuple(groups.support.values()),
    )


def _cores() -> tuple[int, ...]:
    try:
        return tuple(sorted(allowed_cores()))
    except RotaError:
        return tuple(range(os.cpu_count() or 1))


def _offers() -> Iterator[Offer]:
    for name, for_what, attempt in _ATTEMPTS:
        yield Offer(name, for_what, _problem(attempt))
    for name, (for_what, wanted) in _POLICIES.items():
        yield Offer(name, for_what, _on_a_thread(lambda wanted=wanted: _schedule(wanted)))  # type: ignore[misc]


def _problem(attempt: Callable[[], object]) -> str:
    try:
        return "" if attempt() is not False else "this system does not know it"
    except AttributeError:
        return "this system does not know it"
    except OSError as problem:
        return reason(problem.errno or 0)
    except RotaError as problem:
        return problem.message


def _on_a_thread(attempt: Callable[[], object]) -> str:
    """Try something that changes the thread that tries it, on one that then ends."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_problem(attempt)))
    thread.start()
    thread.join()
    return found[0]


def _schedule(wanted: Scheduling) -> bool:
    sched_setattr(0, SchedAttr(**attributes(wanted)))
    in_force = sched_getattr(0)
    return not wanted.slice_ns or in_force.runtime_ns == wanted.slice_ns


def _signal_a_group() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(pidfd, 0, None, TO_THE_GROUP)
    except ProcessLookupError:
        pass  # the call is known: we just lead no group
    finally:
        os.close(pidfd)


_ATTEMPTS: tuple[tuple[str, str, Callable[[], object]], ...] = (
    ("minder", "starting commands, and ending what they leave behind", knows_subreapers),
    ("pidfd", "watching a process without mistaking another for it", lambda: os.close(os.pidfd_open(os.getpid()))),
    ("group_signals", "signalling a command without asking the minder", _signal_a_group),
    ("limits", "limits on a process from outside", lambda: resource.prlimit(0, resource.RLIMIT_CPU)),
    ("cpu_clock", "processor time to the nanosecond", lambda: process_cpu_ns(os.getpid())),
    ("affinity", "choosing cores", allowed_cores),
    ("lineage", "finding what escaped", lambda: Path("/proc/self/environ").exists()),
)  # fmt: skip
_POLICIES = {
    "batch": ("work that interrupts nobody", Scheduling(policy="batch")),
    "idle": ("work that takes only what is left", Scheduling(policy="idle")),
    "nice": ("more than an ordinary share", Scheduling(nice=-1)),
    "slice": ("turns of another length", Scheduling(slice_ns=5 * _MS)),
    "fifo": ("before all others", Scheduling(policy="fifo", priority=1)),
    "rr": ("before all others, in turns", Scheduling(policy="rr", priority=1)),
    "deadline": (
        "so much time in every period",
        Scheduling(policy="deadline", runtime_ns=_MS, deadline_ns=100 * _MS, period_ns=100 * _MS),
    ),
}

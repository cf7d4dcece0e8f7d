"""Detect what this machine supports by trying it.

Nothing is left behind: scheduling policies are tried on a thread that then ends, control groups on a group that is
then removed.
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
from rota.host.advisory import explain_errno
from rota.host.cgroups import Backend, Cgroups, FeatureSupport
from rota.host.process_cpu import allowed_cores, process_cpu_ns
from rota.host.realtime import Scheduling, sched_attributes
from rota.host.session import PIDFD_SIGNAL_PROCESS_GROUP
from rota.host.syscalls import SchedAttr, sched_getattr, sched_setattr, supports_subreapers

__all__ = ["Capabilities", "Capability", "detect"]

_MS = 1_000_000  # nanoseconds


class Capability(msgspec.Struct, frozen=True):
    """One facility of the system, what rota uses it for, and why it is not available."""

    name: str
    for_what: str
    why_not: str = ""  # empty: available

    @property
    def works(self) -> bool:
        """Whether it was tried and works."""
        return not self.why_not


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine supports for this process."""

    system: str
    kernel: str
    machine: str
    cores: tuple[int, ...]  # that this process may use
    offers: tuple[Capability, ...]
    cgroup_backend: Backend
    cgroups: tuple[FeatureSupport, ...]

    def offer(self, name: str) -> Capability:
        """Return one of the offers by its name."""
        return next(offer for offer in self.offers if offer.name == name)

    @property
    def can_run_commands(self) -> bool:
        """Whether commands can be started and cleaned up on this machine."""
        return self.offer("reaper").works


def detect() -> Capabilities:
    """Try everything. This takes a few milliseconds."""
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


def _offers() -> Iterator[Capability]:
    for name, for_what, attempt in _ATTEMPTS:
        yield Capability(name, for_what, _problem(attempt))
    for name, (for_what, wanted) in _POLICIES.items():
        yield Capability(name, for_what, _on_a_thread(lambda wanted=wanted: _schedule(wanted)))  # type: ignore[misc]


def _problem(attempt: Callable[[], object]) -> str:
    """Try something and return why it fails; empty if it works."""
    try:
        return "" if attempt() is not False else "this system does not have it"
    except AttributeError:
        return "this system does not have it"
    except OSError as problem:
        return explain_errno(problem.errno or 0)
    except RotaError as problem:
        return problem.message


def _on_a_thread(attempt: Callable[[], object]) -> str:
    """Try something that changes the calling thread, on a thread that then ends."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_problem(attempt)))
    thread.start()
    thread.join()
    return found[0]


def _schedule(wanted: Scheduling) -> bool:
    sched_setattr(0, SchedAttr(**sched_attributes(wanted)))
    in_force = sched_getattr(0)
    return not wanted.slice_ns or in_force.runtime_ns == wanted.slice_ns


def _signal_a_group() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(pidfd, 0, None, PIDFD_SIGNAL_PROCESS_GROUP)
    except ProcessLookupError:
        pass  # the call exists; this process just leads no group
    finally:
        os.close(pidfd)


_ATTEMPTS: tuple[tuple[str, str, Callable[[], object]], ...] = (
    ("reaper", "starting commands and killing what they leave behind", supports_subreapers),
    ("pidfd", "watching a process without confusing it with another", lambda: os.close(os.pidfd_open(os.getpid()))),
    ("group_signals", "signalling a command without the reaper", _signal_a_group),
    ("limits", "setting limits on another process", lambda: resource.prlimit(0, resource.RLIMIT_CPU)),
    ("cpu_clock", "CPU time to the nanosecond", lambda: process_cpu_ns(os.getpid())),
    ("affinity", "restricting a process to cores", allowed_cores),
    ("lineage", "finding processes that left their session", lambda: Path("/proc/self/environ").exists()),
)  # fmt: skip
_POLICIES = {
    "batch": ("work that does not preempt other processes", Scheduling(policy="batch")),
    "idle": ("work that uses only idle CPU time", Scheduling(policy="idle")),
    "nice": ("more than an ordinary share of CPU time", Scheduling(nice=-1)),
    "slice": ("another length of time slices", Scheduling(slice_ns=5 * _MS)),
    "fifo": ("running before all ordinary processes", Scheduling(policy="fifo", priority=1)),
    "rr": ("the same, alternating between equal priorities", Scheduling(policy="rr", priority=1)),
    "deadline": (
        "a guaranteed CPU time in every period",
        Scheduling(policy="deadline", runtime_ns=_MS, deadline_ns=100 * _MS, period_ns=100 * _MS),
    ),
}

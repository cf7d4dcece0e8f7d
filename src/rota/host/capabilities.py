"""Detect what this machine supports by trying it: a container may refuse what the user id allows.

Nothing is left behind: what a thread sets on itself is tried on a thread that then ends, control groups on a group that
is then removed. `detect` tries everything; `probe` tries what threads may set, once, for the lanes of graphs.
"""

from __future__ import annotations

import os
import platform
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from rota.errors import RotaError
from rota.host.advisory import explain_errno
from rota.host.cgroups import Backend, Cgroups, FeatureSupport
from rota.host.process_cpu import process_cpu_ns
from rota.host.session import PIDFD_SIGNAL_PROCESS_GROUP
from rota.host.syscalls import sched_getattr, supports_subreapers
from rota.host.thread_settings import (
    NICE_MAX,
    Scheduling,
    allowed_cores,
    pin_thread,
    set_scheduling,
    set_thread_name,
    usable_cores,
)

__all__ = ["Capabilities", "Capability", "Platform", "allowed_policies", "detect", "probe"]

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
        cores=tuple(sorted(usable_cores())),
        offers=tuple(_try(name) for name in _ATTEMPTS),
        cgroup_backend=groups.backend,
        cgroups=tuple(groups.support.values()),
    )


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """What the operating system allows this process to set on its own threads."""

    name: str = "unknown"
    cpus: tuple[int, ...] = ()  # that a thread may be bound to; empty if affinity is not supported
    thread_names: bool = False
    nice: bool = False  # raise the niceness
    nice_below_zero: bool = False  # lower the niceness, which needs a permission of its own
    realtime: bool = False  # SCHED_FIFO and SCHED_RR


@cache
def probe() -> Platform:
    """Return what this machine allows this process to set on its threads. The first call tries it out."""
    if sys.platform != "linux":
        return Platform(name=sys.platform)
    return Platform(
        name=sys.platform,
        cpus=tuple(sorted(allowed_cores())),
        thread_names=_try("thread_names").works,
        nice=_try("nice_up").works,
        nice_below_zero=_try("nice").works,
        realtime=_try("fifo").works,
    )


@cache
def allowed_policies() -> frozenset[str]:
    """Return the scheduling policies that this process may give to others, and `slice`. The first call tries them."""
    return frozenset(name for name in ("batch", "slice", "fifo", "rr", "deadline") if _try(name).works)


def _try(name: str) -> Capability:
    """Try a facility, on a thread that then ends."""
    for_what, attempt = _ATTEMPTS[name]
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_problem(attempt)))
    thread.start()
    thread.join()
    return Capability(name, for_what, found[0])


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


def _schedule(wanted: Scheduling) -> Callable[[], bool]:
    def attempt() -> bool:
        set_scheduling(0, wanted)
        in_force = sched_getattr(0)
        return not wanted.slice_ns or in_force.runtime_ns == wanted.slice_ns

    return attempt


def _reserve() -> bool:
    # a thread needs all cores for it, and a lease may confine this process to some
    pin_thread(0, usable_cores())
    return _schedule(Scheduling(policy="deadline", runtime_ns=_MS, deadline_ns=100 * _MS, period_ns=100 * _MS))()


def _name_a_thread() -> bool:
    if sys.platform == "linux":
        set_thread_name("rota-probe")
    return sys.platform == "linux"


def _signal_a_group() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(pidfd, 0, None, PIDFD_SIGNAL_PROCESS_GROUP)
    except ProcessLookupError:
        pass  # the call exists; this process just leads no group
    finally:
        os.close(pidfd)


# what rota uses it for, and the attempt, which returns False or raises if the system does not have it
_ATTEMPTS: Mapping[str, tuple[str, Callable[[], object]]] = {
    "reaper": ("starting commands and killing what they leave behind", supports_subreapers),
    "pidfd": ("watching a process without confusing it with another", lambda: os.close(os.pidfd_open(os.getpid()))),
    "group_signals": ("signalling a command without the reaper", _signal_a_group),
    "limits": ("setting limits on another process", lambda: resource.prlimit(0, resource.RLIMIT_CPU)),
    "cpu_clock": ("CPU time to the nanosecond", lambda: process_cpu_ns(os.getpid())),
    "affinity": ("restricting a process to cores", allowed_cores),
    "lineage": ("finding processes that left their session", lambda: Path("/proc/self/environ").exists()),
    "thread_names": ("naming the threads of a graph's lanes", _name_a_thread),
    "batch": ("work that does not preempt other processes", _schedule(Scheduling(policy="batch"))),
    "idle": ("work that uses only idle CPU time", _schedule(Scheduling(policy="idle"))),
    "nice": ("more than an ordinary share of CPU time", _schedule(Scheduling(nice=-1))),
    "nice_up": ("less than an ordinary share of CPU time", _schedule(Scheduling(nice=NICE_MAX))),
    "slice": ("another length of time slices", _schedule(Scheduling(slice_ns=5 * _MS))),
    "fifo": ("running before all ordinary processes", _schedule(Scheduling(policy="fifo", priority=1))),
    "rr": ("the same, alternating between equal priorities", _schedule(Scheduling(policy="rr", priority=1))),
    "deadline": ("a guaranteed CPU time in every period", _reserve),
}

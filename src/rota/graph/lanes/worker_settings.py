"""Operating-system settings of a lane's workers: what is applied, and what is really in force.

The plan lists the fields of a lane that can be applied on this platform (`applied_fields`). The worker's own thread
applies exactly those before its first invocation, then reads everything back from the kernel. A setting that the
operating system refuses becomes an advisory in the worker's report, never a failed run.

A thread's name is the lane's `thread_name` (or its id) and the worker's number, cut to the length the kernel keeps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from rota.graph.plan import Lane

__all__ = ["THREAD_NAME_CHARS_MAX", "WorkerReport", "apply_worker_settings", "worker_name"]

THREAD_NAME_CHARS_MAX = 15  # the limit of Linux

_POLICY_CONSTANTS = {"fifo": "SCHED_FIFO", "rr": "SCHED_RR"}


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one worker as the operating system reports them. None: not reported."""

    lane: str
    worker_id: int
    name: str
    process_id: int
    cpu_affinity: tuple[int, ...] | None = None
    nice: int | None = None
    rt_policy: str | None = None  # none, fifo, rr
    rt_priority: int | None = None
    advisories: tuple[str, ...] = ()  # settings that were refused


def worker_name(lane: Lane, worker_id: int) -> str:
    """Return the name of a worker's thread."""
    number = f"-{worker_id}"
    return (lane.spec.thread_name or lane.id)[: THREAD_NAME_CHARS_MAX - len(number)] + number


def apply_worker_settings(lane: Lane, worker_id: int) -> WorkerReport:
    """Apply the lane's settings to the calling thread and report what is in force."""
    name = worker_name(lane, worker_id)
    settings: dict[str, Callable[[], None]] = {
        "thread_name": lambda: _name_thread(name),
        "cpu_affinity": lambda: os.sched_setaffinity(threading.get_native_id(), lane.spec.cpu_affinity),
        "nice_priority": lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lane.spec.nice_priority),
        "rt_policy": lambda: _set_realtime(lane.spec.rt_policy, lane.spec.rt_priority),
    }
    advisories = [
        refusal
        for field, apply in settings.items()
        if field in lane.capability.applied_fields and (refusal := _try(field, apply))
    ]
    return _read_back(lane.id, worker_id, name, tuple(advisories))


def _try(field: str, apply: Callable[[], None]) -> str | None:
    try:
        apply()
    except OSError as problem:
        return f"{field} was not applied: {problem.strerror or problem}"
    return None


def _name_thread(name: str) -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def _set_realtime(policy: str, priority: int) -> None:
    os.sched_setscheduler(threading.get_native_id(), getattr(os, _POLICY_CONSTANTS[policy]), os.sched_param(priority))


def _read_back(lane_id: str, worker_id: int, name: str, advisories: tuple[str, ...]) -> WorkerReport:
    thread_id = threading.get_native_id()
    plain = {"lane": lane_id, "worker_id": worker_id, "process_id": os.getpid(), "advisories": advisories}
    if not hasattr(os, "sched_getaffinity"):  # Python has these functions on Linux only
        return WorkerReport(name=name, **plain)  # type: ignore[arg-type]
    policy = os.sched_getscheduler(thread_id)
    policy_names = {getattr(os, constant): name for name, constant in _POLICY_CONSTANTS.items()}
    return WorkerReport(
        name=_name_in_force(thread_id, name),
        cpu_affinity=tuple(sorted(os.sched_getaffinity(thread_id))),
        nice=os.getpriority(os.PRIO_PROCESS, thread_id),
        rt_policy=policy_names.get(policy & ~os.SCHED_RESET_ON_FORK, "none"),
        rt_priority=os.sched_getparam(thread_id).sched_priority,
        **plain,  # type: ignore[arg-type]
    )


def _name_in_force(thread_id: int, name: str) -> str:
    try:
        return Path(f"/proc/self/task/{thread_id}/comm").read_text().rstrip("\n")
    except OSError:  # no /proc here
        return name

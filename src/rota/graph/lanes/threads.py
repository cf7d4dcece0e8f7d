"""What the operating system is asked to do for one worker, and what it really did.

The plan says which fields of a lane can be applied on this platform (`applied_fields`); exactly those are tried, on the
worker's own thread, before its first invocation. Afterwards everything is read back from the kernel. A worker without
the right to something runs without it and says so: a wish that was not granted is an advisory, never a failed run.

A thread's name is the lane's `thread_name` (or its id) and the worker's number, cut to what the kernel keeps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from rota.graph.plan import Lane

__all__ = ["THREAD_NAME_CHARS_MAX", "WorkerReport", "settle_in", "worker_name"]

THREAD_NAME_CHARS_MAX = 15  # what Linux keeps

_POLICY_WORDS = {"fifo": "SCHED_FIFO", "rr": "SCHED_RR"}


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a lane, as the operating system sees it. None: it does not say."""

    lane: str
    worker_id: int
    name: str
    process_id: int
    cpu_affinity: tuple[int, ...] | None = None
    nice: int | None = None
    rt_policy: str | None = None  # none, fifo, rr
    rt_priority: int | None = None
    advisories: tuple[str, ...] = ()  # what was asked for and not granted


def worker_name(lane: Lane, worker_id: int) -> str:
    """The name of a worker's thread."""
    number = f"-{worker_id}"
    return (lane.spec.thread_name or lane.id)[: THREAD_NAME_CHARS_MAX - len(number)] + number


def settle_in(lane: Lane, worker_id: int) -> WorkerReport:
    """Apply the lane's wishes to the calling thread and report what is in force."""
    name = worker_name(lane, worker_id)
    wishes: dict[str, Callable[[], None]] = {
        "thread_name": lambda: _name_thread(name),
        "cpu_affinity": lambda: os.sched_setaffinity(threading.get_native_id(), lane.spec.cpu_affinity),
        "nice_priority": lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lane.spec.nice_priority),
        "rt_policy": lambda: _set_realtime(lane.spec.rt_policy, lane.spec.rt_priority),
    }
    advisories = [
        refused
        for field, grant in wishes.items()
        if field in lane.capability.applied_fields and (refused := _try(field, grant))
    ]
    return _read_back(lane.id, worker_id, name, tuple(advisories))


def _try(field: str, grant: Callable[[], None]) -> str | None:
    try:
        grant()
    except OSError as problem:
        return f"{field} was not granted: {problem.strerror or problem}"
    return None


def _name_thread(name: str) -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def _set_realtime(policy: str, priority: int) -> None:
    os.sched_setscheduler(threading.get_native_id(), getattr(os, _POLICY_WORDS[policy]), os.sched_param(priority))


def _read_back(lane_id: str, worker_id: int, name: str, advisories: tuple[str, ...]) -> WorkerReport:
    thread_id = threading.get_native_id()
    plain = {"lane": lane_id, "worker_id": worker_id, "process_id": os.getpid(), "advisories": advisories}
    if not hasattr(os, "sched_getaffinity"):  # the interpreter offers these on Linux only
        return WorkerReport(name=name, **plain)  # type: ignore[arg-type]
    policy = os.sched_getscheduler(thread_id)
    words = {getattr(os, constant): word for word, constant in _POLICY_WORDS.items()}
    return WorkerReport(
        name=_name_in_force(thread_id, name),
        cpu_affinity=tuple(sorted(os.sched_getaffinity(thread_id))),
        nice=os.getpriority(os.PRIO_PROCESS, thread_id),
        rt_policy=words.get(policy & ~os.SCHED_RESET_ON_FORK, "none"),
        rt_priority=os.sched_getparam(thread_id).sched_priority,
        **plain,  # type: ignore[arg-type]
    )


def _name_in_force(thread_id: int, name: str) -> str:
    try:
        return Path(f"/proc/self/task/{thread_id}/comm").read_text().rstrip("\n")
    except OSError:  # no /proc here
        return name

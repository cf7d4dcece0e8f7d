"""Operating-system settings of a lane's workers: what is applied, and what is really in force.

The plan lists the fields of a lane that can be applied on this platform (`applied_fields`). The worker's own thread
applies exactly those before its first invocation, then reads everything back from the kernel. A setting that the
operating system refuses becomes an advisory in the worker's report, never a failed run.

A thread's name is the lane's `thread_name` (or its id) and the worker's number, cut to the length the kernel keeps.
"""

from __future__ import annotations

import os

import msgspec

from rota.graph.plan import Lane
from rota.host.thread_settings import (
    THREAD_NAME_CHARS_MAX,
    Scheduling,
    ThreadSettings,
    apply_settings,
    read_settings,
)

__all__ = ["THREAD_NAME_CHARS_MAX", "WorkerReport", "apply_worker_settings", "worker_name"]

_REALTIME = {"fifo": "fifo", "rr": "rr"}
_FIELDS = {"name": "thread_name", "cores": "cpu_affinity", "nice": "nice_priority", "scheduling": "rt_policy"}


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
    refused = apply_settings(_requested(lane, name))
    in_force = read_settings()
    return WorkerReport(
        lane=lane.id,
        worker_id=worker_id,
        name=in_force.name or name,
        process_id=os.getpid(),
        cpu_affinity=in_force.cores,
        nice=in_force.nice,
        rt_policy=None if in_force.scheduling is None else _REALTIME.get(in_force.scheduling.policy, "none"),
        rt_priority=None if in_force.scheduling is None else in_force.scheduling.priority,
        advisories=tuple(f"{_FIELDS[field]} was not applied: {reason}" for field, reason in refused.items()),
    )


def _requested(lane: Lane, name: str) -> ThreadSettings:
    """Return the settings that the plan lists as applied."""
    spec, applied = lane.spec, lane.capability.applied_fields
    return ThreadSettings(
        name=name if "thread_name" in applied else None,
        cores=spec.cpu_affinity if "cpu_affinity" in applied else None,
        nice=spec.nice_priority if "nice_priority" in applied else None,
        scheduling=Scheduling(policy=spec.rt_policy, priority=spec.rt_priority)  # type: ignore[arg-type]  # fifo or rr
        if "rt_policy" in applied
        else None,
    )

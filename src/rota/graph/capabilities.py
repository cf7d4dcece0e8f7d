"""What a lane truly does here: the one place that says which field of a lane is applied, and by whom.

Some fields are rota's own to keep (a queue's capacity, a cadence); whether they act depends on the lane's type. Others
are wishes towards the operating system (affinity, niceness, realtime policy, a thread's name); whether they act depends
on the platform and on the rights of this process. The platform is therefore a value that is handed in: `probe()` asks
the machine, a test says what it likes. Anything that is set and not applied becomes an advisory.

`implemented` lists what a lane type does. Each word in it is the name of a test (`test_<word>`), and a test sees to it
that none is missing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec

from rota.graph.plan import LaneCapability
from rota.graph.spec import LaneSpec, LaneType

__all__ = [
    "CADENCED",
    "IMPLEMENTED",
    "OS_FIELDS",
    "Platform",
    "capability",
    "fields_without_use",
    "ignored_fields",
    "probe",
]

NICE_MIN, NICE_MAX = -20, 19
RT_PRIORITY_MIN, RT_PRIORITY_MAX = 1, 99
RT_POLICIES = ("fifo", "rr")


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """What the operating system lets this process do to its own threads."""

    name: str = "unknown"
    cpus: tuple[int, ...] = ()  # that a thread may be bound to; empty where there is no affinity
    thread_names: bool = False
    nice: bool = False  # be nicer than now
    nice_below_zero: bool = False  # be less nice: a right of its own
    realtime: bool = False  # SCHED_FIFO and SCHED_RR


_BASE = (
    "deterministic_region_order",
    "bounded_runner_stop_checks",
    "runtime_owned_publication_commit",
    "runtime_priority_ordering",
    "cooperative_cancellation",
    "timeout_budget_observation",
)
_QUEUE = ("bounded_priority_queue", "priority_queue", "policy_ordered_queue", "blocking_overflow_deadline")
_POOL = ("persistent_worker_lifecycle", "worker_id_trace", *_QUEUE)

IMPLEMENTED: Mapping[LaneType, tuple[str, ...]] = {
    "event_loop": _BASE,
    "fixed_rate": (*_BASE, "opt_in_wall_clock_cadence"),
    "thread_pool": (*_BASE, *_POOL),
    "isolated_thread": (*_BASE, *_QUEUE, "dedicated_thread", "independent_fixed_rate", "starvation_aging"),
    "manual_step": (*_BASE, *_QUEUE, "host_stepping", "starvation_aging"),
    "process_pool": (*_BASE, *_POOL, "process_isolation", "hard_timeout_kill"),
    "queue": (
        "runtime_owned_publication_commit",
        "runtime_priority_ordering",
        "timeout_budget_observation",
        "durable_entries",
        "resume_after_restart",
    ),
}

_POOLS: frozenset[str] = frozenset({"thread_pool", "process_pool"})
_QUEUED: frozenset[str] = _POOLS | {"isolated_thread", "manual_step"}
CADENCED: frozenset[str] = frozenset({"fixed_rate", "isolated_thread"})  # that tick
_WORKERS: frozenset[str] = _POOLS | {"isolated_thread"}

# Which lane types apply a field of rota's own. A field that is not listed is applied by every type.
_APPLIED_BY: Mapping[str, frozenset[str]] = {
    "hz": CADENCED,
    "period_ms": CADENCED,
    "tick_budget_ms": CADENCED,
    "overrun_policy": CADENCED,
    "wall_clock_enabled": frozenset({"fixed_rate"}),
    "max_threads": _POOLS,
    "queue_capacity": _QUEUED,
    "overflow": _QUEUED,
    "overflow_deadline_ms": _QUEUED,
    "starvation_epochs": frozenset({"isolated_thread", "manual_step"}),
    "policy": _QUEUED,
}
_NEVER = ("priority", "isolation_intent")
OS_FIELDS = ("thread_name", "cpu_affinity", "nice_priority", "rt_policy", "rt_priority")

_UNSUPPORTED = ("hard_preemption", "hard_real_time", "implicit_os_scheduler_tuning")


def capability(lane_id: str, lane: LaneSpec, platform: Platform) -> LaneCapability:
    """What this lane does on this platform."""
    ignored = ignored_fields(lane, platform)
    applied = tuple(field for field in OS_FIELDS if _is_set(lane, field) and field not in ignored)
    unsupported = _UNSUPPORTED[1:] if lane.type == "process_pool" else _UNSUPPORTED  # a process can be killed
    return LaneCapability(
        id=lane_id,
        type=lane.type,
        implemented=IMPLEMENTED[lane.type],
        advisory_fields=tuple(ignored),
        applied_fields=applied,
        unsupported_claims=unsupported,
    )


def fields_without_use(lane_type: LaneType) -> tuple[str, ...]:
    """The fields of rota's own that a lane of this type never applies."""
    return tuple(field for field, types in _APPLIED_BY.items() if lane_type not in types)


def ignored_fields(lane: LaneSpec, platform: Platform) -> dict[str, str]:
    """Every field that is set and not applied, with the reason; in the order of the lane's fields."""
    reasons = {field: reason for field, reason in _reasons(lane, platform) if _is_set(lane, field)}
    return {field: reasons[field] for field in LaneSpec.__struct_fields__ if field in reasons}


def _is_set(lane: LaneSpec, field: str) -> bool:
    return bool(getattr(lane, field) != _DEFAULTS[field])


_DEFAULTS = dict(zip(LaneSpec.__struct_fields__[1:], LaneSpec.__struct_defaults__, strict=True))


def _reasons(lane: LaneSpec, platform: Platform) -> Iterator[tuple[str, str]]:
    """Every field that this lane would not apply, set or not."""
    for field in _NEVER:
        yield field, "it is an intent that nothing maps to the operating system"
    for field in fields_without_use(lane.type):
        yield field, f"{lane.type} lanes have no use for it"
    if lane.type == "fixed_rate" and not lane.wall_clock_enabled:
        yield "overrun_policy", "simulated ticks are never late; it needs wall_clock_enabled"
    if lane.overflow != "block":
        yield "overflow_deadline_ms", "only overflow: block waits"
    for field, refusal in _OS_RULES.items():
        if reason := refusal(lane, platform):
            yield field, reason


# --- wishes towards the operating system ---------------------------------------------------------


def _no_name(lane: LaneSpec, platform: Platform) -> str | None:
    if reason := _no_workers(lane):
        return reason
    return None if platform.thread_names else f"{platform.name} has no way to name a thread"


def _no_workers(lane: LaneSpec) -> str | None:
    return None if lane.type in _WORKERS else f"{lane.type} lanes have no workers of their own"


def _no_affinity(lane: LaneSpec, platform: Platform) -> str | None:
    missing = [cpu for cpu in lane.cpu_affinity if cpu not in platform.cpus]
    if reason := _no_workers(lane):
        return reason
    if not platform.cpus:
        return f"{platform.name} cannot bind a thread to a CPU"
    return f"this process may not use CPU {missing[0]}" if missing else None


def _no_nice(lane: LaneSpec, platform: Platform) -> str | None:
    if reason := _no_workers(lane):
        return reason
    if not NICE_MIN <= lane.nice_priority <= NICE_MAX:
        return f"niceness lies from {NICE_MIN} to {NICE_MAX}"
    if lane.nice_priority < 0 and not platform.nice_below_zero:
        return "this process may not lower its niceness"
    return None if platform.nice else f"{platform.name} has no niceness per thread"


def _no_realtime(lane: LaneSpec, platform: Platform) -> str | None:
    if reason := _no_workers(lane):
        return reason
    if lane.rt_policy not in RT_POLICIES:
        return f"the realtime policies are {' and '.join(RT_POLICIES)}"
    if not RT_PRIORITY_MIN <= lane.rt_priority <= RT_PRIORITY_MAX:
        return f"rt_policy and rt_priority go together; the priority lies from {RT_PRIORITY_MIN} to {RT_PRIORITY_MAX}"
    return None if platform.realtime else "this process may not use realtime scheduling"


_OS_RULES: Mapping[str, Callable[[LaneSpec, Platform], str | None]] = {
    "thread_name": _no_name,
    "cpu_affinity": _no_affinity,
    "nice_priority": _no_nice,
    "rt_policy": _no_realtime,
    "rt_priority": _no_realtime,
}


# --- asking the machine --------------------------------------------------------------------------


@cache
def probe() -> Platform:
    """What this machine allows this process, found once by trying it on a thread that ends right after."""
    if not sys.platform.startswith("linux"):
        return Platform(name=sys.platform)
    found: dict[str, bool] = {}
    thread = threading.Thread(target=lambda: found.update(_tried()), name="rota-probe")
    thread.start()
    thread.join()
    return Platform(name="linux", cpus=tuple(sorted(os.sched_getaffinity(0))), **found)


def _tried() -> Iterator[tuple[str, bool]]:
    """Each right, tried on the calling thread: a seccomp filter or a container may refuse what the user id allows."""
    yield "thread_names", _works(_name_this_thread)
    yield "nice", _works(lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE_MAX))
    yield "nice_below_zero", _works(lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -1))
    yield "realtime", _works(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(RT_PRIORITY_MIN)))


def _name_this_thread() -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("rota-probe")


def _works(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True

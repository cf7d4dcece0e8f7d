"""What each lane type implements, and which of a lane's fields take effect on this platform.

Rota applies some fields itself (the capacity of a queue, the period of a tick); whether they take effect depends on the
lane's type. It passes others to the operating system (CPU affinity, niceness, realtime policy, thread name); whether
they take effect depends on the platform and on the permissions of this process. The platform is therefore a parameter:
`probe()` asks the machine, a test passes its own. A field that is set and not applied becomes an advisory. In schema
version 1 these settings are only intents: except for the thread name, no lane applies them.

`IMPLEMENTED` lists the features of each lane type. Each feature is the name of a test (`test_<feature>`), and a test
checks that none is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

import msgspec

from rota.graph.plan import LaneCapability
from rota.graph.spec import LaneSpec, LaneType
from rota.host.capabilities import Platform, probe
from rota.host.thread_settings import NICE_MAX, NICE_MIN, PRIORITY_MAX

__all__ = [
    "IMPLEMENTED",
    "OS_FIELDS",
    "TICKING",
    "Platform",
    "capability",
    "ignored_fields",
    "probe",
    "unused_fields",
]

RT_PRIORITY_MIN = 1
RT_POLICIES = ("fifo", "rr")


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
    "fleet": (
        "runtime_owned_publication_commit",
        "runtime_priority_ordering",
        "durable_entries",
        "resume_after_restart",
        "agent_entries",
    ),
}

_POOLS: frozenset[str] = frozenset({"thread_pool", "process_pool"})
_WITH_QUEUE: frozenset[str] = _POOLS | {"isolated_thread", "manual_step"}
TICKING: frozenset[str] = frozenset({"fixed_rate", "isolated_thread"})  # lane types that tick
_WITH_WORKERS: frozenset[str] = _POOLS | {"isolated_thread"}

# The lane types that apply each of rota's own fields. All lane types apply a field that is not listed.
_LANE_TYPES_BY_FIELD: Mapping[str, frozenset[str]] = {
    "hz": TICKING,
    "period_ms": TICKING,
    "tick_budget_ms": TICKING,
    "overrun_policy": TICKING,
    "wall_clock_enabled": frozenset({"fixed_rate"}),
    "max_threads": _POOLS,
    "queue_capacity": _WITH_QUEUE,
    "overflow": _WITH_QUEUE,
    "overflow_deadline_ms": _WITH_QUEUE,
    "starvation_epochs": frozenset({"isolated_thread", "manual_step"}),
    "policy": _WITH_QUEUE,
}
_NEVER_APPLIED = ("priority", "isolation_intent")
OS_FIELDS = ("thread_name", "cpu_affinity", "nice_priority", "rt_policy", "rt_priority")
_SETTINGS = frozenset((*_NEVER_APPLIED, *OS_FIELDS))  # what a lane can only ask for

_UNSUPPORTED = ("hard_preemption", "hard_real_time", "implicit_os_scheduler_tuning")


def capability(lane_id: str, lane: LaneSpec, platform: Platform, schema_version: int = 2) -> LaneCapability:
    """Return what this lane implements on this platform."""
    ignored = ignored_fields(lane, platform, schema_version)
    applied = tuple(field for field in OS_FIELDS if _is_set(lane, field) and field not in ignored)
    unsupported = _UNSUPPORTED[1:] if lane.type == "process_pool" else _UNSUPPORTED  # it can kill a process
    return LaneCapability(
        id=lane_id,
        type=lane.type,
        implemented=IMPLEMENTED[lane.type],
        advisory_fields=_advisory_fields(lane, platform, schema_version, ignored),
        ignored_fields=tuple(ignored),
        applied_fields=applied,
        unsupported_claims=unsupported,
    )


def unused_fields(lane_type: LaneType) -> tuple[str, ...]:
    """Return those of rota's own fields that a lane of this type never applies."""
    return tuple(field for field, types in _LANE_TYPES_BY_FIELD.items() if lane_type not in types)


def ignored_fields(lane: LaneSpec, platform: Platform, schema_version: int = 2) -> dict[str, str]:
    """Return each field that is set and not applied, with the reason, in field order."""
    reasons = {field: reason for field, reason in _reasons(lane, platform, schema_version) if _is_set(lane, field)}
    return {field: reasons[field] for field in LaneSpec.__struct_fields__ if field in reasons}


def _advisory_fields(
    lane: LaneSpec, platform: Platform, schema_version: int, ignored: Container[str]
) -> tuple[str, ...]:
    """Return the settings that the lane would not apply, set or not, and everything else that is set and ignored."""
    policy = lane.rt_policy if _is_set(lane, "rt_policy") or _is_set(lane, "rt_priority") else "fifo"
    priority = lane.rt_priority if policy == lane.rt_policy else RT_PRIORITY_MIN
    asked = msgspec.structs.replace(lane, rt_policy=policy, rt_priority=priority)  # "none" is no setting to apply
    refused = {field for field, _ in _reasons(asked, platform, schema_version) if field in _SETTINGS}
    return tuple(field for field in LaneSpec.__struct_fields__ if field in ignored or field in refused)


def _is_set(lane: LaneSpec, field: str) -> bool:
    return bool(getattr(lane, field) != _DEFAULTS[field])


_DEFAULTS = dict(zip(LaneSpec.__struct_fields__[1:], LaneSpec.__struct_defaults__, strict=True))


def _reasons(lane: LaneSpec, platform: Platform, schema_version: int) -> Iterator[tuple[str, str]]:
    """Yield each field that this lane does not apply, set or not, with the reason."""
    for field in _NEVER_APPLIED:
        yield field, "no operating system setting corresponds to it"
    for field in unused_fields(lane.type):
        yield field, f"{lane.type} lanes do not use it"
    if lane.type == "fixed_rate" and not lane.wall_clock_enabled:
        yield "overrun_policy", "simulated ticks are never late; it requires wall_clock_enabled"
    if lane.overflow != "block":
        yield "overflow_deadline_ms", "it is used with overflow: block only"
    for field, check in _OS_RULES.items():
        if reason := check(lane, platform):
            yield field, reason
        elif schema_version == 1 and field != "thread_name":
            yield field, "schema_version 1 never applies it; set schema_version: 2"


# --- fields for the operating system: None, or why the field is not applied ----------------------


def _name_problem(lane: LaneSpec, platform: Platform) -> str | None:
    if reason := _worker_problem(lane):
        return reason
    return None if platform.thread_names else f"{platform.name} does not support thread names"


def _worker_problem(lane: LaneSpec) -> str | None:
    return None if lane.type in _WITH_WORKERS else f"{lane.type} lanes have no workers"


def _affinity_problem(lane: LaneSpec, platform: Platform) -> str | None:
    missing = [cpu for cpu in lane.cpu_affinity if cpu not in platform.cpus]
    if reason := _worker_problem(lane):
        return reason
    if not platform.cpus:
        return f"{platform.name} does not support CPU affinity of threads"
    return f"this process is not allowed to use CPU {missing[0]}" if missing else None


def _nice_problem(lane: LaneSpec, platform: Platform) -> str | None:
    if reason := _worker_problem(lane):
        return reason
    if not NICE_MIN <= lane.nice_priority <= NICE_MAX:
        return f"the niceness must be from {NICE_MIN} to {NICE_MAX}"
    if lane.nice_priority < 0 and not platform.nice_below_zero:
        return "this process is not allowed to lower its niceness"
    return None if platform.nice else f"{platform.name} does not support niceness per thread"


def _realtime_problem(lane: LaneSpec, platform: Platform) -> str | None:
    if reason := _worker_problem(lane):
        return reason
    if lane.rt_policy not in RT_POLICIES:
        return f"the realtime policies are {' and '.join(RT_POLICIES)}"
    if not RT_PRIORITY_MIN <= lane.rt_priority <= PRIORITY_MAX:
        return f"rt_policy requires an rt_priority from {RT_PRIORITY_MIN} to {PRIORITY_MAX}"
    return None if platform.realtime else "this process is not allowed to use realtime scheduling"


_OS_RULES: Mapping[str, Callable[[LaneSpec, Platform], str | None]] = {
    "thread_name": _name_problem,
    "cpu_affinity": _affinity_problem,
    "nice_priority": _nice_problem,
    "rt_policy": _realtime_problem,
    "rt_priority": _realtime_problem,
}

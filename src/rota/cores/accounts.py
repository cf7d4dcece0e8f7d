"""The account and the scheduling state of an entity, as values for readers outside the engine.

`ThreadCpuAccount` holds what was measured so far. `SchedEntity` holds what the fair policy orders by. Both are taken at
an instant and never change; the engine's own mutable records are in `records`. Every field is permanent and exact: for
a running entity, the time up to the instant is included.

    runtime       grows while the entity runs, and only then; the runtimes of all entities plus the idle time of all
                  cores equal the time that passed on all cores
    virtual time  runtime ÷ weight, moved forward when the entity wakes: sleeping saves nothing up
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rota.errors import ContextInvalid
from rota.model.checks import Checks

__all__ = [
    "LATENCY_CLASSES",
    "SLICE_MAX_NS",
    "SLICE_MIN_NS",
    "LatencyClass",
    "SchedEntity",
    "ThreadCpuAccount",
    "slice_of",
]

LatencyClass = Literal["sensitive", "normal", "batch"]
LATENCY_CLASSES: Mapping[LatencyClass, int] = {
    "sensitive": 750_000,  # slice length in ns: a shorter slice comes sooner, and the share stays the same
    "normal": 3_000_000,
    "batch": 12_000_000,
}
SLICE_MIN_NS = 100_000  # below this, switching costs more than the slice is worth
SLICE_MAX_NS = 100_000_000

_checks = Checks("SchedEntity", ContextInvalid)


class ThreadCpuAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What an entity has used so far."""

    runtime_ns: int
    last_start_ns: int | None  # None: it never ran
    virtual_runtime: int  # in units of `policy.virtual_time.SCALE`
    context_switches: int  # times it started on a core that ran something else before
    preemptions: int  # times it was stopped while it could have continued
    voluntary_blocks: int  # times it blocked
    migrations: int


class SchedEntity(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduling state of an entity."""

    entity: int
    state: str  # a state of `lifecycle.ENTITY`
    weight: int  # thousandths
    latency_class: LatencyClass
    slice_ns: int
    eligible: int  # the virtual time from which it is eligible: its own
    virtual_deadline: int  # virtual time by which its next slice is due
    lag_ns: int  # service it is owed on its core; negative if it is ahead; 0 while not runnable
    core: int  # the core whose queue holds it, or the last one that did
    core_mask: int
    group: str | None
    paying: int | None  # the context that pays for it; None: best effort
    woken_at_ns: int  # when its activation began
    deadline_at_ns: int | None  # when the activation is due by the paying context; None without one


def slice_of(latency_class: LatencyClass, slice_ns: int | None) -> int:
    """Return the slice length: the requested one if given and within limits, else that of the latency class."""
    _checks.one_of("latency_class", latency_class, LATENCY_CLASSES)
    if slice_ns is None:
        return LATENCY_CLASSES[latency_class]
    return _checks.whole("slice_ns", slice_ns, SLICE_MIN_NS, SLICE_MAX_NS)

"""What an entity has used and where it stands, as everybody may see it.

`ThreadCpuAccount` is the past: what was measured. `SchedEntity` is the present: what the fair policy goes by.
Both are pictures taken at an instant; the engine keeps the living record (see `records`). Every field is
permanent and exact: of an entity that runs, the stretch up to the instant is counted in.

    runtime      grows while it runs, and only then; the runtimes of all entities and the idle time of all cores add up
                 to the time that passed on all cores
    virtual time runtime ÷ weight, set forward when it wakes: sleeping saves nothing up
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
    "sensitive": 750_000,  # ns in one turn: short turns come sooner, and the share stays the same
    "normal": 3_000_000,
    "batch": 12_000_000,
}
SLICE_MIN_NS = 100_000  # shorter turns cost more to start than they are worth
SLICE_MAX_NS = 100_000_000

_checks = Checks("SchedEntity", ContextInvalid)


class ThreadCpuAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What an entity has used so far."""

    runtime_ns: int
    last_start_ns: int | None  # None: it never ran
    virtual_runtime: int  # in units of `policy.virtual_time.SCALE`
    context_switches: int  # times it was given a core that did something else before
    preemptions: int  # times it was stopped though it would have gone on
    voluntary_blocks: int  # times it stopped by itself
    migrations: int


class SchedEntity(msgspec.Struct, frozen=True, kw_only=True):
    """Where an entity stands."""

    entity: int
    state: str  # see lifecycle.ENTITY
    weight: int  # thousandths
    latency_class: LatencyClass
    slice_ns: int
    eligible: int  # the virtual time from which it is owed a turn: its own
    virtual_deadline: int  # when the turn it asks for is due, in virtual time
    lag_ns: int  # what it is owed on its core; below 0 it owes; 0 while it is not runnable
    core: int  # whose queue owns it, or the last that did
    core_mask: int
    group: str | None
    paying: int | None  # the context that pays for it; None is best effort
    woken_at_ns: int  # when what it does began
    deadline_at_ns: int | None  # when that is due, as the context that pays says; None without one


def slice_of(latency_class: LatencyClass, slice_ns: int | None) -> int:
    """How long a turn is: of its class, or what was asked for if that is within limits."""
    _checks.one_of("latency_class", latency_class, LATENCY_CLASSES)
    if slice_ns is None:
        return LATENCY_CLASSES[latency_class]
    return _checks.whole("slice_ns", slice_ns, SLICE_MIN_NS, SLICE_MAX_NS)

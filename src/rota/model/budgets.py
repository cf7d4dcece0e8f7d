"""Budgets and capacity: ledgers, flows, contexts, leases, islands.

A *budget* is an allowance, *usage* is what was charged, a *weight* is a share. A *context* is a budget per period (CPU
nanoseconds or tokens). A *lease* is exclusive capacity and grants no budget. An *island* is a realtime graph that is
admitted as a whole, with its contexts and leases. A *flow* is the weight and the virtual time of a project or an agent.

All amounts are integers. Instants of contexts, leases and islands are integers too, in the unit of their owner
(nanoseconds on cores, milliseconds in the durable kernel): a rounded refill would make the budget drift.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from rota.errors import ContextInvalid
from rota.model.checks import Checks
from rota.model.work import WEIGHT_UNIT

__all__ = [
    "ALERTS",
    "ALERTS_MAX",
    "REFILLS_MAX",
    "BudgetLine",
    "CpuIsolationLease",
    "Flow",
    "Handle",
    "LedgerLine",
    "RealtimeIsland",
    "Refill",
    "SchedulingContext",
    "mask_of",
]

REFILLS_MAX = 16  # per context; more are merged, see policy/replenishment
CORES_MAX = 4096
CORE_MASK_MAX = (1 << CORES_MAX) - 1

ALERTS = (0.8, 1.0)  # the default shares of a budget at which an alert is recorded
ALERTS_MAX = 16  # of one budget

Level = Literal["agent", "project", "global", "context"]


class LedgerLine(msgspec.Struct, frozen=True):
    """One agent's budget and usage in one dimension: a total, not per window."""

    pid: int
    dim: str
    used: int
    granted: int
    hard_limit: int
    warn_at: float = 0.8  # fraction of the grant
    alerts: tuple[float, ...] = ALERTS  # shares of the grant at which an alert is recorded

    @property
    def over_limit(self) -> bool:
        """Whether usage exceeds the hard limit; usage equal to it is allowed."""
        return self.used > self.hard_limit


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of a project or of the fleet in one dimension per rolling window."""

    level: Literal["project", "global"]
    owner: str  # the project's id; "*" for the fleet
    dim: str
    limit: int
    window_s: float
    used: int = 0  # in the window
    reserved: int = 0  # by live claims
    alerts: tuple[float, ...] = ALERTS  # shares at which an alert is recorded, once per window


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The virtual time of a project or an agent.

    `clock` is the virtual time of the flow's children, used while none of them is ready.
    """

    level: Literal["project", "agent"]
    key: str  # project_id, or pid as text
    parent: str | None = None  # the project of an agent's flow
    weight: int = WEIGHT_UNIT
    virtual_time: int = 0
    clock: int = 0
    ready: int = 0  # entries that can be picked
    last_run_at: float | None = None


class Refill(msgspec.Struct, frozen=True, array_like=True):
    """An amount that returns to a context at an instant."""

    at: int
    amount: int


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """A revocable reference: a slot in a table and the generation in which it was given."""

    slot: int
    generation: int


_context = Checks("SchedulingContext", ContextInvalid)

OverrunPolicy = Literal["throttle", "demote", "notify", "kill"]
OVERRUN_POLICIES: tuple[OverrunPolicy, ...] = ("throttle", "demote", "notify", "kill")
Criticality = Literal["background", "normal", "high", "critical"]
CRITICALITIES: tuple[Criticality, ...] = ("background", "normal", "high", "critical")


class SchedulingContext(msgspec.Struct, frozen=True, kw_only=True):
    """A budget per period: an entity that is bound to it may run until it is used up.

    The available amount plus all pending refills always equals the budget. `remaining` is the available amount minus
    what was used ahead of its refill; below 0 it is debt.
    """

    context_id: int
    budget: int
    period: int
    relative_deadline: int | None = None  # None is the period
    criticality: Criticality = "normal"
    priority: int = 0  # inside its band
    core_mask: int = 0  # bit i is core i; 0 allows any core
    remaining: int = 0
    refills: tuple[Refill, ...] = ()
    timeout_endpoint: int | None = None  # receives the notice of depletion
    overrun: OverrunPolicy = "throttle"
    state: str = "admitted"  # see lifecycle.CONTEXT
    unit: Literal["ns", "tokens", "requests", "cpu_ms"] = "ns"  # ns on cores, the others in the durable kernel
    bound_to: Literal["agent", "project", "call_path", "name"] = "agent"
    bound_id: str = ""
    generation: int = 0
    project_id: str | None = None  # of a limit: only the entries of this project draw on it

    def __post_init__(self) -> None:
        _context.whole("context_id", self.context_id, 0)
        _context.whole("budget", self.budget, 1)
        _context.whole("period", self.period, 1)
        _context.whole("core_mask", self.core_mask, 0, CORE_MASK_MAX)
        _context.whole("priority", self.priority)
        _context.one_of("criticality", self.criticality, CRITICALITIES)
        _context.one_of("overrun", self.overrun, OVERRUN_POLICIES)
        if self.timeout_endpoint is not None:
            _context.whole("timeout_endpoint", self.timeout_endpoint, 0)
        if self.relative_deadline is not None:
            _context.whole("relative_deadline", self.relative_deadline, 1)
        if self.unit == "ns" and self.budget > self.period:
            raise _context.refuse("budget", f"({self.budget:,}) is longer than its period ({self.period:,})")
        if len(self.refills) > REFILLS_MAX:
            raise _context.refuse("refills", f"may be at most {REFILLS_MAX}, not {len(self.refills)}")

    @property
    def deadline(self) -> int:
        """The time from release to deadline, in the context's unit of time."""
        return self.period if self.relative_deadline is None else self.relative_deadline


_lease = Checks("CpuIsolationLease", ContextInvalid)


class CpuIsolationLease(msgspec.Struct, frozen=True, kw_only=True):
    """Exclusive use of cores for one owner. It grants placement, never budget."""

    lease_id: int
    owner: str  # process, session or service
    cores: tuple[int, ...]
    mode: Literal["exclusive", "poller"] = "exclusive"
    housekeeping: tuple[int, ...] = ()  # cores that must stay shared
    consumers: tuple[int, ...] = ()  # entities that consume from a poller's ring
    accounting_target: int | None = None  # the context that is charged
    revocation_latency_max: int = 0
    revoke_endpoint: int | None = None
    on_service_loss: Literal["keep", "revoke"] = "keep"
    state: str = "requested"  # see lifecycle.LEASE
    granted_at: int | None = None
    generation: int = 0

    def __post_init__(self) -> None:
        _lease.whole("lease_id", self.lease_id, 0)
        _lease.text("owner", self.owner)
        if not self.cores:
            raise _lease.refuse("cores", "must name at least one core")
        for field in ("cores", "housekeeping", "consumers"):
            _distinct(_lease, field, getattr(self, field))
        for core in (*self.cores, *self.housekeeping):
            _lease.whole("cores", core, 0, CORES_MAX - 1)
        _lease.one_of("mode", self.mode, ("exclusive", "poller"))
        _lease.one_of("on_service_loss", self.on_service_loss, ("keep", "revoke"))
        if self.accounting_target is not None:
            _lease.whole("accounting_target", self.accounting_target, 0)
        if self.revoke_endpoint is not None:
            _lease.whole("revoke_endpoint", self.revoke_endpoint, 0)
        _lease.whole("revocation_latency_max", self.revocation_latency_max, 0)


_island = Checks("RealtimeIsland", ContextInvalid)


class RealtimeIsland(msgspec.Struct, frozen=True, kw_only=True):
    """A realtime graph that is admitted or refused as a whole."""

    island_id: int
    name: str
    contexts: tuple[int, ...] = ()
    memory_bytes: int = 0
    slots: int = 0
    devices: tuple[str, ...] = ()
    tokens: int = 0
    endpoints: tuple[int, ...] = ()
    leases: tuple[int, ...] = ()
    evidence: dict[str, int] = {}  # the numbers behind the admission decision
    overrun: Literal["stop", "degrade"] = "stop"
    shutdown: Literal["drain", "immediate"] = "drain"
    state: str = "proposed"  # see lifecycle.ISLAND

    def __post_init__(self) -> None:
        _island.whole("island_id", self.island_id, 0)
        _island.text("name", self.name)
        for field in ("memory_bytes", "slots", "tokens"):
            _island.whole(field, getattr(self, field), 0)
        for field in ("contexts", "leases", "endpoints"):
            for number in _distinct(_island, field, getattr(self, field)):
                _island.whole(field, number, 0)
        for device in _distinct(_island, "devices", self.devices):
            _island.text("devices", device)
        _island.one_of("overrun", self.overrun, ("stop", "degrade"))
        _island.one_of("shutdown", self.shutdown, ("drain", "immediate"))


def _distinct(checks: Checks, field: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values, or raise if one is named twice."""
    for place, value in enumerate(values):
        if value in values[:place]:
            raise checks.refuse(field, f"names {value!r} twice")
    return values


def mask_of(cores: Iterable[int]) -> int:
    """Return the mask of some cores, of which any may come twice: bit i is core i."""
    mask = 0
    for core in cores:
        mask |= 1 << core
    return mask

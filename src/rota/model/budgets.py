"""What is owed and what is allowed: ledgers, flows, contexts, leases, islands.

Three words that sound alike. A *budget* is an allowance, *usage* is what was charged, a *weight* is
a share. A *context* is a budget per period (CPU nanoseconds or tokens); a *lease* is exclusive
capacity and grants no budget at all; an *island* is a realtime graph admitted whole, with its
contexts and leases. A *flow* is what is owed to a project or an agent: its weight and virtual time.

All amounts are integers. Instants of contexts, leases and islands are integers too, in the unit of
whoever keeps them (nanoseconds on cores, milliseconds in the durable kernel), because a refill that
is rounded is a budget that drifts.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rota.errors import ContextInvalid
from rota.model.checks import Checks
from rota.model.work import WEIGHT_UNIT

__all__ = [
    "REFILLS_MAX",
    "BudgetLine",
    "CpuIsolationLease",
    "Flow",
    "Handle",
    "LedgerLine",
    "RealtimeIsland",
    "Refill",
    "SchedulingContext",
]

REFILLS_MAX = 16  # of one context; neighbours merge beyond that, see policy/replenishment
CORES_MAX = 4096

Level = Literal["agent", "project", "global", "context"]


class LedgerLine(msgspec.Struct, frozen=True):
    """One agent's allowance in one dimension: a total, not per window."""

    pid: int
    dim: str
    used: int
    granted: int
    hard_limit: int
    warn_at: float = 0.8  # fraction of the grant

    @property
    def over_limit(self) -> bool:
        """At the limit is still within it."""
        return self.used > self.hard_limit


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """A project's, or everybody's, allowance in one dimension per rolling window."""

    level: Literal["project", "global"]
    owner: str  # the project's id; "*" for everybody
    dim: str
    limit: int
    window_s: float
    used: int = 0  # in the window
    reserved: int = 0  # by live claims


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What is owed to a project or an agent: its place in virtual time.

    `clock` is the virtual time of the flow's own children, kept for when none of them is ready.
    """

    level: Literal["project", "agent"]
    key: str  # project_id, or pid as text
    parent: str | None = None  # the project of an agent's flow
    weight: int = WEIGHT_UNIT
    virtual_time: int = 0
    clock: int = 0
    ready: int = 0  # entries that could be picked
    last_run_at: float | None = None


class Refill(msgspec.Struct, frozen=True, array_like=True):
    """An amount that comes back to a context at an instant."""

    at: int
    amount: int


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """A reference that can be revoked: a slot in a table and the generation it was given in."""

    slot: int
    generation: int


_context = Checks("SchedulingContext", ContextInvalid)

OverrunPolicy = Literal["throttle", "demote", "notify", "kill"]
Criticality = Literal["background", "normal", "high", "critical"]
CRITICALITIES: tuple[Criticality, ...] = ("background", "normal", "high", "critical")


class SchedulingContext(msgspec.Struct, frozen=True, kw_only=True):
    """Budget per period, as authority: who is bound to it may run until it is used up.

    What is available plus every pending refill is the budget, at all times. `remaining` is what is
    available less what was used ahead of its refill: below 0 it is debt.
    """

    context_id: int
    budget: int
    period: int
    relative_deadline: int | None = None  # None is the period
    criticality: Criticality = "normal"
    priority: int = 0  # inside its band
    core_mask: int = 0  # bit i is core i; 0 is any
    remaining: int = 0
    refills: tuple[Refill, ...] = ()
    timeout_endpoint: int | None = None  # who hears of depletion
    overrun: OverrunPolicy = "throttle"
    state: str = "admitted"  # see lifecycle.CONTEXT
    unit: Literal["ns", "tokens", "requests"] = "ns"
    bound_to: Literal["agent", "project", "call_path", "name"] = "agent"
    bound_id: str = ""
    generation: int = 0

    def __post_init__(self) -> None:
        _context.whole("budget", self.budget, 1)
        _context.whole("period", self.period, 1)
        if self.relative_deadline is not None:
            _context.whole("relative_deadline", self.relative_deadline, 1)
        if self.unit == "ns" and self.budget > self.period:
            raise _context.refuse("budget", f"({self.budget:,}) is longer than its period ({self.period:,})")
        if len(self.refills) > REFILLS_MAX:
            raise _context.refuse("refills", f"may be at most {REFILLS_MAX}, not {len(self.refills)}")

    @property
    def deadline(self) -> int:
        """From release to due, in the context's own unit of time."""
        return self.period if self.relative_deadline is None else self.relative_deadline


_lease = Checks("CpuIsolationLease", ContextInvalid)


class CpuIsolationLease(msgspec.Struct, frozen=True, kw_only=True):
    """Cores for one owner alone. It grants placement, never budget."""

    lease_id: int
    owner: str  # process, session or service
    cores: tuple[int, ...]
    mode: Literal["exclusive", "poller"] = "exclusive"
    housekeeping: tuple[int, ...] = ()  # cores that must stay with everybody else
    consumers: tuple[int, ...] = ()  # of a poller's ring: the entities that take from it
    accounting_target: int | None = None  # the context that pays
    revocation_latency_max: int = 0
    revoke_endpoint: int | None = None
    on_service_loss: Literal["keep", "revoke"] = "keep"
    state: str = "requested"  # see lifecycle.LEASE
    granted_at: int | None = None
    generation: int = 0

    def __post_init__(self) -> None:
        _lease.text("owner", self.owner)
        if not self.cores:
            raise _lease.refuse("cores", "must name at least one core")
        for core in self.cores:
            _lease.whole("cores", core, 0, CORES_MAX - 1)
        _lease.whole("revocation_latency_max", self.revocation_latency_max, 0)


class RealtimeIsland(msgspec.Struct, frozen=True, kw_only=True):
    """A realtime graph that is admitted whole or refused whole."""

    island_id: int
    name: str
    contexts: tuple[int, ...] = ()
    memory_bytes: int = 0
    slots: int = 0
    devices: tuple[str, ...] = ()
    tokens: int = 0
    endpoints: tuple[int, ...] = ()
    leases: tuple[int, ...] = ()
    evidence: dict[str, int] = {}  # the numbers admission was decided on
    overrun: Literal["stop", "degrade"] = "stop"
    shutdown: Literal["drain", "immediate"] = "drain"
    state: str = "proposed"  # see lifecycle.ISLAND

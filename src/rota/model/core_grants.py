"""Core grants: what a run, a fleet's agent or a graph asks of the cores of a host, and what it was granted.

A *grant* belongs to the claim of one entry on one host and ends with it. It may have leased cores (no other work runs
there), reserved time (budgets per period that the host's cores can serve together) and, for an island, memory, slots,
tokens and devices. `service/core_grants.py` decides, `kernel/core_grants.py` keeps the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from rota.errors import ContextInvalid
from rota.model.budgets import CORES_MAX, SchedulingContext
from rota.model.checks import Checks
from rota.model.cpu import CpuSettings, core_list

__all__ = [
    "NO_STORE",
    "RESERVED_MAX",
    "CoreAsk",
    "CoreGrant",
    "CoreHost",
    "CoreRefusal",
    "CoreStatus",
    "HostStatus",
    "ReservedTime",
]

PPM = 1_000_000
RESERVED_MAX = 256  # contexts of one grant
NO_STORE = "no store"  # the key of a host whose grants belong to commands (`rota cpu run`) and not to entries

_host = Checks("CoreHost", ContextInvalid)
_reserved = Checks("ReservedTime", ContextInvalid)
_ask = Checks("CoreAsk", ContextInvalid)


class CoreHost(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and what one supervisor may use of it."""

    key: str  # the same for every supervisor on the machine
    name: str  # for people
    cores: tuple[int, ...]  # that the supervisor may use
    memory_bytes: int = 0  # that islands may reserve
    slots: int = 0
    tokens: int = 0
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _host.name("key", self.key)
        _host.name("name", self.name)
        if not self.cores or len(set(self.cores)) < len(self.cores):
            raise _host.refuse("cores", f"must name at least one core, each once, not {self.cores}")
        for core in self.cores:
            _host.whole("cores", core, 0, CORES_MAX - 1)
        for field in ("memory_bytes", "slots", "tokens"):
            _host.whole(field, getattr(self, field), 0)


class ReservedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time that is reserved in every period, to be used by a deadline."""

    name: str
    budget_ns: int
    period_ns: int
    deadline_ns: int | None = None  # None: the period
    criticality: Literal["high", "critical"] = "high"
    core: int | None = None  # None: not placed yet

    def __post_init__(self) -> None:
        _reserved.name("name", self.name)
        _reserved.whole("period_ns", self.period_ns, 1)
        _reserved.whole("budget_ns", self.budget_ns, 1, self.period_ns)
        if self.deadline_ns is not None:
            _reserved.whole("deadline_ns", self.deadline_ns, 1)
        _reserved.one_of("criticality", self.criticality, ("high", "critical"))
        if self.core is not None:
            _reserved.whole("core", self.core, 0, CORES_MAX - 1)


class CoreAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a host: settings of a run and, for an island, everything that it needs at once."""

    cpu: CpuSettings = CpuSettings()
    reserved: tuple[ReservedTime, ...] = ()
    island: str | None = None  # its name: all of it is granted, or nothing
    memory_bytes: int = 0
    slots: int = 0
    tokens: int = 0
    devices: tuple[str, ...] = ()
    runs: bool = False  # with settings that were changed: it cannot wait for one of its cores to be free

    def __post_init__(self) -> None:
        if len(self.reserved) > RESERVED_MAX:
            raise _ask.refuse("reserved", f"may have at most {RESERVED_MAX}, not {len(self.reserved)}")
        if self.island is not None:
            _ask.name("island", self.island)
            if not self.reserved:
                raise _ask.refuse("reserved", "must have at least one: an island without budget runs nothing")
        elif self.memory_bytes or self.slots or self.tokens or self.devices:
            raise _ask.refuse("island", "must be named to reserve memory, slots, tokens or devices")
        for field in ("memory_bytes", "slots", "tokens"):
            _ask.whole(field, getattr(self, field), 0)


class CoreGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim was granted on a host."""

    sched_id: int
    token: int  # of the claim: the grant ends with it
    host: str
    host_name: str
    pid: int
    owner: str  # the agent's name
    project_id: str | None
    granted_at: float
    leased: tuple[int, ...] = ()  # cores that no other work uses
    allowed: tuple[int, ...] = ()  # the cores that it may use, leased or not
    open_cores: tuple[int, ...] = ()  # what is left for everything else, when it was granted
    weight: float | None = None
    latency_class: Literal["sensitive", "normal", "batch"] = "normal"
    quota_us: int | None = None
    quota_period_us: int | None = None
    reserved: tuple[ReservedTime, ...] = ()  # each with its core
    island: str | None = None
    memory_bytes: int = 0
    slots: int = 0
    tokens: int = 0
    devices: tuple[str, ...] = ()
    evidence: dict[str, int] = {}  # the numbers behind the decision

    def reserved_ppm(self) -> dict[int, int]:
        """Return how many millionths of each core are reserved, rounded up for each reservation."""
        found: dict[int, int] = {}
        for each in self.reserved:
            core = each.core or 0
            found[core] = found.get(core, 0) + -(-each.budget_ns * PPM // each.period_ns)
        return found

    def sentences(self) -> Iterator[str]:
        """Yield what was granted, in words."""
        if self.island is not None:
            yield f"island {self.island}"
        if self.leased:
            yield f"core{'s' * (len(self.leased) > 1)} {', '.join(map(str, self.leased))} for itself"
        for one in self.reserved:
            yield f"{one.name}: {one.budget_ns / 1e6:g} ms in {one.period_ns / 1e6:g} ms of core {one.core}"
        if self.quota_us is not None and self.quota_period_us is not None:
            yield f"at most {self.quota_us / 1e3:g} ms in {self.quota_period_us / 1e3:g} ms"
        if self.latency_class != "normal":
            yield f"class {self.latency_class}"
        promises = self.island or self.leased or self.reserved or self.quota_us or self.latency_class != "normal"
        if not promises and self.allowed:  # it has named its cores, so that no lease takes all of them
            yield f"one of cores {core_list(set(self.allowed))}" if len(self.allowed) > 1 else f"core {self.allowed[0]}"


class CoreRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why the host that refused a queued entry last would refuse it now too."""

    sched_id: int
    host_name: str
    at: float  # when it was refused last
    reason: str
    held_by: tuple[int, ...] = ()  # entries whose grants are in the way
    never: bool = False  # that host cannot grant it, whatever ends there


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The grants on one host."""

    host: str
    host_name: str
    leased: dict[int, int]  # by core: the entry that leases it
    reserved_ppm: dict[int, int]  # by core: how much of it is reserved
    grants: list[CoreGrant]


class CoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """CPU contexts, leases and islands of a store."""

    hosts: list[HostStatus] = []
    refused: list[CoreRefusal] = []  # queued entries that are refused what they asked for
    contexts: list[SchedulingContext] = []  # budgets of CPU time per period

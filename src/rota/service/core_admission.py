"""What a claim is granted on the cores of a host: the decision, without clock, store or machine.

It is made by the code that `rota cpu sim` and the engine use. `decide` builds an engine that has the host's cores and
every live grant on them, and asks `Admission` for the new one. Everything is granted, or nothing, and a refusal says
what is missing in numbers and which entries have it:

    two cores, entry 4 leases core 1; entry 9 asks for a core
    → LeaseRefused: 1 core asked of box, 0 free: core 0 is kept for everything else, core 1 is leased by entry 4 (build)

The highest free cores are leased first, so that the lowest ones stay open, and one core always does. A run that names
its `cores` keeps one of them that is not leased, and is itself refused while all of them are. A reservation
(`realtime = "deadline:2/10"`, or the steps of an island) goes to the first allowed core that can serve it beside the
others. A quota and a weight are never refused: they limit or share, and promise nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import msgspec

from rota.cores import Capacity, CoresEngine, CpuIsolationLease, IslandPlan, RealtimeIsland, SchedulingContext
from rota.cores.leases import REVOCATION_BOUND_NS
from rota.errors import ContextRefused, LeaseRefused, Refused
from rota.model.budgets import mask_of
from rota.model.core_grants import NO_STORE, CoreAsk, CoreGrant, CoreHost, ReservedTime
from rota.model.cpu import CpuClass, CpuSettings, core_list
from rota.model.events import EventData, ProfileMapped
from rota.service.admission import PPM, UNLIMITED_PPM, Admission, OwnerLimit
from rota.service.profiles import Hint, ProfileLimit, ProfileTable

__all__ = ["Asker", "decide", "lasting_refusal", "why_never"]

NEVER_CORES_MAX = 256  # of a host that is imagined to see whether any could grant an ask

HINTS_OF: dict[CpuClass, Hint] = {"sensitive": "latency_sensitive", "normal": "agent", "batch": "batch"}
_WHOLE = PPM  # a context of a core's whole time
_TARGET = 1 << 62  # the number of the context that only accounts for a lease


class Asker(NamedTuple):
    """The claim that asks."""

    sched_id: int
    token: int
    pid: int
    owner: str
    project_id: str | None
    at: float


def decide(host: CoreHost, live: Sequence[CoreGrant], ask: CoreAsk, asker: Asker, record: list[EventData]) -> CoreGrant:
    """Return what a claim is granted beside the live grants of a host, or raise the refusal. Pure.

    What was admitted and which profile applied is added to `record`.
    """
    others = [each for each in live if each.sched_id != asker.sched_id]
    table = _HostTable(host, others, record)
    table.admit(ask, asker)
    profile = ProfileLimit().clamp(ProfileTable().find(HINTS_OF[ask.cpu.latency_class], asker.owner))
    if ask.cpu.latency_class != "normal":
        hint = HINTS_OF[ask.cpu.latency_class]
        record.append(ProfileMapped(subject=asker.owner, hint=hint, granted=profile.granted(), epoch=1))
    quota = ask.cpu.budget
    return CoreGrant(
        sched_id=asker.sched_id,
        token=asker.token,
        host=host.key,
        host_name=host.name,
        pid=asker.pid,
        owner=asker.owner,
        project_id=asker.project_id,
        granted_at=asker.at,
        leased=table.leased,
        allowed=table.leased or table.allowed,
        open_cores=tuple(core for core in host.cores if core not in table.taken and core not in table.leased),
        weight=ask.cpu.weight,
        latency_class=profile.latency_class,
        quota_us=None if quota is None else quota.budget_us,
        quota_period_us=None if quota is None else quota.period_us,
        reserved=table.reserved,
        island=ask.island,
        memory_bytes=ask.memory_bytes,
        slots=ask.slots,
        tokens=ask.tokens,
        devices=ask.devices,
        evidence=table.evidence,
    )


def lasting_refusal(refusal: Refused, host: CoreHost, ask: CoreAsk, asker: Asker) -> Refused:
    """Return a refusal that holds whatever ends on the host, or on any host, if there is one; else this one."""
    never = why_never(ask)
    if never is not None:
        return never
    try:
        decide(host, (), ask, asker, [])
    except Refused as here:
        here.message = f"{host.name} can never grant it: {here.message}"
        here.hint = "Ask for less, or run it on another host."
        here.data["never_here"] = True
        return here
    return refusal


def why_never(ask: CoreAsk) -> Refused | None:
    """Return the refusal of a host with cores enough that has nothing else to do; None: there it would be granted.

    Of an ask for very many cores, None too.
    """
    wanted = ask.cpu.core_set or frozenset(range(max(1, ask.cpu.leased_cores + len(_reserved(ask)))))
    cores = (*sorted(wanted), max(wanted) + 1)  # one stays for everything else
    if cores[-1] >= NEVER_CORES_MAX:
        return None
    capacity = {name: getattr(ask, name) for name in ("memory_bytes", "slots", "tokens", "devices")}
    host = CoreHost(key="any", name="any host", cores=cores, **capacity)
    try:
        decide(host, (), ask, Asker(1, 1, 1, "it", None, 0.0), [])
    except Refused as refusal:
        refusal.data["never"] = True
        return refusal
    return None


class _HostTable:
    """The cores of a host as an engine sees them: who has which, and what is left."""

    def __init__(self, host: CoreHost, live: Sequence[CoreGrant], record: list[EventData]) -> None:
        self._host = host
        self._live = live
        self.taken: dict[int, CoreGrant] = {core: each for each in live for core in each.leased}
        cores = 1 + max((*host.cores, *self.taken, *(one.core or 0 for each in live for one in each.reserved)))
        self._engine = CoresEngine(cores=cores, capacity=self._capacity())
        whole = OwnerLimit(reserved_ppm=UNLIMITED_PPM, criticality="critical", leased_cores=cores)
        self._admission = Admission(self._engine, record.append, default=whole)
        self._number = count(1)
        self.leased: tuple[int, ...] = ()
        self.allowed: tuple[int, ...] = ()
        self.reserved: tuple[ReservedTime, ...] = ()
        self.evidence: dict[str, int] = {}
        for each in live:
            self._restore(each)
        for core in range(cores):
            if core not in host.cores:
                self._engine.pin_work(core, f"it is not a core of {host.name}'s supervisor")

    def _capacity(self) -> Capacity:
        host, live = self._host, self._live
        free = {
            name: max(0, getattr(host, name) - sum(getattr(each, name) for each in live))
            for name in ("memory_bytes", "slots", "tokens")
        }
        return Capacity(**free, devices=frozenset(host.devices) - {device for each in live for device in each.devices})

    def _restore(self, live: CoreGrant) -> None:
        """Give the engine a live grant: its reserved time, and work that may run on its cores only."""
        owner = _owner(live.sched_id)
        self._engine.add_group(owner)
        self._engine.spawn(group=owner, core_mask=mask_of(live.allowed))
        for one in live.reserved:
            self._engine.admit(self._spec(one, mask_of([one.core or 0])))
        for core in live.leased:
            self._engine.pin_work(core, f"the lease of {_holder(live)}")

    def _spec(self, one: ReservedTime, mask: int) -> SchedulingContext:
        return SchedulingContext(
            context_id=next(self._number),
            budget=one.budget_ns,
            period=one.period_ns,
            relative_deadline=one.deadline_ns,
            criticality=one.criticality,
            core_mask=mask,
            bound_id=one.name,
        )

    # --- asking ----------------------------------------------------------------------------------

    def admit(self, ask: CoreAsk, asker: Asker) -> None:
        """Admit what is asked, all of it, or raise."""
        allowed = self._allowed(ask.cpu, asker)
        owner = _owner(asker.sched_id)
        self._engine.add_group(owner)
        leased = self._choose(ask.cpu.leased_cores, allowed, asker) if ask.cpu.leased_cores else ()
        places = leased or tuple(core for core in allowed if core not in self.taken)
        reserved = _reserved(ask)
        # a program that runs, and is kept off its cores while they are leased, has a right to them afterwards
        if not places and (reserved or (ask.cpu.cores is not None and not ask.runs)):
            raise self._no_core(ask, allowed, asker, is_reserved=bool(reserved))
        specs = tuple(self._spec(one, mask_of(places)) for one in reserved)
        if ask.island is not None:
            self._admit_island(ask, asker, specs, self._lease(asker, leased, specs))
        else:
            for spec in specs:
                self._admission.admit(owner, spec)
            for lease in self._lease(asker, leased, specs):
                self._admission.lease(lease)
        self.leased, self.allowed = leased, allowed
        placed = (self._engine.context(spec.context_id).core_mask.bit_length() - 1 for spec in specs)
        self.reserved = tuple(
            msgspec.structs.replace(one, core=core) for one, core in zip(reserved, placed, strict=True)
        )

    def _allowed(self, cpu: CpuSettings, asker: Asker) -> tuple[int, ...]:
        """The cores that the settings and the host have in common."""
        wanted = cpu.core_set
        found = tuple(core for core in self._host.cores if wanted is None or core in wanted)
        if not found:
            have = core_list(set(self._host.cores))
            raise LeaseRefused(
                f"cores {cpu.cores} are asked of {self._host.name}, which has {have}",
                hint="Correct `cores`, or run it on another host.",
                lease_id=asker.sched_id,
                proofs=["no_housekeeping_core"],
            )
        return found

    def _choose(self, wanted: int, allowed: Sequence[int], asker: Asker) -> tuple[int, ...]:
        """Return the cores to lease, the highest first: the lowest ones stay for everything else.

        They are chosen one by one, because each may be the last place of a run that names its cores. Those that fewer
        such runs name come first. Where such runs overlap, another choice might have found more.
        """
        named = Counter(core for each in self._live for core in each.allowed)
        chosen: list[int] = []
        while len(chosen) < wanted:
            words = self._why_not(chosen, allowed)
            free = [core for core in allowed if core not in words and core not in chosen]
            if not free:
                asked = f"{wanted} core{'s' * (wanted > 1)} asked of {self._host.name}, {len(chosen)} free"
                taken = ", ".join(words[core] for core in allowed if core in words)
                raise LeaseRefused(
                    f"{asked}: {taken or f'it may use only cores {core_list(set(allowed))} there'}",
                    hint="Wait until a lease ends, ask for fewer cores, or run it on another host.",
                    lease_id=asker.sched_id,
                    proofs=["no_housekeeping_core"],
                )
            chosen.append(max(free, key=lambda core: (-named[core], core)))
        return tuple(sorted(chosen))

    def _why_not(self, chosen: Sequence[int], allowed: Sequence[int]) -> dict[int, str]:
        """Say of each core that cannot be leased why, if the chosen ones are leased."""
        everywhere = set(self._host.cores)
        words = {core: f"core {core} is leased by {_holder(each)}" for core, each in self.taken.items()}
        for each in self._live:
            for core in (one.core or 0 for one in each.reserved):
                words.setdefault(core, f"time of core {core} is reserved by {_holder(each)}")
            places = [core for core in each.allowed if core not in self.taken and core not in chosen]
            if len(places) == 1 and not everywhere <= set(each.allowed):
                words.setdefault(places[0], f"core {places[0]} is the last open one of {_holder(each)}")
        rest = everywhere - set(self.taken) - set(chosen)
        if rest and rest <= set(allowed) - set(words):  # one core stays for everything else
            words[min(rest)] = f"core {min(rest)} is kept for everything else"
        return words

    def _no_core(self, ask: CoreAsk, allowed: Sequence[int], asker: Asker, *, is_reserved: bool) -> Refused:
        holders = ", ".join(f"core {core} is leased by {_holder(self.taken[core])}" for core in allowed)
        if not is_reserved:
            return LeaseRefused(
                f"cores {ask.cpu.cores} are asked of {self._host.name}: {holders}",
                hint="Wait until a lease ends, or allow it other cores.",
                lease_id=asker.sched_id,
                proofs=["unrelated_work_pinned"],
            )
        what = ask.island or "the reservation"
        return ContextRefused(
            f"{what} finds no core of {self._host.name}: {holders}", context_id=None, missing=[holders]
        )

    def _lease(
        self, asker: Asker, cores: tuple[int, ...], specs: Sequence[SchedulingContext]
    ) -> tuple[CpuIsolationLease, ...]:
        """The lease of some cores, paid by what is reserved with it or else by a context of the cores' whole time."""
        if not cores:
            return ()
        target = specs[0].context_id if specs else _TARGET
        if not specs:
            self._engine.admit(SchedulingContext(context_id=target, budget=_WHOLE, period=_WHOLE))
        return (
            CpuIsolationLease(
                lease_id=asker.sched_id,
                owner=_owner(asker.sched_id),
                cores=cores,
                accounting_target=target,
                revocation_latency_max=REVOCATION_BOUND_NS,
            ),
        )

    def _admit_island(
        self,
        ask: CoreAsk,
        asker: Asker,
        specs: tuple[SchedulingContext, ...],
        leases: tuple[CpuIsolationLease, ...],
    ) -> None:
        island = RealtimeIsland(
            island_id=asker.sched_id,
            name=ask.island or "",
            contexts=tuple(spec.context_id for spec in specs),
            memory_bytes=ask.memory_bytes,
            slots=ask.slots,
            tokens=ask.tokens,
            devices=ask.devices,
            leases=tuple(lease.lease_id for lease in leases),
        )
        plan = IslandPlan(island=island, contexts=specs, leases=leases)
        self._admission.admit_island(_owner(asker.sched_id), plan)
        self.evidence = dict(self._engine.island(asker.sched_id).evidence)


def _reserved(ask: CoreAsk) -> tuple[ReservedTime, ...]:
    """What an ask reserves: its own list, and a deadline policy of the operating system."""
    policy = ask.cpu.policy
    if policy is None or policy.policy != "deadline":
        return ask.reserved
    own = ReservedTime(name="realtime", budget_ns=policy.budget_ns, period_ns=policy.period_ns)
    return (*ask.reserved, own)


def _owner(sched_id: int) -> str:
    return f"entry {sched_id}"


def _holder(grant: CoreGrant) -> str:
    return f"command {grant.owner}" if grant.host == NO_STORE else f"entry {grant.sched_id} ({grant.owner})"

"""Realtime islands: a graph that is admitted whole or refused whole.

An island is a set of contexts (its activations, each with budget, period and deadline), the memory, slots,
devices and tokens they need, the endpoints they report to and the cores they lease. Half of it is worth
nothing, so admission looks at everything first, and either takes all of it or refuses with a list of what is
missing, in numbers. What it found is kept with the island as evidence.

    proposed ── admit ──▶ admitted ── start ──▶ running ── overrun ──▶ overrun ── stop ──▶ stopped
        └── refuse ──▶ refused

**It fails closed.** The assumption under which an island was admitted is that no activation uses more than its
budget. If one does, the assumption is broken for all: `stop` takes every context back and nothing of the island
runs any more; `degrade` takes them back too, but its entities go on as everybody else, without promises.

**It ends as agreed.** `immediate` takes the contexts back at once, `drain` lets every activation under way
finish first.

**Sized at admission.** Every container of an island has its final size when it is admitted: the list of its
latest misses, the refills of its contexts (bounded by `REFILLS_MAX`), one notice per context. Running it for a
year takes no more memory than running it for a second.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec

from rota.cores.contexts import Contexts
from rota.cores.cores import Cores
from rota.cores.events import Decision, IslandMoved
from rota.cores.leases import Leases
from rota.cores.records import Context, Entity, Misses
from rota.cores.reservations import Reservations, Shortage, is_reserved
from rota.cores.timers import Timers
from rota.errors import ContextExists, IslandRefused, IslandUnknown
from rota.model.budgets import CpuIsolationLease, Handle, RealtimeIsland, SchedulingContext
from rota.model.lifecycle import ISLAND, EntityState, IslandState, advance

__all__ = ["MISSES_KEPT", "Capacity", "IslandPlan", "IslandRecord", "Islands"]

MISSES_KEPT = 64  # the latest, of one island


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to be reserved, besides cores."""

    memory_bytes: int = 0
    slots: int = 0
    tokens: int = 0
    devices: frozenset[str] = frozenset()


class IslandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An island as it is proposed: the noun, and in full what it names by number."""

    island: RealtimeIsland
    contexts: tuple[SchedulingContext, ...]
    leases: tuple[CpuIsolationLease, ...] = ()


class IslandRecord:
    """An island and what belongs to it."""

    __slots__ = ("contexts", "evidence", "leases", "misses", "plan", "reason", "state")

    def __init__(self, plan: IslandPlan) -> None:
        self.plan = plan
        self.state = IslandState(ISLAND.initial)
        self.contexts: list[Context] = []
        self.leases: list[Handle] = []
        self.evidence: dict[str, int] = {}
        self.reason = ""
        self.misses = Misses(MISSES_KEPT)  # its final size from the start

    def advance(self, verb: str) -> None:
        """Do what the lifecycle allows."""
        self.state = IslandState(advance(ISLAND, self.state, verb, self.plan.island.island_id))

    def picture(self) -> RealtimeIsland:
        """The island as everybody may see it."""
        return msgspec.structs.replace(self.plan.island, state=str(self.state), evidence=dict(self.evidence))


class Islands:
    """Every island of one engine."""

    def __init__(
        self,
        capacity: Capacity,
        *,
        contexts: Contexts,
        reservations: Reservations,
        leases: Leases,
        cores: Cores,
        timers: Timers[Hashable],
    ) -> None:
        self._capacity = capacity
        self._contexts = contexts
        self._reservations = reservations
        self._leases = leases
        self._cores = cores
        self._timers = timers
        self._by_id: dict[int, IslandRecord] = {}

    def __iter__(self) -> Iterator[IslandRecord]:
        return iter(self._by_id.values())

    def get(self, island_id: int) -> IslandRecord:
        """The island of this number, refused ones too."""
        record = self._by_id.get(island_id)
        if record is None:
            raise IslandUnknown(f"there is no island {island_id}", island_id=island_id)
        return record

    # --- admission -------------------------------------------------------------------------------

    def admit(self, plan: IslandPlan, now: int, out: list[Decision]) -> IslandRecord:
        """Take in all of an island, or refuse all of it."""
        island_id = plan.island.island_id
        known = self._by_id.get(island_id)
        if known is not None and known.state not in ISLAND.final:
            raise ContextExists(f"there is an island {island_id} already", island_id=island_id)
        self._refuse_known(plan)
        missing = [one.sentence() for one in self._shortages(plan)] + list(self._lease_shortfalls(plan))
        record = self._by_id[island_id] = IslandRecord(plan)
        record.evidence = self._evidence(plan)
        if missing:
            raise self._refusal(record, missing)
        record.advance("admit")
        self._take_in(record, now, out)
        return record

    def _refuse_known(self, plan: IslandPlan) -> None:
        """Whatever an island brings must be new: afterwards, nothing that is taken in can fail."""
        numbers = [spec.context_id for spec in plan.contexts]
        for number in numbers:
            if self._contexts.knows(number) or numbers.count(number) > 1:
                raise ContextExists(f"there is a context {number} already", context_id=number)
        leases = [lease.lease_id for lease in plan.leases]
        if len(set(leases)) < len(leases):
            raise ContextExists("two leases of the island have the same number", lease_ids=leases)

    def _lease_shortfalls(self, plan: IslandPlan) -> Iterator[str]:
        """What cannot be shown for the leases of an island, each beside those before it."""
        taken = 0
        for lease in plan.leases:
            for shortfall in self._leases.shortfalls(lease, taken=taken, coming=plan.contexts):
                yield shortfall.because
            taken |= sum(1 << core for core in lease.cores)

    def _shortages(self, plan: IslandPlan) -> Iterator[Shortage]:
        island, free = plan.island, self.free()
        if island.memory_bytes > free.memory_bytes:
            yield Shortage("memory in bytes", free.memory_bytes, island.memory_bytes)
        if island.slots > free.slots:
            yield Shortage("slots", free.slots, island.slots)
        if island.tokens > free.tokens:
            yield Shortage("tokens", free.tokens, island.tokens)
        for device in island.devices:
            if device not in free.devices:
                yield Shortage(f"device {device}", 0, 1)
        held = {endpoint for one in self if one.state not in ISLAND.final for endpoint in _endpoints(one.plan)}
        for endpoint in sorted(_endpoints(plan) & held):
            yield Shortage(f"endpoint {endpoint}, which another island has", 0, 1)
        for context in plan.contexts:
            if not is_reserved(context):
                yield Shortage(f"band of context {context.context_id}: high or critical", 0, 1)
        yield from self._reservations.shortages(plan.contexts)

    def free(self) -> Capacity:
        """What islands have not reserved yet."""
        held = [one.plan.island for one in self if one.state in (IslandState.ADMITTED, IslandState.RUNNING)]
        return Capacity(
            memory_bytes=self._capacity.memory_bytes - sum(one.memory_bytes for one in held),
            slots=self._capacity.slots - sum(one.slots for one in held),
            tokens=self._capacity.tokens - sum(one.tokens for one in held),
            devices=self._capacity.devices - {device for one in held for device in one.devices},
        )

    def _evidence(self, plan: IslandPlan) -> dict[str, int]:
        island, free = plan.island, self.free()
        numbers = {"memory asked": island.memory_bytes, "memory free": free.memory_bytes}
        numbers |= {"slots asked": island.slots, "slots free": free.slots}
        numbers |= {"tokens asked": island.tokens, "tokens free": free.tokens}
        return numbers | self._reservations.evidence(plan.contexts)

    def _refusal(self, record: IslandRecord, missing: list[str]) -> IslandRefused:
        record.advance("refuse")
        record.reason = "; ".join(missing)
        return IslandRefused(
            f"island {record.plan.island.name} does not fit: {record.reason}",
            hint="Nothing of it was taken in. Ask for less, or free what is named.",
            missing=missing,
            evidence=record.evidence,
            island_id=record.plan.island.island_id,
        )

    def _take_in(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        for spec in record.plan.contexts:
            context = self._contexts.resolve(self._contexts.admit(spec, now))
            context.island, context.misses, context.is_hard = record, record.misses, _stops(record.plan)
            record.contexts.append(context)
            self._reservations.promise(spec)
        for lease in record.plan.leases:
            record.leases.append(self._leases.grant(lease, now, out))

    # --- life ------------------------------------------------------------------------------------

    def start(self, island_id: int) -> IslandRecord:
        """Let an island run."""
        record = self.get(island_id)
        record.advance("start")
        return record

    def stop(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        """End an island, as its shutdown policy says."""
        record.advance("stop")
        out.append(IslandMoved(record.plan.island.island_id, str(record.state), record.reason or "stopped"))
        if record.plan.island.shutdown == "immediate":
            self._give_back(record, now, out)
        else:
            self._drain(record, now, out)

    def look_again(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        """Something happened to an island: one of its contexts ran out, or an activation ended while it drains."""
        if record.state is IslandState.STOPPED:
            self._drain(record, now, out)
            return
        overrun = [context.context_id for context in record.contexts if context.has_overrun]
        if overrun and record.state in (IslandState.RUNNING, IslandState.ADMITTED):
            self.fail(record, f"context {overrun[0]} used more than its budget", now, out)

    def fail(self, record: IslandRecord, reason: str, now: int, out: list[Decision]) -> None:
        """What an island was admitted under does not hold any more: it fails closed."""
        record.reason = reason
        for verb in ("overrun", "stop") if record.state is IslandState.RUNNING else ("stop",):
            record.advance(verb)
            out.append(IslandMoved(record.plan.island.island_id, str(record.state), reason))
        self._give_back(record, now, out)

    def core_lost(self, mask: int, now: int, out: list[Decision]) -> None:
        """Cores are gone: islands with a promise there fail closed."""
        for record in list(self):
            if not any(context.core_mask & mask for context in record.contexts):
                continue
            if record.state in (IslandState.ADMITTED, IslandState.RUNNING):
                self.fail(record, "a core it was promised time on is gone", now, out)
            else:
                self._give_back(record, now, out)  # it was only draining

    def _drain(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        """Take back every context on which no activation is under way."""
        for context in list(record.contexts):
            context.is_draining = True
            if not any(_is_active(entity) for entity in context.bearers.values()):
                self._take_back(record, context, now, out)
        if not record.contexts:
            self._end_leases(record, now, out)

    def _give_back(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        for context in list(record.contexts):
            self._take_back(record, context, now, out)
        self._end_leases(record, now, out)

    def _take_back(self, record: IslandRecord, context: Context, now: int, out: list[Decision]) -> None:
        record.contexts.remove(context)
        self._reservations.end(context.context_id)
        for entity in context.bearers.values():
            entity.ties.needs_context = _stops(record.plan)
        self._contexts.revoke(context.handle)
        for entity in list(context.payees.values()):
            self._cores.repay(entity, now, out)

    def _end_leases(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        for handle in record.leases:
            if self._leases.is_live(handle):
                self._leases.release(self._leases.resolve(handle), now, out)
        record.leases.clear()


def _endpoints(plan: IslandPlan) -> set[int]:
    """Where an island hears of its own: notices of two islands never mix."""
    named = {one.timeout_endpoint for one in plan.contexts} | {one.revoke_endpoint for one in plan.leases}
    return {*plan.island.endpoints, *(endpoint for endpoint in named if endpoint is not None)}


def _stops(plan: IslandPlan) -> bool:
    """Whether nothing of an island runs any more once it has failed."""
    return plan.island.overrun == "stop"


def _is_active(entity: Entity) -> bool:
    return entity.state not in (EntityState.SLEEPING, EntityState.EXITED)

"""Realtime islands: a graph that is admitted or refused as a whole.

An island is a set of contexts (its activations, each with budget, period and deadline), the memory, slots, devices and
tokens they need, the endpoints they notify and the cores they lease. A part of it is useless, so admission checks
everything first, and either admits all of it or refuses with a list of every shortage, in numbers. The numbers are kept
with the island as evidence.

    proposed ── admit ──▶ admitted ── start ──▶ running ── overrun ──▶ overrun ── stop ──▶ stopped
        └── refuse ──▶ refused

**It fails closed.** An island is admitted under the assumption that no activation uses more than its budget. If one
does, the assumption fails for all: `stop` revokes every context and nothing of the island runs any more; `degrade`
revokes them too, but its entities continue without reservations.

**Shutdown.** `immediate` revokes the contexts immediately, `drain` lets every activation in progress finish first.

**Fixed size.** Every container of an island has its final size at admission: the list of latest misses, the refills of
its contexts (at most `REFILLS_MAX`), one notice per context. An island that runs for a year needs no more memory than
one that runs for a second.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec

from rota.cores.contexts import SchedulingContexts
from rota.cores.core_scheduler import CoreScheduler
from rota.cores.events import Decision, IslandStateChanged
from rota.cores.heaps import Timers
from rota.cores.leases import Leases
from rota.cores.records import ContextRecord, DeadlineMisses, Entity
from rota.cores.reservations import Reservations, Shortage, is_reserved
from rota.errors import ContextExists, ContextInvalid, IslandRefused, IslandUnknown
from rota.model.budgets import CpuIsolationLease, Handle, RealtimeIsland, SchedulingContext
from rota.model.checks import Checks
from rota.model.lifecycle import ISLAND, EntityState, IslandState, advance

__all__ = ["MISSES_KEPT", "Capacity", "IslandPlan", "IslandRecord", "Islands"]

MISSES_KEPT = 64  # the latest misses of one island


_capacity = Checks("Capacity", ContextInvalid)
_plan = Checks("IslandPlan", ContextInvalid)


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What islands can reserve, besides cores."""

    memory_bytes: int = 0
    slots: int = 0
    tokens: int = 0
    devices: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for field in ("memory_bytes", "slots", "tokens"):
            _capacity.whole(field, getattr(self, field), 0)


class IslandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed island with the contexts and leases that it refers to by number."""

    island: RealtimeIsland
    contexts: tuple[SchedulingContext, ...]
    leases: tuple[CpuIsolationLease, ...] = ()

    def __post_init__(self) -> None:
        if not self.contexts:
            raise _plan.refuse("contexts", "must have at least one: an island without budget runs nothing")
        _check_named("context", self.island.contexts, [one.context_id for one in self.contexts])
        _check_named("lease", self.island.leases, [one.lease_id for one in self.leases])


def _check_named(noun: str, named: tuple[int, ...], given: list[int]) -> None:
    """Raise unless the plan has every part that its island names."""
    for number in named:
        if number not in given:
            raise _plan.refuse(f"{noun}s", f"has no {noun} {number}, which the island names")


class IslandRecord:
    """An island and its contexts, leases and misses."""

    __slots__ = ("contexts", "evidence", "leases", "misses", "plan", "reason", "state")

    def __init__(self, plan: IslandPlan) -> None:
        self.plan = plan
        self.state = IslandState(ISLAND.initial)
        self.contexts: list[ContextRecord] = []
        self.leases: list[Handle] = []
        self.evidence: dict[str, int] = {}
        self.reason = ""
        self.misses = DeadlineMisses(MISSES_KEPT)

    def advance(self, verb: str) -> None:
        """Apply a verb of the island lifecycle."""
        self.state = IslandState(advance(ISLAND, self.state, verb, self.plan.island.island_id))

    def view(self) -> RealtimeIsland:
        """The current state of the island, for readers outside the engine."""
        return msgspec.structs.replace(self.plan.island, state=str(self.state), evidence=dict(self.evidence))


class Islands:
    """Every island of one engine."""

    def __init__(
        self,
        capacity: Capacity,
        *,
        contexts: SchedulingContexts,
        reservations: Reservations,
        leases: Leases,
        scheduler: CoreScheduler,
        timers: Timers[Hashable],
    ) -> None:
        self._capacity = capacity
        self._contexts = contexts
        self._reservations = reservations
        self._leases = leases
        self._scheduler = scheduler
        self._timers = timers
        self._by_id: dict[int, IslandRecord] = {}

    def __iter__(self) -> Iterator[IslandRecord]:
        return iter(self._by_id.values())

    def get(self, island_id: int) -> IslandRecord:
        """Return the island with this number, refused ones included."""
        record = self._by_id.get(island_id)
        if record is None:
            raise IslandUnknown(f"island {island_id} does not exist", island_id=island_id)
        return record

    # --- admission -------------------------------------------------------------------------------

    def admit(self, plan: IslandPlan, now: int, out: list[Decision]) -> IslandRecord:
        """Admit an island as a whole, or refuse it."""
        island_id = plan.island.island_id
        known = self._by_id.get(island_id)
        if known is not None and known.state not in ISLAND.final:
            raise ContextExists(f"island {island_id} already exists", island_id=island_id)
        self._refuse_duplicates(plan)
        missing = [one.sentence() for one in self._shortages(plan)] + list(self._failed_lease_checks(plan))
        record = self._by_id[island_id] = IslandRecord(plan)
        record.evidence = self._evidence(plan)
        if missing:
            raise self._refusal(record, missing)
        record.advance("admit")
        self._admit_parts(record, now, out)
        return record

    def _refuse_duplicates(self, plan: IslandPlan) -> None:
        """Refuse ids that exist already. Afterwards no step of the admission can fail."""
        numbers = [spec.context_id for spec in plan.contexts]
        for number in numbers:
            if self._contexts.exists(number) or numbers.count(number) > 1:
                raise ContextExists(f"context {number} already exists", context_id=number)
        leases = [lease.lease_id for lease in plan.leases]
        if len(set(leases)) < len(leases):
            raise ContextExists("two leases of the island have the same id", lease_ids=leases)

    def _failed_lease_checks(self, plan: IslandPlan) -> Iterator[str]:
        """The failed checks of an island's leases, each in addition to those before it."""
        for number, lease in enumerate(plan.leases):
            for failed in self._leases.failed_checks(lease, before=plan.leases[:number], contexts=plan.contexts):
                yield failed.reason

    def _shortages(self, plan: IslandPlan) -> Iterator[Shortage]:
        yield from self.resource_shortages(plan)
        yield from self._reservations.shortages(plan.contexts)

    def resource_shortages(self, plan: IslandPlan) -> Iterator[Shortage]:
        """What is missing for an island besides time on cores."""
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
            yield Shortage(f"endpoint {endpoint}, used by another island", 0, 1)
        for context in plan.contexts:
            if not is_reserved(context):
                yield Shortage(f"band of context {context.context_id}: high or critical", 0, 1)

    def free(self) -> Capacity:
        """The capacity that islands have not reserved yet."""
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
            hint="Nothing was admitted. Request less, or free the resources named above.",
            missing=missing,
            evidence=record.evidence,
            island_id=record.plan.island.island_id,
        )

    def _admit_parts(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        for spec in record.plan.contexts:
            context = self._contexts.resolve(self._contexts.admit(spec, now))
            context.island, context.misses, context.is_required = record, record.misses, _is_fail_stop(record.plan)
            context.is_started = False
            record.contexts.append(context)
            self._reservations.reserve(spec)
        for lease in record.plan.leases:
            record.leases.append(self._leases.grant(lease, now, out))

    # --- running ---------------------------------------------------------------------------------

    def start(self, island_id: int, now: int, out: list[Decision]) -> None:
        """Start an island: its contexts pay from now on. Before, nothing that is bound to them runs."""
        record = self.get(island_id)
        record.advance("start")
        for context in record.contexts:
            context.is_started = True
            self._scheduler.update_payers(self._contexts.entities_of(context), now, out)

    def stop(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        """Stop an island, as its shutdown policy says."""
        record.advance("stop")
        out.append(IslandStateChanged(record.plan.island.island_id, str(record.state), record.reason or "stopped"))
        if record.plan.island.shutdown == "immediate":
            self._release_contexts(record, now, out)
        else:
            self._drain(record, now, out)

    def check(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        """Check an island after one of its contexts was depleted, or after an activation ended while it drains."""
        if record.state is IslandState.STOPPED:
            self._drain(record, now, out)
            return
        overrun = [context.context_id for context in record.contexts if context.has_overrun]
        if overrun and record.state in (IslandState.RUNNING, IslandState.ADMITTED):
            self.fail(record, f"context {overrun[0]} used more than its budget", now, out)

    def fail(self, record: IslandRecord, reason: str, now: int, out: list[Decision]) -> None:
        """The assumption of an island's admission no longer holds: stop it."""
        record.reason = reason
        for verb in ("overrun", "stop") if record.state is IslandState.RUNNING else ("stop",):
            record.advance(verb)
            out.append(IslandStateChanged(record.plan.island.island_id, str(record.state), reason))
        self._release_contexts(record, now, out)

    def core_lost(self, mask: int, now: int, out: list[Decision]) -> None:
        """Cores went offline: stop the islands with a reservation there."""
        for record in list(self):
            if not any(context.core_mask & mask for context in record.contexts):
                continue
            if record.state in (IslandState.ADMITTED, IslandState.RUNNING):
                self.fail(record, "a core it was promised time on is gone", now, out)
            else:
                self._release_contexts(record, now, out)  # it is draining

    def _drain(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        """Revoke every context without an activation in progress."""
        for context in list(record.contexts):
            context.is_draining = True
            if not any(_is_active(entity) for entity in context.bound_entities.values()):
                self._release_context(record, context, now, out)
        if not record.contexts:
            self._end_leases(record, now, out)

    def _release_contexts(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        for context in list(record.contexts):
            self._release_context(record, context, now, out)
        self._end_leases(record, now, out)

    def _release_context(self, record: IslandRecord, context: ContextRecord, now: int, out: list[Decision]) -> None:
        record.contexts.remove(context)
        self._reservations.release(context.context_id)
        affected = self._contexts.entities_of(context)
        for entity in affected:
            entity.details.needs_context = _is_fail_stop(record.plan)
        self._contexts.revoke(context.handle)
        self._leases.target_gone(context.context_id, now, out)
        self._scheduler.update_payers((*context.payees.values(), *affected), now, out)

    def _end_leases(self, record: IslandRecord, now: int, out: list[Decision]) -> None:
        for handle in record.leases:
            if self._leases.is_live(handle):
                self._leases.release(self._leases.resolve(handle), now, out)
        record.leases.clear()


def _endpoints(plan: IslandPlan) -> set[int]:
    """The endpoints that an island's notices go to. Two islands never share one."""
    named = {one.timeout_endpoint for one in plan.contexts} | {one.revoke_endpoint for one in plan.leases}
    return {*plan.island.endpoints, *(endpoint for endpoint in named if endpoint is not None)}


def _is_fail_stop(plan: IslandPlan) -> bool:
    """Whether the entities of an island may not run after it has failed."""
    return plan.island.overrun == "stop"


def _is_active(entity: Entity) -> bool:
    return entity.state not in (EntityState.SLEEPING, EntityState.EXITED)

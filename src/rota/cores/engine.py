"""The engine for CPU time: `step(event, now) -> decisions`. Integers only; no clock, no I/O, no random numbers.

    engine = CoresEngine(cores=1)
    worker = engine.spawn(weight=2000)
    engine.step(Wake(worker), 0)           Reschedule(core=0)
    engine.step(CoreTick(0), 0)            RunEntity(core=0, entity=1, until_ns=3_000_000)
    engine.step(Block(worker), 700_000)    Idle(core=0)

The same events at the same instants give the same decisions: the simulator relies on that. Instants are nanoseconds on
one monotonic clock.

Frequent events go through `step`. Setup (spawn, admit, bind, lease, island) has methods of its own, because they return
a number or a handle; those that may move an entity also return decisions. `account`, `entity`, `context`, `lease` and
`island` return read-only values taken at an instant, and `counters` counts what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec

from rota.cores.accounts import LatencyClass, SchedEntity, ThreadCpuAccount, slice_of
from rota.cores.calls import Calls
from rota.cores.contexts import SchedulingContexts
from rota.cores.core_scheduler import CoreScheduler
from rota.cores.events import (
    Acknowledge,
    Arrange,
    Block,
    CallEntity,
    CloseSession,
    CoreOffline,
    CoreOnline,
    CoreTick,
    Decision,
    Event,
    ExitEntity,
    ExitGroup,
    ReleaseLease,
    Reply,
    Revoke,
    RevokeLease,
    Reweigh,
    ServiceBack,
    ServiceLost,
    StopIsland,
    TimerDue,
    UseRule,
    Wake,
)
from rota.cores.handles import Right
from rota.cores.heaps import Timers
from rota.cores.invariants import check_invariants
from rota.cores.islands import Capacity, IslandPlan, IslandRecord, Islands
from rota.cores.leases import LeaseRecord, Leases
from rota.cores.placement import Placement
from rota.cores.policy_updates import PolicyUpdates
from rota.cores.queues import Queues
from rota.cores.records import ContextRecord, CoreRecord, Entity, EntityDetails, GroupRecord
from rota.cores.removal import Removal
from rota.cores.reservations import Reservations, Shortage
from rota.cores.runqueue import RULES, Rule
from rota.cores.telemetry import Counters, EngineTrace
from rota.cores.time_slices import TimeSlices
from rota.errors import ContextExists, ContextInvalid, ContextRefused, InvalidInput
from rota.model.budgets import CORES_MAX, CpuIsolationLease, Handle, RealtimeIsland, SchedulingContext
from rota.model.checks import Checks
from rota.model.lifecycle import ContextState
from rota.model.work import WEIGHT_MAX, WEIGHT_UNIT

__all__ = ["ENTITIES_MAX", "TIMERS_MAX", "CoresEngine"]

ENTITIES_MAX = 4_000_000
TIMERS_MAX = 64  # items that one `TimerDue` processes

_checks = Checks("CoresEngine", ContextInvalid)
_Handler = Callable[[Any, int], Sequence[Decision]]


class CoresEngine:
    """The scheduler for CPU time: cores, entities, contexts, leases and islands."""

    def __init__(
        self,
        *,
        cores: int,
        rule: Rule = "eevdf",
        capacity: Capacity | None = None,
        blocking_ns: int = 0,
        trace: EngineTrace | None = None,
    ) -> None:
        _checks.whole("cores", cores, 1, CORES_MAX)
        _checks.one_of("rule", rule, RULES)
        _checks.whole("blocking_ns", blocking_ns, 0)
        self.counters = counters = Counters()
        self._now = 0
        self.timers: Timers[Hashable] = Timers()  # a driver sends `TimerDue` at `next_at`
        self._contexts = SchedulingContexts(counters, self.timers)
        self._queues = Queues(cores, rule, self._contexts, counters)
        self._placement = Placement(self._queues, self.timers, counters)
        self._slices = TimeSlices(self._queues, self._placement, self.timers, counters)
        self._scheduler = CoreScheduler(
            self._queues, self._placement, self._contexts, self._slices, timers=self.timers, counters=counters
        )
        self._calls = Calls(self._queues, self._placement, self._slices, self._scheduler)
        self._leases = Leases(self._queues, self._placement, self._contexts, self._scheduler, self.timers)
        self._reservations = Reservations(cores, blocking_ns)
        self._islands = Islands(
            capacity or Capacity(),
            contexts=self._contexts,
            reservations=self._reservations,
            leases=self._leases,
            scheduler=self._scheduler,
            timers=self.timers,
        )
        self._removal = Removal(
            self._queues,
            self._placement,
            self._scheduler,
            calls=self._calls,
            leases=self._leases,
            islands=self._islands,
        )
        self.policy_updates = PolicyUpdates(self._queues, self._leases, counters)
        handlers = self._all_handlers()
        self._handlers = handlers if trace is None else trace.wrap(handlers, counters)

    def _all_handlers(self) -> dict[type, _Handler]:
        return {
            Wake: self._scheduler.wake,
            Block: self._scheduler.block,
            CoreTick: self._scheduler.tick,
            TimerDue: self._timer,
            CallEntity: self._calls.call,
            Reply: self._calls.reply,
            ExitEntity: self._removal.exit,
            ExitGroup: self._removal.exit_group,
            CloseSession: self._removal.close_session,
            CoreOffline: self._removal.core_offline,
            CoreOnline: self._removal.core_online,
            Revoke: self._revoke,
            Acknowledge: self._acknowledge,
            RevokeLease: self._revoke_lease,
            ReleaseLease: self._release_lease,
            StopIsland: self._stop_island,
            ServiceLost: self.policy_updates.service_lost,
            ServiceBack: self.policy_updates.service_back,
            Reweigh: self.policy_updates.reweigh,
            UseRule: self.policy_updates.use_rule,
            Arrange: self.policy_updates.arrange,
        }

    # --- events ----------------------------------------------------------------------------------

    def step(self, event: Event, now: int) -> Sequence[Decision]:
        """Process one event at an instant and return the decisions."""
        if now < self._now:
            raise InvalidInput(f"time went backwards: from {self._now:,} to {now:,} ns", field="now")
        try:
            handler = self._handlers[type(event)]
        except KeyError:
            raise InvalidInput(f"{type(event).__name__} is not an event", field="event") from None
        self._now = now
        return handler(event, now)

    def _timer(self, _event: TimerDue, now: int) -> Sequence[Decision]:
        """Process due refills, revocations and island checks; items beyond the limit stay due."""
        out: list[Decision] = []
        for item in self.timers.take_due(now, TIMERS_MAX):
            if isinstance(item, ContextRecord):
                if item.state is ContextState.REVOKED:
                    self._scheduler.leave_revoked(item, now, out)
                else:
                    self._scheduler.replenish(item, now, out)
            elif isinstance(item, CoreRecord):
                self._placement.evacuate(item, now, out)
            elif isinstance(item, Placement):
                item.go_on_returning(now, out)
            elif isinstance(item, LeaseRecord):
                self._leases.revocation_due(item, now, out)
            elif isinstance(item, IslandRecord):
                self._islands.check(item, now, out)
        return out

    # --- entities and groups ---------------------------------------------------------------------

    def spawn(
        self,
        *,
        weight: int = WEIGHT_UNIT,
        latency_class: LatencyClass = "normal",
        slice_ns: int | None = None,
        group: str | None = None,
        core_mask: int = 0,
        needs_context: bool = False,
    ) -> int:
        """Create a sleeping entity and return its number. A core mask of 0 allows every core."""
        _checks.whole("entities", len(self._queues.entities) + 1, 1, ENTITIES_MAX)
        _checks.whole("weight", weight, 1, WEIGHT_MAX)
        mask = self._mask(core_mask)
        own_slice_ns = slice_of(latency_class, slice_ns)
        owner = None if group is None else self._queues.group(group)
        entity = Entity(
            self._queues.new_key(),
            weight,
            own_slice_ns,
            self._placement.initial_core(mask),
            EntityDetails(latency_class, mask, needs_context),
        )
        entity.last_start_ns = self._now  # an entity that never ran counts from its creation
        self._queues.add(entity, owner)
        return entity.key

    def add_group(self, name: str, *, weight: int = WEIGHT_UNIT, latency_class: LatencyClass = "normal") -> None:
        """Create a group: its entities compete as one and share its context."""
        _checks.text("group", name)
        _checks.whole("weight", weight, 1, WEIGHT_MAX)
        if name in self._queues.groups:
            raise ContextExists(f"group {name!r} already exists", group=name)
        self._queues.groups[name] = GroupRecord(name, weight, slice_of(latency_class, None))

    def reweigh_group(self, name: str, weight: int) -> None:
        """Change the weight of a group; its lag stays the same."""
        _checks.whole("weight", weight, 1, WEIGHT_MAX)
        self._queues.reweigh_group(self._queues.group(name), weight, self._now)

    def set_mask(self, entity: int, core_mask: int) -> Sequence[Decision]:
        """Set the cores on which an entity may run; 0 allows every core."""
        found = self._queues.entity(entity)
        found.details.core_mask = self._mask(core_mask)
        return self._update_payers(found)

    def pin_work(self, core: int, work: str) -> None:
        """Declare work that the driver does on this core only."""
        self._queues.core(core).pinned_work.add(_checks.text("work", work))

    def unpin_work(self, core: int, work: str) -> None:
        """Remove such a declaration."""
        self._queues.core(core).pinned_work.discard(work)

    def _mask(self, core_mask: int) -> int:
        count = len(self._queues.cores)
        _checks.whole("core_mask", core_mask, 0, (1 << CORES_MAX) - 1)
        if core_mask >> count:
            raise _checks.refuse("core_mask", f"names a core beyond the last one, {count - 1}")
        return core_mask or -1

    # --- contexts --------------------------------------------------------------------------------

    def shortages(self, contexts: Sequence[SchedulingContext]) -> list[Shortage]:
        """What is missing to reserve time for these contexts together. Nothing changes."""
        return list(self._reservations.shortages(contexts))

    def admit(self, spec: SchedulingContext) -> Handle:
        """Admit a context if its reservation fits; return the first handle to it."""
        missing = self.shortages([spec])
        if missing:
            raise _refused(spec, missing)
        self._mask(spec.core_mask)  # a limit reserves no core: the check above does not see its mask
        handle = self._contexts.admit(spec, self._now)
        self._reservations.reserve(spec)
        return handle

    def attenuate(self, handle: Handle, rights: frozenset[Right]) -> Handle:
        """Return a handle to the same context with at most these rights."""
        return self._contexts.attenuate(handle, rights)

    def bind(self, handle: Handle, entity: int) -> Sequence[Decision]:
        """Make a context an entity's own."""
        found = self._queues.entity(entity)
        self._contexts.bind(handle, found)
        return self._update_payers(found)

    def unbind(self, entity: int) -> Sequence[Decision]:
        """Remove an entity's own context."""
        found = self._queues.entity(entity)
        self._contexts.unbind(found)
        return self._update_payers(found)

    def bind_group(self, handle: Handle, group: str) -> Sequence[Decision]:
        """Let a context pay for the members of a group that have none of their own."""
        found = self._queues.group(group)
        self._contexts.bind_group(handle, found)
        return self._update_payers(*found.members.values())

    def bind_path(self, handle: Handle, callee: int) -> Sequence[Decision]:
        """Let a context pay for every call to an entity, instead of the caller's context."""
        found = self._queues.entity(callee)
        self._contexts.bind_path(handle, found)
        return self._update_payers(found)

    def adjust(self, handle: Handle, *, budget: int, period: int) -> None:
        """Change the budget and period of a context from its next refill on, if the new values fit."""
        context = self._contexts.resolve(handle, "adjust")
        wanted = msgspec.structs.replace(context.spec, budget=budget, period=period)
        self._reservations.release(context.context_id)
        missing = self.shortages([wanted])
        self._reservations.reserve(context.spec if missing else wanted)
        if missing:
            raise _refused(wanted, missing)
        context.spec = wanted
        self._contexts.adjust(handle, budget, period, self._now)

    def _revoke(self, event: Revoke, now: int) -> Sequence[Decision]:
        context = self._contexts.revoke(event.context)
        self._reservations.release(context.context_id)
        out: list[Decision] = []
        self._leases.target_gone(context.context_id, now, out)
        self._scheduler.leave_revoked(context, now, out)
        return out

    def _acknowledge(self, event: Acknowledge, _now: int) -> Sequence[Decision]:
        out: list[Decision] = []
        self._contexts.acknowledge(event.context, out)
        return out

    def _update_payers(self, *entities: Entity) -> Sequence[Decision]:
        out: list[Decision] = []
        self._scheduler.update_payers(entities, self._now, out)
        return out

    # --- leases and islands ----------------------------------------------------------------------

    def grant_lease(self, lease: CpuIsolationLease) -> tuple[Handle, Sequence[Decision]]:
        """Grant exclusive cores to one owner, or refuse and name every failed check."""
        out: list[Decision] = []
        return self._leases.grant(lease, self._now, out), out

    def lease(self, handle: Handle) -> CpuIsolationLease:
        """The current state of a lease."""
        return self._leases.resolve(handle).view()

    def _revoke_lease(self, event: RevokeLease, now: int) -> Sequence[Decision]:
        out: list[Decision] = []
        self._leases.revoke(self._leases.resolve(event.lease, "revoke"), now, out)
        return out

    def _release_lease(self, event: ReleaseLease, now: int) -> Sequence[Decision]:
        out: list[Decision] = []
        self._leases.release(self._leases.resolve(event.lease), now, out)
        return out

    def resource_shortages(self, plan: IslandPlan) -> list[Shortage]:
        """What is missing for an island besides time on cores. Nothing changes."""
        return list(self._islands.resource_shortages(plan))

    def admit_island(self, plan: IslandPlan) -> tuple[dict[int, Handle], Sequence[Decision]]:
        """Admit a whole island or refuse it; return a handle with the right `use` for each of its contexts."""
        out: list[Decision] = []
        record = self._islands.admit(plan, self._now, out)
        use = frozenset[Right](("use",))
        return {one.context_id: self._contexts.attenuate(one.handle, use) for one in record.contexts}, out

    def start_island(self, island: int) -> Sequence[Decision]:
        """Start an admitted island: what is bound to its contexts may run from now on."""
        out: list[Decision] = []
        self._islands.start(island, self._now, out)
        return out

    def island(self, island: int) -> RealtimeIsland:
        """The current state of an island, with the evidence for its admission or refusal."""
        return self._islands.get(island).view()

    def misses(self, island: int) -> list[tuple[int, int]]:
        """The latest deadlines that an island missed: the instant and the lateness in ns."""
        return self._islands.get(island).misses.latest()

    def _stop_island(self, event: StopIsland, now: int) -> Sequence[Decision]:
        out: list[Decision] = []
        self._islands.stop(self._islands.get(event.island), now, out)
        return out

    # --- reading ---------------------------------------------------------------------------------

    @property
    def core_count(self) -> int:
        """The number of cores, online or not."""
        return len(self._queues.cores)

    def account(self, entity: int, now: int | None = None) -> ThreadCpuAccount:
        """What an entity has used up to an instant; default: the instant of the last step."""
        return self._queues.entity(entity).account(self._at(now))

    def entity(self, entity: int, now: int | None = None) -> SchedEntity:
        """The scheduling state of an entity at an instant; default: the instant of the last step."""
        return self._queues.view(self._queues.entity(entity), self._at(now))

    def waiting(self, core: int, limit: int) -> list[int]:
        """The numbers of at most `limit` entities that wait in the fair queue of a core, sorted."""
        return self._queues.waiting_keys(self._queues.core(core), limit)

    def group(self, name: str) -> tuple[int, list[int]]:
        """The weight of a group and the numbers of its members."""
        found = self._queues.group(name)
        return found.weight, list(found.members)

    def context(self, context: int) -> SchedulingContext:
        """The current state of a context."""
        return self._contexts.view(self._contexts.get(context), self._now)

    def running(self, core: int) -> int | None:
        """The entity that runs on a core, or None."""
        current = self._queues.core(core).current
        return None if current is None else current.details.delegate.key

    def idle_ns(self, core: int, now: int | None = None) -> int:
        """How long a core has been idle, up to an instant."""
        return self._queues.core(core).total_idle_ns(self._at(now))

    def _at(self, now: int | None) -> int:
        return self._now if now is None else now

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant is broken. Slow: for tests."""
        check_invariants(self._queues, self._placement, self._contexts, self._slices, self._scheduler)

    @property
    def best_effort_ns(self) -> int:
        """Time run without a context, excluding slices in progress."""
        return self._slices.best_effort_ns


def _refused(spec: SchedulingContext, missing: Sequence[Shortage]) -> ContextRefused:
    sentences = [one.sentence() for one in missing]
    what = f"context {spec.context_id} does not fit: {'; '.join(sentences)}"
    return ContextRefused(what, context_id=spec.context_id, missing=sentences)

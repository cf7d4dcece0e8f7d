"""The engine: `step(event, now) -> decisions`. Whole numbers only; no clock, no I/O, no random number.

    machine = Machine(cores=1)
    worker = machine.spawn(weight=2000)
    machine.step(Wake(worker), 0)           Reschedule(core=0)
    machine.step(Tick(0), 0)                Run(core=0, entity=1, until_ns=3_000_000)
    machine.step(Block(worker), 700_000)    Idle(core=0)

The same events at the same instants give the same decisions: that is what the simulator replays and what the
live driver lives by. Instants are nanoseconds on one clock that never goes back.

What happens often goes through `step`. What is arranged (spawn, admit, bind, lease, island) are verbs of their
own, because they answer with a number or a handle; those that may move somebody also return decisions. What
everybody may see is in `account`, `entity`, `context`, `island` and `evidence`: pictures, taken at an instant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec

from rota.cores.accounts import LatencyClass, SchedEntity, ThreadCpuAccount, slice_of
from rota.cores.audit import audit
from rota.cores.calls import Calls
from rota.cores.contexts import Contexts
from rota.cores.cores import Cores
from rota.cores.endings import Endings
from rota.cores.events import (
    Acknowledge,
    Arrange,
    Block,
    Call,
    CloseSession,
    CoreOffline,
    CoreOnline,
    Decision,
    Event,
    Exit,
    ExitGroup,
    ReleaseLease,
    Reply,
    Revoke,
    RevokeLease,
    Reweigh,
    ServiceBack,
    ServiceLost,
    StopIsland,
    Tick,
    Timer,
    UseRule,
    Wake,
)
from rota.cores.evidence import Evidence
from rota.cores.handles import Right
from rota.cores.islands import Capacity, IslandPlan, IslandRecord, Islands
from rota.cores.leases import LeaseRecord, Leases
from rota.cores.orders import Orders
from rota.cores.pictures import account_of, idle_ns_of, picture_of, waiting_on
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import Context, Entity, Group, Ties
from rota.cores.reservations import Reservations, Shortage
from rota.cores.runqueue import RULES, Rule
from rota.cores.timers import Timers
from rota.cores.trace import Trace
from rota.cores.turns import Turns
from rota.errors import ContextExists, ContextInvalid, ContextRefused, InvalidInput
from rota.model.budgets import CORES_MAX, CpuIsolationLease, Handle, RealtimeIsland, SchedulingContext
from rota.model.checks import Checks
from rota.model.work import WEIGHT_MAX, WEIGHT_UNIT

__all__ = ["ENTITIES_MAX", "TIMERS_MAX", "Machine"]

ENTITIES_MAX = 4_000_000
TIMERS_MAX = 64  # things that one `Timer` deals with

_checks = Checks("Machine", ContextInvalid)
_Handler = Callable[[Any, int], Sequence[Decision]]


class Machine:
    """Cores, entities, contexts, leases and islands, and what happens to them."""

    def __init__(
        self,
        *,
        cores: int,
        rule: Rule = "eevdf",
        capacity: Capacity | None = None,
        blocking_ns: int = 0,
        trace: Trace | None = None,
    ) -> None:
        _checks.whole("cores", cores, 1, CORES_MAX)
        _checks.one_of("rule", rule, RULES)
        _checks.whole("blocking_ns", blocking_ns, 0)
        self.evidence = evidence = Evidence()
        self._now = 0
        self.timers: Timers[Hashable] = Timers()  # of which a driver reads `next_at`
        self._contexts = Contexts(evidence, self.timers)
        self._queues = Queues(cores, rule, self._contexts, evidence)
        self._placement = Placement(self._queues, evidence)
        self._turns = Turns(self._queues, self._placement, self.timers, evidence)
        self._cores = Cores(
            self._queues, self._placement, self._contexts, self._turns, timers=self.timers, evidence=evidence
        )
        self._calls = Calls(self._queues, self._placement, self._cores)
        self._leases = Leases(self._queues, self._placement, self._contexts, self._cores, self.timers)
        self._reservations = Reservations(cores, blocking_ns)
        self._islands = Islands(
            capacity or Capacity(),
            contexts=self._contexts,
            reservations=self._reservations,
            leases=self._leases,
            cores=self._cores,
            timers=self.timers,
        )
        self._endings = Endings(
            self._queues,
            self._placement,
            self._cores,
            calls=self._calls,
            leases=self._leases,
            islands=self._islands,
        )
        self.orders = Orders(self._queues, self._leases, evidence)
        handlers = self._all_handlers()
        self._handlers = handlers if trace is None else trace.around(handlers, evidence)

    def _all_handlers(self) -> dict[type, _Handler]:
        return {
            Wake: self._cores.wake,
            Block: self._cores.block,
            Tick: self._cores.tick,
            Timer: self._timer,
            Call: self._calls.call,
            Reply: self._calls.reply,
            Exit: self._endings.exit,
            ExitGroup: self._endings.exit_group,
            CloseSession: self._endings.close_session,
            CoreOffline: self._endings.core_offline,
            CoreOnline: self._endings.core_online,
            Revoke: self._revoke,
            Acknowledge: self._acknowledge,
            RevokeLease: self._revoke_lease,
            ReleaseLease: self._release_lease,
            StopIsland: self._stop_island,
            ServiceLost: self.orders.service_lost,
            ServiceBack: self.orders.service_back,
            Reweigh: self.orders.reweigh,
            UseRule: self.orders.use_rule,
            Arrange: self.orders.arrange,
        }

    # --- events ----------------------------------------------------------------------------------

    def step(self, event: Event, now: int) -> Sequence[Decision]:
        """Take in what happened at an instant, and say what is to be done."""
        if now < self._now:
            raise InvalidInput(f"time went back from {self._now:,} to {now:,} ns", field="now")
        try:
            handler = self._handlers[type(event)]
        except KeyError:
            raise InvalidInput(f"{type(event).__name__} is no event", field="event") from None
        self._now = now
        return handler(event, now)

    @property
    def next_timer_at(self) -> int | None:
        """When the next `Timer` is due, or None."""
        return self.timers.next_at

    def _timer(self, _event: Timer, now: int) -> Sequence[Decision]:
        """Refills, revocations and islands whose instant has come; what is left over is due at once again."""
        out: list[Decision] = []
        for thing in self.timers.take_due(now, TIMERS_MAX):
            if isinstance(thing, Context):
                self._cores.replenish(thing, now, out)
            elif isinstance(thing, LeaseRecord):
                self._leases.time_is_over(thing, now, out)
            elif isinstance(thing, IslandRecord):
                self._islands.look_again(thing, now, out)
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
        """Make an entity, asleep; the answer is its number. A mask of 0 is any core."""
        _checks.whole("entities", len(self._queues.entities) + 1, 1, ENTITIES_MAX)
        _checks.whole("weight", weight, 1, WEIGHT_MAX)
        mask = self._mask(core_mask)
        turn_ns = slice_of(latency_class, slice_ns)
        belongs_to = None if group is None else self._queues.group(group)
        entity = Entity(
            self._queues.new_key(),
            weight,
            turn_ns,
            self._placement.first(mask),
            Ties(latency_class, mask, needs_context),
        )
        entity.last_start_ns = self._now  # whoever never ran counts from its birth
        self._queues.add(entity, belongs_to)
        return entity.key

    def add_group(self, name: str, *, weight: int = WEIGHT_UNIT, latency_class: LatencyClass = "normal") -> None:
        """Make a group: its entities compete as one, and share what its context pays for."""
        _checks.text("group", name)
        _checks.whole("weight", weight, 1, WEIGHT_MAX)
        if name in self._queues.groups:
            raise ContextExists(f"there is a group {name!r} already", group=name)
        self._queues.groups[name] = Group(name, weight, slice_of(latency_class, None))

    def reweigh_group(self, name: str, weight: int) -> None:
        """Give a group another weight; what it is owed stays as it is."""
        _checks.whole("weight", weight, 1, WEIGHT_MAX)
        self._queues.reweigh_group(self._queues.group(name), weight, self._now)

    def set_mask(self, entity: int, core_mask: int) -> Sequence[Decision]:
        """Say on which cores an entity may run; 0 is any."""
        found = self._queues.entity(entity)
        found.ties.core_mask = self._mask(core_mask)
        return self._repaid(found)

    def pin_work(self, core: int, work: str) -> None:
        """Say that the driver does something on this core and nowhere else."""
        self._queues.core(core).pinned_work.add(_checks.text("work", work))

    def unpin_work(self, core: int, work: str) -> None:
        """Say that the driver does it there no more."""
        self._queues.core(core).pinned_work.discard(work)

    def _mask(self, core_mask: int) -> int:
        count = len(self._queues.cores)
        _checks.whole("core_mask", core_mask, 0, (1 << CORES_MAX) - 1)
        if core_mask >> count:
            raise _checks.refuse("core_mask", f"names cores beyond the {count} there are")
        return core_mask or -1

    # --- contexts --------------------------------------------------------------------------------

    @property
    def core_count(self) -> int:
        """How many cores there are, online or not."""
        return len(self._queues.cores)

    def shortages(self, contexts: Sequence[SchedulingContext]) -> list[Shortage]:
        """What would be missing for these contexts to be promised together; nothing changes."""
        return list(self._reservations.shortages(contexts))

    def admit(self, spec: SchedulingContext) -> Handle:
        """Take in a context, if what it promises fits; the answer is the first handle to it."""
        missing = self.shortages([spec])
        if missing:
            raise _refused(spec, missing)
        handle = self._contexts.admit(spec, self._now)
        self._reservations.promise(spec)
        return handle

    def attenuate(self, handle: Handle, rights: frozenset[Right]) -> Handle:
        """A handle to the same context that allows no more than these."""
        return self._contexts.attenuate(handle, rights)

    def bind(self, handle: Handle, entity: int) -> Sequence[Decision]:
        """Make a context an entity's own."""
        found = self._queues.entity(entity)
        self._contexts.bind(handle, found)
        return self._repaid(found)

    def unbind(self, entity: int) -> Sequence[Decision]:
        """Take an entity's own context from it."""
        found = self._queues.entity(entity)
        self._contexts.unbind(found)
        return self._repaid(found)

    def bind_group(self, handle: Handle, group: str) -> Sequence[Decision]:
        """Let a context pay for everybody in a group who has none of their own."""
        found = self._queues.group(group)
        self._contexts.bind_group(handle, found)
        return self._repaid(*found.members.values())

    def bind_path(self, handle: Handle, callee: int) -> None:
        """Let a context pay for every call to an entity, instead of the caller's."""
        self._contexts.bind_path(handle, self._queues.entity(callee))

    def adjust(self, handle: Handle, *, budget: int, period: int) -> None:
        """Give a context another budget and period, from its next refill on, if that fits."""
        context = self._contexts.resolve(handle, "adjust")
        wanted = msgspec.structs.replace(context.spec, budget=budget, period=period)
        self._reservations.end(context.context_id)
        missing = self.shortages([wanted])
        self._reservations.promise(context.spec if missing else wanted)
        if missing:
            raise _refused(wanted, missing)
        context.spec = wanted
        self._contexts.adjust(handle, budget, period, self._now)

    def _revoke(self, event: Revoke, now: int) -> Sequence[Decision]:
        context = self._contexts.revoke(event.context)
        self._reservations.end(context.context_id)
        out: list[Decision] = []
        for entity in list(context.payees.values()):
            self._cores.repay(entity, now, out)
        return out

    def _acknowledge(self, event: Acknowledge, _now: int) -> Sequence[Decision]:
        out: list[Decision] = []
        self._contexts.acknowledge(event.context, out)
        return out

    def _repaid(self, *entities: Entity) -> Sequence[Decision]:
        out: list[Decision] = []
        for entity in entities:
            for place in {entity.key: entity, entity.ties.place.key: entity.ties.place}.values():
                self._cores.repay(place, self._now, out)
        return out

    # --- leases and islands ----------------------------------------------------------------------

    def grant_lease(self, lease: CpuIsolationLease) -> tuple[Handle, Sequence[Decision]]:
        """Give cores to one owner alone, or refuse, naming everything that stands in the way."""
        out: list[Decision] = []
        return self._leases.grant(lease, self._now, out), out

    def lease(self, handle: Handle) -> CpuIsolationLease:
        """A lease as it stands."""
        return self._leases.resolve(handle).picture()

    def _revoke_lease(self, event: RevokeLease, now: int) -> Sequence[Decision]:
        out: list[Decision] = []
        self._leases.revoke(self._leases.resolve(event.lease, "revoke"), now, out)
        return out

    def _release_lease(self, event: ReleaseLease, now: int) -> Sequence[Decision]:
        out: list[Decision] = []
        self._leases.release(self._leases.resolve(event.lease), now, out)
        return out

    def admit_island(self, plan: IslandPlan) -> tuple[dict[int, Handle], Sequence[Decision]]:
        """Take in all of an island or refuse all of it; the answer is a handle to use for each of its contexts."""
        out: list[Decision] = []
        record = self._islands.admit(plan, self._now, out)
        use = frozenset[Right](("use",))
        return {one.context_id: self._contexts.attenuate(one.handle, use) for one in record.contexts}, out

    def start_island(self, island: int) -> None:
        """Let an island run."""
        self._islands.start(island)

    def island(self, island: int) -> RealtimeIsland:
        """An island as it stands, with the evidence on which it was admitted or refused."""
        return self._islands.get(island).picture()

    def misses(self, island: int) -> list[tuple[int, int]]:
        """The latest deadlines that an island missed: when, and by how many ns."""
        return self._islands.get(island).misses.latest()

    def _stop_island(self, event: StopIsland, now: int) -> Sequence[Decision]:
        out: list[Decision] = []
        self._islands.stop(self._islands.get(event.island), now, out)
        return out

    # --- pictures --------------------------------------------------------------------------------

    def account(self, entity: int, now: int | None = None) -> ThreadCpuAccount:
        """What an entity has used up to an instant, of itself the one of the last step."""
        return account_of(self._queues.entity(entity), self._at(now))

    def entity(self, entity: int, now: int | None = None) -> SchedEntity:
        """Where an entity stands at an instant, of itself the one of the last step."""
        return picture_of(self._queues.entity(entity), self._queues, self._at(now))

    def waiting(self, core: int, most: int) -> list[int]:
        """Who waits in the fair queue of a core, or behind its group there; no more than so many, by number."""
        return waiting_on(self._queues.core(core), self._queues, most)

    def group(self, name: str) -> tuple[int, list[int]]:
        """The weight of a group, and who is in it."""
        found = self._queues.group(name)
        return found.weight, list(found.members)

    def context(self, context: int) -> SchedulingContext:
        """A context as it stands now."""
        return self._contexts.picture(self._contexts.get(context), self._now)

    def running(self, core: int) -> int | None:
        """Who runs on a core."""
        current = self._queues.core(core).current
        return None if current is None else current.ties.actor.key

    def idle_ns(self, core: int, now: int | None = None) -> int:
        """For how long a core has had nothing to do, up to an instant."""
        return idle_ns_of(self._queues.core(core), self._at(now))

    def _at(self, now: int | None) -> int:
        return self._now if now is None else now

    def audit(self) -> None:
        """Raise an AssertionError if anything is not as it must be between two steps. Slow: for tests."""
        audit(self._queues, self._placement, self._contexts, self._turns, self._cores)

    @property
    def best_effort_ns(self) -> int:
        """How long entities have run on nobody's budget, turns under way not counted in."""
        return self._turns.best_effort_ns


def _refused(spec: SchedulingContext, missing: Sequence[Shortage]) -> ContextRefused:
    sentences = [one.sentence() for one in missing]
    what = f"context {spec.context_id} does not fit: {'; '.join(sentences)}"
    return ContextRefused(what, context_id=spec.context_id, missing=sentences)

"""The core scheduler: which entity is runnable where, and what changes that. `time_slices` starts and ends slices.

**Ownership.** A runnable entity is in exactly one core's queue, or it runs on that core. A move takes it out of one
queue before adding it to another, so it is never in two.

**One core at a time.** Only an event of a core changes which entity runs on it. Waking an entity for another core adds
it to that core's queue and, if it should preempt, requests a reschedule of that core; at most one request is pending
per core.

**Fast path.** Nearly every wake and block concerns an entity without a group in the normal band, on a busy core. These
take a fast path with few checks; the slow path handles every other case.

**Bounds.** Waking, blocking, ticking and exiting cost a bounded number of heap operations. Ending a waiting entity
marks its heap entry as stale; stale entries are removed when they surface, a few with each new one (`RunQueue`).

Many functions take a `donor`: the entity whose share is scheduled. That is the entity that runs, or during a call the
first caller in the chain (see `records.EntityDetails`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain, islice
from typing import Any

from rota.cores.contexts import SchedulingContexts
from rota.cores.events import (
    Block,
    CoreTick,
    Decision,
    Idle,
    Kill,
    LateActivation,
    Preempt,
    Reschedule,
    RunEntity,
    Wake,
)
from rota.cores.heaps import Timers
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, ContextRecord, CoreRecord, Entity
from rota.cores.runqueue import RunQueue, Schedulable
from rota.cores.telemetry import Counters
from rota.cores.time_slices import TimeSlices, is_urged, slice_start_ns, urged_room_ns
from rota.errors import EntityIllegalTransition, EntityUnknown, RotaError
from rota.model.lifecycle import ENTITY, EntityState

__all__ = ["RELEASES_MAX", "CoreScheduler"]

RELEASES_MAX = 64  # entities that one refill releases in one step

_SLEEPING, _READY = EntityState.SLEEPING, EntityState.READY
_RUNNING, _THROTTLED = EntityState.RUNNING, EntityState.THROTTLED
_NOTHING: tuple[Decision, ...] = ()


class CoreScheduler:
    """Handles wake, block and tick events for the cores of one engine."""

    def __init__(
        self,
        queues: Queues,
        placement: Placement,
        contexts: SchedulingContexts,
        slices: TimeSlices,
        *,
        timers: Timers[Hashable],
        counters: Counters,
    ) -> None:
        self._queues = queues
        self._placement = placement
        self._contexts = contexts
        self._slices = slices
        self._timers = timers
        self._counters = counters
        self._entities = queues.entities
        self.exited_ns = 0  # runtime of entities that have exited
        self.serve_next: Callable[[Entity, int, list[Decision]], None]  # set by `calls`

    # --- events ----------------------------------------------------------------------------------

    def wake(self, event: Wake, now: int) -> Sequence[Decision]:
        """An entity has work to do."""
        try:
            entity = self._entities[event.entity]
        except KeyError:
            raise self.error_for(event.entity, "wake") from None
        if entity.state is not _SLEEPING:
            raise self.error_for(event.entity, "wake")
        entity.woken_at_ns = now
        core = entity.core
        current = core.current
        if (
            self._placement.idle
            or current is None
            or not (entity.on_fast_path and current.on_fast_path and core.is_ordinary)
        ):
            out: list[Decision] = []
            self.make_ready(entity.details.donor, now, out)
            return out
        # fast path: every core is busy, and the entity stays on its own, whose fair queue is not empty
        is_eligible = core.fair.enter(entity, now)
        entity.state = _READY
        if not core.is_stealable:
            self._placement.mark_stealable(core)
        # `should_preempt`, inlined
        if not is_eligible or entity.virtual_time + entity.span >= current.virtual_time + current.span:
            return _NOTHING
        return self.request_reschedule(core)

    def block(self, event: Block, now: int) -> Sequence[Decision]:
        """The running entity waits for something."""
        try:
            entity = self._entities[event.entity]
        except KeyError:
            raise self.error_for(event.entity, "block") from None
        if entity.state is not _RUNNING:
            raise self.error_for(event.entity, "block")
        core = entity.core
        if now >= core.balance_at_ns:
            out: list[Decision] = []
            self._placement.balance_between_slices(core, now, out)
            return [*out, *self.block(event, now)]
        if not (entity.on_fast_path and core.is_ordinary):
            return self._block(entity, now)
        # fast path: it leaves the fair queue, and the next one of the fair queue runs
        entity.voluntary_blocks += 1
        entity.state = _SLEEPING
        began_ns, payer = entity.last_start_ns, entity.payer
        ran_ns = now - began_ns
        entity.runtime_ns += ran_ns
        if payer is None:
            self._slices.best_effort_ns += ran_ns
        else:
            if payer.is_shared:
                self._slices.return_grant(entity, payer, now)
            payer.settle(ran_ns, began_ns, now)
        taken: Any = core.fair.take(now, entity)  # an entity, or the node of a group, which is never on the fast path
        if taken is not None and taken.on_fast_path:
            payer, limit_ns = taken.payer, taken.slice_ns
            # a payer with one entity and enough budget needs no grant: it counts none
            if payer is not None and (payer.is_shared or limit_ns > payer.left):
                limit_ns = payer.grant(limit_ns, now)
            if limit_ns:
                taken.state = _RUNNING
                taken.granted_ns = limit_ns
                core.current = taken
                core.reschedule_pending = False
                self._counters.picks += 1
                return (RunEntity(core.core_id, taken.key, now + limit_ns),)
        core.current = None
        return self.dispatch(core, taken, now)

    def _block(self, entity: Entity, now: int) -> Sequence[Decision]:
        """The slow path of `block`."""
        core = entity.details.donor.core
        missed = self.stop(entity.details.donor, now)
        entity.voluntary_blocks += 1
        entity.state = _SLEEPING
        out: list[Decision] = [] if missed is None else [missed]
        out.extend(self.dispatch(core, None, now))
        if entity.details.callers and entity.details.serving is None:
            self.serve_next(entity, now, out)
        return out

    def tick(self, event: CoreTick, now: int) -> Sequence[Decision]:
        """A core chooses again."""
        core = self._queues.core(event.core)
        self._counters.ticks += 1
        current = core.current
        if current is None:
            if not core.is_online:
                return _NOTHING
            return self.dispatch(core, None, now)
        if now < slice_start_ns(current) + current.granted_ns and not core.reschedule_pending:
            self._counters.ticks_early += 1
            return _NOTHING
        out: list[Decision] = []
        self.end_slice(core, current, now, out)
        return out

    # --- becoming ready --------------------------------------------------------------------------

    def make_ready(self, donor: Entity, now: int, out: list[Decision], *, left: RunQueue | None = None) -> None:
        """Add a runnable share to a core's queue. Its budget is checked when its slice starts.

        `left` is the queue that it left in this step, if it did: then it has not slept.
        """
        core = self._placement.choose_core(donor)
        if donor.on_fast_path and core is donor.core and left is None:
            if not core.fair.weight:
                self._queues.start_at_common_time(core.fair, donor, now)
            core.fair.enter(donor, now)
            donor.state = _READY
        else:
            self._queues.enter(donor, core, now, left=left)
            donor.details.delegate.state = _READY
        self._placement.mark_stealable(core)
        if core.current is None or self._queues.should_preempt(donor, core, now):
            out.extend(self.request_reschedule(core))

    def _wait_for_budget(
        self, donor: Entity, now: int, out: list[Decision], *, left: RunQueue | None, was_running: bool = False
    ) -> None:
        """A runnable share has no budget: continue on another payer if its overrun policy allows, else throttle it.

        If only the one that it was urged by has none left, it continues in its own band.
        """
        payer, delegate = donor.payer, donor.details.delegate
        if is_urged(donor) and not urged_room_ns(donor, now):
            donor.details.urged_by = None
            self._queues.choose_payer(donor)
            self.make_ready(donor, now, out)
            return
        if payer is not None:
            self._contexts.deplete(payer, delegate, now, out, was_running=was_running)
            self._queues.choose_payer(donor)
            if donor.payer is not payer:  # its overrun policy lets it continue
                self.make_ready(donor, now, out, left=left)
                return
        delegate.state = _THROTTLED
        waiting = self._contexts.unpaid if payer is None else payer.throttled
        waiting[donor.key] = donor

    def request_reschedule(self, core: CoreRecord) -> Sequence[Decision]:
        """Request that a core chooses again, unless a request is pending."""
        if core.reschedule_pending:
            self._counters.reschedules_merged += 1
            return _NOTHING
        core.reschedule_pending = True
        self._placement.idle &= ~core.bit  # reserved: the next entity that wakes uses another idle core
        self._counters.reschedules += 1
        return (Reschedule(core.core_id),)

    # --- stopping --------------------------------------------------------------------------------

    def stop(self, donor: Entity, now: int) -> LateActivation | None:
        """The running entity goes to sleep: pause it, and return its missed deadline if its activation is late."""
        payer, ends = donor.payer, donor.band > NORMAL and donor.details.delegate is donor
        missed = self._slices.missed_deadline(donor, now) if ends else None
        if payer is not None and payer.is_draining and payer.island is not None:
            self._timers.set(payer.island, now)
        self.pause(donor, now)
        return missed

    def pause(self, donor: Entity, now: int) -> RunQueue | None:
        """Charge the running share and remove it from its core and its queue; return that queue, as `leave` does."""
        self._slices.charge(donor, now)
        left = self._queues.leave(donor, now)
        self._queues.choose_payer_if_changed(donor)
        return left

    def end_slice(self, core: CoreRecord, donor: Entity, now: int, out: list[Decision]) -> None:
        """End the current slice: requeue the share if it may stay and has budget, then choose again."""
        delegate = donor.details.delegate
        self._slices.charge(donor, now)
        core.reschedule_pending = True  # it chooses below: no request is needed
        at = len(out)
        payer = donor.payer
        depleted = payer is not None and not self._contexts.has_budget(payer, now)
        if depleted or donor.details.payer_changed or not self._placement.cores_for(donor) & core.bit:
            self._leave_core(donor, depleted, now, out)
        else:
            self._queues.put_back(donor, now)
            delegate.state = _READY
            self._placement.mark_stealable(core)
            if not donor.details.allowed & core.bit:  # it stays because none of its own cores is there
                self._placement.displaced[donor.key] = donor
        self._placement.balance(core, now, out)
        chosen = self.dispatch(core, None, now)
        if core.current is not donor:
            self.record_preemption(core, delegate, out, at)
        out.extend(chosen)
        if self._placement.idle and delegate.state is _READY and donor.core is core:
            self._move_to_idle_core(donor, now, out)

    def _move_to_idle_core(self, donor: Entity, now: int, out: list[Decision]) -> None:
        """Move a waiting share to an idle core. While it ran, idle cores could not steal it."""
        core = self._placement.send_to_idle(donor, now, out)
        if core is not None:
            out.extend(self.request_reschedule(core))

    def record_preemption(self, core: CoreRecord, delegate: Entity, out: list[Decision], at: int) -> None:
        """Record that an entity was stopped; insert the decision before the one that starts its successor."""
        delegate.preemptions += 1
        self._counters.preemptions += 1
        out.insert(at, Preempt(core.core_id, delegate.key))

    def _leave_core(self, donor: Entity, depleted: bool, now: int, out: list[Decision]) -> None:
        """Requeue a share whose budget, payer or core is gone after its slice."""
        payer, left = donor.payer, self._queues.leave(donor, now)
        if donor.details.payer_changed:
            self._queues.choose_payer_if_changed(donor)
            self.make_ready(donor, now, out, left=left)
        elif depleted and payer is not None and payer.overrun == "kill":
            self._contexts.deplete(payer, donor.details.delegate, now, out, was_running=True)
            donor.details.delegate.state = _THROTTLED
            donor.details.is_being_killed = True  # the driver ends it and sends its exit
            out.append(Kill(donor.key))
        elif depleted:
            self._wait_for_budget(donor, now, out, left=left, was_running=True)
        else:
            self.make_ready(donor, now, out, left=left)

    # --- running ---------------------------------------------------------------------------------

    def dispatch(self, core: CoreRecord, taken: Schedulable | None, now: int) -> Sequence[Decision]:
        """Start an entity on a free core: the one already taken, else the first that has budget."""
        out: list[Decision] = []
        core.reschedule_pending = True  # it chooses below: no request is needed
        donor = self._slices.entity_of(core, core.fair, taken, now, out) or self._slices.pick(core, now, out)
        while donor is not None:
            limit_ns = self._slices.slice_limit_ns(donor, now)
            if limit_ns:
                out.append(self._slices.begin(core, donor, limit_ns, now))
                return out
            self._wait_for_budget(donor, now, out, left=self._queues.leave(donor, now))
            donor = self._slices.pick(core, now, out)
        self._slices.go_idle(core, now)
        out.append(Idle(core.core_id))
        return out

    # --- changing the payer ---------------------------------------------------------------------------

    def update_payers(self, entities: Iterable[Entity], now: int, out: list[Decision]) -> None:
        """What pays for some entities may have changed: on their own shares, and on those of their callers."""
        shares = {one.key: one for entity in entities for one in (entity, entity.details.donor)}
        for donor in shares.values():
            self.update_payer(donor, now, out)

    def update_payer(self, donor: Entity, now: int, out: list[Decision]) -> None:
        """The payer of a share may have changed: choose it now, or after the current slice, and requeue the share."""
        state = donor.details.delegate.state
        if donor.details.donor is not donor:
            self._queues.choose_payer(donor)  # its owner answers a call on another share
        elif state is _RUNNING:
            donor.details.payer_changed = True
            donor.on_fast_path = False
            out.extend(self.request_reschedule(donor.core))
        elif state is _READY:
            left = self._queues.remove(donor, now)
            self._queues.choose_payer(donor)
            if self._queues.may_stay(donor, left):
                self._queues.enter(donor, donor.core, now, left=left)
            else:
                self.make_ready(donor, now, out, left=left)
        elif state is _THROTTLED:
            if not donor.details.is_being_killed:
                self._contexts.release(donor)
                self._queues.choose_payer(donor)
                self.make_ready(donor, now, out)
        else:
            self._queues.choose_payer(donor)

    def withdraw(self, donor: Entity, now: int) -> RunQueue | None:
        """Remove a share from its queue or core and charge it; return the queue, if it was in one that is not reserved.

        A share that waits for budget no longer does.
        """
        state = donor.details.delegate.state
        if state is _RUNNING:
            return self.pause(donor, now)
        if state is _READY:
            return self._queues.remove(donor, now)
        if state is _THROTTLED:
            self._contexts.release(donor)
        return None

    def replenish(self, context: ContextRecord, now: int, out: list[Decision]) -> None:
        """A refill is due: release the entities that wait for it, a bounded number at a time."""
        if not self._contexts.replenish(context, now):
            return
        waiting = list(islice(chain(context.skipped_by.values(), context.throttled.values()), RELEASES_MAX))
        for donor in waiting:
            context.skipped_by.pop(donor.key, None)
            self.update_payer(donor, now, out)
        if context.throttled or context.skipped_by:
            self._timers.set(context, now)

    def leave_revoked(self, context: ContextRecord, now: int, out: list[Decision]) -> None:
        """A context is revoked: choose another payer for its entities, a bounded number in one step.

        First those that run and those that wait for its refill. The others find no budget when they are picked.
        """
        running = [core.current for core in self._queues.cores if core.current is not None]
        here = [one for one in running if one.payer is context and not one.details.payer_changed]
        waiting = (one for one in chain(context.throttled.values(), context.payees.values()) if one not in running)
        for donor in {one.key: one for one in (*here, *islice(waiting, RELEASES_MAX))}.values():
            self.update_payer(donor, now, out)
        bound = list(islice(context.bound_entities.values(), RELEASES_MAX))
        for entity in bound:
            self._contexts.unbind(entity)
        self.update_payers((one for one in bound if one.details.donor.payer is None), now, out)
        if context.bound_entities or any(
            one not in running for one in islice(context.payees.values(), len(running) + 1)
        ):
            self._timers.set(context, now)

    # --- ending ----------------------------------------------------------------------------------

    def end(self, entity: Entity, now: int, out: list[Decision]) -> None:
        """Remove an entity that runs on its own share, in any state."""
        core, ran = entity.core, entity.state is _RUNNING
        self.withdraw(entity, now)
        self.exited_ns += entity.runtime_ns
        entity.state = EntityState.EXITED
        self._queues.forget(entity)
        if ran:
            out.extend(self.dispatch(core, None, now))

    def error_for(self, key: int, verb: str) -> RotaError:
        """Return the error for a verb that an entity cannot do: it does not exist, or its state does not allow it."""
        entity = self._entities.get(key)
        if entity is None:
            return EntityUnknown(f"entity {key} does not exist or has ended", entity=key)
        return EntityIllegalTransition("entity", key, entity.state, verb, legal=ENTITY.verbs(entity.state))

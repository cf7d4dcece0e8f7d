"""Time slices: choosing the next entity of a core, granting its slice, and charging what it used.

**Choosing.** The reserved queue first (`heaps`), then the entities that the policy service put in front, then the fair
queue (`runqueue`), then the background queue. A core that finds nothing steals (`placement`).

**Granting.** A slice lasts at most the entity's slice length and at most what its payer has left. In the bands above
normal, only the budget and earlier deadlines end a slice.

**Charging.** The time used is charged to exactly one payer when the slice ends. A slice may change hands in the middle
(a caller passes it to its callee): each entity counts its own runtime, and the donor's payer is charged for all of it.

`core_scheduler` decides what happens to entities without budget and after a slice.
"""

from __future__ import annotations

from collections.abc import Hashable

from rota.cores.accounts import SLICE_MAX_NS
from rota.cores.events import Decision, LateActivation, RunEntity
from rota.cores.heaps import Timers
from rota.cores.placement import MOVES_MAX, Placement
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, ContextRecord, CoreRecord, Entity, GroupNode, needs_context
from rota.cores.runqueue import RunQueue, Schedulable
from rota.cores.telemetry import Counters
from rota.model.lifecycle import ContextState, EntityState

__all__ = ["TimeSlices", "add_runtime", "is_urged", "slice_start_ns", "urged_room_ns"]


class TimeSlices:
    """The time slices on the cores of one engine."""

    def __init__(self, queues: Queues, placement: Placement, timers: Timers[Hashable], counters: Counters) -> None:
        self._queues = queues
        self._placement = placement
        self._timers = timers
        self._counters = counters
        self.best_effort_ns = 0  # time run without a context

    # --- choosing --------------------------------------------------------------------------------

    def pick(self, core: CoreRecord, now: int, out: list[Decision]) -> Entity | None:
        """Take the next entity out of a core's queues, or steal one from another core."""
        if not core.is_ordinary:
            entity = core.reserved.take() or self._from_front(core, now)
            core.update_ordinary()
            if entity is not None:
                return entity
        return self._take_or_steal(core, core.fair, now, out) or self._take_or_steal(core, core.background, now, out)

    def _take_or_steal(self, core: CoreRecord, queue: RunQueue, now: int, out: list[Decision]) -> Entity | None:
        """Take the next entity of one queue. What waits in the same one of another core comes before the background."""
        entity = self._take(core, queue, now, out)
        background = queue is core.background
        if entity is None and core.is_online and self._placement.steal(core, now, out, background=background):
            entity = self._take(core, queue, now, out)
        return entity

    def _take(self, core: CoreRecord, queue: RunQueue, now: int, out: list[Decision]) -> Entity | None:
        for _ in range(MOVES_MAX):
            taken = queue.take(now)
            if taken is None:
                return None
            entity = self.entity_of(core, queue, taken, now, out)
            if entity is not None:
                return entity
        return None

    def entity_of(
        self, core: CoreRecord, queue: RunQueue, taken: Schedulable | None, now: int, out: list[Decision]
    ) -> Entity | None:
        """Return the entity to run for a schedulable that was taken: itself, or the next member of its group.

        One that may not run here, because the core was leased meanwhile, is moved instead.
        """
        first = self._queues.first(queue, taken, now)
        if isinstance(first, GroupNode):
            self._placement.bring_member(core, first, now, out)
            if self._placement.should_wait(core, first, now):
                first = self._queues.first(queue, queue.take_another(now), now) or first
        if isinstance(first, GroupNode):
            first = first.inside.take(now)
        if not isinstance(first, Entity):
            return None
        if not core.is_open and not core.bit & self._placement.cores_for(first):
            self._queues.put_back(first, now)
            self._placement.expel(first, now, out)
            return None
        return first

    def _from_front(self, core: CoreRecord, now: int) -> Entity | None:
        """Take the next entity that the policy service put first and that still waits on this core."""
        while core.front:
            entity = self._queues.entities.get(core.front.popleft())
            if entity is None or entity.state is not EntityState.READY:
                continue
            donor = entity.details.donor
            if donor.core is core and donor.band == NORMAL:
                self._queues.start_now(donor, now)
                return donor
        return None

    # --- granting --------------------------------------------------------------------------------

    def slice_limit_ns(self, donor: Entity, now: int) -> int:
        """Return the maximum length of the next slice; 0 without budget."""
        payer = donor.payer
        want_ns = SLICE_MAX_NS if donor.band > NORMAL else self._queues.effective_slice_ns(donor)
        if is_urged(donor):
            want_ns = min(want_ns, urged_room_ns(donor, now))
        if payer is None:
            return 0 if needs_context(donor) else want_ns
        return payer.grant(want_ns, now)

    def begin(self, core: CoreRecord, donor: Entity, limit_ns: int, now: int) -> RunEntity:
        """Start the slice of a share that was taken out of its queue: its delegate runs."""
        delegate = donor.details.delegate
        delegate.state = EntityState.RUNNING
        donor.last_start_ns = delegate.last_start_ns = now
        donor.granted_ns = limit_ns
        core.current = donor
        core.reschedule_pending = False
        self._end_idle(core, now)
        self._counters.picks += 1
        return RunEntity(core.core_id, delegate.key, now + limit_ns)

    def _end_idle(self, core: CoreRecord, now: int) -> None:
        """A core has work again: end its idle time, if it was idle."""
        if core.idle_since_ns is not None:
            core.idle_ns += now - core.idle_since_ns
            core.idle_since_ns = None
            self._placement.idle &= ~core.bit

    def go_idle(self, core: CoreRecord, now: int) -> None:
        """A core found nothing to run."""
        core.reschedule_pending = False
        if core.idle_since_ns is None:
            core.idle_since_ns = now
        self._counters.picks += 1
        self._counters.idles += 1
        if core.is_online:
            self._placement.idle |= core.bit

    # --- charging --------------------------------------------------------------------------------

    def charge(self, donor: Entity, now: int) -> None:
        """Charge the used time to exactly one payer; the core is free afterwards."""
        began_ns = slice_start_ns(donor)
        ran_ns = now - began_ns
        add_runtime(donor.details.delegate, now)
        donor.details.slice_began_ns = None
        donor.core.current = None
        payer = donor.payer
        if is_urged(donor):
            self._charge_urged(donor, ran_ns, now)
        if payer is None or payer.state is ContextState.REVOKED:
            self.best_effort_ns += ran_ns
            return
        if payer.island is not None and self._overruns(payer, donor, ran_ns, now):
            payer.has_overrun = True
            self._timers.set(payer.island, now)
        if payer.is_shared:
            self.return_grant(donor, payer, now)
        # a reservation counts from the activation, so that being delayed once does not delay every later one
        payer.settle(ran_ns, donor.woken_at_ns if donor.band > NORMAL else began_ns, now)

    def return_grant(self, donor: Entity, payer: ContextRecord, now: int) -> None:
        """End the grant of a share that stops; what it did not use may be enough for one that waits."""
        payer.granted -= donor.granted_ns
        if payer.throttled:
            self._timers.set(payer, now)

    def _charge_urged(self, donor: Entity, ran_ns: int, now: int) -> None:
        """A share ran ahead for one that waits: it pays, and the other has so much less of its reservation left."""
        if donor.payer is None or donor.payer.band <= NORMAL:
            self._queues.charge_outside(donor, ran_ns)
        self._set_aside(donor, now - ran_ns, now)
        if not urged_room_ns(donor, now):
            donor.details.urged_by, donor.details.payer_changed = None, True

    def urge(self, donor: Entity, waiting: Entity | None, now: int) -> None:
        """From now on another share, or none, waits for the call that runs on a share."""
        if is_urged(donor) and donor.core.current is donor:
            self._set_aside(donor, slice_start_ns(donor), now)
        donor.details.urged_by, donor.details.urged_from_ns = waiting, now

    @staticmethod
    def _set_aside(donor: Entity, began_ns: int, now: int) -> None:
        waiting = donor.details.urged_by
        if waiting is not None and waiting.payer is not None:
            ran_ns = now - max(began_ns, donor.details.urged_from_ns)
            waiting.payer.set_aside(ran_ns, waiting.woken_at_ns, now)

    @staticmethod
    def _overruns(payer: ContextRecord, donor: Entity, ran_ns: int, now: int) -> bool:
        """Whether a slice used more than its payer had, also if it ends before the tick that would see it."""
        payer.refill(now)
        return ran_ns > payer.room + (donor.granted_ns if payer.is_shared else 0)

    def missed_deadline(self, entity: Entity, now: int) -> LateActivation | None:
        """Return the missed deadline of an activation that ends now, or None."""
        payer = entity.payer
        if payer is None or payer.band <= NORMAL or now <= entity.woken_at_ns + payer.deadline_ns:
            return None
        self._counters.misses += 1
        lateness_ns = now - entity.woken_at_ns - payer.deadline_ns
        if payer.misses is not None:
            payer.misses.record(now, lateness_ns)
        return LateActivation(entity.key, payer.context_id, lateness_ns)


def is_urged(donor: Entity) -> bool:
    """Whether a share runs in the band of another one, which waits for it."""
    return donor.band > NORMAL and (donor.payer is None or donor.payer.band < donor.band)


def urged_room_ns(donor: Entity, now: int) -> int:
    """How long a share may still run in that band: as long as the other one waits and has reserved time left."""
    waiting = donor.details.urged_by
    if waiting is None or waiting.payer is None or waiting.details.delegate.state is not EntityState.CALLING:
        return 0
    waiting.payer.refill(now)
    return max(0, waiting.payer.room)


def add_runtime(delegate: Entity, now: int) -> None:
    """Add the time since an entity last started to its runtime."""
    delegate.runtime_ns += now - delegate.last_start_ns


def slice_start_ns(donor: Entity) -> int:
    """When the current slice of a share began; the share may have changed hands since."""
    at_ns = donor.details.slice_began_ns
    return donor.last_start_ns if at_ns is None else at_ns

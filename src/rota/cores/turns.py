"""A turn on a core: whose it is next, how long it may last, how it begins, and what it cost.

**Choosing.** The reserved line first (`deadlines`), then whom the policy service has put in front, then the fair
queue (`runqueue`), then the background. A core that finds nothing steals (`placement`).

**Lasting.** A turn is granted for one slice, and for no more than what its payer has left. In the bands above normal
it is the budget, and whoever is due sooner, that end a turn.

**Paying.** What was run is charged when the turn ends, to exactly one authority. A turn may change hands in the middle
(a caller hands it to whom it calls): each counts its own stretch, the place pays for all of it.

What becomes of somebody who cannot pay, or whose turn has ended, is decided in `cores`.
"""

from __future__ import annotations

from collections.abc import Hashable

from rota.cores.accounts import SLICE_MAX_NS
from rota.cores.events import DeadlineMissed, Decision, Run
from rota.cores.evidence import Evidence
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, Core, Entity, needs_context
from rota.cores.timers import Timers
from rota.model.lifecycle import ContextState, EntityState

__all__ = ["Turns", "count_stretch", "turn_began"]


class Turns:
    """The turns on the cores of one engine."""

    def __init__(self, queues: Queues, placement: Placement, timers: Timers[Hashable], evidence: Evidence) -> None:
        self._queues = queues
        self._placement = placement
        self._timers = timers
        self._evidence = evidence
        self.best_effort_ns = 0  # ran on nobody's budget

    # --- choosing --------------------------------------------------------------------------------

    def next(self, core: Core, now: int, out: list[Decision]) -> Entity | None:
        """Take whoever goes first out of a core's queues, or out of another core's."""
        if core.has_urgent:
            entity = core.reserved.take() or self._from_front(core, now)
            core.has_urgent = len(core.reserved) > 0 or len(core.front) > 0
            if entity is not None:
                return entity
        queues = self._queues
        entity = queues.take(core.fair, now) or queues.take(core.background, now)
        if entity is None and core.is_online and self._placement.steal(core, now, out):
            entity = queues.take(core.fair, now) or queues.take(core.background, now)
        return entity

    def _from_front(self, core: Core, now: int) -> Entity | None:
        """The next of those whom the policy service has put first and who still wait here."""
        while core.front:
            entity = self._queues.entities.get(core.front.popleft())
            if entity is None or entity.state is not EntityState.READY:
                continue
            place = entity.ties.place
            if place.core is core and place.band == NORMAL:
                self._queues.start_waiting(place, now)
                return place
        return None

    # --- beginning -------------------------------------------------------------------------------

    def limit_ns(self, place: Entity, now: int) -> int:
        """How long somebody may run at once; 0 if nobody pays for it."""
        payer = place.payer
        want_ns = SLICE_MAX_NS if place.band > NORMAL else self._queues.turn_ns(place)
        if payer is None:
            return 0 if needs_context(place) else want_ns
        return payer.grant(want_ns, now)

    def begin(self, core: Core, place: Entity, limit_ns: int, now: int) -> Run:
        """A place that was taken out of its queue has its turn: whoever acts in it runs from now on."""
        actor = place.ties.actor
        actor.state = EntityState.RUNNING
        place.last_start_ns = actor.last_start_ns = now
        place.granted_ns = limit_ns
        core.current = place
        core.is_asked = False
        self.end_idle(core, now)
        self._evidence.picks += 1
        return Run(core.core_id, actor.key, now + limit_ns)

    def end_idle(self, core: Core, now: int) -> None:
        """A core that may have had nothing to do has something."""
        if core.idle_since_ns is not None:
            core.idle_ns += now - core.idle_since_ns
            core.idle_since_ns = None
            self._placement.idle &= ~core.bit

    def go_idle(self, core: Core, now: int) -> None:
        """A core has looked and found nobody."""
        core.is_asked = False
        if core.idle_since_ns is None:
            core.idle_since_ns = now
        self._evidence.picks += 1
        self._evidence.idles += 1
        if core.is_online:
            self._placement.idle |= core.bit

    # --- paying ----------------------------------------------------------------------------------

    def charge(self, place: Entity, now: int) -> None:
        """Count what somebody ran for, against exactly one authority; its core is free now."""
        ran_ns = now - turn_began(place)
        count_stretch(place.ties.actor, now)
        place.ties.turn_at_ns = None
        place.core.current = None
        payer = place.payer
        if payer is None or payer.state is ContextState.REVOKED:
            self.best_effort_ns += ran_ns
            return
        payer.settle(place.granted_ns, ran_ns, place.woken_at_ns, now)
        if payer.throttled:
            self._timers.set(payer, now)

    def missed(self, entity: Entity, now: int) -> DeadlineMissed | None:
        """Whether an activation that ends now is past its deadline, which is counted from when it began."""
        payer = entity.payer
        if payer is None or now <= entity.woken_at_ns + payer.deadline_ns:
            return None
        self._evidence.misses += 1
        lateness_ns = now - entity.woken_at_ns - payer.deadline_ns
        if payer.misses is not None:
            payer.misses.note(now, lateness_ns)
        return DeadlineMissed(entity.key, payer.context_id, lateness_ns)


def count_stretch(actor: Entity, now: int) -> None:
    """Count what somebody who runs has run since it was given the core."""
    actor.runtime_ns += now - actor.last_start_ns


def turn_began(place: Entity) -> int:
    """When the turn of a place began, which may have changed hands since."""
    at_ns = place.ties.turn_at_ns
    return place.last_start_ns if at_ns is None else at_ns
